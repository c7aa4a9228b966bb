//! `weir bench compare`.

use super::methods::{default_folder, open, refuse_result};
use super::progress::Terminal;
use super::server::Server;
use super::subject::{PoolOptions, Subject};
use super::{Common, failed, results, seconds, size};
use crate::args::CommandLine;
use crate::failure::Failure;
use clap::Parser;
use std::path::{Path, PathBuf};
use weir_lab::compare::{Comparison, compare};
use weir_lab::result::RunResult;
use weir_lab::session::Session;
use weir_lab::{methods, run};

/// Compare results, or measure targets in turns and compare them.
///
/// Each argument is a run's directory or result.json, or all are targets; then the steps of 'quick' are measured on one after the other,
/// round by round. Everything is compared with the first.
#[derive(Debug, Parser)]
#[command(name = "compare", override_usage = "weir bench compare A B… [OPTION]…")]
pub struct CompareArgs {
    /// Results, or targets
    #[arg(required = true, num_args = 2..)]
    subjects: Vec<String>,
    /// Rounds, if targets are measured
    #[arg(long, value_name = "N", default_value_t = 8)]
    rounds: usize,
    /// Length of each measurement, if targets are measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = seconds)]
    time: u64,
    /// Bytes of test data, if targets are measured
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    size: u64,
    /// Directory for the results, if targets are measured [default: weir-bench-compare-TIME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Allow to write over the data of files, devices or exports
    #[arg(long)]
    overwrite: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
}

/// Runs the command. Exit code 130 if the measurement was stopped.
pub fn run(args: &CompareArgs, words: &[String]) -> Result<u8, Failure> {
    let are_results = args.subjects.iter().filter(|word| is_result(Path::new(word))).count();
    let (results, code): (Vec<RunResult>, u8) = match are_results {
        count if count == args.subjects.len() => {
            (args.subjects.iter().map(|word| results::read(Path::new(word))).collect::<Result<_, _>>()?, 0)
        }
        0 => measured(args, words)?,
        _ => return Err(CompareArgs::misused("results and targets cannot be mixed")),
    };
    let first = &results[0];
    let compared: Vec<Comparison> = results[1..]
        .iter()
        .zip(&args.subjects[1..])
        .map(|(result, name)| compare((&args.subjects[0], name), first, result))
        .collect();
    if args.json {
        let text =
            serde_json::to_string_pretty(&compared).map_err(|error| Failure::failed(format!("weir bench: {error}")))?;
        println!("{text}");
    } else {
        compared.iter().for_each(|comparison| print!("{comparison}"));
    }
    Ok(code)
}

/// Whether a path is a result or the directory of one.
fn is_result(path: &Path) -> bool {
    path.join("result.json").is_file()
        || path.is_file() && path.extension().is_some_and(|extension| extension == "json")
}

/// Measures all targets in turns.
fn measured(args: &CompareArgs, words: &[String]) -> Result<(Vec<RunResult>, u8), Failure> {
    let folder = args.output.clone().unwrap_or_else(|| default_folder("compare"));
    let common = Common {
        rounds: args.rounds,
        output: None,
        overwrite: args.overwrite,
        keep: false,
        no_ceilings: true,
        json: false,
        pool: PoolOptions::default(),
    };
    for number in 1..=args.subjects.len() {
        refuse_result(&folder.join(number.to_string()))?;
    }
    let mut sessions: Vec<Session> = Vec::new();
    for (number, word) in args.subjects.iter().enumerate() {
        let subject = Subject::outside(word)?;
        let plan = methods::quick(args.size, args.time, subject.target.holds_data() && !args.overwrite);
        sessions.push(open(plan, word, &subject, &common, folder.join((number + 1).to_string()), words)?);
    }
    let steps = sessions[0].steps();
    // Targets that share a server share its counters too.
    let mut server = Server::none();
    let mut terminal = Terminal::new(args.rounds, steps, sessions.len(), &mut server)?;
    let complete = run::run(&mut sessions, args.rounds, &mut terminal).map_err(failed)?;
    terminal.end();
    Ok((sessions.iter().map(|session| session.result().clone()).collect(), if complete { 0 } else { 130 }))
}
