//! Invariants of dead lists and lists of block pointers: sums, and births in the order of the keys.
//!
//! ```text
//!   dead list   sums of its lists · blocks of a list are born after its key, and not after the next key
//!   list        bytes and sizes: sums over its pointers and the lists below it
//! ```
//!
//! Source: OpenZFS `module/zfs/dsl_deadlist.c` (`dsl_deadlist_insert`), `bpobj.c` (`bpobj_enqueue`,
//! `bpobj_enqueue_subobj`).

use super::{Part, Report};
use crate::open::Pool;
use std::collections::BTreeMap;
use weir_dmu::{CycleGuard, DataBlocks, ErrorLocation, ObjectError};
use weir_dsl::bpobj::Sums;
use weir_dsl::deadlist;
use weir_format::dsl::{Bpobj, Deadlist};
use weir_format::{BlockPointer, Cursor, DecodeError, ObjectId, ObjectType, Txg};
use weir_machine::Request;

/// Sums of a dead list.
#[derive(Clone, Debug, Default)]
pub(super) struct Dead {
    /// Sums over all blocks.
    pub sums: Sums,
    /// Sums over the blocks of each key.
    by_key: BTreeMap<Txg, Sums>,
}

impl Dead {
    /// Bytes of the blocks that were born after `after`, which must be a key.
    pub fn born_after(&self, after: Txg) -> Option<u64> {
        if !self.by_key.contains_key(&after) {
            return None;
        }
        Some(self.by_key.range(after..).fold(0u64, |sum, (_, list)| sum.wrapping_add(list.used_bytes)))
    }
}

/// Checks the dead list of a dataset whose previous snapshot was made in `until`, and returns its sums.
///
/// # Errors
/// [`ObjectError`] if a list cannot be read.
pub(super) async fn check(
    rq: &Request,
    pool: &Pool,
    id: ObjectId,
    until: Txg,
    report: &mut Report,
) -> Result<Dead, ObjectError> {
    let mos = &pool.mos.set;
    let place = format!("dead list {id}");
    let object = mos.object(rq, id).await?;
    if object.dnode.object_type == ObjectType::BPOBJ {
        // Older than pool version 26: one list.
        let sums = check_list(rq, pool, id, (Txg(0), until), report).await?;
        return Ok(Dead { sums, by_key: BTreeMap::new() });
    }
    let bad = |error| ObjectError::Decode { place: place_of(pool, id), error };
    let header = Deadlist::decode(object.dnode.bonus(), object.dnode.endian).map_err(bad)?;
    let lists = deadlist::lists(rq, mos, id).await?;
    let ends = lists.keys().skip(1).copied().chain([until.max(lists.keys().next_back().copied().unwrap_or(until))]);
    let mut dead = Dead::default();
    for ((key, list), end) in lists.iter().zip(ends) {
        let sums = check_list(rq, pool, *list, (*key, end), report).await?;
        dead.sums += sums;
        dead.by_key.insert(*key, sums);
    }
    let Deadlist { used_bytes, compressed_bytes, uncompressed_bytes } = header;
    let own = Sums { used_bytes, compressed_bytes, uncompressed_bytes };
    report.demand(own == dead.sums, Part::Deadlist, &place, || format!("{own:?}, its lists have {:?}", dead.sums));
    Ok(dead)
}

fn place_of(pool: &Pool, object: ObjectId) -> ErrorLocation {
    ErrorLocation { objset: pool.mos.set.id(), object, level: 0, block: 0 }
}

/// Checks a list and all lists below it; their blocks must be born after the first and not after the second of
/// `births`. Returns its sums as stored in its header.
async fn check_list(
    rq: &Request,
    pool: &Pool,
    id: ObjectId,
    births: (Txg, Txg),
    report: &mut Report,
) -> Result<Sums, ObjectError> {
    let mut to_read = vec![id];
    let mut trail = CycleGuard::default();
    let mut own = Sums::default();
    while let Some(list) = to_read.pop() {
        trail.step(&pool.mos.set, list)?;
        let (header, below) = check_one(rq, pool, list, births, report).await?;
        if list == id {
            own = sums_of(&header);
        }
        to_read.extend(below);
    }
    Ok(own)
}

fn sums_of(header: &Bpobj) -> Sums {
    let (compressed_bytes, uncompressed_bytes) = header.sizes.unwrap_or_default();
    Sums { used_bytes: header.bytes, compressed_bytes, uncompressed_bytes }
}

async fn header_of(rq: &Request, pool: &Pool, id: ObjectId) -> Result<Bpobj, ObjectError> {
    let object = pool.mos.set.object(rq, id).await?;
    let bad = |error: DecodeError| ObjectError::Decode { place: place_of(pool, id), error };
    Bpobj::decode(object.dnode.bonus(), object.dnode.endian).map_err(bad)
}

/// Checks one list: its sums are those of its pointers and of the lists directly below it, which it returns.
async fn check_one(
    rq: &Request,
    pool: &Pool,
    id: ObjectId,
    (after, until): (Txg, Txg),
    report: &mut Report,
) -> Result<(Bpobj, Vec<ObjectId>), ObjectError> {
    let (set, place) = (&pool.mos.set, format!("list of block pointers {id}"));
    let header = header_of(rq, pool, id).await?;
    let object = set.object(rq, id).await?;
    let per_block = object.block_bytes() / BlockPointer::SIZE as u64;
    let mut sums = Sums::default();
    let mut outside = 0u64;
    let mut count = 0u64;
    let mut blocks = DataBlocks::of(set, &object);
    while let Some(block) = blocks.next(rq).await? {
        let left = header.pointers.saturating_sub(block.saturating_mul(per_block)).min(per_block);
        let Some((bytes, endian)) = set.reader().read_ordered_block(rq, &object, block).await?.filter(|_| left > 0)
        else {
            break;
        };
        let mut cursor = Cursor::new(&bytes, endian, "list of block pointers");
        for _ in 0..left {
            let bad = |error: DecodeError| ObjectError::Decode { place: place_of(pool, id), error };
            let pointer = BlockPointer::decode(&mut cursor).map_err(bad)?;
            count += 1;
            sums += Sums::of(&pointer, &|pointer| pool.blocks.dsize_bytes(pointer));
            outside += u64::from(pointer.birth() <= after || pointer.birth() > until);
        }
    }
    report.demand(outside == 0, Part::Deadlist, &place, || {
        format!("{outside} blocks that were not born in txgs {after} to {until}")
    });
    report.demand(count == header.pointers, Part::Deadlist, &place, || {
        format!("{} pointers, {count} are there", header.pointers)
    });
    let mut below = Vec::new();
    if let Some((lists, number)) = header.sub_objects.filter(|(_, number)| *number > 0) {
        below = pool.mos.words(rq, lists, number).await?.into_iter().map(ObjectId).collect();
        for list in &below {
            sums += sums_of(&header_of(rq, pool, *list).await?);
        }
    }
    let own = sums_of(&header);
    // Old headers have only bytes.
    if header.sizes.is_none() {
        (sums.compressed_bytes, sums.uncompressed_bytes) = (0, 0);
    }
    report.demand(own == sums, Part::Deadlist, &place, || format!("{own:?}, its pointers and lists have {sums:?}"));
    Ok((header, below))
}
