//! `zpool attach`, `replace`, `detach`: devices join others, take their place, and leave them.
//!
//! The resilver or rebuild of a new device, or the expansion of a RAID-Z vdev that a device is attached to, is part of the command if no
//! process has the pool open; otherwise that process does it in the background, and `-w` waits for it.

use super::claim::claim;
use super::devices;
use super::scrub::run_at_rest;
use super::target::{self, Target};
use super::wait::until_ended;
use crate::args::CommandLine;
use crate::cache_file;
use crate::call::Call;
use crate::failure::Failure;
use crate::locks::Locks;
use crate::options::{PoolDirs, pools_once};
use crate::pools::search;
use crate::size;
use crate::writable::{WritablePool, WriteIntent};
use clap::Parser;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_engine::create::draid::is_spare_name;
use weir_engine::{Activity, AttachRequest, Engine, NewLeaf, expansion, rebuild};
use weir_object_store::DiskUrl;
use weir_pool::{PoolError, VdevConfig, VdevKind};

/// Why a vdev is not rebuilt.
const NO_REBUILD: &str = "only mirror and dRAID vdevs support sequential reconstruction";

/// Options of attaching and replacing a device.
#[derive(Debug, clap::Args)]
struct JoinOptions {
    /// Use the new device even if it appears to be in use
    #[arg(short)]
    force: bool,
    /// Give the new device all allocated ranges in their order, without checksums, and scrub then (mirror, dRAID)
    #[arg(short)]
    sequential: bool,
    /// Wait until the resilver or the expansion ends
    #[arg(short)]
    wait: bool,
    /// Property of the new device: ashift=N, its sector size as a power of two, 9 to 16
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    #[command(flatten)]
    places: PoolDirs,
}

/// Attach a device to another one, or to a RAID-Z vdev, which it expands.
#[derive(Debug, Parser)]
#[command(name = "zpool attach", override_usage = "zpool attach [-fsw] [-o ashift=N] [-d DIR]… POOL DEVICE NEW_DEVICE")]
pub struct AttachArgs {
    #[command(flatten)]
    options: JoinOptions,
    /// Pool, its device, and the new device
    #[arg(value_name = "POOL DEVICE NEW_DEVICE")]
    words: Vec<String>,
}

/// Replace a device, which may be running, faulted or missing.
#[derive(Debug, Parser)]
#[command(
    name = "zpool replace",
    override_usage = "zpool replace [-fsw] [-o ashift=N] [-d DIR]… POOL DEVICE [NEW_DEVICE]"
)]
pub struct ReplaceArgs {
    #[command(flatten)]
    options: JoinOptions,
    /// Pool, its device, and the new device; default: another one at the same path
    #[arg(value_name = "POOL DEVICE [NEW_DEVICE]")]
    words: Vec<String>,
}

/// Detach a device from a mirror, or give up its replacement.
#[derive(Debug, Parser)]
#[command(name = "zpool detach", override_usage = "zpool detach [-d DIR]… POOL DEVICE")]
pub struct DetachArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Pool and its device
    #[arg(value_name = "POOL DEVICE")]
    words: Vec<String>,
}

/// Runs `zpool attach`.
pub fn attach(call: &Call, args: &AttachArgs) -> Result<u8, Failure> {
    match args.words.as_slice() {
        [pool, device, new] => join(call, pool, (device, Some(new)), &args.options, false),
        [] => Err(AttachArgs::misused("missing pool name argument")),
        [_] => Err(AttachArgs::misused("missing <device> specification")),
        [_, _] => Err(AttachArgs::misused("missing <new_device> specification")),
        _ => Err(AttachArgs::misused("too many arguments")),
    }
}

/// Runs `zpool replace`.
pub fn replace(call: &Call, args: &ReplaceArgs) -> Result<u8, Failure> {
    match args.words.as_slice() {
        [pool, device] => join(call, pool, (device, None), &args.options, true),
        [pool, device, new] => join(call, pool, (device, Some(new)), &args.options, true),
        [] => Err(ReplaceArgs::misused("missing pool name argument")),
        [_] => Err(ReplaceArgs::misused("missing <device> specification")),
        _ => Err(ReplaceArgs::misused("too many arguments")),
    }
}

/// Runs `zpool detach`.
pub fn detach(call: &Call, args: &DetachArgs) -> Result<u8, Failure> {
    let [pool, device] = args.words.as_slice() else {
        return Err(DetachArgs::misused(if args.words.is_empty() {
            "missing pool name argument"
        } else {
            "missing <device> specification"
        }));
    };
    opened(call, &args.places, pool)?.with(async |engine| {
        let cannot = |why: String| Failure::failed(format!("cannot detach {device}: {why}"));
        let why = "only applicable to mirror and replacing vdevs";
        let guid = target::leaf(call, engine, device, why).map_err(cannot)?.guid;
        engine.vdevs().detach_by_command(guid).await.map_err(|error| cannot(error.to_string()))?;
        engine.log_command(call.line(), call.caller.ids.0).map_err(|error| cannot(error.to_string()))
    })?;
    Ok(0)
}

/// Opens the pool, or finds it in this process.
pub fn opened(call: &Call, places: &PoolDirs, pool: &str) -> Result<WritablePool, Failure> {
    let intent = WriteIntent { search: search(call, &places.dirs)?, pool: pool.to_owned(), ..WriteIntent::default() };
    WritablePool::of_call(call, &intent)
}

/// The path of the hot spare with that name; the text itself if there is none.
fn spare_path(engine: &Engine, text: &str) -> String {
    let spares = engine.shown().config.aux.spares;
    let is_called = |path: &&str| Path::new(path).file_name().is_some_and(|name| name == text);
    spares.iter().filter_map(|spare| spare.get_str("path")).find(is_called).unwrap_or(text).to_owned()
}

/// Whether the path is that of a hot spare of the pool.
fn is_spare(engine: &Engine, path: &Path) -> bool {
    engine.shown().config.aux.spares.iter().any(|spare| spare.get_str("path").map(Path::new) == Some(path))
}

/// Whether a device of the pool, which is locked for it already, may be put into a vdev: its hot spare, or the device that is
/// replaced in its place, if that is out of service and has other contents now. One in service would be resilvered from itself,
/// and then lose its labels; if its labels were overwritten since it was opened, it is taken out of service, unless the pool
/// needs it.
async fn check_own(engine: &Engine, path: &Path, replaced: Option<u64>) -> Result<(), String> {
    if let Some(guid) = replaced {
        let _lost = engine.vdevs().probe(|leaf| leaf == guid).await.map_err(|error| error.to_string())?;
    }
    let in_service = replaced.is_some_and(|guid| engine.vdevs().is_in_service(guid));
    if replaced.is_some() && !in_service || is_spare(engine, path) {
        return Ok(());
    }
    let how = if in_service { ", and in service" } else { "" };
    Err(format!("{} is part of this pool already{how}", path.display()))
}

/// A device that is put into a vdev.
struct NewDevice {
    leaf: NewLeaf,
    /// The disk in an object store that it is, if it is one.
    stores: Vec<DiskUrl>,
}

/// The new device, or the distributed spare, of that name.
fn new_device(call: &Call, engine: &Engine, word: String) -> Result<NewDevice, Failure> {
    if is_spare_name(&word) {
        let is_known = engine.shown().config.aux.spares.iter().any(|spare| spare.get_str("path") == Some(&word));
        let unknown = || Failure::failed(format!("cannot open '{word}': the pool has no such distributed spare"));
        let leaf = NewLeaf { path: PathBuf::from(&word), is_file: false };
        return is_known.then(|| NewDevice { leaf, stores: Vec::new() }).ok_or_else(unknown);
    }
    let vdevs = devices::parse(&call.caller.folder, &[word])?;
    let leaf = vdevs.tops.into_iter().flat_map(|top| top.leaves).next();
    let leaf = leaf.ok_or_else(|| Failure::failed("no device is given"))?;
    Ok(NewDevice { leaf, stores: vdevs.stores })
}

/// The RAID-Z vdev of that name.
fn expanded(call: &Call, engine: &Engine, text: &str) -> Option<VdevConfig> {
    match target::find(call, engine, text).ok()? {
        Target::Parent(vdev) if matches!(vdev.kind, VdevKind::Raidz { .. }) => Some(vdev),
        _ => None,
    }
}

fn ashift_of(options: &JoinOptions) -> Result<Option<u64>, Failure> {
    let mut ashift = None;
    pools_once(&options.properties).map_err(|why| AttachArgs::misused(&why))?;
    for text in &options.properties {
        let shift = text.strip_prefix("ashift=").and_then(size::parse).filter(|shift| (9..=16).contains(shift));
        let why = || AttachArgs::misused(&format!("'{text}': the one property is ashift, from 9 to 16"));
        ashift = Some(shift.ok_or_else(why)?);
    }
    Ok(ashift)
}

/// Makes the new device a part of the pool; its resilver, rebuild or the expansion goes on in the background.
async fn start(
    engine: &Arc<Engine>,
    request: &AttachRequest,
    expands: bool,
    is_sequential: bool,
) -> Result<(), PoolError> {
    match (expands, is_sequential) {
        (true, true) => Err(PoolError::Refused { what: NO_REBUILD.into() }),
        (true, false) => expansion::start(engine, request).await,
        (false, true) => rebuild::attach(engine, request).await,
        (false, false) => engine.vdevs().attach(request).await,
    }
}

/// Locks the new device, unless another process has it or it is part of another pool.
fn take(call: &Call, pool: &str, engine: &Engine, path: &Path, force: bool) -> Result<Locks, Failure> {
    // A distributed spare is no device that another process could have.
    let devices = if is_spare_name(&path.to_string_lossy()) { Vec::new() } else { vec![path.to_owned()] };
    claim(call, pool, devices, force || is_spare(engine, path))
}

fn join(
    call: &Call,
    pool: &str,
    (device, new): (&str, Option<&String>),
    options: &JoinOptions,
    replaces: bool,
) -> Result<u8, Failure> {
    let cannot = |why: String| {
        let doing = match (replaces, new) {
            (false, new) => format!("cannot attach {} to {device}", new.map_or("a device", String::as_str)),
            (true, Some(new)) => format!("cannot replace {device} with {new}"),
            (true, None) => format!("cannot replace {device}"),
        };
        Failure::failed(format!("{doing}: {why}"))
    };
    let ashift = ashift_of(options)?;
    let writable = opened(call, &options.places, pool)?;
    let served_pool = writable.served_pool().cloned();
    let mut locks = None;
    let work = async {
        let engine = &writable.engine;
        let why = "operation not supported on this type of pool";
        let expanded = expanded(call, engine, device).filter(|_| !replaces);
        let present = match &expanded {
            Some(raidz) => raidz.clone(),
            None => target::leaf(call, engine, device, why).map_err(&cannot)?,
        };
        let path = present.path.clone().map(PathBuf::from).unwrap_or_default();
        let word = new.map_or_else(|| path.to_string_lossy().into_owned(), |new| spare_path(engine, new));
        let NewDevice { leaf, stores } = new_device(call, engine, word)?;
        let in_place = replaces && leaf.path == path;
        let is_own = in_place || served_pool.as_ref().is_some_and(|pool| pool.has_path(&leaf.path));
        locks = match take(call, pool, engine, &leaf.path, options.force) {
            Ok(taken) => Some(taken),
            Err(_) if is_own => {
                check_own(engine, &leaf.path, in_place.then_some(present.guid)).await.map_err(&cannot)?;
                None
            }
            Err(failure) => return Err(failure),
        };
        crate::stores::make(call.machine()?, &stores)?;
        let request = AttachRequest { device: present.guid, new: leaf, replaces, ashift, force: options.force };
        let joined = start(engine, &request, expanded.is_some(), options.sequential).await;
        joined.map_err(|error| match error {
            // With -f, the hint at -f would be wrong.
            PoolError::InUse { path, what } if options.force => cannot(format!("{} {what}", path.display())),
            error => cannot(error.to_string()),
        })?;
        engine.log_command(call.line(), call.caller.ids.0).map_err(|error| cannot(error.to_string()))?;
        if expanded.is_some() && served_pool.is_none() {
            // The expansion may take long.
            cache_file::renew(engine)?;
            engine.expansions().wait().await.map_err(|error| cannot(error.to_string()))?;
        }
        if options.sequential && served_pool.is_none() {
            cache_file::renew(engine)?;
            engine.rebuilds().wait().await.map_err(|error| cannot(error.to_string()))?;
            engine.spares().finish_replacing().await.map_err(|error| cannot(error.to_string()))?;
        }
        Ok(())
    };
    let attached = writable.machine.block_on(work);
    let Some(served_pool) = served_pool else {
        let done = run_at_rest(call, writable, pool, attached);
        drop(locks);
        return done.map(|()| 0);
    };
    locks.into_iter().for_each(|locks| served_pool.also_has(locks));
    if let Err(failure) = attached {
        // A device that was refused is free for the next command.
        served_pool.release_removed();
        return Err(failure);
    }
    served_pool.go_on_scrubbing();
    if options.wait {
        let wanted = BTreeSet::from([Activity::Resilver, Activity::Replace, Activity::RaidzExpand]);
        writable.machine.block_on(until_ended(call, &writable.engine, &wanted))?;
    }
    writable.close().map(|()| 0)
}
