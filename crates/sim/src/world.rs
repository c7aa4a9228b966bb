//! The seeded executor: one thread, virtual time.

use crate::disk::{SimDisk, SimDisks};
use crate::medium::Medium;
use crate::readings::Readings;
use crate::record::{self, Recording, Start};
use crate::rng::Rng;
use crate::timing::Timing;
use crate::trace::Trace;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::Location;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};
use thiserror::Error;
use weir_machine::compute::{Cores, Job};
use weir_machine::entropy::EntropySource;
use weir_machine::tasks::Spawner;
use weir_machine::time::ClockSource;
use weir_machine::{BufPool, Clock, Compute, Entropy, Geometry, Machine, Memory, Nanos, Tasks};

/// How a run ended before its future did.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SimError {
    /// Nobody can go on, and nothing will ever happen.
    #[error("deadlock at {now_ns} ns: waiting for ever are {}", .stuck.join(", "))]
    Deadlock {
        /// Virtual time.
        now_ns: u64,
        /// Where the tasks that wait were spawned.
        stuck: Vec<String>,
    },
    /// More steps than the bound: a livelock, or a bound too low.
    #[error("not done after {steps} steps")]
    TooManySteps {
        /// The bound.
        steps: u64,
    },
    /// The power cut that was asked for.
    #[error("power cut at {now_ns} ns")]
    PowerCut {
        /// Virtual time.
        now_ns: u64,
    },
}

/// The main future's number among the tasks.
const MAIN: u64 = 0;
/// Memory for what is written that is kept for the next time.
const SPARE_BYTES: usize = 4 << 20;

type Event = Box<dyn FnOnce() + Send>;

struct Task {
    place: &'static Location<'static>,
    /// Absent while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
}

struct State {
    now_ns: u64,
    choices: Rng,
    entropy: Rng,
    trace: Trace,
    steps: u64,
    step_limit: u64,
    next_task: u64,
    tasks: BTreeMap<u64, Task>,
    ready: Vec<u64>,
    next_event: u64,
    events: BTreeMap<(u64, u64), Event>,
    /// Submissions and completions of writes and flushes so far: the points where a power cut can differ.
    changes: u64,
    cut_at: Option<u64>,
    recorded: Option<Vec<record::Event>>,
    /// The trace counts the bytes that disks give and take, too.
    traces_bytes: bool,
    /// The power is failing: disks take nothing any more.
    dark: bool,
}

/// What tasks, timers and disks share. Locks are held for a few lines and never while foreign code runs.
pub(crate) struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Lets `event` happen at `when_ns`.
    pub(crate) fn at(&self, when_ns: u64, event: Event) {
        let mut state = self.lock();
        let key = (when_ns.max(state.now_ns), state.next_event);
        state.next_event += 1;
        state.events.insert(key, event);
    }

    pub(crate) fn trace(&self, what: &'static str, numbers: &[u64]) {
        self.lock().trace.add(what, numbers);
    }

    /// Draws from the stream of choices.
    pub(crate) fn draw<T>(&self, with: impl FnOnce(&mut Rng) -> T) -> T {
        with(&mut self.lock().choices)
    }

    /// Counts a point where a power cut can differ.
    pub(crate) fn count_change(&self) {
        self.lock().changes += 1;
    }

    /// Whether disks still take operations: while everything in memory is dropped, an operation that is dropped may pass
    /// its turn on to the next.
    pub(crate) fn has_power(&self) -> bool {
        !self.lock().dark
    }

    /// Whether bytes belong to the trace.
    pub(crate) fn traces_bytes(&self) -> bool {
        self.lock().traces_bytes
    }

    /// Keeps an event, if a recording is made.
    pub(crate) fn record(&self, event: impl FnOnce() -> record::Event) {
        if let Some(events) = &mut self.lock().recorded {
            events.push(event());
        }
    }

    fn make_ready(&self, id: u64) {
        let mut state = self.lock();
        let known = id == MAIN || state.tasks.contains_key(&id);
        if known && !state.ready.contains(&id) {
            state.ready.push(id);
        }
    }

    /// Decides what happens next.
    fn step(&self) -> Result<Step, SimError> {
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
            let pick = state.choices.below(count) as usize;
            let id = state.ready.swap_remove(pick);
            state.trace.add("run", &[id, count, now_ns]);
            let future = state.tasks.get_mut(&id).and_then(|task| task.future.take());
            return Ok(Step::Poll(id, future));
        }
        let Some(((when_ns, _), event)) = state.events.pop_first() else {
            let mut stuck: Vec<String> = state.tasks.values().map(|task| task.place.to_string()).collect();
            stuck.insert(0, "the main future".into());
            return Err(SimError::Deadlock { now_ns, stuck });
        };
        state.now_ns = when_ns;
        state.trace.add("time", &[when_ns]);
        Ok(Step::Happen(event))
    }
}

enum Step {
    Poll(u64, Option<BoxFuture<'static, ()>>),
    Happen(Event),
}

struct TaskWaker {
    id: u64,
    shared: Weak<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.make_ready(self.id);
        }
    }
}

/// A simulated world. Its [`Machine`] is what the code under test sees; the rest is for who tests.
#[derive(Clone)]
pub struct SimWorld {
    shared: Arc<Shared>,
    disks: Arc<SimDisks>,
}

impl SimWorld {
    /// The world of `seed`, without disks.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let state = State {
            now_ns: 0,
            choices: rng.fork(),
            entropy: rng.fork(),
            trace: Trace::default(),
            steps: 0,
            step_limit: 50_000_000,
            next_task: MAIN + 1,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            next_event: 0,
            events: BTreeMap::new(),
            changes: 0,
            cut_at: None,
            recorded: None,
            traces_bytes: true,
            dark: false,
        };
        SimWorld { shared: Arc::new(Shared(Mutex::new(state))), disks: Arc::default() }
    }

    /// What the code under test gets.
    pub fn machine(&self) -> Machine {
        let hands = Arc::new(Hands(self.clone()));
        Machine {
            clock: Clock::new(hands.clone()),
            tasks: Tasks::new(hands.clone()),
            compute: Compute::new(hands.clone()),
            entropy: Entropy::new(hands),
            disks: self.disks.clone(),
            buffers: BufPool::new(SPARE_BYTES),
            spares: BufPool::new(SPARE_BYTES),
            memory: Memory::kept(),
        }
    }

    /// Puts an empty disk at `path`.
    pub fn add_disk(&self, path: impl AsRef<Path>, size_bytes: u64, sector_bytes: u32, timing: Timing) -> Arc<SimDisk> {
        self.disks.add(&self.shared, path.as_ref(), size_bytes, sector_bytes, timing, None)
    }

    /// Puts a disk at `path` whose pristine contents are those of the file `image`, which is never changed.
    pub fn add_image(&self, path: impl AsRef<Path>, image: &Path, timing: Timing) -> std::io::Result<Arc<SimDisk>> {
        let file = std::fs::File::open(image)?;
        let size_bytes = file.metadata()?.len();
        Ok(self.disks.add(&self.shared, path.as_ref(), size_bytes, 512, timing, Some(file)))
    }

    /// Records from now on what happens at the disks ([`Recording`]), which must all be there.
    pub fn record(&self) -> Start {
        self.shared.lock().recorded = Some(Vec::new());
        Start::of(&self.disks.all())
    }

    /// Events recorded so far: the moment, for who wants to know what had been promised at it.
    pub fn recorded(&self) -> u64 {
        self.shared.lock().recorded.as_ref().map_or(0, |events| events.len() as u64)
    }

    /// Ends the recording that began with `start`.
    pub fn recording(&self, start: Start) -> Recording {
        Recording { start, events: self.shared.lock().recorded.take().unwrap_or_default() }
    }

    /// Keeps from now on what is read of what the disks hold now.
    pub fn keep_readings(&self) {
        self.disks.all().iter().for_each(|disk| disk.keep_readings());
    }

    /// What was read since [`SimWorld::keep_readings`].
    pub fn take_readings(&self) -> Readings {
        Readings(self.disks.all().iter().map(|disk| disk.take_readings()).collect())
    }

    /// Leaves the bytes of operations out of the trace: it is not compared, and hashing them takes time.
    pub(crate) fn trace_no_bytes(&self) {
        self.shared.lock().traces_bytes = false;
    }

    /// Puts a disk with these contents at a path.
    pub(crate) fn add_medium(&self, path: &Path, geometry: Geometry, timing: Timing, medium: Medium) {
        self.disks.add_medium(&self.shared, path, geometry, timing, medium);
    }

    /// The disks, in the order of their paths.
    pub fn disks(&self) -> Vec<Arc<SimDisk>> {
        self.disks.all()
    }

    /// Writes the contents of all disks, without their faults, into files of a folder, each under its disk's last name: for
    /// judges that read real files. What holds nothing stays a hole.
    ///
    /// # Errors
    /// As the files give them.
    pub fn save(&self, folder: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        const PIECE: u64 = 1 << 20;
        for disk in self.disks() {
            let size_bytes = disk.geometry().size_bytes;
            let file = std::fs::File::create(folder.join(disk.path().file_name().unwrap_or_default()))?;
            file.set_len(size_bytes)?;
            for at in (0..size_bytes).step_by(PIECE as usize) {
                let bytes = disk.peek(at, PIECE.min(size_bytes - at) as usize);
                if bytes.iter().any(|b| *b != 0) {
                    file.write_all_at(&bytes, at)?;
                }
            }
        }
        Ok(())
    }

    /// Runs until `future` is done. After any error the world is as after a power failure: tasks are gone, and what
    /// disks had not made durable survived in part or not at all. Durable contents and faults stay.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, SimError> {
        let mut main = pin!(future);
        self.shared.make_ready(MAIN);
        loop {
            match self.shared.step() {
                Ok(Step::Poll(MAIN, _)) => {
                    if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&self.waker(MAIN))) {
                        return Ok(value);
                    }
                }
                Ok(Step::Poll(id, future)) => self.poll_task(id, future),
                Ok(Step::Happen(event)) => event(),
                Err(error) => {
                    self.power_failure();
                    return Err(error);
                }
            }
        }
    }

    fn waker(&self, id: u64) -> Waker {
        Waker::from(Arc::new(TaskWaker { id, shared: Arc::downgrade(&self.shared) }))
    }

    fn poll_task(&self, id: u64, future: Option<BoxFuture<'static, ()>>) {
        let Some(mut future) = future else { return };
        let poll = future.as_mut().poll(&mut Context::from_waker(&self.waker(id)));
        let mut state = self.shared.lock();
        if poll.is_pending() {
            if let Some(task) = state.tasks.get_mut(&id) {
                task.future = Some(future);
            }
        } else {
            state.tasks.remove(&id);
            drop(state);
            drop(future);
        }
    }

    /// Everything that lives in memory is gone, and every disk loses what it had not made durable, or part of it.
    pub fn power_failure(&self) {
        let gone = {
            let mut state = self.shared.lock();
            let now_ns = state.now_ns;
            state.trace.add("cut", &[now_ns]);
            state.cut_at = None;
            state.dark = true;
            state.ready.clear();
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.events))
        };
        drop(gone);
        for disk in self.disks.all() {
            disk.power_cut();
        }
        // Dropped futures may have woken others, which are gone too.
        let mut state = self.shared.lock();
        state.ready.clear();
        state.dark = false;
    }

    /// Cuts the power when `changes` more writes or flushes have been submitted or completed: [`SimWorld::run`] then
    /// ends with [`SimError::PowerCut`].
    pub fn cut_after(&self, changes: u64) {
        let mut state = self.shared.lock();
        state.cut_at = Some(state.changes + changes);
    }

    /// No cut after all.
    pub fn cancel_cut(&self) {
        self.shared.lock().cut_at = None;
    }

    /// Submissions and completions of writes and flushes so far.
    pub fn changes(&self) -> u64 {
        self.shared.lock().changes
    }

    /// Bounds the steps (polls and events) of the whole life of the world.
    pub fn limit_steps(&self, steps: u64) {
        self.shared.lock().step_limit = steps;
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.shared.lock().steps
    }

    /// The hash over everything that happened so far.
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    /// Virtual time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// A stream of chance for the scenario itself: which faults to lay where.
    pub fn rng(&self) -> Rng {
        self.shared.draw(Rng::fork)
    }
}

/// The machine's hands into the world.
struct Hands(SimWorld);

impl Spawner for Hands {
    fn spawn(&self, place: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        let mut state = self.0.shared.lock();
        let id = state.next_task;
        state.next_task += 1;
        state.tasks.insert(id, Task { place, future: Some(task) });
        state.ready.push(id);
        state.trace.add("spawn", &[id]);
    }

    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        if let Err(error) = self.0.run(task) {
            // Who wants to see errors calls `SimWorld::run`; here there is no result to put one in.
            panic!("{error}");
        }
    }
}

impl ClockSource for Hands {
    fn now(&self) -> Nanos {
        Nanos(self.0.shared.now_ns())
    }

    fn wall(&self) -> SystemTime {
        // 2020-01-01: stamps look like stamps, and the same in every run.
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800) + Duration::from_nanos(self.0.shared.now_ns())
    }

    fn sleep_until(&self, when: Nanos) -> BoxFuture<'static, ()> {
        let shared = self.0.shared.clone();
        Box::pin(async move {
            if shared.now_ns() >= when.0 {
                return;
            }
            let (done, over) = futures_channel::oneshot::channel::<()>();
            let ring = Box::new(move || {
                let _ = done.send(());
            });
            shared.at(when.0, ring);
            let _ = over.await;
        })
    }
}

impl Cores for Hands {
    fn run(&self, job: Job) {
        let shared = &self.0.shared;
        let delay_ns = shared.draw(|rng| 1 + rng.below(100_000));
        shared.at(shared.now_ns() + delay_ns, job);
    }

    fn count(&self) -> usize {
        4
    }
}

impl EntropySource for Hands {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.shared.lock().entropy.fill(bytes);
    }
}
