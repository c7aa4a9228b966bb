//! Golden pools that are damaged, and what `weir rescue` brings out of them.
//!
//! ```text
//!   golden ─► unpacked ─► damaged: labels, uberblocks, a space map, a block of the MOS, a directory, dnodes, data, a missing disk
//!             ├─► weir rescue: no panic, bounded memory, no byte of a device changed
//!             │     ├─ what it calls whole has the manifest's hash
//!             │     ├─ what the engine reads of the damaged pool, by names, is whole
//!             │     └─ what the damage does not concern is whole; below a damaged directory the contents are in lost+found
//!             └─► killed on the way, run again, and once more: the same
//! ```
#![allow(clippy::disallowed_methods, reason = "a judge waits for a process")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions as FileOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_dmu::{ObjectSet, Objects};
use weir_format::label::{LABEL_BYTES, LABELS};
use weir_format::{BlockPointer, ObjectId, ObjectType};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, VdevKind};
use weir_sim::Rng;

use crate::JudgeError;
use crate::compare::Findings;
use crate::engine::Opened;
use crate::golden::Unpacked;
use crate::hash::hex_of_file;
use crate::manifest::{FileKind, Golden};
use crate::process::{peak_bytes, weir};
use crate::report::Report;

/// Goldens of which each vdev is a disk or a mirror, so that a block's place on the devices is known.
const SIMPLE: [&str; 8] =
    ["single-a9", "single-a12", "mirror2-a12", "mirror2x2", "stripe3-a9", "dirs", "snaps", "recsize-a9"];
/// Goldens with parity: only labels and whole devices are damaged.
const PARITY: [&str; 3] = ["raidz1-3-a9", "raidz2-4-a9", "raidz1x2-a12"];
/// Number of pools in the short form.
const ROUNDS: u64 = 16;
/// Bytes before the first block of a vdev (`VDEV_LABEL_START_SIZE`).
const FRONT_BYTES: u64 = 4 << 20;
/// Offset and length of the configuration in a label, and of the ring of uberblocks.
const CONFIG: (u64, u64) = (16 << 10, 112 << 10);
const RING: (u64, u64) = (128 << 10, 128 << 10);
/// Maximum memory of a rescue: its cache has 64 MiB.
const MAX_BYTES: u64 = 400 << 20;

/// Kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// The configurations of some labels, at least one of each device stays.
    Labels,
    /// The newest uberblocks, which are of the last txgs, in which nothing was changed.
    Uberblocks,
    /// Blocks of space maps.
    SpaceMaps,
    /// A block of the MOS.
    Mos,
    /// A block of a directory.
    Directory,
    /// A block of dnodes.
    Dnodes,
    /// Some blocks of files.
    Data,
    /// A device is missing.
    Device,
}

const KINDS: [Damage; 8] = [
    Damage::Labels,
    Damage::Uberblocks,
    Damage::SpaceMaps,
    Damage::Mos,
    Damage::Directory,
    Damage::Dnodes,
    Damage::Data,
    Damage::Device,
];

/// Runs the judge: `rescue [ROUNDS] [--seed N]`.
///
/// # Errors
/// If the golden pools or the program are not here.
pub fn run(folder: &Path, words: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let rounds = number(0).unwrap_or(ROUNDS);
    let first = words.iter().position(|word| word == "--seed").and_then(|at| number(at + 1)).unwrap_or(1);
    for seed in first..first + rounds {
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let has_parity = matches!(kind, Damage::Labels | Damage::Uberblocks | Damage::Device) && seed / 8 % 2 == 1;
        let names: &[&str] = if has_parity { &PARITY } else { &SIMPLE };
        let name = names[(seed / 8 % names.len() as u64) as usize];
        report.book(&format!("{kind:?} of {name}, seed {seed}"), one(folder, name, kind, seed));
    }
    Ok(())
}

fn io(what: &Path) -> impl Fn(std::io::Error) -> JudgeError + '_ {
    move |source| JudgeError::Io { what: what.display().to_string(), source }
}

/// A result of a rescue.
struct Rescued {
    code: Option<i32>,
    errors: String,
    peak_bytes: u64,
}

fn command(devices: &Path, pool: &str, to: &Path) -> Result<Command, JudgeError> {
    let mut command = Command::new(weir()?);
    command.args(["rescue", "-q", "-d"]).arg(devices).arg(pool).arg(to);
    Ok(command)
}

/// A rescue that is killed on the way.
fn interrupted(devices: &Path, pool: &str, to: &Path, after: Duration) -> Result<(), JudgeError> {
    let mut command = command(devices, pool, to)?;
    let failed = io(Path::new("weir"));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(&failed)?;
    std::thread::sleep(after);
    // It may have ended.
    let _ = child.kill();
    child.wait().map(drop).map_err(failed)
}

fn rescue(devices: &Path, pool: &str, to: &Path) -> Result<Rescued, JudgeError> {
    let said = to.with_extension("errors");
    let errors = File::create(&said).map_err(io(&said))?;
    let mut command = command(devices, pool, to)?;
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().map_err(io(Path::new("weir")))?;
    let mut peak = 0;
    let code = loop {
        peak = peak.max(peak_bytes(child.id()));
        match child.try_wait().map_err(io(Path::new("weir")))? {
            Some(status) => break status.code(),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let errors = std::fs::read_to_string(&said).map_err(io(&said))?;
    Ok(Rescued { code, errors, peak_bytes: peak })
}

fn one(folder: &Path, name: &str, kind: Damage, seed: u64) -> Result<Findings, JudgeError> {
    let mut findings = Findings::default();
    let golden = Golden::read(folder, name)?;
    let unpacked = Unpacked::new(folder, name)?;
    let mut rng = Rng::new(seed);
    let hurt = damage(&golden, unpacked.path(), kind, &mut rng)?;
    let before = hashes(unpacked.path())?;
    let work = tempfile::tempdir().map_err(io(Path::new("folder")))?;
    let to = work.path().join("rescued");
    if rng.below(2) == 0 {
        interrupted(unpacked.path(), &golden.pool, &to, Duration::from_millis(20 + rng.below(400)))?;
    }
    for run in 1..=2 {
        let done = rescue(unpacked.path(), &golden.pool, &to)?;
        findings.facts += 3;
        if !matches!(done.code, Some(0 | 1)) || done.errors.contains("panicked") {
            findings.differs(format!("run {run} ended with {:?}: {}", done.code, done.errors.trim()));
        }
        if done.peak_bytes > MAX_BYTES {
            findings.differs(format!("run {run} took {} MiB of memory", done.peak_bytes >> 20));
        }
        let unhurt = matches!(kind, Damage::Labels | Damage::Uberblocks | Damage::SpaceMaps);
        if unhurt && done.code != Some(0) && !done.errors.contains("missing") {
            findings.differs(format!("run {run}: something is said to be missing: {}", done.errors.trim()));
        }
    }
    if hashes(unpacked.path())? != before {
        findings.differs("a device was changed".to_owned());
    }
    compare(&golden, unpacked.path(), &to, kind, &hurt, &mut findings)?;
    Ok(findings)
}

fn hashes(devices: &Path) -> Result<BTreeMap<PathBuf, String>, JudgeError> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(devices).map_err(io(devices))? {
        let path = entry.map_err(io(devices))?.path();
        if path.is_file() {
            out.insert(path.clone(), hex_of_file(&path).map_err(io(&path))?);
        }
    }
    Ok(out)
}

/// The place of a rescued file.
fn place(to: &Path, dataset: &str, path: &[u8]) -> PathBuf {
    let rest = path.strip_prefix(b"/").unwrap_or(path);
    to.join(dataset.replace('/', "%")).join(std::ffi::OsStr::from_bytes(rest))
}

/// Compares the files with the manifest.
fn compare(
    golden: &Golden,
    devices: &Path,
    to: &Path,
    kind: Damage,
    hurt: &Hurt,
    findings: &mut Findings,
) -> Result<(), JudgeError> {
    let Some(state) = golden.final_state() else { return Ok(()) };
    let report = to.join(".weir-rescue/report.tsv");
    let report = std::fs::read_to_string(&report).map_err(io(&report))?;
    let is_whole = |name: &str| {
        report
            .lines()
            .any(|line| line.strip_prefix("whole\t").is_some_and(|rest| rest.starts_with(&format!("{name}\t"))))
    };
    let opened = Opened::new(&OpenOptions::new(vec![devices.to_path_buf()], golden.pool.clone())).ok();
    let mut found_hashes = BTreeMap::new();
    lost_and_found(to, &mut found_hashes)?;
    for dataset in &state.datasets {
        let mut named = BTreeSet::new();
        for entry in dataset.files.iter().flatten().filter(|entry| entry.sha256.is_some()) {
            let at = place(to, &dataset.name, &entry.path.bytes());
            if at.is_file() && hex_of_file(&at).map_err(io(&at)).ok() == entry.sha256 {
                named.insert(entry.ino);
            }
        }
        let readable = opened.as_ref().and_then(|opened| opened.file_system(&dataset.name).ok());
        for entry in dataset.files.iter().flatten().filter(|entry| entry.kind == FileKind::File) {
            let Some(expected) = &entry.sha256 else { continue };
            let path = entry.path.bytes();
            let at = place(to, &dataset.name, &path);
            let found = if at.is_file() { Some(hex_of_file(&at).map_err(io(&at))?) } else { None };
            findings.facts += 1;
            let text = String::from_utf8_lossy(&path).into_owned();
            let key = format!("{}:{text}", dataset.name);
            if found.as_ref() == Some(expected) || entry.error.is_some() {
                continue;
            }
            if is_whole(&key) {
                findings.differs(format!("{key} is said to be whole, and has other contents"));
            }
            let must = match kind {
                Damage::Labels | Damage::Uberblocks | Damage::SpaceMaps => true,
                Damage::Mos | Damage::Device => false,
                // The contents of what is below a damaged directory have no name, or that of another link.
                Damage::Directory => {
                    let has_name = named.contains(&entry.ino);
                    !hurt.shares(&dataset.name) || !has_name && !found_hashes.contains_key(expected)
                }
                Damage::Dnodes | Damage::Data => !hurt.shares(&dataset.name),
            };
            let is_read = match (&opened, &readable) {
                (Some(opened), Some(files)) => reads(opened.machine(), files, &path),
                _ => false,
            };
            if must || is_read {
                findings.differs(format!("{key} can be read, and is not whole: {found:?}"));
            }
        }
    }
    Ok(())
}

/// Whether the engine reads a whole file by its name.
fn reads(machine: &Machine, files: &weir_files::FileSystem, path: &[u8]) -> bool {
    let rq = Request::internal("judge");
    machine.block_on(async {
        let mut at = files.root();
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            at = match files.directories().lookup(&rq, at, part).await {
                Ok(found) => found,
                Err(_) => return false,
            };
        }
        let Ok(attributes) = files.attrs().get(&rq, at).await else { return false };
        let mut offset = 0;
        while offset < attributes.size_bytes {
            match files.contents().read(&rq, at, offset, 1 << 20).await {
                Ok(bytes) if !bytes.is_empty() => offset += bytes.len() as u64,
                _ => return false,
            }
        }
        true
    })
}

/// Hashes of the files without names.
fn lost_and_found(to: &Path, out: &mut BTreeMap<String, PathBuf>) -> Result<(), JudgeError> {
    for dataset in std::fs::read_dir(to).map_err(io(to))?.flatten() {
        let Ok(entries) = std::fs::read_dir(dataset.path().join("lost+found")) else { continue };
        for entry in entries.flatten() {
            out.insert(hex_of_file(&entry.path()).map_err(io(&entry.path()))?, entry.path());
        }
    }
    Ok(())
}

/// Place of the damage.
#[derive(Default)]
struct Hurt {
    /// The dataset.
    dataset: String,
}

impl Hurt {
    /// Whether a dataset may share the damaged block: it is of the same file system, or a clone.
    fn shares(&self, dataset: &str) -> bool {
        let pool = |name: &str| name.split(['/', '@']).next().map(str::to_owned);
        !self.dataset.is_empty() && pool(&self.dataset) == pool(dataset)
    }
}

fn damage(golden: &Golden, devices: &Path, kind: Damage, rng: &mut Rng) -> Result<Hurt, JudgeError> {
    let files = device_files(devices)?;
    match kind {
        Damage::Labels => {
            for path in &files {
                // One of the four stays.
                let stays = rng.below(LABELS as u64);
                for label in (0..LABELS as u64).filter(|label| *label != stays) {
                    overwrite(path, label_offset(path, label)? + CONFIG.0, CONFIG.1)?;
                }
            }
        }
        Damage::Uberblocks => newest_uberblocks(&files)?,
        Damage::Device => {
            if let Some(path) = files.get(rng.below(files.len() as u64) as usize).filter(|_| files.len() > 1) {
                std::fs::remove_file(path).map_err(io(path))?;
            }
        }
        _ => return blocks(golden, devices, kind, rng),
    }
    Ok(Hurt::default())
}

fn device_files(devices: &Path) -> Result<Vec<PathBuf>, JudgeError> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(devices).map_err(io(devices))?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

fn label_offset(path: &Path, label: u64) -> Result<u64, JudgeError> {
    let size = std::fs::metadata(path).map_err(io(path))?.len() / LABEL_BYTES * LABEL_BYTES;
    Ok(if label < 2 { label * LABEL_BYTES } else { size - (LABELS as u64 - label) * LABEL_BYTES })
}

fn overwrite(path: &Path, offset: u64, bytes: u64) -> Result<(), JudgeError> {
    let file = FileOptions::new().write(true).open(path).map_err(io(path))?;
    file.write_all_at(&vec![0xa5; bytes as usize], offset).map_err(io(path))
}

/// Overwrites the uberblocks of the newest txg on all devices.
fn newest_uberblocks(files: &[PathBuf]) -> Result<(), JudgeError> {
    const SLOT: usize = 1 << 10;
    let mut found = Vec::new();
    for path in files {
        let file = File::open(path).map_err(io(path))?;
        for label in 0..LABELS as u64 {
            let at = label_offset(path, label)? + RING.0;
            let mut ring = vec![0; RING.1 as usize];
            file.read_exact_at(&mut ring, at).map_err(io(path))?;
            for (n, slot) in ring.chunks(SLOT).enumerate() {
                let word = |at: usize| {
                    slot.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
                };
                // The magic number of an uberblock; its txg is the third word.
                if word(0) == 0x00ba_b10c {
                    found.push((word(16), path, at + (n * SLOT) as u64));
                }
            }
        }
    }
    let newest = found.iter().map(|(txg, ..)| *txg).max().unwrap_or(0);
    for (_, path, at) in found.iter().filter(|(txg, ..)| *txg == newest) {
        overwrite(path, *at, SLOT as u64)?;
    }
    Ok(())
}

/// Overwrites all copies of blocks of a kind.
fn blocks(golden: &Golden, devices: &Path, kind: Damage, rng: &mut Rng) -> Result<Hurt, JudgeError> {
    let failed = |error: String| JudgeError::Io { what: error, source: std::io::Error::other("damage") };
    let machine = weir_linux::machine().map_err(|error| failed(error.to_string()))?;
    let options = OpenOptions::new(vec![devices.to_path_buf()], golden.pool.clone());
    let rq = Request::internal("judge");
    machine.block_on(async {
        let pool = Pool::open(&machine, &options).await.map_err(|error| failed(error.to_string()))?;
        let (set, kinds, count, dataset) = match kind {
            Damage::SpaceMaps => (pool.mos.set.clone(), vec![ObjectType::SPACE_MAP], 64, String::new()),
            Damage::Mos => (pool.mos.set.clone(), Vec::new(), 1, String::new()),
            kind => {
                let all = pool.datasets(&rq, false).await.map_err(|error| failed(error.to_string()))?;
                let all: Vec<_> =
                    all.iter().filter(|info| info.kind == weir_dsl::props::DatasetKind::Filesystem).collect();
                let name =
                    all.get(rng.below(all.len() as u64) as usize).map_or(golden.pool.clone(), |info| info.name.clone());
                let set = pool.object_set(&rq, &name).await.map_err(|error| failed(error.to_string()))?;
                let (kinds, count) = match kind {
                    Damage::Directory => (vec![ObjectType::DIRECTORY_CONTENTS], 1),
                    Damage::Data => (vec![ObjectType::PLAIN_FILE_CONTENTS], 8),
                    _ => (Vec::new(), 0),
                };
                (set, kinds, count, name)
            }
        };
        let mut pointers = pointers_of(&rq, &set, &kinds).await;
        if kind == Damage::Dnodes
            && let Some(meta) = set.meta()
        {
            pointers = vec![];
            for block in 0..=meta.dnode.max_block_id.min(64) {
                pointers.extend(set.pointers().at(&rq, &meta, 0, block).await.ok().flatten());
            }
        }
        for _ in 0..count.max(1) {
            if pointers.is_empty() {
                break;
            }
            let pointer = pointers.swap_remove(rng.below(pointers.len() as u64) as usize);
            destroy(&pool, &pointer)?;
        }
        Ok(Hurt { dataset })
    })
}

/// The first blocks of the objects of these types; of all, if none is given.
async fn pointers_of(rq: &Request, set: &std::sync::Arc<ObjectSet>, kinds: &[ObjectType]) -> Vec<BlockPointer> {
    let mut out = Vec::new();
    let mut objects = Objects::of(set);
    while let Ok(Some((id, dnode))) = objects.next(rq).await {
        let is_one = dnode.is_ok_and(|dnode| kinds.is_empty() || kinds.contains(&dnode.object_type));
        let Ok(object) = set.object(rq, ObjectId(id.0)).await else { continue };
        for block in 0..=object.dnode.max_block_id.min(8) {
            if let (true, Ok(Some(pointer))) = (is_one, set.pointers().at(rq, &object, 0, block).await) {
                out.push(pointer);
            }
        }
    }
    out.retain(|pointer| !pointer.is_embedded() && !pointer.is_hole());
    out
}

/// Overwrites all copies of a block. The vdevs are disks and mirrors.
fn destroy(pool: &Pool, pointer: &BlockPointer) -> Result<(), JudgeError> {
    for dva in pointer.dvas() {
        let Some(top) = pool.tree.children.iter().find(|top| top.id == u64::from(dva.vdev)) else { continue };
        let leaves = if top.kind == VdevKind::Mirror { top.children.iter().collect() } else { vec![top] };
        for leaf in leaves {
            if let Some(device) = pool.devices.get(&leaf.guid) {
                overwrite(&device.path, FRONT_BYTES + dva.offset_bytes, 512)?;
            }
        }
    }
    Ok(())
}
