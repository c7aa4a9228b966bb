//! Refreservation of volumes: the space that a volume can occupy at most.

use crate::change::Author;
use weir_blocks::alloc::Sizing;
use weir_dsl::props::{Value, ZfsProp};
use weir_dsl::sync_tasks::Setting;
use weir_engine::Engine;
use weir_machine::Request;
use weir_pool::{PoolError, VdevConfig};

/// Sizings of the pool's top-level RAID-Z and dRAID vdevs.
pub fn raidz_of(engine: &Engine) -> Vec<Sizing> {
    let root = engine.shown().config.root;
    let tops = root.get_list_array("children").unwrap_or_default();
    let sizings = tops.iter().filter_map(|top| VdevConfig::parse(top).ok()).map(|top| top.sizing());
    sizings.filter(|sizing| sizing.raidz.is_some()).collect()
}

/// Maximum space of a volume: its blocks, as wide as the widest RAID-Z makes them, its copies, and its tree of
/// indirect blocks (OpenZFS `zvol_volsize_to_reservation`).
pub fn reservation(size_bytes: u64, block_bytes: u64, copies: u64, raidz: &[Sizing]) -> u64 {
    /// Pointers in an indirect block, as log2; bytes of one.
    const POINTERS_SHIFT: u64 = 10;
    const INDIRECT_BYTES: u64 = 1 << 17;
    let mut blocks = size_bytes.div_ceil(block_bytes.max(1));
    let stretched = |vdev: &Sizing| {
        let own = vdev.asize_bytes(block_bytes, 0);
        let usual = vdev.typical_asize_bytes();
        // Space is counted as blocks of 128 KiB would take it.
        u64::try_from(u128::from(blocks) * u128::from(own) * (1 << 17) / u128::from(usual.max(1))).unwrap_or(u64::MAX)
    };
    let data = raidz.iter().map(stretched).max().unwrap_or(0).max(size_bytes);
    let mut metadata = 7;
    while blocks > 1 {
        blocks = (blocks + (1 << POINTERS_SHIFT) - 1) >> POINTERS_SHIFT;
        metadata += blocks;
    }
    let of_metadata = metadata.saturating_mul((copies + 1).min(3)).saturating_mul(INDIRECT_BYTES);
    data.saturating_mul(copies).saturating_add(of_metadata)
}

/// Changes the size of a volume, and its refreservation if that equals the volume's maximum size
/// (`zfs_add_synthetic_resv`) and `keep` is not set.
pub async fn resize(
    engine: &Engine,
    author: &mut Author,
    name: &str,
    size_bytes: u64,
    keep: bool,
) -> Result<(), PoolError> {
    let volume = VolumeSize::read(engine, name).await?;
    let needs = |bytes| reservation(bytes, volume.block_bytes, volume.copies, &raidz_of(engine));
    let follows = !keep && volume.reserved_bytes == needs(volume.size_bytes);
    let (now, then) = if follows { (volume.reserved_bytes, needs(size_bytes)) } else { (0, 0) };
    if then > now {
        // Without space for the larger reservation, the size is not changed.
        reserve(engine, name, then).await?;
        author.record(engine)?;
    }
    match engine.properties().set_volume_size(name.to_owned(), size_bytes).await {
        Ok(()) => {
            author.record(engine)?;
            if then < now { reserve(engine, name, then).await } else { Ok(()) }
        }
        Err(error) if then > now => reserve(engine, name, now).await.and(Err(error)),
        Err(error) => Err(error),
    }
}

async fn reserve(engine: &Engine, name: &str, bytes: u64) -> Result<(), PoolError> {
    let setting = (ZfsProp::RefReservation.name().to_owned(), Setting::Set(Value::Number(bytes)));
    engine.properties().set_properties(name.to_owned(), vec![setting]).await
}

/// Sets the refreservation of a volume to its maximum size, and records the author's command line.
pub async fn reserve_all(engine: &Engine, author: &mut Author, name: &str) -> Result<(), PoolError> {
    let volume = VolumeSize::read(engine, name).await?;
    let bytes = reservation(volume.size_bytes, volume.block_bytes, volume.copies, &raidz_of(engine));
    debug_assert!(bytes >= volume.size_bytes, "a volume needs at least its size");
    reserve(engine, name, bytes).await?;
    author.record(engine)
}

/// Replaces the value `auto` of the refreservation of a clone by the maximum size of its origin, a snapshot of a volume.
///
/// # Errors
/// If the origin is a snapshot of a file system, or cannot be read.
pub async fn resolve_auto(engine: &Engine, origin: &str, properties: &mut [(String, Value)]) -> Result<(), PoolError> {
    let is_auto = |(name, value): &&mut (String, Value)| {
        ZfsProp::of_name(name) == Some(ZfsProp::RefReservation) && *value == Value::Text("auto".to_owned())
    };
    let Some((_, value)) = properties.iter_mut().find(is_auto) else { return Ok(()) };
    let volume = VolumeSize::read(engine, origin).await?;
    // A snapshot has a size of its own, and the block size of its volume.
    let head = VolumeSize::read(engine, origin.split('@').next().unwrap_or(origin)).await?;
    if volume.size_bytes == 0 || head.block_bytes == 0 {
        let what = "'refreservation' can be 'auto' only for volumes".to_owned();
        return Err(PoolError::Refused { what });
    }
    *value = Value::Number(reservation(volume.size_bytes, head.block_bytes, head.copies, &raidz_of(engine)));
    Ok(())
}

/// Properties of a volume on which its refreservation depends.
struct VolumeSize {
    size_bytes: u64,
    block_bytes: u64,
    copies: u64,
    reserved_bytes: u64,
}

impl VolumeSize {
    async fn read(engine: &Engine, name: &str) -> Result<VolumeSize, PoolError> {
        let rq = &Request::internal("set");
        let datasets = engine.synced().dsl_of(rq, name).await?;
        let facts = engine.facts();
        let volume = datasets.find(rq, name).await?;
        let mut numbers = [0; 4];
        let wanted = [ZfsProp::VolSize, ZfsProp::VolBlockSize, ZfsProp::Copies, ZfsProp::RefReservation];
        for (number, prop) in numbers.iter_mut().zip(wanted) {
            let found = datasets.property(rq, &volume, &facts, prop.name()).await?;
            if let Some(Value::Number(n)) = found.map(|property| property.value) {
                *number = n;
            }
        }
        let [size_bytes, block_bytes, copies, reserved_bytes] = numbers;
        Ok(VolumeSize { size_bytes, block_bytes, copies, reserved_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_blocks::alloc::RaidzSizing;

    #[test]
    fn reservations_equal_those_of_openzfs() {
        // zfs create -V 64M on a single disk and the usual block size: 64 MiB of data in 4096 blocks, 7 + 4 + 1 blocks
        // of metadata, twice each.
        assert_eq!(reservation(64 << 20, 16 << 10, 1, &[]), (64 << 20) + 12 * 2 * (128 << 10));
        // On a RAID-Z2 of six with sectors of 4 KiB, a block of 8 KiB takes 2 + 2 sectors, rounded to 6.
        let raidz2 = RaidzSizing { nparity: 2, width: 6, expansion_txgs: Vec::new(), whole_rows: false };
        let raidz2 = Sizing { ashift: 12, raidz: Some(raidz2) };
        assert_eq!(raidz2.asize_bytes(8 << 10, 0), 6 << 12);
        assert_eq!(raidz2.asize_bytes(128 << 10, 0), 48 << 12);
        assert!(reservation(64 << 20, 8 << 10, 1, &[raidz2]) > 2 * (64 << 20));
    }
}
