//! Livelists (`feature@livelist`): each block that a clone allocated since it was created, and each of these that it
//! freed, so that a destroyed clone can be freed without a walk through its tree.
//!
//! A livelist has the form of a deadlist ([`crate::deadlist`]); each of its parts is a list of pointers in the order of
//! events. A block that was freed has two entries in one part: a block without the second entry is still allocated. A
//! block that several files share, or that is deduplicated, has one entry per use.
//!
//! ```text
//!   part:   alloc A · alloc B · free A · alloc C · alloc A'   (A' has A's address)
//!   left:             B                  C         A'
//! ```
//!
//! Weir does not maintain livelists: it removes those of the clones in a pool that it imports for writing. Livelists of
//! destroyed clones (`deleted_clones` in the MOS's directory) name the blocks of the clones that are still to free.
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

/// Maximum accepted number of allocated blocks in one part; OpenZFS begins a new part at 500,000 entries.
const MAX_BLOCKS: usize = 1 << 22;
/// Maximum accepted number of destroyed clones that wait to be freed.
const MAX_CLONES: usize = 1 << 20;

/// The livelists of destroyed clones; [`crate::deadlist::lists`] returns their parts.
///
/// # Errors
/// Errors of reading them.
pub async fn of_deleted_clones(rq: &Request, mos: &Arc<ObjectSet>) -> Result<Vec<ObjectId>, ObjectError> {
    let found = zap::lookup_word(rq, mos, ObjectId(pool::DIRECTORY_OBJECT), pool::DELETED_CLONES).await?;
    let Some(id) = found.filter(|id| *id != 0).map(ObjectId) else { return Ok(Vec::new()) };
    let entries = Zap::open(rq, mos, id).await?.all(rq, MAX_CLONES).await?;
    Ok(entries.iter().filter_map(|entry| entry.value.first()).map(ObjectId).collect())
}

/// The blocks of one part that are allocated, each once per use.
///
/// # Errors
/// [`ObjectError::Corrupt`] for a part that is too long, and errors of reading it.
pub async fn allocated(rq: &Request, mos: &Arc<ObjectSet>, part: ObjectId) -> Result<Vec<BlockPointer>, ObjectError> {
    // Keyed by the address of the first copy.
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
                why: "a livelist with more blocks than the maximum",
            });
        }
    }
    Ok(left.into_values().flat_map(|(pointer, uses)| (0..uses).map(move |_| pointer)).collect())
}
