//! Simulation runs over seeds: each seed runs twice, together with the canary, and is counted.

use crate::canary::{Omit, survive_cuts, survive_failures};
use crate::fault::Fault;
use crate::net_canary::{NetBug, survive_delays, survive_net_cuts};
use crate::scheduler::SimError;
use crate::timing::Timing;
use crate::world::SimWorld;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;
use weir_machine::{Access, Buf, DiskError, Machine};

/// Two runs of one seed have different traces: the scenario depends on something other than the seed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("seed {seed} is not reproducible: trace {first:016x}, then {second:016x}")]
pub struct Diverged {
    /// The seed.
    pub seed: u64,
    /// The trace hash of the first run.
    pub first: u64,
    /// The trace hash of the second run.
    pub second: u64,
}

/// Runs `scenario` in two worlds of one seed and returns its result.
///
/// # Errors
/// [`Diverged`] if the two runs have different traces.
pub fn run_twice<T>(seed: u64, scenario: impl Fn(&SimWorld) -> T) -> Result<T, Diverged> {
    let run = || {
        let world = SimWorld::new(seed);
        let value = scenario(&world);
        let hash = world.trace_hash();
        // Unfinished tasks hold the machine and so form a reference cycle with the world: drop them.
        world.power_failure();
        (value, hash)
    };
    let (value, first) = run();
    let (_, second) = run();
    if first == second { Ok(value) } else { Err(Diverged { seed, first, second }) }
}

/// Totals over runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cuts of the power and of connections survived.
    pub cuts: u64,
    /// Failed operations survived.
    pub failures: u64,
    /// Planted bugs detected, of five per seed.
    pub caught: u64,
    /// Steps of the stress scenario.
    pub steps: u64,
}

/// Number of commits in each run of the canary.
const COMMITS: u64 = 4;

/// Runs everything for one seed. The error names the seed and the failure.
pub fn seed(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let context = |what: &str, point: u64, v: &dyn std::fmt::Display| format!("seed {seed}, {what} {point}: {v}");
    counts.cuts += survive_cuts(seed, COMMITS, Omit::Nothing).map_err(|(p, v)| context("power cut", p, &v))?;
    counts.failures += survive_failures(seed, COMMITS).map_err(|(p, v)| context("failed operation", p, &v))?;
    counts.cuts += survive_net_cuts(seed, NetBug::Nothing).map_err(|v| context("cut of a connection", 0, &v))?;
    survive_delays(seed, NetBug::Nothing).map_err(|v| context("delays", 0, &v))?;
    for bug in [NetBug::ExecutesParts, NetBug::ForgetsReplies] {
        counts.caught += u64::from(survive_net_cuts(seed, bug).is_err());
    }
    counts.caught += u64::from(survive_delays(seed, NetBug::TrustsArrival).is_err());
    for omit in [Omit::FlushBeforeRoot, Omit::FlushAfterRoot] {
        counts.caught += u64::from(survive_cuts(seed, COMMITS, omit).is_err());
    }
    counts.steps += run_twice(seed, stress).map_err(|d| d.to_string())?.map_err(|e| format!("seed {seed}: {e}"))?;
    Ok(())
}

/// Many tasks on three disks while faults of every kind are injected and removed. Checks only that the run ends and
/// that it is deterministic.
fn stress(world: &SimWorld) -> Result<u64, SimError> {
    let timings = [Timing::Rpm7k, Timing::SataSsd, Timing::Chaos];
    for (n, timing) in timings.into_iter().enumerate() {
        world.add_disk(format!("/sim/{n}"), 1 << 20, 4096, timing);
    }
    let machine = world.machine();
    let mut rng = world.rng();
    world.run(async {
        let tasks: Vec<_> = (0..12).map(|n| machine.tasks.spawn(worker(machine.clone(), n))).collect();
        for disk in world.disks() {
            let range = |rng: &mut crate::Rng| (rng.below(200) * 4096, 8192);
            let (offset, len) = range(&mut rng);
            let faults = [
                Fault::Rot { offset, len, bits: 5 },
                Fault::Unreadable { offset, len },
                Fault::Misdirect { nth: rng.below(20), to: offset },
                Fault::FailNth { nth: rng.below(40), errno: 5 },
                Fault::Hang,
                Fault::Slow { factor: 10 },
            ];
            disk.lay(faults[rng.below(6) as usize].clone());
            machine.clock.sleep(Duration::from_millis(rng.below(50))).await;
        }
        world.disks().iter().for_each(|disk| disk.lift_all());
        for task in tasks {
            // Disk errors are expected while faults are injected.
            let _ = task.await;
        }
    })?;
    Ok(world.steps())
}

/// Writes and reads back random blocks, with computations in between.
async fn worker(machine: Machine, number: u64) -> Result<(), DiskError> {
    let disk = machine.disks.open(Path::new(&format!("/sim/{}", number % 3)), Access::ReadWrite)?;
    for round in 0..20 {
        let offset = machine.entropy.below(250) * 4096;
        let mut buf = Buf::zeroed(4096);
        machine.entropy.fill(buf.as_mut());
        disk.write(offset, buf).await?;
        if round % 4 == 0 {
            disk.flush().await?;
        }
        let read = disk.read(offset, 4096).await?;
        let sum = machine.compute.run(move || read.as_ref().iter().map(|b| u64::from(*b)).sum::<u64>()).await;
        machine.clock.sleep(Duration::from_nanos(sum.unwrap_or(0))).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn seeds_pass_and_catch_the_planted_bugs() {
        let mut counts = Counts::default();
        for n in 100..104 {
            seed(n, &mut counts).unwrap();
        }
        assert!(counts.caught >= 6, "{counts:?}");
        assert!(counts.cuts > 200, "{counts:?}");
    }

    #[test]
    fn dependence_on_anything_but_the_seed_is_detected() {
        let outside = AtomicU64::new(0);
        let scenario = |world: &SimWorld| {
            let delay = Duration::from_nanos(outside.fetch_add(1, Ordering::Relaxed));
            world.run(world.machine().clock.sleep(delay))
        };
        assert!(run_twice(1, scenario).is_err());
        assert!(run_twice(1, stress).unwrap().is_ok());
    }

    #[test]
    fn different_seeds_have_different_traces() {
        let hash = |seed| {
            let world = SimWorld::new(seed);
            stress(&world).unwrap();
            world.trace_hash()
        };
        assert_ne!(hash(1), hash(2));
    }
}
