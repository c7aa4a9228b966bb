//! `weir tune`: the tuning sheet of this machine and named sets of its values.

use crate::args::CommandLine;
use crate::directories;
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::units::human_bytes;
use clap::{Parser, Subcommand};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use weir_doctor::tune::{Applies, Item, Sets, TuneError, TuningSet, items};
use weir_doctor::{Reader, RealHost};

/// The command that prints the status of the daemon.
const STATUS: [&str; 4] = ["daemon", "status", "-j", "--json-int"];
/// Longest text that is imported.
const IMPORT_BYTES: u64 = 1 << 20;

/// Show and change the settings of this machine that storage over a network depends on.
///
/// Without a subcommand, it shows the tuning sheet: current, default and recommended values. Values of one's own are kept in
/// up to ten named sets. The values from before a set was applied are saved first, and restored by "weir tune rollback".
#[derive(Debug, Parser)]
#[command(name = "weir tune", override_usage = "weir tune [COMMAND]")]
pub struct TuneArgs {
    #[command(subcommand)]
    command: Option<TuneCommand>,
}

#[derive(Debug, Subcommand)]
enum TuneCommand {
    /// Show the tuning sheet, with the values of a set beside it.
    #[command(override_usage = "weir tune show [SET]")]
    Show {
        /// Set
        set: Option<String>,
    },
    /// List the sets, and which one is in force.
    #[command(override_usage = "weir tune list")]
    List,
    /// Put values into a set, which is created if necessary; KEY= removes a key.
    #[command(override_usage = "weir tune set [-c COMMENT] SET KEY=VALUE…")]
    Set {
        /// Purpose of the set
        #[arg(short, value_name = "COMMENT")]
        comment: Option<String>,
        /// Set
        set: String,
        /// Values
        #[arg(value_name = "KEY=VALUE")]
        values: Vec<String>,
    },
    /// Make a set of the recommended values that differ from the current ones.
    #[command(override_usage = "weir tune recommended SET")]
    Recommended {
        /// Set
        set: String,
    },
    /// Save the current values, then write those of a set.
    #[command(override_usage = "weir tune apply SET")]
    Apply {
        /// Set
        set: String,
    },
    /// Restore the values from before a set was applied.
    #[command(override_usage = "weir tune rollback")]
    Rollback,
    /// Remove a set; what is in force stays so.
    #[command(override_usage = "weir tune delete SET")]
    Delete {
        /// Set
        set: String,
    },
    /// Print one set or all of them as JSON.
    #[command(override_usage = "weir tune export [SET]")]
    Export {
        /// Set
        set: Option<String>,
    },
    /// Read sets that "export" printed, from a file or standard input.
    #[command(override_usage = "weir tune import [FILE]")]
    Import {
        /// File; "-" or nothing is standard input
        file: Option<PathBuf>,
    },
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Self {
        Failure::failed(format!("weir tune: {error}"))
    }
}

/// Runs the command and returns what it prints.
pub fn run(args: &TuneArgs) -> Result<String, Failure> {
    let mut sets = Sets::open(&file()?)?;
    match args.command.as_ref().unwrap_or(&TuneCommand::Show { set: None }) {
        TuneCommand::Show { set } => {
            let mine = set.as_deref().map(|name| sets.get(name)).transpose()?;
            Ok(sheet(&all_items(), mine, sets.applied().map(|applied| applied.set.as_str())))
        }
        TuneCommand::List => Ok(list(&sets)),
        TuneCommand::Set { comment, set, values } => put(&mut sets, set, comment.as_deref(), values),
        TuneCommand::Recommended { set } => {
            let differs =
                |item: &&Item| item.applies == Applies::Kernel && item.current.as_ref() != Some(&item.recommended);
            // A setting that this kernel does not have cannot be applied.
            let chosen = all_items();
            let chosen = chosen.iter().filter(differs).filter(|item| item.current.is_some());
            let values = chosen.map(|item| (item.key.clone(), item.recommended.clone())).collect();
            sets.put(set, TuningSet { comment: "recommended for this machine".into(), values })?;
            Ok(sheet(&all_items(), Some(sets.get(set)?), None))
        }
        TuneCommand::Apply { set } => {
            let count = sets.apply(set)?;
            Ok(format!(
                "{count} settings of '{set}' are in force until the machine restarts; weir tune rollback restores the old ones\n"
            ))
        }
        TuneCommand::Rollback => Ok(format!("{} settings are as before\n", sets.rollback()?)),
        TuneCommand::Delete { set } => sets.delete(set).map(|()| String::new()).map_err(Failure::from),
        TuneCommand::Export { set } => Ok(sets.export(set.as_deref())? + "\n"),
        TuneCommand::Import { file } => {
            let names = sets.import(&text_of(file.as_ref())?)?;
            Ok(format!("imported: {}\n", names.join(", ")))
        }
    }
}

fn all_items() -> Vec<Item> {
    let mut all = items(&RealHost, &Reader::new(RealHost).facts(&[], &[]));
    let limits = limits_of_daemon();
    for item in &mut all {
        let bytes = match item.key.as_str() {
            "weir.arc_max" => limits["arc_max_bytes"].as_u64(),
            "weir.dirty_max" => limits["dirty_max_bytes"].as_u64(),
            _ => None,
        };
        item.current = item.current.take().or(bytes.map(human_bytes));
    }
    all
}

/// The limits in the status of the daemon that runs; null without one.
fn limits_of_daemon() -> Value {
    let ask = || {
        crate::admin::daemon()?;
        let status = std::process::Command::new(std::env::current_exe().ok()?).args(STATUS).output().ok()?;
        let status: Value = serde_json::from_slice(&status.stdout).ok()?;
        status.get("limits").cloned()
    };
    ask().unwrap_or_default()
}

/// The file of the sets, in the state directory of the user.
fn file() -> Result<PathBuf, Failure> {
    let folder = directories::state();
    let folder = folder.ok_or_else(|| Failure::failed("weir tune: no place for the sets: set XDG_STATE_HOME"))?;
    Ok(folder.join("tuning.json"))
}

fn text_of(file: Option<&PathBuf>) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file.filter(|file| file.as_os_str() != "-") {
        Some(file) => std::fs::File::open(file).and_then(|file| file.take(IMPORT_BYTES).read_to_string(&mut text)),
        None => std::io::stdin().take(IMPORT_BYTES).read_to_string(&mut text),
    };
    read.map_err(|error| Failure::failed(format!("weir tune: cannot read the sets: {error}")))?;
    Ok(text)
}

fn put(sets: &mut Sets, name: &str, comment: Option<&str>, values: &[String]) -> Result<String, Failure> {
    let mut set = sets.all().get(name).cloned().unwrap_or_default();
    for word in values {
        let pair = word.split_once('=');
        let (key, value) = pair.ok_or_else(|| TuneArgs::misused(&format!("'{word}' is not KEY=VALUE")))?;
        match value {
            "" => set.values.remove(key),
            value => set.values.insert(key.to_owned(), value.to_owned()),
        };
    }
    if let Some(comment) = comment {
        set.comment = comment.to_owned();
    }
    sets.put(name, set)?;
    Ok(String::new())
}

fn list(sets: &Sets) -> String {
    let columns =
        [("SET", Align::Left), ("SETTINGS", Align::Right), ("IN FORCE", Align::Left), ("COMMENT", Align::Left)];
    let mut table = Table::new(columns.map(|(name, align)| (name.to_owned(), align)), false);
    for (name, set) in sets.all() {
        let is_applied = sets.applied().is_some_and(|applied| applied.set == *name);
        let in_force = if is_applied { "yes" } else { "no" };
        table.row(vec![name.clone(), set.values.len().to_string(), in_force.into(), set.comment.clone()]);
    }
    if table.is_empty() { "no sets\n".to_owned() } else { table.text() }
}

/// The sheet, and below it why and how for each setting.
fn sheet(items: &[Item], mine: Option<&TuningSet>, applied: Option<&str>) -> String {
    let names = ["SETTING", "CURRENT", "DEFAULT", "RECOMMENDED"];
    let names = names.into_iter().chain(mine.map(|_| "MINE"));
    let mut table = Table::new(names.map(|name| (name.to_owned(), Align::Left)), false);
    for item in items {
        let mut row = vec![
            item.key.clone(),
            item.current.clone().unwrap_or_else(|| "-".into()),
            item.default.clone(),
            item.recommended.clone(),
        ];
        row.extend(mine.map(|set| set.values.get(&item.key).cloned().unwrap_or_else(|| "-".into())));
        table.row(row);
    }
    let mut text = table.text();
    text.push('\n');
    for item in items {
        text += &format!("{}: {}\n", item.key, item.why);
        if let Some(how) = &item.how {
            text += &format!("    {how}\n");
        }
    }
    match applied {
        Some(set) => text += &format!("\nIn force: '{set}'; weir tune rollback restores the values from before\n"),
        None => text += "\nweir tune recommended SET makes a set; weir tune apply SET puts it in force\n",
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sheet_shows_a_set_beside_the_recommendation() {
        let item = Item {
            key: "net.core.rmem_max".into(),
            applies: Applies::Kernel,
            current: Some("212992".into()),
            default: "212992".into(),
            recommended: "4194304".into(),
            why: "largest receive buffer".into(),
            how: None,
        };
        let values = [("net.core.rmem_max".to_owned(), "1000000".to_owned())].into();
        let text = sheet(&[item], Some(&TuningSet { comment: String::new(), values }), None);
        assert!(text.starts_with("SETTING            CURRENT  DEFAULT  RECOMMENDED  MINE\n"), "{text}");
        assert!(text.contains("net.core.rmem_max  212992   212992   4194304      1000000\n"), "{text}");
    }
}
