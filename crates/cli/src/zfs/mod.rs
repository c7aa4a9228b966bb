//! `weir zfs`: the datasets of the pools in the given folders, and their properties.

mod create;
mod destroy;
mod get;
mod holds;
mod list;
mod select;
mod set;
mod snapshot;
mod target;
mod values;

pub use create::file_system;
pub use values::{When, parse as parse_property};

use crate::failure::Failure;
use std::ffi::OsString;

const USAGE: &str = "\
usage: zfs list | get [-d DIR]… [options] [DATASET]…
       zfs create | destroy | snapshot | rollback | clone | promote | rename | bookmark [--dir DIR]… [options] NAME…
       zfs set | inherit | hold | release | holds [--dir DIR]… [options] NAME…";

/// Runs the command.
pub fn run(mut line: Vec<OsString>) -> Result<u8, Failure> {
    if line.is_empty() {
        return Err(Failure::usage(format!("missing command\n{USAGE}")));
    }
    let command = line.remove(0);
    match command.to_str().unwrap_or_default() {
        "list" => list::run(line),
        "get" => get::run(line),
        "create" => create::run(line),
        "clone" => create::clone(line),
        "destroy" => destroy::run(line),
        "snapshot" | "snap" => snapshot::run(line),
        "rollback" => snapshot::rollback(line),
        "promote" => snapshot::promote(line),
        "rename" => snapshot::rename(line),
        "bookmark" => snapshot::bookmark(line),
        "set" => set::run(line),
        "inherit" => set::inherit(line),
        "hold" => holds::hold(line),
        "release" => holds::release(line),
        "holds" => holds::holds(line),
        "version" | "-V" | "--version" => {
            println!("weir {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        other => Err(Failure::usage(format!("unrecognized command '{other}'\n{USAGE}"))),
    }
}
