//! Search paths for pools: `-d` (or zdb's `-p`), else the environment variable `WEIR_POOL_DIRS`, else the usual places
//! ([`crate::places`]). A running daemon knows its pools: commands without `-d` go to it.

use crate::admin::ServedPool;
use crate::call::{Call, DIRS_VARIABLE, Input, PoolOwner, errln, is_hex_key};
use crate::failure::Failure;
use crate::open_elsewhere::OpenElsewhere;
use crate::places;
use crate::remote::RemoteProcess;
use crate::stores::split_places;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use weir_engine::PoolSnapshotGuard;
use weir_pool::assemble::state;
use weir_pool::{OpenOptions, Pool, PoolError};

/// Folders and devices to scan: those given, else those of the environment, else the devices of the cache file and the
/// block devices of this machine.
pub fn search_paths(given: &[OsString]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
    if paths.is_empty()
        && let Some(value) = std::env::var_os(DIRS_VARIABLE)
    {
        paths = split_places(&value);
    }
    if paths.is_empty() { places::usual() } else { paths }
}

/// A pool opened for reading: closed, in the state of its last synced txg, or open for writing in this process.
pub enum PoolHandle {
    /// Opened read-only for this command.
    Closed(Box<Pool>),
    /// Snapshot of the pool that this process has open for writing.
    Open(Box<PoolSnapshotGuard>),
}

impl Deref for PoolHandle {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        match self {
            PoolHandle::Closed(pool) => pool,
            PoolHandle::Open(view) => view,
        }
    }
}

/// Folders and devices to scan for the caller: those given, else those of the environment. Without either, the devices of
/// the pools that this process has open; in a command of its own, the devices of the pools that other processes have open,
/// those of the cache file, and the block devices of this machine.
///
/// # Errors
/// [`Failure::remote`] if no place is given and a daemon runs, which then runs the command.
pub fn search(call: &Call, given: &[OsString]) -> Result<Vec<PathBuf>, Failure> {
    if let Some(daemon) = daemon_for(call, given) {
        return Err(Failure::remote("", daemon));
    }
    let mut paths: Vec<PathBuf> = given.iter().map(|path| call.path(path)).collect();
    if paths.is_empty() {
        paths = paths_of_environment(call);
    }
    match call.process() {
        _ if !paths.is_empty() => Ok(paths),
        // The daemon also shows the pools that other processes of its user have open.
        Some(process) if process.daemon().is_some() => {
            Ok(process.paths().into_iter().chain(crate::admin::devices()).collect())
        }
        Some(process) => Ok(process.paths()),
        None => Ok(crate::admin::devices().into_iter().chain(places::usual()).collect()),
    }
}

/// The daemon, if the command names no places to look for pools and a daemon runs.
pub fn daemon_for(call: &Call, given: &[OsString]) -> Option<RemoteProcess> {
    let is_free = given.is_empty() && call.process().is_none() && !call.has_begun();
    if is_free { crate::admin::daemon() } else { None }
}

/// Root's daemon, for queries of a user who has no daemon, if the command names no places to look for pools.
pub fn readers_daemon_for(call: &Call, given: &[OsString]) -> Option<RemoteProcess> {
    let is_free = given.is_empty() && call.process().is_none() && !call.has_begun();
    if is_free { crate::admin::readers_daemon() } else { None }
}

/// Folders and devices in which a command looks for pools that the daemon does not have open: those of the caller's environment,
/// else the devices of the pools that other processes have open.
pub fn places_beside_daemon(call: &Call) -> Vec<PathBuf> {
    let given = paths_of_environment(call);
    if given.is_empty() { crate::admin::devices() } else { given }
}

/// Folders and devices that the caller's environment names; none if it names none.
pub fn paths_of_environment(call: &Call) -> Vec<PathBuf> {
    let given = call.caller.dirs.iter().flat_map(|list| split_places(list));
    given.map(|path| call.path(path)).collect()
}

/// Folders and devices in which a command that names none looks for other pools, for the caller's environment.
pub fn usual_paths(call: &Call) -> Vec<PathBuf> {
    let given = paths_of_environment(call);
    if given.is_empty() { places::usual() } else { given }
}

/// Fails with [`Failure::remote`] if a daemon runs, so that the daemon runs the command.
pub fn go_to_daemon(pool: &str) -> Result<(), Failure> {
    crate::admin::daemon().map_or(Ok(()), |daemon| Err(Failure::remote(pool, daemon)))
}

/// Opens a pool by name for reading, and prints its warnings on standard error.
pub fn open(call: &Call, options: &OpenOptions) -> Result<PoolHandle, Failure> {
    let pool = look(call, options)?;
    pool.warnings.iter().for_each(|warning| errln!(call, "{}: {warning}", pool.name()));
    Ok(pool)
}

/// Opens a pool by name for reading.
///
/// # Errors
/// [`Failure::remote`] if another process has the pool open and accepts commands.
pub fn look(call: &Call, options: &OpenOptions) -> Result<PoolHandle, Failure> {
    match owner_of(call, &options.search, &options.pool)? {
        PoolOwner::Theirs(remote) => Err(Failure::remote(&options.pool, remote)),
        PoolOwner::Ours(served_pool) => open_here(call, options, Some(&served_pool)),
        PoolOwner::Free => open_here(call, options, None),
    }
}

/// Whether opening failed because no device has a pool of the requested name or GUID.
pub fn is_absence(error: &PoolError) -> bool {
    matches!(error, PoolError::NothingFound { .. } | PoolError::NoSuchPool { .. })
}

/// Opens a pool for reading in this process, which has it open if there is a `served_pool`.
pub fn open_here(call: &Call, options: &OpenOptions, served_pool: Option<&ServedPool>) -> Result<PoolHandle, Failure> {
    let machine = call.machine()?;
    let Some(served_pool) = served_pool else {
        let opened = machine.block_on(Pool::open(machine, options)).map_err(|error| match is_absence(&error) {
            true => Failure::failed(format!("cannot open '{}': no such pool", options.pool)),
            false => Failure::from(error),
        })?;
        return Ok(PoolHandle::Closed(Box::new(opened)));
    };
    // Its own devices, wherever the command looks for other pools.
    let options = OpenOptions { search: served_pool.device_paths(), ..options.clone() };
    Ok(PoolHandle::Open(Box::new(machine.block_on(served_pool.engine.synced().view(&options))?)))
}

/// Finds the process that runs a command about the pool with that name or GUID: another one only before the command has begun
/// here.
pub fn owner_of(call: &Call, search: &[PathBuf], pool: &str) -> Result<PoolOwner, Failure> {
    match holder_of(call, search, pool)? {
        PoolOwner::Theirs(_) if call.has_begun() => Ok(PoolOwner::Free),
        owner => Ok(owner),
    }
}

/// Finds the process that has the pool with that name or GUID open.
pub fn holder_of(call: &Call, search: &[PathBuf], pool: &str) -> Result<PoolOwner, Failure> {
    if let Some(served_pool) = call.served_pool(pool) {
        return Ok(PoolOwner::Ours(served_pool));
    }
    let elsewhere = OpenElsewhere::in_places(call, search)?;
    if let Some(server) = elsewhere.holder(pool) {
        return Ok(PoolOwner::Theirs(server));
    }
    let assembly = elsewhere.others(call, search)?;
    let alive = assembly.pools.values().filter(|p| p.config.state != state::DESTROYED);
    let mut named = alive.filter(|p| p.config.name == pool || p.config.guid.to_string() == pool);
    Ok(named.next().map_or(PoolOwner::Free, |found| call.holder_of(found)))
}

/// Names of the pools found in these places, sorted, without destroyed pools.
pub fn names(call: &Call, search: &[PathBuf]) -> Result<Vec<String>, Failure> {
    names_with(call, search, Vec::new())
}

/// The same, and the pools with these names and GUIDs.
pub fn names_with(call: &Call, search: &[PathBuf], more: Vec<(String, u64)>) -> Result<Vec<String>, Failure> {
    let elsewhere = OpenElsewhere::in_places(call, search)?;
    let assembly = elsewhere.others(call, search)?;
    let there = assembly.pools.values().filter(|p| p.config.state != state::DESTROYED);
    let mut named = more;
    named.extend(elsewhere.pools().map(|pool| (pool.name.clone(), pool.guid)));
    named.extend(there.map(|p| (p.config.name.clone(), p.config.guid)));
    named.extend(call.served_pools().iter().map(|pool| (pool.engine.name(), pool.guid())));
    named.sort();
    named.dedup();
    // Pools with the same name are identified by their GUIDs.
    let twice = |name: &str| named.iter().filter(|(n, _)| n == name).count() > 1;
    Ok(named.iter().map(|(n, g)| if twice(n) { g.to_string() } else { n.clone() }).collect())
}

/// Keys from `--key DATASET=SOURCE`: a source that [`keys`] accepts, or `prompt` for a line that the caller types.
///
/// # Errors
/// [`Failure::remote`] for `prompt` if another process has the pool open, because that process must prompt for the key.
pub fn keys_of(call: &Call, search: &[PathBuf], given: &[OsString]) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let one = |given: &OsString| match given.to_str().and_then(|text| text.strip_suffix("=prompt")) {
        Some(dataset) => {
            let pool = dataset.split('/').next().unwrap_or(dataset);
            if let PoolOwner::Theirs(remote) = owner_of(call, search, pool)? {
                return Err(Failure::remote(pool, remote));
            }
            let key = call.ask(Input::Line(format!("Enter key for '{dataset}': ")));
            Ok((dataset.to_owned(), key.ok_or_else(|| Failure::failed("no key was given"))?))
        }
        None => key(&call.caller.folder, &given.to_string_lossy()),
    };
    given.iter().map(one).collect()
}

/// Keys from `--key DATASET=SOURCE`: `file://PATH` (or just a path, relative to `folder`) of a file with the key, or
/// the key itself in hexadecimal digits.
pub fn keys(folder: &Path, given: &[OsString]) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    given.iter().map(|g| key(folder, &g.to_string_lossy())).collect()
}

fn key(folder: &Path, given: &str) -> Result<(String, Vec<u8>), Failure> {
    let Some((dataset, source)) = given.split_once('=') else {
        return Err(Failure::usage(format!("--key takes DATASET=file://PATH or DATASET=HEX, not '{given}'")));
    };
    if is_hex_key(source) {
        return Ok((dataset.to_owned(), source.as_bytes().to_vec()));
    }
    let path = source.strip_prefix("file://").unwrap_or(source);
    let secret =
        std::fs::read(folder.join(path)).map_err(|e| Failure::failed(format!("key of {dataset}: {path}: {e}")))?;
    Ok((dataset.to_owned(), secret))
}
