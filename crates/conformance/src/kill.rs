//! Kills a program while it writes, and checks that everything it acknowledged as stable is there afterwards.
//!
//! A child opens a pool on real files. Several clients write, rename and remove files at once; each prints a line for
//! every change that it has made stable. The parent kills the child (SIGKILL) at some moment, opens the pool again,
//! which replays the intent logs, and checks that every name has a state of its client at or after the last printed
//! one. In some rounds OpenZFS's zdb judges the pool before and after its export.
//!
//! Most children are killed some time after they opened the pool, so that they have written; one in four at any moment,
//! also while it opens the pool and replays. The clients' changes follow from a seed, so the parent knows each state;
//! every file has one complete version.
#![allow(clippy::disallowed_methods, reason = "a judge kills other programs in real time")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use weir_files::DirName;

use bytes::Bytes;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileError, FileSystem, New, NewKind, RenameMode, SetAttributes, WriteAt};
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;
use weir_pool::config::Class;

use crate::JudgeError;
use crate::report::Report;
use crate::zdb::{Tools, invariants_fault, theirs};

const POOL: &str = "killed";
/// Number of concurrent clients.
const CLIENTS: u64 = 4;
/// Number of names of each client.
const NAMES: u64 = 6;
/// Maximum number of changes of a client in one round.
const CHANGES: u64 = 100_000;
const LONGEST: u64 = 150_000;
/// Line of a child that has opened the pool.
const OPENED: &str = "opened";
/// Maximum time to open the pool on a busy machine.
const OPENS_WITHIN: Duration = Duration::from_secs(60);
/// One round in this number ends at any moment, also while the pool is opened; the others some time after that.
const AT_ANY_MOMENT: u64 = 4;

/// Change of one name: to a version, or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    name: u64,
    version: Option<u64>,
    how: u64,
}

/// Mixes a number (splitmix64).
pub(crate) fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// Change number `n` of a client in a round.
fn change(life: u64, client: u64, n: u64) -> Change {
    let chance = mixed(life << 40 ^ client << 32 ^ n);
    let version = (life << 40 | client << 32 | n) + 1;
    Change { name: chance % NAMES, version: (chance >> 8 & 7 != 0).then_some(version), how: chance >> 16 }
}

/// Contents of a file in a version.
pub(crate) fn content(version: u64) -> Bytes {
    let len = mixed(version) % LONGEST;
    let mut out = Vec::with_capacity(len as usize + 8);
    let mut word = version;
    out.extend_from_slice(&version.to_le_bytes());
    while (out.len() as u64) < len {
        // Half of it is compressible.
        word = if word & 1 == 0 { mixed(word) } else { word & !1 };
        out.extend_from_slice(&word.to_le_bytes());
    }
    Bytes::from(out)
}

pub(crate) fn failed(what: &str, error: impl std::fmt::Display) -> JudgeError {
    JudgeError::Process { command: what.to_owned(), why: error.to_string() }
}

async fn opened(machine: &Machine, folder: &Path) -> Result<(Arc<Engine>, Arc<FileSystem>), JudgeError> {
    let options = ImportOptions::new(OpenOptions::new(vec![folder.to_owned()], POOL));
    let engine = Engine::import(machine, &options).await.map_err(|e| failed("import", e))?;
    let files = engine.file_system(&Request::internal("kill"), POOL).await.map_err(|e| failed("file system", e))?;
    Ok((engine, files))
}

/// The child process: writes until it is killed.
pub fn child(folder: &str, life: &str) -> ExitCode {
    let machine = match weir_linux::machine() {
        Ok(machine) => machine,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let life = life.parse().unwrap_or(0);
    let done = machine.block_on(async {
        let (_engine, files) = opened(&machine, Path::new(folder)).await?;
        println!("{OPENED}");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let files = files.clone();
                machine.tasks.spawn(async move { live(&files, life, client).await })
            })
            .collect();
        for client in clients {
            client.await.map_err(|_| failed("client", "lost"))?.map_err(|e| failed("client", e))?;
        }
        Ok::<_, JudgeError>(())
    });
    if let Err(error) = done {
        eprintln!("{error}");
    }
    ExitCode::FAILURE
}

async fn live(files: &FileSystem, life: u64, client: u64) -> Result<(), FileError> {
    let rq = &Request::internal("kill");
    for n in 0..CHANGES {
        let change = change(life, client, n);
        make(files, rq, client, change).await?;
        // One in four changes is made stable, with all changes before it.
        if change.how & 3 == 0 {
            files.sync(rq, None).await?;
            let mut out = std::io::stdout().lock();
            let said = writeln!(out, "{client} {n}").and_then(|()| out.flush());
            if said.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn name_of(client: u64, name: u64) -> Vec<u8> {
    format!("client {client} file {name}").into_bytes()
}

/// Makes a change: each name gets its new state in one step.
async fn make(files: &FileSystem, rq: &Request, client: u64, change: Change) -> Result<(), FileError> {
    let (root, cred) = (files.root(), &Cred::root());
    let name = name_of(client, change.name);
    let Some(version) = change.version else {
        return match files.names().remove(rq, cred, root, &name).await {
            Err(FileError::NotFound) => Ok(()),
            done => done,
        };
    };
    let other_name = format!("client {client} new").into_bytes();
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let file = files.names().create(rq, cred, root, &other_name, &new).await?.object;
    // Truncates what an earlier round left there.
    files.attrs().set(rq, cred, file, &SetAttributes::size(0)).await?;
    let whole = content(version);
    let half = (whole.len() / 2).min(change.how as usize % LONGEST as usize);
    files.contents().write(rq, cred, file, WriteAt::Offset(half as u64), whole.slice(half..)).await?;
    files.contents().write(rq, cred, file, WriteAt::Offset(0), whole.slice(..half)).await?;
    // Synced before the rename, so that the name never leads to data that is not stable, as careful programs do.
    files.sync(rq, Some(file)).await?;
    files
        .names()
        .rename(
            rq,
            cred,
            DirName { dir: root, name: &other_name },
            DirName { dir: root, name: &name },
            RenameMode::Replace,
        )
        .await
}

/// State of each name: a version, or absent.
type States = BTreeMap<(u64, u64), Option<u64>>;

async fn found(files: &FileSystem, rq: &Request, differences: &mut Vec<String>) -> Result<States, JudgeError> {
    let mut states = States::new();
    for client in 0..CLIENTS {
        for name in 0..NAMES {
            let file = match files.directories().lookup(rq, files.root(), &name_of(client, name)).await {
                Err(FileError::NotFound) => {
                    states.insert((client, name), None);
                    continue;
                }
                file => file.map_err(|e| failed("lookup", e))?,
            };
            let bytes =
                files.contents().read(rq, file, 0, LONGEST as usize + 99).await.map_err(|e| failed("read", e))?;
            let version = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
            if bytes != content(version) {
                differences.push(format!("client {client} file {name}: no whole version ({} bytes)", bytes.len()));
            }
            states.insert((client, name), Some(version));
        }
    }
    Ok(states)
}

/// Checks the state after a round: `said` has the last stable change of each client.
fn check(before: &States, after: &States, life: u64, said: &BTreeMap<u64, u64>, differences: &mut Vec<String>) {
    for (key, state) in after {
        let (client, name) = *key;
        let until = said.get(&client).copied();
        let mut stable = before.get(key).copied().flatten();
        for n in 0..until.map_or(0, |n| n + 1) {
            let change = change(life, client, n);
            if change.name == name {
                stable = change.version;
            }
        }
        let from = until.map_or(0, |n| n + 1);
        let later = |version: &Option<u64>| {
            let mut changes = (from..from + 4096).map(|n| change(life, client, n)).filter(|c| c.name == name);
            changes.any(|c| c.version == *version)
        };
        if *state != stable && !later(state) {
            differences.push(format!("client {client} file {name}: {state:?} instead of {stable:?}, said {until:?}"));
        }
    }
}

/// Runs a child for a while; returns the changes that it printed.
fn life(folder: &Path, life: u64) -> Result<BTreeMap<u64, u64>, JudgeError> {
    let io = |source| JudgeError::Io { what: "the child".into(), source };
    let exe = std::env::current_exe().map_err(io)?;
    let mut child = Command::new(exe)
        .arg("kill-child")
        .arg(folder)
        .arg(life.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(io)?;
    let Some(stdout) = child.stdout.take() else { return Err(failed("the child", "no output")) };
    let (opened, is_open) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = BTreeMap::new();
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line == OPENED {
                // The receiver may be gone.
                let _ = opened.send(());
            }
            let mut words = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
            if let (Some(client), Some(n)) = (words.next(), words.next()) {
                said.insert(client, n);
            }
        }
        said
    });
    // A child that ends before it has opened the pool is detected below.
    let _ = (!life.is_multiple_of(AT_ANY_MOMENT)).then(|| is_open.recv_timeout(OPENS_WITHIN));
    std::thread::sleep(Duration::from_millis(300 + mixed(life) % 2500));
    let early = child.try_wait().map_err(io)?;
    child.kill().map_err(io)?;
    child.wait().map_err(io)?;
    let said = reader.join().map_err(|_| failed("the child", "its lines are lost"))?;
    match early {
        Some(status) => Err(failed("the child", format!("ended by itself: {status}"))),
        None => Ok(said),
    }
}

/// Makes a RAID-Z1 pool of three sparse files, and exports it.
///
/// # Errors
/// Errors of making the pool.
pub fn new_pool(machine: &Machine, folder: &Path, name: &str, device_bytes: u64) -> Result<(), JudgeError> {
    let device = |name: &str| -> Result<NewLeaf, JudgeError> {
        let path: PathBuf = folder.join(name);
        let made = std::fs::File::create(&path).and_then(|file| file.set_len(device_bytes));
        made.map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
        Ok(NewLeaf { path, is_file: true })
    };
    let data = NewTopLevelVdev {
        class: Class::Normal,
        layout: Layout::Raidz(1),
        leaves: vec![device("a")?, device("b")?, device("c")?],
    };
    machine.block_on(async {
        let options = CreateOptions::new(name, vec![data]);
        let engine = Engine::create(machine, &options).await.map_err(|e| failed("create", e))?;
        engine.export().await.map_err(|e| failed("export", e))
    })
}

/// Kills this number of children, and judges the pool after each.
///
/// # Errors
/// Errors if the pool cannot be made, or a child does not start.
pub fn run(rest: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let rounds: u64 = rest.first().and_then(|n| n.parse().ok()).unwrap_or(5);
    let tools = Tools::find().ok();
    if tools.is_none() {
        report.skip("kill zdb", "OpenZFS's tools are not there (set WEIR_ZFS_TOOLS)");
    }
    let machine = weir_linux::machine().map_err(|e| failed("machine", e))?;
    let folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "a folder".into(), source })?;
    let folder = folder.path();
    new_pool(&machine, folder, POOL, 128 << 20)?;
    let mut before = States::new();
    let mut changes = 0;
    for round in 0..rounds {
        let said = life(folder, round)?;
        let mut differences = Vec::new();
        if round % 8 == 0 {
            demand_clean(&tools, folder, POOL, "as it was left", &mut differences)?;
        }
        let after = machine.block_on(async {
            let (engine, files) = opened(&machine, folder).await?;
            let after = found(&files, &Request::internal("kill"), &mut differences).await?;
            engine.export().await.map_err(|e| failed("export", e))?;
            Ok::<_, JudgeError>(after)
        })?;
        check(&before, &after, round, &said, &mut differences);
        if round % 8 == 0 || round + 1 == rounds {
            demand_clean(&tools, folder, POOL, "exported", &mut differences)?;
        }
        changes += said.values().map(|n| n + 1).sum::<u64>();
        let case = format!("kill {round}");
        match differences.is_empty() {
            true => report.pass(&case, &format!("{changes} changes so far")),
            false => report.fail(&case, &differences),
        }
        before = after;
    }
    Ok(())
}

/// Demands that zdb, if present, reads every block of the pool without an error.
pub(crate) fn demand_clean(
    tools: &Option<Tools>,
    folder: &Path,
    pool: &str,
    when: &str,
    differences: &mut Vec<String>,
) -> Result<(), JudgeError> {
    let Some(tools) = tools else { return Ok(()) };
    let (code, text) = theirs(tools, folder, pool)?;
    if code != 0 || !text.contains("No leaks") {
        let tail: Vec<&str> = text.lines().rev().take(12).collect();
        differences.push(format!("zdb, {when}: exit {code}: {}", tail.join(" | ")));
    }
    if let Some(found) = invariants_fault(folder, pool)? {
        differences.push(format!("weir zdb --invariants, {when}: {found}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_change_is_found() {
        let said = BTreeMap::from([(0, 40)]);
        let mut stable = States::new();
        for n in 0..41 {
            let change = change(1, 0, n);
            stable.insert((0, change.name), change.version);
        }
        let mut differences = Vec::new();
        check(&States::new(), &stable, 1, &said, &mut differences);
        assert_eq!(differences, [] as [String; 0]);
        let (key, _) = stable.iter().find(|(_, state)| state.is_some()).unwrap();
        let mut lost = stable.clone();
        lost.insert(*key, Some(7));
        check(&States::new(), &lost, 1, &said, &mut differences);
        assert_eq!(differences.len(), 1);
    }

    #[test]
    fn contents_tell_their_version() {
        for version in [1u64, 77, 1 << 41] {
            assert_eq!(content(version)[..8], version.to_le_bytes());
        }
    }
}
