//! `weir zfs`: the datasets of the pools in the given folders, and their properties.

mod get;
mod list;
mod select;

use crate::failure::Failure;
use std::ffi::OsString;

const USAGE: &str = "usage: zfs list | get [-d DIR]… [options] [DATASET]…";

/// Runs the command.
pub fn run(mut line: Vec<OsString>) -> Result<u8, Failure> {
    if line.is_empty() {
        return Err(Failure::usage(format!("missing command\n{USAGE}")));
    }
    let command = line.remove(0);
    match command.to_str().unwrap_or_default() {
        "list" => list::run(line),
        "get" => get::run(line),
        "version" | "-V" | "--version" => {
            println!("weir {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        other => Err(Failure::usage(format!("unrecognized command '{other}'\n{USAGE}"))),
    }
}
