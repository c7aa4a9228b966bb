//! Progress of a RAID-Z expansion, which all versions of the tree share.
//!
//! ```text
//!   sectors of the vdev  0 ─────────────── synced ─────────────── next ───────────────► end
//!   rows of blocks       new width           old width, and         old width
//!                                            copied to the new one
//!   read from            new place           old place              old place
//!   written to           new place           both                   old place
//! ```
//!
//! The syncer copies the sectors from `next` on, flushes, and writes the uberblock with the new position. Only then is the
//! position `synced`, and the old places of the sectors before it may be overwritten. A row that crosses `synced` is in its
//! old place.
//!
//! *Scratch area.* The first rows would overwrite themselves. They are copied to the boot area of each child first (`scratch`):
//!
//! ```text
//!   old place ─► scratch area ─► uberblock: valid, rows are read from there ─► new place ─► uberblock: not used any more
//! ```
//!
//! In both steps blocks that are written meanwhile go to the present place and to its copy. So no step needs another
//! uberblock than that of its txg, and an import continues with the step that the uberblock names.
//!
//! *Concurrency.* An operation has a [`Snapshot`] of the progress from beginning to end, as has each write that a device has not
//! answered, even if its writer was dropped. [`ReflowState::drained`] waits for the operations on former snapshots; before that
//! nothing is overwritten that they may read or write. A write locks its range of sectors until it has ended
//! ([`ReflowState::begin_write`]), because a copy that read a sector before the write must not overwrite it afterwards. Reads lock
//! nothing: copies go to places that no read uses. A write that waits for a copy holds no lock that the copy waits for.
//!
//! Source: OpenZFS `module/zfs/vdev_raidz.c` (theory comment at its top, `vdev_raidz_io_start`, `raidz_reflow_sync`,
//! `raidz_reflow_scratch_sync`).

use super::rebuild::RangeLock;
use super::spec::Reflow;
use crate::raidz::{Copies, Reflowed};
use arc_swap::ArcSwap;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_machine::invariant;
use weir_machine::lock::{Mutex, MutexGuard, order};

/// How far an expansion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Position on stable storage.
    pub synced: Reflow,
    /// Copies that the uberblock does not name yet, or that rows across the position need.
    pub copies: Copies,
}

impl Progress {
    /// The progress that an uberblock names.
    fn of(synced: Reflow) -> Self {
        let Reflow { offset_bytes, scratch } = synced;
        let copies = match scratch {
            true => Copies { scratch_bytes: offset_bytes, place_bytes: 0 },
            false => Copies { scratch_bytes: 0, place_bytes: offset_bytes },
        };
        Progress { synced, copies }
    }

    /// The layout of blocks of `logical_width` on `physical_width` children.
    pub fn layout(&self, physical_width: u64, logical_width: u64) -> Reflowed {
        let Reflow { offset_bytes, scratch } = self.synced;
        Reflowed { physical_width, logical_width, moved_bytes: offset_bytes, scratch }
    }
}

/// The progress as of the beginning of an operation.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub progress: Progress,
    /// Dropped with the last operation that uses the snapshot.
    _in_use: oneshot::Sender<()>,
}

impl Snapshot {
    fn new(progress: Progress) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (sender, unused) = oneshot::channel();
        (Arc::new(Snapshot { progress, _in_use: sender }), unused)
    }
}

/// A snapshot, and the range of a write, that an operation uses.
#[derive(Debug)]
pub(crate) struct LayoutInUse {
    pub(super) snapshot: Arc<Snapshot>,
    /// Unlocks the range when it is dropped.
    _range: Option<LockedRange>,
}

impl LayoutInUse {
    /// The snapshot of a read, which repairs what it finds wrong.
    pub(super) fn of_read(snapshot: &Arc<Snapshot>) -> Arc<Self> {
        Arc::new(LayoutInUse { snapshot: snapshot.clone(), _range: None })
    }
}

/// Layouts, and locked ranges of vdevs that are being rebuilt, which the writes of a job use.
#[derive(Clone, Debug, Default)]
pub(crate) struct InUse {
    layouts: Vec<Arc<LayoutInUse>>,
    ranges: Vec<Arc<RangeLock>>,
}

/// Layouts and ranges in use by the writes of a job, also while a device has not answered.
#[derive(Debug, Default)]
pub(crate) struct Layouts(Mutex<InUse, { order::RAIDZ_LAYOUTS }>);

impl Layouts {
    pub fn add(&self, layout: Arc<LayoutInUse>) {
        self.0.lock().layouts.push(layout);
    }

    /// Removes a layout whose writes have all ended.
    pub fn remove(&self, layout: &Arc<LayoutInUse>) {
        self.0.lock().layouts.retain(|other| !Arc::ptr_eq(other, layout));
    }

    pub fn add_range(&self, range: Arc<RangeLock>) {
        self.0.lock().ranges.push(range);
    }

    /// Removes a range whose writes have all ended.
    pub fn remove_range(&self, range: &Arc<RangeLock>) {
        // It is unlocked after the lock of the list.
        let _removed: Vec<_> = self.0.lock().ranges.extract_if(.., |other| Arc::ptr_eq(other, range)).collect();
    }

    pub fn all(&self) -> InUse {
        self.0.lock().clone()
    }
}

/// Ranges of sectors in use, in bytes.
#[derive(Debug, Default)]
struct Ranges {
    count: u64,
    writes: BTreeMap<u64, Range<u64>>,
    copied: Option<Range<u64>>,
    waiting: Vec<oneshot::Sender<()>>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Ranges {
    fn wait(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.push(sender);
        receiver
    }
}

/// The range of a write (with its number) or of the copy in progress.
#[derive(Debug)]
struct LockedRange {
    reflow: Arc<ReflowState>,
    write: Option<u64>,
}

impl Drop for LockedRange {
    fn drop(&mut self) {
        let mut ranges = self.reflow.ranges();
        let known = match self.write {
            Some(number) => ranges.writes.remove(&number).is_some(),
            None => ranges.copied.take().is_some(),
        };
        invariant!(known, "a range of a RAID-Z expansion is unlocked twice");
        let waiting = std::mem::take(&mut ranges.waiting);
        drop(ranges);
        // A waiter that was dropped is no longer interested.
        waiting.into_iter().for_each(|waiter| {
            let _is_gone = waiter.send(());
        });
    }
}

/// A copy in progress: no write overlaps its range until it is dropped.
#[derive(Debug)]
pub(crate) struct CopyLock(LockedRange);

/// The progress of an expansion.
#[derive(Debug)]
pub(crate) struct ReflowState {
    current: ArcSwap<Snapshot>,
    /// Receivers that end when nothing uses a snapshot any more: the current one last.
    unused: Mutex<Vec<oneshot::Receiver<()>>, { order::RAIDZ_REFLOW }>,
    ranges: Mutex<Ranges, { order::RAIDZ_REFLOW }>,
}

impl ReflowState {
    /// The state of an expansion that is as far as an uberblock names.
    pub fn new(synced: Reflow) -> Self {
        let (snapshot, unused) = Snapshot::new(Progress::of(synced));
        ReflowState {
            current: ArcSwap::new(snapshot),
            unused: Mutex::new(vec![unused]),
            ranges: Mutex::new(Ranges::default()),
        }
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock()
    }

    /// The present snapshot, for a read.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    pub fn progress(&self) -> Progress {
        self.current.load().progress
    }

    fn set(&self, progress: Progress) {
        let mut all = self.unused.lock();
        let (snapshot, unused) = Snapshot::new(progress);
        self.current.store(snapshot);
        all.push(unused);
    }

    /// Records that the sectors up to there have been copied, which the next uberblock may name.
    pub fn copied(&self, copies: Copies) {
        let progress = self.progress();
        invariant!(copies.place_bytes >= progress.copies.place_bytes, "the copies of a RAID-Z expansion go back");
        self.set(Progress { copies, ..progress });
    }

    /// Records that the uberblock with this position is on stable storage.
    pub fn committed(&self, synced: Reflow) {
        let before = self.progress();
        if before.synced == synced {
            return;
        }
        invariant!(synced.offset_bytes >= before.synced.offset_bytes, "the position of a RAID-Z expansion goes back");
        invariant!(
            synced.offset_bytes <= before.copies.place_bytes.max(before.copies.scratch_bytes),
            "the uberblock names sectors of a RAID-Z expansion that have not been copied"
        );
        self.set(Progress::of(synced));
    }

    /// Forgets copies that the uberblock must not name, because a device may have lost them.
    pub fn revert(&self) {
        self.set(Progress::of(self.progress().synced));
    }

    /// Waits until no operation uses a former snapshot.
    pub async fn drained(&self) {
        let former: Vec<_> = {
            let mut all = self.unused.lock();
            let last = all.len().saturating_sub(1);
            all.drain(..last).collect()
        };
        for unused in former {
            // The sender is never used: the result tells only that it was dropped.
            let _ended = unused.await;
        }
    }

    /// Locks the range of a write, and returns the snapshot that is valid for it. Waits for a copy of the range.
    pub async fn begin_write(self: &Arc<Self>, range: Range<u64>) -> Arc<LayoutInUse> {
        loop {
            let waits = {
                let mut ranges = self.ranges();
                if ranges.copied.as_ref().is_some_and(|copied| overlap(copied, &range)) {
                    ranges.wait()
                } else {
                    ranges.count += 1;
                    let number = ranges.count;
                    ranges.writes.insert(number, range);
                    drop(ranges);
                    let locked = LockedRange { reflow: self.clone(), write: Some(number) };
                    return Arc::new(LayoutInUse { snapshot: self.snapshot(), _range: Some(locked) });
                }
            };
            // The sender is dropped only with the state.
            let _woken = waits.await;
        }
    }

    /// Locks a range that is copied: writes that overlap it have ended, and others wait. There is one copy at a time.
    pub async fn begin_copy(self: &Arc<Self>, range: Range<u64>) -> CopyLock {
        let lock = {
            let mut ranges = self.ranges();
            invariant!(ranges.copied.is_none(), "two ranges of a RAID-Z vdev are copied at a time");
            ranges.copied = Some(range.clone());
            CopyLock(LockedRange { reflow: self.clone(), write: None })
        };
        loop {
            let waits = {
                let mut ranges = self.ranges();
                if !ranges.writes.values().any(|write| overlap(write, &range)) {
                    break;
                }
                ranges.wait()
            };
            let _woken = waits.await;
        }
        debug_assert!(lock.0.write.is_none(), "a copy is not a write");
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn state() -> Arc<ReflowState> {
        Arc::new(ReflowState::new(Reflow { offset_bytes: 8 << 20, scratch: false }))
    }

    #[test]
    fn a_copy_waits_for_writes_in_its_range_and_they_for_it() {
        let state = state();
        let write = state.begin_write(0..4096).now_or_never().unwrap();
        let mut copy = Box::pin(state.begin_copy(0..1 << 20));
        assert!(copy.as_mut().now_or_never().is_none(), "the write has not ended");
        assert!(state.begin_write(4096..8192).now_or_never().is_none(), "the copy is next");
        let elsewhere = state.begin_write(1 << 20..2 << 20).now_or_never();
        assert!(elsewhere.is_some());
        drop(write);
        let copy = copy.now_or_never().unwrap();
        assert!(state.begin_write(4096..8192).now_or_never().is_none());
        drop(copy);
        assert!(state.begin_write(4096..8192).now_or_never().is_some());
        // A copy that was given up while it waited locks nothing.
        let write = state.begin_write(0..4096).now_or_never().unwrap();
        assert!(state.begin_copy(0..4096).now_or_never().is_none());
        assert!(state.begin_write(0..4096).now_or_never().is_some());
        drop(write);
    }

    #[test]
    fn a_position_is_drained_when_the_last_operation_on_a_former_one_ends() {
        let state = state();
        let read = state.snapshot();
        state.copied(Copies { scratch_bytes: 0, place_bytes: 9 << 20 });
        let between = state.begin_write(0..4096).now_or_never().unwrap();
        state.committed(Reflow { offset_bytes: 9 << 20, scratch: false });
        let mut drained = Box::pin(state.drained());
        assert!(drained.as_mut().now_or_never().is_none());
        drop(read);
        assert!(drained.as_mut().now_or_never().is_none());
        drop(between);
        assert!(drained.now_or_never().is_some());
        assert!(state.drained().now_or_never().is_some(), "the present one is none");
    }

    #[test]
    fn the_scratch_area_is_valid_between_two_uberblocks() {
        let state = ReflowState::new(Reflow { offset_bytes: 0, scratch: false });
        state.copied(Copies { scratch_bytes: 4096, place_bytes: 0 });
        state.committed(Reflow { offset_bytes: 4096, scratch: true });
        assert_eq!(state.progress().copies, Copies { scratch_bytes: 4096, place_bytes: 0 });
        state.copied(Copies { scratch_bytes: 4096, place_bytes: 4096 });
        state.revert();
        assert_eq!(state.progress().copies.place_bytes, 0, "the device may have lost it");
        state.copied(Copies { scratch_bytes: 4096, place_bytes: 4096 });
        state.committed(Reflow { offset_bytes: 4096, scratch: false });
        assert_eq!(state.progress().copies, Copies { scratch_bytes: 0, place_bytes: 4096 });
    }
}
