//! Administration: actions of the page, as command lines that the process itself carries out.
//!
//! ```text
//!   POST /api/v1/admin/preview ─► PageAction ─► dry run: read-only command lines ─► what would go, confirmation
//!   POST /api/v1/admin/act     ─► PageAction ─► role, confirmation, the same dry run ─► CommandLine
//!                                                                                        │ Administration::run
//!                         answer ◄── Ran { code, out, err } ◄── the parser and function of the command line
//!                         audit log: time, token, role, client, command, result
//!   GET send, POST receive     ─► streams as files: see [`streams`]
//! ```
//!
//! The page knows no operation of its own: `weir-admin`'s commands are made by the parser that a terminal uses, in the process that
//! has the pool open. So the page can do nothing that the command line cannot, by the same checks, with the same messages.
//!
//! *What protects an action.* It is a POST with a body of JSON; the token is in the `Authorization` header, or in the cookie
//! together with a header that other sites cannot send; an `Origin` must be this server's. A token has a role. What cannot be undone
//! needs a confirmation of its dry run.

mod action;
mod audit;
mod confirm;
mod dry_run;
mod guard;
mod host;
pub(crate) mod lights;
mod lines;
pub(crate) mod routes;
pub(crate) mod streams;
mod tokens;
pub(crate) mod views;
mod words;

pub use action::{JobWork, PageAction, Role, ScrubStep, WorkStep};
pub use audit::Audit;
pub use streams::STALL_TIME;
pub use tokens::{Access, Identity, NamedToken, OWN_NAME};
pub use words::{CommandLine, NewVdev, Setting, VdevKind};

pub(crate) use guard::{Peer, check_action, check_upload};

use axum::body::Bytes;
use confirm::Confirmations;
use futures_util::future::BoxFuture;
use host::HostCounters;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use utoipa::{IntoParams, ToSchema};
use weir_machine::Machine;
use weir_machine::lock::Mutex;

/// Commands of the page at the same time, actions and reads; further ones wait.
const MAX_COMMANDS: usize = 8;
/// Least time between two counters of the machine whose difference is shown.
const MIN_HOST_INTERVAL: Duration = Duration::from_secs(2);

/// A passphrase or key in hexadecimal digits. It is in no log, and no part of a command line.
#[derive(Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text, as it is typed.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// End of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Exit code.
    pub code: u8,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A device that a pool could use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Device {
    /// Absolute path.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Contents in words: a pool, or none that is known.
    pub contents: String,
    /// Whether a pool that is open has it.
    pub in_use: bool,
}

/// Health of a disk, as the disk itself judges it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Smart {
    /// Whether the disk says that it is healthy; `None` if it does not say.
    pub passed: Option<bool>,
    /// Temperature in degrees Celsius.
    pub celsius: Option<i64>,
    /// Hours under power.
    pub power_on_hours: Option<u64>,
    /// Counters that a healthy disk has not, in words.
    pub findings: Vec<String>,
}

/// A disk of an open pool, or a device that a pool could use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Disk {
    /// Absolute path; of a disk of a pool as the pool knows it.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Contents in words.
    pub contents: String,
    /// Model.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Whether it is a hard disk; `None` for a file.
    pub rotates: Option<bool>,
    /// Health.
    pub smart: Option<Smart>,
    /// Why it is not known.
    pub smart_problem: Option<String>,
}

/// Layout whose usable space is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LayoutQuery {
    /// `stripe`, `mirror`, `raidz1`, `raidz2` or `raidz3`.
    #[param(inline)]
    pub kind: VdevKind,
    /// Devices of a vdev.
    pub disks: usize,
    /// Vdevs.
    pub vdevs: usize,
    /// Size of the smallest device, in bytes.
    pub disk_bytes: u64,
}

/// Usable space of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsableSpace {
    /// All devices.
    pub raw_bytes: u64,
    /// USED and AVAIL of `zfs list` of the empty pool together, by the planner's arithmetic for sectors of 4 KiB.
    pub usable_bytes: u64,
    /// Part of it that stays free for administration.
    pub slop_bytes: u64,
    /// Devices of each vdev that may fail without loss.
    pub redundancy: usize,
}

/// The end of a stream that a command writes or reads.
pub enum StreamEnd {
    /// Takes the standard output. The command ends early if nothing takes it, or a chunk is not taken within [`STALL_TIME`].
    Output(mpsc::Sender<Vec<u8>>),
    /// Gives the standard input, which ends with the channel.
    Input(mpsc::Receiver<Bytes>),
}

/// The process that has the pools open, as the page uses it.
pub trait Administration: Send + Sync {
    /// Runs a command line as its parser does, to its end. Its questions for a line of input are answered with the secret, and
    /// with nothing if there is none.
    fn run<'a>(&'a self, line: &'a CommandLine, secret: Option<&'a Secret>) -> BoxFuture<'a, Ran>;

    /// Runs a command line that writes or reads a stream, to its end. What it prints beside is in the result.
    fn stream<'a>(&'a self, line: &'a CommandLine, end: StreamEnd) -> BoxFuture<'a, Ran>;

    /// A line for each device: its path, size, and the pool on it if there is one.
    fn contents<'a>(&'a self, devices: &'a [String]) -> BoxFuture<'a, Vec<String>>;

    /// Devices of this machine that a pool could use, or the one at a path.
    fn devices(&self, path: Option<String>) -> BoxFuture<'_, Vec<Device>>;

    /// Disks of the open pools, and devices of this machine that a pool could use.
    fn disks(&self) -> BoxFuture<'_, Vec<Disk>>;

    /// Usable space of a layout.
    ///
    /// # Errors
    /// If there is no such layout.
    fn usable_space(&self, layout: &LayoutQuery) -> Result<UsableSpace, String>;

    /// The last lines of the log, the oldest first.
    fn log(&self) -> Vec<String>;

    /// The time of day, in UTC, as text.
    fn time(&self) -> String;
}

/// Administration of a process by those who have a token.
pub struct Administrator {
    pub(crate) machine: Machine,
    pub(crate) administration: Arc<dyn Administration>,
    pub(crate) audit: Audit,
    confirmations: Confirmations,
    running: Semaphore,
    /// Places for streams.
    streams: Arc<Semaphore>,
    /// Held from the check of a confirmation to the end of its action.
    confirmed: Semaphore,
    /// Counters of the machine at two looks, the older first.
    host: Mutex<[Option<HostCounters>; 2]>,
}

impl Administrator {
    /// Administration through a process, with its audit log.
    pub fn new(machine: &Machine, administration: Arc<dyn Administration>, audit: Audit) -> Arc<Self> {
        Arc::new(Administrator {
            machine: machine.clone(),
            administration,
            audit,
            confirmations: Confirmations::default(),
            running: Semaphore::new(MAX_COMMANDS),
            streams: Arc::new(Semaphore::new(streams::MAX_STREAMS)),
            confirmed: Semaphore::new(1),
            host: Mutex::default(),
        })
    }

    /// Keeps the counters of the machine, and returns earlier ones: those of at least [`MIN_HOST_INTERVAL`] ago, if there are any.
    pub(crate) fn replace_host(&self, now: &HostCounters) -> Option<HostCounters> {
        let mut kept = self.host.lock();
        let [older, newer] = &mut *kept;
        if newer.as_ref().is_none_or(|newer| newer.age(now) >= MIN_HOST_INTERVAL) {
            *older = newer.replace(now.clone());
        }
        newer.as_ref().filter(|newer| newer.age(now) >= MIN_HOST_INTERVAL).or(older.as_ref()).cloned()
    }

    /// Runs a command line when it is its turn.
    pub(crate) async fn run(&self, line: &CommandLine) -> Ran {
        self.run_with(line, None).await
    }

    /// Runs a command line that may ask for a secret.
    async fn run_with(&self, line: &CommandLine, secret: Option<&Secret>) -> Ran {
        // The semaphore is never closed.
        let _place = self.running.acquire().await;
        self.administration.run(line, secret).await
    }
}

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz targets of this crate: each must return for any input, in time and memory bounded by the input's length.
pub const TARGETS: &[Target] = &[("web_action", action_target), ("web_tokens", tokens_target)];

fn action_target(data: &[u8]) {
    let Ok(action) = PageAction::from_json(data) else { return };
    let Ok(line) = action.line() else { return };
    // No value of a client is an option: those that are come from here.
    let text = line.to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
    let options = ["-r", "-R", "-s", "-c", "-o", "-O", "-V", "-p", "-f", "-d", "--hours", "-i", "-w", "-Lec", "-u"];
    let of_jobs = [
        "--replace",
        "--keep",
        "--keep-target",
        "--lag-seconds",
        "--limit",
        "--schedule",
        "--time-zone",
        "--snapshot",
        "--scrub",
        "--replicate",
        "--to",
    ];
    let wrong = line
        .words
        .iter()
        .find(|word| word.starts_with('-') && !options.iter().chain(&of_jobs).any(|option| option == word));
    assert_eq!(wrong, None);
}

fn tokens_target(data: &[u8]) {
    if let Some(named) = tokens::parse(data) {
        let text = serde_json::to_vec(&named).unwrap_or_default();
        assert_eq!(tokens::parse(&text), Some(named));
    }
}

#[cfg(test)]
mod tests;
