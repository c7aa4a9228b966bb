//! `weir zfs`: the datasets of the pools in the given folders, and their properties.

mod create;
mod destroy;
mod diff;
mod get;
mod holds;
mod identity;
mod keys;
mod list;
mod project;
mod select;
mod set;
mod snapshot;
mod target;
mod userspace;
mod values;

pub use create::file_system;
pub use identity::is_usual_limit;
pub use values::{When, parse as parse_property};

use crate::call::{Call, outln};
use crate::failure::Failure;
use std::ffi::OsString;
use weir_dsl::QuotaPrincipal;

const USAGE: &str = "\
usage: zfs list | get [-d DIR]… [options] [DATASET]…
       zfs create | destroy | snapshot | rollback | clone | promote | rename | bookmark [--dir DIR]… [options] NAME…
       zfs diff [-FHth] [--dir DIR]… SNAPSHOT [SNAPSHOT|FILESYSTEM]
       zfs userspace | groupspace | projectspace [--dir DIR]… [options] FILESYSTEM|SNAPSHOT
       zfs project [-c|-C] [options] FILE|DIRECTORY…
       zfs set | inherit | hold | release | holds [--dir DIR]… [options] NAME…
       zfs load-key | unload-key | change-key [--dir DIR]… [options] NAME";

/// Runs the command.
pub fn run(call: &Call, mut line: Vec<OsString>) -> Result<u8, Failure> {
    if line.is_empty() {
        return Err(Failure::usage(format!("missing command\n{USAGE}")));
    }
    let command = line.remove(0);
    match command.to_str().unwrap_or_default() {
        "list" => list::run(call, line),
        "get" => get::run(call, line),
        "create" => create::run(call, line),
        "clone" => create::clone(call, line),
        "destroy" => destroy::run(call, line),
        "diff" => diff::run(call, line),
        "snapshot" | "snap" => snapshot::run(call, line),
        "rollback" => snapshot::rollback(call, line),
        "promote" => snapshot::promote(call, line),
        "rename" => snapshot::rename(call, line),
        "bookmark" => snapshot::bookmark(call, line),
        "set" => set::run(call, line),
        "inherit" => set::inherit(call, line),
        "userspace" => userspace::run(call, QuotaPrincipal::User, line),
        "groupspace" => userspace::run(call, QuotaPrincipal::Group, line),
        "projectspace" => userspace::run(call, QuotaPrincipal::Project, line),
        "project" => project::run(call, line),
        "hold" => holds::hold(call, line),
        "release" => holds::release(call, line),
        "holds" => holds::holds(call, line),
        "load-key" => keys::load(call, line),
        "unload-key" => keys::unload(call, line),
        "change-key" => keys::change(call, line),
        "version" | "-V" | "--version" => {
            outln!(call, "weir {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        other => Err(Failure::usage(format!("unrecognized command '{other}'\n{USAGE}"))),
    }
}
