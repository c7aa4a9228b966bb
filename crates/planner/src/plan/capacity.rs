//! Usable space of a pool: by arithmetic, each step shown, and of the pool that the engine makes on modelled drives.
//!
//! ```text
//!   drive ─► whole labels of 256 KiB, less 4.5 MiB of labels and boot area ─► × drives of a RAID-Z vdev
//!         ─► whole metaslabs ─► × (512 × deflate ratio): parity and padding of a record of 128 KiB
//!         ─► less the embedded log (one metaslab) and the slop (1/32, at most 128 GiB) ─► `zfs list`: USED + AVAIL
//! ```
//!
//! The rule "(drives − parity) × size" leaves out padding, metaslabs and slop. OpenZFS counts the space of every dataset as if
//! it held records of 128 KiB, so records of another size hold more or less than `zfs list` says: that share is computed too.
//!
//! Source: OpenZFS `vdev_raidz_asize_to_psize`, `vdev_set_deflate_ratio`, `spa_get_slop_space`, `vdev_metaslab_set_size`.

use super::PlanError;
use crate::hardware::contents::Payload;
use crate::simulate::server::{PoolSpec, Server, ServerSpec, VdevLayout};
use serde::Serialize;
use weir_blocks::alloc::{RaidzSizing, Sizing};
use weir_engine::create::layout::{leaf_asize_bytes, metaslab_shift};
use weir_machine::Request;

/// log2 of the sector size of modelled pools.
const ASHIFT: u32 = 12;
/// Vdevs with more metaslabs than this keep one for the intent log (`vdev_metaslab_init`).
const EMBEDDED_LOG_METASLABS: u64 = 64;
/// Bytes of a block pointer.
const POINTER_BYTES: u64 = 128;
/// Copies of an indirect block.
const METADATA_COPIES: u64 = 2;

/// Usable space, and the steps to it. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// All drives as they are bought.
    pub raw_bytes: u64,
    /// (Drives − parity) × size.
    pub rule_bytes: u64,
    /// Metaslabs of a vdev, and the bytes of each.
    pub metaslabs: [u64; 2],
    /// Vdevs, and the metaslabs of each that hold data: all but the one of the embedded log.
    pub data_metaslabs: [u64; 2],
    /// Deflate ratio: bytes that a dataset sees of 512 allocated ones. That of a block of 128 KiB, rounded down.
    pub deflate_512ths: u64,
    /// Sectors of 4 KiB of data in a block of 128 KiB, and of its allocation.
    pub sectors_128k: [u64; 2],
    /// Sectors of data in a record, and of its allocation.
    pub sectors_record: [u64; 2],
    /// Space of the metaslabs without parity, without the embedded log.
    pub deflated_bytes: u64,
    /// Slop: kept so that a full pool can be cleaned up.
    pub slop_bytes: u64,
    /// Usable space by arithmetic.
    pub computed_bytes: u64,
    /// Usable space of the pool that the engine made: USED and AVAIL of `zfs list` together.
    pub usable_bytes: u64,
    /// Data in whole records that fills the usable space: differs for records of another size than 128 KiB.
    pub record_data_bytes: u64,
    /// Upper bound of the indirect blocks of that data.
    pub metadata_bytes: u64,
}

/// Allocated sizes of blocks on a vdev of this layout.
pub fn sizing(layout: VdevLayout) -> Sizing {
    let raidz = match layout {
        VdevLayout::Raidz(parity, width) => Some(RaidzSizing {
            nparity: parity.into(),
            width: width as u64,
            expansion_txgs: Vec::new(),
            whole_rows: false,
        }),
        VdevLayout::Single | VdevLayout::Mirror(_) => None,
    };
    Sizing { ashift: ASHIFT, raidz }
}

/// Usable space by arithmetic; [`Capacity::usable_bytes`] is that too.
pub fn computed(pool: &PoolSpec) -> Capacity {
    let layout = pool.layout;
    let sizing = sizing(layout);
    let vdevs = pool.vdevs as u64;
    let columns = if matches!(layout, VdevLayout::Raidz(..)) { layout.disks() as u64 } else { 1 };
    let asize = leaf_asize_bytes(pool.drive_bytes) * columns;
    let shift = metaslab_shift(asize);
    let count = asize >> shift;
    let deflate = |bytes: u64| (bytes >> 9) * sizing.deflate();
    let logs = u64::from(count > EMBEDDED_LOG_METASLABS);
    let embedded = deflate(logs << shift);
    let deflated_bytes = vdevs * (deflate(count << shift) - embedded);
    let slop_bytes = weir_pool::capacity::slop(deflated_bytes, vdevs * embedded);
    let computed_bytes = deflated_bytes - slop_bytes;
    let sectors = |bytes: u64| [bytes.div_ceil(1 << ASHIFT), sizing.asize_bytes(bytes, 0) >> ASHIFT];
    let record = pool.record_bytes;
    let records = computed_bytes / deflate(sizing.asize_bytes(record, 0)).max(1);
    Capacity {
        raw_bytes: pool.drive_bytes * layout.disks() as u64 * vdevs,
        rule_bytes: pool.drive_bytes * layout.data_disks() as u64 * vdevs,
        metaslabs: [count, 1 << shift],
        data_metaslabs: [vdevs, count - logs],
        deflate_512ths: sizing.deflate(),
        sectors_128k: sectors(128 << 10),
        sectors_record: sectors(record),
        deflated_bytes,
        slop_bytes,
        computed_bytes,
        usable_bytes: computed_bytes,
        record_data_bytes: records * record,
        metadata_bytes: records * POINTER_BYTES * METADATA_COPIES,
    }
}

/// Usable space of the pool that the engine creates on modelled drives, beside the arithmetic.
///
/// # Errors
/// Those of creating the pool.
pub fn created(pool: &PoolSpec) -> Result<Capacity, PlanError> {
    let mut spec = ServerSpec::new(pool.clone());
    spec.arc_bytes = 32 << 20;
    spec.dirty_bytes = 32 << 20;
    let server = Server::new(1, spec, Payload::empty());
    let world = server.world.clone();
    let usable = world.run(async {
        let engine = server.create_pool().await?;
        engine.sync().await?;
        let rq = Request::internal("plan");
        let _root = engine.file_system(&rq, crate::simulate::server::POOL).await?;
        Ok::<_, weir_pool::PoolError>(engine.facts().usable_bytes)
    });
    world.power_failure();
    let usable_bytes =
        usable.map_err(crate::simulate::SimulationError::from)?.map_err(crate::simulate::SimulationError::from)?;
    Ok(Capacity { usable_bytes, ..computed(pool) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::drive::DriveSpec;

    fn pool(layout: VdevLayout, vdevs: usize, drive_tb: f64) -> PoolSpec {
        let mut pool = PoolSpec::new(DriveSpec::named("hdd-7k").unwrap(), layout, vdevs);
        pool.drive_bytes = (drive_tb * 1e12) as u64 / 4096 * 4096;
        pool
    }

    #[test]
    fn arithmetic_equals_the_pool_that_the_engine_creates() {
        for (layout, vdevs, drive_tb, rule_tb, sectors) in [
            (VdevLayout::Raidz(1, 5), 1, 1.2, 4.8, [32, 40]),
            (VdevLayout::Raidz(2, 9), 1, 3.8, 26.6, [32, 42]),
            (VdevLayout::Raidz(2, 6), 4, 10.0, 160.0, [32, 48]),
            (VdevLayout::Raidz(2, 10), 2, 10.0, 160.0, [32, 42]),
            (VdevLayout::Raidz(2, 10), 2, 3.8, 60.8, [32, 42]),
            (VdevLayout::Mirror(2), 3, 8.0, 24.0, [32, 32]),
            (VdevLayout::Single, 1, 0.01, 0.01, [32, 32]),
        ] {
            let capacity = created(&pool(layout, vdevs, drive_tb)).unwrap();
            assert!((capacity.rule_bytes as f64 / 1e12 - rule_tb).abs() < 1e-6, "{capacity:?}");
            assert_eq!(capacity.sectors_128k, sectors, "{layout:?}");
            // The factors that the text prints.
            let [count, per_vdev] = capacity.data_metaslabs;
            let allocated = count * per_vdev * capacity.metaslabs[1];
            assert_eq!(allocated / 512 * capacity.deflate_512ths, capacity.deflated_bytes);
            let ratio = capacity.computed_bytes as f64 / capacity.usable_bytes as f64;
            assert!((ratio - 1.0).abs() < 0.0005, "{layout:?}: {capacity:?}");
            println!(
                "{vdevs} × {layout:?} of {drive_tb} TB: rule {rule_tb} TB, exact {:.3} TB",
                capacity.usable_bytes as f64 / 1e12
            );
            assert!(capacity.usable_bytes < capacity.rule_bytes, "{capacity:?}");
            // The deflate ratio is rounded down to a 512th.
            let share = capacity.record_data_bytes as f64 / capacity.computed_bytes as f64;
            assert!((1.0..1.004).contains(&(share + 1e-6)), "{layout:?}: {share}");
        }
    }

    #[test]
    fn small_records_on_raidz_hold_less_than_the_dataset_shows() {
        let mut wide = pool(VdevLayout::Raidz(2, 10), 1, 10.0);
        wide.record_bytes = 4096;
        let capacity = computed(&wide);
        assert_eq!(capacity.sectors_record, [1, 3]);
        // A sector takes three, and the dataset counts each as 32 / 42 of one.
        let share = capacity.record_data_bytes as f64 / capacity.computed_bytes as f64;
        assert!((share / (42.0 / 32.0 / 3.0) - 1.0).abs() < 0.02, "{share}");
        wide.record_bytes = 1 << 20;
        assert!(computed(&wide).record_data_bytes > computed(&wide).computed_bytes);
    }
}
