//! `zpool scrub`, `zpool trim`: work on the whole of a pool, done while the command runs.

use super::opened::words;
use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::pools::search_paths;
use crate::units::{human_bytes, percent};
use crate::written::{Wish, Written};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use weir_machine::Machine;
use weir_objects::props::human_size;
use weir_pool::engine::scrub::{Pace, Progress};

const SCRUB: Spec =
    Spec { command: "zpool scrub", letters: "psd:", long: &[], usage: "zpool scrub [-p | -s] [-d DIR]… POOL…" };
const TRIM: Spec = Spec { command: "zpool trim", letters: "d:", long: &[], usage: "zpool trim [-d DIR]… POOL…" };

fn open(args: &Args, pool: &str) -> Result<Written, Failure> {
    let wish = Wish { search: search_paths(args.values('d'))?, pool: pool.to_owned(), ..Wish::default() };
    Written::open(Machine::production()?, &wish)
}

/// Runs `zpool scrub`: begins a scrub, or goes on with one that was left off, and stays with it until it ends. With `-p` it
/// is halted instead, with `-s` stopped: for the time after, as no other process has the pool open now.
pub fn run(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SCRUB.parse(line)?;
    let pools = words(&args);
    if pools.is_empty() {
        return Err(SCRUB.misused("missing pool name argument"));
    }
    if args.has('p') && args.has('s') {
        return Err(SCRUB.misused("-p and -s do not go together"));
    }
    for pool in pools {
        let failed = |what: &str, why: String| Failure::failed(format!("cannot {what} scrubbing {pool}: {why}"));
        let (halt, stop) = (args.has('p'), args.has('s'));
        open(&args, &pool)?.with(async |engine| {
            if halt {
                return engine.scrub_pause().await.map_err(|e| failed("pause", e.to_string()));
            }
            if stop {
                return engine.scrub_stop().await.map_err(|e| failed("cancel", e.to_string()));
            }
            engine.scrub_start().await.map_err(|e| failed("start", e.to_string()))?;
            let live = std::io::stderr().is_terminal();
            let mut show = |progress: &Progress| {
                if live {
                    eprint!("\r\x1b[K{pool}: {}", told(progress));
                    // A progress line that cannot be shown is no reason to end.
                    let _ = std::io::stderr().flush();
                }
                true
            };
            let done = engine.scrub_on(&Pace::default(), &mut show).await;
            if live {
                eprintln!();
            }
            if let Some(progress) = done.map_err(|e| failed("go on", e.to_string()))? {
                println!("{pool}: {}", told(&progress));
            }
            Ok(())
        })?;
    }
    Ok(0)
}

/// How a scrub stands, in one line.
fn told(progress: &Progress) -> String {
    let scan = &progress.scan;
    let (examined, all) = (human_size(scan.examined_bytes), human_size(scan.to_examine_bytes));
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

/// Runs `zpool trim`: tells the devices of all free space, and what they took note of.
pub fn trim(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = TRIM.parse(line)?;
    let pools = words(&args);
    if pools.is_empty() {
        return Err(TRIM.misused("missing pool name argument"));
    }
    for pool in pools {
        let failed = |why: String| Failure::failed(format!("cannot trim {pool}: {why}"));
        let bytes = open(&args, &pool)?.with(async |engine| engine.trim().await.map_err(|e| failed(e.to_string())))?;
        println!("{pool}: {} trimmed", human_bytes(bytes));
    }
    Ok(0)
}
