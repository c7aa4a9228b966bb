//! Sequential rebuild: copies ranges of a mirror or dRAID vdev to the devices that lack blocks, without checksums.
//!
//! ```text
//!   lock the range ─► read it from devices that lack nothing ─► write it to those that lack anything ─► unlock
//! ```
//!
//! *Writes meanwhile* reach all devices. A copy that read a range before such a write must not overwrite it afterwards, so while a
//! vdev is being rebuilt, each write locks its range until the devices have answered, even if its writer was dropped
//! ([`RangeLocks`]). This includes blocks of the intent log, whose space is allocated long before they are written, and repairs.
//!
//! *Births are unknown*: a range has blocks of many txgs. A read of [`UNKNOWN_BIRTH`] uses no device with any txg in its DTL, and
//! fails rather than fall back to one.
//!
//! Rejected: not to allocate in the metaslab that is copied, as OpenZFS does. It needs a txg for each metaslab, and does not cover
//! blocks of the intent log.
//!
//! Source: OpenZFS `module/zfs/vdev_rebuild.c` (`vdev_rebuild_range`), `module/zfs/vdev_draid.c` (`vdev_draid_rebuild_asize`).

use super::distributed_spare::SpareVdev;
use super::tree::Tops;
use super::write::Portion;
use super::{Body, MAX_BLOCK_BYTES, Place, Tree, Vdev, VdevRead, WriteJob};
use crate::error::BlockError;
use crate::freeze::freeze;
use crate::raidz::Map;
use futures_channel::oneshot;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_format::Txg;
use weir_machine::accounts::Redundancy;
use weir_machine::invariant;
use weir_machine::lock::{Mutex, order};

/// The birth of blocks of any txg (`TXG_UNKNOWN`): a device has them only if it lacks nothing.
pub(crate) const UNKNOWN_BIRTH: Txg = Txg(0);

/// Maximum bytes of each device that are copied at a time (`zfs_rebuild_max_segment`).
const MAX_SEGMENT_BYTES: u64 = 1 << 20;

/// A locked range of a top-level vdev.
#[derive(Debug)]
struct Locked {
    vdev: u32,
    range: Range<u64>,
    is_copy: bool,
}

impl Locked {
    fn overlaps(&self, vdev: u32, range: &Range<u64>) -> bool {
        self.vdev == vdev && self.range.start < range.end && range.start < self.range.end
    }
}

#[derive(Debug, Default)]
struct Ranges {
    count: u64,
    locked: BTreeMap<u64, Locked>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Ranges {
    fn add(&mut self, locked: Locked) -> u64 {
        self.count += 1;
        self.locked.insert(self.count, locked);
        self.count
    }

    fn has(&self, vdev: u32, range: &Range<u64>, is_copy: bool) -> bool {
        self.locked.values().any(|locked| locked.is_copy == is_copy && locked.overlaps(vdev, range))
    }

    fn wait(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.push(sender);
        receiver
    }
}

/// The ranges that are written and copied while vdevs are being rebuilt.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    /// Number of rebuilds in progress; without one, writes lock nothing.
    rebuilds: AtomicU64,
    ranges: Mutex<Ranges, { order::REBUILD_RANGES }>,
}

/// A locked range; unlocked when it is dropped.
#[derive(Debug)]
pub(crate) struct RangeLock {
    locks: Arc<RangeLocks>,
    number: u64,
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let waiting = {
            let mut ranges = self.locks.ranges.lock();
            let was_locked = ranges.locked.remove(&self.number).is_some();
            invariant!(was_locked, "a range of a vdev is unlocked twice");
            std::mem::take(&mut ranges.waiting)
        };
        waiting.into_iter().for_each(|waiter| {
            // Sending fails if the task that waited was dropped.
            let _is_gone = waiter.send(());
        });
    }
}

/// A rebuild in progress: writes lock their ranges until it is dropped.
#[derive(Debug)]
pub struct RebuildInProgress(Arc<RangeLocks>);

impl Drop for RebuildInProgress {
    fn drop(&mut self) {
        let before = self.0.rebuilds.fetch_sub(1, Ordering::SeqCst);
        invariant!(before > 0, "a rebuild ends twice");
    }
}

impl RangeLocks {
    /// Begins a rebuild. Writes that began before lock nothing.
    pub fn begin_rebuild(self: &Arc<Self>) -> RebuildInProgress {
        self.rebuilds.fetch_add(1, Ordering::SeqCst);
        RebuildInProgress(self.clone())
    }

    /// Whether writes have to lock their ranges.
    pub fn is_needed(&self) -> bool {
        self.rebuilds.load(Ordering::SeqCst) > 0
    }

    /// Locks the range of a write, after copies that overlap it have ended; `None` without a rebuild.
    pub async fn begin_write(self: &Arc<Self>, vdev: u32, range: Range<u64>) -> Option<Arc<RangeLock>> {
        if !self.is_needed() {
            return None;
        }
        loop {
            let waits = {
                let mut ranges = self.ranges.lock();
                if !ranges.has(vdev, &range, true) {
                    let number = ranges.add(Locked { vdev, range, is_copy: false });
                    drop(ranges);
                    return Some(Arc::new(RangeLock { locks: self.clone(), number }));
                }
                ranges.wait()
            };
            // The sender is dropped only with the locks.
            let _woken = waits.await;
        }
    }

    /// Locks a range for a copy: writes that overlap it have ended, and others wait. Copies do not overlap each other.
    pub async fn begin_copy(self: &Arc<Self>, vdev: u32, range: Range<u64>) -> Arc<RangeLock> {
        let lock = {
            let mut ranges = self.ranges.lock();
            invariant!(!ranges.has(vdev, &range, true), "a range of a vdev is copied twice at a time");
            let number = ranges.add(Locked { vdev, range: range.clone(), is_copy: true });
            drop(ranges);
            Arc::new(RangeLock { locks: self.clone(), number })
        };
        loop {
            let waits = {
                let mut ranges = self.ranges.lock();
                if !ranges.has(vdev, &range, false) {
                    return lock;
                }
                ranges.wait()
            };
            let _woken = waits.await;
        }
    }
}

impl WriteJob<'_> {
    /// Locks the space of `len` bytes before parity, if a vdev is being rebuilt: no copy of it is in progress then. It is locked
    /// until [`Layouts::remove_range`] or the end of the job, and until the devices have answered. A job must not lock a range
    /// again: a copy that waits for the first lock would be waited for.
    pub async fn lock_range(&self, tree: &Tree, place: Place, len: u64) -> Option<Arc<RangeLock>> {
        let locks = tree.range_locks();
        if !locks.is_needed() {
            return None;
        }
        let Place { vdev, offset, .. } = place;
        let bytes = tree.sizing(vdev).map_or(len, |sizing| sizing.asize_bytes(len, self.txg.0));
        let lock = locks.begin_write(vdev, offset..offset.saturating_add(bytes)).await?;
        self.layouts.add_range(lock.clone());
        Some(lock)
    }
}

/// A top-level vdev, for a rebuild.
#[derive(Clone, Copy)]
pub(crate) struct RebuiltVdev<'a> {
    pub tree: &'a Tree,
    pub vdev: u32,
}

impl RebuiltVdev<'_> {
    /// Whether a vdev of this kind can be rebuilt: one of devices and mirrors of them, or a dRAID vdev.
    pub fn is_possible(self) -> bool {
        fn is_device(vdev: &Vdev) -> bool {
            match &vdev.body {
                Body::Leaf(_) | Body::DraidSpare(_) => true,
                Body::Mirror(sides) => sides.iter().all(is_device),
                _ => false,
            }
        }
        let is_possible = |vdev: &Vdev| match &vdev.body {
            Body::Draid { children, .. } => children.iter().all(is_device),
            _ => is_device(vdev),
        };
        self.tree.with_top(self.vdev, |top| is_possible(&top.vdev)).unwrap_or(false)
    }

    /// GUIDs of the devices in service that lack blocks, and the first and last txg that they lack.
    pub fn targets(self) -> (BTreeSet<u64>, Option<(Txg, Txg)>) {
        let mut targets = BTreeSet::new();
        let mut txgs: Option<(Txg, Txg)> = None;
        self.each_leaf(&mut |leaf| {
            let dtl = leaf.writes().dtl().missing();
            if let (true, Some((first, _)), Some(last)) = (leaf.present(), dtl.ranges().first(), dtl.max()) {
                targets.insert(leaf.guid());
                txgs = Some(txgs.map_or((*first, last), |(from, to)| (from.min(*first), to.max(last))));
            }
        });
        invariant!(targets.is_empty() == txgs.is_none(), "a device lacks blocks of no txg");
        (targets, txgs)
    }

    /// Whether a device in service failed a flush: it may have dropped copies.
    pub fn has_failed_flush(self) -> bool {
        let mut has_failed = false;
        self.each_leaf(&mut |leaf| has_failed |= leaf.present() && leaf.writes().flusher.has_failed());
        has_failed
    }

    /// GUIDs of all devices.
    pub fn leaves(self) -> Vec<u64> {
        let mut out = Vec::new();
        self.each_leaf(&mut |leaf| out.push(leaf.guid()));
        out
    }

    fn each_leaf(self, visit: &mut dyn FnMut(&Arc<super::leaf::Leaf>)) {
        let tops = self.tree.version();
        tops.get(self.vdev).into_iter().for_each(|top| top.vdev.each_leaf(visit));
    }

    /// Cuts a range into parts that are copied at a time: up to 1 MiB of each device, in whole rows of one group of dRAID.
    pub fn parts(self, range: Range<u64>) -> Vec<Range<u64>> {
        let unit = |top: &super::tree::Top| match &top.vdev.body {
            Body::Draid { map, .. } => {
                let (width, ndata) = (map.layout().group_width(), map.layout().ndata);
                let psize = (MAX_SEGMENT_BYTES * ndata).min(MAX_BLOCK_BYTES);
                let rows = (psize >> top.ashift) / ndata;
                ((width << top.ashift), (rows * width) << top.ashift, map.layout().group_bytes())
            }
            _ => (1 << top.ashift, MAX_SEGMENT_BYTES, u64::MAX),
        };
        let Some((row, longest, group)) = self.tree.with_top(self.vdev, unit) else { return Vec::new() };
        // Space in front of the first and behind the last whole row of a metaslab is never allocated.
        let mut next = range.start.next_multiple_of(row);
        let end = range.end / row * row;
        let mut out = Vec::new();
        while next < end {
            let group_end = (next / group).saturating_add(1).saturating_mul(group);
            let part = next..end.min(next + longest).min(group_end);
            next = part.end;
            out.push(part);
        }
        out
    }

    /// Copies a part of [`RebuiltVdev::parts`] to the devices that lack anything. Returns the bytes that they lack there; if fewer were
    /// written, a device went out of service meanwhile, or one that has the space of a distributed spare is. `write` has
    /// [`super::Recipients::Behind`].
    ///
    /// # Errors
    /// [`BlockError`] if too few devices that lack nothing can be read, or the tree is not writable. Devices that fail to write are in
    /// `write.failed`.
    pub async fn copy(self, read: &VdevRead<'_>, write: &WriteJob<'_>, part: Range<u64>) -> Result<u64, BlockError> {
        debug_assert!(read.birth == UNKNOWN_BIRTH && write.failed.is_some());
        let _operation = self.tree.begin()?;
        let lock = self.tree.range_locks().begin_copy(self.vdev, part.clone()).await;
        // Until the devices have answered.
        write.layouts.add_range(lock.clone());
        let done = self.copy_locked(read, write, &part).await;
        write.layouts.remove_range(&lock);
        done
    }

    async fn copy_locked(
        self,
        read: &VdevRead<'_>,
        write: &WriteJob<'_>,
        part: &Range<u64>,
    ) -> Result<u64, BlockError> {
        let tops = self.tree.version();
        let place = Place::new(self.vdev, part.start);
        let top = tops.at(place)?;
        let len = match &top.vdev.body {
            Body::Draid { map, .. } => (part.end - part.start) / map.layout().group_width() * map.layout().ndata,
            _ => part.end - part.start,
        };
        tops.check(place, len)?;
        let lacked_bytes = lacked_of_top(&tops, &top.vdev, place, len);
        if lacked_bytes == 0 {
            return Ok(0);
        }
        let bytes = top.vdev.read(self.tree, read, place, place.offset, len, None).await.map(freeze)?;
        invariant!(bytes.len() as u64 == len, "a range of a vdev is read in part");
        let portion = Portion::new(Redundancy::First, 0);
        top.vdev.write(&tops, write, portion, place, place.offset, bytes).await?;
        Ok(lacked_bytes)
    }
}

/// Bytes of a range of a top-level vdev that have to be written to the devices in service that lack anything.
fn lacked_of_top(tops: &Tops, vdev: &Vdev, place: Place, len: u64) -> u64 {
    match &vdev.body {
        Body::Draid { map, children } => {
            let rows = Map::of_draid(map, place.offset, len);
            let lacked = rows.columns().map(|column| {
                let child = children.get(column.child);
                let size_bytes = column.size_bytes as u64;
                child.map_or(0, |child| lacked_bytes(tops, child, place, (column.offset_bytes, size_bytes)))
            });
            lacked.sum()
        }
        _ => lacked_bytes(tops, vdev, place, (place.offset, len)),
    }
}

/// Bytes of a range that have to be written to the devices at or below `vdev`. A distributed spare lacks them also if the device
/// does that has its space there.
fn lacked_bytes(tops: &Tops, vdev: &Vdev, place: Place, (offset, len): (u64, u64)) -> u64 {
    match &vdev.body {
        Body::Leaf(leaf) if leaf.is_behind() => len,
        Body::Mirror(sides) => sides.iter().map(|side| lacked_bytes(tops, side, place, (offset, len))).sum(),
        Body::DraidSpare(SpareVdev { top, spare, leaf }) if leaf.present() => {
            let below = Place { hops: place.hops + 1, ..place };
            let host = tops.spare_child(*top, *spare, offset, place);
            let of_host = || host.map_or(0, |host| lacked_bytes(tops, host, below, (offset, len)));
            if leaf.is_behind() { len } else { of_host() }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_copy_waits_for_writes_in_its_range_and_they_for_it() {
        let locks = Arc::<RangeLocks>::default();
        assert!(locks.begin_write(0, 0..4096).now_or_never().unwrap().is_none(), "nothing is rebuilt");
        let rebuild = locks.begin_rebuild();
        let write = locks.begin_write(0, 0..4096).now_or_never().unwrap();
        assert!(write.is_some());
        let mut copy = Box::pin(locks.begin_copy(0, 0..1 << 20));
        assert!(copy.as_mut().now_or_never().is_none(), "the write has not ended");
        assert!(locks.begin_write(0, 4096..8192).now_or_never().is_none(), "the copy is next");
        assert!(locks.begin_write(1, 4096..8192).now_or_never().is_some(), "another vdev");
        let other = locks.begin_copy(0, 1 << 20..2 << 20).now_or_never().unwrap();
        drop(write);
        let copy = copy.now_or_never().unwrap();
        assert!(locks.begin_write(0, 4096..8192).now_or_never().is_none());
        drop(copy);
        assert!(locks.begin_write(0, 4096..8192).now_or_never().is_some());
        drop((other, rebuild));
        assert!(locks.begin_write(0, 0..4096).now_or_never().unwrap().is_none());
    }

    #[test]
    fn a_copy_that_was_given_up_while_it_waited_locks_nothing() {
        let locks = Arc::<RangeLocks>::default();
        let _rebuild = locks.begin_rebuild();
        let write = locks.begin_write(0, 0..4096).now_or_never().unwrap();
        assert!(locks.begin_copy(0, 0..4096).now_or_never().is_none());
        assert!(locks.begin_write(0, 0..4096).now_or_never().is_some());
        drop(write);
    }
}
