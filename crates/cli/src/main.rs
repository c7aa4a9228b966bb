//! Weir: a ZFS storage server in user space.
//!
//! The binary behaves as `zpool`, `zfs`, `zdb`, `zstream` or `arcstat` if it is called by that name, and as the helper of `mount(8)`
//! if it is called as `mount.zfs`. If it is called as `weir`, its first argument names the tool. Every command returns OpenZFS's exit code (0 success, 1 failure, 2 invalid
//! command line) and, when it fails, prints one line on standard error with the cause and how to correct it.

mod admin;
mod analytics;
mod args;
mod automount;
mod bench;
mod cache_file;
mod call;
mod canceling;
mod colors;
mod command_target;
mod completion;
#[cfg(test)]
mod coverage;
mod csi;
mod daemon;
mod demo;
mod directories;
mod doctor;
mod failure;
mod json;
mod limits;
mod locate;
mod locks;
mod log;
mod mount;
mod mounts;
mod open_elsewhere;
mod options;
mod places;
mod plan;
mod pools;
mod process;
mod reading;
mod refused;
mod remote;
mod replicate;
mod rescue;
mod secrets;
mod serve;
mod serve_options;
mod smb;
mod snapshot_names;
mod state_file;
mod stores;
mod table;
mod times;
mod tree;
mod tune;
mod turn;
mod units;
mod users;
mod web;
mod writable;
mod zdb;
mod zfs;
mod zpool;
mod zstream;

use args::{CommandLine, PROGRAMS, Stop};
use call::{Call, errln};
use failure::Failure;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tree::{CommandTree, Program};
use turn::in_turn_of;
pub(crate) use weir_admin::size;

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

/// Name under which `mount(8)` calls the program.
const MOUNT_HELPER: &str = "mount.zfs";

fn main() -> ExitCode {
    end_with_the_reader();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let mut called = words.first().map(Path::new).and_then(Path::file_name).map(OsString::from);
    if called.as_deref().is_some_and(|name| name == MOUNT_HELPER) {
        words.insert(1, MOUNT_HELPER.into());
        called = Some("zfs".into());
    }
    // A call as `zfs list` is the call `weir zfs list`.
    match called.filter(|name| PROGRAMS.iter().any(|program| name == program)) {
        Some(program) => words[0] = program,
        None => drop(words.drain(..words.len().min(1))),
    }
    let program = words.first().and_then(|word| word.to_str()).filter(|word| PROGRAMS.contains(word)).unwrap_or("weir");
    match completion::answer(program) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::from(failure.code);
        }
    }
    match CommandTree::parse_line(&words) {
        Ok(tree) => {
            let code = run(&tree.program, &words);
            abort_on_request(program);
            ExitCode::from(code)
        }
        Err(Stop::Text(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(Stop::Misuse(failure)) => {
            eprintln!("{failure}");
            abort_on_request(program);
            ExitCode::from(failure.code)
        }
    }
}

/// Ends `zpool` and `zfs` by SIGABRT after the command if `ZFS_ABORT` is set, as OpenZFS's commands do, for a core dump.
fn abort_on_request(program: &str) {
    if matches!(program, "zpool" | "zfs") && std::env::var_os("ZFS_ABORT").is_some() {
        println!("dumping core by request");
        std::process::abort();
    }
}

/// Runs a command and returns its exit code. `words` are the command line, beginning with the program.
fn run(program: &Program, words: &[OsString]) -> u8 {
    if matches!(program, Program::Serve(_) | Program::Mount(_) | Program::Demo(_)) {
        log::start();
    }
    let call = |name| Call::own(name, words.get(1..).unwrap_or_default().to_vec());
    let done = match program {
        Program::Zpool(_) => return administer(&call("zpool"), program),
        Program::Zfs(_) => return administer(&call("zfs"), program),
        Program::Where(_) => return administer(&call("where"), program),
        Program::Arcstat(args) => printed(&call("arcstat"), |call| analytics::arcstat::run(call, args)),
        Program::Top(args) => printed(&call("top"), |call| analytics::top::run(call, args)),
        Program::Why(args) => printed(&call("why"), |call| analytics::why::run(call, args)),
        Program::Store(args) => printed(&call("store"), |call| analytics::store::run(call, args)),
        Program::Bench(args) => bench::run(args, &strings(words)),
        Program::Plan(args) => plan::run(args),
        Program::WhatIf(args) => printed(&call("what-if"), |call| plan::what_if::run(call, args)),
        Program::Zdb(args) => zdb::run(args),
        Program::Zstream(args) => zstream::run(args),
        Program::Daemon(args) => return daemon::run(args, &call("daemon")),
        Program::Serve(args) => serve::run(args),
        Program::Mount(args) => mount::run(args),
        Program::Demo(args) => demo::run(args),
        Program::Doctor(args) => doctor::run(args).and_then(|text| print_bytes(text.as_bytes())),
        Program::Tune(args) => tune::run(args).and_then(|text| print_bytes(text.as_bytes())),
        Program::Smb(args) => smb::run(args),
        Program::Replicate(args) => replicate::run(args),
        Program::Rescue(args) => rescue::run(args),
        Program::Csi(args) => csi::run(args),
        Program::User(args) => users::run(args),
        Program::Completions(args) => tree::completions(args).and_then(|script| print_bytes(&script)),
        Program::Man(args) => tree::manual_pages(args).map(|()| 0),
        Program::Version => print_bytes(format!("weir {}\n", env!("CARGO_PKG_VERSION")).as_bytes()),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        failure.code
    })
}

/// Words of a command line after the program's name, as text.
fn strings(words: &[OsString]) -> Vec<String> {
    words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Runs a command that prints through its call, and prints what it left.
fn printed(call: &Call, command: impl FnOnce(&Call) -> Result<u8, Failure>) -> Result<u8, Failure> {
    let done = command(call);
    call.begin();
    if call.output_lost() == 0 { done } else { Ok(call.output_lost()) }
}

fn print_bytes(bytes: &[u8]) -> Result<u8, Failure> {
    match std::io::stdout().write_all(bytes) {
        Ok(()) => Ok(0),
        // The exit code of a program that SIGPIPE ended.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(141),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// Runs a `zfs`, `zpool` or `daemon` command that another process sent, and returns its exit code.
fn carry_out(call: &Call) -> u8 {
    let mut words = vec![OsString::from(&call.caller.program)];
    words.extend_from_slice(&call.caller.words);
    match CommandTree::parse_line(&words) {
        Ok(tree) => match &tree.program {
            Program::Daemon(args) => daemon::carry_out(call, args),
            program => administer(call, program),
        },
        Err(Stop::Text(text)) => {
            call.print(format_args!("{text}"));
            0
        }
        Err(Stop::Misuse(failure)) => {
            errln!(call, "{failure}");
            failure.code
        }
    }
}

/// Runs a `zfs` or `zpool` command in this process or in the process that has the pool open. Output of an attempt that
/// can be repeated is dropped.
fn attempt(call: &Call, program: &Program) -> Result<u8, Failure> {
    call.forget_output();
    let done = match program {
        Program::Zfs(args) => zfs::run(call, args),
        Program::Zpool(args) => zpool::run(call, args),
        Program::Where(args) => locate::run(call, args),
        _ => Err(Failure::usage(format!("'{}' is no command of zfs or zpool", call.caller.program))),
    };
    done.or_else(|mut failure| match failure.take_remote() {
        Some(remote) => {
            call.forget_output();
            admin::ask(call, &remote)
        }
        None => {
            if call.has_effect() {
                // What the command did up to here must not happen twice.
                failure.take_wait_for();
            }
            Err(failure)
        }
    })
}

/// Runs a `zfs` or `zpool` command, prints its error and returns its exit code. If another process has the pool open,
/// that process runs the command.
fn administer(call: &Call, program: &Program) -> u8 {
    let done = admin::await_opening(call).and_then(|()| in_turn_of(call, || attempt(call, program)));
    call.begin();
    if call.output_lost() != 0 {
        return call.output_lost();
    }
    done.unwrap_or_else(|failure| {
        errln!(call, "{failure}");
        failure.code
    })
}
