//! Removal of log vdevs, while the pool is in use (`zpool remove`).
//!
//! ```text
//!   nothing is allocated on it ─► intent logs leave it: a log with a block on it is ended, and freed when its records have
//!   synced; logs of datasets that are not open are replayed, or freed if they have no records
//!      ─► one txg: a hole in the configuration and in the vdev tree, space maps and ZAPs destroyed ─► labels wiped
//! ```
//!
//! A log block that was allocated before is in its log's chain when the open txg has closed, because the writer of the log
//! holds that txg from the allocation on. So when no chain and no header leads to the vdev after that, none will.
//!
//! A power cut before the last txg leaves the pool with the vdev. After it, the labels on the device are older than those of
//! the others, and no import uses them.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`spa_vdev_remove_log`, `vdev_remove_make_hole_and_free`), `module/zfs/zil.c`
//! (`zil_reset`).

use super::attach::{TreeChange, parsed};
use super::config;
use super::datasets::policy_for;
use super::events::PoolEvent;
use super::labels::{self, Leaf};
use super::syncing::TxgSync;
use super::{VdevRemovals, vdev_objects};
use futures_util::lock::MutexGuard as AsyncMutexGuard;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_blocks::vdev::Replaced;
use weir_dmu::live::{Policy, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::{Dataset, Scope};
use weir_format::zil::ZilHeader;
use weir_format::{BlockPointer, NvList, ObjsetKind};
use weir_machine::{Request, invariant};
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::initialize_trim::LeafActivity;
use weir_zil::{Zil, claim};

/// Maximum number of txgs until all logs have left a vdev. The first ends them, the second frees those with records of the
/// open txg.
const MAX_TXGS: u32 = 16;

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// A top-level vdev without a device: a removed log (`vdev_hole_ops`).
pub(super) fn hole(id: u64) -> NvList {
    let mut hole = NvList::new();
    hole.set("type", "hole");
    hole.set("id", id);
    for name in ["guid", "whole_disk", "metaslab_array", "metaslab_shift", "ashift", "asize", "is_log"] {
        hole.set(name, 0u64);
    }
    hole.set("is_hole", 1u64);
    hole
}

/// A log that a dataset's header leads to.
struct LogInHeader {
    dataset: Dataset,
    kind: ObjsetKind,
    needs_replay: bool,
}

/// Intent logs without blocks. They go on when this is dropped.
pub(super) struct QuietLogs<'a> {
    _opening: AsyncMutexGuard<'a, ()>,
    logs: Vec<Arc<Zil>>,
}

impl Drop for QuietLogs<'_> {
    fn drop(&mut self) {
        self.logs.iter().for_each(|log| log.reopen());
    }
}

impl VdevRemovals<'_> {
    /// Takes a top-level log vdev out of the pool. When this returns, the pool does not know its devices any more, and their
    /// labels are wiped.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such log vdev, the pool has a checkpoint, or an intent log on it cannot be
    /// replayed, for example without its key; [`PoolError::Suspended`].
    pub async fn remove_log(&self, guid: u64) -> Result<(), PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        self.engine.vdevs().check_no_checkpoint().await?;
        let root = parsed(&self.engine.shown().config.root)?;
        let is_it = |top: &&VdevConfig| top.guid == guid && top.is_concrete() && top.class == Class::Log;
        let top = root.children.iter().find(is_it).ok_or_else(|| refused("no such log device in pool"))?;
        let vdev = top.id as u32;
        let blocks = self.engine.cache.blocks();
        let failed = |error: weir_blocks::BlockError| refused(error.to_string());
        blocks.set_non_allocating(vdev, true).map_err(failed)?;
        if let Err(error) = self.evacuate(top).await {
            let stays_closed = top.non_allocating || !blocks.tree().can_keep(vdev);
            blocks.set_non_allocating(vdev, stays_closed).map_err(failed)?;
            return Err(error);
        }
        let (replaced, gone) = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let done = make_hole(syncing, vdev).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await?;
        self.engine.events.post_vdev(PoolEvent::VdevRemoveDev, guid);
        self.release(replaced, gone).await;
        // The policy of intent logs depends on whether the pool has log devices.
        self.engine.properties().renew(&Request::internal("remove"), Scope::All).await
    }

    /// Cancels what goes on in the free space of a vdev.
    pub(super) async fn stop_passes(&self, top: &VdevConfig) -> Result<(), PoolError> {
        let passes = self.engine.initialize_trim();
        for leaf in top.leaves() {
            for kind in LeafActivity::ALL {
                if passes.running(kind).contains(&leaf.guid) {
                    passes.stop(kind, &[leaf.guid], false).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends or replays all intent logs with blocks on a vdev on which nothing is allocated any more, and cancels what goes on
    /// in its free space.
    pub(super) async fn evacuate(&self, top: &VdevConfig) -> Result<(), PoolError> {
        self.stop_passes(top).await?;
        let vdev = top.id as u32;
        for _ in 0..MAX_TXGS {
            self.engine.sync().await?;
            let open = self.engine.sets.select(|open| open.zil.is_some());
            let ended = open.iter().filter_map(|open| open.zil.as_ref()).filter(|zil| zil.leave(Some(vdev))).count();
            if ended == 0 && !self.leave_in_headers(Some(vdev)).await? {
                // The last frees are in a txg that may be syncing.
                return self.engine.sync().await;
            }
        }
        Err(refused("intent logs still have blocks on it; try again"))
    }

    /// Replays or frees the logs whose header leads to `vdev`, or anywhere for `None`: those of datasets that no client has
    /// open. Returns whether there were any.
    async fn leave_in_headers(&self, vdev: Option<u32>) -> Result<bool, PoolError> {
        let rq = &Request::internal("remove");
        let logs = self.logs_in_headers(rq, vdev).await?;
        for log in &logs {
            match log.needs_replay {
                true => self.replay(rq, &log.dataset.name, log.kind).await?,
                false => self.free_log(&log.dataset).await?,
            }
        }
        Ok(!logs.is_empty())
    }

    /// The datasets whose intent log, as of the last synced txg, has a block on `vdev`; for `None`, a block on any vdev.
    async fn logs_in_headers(&self, rq: &Request, vdev: Option<u32>) -> Result<Vec<LogInHeader>, PoolError> {
        let dsl = self.engine.synced().state(rq).await?.dsl(rq).await?;
        let mut found = Vec::new();
        for dir in dsl.dirs() {
            let head = dsl.head(rq, dir).await?;
            let opening = Opening { id: head.objset(), ..Opening::default() };
            let set = match ObjectSet::open(rq, self.engine.cache.clone(), head.phys.pointer, opening).await {
                Err(error) if error.is_corrupt() => {
                    tracing::warn!(dataset = dir.name, %error, "the dataset cannot be opened: its intent log is not looked at");
                    continue;
                }
                opened => opened?,
            };
            let header = set.root().header.zil.clone();
            let blocks = log_blocks(rq, &set, &header).await;
            let is_there = |block: &BlockPointer| vdev.is_none_or(|vdev| block.dvas().any(|dva| dva.vdev == vdev));
            if blocks.iter().any(is_there) {
                let needs_replay = claim::needs_replay(&header);
                found.push(LogInHeader { dataset: head, kind: set.kind(), needs_replay });
            }
        }
        Ok(found)
    }

    /// Ends, replays or frees all intent logs. None begins again until the answer is dropped: until then commits wait
    /// for their txg, and no dataset is opened (`spa_reset_logs`).
    ///
    /// # Errors
    /// [`PoolError::Refused`] if a log cannot be replayed; [`PoolError::Suspended`].
    pub(super) async fn quiet_logs(&self) -> Result<QuietLogs<'_>, PoolError> {
        let rq = &Request::internal("split");
        for _ in 0..MAX_TXGS {
            self.leave_in_headers(None).await?;
            let opening = self.engine.opening.lock().await;
            let open = self.engine.sets.select(|open| open.zil.is_some());
            let quiet = QuietLogs { _opening: opening, logs: open.into_iter().filter_map(|open| open.zil).collect() };
            for log in &quiet.logs {
                log.shut().await;
                let _had_blocks = log.leave(None);
            }
            // The first txg has the records, and the second frees the blocks that were allocated in the first.
            self.engine.sync().await?;
            self.engine.sync().await?;
            if self.logs_in_headers(rq, None).await?.is_empty() {
                return Ok(quiet);
            }
        }
        Err(refused("intent logs are in use; try again"))
    }

    /// Opens a dataset, which replays its log.
    async fn replay(&self, rq: &Request, name: &str, kind: ObjsetKind) -> Result<(), PoolError> {
        let opened = match kind {
            ObjsetKind::Zvol => self.engine.volume(rq, name).await.map(drop),
            _ => self.engine.file_system(rq, name).await.map(drop),
        };
        opened.map_err(|error| match error {
            error @ PoolError::Suspended { .. } => error,
            error => refused(format!("the intent log of '{name}' cannot be replayed: {error}")),
        })
    }

    /// Frees the log of a dataset that is not open, which has no records.
    async fn free_log(&self, dataset: &Dataset) -> Result<(), PoolError> {
        // The lock prevents opening the dataset in the meantime.
        let _one_at_a_time = self.engine.opening.lock().await;
        if self.engine.sets.get(dataset.objset()).is_some_and(|open| open.zil.is_some()) {
            return Ok(());
        }
        let dataset = dataset.clone();
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let done = drop_log(syncing, &dataset).await;
                    syncing.fail_txg_on_error(done)
                })
            })
            .await
    }
}

/// The blocks of a log; those behind a block that cannot be read are not found.
async fn log_blocks(rq: &Request, set: &Arc<ObjectSet>, header: &ZilHeader) -> Vec<BlockPointer> {
    if header.log.is_hole() {
        return Vec::new();
    }
    let options = ReadOptions { raw: true, ..set.options().clone() };
    claim::blocks(rq, set.cache().blocks(), &options, header).await.0
}

/// Frees the log of a dataset, and clears its header, in syncing context.
async fn drop_log(syncing: &mut TxgSync<'_>, dataset: &Dataset) -> Result<(), PoolError> {
    let engine = syncing.engine;
    let rq = syncing.change.rq;
    let set = match engine.sets.get(dataset.objset()) {
        Some(open) => open.set,
        None => {
            let dsl = engine.live_dsl(rq, Scope::Path(&dataset.name)).await?;
            let opening =
                Opening { id: dataset.objset(), key: engine.keys.of(dsl.dir(dataset.dir)), ..Opening::default() };
            let pointer = syncing.change.dataset(dataset.id).await?.pointer;
            let gate: Arc<dyn TxAdmission> = engine.gate.clone();
            let set = ObjectSet::open_live(rq, engine.cache.clone(), pointer, opening, gate, Policy::default()).await?;
            set.set_policy(policy_for(set.kind(), Policy::default()));
            set
        }
    };
    let header = set.root().header.zil.clone();
    let blocks = log_blocks(rq, &set, &header).await;
    blocks.into_iter().for_each(|block| syncing.change.free_log_block(block));
    set.syncing().set_zil_header(ZilHeader::default());
    syncing.add_set(set);
    Ok(())
}

/// Replaces a top-level log vdev by a hole, in syncing context. Returns the former tree and the devices.
async fn make_hole(syncing: &mut TxgSync<'_>, vdev: u32) -> Result<(Replaced, Vec<Leaf>), PoolError> {
    let index = vdev as usize;
    let mut tops = syncing.core.config.tops().to_vec();
    let slot = tops.get_mut(index).ok_or_else(|| refused("no such log device in pool"))?;
    let list = std::mem::replace(slot, hole(vdev.into()));
    let mut root = syncing.core.config.root.clone();
    config::set(&mut root, "children", tops.into());
    let replaced = TreeChange(syncing).replace_tree_without(&root, vdev)?;
    vdev_objects::destroy_of_top(syncing, &list).await?;
    syncing.core.maps.remove_top(vdev);
    let sums = syncing.engine.cache.blocks().metaslabs().remove(vdev);
    let sums = sums.map_err(|error| refused(error.to_string()))?;
    if sums.allocated_bytes > 0 {
        // Space that an earlier failure leaked; no log leads there.
        tracing::warn!(bytes = sums.allocated_bytes, "space of no log was allocated on a removed log device");
    }
    syncing.core.config.root = root;
    let (gone, leaves) = std::mem::take(&mut syncing.core.leaves).into_iter().partition(|leaf| leaf.top == index);
    syncing.core.leaves = leaves;
    let gone: Vec<Leaf> = gone;
    gone.iter().for_each(|leaf| syncing.core.dtls.forget(leaf.guid));
    syncing.core.config_dirty = true;
    invariant!(gone.iter().all(|leaf| labels::find(&syncing.core.config.root, leaf.guid).is_none()), "a device stays");
    Ok((replaced, gone))
}
