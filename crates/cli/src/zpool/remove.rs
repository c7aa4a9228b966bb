//! `zpool remove`: devices that a pool gives up: hot spares, cache devices, and top-level vdevs.

use super::attach::opened;
use super::target::{self, Target};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools;
use crate::units::human;
use clap::Parser;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_engine::{Engine, removal};
use weir_machine::Request;
use weir_pool::aux_devices::{Extra, extras};
use weir_pool::{Class, OpenOptions, VdevConfig, VdevKind};

/// Remove hot spares, cache devices and vdevs from a pool.
#[derive(Debug, Parser)]
#[command(
    name = "zpool remove",
    override_usage = "zpool remove [-npw] [-d DIR]… POOL DEVICE…\n       zpool remove -s [-d DIR]… POOL"
)]
pub struct RemoveArgs {
    /// Show the memory for the mapping that a removal leaves, and remove nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -n: exact numbers
    #[arg(short)]
    parsable: bool,
    /// Cancel the removal in progress
    #[arg(short)]
    stop: bool,
    /// Wait until the removal has ended
    #[arg(short)]
    wait: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool and devices
    #[arg(value_name = "POOL DEVICE")]
    words: Vec<String>,
}

/// A device or vdev that a pool can give up.
enum Removable {
    /// A hot spare or cache device.
    Aux(u64),
    /// A top-level log vdev.
    Log(u64),
    /// A top-level vdev with data.
    Data(Box<VdevConfig>),
}

/// Runs the command. A pool that no process has open is evacuated within the command.
pub fn run(call: &Call, args: &RemoveArgs) -> Result<u8, Failure> {
    let (pool, devices) = match args.words.as_slice() {
        [] => return Err(RemoveArgs::misused("missing pool name argument")),
        [pool] if args.stop => return cancel(call, args, pool),
        [_, _, ..] if args.stop => return Err(RemoveArgs::misused("too many arguments")),
        [_] => return Err(RemoveArgs::misused("missing device")),
        [pool, devices @ ..] => (pool, devices),
    };
    let shared = spares_of_others(call, &args.places, pool);
    let writable = opened(call, &args.places, pool)?;
    let is_served = writable.served_pool().is_some();
    writable.with_pool(|writable| {
        let engine = &writable.engine;
        writable.machine.block_on(async {
            for device in devices {
                remove(call, args, engine, device, shared.as_ref()).await?;
                if !args.dry_run && !is_served && engine.vdev_removals().is_running().await? {
                    engine.vdev_removals().wait().await?;
                }
            }
            if args.dry_run {
                return Ok(());
            }
            engine.log_command(call.line(), call.caller.ids.0)?;
            if !args.wait {
                return Ok(());
            }
            call.waits()?;
            let ended = call.unless_gone(&engine.machine.clock, engine.vdev_removals().wait()).await;
            Ok(ended.unwrap_or(Ok(()))?)
        })
    })?;
    Ok(0)
}

/// Cancels the removal in progress.
fn cancel(call: &Call, args: &RemoveArgs, pool: &str) -> Result<u8, Failure> {
    if args.wait {
        return Err(RemoveArgs::misused("invalid option combination: -w cannot be used with -s"));
    }
    if args.dry_run {
        return Err(RemoveArgs::misused("invalid option combination: -n cannot be used with -s"));
    }
    opened(call, &args.places, pool)?.with(async |engine| {
        let canceled = engine.vdev_removals().cancel().await;
        canceled.map_err(|error| Failure::failed(format!("cannot cancel removal: {error}")))?;
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// Removes one device, or shows what its removal would take.
async fn remove(
    call: &Call,
    args: &RemoveArgs,
    engine: &Arc<Engine>,
    device: &str,
    shared: Option<&BTreeSet<u64>>,
) -> Result<(), Failure> {
    let cannot = |why: String| Failure::failed(format!("cannot remove {device}: {why}"));
    let vdev = removable(call, engine, device).map_err(cannot)?;
    if args.dry_run {
        let bytes = match &vdev {
            Removable::Data(top) => removal::mapping_bytes(engine.cache.blocks(), top),
            // Only vdevs with data leave a mapping.
            Removable::Aux(_) | Removable::Log(_) => 0,
        };
        match args.parsable {
            true => outln!(call, "{device} {bytes}"),
            false => outln!(call, "Memory that will be used after removing {device}: {}", human(bytes)),
        }
        return Ok(());
    }
    let cannot = |error: weir_pool::PoolError| cannot(error.to_string());
    match vdev {
        Removable::Log(guid) => engine.vdev_removals().remove_log(guid).await.map_err(cannot),
        Removable::Data(top) => removal::start(engine, top.guid).await.map_err(cannot),
        Removable::Aux(guid) => {
            let removed = engine.spares().remove_aux(guid).await.map_err(cannot)?;
            // A spare that other pools share, or may share, keeps its labels.
            if shared.is_some_and(|shared| !shared.contains(&guid)) {
                engine.spares().forget_aux(&removed).await;
            }
            Ok(())
        }
    }
}

/// The hot spares of all other pools that are found; `None` if one of these cannot be looked at.
fn spares_of_others(call: &Call, places: &PoolDirs, pool: &str) -> Option<BTreeSet<u64>> {
    let search = pools::search(call, &places.dirs).ok()?;
    let mut names = pools::names(call, &search).ok()?;
    names.extend(call.served_pools().into_iter().map(|served| served.engine.name()));
    names.sort();
    names.dedup();
    let mut spares = BTreeSet::new();
    for name in names.into_iter().filter(|name| name != pool) {
        let other = pools::look(call, &OpenOptions::new(search.clone(), name)).ok()?;
        let rq = &Request::internal("remove");
        let listed = extras(&other, rq, Extra::Spare);
        spares.extend(call.machine().ok()?.block_on(listed).ok()?.into_iter().map(|spare| spare.guid));
    }
    Some(spares)
}

/// The device or vdev with that GUID, path or name, if the pool can give it up.
fn removable(call: &Call, engine: &Engine, text: &str) -> Result<Removable, String> {
    let vdev = match target::find(call, engine, text)? {
        Target::Spare(vdev) | Target::Cache(vdev) => return Ok(Removable::Aux(vdev.get_u64("guid").unwrap_or(0))),
        Target::Leaf(leaf) if engine.shown().config.aux.spare(leaf.guid).is_some() => {
            return Err("the hot spare is in use: detach it first".to_owned());
        }
        Target::Leaf(vdev) | Target::Parent(vdev) => vdev,
    };
    let root = VdevConfig::parse(&engine.shown().config.root).map_err(|error| error.to_string())?;
    Err(match root.children.iter().find(|top| top.guid == vdev.guid) {
        // A part of a top-level vdev.
        None => "operation not supported on this type of pool".to_owned(),
        Some(top) if top.class == Class::Log => return Ok(Removable::Log(top.guid)),
        Some(top) if matches!(top.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. }) => {
            "invalid config; all top-level vdevs must have the same sector size and not be raidz.".to_owned()
        }
        Some(top) => return Ok(Removable::Data(Box::new(top.clone()))),
    })
}
