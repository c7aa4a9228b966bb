//! The two sides of a replication: `zfs` commands of this machine, or of another one through ssh.

use super::renames::Listed;
use crate::failure::Failure;
use std::process::{Child, Command, Stdio};

/// Where a dataset is, and how `zfs` is called there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Program and arguments through which commands reach another machine; empty for this one.
    through: Vec<String>,
    /// Program and arguments that are `zfs` there.
    zfs: Vec<String>,
    /// The other machine, if it was named.
    host: Option<String>,
    /// Name of the dataset.
    pub dataset: String,
}

/// A snapshot or bookmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Name with `@` or `#`, without the dataset.
    pub name: String,
    /// GUID: a bookmark has that of its snapshot.
    pub guid: u64,
    /// Txg in which the snapshot was created.
    pub createtxg: u64,
    /// Time at which the snapshot was created, in seconds since 1970.
    pub creation: u64,
}

impl Point {
    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.name.starts_with('@')
    }
}

/// State of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetState {
    /// Whether it exists.
    pub exists: bool,
    /// Snapshots and bookmarks, the oldest first.
    pub points: Vec<Point>,
    /// Token of a receive that was interrupted.
    pub token: Option<String>,
    /// Whether it is encrypted.
    pub encrypted: bool,
}

impl DatasetState {
    /// The newest snapshot.
    pub fn newest(&self) -> Option<&Point> {
        self.points.iter().rev().find(|point| point.is_snapshot())
    }
}

/// The line of a command's error output that says why it failed: the first that begins as the errors of `zfs` do, else the last.
/// ssh may have warnings before it, and hosts a banner.
pub fn reason(text: &str) -> Option<&str> {
    let lines = || text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines().find(|line| line.starts_with("cannot ")).or_else(|| lines().next_back())
}

impl Side {
    /// A dataset of this machine.
    pub fn here(dataset: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::failed(format!("this program: {error}")))?;
        let zfs = vec![program.to_string_lossy().into_owned(), "zfs".to_owned()];
        Ok(Side { through: Vec::new(), zfs, host: None, dataset: dataset.to_owned() })
    }

    /// A dataset `HOST:DATASET`, reached by `through` (default: ssh), with `zfs` as the command there; without a host one of
    /// this machine.
    ///
    /// # Errors
    /// If host or dataset could be taken for an option.
    pub fn of(text: &str, through: Option<&str>, zfs: &str) -> Result<Self, Failure> {
        // A dataset's name may contain colons: those after the first '/' or without a host before them do.
        let host = text.split_once(':').filter(|(host, _)| !host.contains('/') && !host.is_empty());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (host, dataset) = match (host, through) {
            (Some((host, dataset)), _) => (Some(host), dataset),
            (None, Some(_)) => (None, text),
            (None, None) => return Self::here(text),
        };
        let is_option = |word: &str| word.is_empty() || word.starts_with('-');
        if is_option(dataset) || host.is_some_and(is_option) {
            return Err(Failure::failed(format!("'{text}' is neither POOL/DATASET nor HOST:POOL/DATASET")));
        }
        let mut reached = words(through.unwrap_or("ssh -o BatchMode=yes"));
        reached.extend(host.map(str::to_owned));
        Ok(Side { through: reached, zfs: words(zfs), host: host.map(str::to_owned), dataset: dataset.to_owned() })
    }

    /// Another dataset in this place.
    pub fn with(&self, dataset: String) -> Self {
        Side { dataset, ..self.clone() }
    }

    /// Whether commands for it run on this machine.
    pub fn is_here(&self) -> bool {
        self.through.is_empty()
    }

    /// Place and dataset as the user wrote them.
    pub fn shown(&self) -> String {
        match &self.host {
            Some(host) => format!("{host}:{}", self.dataset),
            None => self.dataset.clone(),
        }
    }

    /// The `zfs` command with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let words: Vec<&str> = self.zfs.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        let mut command;
        match self.through.split_first() {
            None => {
                let (program, rest) = words.split_first().unwrap_or((&"zfs", &[]));
                command = Command::new(program);
                command.args(rest);
            }
            // ssh gives one text to a shell.
            Some((program, rest)) => {
                command = Command::new(program);
                command.args(rest).arg(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
            }
        }
        command
    }

    /// Runs a command to its end, and returns its output.
    ///
    /// # Errors
    /// The line of its error output that says why.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        let out = self.command(arguments).stdin(Stdio::null()).output();
        let out = out.map_err(|error| Failure::failed(format!("cannot run '{}': {error}", self.program())))?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&out.stderr);
        let why = reason(&text).unwrap_or("it printed no error");
        Err(Failure::failed(format!("{}: zfs {}: {why}", self.shown(), arguments.first().unwrap_or(&""))))
    }

    /// Starts a command with one end of a pipe.
    pub fn start(&self, arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Result<Child, Failure> {
        let mut command = self.command(arguments);
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        command.spawn().map_err(|error| Failure::failed(format!("cannot run '{}': {error}", self.program())))
    }

    fn program(&self) -> &str {
        self.through.first().or(self.zfs.first()).map_or("zfs", String::as_str)
    }

    /// State of the dataset.
    ///
    /// # Errors
    /// If it cannot be read. One that does not exist is no error.
    pub fn state(&self) -> Result<DatasetState, Failure> {
        let properties = ["get", "-H", "-p", "-o", "property,value", "receive_resume_token,encryption", &self.dataset];
        let found = match self.run(&properties) {
            Ok(found) => found,
            Err(failure) if failure.line.contains("does not exist") => return Ok(DatasetState::default()),
            Err(failure) => return Err(failure),
        };
        let value = |name: &str| {
            let line = found.lines().filter_map(|line| line.split_once('\t')).find(|(property, _)| *property == name);
            line.map(|(_, value)| value.trim().to_owned()).filter(|value| value != "-")
        };
        let listed = ["list", "-H", "-p", "-d", "1", "-t", "snapshot,bookmark", "-o", COLUMNS, "-s", "createtxg"];
        let points = self.run(&[&listed[..], &[&self.dataset]].concat())?;
        let mut points = points.lines().map(|line| self.point(line)).collect::<Result<Vec<_>, _>>()?;
        points.sort_by_key(|point| (point.createtxg, !point.is_snapshot()));
        let encrypted = value("encryption").is_some_and(|value| value != "off");
        Ok(DatasetState { exists: true, points, token: value("receive_resume_token"), encrypted })
    }

    /// A line of [`COLUMNS`].
    fn point(&self, line: &str) -> Result<Point, Failure> {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let name = fields.first().and_then(|name| name.strip_prefix(self.dataset.as_str()));
        let name = name.filter(|name| name.len() > 1 && name.starts_with(['@', '#']));
        match (name, number(1), number(2), number(3)) {
            (Some(name), Some(guid), Some(createtxg), Some(creation)) => {
                Ok(Point { name: name.to_owned(), guid, createtxg, creation })
            }
            _ => Err(Failure::failed(format!("{}: zfs list: '{line}' is not understood", self.shown()))),
        }
    }

    /// Snapshots and bookmarks of the dataset and all below it: those of these types.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn listed(&self, types: &str) -> Result<Vec<Listed>, Failure> {
        let text = self.run(&["list", "-H", "-p", "-r", "-t", types, "-o", COLUMNS, &self.dataset])?;
        let listed = |line: &str| {
            let at = line.find(['@', '#']).unwrap_or(line.len());
            let dataset = line.get(..at).unwrap_or_default();
            let point = self.with(dataset.to_owned()).point(line)?;
            let below = dataset.strip_prefix(self.dataset.as_str()).unwrap_or_default().to_owned();
            Ok(Listed { dataset: below, guid: point.guid, createtxg: point.createtxg })
        };
        text.lines().map(listed).collect()
    }

    /// Names of the dataset and all below it, parents first.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn descendants(&self) -> Result<Vec<String>, Failure> {
        let listed = self.run(&["list", "-H", "-r", "-t", "filesystem,volume", "-o", "name", &self.dataset])?;
        let mut names: Vec<String> = listed.lines().map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }
}

/// Columns of the lists.
const COLUMNS: &str = "name,guid,createtxg,creation";

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@,=+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let here = Side::of("backup/home", None, "zfs").unwrap();
        assert_eq!((here.shown().as_str(), here.through.len()), ("backup/home", 0));
        let there = Side::of("ann@nas:backup/a b", None, "weir zfs").unwrap();
        assert_eq!(there.shown(), "nas:backup/a b".replace("nas", "ann@nas"));
        let command = there.command(&["list", "backup/a b", "it's"]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words, ["-o", "BatchMode=yes", "ann@nas", "weir zfs list 'backup/a b' 'it'\\''s'"]);
        assert_eq!(Side::of("pool/a:b", None, "zfs").unwrap().dataset, "pool/a:b");
        assert_eq!(Side::of("p", Some("sh -c"), "zfs").unwrap().through, ["sh", "-c"]);
        for wrong in ["-oProxyCommand=x:pool", "nas:", "nas:-F"] {
            assert!(Side::of(wrong, None, "zfs").is_err(), "{wrong}");
        }
    }

    #[test]
    fn warnings_of_ssh_are_no_reason() {
        let ssh = "Warning: Permanently added '[nas]:22' (ED25519) to the list of known hosts.\r\n";
        let zfs = "cannot open 'p/f': dataset does not exist\n";
        assert_eq!(reason(&format!("{ssh}\n{zfs}usage:\n")), Some(zfs.trim_end()));
        assert_eq!(reason(&format!("{ssh}sh: zfs: not found\n\n")), Some("sh: zfs: not found"));
        assert_eq!(reason("\n"), None);
    }

    #[test]
    fn lines_are_read() {
        let side = Side::here("p/f").unwrap();
        let point = side.point("p/f@a\t12\t7\t1700000000").unwrap();
        assert_eq!((point.name.as_str(), point.guid, point.createtxg), ("@a", 12, 7));
        for wrong in ["p/f\t1\t2\t3", "p/g@a\t1\t2\t3", "p/f@a\t-1\t2\t3", "p/f@a\t1", ""] {
            assert!(side.point(wrong).is_err(), "{wrong}");
        }
    }
}
