//! Events of an open pool, as `zpool events` shows them.
//!
//! ```text
//!   blocks: a fault ─► duplicate? rate limit? ─► ereport.fs.zfs.checksum, .io, .data ────┐
//!   engine: import, scrub, history …  ────────► sysevent.fs.zfs.pool_import, … ──────────┴─► ring ─► readers
//! ```
//!
//! An event is an nvlist with the names and values that OpenZFS uses, as far as Weir knows the values, a time and a
//! number (eid) that only grows. As in OpenZFS, events are in memory only and end with the process; the pool's history is
//! the persistent record.
//!
//! *Bounds.* The ring holds [`MAX_EVENTS`] events of at most [`MAX_EVENT_BYTES`]; new events evict the oldest. To keep
//! events of other devices when one disk fails, equal faults are reported once per [`DEDUP_WINDOW`], and at most
//! [`PER_SECOND`] faults per device and class in a second. The next event says how many were dropped.
//!
//! The lock is held for a few instructions and never across an await.
//!
//! Source: OpenZFS `module/zfs/fm.c` (`zfs_zevent_post`), `module/zfs/zfs_fm.c`, `include/sys/fm/fs/zfs.h`,
//! `include/sys/sysevent/eventdefs.h`.

mod class;

pub use class::{ErrorReport, PoolEvent};

use super::config::{Config, visit};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use weir_blocks::BlockError;
use weir_blocks::fault_observer::{BlockContext, Bookmark, DeviceRange, Fault, FaultKind};
use weir_blocks::vdev::Counts;
use weir_codec::CodecError;
use weir_format::nvlist::NvValue;
use weir_format::{Endian, NvList};
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Clock, DiskError, Nanos, Priority};

/// Maximum events in the ring (`zfs_zevent_len_max`).
pub const MAX_EVENTS: usize = 512;
/// Maximum encoded size of an event, in bytes (`ERPT_DATA_SZ`).
pub const MAX_EVENT_BYTES: usize = 6 << 10;
/// Time during which an equal fault is not reported again (`zfs_zevent_retain_expire_secs`).
pub const DEDUP_WINDOW: Duration = Duration::from_secs(900);
/// Maximum recent faults that are remembered to detect duplicates (`zfs_zevent_retain_max`).
const MAX_DEDUP_ENTRIES: usize = 2000;
/// Maximum faults per class and device that are reported in a second (`zfs_checksum_events_per_second`).
pub const PER_SECOND: u32 = 20;

/// The error number of a checksum mismatch (`ECKSUM`, Linux's `EBADE`).
const ECKSUM: i32 = 52;
const ENXIO: i32 = 6;
const EIO: i32 = 5;

/// One event of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Event number; the first is 1.
    pub eid: u64,
    /// Number of events that were dropped between the previous event and this one.
    pub dropped: u64,
    /// Seconds since 1970, and nanoseconds.
    pub time: (i64, i64),
    /// Class, for example `sysevent.fs.zfs.scrub_start`.
    pub class: String,
    /// All values of the event, including class, time and number.
    pub list: NvList,
}

/// Events that a follower has not seen yet.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// The events, in ascending order of their numbers.
    pub events: Vec<Arc<Event>>,
    /// Number of unseen events that the ring has already evicted.
    pub missed: u64,
    /// Whether the pool is closed, so that no event follows.
    pub ended: bool,
}

/// Facts about a vdev that events report.
#[derive(Clone, Debug, Default)]
struct VdevFacts {
    kind: String,
    path: Option<String>,
    ashift: u64,
    parent: u64,
}

/// Facts about the pool that events report.
#[derive(Clone, Debug, Default)]
struct PoolFacts {
    name: String,
    guid: u64,
    state: u64,
    vdevs: BTreeMap<u64, VdevFacts>,
}

impl PoolFacts {
    fn of(config: &Config) -> Self {
        let mut vdevs: BTreeMap<u64, VdevFacts> = BTreeMap::new();
        let mut parents = BTreeMap::new();
        visit(&mut config.root.clone(), &mut |vdev| {
            let guid = vdev.get_u64("guid").unwrap_or(0);
            for child in vdev.get_list_array("children").unwrap_or_default() {
                parents.insert(child.get_u64("guid").unwrap_or(0), guid);
            }
            let parent = parents.get(&guid).copied().unwrap_or(0);
            // Only top-level vdevs have the value; it applies to their descendants.
            let ashift = vdev.get_u64("ashift").or(vdevs.get(&parent).map(|p| p.ashift)).unwrap_or(0);
            let path = vdev.get_str("path").map(str::to_owned);
            let kind = vdev.get_str("type").unwrap_or_default().to_owned();
            vdevs.insert(guid, VdevFacts { kind, path, ashift, parent });
        });
        PoolFacts { name: config.name.clone(), guid: config.guid, state: config.state, vdevs }
    }

    /// Adds the values about the pool, which every event has.
    fn add_pool(&self, list: &mut NvList) {
        list.set("pool", self.name.as_str());
        list.set("pool_guid", self.guid);
        list.set("pool_state", self.state);
        // SPA_LOAD_NONE: no import is in progress.
        list.set("pool_context", 0i32);
    }

    /// The report of class `class` about a device, or about none in particular.
    fn report(&self, class: &str, leaf: Option<u64>) -> NvList {
        let mut detector = NvList::new();
        detector.set("version", NvValue::Uint8(0));
        detector.set("scheme", "zfs");
        detector.set("pool", self.guid);
        if let Some(guid) = leaf {
            detector.set("vdev", guid);
        }
        let mut list = NvList::new();
        list.set("class", class);
        list.set("detector", detector);
        self.add_pool(&mut list);
        if let Some(guid) = leaf {
            list.set("vdev_guid", guid);
            if let Some(vdev) = self.vdevs.get(&guid) {
                list.set("vdev_type", vdev.kind.as_str());
                if let Some(path) = &vdev.path {
                    list.set("vdev_path", path.as_str());
                }
                list.set("vdev_ashift", vdev.ashift);
            }
        }
        list
    }

    /// Adds the values about the parent of a leaf.
    fn add_parent(&self, leaf: u64, list: &mut NvList) {
        let Some(parent) = self.vdevs.get(&leaf).map(|vdev| vdev.parent) else { return };
        let Some(vdev) = self.vdevs.get(&parent) else { return };
        list.set("parent_guid", parent);
        list.set("parent_type", vdev.kind.as_str());
    }
}

/// Key by which two faults are equal: class, error number, leaf, offset, size, priority, block.
type FaultKey = (ErrorReport, i32, u64, u64, u64, u32, Option<Bookmark>);

/// Recent faults, each once, for detection of duplicates.
#[derive(Default)]
struct Recent {
    sequence_of: BTreeMap<FaultKey, u64>,
    /// Time and key of the faults, by the sequence number of their last occurrence.
    order: BTreeMap<u64, (Nanos, FaultKey)>,
    next: u64,
}

impl Recent {
    /// Records a fault; returns whether no equal fault occurred within [`DEDUP_WINDOW`].
    fn is_new(&mut self, fault: FaultKey, now: Nanos) -> bool {
        self.next += 1;
        let before = self.sequence_of.insert(fault, self.next).and_then(|number| self.order.remove(&number));
        self.order.insert(self.next, (now, fault));
        if self.order.len() > MAX_DEDUP_ENTRIES
            && let Some((_, (_, oldest))) = self.order.pop_first()
        {
            self.sequence_of.remove(&oldest);
        }
        before.is_none_or(|(at, _)| now.since(at) > DEDUP_WINDOW)
    }
}

#[derive(Default)]
struct State {
    pool: PoolFacts,
    ring: VecDeque<Arc<Event>>,
    last: u64,
    dropped: u64,
    recent: Recent,
    /// Start of the current second of the rate limit and the faults in it, by class and leaf.
    seconds: BTreeMap<(ErrorReport, u64), (Nanos, u32)>,
    ended: bool,
}

impl State {
    /// Counts a fault; returns whether its class and device exceed the rate limit (`zfs_ratelimit`).
    fn too_many(&mut self, class: ErrorReport, leaf: u64, now: Nanos) -> bool {
        let (start, count) = self.seconds.entry((class, leaf)).or_insert((now, 0));
        if now.since(*start) >= Duration::from_secs(1) {
            (*start, *count) = (now, 0);
        }
        *count += 1;
        *count > PER_SECOND
    }
}

/// The events of a pool.
pub struct Events {
    clock: Clock,
    state: Mutex<State, { order::EVENTS }>,
}

impl Events {
    /// An empty ring for the pool with this configuration.
    pub(crate) fn new(clock: Clock, config: &Config) -> Arc<Self> {
        let state = State { pool: PoolFacts::of(config), ..State::default() };
        Arc::new(Events { clock, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Updates the facts about the pool after a change of its configuration.
    pub(crate) fn know(&self, config: &Config) {
        let pool = PoolFacts::of(config);
        self.lock().pool = pool;
    }

    /// Marks the pool as closed.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
    }

    /// Events after number `eid` that are still in the ring; `eid` 0 returns all of them.
    pub fn after(&self, eid: u64) -> News {
        let state = self.lock();
        let events: Vec<_> = state.ring.iter().filter(|event| event.eid > eid).cloned().collect();
        let next = events.first().map_or(state.last + 1, |event| event.eid);
        let missed = if eid == 0 { 0 } else { next.saturating_sub(eid.saturating_add(1)) };
        News { events, missed, ended: state.ended }
    }

    /// Whether the pool is closed, so that no event follows.
    pub fn is_ended(&self) -> bool {
        self.lock().ended
    }

    /// Removes all events; returns their number.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.lock().ring).len()
    }

    /// Posts a pool event; `more` adds values.
    pub(crate) fn post(&self, event: PoolEvent, more: impl FnOnce(&mut NvList)) {
        let mut state = self.lock();
        let mut list = NvList::new();
        list.set("version", NvValue::Uint8(0));
        list.set("class", format!("sysevent.fs.zfs.{}", event.name()).as_str());
        state.pool.add_pool(&mut list);
        more(&mut list);
        self.put(&mut state, list);
    }

    /// Posts an event about a device.
    pub(crate) fn post_vdev(&self, event: PoolEvent, guid: u64) {
        let path = self.lock().pool.vdevs.get(&guid).and_then(|vdev| vdev.path.clone());
        self.post(event, |list| {
            list.set("vdev_guid", guid);
            if let Some(path) = path {
                list.set("vdev_path", path.as_str());
            }
        });
    }

    /// Posts a record that was written to the pool's history (`spa_history_log_notify`).
    pub(crate) fn post_history(&self, record: &NvList) {
        self.post(PoolEvent::HistoryEvent, |list| {
            for (from, to) in HISTORY {
                let value = record.pairs().iter().find(|pair| pair.name == from.as_bytes()).map(|pair| &pair.value);
                value.into_iter().for_each(|value| list.set(to, value.clone()));
            }
        });
    }

    /// Posts an error report about a device or the pool.
    pub(crate) fn report(&self, class: ErrorReport, leaf: Option<u64>) {
        let mut state = self.lock();
        let mut list = state.pool.report(&ereport(class), leaf);
        leaf.into_iter().for_each(|leaf| state.pool.add_parent(leaf, &mut list));
        self.put(&mut state, list);
    }

    /// Posts an error report about a dataset; `more` adds values.
    pub(crate) fn report_dataset(&self, class: ErrorReport, more: impl FnOnce(&mut NvList)) {
        let mut state = self.lock();
        let mut list = state.pool.report(&ereport(class), None);
        more(&mut list);
        self.put(&mut state, list);
    }

    /// Posts the change of a device's state (`resource.fs.zfs.statechange`); `state` is a `vdev_state_t`.
    pub(crate) fn post_state_change(&self, leaf: u64, was: u64, vdev_state: u64) {
        let mut state = self.lock();
        let mut list = state.pool.report("resource.fs.zfs.statechange", Some(leaf));
        list.set("vdev_state", vdev_state);
        list.set("vdev_laststate", was);
        self.put(&mut state, list);
    }

    /// Posts an error report of a label that could not be written.
    pub(crate) fn label_not_written(&self, leaf: u64, counts: Counts, error: &DiskError) {
        let spot = Some(DeviceRange { leaf, offset_bytes: 0, size_bytes: 0, counts });
        let about = BlockContext::default();
        let priority = Priority::Sync;
        self.record(&Fault { what: FaultKind::Write(error), spot, about, priority });
    }

    /// Appends an event to the ring.
    fn put(&self, state: &mut State, mut list: NvList) {
        let wall = self.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = (i64::try_from(wall.as_secs()).unwrap_or(i64::MAX), i64::from(wall.subsec_nanos()));
        let eid = state.last + 1;
        list.set("time", NvValue::Int64Array(vec![time.0, time.1]));
        list.set("eid", eid);
        if list.encode_native(Endian::Little).len() > MAX_EVENT_BYTES {
            state.dropped += 1;
            return;
        }
        let class = list.get_str("class").unwrap_or_default().to_owned();
        let dropped = std::mem::take(&mut state.dropped);
        state.last = eid;
        state.ring.push_back(Arc::new(Event { eid, dropped, time, class, list }));
        if state.ring.len() > MAX_EVENTS {
            state.ring.pop_front();
        }
    }
}

/// Names of values in history records, and their names in events.
const HISTORY: [(&str, &str); 10] = [
    ("history command", "history_command"),
    ("history hostname", "history_hostname"),
    ("dsname", "history_dsname"),
    ("history internal str", "history_internal_str"),
    ("internal_name", "history_internal_name"),
    ("dsid", "history_dsid"),
    ("history txg", "history_txg"),
    ("history time", "history_time"),
    ("history who", "history_who"),
    ("history zone", "history_zone"),
];

impl Events {
    /// GUID of the vdev above a leaf; 0 if that is not known.
    pub(crate) fn parent_of(&self, leaf: u64) -> u64 {
        self.lock().pool.vdevs.get(&leaf).map_or(0, |vdev| vdev.parent)
    }

    /// Reports a fault. Returns whether it is a new one, which the rate limit let through.
    pub(crate) fn record(&self, fault: &Fault<'_>) -> bool {
        let class = class_of(&fault.what);
        let errno = errno_of(&fault.what);
        let (kind, priority) = kind_and_priority(fault);
        let spot = fault.spot.as_ref();
        let (leaf, offset, size) = spot.map_or((0, 0, 0), |s| (s.leaf, s.offset_bytes, s.size_bytes));
        let now = self.clock.now();
        let mut state = self.lock();
        if !state.recent.is_new((class, errno, leaf, offset, size, priority, fault.about.origin), now) {
            return false;
        }
        if state.too_many(class, leaf, now) {
            state.dropped += 1;
            return false;
        }
        let mut list = state.pool.report(&ereport(class), spot.map(|spot| spot.leaf));
        if let Some(spot) = spot {
            list.set("vdev_read_errors", spot.counts.read_errors);
            list.set("vdev_write_errors", spot.counts.write_errors);
            list.set("vdev_cksum_errors", spot.counts.checksum_errors);
            state.pool.add_parent(spot.leaf, &mut list);
        }
        list.set("zio_err", errno);
        list.set("zio_type", kind);
        list.set("zio_priority", priority);
        add_block(fault, &mut list);
        self.put(&mut state, list);
        true
    }
}

/// Adds the location of a fault on the device and in the pool, and its checksums.
fn add_block(fault: &Fault<'_>, list: &mut NvList) {
    if let Some(DeviceRange { offset_bytes, size_bytes, .. }) = fault.spot.filter(|spot| spot.size_bytes > 0) {
        list.set("zio_offset", offset_bytes);
        list.set("zio_size", size_bytes);
    }
    if let Some(Bookmark { objset, object, level, block }) = fault.about.origin {
        list.set("zio_objset", objset.0);
        list.set("zio_object", object);
        list.set("zio_level", level);
        list.set("zio_blkid", block);
    }
    if let FaultKind::Checksum(mismatch) = fault.what {
        if let Some(kind) = fault.about.checksum {
            list.set("cksum_algorithm", kind.name());
        }
        if let Some(CodecError::Checksum { expected, actual, .. }) = mismatch {
            list.set("cksum_expected", expected.to_vec());
            list.set("cksum_actual", actual.to_vec());
        }
    }
}

/// The class of an error report.
fn ereport(class: ErrorReport) -> String {
    format!("ereport.fs.zfs.{}", class.name())
}

fn class_of(what: &FaultKind<'_>) -> ErrorReport {
    match what {
        FaultKind::Checksum(_) => ErrorReport::Checksum,
        FaultKind::Read(_) | FaultKind::Write(_) | FaultKind::Flush(_) => ErrorReport::Io,
        FaultKind::Lost(BlockError::Corrupt { fault: CodecError::Authentication { .. }, .. }) => {
            ErrorReport::Authentication
        }
        FaultKind::Lost(_) => ErrorReport::Data,
    }
}

fn errno_of(what: &FaultKind<'_>) -> i32 {
    let of_device = |error: &DiskError| match error {
        DiskError::Os { errno, .. } | DiskError::Open { errno, .. } => *errno,
        _ => EIO,
    };
    match what {
        FaultKind::Checksum(_) | FaultKind::Lost(BlockError::Corrupt { .. } | BlockError::Structure { .. }) => ECKSUM,
        FaultKind::Read(error) | FaultKind::Write(error) | FaultKind::Flush(error) => of_device(error),
        FaultKind::Lost(BlockError::Device { error, .. }) => of_device(error),
        FaultKind::Lost(BlockError::Missing { .. }) => ENXIO,
        FaultKind::Lost(_) => EIO,
    }
}

/// The numbers of `zio_type_t` and `zio_priority_t`.
fn kind_and_priority(fault: &Fault<'_>) -> (u32, u32) {
    const READ: [u32; 3] = [0, 2, 4];
    const WRITE: [u32; 3] = [1, 3, 3];
    let (kind, [sync, later, scrub]) = match fault.what {
        FaultKind::Checksum(_) | FaultKind::Read(_) | FaultKind::Lost(_) => (1, READ),
        FaultKind::Write(_) => (2, WRITE),
        FaultKind::Flush(_) => (5, WRITE),
    };
    let priority = match fault.priority {
        Priority::Sync => sync,
        Priority::Async => later,
        Priority::Scrub => scrub,
    };
    (kind, priority)
}

#[cfg(test)]
mod tests;
