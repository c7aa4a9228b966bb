//! Dirty-time logs: which transaction groups a device missed while it was away (OpenZFS `module/zfs/vdev.c`).
//!
//! Each leaf has a space map in the MOS whose segments are txgs instead of bytes.

use crate::config::VdevConfig;
use crate::mos::Mos;
use crate::ranges::Ranges;
use std::collections::BTreeMap;
use weir_format::space_map::{SpaceEntries, SpaceEntry, SpaceKind, SpaceMapHeader};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;
use weir_objects::{ObjectError, Place};

/// The inclusive ranges of txgs that each leaf missed, by its GUID. A log that cannot be read counts as everything: such
/// a device is asked last.
pub async fn read_all(rq: &Request, mos: &Mos, tree: &VdevConfig) -> BTreeMap<u64, Vec<(Txg, Txg)>> {
    let mut out = BTreeMap::new();
    for leaf in tree.leaves().into_iter().filter(|l| l.dtl_object != 0) {
        let ranges = match read(rq, mos, ObjectId(leaf.dtl_object)).await {
            Ok(ranges) => ranges,
            Err(error) => {
                tracing::warn!(guid = leaf.guid, %error, "cannot read what a device missed");
                vec![(Txg(0), Txg(u64::MAX))]
            }
        };
        if !ranges.is_empty() {
            out.insert(leaf.guid, ranges);
        }
    }
    out
}

async fn read(rq: &Request, mos: &Mos, id: ObjectId) -> Result<Vec<(Txg, Txg)>, ObjectError> {
    let mut missed = Ranges::default();
    each_segment(rq, mos, id, 0, |kind, _, start, len| match kind {
        SpaceKind::Alloc => drop(missed.add(start, len)),
        SpaceKind::Free => drop(missed.remove(start, len)),
    })
    .await?;
    Ok(missed.iter().map(|(start, len)| (Txg(start), Txg(start + len - 1))).collect())
}

/// Plays a space map: kind, vdev, start and length of each segment. Gives the header.
pub async fn each_segment(
    rq: &Request,
    mos: &Mos,
    id: ObjectId,
    shift: u32,
    mut each: impl FnMut(SpaceKind, Option<u32>, u64, u64),
) -> Result<SpaceMapHeader, ObjectError> {
    let object = mos.set.object(rq, id).await?;
    let place = Place { objset: mos.set.id(), object: id, level: 0, block: 0 };
    let decode = |error| ObjectError::Decode { place, error };
    let header = SpaceMapHeader::decode(object.dnode.bonus(), object.dnode.endian).map_err(decode)?;
    // A block at a time: entries never straddle blocks, and a map of a large pool is long.
    let block = object.block_bytes();
    let mut at = 0;
    while at < header.length_bytes {
        let bytes = mos.set.read(rq, &object, at, block as usize, header.length_bytes).await?;
        if bytes.is_empty() {
            break;
        }
        for entry in SpaceEntries::new(&bytes, object.dnode.endian, shift) {
            if let SpaceEntry::Segment(s) = entry.map_err(decode)? {
                each(s.kind, s.vdev, s.offset_bytes, s.length_bytes);
            }
        }
        at += bytes.len() as u64;
    }
    Ok(header)
}
