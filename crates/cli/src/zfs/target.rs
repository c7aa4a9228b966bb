//! The pool that a command changes: where it is, and the names in it.

use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::operations::Operation;
use crate::pools::{keys, search_paths};
use crate::written::{Wish, Written, command_line, refused};
use std::sync::atomic::{AtomicBool, Ordering};
use weir_machine::{Machine, Request};
use weir_objects::dsl::{Dir, Dsl};
use weir_pool::engine::Engine;

/// Long options that every changing command takes: folders, and keys.
pub const PLACES: [(&str, char); 2] = [("dir", 'D'), ("key", 'K')];

/// The pool's name in a dataset's, snapshot's or bookmark's.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// Opens the pool of a name for changes.
pub fn open(args: &Args, name: &str) -> Result<Written, Failure> {
    let wish = Wish {
        search: search_paths(args.values('D'))?,
        pool: pool_of(name).to_owned(),
        keys: keys(args.values('K'))?,
        ..Wish::default()
    };
    Written::open(Machine::production()?, &wish)
}

/// Opens the pool of a name, does one thing in it, and closes it.
pub fn once(args: &Args, name: &str, doing: &str, operation: Operation) -> Result<u8, Failure> {
    open(args, name)?.with(async |engine| run(engine, doing, operation).await)?;
    Ok(0)
}

/// Does one thing. The first one of a command leaves its line in the pool's history.
pub async fn run(engine: &Engine, doing: &str, operation: Operation) -> Result<(), Failure> {
    static NOTED: AtomicBool = AtomicBool::new(false);
    let line = if NOTED.load(Ordering::Relaxed) { String::new() } else { command_line() };
    operation.run(engine, &line).await.map_err(|error| refused(doing, error))?;
    NOTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// The words of a command line as text; an error unless there are so many.
pub fn words(
    spec: &Spec,
    args: &Args,
    count: std::ops::RangeInclusive<usize>,
    missing: &str,
) -> Result<Vec<String>, Failure> {
    let words: Vec<String> = args.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match words.len() {
        n if n < *count.start() => Err(spec.misused(missing)),
        n if n > *count.end() => Err(spec.misused("too many arguments")),
        _ => Ok(words),
    }
}

/// Directories at and below a name, a parent before its children.
pub fn below<'a>(dsl: &'a Dsl, top: &str) -> Vec<&'a Dir> {
    let inside = |name: &str| name == top || name.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
    dsl.dirs().into_iter().filter(|dir| inside(&dir.name)).collect()
}

/// An error unless there is a file system or volume of that name.
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
