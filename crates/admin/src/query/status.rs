//! State of a pool: what is wrong with it, its vdevs, what goes on in it, and the files with errors.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`status_callback`), `include/sys/fs/zfs.h` (`pool_scan_stat_t`,
//! `pool_removal_stat_t`, `pool_raidz_expand_stat_t`, `pool_checkpoint_stat_t`).

use super::rebuild_status::RebuildStatus;
use super::vdev_status::{VdevFacts, VdevStatus};
use super::{Row, Rows, health_in_memory, is_suspended, unless_suspended, unreadable};
use crate::compatibility::compatible_features;
use crate::problem::{self, OpenErrors, PoolFacts, Problem};
use crate::query::vdev_status::VdevHealth;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::time::UNIX_EPOCH;
use weir_blocks::FailMode;
use weir_dsl::MountedFileSystems;
use weir_engine::Engine;
use weir_engine::create::DEFAULT_FEATURES;
use weir_engine::scrub::errors;
use weir_format::dsl::ErrorScrubPhys;
use weir_format::features::{FEATURES, VERSION_FEATURES};
use weir_machine::Request;
use weir_pool::assemble::state;
use weir_pool::aux_devices::{Extra, extras};
use weir_pool::dedup::DedupTables;
use weir_pool::errlog::Errors;
use weir_pool::initialize_trim::{LeafActivity, of_pool};
use weir_pool::scan_status::{self, Stage};
use weir_pool::{Pool, PoolError};

/// Parts of a pool's state that are read on demand only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusQuery {
    /// Whether the files with errors are read, which walks to each of them.
    pub damaged: bool,
    /// Whether the dedup tables are read.
    pub dedup: bool,
}

/// State of an open pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolStatus {
    /// Name of the pool.
    pub name: String,
    /// GUID of the pool.
    pub guid: u64,
    /// Last synced txg.
    pub txg: u64,
    /// Time of the report, in seconds since 1970.
    pub now_s: u64,
    /// Health: its state, for example `ONLINE`, or `SUSPENDED`.
    pub health: String,
    /// Whether the pool was exported, so that no host uses it.
    pub exported: bool,
    /// The worst problem of the pool.
    pub problem: Option<Problem>,
    /// Why the pool is suspended, if it is.
    pub suspended: Option<String>,
    /// A sentence for each top-level vdev with too few devices to read the blocks of some txgs.
    pub lost: Vec<String>,
    /// The last scrub or resilver.
    pub scan: Option<ScanStatus>,
    /// The last scrub of the blocks in the error log, if it began after that.
    #[serde(default)]
    pub error_scrub: Option<ErrorScrubStatus>,
    /// Sequential rebuilds in progress and the last ones, in the order of the vdevs.
    pub rebuilds: Vec<RebuildStatus>,
    /// The last removal of a top-level vdev.
    pub removal: Option<RemovalStatus>,
    /// The RAID-Z expansion in progress, or the last one.
    pub expansion: Option<ExpansionStatus>,
    /// The checkpoint.
    pub checkpoint: Option<CheckpointStatus>,
    /// Bytes of destroyed datasets that are still to be freed.
    pub freeing_bytes: u64,
    /// Number of lost blocks; one that several datasets have counts for each of them. Their files follow as [`Row::Damaged`].
    pub error_count: u64,
    /// Why a part of the list of lost blocks cannot be read.
    pub unread_errors: Option<String>,
    /// The vdevs.
    pub root: VdevStatus,
    /// Cache devices.
    pub caches: Vec<VdevStatus>,
    /// Hot spares.
    pub spares: Vec<VdevStatus>,
    /// The dedup tables, if they were asked for.
    pub dedup: Option<DedupStatus>,
}

/// Stage of a scrub, resilver, removal or expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanStage {
    /// In progress, or paused.
    Running,
    /// Done.
    Finished,
    /// Canceled.
    Canceled,
}

impl From<Stage> for ScanStage {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Running => ScanStage::Running,
            Stage::Finished => ScanStage::Finished,
            Stage::Canceled => ScanStage::Canceled,
        }
    }
}

/// A scrub or resilver. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScanStatus {
    /// Whether it is a resilver; otherwise a scrub.
    pub resilver: bool,
    /// Stage that it has reached.
    pub stage: ScanStage,
    /// Whether it is paused until it is started again.
    pub paused: bool,
    /// When it was paused; 0 if it is not, or that is not known.
    #[serde(default)]
    pub paused_s: u64,
    /// Time of its start.
    pub start_s: u64,
    /// Time of its end; 0 while it is in progress.
    pub end_s: u64,
    /// Seconds that Weir spent on it; 0 if another program runs it.
    pub active_s: u64,
    /// Estimated remaining seconds; `None` before a rate is known.
    #[serde(default)]
    pub left_s: Option<u64>,
    /// Bytes to examine.
    pub to_examine_bytes: u64,
    /// Bytes that were examined.
    pub examined_bytes: u64,
    /// Bytes of blocks that were found: examined, or queued to be read.
    #[serde(default)]
    pub found_bytes: u64,
    /// Examined bytes that needed no read.
    pub skipped_bytes: u64,
    /// Bytes that were repaired, or written to the new device.
    pub processed_bytes: u64,
    /// Number of blocks that could not be repaired.
    pub errors: u64,
}

/// A scrub of the blocks in the error log. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorScrubStatus {
    /// Stage that it has reached.
    pub stage: ScanStage,
    /// Whether it is paused until it is started again.
    pub paused: bool,
    /// Time of its start.
    pub start_s: u64,
    /// Time of its end; 0 while it is in progress.
    pub end_s: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that were not read yet.
    pub to_examine: u64,
}

impl From<ErrorScrubPhys> for ErrorScrubStatus {
    fn from(scrub: ErrorScrubPhys) -> Self {
        let stage = match (errors::is_open(&scrub), errors::is_finished(&scrub)) {
            (true, _) => ScanStage::Running,
            (false, true) => ScanStage::Finished,
            (false, false) => ScanStage::Canceled,
        };
        ErrorScrubStatus {
            stage,
            paused: scrub.paused != 0,
            start_s: scrub.start_time_s,
            end_s: scrub.end_time_s,
            examined: scrub.examined,
            to_examine: scrub.to_examine,
        }
    }
}

/// A removal of a top-level vdev. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovalStatus {
    /// Stage that it has reached.
    pub stage: ScanStage,
    /// Id of the vdev.
    pub vdev: u64,
    /// Time of its start.
    pub start_s: u64,
    /// Time of its end; 0 while it is in progress.
    pub end_s: u64,
    /// Bytes to copy.
    pub to_copy_bytes: u64,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Memory for the mappings of all removed vdevs, in bytes.
    pub mapping_memory_bytes: u64,
}

/// A RAID-Z expansion. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpansionStatus {
    /// Stage that it has reached.
    pub stage: ScanStage,
    /// Id of the vdev.
    pub vdev: u64,
    /// Time of its start.
    pub start_s: u64,
    /// Time of its end; 0 while it is in progress.
    pub end_s: u64,
    /// Bytes to move: all allocated bytes of the vdev.
    pub to_reflow_bytes: u64,
    /// Bytes that were moved.
    pub reflowed_bytes: u64,
}

/// The checkpoint of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointStatus {
    /// Time of its creation, in seconds since 1970.
    pub taken_s: u64,
    /// Bytes that only the checkpoint has.
    pub bytes: u64,
}

/// Entries of all dedup tables of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupStatus {
    /// The entries by number of references, in ascending order, without empty buckets.
    pub buckets: Vec<DedupBucket>,
    /// Bytes that the tables take on the devices.
    pub disk_bytes: u64,
    /// Bytes of their blocks in memory, if all were cached.
    pub memory_bytes: u64,
}

/// Entries of dedup tables with numbers of references from 2^n to 2^(n+1) - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupBucket {
    /// The n of the numbers of references, below 64.
    pub references_log2: u32,
    /// Blocks as they are stored.
    pub allocated: DedupSums,
    /// Blocks multiplied by their references.
    pub referenced: DedupSums,
}

/// Sums over blocks in dedup tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupSums {
    /// Number of blocks.
    pub blocks: u64,
    /// Logical bytes.
    pub logical_bytes: u64,
    /// Compressed bytes.
    pub physical_bytes: u64,
    /// Bytes on the devices, without parity.
    pub deflated_bytes: u64,
}

impl DedupSums {
    fn of([blocks, logical_bytes, physical_bytes, deflated_bytes]: [u64; 4]) -> Self {
        DedupSums { blocks, logical_bytes, physical_bytes, deflated_bytes }
    }

    /// The sums in the order in which they are shown: blocks, logical, physical and deflated bytes.
    pub fn in_order(&self) -> [u64; 4] {
        [self.blocks, self.logical_bytes, self.physical_bytes, self.deflated_bytes]
    }

    /// Adds sums, which come off disks.
    fn add(&mut self, other: &DedupSums) {
        let sums = self.in_order().into_iter().zip(other.in_order()).map(|(a, b)| a.saturating_add(b));
        let mut out = [0; 4];
        out.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
        *self = DedupSums::of(out);
    }
}

impl DedupStatus {
    /// The sums of all buckets: blocks as they are stored, and multiplied by their references.
    pub fn total(&self) -> [DedupSums; 2] {
        let mut total = [DedupSums::default(); 2];
        for bucket in &self.buckets {
            total[0].add(&bucket.allocated);
            total[1].add(&bucket.referenced);
        }
        total
    }
}

impl From<&DedupTables> for DedupStatus {
    fn from(tables: &DedupTables) -> Self {
        let bucket = |(references_log2, sums): (u32, &[u64; 8])| {
            let [a, b, c, d, e, f, g, h] = *sums;
            let allocated = DedupSums::of([a, b, c, d]);
            DedupBucket { references_log2, allocated, referenced: DedupSums::of([e, f, g, h]) }
        };
        let rows = (0..).zip(&tables.histogram.rows).filter(|(_, sums)| sums[0] != 0);
        let buckets = rows.map(bucket).collect();
        DedupStatus { buckets, disk_bytes: tables.disk_bytes, memory_bytes: tables.memory_bytes }
    }
}

impl StatusQuery {
    /// Reads the state: one [`Row::PoolStatus`], then a [`Row::Damaged`] for each file with errors.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) async fn run(&self, pool: &Pool, mounted: &MountedFileSystems, rows: &mut Rows) -> Result<(), Refusal> {
        let rq = &Request::internal("status");
        let read = self.read(rq, pool).await.map_err(unreadable)?;
        self.add(rq, (pool, mounted), read, rows).await
    }

    async fn read(&self, rq: &Request, pool: &Pool) -> Result<(PoolStatus, Errors), PoolError> {
        let errors = weir_pool::errlog::errors(pool, rq).await?;
        Ok((PoolStatus::read(rq, pool, &errors, self.dedup).await?, errors))
    }

    async fn add(
        &self,
        rq: &Request,
        (pool, mounted): (&Pool, &MountedFileSystems),
        (status, errors): (PoolStatus, Errors),
        rows: &mut Rows,
    ) -> Result<(), Refusal> {
        rows.add(Row::PoolStatus(Box::new(status))).await?;
        if self.damaged {
            for place in weir_pool::errlog::error_lines(pool, rq, &errors, mounted).await {
                rows.add(Row::Damaged { place }).await?;
            }
        }
        Ok(())
    }

    /// As [`StatusQuery::run`], of an open pool: if a part of its state cannot be read, what is in memory.
    ///
    /// # Errors
    /// As [`StatusQuery::run_in_memory`]. Also if a part of the state cannot be read and the pool is not suspended.
    pub(super) async fn run_if_readable(
        &self,
        engine: &Engine,
        pool: &Pool,
        mounted: &MountedFileSystems,
        rows: &mut Rows,
    ) -> Result<(), Refusal> {
        let rq = &Request::internal("status");
        match self.read(rq, pool).await {
            Ok(read) => self.add(rq, (pool, mounted), read, rows).await,
            Err(error) => {
                Self::run_in_memory(engine, &error.to_string(), rows).await?;
                unless_suspended(engine, error)
            }
        }
    }

    /// Gives what is known of an open pool whose MOS cannot be read, because its devices fail or do not answer.
    ///
    /// # Errors
    /// If the caller has gone away, or the pool has no vdev tree.
    pub(super) async fn run_in_memory(engine: &Engine, why: &str, rows: &mut Rows) -> Result<(), Refusal> {
        let (tree, state, states) = engine.synced().vdevs_in_memory().map_err(unreadable)?;
        let blocks = engine.cache.blocks();
        let dtls = blocks.tree().dtls();
        let open_errors = OpenErrors::of(&engine.machine, &tree, &states);
        let facts = VdevFacts { states: &states, dtls: &dtls, open_errors: &open_errors };
        let problem = match blocks.tree().suspension().mode() {
            _ if !is_suspended(engine) => Problem::FailingDevice,
            FailMode::Continue => Problem::SuspendedContinues,
            _ => Problem::SuspendedWaits,
        };
        let name = engine.name();
        let status = PoolStatus {
            root: VdevStatus::of_memory(&name, state, &tree, facts, blocks),
            guid: engine.shown().config.guid,
            txg: engine.txgs().last_synced().0,
            now_s: engine.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            health: health_in_memory(engine, state),
            exported: false,
            problem: Some(problem),
            suspended: engine.devices().suspended_because().map(|why| why.to_string()),
            lost: Vec::new(),
            scan: None,
            error_scrub: None,
            rebuilds: Vec::new(),
            removal: None,
            expansion: None,
            checkpoint: None,
            freeing_bytes: 0,
            error_count: 0,
            unread_errors: Some(why.to_owned()),
            caches: Vec::new(),
            spares: Vec::new(),
            dedup: None,
            name,
        };
        rows.add(Row::PoolStatus(Box::new(status))).await
    }
}

/// The problem of an open pool, as `zpool status -x` decides; `None` if it is healthy.
///
/// # Errors
/// If the pool cannot be read.
pub async fn problem_of(pool: &Pool) -> Result<Option<Problem>, PoolError> {
    let rq = &Request::internal("status");
    let errors = weir_pool::errlog::errors(pool, rq).await?;
    let status = PoolStatus::read(rq, pool, &errors, false).await?;
    Ok(status.problem.filter(|problem| problem.is_unhealthy()))
}

/// Whether a feature is not enabled that the property `compatibility` allows, or without it new pools have. A set that cannot
/// be read allows none.
fn lacks_features(pool: &Pool) -> bool {
    let allowed = compatible_features(pool.config.list.get_str("compatibility").unwrap_or("off"));
    let is_wanted = |name: &str| match &allowed {
        Ok(None) => DEFAULT_FEATURES.contains(&name),
        Ok(Some(allowed)) => allowed.contains(name),
        Err(_) => false,
    };
    FEATURES.iter().any(|feature| is_wanted(feature.name) && pool.features.count(feature.guid).is_none())
}

impl PoolStatus {
    async fn read(rq: &Request, pool: &Pool, errors: &Errors, with_dedup: bool) -> Result<Self, PoolError> {
        let scan = scan_status::last_scan(pool, rq).await?;
        let mut rebuilds = Vec::new();
        for top in &pool.tree.children {
            rebuilds.extend(RebuildStatus::of(top.id, weir_pool::rebuild::of_top(rq, &pool.mos, top).await?));
        }
        let spares = extras(pool, rq, Extra::Spare).await?;
        let caches = extras(pool, rq, Extra::Cache).await?;
        let spares: Vec<_> = spares.iter().map(|spare| VdevStatus::of_spare(pool, spare)).collect();
        let caches: Vec<_> = caches.iter().map(|cache| VdevStatus::of_cache(pool, cache)).collect();
        let open_errors = OpenErrors::of(&pool.machine, &pool.tree, &pool.states);
        let mut passes = Vec::new();
        for kind in LeafActivity::ALL {
            passes.push((kind, of_pool(rq, pool, kind).await?));
        }
        let dedup = match with_dedup {
            true => Some(weir_pool::dedup::dedup_tables(rq, &pool.mos, &pool.tree.children).await?),
            false => None,
        };
        let scan_start_s = scan.map_or(0, |scan| scan.start_s);
        let of_errors = errors::error_scrub_in(rq, &pool.mos).await?;
        let error_scrub = of_errors.filter(|scrub| scrub.start_time_s >= scan_start_s).map(ErrorScrubStatus::from);
        let is_gone = |vdev: &VdevStatus| vdev.health == VdevHealth::Unavail;
        let lacks_features = lacks_features(pool);
        let facts = PoolFacts {
            // A log that cannot be read may have errors.
            errors: errors.count.max(u64::from(errors.lost.is_some())),
            resilvers: rebuilds.iter().any(RebuildStatus::is_running)
                || scan.is_some_and(|scan| scan.resilver && scan.stage == Stage::Running && !scan.paused),
            fails_requests: pool.blocks.tree().suspension().mode() == FailMode::Continue,
            unopened: open_errors.kinds(),
            lacks_cache: caches.iter().any(is_gone),
            lacks_spare: spares.iter().any(is_gone),
            lacks_features,
            has_old_version: pool.uberblock.version < VERSION_FEATURES,
        };
        Ok(PoolStatus {
            name: pool.name().to_owned(),
            guid: pool.config.guid,
            txg: pool.uberblock.txg.0,
            now_s: pool.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            health: pool.health(),
            exported: pool.label.state == state::EXPORTED,
            problem: problem::of_open(pool, &facts),
            suspended: pool.suspended.clone(),
            lost: pool.lost(),
            scan: scan.map(ScanStatus::from),
            error_scrub,
            rebuilds,
            removal: scan_status::last_removal(pool, rq).await?.map(RemovalStatus::from),
            expansion: scan_status::last_expansion(pool, rq).await?.map(ExpansionStatus::from),
            checkpoint: scan_status::checkpoint(pool, rq).await?.map(CheckpointStatus::from),
            freeing_bytes: weir_pool::properties::freeing_bytes(rq, pool).await?,
            error_count: errors.count,
            unread_errors: errors.lost.as_ref().map(ToString::to_string),
            root: VdevStatus::of_open(pool, &open_errors, &passes),
            caches,
            spares,
            dedup: dedup.as_ref().map(DedupStatus::from),
        })
    }

    /// Whether a resilver or a rebuild is in progress, or paused.
    pub fn resilvers(&self) -> bool {
        self.rebuilds.iter().any(RebuildStatus::is_running)
            || self.scan.is_some_and(|scan| scan.resilver && scan.stage == ScanStage::Running)
    }
}

impl From<scan_status::Scan> for ScanStatus {
    fn from(scan: scan_status::Scan) -> Self {
        ScanStatus {
            resilver: scan.resilver,
            stage: scan.stage.into(),
            paused: scan.paused,
            paused_s: scan.paused_s,
            start_s: scan.start_s,
            end_s: scan.end_s,
            active_s: scan.active_s,
            left_s: scan.left_s,
            to_examine_bytes: scan.to_examine,
            examined_bytes: scan.examined,
            found_bytes: scan.found,
            skipped_bytes: scan.skipped,
            processed_bytes: scan.processed,
            errors: scan.errors,
        }
    }
}

impl From<scan_status::Removal> for RemovalStatus {
    fn from(removal: scan_status::Removal) -> Self {
        RemovalStatus {
            stage: removal.stage.into(),
            vdev: removal.vdev,
            start_s: removal.start_s,
            end_s: removal.end_s,
            to_copy_bytes: removal.to_copy,
            copied_bytes: removal.copied,
            mapping_memory_bytes: removal.mapping_memory,
        }
    }
}

impl From<scan_status::Expansion> for ExpansionStatus {
    fn from(expansion: scan_status::Expansion) -> Self {
        ExpansionStatus {
            stage: expansion.stage.into(),
            vdev: expansion.vdev,
            start_s: expansion.start_s,
            end_s: expansion.end_s,
            to_reflow_bytes: expansion.to_reflow,
            reflowed_bytes: expansion.reflowed,
        }
    }
}

impl From<scan_status::Checkpoint> for CheckpointStatus {
    fn from(checkpoint: scan_status::Checkpoint) -> Self {
        CheckpointStatus { taken_s: checkpoint.taken_s, bytes: checkpoint.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dedup_tables_are_added_up() {
        let mut tables = DedupTables { disk_bytes: 4096, memory_bytes: 1536, ..DedupTables::default() };
        assert_eq!(DedupStatus::from(&tables).buckets, []);
        tables.histogram.rows[0] = [3, 30, 20, 10, 3, 30, 20, 10];
        tables.histogram.rows[2] = [1, u64::MAX, 2, 1, 5, 50, 10, 5];
        let status = DedupStatus::from(&tables);
        assert_eq!(status.buckets.iter().map(|bucket| bucket.references_log2).collect::<Vec<_>>(), [0, 2]);
        let [allocated, referenced] = status.total().map(|sums| sums.in_order());
        assert_eq!((allocated, referenced), ([4, u64::MAX, 22, 11], [8, 80, 30, 15]));
    }
}
