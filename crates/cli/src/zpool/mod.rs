//! `weir zpool`: what pools there are, how they stand, and what is done to them as a whole.
//!
//! Every command looks for its pools in the folders given. One that a process has open is that process's to work on
//! ([`crate::admin`]); otherwise no pool is held open between two commands.

mod add;
mod create;
mod devices;
mod events;
mod features;
mod get;
mod import;
mod iostat;
mod lifecycle;
mod list;
mod opened;
mod scrub;
mod set;
mod status;
mod tree;
mod vdevs;

use crate::call::{Call, outln};
use crate::failure::Failure;
use std::ffi::OsString;

const USAGE: &str = "\
usage: zpool create | add [options] POOL VDEV…
       zpool import | export | destroy | sync | set | history [-d DIR]… [options] [POOL]…
       zpool scrub [-p | -s] | trim [-d DIR]… POOL…
       zpool status | list | get [-d DIR]… [options] [POOL]…
       zpool events [-vHf] [POOL] | events -c
       zpool iostat [-vHp] [POOL] [INTERVAL [COUNT]]
       zpool labelclear [-f] DEVICE";

/// Runs the command.
pub fn run(call: &Call, mut line: Vec<OsString>) -> Result<u8, Failure> {
    if line.is_empty() {
        return Err(Failure::usage(format!("missing command\n{USAGE}")));
    }
    let command = line.remove(0);
    match command.to_str().unwrap_or_default() {
        "add" => add::run(call, line),
        "create" => create::run(call, line),
        "destroy" => lifecycle::destroy(call, line),
        "events" => events::run(call, line),
        "export" => lifecycle::export(call, line),
        "sync" => lifecycle::sync(call, line),
        "labelclear" => lifecycle::labelclear(call, line),
        "set" => set::run(call, line),
        "history" => set::history(call, line),
        "import" => import::run(call, line),
        "iostat" => iostat::run(call, line),
        "get" => get::run(call, line),
        "list" => list::run(call, line),
        "scrub" => scrub::run(call, line),
        "status" => status::run(call, line),
        "trim" => scrub::trim(call, line),
        "version" | "-V" | "--version" => {
            outln!(call, "weir {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        other => Err(Failure::usage(format!("unrecognized command '{other}'\n{USAGE}"))),
    }
}
