//! Command lines, which each command defines once with clap; parsing, help, completions and manual pages follow from
//! it.
//!
//! Options keep OpenZFS's habits: letters cluster (`-Hpo name`), options may follow operands, `--` ends them, a flag
//! may be repeated, and of a repeated option with one value the last counts. An option takes the next word as its value
//! even if the word starts with `-`. `-d` and `--dir` both name places to look for pools, except where `-d` has another meaning
//! in OpenZFS. An invalid command line ends with exit code 2, a message in OpenZFS's form, the
//! nearest valid spelling if there is one, and the usage of the command.

use crate::failure::Failure;
use crate::refused;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error, Parser};
use std::ffi::OsString;

/// Names of programs by which the binary may be called, besides its own.
pub const PROGRAMS: [&str; 5] = ["zpool", "zfs", "zdb", "zstream", "arcstat"];

/// Maximum width of help texts.
const MAX_HELP_COLUMNS: usize = 100;

/// Width of the help that answers a call without a command.
const MISUSE_COLUMNS: usize = 80;

/// A command line that names no command to run.
#[derive(Debug)]
pub enum Stop {
    /// Text that the caller asked for (`--help`, `--version`).
    Text(String),
    /// Invalid command line.
    Misuse(Failure),
}

/// A type that defines a command line with `#[derive(Parser)]`.
pub trait CommandLine: Parser {
    /// Parses the words of a command line, without the program's name.
    ///
    /// # Errors
    /// [`Stop::Text`] if help or the version is asked for, [`Stop::Misuse`] if the command line is invalid.
    fn parse_line(words: &[OsString]) -> Result<Self, Stop> {
        let mut command = definition::<Self>();
        let matches = command.try_get_matches_from_mut(words).map_err(|error| explain(&command, words, &error))?;
        refused::check(&matches).map_err(Stop::Misuse)?;
        Self::from_arg_matches(&matches).map_err(|error| explain(&command, words, &error))
    }

    /// Failure because the command line is invalid, with the usage of the command.
    fn misused(what: &str) -> Failure {
        let mut command = Self::command();
        let usage = usage(&mut command);
        Failure::usage(format!("{}: {what}\n{usage}", command.get_name()))
    }
}

impl<T: Parser> CommandLine for T {}

/// Definition of a command line, with the rules that hold for all options.
pub fn definition<T: Parser>() -> Command {
    with_rules(T::command(), "").no_binary_name(true)
}

/// Id of the options that name places to look for pools.
const DIRS: &str = "dirs";

/// Gives the option that names places to look for pools both names, `-d` and `--dir`, where OpenZFS has no other `-d`.
fn with_both_names_of_dirs(command: Command) -> Command {
    let other_short = command.get_arguments().any(|arg| arg.get_id() != DIRS && arg.get_short() == Some('d'));
    let other_long = command.get_arguments().any(|arg| arg.get_id() != DIRS && arg.get_long() == Some("dir"));
    command.mut_args(|arg| match arg.get_id() == DIRS {
        true if arg.get_short().is_none() && !other_short => arg.short('d'),
        true if arg.get_long().is_none() && !other_long => arg.long("dir"),
        _ => arg,
    })
}

/// Applies the rules of this module to a command below `above`, and to its subcommands.
fn with_rules(command: Command, above: &str) -> Command {
    let path = format!("{above} {}", command.get_name());
    let command =
        with_both_names_of_dirs(command).args_override_self(true).max_term_width(MAX_HELP_COLUMNS).mut_args(|arg| {
            let takes_word = arg.get_action().takes_values() && !arg.is_positional();
            if takes_word { arg.allow_hyphen_values(true) } else { arg }
        });
    refused::define(&path, command).mut_subcommands(|command| with_rules(command, &path))
}

fn usage(command: &mut Command) -> String {
    let usage = command.render_usage().to_string();
    format!("usage: {}", usage.trim_start_matches("Usage: ").trim_end())
}

/// Turns clap's error into text for the caller.
fn explain(root: &Command, words: &[OsString], error: &Error) -> Stop {
    match error.kind() {
        ErrorKind::DisplayHelp => {
            let help = error.render().to_string().trim_end().to_owned();
            // OpenZFS's commands have no -h: it shows the help, and is an invalid option to scripts.
            return match is_short_help(root, words) {
                true => Stop::Misuse(Failure::usage(help)),
                false => Stop::Text(format!("{help}\n")),
            };
        }
        ErrorKind::DisplayVersion => return Stop::Text(format!("weir {}\n", env!("CARGO_PKG_VERSION"))),
        _ => {}
    }
    let (mut command, title) = named(root, words);
    let what = match (error.kind(), text(error, ContextKind::InvalidArg)) {
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            // Completions for OpenZFS's commands find the names of commands after tabs.
            let help = command.term_width(MISUSE_COLUMNS).render_help().to_string();
            let help = help.replace("Usage: ", "usage: ").replace("\n  ", "\n\t");
            return Stop::Misuse(Failure::usage(format!("missing command\n{}", help.trim_end())));
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let given = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            if let Some(what) = refused::command(command.get_name(), &given) {
                return Stop::Misuse(Failure::usage(format!(
                    "{what}\n'{title} --help' lists the commands that it has"
                )));
            }
            let near = suggestion(error, ContextKind::SuggestedSubcommand);
            let what = format!("unrecognized command '{given}'{near}\n{}", usage(&mut command));
            return Stop::Misuse(Failure::usage(format!("{what}\n'{title} --help' lists the commands")));
        }
        (ErrorKind::UnknownArgument, Some(given)) if given.starts_with('-') && given.len() > 1 => {
            format!("invalid option '{given}'{}", suggestion(error, ContextKind::SuggestedArg))
        }
        (ErrorKind::UnknownArgument, _) => "too many arguments".to_owned(),
        (ErrorKind::InvalidValue, Some(option)) if text(error, ContextKind::InvalidValue).as_deref() == Some("") => {
            format!("option {} needs a value", first_word(&option))
        }
        (ErrorKind::TooManyValues, Some(option)) => format!("option {} takes no value", first_word(&option)),
        _ => {
            let rendered = error.render().to_string();
            let mut lines = rendered.lines();
            let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
            // A line that ends so is followed by one for each argument.
            let names: Vec<&str> = lines.take_while(|line| line.starts_with(' ')).map(str::trim).collect();
            if first.ends_with(':') { format!("{first} {}", names.join(", ")) } else { first.to_owned() }
        }
    };
    Stop::Misuse(Failure::usage(format!("{title}: {what}\n{}", usage(&mut command))))
}

/// Whether the words ask for the help of a command of `zpool` or `zfs` by `-h`.
fn is_short_help(root: &Command, words: &[OsString]) -> bool {
    let (_, title) = named(root, words);
    let is_theirs = title.starts_with("zpool ") || title.starts_with("zfs ");
    // It may be one of several letters (-Hh).
    is_theirs && !words.iter().any(|word| word == "help" || word.to_string_lossy().starts_with("--h"))
}

/// The command that the words name, or the deepest one before a word that names none; and its name with its program.
fn named(root: &Command, words: &[OsString]) -> (Command, String) {
    let mut command = root;
    let mut path = vec![root.get_name()];
    for word in words {
        let Some(next) = command.find_subcommand(word) else { break };
        command = next;
        path.push(next.get_name());
    }
    let is_program = path.get(1).is_some_and(|name| PROGRAMS.contains(name));
    let title = path.get(usize::from(is_program)..).unwrap_or_default().join(" ");
    (command.clone(), title)
}

fn first_word(text: &str) -> &str {
    text.split([' ', '=']).next().unwrap_or(text)
}

/// A part of an error's context as text.
fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        // Suggestions are sorted by similarity, the nearest last.
        ContextValue::Strings(texts) => texts.last().cloned(),
        _ => None,
    }
}

fn suggestion(error: &Error, kind: ContextKind) -> String {
    text(error, kind).map_or_else(String::new, |near| format!("; did you mean '{near}'?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line for these tests.
    #[derive(Debug, Parser)]
    #[command(name = "t", override_usage = "t [-H]")]
    struct TestArgs {
        #[arg(short = 'H')]
        scripted: bool,
        #[arg(short)]
        parsable: bool,
        #[arg(short, default_value = "none")]
        output: String,
        #[arg(short, long)]
        dir: Vec<OsString>,
        #[arg(long)]
        json: bool,
        words: Vec<String>,
    }

    fn parse(line: &[&str]) -> Result<TestArgs, Stop> {
        TestArgs::parse_line(&line.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn clusters_values_and_words() {
        let line = ["-Hpo", "name,used", "pool", "-d/x", "--json", "-H", "--dir=y", "-d", "-z", "--", "-z"];
        let a = parse(&line).unwrap();
        assert!(a.scripted && a.parsable && a.json);
        assert_eq!(a.output, "name,used");
        assert_eq!(a.dir, ["/x", "y", "-z"]);
        assert_eq!(a.words, ["pool", "-z"]);
        assert_eq!(parse(&["-o", "a", "-o", "-b"]).unwrap().output, "-b", "the last value counts");
    }

    #[test]
    fn misuse_is_named() {
        for (line, what) in [
            (&["-x"][..], "t: invalid option '-x'\nusage: t [-H]"),
            (&["--jsno"], "t: invalid option '--jsno'; did you mean '--json'?\nusage: t [-H]"),
            (&["-o"], "t: option -o needs a value\nusage: t [-H]"),
            (&["--dir"], "option --dir needs a value"),
            (&["--json=1"], "option --json takes no value"),
        ] {
            let Stop::Misuse(failure) = parse(line).unwrap_err() else { panic!("{line:?} is no misuse") };
            assert_eq!(failure.code, 2);
            assert!(failure.line.contains(what), "{}", failure.line);
        }
        assert!(matches!(parse(&["--help"]), Err(Stop::Text(text)) if text.contains("--dir <DIR>")));
    }

    /// Two words and an option that must be given.
    #[derive(Debug, Parser)]
    #[command(name = "r", override_usage = "r --id N TARGET")]
    struct RequiredArgs {
        #[arg(long, value_name = "N", required = true)]
        id: Option<u32>,
        target: String,
    }

    #[test]
    fn arguments_that_are_missing_are_named() {
        let Err(Stop::Misuse(failure)) = RequiredArgs::parse_line(&[]) else { panic!("nothing is missing") };
        let first = failure.to_string().lines().next().unwrap().to_owned();
        assert!(
            first.contains("not provided: ") && first.contains("--id <N>") && first.contains("<TARGET>"),
            "{first}"
        );
        let read = RequiredArgs::parse_line(&["--id".into(), "1".into(), "t".into()]);
        assert!(read.is_ok_and(|args| args.id == Some(1) && args.target == "t"));
    }

    #[test]
    fn usages_begin_with_the_program() {
        fn walk(command: &mut Command) {
            let text = usage(command);
            let programs = ["weir", "zpool", "zfs", "zdb", "zstream", "arcstat", "mount.zfs"];
            let begins = programs.iter().any(|program| text.starts_with(&format!("usage: {program} ")));
            assert!(begins || text == "usage: weir" || command.get_name() == "help", "{}: {text}", command.get_name());
            command.get_subcommands_mut().for_each(walk);
        }
        walk(&mut definition::<crate::tree::CommandTree>());
    }
}
