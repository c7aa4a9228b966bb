//! The rate of a resilver, simulated: a drive of a vdev with data fails, and a new one takes its place.
//!
//! The vdev holds files that were written one after the other, and nothing else uses the pool: of a pool whose data was written and
//! freed at random, or that clients use, a resilver takes longer.

use super::PlanError;
use crate::simulate::replacement::simulate_replacement;
use crate::simulate::server::{PoolSpec, ServerSpec, VdevLayout};
use crate::simulate::workload::Workload;
use serde::Serialize;

/// Data of the simulated vdev for each drive, in bytes.
const DRIVE_DATA_BYTES: u64 = 96 << 20;
/// Files of the simulated vdev, which are written at the same time.
const FILES: usize = 4;

/// A simulated resilver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resilver {
    /// Bytes that were written to the new drive.
    pub written_bytes: u64,
    /// Virtual seconds.
    pub seconds: f64,
    /// Bytes that the new drive of the described pool receives.
    pub drive_bytes: u64,
    /// Hours for these at the same rate.
    pub hours: f64,
}

/// Simulates the resilver of a drive. `None`: the layout has no redundancy.
///
/// # Errors
/// Those of the engine.
pub fn simulated(spec: &ServerSpec, used_bytes: u64, seed: u64) -> Result<Option<Resilver>, PlanError> {
    let layout = spec.pool.layout;
    if layout.redundancy() == 0 {
        return Ok(None);
    }
    let pool = PoolSpec { vdevs: 1, log: None, fill: 0.0, ..spec.pool.clone() };
    let small = ServerSpec { pool, arc_bytes: 64 << 20, dirty_bytes: 128 << 20, link: None, ..spec.clone() };
    let file_bytes = DRIVE_DATA_BYTES * layout.data_disks() as u64 / FILES as u64;
    let files = Workload { threads: FILES, file_bytes, ..Workload::sequential_write() };
    let replacement = simulate_replacement(seed, &small, &files, false)?;
    // Data and its parity or copies are spread evenly.
    let share = match layout {
        VdevLayout::Raidz(..) => {
            let block = super::capacity::sizing(layout).asize_bytes(128 << 10, 0) as f64 / f64::from(128 << 10);
            block / layout.disks() as f64
        }
        VdevLayout::Single | VdevLayout::Mirror(_) => 1.0,
    };
    let drive_bytes = (used_bytes as f64 * share / spec.pool.vdevs as f64) as u64;
    let (written_bytes, seconds) = (replacement.written_bytes, replacement.seconds);
    let hours = drive_bytes as f64 / (written_bytes as f64 / seconds) / 3600.0;
    Ok(Some(Resilver { written_bytes, seconds, drive_bytes, hours }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::drive::DriveSpec;

    #[test]
    fn a_new_drive_receives_its_share_not_faster_than_it_writes() {
        let padded = 44.0 / 32.0 / 4.0;
        for (layout, share) in [(VdevLayout::Mirror(2), 1.0), (VdevLayout::Raidz(1, 4), padded)] {
            let spec = ServerSpec::new(PoolSpec::new(DriveSpec::named("ssd-enterprise").unwrap(), layout, 2));
            let resilver = simulated(&spec, 1_000_000_000_000, 1).unwrap().unwrap();
            assert_eq!(resilver.drive_bytes, (1e12 * share / 2.0) as u64);
            // Each drive of the simulated vdev holds 96 MiB of data and of its parity or copies; padding is not written.
            let written = resilver.written_bytes as f64 / DRIVE_DATA_BYTES as f64;
            assert!((0.9..1.3).contains(&written), "{written}");
            let rate = resilver.written_bytes as f64 / 1e6 / resilver.seconds;
            assert!((50.0..500.0).contains(&rate), "{rate}");
        }
        let single = ServerSpec::new(PoolSpec::new(DriveSpec::named("nvme").unwrap(), VdevLayout::Single, 1));
        assert_eq!(simulated(&single, 1 << 40, 1).unwrap(), None);
    }
}
