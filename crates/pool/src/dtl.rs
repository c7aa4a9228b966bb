//! Dirty-time logs: which transaction groups a device missed while it was away (OpenZFS `module/zfs/vdev.c`).
//!
//! Each leaf has a space map in the MOS whose segments are txgs instead of bytes.

use crate::allocated::each_segment;
use crate::config::VdevConfig;
use crate::mos::Mos;
use crate::ranges::Ranges;
use std::collections::BTreeMap;
use weir_dmu::ObjectError;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;

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
    let mut each = |s: SpaceSegment| match s.kind {
        SpaceKind::Alloc => drop(missed.add(s.offset_bytes, s.length_bytes)),
        SpaceKind::Free => drop(missed.remove(s.offset_bytes, s.length_bytes)),
    };
    each_segment(rq, mos, id, 0, &mut each).await?;
    Ok(missed.iter().map(|(start, len)| (Txg(start), Txg(start + len - 1))).collect())
}
