//! The vdev property `allocating`: whether new blocks are allocated on a top-level vdev.
//!
//! ```text
//!   off ─► the allocator leaves the vdev out at once ─► one txg: "non_allocating" in the configuration, the property in the ZAP
//!   on  ─► one txg: takes the mark off both          ─► the allocator uses the vdev again
//! ```
//!
//! The blocks of the vdev stay where they are. The size of a vdev of the normal class leaves the pool's capacity, because
//! nothing that is written can use it; frees on it add no space before it allocates again.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`spa_vdev_noalloc`, `spa_vdev_alloc`, `vdev_passivate`), `module/zfs/vdev.c`
//! (`vdev_prop_set`).

use super::VdevProperties;
use super::syncing::TxgSync;
use weir_dmu::zap;
use weir_machine::invariant;
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::vdev_properties::zap_of;

/// Flag of a top-level vdev in the configuration (`ZPOOL_CONFIG_NONALLOCATING`).
const NON_ALLOCATING: &str = "non_allocating";

fn refused(what: &str) -> PoolError {
    PoolError::Refused { what: what.to_owned() }
}

impl VdevProperties<'_> {
    /// Stops or resumes allocation on the top-level vdev `guid`. When this returns, the property is on stable storage.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if it is no top-level vdev with data, if it is being removed, or if no other vdev would be left on
    /// which data is allocated.
    pub(super) async fn set_allocating(&self, guid: u64, is_allocating: bool) -> Result<(), PoolError> {
        let engine = self.engine;
        let _one_at_a_time = engine.adding.lock().await;
        let top = self.check_allocating(guid, is_allocating)?;
        let vdev = top.id as u32;
        let blocks = engine.cache.blocks();
        let failed = |error: weir_blocks::BlockError| refused(&error.to_string());
        if !is_allocating {
            blocks.set_non_allocating(vdev, true).map_err(failed)?;
        }
        let index = top.id as usize;
        let stored = engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let zap = zap_of(&syncing.core.config.root, guid)?;
                    invariant!(zap.0 != 0, "the ZAP of a vdev is an object");
                    let (rq, mos, tx) = (syncing.change.rq, &syncing.change.mos, syncing.change.tx);
                    zap::put_word(rq, mos, tx, zap, "allocating", u64::from(is_allocating)).await?;
                    match is_allocating {
                        true => syncing.core.config.remove_of_top(index, NON_ALLOCATING),
                        false => syncing.core.config.set_top_number(index, NON_ALLOCATING, 1),
                    }
                    syncing.core.config_dirty = true;
                    Ok(())
                })
            })
            .await;
        let is_closed = if stored.is_ok() { !is_allocating } else { top.non_allocating };
        blocks.set_non_allocating(vdev, is_closed || !blocks.tree().can_keep(vdev)).map_err(failed)?;
        stored?;
        engine.tops.remove(top.id);
        engine.tops.add(&[VdevConfig { non_allocating: !is_allocating, ..top }]);
        engine.growth().renew_capacity().await
    }

    /// The vdev, with its allocation class, if its property can be set.
    fn check_allocating(&self, guid: u64, is_allocating: bool) -> Result<VdevConfig, PoolError> {
        let blocks = self.engine.cache.blocks();
        let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
        let mut root = VdevConfig::parse(&self.engine.shown().config.root).map_err(bad)?;
        root.children.retain(VdevConfig::is_concrete);
        for top in &mut root.children {
            let class = blocks.metaslabs().class(top.id as u32);
            top.class = class.ok_or_else(|| refused("its allocation class is not known"))?;
        }
        let not_top = "only top-level vdevs with data allocate";
        let top = root.children.iter().find(|top| top.guid == guid && top.class != Class::Log);
        let top = top.ok_or_else(|| refused(not_top))?;
        if top.removing {
            return Err(refused("the vdev is being removed"));
        }
        let takes_data = |other: &VdevConfig| {
            other.guid != guid && other.class == Class::Normal && !other.non_allocating && !other.removing
        };
        if !is_allocating && top.class == Class::Normal && !root.children.iter().any(takes_data) {
            return Err(refused("it is the only vdev on which data is allocated"));
        }
        Ok(top.clone())
    }
}
