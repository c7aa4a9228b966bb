//! `weir daemon job`: jobs beside those of the configuration, and runs out of turn.

use super::{JobText, run_now};
use crate::call::{Call, errln, outln};
use crate::daemon::keeper::Daemon;
use crate::daemon::status::{job_line, job_object, with_numbers};
use crate::failure::Failure;
use crate::json;
use crate::options::JsonOptions;
use clap::{Parser, Subcommand};
use serde_json::{Map, Value};
use std::sync::Arc;
use weir_dsl::Scope;
use weir_machine::Request;

/// List, add, remove and run scheduled jobs.
///
/// Jobs of weir.toml are listed and run, but changed only there.
#[derive(Debug, Parser)]
#[command(
    name = "weir daemon job",
    override_usage = "weir daemon job list [-j [--json-int]]\n       weir daemon job add NAME --schedule WHEN [--time-zone ZONE] [--replace] --snapshot DATASET… [-r] --keep N\n       weir daemon job add NAME --schedule WHEN … --scrub POOL…\n       weir daemon job add NAME --schedule WHEN … --replicate DATASET --to TARGET [-r] [--keep N] [--keep-target N] [--lag-seconds N] [--limit RATE] [--through COMMAND] [--target-zfs COMMAND]\n       weir daemon job remove NAME\n       weir daemon job run NAME"
)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// List the jobs with their last and next runs
    #[command(override_usage = "weir daemon job list [-j [--json-int]]")]
    List {
        #[command(flatten)]
        json: JsonOptions,
    },
    Add(Box<AddArgs>),
    /// Remove a job that was added by a command; what it made stays
    #[command(override_usage = "weir daemon job remove NAME")]
    Remove {
        /// Name of the job
        name: String,
    },
    /// Run a job now, whatever its schedule says
    #[command(override_usage = "weir daemon job run NAME")]
    Run {
        /// Name of the job
        name: String,
    },
}

/// Add a job, which the state directory keeps.
#[derive(Debug, Parser)]
#[command(
    override_usage = "weir daemon job add NAME --schedule WHEN [OPTION]… --snapshot DATASET… | --scrub POOL… | --replicate DATASET --to TARGET"
)]
struct AddArgs {
    /// Name of the job, which begins the names of its snapshots
    name: String,
    /// When: hourly, 'every 15 min', 'daily 02:30', 'weekly sun 03:00', 'monthly 1 03:00'
    #[arg(long, value_name = "WHEN")]
    schedule: String,
    /// Time zone of the schedule [default: that of the machine]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Replace the job of this name, if a command added it
    #[arg(long)]
    replace: bool,
    /// Dataset of which snapshots are taken; can be given several times
    #[arg(long, value_name = "DATASET")]
    snapshot: Vec<String>,
    /// Pool that is scrubbed; can be given several times
    #[arg(long, value_name = "POOL")]
    scrub: Vec<String>,
    /// Dataset that is replicated
    #[arg(long, value_name = "DATASET")]
    replicate: Option<String>,
    /// Target of the replication: a dataset, or HOST:DATASET
    #[arg(long, value_name = "TARGET")]
    to: Option<String>,
    /// Also the descendants
    #[arg(short)]
    recursive: bool,
    /// Number of snapshots that stay
    #[arg(long, value_name = "N")]
    keep: Option<u32>,
    /// Number of snapshots that stay at the target
    #[arg(long, value_name = "N")]
    keep_target: Option<u32>,
    /// Send an alert if the target's last snapshot is older than N seconds
    #[arg(long, value_name = "N")]
    lag_seconds: Option<u64>,
    /// Maximum bytes per second of the replication
    #[arg(long, value_name = "RATE")]
    limit: Option<String>,
    /// Command that reaches the target's machine [default: ssh]
    #[arg(long, value_name = "COMMAND")]
    through: Option<String>,
    /// The command zfs on the target's machine
    #[arg(long, value_name = "COMMAND")]
    target_zfs: Option<String>,
}

impl AddArgs {
    /// The job as a table of the configuration would say it.
    fn text(&self) -> JobText {
        let list = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone());
        JobText {
            name: self.name.clone(),
            snapshot: list(&self.snapshot),
            scrub: list(&self.scrub),
            replicate: self.replicate.clone(),
            to: self.to.clone(),
            limit: self.limit.clone(),
            keep_target: self.keep_target,
            lag_seconds: self.lag_seconds,
            through: self.through.clone(),
            target_zfs: self.target_zfs.clone(),
            recursive: self.recursive.then_some(true),
            schedule: self.schedule.clone(),
            time_zone: self.time_zone.clone(),
            keep: self.keep,
        }
    }
}

/// Why a job cannot work on a dataset or pool now.
async fn missing(daemon: &Daemon, name: &str) -> Option<String> {
    let pool = name.split('/').next().unwrap_or(name);
    let Some(served) = daemon.process.named(pool) else { return Some(format!("the pool '{pool}' is not open")) };
    let dsl = served.engine.synced().dsl_in(&Request::internal("job"), Scope::Path(name)).await.ok()?;
    dsl.dir_named(name).is_none().then(|| format!("there is no dataset '{name}'"))
}

/// Runs the command in the daemon.
///
/// # Errors
/// If the job is wrong, unknown, running, or one of the configuration, or the file of jobs cannot be written.
pub fn run(call: &Call, daemon: &Arc<Daemon>, args: &JobArgs) -> Result<u8, Failure> {
    match &args.command {
        JobCommand::Add(add) => {
            daemon.jobs.add(add.text(), add.replace).map_err(Failure::failed)?;
            for name in add.snapshot.iter().chain(&add.scrub).chain(&add.replicate) {
                if let Some(why) = call.machine()?.block_on(missing(daemon, name)) {
                    errln!(call, "warning: job '{}' was added, but {why}", add.name);
                }
            }
        }
        JobCommand::Remove { name } => daemon.jobs.remove(name).map_err(Failure::failed)?,
        JobCommand::Run { name } => {
            run_now(daemon, name).map_err(Failure::failed)?;
            outln!(call, "job {name} was started: 'weir daemon job list' shows how it ended");
        }
        JobCommand::List { json } => {
            let jobs = daemon.jobs.all().into_iter().map(|status| (status.job.name.clone(), job_object(status)));
            if json.json {
                let numbers = json.numbers::<JobArgs>()?;
                let mut answer = json::frame("weir daemon job list");
                let jobs = Value::Object(jobs.collect());
                answer.extend(with_numbers(Map::from_iter([("jobs".to_owned(), jobs)]), numbers));
                json::print(call, answer);
            } else {
                jobs.for_each(|(name, job)| outln!(call, "{}", job_line(&name, &job)));
            }
        }
    }
    Ok(0)
}
