//! `zpool wait`: returns when activities of a pool have ended.

use super::attach::opened;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use clap::Parser;
use std::collections::BTreeSet;
use std::time::Duration;
use weir_engine::{Activity, Engine};
use weir_machine::Request;

/// Interval at which the activities are looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// Wait until activities of a pool have ended.
#[derive(Debug, Parser)]
#[command(name = "zpool wait", override_usage = "zpool wait [-t ACTIVITY[,ACTIVITY]…]… [-d DIR]… POOL")]
pub struct WaitArgs {
    /// Activities: discard, free, initialize, replace, remove, resilver, scrub, trim, raidz_expand; default: all
    #[arg(short = 't', value_name = "ACTIVITY,…")]
    activities: Vec<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &WaitArgs) -> Result<u8, Failure> {
    let pool = match args.words.as_slice() {
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
        until_ended(engine, &wanted).await
    })?;
    Ok(0)
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

/// Waits until none of these activities is in progress.
///
/// # Errors
/// Errors of reading the pool, also because it is closed.
pub async fn until_ended(engine: &Engine, wanted: &BTreeSet<Activity>) -> Result<(), Failure> {
    while !in_progress(engine, wanted).await?.is_empty() {
        if engine.events.is_ended() {
            return Err(Failure::failed("the pool is closed"));
        }
        engine.machine.clock.sleep(INTERVAL).await;
    }
    Ok(())
}
