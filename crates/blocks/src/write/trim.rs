//! TRIM, and other work on free space: discards free ranges on the devices.
//!
//! A range is not allocatable while it is being trimmed, so that no write reaches a range that a device may still be
//! discarding. Only a part of the free space is disabled at a time, because txgs that sync meanwhile need space. Ranges
//! that are not free are skipped, even if the caller names them.

use super::writer::Writer;
use crate::error::BlockError;
use crate::pipeline::Blocks;
use std::ops::Range;

/// Minimum length of a trimmed range (`zfs_trim_extent_bytes_min`).
const MIN_BYTES: u64 = 32 << 10;
/// Maximum bytes that are disabled at a time (`zfs_trim_extent_bytes_max`).
const MAX_BYTES: u64 = 128 << 20;
/// At most one part in this many of the free space is disabled at a time.
const FREE_SPACE_DIVISOR: u64 = 8;
/// Unit in which the disabled part is rounded down, and its minimum.
const UNIT_BYTES: u64 = 1 << 20;

/// Disabled ranges; allocatable again when dropped.
struct DisabledRanges<'a> {
    writer: &'a Writer,
    vdev: u32,
    ranges: Vec<Range<u64>>,
}

impl<'a> DisabledRanges<'a> {
    /// Disables free segments from the front of a range, up to the limits. Returns the offset to continue at.
    fn disable(writer: &'a Writer, vdev: u32, range: Range<u64>) -> (Self, u64) {
        let mut space = writer.space();
        let share = space.vdev_sums(vdev).free_bytes / FREE_SPACE_DIVISOR / UNIT_BYTES * UNIT_BYTES;
        let mut left = share.clamp(UNIT_BYTES, MAX_BYTES);
        let mut end = range.end;
        let mut ranges = Vec::new();
        for free in space.disable_range(vdev, range) {
            let part_end = free.end.min(free.start + left);
            if part_end < free.end {
                space.enable_range(vdev, part_end..free.end);
                end = end.min(part_end);
            }
            left -= part_end - free.start;
            ranges.extend(Some(free.start..part_end).filter(|range| !range.is_empty()));
        }
        (DisabledRanges { writer, vdev, ranges }, end)
    }
}

impl Drop for DisabledRanges<'_> {
    fn drop(&mut self) {
        let mut space = self.writer.space();
        for range in self.ranges.drain(..) {
            space.enable_range(self.vdev, range);
        }
    }
}

/// The free parts of a range of a vdev, from the front. A part is not allocatable until the next one is asked for.
pub struct FreeParts<'a> {
    writer: &'a Writer,
    vdev: u32,
    left: Range<u64>,
    max_bytes: u64,
    disabled: Option<DisabledRanges<'a>>,
    /// Parts that are disabled and were not returned yet, the last one first.
    parts: Vec<Range<u64>>,
    /// A metaslab that was loaded for this.
    loaded: Option<u64>,
}

impl<'a> FreeParts<'a> {
    /// The free parts of a range of a vdev, of at most `max_bytes` each, for work that no allocation must overtake. Ranges that
    /// are not free are skipped.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`].
    pub fn of(blocks: &'a Blocks, vdev: u32, range: Range<u64>, max_bytes: u64) -> Result<Self, BlockError> {
        debug_assert!(max_bytes > 0 && range.start <= range.end);
        let writer = blocks.writer()?;
        let max_bytes = max_bytes.min(MAX_BYTES);
        Ok(FreeParts { writer, vdev, left: range, max_bytes, disabled: None, parts: Vec::new(), loaded: None })
    }

    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Option<Range<u64>> {
        loop {
            if let Some(part) = self.parts.pop() {
                return Some(part);
            }
            self.release();
            if self.left.is_empty() {
                return None;
            }
            let front = self.left.start..self.left.end.min(self.left.start.saturating_add(self.max_bytes));
            self.loaded = self.writer.space().first_unloaded(self.vdev, &front);
            self.writer.load_range(self.vdev, front.clone()).await;
            let (disabled, end) = DisabledRanges::disable(self.writer, self.vdev, front);
            debug_assert!(end > self.left.start, "free parts come to an end");
            self.parts = disabled.ranges.iter().rev().cloned().collect();
            self.disabled = Some(disabled);
            self.left.start = end;
        }
    }

    fn release(&mut self) {
        drop(self.disabled.take());
        if let Some(metaslab) = self.loaded.take() {
            self.writer.space().release(self.vdev, metaslab);
        }
    }
}

impl Drop for FreeParts<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// Trims the free parts of the given ranges (vdev, range of its space), one after the other. Returns the bytes that
/// devices discarded; a device that does not support discards is no error.
///
/// # Errors
/// [`BlockError::ReadOnly`].
pub async fn trim(blocks: &Blocks, ranges: &[(u32, Range<u64>)]) -> Result<u64, BlockError> {
    let mut trimmed = 0;
    for (vdev, range) in ranges.iter().filter(|(vdev, _)| blocks.tree().discards(*vdev)) {
        let mut parts = FreeParts::of(blocks, *vdev, range.clone(), MAX_BYTES)?;
        while let Some(part) = parts.next().await {
            if part.end - part.start >= MIN_BYTES {
                trimmed += blocks.tree().discard(*vdev, part).await;
            }
        }
    }
    Ok(trimmed)
}
