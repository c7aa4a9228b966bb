//! Where pools are looked for: `-d` (or zdb's `-p`), else the environment variable `WEIR_POOL_DIRS`.

use crate::failure::Failure;
use std::ffi::OsString;
use std::path::PathBuf;

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
