//! Syncing of one transaction group (`spa_sync`).
//!
//! ```text
//!   1  datasets        their block trees, then space accounting, dead lists, directories
//!   2  sync tasks      create, snapshot, destroy …; sets that a task created sync as in 1 before the next task
//!   3  frees           unreferenced blocks return to the allocator
//!   4  configuration   if it changed
//!   5  the MOS         planned with its own space maps ([`weir_dmu::mos_plan`]), then written
//!   6  flush ─► labels, uberblock ─► flush                                        ([`super::labels`])
//! ```
//!
//! One task, the syncer, runs all steps. A failure before step 6 leaves the pool on the disks unchanged; this txg and all
//! later ones then fail ([`weir_dmu::txg::TxgTracker::fail`]).

use super::autotrim::AutoTrim;
use super::brt::BlockRefTable;
use super::checkpoint_obsolete_maps::CheckpointAndObsoleteMaps;
use super::config::Config;
use super::dtls::StoredDtls;
use super::error_log::ErrorLogTask;
use super::events::PoolEvent;
use super::expansion::{self, Expanding};
use super::labels::{self, Leaf};
use super::removal::{self, Removal};
use super::space::SpaceMaps;
use super::{Engine, multihost, syncer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use weir_blocks::vdev::Tree;
use weir_blocks::{BlockError, SpaceChange};
use weir_dmu::mos_plan::{MosDelta, MosPlan, MosRoot};
use weir_dmu::txg::Tx;
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet};
use weir_dsl::sync_tasks::space::Delta;
use weir_dsl::sync_tasks::{
    DslSyncContext, Limits, Moves, PoolContext, SyncedSet, features, limits, pool_dirs, receive, synced, trees,
};
use weir_format::features::Feature;
use weir_format::{BlockPointer, Endian, NvList, ObjectId, ObjsetId, ObjsetKind, Txg, Uberblock};
use weir_machine::{Priority, Request};
use weir_pool::assemble::state;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;

/// Maximum passes of planning the MOS. Each pass adds blocks or enlarges allocations, so a consistent plan converges
/// far earlier.
const MAX_MOS_PASSES: u32 = 1000;
/// Blocks of destroyed datasets that are freed between two checks of the elapsed time.
const FREES_PER_BATCH: u64 = 4096;
/// Time per txg for freeing destroyed datasets while a sync is requested (`zfs_free_min_time_ms`).
const FREE_TIME_WHEN_BUSY: Duration = Duration::from_secs(1);
/// Time per txg for freeing destroyed datasets while no sync is requested.
const FREE_TIME_WHEN_IDLE: Duration = Duration::from_millis(2500);
/// Block size of the configuration object, in bytes.
pub(crate) const CONFIG_BLOCK_BYTES: usize = 16 << 10;

/// State that only the syncer uses.
pub struct SyncerState {
    /// The configuration.
    pub config: Config,
    /// Whether the next txg writes the configuration to the MOS and the labels.
    pub config_dirty: bool,
    /// The devices whose labels are written.
    pub leaves: Vec<Leaf>,
    /// The space maps.
    pub maps: SpaceMaps,
    /// The last uberblock.
    pub uberblock: Uberblock,
    /// The MOS object of the configuration; 0 until it is made.
    pub config_object: ObjectId,
    /// Pool facts that DSL sync tasks need.
    pub context: PoolContext,
    /// The block reference table (BRT).
    pub clones: BlockRefTable,
    /// Space maps of frees that do not return to metaslabs: checkpoint and obsolete space maps.
    pub aside: CheckpointAndObsoleteMaps,
    /// The leaves' DTLs.
    pub dtls: StoredDtls,
    /// The txg in which the running scrub began, while that scrub may still clear DTLs.
    ///
    /// `None` if the scrub began before this import, or if a block may have moved since from a part of the pool that the
    /// scrub had not visited to one that it had.
    pub scrub_began: Option<Txg>,
    /// Returns of devices that the scan in progress knows, and those before it.
    pub returns_scanned: u64,
    /// The resilver that this process runs, by its first txg; `None` before it was continued or begun here.
    pub resilver_began: Option<Txg>,
    /// Freed space that awaits automatic trim.
    pub autotrim: AutoTrim,
    /// Space limits as of the last txg; `None` before the first.
    pub limits: Option<Limits>,
    /// Maximum blocks of destroyed datasets that one txg frees.
    pub max_frees_per_txg: u64,
    /// Maximum bytes of a vdev that is being removed that one txg copies.
    pub max_copied_bytes_per_txg: u64,
    /// The removal of a vdev in progress.
    pub removal: Option<Removal>,
    /// The expansion of a RAID-Z vdev in progress.
    pub expanding: Option<Expanding>,
    /// Whether the last txg freed such blocks and more remain.
    pub frees_on: bool,
    /// Destroyed datasets that are being freed.
    pub freeing: super::Freeing,
    /// Error that prevents freeing the rest of a destroyed dataset.
    pub stuck: Option<ObjectError>,
    /// Reason to fail the txg that is being synced.
    pub given_up: Option<String>,
    /// Whether the txg that is being synced is the last one.
    pub ended: bool,
    /// Object sets that sync tasks opened, and that no client may be using.
    pub opened: Vec<ObjsetId>,
}

/// Completes a task's submitter with the result of the txg.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), PoolError>) + Send>;
/// The syncing context of one txg, passed to sync tasks.
pub struct TxgSync<'b> {
    /// Changes of datasets, directories and the MOS's named objects.
    pub change: DslSyncContext<'b>,
    /// The syncer's state.
    pub core: &'b mut SyncerState,
    /// The pool.
    pub engine: &'b Engine,
    /// Object sets that the current task created.
    made: Vec<Arc<ObjectSet>>,
}

/// Syncs a txg. Returns the result, and the answers for the callers of its sync tasks.
pub(crate) async fn sync(
    engine: &Engine,
    core: &mut SyncerState,
    txg: Txg,
) -> (Result<(), PoolError>, VecDeque<Answer>) {
    // Lower priority than the intent log, whose writes clients wait for.
    let rq = Request::internal("sync").with_priority(Priority::Async);
    let _mos_locked = syncer::lock_mos(engine).await;
    let tx = Tx::of_syncing(txg);
    let now_s = engine.machine.clock.wall().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    core.context.capacity_bytes = engine.gate.space().capacity_bytes();
    let mut change = DslSyncContext::new(&rq, engine.mos.clone(), &tx, core.context.clone(), now_s);
    // A reader that requests a long hold from now on waits for this txg.
    change.reading = engine.reading.asked(txg);
    let mut syncing = TxgSync { change, core, engine, made: Vec::new() };
    let mut answers = VecDeque::new();
    (syncing.run(&mut answers, now_s).await, answers)
}

/// Whether the error says that a block was read but its contents are corrupt.
fn is_bad(error: &BlockError) -> bool {
    matches!(error, BlockError::Corrupt { .. } | BlockError::Structure { .. } | BlockError::InvalidPointer { .. })
}

impl TxgSync<'_> {
    fn txg(&self) -> Txg {
        self.change.txg()
    }

    async fn run(&mut self, answers: &mut VecDeque<Answer>, now_s: u64) -> Result<(), PoolError> {
        self.engine.multihost.check()?;
        super::dedup_quota::DedupQuota(self).apply().await?;
        self.sync_logs().await?;
        self.sync_sets().await?;
        for job in self.engine.queue.take(self.txg()) {
            answers.extend(job(self).await?);
            // First, so that a snapshot of new sets in the next task has their contents.
            self.sync_made().await?;
        }
        if let Some(what) = self.core.given_up.take() {
            return Err(PoolError::Refused { what });
        }
        let logged = ErrorLogTask(self).log_found().await;
        self.sync_sets().await?;
        self.free_all().await?;
        if self.core.config_object.0 != 0 {
            self.free_in_background().await?;
        }
        self.sync_dedup().await?;
        self.core.clones.write(&mut self.change).await?;
        let saved_bytes = self.core.clones.saved_bytes().saturating_add(self.engine.gate.dedup.saved_bytes());
        self.engine.gate.set_dedup_saved_bytes(saved_bytes);
        self.change.pool.capacity_bytes = self.engine.gate.space().capacity_bytes();
        self.write_checkpoint_and_obsolete_maps().await?;
        let early = self.engine.cache.blocks().take_changes(self.txg());
        let anything = !early.is_empty() || self.core.config_dirty || self.engine.mos.syncing().is_dirty(self.txg());
        let behind = self.core.dtls.is_behind(self.engine.cache.blocks().tree());
        if (anything || behind) && self.core.config_object.0 != 0 {
            let tree = self.engine.cache.blocks().tree();
            let core = &mut *self.core;
            core.config_dirty |= core.dtls.write(&mut self.change, tree, &mut core.config).await?;
        }
        self.note_moved_blocks().await?;
        self.write_config().await?;
        self.read_limits().await?;
        let root = self.sync_mos(early).await?;
        let wrote_uberblock = root.is_some();
        if let Some((plan, root)) = root {
            self.commit(root.pointer, now_s).await?;
            plan.finish(&root);
            logged.committed(&self.engine.lost_blocks);
        }
        for record in self.change.take_records() {
            self.engine.events.post_history(&record);
        }
        let blocks = self.engine.cache.blocks();
        blocks.tree().accounts().synced(self.txg().0);
        let freed = blocks.synced(self.txg(), wrote_uberblock);
        let core = &mut *self.core;
        // Every txg looks at all open object sets.
        core.opened = self.engine.sets.close_unused(std::mem::take(&mut core.opened));
        self.engine.sets.close_idle(self.change.txg());
        if core.config_object.0 == 0 || core.ended {
            return Ok(());
        }
        self.apply_fail_mode().await?;
        let core = &mut *self.core;
        core.autotrim.record_freed(&self.change, &core.maps, freed, &self.engine.machine.tasks, blocks).await
    }

    /// A scan may have passed the place where blocks are now: a scrub does not excise DTLs then, and a resilver visits these
    /// datasets again when it is through. Recorded in the same txg, for the process that continues it.
    async fn note_moved_blocks(&mut self) -> Result<(), PoolError> {
        let moves = self.change.take_moves();
        if !moves.into.is_empty() {
            self.core.scrub_began = None;
        }
        if moves == Moves::default() {
            return Ok(());
        }
        super::resilver::ResilverTask(self).note_moved(&moves).await
    }

    /// Syncs the intent logs: drops records of this txg and frees log blocks that held no others (`zil_sync`).
    ///
    /// A file system's log may hold records of extended attributes from its first block on, so the feature is activated
    /// together with the header that points to that block (`zil_create`).
    async fn sync_logs(&mut self) -> Result<(), PoolError> {
        let txg = self.txg();
        for open in self.engine.sets.select(|open| open.zil.is_some()) {
            let Some(zil) = &open.zil else { continue };
            let log = zil.sync(txg).await;
            if log.changed {
                let set = open.set.id();
                let has_blocks = !log.header.log.is_hole();
                open.set.syncing().set_zil_header(log.header);
                if has_blocks
                    && open.set.kind() == ObjsetKind::Zfs
                    && features::is_enabled(&mut self.change, Feature::ZILSAXATTR).await?
                {
                    features::activate(&mut self.change, ObjectId(set.0), Feature::ZILSAXATTR).await?;
                }
            }
            log.frees.into_iter().for_each(|pointer| self.change.free_log_block(pointer));
        }
        Ok(())
    }

    /// Writes the block trees of all changed object sets and accounts their births and deaths.
    pub(crate) async fn sync_sets(&mut self) -> Result<(), PoolError> {
        let txg = self.txg();
        for open in self.engine.sets.select(|open| open.set.syncing().is_dirty(txg)) {
            self.sync_set(&open.set).await?;
            if let Some(point) = open.received.as_ref().and_then(|points| points.take(txg)) {
                receive::save_point(&mut self.change, ObjectId(open.set.id().0), &point).await?;
            }
        }
        Ok(())
    }

    /// Writes the object sets that the current task created.
    pub(crate) async fn sync_made(&mut self) -> Result<(), PoolError> {
        for set in std::mem::take(&mut self.made) {
            self.sync_set(&set).await?;
        }
        Ok(())
    }

    async fn sync_set(&mut self, set: &Arc<ObjectSet>) -> Result<(), PoolError> {
        if let Some(outcome) = set.syncing().sync(self.change.rq, self.txg()).await? {
            let killed: Vec<BlockPointer> = outcome.killed.iter().map(|k| k.pointer).collect();
            let synced = SyncedSet { root: outcome.root, born: &outcome.born, killed: &killed };
            synced::apply_synced(&mut self.change, ObjectId(set.id().0), &synced).await?;
            // Cloned and deduplicated blocks: a scan may not have been where they are from.
            if outcome.born.iter().any(|bp| bp.physical_birth() < bp.logical_birth()) {
                self.change.moved_into(ObjectId(set.id().0));
            }
            self.add_clones(&outcome.cloned).await?;
            outcome.orphans.into_iter().for_each(|pointer| self.change.free_log_block(pointer));
            let needed = [(outcome.large_dnodes, Feature::LARGE_DNODE), (outcome.long_names, Feature::LONGNAME)];
            for (_, feature) in needed.into_iter().filter(|(needed, _)| *needed) {
                features::activate(&mut self.change, ObjectId(set.id().0), feature).await?;
            }
        }
        Ok(())
    }

    /// Counts further references to blocks.
    pub(crate) async fn add_clones(&mut self, cloned: &[BlockPointer]) -> Result<(), PoolError> {
        if cloned.is_empty() {
            return Ok(());
        }
        let bad = |source| PoolError::Decode { what: "vdev tree".into(), source };
        let tree = VdevConfig::parse(&self.core.config.root).map_err(bad)?;
        for pointer in cloned {
            let dsize_bytes = self.engine.cache.blocks().dsize_bytes(pointer);
            self.core.clones.add(&mut self.change, &tree.children, pointer, dsize_bytes).await?;
        }
        Ok(())
    }

    /// Frees blocks of destroyed datasets, up to this txg's limits of blocks and time (`async_destroy`).
    ///
    /// If blocks remain, the next txg follows immediately. Subtrees that cannot be read stay, and each txg retries them
    /// (`bptree_iterate` without `zfs_free_leak_on_eio`).
    async fn free_in_background(&mut self) -> Result<(), PoolError> {
        let clock = self.engine.machine.clock.clone();
        let began = clock.now();
        let mut left = self.core.max_frees_per_txg;
        let mut any = false;
        self.core.frees_on = false;
        while left > 0 {
            let freed = trees::free_in_background(&mut self.change, left.min(FREES_PER_BATCH)).await?;
            // The time limit includes updates of dedup tables and the BRT.
            self.free_all().await?;
            left = left.saturating_sub(freed.blocks);
            any |= freed.blocks > 0;
            self.core.frees_on = freed.more && any;
            if freed.stuck != self.core.stuck {
                if let Some(error) = &freed.stuck {
                    tracing::warn!("a destroyed dataset of '{}' waits to be freed: {error}", self.engine.name());
                }
                self.core.stuck = freed.stuck;
            }
            let spent = clock.now().since(began);
            let hurry = spent > FREE_TIME_WHEN_BUSY && self.engine.txgs().is_sync_requested();
            if !freed.more || freed.blocks == 0 || hurry || spent > FREE_TIME_WHEN_IDLE {
                break;
            }
        }
        if any || self.core.freeing.is_in_progress() {
            let left_bytes = pool_dirs::freeing_bytes(&mut self.change).await?;
            self.core.freeing.update(left_bytes, clock.now());
        }
        Ok(())
    }

    /// Frees all blocks that this txg's changes left unreferenced.
    async fn free_all(&mut self) -> Result<(), PoolError> {
        let frees = self.change.take_frees();
        self.free(&frees).await
    }

    /// Drops one reference of each block, and frees the space of blocks without further references.
    pub(crate) async fn free(&mut self, pointers: &[BlockPointer]) -> Result<(), PoolError> {
        let txg = self.txg();
        let blocks = self.engine.cache.blocks().clone();
        for pointer in pointers {
            if pointer.is_dedup() && self.engine.gate.dedup.release(self.change.rq, pointer).await? {
                continue;
            }
            let dsize_bytes = blocks.dsize_bytes(pointer);
            if self.core.clones.release(&self.change, pointer, dsize_bytes).await? {
                continue;
            }
            let place = ErrorLocation { objset: self.engine.mos.id(), ..ErrorLocation::default() };
            match blocks.free(self.change.rq, pointer, txg).await {
                // The gang header is unreadable, so its constituents leak. That is no reason to suspend the pool.
                Err(error) if pointer.is_gang() && is_bad(&error) => tracing::warn!("space is lost: {error}"),
                freed => freed.map_err(|error| ObjectError::Block { place, error })?,
            }
            self.engine.cache.forget(pointer);
        }
        Ok(())
    }

    /// Writes the dedup tables, and frees blocks whose reference count in them became 0.
    async fn sync_dedup(&mut self) -> Result<(), PoolError> {
        let dedup = &self.engine.gate.dedup;
        let saved_bytes = dedup.saved_bytes();
        let freed = weir_dsl::dedup_sync::sync_dedup(dedup, &mut self.change).await?;
        if dedup.saved_bytes() > saved_bytes {
            self.core.scrub_began = None;
        }
        self.free(&freed).await
    }

    /// Appends frees that do not return to metaslabs to their space maps, and counts those that a removal need not copy; false
    /// if there were none.
    async fn write_checkpoint_and_obsolete_maps(&mut self) -> Result<bool, PoolError> {
        let freed = self.engine.cache.blocks().drain_non_metaslab_frees();
        let any = self.core.aside.append(&mut self.change, freed).await? | removal::count_freed(self).await?;
        self.engine.gate.set_checkpoint_bytes(self.core.aside.kept_bytes);
        Ok(any)
    }

    /// Passes the current usage of quotas and of the pool to transaction admission.
    async fn read_limits(&mut self) -> Result<(), PoolError> {
        // After an error there are no numbers, so the next txg reads all.
        let (limits, changed) = match self.core.limits.take() {
            Some(mut limits) => {
                let changed = limits::refresh(&mut self.change, &mut limits).await?;
                (limits, Some(changed))
            }
            None => (limits::limits(&mut self.change).await?, None),
        };
        self.engine.gate.set_numbers(&limits, changed.as_ref());
        self.core.limits = Some(limits);
        Ok(())
    }

    /// Writes the configuration into the MOS if it changed, or if a transaction waits for deferred frees: they end only with
    /// txgs that write an uberblock, and this makes the txg one of those.
    async fn write_config(&mut self) -> Result<(), PoolError> {
        for (feature, active) in self.change.label_features() {
            let features = &mut self.core.config.label_features;
            let changed = if active { features.insert(feature.to_owned()) } else { features.remove(feature) };
            self.core.config_dirty |= changed;
        }
        let is_needed = self.core.config_dirty | self.engine.gate.take_awaits_frees();
        if !is_needed || self.core.config_object.0 == 0 {
            return Ok(());
        }
        let list = self.core.config.mos_list(self.txg());
        self.write_list(self.core.config_object, &list).await
    }

    /// Writes a packed nvlist into an object, and its length in bytes into the bonus buffer.
    pub(crate) async fn write_list(&mut self, id: ObjectId, list: &NvList) -> Result<(), PoolError> {
        let mut bytes = list.encode_xdr();
        let len = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(CONFIG_BLOCK_BYTES), 0);
        let DslSyncContext { rq, mos, tx, .. } = &self.change;
        mos.writes().write(rq, tx, id, 0, &bytes).await?;
        let kind = weir_format::ObjectType::PACKED_NVLIST_SIZE;
        mos.changes().set_bonus(rq, tx, id, kind, &len.to_le_bytes()).await?;
        Ok(())
    }

    /// Plans and writes the MOS with the allocations and frees so far; `None` if nothing changed in this txg.
    async fn sync_mos(&mut self, changes: Vec<SpaceChange>) -> Result<Option<(MosPlan, MosRoot)>, PoolError> {
        let txg = self.txg();
        let blocks = self.engine.cache.blocks().clone();
        let mut plan = MosPlan::new(self.engine.mos.clone(), txg);
        if changes.is_empty() && !plan.is_needed() {
            return Ok(None);
        }
        let exported = self.core.ended && self.core.config.state == state::EXPORTED;
        self.core.maps.begin(&mut self.change, &blocks, &changes, exported).await?;
        self.core.maps.append(&mut self.change, &blocks, &changes).await?;
        let mut accounted = MosDelta::default();
        for _ in 0..MAX_MOS_PASSES {
            let mut settled = !plan.extend(self.change.rq).await?;
            settled &= !self.write_checkpoint_and_obsolete_maps().await?;
            let changes = blocks.take_changes(txg);
            if !changes.is_empty() {
                self.core.maps.append(&mut self.change, &blocks, &changes).await?;
                settled = false;
            }
            settled &= self.account_mos(&mut accounted, plan.delta()).await?;
            if settled && let Some(root) = plan.write(self.change.rq).await? {
                return Ok(Some((plan, root)));
            }
        }
        let place = ErrorLocation { objset: self.engine.mos.id(), ..ErrorLocation::default() };
        Err(ObjectError::Corrupt { place, why: "the plan of the MOS does not settle" }.into())
    }

    /// Accounts the growth of the MOS since `accounted`; true if it did not change.
    async fn account_mos(&mut self, accounted: &mut MosDelta, now: MosDelta) -> Result<bool, PoolError> {
        if *accounted == now {
            return Ok(true);
        }
        let compressed = now.compressed - accounted.compressed;
        // The uncompressed size of metadata counts as its compressed size (`BP_GET_UCSIZE`).
        let delta = Delta { used: now.used - accounted.used, compressed, uncompressed: compressed };
        pool_dirs::book_mos(&mut self.change, delta).await?;
        *accounted = now;
        Ok(false)
    }

    /// Commits the txg: flushes the devices, then writes labels and the uberblock.
    async fn commit(&mut self, root: BlockPointer, now_s: u64) -> Result<(), PoolError> {
        let txg = self.txg();
        let is_multihost = multihost::is_on(&self.change).await?;
        let mmp = self.engine.multihost.fields(is_multihost);
        let core = &mut *self.core;
        let mut uberblock = Uberblock {
            endian: Endian::Little,
            version: core.config.version,
            txg,
            guid_sum: core.config.guid_sum(),
            timestamp_s: now_s,
            root,
            software_version: weir_format::features::VERSION_FEATURES,
            mmp: Some(mmp),
            checkpoint_txg: Txg(0),
            reflow: core.uberblock.reflow,
        };
        let place = ErrorLocation { objset: self.engine.mos.id(), ..ErrorLocation::default() };
        let blocks = self.engine.cache.blocks();
        loop {
            match blocks.flush().await {
                // Only the writes that are kept can be repeated: without them the txg is lost.
                Err(error)
                    if error.is_of_devices()
                        && blocks.tree().can_repeat_unstable()
                        && blocks.tree().suspension().wait(&error).await =>
                {
                    repeat_unstable(blocks.tree()).await;
                }
                done => break done.map_err(|error| ObjectError::Block { place, error })?,
            }
        }
        uberblock.reflow = expansion::position(core, blocks);
        if core.ended {
            // Once the labels say that another machine may import the pool, its devices must get no more writes.
            self.engine.multihost.end(&self.engine.machine.clock).await;
            blocks.tree().close(&self.engine.machine.clock).await;
            core.autotrim.end().await;
        }
        let config = core.config_dirty.then_some(&core.config);
        let tree = blocks.tree();
        let faults = loop {
            match labels::commit(tree, &core.leaves, config, &uberblock, txg).await {
                // Writing the same labels again changes nothing that was written.
                Err(error @ PoolError::Disk { .. }) if tree.suspension().wait(&error).await => {
                    repeat_unstable(tree).await;
                }
                answer => break answer?,
            }
        };
        for fault in &faults {
            tracing::warn!("label not written: {fault}");
            if let PoolError::Disk { path, source } = fault
                && let Some(leaf) = core.leaves.iter().find(|leaf| leaf.path == *path)
            {
                let health = blocks.tree().health().into_iter().find(|h| h.guid == leaf.guid);
                self.engine.events.label_not_written(leaf.guid, health.map(|h| h.counts).unwrap_or_default(), source);
            }
        }
        expansion::committed(core, blocks, faults.is_empty());
        core.maps.committed(root);
        let now = self.engine.machine.clock.now();
        self.engine.multihost.committed(&self.engine.machine, is_multihost, (&uberblock, &core.leaves), now);
        core.uberblock = uberblock;
        if core.config_dirty {
            self.engine.events.know(&core.config);
            self.engine.events.post(PoolEvent::ConfigSync, |_| {});
        }
        core.config_dirty = false;
        self.engine.show(core, faults);
        Ok(())
    }

    /// Passes on the result of a non-atomic task; an error fails this txg and suspends the pool.
    pub(crate) fn fail_txg_on_error<T>(&mut self, done: Result<T, PoolError>) -> Result<T, PoolError> {
        self.core.given_up = done.as_ref().err().map(ToString::to_string);
        done
    }

    /// Registers an object set that the current task created; it syncs when the task ends.
    pub fn add_set(&mut self, set: Arc<ObjectSet>) {
        self.core.opened.push(set.id());
        self.made.push(self.engine.sets.insert(set));
    }
}

/// Writes again what failed flushes covered, after the pool was resumed.
async fn repeat_unstable(tree: &Tree) {
    tracing::info!("writes again what no flush has made stable");
    for error in tree.repeat_unstable().await {
        tracing::warn!(%error, "a device still fails");
    }
}
