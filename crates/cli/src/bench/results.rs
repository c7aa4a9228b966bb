//! Results: printed, shown again, made into a report, and resumed.

use super::methods;
use super::{BenchArgs, BenchCommand, failed};
use crate::args::CommandLine;
use crate::failure::Failure;
use clap::Parser;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use weir_lab::methods::{bonnie, filebench};
use weir_lab::result::RunResult;
use weir_lab::{LabError, report};

/// Show a result.
#[derive(Debug, Parser)]
#[command(name = "show", override_usage = "weir bench show RESULT")]
pub struct ShowArgs {
    /// Directory of a run, or its result.json
    result: PathBuf,
}

/// Write the report of results as one HTML file.
#[derive(Debug, Parser)]
#[command(name = "report", override_usage = "weir bench report RESULT… [-o FILE]")]
pub struct ReportArgs {
    /// Directories of runs, or their result.json; more than one are drawn into the same pictures
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// Measure the rounds that an interrupted run lacks.
#[derive(Debug, Parser)]
#[command(name = "resume", override_usage = "weir bench resume DIR")]
pub struct ResumeArgs {
    /// Directory of the run
    dir: PathBuf,
}

/// Reads a result by its directory or file.
pub fn read(path: &Path) -> Result<RunResult, Failure> {
    let file = if path.is_dir() { path.join("result.json") } else { path.to_path_buf() };
    RunResult::read(&file).map_err(failed)
}

/// Shows a result.
pub fn show(args: &ShowArgs) -> Result<u8, Failure> {
    print!("{}", text(&read(&args.result)?));
    Ok(0)
}

/// Writes a report.
pub fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let results: Vec<RunResult> = args.results.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    write_report(&results, &args.output)?;
    println!("{}", args.output.display());
    Ok(0)
}

fn write_report(results: &[RunResult], path: &Path) -> Result<(), Failure> {
    std::fs::write(path, report::html(results)).map_err(LabError::io(path)).map_err(failed)
}

/// Resumes a run with its own command line.
pub fn resume(args: &ResumeArgs) -> Result<u8, Failure> {
    let former = read(&args.dir)?;
    if former.complete {
        println!("{}: complete already", args.dir.display());
        return Ok(0);
    }
    let mut words = former.command.clone();
    // The run's directory may have been named by its time.
    words.extend(["--output".to_owned(), args.dir.display().to_string()]);
    let line: Vec<OsString> = words.iter().map(OsString::from).collect();
    let Ok(parsed) = BenchArgs::parse_line(&line) else {
        let text = format!("weir bench: {}: its command line is not one of this version", args.dir.display());
        return Err(Failure::failed(text));
    };
    methods::run_on(methods::subject(&parsed)?, &parsed, &[], Some(former))
}

/// Prints a result in the form of its method, and writes its report.
pub fn print(command: &BenchCommand, result: &RunResult, folder: &Path, as_json: bool) -> Result<(), Failure> {
    write_report(std::slice::from_ref(result), &folder.join("report.html"))?;
    let json =
        |value: serde_json::Result<String>| value.map_err(|error| Failure::failed(format!("weir bench: {error}")));
    match command {
        BenchCommand::Loop(args) if args.gobonniego_json => {
            println!("{}", json(serde_json::to_string(&bonnie::document(result)))?);
            return Ok(());
        }
        _ if as_json => {
            println!("{}", json(serde_json::to_string_pretty(result))?);
            return Ok(());
        }
        BenchCommand::Loop(_) => print!("{}", bonnie::lines(result)),
        BenchCommand::Singlestream(_)
        | BenchCommand::Fileserver(_)
        | BenchCommand::Varmail(_)
        | BenchCommand::Webserver(_)
        | BenchCommand::Oltp(_) => print!("{}", filebench::lines(result)),
        _ => {}
    }
    print!("{}", text(result));
    println!("result: {}", folder.join("result.json").display());
    println!("report: {}", folder.join("report.html").display());
    Ok(())
}

/// A result as text: warnings, sentences, expectations.
fn text(result: &RunResult) -> String {
    let mut text = String::new();
    for warning in &result.warnings {
        let step = warning.step.as_ref().map(|step| format!("{step}: ")).unwrap_or_default();
        let _ = writeln!(text, "warning: {step}{}", warning.text);
    }
    let _ = writeln!(text, "{} on {}, {}, {}", result.method, result.target, result.client, result.started);
    for line in &result.verdict {
        let _ = writeln!(text, "{line}");
    }
    for step in result.steps.iter().filter(|step| !step.rounds.is_empty()) {
        if let Some(expected) = &step.expected {
            let _ = writeln!(text, "expected of {}, by rule of thumb: {expected}", step.name);
        }
    }
    text
}
