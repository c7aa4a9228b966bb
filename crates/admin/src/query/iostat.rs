//! Reads and writes of the devices of open pools, counted since they were opened.
//!
//! A row has the counters as they are: its caller subtracts those of the row before. Leaves have counters, other vdevs the sum of
//! those below them.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_get_stats_ex_impl`).

use super::vdev_space::{VdevGroup, group_of};
use super::{LOOK, Row, Rows};
use crate::refusal::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use weir_blocks::vdev::LeafHealth;
use weir_blocks::vdev::histogram::{LeafStats, OperationStats};
use weir_engine::Engine;
use weir_engine::cache_devices::CacheDeviceStats;
use weir_pool::VdevConfig;

/// Which pools are read, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IostatQuery {
    /// Names or GUIDs of pools that the process has open.
    pub pools: Vec<String>,
    /// Nanoseconds between two samples; `None` for a single one.
    pub interval_ns: Option<u64>,
    /// Number of samples; `None` for no end.
    pub samples: Option<u64>,
    /// Whether histograms of times and sizes, and what waits, are read as well.
    pub histograms: bool,
}

/// Counters of a pool at an instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolIoRow {
    /// Name of the pool.
    pub name: String,
    /// GUID of the pool.
    pub guid: u64,
    /// Nanoseconds since the pool was opened.
    pub uptime_ns: u64,
    /// The root vdev.
    pub root: VdevIo,
    /// Cache devices in service.
    #[serde(default)]
    pub caches: Vec<VdevIo>,
}

/// A vdev with those below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevIo {
    /// GUID of the vdev.
    pub guid: u64,
    /// Name of the vdev.
    pub name: String,
    /// Type of the vdev as in its label, for example `mirror` or `file`.
    pub kind: String,
    /// Path of its device, if it is a leaf with one.
    pub path: Option<String>,
    /// Group of the vdev; `None` for one that has no devices (removed vdevs, holes).
    pub group: Option<VdevGroup>,
    /// Bytes that are allocated, and bytes that are free, of a top-level vdev.
    pub space_bytes: Option<[u64; 2]>,
    /// Counters of a leaf.
    pub io: Option<LeafIo>,
    /// The vdevs below it.
    pub children: Vec<VdevIo>,
}

/// Counters of a leaf since the pool was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeafIo {
    /// Completed reads.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Times and sizes of the reads and of the writes, if they were asked for.
    pub histograms: Option<[OperationIo; 2]>,
}

/// Histograms of the reads or of the writes of a leaf. Bucket `i` counts values from 2^i to 2^(i+1) - 1, the first one also 0, the
/// last one all larger ones. Classes are Sync, Async and Scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationIo {
    /// Sum of the times that the disk took, in nanoseconds.
    pub disk_sum_ns: u64,
    /// Nanoseconds from the request to its completion.
    pub total_ns: Vec<u64>,
    /// Nanoseconds that the disk took.
    pub disk_ns: Vec<u64>,
    /// Nanoseconds in the queue, by class.
    pub wait_ns: [Vec<u64>; 3],
    /// Bytes of operations of one reader or writer, by class.
    pub single_bytes: [Vec<u64>; 3],
    /// Bytes of merged operations, by class.
    pub merged_bytes: [Vec<u64>; 3],
    /// Operations that wait, by class.
    pub pending: [u64; 3],
    /// Operations in progress, by class.
    pub active: [u64; 3],
}

impl From<OperationStats> for OperationIo {
    fn from(stats: OperationStats) -> Self {
        OperationIo {
            disk_sum_ns: stats.disk_ns,
            total_ns: stats.total.to_vec(),
            disk_ns: stats.disk.to_vec(),
            wait_ns: stats.waits.map(|times| times.to_vec()),
            single_bytes: stats.single.map(|sizes| sizes.to_vec()),
            merged_bytes: stats.merged.map(|sizes| sizes.to_vec()),
            pending: stats.pending,
            active: stats.active,
        }
    }
}

impl From<&OperationIo> for OperationStats {
    /// Buckets that are missing are 0, and others than the known ones are left out.
    fn from(io: &OperationIo) -> Self {
        fn buckets<const N: usize>(values: &[u64]) -> [u64; N] {
            std::array::from_fn(|i| values.get(i).copied().unwrap_or(0))
        }
        fn by_class<const N: usize>(values: &[Vec<u64>; 3]) -> [[u64; N]; 3] {
            values.each_ref().map(|values| buckets(values))
        }
        OperationStats {
            disk_ns: io.disk_sum_ns,
            total: buckets(&io.total_ns),
            disk: buckets(&io.disk_ns),
            waits: by_class(&io.wait_ns),
            single: by_class(&io.single_bytes),
            merged: by_class(&io.merged_bytes),
            pending: io.pending,
            active: io.active,
        }
    }
}

impl LeafIo {
    /// The histograms; all 0 if they were not asked for.
    pub fn stats(&self) -> LeafStats {
        let Some([reads, writes]) = &self.histograms else { return LeafStats::default() };
        LeafStats { reads: reads.into(), writes: writes.into() }
    }
}

impl VdevIo {
    /// This vdev and all vdevs below it, parents first.
    pub fn walk(&self) -> Vec<&VdevIo> {
        let mut out = vec![self];
        let mut next = 0;
        while let Some(vdev) = out.get(next).copied() {
            out.extend(&vdev.children);
            next += 1;
        }
        out
    }

    /// Whether a text is its GUID, name, path, or the last part of its path.
    pub fn is_called(&self, text: &str) -> bool {
        let ends_so = |path: &str| path == text || path.rsplit('/').next() == Some(text);
        self.guid.to_string() == text || self.name == text || self.path.as_deref().is_some_and(ends_so)
    }
}

impl IostatQuery {
    /// Samples the pools, which are those of the query in its order, until all samples are taken or one of them is closed: one
    /// [`Row::PoolIo`] for each pool and sample.
    ///
    /// # Errors
    /// If the configuration of a pool cannot be read; [`RefusalKind::Stopped`] if the caller has gone away.
    pub async fn run(&self, pools: &[&Engine], mut rows: Rows) -> Result<(), Refusal> {
        let Some(clock) = pools.first().map(|engine| &engine.machine.clock) else { return Ok(()) };
        let mut left = if self.interval_ns.is_some() { self.samples } else { Some(1) };
        while left != Some(0) {
            for engine in pools {
                rows.add(Row::PoolIo(Box::new(self.sample(engine)?))).await?;
            }
            left = left.map(|left| left - 1);
            let interval = self.interval_ns.filter(|_| left != Some(0)).unwrap_or(0);
            let due = clock.now() + Duration::from_nanos(interval);
            while clock.now() < due {
                rows.check()?;
                if pools.iter().any(|engine| engine.events.is_ended()) {
                    return Ok(());
                }
                clock.sleep(LOOK.min(due.since(clock.now()))).await;
            }
        }
        Ok(())
    }

    fn sample(&self, engine: &Engine) -> Result<PoolIoRow, Refusal> {
        let config = engine.shown().config;
        let unreadable = |error| Refusal::new(RefusalKind::Pool, format!("the vdevs of '{}': {error}", config.name));
        let tree = VdevConfig::parse(&config.root).map_err(unreadable)?;
        let uptime = engine.machine.clock.now().since(engine.opened());
        let devices = engine.cache.blocks().tree();
        let mut stats = devices.stats();
        let leaf = |health: LeafHealth| {
            let LeafStats { reads, writes } = stats.remove(&health.guid).unwrap_or_default();
            let io = LeafIo {
                reads: health.counts.reads,
                writes: health.counts.writes,
                read_bytes: health.counts.read_bytes,
                write_bytes: health.counts.write_bytes,
                histograms: self.histograms.then(|| [reads.into(), writes.into()]),
            };
            (health.guid, io)
        };
        let mut leaves = devices.health().into_iter().map(leaf).collect();
        let mut root = vdev_io(&tree, None, &mut leaves);
        for (top, of_tree) in root.children.iter_mut().zip(&tree.children) {
            top.space_bytes = Some(engine.vdev_space_bytes(of_tree.id as u32));
        }
        Ok(PoolIoRow {
            name: engine.name(),
            guid: config.guid,
            uptime_ns: u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX),
            root,
            caches: caches(engine),
        })
    }
}

/// The cache devices in service. They have no histograms.
fn caches(engine: &Engine) -> Vec<VdevIo> {
    let aux = engine.shown().config.aux;
    let of = |stats: CacheDeviceStats| {
        let vdev = VdevConfig::parse(aux.cache(stats.guid)?).ok()?;
        let io = LeafIo {
            reads: stats.reads,
            writes: stats.writes,
            read_bytes: stats.read_bytes,
            write_bytes: stats.written_bytes,
            histograms: None,
        };
        let free_bytes = stats.size_bytes.saturating_sub(stats.used_bytes);
        Some(VdevIo {
            space_bytes: Some([stats.used_bytes, free_bytes]),
            ..vdev_io(&vdev, Some(VdevGroup::Cache), &mut BTreeMap::from([(stats.guid, io)]))
        })
    };
    engine.cache.l2arc().stats().devices.into_iter().filter_map(of).collect()
}

/// Counters of a vdev and of the vdevs below it. Their group is that of the vdev above, if it has one.
fn vdev_io(vdev: &VdevConfig, group: Option<VdevGroup>, leaves: &mut BTreeMap<u64, LeafIo>) -> VdevIo {
    let group = group.or_else(|| group_of(vdev));
    VdevIo {
        guid: vdev.guid,
        name: vdev.name(),
        kind: vdev.kind.type_name().to_owned(),
        path: vdev.path.clone().filter(|_| vdev.is_leaf()),
        group,
        space_bytes: None,
        io: leaves.remove(&vdev.guid),
        children: vdev.children.iter().map(|child| vdev_io(child, group, leaves)).collect(),
    }
}
