//! Device errors: operations of the disks of a world fail, by number or by chance.
//!
//! The problem: code that handles the error of one write among many, of a flush, or of a read in the middle of an import,
//! runs only when that very operation fails. So a short history is run once without errors, to count its operations, and
//! then once for each of them, which fails; long histories meet errors at random.
//!
//! ```text
//!   inject_errors(plan) ─► each operation: fails at once │ fails when it is due │ is done      (disks that the plan names)
//!   lift_errors()       ─► what failed, by kind
//! ```
//!
//! What an error leaves: a failed read, nothing. A failed write, the old bytes, the new ones, or new ones up to some
//! sector. A failed flush, of the writes that it was to cover some as they are, and others lost for good, as operating
//! systems do that report a write's failure once and then forget its bytes.

use crate::rng::Rng;
use std::fmt;
use std::ops::AddAssign;
use weir_machine::Op;

/// Which operations fail. Operations are counted over all disks from the injection on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorPlan {
    /// One operation, and those that the same disk is asked for next.
    Nth {
        /// Number of the operation; the first is 0.
        nth: u64,
        /// Operations that fail in all, one at least.
        count: u64,
        /// Whether they are answered at the call, as by a device that is not there, or when they are due.
        at_once: bool,
    },
    /// Each operation of some disks by chance.
    Random {
        /// Numbers of the disks.
        disks: Vec<u64>,
        /// Of a thousand reads, how many fail.
        reads: u64,
        /// Of a thousand writes.
        writes: u64,
        /// Of a thousand flushes.
        flushes: u64,
    },
}

/// Operations that failed because of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
}

impl ErrorCounts {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }

    fn add(&mut self, op: Op) {
        match op {
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            Op::Flush => self.flushes += 1,
            Op::Discard => self.discards += 1,
        }
    }
}

impl AddAssign for ErrorCounts {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.discards += other.discards;
    }
}

impl fmt::Display for ErrorCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorCounts { reads, writes, flushes, discards } = self;
        write!(f, "{reads} reads, {writes} writes, {flushes} flushes, {discards} discards")
    }
}

/// When an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// At the call.
    AtOnce,
    /// When it is due.
    Due,
}

/// A plan at work.
pub(crate) struct Injector {
    plan: ErrorPlan,
    /// Apart from the world's other chance: a history goes the same way up to its first error.
    rng: Rng,
    operations: u64,
    /// The disk that fails, and for how many operations more.
    failing: Option<(u64, u64)>,
    pub counts: ErrorCounts,
}

impl Injector {
    pub fn new(plan: ErrorPlan, seed: u64) -> Self {
        Injector { plan, rng: Rng::new(seed), operations: 0, failing: None, counts: ErrorCounts::default() }
    }

    /// Operations since the injection.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Whether this operation of a disk fails.
    pub fn draw(&mut self, disk: u64, op: Op) -> Option<Failure> {
        let number = self.operations;
        self.operations += 1;
        let failure = match &self.plan {
            ErrorPlan::Nth { nth, count, at_once } => {
                if *nth == number {
                    self.failing = Some((disk, (*count).max(1)));
                }
                let fails = self.failing.as_mut().filter(|(failing, left)| *failing == disk && *left > 0);
                fails.map(|(_, left)| {
                    *left -= 1;
                    if *at_once { Failure::AtOnce } else { Failure::Due }
                })
            }
            ErrorPlan::Random { disks, reads, writes, flushes } => {
                let chance = match op {
                    Op::Read => *reads,
                    Op::Write | Op::Discard => *writes,
                    Op::Flush => *flushes,
                };
                let fails = disks.contains(&disk) && self.rng.chance(chance, 1000);
                fails.then(|| if self.rng.chance(1, 2) { Failure::AtOnce } else { Failure::Due })
            }
        };
        if failure.is_some() {
            self.counts.add(op);
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use crate::{ErrorCounts, ErrorPlan, SimWorld, Timing};
    use std::path::Path;
    use weir_machine::{Access, Buf, DiskError};

    /// Writes, flushes and reads one place of each of two disks; gives what failed.
    fn work(world: &SimWorld) -> Vec<bool> {
        let machine = world.machine();
        let run = world.run(async {
            let mut failed = Vec::new();
            for path in ["/sim/a", "/sim/b"] {
                let disk = machine.disks.open(Path::new(path), Access::ReadWrite).unwrap();
                failed.push(disk.write(0, Buf::copy_from(&[7; 4096])).await.is_err());
                failed.push(disk.flush().await.is_err());
                failed.push(disk.read(0, 4096).await.is_err());
            }
            failed
        });
        run.unwrap()
    }

    fn world(seed: u64) -> SimWorld {
        let world = SimWorld::new(seed);
        for path in ["/sim/a", "/sim/b"] {
            world.add_disk(path, 1 << 20, 512, Timing::Chaos);
        }
        world
    }

    #[test]
    fn each_operation_fails_by_its_number() {
        for at_once in [false, true] {
            for nth in 0..6 {
                let world = world(nth);
                world.inject_errors(ErrorPlan::Nth { nth, count: 2, at_once });
                let failed = work(&world);
                // The second error is the same disk's next operation.
                let expected: Vec<bool> = (0..6).map(|n| n == nth || n == nth + 1 && n != 3).collect();
                assert_eq!(failed, expected);
                assert_eq!(world.operations(), 6);
                let counts = world.lift_errors();
                assert_eq!(counts.all(), failed.iter().filter(|failed| **failed).count() as u64);
                assert!(!work(&world).contains(&true));
            }
        }
    }

    #[test]
    fn chance_takes_its_share_of_the_named_disks() {
        let mut all = ErrorCounts::default();
        for seed in 0..200 {
            let world = world(seed);
            world.inject_errors(ErrorPlan::Random { disks: vec![1], reads: 500, writes: 0, flushes: 1000 });
            let failed = work(&world);
            assert_eq!(failed[..5], [false, false, false, false, true]);
            all += world.lift_errors();
        }
        assert_eq!((all.writes, all.flushes), (0, 200));
        assert!((60..140).contains(&all.reads), "{all}");
    }

    /// A failed write or flush leaves all, none or a part of the new bytes.
    #[test]
    fn errors_leave_old_bytes_new_bytes_or_some_of_both() {
        for (nth, torn) in [(0, true), (1, false)] {
            let mut none = 0;
            let mut part = 0;
            let mut whole = 0;
            for seed in 0..200 {
                let world = world(seed);
                world.inject_errors(ErrorPlan::Nth { nth, count: 1, at_once: false });
                work(&world);
                let bytes = world.disks()[0].peek(0, 4096);
                match bytes.chunks(512).filter(|sector| sector == &[7; 512]).count() {
                    0 => none += 1,
                    8 => whole += 1,
                    _ => part += 1,
                }
            }
            assert!(none > 20 && whole > 20 && (part > 20) == torn, "{none} {part} {whole}");
        }
    }

    #[test]
    fn a_flush_that_succeeds_later_brings_nothing_back() {
        let lost = (0..40).filter(|seed| {
            let world = world(*seed);
            world.inject_errors(ErrorPlan::Nth { nth: 1, count: 1, at_once: false });
            let machine = world.machine();
            let run: Result<Result<(), DiskError>, _> = world.run(async {
                let disk = machine.disks.open(Path::new("/sim/a"), Access::ReadWrite)?;
                disk.write(0, Buf::copy_from(&[7; 512])).await?;
                assert!(disk.flush().await.is_err());
                disk.flush().await
            });
            run.unwrap().unwrap();
            world.power_failure();
            world.disks()[0].peek(0, 1) == [0]
        });
        assert!((5..35).contains(&lost.count()));
    }
}
