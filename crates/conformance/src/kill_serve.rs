//! Kills a server (SIGKILL) while clients write, and checks that everything it acknowledged as stable is served again.
//!
//! ```text
//!   weir serve ◄─ NFS: two clients of our own, WRITE in both kinds and COMMIT
//!        ▲     ◄─ NFS: libnfs's nfs-cp, file after file; it commits before it closes
//!        │     ◄─ NBD: a client of our own, writes, FUA, flushes
//!        │     ◄─ NBD: fio, random writes with a flush after every eighth; its log shows the flushed ones
//!     SIGKILL   … then a server again, and everything is read back through it
//! ```
//!
//! Our own clients write units of 4 KiB in versions that differ in every word; a unit has the last
//! promised version or, word by word, a later one. The write verifier must change with each restart,
//! and the server's memory stays within its budget.
#![allow(clippy::disallowed_methods, reason = "a judge kills other programs in real time")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::{Engine, ImportOptions};
use weir_machine::Machine;
use weir_pool::OpenOptions;

use crate::JudgeError;
use crate::kill::{demand_clean, failed, mixed, new_pool};
use crate::nbd::NbdDevice;
use crate::nfs::{Handle, NfsTree};
use crate::process::{Serving, weir};
use crate::report::Report;
use crate::suites::program;
use crate::tree::{BlockDevice, Tree, TreeError};
use crate::zdb::Tools;

const POOL: &str = "served";
const DEVICE_BYTES: u64 = 512 << 20;
const NFS_CLIENTS: u64 = 2;
/// Number of units that each client writes.
const UNITS: u64 = 256;
const UNIT: usize = 4 << 10;
const VOLUME_BYTES: u64 = 16 << 20;
const FIO_BLOCK: u64 = 8 << 10;
/// fio writes its log in pieces: after the first one it is running.
const FIO_BEGUN_BYTES: u64 = 1 << 10;
/// Maximum time for clients to begin.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// Maximum resident memory: the ARC and the dirty limit that [`Serving`] sets, plus a fifth.
const MAX_RSS_BYTES: u64 = (OpenOptions::ARC_BYTES + (256 << 20)) / 5 * 6;

/// Contents of a unit in a version.
fn content(version: u64) -> Vec<u8> {
    (0..UNIT as u64 / 8).flat_map(|n| mixed(version << 16 | n).to_le_bytes()).collect()
}

/// State of a unit.
struct Unit {
    /// Contents that were promised last.
    stable: Vec<u8>,
    /// Versions that were sent since then.
    later: Vec<u64>,
}

impl Unit {
    /// Marks everything that was sent as stable.
    fn promise(&mut self) {
        if let Some(version) = self.later.last() {
            self.stable = content(*version);
            self.later.clear();
        }
    }

    /// Index of the first word that is neither from the promised version nor from a later one.
    fn wrong(&self, found: &[u8]) -> Option<usize> {
        let later: Vec<Vec<u8>> = self.later.iter().map(|version| content(*version)).collect();
        let mut versions: Vec<_> = later.iter().chain([&self.stable]).map(|bytes| bytes.chunks(8)).collect();
        if found.len() != UNIT {
            return Some(found.len() / 8);
        }
        found.chunks(8).position(|word| {
            // The later versions advance to their next word.
            let known = versions.iter_mut().fold(false, |known, version| (version.next() == Some(word)) | known);
            !known
        })
    }
}

/// Units of a client, of either protocol.
struct Units {
    units: Vec<Unit>,
    next_version: u64,
    promises: u64,
}

impl Units {
    fn new(client: u64) -> Units {
        let unit = |_| Unit { stable: vec![0; UNIT], later: Vec::new() };
        Units { units: (0..UNITS).map(unit).collect(), next_version: client << 32 | 1, promises: 0 }
    }

    /// Chooses the next unit to write, its new version, and whether the write is synchronous.
    fn begin(&mut self) -> (usize, u64, bool) {
        let version = self.next_version;
        self.next_version += 1;
        let chance = mixed(version);
        let unit = (chance % UNITS) as usize;
        self.units[unit].later.push(version);
        (unit, version, chance >> 32 & 3 == 0)
    }

    fn promise(&mut self, only: Option<usize>) {
        self.promises += 1;
        match only {
            Some(unit) => self.units[unit].promise(),
            None => self.units.iter_mut().for_each(Unit::promise),
        }
    }

    /// Compares with the present contents, which are the start of the next round.
    fn check(&mut self, who: &str, found: &[u8], differences: &mut Vec<String>) {
        for (n, unit) in self.units.iter_mut().enumerate() {
            let found = found.get(n * UNIT..(n + 1) * UNIT).unwrap_or_default();
            if let Some(word) = unit.wrong(found) {
                differences.push(format!("{who}: unit {n}, word {word} was never there or is older than promised"));
            }
            found.clone_into(&mut unit.stable);
            unit.later.clear();
        }
    }
}

fn nfs(serving: &Serving) -> Result<NfsTree, TreeError> {
    NfsTree::mount(serving.nfs, serving.mount, &format!("/{POOL}"))
}

fn own_file(client: u64) -> Vec<u8> {
    format!("client {client}").into_bytes()
}

/// Writes over NFS until the server is gone. Returns the last write verifier.
fn nfs_client(mut tree: NfsTree, file: &Handle, units: &mut Units, begun: &AtomicBool) -> Result<u64, JudgeError> {
    let mut verifier = None;
    let mut same = |now: u64| match verifier.replace(now) {
        Some(before) if before != now => Err(failed("NFS", "the verifier changed while the server ran")),
        _ => Ok(()),
    };
    loop {
        let (unit, version, stable) = units.begin();
        let Ok(now) = tree.write(file, (unit * UNIT) as u64, &content(version), stable) else { break };
        begun.store(true, Ordering::Relaxed);
        same(now)?;
        if stable {
            units.promise(Some(unit));
        } else if mixed(version) >> 40 & 3 == 0 {
            let Ok(now) = tree.commit(file) else { break };
            same(now)?;
            units.promise(None);
        }
    }
    verifier.ok_or_else(|| failed("NFS", "no write was answered"))
}

/// Writes over NBD until the server is gone.
fn nbd_client(mut device: NbdDevice, units: &mut Units) {
    loop {
        let (unit, version, stable) = units.begin();
        if device.write((unit * UNIT) as u64, &content(version), stable).is_err() {
            return;
        }
        if stable {
            units.promise(Some(unit));
        } else if mixed(version) >> 40 & 7 == 0 {
            if device.flush().is_err() {
                return;
            }
            units.promise(None);
        }
    }
}

/// Size of a file that nfs-cp copies, in units.
const COPY_UNITS: u64 = 300;
/// Maximum number of copies in one round: all of them stay, and a long run must not fill the pool.
const MAX_COPIES: u64 = 25;

/// Copies file after file until the server is gone; returns how many copies of this round were completed. The last
/// one would wait for the server forever.
fn copies(nfs_cp: &Path, source: &Path, serving: (u16, u16), life: u64, gone: &AtomicBool) -> Result<u64, JudgeError> {
    let io = |source| JudgeError::Io { what: "nfs-cp".into(), source };
    let (nfs_port, mount_port) = serving;
    let mut done = 0;
    while !gone.load(Ordering::Relaxed) && done < MAX_COPIES {
        let url = format!("nfs://127.0.0.1/{POOL}/copy-{life}-{done}?nfsport={nfs_port}&mountport={mount_port}");
        let mut command = Command::new(nfs_cp);
        let said = source.with_extension("said");
        let file = std::fs::File::create(&said).map_err(io)?;
        command.arg(source).arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut child = command.spawn().map_err(io)?;
        let status = loop {
            match child.try_wait().map_err(io)? {
                Some(status) => break Some(status),
                None if gone.load(Ordering::Relaxed) => {
                    child.kill().and_then(|()| child.wait()).map_err(io)?;
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        match status {
            Some(status) if status.success() => done += 1,
            Some(status) if !gone.load(Ordering::Relaxed) => {
                let said = std::fs::read_to_string(&said).unwrap_or_default();
                return Err(failed("nfs-cp", format!("{status}: {}", said.trim())));
            }
            _ => break,
        }
    }
    Ok(done)
}

/// Runs fio until the server is gone. Returns the blocks that it wrote, and whether a flush covered each.
fn fio(program: &Path, folder: &Path, port: u16, life: u64, gone: &AtomicBool) -> Result<Vec<(u64, bool)>, JudgeError> {
    // fio appends, so each round has a log of its own.
    let log = fio_log(folder, life);
    let mut command = Command::new(program);
    command.args(["--name=killed", "--ioengine=nbd", "--rw=randwrite", "--iodepth=1", "--fsync=8", "--do_verify=0"]);
    command.args(["--verify=pattern", &format!("--verify_pattern=%o0x{:016x}", life.swap_bytes())]);
    command.arg(format!("--uri=nbd://127.0.0.1:{port}/{POOL}/fio"));
    command.args([format!("--bs={FIO_BLOCK}"), format!("--size={VOLUME_BYTES}"), format!("--randseed={life}")]);
    command.args(["--time_based", "--runtime=60"]).arg(format!("--write_iolog={}", log.display()));
    let output = command.current_dir(folder).stdin(Stdio::null()).output();
    let output = output.map_err(|source| JudgeError::Io { what: "fio".into(), source })?;
    // On a busy machine the server may be gone before fio has begun.
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let blocks = flushed(&text);
    if blocks.is_empty() && !gone.load(Ordering::Relaxed) {
        return Err(failed("fio", format!("wrote nothing: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(blocks)
}

fn fio_log(folder: &Path, life: u64) -> PathBuf {
    folder.join(format!("fio-{life}.log"))
}

/// Waits until every NFS client has had a reply and fio has flushed; with a time limit for a very busy
/// machine.
fn until_begun(clients: &[Arc<AtomicBool>], log: Option<&Path>) {
    let until = Instant::now() + BEGINS_WITHIN;
    let size = |log: &Path| std::fs::metadata(log).map_or(0, |about| about.len());
    let begun = || {
        clients.iter().all(|begun| begun.load(Ordering::Relaxed)) && log.is_none_or(|log| size(log) >= FIO_BEGUN_BYTES)
    };
    while !begun() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads fio's log of operations, which has a line for the start of each. There is one at a time, so a flush has
/// succeeded if the operation after it was followed by another one: when a server is gone at a flush, fio logs one
/// operation more and then ends (observed with such a server). fio does not notice an error in the reply to a flush at
/// all; Weir's own client checks that.
fn flushed(log: &str) -> Vec<(u64, bool)> {
    let mut blocks: Vec<(u64, bool)> = Vec::new();
    // Flushes with the number of blocks that they cover, and the number of operations after them.
    let mut asked: Vec<(usize, u64)> = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Since version 3, fio puts a time in front.
        let at = words.iter().position(|word| matches!(*word, "write" | "sync" | "datasync"));
        let Some((action, rest)) = at.and_then(|at| words.get(at..)?.split_first()) else { continue };
        asked.iter_mut().for_each(|(_, after)| *after += 1);
        match (*action, rest.first().and_then(|offset| offset.parse().ok())) {
            ("write", Some(offset)) => blocks.push((offset, false)),
            ("write", None) => {}
            _ => asked.push((blocks.len(), 0)),
        }
    }
    let answered = asked.iter().filter(|(_, after)| *after >= 2).map(|(count, _)| *count).max().unwrap_or(0);
    blocks.iter_mut().take(answered).for_each(|(_, stable)| *stable = true);
    blocks
}

/// Contents that fio writes at an offset in a round: offset and round, repeated.
fn fio_block(offset: u64, life: u64) -> Vec<u8> {
    [offset.to_le_bytes(), life.to_le_bytes()].concat().repeat(FIO_BLOCK as usize / 16)
}

/// Compares fio's volume with its former contents and fio's writes.
fn check_fio(before: &[u8], found: &[u8], blocks: &[(u64, bool)], life: u64, differences: &mut Vec<String>) {
    for (n, (was, is)) in before.chunks(FIO_BLOCK as usize).zip(found.chunks(FIO_BLOCK as usize)).enumerate() {
        let offset = n as u64 * FIO_BLOCK;
        let new = fio_block(offset, life);
        let written = blocks.iter().any(|(at, _)| *at == offset);
        let stable = blocks.iter().any(|(at, stable)| *at == offset && *stable);
        let old_or_new = || is.chunks(8).zip(was.chunks(8).zip(new.chunks(8))).all(|(f, (w, n))| f == w || f == n);
        let right = if stable {
            is == new
        } else if written {
            old_or_new()
        } else {
            is == was
        };
        if !right {
            let words = [&is[..16], &was[..16]];
            differences
                .push(format!("fio: block at {offset} (written {written}, stable {stable}) is, was: {words:x?}"));
        }
    }
}

/// State between rounds.
struct Known {
    nfs: Vec<Units>,
    nbd: Units,
    fio: Vec<u8>,
    verifier: Option<u64>,
    copies: u64,
    fio_stable: u64,
}

/// Other programs that are present.
struct Others {
    nfs_cp: Option<PathBuf>,
    fio: Option<PathBuf>,
}

type Client<T> = JoinHandle<Result<T, JudgeError>>;

fn joined<T>(client: Client<T>) -> Result<T, JudgeError> {
    client.join().map_err(|_| failed("a client", "panicked"))?
}

fn bad(error: TreeError) -> JudgeError {
    failed("the server", error)
}

/// One round: clients work, the server is killed and restarted; returns the differences.
fn life(
    folder: &Path,
    scratch: &Path,
    others: &Others,
    known: &mut Known,
    life: u64,
) -> Result<Vec<String>, JudgeError> {
    let serving = Serving::writable(folder, POOL)?;
    let nbd_at = serving.nbd.ok_or_else(|| failed("weir serve", "no NBD"))?;
    let mut nfs_clients: Vec<Client<(Units, u64)>> = Vec::new();
    let mut begun = Vec::new();
    for (client, mut units) in (0..).zip(std::mem::take(&mut known.nfs)) {
        let mut tree = nfs(&serving).map_err(bad)?;
        let file = tree.made(&own_file(client)).map_err(bad)?;
        let first = Arc::new(AtomicBool::new(false));
        begun.push(first.clone());
        nfs_clients.push(std::thread::spawn(move || nfs_client(tree, &file, &mut units, &first).map(|v| (units, v))));
    }
    let device = NbdDevice::open(nbd_at, &format!("{POOL}/own")).map_err(bad)?;
    let mut units = std::mem::replace(&mut known.nbd, Units::new(0));
    let nbd: Client<Units> = std::thread::spawn(move || {
        nbd_client(device, &mut units);
        Ok(units)
    });
    let gone = Arc::new(AtomicBool::new(false));
    let fio: Option<Client<_>> = others.fio.clone().map(|program| {
        let (scratch, gone) = (scratch.to_path_buf(), gone.clone());
        std::thread::spawn(move || fio(&program, &scratch, nbd_at.port(), life, &gone))
    });
    let copying: Option<Client<u64>> = others.nfs_cp.clone().map(|program| {
        let source = scratch.join("source");
        let ports = (serving.nfs.port(), serving.mount.port());
        let gone = gone.clone();
        std::thread::spawn(move || copies(&program, &source, ports, life, &gone))
    });
    let log = others.fio.as_ref().map(|_| fio_log(scratch, life));
    until_begun(&begun, log.as_deref());
    std::thread::sleep(Duration::from_millis(1000 + mixed(life) % 3000));
    // A client that fails from now on may have lost its server.
    gone.store(true, Ordering::Relaxed);
    let peak = serving.kill()?;
    let mut differences = Vec::new();
    if peak > MAX_RSS_BYTES {
        differences.push(format!("the server held {} MiB, more than {}", peak >> 20, MAX_RSS_BYTES >> 20));
    }
    for client in nfs_clients {
        let (units, verifier) = joined(client)?;
        if known.verifier == Some(verifier) {
            differences.push("the verifier of the last life came again".into());
        }
        known.nfs.push(units);
        known.verifier = if known.nfs.len() as u64 == NFS_CLIENTS { Some(verifier) } else { known.verifier };
    }
    known.nbd = joined(nbd)?;
    let blocks = fio.map(joined).transpose()?.unwrap_or_default();
    let copied = copying.map(joined).transpose()?.unwrap_or(0);
    known.copies += copied;
    known.fio_stable += blocks.iter().filter(|(_, stable)| *stable).count() as u64;
    look_again(folder, scratch, known, &blocks, (life, copied), &mut differences)?;
    Ok(differences)
}

/// Serves again, and compares.
fn look_again(
    folder: &Path,
    scratch: &Path,
    known: &mut Known,
    blocks: &[(u64, bool)],
    (life, copied): (u64, u64),
    differences: &mut Vec<String>,
) -> Result<(), JudgeError> {
    let serving = Serving::writable(folder, POOL)?;
    let nbd_at = serving.nbd.ok_or_else(|| failed("weir serve", "no NBD"))?;
    let mut tree = nfs(&serving).map_err(bad)?;
    for (client, units) in (0..).zip(&mut known.nfs) {
        let file = tree.made(&own_file(client)).map_err(bad)?;
        let mut found = tree.read(&file, 0, UNITS as usize * UNIT).map_err(bad)?;
        found.resize(UNITS as usize * UNIT, 0);
        units.check(&format!("NFS client {client}"), &found, differences);
    }
    let mut device = NbdDevice::open(nbd_at, &format!("{POOL}/own")).map_err(bad)?;
    let found = device.read(0, UNITS as usize * UNIT).map_err(bad)?;
    known.nbd.check("NBD client", &found, differences);
    let mut device = NbdDevice::open(nbd_at, &format!("{POOL}/fio")).map_err(bad)?;
    let found = device.read(0, VOLUME_BYTES as usize).map_err(bad)?;
    check_fio(&known.fio, &found, blocks, life, differences);
    known.fio = found;
    let source = std::fs::read(scratch.join("source")).map_err(|e| failed("the source of copies", e))?;
    for n in 0..copied {
        let name = format!("copy-{life}-{n}");
        let same = match tree.named(name.as_bytes()).map_err(bad)? {
            None => false,
            Some(file) => tree.read(&file, 0, source.len() + 1).map_err(bad)? == source,
        };
        if !same {
            differences.push(format!("{name}: nfs-cp said that it was done, and it is not there, or not whole"));
        }
    }
    serving.stop()
}

/// Makes the pool with its volumes.
fn prepare(machine: &Machine, folder: &Path) -> Result<(), JudgeError> {
    new_pool(machine, folder, POOL, DEVICE_BYTES)?;
    machine.block_on(async {
        let options = ImportOptions::new(OpenOptions::new(vec![folder.to_owned()], POOL));
        let engine = Engine::import(machine, &options).await.map_err(|e| failed("import", e))?;
        for name in ["own", "fio"] {
            let kind = Kind::Volume(VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: 8 << 10 });
            let new = NewDataset { name: format!("{POOL}/{name}"), kind, properties: Vec::new() };
            engine.create_dataset(new).await.map_err(|e| failed("create", e))?;
        }
        engine.export().await.map_err(|e| failed("export", e))
    })
}

/// Kills this number of servers, and judges the contents after each.
///
/// # Errors
/// Errors if the pool cannot be made or served.
pub fn run(rest: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let rounds: u64 = rest.first().and_then(|n| n.parse().ok()).unwrap_or(3);
    weir()?;
    let machine = weir_linux::machine().map_err(|e| failed("machine", e))?;
    let io = |source| JudgeError::Io { what: "a folder".into(), source };
    let folder = tempfile::tempdir().map_err(io)?;
    let scratch = tempfile::tempdir().map_err(io)?;
    let (folder, scratch) = (folder.path(), scratch.path());
    let others = Others { nfs_cp: program("WEIR_NFS_CP", "nfs-cp").ok(), fio: program("WEIR_FIO", "fio").ok() };
    let tools = Tools::find().ok();
    for (there, what) in [(others.nfs_cp.is_some(), "nfs-cp"), (others.fio.is_some(), "fio"), (tools.is_some(), "zdb")]
    {
        if !there {
            report.skip(&format!("kill-serve with {what}"), "it is not installed");
        }
    }
    let source: Vec<u8> = (0..COPY_UNITS).flat_map(|n| content(1 << 40 | n)).collect();
    std::fs::write(scratch.join("source"), source).map_err(io)?;
    prepare(&machine, folder)?;
    let nfs = (0..NFS_CLIENTS).map(|client| Units::new(client + 1)).collect();
    let nbd = Units::new(9);
    let fio = vec![0; VOLUME_BYTES as usize];
    let mut known = Known { nfs, nbd, fio, verifier: None, copies: 0, fio_stable: 0 };
    for round in 1..=rounds {
        let mut differences = life(folder, scratch, &others, &mut known, round)?;
        if round % 8 == 1 || round == rounds {
            demand_clean(&tools, folder, POOL, "stopped", &mut differences)?;
        }
        let promises = known.nfs.iter().map(|units| units.promises).sum::<u64>();
        let about = format!(
            "so far {promises} promises over NFS, {} over NBD, {} files of nfs-cp, {} flushed blocks of fio",
            known.nbd.promises, known.copies, known.fio_stable
        );
        match differences.is_empty() {
            true => report.pass(&format!("kill-serve {round}"), &about),
            false => report.fail(&format!("kill-serve {round}"), &differences),
        }
    }
    for (there, done, what) in [(&others.nfs_cp, known.copies, "nfs-cp"), (&others.fio, known.fio_stable, "fio")] {
        if there.is_some() && done == 0 {
            report.skip(&format!("kill-serve with {what}"), "on this busy machine it was promised nothing in time");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_promise_is_found_and_a_later_write_is_none() {
        let mut units = Units::new(1);
        let (unit, version, _) = units.begin();
        units.promise(Some(unit));
        let mut found = vec![0; UNITS as usize * UNIT];
        let place = unit * UNIT..(unit + 1) * UNIT;
        found[place.clone()].copy_from_slice(&content(version));
        units.units[unit].later.push(77);
        // Half of what came later.
        found[place.start..place.start + UNIT / 2].copy_from_slice(&content(77)[..UNIT / 2]);
        let mut differences = Vec::new();
        units.check("it", &found, &mut differences);
        assert_eq!(differences, [] as [String; 0]);
        units.units[unit] = Unit { stable: content(version), later: Vec::new() };
        units.check("it", &found, &mut differences);
        assert_eq!(differences.len(), 1);
    }

    #[test]
    fn a_flush_counts_when_what_follows_it_is_followed() {
        let log = "fio version 3 iolog\n0 nbd add\n0 nbd open\n1 nbd write 8192 8192\n2 nbd sync 0 0\n\
                   3 nbd write 0 8192\n4 nbd sync 0 0\n\
                   5 nbd write 16384 8192\n6 nbd close\n";
        assert_eq!(flushed(log), [(8192, true), (0, false), (16384, false)]);
        let mut differences = Vec::new();
        let before = vec![0; 2 * FIO_BLOCK as usize];
        check_fio(&before, &before, &flushed(log), 3, &mut differences);
        assert_eq!(differences.len(), 1);
    }
}
