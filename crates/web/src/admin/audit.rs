//! The audit log: one line of JSON for each action of the page, done or refused.
//!
//! ```text
//!   {"time":"2026-11-28T09:00:00Z","token":"own","role":"administer","client":"127.0.0.1:50112","command":"weir zfs snapshot …","result":"done"}
//! ```
//!
//! No key is in it: actions have none. The file has at most [`MAX_BYTES`]; a full one is renamed, and [`KEPT_FILES`] of these stay.

use super::tokens::Identity;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_machine::lock::Mutex;

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Full files that are kept beside the one that is written.
const KEPT_FILES: u32 = 4;
/// Longest text of a command or result in a line, in bytes.
const MAX_TEXT_BYTES: usize = 4096;
/// Bytes at the end of the file in which the last lines are looked for.
const TAIL_BYTES: u64 = 256 << 10;

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    token: &'a str,
    role: &'a str,
    client: String,
    command: &'a str,
    result: &'a str,
}

/// The audit log.
#[derive(Default)]
pub struct Audit {
    /// The file, while a line is written; none for a process that keeps no state.
    file: Option<Mutex<PathBuf>>,
}

impl Audit {
    /// An audit log in this file.
    pub fn in_file(path: PathBuf) -> Self {
        Audit { file: Some(Mutex::new(path)) }
    }

    /// Adds a line. A line that cannot be stored is in the process's log, as all lines are.
    pub fn note(&self, time: &str, who: &Identity, client: SocketAddr, command: &str, result: &str) {
        let (command, result) = (bounded(command), bounded(result));
        let line = Line { time, token: &who.name, role: who.role.name(), client: client.to_string(), command, result };
        let text = serde_json::to_string(&line).unwrap_or_default();
        debug_assert!(!text.contains('\n'), "JSON has no line break");
        tracing::info!("page: {text}");
        if let Some(path) = &self.file {
            let path = path.lock();
            if let Err(error) = append(&path, &text) {
                tracing::error!("the audit log {} lacks a line: {error}", path.display());
            }
        }
    }

    /// The last lines, the newest first.
    ///
    /// # Errors
    /// Of reading the file.
    pub fn last(&self, count: usize) -> io::Result<Vec<String>> {
        let Some(path) = &self.file else { return Ok(Vec::new()) };
        let path = path.lock().clone();
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let start = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        // The first line may be cut.
        let lines = text.lines().skip(usize::from(start > 0));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        Ok(lines.into_iter().rev().take(count).collect())
    }
}

/// The text, cut at a character's end.
fn bounded(text: &str) -> &str {
    let end = (0..=MAX_TEXT_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let full = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.len() + line.len() as u64 >= MAX_BYTES);
    if full(path) {
        let numbered = |number: u32| path.with_extension(format!("log.{number}"));
        for number in (1..KEPT_FILES).rev() {
            // There may be fewer.
            let _absent = std::fs::rename(numbered(number), numbered(number + 1));
        }
        std::fs::rename(path, numbered(1))?;
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::action::Role;

    #[test]
    fn lines_are_bounded_and_files_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::in_file(path.clone());
        assert!(audit.last(5).unwrap().is_empty());
        let who = Identity { name: "own".into(), role: Role::Operate };
        let client: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let long = "ä\n\"".repeat(4000);
        for n in 0..1500 {
            audit.note(&format!("t{n}"), &who, client, &long, "done\nmore");
        }
        let files: Vec<u64> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(files.len(), 5, "{files:?}");
        assert!(files.iter().all(|bytes| *bytes <= MAX_BYTES), "{files:?}");
        let last = audit.last(2).unwrap();
        assert_eq!(last.len(), 2);
        let line: serde_json::Value = serde_json::from_str(&last[0]).unwrap();
        assert_eq!((&line["time"], &line["result"]), (&"t1499".into(), &"done\nmore".into()));
        assert!(line["command"].as_str().unwrap().len() <= MAX_TEXT_BYTES);
    }
}
