//! The directory that files are rescued into: their places, the records of what is missing, the report.
//!
//! Names come from a damaged pool: a name is one component, made with `openat` below a directory that is open already, and no
//! symbolic link is followed. So nothing is written outside DEST.

use crate::failure::Failure;
use crate::units::human;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_format::Txg;
use weir_machine::Nanos;

/// Directory for the state of a rescue.
const STATE: &str = ".weir-rescue";
/// Maximum length of a name in bytes (`NAME_MAX`).
const NAME_BYTES: usize = 255;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// Record of a file or directory that is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `partial`, `lost`, or `names` for a directory whose entries are not all known.
    pub kind: String,
    /// Dataset and path.
    pub name: String,
    /// Identity of the file: generation, size and time, which another state must agree with.
    pub identity: String,
    /// Lost ranges of bytes, or the reason.
    pub detail: String,
}

/// Counts and lines of what is missing.
#[derive(Debug, Default)]
pub struct Missing {
    /// Files with lost ranges.
    pub partial: u64,
    /// Files and directories that are lost.
    pub lost: u64,
    /// One line each.
    pub lines: Vec<String>,
}

/// The directory that files are rescued into.
pub struct Destination {
    path: PathBuf,
    top: OwnedFd,
    state: OwnedFd,
    records: PathBuf,
    /// Files that were copied from an older state than the newest one, one record each: a later run may not look at that state.
    older: PathBuf,
    report: std::io::BufWriter<File>,
    whole: u64,
    txg: Txg,
    is_first: bool,
    /// Whether the state is the newest one that can be opened.
    is_newest: bool,
    total_bytes: u64,
    done_bytes: u64,
    is_quiet: bool,
    started: Option<Nanos>,
    shown: Option<Nanos>,
}

/// Fnv-1a, which is stable over versions of this program.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A name as one component of a path; one that is too long for Linux ends with its hash.
pub fn component(name: &[u8]) -> Vec<u8> {
    let safe = match name {
        b"" | b"." | b".." => [b"%", name].concat(),
        _ => {
            name.iter().flat_map(|byte| if matches!(byte, b'/' | 0) { b"%2F".to_vec() } else { vec![*byte] }).collect()
        }
    };
    match safe.get(..NAME_BYTES - 17) {
        Some(front) if safe.len() > NAME_BYTES => [front, format!("%{:016x}", hash(name)).as_bytes()].concat(),
        _ => safe,
    }
}

/// Opens a directory below another one, and makes it if it does not exist. If something else has its name, another name is used.
pub fn directory(within: &OwnedFd, name: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    let mut name = name.to_vec();
    for _ in 0..3 {
        let made = mkdirat(within, name.as_slice(), Mode::from_raw_mode(0o700));
        if let Err(error) = made
            && error != rustix::io::Errno::EXIST
        {
            return Err(error);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(within, name.as_slice(), flags, Mode::empty()) {
            Ok(fd) => return Ok(fd),
            Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => name.extend(b"%d"),
            Err(error) => return Err(error),
        }
    }
    Err(rustix::io::Errno::EXIST)
}

impl Destination {
    /// Opens or makes the directory.
    ///
    /// # Errors
    /// Errors of making files.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
        std::fs::create_dir_all(path).map_err(|e| failed(&e))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, path, flags, Mode::empty()).map_err(|e| failed(&e))?;
        let state = directory(&top, STATE.as_bytes()).map_err(|e| failed(&e))?;
        directory(&state, b"missing").map_err(|e| failed(&e))?;
        directory(&state, b"older").map_err(|e| failed(&e))?;
        directory(&state, b"links").map_err(|e| failed(&e))?;
        let report = File::create(path.join(STATE).join("report.tsv")).map_err(|e| failed(&e))?;
        Ok(Destination {
            path: path.to_owned(),
            top,
            state,
            records: path.join(STATE).join("missing"),
            older: path.join(STATE).join("older"),
            report: std::io::BufWriter::new(report),
            whole: 0,
            txg: Txg(0),
            is_first: true,
            is_newest: true,
            total_bytes: 0,
            done_bytes: 0,
            is_quiet: true,
            started: None,
            shown: None,
        })
    }

    fn failed(&self, error: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("{}: {error}\nto go on, run the command again", self.path.display()))
    }

    /// Path of the report.
    pub fn report(&self) -> PathBuf {
        self.path.join(STATE).join("report.tsv")
    }

    /// Number of files that are whole.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Begins to copy a state of the pool, which has about this number of bytes.
    pub fn begin_state(&mut self, txg: Txg, total_bytes: u64, is_quiet: bool, now: Nanos) {
        (self.txg, self.total_bytes, self.done_bytes, self.is_quiet) = (txg, total_bytes, 0, is_quiet);
        self.is_newest = self.started.is_none();
        self.started = Some(now);
    }

    /// Begins a dataset; `is_first`: no newer state had it. What an older state lacks besides says nothing: it may have been made
    /// since, or removed.
    pub fn begin_dataset(&mut self, is_first: bool) {
        self.is_first = is_first;
    }

    /// A file was found whole that was copied before: by an earlier run, if no newer state had the dataset.
    ///
    /// # Errors
    /// Errors of writing the report.
    pub fn was_whole(&mut self, name: &str) -> Result<(), Failure> {
        if self.is_first { self.is_whole(name) } else { Ok(()) }
    }

    /// Counts bytes that were copied, and shows the progress.
    pub fn progress(&mut self, bytes: u64, now: Nanos) {
        self.done_bytes = self.done_bytes.saturating_add(bytes);
        let is_due = self.shown.is_none_or(|shown| now.since(shown) >= PROGRESS);
        let Some(started) = self.started.filter(|_| is_due && !self.is_quiet) else { return };
        self.shown = Some(now);
        let seconds = now.since(started).as_secs_f64().max(1e-3);
        let rate = self.done_bytes as f64 / seconds;
        let left = self.total_bytes.saturating_sub(self.done_bytes) as f64 / rate.max(1.0);
        let done = human(self.done_bytes);
        let total = human(self.total_bytes.max(self.done_bytes));
        eprintln!("txg {}: {done} of about {total}, {}/s, {} left", self.txg, human(rate as u64), time(left as u64));
    }

    /// The directory of a dataset.
    ///
    /// # Errors
    /// Errors of making it.
    pub fn dataset(&self, name: &str) -> Result<OwnedFd, Failure> {
        directory(&self.top, &component(name.replace('/', "%").as_bytes())).map_err(|e| self.failed(e))
    }

    /// Makes the file into which a file is copied before it gets its name.
    ///
    /// # Errors
    /// Errors of making it.
    pub fn part(&self) -> Result<File, Failure> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.state, "part", flags, Mode::from_raw_mode(0o600)).map(File::from).map_err(|e| self.failed(e))
    }

    /// Gives the file that was copied its name.
    ///
    /// # Errors
    /// Errors of renaming it.
    pub fn place(&self, within: &OwnedFd, name: &[u8]) -> Result<(), Failure> {
        renameat(&self.state, "part", within, name).map_err(|e| self.failed(e))
    }

    /// The kind of what has this name; `None` if nothing has it.
    pub fn kind_of(within: &OwnedFd, name: &[u8]) -> Option<FileType> {
        let found = statat(within, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(found.st_mode))
    }

    /// Opens a file that was copied in part, to complete it.
    pub fn partial(within: &OwnedFd, name: &[u8]) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(within, name, flags, Mode::empty()).ok().map(File::from)
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.records.join(format!("{:016x}", hash(name.as_bytes())))
    }

    /// The record of what a file lacks; `None` if it lacks nothing that is known.
    pub fn record(&self, name: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.record_path(name)).ok()?;
        parse(&text).filter(|record| record.name == escaped(name))
    }

    /// Records what a file lacks; of an older state, files that are partial alone.
    ///
    /// # Errors
    /// Errors of writing the record.
    pub fn lacks(&self, kind: &str, name: &str, identity: &str, detail: &str) -> Result<(), Failure> {
        if !self.is_first && kind != "partial" {
            return Ok(());
        }
        let line = format!("{kind}\t{}\t{}\t{}\n", escaped(name), escaped(identity), escaped(detail));
        debug_assert!(parse(&line).is_some(), "a record can be read again");
        std::fs::write(self.record_path(name), line).map_err(|e| self.failed(e))
    }

    /// A file is whole: forgets its record, and reports it.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn is_whole(&mut self, name: &str) -> Result<(), Failure> {
        if self.record(name).is_some() {
            std::fs::remove_file(self.record_path(name)).map_err(|e| self.failed(e))?;
        }
        let line = format!("whole\t{}\ttxg {}\n", escaped(name), self.txg);
        let older = self.older.join(format!("{:016x}", hash(name.as_bytes())));
        if !self.is_newest {
            return std::fs::write(older, line).map_err(|e| self.failed(e));
        }
        match std::fs::remove_file(older) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(self.failed(error)),
            _ => {}
        }
        self.whole += 1;
        self.report.write_all(line.as_bytes()).map_err(|e| self.failed(e))
    }

    /// All of a directory, or of a dataset, can be read: forgets its record. An older state may have had fewer names, so only the
    /// newest one counts.
    ///
    /// # Errors
    /// Errors of removing it.
    pub fn has_names(&self, name: &str) -> Result<(), Failure> {
        match self.record(name).filter(|_| self.is_first) {
            Some(_) => std::fs::remove_file(self.record_path(name)).map_err(|e| self.failed(e)),
            None => Ok(()),
        }
    }

    /// Path of a file of a dataset.
    pub fn path_of(&self, dataset: &str, path: &[u8]) -> PathBuf {
        let mut at = self.path.join(std::ffi::OsString::from_vec(component(dataset.replace('/', "%").as_bytes())));
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at.push(std::ffi::OsString::from_vec(component(name)));
        }
        at
    }

    /// Where the first name of a file with several names is recorded.
    pub fn link_of(&self, dataset: &str, object: u64) -> PathBuf {
        self.path.join(STATE).join("links").join(format!("{:016x}-{object}", hash(dataset.as_bytes())))
    }

    /// Removes the file that was not finished.
    pub fn forget_part(&self) {
        // It is overwritten the next time if this fails.
        let _ = unlinkat(&self.state, "part", AtFlags::empty());
    }

    fn records(&self) -> Result<impl Iterator<Item = Record>, Failure> {
        let entries = std::fs::read_dir(&self.records).map_err(|e| self.failed(e))?;
        Ok(entries.flatten().filter_map(|entry| parse(&std::fs::read_to_string(entry.path()).ok()?)))
    }

    /// Whether anything is missing.
    ///
    /// # Errors
    /// Errors of reading the records.
    pub fn has_missing(&self) -> Result<bool, Failure> {
        Ok(self.records()?.next().is_some())
    }

    /// Whether files of a dataset may have lost their names.
    ///
    /// # Errors
    /// Errors of reading the records.
    pub fn lacks_names(&self, dataset: &str) -> Result<bool, Failure> {
        let of = format!("{}:", escaped(dataset));
        Ok(self.records()?.any(|record| record.kind == "names" && record.name.starts_with(&of)))
    }

    /// Writes the files of older states and what is missing into the report, and returns the latter.
    ///
    /// # Errors
    /// Errors of reading the records and writing the report.
    pub fn finish(&mut self) -> Result<Missing, Failure> {
        self.forget_part();
        let older = std::fs::read_dir(&self.older).map_err(|e| self.failed(e))?;
        let mut older: Vec<String> =
            older.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect();
        older.sort();
        for line in &older {
            self.report.write_all(line.as_bytes()).map_err(|e| self.failed(e))?;
        }
        self.whole += older.len() as u64;
        let mut missing = Missing::default();
        for record in self.records()? {
            match record.kind.as_str() {
                "partial" => missing.partial += 1,
                _ => missing.lost += 1,
            }
            let kind = if record.kind == "names" { "lost names" } else { &record.kind };
            missing.lines.push(format!("{kind}\t{}\t{}", record.name, record.detail));
        }
        missing.lines.sort();
        for line in &missing.lines {
            writeln!(self.report, "{line}").map_err(|e| Failure::failed(e.to_string()))?;
        }
        self.report.flush().map_err(|e| self.failed(e))?;
        Ok(missing)
    }
}

fn parse(text: &str) -> Option<Record> {
    let mut fields = text.trim_end_matches('\n').splitn(4, '\t').map(str::to_owned);
    Some(Record { kind: fields.next()?, name: fields.next()?, identity: fields.next()?, detail: fields.next()? })
}

/// A path in text: bytes that are no UTF-8 are escaped, so that different paths have different texts.
pub fn text(path: &[u8]) -> String {
    let pieces = path.utf8_chunks();
    let one = |chunk: std::str::Utf8Chunk<'_>| {
        let rest: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("{}{rest}", chunk.valid().replace('\\', "\\\\"))
    };
    pieces.map(one).collect()
}

/// A name in a line: control characters are escaped.
pub fn escaped(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        assert_eq!(component(b".."), b"%..");
        assert_eq!(component(b"a/b\0"), b"a%2Fb%2F");
        let [long, other] = [b'x', b'y'].map(|last| component(&[vec![b'a'; 300], vec![last]].concat()));
        assert!(long.len() == NAME_BYTES && long != other);
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("out")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let top = openat(CWD, folder.path(), flags, Mode::empty()).unwrap();
        directory(&top, b"out").unwrap();
        assert!(folder.path().join("out%d").is_dir(), "a symbolic link is not followed");
    }

    #[test]
    fn each_run_reports_the_files_that_only_an_older_state_has() {
        let folder = tempfile::tempdir().unwrap();
        let report = |look_at_older: bool| {
            let mut to = Destination::open(folder.path()).unwrap();
            to.begin_state(Txg(9), 0, true, Nanos(0));
            to.begin_dataset(true);
            to.is_whole("p:/new").unwrap();
            if look_at_older {
                to.begin_state(Txg(8), 0, true, Nanos(0));
                to.begin_dataset(false);
                to.was_whole("p:/new").unwrap();
                to.is_whole("p:/old").unwrap();
            }
            to.finish().unwrap();
            (to.whole(), std::fs::read_to_string(to.report()).unwrap())
        };
        let both = (2, "whole\tp:/new\ttxg 9\nwhole\tp:/old\ttxg 8\n".to_owned());
        assert_eq!(report(true), both);
        assert_eq!(report(false), both);
    }

    #[test]
    fn records_are_read_again_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let to = Destination::open(folder.path()).unwrap();
        assert!(!to.has_missing().unwrap());
        to.lacks("partial", "p/a:/x\ty", "1 2 3", "0-4096").unwrap();
        assert_eq!(to.record("p/a:/x\ty").unwrap().detail, "0-4096");
        to.lacks("names", "p/a:/d", "", "unreadable").unwrap();
        assert!(to.lacks_names("p/a").unwrap() && !to.lacks_names("p").unwrap());
        // What another run finds.
        drop(to);
        let mut to = Destination::open(folder.path()).unwrap();
        to.is_whole("p/a:/x\ty").unwrap();
        let missing = to.finish().unwrap();
        assert_eq!((missing.partial, missing.lost, to.whole()), (0, 1, 1));
        assert_eq!(missing.lines, ["lost names\tp/a:/d\tunreadable"]);
    }
}
