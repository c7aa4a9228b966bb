//! A crew of threads that take jobs from one queue: what stands behind blocking disk calls and heavy computation.
//!
//! Threads are started when a job finds nobody idle, up to the limit, and stay. When the last handle goes they finish
//! the queue and leave. A job that panics costs its own result, not the thread.

use crate::compute::{Cores, Job};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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
            // What a panicking job leaves half done is its own: it owns all it touches.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(crew = self.name, "a job panicked");
            }
        }
    }
}

/// The crew. Dropping it lets the threads finish what is queued and end.
pub struct Crew(Arc<Shared>);

impl Crew {
    /// Up to `limit` threads called `name`.
    pub fn new(name: &'static str, limit: usize) -> Self {
        let state = Mutex::new(State::default());
        Crew(Arc::new(Shared { state, work: Condvar::new(), name, limit: limit.max(1) }))
    }
}

impl Cores for Crew {
    fn run(&self, job: Job) {
        let shared = &self.0;
        let mut state = shared.lock();
        state.queue.push_back(job);
        // An idle thread may already be on its way to an earlier job: count what is queued against the idle.
        if state.queue.len() <= state.idle || state.threads >= shared.limit {
            drop(state);
            shared.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let crew = shared.clone();
        let started = std::thread::Builder::new().name(shared.name.into()).spawn(move || crew.serve());
        if started.is_err() {
            let mut state = shared.lock();
            state.threads -= 1;
            if state.threads == 0 {
                // Not one thread to be had: better slow on this one than never.
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

impl Drop for Crew {
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
    fn every_job_runs_also_after_one_panicked_and_after_the_handle_went() {
        let (sent, received) = mpsc::channel();
        let crew = Crew::new("test", 3);
        for n in 0..100 {
            let sent = sent.clone();
            crew.run(Box::new(move || {
                assert!(n != 50, "the planted panic");
                let _ = sent.send(n);
            }));
        }
        drop(crew);
        drop(sent);
        let mut got: Vec<i32> = received.iter().collect();
        got.sort_unstable();
        assert_eq!(got, (0..100).filter(|n| *n != 50).collect::<Vec<_>>());
    }

    #[test]
    fn jobs_that_wait_for_each_other_run_side_by_side() {
        let crew = Crew::new("test", 4);
        let barrier = Arc::new(std::sync::Barrier::new(5));
        for _ in 0..4 {
            let barrier = barrier.clone();
            crew.run(Box::new(move || {
                barrier.wait();
            }));
        }
        barrier.wait();
    }
}
