//! A thread pool with one job queue, for blocking disk calls and CPU-bound work.
//!
//! A thread is started when a job finds no idle thread, up to the limit, and then kept. When the pool is dropped, the
//! threads finish the queue and exit. A job that panics loses its result; its thread continues.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use weir_machine::compute::{ComputePool, Job};

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    name: &'static str,
    limit: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let job = {
                let mut state = self.lock();
                loop {
                    if let Some(job) = state.queue.pop_front() {
                        break job;
                    }
                    if state.closed {
                        return;
                    }
                    state.idle += 1;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            };
            // Unwind safety: a job owns everything that it modifies.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(pool = self.name, "a job panicked");
            }
        }
    }
}

/// A thread pool. When it is dropped, its threads finish the queued jobs and exit.
pub struct ThreadPool(Arc<Shared>);

impl ThreadPool {
    /// A pool of up to `limit` threads named `name`.
    pub fn new(name: &'static str, limit: usize) -> Self {
        let state = Mutex::new(State::default());
        ThreadPool(Arc::new(Shared { state, work: Condvar::new(), name, limit: limit.max(1) }))
    }
}

impl ComputePool for ThreadPool {
    fn run(&self, job: Job) {
        let shared = &self.0;
        let mut state = shared.lock();
        state.queue.push_back(job);
        // An idle thread may already have been notified of an earlier job: compare the queue's length with the number
        // of idle threads.
        if state.queue.len() <= state.idle || state.threads >= shared.limit {
            drop(state);
            shared.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let worker = shared.clone();
        let started = std::thread::Builder::new().name(shared.name.into()).spawn(move || worker.serve());
        if started.is_err() {
            let mut state = shared.lock();
            state.threads -= 1;
            if state.threads == 0 {
                // No thread could be started: run the jobs on this one.
                while let Some(job) = state.queue.pop_front() {
                    drop(state);
                    job();
                    state = shared.lock();
                }
            }
        }
    }

    fn count(&self) -> usize {
        self.0.limit
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_job_runs_after_a_panic_and_after_the_pool_is_dropped() {
        let (sent, received) = mpsc::channel();
        let pool = ThreadPool::new("test", 3);
        for n in 0..100 {
            let sent = sent.clone();
            pool.run(Box::new(move || {
                assert!(n != 50, "the planted panic");
                let _ = sent.send(n);
            }));
        }
        drop(pool);
        drop(sent);
        let mut got: Vec<i32> = received.iter().collect();
        got.sort_unstable();
        assert_eq!(got, (0..100).filter(|n| *n != 50).collect::<Vec<_>>());
    }

    #[test]
    fn jobs_run_concurrently() {
        let pool = ThreadPool::new("test", 4);
        let barrier = Arc::new(std::sync::Barrier::new(5));
        for _ in 0..4 {
            let barrier = barrier.clone();
            pool.run(Box::new(move || {
                barrier.wait();
            }));
        }
        barrier.wait();
    }
}
