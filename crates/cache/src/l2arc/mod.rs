//! L2ARC: copies of blocks on cache devices, for blocks that the ARC has no room for.
//!
//! ```text
//!   ARC: oldest blocks of MFU and MRU ──feed, throttled──▶ ring of the device: data, log blocks; header
//!   ARC miss ─▶ index ─▶ read the copy, verify the pointer's checksum ─▶ ARC
//!                 └─ none, wrong, late or failed ─▶ the pool
//! ```
//!
//! *What is written.* Each second a task per device takes blocks that are about to leave the ARC: metadata before data,
//! frequently used ones before recently used ones. It writes them as they are on the pool's devices, so encrypted blocks stay
//! encrypted, and the checksum of the block pointer proves each copy. The format is OpenZFS's persistent L2ARC: what either
//! wrote is found again by the other.
//!
//! *What it may cost.* The cache never waits for the writer: a block that leaves before it is written is not written. At most
//! [`L2Settings::write_max_bytes`] are written per second, and [`IN_FLIGHT_BYTES`] are in flight. The index takes part of the
//! ARC's budget, at most [`MEMORY_PERCENT`]; beyond it nothing is added.
//!
//! *What fails and how.* A cache device has nothing that the pool lacks. A wrong copy is forgotten and the block read from the
//! pool. A device that returns errors is not used after some of them, one that does not answer in time at once; then its
//! index is dropped.
//!
//! *Locks.* The index, the devices and the settings have a lock each, under which no other lock is taken; the index is
//! locked under a shard of the ARC.
//!
//! *Rejected.* To copy blocks as they are read, which writes every scan of the pool. To write the decompressed form, which
//! only Weir could verify. To compress what the pool's devices hold otherwise: bytes that differ have no checksum.
//!
//! Source: OpenZFS `module/zfs/arc.c` (theory before `l2arc_write_eligible`), `include/sys/arc_impl.h`.

mod device;
mod feed;
pub mod index;
mod rebuild;
pub mod ring;

pub use device::{CacheState, NewCacheDevice};
pub use ring::Owner;

use crate::cache::Cache;
use device::CacheDevice;
use index::{BlockId, CopyPlace, Index};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use weir_blocks::cached_copy::{is_provable, open_copy};
use weir_blocks::{BlockError, CacheClass, ReadOptions};
use weir_format::BlockPointer;
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{JoinHandle, Request, invariant};

/// Maximum bytes of writes in flight for each device.
pub const IN_FLIGHT_BYTES: u64 = 8 << 20;
/// Maximum share of the ARC's budget that the index takes, in percent (`l2arc_meta_percent`).
pub const MEMORY_PERCENT: u64 = 33;

/// Settings of the L2ARC: the parameters of OpenZFS's module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Settings {
    /// Bytes written per interval and device (`l2arc_write_max`).
    pub write_max_bytes: u64,
    /// Bytes written in addition until the ARC evicts for the first time (`l2arc_write_boost`).
    pub write_boost_bytes: u64,
    /// How far from its end a list is searched, in multiples of what is written (`l2arc_headroom`).
    pub headroom: u64,
    /// Time between two feeds (`l2arc_feed_secs`).
    pub interval: Duration,
    /// Time until the next feed after one that wrote more than half of its limit (`l2arc_feed_min_ms`).
    pub busy_interval: Duration,
    /// Whether blocks that were read ahead and not used are written, and reads ahead are served (`l2arc_noprefetch=0`).
    pub takes_prefetched: bool,
    /// Time after which a device that does not answer is not used any more.
    pub deadline: Duration,
    /// False only in tests: copies are believed without their checksum.
    #[doc(hidden)]
    pub verifies: bool,
}

impl Default for L2Settings {
    /// Those of OpenZFS 2.4.
    fn default() -> Self {
        L2Settings {
            write_max_bytes: 32 << 20,
            write_boost_bytes: 32 << 20,
            headroom: 8,
            interval: Duration::from_secs(1),
            busy_interval: Duration::from_millis(200),
            takes_prefetched: false,
            deadline: Duration::from_secs(2),
            verifies: true,
        }
    }
}

/// Counters since the cache was created.
#[derive(Debug, Default)]
pub(crate) struct L2Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    written_blocks: AtomicU64,
    feeds: AtomicU64,
    cleared_blocks: AtomicU64,
    io_errors: AtomicU64,
    checksum_errors: AtomicU64,
    rebuilt_blocks: AtomicU64,
    rebuilt_logs: AtomicU64,
    rebuilds_short_of_memory: AtomicU64,
    feeds_short_of_memory: AtomicU64,
}

/// A cache device, for `zpool status`, `list -v` and `iostat -v`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CacheDeviceStats {
    /// GUID of the device.
    pub guid: u64,
    pub state: CacheState,
    /// Bytes of its space.
    pub size_bytes: u64,
    /// Bytes that copies and log blocks take.
    pub used_bytes: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
}

/// Counters and sizes of the L2ARC, as in OpenZFS's `arcstats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct L2Stats {
    /// Reads served from a cache device.
    pub hits: u64,
    /// Reads that missed the ARC and were not served from a cache device.
    pub misses: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, without padding, log blocks and headers.
    pub written_bytes: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Feeds of a device.
    pub feeds: u64,
    /// Blocks that left because others were written over them.
    pub cleared_blocks: u64,
    /// Reads that failed.
    pub io_errors: u64,
    /// Copies with a wrong checksum.
    pub checksum_errors: u64,
    /// Blocks found again when a device was opened.
    pub rebuilt_blocks: u64,
    /// Log blocks read then.
    pub rebuilt_logs: u64,
    /// Feeds and rebuilds that stopped because the index had its share of the memory.
    pub short_of_memory: u64,
    /// Memory of the index.
    pub memory_bytes: u64,
    /// Bytes of the blocks, uncompressed (`l2_size`).
    pub lsize_bytes: u64,
    /// Bytes of the blocks on the devices (`l2_asize`).
    pub psize_bytes: u64,
    /// The devices.
    pub devices: Vec<CacheDeviceStats>,
}

struct InService {
    device: Arc<CacheDevice>,
    /// Dropped to end the task.
    stop: Option<futures_channel::oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

/// The L2ARC of a cache.
pub struct L2arc {
    settings: Mutex<L2Settings>,
    index: Mutex<Index>,
    devices: Mutex<Vec<InService>>,
    /// GUIDs of the devices that were taken out of service.
    removed: Mutex<BTreeSet<u64>>,
    is_used: AtomicBool,
    next_number: AtomicU32,
    /// Memory of the index.
    memory_bytes: AtomicU64,
    /// Memory that the index may have.
    memory_limit_bytes: AtomicU64,
    counters: L2Counters,
}

impl L2arc {
    pub(crate) fn new(arc_bytes: u64) -> Self {
        let l2 = L2arc {
            settings: Mutex::default(),
            index: Mutex::default(),
            devices: Mutex::default(),
            removed: Mutex::default(),
            is_used: AtomicBool::new(false),
            next_number: AtomicU32::new(0),
            memory_bytes: AtomicU64::new(0),
            memory_limit_bytes: AtomicU64::new(0),
            counters: L2Counters::default(),
        };
        l2.set_arc_bytes(arc_bytes);
        l2
    }

    /// Takes note of the ARC's budget.
    pub(crate) fn set_arc_bytes(&self, arc_bytes: u64) {
        self.memory_limit_bytes.store(arc_bytes / 100 * MEMORY_PERCENT, Ordering::Relaxed);
    }

    /// The settings.
    pub fn settings(&self) -> L2Settings {
        *self.settings.lock()
    }

    /// Changes the settings. [`L2Settings::deadline`] holds for devices that are added later.
    pub fn set_settings(&self, settings: L2Settings) {
        *self.settings.lock() = settings;
    }

    /// Whether there is a device in service.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Memory of the index in bytes, which the ARC leaves free.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Whether the index has its share of the ARC's budget (`l2arc_hdr_limit_reached`).
    fn is_memory_short(&self) -> bool {
        self.memory_bytes() >= self.memory_limit_bytes.load(Ordering::Relaxed)
    }

    fn note_memory(&self, index: &Index) {
        self.memory_bytes.store(index.memory_bytes(), Ordering::Relaxed);
    }

    /// The index, to ask which blocks have copies.
    pub(crate) fn copies(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    fn list(&self) -> MutexGuard<'_, Vec<InService>> {
        self.devices.lock()
    }

    /// Whether a block may be written to a cache device once it is about to leave the ARC.
    pub(crate) fn admits(&self, pointer: &BlockPointer, options: &ReadOptions, is_metadata: bool) -> bool {
        let is_wanted = match options.secondary {
            CacheClass::All => true,
            CacheClass::Metadata => is_metadata,
            CacheClass::None => false,
        };
        self.is_used() && is_wanted && is_provable(pointer)
    }

    /// The copy of a block, and the device that has it.
    fn look_up(&self, pointer: &BlockPointer) -> Option<(Arc<CacheDevice>, CopyPlace)> {
        let id = BlockId::of(pointer);
        let place = {
            let mut index = self.index.lock();
            let place = index.get(&id)?;
            if !place.agrees_with(pointer) || !is_provable(pointer) {
                // The log block that listed it was wrong.
                index.remove(&id);
                self.note_memory(&index);
                return None;
            }
            place
        };
        let devices = self.list();
        let device = devices.iter().map(|one| &one.device).find(|device| device.number == place.device)?;
        device.is_readable().then(|| (device.clone(), place))
    }

    /// Reads a block from a cache device; `None` if it has to be read from the pool.
    pub(crate) async fn read(
        &self,
        cache: &Cache,
        request: &Request,
        pointer: &BlockPointer,
        options: &ReadOptions,
        prefetch: bool,
    ) -> Option<bytes::Bytes> {
        if !self.is_used() {
            return None;
        }
        let settings = self.settings();
        if prefetch && !settings.takes_prefetched {
            return None;
        }
        let found = match self.look_up(pointer) {
            Some((device, place)) => self.read_copy(cache, request, pointer, options, (&device, &place)).await,
            None => None,
        };
        let counter = if found.is_some() { &self.counters.hits } else { &self.counters.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    async fn read_copy(
        &self,
        cache: &Cache,
        request: &Request,
        pointer: &BlockPointer,
        options: &ReadOptions,
        (device, place): (&CacheDevice, &CopyPlace),
    ) -> Option<bytes::Bytes> {
        let psize = pointer.psize_bytes();
        let buf = device.read(place.offset_bytes, device.extent.align(psize) as usize).await;
        let Some(mut buf) = buf else {
            self.counters.io_errors.fetch_add(1, Ordering::Relaxed);
            self.forget_copy(device, pointer, place);
            return None;
        };
        buf.truncate(psize as usize);
        invariant!(buf.len() as u64 == psize, "a copy of {psize} bytes was read as {}", buf.len());
        match open_copy(cache.blocks(), request, pointer, options, buf, self.settings().verifies) {
            Ok(bytes) => {
                self.counters.read_bytes.fetch_add(psize, Ordering::Relaxed);
                Some(bytes)
            }
            // The pool has no key either, and says so.
            Err(BlockError::NoKey { .. }) => None,
            Err(_) => {
                device.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                self.forget_copy(device, pointer, place);
                None
            }
        }
    }

    /// Forgets a copy that could not be read; all of a device that is not in service any more.
    fn forget_copy(&self, device: &CacheDevice, pointer: &BlockPointer, place: &CopyPlace) {
        let mut index = self.index.lock();
        index.remove_if(&BlockId::of(pointer), place);
        if !device.is_readable() {
            index.clear_device(device.number);
        }
        self.note_memory(&index);
    }

    /// Forgets the copy of a block that was freed.
    pub(crate) fn forget(&self, freed: &BlockPointer) {
        if self.is_used() {
            let mut index = self.index.lock();
            index.remove(&BlockId::of(freed));
            self.note_memory(&index);
        }
    }

    /// Takes a device out of service, and waits until nothing is written to it any more. Returns whether it was known.
    pub async fn remove(&self, guid: u64) -> bool {
        let known = {
            let mut devices = self.list();
            let at = devices.iter().position(|one| one.device.owner.vdev_guid == guid);
            let known = at.map(|at| devices.remove(at));
            self.is_used.store(!devices.is_empty(), Ordering::Relaxed);
            known
        };
        self.removed.lock().insert(guid);
        let Some(mut known) = known else { return false };
        let _was_in_service = known.device.set_state(CacheState::Closed);
        drop(known.stop.take());
        if let Some(task) = known.task.take() {
            // Its operations have deadlines.
            let _ = task.await;
        }
        let mut index = self.index.lock();
        index.clear_device(known.device.number);
        self.note_memory(&index);
        invariant!(index.sums(known.device.number).count == 0, "a device that was removed has copies");
        true
    }

    /// Whether a device was taken out of service, and not put back.
    pub fn is_removed(&self, guid: u64) -> bool {
        self.removed.lock().contains(&guid)
    }

    /// From now on, no device is read, and none is fed again. Does not wait, as [`L2arc::close`] does.
    pub fn stop(&self) {
        for one in self.list().iter() {
            let _was_in_service = one.device.set_state(CacheState::Closed);
        }
    }

    /// Takes all devices out of service.
    pub async fn close(&self) {
        let all: Vec<u64> = self.list().iter().map(|one| one.device.owner.vdev_guid).collect();
        for guid in all {
            let _was_known = self.remove(guid).await;
        }
    }

    /// Counters and sizes.
    pub fn stats(&self) -> L2Stats {
        let devices: Vec<Arc<CacheDevice>> = self.list().iter().map(|one| one.device.clone()).collect();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = &self.counters;
        let mut stats = L2Stats {
            hits: count(&all.hits),
            misses: count(&all.misses),
            read_bytes: count(&all.read_bytes),
            written_bytes: count(&all.written_bytes),
            written_blocks: count(&all.written_blocks),
            feeds: count(&all.feeds),
            cleared_blocks: count(&all.cleared_blocks),
            io_errors: count(&all.io_errors),
            checksum_errors: count(&all.checksum_errors),
            rebuilt_blocks: count(&all.rebuilt_blocks),
            rebuilt_logs: count(&all.rebuilt_logs),
            short_of_memory: count(&all.rebuilds_short_of_memory) + count(&all.feeds_short_of_memory),
            ..L2Stats::default()
        };
        let index = self.index.lock();
        stats.memory_bytes = index.memory_bytes();
        for device in devices {
            let sums = index.sums(device.number);
            stats.lsize_bytes += sums.lsize_bytes;
            stats.psize_bytes += sums.psize_bytes;
            let counters = &device.counters;
            stats.devices.push(CacheDeviceStats {
                guid: device.owner.vdev_guid,
                state: device.state(),
                size_bytes: device.extent.size_bytes(),
                used_bytes: sums.psize_bytes + count(&counters.log_bytes),
                reads: count(&counters.reads),
                read_bytes: count(&counters.read_bytes),
                writes: count(&counters.writes),
                written_bytes: count(&counters.written_bytes),
                read_errors: count(&counters.read_errors),
                write_errors: count(&counters.write_errors),
                checksum_errors: count(&counters.checksum_errors),
            });
        }
        stats
    }

    /// Memory that the index of a device of `bytes` needs if it is filled with blocks of `block_bytes` each.
    pub fn memory_of(bytes: u64, block_bytes: u64) -> u64 {
        (bytes / block_bytes.max(512)).saturating_mul(index::ENTRY_BYTES)
    }
}

impl Cache {
    /// Puts a cache device into service. What it has from before is found in the background. Returns false if it is too
    /// small, or in service already.
    pub fn add_cache_device(self: &Arc<Self>, new: &NewCacheDevice) -> bool {
        let l2 = self.l2arc();
        let number = l2.next_number.fetch_add(1, Ordering::Relaxed);
        let device = CacheDevice::new(number, new, self.machine().clock.clone(), l2.settings().deadline);
        let Some(device) = device.map(Arc::new) else { return false };
        let (stop, stopped) = futures_channel::oneshot::channel();
        {
            let mut devices = l2.list();
            if devices.iter().any(|one| one.device.owner.vdev_guid == new.owner.vdev_guid) {
                return false;
            }
            devices.push(InService { device: device.clone(), stop: Some(stop), task: None });
            l2.is_used.store(true, Ordering::Relaxed);
        }
        l2.removed.lock().remove(&new.owner.vdev_guid);
        let task = self.machine().tasks.spawn(feed::run(Arc::downgrade(self), device, stopped));
        let mut devices = l2.list();
        // Not there if it was removed meanwhile: then the task ends by itself.
        if let Some(own) = devices.iter_mut().find(|one| one.device.number == number) {
            own.task = Some(task);
        }
        true
    }
}
