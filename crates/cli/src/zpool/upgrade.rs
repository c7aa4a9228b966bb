//! `zpool upgrade`: the features that a pool lacks, and enabling them.

use super::opened::OpenedPools;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::command_target::CommandTarget;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::writable::refused;
use clap::Parser;
use weir_admin::{Action, PoolChange, compatible_features};
use weir_engine::create::DEFAULT_FEATURES;
use weir_format::features::{FEATURES, Feature, VERSION_FEATURES, by_name};
use weir_pool::Pool;

/// Show which features pools lack, or enable them.
#[derive(Debug, Parser)]
#[command(name = "zpool upgrade", override_usage = "zpool upgrade [-v | -a | POOL…] [-d DIR]…")]
pub struct UpgradeArgs {
    /// Show the features that Weir supports
    #[arg(short)]
    verbose: bool,
    /// Enable the features of all pools
    #[arg(short)]
    all: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// A pool with the features that `zpool upgrade` enables on it.
struct Found {
    name: String,
    version: u64,
    lacks: Vec<&'static str>,
    /// Those that it lacks as new pools do, and that only `zpool set` enables.
    others: Vec<&'static str>,
}

/// Runs the command.
pub fn run(call: &Call, args: &UpgradeArgs) -> Result<u8, Failure> {
    match (args.verbose, args.all, args.pools.is_empty()) {
        (true, false, true) => show_features(call),
        (false, false, true) => return list(call, args),
        (false, true, true) | (false, false, false) => return enable(call, args),
        _ => return Err(UpgradeArgs::misused("-v, -a and pools do not go together")),
    }
    Ok(0)
}

fn show_features(call: &Call) {
    outln!(call, "This system supports ZFS pool feature flags.\n\nThe following features are supported:\n");
    for feature in FEATURES {
        let compatible = if feature.read_only_compatible { " (read-only compatible)" } else { "" };
        outln!(call, "{}{compatible}", feature.name);
    }
}

/// The features that the pool's property `compatibility` allows, that new pools have, and that it lacks.
fn found(pool: &Pool) -> Result<Found, Failure> {
    let sets = pool.config.list.get_str("compatibility").unwrap_or("off");
    let allowed =
        compatible_features(sets).map_err(|why| Failure::failed(format!("property 'compatibility': {why}")))?;
    let is_allowed = |name: &str| allowed.as_ref().is_none_or(|allowed| allowed.contains(name));
    let is_wanted = |name: &str| DEFAULT_FEATURES.contains(&name) || allowed.is_some();
    let is_missing = |feature: &&Feature| pool.features.count(feature.guid).is_none() && is_allowed(feature.name);
    let missing = FEATURES.iter().filter(is_missing).map(|feature| feature.name);
    let (lacks, others) = missing.partition(|name| is_wanted(name));
    Ok(Found { name: pool.name().to_owned(), version: pool.uberblock.version, lacks, others })
}

fn look(call: &Call, args: &UpgradeArgs) -> Result<(Vec<Found>, u8), Failure> {
    let mut opened = OpenedPools::open(call, &args.places, &args.pools)?;
    let mut all = Vec::new();
    opened.each(|pool| {
        all.push(found(pool)?);
        Ok(())
    });
    Ok((all, opened.close(call)))
}

fn list(call: &Call, args: &UpgradeArgs) -> Result<u8, Failure> {
    let (all, code) = look(call, args)?;
    outln!(call, "This system supports ZFS pool feature flags.\n");
    let old: Vec<&Found> = all.iter().filter(|pool| pool.version < VERSION_FEATURES).collect();
    if !old.is_empty() {
        outln!(
            call,
            "The following pools have an old version, which only OpenZFS upgrades:\n\nVER  POOL\n---  ------------"
        );
        old.iter().for_each(|pool| outln!(call, "{:2}   {}", pool.version, pool.name));
        outln!(call);
    }
    let current: Vec<&Found> = all.iter().filter(|pool| pool.version >= VERSION_FEATURES).collect();
    let has_others = current.iter().any(|pool| !pool.others.is_empty());
    let table = |of: fn(&Found) -> &[&'static str]| {
        outln!(call, "\nPOOL  FEATURE\n---------------");
        for pool in current.iter().filter(|pool| !of(pool).is_empty()) {
            outln!(call, "{}", pool.name);
            of(pool).iter().for_each(|name| outln!(call, "      {name}"));
        }
    };
    match (current.iter().all(|pool| pool.lacks.is_empty()), has_others) {
        (true, false) => outln!(call, "Every feature flags pool has all supported and requested features enabled."),
        (true, true) => outln!(call, "Every feature flags pool has all features enabled that new pools have."),
        (false, _) => {
            outln!(call, "Some supported features are not enabled on the following pools:");
            table(|pool| &pool.lacks);
        }
    }
    if has_others {
        outln!(
            call,
            "\nThese features are supported, and neither new pools nor 'zpool upgrade' have them enabled; 'zpool set \
             feature@FEATURE=enabled POOL' enables one:"
        );
        table(|pool| &pool.others);
    }
    Ok(code)
}

fn enable(call: &Call, args: &UpgradeArgs) -> Result<u8, Failure> {
    let (all, mut code) = look(call, args)?;
    for pool in all {
        if pool.version < VERSION_FEATURES {
            let name = &pool.name;
            call.eprint(format_args!("cannot upgrade '{name}': it has version {}, not feature flags\n", pool.version));
            code = 1;
            continue;
        }
        if pool.lacks.is_empty() {
            let which =
                if pool.others.is_empty() { "supported and requested features" } else { "features of new pools" };
            outln!(call, "Pool '{}' already has all {which} enabled.", pool.name);
            continue;
        }
        let doing = format!("cannot upgrade '{}'", pool.name);
        CommandTarget::of_pool(call, &args.places, &pool.name)?.with(|target| {
            for name in &pool.lacks {
                debug_assert!(by_name(name).is_some());
                let change = PoolChange::EnableFeature { feature: (*name).to_owned() };
                target.attempt(Action::Pool(change))?.map_err(|refusal| refused(&doing, refusal))?;
            }
            Ok(())
        })?;
        outln!(call, "Enabled the following features on '{}':", pool.name);
        pool.lacks.iter().for_each(|name| outln!(call, "  {name}"));
    }
    Ok(code)
}
