//! Builds a program on the mount, and on this machine's own file system for comparison.
//!
//! ```text
//!   this program's sources ─► copy (they may change) ──┬─► local: cargo test ─► output of the tests, libraries
//!                                                      │   (twice: which libraries are the same in any place?)
//!                                                      └─► mount:  cargo test ─► the same, byte for byte
//! ```
//!
//! Compilers and linkers write in many small pieces, map files that they write, rename them and compare times to the
//! nanosecond to find what is out of date, so a second build must find nothing to do. Packages come from cargo's own
//! folder (`--offline`), where they are because this program was built from them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Verdict, tail};
use crate::JudgeError;
use crate::hash::hex_of_file;
use crate::kill::failed;
use crate::zdb::output;

/// Files needed to build a workspace.
const PARTS: [&str; 5] = ["crates", "xtask", "Cargo.toml", "Cargo.lock", "clippy.toml"];
/// Minimum number of dependencies' libraries that both builds must have made identically.
const LIBRARIES: usize = 3;

/// A copy of the sources of this program.
pub struct Sources(tempfile::TempDir);

impl Sources {
    /// Copies them from where this program was built.
    ///
    /// # Errors
    /// Errors if they are absent.
    pub fn copied() -> Result<Sources, JudgeError> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        if !PARTS.iter().all(|part| top.join(part).exists()) {
            return Err(JudgeError::Missing { what: "no sources to copy".into() });
        }
        let folder = tempfile::tempdir().map_err(|e| failed("a folder for sources", e))?;
        let parts = PARTS.iter().map(|part| top.join(part));
        let copied = output(Command::new("cp").arg("-a").args(parts).arg(folder.path()))?;
        match copied.status.success() {
            true => Ok(Sources(folder)),
            false => Err(failed("cp of sources", tail(&copied).join(" | "))),
        }
    }

    /// Folder of the copy.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Result of a build.
struct Built {
    /// Output lines of its tests, sorted, without times.
    tests: Vec<String>,
    /// Libraries of dependencies: name and SHA-256.
    libraries: BTreeMap<PathBuf, String>,
}

/// Builds `package` in a copy of the workspace, and runs its tests.
fn built(folder: &Path, packages: &[&str]) -> Result<Result<Built, Vec<String>>, JudgeError> {
    let made = output(&mut cargo(folder, packages))?;
    if !made.status.success() {
        return Ok(Err(tail(&made)));
    }
    let again = output(&mut cargo(folder, packages))?;
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    if !again.status.success() || text.contains("Compiling") {
        return Ok(Err([vec!["a second build found something to do".into()], tail(&again)].concat()));
    }
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    let mut tests: Vec<String> = said.lines().filter(|l| l.starts_with("test ")).map(untimed).collect();
    tests.sort();
    let deps = folder.join("target/debug/deps");
    let entries = std::fs::read_dir(&deps).map_err(|e| failed("the libraries", e))?;
    let mut libraries = BTreeMap::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libweir_"));
        if path.extension() != Some(OsStr::new("rlib")) || ours {
            continue;
        }
        let hash = hex_of_file(&path).map_err(|e| failed("a library", e))?;
        libraries.insert(path.strip_prefix(&deps).unwrap_or(&path).to_path_buf(), hash);
    }
    Ok(Ok(Built { tests, libraries }))
}

fn cargo(folder: &Path, packages: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--offline", "--locked"]).args(packages.iter().flat_map(|name| ["-p", name]));
    command.current_dir(folder).env("CARGO_TARGET_DIR", folder.join("target")).stdin(Stdio::null());
    command
}

/// Removes the time from a line.
fn untimed(line: &str) -> String {
    line.split("; finished in").next().unwrap_or(line).to_owned()
}

/// Builds on the mount and beside it.
///
/// # Errors
/// If cargo is not here, or files cannot be copied.
pub fn both(sources: &Sources, on_mount: &Path, packages: &[&str]) -> Result<Verdict, JudgeError> {
    let folder = || tempfile::tempdir().map_err(|e| failed("a folder to build in", e));
    let beside = folder()?;
    let elsewhere = folder()?;
    for to in [beside.path(), elsewhere.path(), on_mount] {
        std::fs::create_dir_all(to).map_err(|e| failed("a folder to build in", e))?;
        let copied = output(Command::new("cp").arg("-a").arg(sources.path().join(".")).arg(to))?;
        if !copied.status.success() {
            return Ok(Err(tail(&copied)));
        }
    }
    let cannot =
        |said: Vec<String>| JudgeError::Missing { what: format!("nothing to build with: {}", said.join(" | ")) };
    let mut expected = built(beside.path(), packages)?.map_err(cannot)?;
    // Some libraries contain the path where they were built, and differ in every place.
    let other = built(elsewhere.path(), packages)?.map_err(cannot)?;
    expected.libraries.retain(|name, hash| other.libraries.get(name) == Some(hash));
    let found = match built(on_mount, packages)? {
        Ok(built) => built,
        Err(said) => return Ok(Err(said)),
    };
    let mut differences: Vec<String> = Vec::new();
    if found.tests != expected.tests || found.tests.is_empty() {
        let of = |built: &Built| built.tests.len();
        differences.push(format!("its tests say other things: {} lines, {} beside", of(&found), of(&expected)));
    }
    let same = expected.libraries.iter().filter(|(name, _)| found.libraries.contains_key(*name)).count();
    if same < LIBRARIES {
        differences.push(format!("only {same} libraries of the same names"));
    }
    for (name, hash) in &expected.libraries {
        if found.libraries.get(name).is_some_and(|found| found != hash) {
            differences.push(format!("{} is another one", name.display()));
        }
    }
    let said = format!("{} tests and {same} libraries as beside", found.tests.len());
    Ok(if differences.is_empty() { Ok(said) } else { Err(differences) })
}

/// Everything below a folder: its path, kind, mode, size, time, and hash or target.
pub type Listing = BTreeMap<PathBuf, String>;

/// Lists a tree of files.
///
/// # Errors
/// If something in it cannot be read.
pub fn listing(top: &Path) -> Result<Listing, JudgeError> {
    let mut out = Listing::new();
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let bad = |e: std::io::Error| failed(&folder.display().to_string(), e);
        for entry in std::fs::read_dir(&folder).map_err(bad)? {
            let path = entry.map_err(bad)?.path();
            let about = path.symlink_metadata().map_err(bad)?;
            let kind = about.file_type();
            let contents = if kind.is_symlink() {
                std::fs::read_link(&path).map_err(bad)?.display().to_string()
            } else if kind.is_file() {
                hex_of_file(&path).map_err(bad)?
            } else {
                String::new()
            };
            let (mode, time) = (about.mode(), (about.mtime(), about.mtime_nsec()));
            let size = if kind.is_dir() { 0 } else { about.len() };
            let name = path.strip_prefix(top).unwrap_or(&path).to_path_buf();
            out.insert(name, format!("{mode:o} {size} {time:?} {contents}"));
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(out)
}

/// Returns the differences of two listings.
pub fn differs(before: &Listing, after: &Listing) -> Vec<String> {
    let changed = before.iter().filter(|(path, about)| after.get(*path) != Some(about));
    let new = after.keys().filter(|path| !before.contains_key(*path)).map(|path| format!("{}: new", path.display()));
    changed
        .map(|(path, about)| format!("{}: {about} became {:?}", path.display(), after.get(path)))
        .chain(new)
        .collect()
}
