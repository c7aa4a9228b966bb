//! `weir zpool`: what pools there are, how they stand, and what is done to them as a whole.
//!
//! No pool is held open between two commands, so every one of them looks for its pools in the folders given.

mod create;
mod devices;
mod ends;
mod features;
mod get;
mod import;
mod list;
mod opened;
mod scrub;
mod set;
mod status;
mod tree;
mod vdevs;

use crate::failure::Failure;
use std::ffi::OsString;

const USAGE: &str = "\
usage: zpool create [options] POOL VDEV…
       zpool import | export | destroy | sync | set | history [-d DIR]… [options] [POOL]…
       zpool scrub [-p | -s] | trim [-d DIR]… POOL…
       zpool status | list | get [-d DIR]… [options] [POOL]…
       zpool labelclear [-f] DEVICE";

/// Runs the command.
pub fn run(mut line: Vec<OsString>) -> Result<u8, Failure> {
    if line.is_empty() {
        return Err(Failure::usage(format!("missing command\n{USAGE}")));
    }
    let command = line.remove(0);
    match command.to_str().unwrap_or_default() {
        "create" => create::run(line),
        "destroy" => ends::destroy(line),
        "export" => ends::export(line),
        "sync" => ends::sync(line),
        "labelclear" => ends::labelclear(line),
        "set" => set::run(line),
        "history" => set::history(line),
        "import" => import::run(line),
        "get" => get::run(line),
        "list" => list::run(line),
        "scrub" => scrub::run(line),
        "status" => status::run(line),
        "trim" => scrub::trim(line),
        "version" | "-V" | "--version" => {
            println!("weir {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        other => Err(Failure::usage(format!("unrecognized command '{other}'\n{USAGE}"))),
    }
}
