//! `zpool offline`, `online`, `reopen`: devices out of service, and back.

use super::attach::opened;
use super::target;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use clap::Parser;
use weir_engine::OfflineMode;

/// Take devices offline: they are neither read nor written.
#[derive(Debug, Parser)]
#[command(name = "zpool offline", override_usage = "zpool offline [-ft] [-d DIR]… POOL DEVICE…")]
pub struct OfflineArgs {
    /// Mark the devices as faulted: 'zpool clear' puts them back
    #[arg(short)]
    fault: bool,
    /// Until the next import only
    #[arg(short)]
    temporary: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool and devices
    #[arg(value_name = "POOL DEVICE")]
    words: Vec<String>,
}

/// Bring devices online. What they missed is resilvered.
#[derive(Debug, Parser)]
#[command(name = "zpool online", override_usage = "zpool online [-e] [-d DIR]… POOL DEVICE…")]
pub struct OnlineArgs {
    /// Use all the space of devices that have grown
    #[arg(short)]
    expand: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool and devices
    #[arg(value_name = "POOL DEVICE")]
    words: Vec<String>,
}

/// Look at all devices again: at their paths and labels.
#[derive(Debug, Parser)]
#[command(name = "zpool reopen", override_usage = "zpool reopen [-n] [-d DIR]… POOL…")]
pub struct ReopenArgs {
    /// Accepted, has no effect: a scrub in progress is never restarted
    #[arg(short = 'n')]
    no_restart: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// `EZFS_POOL_NOTSUP`.
const NOT_A_LEAF: &str = "operation not supported on this type of pool";

/// Runs `zpool offline`.
pub fn offline(call: &Call, args: &OfflineArgs) -> Result<u8, Failure> {
    let (pool, devices) = pool_and_devices::<OfflineArgs>(&args.words)?;
    let mode = match (args.fault, args.temporary) {
        (true, true) => OfflineMode::FaultedTemporarily,
        (true, false) => OfflineMode::Faulted,
        (false, true) => OfflineMode::Temporary,
        (false, false) => OfflineMode::Kept,
    };
    let writable = opened(call, &args.places, pool)?;
    let is_temporary = matches!(mode, OfflineMode::Temporary | OfflineMode::FaultedTemporarily);
    if is_temporary && writable.served_pool().is_none() {
        let why = "-t is until the next import, and no process has the pool open";
        return Err(Failure::failed(format!("cannot offline {}: {why}", devices.join(" "))));
    }
    writable.with(async |engine| {
        for device in devices {
            let cannot = |why: String| Failure::failed(format!("cannot offline {device}: {why}"));
            let guid = target::leaf_or_cache(call, engine, device, NOT_A_LEAF).map_err(cannot)?;
            engine.vdevs().offline(guid, mode).await.map_err(|error| cannot(error.to_string()))?;
        }
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// Runs `zpool online`.
pub fn online(call: &Call, args: &OnlineArgs) -> Result<u8, Failure> {
    let (pool, devices) = pool_and_devices::<OnlineArgs>(&args.words)?;
    let writable = opened(call, &args.places, pool)?;
    let served_pool = writable.served_pool().cloned();
    writable.with(async |engine| {
        for device in devices {
            let cannot = |why: String| Failure::failed(format!("cannot online {device}: {why}"));
            let guid = target::leaf_or_cache(call, engine, device, NOT_A_LEAF).map_err(cannot)?;
            if !engine.vdevs().online(guid).await.map_err(|error| cannot(error.to_string()))? {
                outln!(call, "warning: device '{device}' onlined, but remains in faulted state");
                outln!(call, "use 'zpool clear' to restore a faulted device");
                continue;
            }
            if args.expand {
                engine.growth().expand(Some(guid)).await.map_err(|error| cannot(error.to_string()))?;
            }
        }
        if let Some(served_pool) = &served_pool {
            served_pool.go_on_scrubbing();
        }
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// Runs `zpool reopen`.
pub fn reopen(call: &Call, args: &ReopenArgs) -> Result<u8, Failure> {
    if args.pools.is_empty() {
        return Err(ReopenArgs::misused("missing pool name argument"));
    }
    for pool in &args.pools {
        opened(call, &args.places, pool)?.with(async |engine| {
            for path in engine.vdevs().reopen_all().await? {
                outln!(call, "{pool}: {} is there again", path.display());
            }
            Ok(engine.log_command(call.line(), call.caller.ids.0)?)
        })?;
    }
    Ok(0)
}

fn pool_and_devices<A: CommandLine>(words: &[String]) -> Result<(&String, &[String]), Failure> {
    match words {
        [] => Err(A::misused("missing pool name argument")),
        [_] => Err(A::misused("missing device name")),
        [pool, devices @ ..] => Ok((pool, devices)),
    }
}
