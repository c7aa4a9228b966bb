//! The pool that a command changes: where it is, and the names in it.

use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::Places;
use crate::pools::{keys_of, search};
use crate::writable::{WritablePool, WriteIntent, refused};
use weir_admin::{Author, Change};
use weir_dsl::{Dir, Dsl};
use weir_engine::Engine;
use weir_format::znode::Timestamp;
use weir_machine::Request;
use weir_pool::PoolError;

/// The pool's name in a dataset's, snapshot's or bookmark's.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// Opens the pool of a name for changes.
pub fn open(call: &Call, places: &Places, name: &str) -> Result<WritablePool, Failure> {
    let search = search(call, &places.dirs)?;
    let pool = pool_of(name).to_owned();
    let keys = keys_of(call, &search, &places.keys)?;
    let intent = WriteIntent { search, pool, keys, ..WriteIntent::default() };
    WritablePool::of_call(call, &intent)
}

/// Opens the pool of a name, runs one change and closes the pool.
pub fn once(call: &Call, places: &Places, name: &str, doing: &str, change: Change) -> Result<u8, Failure> {
    open(call, places, name)?.with(async |engine| run(call, engine, doing, change).await)?;
    Ok(0)
}

/// Runs one change. The first change of a command records the command line in the pool's history.
pub async fn run(call: &Call, engine: &Engine, doing: &str, change: Change) -> Result<(), Failure> {
    run_as(call, doing, async |author| change.run(engine, author).await).await
}

/// Runs a change that its caller requests.
pub async fn run_as(
    call: &Call,
    doing: &str,
    change: impl AsyncFnOnce(&mut Author) -> Result<(), PoolError>,
) -> Result<(), Failure> {
    let (uid, gid) = call.caller.ids;
    let mut author = Author { uid, gid, now: now(), command: call.note() };
    change(&mut author).await.map_err(|error| refused(doing, error))?;
    call.noted();
    Ok(())
}

/// The time of day.
#[allow(clippy::disallowed_methods, reason = "a command runs in the real world alone")]
pub fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
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

/// Directories at and below a name, a parent before its children.
pub fn below<'a>(dsl: &'a Dsl, top: &str) -> Vec<&'a Dir> {
    let inside = |name: &str| name == top || name.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
    dsl.dirs().into_iter().filter(|dir| inside(&dir.name)).collect()
}

/// Fails unless a file system or volume of that name exists.
pub async fn must_exist(dsl: &Dsl, doing: &str, name: &str) -> Result<(), Failure> {
    match dsl.dir_named(name) {
        Some(_) => Ok(()),
        None => Err(Failure::failed(format!("{doing}: dataset does not exist"))),
    }
}

/// The snapshots of a directory: names after the `@`, oldest first.
pub async fn snapshots(dsl: &Dsl, rq: &Request, dir: &Dir) -> Result<Vec<String>, Failure> {
    let list = dsl.snapshots(rq, dir).await.map_err(weir_pool::PoolError::from)?;
    Ok(list.snapshots.iter().filter_map(|s| s.snapshot_name().map(str::to_owned)).collect())
}
