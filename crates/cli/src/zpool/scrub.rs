//! `zpool scrub`, `zpool trim`: passes over the whole pool.

use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools::search;
use crate::units::{human_bytes, percent};
use crate::writable::{WritablePool, WriteIntent};
use clap::Parser;
use std::time::Duration;
use weir_dsl::props::human_size;
use weir_engine::Engine;
use weir_engine::scrub::{Progress, ScanLimits};
use weir_machine::Request;
use weir_pool::PoolError;

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

/// Interval at which the progress of a scrub is read.
const LOOK: Duration = Duration::from_millis(500);
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
        let served_pool = writable.served_pool().cloned();
        writable.with(async |engine| {
            let failed = |what: &str, why: PoolError| Failure::failed(format!("cannot {what} scrubbing {pool}: {why}"));
            match (args.pause, args.stop) {
                (true, _) => return engine.scrub_pause().await.map_err(|e| failed("pause", e)),
                (_, true) => return engine.scrub_stop().await.map_err(|e| failed("cancel", e)),
                _ => engine.scrub_start().await.map_err(|e| failed("start", e))?,
            }
            let done = match served_pool {
                None => engine.scrub_on(&ScanLimits::default(), &mut |progress| show(call, pool, progress)).await,
                Some(served_pool) => {
                    served_pool.go_on_scrubbing();
                    if !args.wait {
                        return Ok(());
                    }
                    follow(call, engine, pool).await
                }
            };
            if call.caller.terminal {
                call.eprint(format_args!("\n"));
            }
            if let Some(progress) = done.map_err(|e| failed("go on", e))? {
                outln!(call, "{pool}: {}", progress_line(&progress));
            }
            Ok(())
        })?;
    }
    Ok(0)
}

/// Shows the progress if standard output is a terminal.
fn show(call: &Call, pool: &str, progress: &Progress) -> bool {
    if call.caller.terminal {
        call.eprint(format_args!("\r\x1b[K{pool}: {}", progress_line(progress)));
    }
    true
}

/// Looks on while another task scrubs, until that ends or the caller left.
async fn follow(call: &Call, engine: &Engine, pool: &str) -> Result<Option<Progress>, PoolError> {
    loop {
        let progress = engine.scrub(&Request::internal("scrub")).await?;
        let Some(now) = progress.as_ref().filter(|p| p.is_open() && !p.is_paused() && !call.is_gone()) else {
            return Ok(progress);
        };
        show(call, pool, now);
        engine.machine.clock.sleep(LOOK).await;
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
