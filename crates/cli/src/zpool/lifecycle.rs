//! `zpool export`, `destroy`, `sync`, `labelclear`: changes to pools as a whole.

use crate::args::CommandLine;
use crate::cache_file;
use crate::call::Call;
use crate::command_target::{CommandTarget, Place};
use crate::failure::Failure;
use crate::locks::lock;
use crate::options::PoolDirs;
use crate::pools::{names, search};
use crate::turn::in_turn_of;
use crate::writable::refused;
use crate::zpool::claim::check_free;
use clap::Parser;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use weir_admin::{Action, PoolChange, ProcessChange};
use weir_format::label;
use weir_pool::assemble::state;

/// Close pools and mark them as exported.
///
/// The daemon goes on serving other pools; another process that serves the pool alone ends.
#[derive(Debug, Parser)]
#[command(
    name = "zpool export",
    override_usage = "zpool export [-fF] [-d DIR]… POOL…\n       zpool export -a [-fF] [-d DIR]…"
)]
pub struct ExportArgs {
    /// Export all pools
    #[arg(short)]
    all: bool,
    /// Export a pool even if clients use it
    #[arg(short)]
    force: bool,
    /// Export a suspended pool: what is only in memory is lost
    #[arg(short = 'F')]
    hard: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// Mark a pool as destroyed.
///
/// "zpool import -D" brings it back while its devices are not overwritten.
#[derive(Debug, Parser)]
#[command(name = "zpool destroy", override_usage = "zpool destroy [-f] [-d DIR]… POOL")]
pub struct DestroyArgs {
    /// Destroy the pool even if clients use it
    #[arg(short)]
    force: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// Wait until all changes of pools are on stable storage.
#[derive(Debug, Parser)]
#[command(name = "zpool sync", override_usage = "zpool sync [-f] [-d DIR]… [POOL]…")]
pub struct SyncArgs {
    /// Write a txg also if nothing was changed
    #[arg(short = 'f')]
    force: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools; default: all
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// Overwrite the labels of a device.
///
/// Only labels that can be read are overwritten: what else is in their places stays.
#[derive(Debug, Parser)]
#[command(name = "zpool labelclear", override_usage = "zpool labelclear [-f] DEVICE")]
pub struct LabelclearArgs {
    /// Overwrite also the labels of a member of a pool that is not imported, or that cannot be opened
    #[arg(short)]
    force: bool,
    /// File or device
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
}

/// Bytes of the header of a cache device's log (OpenZFS `l2arc_dev_hdr_phys_t`).
const L2ARC_HEADER_BYTES: usize = 512;

/// Closes a pool for good. A process that serves it alone ends.
fn close(call: &Call, places: &PoolDirs, pool: &str, doing: &str, change: ProcessChange) -> Result<(), Failure> {
    let target = CommandTarget::of_pool(call, places, pool)?;
    let closed = match target.place() {
        Place::Here(own) if own.served_pool().is_none() => Some(own.engine.shown().config.guid.to_string()),
        // The daemon keeps the cache file up to date; another process does not know it.
        Place::There(remote) if !remote.is_daemon => Some(pool.to_owned()),
        _ => None,
    };
    let done = target.attempt(Action::Process(change))?;
    if done.is_err() {
        // A pool that this command has opened stays as it was.
        target.with(|_| Ok(()))?;
    }
    done.map_err(|refusal| refused(doing, refusal))?;
    closed.into_iter().for_each(|pool| cache_file::forget(call, &pool));
    Ok(())
}

/// Runs `zpool export`.
pub fn export(call: &Call, args: &ExportArgs) -> Result<u8, Failure> {
    let mut pools = args.pools.clone();
    if args.all {
        if !pools.is_empty() {
            return Err(ExportArgs::misused("too many arguments"));
        }
        pools = names(call, &search(call, &args.places.dirs)?)?;
    } else if pools.is_empty() {
        return Err(ExportArgs::misused("missing pool argument"));
    }
    for pool in pools {
        let change = ProcessChange::Close { destroyed: false, force: args.force, hard: args.hard };
        close(call, &args.places, &pool, &format!("cannot export '{pool}'"), change)?;
    }
    Ok(0)
}

/// Runs `zpool destroy`.
pub fn destroy(call: &Call, args: &DestroyArgs) -> Result<u8, Failure> {
    let pool = match args.pools.as_slice() {
        [pool] => pool,
        [] => return Err(DestroyArgs::misused("missing pool argument")),
        _ => return Err(DestroyArgs::misused("too many arguments")),
    };
    let change = ProcessChange::Close { destroyed: true, force: args.force, hard: false };
    close(call, &args.places, pool, &format!("cannot destroy '{pool}'"), change)?;
    Ok(0)
}

/// Runs `zpool sync`: all changes are on stable storage when it returns. A pool that no process has open has no changes
/// in memory; opening and closing it proves that.
pub fn sync(call: &Call, args: &SyncArgs) -> Result<u8, Failure> {
    let mut pools = args.pools.clone();
    if pools.is_empty() {
        pools = names(call, &search(call, &args.places.dirs)?)?;
    }
    for pool in pools {
        let target = CommandTarget::of_pool(call, &args.places, &pool)?;
        target.with(|target| {
            let done = target.attempt(Action::Pool(PoolChange::Sync { force: args.force }))?;
            done.map_err(|refusal| refused(&format!("cannot sync '{pool}'"), refusal))
        })?;
    }
    Ok(0)
}

/// Runs `zpool labelclear`.
pub fn labelclear(call: &Call, args: &LabelclearArgs) -> Result<u8, Failure> {
    let [device] = args.devices.as_slice() else { return Err(LabelclearArgs::misused("missing vdev name")) };
    let path = call.path(device);
    let machine = call.machine()?;
    let failed = |why: String| Failure::failed(format!("failed to clear label for {device}: {why}"));
    let found = machine.block_on(weir_pool::scan::probe(machine, &path)).map_err(|error| failed(error.to_string()))?;
    let config = found.iter().find_map(|device| device.config());
    if found.is_empty() {
        return Err(failed("no label found".into()));
    }
    if let Some(config) = config.filter(|_| !args.force) {
        let pool = config.get_str("name").unwrap_or("unknown").to_owned();
        let member = match config.get_u64("state") {
            Some(state::ACTIVE) => Some("potentially active"),
            Some(state::EXPORTED) => Some("exported"),
            _ => None,
        };
        if let Some(member) = member {
            return Err(Failure::failed(format!(
                "use '-f' to override the following error:\n{device} is a member of {member} pool \"{pool}\""
            )));
        }
    }
    let _locks = in_turn_of(call, || lock(device, vec![path.clone()]))?;
    check_free(call, &path)?;
    clear(&path).map_err(|error| failed(error.to_string()))?;
    Ok(0)
}

/// Overwrites the labels that can be read. Of a cache device it also overwrites the header of the log, by which its contents would
/// be found again. What a label has before [`label::BOOT_ENV`] is not of the pool, and stays. OpenZFS's `zpool_clear_label` leaves
/// the boot environment, too; a file with one would not be free.
fn clear(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::options().read(true).write(true).open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let places = (0..label::LABELS).filter_map(|index| label::label_offset(index, size));
    let mut bytes = vec![0; label::LABEL_BYTES as usize];
    let mut cleared = 0;
    let mut is_cache = false;
    for place in places {
        file.seek(SeekFrom::Start(place))?;
        file.read_exact(&mut bytes)?;
        let Some(state) = state_of_label(&bytes) else { continue };
        is_cache |= state == state::L2CACHE;
        let kept = label::BOOT_ENV.start;
        file.seek(SeekFrom::Start(place + kept as u64))?;
        file.write_all(&vec![0; label::LABEL_BYTES as usize - kept])?;
        cleared += 1;
    }
    if cleared == 0 {
        return Err(std::io::Error::other("none of its labels can be read"));
    }
    if is_cache {
        file.seek(SeekFrom::Start(label::FRONT_BYTES))?;
        file.write_all(&[0; L2ARC_HEADER_BYTES])?;
    }
    debug_assert!(cleared <= 4, "a device has four labels");
    file.sync_all()
}

/// The state of a pool or device in a label's configuration; `None` if it is no label.
fn state_of_label(bytes: &[u8]) -> Option<u64> {
    let config = label::decode_config(bytes.get(label::CONFIG)?).ok()?;
    config.get_u64("guid").filter(|guid| *guid != 0)?;
    config.get_u64("state").filter(|state| *state <= state::L2CACHE)
}
