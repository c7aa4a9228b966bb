//! Devices for new vdevs: locked for this process, or refused with the name of the pool that has them (OpenZFS `check_file`).

use crate::call::Call;
use crate::failure::Failure;
use crate::locks::{Identity, Locks, described, holder_of, lock};
use std::path::{Path, PathBuf};
use weir_pool::{assemble, scan};

/// Locks devices for new vdevs of a pool.
///
/// # Errors
/// The path of the first device that is in use, and the pool that has it. The failure of a device that another command
/// has for a moment says that waiting helps, as that of [`lock`] does.
pub fn claim(call: &Call, pool: &str, paths: Vec<PathBuf>) -> Result<Locks, Failure> {
    let taken = match lock(pool, paths.clone()) {
        Ok(locks) => return Ok(locks),
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
    Err(taken.saying(format!("invalid vdev specification\nthe following errors must be manually repaired:\n{what}")))
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
    let pool = ours.map(|pool| pool.engine.name()).or_else(|| pool_on(call, path));
    Some(User { pool, holder: described(holder) })
}

/// The pool that the labels of a device name.
fn pool_on(call: &Call, path: &Path) -> Option<String> {
    let machine = call.machine().ok()?;
    let paths = [path.to_path_buf()];
    // On a thread of its own, because a caller may run within a task.
    let found = std::thread::scope(|scope| scope.spawn(|| machine.block_on(scan(machine, &paths))).join());
    let assembly = assemble(found.ok()?.ok()?);
    assembly.pools.into_values().next().map(|pool| pool.config.name)
}
