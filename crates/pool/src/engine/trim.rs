//! TRIM: devices are told which space holds nothing, all of it at once, so that a sparse file gives its blocks back and a
//! flash device has fewer to move.
//!
//! Only what is free, and was not given back in the last groups, is told; while a piece is being told it is out of use
//! ([`weir_blocks::Blocks::trim`]).

use super::Engine;
use crate::error::PoolError;

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
            let told = blocks.trim(&[(vdev, 0..size)]).await;
            bytes += told.map_err(|error| PoolError::Refused { what: error.to_string() })?;
        }
        Ok(bytes)
    }
}
