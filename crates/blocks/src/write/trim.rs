//! TRIM: telling devices which ranges hold nothing.
//!
//! What is trimmed is taken out of use for as long as that lasts, so that nothing is written where the device may still be
//! discarding; a part of the free space at a time, for meanwhile groups go on that need some. Only what is free is trimmed,
//! whatever the caller says.

use super::Writer;
use crate::error::BlockError;
use crate::pipeline::Blocks;
use std::ops::Range;

/// Shorter pieces are not worth an operation (`zfs_trim_extent_bytes_min`).
const MIN_BYTES: u64 = 32 << 10;
/// The most that is out of use at once (`zfs_trim_extent_bytes_max`) …
const MAX_BYTES: u64 = 128 << 20;
/// … and that is no more than one part in so many of what is free, in units of so many bytes.
const SHARE: u64 = 8;
const UNIT_BYTES: u64 = 1 << 20;

/// Space out of use; comes back when dropped.
struct Held<'a> {
    writer: &'a Writer,
    vdev: u32,
    ranges: Vec<Range<u64>>,
}

impl<'a> Held<'a> {
    /// Takes what is free from the front of a range out of use, as much as may be. Gives where to go on.
    fn take(writer: &'a Writer, vdev: u32, range: Range<u64>) -> (Self, u64) {
        let mut space = writer.space();
        let share = space.vdev_sums(vdev).free_bytes / SHARE / UNIT_BYTES * UNIT_BYTES;
        let (mut left, mut end) = (share.clamp(UNIT_BYTES, MAX_BYTES), range.end);
        let mut ranges = Vec::new();
        for free in space.hold(vdev, range) {
            let kept = free.end.min(free.start + left);
            if kept < free.end {
                space.release(vdev, kept..free.end);
                end = end.min(kept);
            }
            left -= kept - free.start;
            ranges.extend(Some(free.start..kept).filter(|range| !range.is_empty()));
        }
        (Held { writer, vdev, ranges }, end)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut space = self.writer.space();
        for range in self.ranges.drain(..) {
            space.release(self.vdev, range);
        }
    }
}

impl Blocks {
    /// Trims what is free of the given ranges (vdev, range of its space), one after the other. Gives the bytes of which
    /// devices took note; that a device cannot discard is no error.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub async fn trim(&self, ranges: &[(u32, Range<u64>)]) -> Result<u64, BlockError> {
        let writer = self.writer()?;
        let mut trimmed = 0;
        for (vdev, range) in ranges.iter().filter(|(vdev, _)| self.tree().discards(*vdev)) {
            let mut at = range.start;
            while at < range.end {
                let (held, end) = Held::take(writer, *vdev, at..range.end.min(at.saturating_add(MAX_BYTES)));
                for piece in held.ranges.iter().filter(|r| r.end - r.start >= MIN_BYTES) {
                    trimmed += self.tree().discard(*vdev, piece.clone()).await;
                }
                drop(held);
                at = end;
            }
        }
        Ok(trimmed)
    }
}
