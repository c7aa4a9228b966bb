//! `zpool add`: more vdevs for a pool, also while it is in use.

use super::claim::claim;
use super::devices::{self, Section};
use super::l2arc;
use super::tree::NameStyle;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::{PoolDirs, pools_once};
use crate::pools::{self, search};
use crate::size;
use crate::stores;
use crate::writable::{WritablePool, WriteIntent};
use clap::Parser;
use std::collections::BTreeMap;
use weir_engine::create::{DraidRequest, Layout};
use weir_engine::{Engine, VdevAddRequest};
use weir_machine::Request;
use weir_pool::aux_devices::{Extra, extras};
use weir_pool::{Class, OpenOptions};

/// Add vdevs to a pool.
#[derive(Debug, Parser)]
#[command(
    name = "zpool add",
    override_usage = "zpool add [-fLnP] [--allow-in-use] [--allow-replication-mismatch] [-o ashift=N] [-d DIR]… POOL [mirror|raidz[1-3]|log|cache|special|dedup|spare] DEVICE…"
)]
pub struct AddArgs {
    /// Add the vdevs even if the devices are in use or the redundancy differs from the pool's
    #[arg(short)]
    force: bool,
    /// Add devices that hold data
    #[arg(long)]
    allow_in_use: bool,
    /// Add vdevs whose redundancy differs from the pool's
    #[arg(long)]
    allow_replication_mismatch: bool,
    /// Show the resulting layout and change nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -n: resolve symbolic links in names of devices
    #[arg(short = 'L')]
    resolved: bool,
    /// With -n: show whole paths of devices, as without it. Accepted, has no effect
    #[arg(short = 'P')]
    _full: bool,
    /// Property of the new vdevs: ashift=N, the sector size as a power of two, 9 to 16
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool, then the vdevs: devices, each preceded by its vdev type or class if it has one
    #[arg(value_name = "POOL VDEV")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &AddArgs) -> Result<u8, Failure> {
    let Some((pool, rest)) = args.words.split_first() else {
        return Err(AddArgs::misused("missing pool name argument"));
    };
    if rest.is_empty() {
        return Err(AddArgs::misused("missing vdev specification"));
    }
    let vdevs = devices::parse(&call.caller.folder, rest)?;
    vdevs.check_distinct()?;
    let mut more = VdevAddRequest { force: args.force || args.allow_in_use, ..VdevAddRequest::default() };
    pools_once(&args.properties).map_err(|why| AddArgs::misused(&why))?;
    for text in &args.properties {
        let shift = text.strip_prefix("ashift=").and_then(size::parse).filter(|shift| (9..=16).contains(shift));
        let why = || AddArgs::misused(&format!("'{text}': the one property is ashift, from 9 to 16"));
        more.ashift = Some(shift.ok_or_else(why)?);
    }
    let intent = WriteIntent { search: search(call, &args.places.dirs)?, pool: pool.clone(), ..WriteIntent::default() };
    // As OpenZFS, with what the pool has already.
    let present_lines = match args.dry_run {
        true => lines(call, args, &OpenOptions::new(intent.search.clone(), pool))?,
        false => BTreeMap::new(),
    };
    let writable = WritablePool::of_call(call, &intent)?;
    let served_pool = writable.served_pool().cloned();
    writable.with(async |engine| {
        if let Some(mismatch) =
            vdevs.mismatch(&present(engine)).filter(|_| !args.force && !args.allow_replication_mismatch)
        {
            return Err(Failure::failed(format!(
                "invalid vdev specification\nuse '-f' to override the following errors:\n{mismatch}"
            )));
        }
        if args.dry_run {
            let shown = if args.resolved { vdevs.resolved() } else { vdevs };
            let layout = devices::shown_after(pool, &present_lines, &shown);
            outln!(call, "would update '{pool}' to the following configuration:\n\n{layout}");
            return Ok(());
        }
        let locks = claim(call, pool, vdevs.paths(), more.force)?;
        stores::make(call.machine()?, &vdevs.stores)?;
        (more.tops, more.caches, more.spares) = (vdevs.tops, vdevs.caches, vdevs.spares);
        let failed = |error| Failure::failed(format!("cannot add to '{pool}': {error}"));
        let caches = engine.cache.l2arc().stats().devices;
        engine.devices().add(&more).await.map_err(failed)?;
        if let Some(served_pool) = served_pool {
            l2arc::warn(call, engine, &caches);
            served_pool.also_has(locks);
        }
        engine.log_command(call.line(), call.caller.ids.0).map_err(failed)
    })?;
    Ok(0)
}

/// The vdevs that a pool has, as lines of a layout.
fn lines(call: &Call, args: &AddArgs, options: &OpenOptions) -> Result<BTreeMap<Section, String>, Failure> {
    let pool = pools::look(call, options)?;
    let style = NameStyle { guids: false, resolved: args.resolved, full: true };
    let mut out: BTreeMap<Section, String> = BTreeMap::new();
    for top in pool.tree.children.iter().filter(|top| !top.leaves().is_empty()) {
        let lines = out.entry(Section::of(top.class)).or_default();
        if top.is_leaf() {
            lines.push_str(&format!("\t  {}\n", style.of(top)));
            continue;
        }
        let name = top.name();
        // As in OpenZFS, vdevs of classes are shown without their number.
        let shown = if top.class == Class::Normal { &name } else { name.split('-').next().unwrap_or_default() };
        lines.push_str(&format!("\t  {shown}\n"));
        lines.extend(top.leaves().into_iter().map(|leaf| format!("\t    {}\n", style.of(leaf))));
    }
    let rq = &Request::internal("add");
    for (which, section) in [(Extra::Cache, Section::Caches), (Extra::Spare, Section::Spares)] {
        let listed = call.machine()?.block_on(extras(&pool, rq, which))?;
        if !listed.is_empty() {
            out.insert(section, listed.iter().map(|device| format!("\t  {}\n", style.of(device))).collect());
        }
    }
    Ok(out)
}

/// The layouts of the ordinary vdevs that the pool has, each with its number of devices.
fn present(engine: &Engine) -> Vec<(Layout, usize)> {
    let config = engine.shown().config;
    let ordinary = config.tops().iter().filter(|top| {
        let special = top.get_u64("is_log").is_some_and(|log| log != 0) || top.get_str("alloc_bias").is_some();
        !special && !matches!(top.get_str("type"), Some("hole" | "indirect" | "missing"))
    });
    let shape = |top: &weir_format::NvList| {
        let count = top.get_list_array("children").map_or(1, <[_]>::len);
        match top.get_str("type") {
            Some("mirror") => (Layout::Mirror, count),
            Some("raidz") => (Layout::Raidz(top.get_u64("nparity").unwrap_or(1) as u8), count),
            Some("draid") => {
                let parity = top.get_u64("nparity").unwrap_or(1) as u8;
                (Layout::Draid(DraidRequest { parity, data: None, children: None, spares: 0 }), count)
            }
            _ => (Layout::Single, 1),
        }
    };
    ordinary.map(shape).collect()
}
