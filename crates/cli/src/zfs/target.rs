//! The pool that a command changes: where it is, and the names in it.

use crate::args::CommandLine;
use crate::call::Call;
use crate::command_target::{CommandTarget, now};
use crate::failure::Failure;
use crate::options::Places;
use crate::pools::{keys_of, search};
use crate::writable::{WritablePool, WriteIntent, refused};
use weir_admin::{Action, Author, Change};
use weir_pool::PoolError;

/// The pool's name in a dataset's, snapshot's or bookmark's.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// How the pool of a name is opened for changes.
fn intent(call: &Call, places: &Places, name: &str) -> Result<WriteIntent, Failure> {
    let search = search(call, &places.dirs)?;
    let pool = pool_of(name).to_owned();
    let keys = keys_of(call, &search, &places.keys)?;
    Ok(WriteIntent { search, pool, keys, ..WriteIntent::default() })
}

/// Opens the pool of a name for changes.
pub fn open(call: &Call, places: &Places, name: &str) -> Result<WritablePool, Failure> {
    WritablePool::of_call(call, &intent(call, places, name)?)
}

/// Opens the pool of a name for what a pool that is open read-only allows, too: mounts and shares.
pub fn open_to_mount(call: &Call, places: &Places, name: &str) -> Result<WritablePool, Failure> {
    WritablePool::of_call(call, &WriteIntent { accepts_read_only: true, ..intent(call, places, name)? })
}

/// Opens the pool of a name for a user's commands, runs `work` and closes the pool. Returns the first error.
pub fn with<T>(
    call: &Call,
    places: &Places,
    name: &str,
    work: impl FnOnce(&CommandTarget<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let target = match intent(call, places, name) {
        Ok(intent) => CommandTarget::open(call, &intent)?,
        // Keys are not part of a command: with keys, the daemon gets the whole command line.
        Err(failure) if !places.keys.is_empty() => return Err(failure),
        Err(failure) => CommandTarget::in_daemon(call, pool_of(name), failure)?,
    };
    target.with(work)
}

/// A change that mounts follow, unless `leaves_mounts` (`-u`).
pub fn action(change: Change, leaves_mounts: bool) -> Action {
    if leaves_mounts { Action::ChangeWithoutMounts(change) } else { Action::Change(change) }
}

/// Opens the pool of a name, carries out one change and closes the pool.
pub fn once(call: &Call, places: &Places, name: &str, doing: &str, change: impl Into<Action>) -> Result<u8, Failure> {
    with(call, places, name, |target| target.change(doing, change))?;
    Ok(0)
}

/// Runs a change that its caller requests.
pub async fn run_as(
    call: &Call,
    doing: &str,
    change: impl AsyncFnOnce(&mut Author) -> Result<(), PoolError>,
) -> Result<(), Failure> {
    let mut author = Author::new(call.caller.ids, now(), call.note());
    change(&mut author).await.map_err(|error| refused(doing, error))?;
    call.noted();
    Ok(())
}

/// Checks the number of operands of the command `C`.
pub fn words<C: CommandLine>(
    words: &[String],
    count: std::ops::RangeInclusive<usize>,
    missing: &str,
) -> Result<Vec<String>, Failure> {
    match words.len() {
        n if n < *count.start() => Err(C::misused(missing)),
        n if n > *count.end() => Err(C::misused("too many arguments")),
        _ => Ok(words.to_vec()),
    }
}
