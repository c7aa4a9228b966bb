//! `weir daemon`: the process that keeps every imported pool open and serves what their properties say.
//!
//! ```text
//!   zpool create, import ─► daemon.sock ─► Daemon::adopt ─► PoolProcess: commands find the pool
//!                                              │       └──► Service: NFS, NBD on one port each, for all pools
//!                                              └──────────► cache file: imported again at the next start
//! ```
//!
//! - `alerts`: conditions of pools and jobs that are sent to programs, web addresses and mail
//! - `configuration`: the one TOML file
//! - `jobs`: scheduled snapshots and scrubs
//! - `keeper`: pools that are opened, served and closed, while others are served
//! - `opening`: pools that are being opened now
//! - `remembered`: pools of the cache file, imported at the start, and later if their devices appear
//! - `pool_log`: log lines about devices and exports
//! - `run`: start, signals, end
//! - `notify`: systemd's readiness protocol
//! - `status`: `weir daemon status`
//! - `tokens`: `weir daemon token`: tokens of the page, and their roles
//!
//! **Order at the start:** lock, administration socket, import of the remembered pools, listeners, ready. Clients of a pool
//! that is remembered but cannot be opened yet get the error "try again", so that their mounts survive.
//!
//! **Order at the end:** no new connections, answers to the calls in progress, a last txg of each pool, exit. The pools are not
//! exported: the next start imports them. A crash leaves the same state, except that intent logs are replayed.

mod alerts;
mod configuration;
mod jobs;
mod keeper;
mod notify;
mod opening;
mod pool_log;
mod remembered;
mod run;
mod status;
mod tokens;

pub use keeper::Daemon;
pub use opening::OpeningGuard;
pub use status::utc;

use crate::admin;
use crate::args::CommandLine;
use crate::call::{Call, errln, outln};
use crate::failure::Failure;
use crate::json;
use crate::options::JsonOptions;
use alerts::Alerts;
use clap::{Parser, Subcommand};
pub(crate) use configuration::Configuration;
use serde_json::Value;
use std::path::PathBuf;

/// Keep every imported pool open and serve it, until stopped.
///
/// The daemon imports the pools of the cache file. While it runs, zpool create and import open pools in it, and all commands
/// go to it. Root's daemon uses /run/weir, /var/lib/weir and /etc/weir; an ordinary user's daemon uses the user's own
/// directories.
#[derive(Debug, Parser)]
#[command(
    name = "weir daemon",
    override_usage = "weir daemon [--config FILE] [--check]\n       weir daemon status [-j [--json-int]]\n       weir daemon alerts [-j]\n       weir daemon alerts ack|mute|test …\n       weir daemon job list|add|remove|run …\n       weir daemon token add|list|revoke …\n       weir daemon reload|stop"
)]
pub struct DaemonArgs {
    /// Configuration file [default: weir.toml in the configuration directory, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and do nothing
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<DaemonCommand>,
}

#[derive(Debug, Subcommand)]
enum DaemonCommand {
    Status(StatusArgs),
    Alerts(AlertsArgs),
    Job(jobs::JobArgs),
    Token(tokens::TokenArgs),
    Reload(ReloadArgs),
    Stop(StopArgs),
    #[command(hide = true)]
    Renew(RenewArgs),
}

/// Show pools, exports, clients, memory limits and ports of the daemon.
#[derive(Debug, Parser)]
#[command(name = "weir daemon status", override_usage = "weir daemon status [-j [--json-int]]")]
pub struct StatusArgs {
    #[command(flatten)]
    json: JsonOptions,
}

/// Show the alerts, what was sent last, and whether it was delivered.
#[derive(Debug, Parser)]
#[command(
    name = "weir daemon alerts",
    override_usage = "weir daemon alerts [-j [--json-int]]\n       weir daemon alerts ack ALERT\n       weir daemon alerts mute ALERT [--hours N]\n       weir daemon alerts test"
)]
pub struct AlertsArgs {
    #[command(flatten)]
    json: JsonOptions,
    #[command(subcommand)]
    change: Option<AlertsCommand>,
}

#[derive(Debug, Subcommand)]
enum AlertsCommand {
    /// Send no more reminders of an alert
    #[command(override_usage = "weir daemon alerts ack ALERT")]
    Ack {
        /// Name of the alert, such as pool:tank
        alert: String,
    },
    /// Send nothing about an alert for some time
    #[command(override_usage = "weir daemon alerts mute ALERT [--hours N]")]
    Mute {
        /// Name of the alert, such as pool:tank
        alert: String,
        /// Number of hours; 0 ends the silence
        #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=8760))]
        hours: u32,
    },
    /// Send a message to every receiver, to try them
    #[command(override_usage = "weir daemon alerts test")]
    Test,
}

/// Read the configuration again, and try to open the missing pools.
#[derive(Debug, Parser)]
#[command(name = "weir daemon reload", override_usage = "weir daemon reload")]
pub struct ReloadArgs {}

/// Read the CHAP users again ('weir user' sends it to every process that serves).
#[derive(Debug, Parser)]
#[command(name = "weir daemon renew", override_usage = "weir daemon renew")]
pub struct RenewArgs {}

/// Stop the daemon, and wait until its pools are closed.
#[derive(Debug, Parser)]
#[command(name = "weir daemon stop", override_usage = "weir daemon stop")]
pub struct StopArgs {}

/// Runs the command as this process, and returns its exit code.
pub fn run(args: &DaemonArgs, call: &Call) -> u8 {
    let done = match &args.command {
        None => start(args),
        Some(_) if args.config.is_some() || args.check => {
            Err(DaemonArgs::misused("--config and --check belong to 'weir daemon' alone"))
        }
        Some(command) => ask(call, command),
    };
    call.begin();
    done.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        failure.code
    })
}

fn start(args: &DaemonArgs) -> Result<u8, Failure> {
    let configuration = Configuration::load(args.config.as_deref())?;
    let (machine, disks) = crate::stores::serving_machine()?;
    let checked = run::Settings::of(&configuration, &machine.clock)?;
    if args.check {
        if checked.limits.exceed_memory() {
            eprintln!(
                "warning: arc_max and dirty_max exceed the memory: the kernel may kill the daemon; {}",
                checked.limits
            );
        }
        checked.unreadable_dirs().iter().for_each(|line| eprintln!("warning: {line}"));
        match &configuration.path {
            Some(path) => println!("{}: no errors", path.display()),
            None => println!("no configuration file: the defaults are used"),
        }
        return Ok(0);
    }
    run::run(machine, disks.disks().clone(), checked, args.config.clone())
}

/// Sends a command to the daemon that runs.
fn ask(call: &Call, command: &DaemonCommand) -> Result<u8, Failure> {
    let daemon = admin::daemon().ok_or_else(|| {
        if let Some(daemon) = admin::readers_daemon() {
            return admin::denied(&daemon);
        }
        let places = crate::directories::described_runtime();
        Failure::failed(format!("no daemon is running: there is no socket in {}", places.join(", ")))
    })?;
    let code = admin::ask(call, &daemon)?;
    if code == 0 && matches!(command, DaemonCommand::Stop(_)) {
        run::wait_for_end(call, daemon.pid)?;
    }
    Ok(code)
}

/// Runs a command of another process in this one, which should be the daemon.
pub fn carry_out(call: &Call, args: &DaemonArgs) -> u8 {
    let daemon = call.process().and_then(|process| process.daemon());
    if let Some(DaemonCommand::Renew(_)) = &args.command {
        // `weir serve` shares, too.
        call.served_pools().iter().for_each(|pool| pool.renew_users());
        return 0;
    }
    let done = match (daemon, &args.command) {
        (Some(daemon), Some(DaemonCommand::Status(args))) => status::show(call, &daemon, args),
        (Some(daemon), Some(DaemonCommand::Alerts(args))) => show_alerts(call, &daemon.alerts, args),
        (Some(daemon), Some(DaemonCommand::Job(args))) => jobs::run_command(call, &daemon, args),
        (Some(daemon), Some(DaemonCommand::Token(args))) => tokens::run(call, &daemon, args),
        (Some(daemon), Some(DaemonCommand::Reload(_))) => call.machine().and_then(|machine| {
            let what = machine.block_on(daemon.reload())?;
            for line in &what {
                match line {
                    Ok(line) => outln!(call, "{line}"),
                    Err(line) => errln!(call, "{line}"),
                }
            }
            Ok(u8::from(what.iter().any(Result::is_err)))
        }),
        (Some(daemon), Some(DaemonCommand::Stop(_))) => {
            daemon.stop("'weir daemon stop'");
            Ok(0)
        }
        _ => Err(Failure::failed("this process is not the daemon")),
    };
    done.unwrap_or_else(|failure| {
        errln!(call, "{failure}");
        failure.code
    })
}

/// Shows or changes the alerts.
fn show_alerts(call: &Call, alerts: &Alerts, args: &AlertsArgs) -> Result<u8, Failure> {
    let numbers = args.json.numbers::<AlertsArgs>()?;
    match &args.change {
        Some(_) if args.json.json => return Err(AlertsArgs::misused("-j belongs to the list of alerts")),
        Some(AlertsCommand::Ack { alert }) => alerts.acknowledge(alert).map_err(Failure::failed)?,
        Some(AlertsCommand::Mute { alert, hours }) => alerts.mute(alert, *hours).map_err(Failure::failed)?,
        Some(AlertsCommand::Test) => {
            let count = alerts.test().map_err(Failure::failed)?;
            outln!(
                call,
                "a message for {count} receivers is on its way: 'weir daemon alerts' shows whether it arrived"
            );
        }
        None if args.json.json => {
            let mut answer = json::frame("weir daemon alerts");
            if let Value::Object(object) = alerts::object(alerts) {
                answer.extend(status::with_numbers(object, numbers));
            }
            json::print(call, answer);
        }
        None => outln!(call, "{}", alerts::text(alerts)),
    }
    Ok(0)
}
