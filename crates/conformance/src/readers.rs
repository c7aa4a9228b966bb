//! Independent readers: other people's code on the same images must see what Weir's engine sees.
//!
//! `lamzfs` (a reader for boot loaders) walks every dataset that it can read; each path, kind, object number and hash
//! of contents is compared with the engine's. What it refuses by design (encryption, features that it does not know) is
//! counted, not compared. `zfs-forensic-core` reads labels: pool GUID, name and the newest transaction group.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lamzfs::{BlockRead, EntryKind, PoolMember, Zfs};
use weir_pool::OpenOptions;

use crate::JudgeError;
use crate::compare::Findings;
use crate::engine::{EngineTree, Opened};
use crate::golden::Unpacked;
use crate::hash::{Hash, hex_of};
use crate::manifest::{FileKind, Golden};
use crate::report::Report;
use crate::tree::{Tree, TreeError};

/// Goldens that lamzfs was written for: one top-level vdev, no encryption at the root.
const SAMPLES: &[&str] = &[
    "single-a9",
    "single-a12",
    "single-a16",
    "mirror2-a12",
    "raidz1-3-a9",
    "raidz1-3-a12",
    "degraded-raidz1",
    "comp-a9",
    "comp-1m",
    "recsize-a9",
    "copies",
    "compat-grub2",
    "compat-zol-0.8",
    "nofeat-d",
    "props",
    "quota",
    "longname-s",
];

/// Files of one dataset that are compared: lamzfs resolves every path anew, so that large directories take it long.
const MAX_FILES: usize = 600;

struct Image(File);

impl BlockRead for Image {
    type Error = std::io::Error;

    fn read_at(&mut self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), std::io::Error> {
        self.0.read_exact_at(buf, offset_bytes)
    }
}

/// Runs every sample.
///
/// # Errors
/// None: a sample that cannot be judged is recorded as such.
pub fn run(folder: &Path, wanted: &[String], report: &mut Report) -> Result<(), JudgeError> {
    for name in SAMPLES.iter().filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == *name)) {
        report.book(name, sample(folder, name));
    }
    Ok(())
}

fn sample(folder: &Path, name: &str) -> Result<Findings, JudgeError> {
    let golden = Golden::read(folder, name)?;
    let unpacked = Unpacked::new(folder, name)?;
    let mut findings = Findings::default();
    let opened = Opened::new(&OpenOptions::new(vec![unpacked.path().to_path_buf()], golden.pool.clone()))?;
    labels(&golden, unpacked.path(), &opened, &mut findings)?;
    let mut members = Vec::new();
    for device in &golden.devices {
        let what = device.file.clone();
        let file = File::open(unpacked.path().join(&device.file)).map_err(|source| JudgeError::Io { what, source })?;
        members.push(PoolMember { reader: Image(file), device_size_bytes: device.size });
    }
    let mut theirs = match Zfs::import(members) {
        Ok(theirs) => theirs,
        Err(error) => return Err(JudgeError::Missing { what: format!("lamzfs refuses: {error:?}") }),
    };
    if theirs.txg() != opened.pool().uberblock.txg.0 {
        findings.differs(format!("txg {}, lamzfs says {}", opened.pool().uberblock.txg.0, theirs.txg()));
    }
    let datasets = theirs.datasets().map_err(|error| JudgeError::Missing { what: format!("lamzfs: {error:?}") })?;
    for dataset in datasets {
        let name = std::iter::once(golden.pool.clone()).chain(dataset.iter().cloned()).collect::<Vec<_>>().join("/");
        let path: Vec<&str> = dataset.iter().map(String::as_str).collect();
        let Some(seen) = seen_by_lamzfs(&mut theirs, &path) else { continue };
        match opened.file_system(&name) {
            Ok(files) => compare(&name, &seen, EngineTree::new(opened.machine().clone(), files), &mut findings),
            Err(error) => findings.differs(format!("{name}: {error}")),
        }
    }
    Ok(findings)
}

/// A reader's view of a path: kind, object number, and of a regular file the hash, if it could be read.
type Seen = BTreeMap<String, (EntryKind, u64, Option<String>)>;

/// Everything that lamzfs reads of a dataset; nothing if the dataset is one that it cannot read.
fn seen_by_lamzfs(theirs: &mut Zfs<Image>, dataset: &[&str]) -> Option<Seen> {
    let mut seen = Seen::new();
    let mut waiting = vec![Vec::new()];
    while let Some(directory) = waiting.pop() {
        let parts: Vec<&str> = directory.iter().map(String::as_str).collect();
        let Ok(entries) = theirs.read_dir(dataset, &parts) else { continue };
        for entry in entries {
            let mut path: Vec<String> = directory.clone();
            path.push(entry.name.clone());
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let hash = match entry.kind {
                EntryKind::Regular => theirs.read(dataset, &parts).ok().map(|bytes| hex_of(&bytes)),
                _ => None,
            };
            seen.insert(format!("/{}", path.join("/")), (entry.kind, entry.object_id, hash));
            if entry.kind == EntryKind::Directory {
                waiting.push(path);
            }
            if seen.len() >= MAX_FILES {
                return Some(seen);
            }
        }
    }
    (!seen.is_empty()).then_some(seen)
}

/// Looks up every path that the other reader saw, through the engine.
fn compare(name: &str, seen: &Seen, mut ours: EngineTree, findings: &mut Findings) {
    let mut paths = BTreeMap::new();
    if let Err(error) = walk(&mut ours, seen, &mut paths) {
        findings.differs(format!("{name}: {error}"));
    }
    for (path, (kind, object, hash)) in seen {
        // A name that is not UTF-8 was altered by lamzfs.
        if path.contains(char::REPLACEMENT_CHARACTER) {
            continue;
        }
        let Some(node) = paths.get(path) else {
            findings.differs(format!("{name}:{path}: lamzfs sees it, Weir does not"));
            continue;
        };
        findings.facts += 3;
        let attributes = match ours.attributes(node) {
            Ok(attributes) => attributes,
            Err(error) => {
                findings.differs(format!("{name}:{path}: {error}"));
                continue;
            }
        };
        let our_kind = match attributes.kind {
            FileKind::File => EntryKind::Regular,
            FileKind::Dir => EntryKind::Directory,
            FileKind::Symlink => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        if our_kind != *kind || attributes.ino != *object {
            let found = (our_kind, attributes.ino);
            findings.differs(format!("{name}:{path}: {found:?}, lamzfs says {:?}", (kind, object)));
        }
        let Some(expected) = hash else { continue };
        match contents(&mut ours, node, attributes.size) {
            Ok((found, bytes)) => {
                findings.bytes += bytes;
                if found != *expected {
                    findings.differs(format!("{name}:{path}: contents differ from lamzfs's"));
                }
            }
            Err(error) => findings.differs(format!("{name}:{path}: {error}")),
        }
    }
}

/// The engine's handles of all paths in the directories that the other reader saw.
fn walk<T: Tree>(ours: &mut T, seen: &Seen, paths: &mut BTreeMap<String, T::Node>) -> Result<(), TreeError> {
    let mut waiting = vec![(String::new(), ours.root()?)];
    while let Some((path, node)) = waiting.pop() {
        for (name, child) in ours.read_dir(&node)? {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            if seen.get(&path).is_some_and(|(kind, ..)| *kind == EntryKind::Directory) {
                waiting.push((path.clone(), child.clone()));
            }
            paths.insert(path, child);
        }
    }
    Ok(())
}

fn contents<T: Tree>(ours: &mut T, node: &T::Node, size: u64) -> Result<(String, u64), TreeError> {
    let mut hash = Hash::default();
    let mut offset = 0;
    while offset < size {
        let bytes = ours.read(node, offset, 1 << 20)?;
        if bytes.is_empty() {
            return Err(TreeError::Other(format!("ends at {offset} of {size}")));
        }
        hash.update(&bytes);
        offset += bytes.len() as u64;
    }
    Ok((hash.hex(), offset))
}

/// The first label of each image, read by zfs-forensic-core.
fn labels(golden: &Golden, devices: &Path, opened: &Opened, findings: &mut Findings) -> Result<(), JudgeError> {
    for device in &golden.devices {
        let mut label = vec![0; 256 << 10];
        let file = File::open(devices.join(&device.file));
        file.and_then(|file| file.read_exact_at(&mut label, 0))
            .map_err(|source| JudgeError::Io { what: device.file.clone(), source })?;
        let Ok(label) = zfs_core::VdevLabel::parse(&label) else { continue };
        findings.facts += 3;
        let theirs = (label.config.get_u64("pool_guid"), label.config.get_str("name").map(str::to_string));
        let ours = (Some(opened.pool().config.guid), Some(opened.pool().name().to_string()));
        if theirs != ours {
            findings.differs(format!("{}: pool {ours:?}, zfs-forensic-core says {theirs:?}", device.file));
        }
        let found = opened.pool().uberblock.txg.0;
        let theirs = label.active_uberblock.txg;
        if found < theirs {
            findings.differs(format!("{}: txg {found}, zfs-forensic-core says {theirs}", device.file));
        }
    }
    Ok(())
}
