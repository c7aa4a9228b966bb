//! Weir: a ZFS storage server in user space.
//!
//! The binary behaves as `zpool`, `zfs`, `zdb` or `zstream` if it is called by that name; if it is called as `weir`,
//! its first argument names the tool. Every command returns OpenZFS's exit code (0 success, 1 failure, 2 invalid
//! command line) and, when it fails, prints one line on standard error with the cause and how to correct it.

mod admin;
mod args;
mod call;
mod demo;
mod failure;
mod json;
mod limits;
mod locks;
mod log;
mod mount;
mod operations;
mod pools;
mod secrets;
mod serve;
mod size;
mod table;
mod units;
mod writable;
mod zdb;
mod zfs;
mod zpool;
mod zstream;

use call::{Call, errln};
use failure::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "\
usage: weir COMMAND ...

  weir zdb -e -p DIR POOL [-u] [-C] [-d…] [-b…] [-c…] [-m] [-s] [-h]   look into a pool and verify it
  weir zdb -l DEVICE                                                  show a device's labels
  weir zdb -e -p DIR -r DATASET PATH DEST                             copy a file out
  weir zpool create POOL [mirror|raidz[1-3]|log|…] DEVICE…            make a pool on files or devices
  weir zpool import | export | destroy | set | history | sync | labelclear
  weir zpool status | list | get            [-d DIR] …                pools
  weir zpool events | iostat [-vHf] [POOL]                            what happens to a pool that is open
  weir zfs create | destroy | snapshot | rollback | clone | promote | rename | bookmark | hold | release | holds
  weir zfs set | inherit | list | get       [--dir DIR] …             datasets
  weir zfs diff SNAPSHOT [SNAPSHOT|FILESYSTEM]                        what changed since a snapshot
  weir zstream dump FILE                                              show a send stream
  weir demo [--once] [-f] [--dir FOLDER]                              a pool in a folder, served and measured
  weir mount [-o ro] [-d DIR] POOL MOUNTPOINT                         mount a pool's file systems (FUSE)
  weir serve [-d DIR] POOL                                            serve a pool (NFS, NBD)
  weir version

DIR is a folder with disk images or devices, or one of them; WEIR_POOL_DIRS (separated by colons) replaces -d.
";

/// Exits quietly when the reader of the output has closed the pipe (`weir … | head`), as other tools do.
fn end_with_the_reader() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        if text.is_some_and(|t| t.starts_with("failed printing to std") && t.contains("Broken pipe")) {
            std::process::exit(141);
        }
        default_hook(panic);
    }));
}

fn main() -> ExitCode {
    end_with_the_reader();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let called = if words.is_empty() { OsString::new() } else { words.remove(0) };
    let called =
        std::path::Path::new(&called).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let name = match called.as_str() {
        "zpool" | "zfs" | "zdb" | "zstream" => called,
        _ if words.is_empty() => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
        _ => words.remove(0).to_string_lossy().into_owned(),
    };
    if name == "zfs" || name == "zpool" {
        return ExitCode::from(carry_out(&Call::own(&name, words)));
    }
    match run(&name, words) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a `zfs` or `zpool` command, prints its error and returns its exit code. If another process has the pool open,
/// that process runs the command.
fn carry_out(call: &Call) -> u8 {
    let words = call.caller.words.clone();
    let done = match call.caller.program.as_str() {
        "zfs" => zfs::run(call, words),
        "zpool" => zpool::run(call, words),
        other => Err(Failure::usage(format!("there is no program '{other}'"))),
    };
    let done = done.or_else(|mut failure| match failure.take_remote() {
        Some(remote) => admin::ask(call, &remote),
        None => {
            call.begin();
            Err(failure)
        }
    });
    if done.is_ok() {
        call.begin();
    }
    done.unwrap_or_else(|failure| {
        errln!(call, "{failure}");
        failure.code
    })
}

fn run(name: &str, words: Vec<OsString>) -> Result<u8, Failure> {
    if matches!(name, "mount" | "serve" | "demo") {
        log::start();
    }
    match name {
        "zdb" => zdb::run(words),
        "mount" => mount::run(words),
        "serve" => serve::run(words),
        "demo" => demo::run(words),
        "zstream" => zstream::run(words),
        "version" | "--version" | "-V" => {
            println!("weir {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(0)
        }
        other => Err(Failure::usage(format!("weir: there is no command '{other}'; 'weir help' lists them all"))),
    }
}
