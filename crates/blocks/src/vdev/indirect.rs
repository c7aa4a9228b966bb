//! Indirect vdevs, which remain after device removal. A sorted map has the present address of each range.
//!
//! A block may be split into segments that were allocated separately. Then only the whole block has a checksum. If it
//! is wrong, the copies of the segments (the sides of mirrors) are combined until the checksum is right, at most
//! [`MAX_COMBINATIONS`] times.
//!
//! Source: OpenZFS `module/zfs/vdev_indirect.c`, theory comment.

use super::mapping::{Mapping, Piece};
use super::{Body, Place, Tree, VdevRead, Verify};
use crate::error::{BlockError, note};
use std::ops::Range;
use std::sync::OnceLock;
use weir_format::indirect::MappingEntry;
use weir_machine::Buf;

/// Maximum number of combinations of copies that are tried for one block.
const MAX_COMBINATIONS: usize = 4096;
/// Maximum length of a chain of removed vdevs (and of spares that replace each other).
pub(super) const MAX_HOPS: u8 = 64;

/// Parts of a range of a top-level vdev: those on concrete vdevs, and those on removed ones.
#[derive(Debug, Default)]
pub(crate) struct Remapped {
    pub there: Vec<(u32, Range<u64>)>,
    pub removed: Vec<(u32, Range<u64>)>,
}

impl Tree {
    /// Follows a range over all removals (`vdev_indirect_remap`).
    pub(crate) fn remap(&self, vdev: u32, range: Range<u64>) -> Result<Remapped, BlockError> {
        let mut out = Remapped::default();
        self.remap_at(Place::new(vdev, range.start), range, &mut out)?;
        Ok(out)
    }

    /// Whether a top-level vdev exists and was not removed.
    pub(crate) fn is_concrete(&self, vdev: u32) -> bool {
        let tops = self.version();
        tops.get(vdev).is_some_and(|top| !matches!(top.vdev.body, Body::Indirect(_)))
    }

    fn remap_at(&self, place: Place, range: Range<u64>, out: &mut Remapped) -> Result<(), BlockError> {
        let tops = self.version();
        let Body::Indirect(removed) = &tops.at(place)?.vdev.body else {
            out.there.push((place.vdev, range));
            return Ok(());
        };
        let len = range.end.saturating_sub(range.start);
        out.removed.push((place.vdev, range));
        for piece in removed.find(place, place.offset, len)? {
            let there = Place { vdev: piece.vdev, offset: piece.offset, hops: place.hops + 1 };
            self.remap_at(there, piece.offset..piece.offset.saturating_add(piece.len), out)?;
        }
        Ok(())
    }
}

/// A removed vdev.
#[derive(Default)]
pub(crate) struct Indirect {
    map: OnceLock<Mapping>,
}

impl From<Mapping> for Indirect {
    fn from(map: Mapping) -> Self {
        Indirect { map: OnceLock::from(map) }
    }
}

impl Indirect {
    /// Sets the map, once; false if it is set already, or an entry cannot be in one.
    pub fn set(&self, map: &[MappingEntry]) -> bool {
        Mapping::of(map).is_some_and(|map| self.map.set(map).is_ok())
    }

    fn find(&self, place: Place, offset: u64, len: u64) -> Result<Vec<Piece>, BlockError> {
        let Place { vdev, offset: at, hops } = place;
        if hops >= MAX_HOPS {
            return Err(BlockError::InvalidPointer {
                vdev,
                offset: at,
                field: "chain of removed devices",
                value: hops.into(),
            });
        }
        let unknown = "a removed vdev whose map is not loaded";
        let map = self.map.get().ok_or(BlockError::Unsupported { vdev, offset: at, what: unknown })?;
        let field = "offset (not in the map of the removed vdev)";
        map.pieces(offset, len).ok_or(BlockError::InvalidPointer { vdev, offset: at, field, value: offset })
    }

    pub async fn read(
        &self,
        tree: &Tree,
        job: &VdevRead<'_>,
        place: Place,
        offset: u64,
        len: u64,
        verify: Option<Verify<'_>>,
    ) -> Result<Buf, BlockError> {
        let pieces = self.find(place, offset, len)?;
        let prove = |bytes: &[u8]| verify.map_or(Ok(()), |p| p(bytes));
        let there = |piece: &Piece| Place { vdev: piece.vdev, offset: piece.offset, hops: place.hops + 1 };
        if let [piece] = &pieces[..] {
            return tree.read(job, there(piece), len, &prove).await;
        }
        // A segment has no checksum of its own, so it repairs nothing.
        let job = &VdevRead { self_heals: false, ..*job };
        let mut block = job.pool.take(len as usize);
        let mut worst = None;
        let mut at = 0;
        for piece in &pieces {
            match tree.read(job, there(piece), piece.len, &|_| Ok(())).await {
                Ok(buf) => block.as_mut()[at..at + piece.len as usize].copy_from_slice(buf.as_ref()),
                Err(error) => note(&mut worst, error),
            }
            at += piece.len as usize;
        }
        if let Some(error) = worst {
            return Err(error);
        }
        let Err(mut fault) = prove(block.as_ref()) else { return Ok(block) };
        let mut copies = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            copies.push(tree.copies(job, there(piece), piece.len).await);
        }
        for choice in combinations(&copies.iter().map(Vec::len).collect::<Vec<_>>()).take(MAX_COMBINATIONS) {
            let mut at = 0;
            for (copies, &pick) in copies.iter().zip(&choice) {
                let copy = copies[pick].as_ref();
                block.as_mut()[at..at + copy.len()].copy_from_slice(copy);
                at += copy.len();
            }
            match prove(block.as_ref()) {
                Ok(()) => return Ok(block),
                Err(error) => fault = error,
            }
        }
        Err(BlockError::Corrupt { vdev: place.vdev, offset: place.offset, fault })
    }

    /// Returns all copies of a range that was not split.
    pub async fn copies(&self, tree: &Tree, job: &VdevRead<'_>, place: Place, offset: u64, len: u64) -> Vec<Buf> {
        match self.find(place, offset, len).as_deref() {
            Ok([piece]) => {
                let there = Place { vdev: piece.vdev, offset: piece.offset, hops: place.hops + 1 };
                tree.copies(&VdevRead { self_heals: false, ..*job }, there, len).await
            }
            _ => self.read(tree, job, place, offset, len, None).await.into_iter().collect(),
        }
    }
}

/// Returns every way to choose one of `counts[i]` for each i.
fn combinations(counts: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let counts = counts.to_vec();
    let mut next = counts.iter().all(|&c| c > 0).then(|| vec![0; counts.len()]);
    std::iter::from_fn(move || {
        let this = next.take()?;
        let mut following = this.clone();
        for (digit, &count) in following.iter_mut().zip(&counts) {
            if *digit + 1 < count {
                *digit += 1;
                next = Some(following);
                break;
            }
            *digit = 0;
        }
        Some(this)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vdev::{VdevKind, VdevSpec};
    use weir_format::Dva;

    fn entry(source_bytes: u64, len: u64, vdev: u32, offset_bytes: u64) -> MappingEntry {
        MappingEntry { source_bytes, target: Dva { vdev, offset_bytes, asize_bytes: len, gang: false, grid: 0 } }
    }

    #[test]
    fn a_range_is_followed_over_all_removals() {
        let disk = |id| VdevSpec::leaf(id, id + 10, "d", None).top(9, 1 << 20);
        let removed = |id| VdevSpec::inner(id, id + 10, "r", VdevKind::Indirect, Vec::new()).top(9, 1 << 20);
        let tree =
            Tree::new(vec![disk(0), removed(1), removed(2)], &weir_sim::SimWorld::new(1).machine().clock).unwrap();
        assert!(tree.set_mapping(1, &[entry(0x1000, 0x1000, 2, 0x4000), entry(0x2000, 0x1000, 0, 0x9000)]));
        assert!(tree.set_mapping(2, &[entry(0x4000, 0x2000, 0, 0x200)]));
        let remapped = tree.remap(1, 0x1800..0x2400).unwrap();
        assert_eq!(remapped.there, [(0, 0xa00..0x1200), (0, 0x9000..0x9400)]);
        assert_eq!(remapped.removed, [(1, 0x1800..0x2400), (2, 0x4800..0x5000)]);
        let there = tree.remap(0, 0x200..0x400).unwrap();
        assert_eq!((there.there, there.removed), (vec![(0, 0x200..0x400)], vec![]));
        assert!(tree.remap(1, 0x2800..0x3800).is_err(), "the map ends before the range does");
    }

    #[test]
    fn combinations_are_complete() {
        let all: Vec<_> = combinations(&[2, 1, 2]).collect();
        assert_eq!(all, [[0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1]]);
        assert_eq!(combinations(&[2, 0]).count(), 0);
        assert_eq!(combinations(&[3, 3, 3]).count(), 27);
    }
}
