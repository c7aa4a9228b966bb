//! Scheduled work of the daemon: snapshots of which a number stays, scrubs, and replications.
//!
//! ```text
//!   weir.toml ─ settings ─► Job { work, schedule } ── due? ─► a task ─┬─ snapshots: take, destroy the oldest
//!   `job add` ─ jobs.json ──────▲                    `job run`        ├─ scrub, unless one began since it was due
//!                                                                     └─ `weir replicate`, unless the target has a snapshot since then
//! ```
//!
//! The daemon makes up a missed run once, as soon as the pool is open. A run counts as missed only if the daemon knew the job with its
//! present schedule at that time ([`Since`]). It reads from the pool what earlier runs did (names of
//! snapshots, start of the last scrub). The runs in `jobs.json` are shown; only of a pool that is not open, they say whether a run
//! was missed. A run that fails is repeated after [`RETRY_SECONDS`].
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

mod command;
mod replication;
mod schedule;
mod settings;
mod snapshots;
mod store;

pub use command::{JobArgs, run as run_command};
pub use settings::{Job, JobText, Work, checked};

use super::keeper::Daemon;
use crate::admin::{ServedPool, ServingHost};
use crate::command_target::now;
use crate::replicate::progress::Progress;
use serde::{Deserialize, Serialize};
use snapshots::{Done, Rule, reason};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use store::{Since, Stored};
use weir_admin::{Action, Author, ProcessChange};
use weir_machine::Request;
use weir_machine::lock::Mutex;

/// Seconds after which a run that failed is repeated.
const RETRY_SECONDS: i64 = 60;
/// Runs that are kept of each job.
const KEPT_RUNS: usize = 20;

/// Longest text of a run that is kept, in characters.
const MAX_RESULT: usize = 4000;

/// The jobs of the configuration, and those that commands added.
pub struct Jobs {
    list: Mutex<List>,
    /// The file of the state directory; without one, no job can be added.
    file: Option<PathBuf>,
}

#[derive(Clone, Default)]
struct List {
    configured: Vec<Job>,
    added: Vec<JobText>,
    /// Runs before this start, by name of the job.
    earlier: BTreeMap<String, Vec<Run>>,
    /// Since when each job has its schedule, by name of the job.
    since: BTreeMap<String, Since>,
    scheduled: Vec<Scheduled>,
}

/// A job with its runs.
#[derive(Clone)]
struct Scheduled {
    job: Job,
    /// Time since which it has its schedule, in seconds since 1970.
    since: i64,
    state: State,
}

#[derive(Clone, Default)]
struct State {
    is_running: bool,
    /// The due time that the last successful run was for.
    done_due: Option<i64>,
    /// Time before which a failed run is not repeated.
    retry_at: i64,
    /// Last message of the present run, if it is a replication that sends.
    progress: Option<Progress>,
    runs: VecDeque<Run>,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Progress of a replication that sends now.
    pub progress: Option<Progress>,
    /// The next due time, in seconds since 1970.
    pub next: Option<i64>,
    /// The last runs, the newest first. Runs that found nothing to do are left out.
    pub runs: Vec<Run>,
    /// The job as it was added by a command.
    pub added: Option<JobText>,
}

impl Jobs {
    /// The jobs of the state directory, without those of the configuration.
    pub fn load(folder: Option<PathBuf>) -> Self {
        let file = folder.map(|folder| folder.join(store::NAME));
        let stored = file.as_deref().map(Stored::load).unwrap_or_default();
        let mut list = List { added: stored.jobs, earlier: stored.runs, since: stored.since, ..List::default() };
        list.arrange(now().sec);
        Jobs { list: Mutex::new(list), file }
    }

    /// Replaces the jobs of the configuration. One that did not change keeps its state.
    pub fn set(&self, jobs: Vec<Job>) {
        let mut list = self.list.lock();
        list.configured = jobs;
        list.arrange(now().sec);
        let known = list.known_since();
        if known == list.since {
            return;
        }
        list.since = known;
        if let (Some(_), Err(why)) = (&self.file, self.save(&list, &list.added)) {
            tracing::warn!("the times since which jobs have their schedules are not kept: {why}");
        }
    }

    /// Adds a job, or replaces one that was added.
    ///
    /// # Errors
    /// If it is wrong, its name is taken, or the file cannot be written. Then nothing changes.
    pub fn add(&self, text: JobText, replace: bool) -> Result<(), String> {
        let name = text.name.clone();
        let mut list = self.list.lock();
        if list.configured.iter().any(|job| job.name == name) {
            return Err(format!("job '{name}' is one of weir.toml: change it there, and run 'weir daemon reload'"));
        }
        let mut added = list.added.clone();
        match added.iter_mut().find(|job| job.name == name) {
            Some(old) if replace => *old = text,
            Some(_) => return Err(format!("there is a job '{name}': --replace replaces it")),
            None => added.push(text),
        }
        checked(added.clone())?;
        self.change(&mut list, added)
    }

    /// Removes a job that was added. A run of it goes on to its end.
    ///
    /// # Errors
    /// If there is no such job, or the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        let mut list = self.list.lock();
        let mut added = list.added.clone();
        added.retain(|job| job.name != name);
        if added.len() == list.added.len() {
            return Err(match list.configured.iter().any(|job| job.name == name) {
                true => format!("job '{name}' is one of weir.toml: remove it there, and run 'weir daemon reload'"),
                false => format!("there is no job '{name}'"),
            });
        }
        self.change(&mut list, added)
    }

    /// Replaces the jobs that commands added, in the file and in memory; if the file cannot be written, in neither.
    fn change(&self, list: &mut List, added: Vec<JobText>) -> Result<(), String> {
        let mut new = List { added, ..list.clone() };
        new.arrange(now().sec);
        new.since = new.known_since();
        self.save(&new, &new.added)?;
        *list = new;
        Ok(())
    }

    /// All jobs, for the status.
    pub fn all(&self) -> Vec<JobStatus> {
        let list = self.list.lock();
        let of = |Scheduled { job, state, .. }: &Scheduled| JobStatus {
            job: job.clone(),
            is_running: state.is_running,
            progress: state.progress.clone(),
            next: job.schedule.next(now().sec).ok(),
            runs: state.runs.iter().rev().cloned().collect(),
            added: list.added.iter().find(|text| job.is_added && text.name == job.name).cloned(),
        };
        list.scheduled.iter().map(of).collect()
    }

    /// Marks the jobs that are due as running, and returns them with the times for which they are due.
    fn begin_due(&self, now: i64) -> Vec<(Job, i64)> {
        let mut list = self.list.lock();
        list.scheduled.iter_mut().filter_map(|one| Some((one.job.clone(), one.begin(now)?))).collect()
    }

    /// Marks a job as running whatever its schedule says.
    fn begin_named(&self, name: &str) -> Result<Job, String> {
        let mut list = self.list.lock();
        let found = list.scheduled.iter_mut().find(|one| one.job.name == name);
        let found = found.ok_or_else(|| format!("there is no job '{name}'"))?;
        match std::mem::replace(&mut found.state.is_running, true) {
            true => Err(format!("job '{name}' is running")),
            false => Ok(found.job.clone()),
        }
    }

    /// Whether a run of a job that began at `due` or later did its work.
    fn has_run_since(&self, name: &str, due: i64) -> bool {
        let list = self.list.lock();
        let found = list.scheduled.iter().find(|one| one.job.name == name);
        found.is_some_and(|one| one.state.runs.iter().any(|run| run.began >= due && run.result.is_ok()))
    }

    /// Notes the progress of a run.
    fn note_progress(&self, job: &Job, progress: Progress) {
        let mut list = self.list.lock();
        let running = list.scheduled.iter_mut().find(|one| one.job == *job && one.state.is_running);
        running.into_iter().for_each(|one| one.state.progress = Some(progress.clone()));
    }

    /// Notes the end of a run, and keeps it for the next start. `Ok(None)`: there was nothing to do.
    fn end(&self, job: &Job, due: i64, began: i64, result: Result<Option<String>, String>) {
        let mut list = self.list.lock();
        // The job may have been changed or removed meanwhile.
        let is_new =
            list.scheduled.iter_mut().find(|one| one.job == *job).is_some_and(|one| one.end(due, began, result));
        if let (true, Some(_), Err(why)) = (is_new, &self.file, self.save(&list, &list.added)) {
            tracing::warn!("the runs of jobs are not kept: {why}");
        }
    }

    /// Writes the file: these added jobs, and the runs of all.
    fn save(&self, list: &List, added: &[JobText]) -> Result<(), String> {
        let file = self.file.as_ref().ok_or("there is no state directory to keep jobs in")?;
        let runs = list.scheduled.iter().map(|one| (one.job.name.clone(), one.state.runs.iter().cloned().collect()));
        let stored = Stored { jobs: added.to_vec(), runs: runs.collect(), since: list.since.clone() };
        stored.save(file).map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl List {
    /// Since when each scheduled job has its schedule, by name of the job.
    fn known_since(&self) -> BTreeMap<String, Since> {
        let of = |one: &Scheduled| Since { schedule: one.job.schedule_with_zone(), at: one.since };
        self.scheduled.iter().map(|one| (one.job.name.clone(), of(one))).collect()
    }

    /// Schedules all jobs anew. One that did not change keeps its state; a new one has the runs before this start.
    fn arrange(&mut self, now: i64) {
        let before = std::mem::take(&mut self.scheduled);
        let is_taken = |text: &JobText| self.configured.iter().any(|job| job.name == text.name);
        let (taken, free): (Vec<JobText>, Vec<JobText>) = self.added.iter().cloned().partition(is_taken);
        for text in taken {
            tracing::warn!("job '{}' of weir.toml is used, and not the one that a command added", text.name);
        }
        let added = checked(free).unwrap_or_else(|why| {
            tracing::error!("jobs that commands added are not run: {why}");
            Vec::new()
        });
        let added = added.into_iter().map(|job| Job { is_added: true, ..job });
        for job in self.configured.iter().cloned().chain(added) {
            let old = before.iter().find(|old| old.job.name == job.name);
            let state = match old {
                Some(old) if old.job == job => old.state.clone(),
                Some(old) => State { runs: old.state.runs.clone(), ..State::default() },
                None => State { runs: self.earlier.remove(&job.name).unwrap_or_default().into(), ..State::default() },
            };
            let since = since(self.since.get(&job.name), &job, !state.runs.is_empty(), now);
            self.scheduled.push(Scheduled { job, since, state });
        }
        debug_assert!(self.scheduled.len() <= self.configured.len() + self.added.len(), "each job is scheduled once");
    }
}

/// Since when a job has its schedule: as it is known, or else from now on. The runs of daemons that kept no such time show that the
/// job is not new. Pure.
fn since(known: Option<&Since>, job: &Job, has_runs: bool, now: i64) -> i64 {
    match known {
        Some(known) if known.schedule == job.schedule_with_zone() => known.at,
        None if has_runs => 0,
        _ => now,
    }
}

/// Starts the jobs that are due, each in a task of its own.
pub fn start_due(daemon: &Arc<Daemon>) {
    for (job, due) in daemon.jobs.begin_due(now().sec) {
        start(daemon, job, due);
    }
}

/// Starts a job whatever its schedule says.
///
/// # Errors
/// If there is no such job, or it is running.
fn run_now(daemon: &Arc<Daemon>, name: &str) -> Result<(), String> {
    let job = daemon.jobs.begin_named(name)?;
    start(daemon, job, now().sec);
    Ok(())
}

/// Does the work of a job that is marked as running, in a task of its own.
fn start(daemon: &Arc<Daemon>, job: Job, due: i64) {
    let daemon = daemon.clone();
    drop(tokio::spawn(async move {
        let began = now().sec;
        let result = work(&daemon, &job, due).await;
        daemon.jobs.end(&job, due, began, result);
    }));
}

impl Scheduled {
    /// Marks the job as running, and returns the time for which it is due, if it is.
    fn begin(&mut self, now: i64) -> Option<i64> {
        let due = self.job.schedule.latest(now).ok().filter(|due| *due > self.since)?;
        let state = &mut self.state;
        if state.is_running || state.done_due.is_some_and(|done| done >= due) || now < state.retry_at {
            return None;
        }
        state.is_running = true;
        Some(due)
    }

    /// Notes the end of a run, and returns whether it is shown. `Ok(None)`: there was nothing to do.
    fn end(&mut self, due: i64, began: i64, result: Result<Option<String>, String>) -> bool {
        let state = &mut self.state;
        state.is_running = false;
        state.progress = None;
        match &result {
            Ok(_) => state.done_due = Some(due),
            Err(_) => state.retry_at = now().sec.saturating_add(RETRY_SECONDS),
        }
        let Some(result) = result.transpose() else { return false };
        let short = |text: String| text.chars().take(MAX_RESULT).collect();
        let result: Result<String, String> = result.map(short).map_err(short);
        // The same error is not repeated every minute.
        let is_new = state.runs.back().is_none_or(|last| last.result != result || result.is_ok());
        if is_new {
            match &result {
                Ok(what) => tracing::info!("job {}: {what}", self.job.name),
                Err(why) => tracing::error!("job {}: {why}; tried again every {RETRY_SECONDS} s", self.job.name),
            }
        }
        if state.runs.len() == KEPT_RUNS {
            state.runs.pop_front();
        }
        state.runs.push_back(Run { began, result });
        is_new
    }
}

/// Does the work of a job for all its datasets or pools, and goes on after an error.
///
/// # Errors
/// All that failed, with the reasons.
async fn work(daemon: &Arc<Daemon>, job: &Job, due: i64) -> Result<Option<String>, String> {
    let is_done = daemon.jobs.has_run_since(&job.name, due);
    // `None`: an earlier run did its work before the pool went away, and none was missed.
    let opened = |name: &str| match daemon.process.named(name.split('/').next().unwrap_or(name)) {
        None if is_done => Ok(None),
        None => Err(format!("{name}: the pool is not open")),
        opened => Ok(opened),
    };
    let mut failed = Vec::new();
    let mut said = Vec::new();
    match &job.work {
        Work::Snapshot { datasets, recursive, keep } => {
            let rule = Rule { job: &job.name, recursive: *recursive, keep: *keep };
            let mut all = Done::default();
            for dataset in datasets {
                let done = match opened(dataset) {
                    Ok(Some(pool)) => snapshots::run(&pool, dataset, &rule, due).await,
                    Ok(None) => Ok(Done::default()),
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
            Ok(None) => {}
            Ok(Some(_)) => match replication::run(daemon, job, arguments, due).await {
                Ok(done) => said.extend(done),
                Err(why) => failed.push(why),
            },
            Err(why) => failed.push(why),
        },
        Work::Scrub { pools } => {
            for name in pools {
                let begun = match opened(name) {
                    Ok(Some(pool)) => scrub(&pool, due).await.map_err(|why| format!("{name}: {why}")),
                    Ok(None) => Ok(None),
                    Err(why) => Err(why),
                };
                match begun {
                    Ok(Some(what)) => said.push(format!("scrub of {name} {what}")),
                    Ok(None) => {}
                    Err(why) => failed.push(why),
                }
            }
        }
    }
    let said = (!said.is_empty()).then(|| said.join("; "));
    if failed.is_empty() { Ok(said) } else { Err(failed.into_iter().chain(said).collect::<Vec<_>>().join("; ")) }
}

/// Starts a scrub, unless one began at `due` or later, or runs. Returns what was done about it; `None` if nothing was to do.
async fn scrub(pool: &Arc<ServedPool>, due: i64) -> Result<Option<&'static str>, String> {
    let last = pool.engine.scrubs().progress(&Request::internal("job")).await.map_err(|error| error.to_string())?;
    let last = last.filter(|last| !last.is_resilver());
    let began = last.as_ref().map(|last| last.scan.start_time_s as i64);
    let is_running = last.is_some_and(|last| last.is_open() && !last.is_paused()) && pool.is_scrubbing() == Ok(true);
    match scrub_step(began, is_running, due) {
        ScrubStep::Nothing => return Ok(None),
        ScrubStep::Runs => return Ok(Some("is running already")),
        ScrubStep::Start => {}
    }
    let mut author = author(format!("zpool scrub {}", pool.engine.name()));
    let action = Action::Process(ProcessChange::StartScrub);
    action.run(&ServingHost(pool.clone()), &mut author).await.map_err(|refusal| reason(&refusal))?;
    Ok(Some("started"))
}

/// The step of a job that scrubs a pool.
#[derive(Debug, PartialEq, Eq)]
enum ScrubStep {
    /// One began since the job was due.
    Nothing,
    /// An earlier one runs: a second one would be refused.
    Runs,
    /// Start one, or resume one that is paused.
    Start,
}

/// The step of a job that is due at `due`, from the start of the last scrub and whether it runs. Pure.
fn scrub_step(began: Option<i64>, is_running: bool, due: i64) -> ScrubStep {
    match (began.is_some_and(|began| began >= due), is_running) {
        (true, _) => ScrubStep::Nothing,
        (false, true) => ScrubStep::Runs,
        (false, false) => ScrubStep::Start,
    }
}

/// The daemon as the author of a change, with the command that the history of the pool records.
fn author(command: String) -> Author {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Author::new((uid, gid), now(), command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_that_runs_is_no_failure() {
        assert_eq!(scrub_step(None, false, 5), ScrubStep::Start);
        assert_eq!(scrub_step(Some(4), false, 5), ScrubStep::Start);
        assert_eq!(scrub_step(Some(4), true, 5), ScrubStep::Runs);
        assert_eq!(
            (scrub_step(Some(5), true, 5), scrub_step(Some(5), false, 5)),
            (ScrubStep::Nothing, ScrubStep::Nothing)
        );
    }
}
