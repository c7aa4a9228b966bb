//! `weir plan`: predicts throughput, space and risk of hardware, by the engine on modelled drives.

mod calibrate;
mod calibrate_engine;
mod check;
mod drive;
mod progress;
pub mod what_if;

use crate::args::CommandLine;
use crate::failure::Failure;
use clap::{Parser, Subcommand};
use progress::Progress;
use std::io::Read;
use std::path::Path;
use weir_planner::plan::description::Description;
use weir_planner::plan::sweep::{Series, Sweep};
use weir_planner::plan::{self, EXAMPLE, Options, Plan, PlanError, text};

/// Longest measurement in virtual seconds.
const MAX_SECONDS: f64 = 600.0;

/// Predict throughput, space and risk of hardware.
///
/// Each FILE describes a server, its pool, its clients and their load in TOML; --example prints one with all keys. The engine runs on
/// modelled drives, links and processors in virtual time. Several files are compared; --sweep varies one value.
#[derive(Debug, Parser)]
#[command(
    name = "weir plan",
    override_usage = "weir plan [-j] [--quick] [--seconds S] [--seed N] [--sweep KEY=VALUE,…] FILE…\n       weir plan --example\n       weir plan calibrate [--device RESULT]\n       weir plan check FILE RESULT…",
    args_conflicts_with_subcommands = true
)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    /// Descriptions; - is standard input
    #[arg(value_name = "FILE")]
    files: Vec<std::path::PathBuf>,
    /// Vary one value, such as pool.vdevs=1,2,4,8, and name the knee
    #[arg(long, value_name = "KEY=VALUE,…")]
    sweep: Option<String>,
    /// Simulate the load only: no resilver, copies and changes
    #[arg(long)]
    quick: bool,
    /// Virtual seconds of a measurement at most
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Number from which all that is random follows
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print an example of a description with all keys
    #[arg(long)]
    example: bool,
    /// Print JSON instead of text
    #[arg(short = 'j', long)]
    json: bool,
}

/// Commands besides plans.
#[derive(Debug, Subcommand)]
enum PlanCommand {
    Calibrate(calibrate::CalibrateArgs),
    Check(check::CheckArgs),
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<u8, Failure> {
    match &args.command {
        Some(PlanCommand::Calibrate(args)) => return calibrate::run(args),
        Some(PlanCommand::Check(args)) => return check::run(args),
        None => {}
    }
    if args.example {
        print!("{EXAMPLE}");
        return Ok(0);
    }
    if args.files.is_empty() {
        return Err(PlanArgs::misused("missing FILE; 'weir plan --example' prints a description"));
    }
    check_seconds::<PlanArgs>(args.seconds)?;
    match &args.sweep {
        Some(sweep) => sweeps(args, sweep),
        None => plans(args),
    }
}

/// Refuses simulations that are too short or too long.
fn check_seconds<C: CommandLine>(seconds: f64) -> Result<(), Failure> {
    match (0.001..=MAX_SECONDS).contains(&seconds) {
        true => Ok(()),
        false => Err(C::misused(&format!("--seconds is between 0.001 and {MAX_SECONDS}"))),
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let done = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    done.map_err(|error| Failure::failed(format!("weir plan: {}: {error}", path.display())))
}

fn failed(path: &Path, error: &PlanError) -> Failure {
    Failure::failed(format!("weir plan: {}: {error}", path.display()))
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::failed(format!("weir plan: {error}")))?;
    println!("{text}");
    Ok(())
}

fn sweeps(args: &PlanArgs, sweep: &str) -> Result<u8, Failure> {
    let sweep = Sweep::parse(sweep).map_err(|error| PlanArgs::misused(&format!("--sweep: {error}")))?;
    let mut all: Vec<Series> = Vec::new();
    let mut progress = Progress::of_sweeps(args.files.len(), sweep.values());
    for path in &args.files {
        let text = read(path)?;
        let of = path.display().to_string();
        let mut show = |value: &str| progress.value(&of, &format!("{} = {value}", sweep.key));
        let done = sweep.run(&text, args.seed, args.seconds, &mut show);
        let series = done.map_err(|error| {
            progress.end();
            failed(path, &error)
        })?;
        if !args.json {
            progress.print(|| {
                if args.files.len() > 1 {
                    println!("{of}");
                }
                print!("{}", text::series(&series));
            });
        }
        all.push(series);
    }
    progress.end();
    if args.json {
        print_json(&all)?;
    }
    Ok(0)
}

fn plans(args: &PlanArgs) -> Result<u8, Failure> {
    let options = Options { seed: args.seed, seconds: args.seconds, quick: args.quick };
    // All are read before the first one is simulated.
    let mut descriptions = Vec::new();
    for path in &args.files {
        let mut description = Description::parse(&read(path)?).map_err(|error| failed(path, &error))?;
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        description.name = description.name.or(stem);
        descriptions.push((path, description));
    }
    let mut plans: Vec<Plan> = Vec::new();
    let mut progress = Progress::of_plans(descriptions.len(), args.quick);
    for (path, description) in &descriptions {
        let of = path.display().to_string();
        let done = plan::plan(description, &options, &mut |what| progress.step(&of, what));
        progress.end_of_plan();
        let plan = done.map_err(|error| {
            progress.end();
            failed(path, &error)
        })?;
        if !args.json {
            progress.print(|| println!("{}", text::plan(&plan)));
        }
        plans.push(plan);
    }
    progress.end();
    if args.json {
        print_json(&plans)?;
    } else if plans.len() > 1 {
        print!("{}", text::comparison(&plans));
    }
    Ok(0)
}
