//! Changes of the record of a rebuild, in syncing context.
//!
//! Source: OpenZFS `module/zfs/vdev_rebuild.c` (`vdev_rebuild_initiate_sync`, `vdev_rebuild_complete_sync`, …).

use super::super::attach::{forget_resilver_txgs, parsed};
use super::super::events::PoolEvent;
use super::super::scrub::{CANCELED, ScrubStart};
use super::super::syncing::TxgSync;
use super::{Pass, refused};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use weir_blocks::Rebuild;
use weir_dmu::zap;
use weir_dsl::sync_tasks::{features, history};
use weir_format::dsl::rebuild::VDEV_REBUILD;
use weir_format::dsl::{RebuildPhys, RebuildState};
use weir_format::features::Feature;
use weir_format::{ObjectId, Txg};
use weir_machine::invariant;
use weir_pool::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::rebuild::of_top;

/// A change of the record of a rebuild.
pub(crate) struct RebuildTask<'a, 'b>(pub &'a mut TxgSync<'b>);

impl RebuildTask<'_, '_> {
    fn top(&self, vdev: u32) -> Result<VdevConfig, PoolError> {
        let root = parsed(&self.0.core.config.root)?;
        root.children.get(vdev as usize).cloned().ok_or_else(|| refused("no such device in pool"))
    }

    fn rebuild(&self, vdev: u32) -> Rebuild<'_> {
        self.0.engine.cache.blocks().metaslabs().rebuild(vdev)
    }

    async fn read(&self, top: &VdevConfig) -> Result<RebuildPhys, PoolError> {
        let mos = Mos { set: self.0.engine.mos.clone() };
        Ok(of_top(self.0.change.rq, &mos, top).await?.unwrap_or_default())
    }

    async fn put(&self, top: &VdevConfig, record: &RebuildPhys) -> Result<(), PoolError> {
        let (rq, mos, tx) = (self.0.change.rq, &self.0.change.mos, self.0.change.tx);
        Ok(zap::put_words(rq, mos, tx, ObjectId(top.top_zap), VDEV_REBUILD, &record.to_words()).await?)
    }

    async fn log(&mut self, top: &VdevConfig, what: &str) -> Result<(), PoolError> {
        let text = format!("vdev_id={} vdev_guid={} {what}", top.id, top.guid);
        Ok(history::log_pool(&mut self.0.change, "rebuild", &text).await?)
    }

    fn post(&self, event: PoolEvent, top: &VdevConfig) {
        self.0.engine.events.post(event, |list| {
            list.set("vdev_guid", top.guid);
            list.set("resilver_type", "sequential");
        });
    }

    /// Checks that rebuilds are enabled, and that no resilver is running.
    pub(crate) async fn check(&mut self) -> Result<(), PoolError> {
        if !features::is_enabled(&mut self.0.change, Feature::DEVICE_REBUILD).await? {
            let what = "device_rebuild feature must be enabled in order to use sequential reconstruction";
            return Err(refused(what));
        }
        match self.0.open_scrub().await {
            Ok(open) if open.is_resilver() => Err(refused("currently resilvering")),
            _ => Ok(()),
        }
    }

    /// Records that a vdev is being rebuilt to which a device was attached in this txg. One that is rebuilt already begins again by
    /// itself.
    pub(crate) async fn initiate(&mut self, vdev: u32) -> Result<(), PoolError> {
        let top = self.top(vdev)?;
        if self.read(&top).await?.state == RebuildState::Active {
            return Ok(());
        }
        let (_, txgs) = self.rebuild(vdev).targets();
        let (min_txg, max_txg) = txgs.unwrap_or((Txg(0), self.0.change.txg()));
        let state = RebuildState::Active;
        let start_time_s = self.0.change.now_s;
        let estimated_bytes = self.0.engine.cache.blocks().vdev_space(vdev).allocated_bytes;
        let record = RebuildPhys { state, min_txg, max_txg, start_time_s, estimated_bytes, ..RebuildPhys::default() };
        features::count_feature(&mut self.0.change, Feature::DEVICE_REBUILD, 1).await?;
        self.put(&top, &record).await?;
        self.log(&top, "started").await?;
        let is_new = self.0.engine.rebuild_table.lock().active.insert(vdev);
        invariant!(is_new, "a vdev is rebuilt twice at a time");
        self.post(PoolEvent::ResilverStart, &top);
        Ok(())
    }

    /// Begins a run over the vdev, from its position on. Returns the txg, and the devices that are given blocks.
    pub(super) async fn begin(&mut self, vdev: u32) -> Result<(Txg, BTreeSet<u64>), PoolError> {
        if let Ok(open) = self.0.open_scrub().await
            && !open.is_resilver()
        {
            self.0.end_scrub(open, CANCELED).await?;
        }
        let top = self.top(vdev)?;
        let mut record = self.read(&top).await?;
        let (targets, txgs) = self.rebuild(vdev).targets();
        // Those that lack later txgs were not there from the beginning on.
        if record.last_offset_bytes > 0 && txgs.is_some_and(|(_, last)| last > record.max_txg) {
            self.reset(vdev).await?;
            return Ok((self.0.change.txg(), targets));
        }
        let allocated_bytes = self.0.engine.cache.blocks().vdev_space(vdev).allocated_bytes;
        record.estimated_bytes = allocated_bytes.max(record.scanned_bytes);
        if record.state == RebuildState::Active {
            self.put(&top, &record).await?;
        }
        Ok((self.0.change.txg(), targets))
    }

    /// Begins again from the first offset on. Returns the devices that are given blocks.
    pub(super) async fn reset(&mut self, vdev: u32) -> Result<BTreeSet<u64>, PoolError> {
        let top = self.top(vdev)?;
        let record = self.read(&top).await?;
        let (targets, txgs) = self.rebuild(vdev).targets();
        let (Some((min_txg, max_txg)), RebuildState::Active) = (txgs, record.state) else { return Ok(targets) };
        let RebuildPhys { state, start_time_s, .. } = record;
        let estimated_bytes = self.0.engine.cache.blocks().vdev_space(vdev).allocated_bytes;
        let record = RebuildPhys { state, min_txg, max_txg, start_time_s, estimated_bytes, ..RebuildPhys::default() };
        self.put(&top, &record).await?;
        self.log(&top, "reset").await?;
        Ok(targets)
    }

    /// Records a pass, whose copies are stable; ends the rebuild if it was the last one. Copies went to `targets`.
    pub(super) async fn record_pass(&mut self, vdev: u32, pass: Pass, targets: BTreeSet<u64>) -> Result<(), PoolError> {
        let top = self.top(vdev)?;
        let mut record = self.read(&top).await?;
        if record.state != RebuildState::Active {
            return Ok(());
        }
        invariant!(pass.next >= record.last_offset_bytes, "the position of a rebuild goes back");
        record.last_offset_bytes = pass.next;
        record.scan_time_ms = record.scan_time_ms.saturating_add(pass.spent_ns.div_ceil(1_000_000));
        record.scanned_bytes = record.scanned_bytes.saturating_add(pass.scanned_bytes);
        record.issued_bytes = record.issued_bytes.saturating_add(pass.issued_bytes);
        record.rebuilt_bytes = record.rebuilt_bytes.saturating_add(pass.rebuilt_bytes);
        record.errors = record.errors.saturating_add(pass.errors);
        record.estimated_bytes = record.estimated_bytes.max(record.scanned_bytes);
        let (now, _) = self.rebuild(vdev).targets();
        // Otherwise it is canceled or begins again.
        if pass.is_last && !now.is_empty() && now.is_subset(&targets) {
            return self.complete(vdev, &top, record, &targets).await;
        }
        self.put(&top, &record).await
    }

    async fn complete(
        &mut self,
        vdev: u32,
        top: &VdevConfig,
        mut record: RebuildPhys,
        targets: &BTreeSet<u64>,
    ) -> Result<(), PoolError> {
        let tree = self.0.engine.cache.blocks().tree().clone();
        for guid in targets.iter().filter(|_| record.errors == 0) {
            // One that was detached meanwhile has no DTL any more.
            if let Ok(leaf) = tree.leaf(*guid) {
                let rest = leaf.excise_dtl(record.max_txg);
                tracing::debug!(device = leaf.name(), ?rest, "rebuilt");
            }
        }
        record.state = RebuildState::Complete;
        self.end(vdev, top, record, "complete").await?;
        forget_resilver_txgs(self.0);
        // What is lacking still is resilvered, which verifies it.
        let is_whole = tree.resilvering().range().is_none();
        if is_whole && !self.0.engine.rebuilds().is_running() {
            match self.0.start_scrub(ScrubStart::Whole).await {
                Ok(()) => {
                    let txg = self.0.change.txg().0;
                    self.0.engine.scrub_to_carry_out.store(txg, Ordering::SeqCst);
                }
                Err(error) => tracing::info!("no scrub follows a rebuild: {error}"),
            }
        }
        Ok(())
    }

    /// Ends the rebuild before all was copied.
    pub(super) async fn cancel(&mut self, vdev: u32) -> Result<(), PoolError> {
        let top = self.top(vdev)?;
        let mut record = self.read(&top).await?;
        if record.state != RebuildState::Active {
            return Ok(());
        }
        record.state = RebuildState::Canceled;
        self.end(vdev, &top, record, "canceled").await
    }

    async fn end(&mut self, vdev: u32, top: &VdevConfig, mut record: RebuildPhys, how: &str) -> Result<(), PoolError> {
        record.end_time_s = self.0.change.now_s;
        self.put(top, &record).await?;
        features::count_feature(&mut self.0.change, Feature::DEVICE_REBUILD, -1).await?;
        self.log(top, how).await?;
        let was_active = self.0.engine.rebuild_table.lock().active.remove(&vdev);
        invariant!(was_active, "a rebuild ends twice");
        self.post(PoolEvent::ResilverFinish, top);
        Ok(())
    }

    /// Forgets the last rebuilds, because a resilver begins.
    pub(crate) async fn forget_ended(&mut self) -> Result<(), PoolError> {
        let root = parsed(&self.0.core.config.root)?;
        for top in &root.children {
            let record = self.read(top).await?;
            if matches!(record.state, RebuildState::Complete | RebuildState::Canceled) {
                self.put(top, &RebuildPhys::default()).await?;
            }
        }
        Ok(())
    }
}
