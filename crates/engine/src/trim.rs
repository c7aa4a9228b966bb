//! Manual trim of all free space (`zpool trim`), so that sparse files shrink and flash devices have fewer pages to move.
//!
//! Only free space without deferred frees is trimmed. A range cannot be allocated while it is being trimmed
//! ([`weir_blocks::trim`]).

use super::Devices;
use super::events::PoolEvent;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;

impl Devices<'_> {
    /// Trims all free space; returns the number of bytes trimmed, over all devices.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the pool is not open for writing.
    pub async fn trim(&self) -> Result<u64, PoolError> {
        // Pending allocations and frees have synced afterwards.
        self.engine.sync().await?;
        let blocks = self.engine.cache.blocks();
        let mut bytes = 0;
        for vdev in 0..blocks.tree().len() as u32 {
            let size = blocks.vdev_space(vdev).size_bytes;
            self.post_trim(vdev, PoolEvent::TrimStart);
            let trimmed = weir_blocks::trim(blocks, &[(vdev, 0..size)]).await;
            self.post_trim(vdev, if trimmed.is_ok() { PoolEvent::TrimFinish } else { PoolEvent::TrimCancel });
            bytes += trimmed.map_err(|error| PoolError::Refused { what: error.to_string() })?;
        }
        Ok(bytes)
    }

    /// Posts a trim event for each leaf of a top-level vdev.
    fn post_trim(&self, vdev: u32, event: PoolEvent) {
        let config = self.engine.shown().config;
        let top = config.tops().get(vdev as usize).map(VdevConfig::parse);
        for leaf in top.iter().flatten().flat_map(|top| top.leaves()) {
            self.engine.events.post_vdev(event, leaf.guid);
        }
    }
}
