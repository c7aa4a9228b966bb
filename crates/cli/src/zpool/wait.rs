//! `zpool wait`: returns when activities of a pool have ended.

use super::attach::opened;
use super::repeat::Repetition;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::units::human;
use clap::Parser;
use std::collections::BTreeSet;
use std::time::Duration;
use weir_engine::{Activity, Engine};
use weir_machine::Request;

/// Interval at which the activities are looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// Wait until activities of a pool have ended.
#[derive(Debug, Parser)]
#[command(
    name = "zpool wait",
    override_usage = "zpool wait [-Hp] [-T d|u] [-t ACTIVITY[,ACTIVITY]…]… [-d DIR]… POOL [INTERVAL]"
)]
pub struct WaitArgs {
    /// Activities: discard, free, initialize, replace, remove, resilver, scrub, trim, raidz_expand; default: all
    #[arg(short = 't', value_name = "ACTIVITY,…")]
    activities: Vec<String>,
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// Print the time of each line: d as a date, u in seconds since 1970
    #[arg(short = 'T', value_name = "d|u")]
    time: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool; then seconds between two lines that show how many bytes are left
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &WaitArgs) -> Result<u8, Failure> {
    let mut words = args.words.clone();
    let repetition = Repetition::take::<WaitArgs>(args.time.as_deref(), &mut words)?;
    if repetition.count.is_some() {
        return Err(WaitArgs::misused("too many arguments"));
    }
    let pool = match words.as_slice() {
        [] => return Err(WaitArgs::misused("missing 'pool' argument")),
        [pool] => pool,
        _ => return Err(WaitArgs::misused("too many arguments")),
    };
    let wanted = wanted(&args.activities)?;
    let writable = opened(call, &args.places, pool)?;
    let is_served = writable.served_pool().is_some();
    writable.with(async |engine| {
        let goes_on = in_progress(engine, &wanted).await?;
        if let Some(activity) = goes_on.first().filter(|_| !is_served) {
            return Err(Failure::failed(format!(
                "cannot wait for {pool}: no process has the pool open, so that nothing goes on ({})",
                activity.name()
            )));
        }
        match repetition.interval {
            None => until_ended(call, engine, &wanted).await,
            Some(interval) => show_until_ended(call, args, engine, (&wanted, &repetition, interval)).await,
        }
    })?;
    Ok(0)
}

/// Shows how much is left until none of the activities is in progress.
async fn show_until_ended(
    call: &Call,
    args: &WaitArgs,
    engine: &Engine,
    (wanted, repetition, interval): (&BTreeSet<Activity>, &Repetition, Duration),
) -> Result<(), Failure> {
    call.waits()?;
    let width = |activity: &Activity| activity.name().len().max(6) + 2;
    let mut is_first = true;
    loop {
        repetition.print_time(call)?;
        let active = in_progress(engine, wanted).await?;
        if is_first && !args.scripted {
            let titles = wanted.iter().map(|a| format!("{:>1$}", a.name().to_uppercase(), width(a)));
            outln!(call, "{}", titles.collect::<String>());
        }
        let mut cells = Vec::new();
        for activity in wanted {
            let left = left_bytes(engine, *activity, active.contains(activity)).await?;
            let text = left.map(|bytes| if args.parsable { bytes.to_string() } else { human(bytes) });
            cells.push((activity, text.unwrap_or_else(|| "-".to_owned())));
        }
        if args.scripted {
            outln!(call, "{}", cells.into_iter().map(|(_, cell)| cell).collect::<Vec<_>>().join("\t"));
        } else {
            let cells = cells.into_iter().map(|(activity, cell)| format!(" {cell:>0$}", width(activity) - 1));
            outln!(call, "{}", cells.collect::<String>());
        }
        if active.is_empty() || call.is_gone() {
            return Ok(());
        }
        is_first = false;
        let due = engine.machine.clock.now() + interval;
        while engine.machine.clock.now() < due && !in_progress(engine, wanted).await?.is_empty() && !call.is_gone() {
            if engine.events.is_ended() {
                return Err(Failure::failed("the pool is closed"));
            }
            engine.machine.clock.sleep(INTERVAL.min(due.since(engine.machine.clock.now()))).await;
        }
    }
}

/// Bytes that an activity has still to do; `None` if that is not known.
async fn left_bytes(engine: &Engine, activity: Activity, is_active: bool) -> Result<Option<u64>, Failure> {
    Ok(match activity {
        _ if !is_active => Some(0),
        Activity::Remove => Some(engine.cache.blocks().metaslabs().evacuations().left_bytes()),
        Activity::Free => Some(engine.shown().freeing.left_bytes),
        Activity::Resilver | Activity::Replace if engine.rebuilds().is_running() => {
            Some(engine.rebuilds().left_bytes().await?)
        }
        Activity::Resilver | Activity::Scrub | Activity::Replace => {
            let progress = engine.scrubs().live_progress(&Request::internal("wait")).await?;
            progress.map(|found| found.scan.to_examine_bytes.saturating_sub(found.scan.examined_bytes))
        }
        _ => None,
    })
}

fn wanted(given: &[String]) -> Result<BTreeSet<Activity>, Failure> {
    if given.is_empty() {
        return Ok(Activity::ALL.into_iter().collect());
    }
    let one = |name: &str| {
        let found = Activity::ALL.into_iter().find(|activity| activity.name() == name);
        found.ok_or_else(|| WaitArgs::misused(&format!("invalid activity '{name}'")))
    };
    given.iter().flat_map(|list| list.split(',')).map(one).collect()
}

async fn in_progress(engine: &Engine, wanted: &BTreeSet<Activity>) -> Result<BTreeSet<Activity>, Failure> {
    let all = engine.synced().activities(&Request::internal("wait")).await?;
    Ok(all.intersection(wanted).copied().collect())
}

/// Waits until none of these activities is in progress, or the client is gone.
///
/// # Errors
/// Errors of reading the pool, also because it is closed.
pub async fn until_ended(call: &Call, engine: &Engine, wanted: &BTreeSet<Activity>) -> Result<(), Failure> {
    while !in_progress(engine, wanted).await?.is_empty() && !call.is_gone() {
        call.waits()?;
        if engine.events.is_ended() {
            return Err(Failure::failed("the pool is closed"));
        }
        engine.machine.clock.sleep(INTERVAL).await;
    }
    Ok(())
}
