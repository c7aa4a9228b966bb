//! The txgs of an expansion, in syncing context: copies, and the end.
//!
//! Source: OpenZFS `module/zfs/vdev_raidz.c` (`raidz_reflow_sync`, `raidz_reflow_complete_sync`).

use super::super::attach::{TreeChange, parsed};
use super::super::config;
use super::super::syncing::{SyncerState, TxgSync};
use super::record::{self, in_uberblock};
use super::refused;
use weir_blocks::vdev::Replaced;
use weir_blocks::{Blocks, ReflowLimits};
use weir_dsl::sync_tasks::history;
use weir_format::uberblock::Reflow;
use weir_machine::invariant;
use weir_pool::config::VdevConfig;
use weir_pool::dtls::Dtls;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;

/// Txgs that may be in progress at once (`TXG_CONCURRENT_STATES`).
const CONCURRENT_TXGS: u64 = 3;

/// How far a txg has brought an expansion.
pub(super) enum Step {
    /// Sectors were copied; more may follow.
    Copied,
    /// All sectors have been copied, and the position is on stable storage.
    Complete,
    /// No vdev is being expanded.
    Ended,
    /// Sectors could not be copied.
    Failed(String),
}

fn top_of(syncing: &TxgSync<'_>, vdev: u32) -> Result<VdevConfig, PoolError> {
    let root = parsed(&syncing.core.config.root)?;
    root.children.get(vdev as usize).cloned().ok_or_else(|| refused("no such device in pool"))
}

/// Copies the next sectors of the vdev that is being expanded.
///
/// # Errors
/// Errors after which the txg cannot be synced; sectors that cannot be copied are no such error.
pub(super) async fn step(syncing: &mut TxgSync<'_>) -> Result<Step, PoolError> {
    let Some(mut expanding) = syncing.core.expanding else { return Ok(Step::Ended) };
    let top = top_of(syncing, expanding.vdev)?;
    let geometry = MetaslabGeometry::of(&top);
    let end_bytes = geometry.count() << geometry.shift();
    let blocks = syncing.engine.cache.blocks().clone();
    let vdev = blocks.metaslabs().expansion(expanding.vdev);
    if !vdev.is_whole() {
        return Ok(Step::Failed(super::PAUSED.into()));
    }
    let synced = vdev.position().ok_or_else(|| refused("the vdev tree does not know the expansion"))?;
    if !synced.scratch && synced.offset_bytes == end_bytes {
        invariant!(expanding.copied.is_none(), "sectors beyond the end are copied");
        return Ok(Step::Complete);
    }
    let max_bytes = syncing.core.max_copied_bytes_per_txg;
    let limits = ReflowLimits { metaslab_shift: geometry.shift(), end_bytes, max_bytes };
    let copied = match vdev.copy_next(syncing.change.rq, syncing.change.txg(), limits).await {
        Ok(copied) => copied,
        Err(error) => return Ok(Step::Failed(error.to_string())),
    };
    expanding.copied = Some(copied.position);
    expanding.copied_bytes = expanding.copied_bytes.saturating_add(copied.copied_bytes);
    // Also if nothing is allocated there, so that the txg writes an uberblock.
    record::copied(&syncing.change, &top, expanding.copied_bytes).await?;
    syncing.core.expanding = Some(expanding);
    Ok(Step::Copied)
}

/// The position for the uberblock, after the devices were flushed. If a device failed that, it may lack copies: the position is
/// the last one, and the sectors are copied again.
pub(crate) fn position(core: &mut SyncerState, blocks: &Blocks) -> Reflow {
    let Some(expanding) = &mut core.expanding else { return Reflow::default() };
    let Some(copied) = expanding.copied else { return core.uberblock.reflow };
    let vdev = blocks.metaslabs().expansion(expanding.vdev);
    if expanding.is_written || vdev.is_whole() {
        return in_uberblock(copied);
    }
    tracing::warn!(vdev = expanding.vdev, "a device may lack sectors of an expansion, which are copied again");
    vdev.revert();
    expanding.copied = None;
    expanding.copied_bytes = expanding.synced_bytes;
    core.uberblock.reflow
}

/// Records that the uberblock was written, to all devices in service or not.
pub(crate) fn committed(core: &mut SyncerState, blocks: &Blocks, is_everywhere: bool) {
    let Some(expanding) = &mut core.expanding else { return };
    let Some(copied) = expanding.copied else { return };
    expanding.is_written = true;
    if is_everywhere {
        blocks.metaslabs().expansion(expanding.vdev).committed(copied);
        expanding.copied = None;
        expanding.is_written = false;
        expanding.synced_bytes = expanding.copied_bytes;
    }
}

/// Ends the expansion: blocks of later txgs have the new width. Returns the former tree.
pub(super) async fn finish(syncing: &mut TxgSync<'_>, vdev: u32) -> Result<Replaced, PoolError> {
    let top = top_of(syncing, vdev)?;
    let txg = syncing.change.txg();
    let mut txgs = top.raidz_expand_txgs.clone();
    // The open txgs may have blocks of the former width.
    txgs.push(txg.0 + CONCURRENT_TXGS);
    invariant!(txgs.is_sorted(), "an expansion ends before an earlier one");
    let mut root = syncing.core.config.root.clone();
    config::visit(&mut root, &mut |vdev| {
        if vdev.get_u64("guid") == Some(top.guid) {
            vdev.remove("raidz_expanding");
            let children = vdev.remove("children");
            vdev.remove("raidz_expand_txgs");
            vdev.set("raidz_expand_txgs", txgs.clone());
            children.into_iter().for_each(|children| vdev.set("children", children));
        }
    });
    let replaced = TreeChange(syncing).replace_tree(&root, None, &Dtls::new(), None)?;
    syncing.core.config.root = root;
    let renewed = syncing.engine.cache.blocks().metaslabs().renew_sizing(vdev);
    renewed.map_err(|error| refused(error.to_string()))?;
    record::ended(&syncing.change, &top).await?;
    let text = format!("{} vdev {vdev} new width {}", syncing.core.config.name, top.children.len());
    history::log_pool(&mut syncing.change, "raidz vdev expansion completed", &text).await?;
    syncing.core.expanding = None;
    syncing.core.config_dirty = true;
    let now = top_of(syncing, vdev)?;
    invariant!(!now.raidz_expanding && now.raidz_expand_txgs == txgs, "the configuration has an expansion");
    syncing.engine.tops.renew(&[now]);
    Ok(replaced)
}
