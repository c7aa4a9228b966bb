//! `weir bench`: measures storage, and compares measurements.

mod compare;
mod experiments;
mod filler;
mod in_process;
mod methods;
mod mixes;
mod powercut;
mod prepare;
mod progress;
mod results;
mod server;
mod subject;

pub use results::read as read_result;

use crate::failure::Failure;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use subject::PoolOptions;

/// Measure storage, and compare measurements.
///
/// The target is a directory (of any file system: a pool's, an NFS or SMB mount), a file, a block device, the name of a dataset
/// (POOL/DATASET), or one of these:
///
///   nbd://HOST[:PORT]/EXPORT
///   iscsi://[USER@]HOST[:PORT]/IQN/LUN[?password-file=FILE]
///   nfs://HOST[:PORT]/EXPORT
///   smb://[USER@]HOST[:PORT]/SHARE[/DIRECTORY][?password-file=FILE] (sequential streams only)
///
/// A dataset is measured in this process, which opens its pool: without protocol and mount. A word that exists as a path is the
/// path; with -d it is a dataset.
///
/// fio carries the load, or clients of Weir's own for datasets, iSCSI and NFS, and smbclient for SMB. A password is in a file or in
/// WEIR_BENCH_PASSWORD. Each run leaves a directory with result.json, report.html and fio's job files, and begins with the reasons not
/// to believe its figures.
#[derive(Debug, Parser)]
#[command(name = "weir bench", verbatim_doc_comment, override_usage = "weir bench METHOD TARGET [OPTION]…")]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

/// Methods, and what is done with their results.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    Quick(methods::QuickArgs),
    Stream(methods::StreamArgs),
    Users(methods::UsersArgs),
    Grid(methods::GridArgs),
    Loop(methods::LoopArgs),
    Singlestream(methods::SinglestreamArgs),
    Fileserver(mixes::FileserverArgs),
    Varmail(mixes::VarmailArgs),
    Webserver(mixes::WebserverArgs),
    Oltp(mixes::OltpArgs),
    Frames(methods::FramesArgs),
    List(methods::ListArgs),
    Device(methods::DeviceArgs),
    Services(methods::ServicesArgs),
    Experiments(experiments::ExperimentsArgs),
    Powercut(powercut::PowercutArgs),
    Compare(compare::CompareArgs),
    Show(results::ShowArgs),
    Report(results::ReportArgs),
    Resume(results::ResumeArgs),
}

/// Options of all methods.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Number of rounds; a comparison of runs of quick needs six
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// Directory for the results [default: weir-bench-METHOD-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Allow to write over the data of a file, device, export or unit
    #[arg(long)]
    overwrite: bool,
    /// Leave the test files in the target
    #[arg(long)]
    keep: bool,
    /// Do not measure ceilings of client, memory and disk first
    #[arg(long)]
    no_ceilings: bool,
    /// Print the result as JSON instead of text
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    pool: PoolOptions,
}

/// Runs the command.
pub fn run(args: &BenchArgs, words: &[String]) -> Result<u8, Failure> {
    match &args.command {
        BenchCommand::Experiments(args) => experiments::run(args),
        BenchCommand::Compare(args) => compare::run(args, words),
        BenchCommand::Show(args) => results::show(args),
        BenchCommand::Report(args) => results::report(args),
        BenchCommand::Resume(args) => results::resume(args),
        _ => methods::run(args, words),
    }
}

/// A size on a command line.
fn size(text: &str) -> Result<u64, String> {
    crate::size::parse(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a size is a number with a unit, such as 4K or 10G".to_owned())
}

/// A time on a command line, in seconds: `90`, `90s`, `5m`, `3h`.
fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.trim_end_matches(['s', 'm', 'h']) {
        number if number.len() + 1 >= text.len() => (number, &text[number.len()..]),
        _ => (text, ""),
    };
    let factor = match unit {
        "m" => 60,
        "h" => 3600,
        _ => 1,
    };
    let seconds = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|s| (1..=31_536_000).contains(s));
    seconds.ok_or_else(|| "a time is a number with s, m or h, such as 90s or 3h".to_owned())
}

fn failed(error: weir_lab::LabError) -> Failure {
    match error {
        weir_lab::LabError::Parameter(what) => Failure::usage(format!("weir bench: {what}")),
        other => Failure::failed(format!("weir bench: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("5m"), Ok(300));
        assert_eq!(seconds("24h"), Ok(86_400));
        for wrong in ["", "h", "5ms", "0", "-3", "1d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
