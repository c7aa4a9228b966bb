//! Completions of command lines in shells, with the names of pools and datasets.
//!
//! The script of a shell calls this program with [`VARIABLE`] set to the shell's name. The words come from the definition of
//! the commands; names of pools and datasets come from `weir zpool list` and `weir zfs list`, which ask the processes that
//! have pools open.

use crate::args::{PROGRAMS, definition};
use crate::failure::Failure;
use crate::tree::CommandTree;
use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

/// Environment variable with the name of the shell that asks for completions.
const VARIABLE: &str = "WEIR_COMPLETE";
/// Maximum number of names that are offered.
const MAX_NAMES: usize = 4096;
/// Commands whose operands are new names, devices or files.
const WITHOUT_NAMES: [&str; 4] = ["create", "import", "labelclear", "help"];

/// Answers a shell that asks for completions; false if none asks. `program` is the name under which this one was called.
///
/// # Errors
/// The shell is unknown, or the answer cannot be written.
pub fn answer(program: &str) -> Result<bool, Failure> {
    let folder = std::env::current_dir().ok();
    let environment = CompleteEnv::with_factory(|| completed(program)).var(VARIABLE);
    environment
        .try_complete(std::env::args_os(), folder.as_deref())
        .map_err(|error| Failure::usage(error.to_string().trim_end()))
}

/// The script that registers the completions of a program with a shell.
///
/// # Errors
/// If there are no completions for the shell.
pub fn script(shell: &str, program: &str) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    let shells = Shells::builtins();
    let unknown = || Failure::failed(format!("weir completions: no completions for {shell}"));
    let completer = shells.completer(shell).ok_or_else(unknown)?;
    let written = completer.write_registration(VARIABLE, program, program, program, &mut out);
    written.map_err(|error| Failure::failed(format!("weir completions: {error}")))?;
    Ok(out)
}

/// The definition of a program with completions of names.
fn completed(program: &str) -> Command {
    let tree = definition::<CommandTree>();
    let found = if PROGRAMS.contains(&program) { tree.find_subcommand(program).cloned() } else { None };
    let command = found.unwrap_or(tree).no_binary_name(false);
    match program {
        "zfs" => with_names(command, datasets),
        "zpool" => with_names(command, pools),
        _ => command.mut_subcommands(|command| match command.get_name() {
            "zfs" => with_names(command, datasets),
            "zpool" => with_names(command, pools),
            "serve" | "mount" | "zdb" => with_name(command, pools),
            _ => command,
        }),
    }
}

type Names = fn(&OsStr) -> Vec<CompletionCandidate>;

fn with_names(command: Command, names: Names) -> Command {
    command.mut_subcommands(|command| match WITHOUT_NAMES.contains(&command.get_name()) {
        true => command,
        false => with_name(command, names),
    })
}

fn with_name(command: Command, names: Names) -> Command {
    command.mut_args(|arg| if arg.is_positional() { arg.add(ArgValueCompleter::new(names)) } else { arg })
}

/// The names of pools.
fn pools(begun: &OsStr) -> Vec<CompletionCandidate> {
    listed(begun, &["zpool", "list", "-H", "-o", "name"])
}

/// The names of file systems and volumes, or of the snapshots of the one that was written.
fn datasets(begun: &OsStr) -> Vec<CompletionCandidate> {
    match begun.to_str().and_then(|text| text.split_once('@')) {
        Some((dataset, _)) => listed(begun, &["zfs", "list", "-H", "-o", "name", "-t", "snapshot", "-d", "1", dataset]),
        None => listed(begun, &["zfs", "list", "-H", "-o", "name"]),
    }
}

/// The lines that a command of this program prints and that begin as the word does. A command that fails lists nothing.
fn listed(begun: &OsStr, words: &[&str]) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let mut command = std::process::Command::new(program);
    // Whatever the name under which the program is installed.
    command.arg0("weir");
    let output = command.args(words).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(output) = output else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter(|name| name.starts_with(begun)).take(MAX_NAMES);
    names.map(CompletionCandidate::new).collect()
}
