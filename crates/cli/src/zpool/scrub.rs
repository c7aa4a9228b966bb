//! `zpool scrub`, `zpool trim`: passes over the whole pool.

use crate::admin::ServedPool;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::limits::Limits;
use crate::mount::OpenedPool;
use crate::options::PoolDirs;
use crate::pools::search;
use crate::units::{human_bytes, percent};
use crate::writable::{WritablePool, WriteIntent};
use clap::Parser;
use std::fmt::Display;
use std::time::Duration;
use weir_dsl::props::human_size;
use weir_engine::Engine;
use weir_engine::scrub::Progress;
use weir_machine::Request;

/// Start, resume, pause or stop a scrub.
///
/// If no process has the pool open, the command itself scrubs the pool and ends with the scrub.
#[derive(Debug, Parser)]
#[command(name = "zpool scrub", override_usage = "zpool scrub [-p | -s] [-w] [-d DIR]… POOL…")]
pub struct ScrubArgs {
    /// Pause the scrub
    #[arg(short)]
    pause: bool,
    /// Stop the scrub
    #[arg(short)]
    stop: bool,
    /// Wait until the scrub ends
    #[arg(short)]
    wait: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// First interval at which the progress of a scrub is read. Each further one is twice as long, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Maximum interval at which the progress of a scrub is read.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Issue TRIM for all free space of pools.
#[derive(Debug, Parser)]
#[command(name = "zpool trim", override_usage = "zpool trim [-d DIR]… POOL…")]
pub struct TrimArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Pools
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

fn open(call: &Call, places: &PoolDirs, pool: &str) -> Result<WritablePool, Failure> {
    let intent = WriteIntent { search: search(call, &places.dirs)?, pool: pool.to_owned(), ..WriteIntent::default() };
    WritablePool::of_call(call, &intent)
}

/// Runs `zpool scrub`: starts a scrub or resumes a paused or interrupted one. A process that has the pool open scrubs
/// it in the background, and the command returns at once, or with `-w` when the scrub ends. If no process has the pool
/// open, the command itself scrubs it. `-p` pauses a running scrub, `-s` stops it.
pub fn run(call: &Call, args: &ScrubArgs) -> Result<u8, Failure> {
    if args.pools.is_empty() {
        return Err(ScrubArgs::misused("missing pool name argument"));
    }
    if args.pause && args.stop {
        return Err(ScrubArgs::misused("-p and -s do not go together"));
    }
    for pool in &args.pools {
        let writable = open(call, &args.places, pool)?;
        if args.pause || args.stop {
            writable.with(async |engine| interrupt(engine, args, pool).await)?;
        } else if let Some(served_pool) = writable.served_pool().cloned() {
            writable.with(async |engine| {
                start(engine, pool).await?;
                served_pool.go_on_scrubbing();
                if args.wait { show_to_end(call, &served_pool, pool).await } else { Ok(()) }
            })?;
        } else {
            at_rest(call, writable, pool)?;
        }
    }
    Ok(0)
}

fn failed(what: &str, pool: &str, why: &dyn Display) -> Failure {
    Failure::failed(format!("cannot {what} scrubbing {pool}: {why}"))
}

async fn start(engine: &Engine, pool: &str) -> Result<(), Failure> {
    engine.scrub_start().await.map_err(|error| failed("start", pool, &error))
}

/// Pauses or stops a scrub.
async fn interrupt(engine: &Engine, args: &ScrubArgs, pool: &str) -> Result<(), Failure> {
    match args.pause {
        true => engine.scrub_pause().await.map_err(|error| failed("pause", pool, &error)),
        false => engine.scrub_stop().await.map_err(|error| failed("cancel", pool, &error)),
    }
}

/// Scrubs a pool that no process had open. This takes up to days, so this process runs the commands of other processes
/// on the pool meanwhile.
fn at_rest(call: &Call, writable: WritablePool, pool: &str) -> Result<(), Failure> {
    let machine = writable.machine.clone();
    let started = machine.block_on(start(&writable.engine, pool));
    let opened = OpenedPool::writable(writable, &Limits::of_command())?;
    let done = started.and_then(|()| {
        let Some(served_pool) = opened.served_pool() else { return Ok(()) };
        served_pool.go_on_scrubbing();
        match machine.block_on(opened.serve_commands(show_to_end(call, served_pool, pool)))? {
            Some(()) => Ok(()),
            None => Err(Failure::failed(format!("cannot go on scrubbing {pool}: another command closed the pool"))),
        }
    });
    let closed = opened.close();
    done.and(closed)
}

/// Shows the progress of the scrub task of this process, and its result.
async fn show_to_end(call: &Call, served_pool: &ServedPool, pool: &str) -> Result<(), Failure> {
    let done = follow(call, served_pool, pool).await;
    if call.caller.terminal {
        call.eprint(format_args!("\n"));
    }
    if let Some(progress) = done? {
        outln!(call, "{pool}: {}", progress_line(&progress));
    }
    Ok(())
}

/// Shows the progress if standard error is a terminal.
fn show(call: &Call, pool: &str, progress: &Progress) {
    if call.caller.terminal {
        call.eprint(format_args!("\r\x1b[K{pool}: {}", progress_line(progress)));
    }
}

/// Shows the progress until the scrub task ends or the caller disconnects. Returns the last progress.
async fn follow(call: &Call, served_pool: &ServedPool, pool: &str) -> Result<Option<Progress>, Failure> {
    let engine = &served_pool.engine;
    let mut pause = MIN_PAUSE;
    loop {
        let works = served_pool.is_scrubbing().map_err(|error| failed("go on", pool, &error))?;
        let progress = engine.scrub(&Request::internal("scrub")).await;
        let progress = progress.map_err(|error| failed("go on", pool, &error))?;
        let runs = |p: &&Progress| p.is_open() && !p.is_paused() && works && !call.is_gone();
        let Some(now) = progress.as_ref().filter(runs) else { return Ok(progress) };
        show(call, pool, now);
        engine.machine.clock.sleep(pause).await;
        pause = pause.saturating_mul(2).min(MAX_PAUSE);
    }
}

/// Progress of a scrub in one line.
fn progress_line(progress: &Progress) -> String {
    let scan = &progress.scan;
    let examined = human_size(scan.examined_bytes);
    let all = human_size(scan.to_examine_bytes);
    let found = format!("{} repaired, {} errors", human_size(scan.processed_bytes), scan.errors);
    if progress.is_finished() {
        return format!("scrubbed {examined} in {} s, {found}", progress.active_s);
    }
    let part = percent(scan.examined_bytes, scan.to_examine_bytes).min(100.0);
    let left = progress.left_s().map_or_else(String::new, |s| format!(", {} left", time(s)));
    format!("{examined} of {all} scrubbed, {part:.1}%, {found}{left}")
}

/// Seconds as `1:02:03`.
pub fn time(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Runs `zpool trim` and prints the number of bytes trimmed.
pub fn trim(call: &Call, args: &TrimArgs) -> Result<u8, Failure> {
    if args.pools.is_empty() {
        return Err(TrimArgs::misused("missing pool name argument"));
    }
    for pool in &args.pools {
        let failed = |why: String| Failure::failed(format!("cannot trim {pool}: {why}"));
        let bytes = open(call, &args.places, pool)?
            .with(async |engine| engine.trim().await.map_err(|e| failed(e.to_string())))?;
        outln!(call, "{pool}: {} trimmed", human_bytes(bytes));
    }
    Ok(0)
}
