//! Live lists (`feature@livelist`): each block that a clone allocated since it was made, and each of these that it freed
//! again, so that a destroyed clone can be freed without a walk through its tree.
//!
//! A live list has the form of a dead list ([`crate::deadlist`]); each of its parts is a list of pointers in the order of
//! events. A block that was freed stands there twice, in one part: what has no such second entry is still allocated. A
//! block that several files share, or that is deduplicated, stands there as often as it is used.
//!
//! ```text
//!   part:   alloc A · alloc B · free A · alloc C · alloc A'   (A' lies where A did)
//!   left:             B                  C         A'
//! ```
//!
//! Weir keeps no live lists: it removes those of the clones in a pool that it opens for writing. Lists of clones that were
//! destroyed already (`deleted_clones` in the MOS's directory) tell what is still to be freed of them.
//!
//! Source: OpenZFS `module/zfs/dsl_deadlist.c` (`dsl_process_sub_livelist`), `spa.c` (`spa_livelist_delete_cb`).

use crate::bpobj::Walk;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::error::ObjectError;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::zap::{self, Zap};
use weir_format::dsl::pool;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

/// Blocks that one part is believed to leave allocated; OpenZFS begins a new part at 500,000 entries.
const MAX_BLOCKS: usize = 1 << 22;
/// Destroyed clones that are believed to wait.
const MAX_CLONES: usize = 1 << 20;

/// The live lists of destroyed clones, for [`crate::deadlist::lists`] to tell their parts.
///
/// # Errors
/// What reading them meets.
pub async fn of_deleted_clones(rq: &Request, mos: &Arc<ObjectSet>) -> Result<Vec<ObjectId>, ObjectError> {
    let found = zap::lookup_word(rq, mos, ObjectId(pool::DIRECTORY_OBJECT), pool::DELETED_CLONES).await?;
    let Some(id) = found.filter(|id| *id != 0).map(ObjectId) else { return Ok(Vec::new()) };
    let entries = Zap::open(rq, mos, id).await?.all(rq, MAX_CLONES).await?;
    Ok(entries.iter().filter_map(|entry| entry.value.first()).map(ObjectId).collect())
}

/// The blocks of one part that are allocated, each as often as it is used.
///
/// # Errors
/// [`ObjectError::Corrupt`] for a part longer than there can be, and what reading it meets.
pub async fn allocated(rq: &Request, mos: &Arc<ObjectSet>, part: ObjectId) -> Result<Vec<BlockPointer>, ObjectError> {
    // By the address of the first copy.
    let mut left: BTreeMap<(u32, u64), (BlockPointer, u64)> = BTreeMap::new();
    let mut walk = Walk::new(part);
    while let Some(pointers) = walk.next(rq, mos).await? {
        for pointer in pointers {
            let Some(first) = pointer.dvas().next().map(|dva| (dva.vdev, dva.offset_bytes)) else { continue };
            if pointer.is_free_marked() {
                match left.get_mut(&first) {
                    Some((_, uses)) if *uses > 1 => *uses -= 1,
                    _ => drop(left.remove(&first)),
                }
            } else {
                let (last, uses) = left.entry(first).or_insert((pointer, 0));
                (*last, *uses) = (pointer, *uses + 1);
            }
        }
        if left.len() > MAX_BLOCKS {
            return Err(ObjectError::Corrupt {
                place: mos.place(part, 0, 0),
                why: "a live list longer than there can be",
            });
        }
    }
    Ok(left.into_values().flat_map(|(pointer, uses)| (0..uses).map(move |_| pointer)).collect())
}
