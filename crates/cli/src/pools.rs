//! Where pools are looked for: `-d` (or zdb's `-p`), else the environment variable `WEIR_POOL_DIRS`.

use crate::failure::Failure;
use std::ffi::OsString;
use std::path::PathBuf;
use weir_machine::Machine;
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
    if paths.is_empty() {
        return Err(Failure::usage(format!(
            "no place to look for pools: name folders or devices with -d, or in {DIRS_VARIABLE}"
        )));
    }
    Ok(paths)
}

/// Opens the pool of that name, and says on standard error what is not as it should be with it.
pub fn open(machine: &Machine, options: &OpenOptions) -> Result<Pool, Failure> {
    let pool = machine.block_on(Pool::open(machine, options))?;
    for warning in &pool.warnings {
        eprintln!("{}: {warning}", pool.name());
    }
    Ok(pool)
}

/// The names of the pools in these places, sorted; destroyed ones are left out.
pub fn names(machine: &Machine, search: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let assembly = assemble(machine.block_on(scan(machine, search))?);
    let there = assembly.pools.values().filter(|p| p.config.state != state::DESTROYED);
    let mut named: Vec<(String, u64)> = there.map(|p| (p.config.name.clone(), p.config.guid)).collect();
    named.sort();
    // Two pools of one name are told apart by their numbers.
    let twice = |name: &str| named.iter().filter(|(n, _)| n == name).count() > 1;
    Ok(named.iter().map(|(n, g)| if twice(n) { g.to_string() } else { n.clone() }).collect())
}

/// `--key DATASET=SOURCE`: `file://PATH` (or just a path) of a file with the key, or the key itself in hexadecimal digits.
pub fn keys(given: Vec<OsString>) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    given.into_iter().map(|g| key(&g.to_string_lossy())).collect()
}

fn key(given: &str) -> Result<(String, Vec<u8>), Failure> {
    let Some((dataset, source)) = given.split_once('=') else {
        return Err(Failure::usage(format!("--key takes DATASET=file://PATH or DATASET=HEX, not '{given}'")));
    };
    let is_hex = source.len() == 64 && source.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex {
        return Ok((dataset.to_owned(), source.as_bytes().to_vec()));
    }
    let path = source.strip_prefix("file://").unwrap_or(source);
    let secret = std::fs::read(path).map_err(|e| Failure::failed(format!("key of {dataset}: {path}: {e}")))?;
    Ok((dataset.to_owned(), secret))
}
