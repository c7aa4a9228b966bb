//! `zfs diff`: which files came, went, changed or moved since a snapshot.

use super::target::{pool_of, words};
use crate::call::{Call, errln};
use crate::failure::{FAILED, Failure};
use crate::options::Places;
use crate::reading::PoolReader;
use crate::writable::refused;
use clap::Parser;
use std::io::Write;
use weir_admin::{ChangeKind, DiffQuery, DifferenceRow, PoolQuery, RefusalKind, Row};

/// Show the differences between a snapshot and a later snapshot or the file system.
#[derive(Debug, Parser)]
#[command(
    name = "zfs diff",
    disable_help_flag = true,
    override_usage = "zfs diff [-FHth] [--dir DIR]… SNAPSHOT [SNAPSHOT|FILESYSTEM]"
)]
pub struct DiffArgs {
    /// Show the type of each file
    #[arg(short = 'F')]
    kinds: bool,
    /// Columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Show the time of each change (ctime)
    #[arg(short)]
    times: bool,
    /// Print names as they are, without escapes
    #[arg(short = 'h')]
    plain: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    places: Places,
    /// Earlier snapshot, and the later snapshot or the file system
    #[arg(value_name = "SNAPSHOT LATER")]
    words: Vec<String>,
}

/// Bytes of output that are printed at once.
const MAX_BUFFERED_BYTES: usize = 64 << 10;

/// Runs the command.
pub fn run(call: &Call, args: &DiffArgs) -> Result<u8, Failure> {
    let given = words::<DiffArgs>(&args.words, 1..=2, "must provide at least one snapshot name")?;
    let [older, newer] = names(&given)?;
    let reader = PoolReader::with_keys(call, &args.places.dirs, &args.places.keys)?;
    let doing = format!("cannot diff '{older}' with '{newer}'");
    let mut printer = Printer::new(args);
    let mut out = Vec::new();
    let mut code = 0;
    let mut take = |row| match row {
        Row::Comparison { mountpoint } => {
            // It is known where the command runs, and its output has no bounds.
            call.begin();
            printer.mountpoint = mountpoint;
        }
        Row::Difference(difference) => {
            printer.line(&mut out, &difference);
            if out.len() >= MAX_BUFFERED_BYTES {
                call.write(std::mem::take(&mut out));
            }
        }
        Row::Incomparable { object, name, why } => {
            code = FAILED;
            call.write(std::mem::take(&mut out));
            errln!(call, "Unable to determine path or stats for object {object} in {name}: {why}");
        }
        // Warnings are not shown, and rows of other queries do not occur.
        _ => {}
    };
    let query = PoolQuery::Diff(DiffQuery { older: older.clone(), newer: newer.clone() });
    let answer = reader.read(pool_of(&older), query, &mut take)?;
    call.write(out);
    match answer {
        // The reader of the output has gone away.
        Err(refusal) if refusal.kind == RefusalKind::Stopped => Ok(code),
        answer => answer.map(|()| code).map_err(|refusal| refused(&doing, refusal)),
    }
}

/// Names of the two states to compare: `fs@a fs@b`, `fs@a fs`, `fs@a @b`, `@a fs@b`, `@a fs`, and `fs@a` alone for the
/// file system as it is now.
fn names(given: &[String]) -> Result<[String; 2], Failure> {
    let first = given.first().map_or("", String::as_str);
    let second = given.get(1).map_or("", String::as_str);
    let of = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
    let file_system = if of(first).is_empty() { of(second) } else { of(first) };
    if !first.contains('@') || first.ends_with('@') || file_system.is_empty() {
        return Err(Failure::failed(format!("Badly formed snapshot name '{first}'")));
    }
    let full = |name: &str| if name.starts_with('@') { format!("{file_system}{name}") } else { name.to_owned() };
    let newer = if second.is_empty() { file_system.clone() } else { full(second) };
    if pool_of(&newer) != pool_of(&full(first)) {
        return Err(Failure::failed(format!("'{first}' and '{second}' are in different pools")));
    }
    Ok([full(first), newer])
}

/// How lines look.
struct Printer {
    mountpoint: String,
    kinds: bool,
    tabs: bool,
    times: bool,
    plain: bool,
}

impl Printer {
    fn new(args: &DiffArgs) -> Self {
        let mountpoint = String::new();
        Printer { mountpoint, kinds: args.kinds, tabs: args.scripted, times: args.times, plain: args.plain }
    }

    /// One line, as OpenZFS writes it.
    fn line(&self, out: &mut Vec<u8>, difference: &DifferenceRow) {
        let DifferenceRow { change, path, kind, ctime_s, ctime_ns, .. } = difference;
        // Writing to memory does not fail.
        if self.times {
            let _ = write!(out, "{ctime_s:10}.{ctime_ns:09}\t");
        }
        let letter = match change {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Modified | ChangeKind::Links(_) => 'M',
            ChangeKind::Renamed(_) => 'R',
        };
        let _ = write!(out, "{letter}\t");
        if self.kinds {
            let _ = write!(out, "{}\t", letter_of(*kind));
        }
        self.path(out, path.as_bytes());
        match change {
            ChangeKind::Links(more) => drop(write!(out, "\t({more:+})")),
            ChangeKind::Renamed(to) => {
                out.extend_from_slice(if self.tabs { b"\t" } else { b" -> " });
                self.path(out, to.as_bytes());
            }
            _ => {}
        }
        out.push(b'\n');
    }

    /// A path below the mount point. A byte that is not printable ASCII, and the backslash, is written as a backslash
    /// and four octal digits.
    fn path(&self, out: &mut Vec<u8>, path: &[u8]) {
        for byte in self.mountpoint.bytes().chain(path.iter().copied()) {
            match self.plain || (byte.is_ascii_graphic() && byte != b'\\') {
                true => out.push(byte),
                false => drop(write!(out, "\\{byte:04o}")),
            }
        }
    }
}

/// The letter of a kind of file: the `S_IFMT` bits of its mode.
fn letter_of(kind: u64) -> char {
    match kind >> 12 {
        1 => '|',
        2 => 'C',
        4 => '/',
        6 => 'B',
        8 => 'F',
        10 => '@',
        12 => '=',
        13 => '>',
        14 => 'P',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_admin::FilePath;

    fn given(words: &[&str]) -> Result<[String; 2], Failure> {
        names(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn names_are_completed() {
        let pairs = [
            (&["p/a@1"][..], ["p/a@1", "p/a"]),
            (&["p/a@1", "p/a@2"], ["p/a@1", "p/a@2"]),
            (&["p/a@1", "@2"], ["p/a@1", "p/a@2"]),
            (&["@1", "p/a@2"], ["p/a@1", "p/a@2"]),
            (&["@1", "p/a"], ["p/a@1", "p/a"]),
            (&["p/a@1", "p/c"], ["p/a@1", "p/c"]),
        ];
        for (words, meant) in pairs {
            assert_eq!(given(words).unwrap(), meant);
        }
        for bad in [&["p/a"][..], &["@1"], &["p/a@"], &["p@1", "q@1"]] {
            assert_eq!(given(bad).unwrap_err().code, 1, "{bad:?}");
        }
    }

    #[test]
    fn lines_are_those_of_openzfs() {
        let printer = |letters: &str| {
            let [kinds, tabs, times, plain] = ['F', 'H', 't', 'h'].map(|letter| letters.contains(letter));
            Printer { mountpoint: "/p q".into(), kinds, tabs, times, plain }
        };
        let line = |letters: &str, change: ChangeKind| {
            let path = FilePath::Bytes(b"/a\\\xe4".to_vec());
            let ctime_s = 1_700_000_000;
            let ctime_ns = 5;
            let mut out = Vec::new();
            let difference = DifferenceRow { object: 7, change, path, kind: 0o100_000, ctime_s, ctime_ns };
            printer(letters).line(&mut out, &difference);
            out
        };
        assert_eq!(line("", ChangeKind::Added), b"+\t/p\\0040q/a\\0134\\0344\n");
        assert_eq!(line("Fh", ChangeKind::Removed), b"-\tF\t/p q/a\\\xe4\n");
        assert_eq!(line("th", ChangeKind::Modified), b"1700000000.000000005\tM\t/p q/a\\\xe4\n");
        assert_eq!(line("h", ChangeKind::Links(1)), b"M\t/p q/a\\\xe4\t(+1)\n");
        assert_eq!(line("h", ChangeKind::Links(-2)), b"M\t/p q/a\\\xe4\t(-2)\n");
        assert_eq!(line("h", ChangeKind::Renamed(FilePath::Text("/b".into()))), b"R\t/p q/a\\\xe4 -> /p q/b\n");
        assert_eq!(line("hH", ChangeKind::Renamed(FilePath::Text("/b".into()))), b"R\t/p q/a\\\xe4\t/p q/b\n");
    }
}
