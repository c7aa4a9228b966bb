//! Commands and their results as messages between the process that a user called and the one that has the pool open.
//!
//! ```text
//!   {"pool":"tank","line":"zfs promote tank/b","action":{"change":{"change":"promote","name":"tank/b"}}}
//!   {"done":"changed"}
//!   {"refused":{"kind":"missing","why":"dataset does not exist"}}
//! ```
//!
//! Messages are decoded strictly: an unknown field or variant is an error, so that no part of a command is ignored.

use crate::change::{Author, Change};
use crate::destroy::Destruction;
use crate::observation::observe;
use crate::pool::{self, FreeingProgress, Host, PoolChange, ProcessChange, ScrubProgress};
use crate::program::{LuaProgram, ProgramEnd};
use crate::properties::JsonKind;
use crate::query::{query_target, rows_target};
use crate::refusal::{Refusal, RefusalKind};
use crate::sharing::{check_named, check_names, set_by};
use serde::{Deserialize, Serialize};
use weir_analytics::{DatasetNames, PoolObservation, Sample, paths};
use weir_dsl::Scope;
use weir_dsl::props::DatasetKind;
use weir_engine::Engine;
use weir_engine::read_only::READ_ONLY;
use weir_format::ObjsetKind;
use weir_machine::Request;
use weir_pool::PoolError;

/// A command on a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Name of the pool.
    pub pool: String,
    /// The user's command line for the pool's history; empty if it is there already.
    pub line: String,
    /// The work.
    pub action: Action,
}

/// The work of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Changes datasets. The mounts of the process follow.
    Change(Change),
    /// Changes datasets, and leaves the mounts of the process as they are (`-u`).
    ChangeWithoutMounts(Change),
    /// Changes the pool.
    Pool(PoolChange),
    /// Changes what the process that has the pool open does.
    Process(ProcessChange),
    /// Forgets all events of the pool.
    ClearEvents,
    /// Finds the last scrub.
    Scrub,
    /// Finds how far destroyed datasets are freed.
    Freeing,
    /// Reads all counters of the pool.
    Sample,
    /// Looks up the paths of files.
    Paths {
        /// Object sets and objects; those beyond [`weir_analytics::MAX_PATHS`] have none.
        files: Vec<(u64, u64)>,
    },
    /// Reads all counters of the pool now and some time ago, and its state.
    Observe {
        /// Seconds before now.
        seconds: u64,
    },
    /// Finds what a destruction would destroy.
    Plan(Destruction),
    /// Runs a program in one txg.
    Program(LuaProgram),
    /// Finds the kind of a dataset or snapshot.
    Kind {
        /// Full name.
        name: String,
    },
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The change is on stable storage.
    Changed,
    /// All events were forgotten.
    ClearedEvents {
        /// Number of them.
        count: usize,
    },
    /// The last scrub, if there was one.
    Scrub(Option<ScrubProgress>),
    /// Destroyed datasets that are being freed in the background; `None` if there are none.
    Freeing(Option<FreeingProgress>),
    /// The counters of the pool at an instant.
    Sample(Box<Sample>),
    /// Paths of files, in the order of the question; `None` for one that has none.
    Paths(Vec<Option<String>>),
    /// Counters of the pool at two instants, and its state.
    Observation(Box<PoolObservation>),
    /// Snapshots and datasets that would be destroyed.
    Destroys {
        /// Full names of datasets and snapshots in their order.
        names: Vec<String>,
        /// Bytes that would be freed with the snapshots; `None` if whole datasets are destroyed.
        reclaimed_bytes: Option<u64>,
    },
    /// The kind of a dataset.
    #[serde(with = "JsonKind")]
    Kind(DatasetKind),
    /// How a program ended; what it changed is on stable storage.
    Program(Box<ProgramEnd>),
    /// All rows of a query were sent.
    Rows,
}

/// Why a suspended pool is not changed.
const SUSPENDED: &str = "pool I/O is currently suspended\n'zpool clear' resumes it when its devices are back";

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The command was carried out.
    Done(Outcome),
    /// The command was refused or failed.
    Refused(Refusal),
}

impl From<Result<Outcome, Refusal>> for Answer {
    fn from(result: Result<Outcome, Refusal>) -> Self {
        match result {
            Ok(outcome) => Answer::Done(outcome),
            Err(refusal) => Answer::Refused(refusal),
        }
    }
}

impl From<Answer> for Result<Outcome, Refusal> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Done(outcome) => Ok(outcome),
            Answer::Refused(refusal) => Err(refusal),
        }
    }
}

impl Command {
    /// Decodes a command.
    ///
    /// # Errors
    /// The reason why the text is no command.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Encodes the command.
    ///
    /// # Errors
    /// If a value cannot be written as JSON; those of commands can.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Carries the command out on the pool that it names. `author` has the command line.
    ///
    /// # Errors
    /// The reason why it is refused or failed.
    pub async fn run(self, host: &impl Host, author: &mut Author) -> Result<Outcome, Refusal> {
        let name = host.engine().name();
        if self.pool != name && self.pool != host.engine().shown().config.guid.to_string() {
            return Err(Refusal::new(RefusalKind::OtherPool, format!("this process has pool '{name}' open")));
        }
        self.action.run(host, author).await
    }
}

impl Answer {
    /// Decodes an answer.
    ///
    /// # Errors
    /// The reason why the text is no answer.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Encodes the answer.
    ///
    /// # Errors
    /// If a value cannot be written as JSON; those of answers can.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

impl Action {
    /// Carries the action out on an open pool.
    ///
    /// # Errors
    /// The reason why it is refused or failed.
    pub async fn run(self, host: &impl Host, author: &mut Author) -> Result<Outcome, Refusal> {
        let engine = host.engine();
        if engine.is_read_only() && self.changes_pool() {
            return Err(PoolError::Refused { what: READ_ONLY.into() }.into());
        }
        // It would wait for 'zpool clear', and then be carried out for a caller who may have gone away (`POOL_CHECK_SUSPENDED`).
        if self.waits_for_txgs() && engine.cache.blocks().tree().suspension().reason().is_some() {
            return Err(Refusal::new(RefusalKind::Pool, SUSPENDED));
        }
        match self {
            Action::Pool(change) => change.run(engine, author).await.map(|()| Outcome::Changed),
            Action::Process(change) => change.run(host, author).await.map(|()| Outcome::Changed),
            Action::ClearEvents => Ok(Outcome::ClearedEvents { count: engine.events.clear() }),
            Action::Scrub => pool::scrub(host).await.map(Outcome::Scrub),
            Action::Freeing => Ok(Outcome::Freeing(pool::freeing(engine))),
            Action::Sample => Ok(Outcome::Sample(Box::new(DatasetNames::sample(engine).await))),
            Action::Paths { files } => Ok(Outcome::Paths(paths(engine, &files).await)),
            Action::Observe { seconds } => {
                observe(host, seconds).await.map(|seen| Outcome::Observation(Box::new(seen)))
            }
            Action::Change(change) => Self::change(change, host, author, false).await,
            Action::ChangeWithoutMounts(change) => Self::change(change, host, author, true).await,
            Action::Plan(destruction) => {
                let plan = destruction.plan(engine).await?;
                let names = plan.into_iter().flat_map(|step| step.snapshots.into_iter().chain(step.head)).collect();
                Ok(Outcome::Destroys { names, reclaimed_bytes: destruction.reclaimed_bytes(engine).await? })
            }
            Action::Program(program) => {
                let end = host.run_program(program, author.monitor.clone()).await?;
                if matches!(end, ProgramEnd::Returned(_)) {
                    author.record(engine)?;
                }
                Ok(Outcome::Program(Box::new(end)))
            }
            Action::Kind { name } => kind_of(engine, &name).await.map(Outcome::Kind),
        }
    }

    /// Whether the action ends only when a txg has synced.
    fn waits_for_txgs(&self) -> bool {
        match self {
            Action::Pool(change) => !matches!(change, PoolChange::Clear { .. }),
            // It has a rule of its own.
            Action::Process(ProcessChange::Close { .. }) => false,
            other => other.changes_pool(),
        }
    }

    /// Whether the action changes what the pool stores.
    fn changes_pool(&self) -> bool {
        match self {
            // As in OpenZFS, also a program that changes nothing.
            Action::Change(_) | Action::ChangeWithoutMounts(_) | Action::Program(_) => true,
            Action::Pool(change) => !matches!(change, PoolChange::Sync { .. } | PoolChange::Clear { .. }),
            Action::Process(change) => !matches!(change, ProcessChange::Close { destroyed: false, .. }),
            _ => false,
        }
    }

    /// Changes datasets, between the steps that end and make mounts.
    async fn change(
        change: Change,
        host: &impl Host,
        author: &mut Author,
        leaves_mounts: bool,
    ) -> Result<Outcome, Refusal> {
        let named = check_named(&host.engine().machine, || host.chap_users(), set_by(&change)).await;
        named.and_then(|()| check_names(host, &change)).map_err(|why| Refusal::new(RefusalKind::Property, why))?;
        let effect = match &change {
            Change::Destroy { what } => what.mount_effect(host.engine()).await?,
            change => change.mount_effect(),
        };
        let Some(effect) = effect else {
            return change.run(host.engine(), author).await.map(|()| Outcome::Changed);
        };
        let suspended = host.prepare_mounts(&effect, leaves_mounts).await?;
        let done = change.run(host.engine(), author).await;
        let settled = host.settle_mounts(&effect, leaves_mounts, suspended).await;
        done.and(settled).map(|()| Outcome::Changed)
    }
}

impl From<Change> for Action {
    fn from(change: Change) -> Self {
        Action::Change(change)
    }
}

async fn kind_of(engine: &Engine, name: &str) -> Result<DatasetKind, Refusal> {
    let rq = &Request::internal("kind");
    let dsl = engine.synced().dsl_in(rq, Scope::Path(name)).await?;
    let of = name.split('@').next().unwrap_or(name);
    let dir = dsl.dir_named(of).ok_or_else(Refusal::missing)?;
    if name.contains('@') {
        return dsl.find(rq, name).await.map(|_| DatasetKind::Snapshot).map_err(|_| Refusal::missing());
    }
    match dsl.kind(rq, dir).await.map_err(PoolError::from)? {
        ObjsetKind::Zvol => Ok(DatasetKind::Volume),
        _ => Ok(DatasetKind::Filesystem),
    }
}

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz targets of this crate: each must return for any input, in time and memory bounded by the input's length.
pub const TARGETS: &[Target] = &[
    ("admin_command", command_target),
    ("admin_answer", answer_target),
    ("admin_query", query_target),
    ("admin_rows", rows_target),
];

fn command_target(data: &[u8]) {
    if let Ok(command) = Command::from_json(data) {
        let again = command.to_json().and_then(|bytes| Command::from_json(&bytes));
        assert_eq!(again.ok(), Some(command));
    }
}

fn answer_target(data: &[u8]) {
    if let Ok(answer) = Answer::from_json(data) {
        let again = answer.to_json().and_then(|bytes| Answer::from_json(&bytes));
        assert_eq!(again.ok(), Some(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_answers_convert_to_json_and_back() {
        let command = Command {
            pool: "tank".into(),
            line: "zfs promote tank/b".into(),
            action: Action::Change(Change::Promote { name: "tank/b".into() }),
        };
        let json = concat!(
            r#"{"pool":"tank","line":"zfs promote tank/b","#,
            r#""action":{"change":{"change":"promote","name":"tank/b"}}}"#
        );
        assert_eq!(String::from_utf8(command.to_json().unwrap()).unwrap(), json);
        assert_eq!(Command::from_json(json.as_bytes()).unwrap(), command);
        let refused = Answer::Refused(Refusal::missing());
        let json = r#"{"refused":{"kind":"missing","why":"dataset does not exist"}}"#;
        assert_eq!(String::from_utf8(refused.to_json().unwrap()).unwrap(), json);
        for answer in [refused, Answer::Done(Outcome::Changed), Answer::Done(Outcome::Kind(DatasetKind::Volume))] {
            assert_eq!(Answer::from_json(&answer.to_json().unwrap()).unwrap(), answer);
        }
    }

    #[test]
    fn the_seeds_of_fuzzing_are_messages() {
        let seeds = |target: &str| {
            let folder = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
            let files = std::fs::read_dir(folder).unwrap();
            files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect::<Vec<_>>()
        };
        let commands = seeds("admin_command");
        let answers = seeds("admin_answer");
        assert!(commands.len() >= 9 && answers.len() >= 4);
        commands.iter().for_each(|json| drop(Command::from_json(json).unwrap()));
        answers.iter().for_each(|json| drop(Answer::from_json(json).unwrap()));
    }

    #[test]
    fn unknown_parts_are_errors() {
        for json in [
            r#"{"pool":"p","line":"","action":{"change":{"change":"promote","name":"p/a","force":true}}}"#,
            r#"{"pool":"p","line":"","action":{"change":{"change":"destroy_everything"}}}"#,
            r#"{"pool":"p","line":"","more":1,"action":{"kind":{"name":"p"}}}"#,
            r#"{"pool":"p","action":{"kind":{"name":"p"}}}"#,
            "",
            "[[[[[[[[",
        ] {
            assert!(Command::from_json(json.as_bytes()).is_err(), "{json}");
        }
        assert!(Command::from_json("[".repeat(1 << 20).as_bytes()).is_err(), "deep nesting is bounded");
    }
}
