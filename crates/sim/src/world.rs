//! The seeded executor: one thread and virtual time.

use crate::disk::{SimDisk, SimDisks};
use crate::errors::{ErrorCounts, ErrorPlan, Injector};
use crate::medium::Medium;
use crate::net::SimNet;
use crate::read_set::ReadSet;
use crate::rng::Rng;
use crate::scheduler::{DiskEvent, MAIN, Shared, SimError, State, Step, Task, TaskWaker, Timer};
use crate::timing::Timing;
use crate::trace::Trace;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::Location;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};
use weir_machine::compute::{ComputePool, Job};
use weir_machine::entropy::EntropySource;
use weir_machine::tasks::Spawner;
use weir_machine::time::ClockSource;
use weir_machine::{BufPool, Clock, Compute, Entropy, Geometry, Machine, Memory, Nanos, Tasks};

/// Limit in bytes of each of the machine's buffer pools: more than the ARC and the dirty data of the worlds of a test.
const BUFFER_POOL_BYTES: usize = 48 << 20;

thread_local! {
    /// Buffers for writes and for reads. The worlds of a thread share them, because a world often lives for a few
    /// milliseconds, in which page faults in new memory would cost more than all reads. What is left in a buffer
    /// reaches no reader ([`weir_machine::buf`]); if it did, two runs of a seed would differ.
    static BUFFERS: [BufPool; 2] = [BufPool::new(BUFFER_POOL_BYTES), BufPool::new(BUFFER_POOL_BYTES)];
}

/// A simulated world. The code under test uses its [`Machine`]; the test uses the other methods.
#[derive(Clone)]
pub struct SimWorld {
    shared: Arc<Shared>,
    disks: Arc<SimDisks>,
    net: SimNet,
}

impl SimWorld {
    /// The network, on which clients connect to what the code under test listens on.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// A world with seed `seed` and without disks.
    pub fn new(seed: u64) -> Self {
        weir_machine::invariant::panic_on_violation();
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
            in_order: false,
            power_off: false,
            errors: None,
        };
        SimWorld { shared: Arc::new(Shared(Mutex::new(state))), disks: Arc::default(), net: SimNet::default() }
    }

    /// The machine for the code under test.
    pub fn machine(&self) -> Machine {
        let platform = Arc::new(SimPlatform(self.clone()));
        Machine {
            net: Arc::new(self.net.clone()),
            clock: Clock::new(platform.clone()),
            tasks: Tasks::new(platform.clone()),
            compute: Compute::new(platform.clone()),
            entropy: Entropy::new(platform),
            disks: self.disks.clone(),
            write_buffers: BUFFERS.with(|buffers| buffers[0].clone()),
            read_buffers: BUFFERS.with(|buffers| buffers[1].clone()),
            memory: Memory::untrimmed(),
        }
    }

    /// From now on the ready task that has waited longest runs next, instead of one that the seed chooses: for models of
    /// hardware, whose figures should not depend on races.
    pub fn run_in_order(&self) {
        self.shared.lock().in_order = true;
    }

    /// A handle to the world's virtual time, for devices that are modelled outside of this crate.
    pub fn timer(&self) -> Timer {
        Timer(Arc::downgrade(&self.shared))
    }

    /// Adds an empty disk at `path`.
    pub fn add_disk(&self, path: impl AsRef<Path>, size_bytes: u64, sector_bytes: u32, timing: Timing) -> Arc<SimDisk> {
        self.disks.add(&self.shared, path.as_ref(), size_bytes, sector_bytes, timing, None)
    }

    /// Adds a disk at `path` with the contents of the file `image`, which is never changed.
    pub fn add_image(&self, path: impl AsRef<Path>, image: &Path, timing: Timing) -> std::io::Result<Arc<SimDisk>> {
        let file = std::fs::File::open(image)?;
        let size_bytes = file.metadata()?.len();
        Ok(self.disks.add(&self.shared, path.as_ref(), size_bytes, 512, timing, Some(file)))
    }

    /// Starts to keep disk events, without those so far.
    pub(crate) fn start_events(&self) {
        self.shared.lock().recorded = Some(Vec::new());
    }

    /// Number of events recorded so far: the current moment.
    pub fn recorded(&self) -> u64 {
        self.shared.lock().recorded.as_ref().map_or(0, |events| events.len() as u64)
    }

    /// Takes the disk events since [`SimWorld::start_events`], and keeps no further ones.
    pub(crate) fn take_events(&self) -> Vec<DiskEvent> {
        self.shared.lock().recorded.take().unwrap_or_default()
    }

    /// Starts to track the sectors read from the current disk contents.
    pub fn track_reads(&self) {
        self.disks.all().iter().for_each(|disk| disk.track_reads());
    }

    /// The sectors read from the contents at [`SimWorld::track_reads`].
    pub fn take_read_set(&self) -> ReadSet {
        ReadSet(self.disks.all().iter().map(|disk| disk.take_read_set()).collect())
    }

    /// Excludes the bytes of operations from the trace, to save the time for hashing when the trace is not compared.
    pub(crate) fn trace_no_bytes(&self) {
        self.shared.lock().traces_bytes = false;
    }

    /// Adds a disk with these contents at `path`.
    pub(crate) fn add_medium(&self, path: &Path, geometry: Geometry, timing: Timing, medium: Medium) {
        self.disks.add_medium(&self.shared, path, geometry, timing, medium);
    }

    /// The disks, sorted by path.
    pub fn disks(&self) -> Vec<Arc<SimDisk>> {
        self.disks.all()
    }

    /// From now on operations of the disks fail as `plan` says, until [`SimWorld::lift_errors`].
    pub fn inject_errors(&self, plan: ErrorPlan) {
        let mut state = self.shared.lock();
        let seed = state.choices.clone().u64();
        state.errors = Some(Injector::new(plan, seed));
    }

    /// Operations that the disks were asked for since errors were injected; 0 if none are.
    pub fn operations(&self) -> u64 {
        self.shared.lock().errors.as_ref().map_or(0, Injector::operations)
    }

    /// Ends the injection of errors, and gives what failed.
    pub fn lift_errors(&self) -> ErrorCounts {
        self.shared.lock().errors.take().map(|errors| errors.counts).unwrap_or_default()
    }

    /// Writes the contents of all disks, without the effects of faults, to files in a folder, each named after the
    /// last component of its disk's path: for tools that read real files. Zeros become holes.
    ///
    /// # Errors
    /// Errors of the file operations.
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

    /// Runs until `future` completes.
    ///
    /// # Errors
    /// [`SimError`]. The world is then in the state after a power failure: all tasks are dropped, and any subset of
    /// the writes that were not durable survives. Durable contents and faults remain.
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
                Ok(Step::RunEvent(event)) => event(),
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

    /// Simulates a power failure: drops all tasks and events; every disk loses any subset of its writes that are not
    /// durable.
    pub fn power_failure(&self) {
        let dropped = {
            let mut state = self.shared.lock();
            let now_ns = state.now_ns;
            state.trace.add("cut", &[now_ns]);
            state.cut_at = None;
            state.power_off = true;
            state.ready.clear();
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.events))
        };
        drop(dropped);
        for disk in self.disks.all() {
            disk.power_cut();
        }
        // Dropped futures may have woken tasks that no longer exist.
        let mut state = self.shared.lock();
        state.ready.clear();
        state.power_off = false;
    }

    /// Cuts the power when `changes` more writes or flushes have been submitted or completed: [`SimWorld::run`] then
    /// ends with [`SimError::PowerCut`].
    pub fn cut_after(&self, changes: u64) {
        let mut state = self.shared.lock();
        state.cut_at = Some(state.changes + changes);
    }

    /// Cancels a power cut requested by [`SimWorld::cut_after`].
    pub fn cancel_cut(&self) {
        self.shared.lock().cut_at = None;
    }

    /// Submissions and completions of writes and flushes so far.
    pub fn changes(&self) -> u64 {
        self.shared.lock().changes
    }

    /// Limits the total number of steps (polls and events) of the world.
    pub fn limit_steps(&self, steps: u64) {
        self.shared.lock().step_limit = steps;
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.shared.lock().steps
    }

    /// The trace hash over all events so far.
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    /// Virtual time in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// A random stream for the scenario itself, for example to choose faults.
    pub fn rng(&self) -> Rng {
        self.shared.draw(Rng::fork)
    }
}

/// Implements the machine's interfaces over the world.
struct SimPlatform(SimWorld);

impl Spawner for SimPlatform {
    fn spawn(&self, location: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        let mut state = self.0.shared.lock();
        let id = state.next_task;
        state.next_task += 1;
        state.tasks.insert(id, Task { location, future: Some(task) });
        state.ready.push(id);
        state.trace.add("spawn", &[id]);
    }

    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        if let Err(error) = self.0.run(task) {
            // There is no result for the error; `SimWorld::run` returns it.
            panic!("{error}");
        }
    }
}

impl ClockSource for SimPlatform {
    fn now(&self) -> Nanos {
        Nanos(self.0.shared.now_ns())
    }

    fn wall(&self) -> SystemTime {
        // Wall time starts at 2020-01-01 in every run.
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800) + Duration::from_nanos(self.0.shared.now_ns())
    }

    fn sleep_until(&self, when: Nanos) -> BoxFuture<'static, ()> {
        let shared = self.0.shared.clone();
        Box::pin(async move {
            if shared.now_ns() >= when.0 {
                return;
            }
            let (done, over) = futures_channel::oneshot::channel::<()>();
            let wake = Box::new(move || {
                let _ = done.send(());
            });
            shared.at(when.0, wake);
            let _ = over.await;
        })
    }
}

impl ComputePool for SimPlatform {
    fn run(&self, job: Job) {
        let shared = &self.0.shared;
        let delay_ns = shared.draw(|rng| 1 + rng.below(100_000));
        shared.at(shared.now_ns() + delay_ns, job);
    }

    fn count(&self) -> usize {
        4
    }
}

impl EntropySource for SimPlatform {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.shared.lock().entropy.fill(bytes);
    }
}
