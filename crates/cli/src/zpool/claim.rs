//! Devices for new vdevs: locked for this process, or refused with the name of the pool that has them (OpenZFS `check_file`).

use crate::cache_file::CacheFile;
use crate::call::Call;
use crate::failure::Failure;
use crate::locks::{Identity, Locks, described, holder_of, lock};
use crate::pools::{paths_of_environment, usual_paths};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_pool::assemble::{Assembly, state};
use weir_pool::{OpenOptions, Pool, assemble, scan};

/// Locks devices for new vdevs of a pool.
///
/// # Errors
/// The path of the first device that is in use, and the pool that has it: one that a process has open, or another one than
/// `pool` that is imported. The failure of a device that another command has for a moment says that waiting helps, as that of
/// [`lock`] does. Unless `force`, also a hot spare or cache device that a pool may have which no process has open.
pub fn claim(call: &Call, pool: &str, paths: Vec<PathBuf>, force: bool) -> Result<Locks, Failure> {
    let taken = match lock(pool, paths.clone()) {
        Ok(locks) => {
            check_not_imported(call, pool, &paths)?;
            if !force {
                check_no_spare(call, &paths)?;
            }
            return Ok(locks);
        }
        Err(failure) => failure,
    };
    let user = |path: &PathBuf| user_of(call, path).map(|user| (path.clone(), user));
    let Some((path, user)) = paths.iter().find_map(user) else { return Err(taken) };
    let what = match user {
        User { pool: Some(pool), holder } => format!(
            "{} is part of active pool '{pool}', which {holder} has open\nanother device, or first: zpool destroy {pool}, zpool \
             export {pool}; -f does not take devices of active pools",
            path.display()
        ),
        User { pool: None, holder } => format!("{} is in use by {holder}", path.display()),
    };
    Err(taken.saying(must_be_repaired(&what)))
}

fn must_be_repaired(what: &str) -> String {
    format!("invalid vdev specification\nthe following errors must be manually repaired:\n{what}")
}

/// Fails if a device belongs to an imported pool other than `pool`. `-f` does not change this: OpenZFS does not take devices of a pool
/// that its kernel module has open, either (`POOL_STATE_ACTIVE` in `zpool_in_use`).
fn check_not_imported(call: &Call, pool: &str, paths: &[PathBuf]) -> Result<(), Failure> {
    let other = |path: &PathBuf| {
        let found = imported_on(call, path).filter(|found| found.name != pool)?;
        Some((path.clone(), found.name))
    };
    let Some((path, other)) = paths.iter().find_map(other) else { return Ok(()) };
    Err(Failure::failed(must_be_repaired(&format!(
        "{} is part of active pool '{other}'\nanother device, or first: zpool destroy {other}, zpool export {other}; \
         -f does not take devices of active pools",
        path.display()
    ))))
}

/// The imported pool that the labels of a device name. While no process has it open, that is a pool whose labels say that it was not
/// exported, and that the next command, or the daemon, opens again: it is in the cache file, or this host used it last and the device
/// is in a place that the environment names.
fn imported_on(call: &Call, path: &Path) -> Option<LabelledPool> {
    let found = pool_on(call, path).filter(|found| found.is_active)?;
    let is_imported = imported().contains(&found.guid) || found.is_of_this_host && is_in_environment(call, path);
    is_imported.then_some(found)
}

fn is_in_environment(call: &Call, path: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = real(path);
    paths_of_environment(call).iter().any(|place| path.starts_with(real(place)))
}

/// Fails if a device belongs to an imported pool. One that cannot be opened can be neither exported nor destroyed: its devices are free.
///
/// # Errors
/// The name of the pool.
pub fn check_free(call: &Call, path: &Path) -> Result<(), Failure> {
    let Some(found) = imported_on(call, path) else { return Ok(()) };
    let machine = call.machine()?;
    let options = OpenOptions::new(usual_paths(call), found.guid.to_string());
    if machine.block_on(Pool::open(machine, &options)).is_err() {
        return Ok(());
    }
    let (path, pool) = (path.display(), found.name);
    Err(Failure::failed(format!(
        "{path} is a member of active pool \"{pool}\": first export or destroy the pool, or detach the device"
    )))
}

/// Fails if a device has the labels of a hot spare or cache device, and its pool, which these labels do not name, may be imported.
/// The daemon has all imported pools open, and with them their spares locked: what it can lock is left over from a pool that was
/// destroyed or exported (OpenZFS `zpool_in_use`, which asks the pools that are imported).
fn check_no_spare(call: &Call, paths: &[PathBuf]) -> Result<(), Failure> {
    let served: BTreeSet<u64> = call.served_pools().iter().map(|pool| pool.guid()).collect();
    let is_daemon = call.process().is_some_and(|process| process.daemon().is_some());
    if is_daemon && imported().is_subset(&served) {
        return Ok(());
    }
    let spare = |path: &PathBuf| {
        let what = match found_on(call, path)?.aux.into_values().next()?.config()?.get_u64("state")? {
            state::SPARE => "a hot spare",
            _ => "a cache device",
        };
        Some(Failure::failed(format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n{} is {what}",
            path.display()
        )))
    };
    paths.iter().find_map(spare).map_or(Ok(()), Err)
}

/// GUIDs of the pools in the cache file: those that were created or imported, and not exported since. None if it cannot be read.
pub fn imported() -> BTreeSet<u64> {
    let pools = CacheFile::usual().and_then(|file| file.pools().ok());
    pools.into_iter().flatten().map(|pool| pool.guid).collect()
}

/// User of a device.
struct User {
    /// The pool, if it is known.
    pool: Option<String>,
    /// The process.
    holder: String,
}

/// The pool that has a device, and the process that has the pool open; `None` if no process has it locked.
fn user_of(call: &Call, path: &Path) -> Option<User> {
    let holder = holder_of(path)?;
    let identity = Identity::of(path)?;
    let ours = call.served_pools().into_iter().find(|pool| pool.has_device(identity));
    let pool = ours.map(|pool| pool.engine.name()).or_else(|| Some(pool_on(call, path)?.name));
    Some(User { pool, holder: described(holder) })
}

/// A pool, as the labels of a device describe it.
struct LabelledPool {
    name: String,
    guid: u64,
    /// Neither exported nor destroyed.
    is_active: bool,
    /// Whether no other host used it last.
    is_of_this_host: bool,
}

/// The pool, or the single device, that the labels of a device describe.
fn found_on(call: &Call, path: &Path) -> Option<Assembly> {
    let machine = call.machine().ok()?;
    let paths = [path.to_path_buf()];
    // On a thread of its own, because a caller may run within a task.
    let found = std::thread::scope(|scope| scope.spawn(|| machine.block_on(scan(machine, &paths))).join());
    Some(assemble(found.ok()?.ok()?))
}

/// The pool that the labels of a device name.
fn pool_on(call: &Call, path: &Path) -> Option<LabelledPool> {
    let config = found_on(call, path)?.pools.into_values().next()?.config;
    let is_active = config.state == state::ACTIVE;
    let is_of_this_host = config.hostid.is_none_or(|id| id == 0 || id == crate::writable::host().id);
    Some(LabelledPool { name: config.name, guid: config.guid, is_active, is_of_this_host })
}
