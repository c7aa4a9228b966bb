//! `zpool remove`: devices that a pool gives up: hot spares, cache devices and log vdevs.

use super::attach::opened;
use super::target::{self, Target};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools;
use clap::Parser;
use std::collections::BTreeSet;
use weir_engine::Engine;
use weir_machine::Request;
use weir_pool::aux_devices::{Extra, extras};
use weir_pool::{Class, OpenOptions, VdevConfig, VdevKind};

/// Remove hot spares, cache devices and log vdevs from a pool.
#[derive(Debug, Parser)]
#[command(name = "zpool remove", override_usage = "zpool remove [-npw] [-d DIR]… POOL DEVICE…")]
pub struct RemoveArgs {
    /// Show the memory for the mapping that a removal leaves, and remove nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -n: exact numbers
    #[arg(short)]
    parsable: bool,
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
}

/// Runs the command. The removal of each of these devices has ended when it returns, so that `-w` changes nothing.
pub fn run(call: &Call, args: &RemoveArgs) -> Result<u8, Failure> {
    let (pool, devices) = match args.words.as_slice() {
        [] => return Err(RemoveArgs::misused("missing pool name argument")),
        [_] => return Err(RemoveArgs::misused("missing device")),
        [pool, devices @ ..] => (pool, devices),
    };
    let shared = spares_of_others(call, &args.places, pool);
    opened(call, &args.places, pool)?.with(async |engine| {
        for device in devices {
            let cannot = |why: String| Failure::failed(format!("cannot remove {device}: {why}"));
            let vdev = removable(engine, device).map_err(cannot)?;
            match vdev {
                // Only vdevs with data leave a mapping.
                _ if args.dry_run && args.parsable => outln!(call, "{device} 0"),
                _ if args.dry_run => outln!(call, "Memory that will be used after removing {device}: 0"),
                Removable::Log(guid) => {
                    engine.vdev_removals().remove_log(guid).await.map_err(|error| cannot(error.to_string()))?;
                }
                Removable::Aux(guid) => {
                    let removed = engine.spares().remove_aux(guid).await.map_err(|error| cannot(error.to_string()))?;
                    // A spare that other pools share, or may share, keeps its labels.
                    if shared.as_ref().is_some_and(|shared| !shared.contains(&guid)) {
                        engine.spares().forget_aux(&removed).await;
                    }
                }
            }
        }
        if args.dry_run {
            return Ok(());
        }
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
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
fn removable(engine: &Engine, text: &str) -> Result<Removable, String> {
    let vdev = match target::find(engine, text)? {
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
        Some(_) => "Weir removes only inactive hot spares, cache devices and log vdevs, no vdevs with data".to_owned(),
    })
}
