//! Where pools are looked for: `-d` (or zdb's `-p`), else the environment variable `WEIR_POOL_DIRS`.

use crate::call::{Call, Input, Whose, complain, is_hex_key};
use crate::failure::Failure;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use weir_engine::PoolSnapshotGuard;
use weir_pool::assemble::state;
use weir_pool::{OpenOptions, Pool, assemble, scan};

/// The environment variable that stands in for `-d`: paths separated by colons.
pub const DIRS_VARIABLE: &str = "WEIR_POOL_DIRS";

/// The folders and devices to look at.
pub fn search_paths(given: Vec<OsString>) -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<PathBuf> = given.into_iter().map(PathBuf::from).collect();
    if paths.is_empty()
        && let Some(value) = std::env::var_os(DIRS_VARIABLE)
    {
        paths = std::env::split_paths(&value).filter(|p| !p.as_os_str().is_empty()).collect();
    }
    if paths.is_empty() { Err(nowhere()) } else { Ok(paths) }
}

/// A pool that is looked at: closed, as its last group left it, or open for changes in this process.
pub enum Seen {
    /// Opened for reading alone.
    Closed(Box<Pool>),
    /// Open for changes here.
    Open(Box<PoolSnapshotGuard>),
}

impl Deref for Seen {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        match self {
            Seen::Closed(pool) => pool,
            Seen::Open(view) => view,
        }
    }
}

/// The folders and devices where the caller wants pools to be looked for; if it does not say, the devices of the pool that
/// this process has open, or of those that others have open and can be asked about.
pub fn search(call: &Call, given: Vec<OsString>) -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<PathBuf> = given.into_iter().map(|path| call.path(path)).collect();
    if paths.is_empty()
        && let Some(value) = &call.caller.dirs
    {
        paths = std::env::split_paths(value).filter(|p| !p.as_os_str().is_empty()).map(|p| call.path(p)).collect();
    }
    match call.held() {
        _ if !paths.is_empty() => Ok(paths),
        Some(held) => Ok(held.paths()),
        None => Some(crate::admin::devices()).filter(|devices| !devices.is_empty()).ok_or_else(nowhere),
    }
}

fn nowhere() -> Failure {
    Failure::usage(format!("no place to look for pools: name folders or devices with -d, or in {DIRS_VARIABLE}"))
}

/// Opens the pool of that name, and says on standard error what is not as it should be with it.
pub fn open(call: &Call, options: &OpenOptions) -> Result<Seen, Failure> {
    let pool = look(call, options)?;
    pool.warnings.iter().for_each(|warning| complain!(call, "{}: {warning}", pool.name()));
    Ok(pool)
}

/// Opens the pool of that name.
///
/// # Errors
/// [`Failure::elsewhere`] if another process is to be asked.
pub fn look(call: &Call, options: &OpenOptions) -> Result<Seen, Failure> {
    let machine = call.machine()?;
    match whose(call, &options.search, &options.pool)? {
        Whose::Theirs(elsewhere) => Err(Failure::elsewhere(&options.pool, elsewhere)),
        Whose::Ours(held) => Ok(Seen::Open(Box::new(machine.block_on(held.engine.view(options))?))),
        Whose::Free => Ok(Seen::Closed(Box::new(machine.block_on(Pool::open(machine, options))?))),
    }
}

/// Whose the pool of that name or number is now.
fn whose(call: &Call, search: &[PathBuf], pool: &str) -> Result<Whose, Failure> {
    let machine = call.machine()?;
    let assembly = assemble(machine.block_on(scan(machine, search))?);
    let alive = assembly.pools.values().filter(|p| p.config.state != state::DESTROYED);
    let mut named = alive.filter(|p| p.config.name == pool || p.config.guid.to_string() == pool);
    Ok(named.next().map_or(Whose::Free, |found| call.whose(found)))
}

/// The names of the pools in these places, sorted; destroyed ones are left out.
pub fn names(call: &Call, search: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let machine = call.machine()?;
    let assembly = assemble(machine.block_on(scan(machine, search))?);
    let there = assembly.pools.values().filter(|p| p.config.state != state::DESTROYED);
    let mut named: Vec<(String, u64)> = there.map(|p| (p.config.name.clone(), p.config.guid)).collect();
    named.sort();
    // Two pools of one name are told apart by their numbers.
    let twice = |name: &str| named.iter().filter(|(n, _)| n == name).count() > 1;
    Ok(named.iter().map(|(n, g)| if twice(n) { g.to_string() } else { n.clone() }).collect())
}

/// `--key DATASET=SOURCE` of a command about a pool: as [`keys`] takes it, or `prompt` for a line that the caller types.
///
/// # Errors
/// [`Failure::elsewhere`] if a line is to be typed and another process has the pool: that one asks for it.
pub fn keys_of(call: &Call, search: &[PathBuf], given: Vec<OsString>) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let one = |given: OsString| match given.to_str().and_then(|text| text.strip_suffix("=prompt")) {
        Some(dataset) => {
            let pool = dataset.split('/').next().unwrap_or(dataset);
            if let Whose::Theirs(elsewhere) = whose(call, search, pool)? {
                return Err(Failure::elsewhere(pool, elsewhere));
            }
            let key = call.ask(Input::Line(format!("Enter key for '{dataset}': ")));
            Ok((dataset.to_owned(), key.ok_or_else(|| Failure::failed("no key was given"))?))
        }
        None => key(&call.caller.folder, &given.to_string_lossy()),
    };
    given.into_iter().map(one).collect()
}

/// `--key DATASET=SOURCE`: `file://PATH` (or just a path) of a file with the key, as seen from `folder`, or the
/// key itself in hexadecimal digits.
pub fn keys(folder: &Path, given: Vec<OsString>) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    given.into_iter().map(|g| key(folder, &g.to_string_lossy())).collect()
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
