//! `weir bench experiments`: repeats published experiments on modelled hardware.

use crate::failure::Failure;
use clap::Parser;
use serde_json::json;
use std::path::{Path, PathBuf};
use weir_lab::clock::Stopwatch;
use weir_planner::experiments::{Experiment, Line, Verdict};

/// Repeat published experiments on modelled hardware
///
/// Runs the engine in virtual time on drives, links and clients modelled like those of four published documents, and prints the
/// document's figures beside ours. A figure agrees within 25 %; a row is explained if it agrees once the named cause is removed. All
/// rows take about a quarter of an hour and need 4 GiB of memory.
#[derive(Debug, Parser)]
#[command(name = "experiments", override_usage = "weir bench experiments [OPTION]…")]
pub struct ExperimentsArgs {
    /// Run on modelled hardware only, which is the only kind
    #[arg(long)]
    modelled: bool,
    /// Ids of the experiments to run, with commas between them [default: all]
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Write the rows to this file as JSON, after each row
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the experiments, one after the other.
pub fn run(args: &ExperimentsArgs) -> Result<u8, Failure> {
    let all = Experiment::all();
    if let Some(unknown) = args.only.iter().find(|id| !all.iter().any(|known| known.id == **id)) {
        let ids: Vec<&str> = all.iter().map(|known| known.id).collect();
        return Err(Failure::usage(format!(
            "weir bench experiments: there is no experiment '{unknown}': {}",
            ids.join(" ")
        )));
    }
    let is_chosen = |experiment: &Experiment| args.only.is_empty() || args.only.iter().any(|id| id == experiment.id);
    let chosen: Vec<Experiment> = all.into_iter().filter(is_chosen).collect();
    let begun = Stopwatch::start();
    let mut lines: Vec<Line> = Vec::new();
    for (at, experiment) in chosen.iter().enumerate() {
        let left = begun.elapsed().as_secs() as usize * (chosen.len() - at) / at.max(1);
        let time = if at == 0 { String::new() } else { format!(", about {} left", minutes(left)) };
        eprintln!("experiment {} ({} of {}{time})", experiment.id, at + 1, chosen.len());
        let line =
            experiment.run().map_err(|error| Failure::failed(format!("experiment {}: {error}", experiment.id)))?;
        print(&line);
        lines.push(line);
        if let Some(file) = &args.json {
            write(file, &lines)?;
        }
    }
    let count = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    println!(
        "{} experiments: {} agree, {} are explained, {} differ",
        lines.len(),
        count(Verdict::Agrees),
        count(Verdict::Explained),
        count(Verdict::Differs)
    );
    Ok(0)
}

fn minutes(seconds: usize) -> String {
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

fn print(line: &Line) {
    let deviation = line.deviation.map_or(String::new(), |share| format!(", {:+.0} %", share * 100.0));
    println!("{}: {}{deviation}", line.id, line.verdict.word());
    println!("    document: {}", line.document);
    println!("    ours: {}", line.ours);
    if !line.why.is_empty() {
        println!("    {}", line.why);
    }
}

/// Writes the rows under a temporary name first, so that the file is always complete.
fn write(file: &Path, lines: &[Line]) -> Result<(), Failure> {
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(".new");
    let text = format!("{:#}\n", json!({ "experiments": lines }));
    let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", file.display()));
    std::fs::write(&temporary, text).map_err(failed)?;
    std::fs::rename(&temporary, file).map_err(failed)
}
