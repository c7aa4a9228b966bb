//! `zfs diff`: which files came, went, changed or moved since a snapshot.

use super::target::{pool_of, words};
use crate::call::{Call, errln};
use crate::failure::{FAILED, Failure};
use crate::options::Places;
use crate::pools::{PoolHandle, keys_of, look, search};
use clap::Parser;
use std::io::Write;
use weir_engine::Engine;
use weir_files::diff::{Change, Diff, Difference, Unknown};
use weir_machine::Request;
use weir_pool::diff::Pair;
use weir_pool::{OpenOptions, Pool, PoolError};

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

/// Runs the command.
pub fn run(call: &Call, args: &DiffArgs) -> Result<u8, Failure> {
    let given = words::<DiffArgs>(&args.words, 1..=2, "must provide at least one snapshot name")?;
    let [older, newer] = names(&given)?;
    let pool = pool_of(&older).to_owned();
    let mut options = OpenOptions::new(search(call, &args.places.dirs)?, &pool);
    options.keys = keys_of(call, &options.search, &args.places.keys)?;
    let seen = look(call, &options)?;
    call.begin();
    let machine = call.machine()?;
    let rq = Request::internal("diff");
    let doing = format!("cannot diff '{older}' with '{newer}'");
    let compared = match (seen, call.served_pool(&pool)) {
        (PoolHandle::Open(view), Some(served_pool)) => {
            // The comparison reads the engine; the view would only delay the reuse of freed blocks.
            drop(view);
            machine.block_on(of_engine(call, args, &rq, &served_pool.engine, [&older, &newer]))
        }
        (seen, _) => machine.block_on(of_pool(call, args, &rq, &seen, [&older, &newer])),
    };
    let whole = compared.map_err(|error| crate::writable::refused(&doing, error))?;
    Ok(if whole { 0 } else { FAILED })
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

async fn of_engine(
    call: &Call,
    args: &DiffArgs,
    rq: &Request,
    engine: &Engine,
    [older, newer]: [&str; 2],
) -> Result<bool, PoolError> {
    let mut comparison = engine.comparisons().begin(rq, older, newer).await?;
    let printer = Printer::new(args, &comparison.pair);
    let compared = printer.tell(call, rq, &mut comparison.diff).await;
    let ended = engine.comparisons().end(comparison).await;
    let whole = compared?;
    ended.map(|()| whole)
}

async fn of_pool(
    call: &Call,
    args: &DiffArgs,
    rq: &Request,
    pool: &Pool,
    [older, newer]: [&str; 2],
) -> Result<bool, PoolError> {
    let pair = Pair::find(rq, &pool.dsl, &pool.facts(), older, newer).await?;
    let a = pool.file_system(rq, older).await?;
    let b = pool.file_system(rq, newer).await?;
    let failed = |source| PoolError::File { name: older.to_owned(), source: Box::new(source) };
    let mut diff = Diff::new(rq, a, b, pair.after).await.map_err(failed)?;
    Printer::new(args, &pair).tell(call, rq, &mut diff).await
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
    fn new(args: &DiffArgs, pair: &Pair) -> Self {
        let mountpoint = pair.mountpoint.clone();
        Printer { mountpoint, kinds: args.kinds, tabs: args.scripted, times: args.times, plain: args.plain }
    }

    /// Prints all differences; returns false if one cannot be determined.
    async fn tell(&self, call: &Call, rq: &Request, diff: &mut Diff) -> Result<bool, PoolError> {
        let mut whole = true;
        let failed = |source| PoolError::File { name: "diff".to_owned(), source: Box::new(source) };
        while let Some(found) = diff.next(rq).await.map_err(failed)? {
            let mut out = Vec::new();
            for one in found {
                match one {
                    Ok(difference) => self.line(&mut out, &difference),
                    Err(Unknown { object, name, why }) => {
                        whole = false;
                        let what = "Unable to determine path or stats for object";
                        errln!(call, "{what} {object} in {name}: {why}");
                    }
                }
            }
            call.write(out);
            call.wait_for_output().await;
            if call.is_gone() {
                break;
            }
        }
        Ok(whole)
    }

    /// One line, as OpenZFS writes it.
    fn line(&self, out: &mut Vec<u8>, difference: &Difference) {
        let Difference { change, path, kind, ctime, .. } = difference;
        // Writing to memory does not fail.
        if self.times {
            let _ = write!(out, "{:10}.{:09}\t", ctime.sec, ctime.nsec);
        }
        let letter = match change {
            Change::Added => '+',
            Change::Removed => '-',
            Change::Modified | Change::Links(_) => 'M',
            Change::Renamed(_) => 'R',
        };
        let _ = write!(out, "{letter}\t");
        if self.kinds {
            let _ = write!(out, "{}\t", letter_of(*kind));
        }
        self.path(out, path);
        match change {
            Change::Links(more) => drop(write!(out, "\t({more:+})")),
            Change::Renamed(to) => {
                out.extend_from_slice(if self.tabs { b"\t" } else { b" -> " });
                self.path(out, to);
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
    use weir_format::ObjectId;
    use weir_format::znode::Timestamp;

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
        let line = |letters: &str, change: Change| {
            let ctime = Timestamp { sec: 1_700_000_000, nsec: 5 };
            let path = b"/a\\\xe4".to_vec();
            let mut out = Vec::new();
            printer(letters).line(&mut out, &Difference { object: ObjectId(7), change, path, kind: 0o100_000, ctime });
            out
        };
        assert_eq!(line("", Change::Added), b"+\t/p\\0040q/a\\0134\\0344\n");
        assert_eq!(line("Fh", Change::Removed), b"-\tF\t/p q/a\\\xe4\n");
        assert_eq!(line("th", Change::Modified), b"1700000000.000000005\tM\t/p q/a\\\xe4\n");
        assert_eq!(line("h", Change::Links(1)), b"M\t/p q/a\\\xe4\t(+1)\n");
        assert_eq!(line("h", Change::Links(-2)), b"M\t/p q/a\\\xe4\t(-2)\n");
        assert_eq!(line("h", Change::Renamed(b"/b".to_vec())), b"R\t/p q/a\\\xe4 -> /p q/b\n");
        assert_eq!(line("hH", Change::Renamed(b"/b".to_vec())), b"R\t/p q/a\\\xe4\t/p q/b\n");
    }
}
