//! Commands and options of OpenZFS that Weir refuses, each with the reason. The options are hidden from help texts, and listed in
//! docs/coverage.md.

use crate::failure::Failure;
use clap::{Arg, ArgAction, ArgMatches, Command};

const POWER: &str = "Weir does not switch the power of enclosure slots";

/// Commands that Weir does not have, and the reasons.
pub const COMMANDS: &[(&str, &str)] = &[
    ("zpool ddtprune", "the dedup tables that Weir makes hold no ages of entries"),
    ("zfs jail", "only FreeBSD has jails"),
    ("zfs unjail", "only FreeBSD has jails"),
    ("zfs unzone", "Weir has no module in the kernel, to which user namespaces could be attached"),
    ("zfs zone", "Weir has no module in the kernel, to which user namespaces could be attached"),
];

/// A refused option: the command, the spellings, the name of its value if it takes one, and the reason.
pub type RefusedOption = (&'static str, &'static [&'static str], Option<&'static str>, &'static str);

/// Options that Weir refuses.
pub const OPTIONS: &[RefusedOption] = &[
    ("zfs rewrite", &["-P"], None, "Weir writes no blocks that keep their logical birth time"),
    ("zfs share", &["-l"], None, "'zfs load-key' loads keys"),
    ("zfs unmount", &["-u"], None, "'zfs unload-key' unloads keys"),
    ("zpool add", &["-g"], None, "new vdevs have no GUIDs before they are added"),
    ("zpool add", &["--allow-ashift-mismatch"], None, "vdevs of another ashift are added without it"),
    ("zpool clear", &["-F", "-n", "-X"], None, "'zpool import -F' goes back to an earlier txg"),
    ("zpool clear", &["--power"], None, POWER),
    ("zpool import", &["-V"], None, "no pool is imported whose devices were not read"),
    ("zpool offline", &["--power"], None, POWER),
    ("zpool online", &["--power"], None, POWER),
    ("zpool scrub", &["-E", "-S"], Some("DATE"), "a scrub visits the blocks of all txgs"),
    ("zpool status", &["--power"], None, POWER),
    ("zpool upgrade", &["-V"], Some("VERSION"), "pools of old versions stay as they are"),
];

/// Defines the refused options of the command at `path` (`weir zpool clear`), unless the command has them itself.
pub fn define(path: &str, mut command: Command) -> Command {
    for (of, spellings, value, why) in OPTIONS.iter().filter(|(of, ..)| path.ends_with(of)) {
        for spelling in *spellings {
            let (letter, long) = names(spelling);
            let is_there =
                |arg: &Arg| letter.is_some() && arg.get_short() == letter || long.is_some() && arg.get_long() == long;
            if command.get_arguments().any(is_there) {
                continue;
            }
            let mut arg = Arg::new(*spelling).hide(true).help(format!("Refused: {why}"));
            arg = match letter {
                Some(letter) => arg.short(letter),
                None => arg.long(long.unwrap_or_default()),
            };
            arg = arg.action(if value.is_some() { ArgAction::Append } else { ArgAction::SetTrue });
            debug_assert!(!of.is_empty());
            command = command.arg(arg);
        }
    }
    command
}

/// The letter or the long name of an option.
pub fn names(spelling: &'static str) -> (Option<char>, Option<&'static str>) {
    match spelling.strip_prefix("--") {
        Some(long) => (None, Some(long)),
        None => (spelling.chars().nth(1), None),
    }
}

/// Fails if a refused option is given to the command that the matches name.
pub fn check(matches: &ArgMatches) -> Result<(), Failure> {
    let mut path = String::new();
    let mut at = matches;
    while let Some((name, below)) = at.subcommand() {
        path = if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        at = below;
    }
    for (_, spellings, value, why) in OPTIONS.iter().filter(|(of, ..)| *of == path) {
        let is_given = |spelling: &&&str| match (at.try_contains_id(spelling), value) {
            (Ok(true), None) => at.get_flag(spelling),
            (Ok(given), _) => given,
            (Err(_), _) => false,
        };
        if let Some(spelling) = spellings.iter().find(is_given) {
            return Err(Failure::usage(format!("{path}: option {spelling} is refused: {why}")));
        }
    }
    Ok(())
}

/// The message for a command that Weir does not have; `None` for other words.
pub fn command(program: &str, given: &str) -> Option<String> {
    let name = format!("{program} {given}");
    let (_, why) = COMMANDS.iter().find(|(command, _)| *command == name)?;
    Some(format!("'{name}' is refused: {why}"))
}
