//! The machine on a real host: tokio runs tasks, a thread pool computes, the kernel provides time, random bytes and
//! disks.
//!
//! Inside a running tokio runtime the machine uses that runtime; elsewhere it creates its own, which ends when the
//! last handle to the machine is dropped. In both cases engine futures use only [`Tasks`].

#![allow(
    clippy::disallowed_methods,
    reason = "the only module that uses the operating system's clocks and spawns tasks"
)]

use crate::descriptors;
use crate::disks::{Backend, RealDisks};
use crate::heap_trim::{MallocTrimmer, configure_malloc};
use crate::memory_limit::MemoryLimit;
use crate::monotonic;
use crate::net::TcpNet;
use crate::ring::thread_local_ring;
use crate::submit_batch::Batched;
use crate::thread_pool::ThreadPool;
use futures_util::future::BoxFuture;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime};
use thiserror::Error;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use weir_machine::compute::{Compute, ComputePool};
use weir_machine::entropy::{Entropy, EntropySource};
use weir_machine::memory::Memory;
use weir_machine::tasks::{Spawner, Tasks};
use weir_machine::time::{Clock, ClockSource, Nanos};
use weir_machine::{BufPool, Machine};

/// Why a machine could not be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The task runtime could not be started.
    #[error("cannot start the task runtime: {0}")]
    Runtime(std::io::Error),
    /// Too few files may be open.
    #[error(
        "cannot start the task runtime: {source}; the limit of open files is {limit}: raise it (ulimit -n, LimitNOFILE=)"
    )]
    Descriptors {
        /// The soft limit of open files, which was raised to the hard limit before.
        limit: u64,
        /// EMFILE or ENFILE.
        source: std::io::Error,
    },
    /// io_uring was requested explicitly and is not available.
    #[error("io_uring is not available here: {0}")]
    Uring(std::io::Error),
    /// A setting in the environment is invalid.
    #[error("{name}={value}: expected {expected}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
}

/// Least limit in bytes of unused memory in the pool of write buffers: what a txg writes at the same time.
const MIN_WRITE_POOL_BYTES: u64 = 32 << 20;
/// Greatest limit: also the writes that no flush covers yet, which a flush returns all at once.
const MAX_WRITE_POOL_BYTES: u64 = 160 << 20;
/// The limit in between is this part of the memory. Beyond it, the pages of a returned buffer are released, and the next
/// write faults them in again.
const WRITE_POOL_DIVISOR: u64 = 128;

/// Settings of a machine on a real host.
#[derive(Clone, Debug)]
pub struct Production {
    /// How disks are driven.
    pub backend: Backend,
    /// Whether files and devices are accessed with direct I/O where possible.
    pub direct: bool,
    /// Number of threads that run tasks, and of threads that compute.
    pub cores: usize,
    /// Limit in bytes of unused memory in the pool of read buffers.
    pub read_pool_bytes: usize,
    setting: Option<(&'static str, String, &'static str)>,
}

impl Default for Production {
    /// The best available backend, direct I/O, all processors, 12 MiB of unused read buffers.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Production { backend: Backend::Auto, direct: true, cores, read_pool_bytes: 12 << 20, setting: None }
    }
}

impl Production {
    /// The defaults as changed by `WEIR_IO` (`auto`, `uring`, `threads`) and `WEIR_DIRECT` (`1`, `0`).
    pub fn from_env() -> Self {
        let mut settings = Production::default();
        if let Ok(value) = std::env::var("WEIR_IO") {
            match value.as_str() {
                "auto" => settings.backend = Backend::Auto,
                "uring" => settings.backend = Backend::Uring,
                "threads" => settings.backend = Backend::Threads,
                _ => settings.setting = Some(("WEIR_IO", value, "auto, uring or threads")),
            }
        }
        if let Ok(value) = std::env::var("WEIR_DIRECT") {
            match value.as_str() {
                "0" => settings.direct = false,
                "1" => settings.direct = true,
                _ => settings.setting = Some(("WEIR_DIRECT", value, "0 or 1")),
            }
        }
        settings
    }

    /// Sets the backend.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Enables or disables direct I/O.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Builds the machine. Raises the soft limit of open files of this process to the hard limit.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(self) -> Result<Machine, BuildError> {
        if let Some((name, value, expected)) = self.setting {
            return Err(BuildError::Setting { name, value, expected });
        }
        let limit = descriptors::raise_limit();
        descriptors::probe().map_err(|source| BuildError::Descriptors { limit, source })?;
        configure_malloc();
        let pool = BufPool::prefaulting(self.read_pool_bytes, Arc::new(ThreadPool::new("weir-memory", 1)));
        let disks = RealDisks::new(self.backend, self.direct, pool.clone()).map_err(BuildError::Uring)?;
        let uses_rings = disks.backend() == Backend::Uring;
        let runtime = match Handle::try_current() {
            Ok(handle) => TaskRuntime { handle, own: None, uses_rings },
            Err(_) => {
                let own = Builder::new_multi_thread()
                    .worker_threads(self.cores)
                    .thread_name("weir-task")
                    .enable_all()
                    .build()
                    .map_err(BuildError::Runtime)?;
                TaskRuntime { handle: own.handle().clone(), own: Some(own), uses_rings }
            }
        };
        let runtime = Arc::new(runtime);
        let compute = Arc::new(ThreadPool::new("weir-compute", self.cores));
        Ok(Machine {
            net: Arc::new(TcpNet),
            clock: Clock::new(Arc::new(SystemClock::new(runtime.handle.clone()))),
            tasks: Tasks::new(runtime),
            compute: Compute::new(compute.clone() as Arc<dyn ComputePool>),
            entropy: Entropy::new(Arc::new(KernelEntropy)),
            disks: Arc::new(disks),
            write_buffers: BufPool::contiguous(write_pool_bytes(MemoryLimit::current().bytes)),
            read_buffers: pool,
            memory: Memory::new(Arc::new(MallocTrimmer::new(compute))),
        })
    }
}

/// Tasks and a clock on a runtime of their own, which ends when the last handle to the tasks is dropped: for work that threads
/// of another runtime wait for.
///
/// # Errors
/// [`BuildError::Runtime`].
pub fn separate_runtime(thread_name: &str, threads: usize) -> Result<(Tasks, Clock), BuildError> {
    let own = Builder::new_multi_thread().worker_threads(threads).thread_name(thread_name).enable_all().build();
    let own = own.map_err(BuildError::Runtime)?;
    let handle = own.handle().clone();
    let clock = Clock::new(Arc::new(SystemClock::new(handle.clone())));
    Ok((Tasks::new(Arc::new(TaskRuntime { handle, own: Some(own), uses_rings: false })), clock))
}

/// Runs a call that blocks this thread; tasks of a runtime to which the thread belongs go on elsewhere.
pub fn blocking<T>(call: impl FnOnce() -> T) -> T {
    let is_worker = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_worker { tokio::task::block_in_place(call) } else { call() }
}

/// Limit in bytes of unused memory in the pool of write buffers, by the memory that the process may use.
fn write_pool_bytes(memory_bytes: u64) -> usize {
    (memory_bytes / WRITE_POOL_DIVISOR).clamp(MIN_WRITE_POOL_BYTES, MAX_WRITE_POOL_BYTES) as usize
}

struct TaskRuntime {
    handle: Handle,
    own: Option<Runtime>,
    /// Whether disks are driven by io_uring.
    uses_rings: bool,
}

impl Spawner for TaskRuntime {
    fn spawn(&self, location: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        tracing::trace!(%location, "task");
        drop(self.handle.spawn(Batched(task)));
    }

    fn start(&self, location: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        let mut task = Batched(task);
        let started =
            Arc::new(StartedTask { handle: self.handle.clone(), stage: Mutex::new(Stage::Running { woken: false }) });
        let waker = Waker::from(started.clone());
        if Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_ready() {
            return;
        }
        tracing::trace!(%location, "task");
        let woken = {
            let mut stage = started.stage();
            match *stage {
                Stage::Running { woken: true } => Some(task),
                _ => {
                    *stage = Stage::Waiting(task);
                    None
                }
            }
        };
        woken.into_iter().for_each(|task| drop(self.handle.spawn(task)));
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        drop(self.handle.spawn_blocking(work));
    }

    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        let mut task = pin!(Batched(task));
        if self.uses_rings {
            // For the runtime this is a single poll, so its budget for cooperative scheduling must not apply.
            let drive = poll_fn(|_| {
                thread_local_ring::drive(task.as_mut());
                Poll::Ready(())
            });
            self.handle.block_on(tokio::task::unconstrained(drive));
        } else {
            self.handle.block_on(task);
        }
    }
}

/// A task that was polled on the thread that started it and is now pending. It is spawned on the runtime only when it
/// is woken, which avoids waking a thread just to poll it again.
struct StartedTask {
    handle: Handle,
    stage: Mutex<Stage>,
}

enum Stage {
    Running { woken: bool },
    Waiting(Batched<BoxFuture<'static, ()>>),
    Spawned,
}

impl StartedTask {
    /// Locks the stage. The lock is held for a few instructions; the task does not run under it.
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for StartedTask {
    fn wake(self: Arc<Self>) {
        let waiting = {
            let mut stage = self.stage();
            match std::mem::replace(&mut *stage, Stage::Spawned) {
                Stage::Running { .. } => {
                    *stage = Stage::Running { woken: true };
                    None
                }
                Stage::Waiting(task) => Some(task),
                Stage::Spawned => None,
            }
        };
        waiting.into_iter().for_each(|task| drop(self.handle.spawn(task)));
    }
}

impl Drop for TaskRuntime {
    fn drop(&mut self) {
        // The last handle may be dropped inside a task, where blocking on the runtime's threads is not allowed.
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

struct SystemClock {
    start: Instant,
    /// [`monotonic::now_ns`] at that time.
    start_ns: u64,
    handle: Handle,
}

impl SystemClock {
    fn new(handle: Handle) -> Self {
        // Sleeping measures from `start`, which is not before `start_ns`, so that no sleep ends early.
        let start_ns = monotonic::now_ns();
        SystemClock { start: Instant::now(), start_ns, handle }
    }
}

impl ClockSource for SystemClock {
    fn now(&self) -> Nanos {
        Nanos(monotonic::now_ns().saturating_sub(self.start_ns))
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, when: Nanos) -> BoxFuture<'static, ()> {
        let _inside = self.handle.enter();
        Box::pin(tokio::time::sleep_until((self.start + Duration::from_nanos(when.0)).into()))
    }
}

struct KernelEntropy;

impl EntropySource for KernelEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            match kernel_random(rest) {
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Every supported kernel has getrandom; predictable numbers would be worse than a panic.
                Err(error) => panic!("getrandom failed: {error}"),
            }
        }
    }
}

#[allow(unsafe_code, reason = "a system call")]
fn kernel_random(bytes: &mut [u8]) -> std::io::Result<usize> {
    // SAFETY: the pointer and the length are those of one exclusive slice.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::try_from(got).map_err(|_| std::io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_time_and_entropy_work_together() {
        let machine = Production::default().build().unwrap();
        let sum = machine.block_on(async {
            let before = machine.clock.now();
            let handles: Vec<_> = (0..10u64)
                .map(|n| {
                    let inner = machine.clone();
                    machine.tasks.spawn(async move {
                        inner.clock.sleep(Duration::from_millis(2)).await;
                        inner.compute.run(move || n * n).await.unwrap()
                    })
                })
                .collect();
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.unwrap();
            }
            assert!(machine.clock.now() - before >= Duration::from_millis(2));
            sum
        });
        assert_eq!(sum, 285);
        assert_ne!(machine.entropy.u64(), machine.entropy.u64());
        assert!((0..1000).all(|_| machine.entropy.below(7) < 7));
    }

    #[test]
    fn started_tasks_run_on_this_thread_until_pending_and_then_complete() {
        let machine = Production::default().build().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        for n in 0..500u64 {
            let (wake, woken) = futures_channel::oneshot::channel::<()>();
            let clock = machine.clock.clone();
            let sender = sender.clone();
            let this_thread = std::thread::current().id();
            // Every third task is woken while it still runs; the others when pending, by this or by another thread.
            let early = (n % 3 == 0).then_some(());
            let mut late = Some(wake);
            let mut now = None;
            if early.is_some() {
                now = late.take();
            }
            machine.tasks.start(async move {
                assert_eq!(std::thread::current().id(), this_thread);
                let mut woken = woken;
                assert!(futures_util::poll!(&mut woken).is_pending());
                now.into_iter().for_each(|wake| wake.send(()).unwrap());
                woken.await.unwrap();
                clock.sleep(Duration::from_micros(n % 7)).await;
                sender.send(n).unwrap();
            });
            match late {
                Some(wake) if n % 2 == 0 => wake.send(()).unwrap(),
                Some(wake) => drop(std::thread::spawn(move || wake.send(()).unwrap())),
                None => {}
            }
        }
        drop(sender);
        let mut all: Vec<u64> = receiver.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_panicking_task_is_reported_with_its_location() {
        let machine = Production::default().build().unwrap();
        let lost = machine.block_on(machine.tasks.spawn(async { panic!("planted") })).unwrap_err();
        assert!(lost.location.file().ends_with("production.rs"));
    }

    #[test]
    fn a_machine_may_be_built_and_dropped_inside_a_runtime() {
        let outer = Production::default().build().unwrap();
        outer.block_on(async {
            let inner = Production::default().build().unwrap();
            assert_eq!(inner.tasks.spawn(async { 7 }).await.unwrap(), 7);
        });
    }
}
