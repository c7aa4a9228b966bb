//! The canary: a minimal commit protocol that is correct by inspection, and variants of it with one flush omitted.
//!
//! ```text
//!   0      root of even generations          8 KiB   data of even generations
//!   4 KiB  root of odd generations          64 KiB   data of odd generations
//!
//!   commit: write the data, all blocks at once ─► flush ─► write the root (generation, hash of the data, own hash)
//!           ─► flush ─► report the generation as stable
//!   recover: take the newer root with a valid own hash; its data must match the hash in it
//! ```
//!
//! After a power cut at any moment, the recovered generation is at least the last one reported as stable, and its
//! data are intact. Without the first flush a root can reach the medium before its data; without the second a
//! generation reported as stable can be lost. A simulator that does not detect both bugs is not a valid test of
//! anything else, so each run also runs the canary.

use crate::fault::Fault;
use crate::rng::Rng;
use crate::scheduler::SimError;
use crate::timing::Timing;
use crate::trace::hash_bytes;
use crate::world::SimWorld;
use futures_util::future::try_join_all;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use weir_machine::{Access, Buf, Disk, DiskError, Machine};

const BLOCK_BYTES: usize = 2048;
const BLOCKS: u64 = 6;
const SECTOR_BYTES: u32 = 512;
const ROOT_BYTES: usize = 512;
const MAGIC: u64 = 0x0063_616e_6172_7921;
const PATH: &str = "/sim/canary";

/// The flush that a variant of the protocol omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omit {
    /// None: the correct protocol.
    Nothing,
    /// The flush between the data and the root.
    FlushBeforeRoot,
    /// The one between the root and the report to the caller.
    FlushAfterRoot,
}

/// A violated guarantee of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// The recovered generation is older than one reported as stable.
    #[error("generation {promised} was reported as stable, {found} was recovered")]
    Lost {
        /// The generation reported as stable.
        promised: u64,
        /// The recovered generation.
        found: u64,
    },
    /// The root is valid but its data are not.
    #[error("the data of generation {generation} do not match its root")]
    Torn {
        /// The recovered generation.
        generation: u64,
    },
    /// The run itself failed.
    #[error("{0}")]
    Run(SimError),
    /// The disk failed without an injected fault.
    #[error("{0}")]
    Disk(DiskError),
}

fn area(generation: u64) -> u64 {
    if generation.is_multiple_of(2) { 8 << 10 } else { 64 << 10 }
}

fn root_offset(generation: u64) -> u64 {
    if generation.is_multiple_of(2) { 0 } else { 4096 }
}

fn block(generation: u64, index: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    Rng::new(generation.wrapping_mul(1000) + index).fill(&mut bytes);
    bytes
}

async fn commit(disk: &Arc<dyn Disk>, generation: u64, omit: Omit) -> Result<(), DiskError> {
    let mut all = Vec::new();
    let mut writes = Vec::new();
    for index in 0..BLOCKS {
        let bytes = block(generation, index);
        all.extend_from_slice(&bytes);
        writes.push(disk.write(area(generation) + index * BLOCK_BYTES as u64, Buf::copy_from(&bytes)));
    }
    try_join_all(writes).await?;
    if omit != Omit::FlushBeforeRoot {
        disk.flush().await?;
    }
    let mut root = vec![0; ROOT_BYTES];
    for (slot, word) in root.chunks_mut(8).zip([MAGIC, generation, hash_bytes(&all)]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    let own = hash_bytes(&root[..ROOT_BYTES - 8]);
    root[ROOT_BYTES - 8..].copy_from_slice(&own.to_le_bytes());
    disk.write(root_offset(generation), Buf::copy_from(&root)).await?;
    if omit != Omit::FlushAfterRoot {
        disk.flush().await?;
    }
    Ok(())
}

/// The newest generation with a valid root, and the hash of its data; generation 0 is the empty disk.
async fn newest_root(disk: &Arc<dyn Disk>) -> Result<(u64, u64), DiskError> {
    let mut newest = (0, 0);
    for slot in [0, 1] {
        let root = disk.read(root_offset(slot), ROOT_BYTES).await?;
        let word = |n: usize| u64::from_le_bytes(root.as_ref()[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
        let valid = word(0) == MAGIC && word(ROOT_BYTES / 8 - 1) == hash_bytes(&root.as_ref()[..ROOT_BYTES - 8]);
        if valid && word(1) > newest.0 {
            newest = (word(1), word(2));
        }
    }
    Ok(newest)
}

async fn recover(machine: &Machine, promised: u64) -> Result<(), Violation> {
    let disk = machine.disks.open(Path::new(PATH), Access::ReadOnly).map_err(Violation::Disk)?;
    let (generation, hash) = newest_root(&disk).await.map_err(Violation::Disk)?;
    if generation > 0 {
        let len = BLOCK_BYTES * BLOCKS as usize;
        let data = disk.read(area(generation), len).await.map_err(Violation::Disk)?;
        if hash_bytes(data.as_ref()) != hash {
            return Err(Violation::Torn { generation });
        }
    }
    if generation < promised { Err(Violation::Lost { promised, found: generation }) } else { Ok(()) }
}

/// Commits generations 1 to `commits`; `promised` is the last one reported as stable.
async fn work(machine: Machine, commits: u64, omit: Omit, promised: Arc<AtomicU64>) -> Result<(), DiskError> {
    let disk = machine.disks.open(Path::new(PATH), Access::ReadWrite)?;
    for generation in 1..=commits {
        commit(&disk, generation, omit).await?;
        promised.store(generation, Ordering::Relaxed);
    }
    Ok(())
}

fn world(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed);
    world.add_disk(PATH, 1 << 20, SECTOR_BYTES, Timing::Chaos);
    world
}

/// Number of points at which the power can be cut.
fn cut_points(seed: u64, commits: u64, omit: Omit) -> Result<u64, Violation> {
    let world = world(seed);
    world
        .run(work(world.machine(), commits, omit, Arc::default()))
        .map_err(Violation::Run)?
        .map_err(Violation::Disk)?;
    Ok(world.changes())
}

/// Runs until the power cut at the `point`th change, then recovers.
fn cut_once(seed: u64, commits: u64, omit: Omit, point: u64) -> Result<(), Violation> {
    let world = world(seed);
    let promised = Arc::<AtomicU64>::default();
    world.cut_after(point);
    match world.run(work(world.machine(), commits, omit, promised.clone())) {
        Err(SimError::PowerCut { .. }) => {}
        Err(error) => return Err(Violation::Run(error)),
        // The work ended with the last change: the power fails just after it.
        Ok(done) => {
            done.map_err(Violation::Disk)?;
            world.power_failure();
        }
    }
    world.run(recover(&world.machine(), promised.load(Ordering::Relaxed))).map_err(Violation::Run)?
}

/// Cuts the power at every change of `commits` commits. Returns the number of cuts, or the first violation and its
/// point.
pub fn survive_cuts(seed: u64, commits: u64, omit: Omit) -> Result<u64, (u64, Violation)> {
    let points = cut_points(seed, commits, omit).map_err(|v| (0, v))?;
    for point in 1..=points {
        cut_once(seed, commits, omit, point).map_err(|v| (point, v))?;
    }
    Ok(points)
}

/// Makes every operation fail once, cuts the power after it, and recovers. Returns the number of failures, or the
/// first violation and the failed operation.
pub fn survive_failures(seed: u64, commits: u64) -> Result<u64, (u64, Violation)> {
    for nth in 0.. {
        let world = world(seed);
        let promised = Arc::<AtomicU64>::default();
        for disk in world.disks() {
            disk.lay(Fault::FailNth { nth, errno: 5 });
        }
        let done = world.run(work(world.machine(), commits, Omit::Nothing, promised.clone()));
        let done = done.map_err(|e| (nth, Violation::Run(e)))?;
        world.power_failure();
        if done.is_ok() {
            return Ok(nth);
        }
        world.disks().iter().for_each(|disk| disk.lift_all());
        let recovered = world.run(recover(&world.machine(), promised.load(Ordering::Relaxed)));
        recovered.map_err(|e| (nth, Violation::Run(e)))?.map_err(|v| (nth, v))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_survives_a_cut_at_every_change() {
        for seed in 0..8 {
            let cuts = survive_cuts(seed, 4, Omit::Nothing).unwrap();
            assert!(cuts >= 4 * 2 * (BLOCKS + 3), "only {cuts} cuts");
        }
    }

    #[test]
    fn each_omitted_flush_is_detected() {
        let caught = |omit| (0..8).find_map(|seed| survive_cuts(seed, 4, omit).err());
        assert!(matches!(caught(Omit::FlushBeforeRoot), Some((_, Violation::Torn { .. }))));
        assert!(matches!(caught(Omit::FlushAfterRoot), Some((_, Violation::Lost { .. }))));
    }

    #[test]
    fn the_protocol_survives_the_failure_of_every_operation() {
        assert_eq!(survive_failures(3, 4).unwrap(), 4 * (BLOCKS + 3));
    }

    #[test]
    fn a_disk_that_ignores_flushes_breaks_the_correct_protocol() {
        let lost = (0..40).any(|seed| {
            let world = world(seed);
            let promised = Arc::<AtomicU64>::default();
            world.disks()[0].lay(Fault::LyingFlush);
            world.run(work(world.machine(), 3, Omit::Nothing, promised.clone())).unwrap().unwrap();
            world.power_failure();
            world.run(recover(&world.machine(), promised.load(Ordering::Relaxed))).unwrap().is_err()
        });
        assert!(lost);
    }
}
