//! TRIM: telling devices which ranges hold nothing.
//!
//! What is trimmed is taken out of use for as long as that lasts, so that nothing is written where the device may still be
//! discarding. Only what is free is trimmed, whatever the caller says.

use super::Writer;
use crate::error::BlockError;
use crate::pipeline::Blocks;
use std::ops::Range;

/// Shorter pieces are not worth an operation (`zfs_trim_extent_bytes_min`).
const MIN_BYTES: u64 = 32 << 10;
/// The most that is out of use at once (`zfs_trim_extent_bytes_max`).
const MAX_BYTES: u64 = 128 << 20;

/// Space out of use; comes back when dropped.
struct Held<'a> {
    writer: &'a Writer,
    vdev: u32,
    ranges: Vec<Range<u64>>,
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
        for (vdev, range) in ranges {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at.saturating_add(MAX_BYTES));
                let ranges = writer.space().hold(*vdev, at..end);
                let held = Held { writer, vdev: *vdev, ranges };
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
