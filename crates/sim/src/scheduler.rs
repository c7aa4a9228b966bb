//! State of the executor that tasks, timers and disks share: virtual time, ready tasks, pending events, random choices.

use crate::errors::{Failure, Injector};
use crate::rng::Rng;
use crate::trace::Trace;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use thiserror::Error;
use weir_machine::Op;

/// An event at a disk.
#[derive(Clone)]
pub(crate) enum DiskEvent {
    /// A write was submitted.
    Begin { disk: u64, id: u64, offset: u64, data: Arc<[u8]> },
    /// A write completed.
    Complete { disk: u64, id: u64 },
    /// A flush was submitted.
    AskFlush { disk: u64 },
    /// A flush completed: the writes completed before its submission are durable.
    Flush { disk: u64, watermark: u64 },
}

/// Why a run ended before its future completed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimError {
    /// Deadlock: no task is ready and no event is pending.
    #[error("deadlock at {now_ns} ns; blocked: {}", .stuck.join(", "))]
    Deadlock {
        /// Virtual time in nanoseconds.
        now_ns: u64,
        /// Locations where the blocked tasks were spawned.
        stuck: Vec<String>,
    },
    /// The run exceeded its step limit: a livelock, or a limit that is too low.
    #[error("not done after {steps} steps")]
    TooManySteps {
        /// The step limit.
        steps: u64,
    },
    /// The power cut requested by [`crate::SimWorld::cut_after`].
    #[error("power cut at {now_ns} ns")]
    PowerCut {
        /// Virtual time in nanoseconds.
        now_ns: u64,
    },
}

/// Task number of the main future.
pub(crate) const MAIN: u64 = 0;
type Event = Box<dyn FnOnce() + Send>;

pub(crate) struct Task {
    pub(crate) location: &'static Location<'static>,
    /// `None` while it is being polled.
    pub(crate) future: Option<BoxFuture<'static, ()>>,
}

/// State of the executor.
pub(crate) struct State {
    pub(crate) now_ns: u64,
    pub(crate) choices: Rng,
    pub(crate) entropy: Rng,
    pub(crate) trace: Trace,
    pub(crate) steps: u64,
    pub(crate) step_limit: u64,
    pub(crate) next_task: u64,
    pub(crate) tasks: BTreeMap<u64, Task>,
    pub(crate) ready: Vec<u64>,
    pub(crate) next_event: u64,
    pub(crate) events: BTreeMap<(u64, u64), Event>,
    /// Submissions and completions of writes and flushes so far: the distinct points for power cuts.
    pub(crate) changes: u64,
    pub(crate) cut_at: Option<u64>,
    pub(crate) recorded: Option<Vec<DiskEvent>>,
    /// The ready task that has waited longest runs next.
    pub(crate) in_order: bool,
    /// Whether the trace includes the bytes of disk operations.
    pub(crate) traces_bytes: bool,
    /// The power is failing: disks ignore new operations.
    pub(crate) power_off: bool,
    /// Plan of the errors of disk operations.
    pub(crate) errors: Option<Injector>,
}

/// State shared by tasks, timers and disks. The lock is never held while a task, event or completion runs.
pub(crate) struct Shared(pub(crate) Mutex<State>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Schedules `event` at virtual time `when_ns`.
    pub(crate) fn at(&self, when_ns: u64, event: Event) {
        let mut state = self.lock();
        let key = (when_ns.max(state.now_ns), state.next_event);
        state.next_event += 1;
        state.events.insert(key, event);
    }

    pub(crate) fn trace(&self, what: &'static str, numbers: &[u64]) {
        self.lock().trace.add(what, numbers);
    }

    /// Draws from the random stream of choices.
    pub(crate) fn draw<T>(&self, with: impl FnOnce(&mut Rng) -> T) -> T {
        with(&mut self.lock().choices)
    }

    /// Counts a distinct point for power cuts.
    pub(crate) fn count_change(&self) {
        self.lock().changes += 1;
    }

    /// Whether disks accept operations. During a power failure they do not: dropping an operation may start the next
    /// one in a queue.
    pub(crate) fn has_power(&self) -> bool {
        !self.lock().power_off
    }

    /// Whether and when an operation of a disk fails, as the plan of errors says.
    pub(crate) fn draw_error(&self, disk: u64, op: Op) -> Option<Failure> {
        self.lock().errors.as_mut()?.draw(disk, op)
    }

    /// Whether the trace includes the bytes of disk operations.
    pub(crate) fn traces_bytes(&self) -> bool {
        self.lock().traces_bytes
    }

    /// Records an event if a recording is in progress.
    pub(crate) fn record(&self, event: impl FnOnce() -> DiskEvent) {
        if let Some(events) = &mut self.lock().recorded {
            events.push(event());
        }
    }

    pub(crate) fn make_ready(&self, id: u64) {
        let mut state = self.lock();
        let known = id == MAIN || state.tasks.contains_key(&id);
        if known && !state.ready.contains(&id) {
            state.ready.push(id);
        }
    }

    /// Selects the next step of the run.
    pub(crate) fn step(&self) -> Result<Step, SimError> {
        let mut state = self.lock();
        let now_ns = state.now_ns;
        if state.cut_at.is_some_and(|at| state.changes >= at) {
            return Err(SimError::PowerCut { now_ns });
        }
        state.steps += 1;
        if state.steps > state.step_limit {
            return Err(SimError::TooManySteps { steps: state.step_limit });
        }
        if !state.ready.is_empty() {
            let count = state.ready.len() as u64;
            let id = if state.in_order {
                state.ready.remove(0)
            } else {
                let pick = state.choices.below(count) as usize;
                state.ready.swap_remove(pick)
            };
            state.trace.add("run", &[id, count, now_ns]);
            let future = state.tasks.get_mut(&id).and_then(|task| task.future.take());
            return Ok(Step::Poll(id, future));
        }
        let Some(((when_ns, _), event)) = state.events.pop_first() else {
            let mut stuck: Vec<String> = state.tasks.values().map(|task| task.location.to_string()).collect();
            stuck.insert(0, "the main future".into());
            return Err(SimError::Deadlock { now_ns, stuck });
        };
        state.now_ns = when_ns;
        state.trace.add("time", &[when_ns]);
        Ok(Step::RunEvent(event))
    }
}

pub(crate) enum Step {
    Poll(u64, Option<BoxFuture<'static, ()>>),
    RunEvent(Event),
}

/// Virtual time of a world, which it does not keep alive.
#[derive(Clone)]
pub struct Timer(pub(crate) Weak<Shared>);

impl Timer {
    /// Virtual time in nanoseconds; 0 once the world is gone.
    pub fn now_ns(&self) -> u64 {
        self.0.upgrade().map_or(0, |shared| shared.now_ns())
    }

    /// Runs `event` at virtual time `when_ns`, or at once if that has passed; never once the world is gone.
    pub fn at(&self, when_ns: u64, event: impl FnOnce() + Send + 'static) {
        if let Some(shared) = self.0.upgrade() {
            shared.at(when_ns, Box::new(event));
        }
    }
}

/// Wakes a task.
pub(crate) struct TaskWaker {
    pub(crate) id: u64,
    pub(crate) shared: Weak<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.make_ready(self.id);
        }
    }
}
