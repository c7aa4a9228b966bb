//! Tree of all commands, and the texts that follow from it: completions for shells and manual pages.

use crate::analytics::arcstat::ArcstatArgs;
use crate::analytics::store::StoreArgs;
use crate::analytics::top::TopArgs;
use crate::analytics::why::WhyArgs;
use crate::args::{PROGRAMS, definition};
use crate::bench::BenchArgs;
use crate::completion;
use crate::csi::CsiArgs;
use crate::daemon::DaemonArgs;
use crate::demo::DemoArgs;

use crate::doctor::DoctorArgs;
use crate::failure::Failure;
use crate::locate::WhereArgs;
use crate::mount::MountArgs;
use crate::plan::PlanArgs;
use crate::plan::what_if::WhatIfArgs;
use crate::replicate::ReplicateArgs;
use crate::rescue::RescueArgs;
use crate::serve::ServeArgs;
use crate::smb::SmbCommand;
use crate::tune::TuneArgs;
use crate::users::UserArgs;
use crate::zdb::ZdbArgs;
use crate::zfs::ZfsArgs;
use crate::zpool::ZpoolArgs;
use crate::zstream::ZstreamArgs;
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

/// Weir, a ZFS storage server in user space.
///
/// Linked under the names zpool, zfs, zdb, zstream or arcstat, the program behaves as that command.
#[derive(Debug, Parser)]
#[command(name = "weir", version, override_usage = "weir COMMAND [OPTION]… [ARGUMENT]…")]
pub struct CommandTree {
    #[command(subcommand)]
    pub program: Program,
}

/// Commands of `weir`.
#[derive(Debug, Subcommand)]
pub enum Program {
    Zpool(ZpoolArgs),
    Zfs(ZfsArgs),
    Zdb(ZdbArgs),
    Zstream(ZstreamArgs),
    Arcstat(ArcstatArgs),
    Top(TopArgs),
    Why(WhyArgs),
    Store(StoreArgs),
    Bench(BenchArgs),
    Plan(PlanArgs),
    WhatIf(WhatIfArgs),
    Daemon(DaemonArgs),
    Serve(Box<ServeArgs>),
    Mount(MountArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    Tune(TuneArgs),
    Where(WhereArgs),
    Replicate(ReplicateArgs),
    Rescue(RescueArgs),
    Csi(CsiArgs),
    Smb(SmbCommand),
    User(UserArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Show the version.
    #[command(override_usage = "weir version")]
    Version,
}

/// Print the completions for a shell.
///
/// They complete commands, options, files, and names of pools and datasets. For bash: weir completions bash > /etc/bash_completion.d/weir
#[derive(Debug, Parser)]
#[command(name = "weir completions", override_usage = "weir completions SHELL [PROGRAM]")]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
    /// Name under which the program is linked
    #[arg(value_name = "PROGRAM", default_value = "weir", value_parser = PossibleValuesParser::new(["weir"].into_iter().chain(PROGRAMS)))]
    program: String,
}

/// Write the manual pages of all commands.
#[derive(Debug, Parser)]
#[command(name = "weir man", override_usage = "weir man DIR")]
pub struct ManArgs {
    /// Directory to write the pages to; it is made if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Completions for a shell, as a script.
///
/// # Errors
/// If there are no completions for the shell.
pub fn completions(args: &CompletionsArgs) -> Result<Vec<u8>, Failure> {
    completion::script(&args.shell.to_string(), &args.program)
}

/// Writes the manual pages of all commands: `weir.1`, `weir-zfs.1`, `weir-zfs-list.1` and so on.
///
/// # Errors
/// If a page cannot be written.
pub fn manual_pages(args: &ManArgs) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(&args.dir);
    let written = written.and_then(|()| clap_mangen::generate_to(definition::<CommandTree>(), &args.dir));
    written.map_err(|error| Failure::failed(format!("weir man: {}: {error}", args.dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CommandLine, Stop};
    use clap::{ArgAction, Command};
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    /// Commands whose `-h` is an option of OpenZFS.
    const SHORT_H_TAKEN: [&str; 4] = ["weir zdb", "weir zfs diff", "weir zfs receive", "weir zfs send"];

    /// Calls a function for each command with its path; the path of the tree itself is `weir`.
    fn walk(command: &Command, path: &str, see: &mut impl FnMut(&str, &Command)) {
        see(path, command);
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            walk(below, &format!("{path} {}", below.get_name()), see);
        }
    }

    fn help_of(path: &str, option: &str) -> String {
        let words: Vec<OsString> = path.split(' ').skip(1).chain([option]).map(OsString::from).collect();
        match CommandTree::parse_line(&words) {
            Err(Stop::Text(text)) => text,
            // OpenZFS's commands have no -h.
            Err(Stop::Misuse(failure)) if option == "-h" => failure.line,
            other => panic!("{path} {option}: {other:?}"),
        }
    }

    #[test]
    fn manual_pages_are_written_into_a_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        let args = ManArgs { dir: dir.path().join("share/man1") };
        manual_pages(&args).unwrap();
        assert!(args.dir.join("weir-zfs-list.1").is_file());
    }

    #[test]
    fn each_command_has_help_of_its_own_that_names_all_its_options() {
        let mut tree = definition::<CommandTree>();
        tree.build();
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        walk(&tree, "weir", &mut |path, command| {
            let text = help_of(path, "--help");
            if !SHORT_H_TAKEN.contains(&path) {
                assert!(!help_of(path, "-h").is_empty(), "{path}");
            }
            let about = command.get_about().unwrap_or_else(|| panic!("{path} has no description")).to_string();
            assert!(text.starts_with(&about), "{path}: {text}");
            if let Some(other) = seen.insert(about, path.to_owned()) {
                panic!("{path} and {other} have the same description");
            }
            for option in command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
                let letter = option.get_short().map(|letter| format!("-{letter}"));
                let name = option.get_long().map(|name| format!("--{name}"));
                let described = option.get_help().is_some_and(|help| !help.to_string().is_empty());
                assert!(described, "{path}: {letter:?} {name:?} is not described");
                for spelling in letter.into_iter().chain(name) {
                    let is_named = text.lines().any(|line| {
                        // One with an optional value is `--log[=<DRIVE>]`.
                        let words = line.split([' ', ',', '[']).filter(|word| !word.is_empty());
                        line.starts_with(' ') && words.take(2).any(|word| word.trim_end_matches("...") == spelling)
                    });
                    assert!(is_named, "{path}: the help does not name {spelling}:\n{text}");
                }
            }
        });
        assert!(seen.len() > 45, "{} commands", seen.len());
    }

    #[test]
    fn each_usage_names_the_letters_of_its_command() {
        let mut tree = definition::<CommandTree>();
        tree.build();
        walk(&tree, "weir", &mut |path, command| {
            let usage = command.clone().render_usage().to_string();
            let named: String = usage.split(['[', ' ', '|']).filter(|word| word.starts_with('-')).collect();
            for option in
                command.get_arguments().filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version))
            {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                let has_effect = !help.contains("has no effect") && !help.starts_with("Refused");
                if let Some(letter) = option.get_short().filter(|_| has_effect && option.get_long().is_none()) {
                    assert!(named.contains(letter), "{path}: the usage does not name -{letter}: {usage}");
                }
            }
        });
    }

    #[test]
    fn the_definitions_are_consistent() {
        definition::<CommandTree>().debug_assert();
    }
}
