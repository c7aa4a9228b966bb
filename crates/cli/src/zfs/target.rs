//! The pool that a command changes: where it is, and the names in it.

use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::operations::Operation;
use crate::options::Places;
use crate::pools::{keys_of, search};
use crate::writable::{WritablePool, WriteIntent, refused};
use weir_dsl::{Dir, Dsl};
use weir_engine::Engine;
use weir_machine::Request;

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

/// Opens the pool of a name, runs one operation and closes the pool.
pub fn once(call: &Call, places: &Places, name: &str, doing: &str, operation: Operation) -> Result<u8, Failure> {
    open(call, places, name)?.with(async |engine| run(call, engine, doing, operation).await)?;
    Ok(0)
}

/// Runs one operation. The first operation of a command records the command line in the pool's history.
pub async fn run(call: &Call, engine: &Engine, doing: &str, operation: Operation) -> Result<(), Failure> {
    let line = call.note();
    let uid = call.caller.ids.0;
    operation.run(engine, &line, uid).await.map_err(|error| refused(doing, error))?;
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
