//! docs/coverage.md is what the program does.

use crate::args::{Stop, definition};
use crate::refused;
use crate::tree::CommandTree;
use crate::zfs::{When, parse_property};
use crate::zpool::pool_change;
use clap::{Arg, ArgAction, Command};
use std::collections::BTreeSet;
use std::ffi::OsString;
use weir_admin::{REFUSED_POOL_SETTINGS, REFUSED_VDEV_SETTINGS, vdev_setting};
use weir_dsl::props::{DatasetKind, NATIVES, Rule};

const PAGE: &str = include_str!("../../../docs/coverage.md");
/// Arguments of all commands, which the page names once.
const OF_ALL: [&str; 4] = ["dirs", "keys", "help", "version"];

/// The rows of the table below a heading of the page, each as its cells.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("no '{heading}'"));
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Words in backticks in a text.
fn quoted(text: &'static str) -> Vec<&'static str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn options(cell: &'static str) -> Vec<&'static str> {
    quoted(cell).into_iter().filter(|word| word.starts_with('-') && !word.contains(' ')).collect()
}

fn find<'a>(command: &'a Command, option: &'static str) -> Option<&'a Arg> {
    let (letter, long) = refused::names(option);
    let is_it = |arg: &&Arg| letter.is_some() && arg.get_short() == letter || long.is_some() && arg.get_long() == long;
    command.get_arguments().find(is_it)
}

fn is_refused(arg: &Arg) -> bool {
    arg.get_help().is_some_and(|help| help.to_string().starts_with("Refused"))
}

/// Runs the parser on a command line.
fn parse(program: &str, command: &str, option: &str, takes_value: bool) -> Result<CommandTree, Stop> {
    let mut words = vec![program, command, option];
    words.extend(takes_value.then_some("1"));
    crate::args::CommandLine::parse_line(&words.into_iter().map(OsString::from).collect::<Vec<_>>())
}

/// A command, and where the page is wrong about it.
struct Checked<'a> {
    program: &'a str,
    name: &'static str,
    command: &'a Command,
    /// Ids of the arguments that are listed.
    named: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Checked<'_> {
    fn note(&mut self, option: &str, what: &str) {
        self.wrong.push(format!("{} {} {option}: {what}", self.program, self.name));
    }

    fn works(&mut self, option: &'static str) {
        let Some(arg) = find(self.command, option) else { return self.note(option, "does not exist") };
        self.named.insert(arg.get_id().to_string());
        if is_refused(arg) {
            return self.note(option, "is refused");
        }
        let parsed = parse(self.program, self.name, option, arg.get_action().takes_values());
        if let Err(Stop::Misuse(failure)) = parsed
            && !failure.line.contains("required")
        {
            self.note(option, &failure.line);
        }
    }

    fn is_without_effect(&mut self, option: &'static str) {
        self.works(option);
        let help = find(self.command, option).and_then(Arg::get_help).map(ToString::to_string).unwrap_or_default();
        if !["no effect", "Ignored", "Accepted"].iter().any(|word| help.contains(word)) {
            self.note(option, &format!("its help is: {help}"));
        }
    }

    fn is_refused(&mut self, option: &'static str, reasons: &str) {
        let Some(arg) = find(self.command, option) else { return self.note(option, "does not exist") };
        self.named.insert(arg.get_id().to_string());
        if !is_refused(arg) {
            return self.note(option, "is not refused");
        }
        let of = format!("{} {}", self.program, self.name);
        let entry = refused::OPTIONS.iter().find(|(name, spellings, ..)| *name == of && spellings.contains(&option));
        // Others are refused by the command itself, which knows more about them.
        let Some((_, _, _, why)) = entry else { return };
        if !reasons.contains(why) {
            self.note(option, &format!("the page does not say '{why}'"));
        }
        match parse(self.program, self.name, option, arg.get_action().takes_values()) {
            Err(Stop::Misuse(failure)) if failure.line.contains(why) => {}
            other => self.note(option, &format!("{other:?}")),
        }
    }

    fn lists_all(&mut self) {
        let is_other = |arg: &&Arg| {
            let is_special = matches!(arg.get_action(), ArgAction::Help | ArgAction::Version);
            !arg.is_positional() && !is_special && !OF_ALL.contains(&arg.get_id().as_str())
        };
        let others = self.command.get_arguments().filter(is_other).map(|arg| arg.get_id().to_string());
        let missing: Vec<String> = others.filter(|id| !self.named.contains(id)).collect();
        missing.iter().for_each(|id| self.note(id, "is not listed"));
    }
}

#[test]
fn each_option_does_what_the_page_says() {
    let mut tree = definition::<CommandTree>();
    tree.build();
    let mut wrong = Vec::new();
    for program in ["zpool", "zfs"] {
        let of_program = tree.find_subcommand(program).unwrap();
        let mut listed = BTreeSet::new();
        for row in table(&format!("{program}: commands")) {
            let [name, works, ignored, refusals] = row[..] else { panic!("{row:?}") };
            let name = quoted(name)[0];
            assert!(listed.insert(name.to_owned()), "{program} {name} is listed twice");
            let Some(command) = of_program.find_subcommand(name) else {
                let why = refused::command(program, name).unwrap_or_else(|| panic!("{program} {name} does not exist"));
                assert!(why.contains(refusals) && works.is_empty(), "{program} {name}: {why}");
                continue;
            };
            let mut checked = Checked { program, name, command, named: BTreeSet::new(), wrong: Vec::new() };
            options(works).into_iter().for_each(|option| checked.works(option));
            options(ignored).into_iter().for_each(|option| checked.is_without_effect(option));
            options(refusals).into_iter().for_each(|option| checked.is_refused(option, refusals));
            checked.lists_all();
            wrong.extend(checked.wrong);
        }
        // mount(8) calls one that has no place in the list.
        let shown = of_program.get_subcommands().filter(|command| !command.is_hide_set());
        let there = shown.map(|command| command.get_name().to_owned());
        let there = there.filter(|name| name != "help");
        let refused = refused::COMMANDS.iter().filter_map(|(name, _)| name.strip_prefix(&format!("{program} ")));
        let all: BTreeSet<String> = there.chain(refused.map(str::to_owned)).collect();
        assert_eq!(all, listed, "the commands of {program}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The properties of a table, by the first word of its row.
fn properties(heading: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let rows = table(heading);
    rows.into_iter().map(|row| (row[0], quoted(row[1]))).collect()
}

/// A value that the property may have.
fn value_of(property: &str) -> &'static str {
    match property {
        "mountpoint" => "/x",
        "keylocation" => "prompt",
        "sharenfs" | "sharesmb" => "off",
        "volsize" | "volblocksize" | "recordsize" => "8K",
        "pbkdf2iters" => "100000",
        "version" => "4",
        "quota" | "refquota" => "none",
        "mlslabel" | "context" | "fscontext" | "defcontext" | "rootcontext" => "none",
        name => {
            let native = weir_dsl::props::native_named(name).unwrap_or_else(|| panic!("there is no '{name}'"));
            match native.shape {
                weir_dsl::props::Shape::Index(names) => names[0].0,
                _ => "0",
            }
        }
    }
}

#[test]
fn each_property_of_datasets_is_set_or_not_as_the_page_says() {
    let mut listed = BTreeSet::new();
    for (how, names) in properties("Properties of datasets") {
        for name in names.into_iter().filter(|name| !name.contains('@')) {
            listed.insert(name.to_owned());
            let native = weir_dsl::props::native_named(name).unwrap_or_else(|| panic!("there is no '{name}'"));
            let pair = format!("{name}={}", value_of(name));
            let parse = |when| {
                let kinds = [DatasetKind::Filesystem, DatasetKind::Volume];
                kinds.into_iter().map(|kind| parse_property(&pair, kind, when)).find(Result::is_ok)
            };
            let later = parse(When::Later).is_some();
            let creation = parse(When::Creation).is_some();
            match how {
                "Read only" => assert!(!later && !creation, "{name} can be set"),
                how if how.starts_with("Set at creation") => assert!(!later && creation, "{name}: {later}, {creation}"),
                _ => assert!(later && native.rule != Rule::OneTime, "{name} cannot be set"),
            }
        }
    }
    let all: BTreeSet<String> = NATIVES.iter().map(|native| native.prop.name().to_owned()).collect();
    assert_eq!(all, listed);
}

#[test]
fn each_property_of_pools_is_set_or_not_as_the_page_says() {
    let mut listed = BTreeSet::new();
    for (how, names) in properties("Properties of pools") {
        for name in names.into_iter().filter(|name| *name != "off" && *name != "on" && !name.contains('@')) {
            if ["add", "attach", "replace"].contains(&name) {
                continue;
            }
            listed.insert(name);
            let values = ["off", "wait", "none", "x"];
            let is_set = values.iter().any(|value| pool_change(name, value).is_ok());
            let error = pool_change(name, "on").err().unwrap_or_default();
            match how {
                // Kept beside the pool.
                _ if name == "cachefile" => {}
                "Read only" => assert!(!is_set && error.contains("readonly"), "{name}: {error}"),
                "Refused with the reason" => {
                    let (_, why) = REFUSED_POOL_SETTINGS.iter().find(|(refused, _)| *refused == name).unwrap();
                    assert!(!is_set && error.contains(why), "{name}: {error}");
                }
                how if how.starts_with("Set at creation") => assert!(!is_set, "{name}"),
                _ => assert!(is_set, "{name}: {error}"),
            }
        }
    }
    assert_eq!(weir_pool::properties::NAMES.iter().copied().collect::<BTreeSet<_>>(), listed);
}

#[test]
fn each_property_of_vdevs_is_set_or_not_as_the_page_says() {
    let mut listed = BTreeSet::new();
    for (how, names) in properties("Properties of vdevs") {
        for name in names.into_iter().filter(|name| *name != "-") {
            listed.insert(name);
            let found = vdev_setting(name, "1").or_else(|why| vdev_setting(name, "off").map_err(|_| why));
            match how {
                how if how.starts_with("Set") => assert!(found.is_ok(), "{name}: {found:?}"),
                how if how.starts_with("Shown") => {
                    let (_, why) = REFUSED_VDEV_SETTINGS.iter().find(|(refused, _)| *refused == name).unwrap();
                    assert!(found.unwrap_err().contains(why), "{name}");
                }
                _ => assert!(found.unwrap_err().contains("readonly"), "{name}"),
            }
        }
    }
    assert_eq!(weir_pool::vdev_properties::NAMES.iter().copied().collect::<BTreeSet<_>>(), listed);
}
