//! `zpool scrub`, `zpool resilver`: passes over the whole pool.

use crate::admin::{ServedPool, ServingHost};
use crate::args::CommandLine;
use crate::cache_file;
use crate::call::{Call, outln};
use crate::command_target::{CommandTarget, Place, now};
use crate::failure::Failure;
use crate::limits::Limits;
use crate::mount::OpenedPool;
use crate::options::PoolDirs;
use crate::pools::{names, search};
use crate::units::percent;
use crate::writable::WritablePool;
use clap::Parser;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use weir_admin::{Action, Author, Outcome, PoolChange, ProcessChange, Refusal, ScrubProgress};
use weir_dsl::props::human_size;
use weir_engine::scrub::ScrubStart;

/// Start, resume, pause or stop a scrub.
///
/// If no process has the pool open, the command itself scrubs the pool and ends with the scrub.
#[derive(Debug, Parser)]
#[command(name = "zpool scrub", override_usage = "zpool scrub [-C | -e] [-w] | [-p | -s] [-d DIR]… -a | POOL…]")]
pub struct ScrubArgs {
    /// All pools
    #[arg(short)]
    all: bool,
    /// Pause the scrub
    #[arg(short)]
    pause: bool,
    /// Stop the scrub
    #[arg(short)]
    stop: bool,
    /// Scrub only the blocks that are newer than the last scrub that was completed
    #[arg(short = 'C')]
    from_last: bool,
    /// Scrub only the blocks that 'zpool status -v' lists, and take from the list those that are right
    #[arg(short)]
    errors: bool,
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

/// Start a resilver of all devices that lack blocks; one that is running starts again.
///
/// If no process has the pool open, the command itself resilvers and ends with the resilver.
#[derive(Debug, Parser)]
#[command(name = "zpool resilver", override_usage = "zpool resilver [-d DIR]… POOL…")]
pub struct ResilverArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Pools
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// The blocks that a scrub reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Those of datasets.
    Blocks(ScrubStart),
    /// Those in the error log.
    Errors,
}

impl Wanted {
    fn change(self) -> ProcessChange {
        match self {
            Wanted::Blocks(ScrubStart::Whole) => ProcessChange::StartScrub,
            Wanted::Blocks(ScrubStart::LastScrubbedTxg) => ProcessChange::StartScrubFromLastTxg,
            Wanted::Errors => ProcessChange::StartErrorScrub,
        }
    }
}

/// Runs `zpool scrub`: starts a scrub or resumes a paused or interrupted one. A process that has the pool open scrubs
/// it in the background, and the command returns at once, or with `-w` when the scrub ends. If no process has the pool
/// open, the command itself scrubs it. `-p` pauses a running scrub, `-s` stops it.
pub fn run(call: &Call, args: &ScrubArgs) -> Result<u8, Failure> {
    let pools = match (args.all, args.pools.as_slice()) {
        (true, []) => names(call, &search(call, &args.places.dirs)?)?,
        (true, _) => return Err(ScrubArgs::misused("-a and pools do not go together")),
        (false, []) => return Err(ScrubArgs::misused("missing pool name argument")),
        (false, pools) => pools.to_vec(),
    };
    if args.pause && args.stop {
        return Err(ScrubArgs::misused("-p and -s do not go together"));
    }
    for (given, letter) in [(args.pause, 'p'), (args.stop, 's')] {
        for (other, other_letter) in [(args.from_last, 'C'), (args.errors, 'e'), (args.wait, 'w')] {
            if given && other {
                return Err(ScrubArgs::misused(&format!(
                    "invalid option combination: -{letter} and -{other_letter} are mutually exclusive"
                )));
            }
        }
    }
    let wanted = match (args.from_last, args.errors) {
        (true, true) => return Err(ScrubArgs::misused("invalid option combination: -e and -C are mutually exclusive")),
        (false, false) => Wanted::Blocks(ScrubStart::Whole),
        (true, false) => Wanted::Blocks(ScrubStart::LastScrubbedTxg),
        (false, true) => Wanted::Errors,
    };
    for pool in &pools {
        let target = CommandTarget::of_pool(call, &args.places, pool)?;
        if args.pause || args.stop {
            target.with(|target| interrupt(target, args, pool))?;
            continue;
        }
        match target.place() {
            Place::There(_) => {
                let started = target.attempt(Action::Process(wanted.change()))?;
                started.map_err(|refusal| cannot_scrub(pool, &refusal.why))?;
                if args.wait {
                    follow_there(call, &target, ShownScrub::new(call, pool, wanted == Wanted::Errors))?;
                }
            }
            Place::Here(_) => {
                if let Place::Here(writable) = target.into_place() {
                    start_here(call, writable, pool, wanted, args.wait)?;
                }
            }
        }
    }
    Ok(0)
}

/// Runs `zpool resilver`.
pub fn resilver(call: &Call, args: &ResilverArgs) -> Result<u8, Failure> {
    if args.pools.is_empty() {
        return Err(ResilverArgs::misused("missing pool name argument"));
    }
    for pool in &args.pools {
        let target = CommandTarget::of_pool(call, &args.places, pool)?;
        let cannot = |why: &dyn Display| Failure::failed(format!("cannot start resilvering {pool}: {why}"));
        if let Place::There(_) = target.place() {
            let started = target.attempt(Action::Process(ProcessChange::StartResilver))?;
            started.map_err(|refusal| cannot(&refusal.why))?;
        } else if let Place::Here(writable) = target.into_place() {
            let started = writable.machine.block_on(writable.engine.scrubs().start_resilver(true));
            let logged = started.and_then(|_| writable.engine.log_command(call.line(), call.caller.ids.0));
            let started = logged.map_err(|error| cannot(&error));
            run_here(call, writable, pool, started, false)?;
        }
    }
    Ok(0)
}

fn cannot_scrub(pool: &str, why: &dyn Display) -> Failure {
    Failure::failed(format!("cannot scrub {pool}: {why}"))
}

fn failed(what: &str, pool: &str, why: &dyn Display) -> Failure {
    Failure::failed(format!("cannot {what} scrubbing {pool}: {why}"))
}

/// Pauses or stops a scrub.
fn interrupt(target: &CommandTarget<'_>, args: &ScrubArgs, pool: &str) -> Result<(), Failure> {
    let (what, change) = match args.pause {
        true => ("pause", PoolChange::PauseScrub),
        false => ("cancel", PoolChange::StopScrub),
    };
    target.attempt(Action::Pool(change))?.map(drop).map_err(|refusal| failed(what, pool, &refusal.why))
}

/// Starts a scrub of a pool that this process has open, and carries it out.
fn start_here(call: &Call, writable: WritablePool, pool: &str, wanted: Wanted, wait: bool) -> Result<(), Failure> {
    let started = match wanted {
        Wanted::Blocks(from) => writable.machine.block_on(writable.engine.scrubs().start_after(from)),
        Wanted::Errors => writable.machine.block_on(writable.engine.error_scrubs().start()),
    };
    let logged = started.and_then(|()| writable.engine.log_command(call.line(), call.caller.ids.0));
    run_here(call, writable, pool, logged.map_err(|error| cannot_scrub(pool, &error)), wait)
}

/// Carries out a scrub or resilver that was started: in the background if this process serves the pool (the page asks for it), and
/// then shows it only if it has to `wait`; else as [`run_at_rest`].
fn run_here(
    call: &Call,
    writable: WritablePool,
    pool: &str,
    started: Result<(), Failure>,
    wait: bool,
) -> Result<(), Failure> {
    let Some(served_pool) = writable.served_pool().cloned() else { return run_at_rest(call, writable, pool, started) };
    started?;
    served_pool.go_on_scrubbing();
    if wait {
        writable.machine.block_on(follow_here(call, &served_pool, pool))?;
    }
    writable.close()
}

/// Carries out a scrub or resilver that was started on a pool that no process had open, and closes the pool. This takes up to
/// days, so this process runs the commands of other processes on the pool meanwhile.
pub fn run_at_rest(
    call: &Call,
    writable: WritablePool,
    pool: &str,
    started: Result<(), Failure>,
) -> Result<(), Failure> {
    let machine = writable.machine.clone();
    debug_assert!(writable.served_pool().is_none(), "the pool of a process gets no second socket");
    // The scan may take long, and a device may have been attached for it.
    let renewed = cache_file::renew(&writable.engine);
    let opened = OpenedPool::writable(writable, &Limits::of_command())?;
    let done = started.and_then(|()| {
        let Some(served_pool) = opened.served_pool() else { return Ok(()) };
        served_pool.go_on_scrubbing();
        match machine.block_on(opened.serve_commands(follow_here(call, served_pool, pool)))? {
            Some(()) => Ok(machine.block_on(served_pool.engine.spares().finish_replacing())?),
            None => Err(Failure::failed(format!("cannot go on scrubbing {pool}: another command closed the pool"))),
        }
    });
    let closed = opened.close();
    done.and(renewed).and(closed)
}

/// Shows the progress of the scrub task of this process until it ends, and its result.
async fn follow_here(call: &Call, served_pool: &Arc<ServedPool>, pool: &str) -> Result<(), Failure> {
    let host = ServingHost(served_pool.clone());
    let mut shown = ShownScrub::new(call, pool, false);
    loop {
        let mut author = Author::new((0, 0), now(), String::new());
        let outcome = Action::Scrub.run(&host, &mut author).await;
        match shown.show(outcome)? {
            Some(pause) => served_pool.machine.clock.sleep(pause).await,
            None => return Ok(()),
        }
    }
}

/// Shows the progress of the scrub in the process that has the pool open until it ends, and its result.
fn follow_there(call: &Call, target: &CommandTarget<'_>, mut shown: ShownScrub<'_>) -> Result<(), Failure> {
    let machine = call.machine()?;
    while let Some(pause) = shown.show(target.attempt(Action::Scrub)?)? {
        machine.block_on(machine.clock.sleep(pause));
    }
    Ok(())
}

/// Progress of a scrub on the caller's terminal, and its result on standard output.
struct ShownScrub<'a> {
    call: &'a Call,
    pool: &'a str,
    /// Whether a scrub of the blocks in the error log is shown, and no other.
    of_errors: bool,
    pause: Duration,
}

impl<'a> ShownScrub<'a> {
    fn new(call: &'a Call, pool: &'a str, of_errors: bool) -> Self {
        ShownScrub { call, pool, of_errors, pause: MIN_PAUSE }
    }

    /// Shows the progress. Returns the pause before the next look; `None` if the scrub is not running any more.
    fn show(&mut self, outcome: Result<Outcome, Refusal>) -> Result<Option<Duration>, Failure> {
        let pool = self.pool;
        let is_terminal = self.call.caller.terminal;
        let progress = match outcome {
            Ok(Outcome::Scrub(progress)) => progress,
            other => {
                if is_terminal {
                    self.call.eprint(format_args!("\n"));
                }
                let why = other.err().map_or_else(|| "the answer is no scrub".to_owned(), |refusal| refusal.why);
                return Err(failed("go on", pool, &why));
            }
        };
        if let Some(now) = progress.filter(|progress| progress.is_running) {
            if is_terminal {
                self.call.eprint(format_args!("\r\x1b[K{pool}: {}", progress_line(&now)));
            }
            let pause = self.pause;
            self.pause = pause.saturating_mul(2).min(MAX_PAUSE);
            return Ok(Some(pause));
        }
        if is_terminal {
            self.call.eprint(format_args!("\n"));
        }
        if let Some(progress) = progress.filter(|progress| progress.error_blocks.is_some() || !self.of_errors) {
            outln!(self.call, "{pool}: {}", progress_line(&progress));
        }
        Ok(None)
    }
}

/// Progress of a scrub in one line.
fn progress_line(progress: &ScrubProgress) -> String {
    if let Some((examined, all)) = progress.error_blocks {
        let did = if progress.is_finished {
            "error blocks scrubbed".to_owned()
        } else {
            format!("of {all} error blocks scrubbed")
        };
        return format!("{examined} {did} in {} s, {} errors", progress.active_s, progress.errors);
    }
    let examined = human_size(progress.examined_bytes);
    let all = human_size(progress.to_examine_bytes);
    let found = format!("{} repaired, {} errors", human_size(progress.repaired_bytes), progress.errors);
    if progress.is_finished {
        let did = if progress.is_resilver { "resilvered, examined" } else { "scrubbed" };
        return format!("{did} {examined} in {} s, {found}", progress.active_s);
    }
    let part = percent(progress.examined_bytes, progress.to_examine_bytes).min(100.0);
    let left = progress.left_s.map_or_else(String::new, |s| format!(", {} left", time(s)));
    format!("{examined} of {all} scrubbed, {part:.1}%, {found}{left}")
}

/// Seconds as `1:02:03`.
fn time(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
