//! `zfs upgrade`: the versions of file systems. New file systems have the newest one, unless they are created with
//! `-o version=N`.
//!
//! Source: OpenZFS `cmd/zfs/zfs_main.c` (`zfs_do_upgrade`, `upgrade_list_callback`, `upgrade_set_callback`).

use super::target::{self, pool_of};
use super::values;
use crate::args::CommandLine;
use crate::call::{Call, errln, outln};
use crate::failure::{FAILED, Failure};
use crate::options::Places;
use crate::pools::{names, open, search};
use clap::Parser;
use std::cmp::Ordering;
use weir_admin::Change;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::ZPL_VERSION;
use weir_format::ObjsetKind;
use weir_machine::Request;
use weir_pool::{OpenOptions, PoolError};

const DESCRIPTIONS: [&str; 5] = [
    "Initial ZFS filesystem version",
    "Enhanced directory entries",
    "Case insensitive and filesystem user identifier (FUID)",
    "userquota, groupquota properties",
    "System attributes",
];

/// Show the versions of file systems, or upgrade file systems.
///
/// File systems of a version before 5 can be read. They can be written to after their upgrade.
#[derive(Debug, Parser)]
#[command(
    name = "zfs upgrade",
    override_usage = "zfs upgrade [-v] [--dir DIR]…\n       zfs upgrade [-r] [-V VERSION] [--dir DIR]… -a | FILESYSTEM…"
)]
pub struct UpgradeArgs {
    /// Show the versions that there are
    #[arg(short)]
    verbose: bool,
    /// All file systems
    #[arg(short)]
    all: bool,
    /// Also all file systems below
    #[arg(short)]
    recursive: bool,
    /// Version: 1 to 5, or current; default: the newest
    #[arg(short = 'V', value_name = "VERSION")]
    version: Option<String>,
    #[command(flatten)]
    places: Places,
    /// File systems
    #[arg(value_name = "FILESYSTEM")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &UpgradeArgs) -> Result<u8, Failure> {
    let upgrades = args.all || !args.words.is_empty();
    let version = match args.version.as_deref() {
        None => ZPL_VERSION,
        Some(text) => values::version(text).map_err(|_| UpgradeArgs::misused(&format!("invalid version {text}")))?,
    };
    if args.all && !args.words.is_empty() || args.verbose && (upgrades || args.recursive || args.version.is_some()) {
        return Err(UpgradeArgs::misused("-v, -a and file systems do not go together"));
    }
    if !upgrades && (args.recursive || args.version.is_some()) {
        return Err(UpgradeArgs::misused("missing filesystem argument"));
    }
    if args.verbose {
        outln!(call, "The following filesystem versions are supported:\n\nVER  DESCRIPTION");
        outln!(call, "---  --------------------------------------------------------");
        DESCRIPTIONS.iter().zip(1..).for_each(|(text, version)| outln!(call, " {version}   {text}"));
        return Ok(0);
    }
    if upgrades { upgrade(call, args, version) } else { list(call, args) }
}

/// File systems with their versions: all, or those that are named.
fn versions(call: &Call, args: &UpgradeArgs) -> Result<Vec<(String, u64)>, Failure> {
    let machine = call.machine()?;
    let search = search(call, &args.places.dirs)?;
    let pools = match args.words.is_empty() {
        true => names(call, &search)?,
        false => {
            let mut pools: Vec<String> = args.words.iter().map(|name| pool_of(name).to_owned()).collect();
            pools.sort();
            pools.dedup();
            pools
        }
    };
    let rq = &Request::internal("upgrade");
    let mut out = Vec::new();
    for pool in pools {
        let pool = open(call, &OpenOptions::new(search.clone(), pool))?;
        let is_wanted = |name: &str| {
            let is_below = |top: &String| name.strip_prefix(top.as_str()).is_some_and(|rest| rest.starts_with('/'));
            let is_one = |top: &String| top == name || args.recursive && is_below(top);
            args.words.is_empty() || args.words.iter().any(is_one)
        };
        for dir in pool.dsl.visible_dirs().into_iter().filter(|dir| is_wanted(&dir.name)) {
            let version = machine.block_on(async {
                if pool.dsl.kind(rq, dir).await? != ObjsetKind::Zfs {
                    return Ok(None);
                }
                let head = pool.dsl.head(rq, dir).await?;
                pool.dsl.property(rq, &head, &pool.facts(), "version").await
            });
            if let Some(Value::Number(version)) = version.map_err(PoolError::from)?.map(|property| property.value) {
                out.push((dir.name.clone(), version));
            }
        }
        let missing =
            args.words.iter().find(|name| pool_of(name) == pool.name() && !out.iter().any(|(n, _)| n == *name));
        if let Some(missing) = missing {
            return Err(Failure::failed(format!("cannot open '{missing}': dataset does not exist")));
        }
    }
    Ok(out)
}

fn list(call: &Call, args: &UpgradeArgs) -> Result<u8, Failure> {
    outln!(call, "This system is currently running ZFS filesystem version {ZPL_VERSION}.\n");
    let found = versions(call, args)?;
    let old: Vec<&(String, u64)> = found.iter().filter(|(_, version)| *version != ZPL_VERSION).collect();
    if old.is_empty() {
        outln!(call, "All filesystems are formatted with the current version.");
        return Ok(0);
    }
    outln!(
        call,
        "The following filesystems are out of date, and can be upgraded.  After being\nupgraded, these filesystems (and any 'zfs send' streams generated from\nsubsequent snapshots) will no longer be accessible by older software versions.\n\n\nVER  FILESYSTEM\n---  ------------"
    );
    old.iter().for_each(|(name, version)| outln!(call, "{version:>2}   {name}"));
    Ok(0)
}

fn upgrade(call: &Call, args: &UpgradeArgs, version: u64) -> Result<u8, Failure> {
    let mut upgraded = 0;
    let mut same = 0;
    let mut failed = 0;
    for (name, present) in versions(call, args)? {
        match present.cmp(&version) {
            Ordering::Equal => same += 1,
            Ordering::Greater => {
                outln!(call, "{name}: can not be downgraded; it is already at version {present}");
                failed += 1;
            }
            Ordering::Less => {
                let doing = format!("cannot set property for '{name}'");
                match target::once(call, &args.places, &name, &doing, Change::Upgrade { name: name.clone(), version }) {
                    Ok(_) => upgraded += 1,
                    Err(failure) => {
                        errln!(call, "{failure}");
                        failed += 1;
                    }
                }
            }
        }
    }
    outln!(call, "{upgraded} filesystems upgraded");
    if same > 0 {
        outln!(call, "{same} filesystems already at this version");
    }
    Ok(if failed > 0 { FAILED } else { 0 })
}
