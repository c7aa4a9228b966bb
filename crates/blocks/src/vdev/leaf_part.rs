//! Free space of a vdev on one of its leaves: discarded, or filled with a pattern.
//!
//! ```text
//!   range of a top-level vdev ─► mirror: the same range of each leaf
//!                             └► RAID-Z: the sectors of each leaf in rows that are in the range
//! ```
//!
//! The caller sees to it that nothing is allocated there meanwhile ([`crate::FreeParts`]).

use super::leaf::{Leaf, on_device};
use super::{Body, LeafHandle, Place, Vdev};
use crate::error::BlockError;
use bytes::Bytes;
use std::ops::Range;

/// The part of a range of a vdev that is on the leaf with that GUID. `None` if the leaf is not below the vdev, or the vdev is a
/// dRAID one.
fn part_on(vdev: &Vdev, guid: u64, range: Range<u64>) -> Option<Range<u64>> {
    match &vdev.body {
        Body::Leaf(leaf) => leaf.is_named(guid).then_some(range),
        Body::Mirror(children) => children.iter().find_map(|child| part_on(child, guid, range.clone())),
        // The places of sectors change: no part of it may be filled or discarded.
        Body::Raidz(vdev) if vdev.reflow.is_some() => Some(0..0),
        Body::Raidz(vdev) => {
            let mut children = vdev.children.iter().enumerate();
            children.find_map(|(i, child)| part_on(child, guid, vdev.part_of(i as u64, &range)))
        }
        _ => None,
    }
}

impl LeafHandle<'_> {
    /// The part of a range of top-level vdev `vdev` that is on this leaf, in the leaf's allocatable space. `None` if the leaf
    /// is not below the vdev, or the vdev is a dRAID one.
    pub fn part_of(&self, vdev: u32, range: &Range<u64>) -> Option<Range<u64>> {
        let tops = self.tree.version();
        tops.get(vdev).and_then(|top| part_on(&top.vdev, self.leaf.guid(), range.clone()))
    }

    /// Discards a part of the leaf that nothing uses. Returns the bytes that the disk discarded; 0 if it does not support that.
    ///
    /// # Errors
    /// If the pool is not open for writing, or the leaf is not in service.
    pub async fn discard(&self, part: Range<u64>) -> Result<u64, BlockError> {
        let _operation = self.tree.begin()?;
        if !self.leaf.present() {
            return Err(absent(part.start));
        }
        Ok(self.leaf.discard(part).await)
    }

    /// Fills a part of the leaf that nothing uses with a pattern, by writes of its length.
    ///
    /// # Errors
    /// If the pool is not open for writing, the leaf is not in service, or a write fails.
    pub async fn fill(&self, part: Range<u64>, pattern: &Bytes) -> Result<(), BlockError> {
        debug_assert!(!pattern.is_empty() && part.start <= part.end);
        let _operation = self.tree.begin()?;
        let leaf: &Leaf = &self.leaf;
        let mut at = part.start;
        while at < part.end {
            let len = (part.end - at).min(pattern.len() as u64);
            let disk = leaf.disk().ok_or_else(|| absent(at))?;
            let written = disk.write(on_device(at), pattern.slice(..len as usize)).await;
            written.map_err(|error| leaf.error(Place::new(0, at), error))?;
            at += len;
        }
        debug_assert!(at == part.end, "no write goes beyond the part");
        Ok(())
    }
}

fn absent(offset: u64) -> BlockError {
    BlockError::NotWritable { vdev: 0, offset, what: "a device that is out of service" }
}
