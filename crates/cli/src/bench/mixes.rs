//! Command lines of filebench's mixes.

use super::{BenchCommand, Common, failed, seconds};
use crate::failure::Failure;
use clap::{Args, Parser};
use weir_lab::methods::filebench;
use weir_lab::native::mix::Personality;
use weir_lab::plan::Plan;

/// filebench's file server: create, append, read, delete and stat files.
#[derive(Debug, Parser)]
#[command(name = "fileserver", override_usage = "weir bench fileserver DIRECTORY [OPTION]…")]
pub struct FileserverArgs {
    #[command(flatten)]
    mix: MixArgs,
}

/// filebench's mail server: small files, each write flushed.
#[derive(Debug, Parser)]
#[command(name = "varmail", override_usage = "weir bench varmail DIRECTORY [OPTION]…")]
pub struct VarmailArgs {
    #[command(flatten)]
    mix: MixArgs,
}

/// filebench's web server: read ten files, append to a log.
#[derive(Debug, Parser)]
#[command(name = "webserver", override_usage = "weir bench webserver DIRECTORY [OPTION]…")]
pub struct WebserverArgs {
    #[command(flatten)]
    mix: MixArgs,
}

/// filebench's database: 2K reads, flushed 2K writes, a log.
#[derive(Debug, Parser)]
#[command(name = "oltp", override_usage = "weir bench oltp DIRECTORY [OPTION]…")]
pub struct OltpArgs {
    #[command(flatten)]
    mix: MixArgs,
}

/// Options of a mix.
#[derive(Args, Debug)]
struct MixArgs {
    /// Directory
    target: String,
    /// Files, in percent of the published number
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    scale: u64,
    /// Threads [default: the published number; of oltp the readers, beside 10 writers and the log]
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// Length of the measurement
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = seconds)]
    time: u64,
    #[command(flatten)]
    common: Common,
}

/// The mix of a command, with its options.
fn mix(command: &BenchCommand) -> Option<(Personality, &MixArgs)> {
    match command {
        BenchCommand::Fileserver(args) => Some((Personality::Fileserver, &args.mix)),
        BenchCommand::Varmail(args) => Some((Personality::Varmail, &args.mix)),
        BenchCommand::Webserver(args) => Some((Personality::Webserver, &args.mix)),
        BenchCommand::Oltp(args) => Some((Personality::Oltp, &args.mix)),
        _ => None,
    }
}

/// Target and common options, if the command is a mix.
pub fn parts(command: &BenchCommand) -> Option<(&str, &Common)> {
    mix(command).map(|(_, args)| (args.target.as_str(), &args.common))
}

/// The plan, if the command is a mix.
///
/// # Errors
/// If options are out of bounds.
pub fn plan(command: &BenchCommand) -> Result<Option<Plan>, Failure> {
    let planned =
        mix(command).map(|(personality, args)| filebench::mix(personality, args.scale, args.threads, args.time));
    planned.transpose().map_err(failed)
}
