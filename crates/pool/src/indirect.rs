//! Mappings of removed vdevs (OpenZFS `module/zfs/vdev_indirect_mapping.c`): the present addresses of their blocks.
//!
//! The mapping of the last removal is read first, because a later removal may have moved the mapping of an earlier one.

use crate::config::{VdevConfig, VdevKind};
use crate::mos::Mos;
use std::sync::Arc;
use weir_blocks::Tree;
use weir_dmu::{ErrorLocation, ObjectError};
use weir_format::indirect::{MappingEntry, MappingHeader};
use weir_format::{Cursor, ObjectId};
use weir_machine::Request;

/// Reads the mapping of one removed vdev, in the order of its source offsets.
pub async fn mapping(rq: &Request, mos: &Mos, id: ObjectId) -> Result<(MappingHeader, Vec<MappingEntry>), ObjectError> {
    let object = mos.set.object(rq, id).await?;
    let place = ErrorLocation { objset: mos.set.id(), object: id, level: 0, block: 0 };
    let decode = |error| ObjectError::Decode { place, error };
    let header = MappingHeader::decode(object.dnode.bonus(), object.dnode.endian).map_err(decode)?;
    let len = header.entries.saturating_mul(MappingEntry::SIZE as u64).min(object.span_bytes());
    let bytes = mos.bytes(rq, &object, len).await?;
    let mut c = Cursor::new(&bytes, object.dnode.endian, "indirect mapping");
    let mut entries = Vec::with_capacity(bytes.len() / MappingEntry::SIZE);
    let mut end = 0;
    while c.remaining() >= MappingEntry::SIZE {
        let entry = MappingEntry::decode(&mut c).map_err(decode)?;
        if entry.source_bytes < end {
            // Two entries for one range could double the number of lookups with each mapping in a chain.
            return Err(ObjectError::Corrupt { place, why: "two places for the same space of a removed vdev" });
        }
        end = entry.source_end_bytes();
        entries.push(entry);
    }
    Ok((header, entries))
}

/// The removed vdevs, the last one first.
pub fn newest_first(tree: &VdevConfig) -> Vec<&VdevConfig> {
    let all: Vec<&VdevConfig> = tree.children.iter().filter(|v| v.kind == VdevKind::Indirect).collect();
    let has_next = |v: &&VdevConfig| all.iter().any(|o| o.prev_indirect_vdev == Some(v.id));
    let mut out: Vec<&VdevConfig> = Vec::new();
    let mut next = all.iter().copied().find(|v| !has_next(v));
    while let Some(v) = next.filter(|v| !out.iter().any(|o| o.id == v.id)) {
        out.push(v);
        next = all.iter().copied().find(|o| v.prev_indirect_vdev == Some(o.id));
    }
    // A malformed chain must not hide a vdev.
    for v in &all {
        if !out.iter().any(|o| o.id == v.id) {
            out.push(v);
        }
    }
    out
}

/// Adds the mappings of all removed vdevs to `tree` and to the tree below `mos`, because an earlier mapping may be on a
/// vdev that was removed later.
pub async fn load(rq: &Request, mos: &Mos, config: &VdevConfig, tree: &Arc<Tree>) -> Result<(), ObjectError> {
    for vdev in newest_first(config).into_iter().filter(|v| v.indirect_object != 0) {
        let (_, entries) = mapping(rq, mos, ObjectId(vdev.indirect_object)).await?;
        let id = vdev.id as u32;
        mos.set.cache().blocks().tree().set_mapping(id, &entries);
        tree.set_mapping(id, &entries);
    }
    Ok(())
}
