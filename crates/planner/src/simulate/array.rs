//! An array without ZFS: mirrored pairs of the modelled disks, striped.

use super::SimulationError;
use super::server::{Server, disk_path};
use bytes::Bytes;
use futures_util::future::try_join;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_machine::{Access, Disk};

/// Bytes of the stripe on one pair.
const STRIPE_BYTES: u64 = 64 << 10;

/// The pairs of an array.
pub struct Array {
    pairs: Vec<[Arc<dyn Disk>; 2]>,
    /// Side that the next read uses.
    side: AtomicUsize,
}

impl Array {
    /// The disks of `server` in pairs.
    pub fn new(server: &Server) -> Result<Self, SimulationError> {
        let open = |at| server.machine.disks.open(&disk_path(at), Access::ReadWrite);
        let pairs = (0..server.spec.pool.vdevs).map(|pair| Ok([open(2 * pair)?, open(2 * pair + 1)?]));
        Ok(Array { pairs: pairs.collect::<Result<_, SimulationError>>()?, side: AtomicUsize::new(0) })
    }

    /// The pair of an offset, and the offset on its disks.
    fn place(&self, offset: u64) -> (&[Arc<dyn Disk>; 2], u64) {
        let stripe = offset / STRIPE_BYTES;
        let count = self.pairs.len() as u64;
        let pair = &self.pairs[(stripe % count) as usize];
        (pair, stripe / count * STRIPE_BYTES + offset % STRIPE_BYTES)
    }

    /// Reads `len` bytes, at most a stripe, from one side; returns their number.
    pub async fn read(&self, offset: u64, len: usize) -> Result<usize, SimulationError> {
        let (pair, at) = self.place(offset);
        let side = self.side.fetch_add(1, Ordering::Relaxed) % 2;
        Ok(pair[side].read(at, len).await?.len())
    }

    /// Writes at most a stripe to both sides.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), SimulationError> {
        let (pair, at) = self.place(offset);
        try_join(pair[0].write(at, data.clone()), pair[1].write(at, data)).await?;
        Ok(())
    }
}
