//! Vdevs whose devices have grown, while the pool is in use: `zpool online -e`, and the property `autoexpand`.
//!
//! ```text
//!   devices looked at again ─► one txg: asize in the configuration, vdev tree, all labels at the new ends ─► metaslabs added
//! ```
//!
//! A top-level vdev has the space of its smallest device. One whose device is missing does not grow, because that device may
//! have its former size. The new space is allocated only after the txg: a power cut before it leaves the vdev as it was.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_expand`, `vdev_open`, `vdev_metaslab_init`).

use super::attach::{TreeChange, parsed};
use super::autoreplace;
use super::create::layout;
use super::syncing::TxgSync;
use super::{Growth, allocation};
use weir_blocks::Tree;
use weir_machine::invariant;
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::dtls::Dtls;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::sizes;

/// Name of the property.
const AUTOEXPAND: &str = "autoexpand";

impl Growth<'_> {
    /// Uses the space of devices that have grown: of the top-level vdev that contains the device, or of all. Returns the number
    /// of vdevs that have grown.
    ///
    /// # Errors
    /// Errors of writing the configuration.
    pub async fn expand(&self, device: Option<u64>) -> Result<usize, PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        let tree = self.engine.cache.blocks().tree().clone();
        let root = parsed(&self.engine.shown().config.root)?;
        let is_of = |top: &&VdevConfig| device.is_none_or(|guid| top.leaves().iter().any(|leaf| leaf.guid == guid));
        let mut grown = Vec::new();
        // A RAID-Z vdev that is being expanded grows when that has ended.
        let may_grow = |top: &&VdevConfig| top.is_concrete() && !top.raidz_expanding;
        for top in root.children.iter().filter(may_grow).filter(is_of) {
            let mut new = top.clone();
            new.asize_bytes = asize_bytes(&tree, top, sizes::of_top(top));
            if MetaslabGeometry::of(&new).count() > MetaslabGeometry::of(top).count() {
                grown.push(new);
            }
        }
        if grown.is_empty() {
            return Ok(0);
        }
        let tops = grown.clone();
        let replaced = self
            .engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    for top in &tops {
                        syncing.core.config.set_top_number(top.id as usize, "asize", top.asize_bytes);
                        syncing.core.maps.grow_top(top);
                    }
                    let root = syncing.core.config.root.clone();
                    syncing.core.config_dirty = true;
                    let replaced = TreeChange(syncing).replace_tree(&root, None, &Dtls::new(), None);
                    syncing.fail_txg_on_error(replaced)
                })
            })
            .await?;
        // The leaves are the same: operations in progress need not end.
        drop(replaced);
        let blocks = self.engine.cache.blocks();
        for top in &grown {
            allocation::grow_top(blocks, top)?;
            tracing::info!(vdev = top.name(), bytes = top.asize_bytes, "has grown");
        }
        self.engine.tops.renew(&grown);
        self.renew_capacity().await?;
        Ok(grown.len())
    }

    /// Passes the pool's new capacity to the limits of datasets.
    pub(crate) async fn renew_capacity(&self) -> Result<(), PoolError> {
        let capacity_bytes = self.engine.gate.space().capacity_bytes();
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    syncing.core.context.capacity_bytes = capacity_bytes;
                    syncing.core.limits = None;
                    Ok(())
                })
            })
            .await
    }

    /// To be called every few seconds: if the pool has `autoexpand=on`, uses the space of devices that have grown.
    ///
    /// # Errors
    /// Errors of reading the property; errors of [`Growth::expand`].
    pub async fn keep_expanded(&self) -> Result<(), PoolError> {
        if autoreplace::number(self.engine, AUTOEXPAND).await?.unwrap_or(0) == 0 {
            return Ok(());
        }
        self.expand(None).await.map(drop)
    }
}

/// Allocatable bytes of a vdev with the present sizes of its devices; `min_bytes` are those that it has. dRAID vdevs keep
/// their size.
fn asize_bytes(tree: &Tree, vdev: &VdevConfig, min_bytes: u64) -> u64 {
    let each_bytes = sizes::of_child(vdev, min_bytes);
    let least = || vdev.children.iter().map(|child| asize_bytes(tree, child, each_bytes)).min().unwrap_or(each_bytes);
    match vdev.kind {
        VdevKind::Disk | VdevKind::File => {
            let leaf = tree.leaf(vdev.guid).ok().filter(|leaf| leaf.is_in_service());
            let disk = leaf.and_then(|leaf| leaf.disk());
            let bytes = disk.map_or(min_bytes, |disk| layout::leaf_asize_bytes(disk.look_again().size_bytes));
            invariant!(!vdev.offline || bytes == min_bytes, "a device that is offline has a size");
            bytes
        }
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => least(),
        VdevKind::Raidz { .. } => least().saturating_mul(vdev.children.len() as u64),
        _ => min_bytes,
    }
}
