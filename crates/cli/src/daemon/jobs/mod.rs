//! Scheduled work of the daemon: snapshots of which a number stays, scrubs, and replications.
//!
//! ```text
//!   weir.toml ─ settings ─► Job { work, schedule } ── due? ─► a task ─┬─ snapshots: take, destroy the oldest
//!                                                                     ├─ scrub, unless one began since it was due
//!                                                                     └─ `weir replicate`, unless the target has a snapshot since then
//! ```
//!
//! The daemon makes up a missed run once, as soon as the pool is open. It reads from the pool what earlier runs did (names of
//! snapshots, start of the last scrub), and keeps no file of its own. A run that fails is repeated after [`RETRY_SECONDS`].
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

mod schedule;
mod settings;
mod snapshots;

pub use settings::{Job, JobText, Work, checked};

use super::keeper::Daemon;
use crate::admin::{ServedPool, ServingHost};
use crate::command_target::now;
use snapshots::{Done, Rule, reason};
use std::collections::VecDeque;
use std::sync::Arc;
use weir_admin::{Action, Author, ProcessChange};
use weir_machine::Request;
use weir_machine::lock::Mutex;

/// Seconds after which a run that failed is repeated.
const RETRY_SECONDS: i64 = 60;
/// Runs that are kept of each job.
const KEPT_RUNS: usize = 20;

/// The jobs of the configuration.
#[derive(Default)]
pub struct Jobs(Mutex<Vec<Arc<Scheduled>>>);

/// A job with its runs.
struct Scheduled {
    job: Job,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    is_running: bool,
    /// The due time that the last successful run was for.
    done_due: Option<i64>,
    /// Time before which a failed run is not repeated.
    retry_at: i64,
    runs: VecDeque<Run>,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Start, in seconds since 1970.
    pub began: i64,
    /// The work that was done, or why not all of it was.
    pub result: Result<String, String>,
}

/// A job as `weir daemon status` shows it.
pub struct JobStatus {
    /// The job.
    pub job: Job,
    /// Whether it runs now.
    pub is_running: bool,
    /// The next due time, in seconds since 1970.
    pub next: Option<i64>,
    /// The last runs since the daemon was started, the newest first. Runs that found nothing to do are left out.
    pub runs: Vec<Run>,
}

impl Jobs {
    /// Replaces the jobs. One that did not change keeps its state.
    pub fn set(&self, jobs: Vec<Job>) {
        let mut list = self.0.lock();
        let before = std::mem::take(&mut *list);
        let kept = |job: &Job| before.iter().find(|old| old.job == *job).cloned();
        *list = jobs
            .into_iter()
            .map(|job| kept(&job).unwrap_or_else(|| Arc::new(Scheduled { job, state: Mutex::default() })))
            .collect();
    }

    /// All jobs, for the status.
    pub fn all(&self) -> Vec<JobStatus> {
        let jobs: Vec<Arc<Scheduled>> = self.0.lock().clone();
        let of = |scheduled: &Arc<Scheduled>| {
            let state = scheduled.state.lock().clone();
            JobStatus {
                job: scheduled.job.clone(),
                is_running: state.is_running,
                next: scheduled.job.schedule.next(now().sec).ok(),
                runs: state.runs.into_iter().rev().collect(),
            }
        };
        jobs.iter().map(of).collect()
    }
}

/// Starts the jobs that are due, each in a task of its own.
pub fn start_due(daemon: &Arc<Daemon>) {
    let jobs: Vec<Arc<Scheduled>> = daemon.jobs.0.lock().clone();
    for scheduled in jobs {
        if let Some(due) = scheduled.begin(now().sec) {
            let daemon = daemon.clone();
            drop(tokio::spawn(async move {
                let began = now().sec;
                let result = work(&daemon, &scheduled.job, due).await;
                scheduled.end(due, began, result);
            }));
        }
    }
}

impl Scheduled {
    /// Marks the job as running, and returns the time for which it is due, if it is.
    fn begin(&self, now: i64) -> Option<i64> {
        let due = self.job.schedule.latest(now).ok()?;
        let mut state = self.state.lock();
        if state.is_running || state.done_due.is_some_and(|done| done >= due) || now < state.retry_at {
            return None;
        }
        state.is_running = true;
        Some(due)
    }

    /// Notes the end of a run. `Ok(None)`: there was nothing to do.
    fn end(&self, due: i64, began: i64, result: Result<Option<String>, String>) {
        let mut state = self.state.lock();
        state.is_running = false;
        match &result {
            Ok(_) => state.done_due = Some(due),
            Err(_) => state.retry_at = now().sec.saturating_add(RETRY_SECONDS),
        }
        let Some(result) = result.transpose() else { return };
        // The same error is not repeated every minute.
        if state.runs.back().is_none_or(|last| last.result != result || result.is_ok()) {
            match &result {
                Ok(what) => tracing::info!("job {}: {what}", self.job.name),
                Err(why) => tracing::error!("job {}: {why}; tried again every {RETRY_SECONDS} s", self.job.name),
            }
        }
        if state.runs.len() == KEPT_RUNS {
            state.runs.pop_front();
        }
        state.runs.push_back(Run { began, result });
    }
}

/// Does the work of a job for all its datasets or pools, and goes on after an error.
///
/// # Errors
/// All that failed, with the reasons.
async fn work(daemon: &Arc<Daemon>, job: &Job, due: i64) -> Result<Option<String>, String> {
    let opened = |name: &str| {
        let pool = name.split('/').next().unwrap_or(name);
        daemon.process.named(pool).ok_or_else(|| format!("{name}: the pool is not open"))
    };
    let mut failed = Vec::new();
    let mut said = Vec::new();
    match &job.work {
        Work::Snapshot { datasets, recursive, keep } => {
            let rule = Rule { job: &job.name, recursive: *recursive, keep: *keep };
            let mut all = Done::default();
            for dataset in datasets {
                let done = match opened(dataset) {
                    Ok(pool) => snapshots::run(&pool, dataset, &rule, due).await,
                    Err(why) => Err(why),
                };
                match done {
                    Ok(done) => {
                        all.taken += done.taken;
                        all.destroyed += done.destroyed;
                        all.staying.extend(done.staying);
                    }
                    Err(why) => failed.push(why),
                }
            }
            if all.taken + all.destroyed > 0 {
                let option = if *recursive { ", with the descendants" } else { "" };
                said.push(format!("snapshots of {} datasets taken{option}; {} destroyed", all.taken, all.destroyed));
            }
            said.extend(all.staying.into_iter().map(|why| format!("not destroyed: {why}")));
        }
        Work::Replicate { source, arguments, .. } => match opened(source) {
            Ok(_pool) => match replicate(arguments, due).await {
                Ok(done) => said.extend(done),
                Err(why) => failed.push(why),
            },
            Err(why) => failed.push(why),
        },
        Work::Scrub { pools } => {
            for name in pools {
                let begun = match opened(name) {
                    Ok(pool) => scrub(&pool, due).await.map_err(|why| format!("{name}: {why}")),
                    Err(why) => Err(why),
                };
                match begun {
                    Ok(true) => said.push(format!("scrub of {name} started")),
                    Ok(false) => {}
                    Err(why) => failed.push(why),
                }
            }
        }
    }
    let said = (!said.is_empty()).then(|| said.join("; "));
    if failed.is_empty() { Ok(said) } else { Err(failed.into_iter().chain(said).collect::<Vec<_>>().join("; ")) }
}

/// Runs `weir replicate` as a process of its own, which asks this one. Returns what it printed.
async fn replicate(arguments: &[String], due: i64) -> Result<Option<String>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = std::process::Command::new(program);
    command
        .arg("replicate")
        .args(["--due", &due.max(0).to_string()])
        .args(arguments)
        .stdin(std::process::Stdio::null());
    let out = tokio::task::spawn_blocking(move || command.output()).await.map_err(|error| error.to_string())?;
    let out = out.map_err(|error| format!("weir replicate: {error}"))?;
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect::<Vec<_>>().join("; ");
    let all = [lines(&out.stdout), lines(&out.stderr)]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    match out.status.success() {
        true => Ok(Some(all).filter(|all| !all.is_empty())),
        false if all.is_empty() => Err(format!("weir replicate: {}", out.status)),
        false => Err(all),
    }
}

/// Starts a scrub, unless one began at `due` or later. Returns whether it was started.
async fn scrub(pool: &Arc<ServedPool>, due: i64) -> Result<bool, String> {
    let last = pool.engine.scrubs().progress(&Request::internal("job")).await.map_err(|error| error.to_string())?;
    let began = last.filter(|last| !last.is_resilver()).map(|last| last.scan.start_time_s as i64);
    if began.is_some_and(|began| began >= due) {
        return Ok(false);
    }
    let mut author = author(format!("zpool scrub {}", pool.engine.name()));
    let action = Action::Process(ProcessChange::StartScrub);
    action.run(&ServingHost(pool.clone()), &mut author).await.map_err(|refusal| reason(&refusal))?;
    Ok(true)
}

/// The daemon as the author of a change, with the command that the history of the pool records.
fn author(command: String) -> Author {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Author::new((uid, gid), now(), command)
}
