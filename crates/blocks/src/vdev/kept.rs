//! The writes of a leaf that no flush covers yet, kept so that they can be repeated after a failed flush.
//!
//! ```text
//!   write completes ─► kept ─┬─ a flush that began later succeeds ─► dropped
//!                            ├─ a flush fails, the pool is resumed ─► written again, in this order ─► flush
//!                            └─ too many bytes ─► the writer flushes
//! ```
//!
//! The kept bytes are those that were written: a reference to the block in memory where that is possible, a copy
//! (compressed, parity) elsewhere. The writer that exceeds the limit of a leaf flushes it, so that what is kept stays near
//! the limit.
//!
//! Writes are repeated in their order, because a later one may be to the same place. The space of a block is not reused
//! before the txg that frees it has synced, whose flush covers all writes kept until then, so that a write in progress is
//! never to the place of a kept one.

use super::Place;
use super::canary::DeviceBug;
use super::leaf::Leaf;
use super::leaf_write::WriteHolds;
use crate::error::BlockError;
use bytes::Bytes;
use std::collections::VecDeque;
use weir_machine::Priority;

/// A write: its offset in the allocatable space and its bytes.
#[derive(Clone, Debug)]
pub(super) struct KeptWrite {
    pub offset: u64,
    pub data: Bytes,
}

/// The kept writes of a leaf, each with its number among the completed writes.
#[derive(Default)]
pub(super) struct KeptWrites {
    writes: VecDeque<(u64, KeptWrite)>,
    bytes: u64,
    /// Bytes that may be kept; 0 keeps nothing.
    limit_bytes: u64,
    /// The highest number of a write that is not kept.
    missing: u64,
    /// A flush covers the writes up to this number.
    covered: u64,
}

impl KeptWrites {
    /// Sets the limit; 0 drops what is kept.
    pub fn set_limit(&mut self, bytes: u64) {
        if bytes == 0 {
            self.give_up();
        }
        self.limit_bytes = bytes;
    }

    /// Keeps the write `number`. Returns whether the limit is exceeded.
    pub fn push(&mut self, number: u64, write: KeptWrite) -> bool {
        debug_assert!(number > self.covered, "a flush covers a write that has just completed");
        if self.limit_bytes == 0 {
            self.missing = number;
            return false;
        }
        debug_assert!(self.writes.back().is_none_or(|(last, _)| *last < number), "writes are kept in their order");
        self.bytes += write.data.len() as u64;
        self.writes.push_back((number, write));
        self.bytes > self.limit_bytes
    }

    /// A flush covers the writes up to `number`.
    pub fn covered(&mut self, number: u64) {
        self.covered = self.covered.max(number);
        while self.writes.front().is_some_and(|(first, _)| *first <= number) {
            if let Some((_, write)) = self.writes.pop_front() {
                self.bytes -= write.data.len() as u64;
            }
        }
        debug_assert_eq!(self.bytes, self.writes.iter().map(|(_, write)| write.data.len() as u64).sum::<u64>());
    }

    /// Whether all writes that no flush covers are kept.
    pub fn is_complete(&self) -> bool {
        self.limit_bytes != 0 && self.missing <= self.covered
    }

    /// All of them in their order, if none is missing.
    pub fn all(&self) -> Option<Vec<KeptWrite>> {
        self.is_complete().then(|| self.writes.iter().map(|(_, write)| write.clone()).collect())
    }

    /// Drops what is kept: the device has lost it, or its loss is accepted.
    pub fn give_up(&mut self) {
        let last = self.writes.back().map_or(0, |(last, _)| *last);
        self.missing = self.missing.max(last);
        self.writes.clear();
        self.bytes = 0;
    }
}

impl Leaf {
    /// Writes again what no flush covers, after a failed flush; then a flush decides whether the device has lost writes.
    /// Does nothing if no flush failed, or not all of these writes are kept.
    pub(super) async fn repeat_unstable(&self) -> Result<(), BlockError> {
        let Some(disk) = self.disk() else { return Ok(()) };
        let Some(writes) = self.writes().flusher.to_repeat() else { return Ok(()) };
        let is_trusted = self.writes().canary.has(DeviceBug::TrustsNextFlush);
        for KeptWrite { offset, data } in writes.into_iter().filter(|_| !is_trusted) {
            let (written, _) = self
                .writes()
                .writers
                .write(disk, Priority::Sync, (offset, data), None, false, WriteHolds::default())
                .await;
            written.map_err(|error| self.error(Place::new(0, offset), error))?;
        }
        self.writes().flusher.repeated();
        let flushed = self.writes().flusher.flush(disk, false, self.lost()).await;
        flushed.map_err(|error| self.error(Place::new(0, 0), error))?;
        if !self.writes().flusher.has_failed() {
            self.writes().dtl().repeated();
        }
        Ok(())
    }

    /// Redundancy covers a failed flush of this leaf: the failure is permanent.
    pub(super) fn settle_flush(&self) {
        if self.writes().flusher.settle() {
            self.writes().dtl().settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64) -> KeptWrite {
        KeptWrite { offset, data: Bytes::from_static(&[1; 100]) }
    }

    fn offsets(kept: &KeptWrites) -> Option<Vec<u64>> {
        kept.all().map(|all| all.iter().map(|write| write.offset).collect())
    }

    #[test]
    fn writes_are_kept_until_a_flush_covers_them() {
        let mut kept = KeptWrites::default();
        assert!(!kept.push(2, write(2)) && offsets(&kept).is_none(), "nothing is kept without a limit");
        kept.set_limit(250);
        assert_eq!(offsets(&kept), None, "the first write is missing");
        kept.covered(1);
        assert_eq!(offsets(&kept), None, "a flush that began before it does not cover it");
        kept.covered(2);
        assert_eq!((3..6).map(|n| kept.push(n, write(n))).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(offsets(&kept), Some(vec![3, 4, 5]));
        kept.covered(4);
        assert_eq!(offsets(&kept), Some(vec![5]));
        assert!(!kept.push(6, write(6)));
        kept.give_up();
        assert!(offsets(&kept).is_none() && !kept.is_complete());
        kept.covered(6);
        assert_eq!(offsets(&kept), Some(vec![]));
    }
}
