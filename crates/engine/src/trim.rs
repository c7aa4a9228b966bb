//! TRIM: devices are told which space holds nothing, all of it at once, so that a sparse file gives its blocks back and a
//! flash device has fewer to move.
//!
//! Only what is free, and was not given back in the last groups, is told; while a piece is being told it is out of use
//! ([`weir_blocks::Blocks::trim`]).

use super::Engine;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;

impl Engine {
    /// Tells the devices of all free space; gives the bytes of which they took note, over all devices.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the pool is not open for writing.
    pub async fn trim(&self) -> Result<u64, PoolError> {
        // What was freed before has synced then, and what is about to be used is.
        self.sync().await?;
        let blocks = self.cache.blocks();
        let mut bytes = 0;
        for vdev in 0..blocks.tree().len() as u32 {
            let size = blocks.vdev_space(vdev).size_bytes;
            self.tell_trim(vdev, "trim_start");
            let told = blocks.trim(&[(vdev, 0..size)]).await;
            self.tell_trim(vdev, if told.is_ok() { "trim_finish" } else { "trim_cancel" });
            bytes += told.map_err(|error| PoolError::Refused { what: error.to_string() })?;
        }
        Ok(bytes)
    }

    /// Puts what becomes of the leaves of a top-level vdev into the events.
    fn tell_trim(&self, vdev: u32, event: &str) {
        let config = self.shown().config;
        let top = config.tops().get(vdev as usize).map(VdevConfig::parse);
        for leaf in top.iter().flatten().flat_map(|top| top.leaves()) {
            self.events.post_vdev(event, leaf.guid);
        }
    }
}
