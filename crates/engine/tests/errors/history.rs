//! One history: use of a pool with device errors, and its check after the errors are removed.

use crate::acknowledged_state::{Known, Shared};
use crate::clients::{Admin, Blocks, Client, Files};
use crate::judge::judge;
use crate::world::{FILES, Shape, VOLUME, import, prepare};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_engine::Engine;
use weir_machine::{Machine, Request};
use weir_sim::{ErrorCounts, ErrorPlan, Rng, SimError, SimWorld, Start};

/// Maximum scheduler steps of a history; a longer one counts as endless.
const MAX_STEPS: u64 = 3_000_000;
/// Attempts to import the pool, and to open what is in it.
const ATTEMPTS: u32 = 3;

/// Pool with which histories begin.
pub struct Prepared {
    pub shape: Shape,
    start: Start,
    known: Known,
}

impl Prepared {
    pub fn new(shape: Shape) -> Self {
        let (world, known) = prepare(shape);
        Prepared { shape, start: world.record(), known }
    }

    /// New world with copies of the disks, and the acknowledged state of the pool.
    pub fn world(&self, seed: u64) -> (SimWorld, Known) {
        (self.start.world(seed), self.known.clone())
    }
}

/// How a history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The power fails.
    Cut,
    /// The pool is stopped.
    Stop,
    /// The pool is exported.
    Export,
}

/// Parameters of a history.
#[derive(Clone, Debug)]
pub struct History {
    pub seed: u64,
    pub errors: Option<ErrorPlan>,
    /// Changes of each client.
    pub changes: u64,
    pub ending: Ending,
    /// Redundancy tolerates all errors, so no client may get one.
    pub tolerated: bool,
    /// The intent logs have the planted bug.
    pub canary: bool,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let History { seed, errors, changes, ending, .. } = self;
        write!(f, "seed {seed}, {changes} changes, {errors:?}, ending {ending:?}")
    }
}

/// Result of a history.
#[derive(Debug)]
pub struct Outcome {
    pub judged: Result<(), String>,
    pub errors: ErrorCounts,
    /// Operations of the devices.
    pub operations: u64,
    pub promises: u64,
    pub refusals: u64,
}

impl History {
    /// Runs and judges the history.
    pub fn run(&self, prepared: &Prepared) -> Outcome {
        let (world, known) = prepared.world(self.seed);
        let known: Shared = Arc::new(Mutex::new(known));
        let ran = catch_unwind(AssertUnwindSafe(|| self.run_in(&world, &known)));
        let operations = world.operations();
        let errors = world.lift_errors();
        let known = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let judged = match ran {
            Err(panic) => Err(format!("panic: {}", panic_text(&*panic))),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(())) if self.tolerated && known.refusals > 0 => {
                Err(format!("clients got {} errors, of {errors} at one device", known.refusals))
            }
            Ok(Ok(())) => {
                let judged = catch_unwind(AssertUnwindSafe(|| world.run(judge(&world.machine(), &known))));
                match judged {
                    Err(panic) => Err(format!("panic in the judge: {}", panic_text(&*panic))),
                    Ok(Err(error)) => Err(format!("the judge: {error}")),
                    Ok(Ok(judged)) => judged,
                }
            }
        };
        // Tasks that still run hold references to the world.
        world.power_failure();
        Outcome { judged, errors, operations, promises: known.promises, refusals: known.refusals }
    }

    /// Runs the history until no device has an operation in progress.
    fn run_in(&self, world: &SimWorld, known: &Shared) -> Result<(), SimError> {
        world.limit_steps(MAX_STEPS);
        // A plan without errors counts the operations.
        let none = ErrorPlan::Random { disks: Vec::new(), reads: 0, writes: 0, flushes: 0 };
        world.inject_errors(self.errors.clone().unwrap_or(none));
        world.run(self.run_lifecycle(world.machine(), known.clone()))?;
        world.power_failure();
        world.limit_steps(world.steps() + MAX_STEPS);
        Ok(())
    }

    async fn run_lifecycle(&self, machine: Machine, known: Shared) {
        let Some(engine) = self.import(&machine, &known).await else { return };
        self.work(&machine, &engine, &known).await;
        let due = known.lock().unwrap().due();
        let done = match self.ending {
            Ending::Cut => return,
            Ending::Stop => engine.stop().await,
            Ending::Export => engine.export().await,
        };
        let mut known = known.lock().unwrap();
        match done {
            Ok(()) => known.promise_all(&due),
            Err(_) => known.refusals += 1,
        }
    }

    async fn import(&self, machine: &Machine, known: &Shared) -> Option<Arc<Engine>> {
        for _ in 0..ATTEMPTS {
            match import(machine).await {
                Ok(engine) => return Some(engine),
                Err(_) => known.lock().unwrap().imports_refused += 1,
            }
            machine.clock.sleep(Duration::from_secs(1)).await;
        }
        None
    }

    async fn work(&self, machine: &Machine, engine: &Arc<Engine>, known: &Shared) {
        let rq = Request::internal("client");
        let mut rng = Rng::new(self.seed);
        let mut files = None;
        let mut volume = None;
        for _ in 0..ATTEMPTS {
            if files.is_none() {
                files = engine.file_system(&rq, FILES).await.ok();
            }
            if volume.is_none() {
                volume = engine.volume(&rq, VOLUME).await.ok();
            }
            if files.is_some() && volume.is_some() {
                break;
            }
            known.lock().unwrap().refusals += 1;
        }
        if self.canary {
            engine.sets.all().iter().filter_map(|open| open.zil.as_ref()).for_each(|zil| zil.plant_canary());
        }
        let mut client = |number| {
            let clock = machine.clock.clone();
            let known = known.clone();
            Client { clock, known, rng: rng.fork(), number }
        };
        let mut tasks = Vec::new();
        for (n, files) in files.iter().flat_map(|files| [files, files]).enumerate() {
            let client = Files { client: client(n as u64), files: files.clone() };
            tasks.push(machine.tasks.spawn(client.run(self.changes)));
        }
        if let Some(volume) = volume {
            tasks.push(machine.tasks.spawn(Blocks { client: client(2), volume }.run(self.changes)));
        }
        let admin = Admin { client: client(3), engine: engine.clone() };
        tasks.push(machine.tasks.spawn(admin.run(self.changes / 3)));
        for task in tasks {
            // The panic of a client has ended the whole history.
            let _ended = task.await;
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with a value that is no string")
}
