//! The real world: tokio drives tasks, a crew of threads computes, the kernel gives time and chance, real disks.
//!
//! Inside a running tokio runtime its handle is used; elsewhere the machine brings its own runtime, which ends when the
//! last handle to the machine is gone. Either way engine futures see only [`crate::Tasks`].

#![allow(
    clippy::disallowed_methods,
    reason = "this is the one place that asks the operating system for time and tasks"
)]

use crate::compute::{Compute, Cores};
use crate::crew::Crew;
use crate::entropy::{Entropy, EntropySource};
use crate::memory::Memory;
use crate::real::freed::{Freed, keep_freed_memory};
use crate::real::gather::Gathered;
use crate::real::ring::own;
use crate::real::{Backend, RealDisks};
use crate::tasks::{Spawner, Tasks};
use crate::time::{Clock, ClockSource, Nanos};
use crate::{BufPool, Machine};
use futures_util::future::BoxFuture;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime};
use thiserror::Error;
use tokio::runtime::{Builder, Handle, Runtime};

/// Why the real world could not be had.
#[derive(Debug, Error)]
pub enum BuildError {
    /// No task runtime.
    #[error("cannot start the task runtime: {0}")]
    Runtime(std::io::Error),
    /// io_uring was asked for by name and is not to be had.
    #[error("io_uring is not available here: {0}")]
    Uring(std::io::Error),
    /// A setting in the environment.
    #[error("{name}={value}: expected {expected}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it can be set to.
        expected: &'static str,
    },
}

/// Memory for what is written that is kept for the next time.
const WRITE_BYTES: usize = 32 << 20;

/// Settings of the real world.
#[derive(Clone, Debug)]
pub struct Production {
    /// How disks are driven.
    pub backend: Backend,
    /// Whether files and devices are read around the page cache where they can be.
    pub direct: bool,
    /// Threads that drive tasks, and as many that compute.
    pub cores: usize,
    /// How much unused buffer memory is kept for reuse, in bytes.
    pub spare_bytes: usize,
    setting: Option<(&'static str, String, &'static str)>,
}

impl Default for Production {
    /// The best backend there is, direct, all processors, 12 MiB of spare buffers.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Production { backend: Backend::Auto, direct: true, cores, spare_bytes: 12 << 20, setting: None }
    }
}

impl Production {
    /// The defaults as changed by `WEIR_IO` (`auto`, `uring`, `threads`) and `WEIR_DIRECT` (`1`, `0`).
    pub fn from_env() -> Self {
        let mut it = Production::default();
        if let Ok(value) = std::env::var("WEIR_IO") {
            match value.as_str() {
                "auto" => it.backend = Backend::Auto,
                "uring" => it.backend = Backend::Uring,
                "threads" => it.backend = Backend::Threads,
                _ => it.setting = Some(("WEIR_IO", value, "auto, uring or threads")),
            }
        }
        if let Ok(value) = std::env::var("WEIR_DIRECT") {
            match value.as_str() {
                "0" => it.direct = false,
                "1" => it.direct = true,
                _ => it.setting = Some(("WEIR_DIRECT", value, "0 or 1")),
            }
        }
        it
    }

    /// With this backend.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Around the page cache, or through it.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Makes the machine.
    pub fn build(self) -> Result<Machine, BuildError> {
        if let Some((name, value, expected)) = self.setting {
            return Err(BuildError::Setting { name, value, expected });
        }
        keep_freed_memory();
        let pool = BufPool::ahead(self.spare_bytes);
        let disks = RealDisks::new(self.backend, self.direct, pool.clone()).map_err(BuildError::Uring)?;
        let rings = disks.backend() == Backend::Uring;
        let runtime = match Handle::try_current() {
            Ok(handle) => TaskRuntime { handle, own: None, rings },
            Err(_) => {
                let own = Builder::new_multi_thread()
                    .worker_threads(self.cores)
                    .thread_name("weir-task")
                    .enable_all()
                    .build()
                    .map_err(BuildError::Runtime)?;
                TaskRuntime { handle: own.handle().clone(), own: Some(own), rings }
            }
        };
        let runtime = Arc::new(runtime);
        let crew = Arc::new(Crew::new("weir-compute", self.cores));
        Ok(Machine {
            clock: Clock::new(Arc::new(SystemClock { start: Instant::now(), handle: runtime.handle.clone() })),
            tasks: Tasks::new(runtime),
            compute: Compute::new(crew.clone() as Arc<dyn Cores>),
            entropy: Entropy::new(Arc::new(KernelEntropy)),
            disks: Arc::new(disks),
            buffers: BufPool::contiguous(WRITE_BYTES),
            spares: pool,
            memory: Memory::new(Arc::new(Freed::new(crew))),
        })
    }
}

struct TaskRuntime {
    handle: Handle,
    own: Option<Runtime>,
    /// Disks are driven by rings.
    rings: bool,
}

impl Spawner for TaskRuntime {
    fn spawn(&self, place: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        tracing::trace!(%place, "task");
        drop(self.handle.spawn(Gathered(task)));
    }

    fn start(&self, place: &'static Location<'static>, task: BoxFuture<'static, ()>) {
        let mut task = Gathered(task);
        let started =
            Arc::new(Started { handle: self.handle.clone(), stage: Mutex::new(Stage::Running { woken: false }) });
        let waker = Waker::from(started.clone());
        if Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_ready() {
            return;
        }
        tracing::trace!(%place, "task");
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

    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        let mut task = pin!(Gathered(task));
        if self.rings {
            // One turn as the runtime sees it, so one that no budget of turns may bound.
            let drive = poll_fn(|_| {
                own::drive(task.as_mut());
                Poll::Ready(())
            });
            self.handle.block_on(tokio::task::unconstrained(drive));
        } else {
            self.handle.block_on(task);
        }
    }
}

/// A task that ran on the thread that started it and waits now. It becomes one of the runtime's when it is woken, not
/// before: that spares waking a thread which would only find it waiting.
struct Started {
    handle: Handle,
    stage: Mutex<Stage>,
}

enum Stage {
    Running { woken: bool },
    Waiting(Gathered<BoxFuture<'static, ()>>),
    Spawned,
}

impl Started {
    /// Held for a few instructions, in which nothing of the task runs.
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Started {
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
        // The last handle may be dropped inside a task, where waiting for the runtime's threads is not allowed.
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

struct SystemClock {
    start: Instant,
    handle: Handle,
}

impl ClockSource for SystemClock {
    fn now(&self) -> Nanos {
        Nanos::default() + self.start.elapsed()
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
                // No kernel that can run us lacks it; a predictable number in its place would be worse than a stop.
                Err(error) => panic!("the kernel gives no random numbers: {error}"),
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
    fn tasks_time_and_chance_work_together() {
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
    fn what_is_started_runs_here_until_it_waits_and_then_to_its_end() {
        let machine = Production::default().build().unwrap();
        let (told, hear) = std::sync::mpsc::channel();
        for n in 0..500u64 {
            let (wake, woken) = futures_channel::oneshot::channel::<()>();
            let (clock, told, here) = (machine.clock.clone(), told.clone(), std::thread::current().id());
            // Every third is woken while it still runs, the others when it waits, from here or from another thread.
            let early = (n % 3 == 0).then_some(());
            let (mut late, mut now) = (Some(wake), None);
            if early.is_some() {
                now = late.take();
            }
            machine.tasks.start(async move {
                assert_eq!(std::thread::current().id(), here);
                let mut woken = woken;
                assert!(futures_util::poll!(&mut woken).is_pending());
                now.into_iter().for_each(|wake| wake.send(()).unwrap());
                woken.await.unwrap();
                clock.sleep(Duration::from_micros(n % 7)).await;
                told.send(n).unwrap();
            });
            match late {
                Some(wake) if n % 2 == 0 => wake.send(()).unwrap(),
                Some(wake) => drop(std::thread::spawn(move || wake.send(()).unwrap())),
                None => {}
            }
        }
        drop(told);
        let mut all: Vec<u64> = hear.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_task_that_panics_is_reported_by_its_place() {
        let machine = Production::default().build().unwrap();
        let lost = machine.block_on(machine.tasks.spawn(async { panic!("planted") })).unwrap_err();
        assert!(lost.place.file().ends_with("production.rs"));
    }

    #[test]
    fn a_machine_may_be_made_and_dropped_inside_a_runtime() {
        let outer = Production::default().build().unwrap();
        outer.block_on(async {
            let inner = Production::default().build().unwrap();
            assert_eq!(inner.tasks.spawn(async { 7 }).await.unwrap(), 7);
        });
    }
}
