//! Golden pools, one case each: unpack, read every dataset through a front end, compare, and check that no image
//! changed.
//!
//! Of a pool after a power failure, the expected state is that before replay, because everything here is opened
//! read-only. Missing devices are not in the archive; the pool must open without them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::JudgeError;
use crate::compare::{self, Findings};
use crate::golden::{Unpacked, chosen, split};
use crate::manifest::{Dataset, DatasetKind, Golden, Manifest};
use crate::nbd::NbdDevice;
use crate::nfs::NfsTree;
use crate::posix::PosixTree;
use crate::process::{Mounted, Serving};
use crate::report::{Report, side_by_side};

/// Front end through which a pool is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Calls of the engine in this process.
    Engine,
    /// A mount by `weir mount`.
    Fuse,
    /// `weir serve`: NFSv3 for file systems, NBD for volumes.
    Nfs,
}

impl Via {
    /// Returns the front end by its name on the command line.
    pub fn named(name: &str) -> Option<Via> {
        match name {
            "engine" => Some(Via::Engine),
            "fuse" => Some(Via::Fuse),
            "nfs" => Some(Via::Nfs),
            _ => None,
        }
    }
}

/// Runs the given cases, or all.
///
/// # Errors
/// Errors if the folder of goldens cannot be listed.
pub fn run(folder: &Path, wanted: &[String], via: Via, report: &mut Report) -> Result<(), JudgeError> {
    let chosen = chosen(folder, wanted)?;
    side_by_side(&chosen, |name| case(folder, name, via), |name, outcome| report.book(name, outcome));
    Ok(())
}

fn case(folder: &Path, name: &str, via: Via) -> Result<Findings, JudgeError> {
    let golden = Golden::read(folder, name)?;
    let unpacked = Unpacked::new(folder, name)?;
    let state = golden
        .read_only_state()
        .ok_or_else(|| JudgeError::Missing { what: "no manifest of what a read-only open shows".to_string() })?;
    let mut findings = match via {
        Via::Engine => crate::engine::golden(&golden, unpacked.path(), state)?,
        Via::Fuse => fuse(&golden, unpacked.path(), state)?,
        Via::Nfs => nfs(&golden, unpacked.path(), state)?,
    };
    for image in unpacked.changed(&golden)? {
        findings.differs(format!("{image} was written to"));
    }
    Ok(findings)
}

/// Returns the paths in a file system at which other file systems of the pool are mounted.
pub fn mounts(state: &Manifest, dataset: &Dataset) -> BTreeSet<Vec<u8>> {
    let below = format!("{}/", dataset.name);
    let others = state.datasets.iter().filter(|other| other.kind == DatasetKind::Filesystem);
    others.filter_map(|other| other.name.strip_prefix(&below)).map(|rest| format!("/{rest}").into_bytes()).collect()
}

/// Name of a dataset below the pool; empty for the root.
fn below_pool<'a>(golden: &Golden, name: &'a str) -> &'a str {
    name.strip_prefix(&golden.pool).unwrap_or(name).trim_start_matches('/')
}

/// Writes each key to a file of its own, for the command line.
fn key_files(golden: &Golden, folder: &Path) -> Result<Vec<(String, PathBuf)>, JudgeError> {
    let mut files = Vec::new();
    for (root, key) in &golden.keys {
        let path = folder.join(format!("key-{root}"));
        std::fs::write(&path, key.typed())
            .map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
        files.push((format!("{}/{root}", golden.pool), path));
    }
    Ok(files)
}

fn fuse(golden: &Golden, devices: &Path, state: &Manifest) -> Result<Findings, JudgeError> {
    let key_folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "keys".to_string(), source })?;
    let mounted = Mounted::new(devices, &golden.pool, &key_files(golden, key_folder.path())?)?;
    let mut findings = Findings::default();
    for dataset in &state.datasets {
        let Some(files) = &dataset.files else { continue };
        let (file_system, snapshot) = split(&dataset.name);
        let mut path = mounted.path(below_pool(golden, file_system));
        let mut over = mounts(state, dataset);
        if let Some(snapshot) = snapshot {
            path = path.join(".zfs/snapshot").join(snapshot);
            over.clear();
        }
        let found = compare::tree(&mut PosixTree::new(&path), files, &over);
        findings.absorb(&format!("{}:", dataset.name), found);
    }
    mounted.stop()?;
    Ok(findings)
}

fn nfs(golden: &Golden, devices: &Path, state: &Manifest) -> Result<Findings, JudgeError> {
    let key_folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "keys".to_string(), source })?;
    let serving = Serving::new(devices, &golden.pool, &key_files(golden, key_folder.path())?)?;
    let mut findings = Findings::default();
    for dataset in &state.datasets {
        let heading = format!("{}:", dataset.name);
        if let Some(files) = &dataset.files {
            let (file_system, snapshot) = split(&dataset.name);
            let mut over = mounts(state, dataset);
            let root = NfsTree::mount(serving.nfs, serving.mount, &format!("/{file_system}"));
            let root = match snapshot {
                Some(snapshot) => {
                    over.clear();
                    root.and_then(|root| root.below(&[b".zfs", b"snapshot", snapshot.as_bytes()]))
                }
                None => root,
            };
            match root {
                Ok(mut tree) => findings.absorb(&heading, compare::tree(&mut tree, files, &over)),
                Err(error) => findings.differs(format!("{heading}/: {error}")),
            }
        }
        if let Some(contents) = dataset.volume.as_ref().filter(|contents| contents.size.is_some()) {
            let device = match serving.nbd {
                Some(address) => NbdDevice::open(address, &dataset.name).map_err(|error| error.to_string()),
                None => Err("weir serve printed no nbd:// line".to_string()),
            };
            match device {
                Ok(mut device) => findings.absorb(&heading, compare::volume(&mut device, contents)),
                Err(error) => findings.differs(format!("{heading} {error}")),
            }
        }
    }
    serving.stop()?;
    Ok(findings)
}
