//! Everything that is counted in a pool, at an instant.

use crate::files::FileTable;
use crate::host::HostTotals;
use crate::stores::{StoreSpace, StoreTotals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;
use weir_blocks::Class;
use weir_blocks::vdev::histogram::OperationStats;
use weir_engine::Engine;
use weir_engine::open_datasets::{OpenDataset, OpenSet};
use weir_machine::accounts::{Content, DatasetTotals, Redundancy};
use weir_machine::{Operation, Protocol, RequestTotals, Source, Stage};
use weir_pool::config::VdevConfig;

/// Numbers by name; those that are 0 are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Counts(pub BTreeMap<String, u64>);

impl Counts {
    fn of<T: Copy>(all: &[T], name: fn(T) -> &'static str, value: impl Fn(T) -> u64) -> Self {
        Counts(all.iter().map(|&one| (name(one).to_owned(), value(one))).filter(|(_, n)| *n > 0).collect())
    }

    /// The number of this name; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Sum of all numbers.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Numbers since `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        let grown = self.0.iter().map(|(name, n)| (name.clone(), n.saturating_sub(before.get(name))));
        Counts(grown.filter(|(_, n)| *n > 0).collect())
    }

    /// Adds the numbers of `other`.
    pub fn add(&mut self, other: &Counts) {
        other.0.iter().for_each(|(name, n)| *self.0.entry(name.clone()).or_default() += n);
    }
}

/// Requests of one operation over one protocol, since the process opened the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationTotals {
    /// Protocol: `nfs3`, `nbd`, `fuse`, `iscsi`, `smb`, or `internal` for work of the pool itself.
    pub protocol: String,
    /// Operation: `read`, `write`, `lookup` …
    pub operation: String,
    /// Requests that ended.
    pub requests: u64,
    /// Bytes answered, by source: `arc demand`, `arc prefetched`, `l2arc`, `intent log`, `disk`, `holes`, `dirty data`.
    pub read_bytes: Counts,
    /// Bytes read for requests that are not part of their answers (metadata, rests of blocks), by source.
    pub support_bytes: Counts,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Nanoseconds by stage: `admission`, `throttle`, `locks`, `cache`, `queue`, `device`, `compute`, `log commit`, `txg sync`.
    pub stage_ns: Counts,
    /// Device operations that requests waited for.
    pub device_ops: u64,
    /// Number of requests by latency: element n counts those from 2ⁿ to below 2ⁿ⁺¹ ns. Zeros at the end are left out.
    pub latency: Vec<u64>,
}

impl OperationTotals {
    fn of(protocol: Protocol, operation: Operation, totals: &RequestTotals) -> Self {
        let used = totals.latency.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        OperationTotals {
            protocol: protocol.name().to_owned(),
            operation: if matches!(operation, Operation::Internal(_)) { "internal" } else { operation.name() }
                .to_owned(),
            requests: totals.requests,
            read_bytes: Counts::of(&Source::ALL, Source::name, |source| totals.answered_bytes(source)),
            support_bytes: Counts::of(&Source::ALL, Source::name, |source| totals.support_bytes(source)),
            written_bytes: totals.written_bytes,
            stage_ns: Counts::of(&Stage::ALL, Stage::name, |stage| totals.stage_ns(stage)),
            device_ops: totals.device_ops,
            latency: totals.latency.get(..used).unwrap_or_default().to_vec(),
        }
    }

    /// Adds the counters of another operation.
    pub fn add(&mut self, other: &OperationTotals) {
        self.requests += other.requests;
        self.written_bytes += other.written_bytes;
        self.device_ops += other.device_ops;
        self.read_bytes.add(&other.read_bytes);
        self.support_bytes.add(&other.support_bytes);
        self.stage_ns.add(&other.stage_ns);
        self.latency.resize(self.latency.len().max(other.latency.len()), 0);
        self.latency.iter_mut().zip(&other.latency).for_each(|(sum, count)| *sum += count);
    }
}

/// Requests of one client to one dataset, since the process opened the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTotals {
    /// Name of the dataset; empty for requests without a dataset. Of one that is not open any more it is `objset N`, until
    /// [`DatasetNames`](crate::DatasetNames) finds its name.
    pub dataset: String,
    /// Number of its object set; 0 for requests without a dataset.
    pub objset: u64,
    /// Protocol.
    pub protocol: String,
    /// Address or user; `other` for clients beyond the table's capacity, empty for the pool itself.
    pub client: String,
    /// Requests that ended.
    pub requests: u64,
    /// Of these, reads of data.
    #[serde(default)]
    pub reads: u64,
    /// Of these, writes of data.
    #[serde(default)]
    pub writes: u64,
    /// Requests that began while another one of the same client was in progress.
    #[serde(default)]
    pub overlapping: u64,
    /// Sum of the times from beginning to end, in nanoseconds.
    #[serde(default)]
    pub time_ns: u64,
    /// First copies of data written to devices for this client, in bytes after compression.
    #[serde(default)]
    pub data_bytes: u64,
    /// Bytes answered.
    pub read_bytes: u64,
    /// Bytes written by the client, before compression and redundancy.
    pub written_bytes: u64,
    /// Bytes written to devices because of this client's requests: data, copies, parity, metadata, intent log and padding.
    pub device_bytes: u64,
}

/// Bytes written to devices for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CauseBytes {
    /// `data`, `metadata`, `intent log`, `labels`, `repair` or `removal` (copies of the data of a vdev that is being removed).
    pub content: String,
    /// `first copy`, `copies`, `parity` or `padding`.
    pub redundancy: String,
    /// Bytes since the process opened the pool.
    pub bytes: u64,
}

/// The ARC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArcState {
    /// Reads served from memory, of blocks cached by a demand read or a write.
    pub demand_hits: u64,
    /// First reads of prefetched blocks.
    pub prefetch_hits: u64,
    /// Reads that joined a read in flight.
    pub joined: u64,
    /// Reads passed to the devices.
    pub misses: u64,
    /// Prefetches started.
    pub prefetches: u64,
    /// Reads of blocks that were evicted from the MRU list not long ago.
    pub mru_ghost_hits: u64,
    /// Reads of blocks that were evicted from the MFU list not long ago.
    pub mfu_ghost_hits: u64,
    /// Evictions.
    pub evictions: u64,
    /// Resident bytes of data on the MRU list.
    pub mru_data_bytes: u64,
    /// Resident bytes of metadata on the MRU list.
    pub mru_metadata_bytes: u64,
    /// Resident bytes of data on the MFU list.
    pub mfu_data_bytes: u64,
    /// Resident bytes of metadata on the MFU list.
    pub mfu_metadata_bytes: u64,
    /// Maximum size in bytes.
    pub max_bytes: u64,
    /// Reads that missed the ARC and were answered by a cache device.
    #[serde(default)]
    pub l2_hits: u64,
    /// Reads that missed the ARC and the cache devices.
    #[serde(default)]
    pub l2_misses: u64,
    /// Bytes read from cache devices.
    #[serde(default)]
    pub l2_read_bytes: u64,
    /// Bytes of blocks written to cache devices.
    #[serde(default)]
    pub l2_written_bytes: u64,
    /// Reads of cache devices that failed or returned wrong bytes.
    #[serde(default)]
    pub l2_errors: u64,
    /// Bytes of the blocks on cache devices, uncompressed.
    #[serde(default)]
    pub l2_size_bytes: u64,
    /// Bytes that these blocks take on the cache devices.
    #[serde(default)]
    pub l2_stored_bytes: u64,
    /// Memory of the index of these blocks; it is a part of the ARC's maximum.
    #[serde(default)]
    pub l2_index_bytes: u64,
}

impl ArcState {
    fn of(engine: &Engine) -> Self {
        let stats = engine.cache.stats();
        let l2 = engine.cache.l2arc().stats();
        let [mru_data_bytes, mru_metadata_bytes, mfu_data_bytes, mfu_metadata_bytes] = stats.sizes.resident_bytes;
        let [mru_ghost_hits, mfu_ghost_hits] = stats.sizes.ghost_hits;
        ArcState {
            demand_hits: stats.demand_hits,
            prefetch_hits: stats.prefetch_hits,
            joined: stats.joined,
            misses: stats.misses,
            prefetches: stats.prefetches,
            mru_ghost_hits,
            mfu_ghost_hits,
            evictions: stats.sizes.evictions,
            mru_data_bytes,
            mru_metadata_bytes,
            mfu_data_bytes,
            mfu_metadata_bytes,
            max_bytes: stats.sizes.budget_bytes,
            l2_hits: l2.hits,
            l2_misses: l2.misses,
            l2_read_bytes: l2.read_bytes,
            l2_written_bytes: l2.written_bytes,
            l2_errors: l2.io_errors + l2.checksum_errors,
            l2_size_bytes: l2.lsize_bytes,
            l2_stored_bytes: l2.psize_bytes,
            l2_index_bytes: l2.memory_bytes,
        }
    }

    /// Reads that needed no device of their own.
    pub fn hits(&self) -> u64 {
        self.demand_hits + self.prefetch_hits + self.joined
    }

    /// Resident bytes.
    pub fn size_bytes(&self) -> u64 {
        self.mru_data_bytes + self.mru_metadata_bytes + self.mfu_data_bytes + self.mfu_metadata_bytes
    }
}

/// Transaction groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TxgState {
    /// The open one.
    pub open: u64,
    /// The last one that has synced.
    pub synced: u64,
    /// Bytes that no txg has synced.
    pub dirty_bytes: u64,
    /// Dirty bytes at which writers wait.
    pub dirty_max_bytes: u64,
    /// Bytes of destroyed datasets that wait to be freed.
    #[serde(default)]
    pub freeing_bytes: u64,
    /// Snapshots destroyed since the process opened the pool.
    #[serde(default)]
    pub snapshots_destroyed: u64,
    /// Bytes of acknowledged writes that neither a txg nor the intent log has made stable: a power failure now would lose them. A
    /// byte that was overwritten counts as often as it was written.
    pub unstable_bytes: u64,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeafTotals {
    /// Name of the vdev.
    pub name: String,
    /// GUID of the vdev, in decimal.
    pub guid: String,
    /// GUID of its top-level vdev, in decimal.
    #[serde(default)]
    pub group: String,
    /// Allocation class of its top-level vdev: `normal`, `log`, `special` or `dedup`.
    #[serde(default)]
    pub class: String,
    /// Operations of its queue that ended, as merged; labels are not among them.
    #[serde(default)]
    pub timed_ops: u64,
    /// Sum of the times that the device took for these, in nanoseconds.
    #[serde(default)]
    pub timed_ns: u64,
    /// Reads and writes for a scrub or resilver, before merging.
    #[serde(default)]
    pub scrub_ops: u64,
    /// Reads and writes of all classes, before merging.
    #[serde(default)]
    pub queued_ops: u64,
    /// Operations that wait in the queue now.
    #[serde(default)]
    pub waiting: u64,
    /// Whether the device is there and in service.
    pub in_service: bool,
    /// Reads since the process opened the pool.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Reads that returned wrong bytes.
    pub checksum_errors: u64,
    /// Operations slower than the threshold of slow I/O.
    pub slow: u64,
}

/// Space of the vdevs that hold data, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceState {
    /// Size, as `zpool list` shows it.
    pub size_bytes: u64,
    /// Allocated.
    pub allocated_bytes: u64,
}

/// A dataset that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetState {
    /// Name.
    pub name: String,
    /// Number of its object set.
    pub objset: u64,
    /// `recordsize` or `volblocksize` in bytes; 0 if it is not open for writing.
    pub record_bytes: u64,
    /// Whether it is a volume.
    pub is_volume: bool,
}

/// Everything that is counted in a pool, at an instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Name of the pool.
    pub pool: String,
    /// GUID of the pool, in decimal.
    pub guid: String,
    /// Time of the sample, in milliseconds since 1970.
    pub time_ms: u64,
    /// Time since the process opened the pool, in nanoseconds. All counters began at 0 then.
    pub uptime_ns: u64,
    /// Requests by protocol and operation.
    pub operations: Vec<OperationTotals>,
    /// Requests by dataset and client.
    pub clients: Vec<ClientTotals>,
    /// Bytes by file and client, of those with the most of late.
    #[serde(default)]
    pub files: FileTable,
    /// Datasets that are open.
    #[serde(default)]
    pub datasets: Vec<DatasetState>,
    /// Bytes written to devices, by cause.
    pub written: Vec<CauseBytes>,
    /// The ARC.
    pub arc: ArcState,
    /// Transaction groups.
    pub txg: TxgState,
    /// Devices.
    pub leaves: Vec<LeafTotals>,
    /// Requests of the devices that are in stores of objects.
    #[serde(default)]
    pub stores: Vec<StoreTotals>,
    /// Space of these devices.
    #[serde(default)]
    pub store_space: Vec<StoreSpace>,
    /// Space.
    pub space: SpaceState,
    /// Counters of the host and the process; `None` in a sample of a process that does not read them.
    #[serde(default)]
    pub host: Option<HostTotals>,
}

impl Sample {
    /// Reads all counters of a pool.
    pub fn take(engine: &Engine) -> Self {
        let clock = &engine.machine.clock;
        let since_1970 = clock.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let accounts = engine.cache.accounts();
        let written = accounts.device_bytes();
        let causes = Content::ALL.iter().flat_map(|content| Redundancy::ALL.map(|redundancy| (*content, redundancy)));
        let written = causes
            .map(|(content, redundancy)| CauseBytes {
                content: content.name().to_owned(),
                redundancy: redundancy.name().to_owned(),
                bytes: written.of(content, redundancy),
            })
            .filter(|cause| cause.bytes > 0);
        let datasets = open_datasets(engine);
        let (stores, store_space) = crate::stores::of(engine);
        let names: BTreeMap<u64, String> = datasets.iter().map(|open| (open.objset, open.name.clone())).collect();
        Sample {
            pool: engine.name(),
            guid: engine.shown().config.guid.to_string(),
            time_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            uptime_ns: clock.now().ns_since(engine.opened()),
            operations: operations(engine),
            clients: accounts.datasets().into_iter().map(|row| client(&names, row)).collect(),
            files: FileTable::of(accounts, &names),
            datasets,
            written: written.collect(),
            arc: ArcState::of(engine),
            txg: TxgState {
                open: engine.txgs().open().0,
                synced: engine.txgs().last_synced().0,
                dirty_bytes: engine.txgs().dirty_bytes(),
                dirty_max_bytes: engine.gate.dirty_limits().max_bytes,
                freeing_bytes: engine.shown().freeing.left_bytes,
                snapshots_destroyed: engine.snapshots_destroyed.load(Ordering::Relaxed),
                unstable_bytes: accounts.unstable_bytes(),
            },
            leaves: leaves(engine),
            stores,
            store_space,
            space: space(engine),
            host: None,
        }
    }
}

fn open_datasets(engine: &Engine) -> Vec<DatasetState> {
    let state = |open: OpenSet| {
        let objset = open.set.id().0;
        Some(match open.contents? {
            OpenDataset::Files(files) => DatasetState {
                name: files.name().to_owned(),
                objset,
                record_bytes: files.record_bytes().unwrap_or(0).into(),
                is_volume: false,
            },
            OpenDataset::Volume(volume) => DatasetState {
                name: volume.name().to_owned(),
                objset,
                record_bytes: volume.block_bytes().into(),
                is_volume: true,
            },
        })
    };
    engine.sets.all().into_iter().filter_map(state).collect()
}

fn operations(engine: &Engine) -> Vec<OperationTotals> {
    let accounts = engine.cache.accounts();
    let mut out = Vec::new();
    for protocol in Protocol::ALL {
        // Most protocols are not in use.
        if accounts.protocol(protocol).requests == 0 {
            continue;
        }
        for operation in Operation::OF_CLIENTS.iter().copied().chain([Operation::Internal("")]) {
            let totals = accounts.operation(protocol, operation);
            if totals.requests > 0 {
                out.push(OperationTotals::of(protocol, operation, &totals));
            }
        }
    }
    out
}

/// Text that a sample has in place of the name of a dataset that is not open.
pub(crate) fn objset_name(objset: u64) -> String {
    format!("objset {objset}")
}

/// Name of a dataset in a row; `names` has those of the open ones.
pub(crate) fn dataset_name(names: &BTreeMap<u64, String>, objset: u64) -> String {
    match (names.get(&objset), objset) {
        (Some(name), _) => name.clone(),
        (None, 0) => String::new(),
        (None, number) => objset_name(number),
    }
}

fn client(names: &BTreeMap<u64, String>, row: DatasetTotals) -> ClientTotals {
    ClientTotals {
        dataset: dataset_name(names, row.dataset),
        objset: row.dataset,
        protocol: row.protocol.name().to_owned(),
        client: row.client,
        requests: row.requests,
        reads: row.reads,
        writes: row.writes,
        overlapping: row.overlapping,
        time_ns: row.time_ns,
        data_bytes: row.device.of(Content::Data, Redundancy::First),
        read_bytes: row.answered_bytes,
        written_bytes: row.written_bytes,
        device_bytes: row.device.total(),
    }
}

/// GUID and class of the top-level vdev of each leaf, by the leaf's GUID; empty if the configuration cannot be decoded.
fn groups(engine: &Engine) -> BTreeMap<u64, (u64, &'static str)> {
    let Ok(root) = VdevConfig::parse(&engine.shown().config.root) else { return BTreeMap::new() };
    let class = |top: &VdevConfig| match top.class {
        Class::Normal => "normal",
        Class::Log => "log",
        Class::Special => "special",
        Class::Dedup => "dedup",
    };
    let of_top = |top: &VdevConfig| -> Vec<_> {
        top.leaves().into_iter().map(|leaf| (leaf.guid, (top.guid, class(top)))).collect()
    };
    root.children.iter().flat_map(of_top).collect()
}

/// Place of scrubs among the classes of [`OperationStats`].
const SCRUB: usize = 2;

fn leaves(engine: &Engine) -> Vec<LeafTotals> {
    let tree = engine.cache.blocks().tree();
    let groups = groups(engine);
    let stats = tree.stats();
    let of = |leaf: weir_blocks::vdev::LeafHealth| {
        let (group, class) = groups.get(&leaf.guid).copied().unwrap_or_default();
        let stats = stats.get(&leaf.guid);
        let of_stats =
            |wanted: fn(&OperationStats) -> u64| stats.map_or(0, |of| wanted(&of.reads) + wanted(&of.writes));
        LeafTotals {
            name: leaf.name,
            guid: leaf.guid.to_string(),
            group: group.to_string(),
            class: class.to_owned(),
            timed_ops: of_stats(|of| of.disk.iter().sum()),
            timed_ns: of_stats(|of| of.disk_ns),
            scrub_ops: of_stats(|of| of.waits[SCRUB].iter().sum()),
            queued_ops: of_stats(|of| of.total.iter().sum()),
            waiting: of_stats(|of| of.pending.iter().sum()),
            in_service: leaf.present && !leaf.faulted,
            reads: leaf.counts.reads,
            read_bytes: leaf.counts.read_bytes,
            writes: leaf.counts.writes,
            write_bytes: leaf.counts.write_bytes,
            read_errors: leaf.counts.read_errors,
            write_errors: leaf.counts.write_errors,
            checksum_errors: leaf.counts.checksum_errors,
            slow: leaf.counts.slow,
        }
    };
    tree.health().into_iter().map(of).collect()
}

fn space(engine: &Engine) -> SpaceState {
    let blocks = engine.cache.blocks();
    let classes = [Class::Normal, Class::Special, Class::Dedup].map(|class| blocks.space(class));
    SpaceState {
        size_bytes: classes.iter().map(|sums| sums.size_bytes).sum(),
        allocated_bytes: classes.iter().map(|sums| sums.allocated_bytes).sum(),
    }
}
