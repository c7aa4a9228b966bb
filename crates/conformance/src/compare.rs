//! Compares a tree or a volume with its manifest: every fact that the front end shows, every byte.
//!
//! The walk begins at the root and follows the tree's own directory listings, so that an unexpected file is found as
//! well as a missing one. At a directory on which another file system is mounted (`mounts`) the walk stops, because the
//! files below belong to that file system's manifest. Differences are lines of text, of which at most [`MAX_LINES`] are
//! kept; all are counted.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash::{Hash, hex_of};
use crate::manifest::{Entry, FileKind, Mass, VolumeContents};
use crate::tree::{Attributes, BlockDevice, Carries, Listing, Tree, TreeError};

/// Maximum number of differences that are kept.
pub const MAX_LINES: usize = 20;

const READ_BYTES: usize = 1 << 20;

/// OpenZFS invents object numbers from here on for the directories below `.zfs`.
const MADE_UP: u64 = 1 << 47;

/// Differences, and the amount of compared data.
#[derive(Debug, Default)]
pub struct Findings {
    lines: Vec<String>,
    more: u64,
    /// Number of compared facts.
    pub facts: u64,
    /// Bytes that were read and hashed.
    pub bytes: u64,
}

impl Findings {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the differences as lines.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.lines.clone();
        if self.more > 0 {
            lines.push(format!("and {} more", self.more));
        }
        lines
    }

    /// Adds a difference.
    pub fn differs(&mut self, line: String) {
        if self.lines.len() < MAX_LINES {
            self.lines.push(line);
        } else {
            self.more += 1;
        }
    }

    /// Adds the differences of another comparison, under a heading.
    pub fn absorb(&mut self, heading: &str, other: Findings) {
        for line in other.lines {
            self.differs(format!("{heading}{line}"));
        }
        self.more += other.more;
        self.facts += other.facts;
        self.bytes += other.bytes;
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, path: &str, fact: &str, found: &T, expected: &T) {
        self.facts += 1;
        if found != expected {
            self.differs(format!("{path}: {fact} is {found:?}, must be {expected:?}"));
        }
    }
}

/// Compares a whole tree with the manifest's list.
pub fn tree<T: Tree>(tree: &mut T, files: &[Entry], mounts: &BTreeSet<Vec<u8>>) -> Findings {
    let mut walk = Walk {
        carries: tree.carries(),
        tree,
        expected: files.iter().map(|entry| (entry.path.bytes(), entry)).filter(|(path, _)| !control(path)).collect(),
        shows_control: files.iter().any(|entry| control(&entry.path.bytes())),
        mounts,
        findings: Findings::default(),
    };
    walk.run();
    walk.findings
}

/// Compares a volume with the manifest.
pub fn volume(device: &mut dyn BlockDevice, expected: &VolumeContents) -> Findings {
    let mut findings = Findings::default();
    let (Some(size), Some(sha256)) = (expected.size, expected.sha256.as_ref()) else { return findings };
    findings.same("volume", "size", &device.size_bytes(), &size);
    let mut hash = Hash::default();
    let mut chunks = Vec::new();
    let mut offset = 0;
    while offset < size {
        let length = (size - offset).min(65536) as usize;
        match device.read(offset, length) {
            Ok(bytes) => {
                if bytes.iter().any(|byte| *byte != 0) {
                    chunks.push((offset, length as u64, hex_of(&bytes).chars().take(16).collect::<String>()));
                }
                hash.update(&bytes);
                findings.bytes += bytes.len() as u64;
            }
            Err(error) => {
                findings.differs(format!("volume at {offset}: {error}"));
                return findings;
            }
        }
        offset += length as u64;
    }
    findings.same("volume", "sha256", &hash.hex(), sha256);
    findings.facts += 1;
    if chunks != expected.nonzero_chunks {
        let wrong = chunks.iter().filter(|chunk| !expected.nonzero_chunks.contains(chunk)).map(|chunk| chunk.0);
        let wrong: Vec<u64> = wrong.take(8).collect();
        findings.differs(format!("volume: chunks differ, first at offsets {wrong:?}"));
    }
    findings
}

struct Walk<'a, T: Tree> {
    tree: &'a mut T,
    carries: Carries,
    expected: BTreeMap<Vec<u8>, &'a Entry>,
    mounts: &'a BTreeSet<Vec<u8>>,
    /// Whether the manifest's root lists `.zfs` (`snapdir=visible`), which is no entry of the file system itself.
    shows_control: bool,
    findings: Findings,
}

/// Whether a path is in the control directory `.zfs`.
fn control(path: &[u8]) -> bool {
    path.strip_prefix(b"/.zfs").is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

impl<T: Tree> Walk<'_, T> {
    fn run(&mut self) {
        let mut seen = BTreeSet::new();
        let mut waiting = match self.tree.root() {
            Ok(root) => vec![(b"/".to_vec(), root)],
            Err(error) => return self.findings.differs(format!("/: {error}")),
        };
        while let Some((path, node)) = waiting.pop() {
            let name = String::from_utf8_lossy(&path).into_owned();
            let Some(expected) = self.expected.get(&path).copied() else {
                self.findings.differs(format!("{name}: must not be there"));
                continue;
            };
            seen.insert(path.clone());
            self.entry(&name, &node, expected);
            if expected.kind == FileKind::Dir {
                match self.tree.read_dir(&node) {
                    Ok(children) => self.directory(&path, &name, children, expected, &mut waiting),
                    Err(error) => self.findings.differs(format!("{name}: listing: {error}")),
                }
            }
        }
        let missing: Vec<String> = self
            .expected
            .keys()
            .filter(|path| !seen.contains(*path) && !self.mounts.contains(*path))
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        for name in missing {
            self.findings.differs(format!("{name}: not found"));
        }
    }

    fn directory(
        &mut self,
        path: &[u8],
        name: &str,
        children: Listing<T::Node>,
        expected: &Entry,
        waiting: &mut Listing<T::Node>,
    ) {
        let children: Vec<_> = children.into_iter().filter(|(child, _)| path != b"/" || child != b".zfs").collect();
        let own = children.iter().filter(|(child, _)| !self.mounts.contains(&join(path, child))).count() as u64;
        let hidden = self.mounts.iter().filter(|mount| self.expected.contains_key(*mount) && parent(mount) == path);
        if let Some(entries) = expected.entries {
            let own = own + hidden.count() as u64 + u64::from(self.shows_control && path == b"/");
            self.findings.same(name, "number of entries", &own, &entries);
        }
        // In a directory that is described in summary, only subdirectories have lines of their own.
        if let Some(mass) = &expected.mass {
            self.mass(path, name, &children, mass);
        }
        for (child, node) in children {
            let child = join(path, &child);
            if !self.mounts.contains(&child) && (expected.mass.is_none() || self.expected.contains_key(&child)) {
                waiting.push((child, node));
            }
        }
    }

    fn mass(&mut self, path: &[u8], name: &str, children: &Listing<T::Node>, mass: &Mass) {
        let mut children: Vec<&(Vec<u8>, T::Node)> = children.iter().collect();
        children.sort_by(|left, right| left.0.cmp(&right.0));
        self.findings.same(name, "mass count", &(children.len() as u64), &mass.count);
        let mut names = Hash::default();
        let mut lines = Hash::default();
        for (child, node) in children.iter().copied() {
            names.update(child);
            names.update(b"\n");
            match self.mass_line(child, node) {
                Ok(line) => lines.update(&line),
                Err(error) => {
                    let child = String::from_utf8_lossy(child).into_owned();
                    self.findings.differs(format!("{name}/{child}: {error}"));
                }
            }
        }
        self.findings.same(name, "hash of all names", &names.hex(), &mass.names_sha256);
        // Each line has the object number, so without it there is nothing to compare.
        if self.carries.ino {
            self.findings.same(name, "hash of all entries", &lines.hex(), &mass.lines_sha256);
        }
        for expected in &mass.first {
            let wanted = expected.path.bytes();
            match children.iter().find(|(child, _)| join(path, child) == wanted) {
                Some((_, node)) => self.entry(&String::from_utf8_lossy(&wanted), node, expected),
                None => self.findings.differs(format!("{}: not found", String::from_utf8_lossy(&wanted))),
            }
        }
    }

    fn mass_line(&mut self, name: &[u8], node: &T::Node) -> Result<Vec<u8>, TreeError> {
        let found = self.tree.attributes(node)?;
        let hash = if found.kind == FileKind::File { self.contents(node, found.size)? } else { "-".to_string() };
        let mut line = name.to_vec();
        let facts = format!(
            "\t{}\t{:04o}\t{}\t{}\t{}\t{}\t{}\t{hash}\n",
            found.kind.word(),
            found.mode,
            found.uid,
            found.gid,
            found.size,
            found.mtime_ns,
            found.ino
        );
        line.extend_from_slice(facts.as_bytes());
        Ok(line)
    }

    fn entry(&mut self, name: &str, node: &T::Node, expected: &Entry) {
        let found = match self.tree.attributes(node) {
            Ok(found) => found,
            Err(error) => return self.findings.differs(format!("{name}: attributes: {error}")),
        };
        self.attributes(name, &found, expected);
        if found.kind != expected.kind {
            return;
        }
        if self.carries.xattrs {
            self.xattrs(name, node, expected);
        }
        match expected.kind {
            FileKind::File => self.file(name, node, expected),
            FileKind::Symlink => match (self.tree.read_link(node), &expected.target) {
                (Ok(found), Some(target)) => self.findings.same(name, "target", &found, &target.bytes()),
                (Err(error), _) => self.findings.differs(format!("{name}: target: {error}")),
                (Ok(_), None) => {}
            },
            _ => {}
        }
    }

    fn attributes(&mut self, name: &str, found: &Attributes, expected: &Entry) {
        let findings = &mut self.findings;
        findings.same(name, "kind", &found.kind, &expected.kind);
        findings.same(name, "mode", &Some(found.mode), &expected.mode_bits());
        findings.same(name, "owner", &(found.uid, found.gid), &(expected.uid, expected.gid));
        findings.same(name, "size", &found.size, &expected.size);
        let root = expected.path.bytes() == b"/";
        if !root || (self.mounts.is_empty() && !self.shows_control) {
            findings.same(name, "links", &found.nlink, &expected.nlink());
        }
        let times = self.carries.times;
        for (fact, found, expected) in [
            ("mtime", found.mtime_ns, expected.mtime_ns),
            ("ctime", found.ctime_ns, expected.ctime_ns()),
            ("atime", found.atime_ns, expected.atime_ns()),
        ] {
            findings.facts += 1;
            if !times.shows(found, expected) {
                findings.differs(format!("{name}: {fact} is {found}, must be {expected}"));
            }
        }
        if let Some(blocks) = expected.blocks512 {
            findings.same(name, "blocks of 512", &found.blocks512, &blocks);
        }
        if let Some(rdev) = expected.rdev {
            findings.same(name, "device number", &found.rdev, &rdev);
        }
        // The root of a snapshot that is mounted by itself has a number that no object has.
        if self.carries.ino && !(root && expected.ino >= MADE_UP) {
            findings.same(name, "object number", &found.ino, &expected.ino);
        }
        if self.carries.crtime {
            findings.same(name, "birth time", &found.crtime_ns, &Some(expected.crtime_ns()));
        }
        if self.carries.blksize && expected.blksize.is_some() {
            findings.same(name, "preferred I/O size", &found.blksize, &expected.blksize);
        }
    }

    fn xattrs(&mut self, name: &str, node: &T::Node, expected: &Entry) {
        let found: BTreeMap<String, Vec<u8>> = match self.tree.xattrs(node) {
            Ok(found) => found.into_iter().collect(),
            Err(error) => return self.findings.differs(format!("{name}: extended attributes: {error}")),
        };
        self.findings.facts += 1;
        for (attribute, value) in &expected.xattrs {
            match found.get(attribute) {
                Some(bytes) if value.matches(bytes) => {}
                Some(bytes) => {
                    self.findings.differs(format!("{name}: value of {attribute} differs ({} bytes)", bytes.len()));
                }
                None => self.findings.differs(format!("{name}: {attribute} is missing")),
            }
        }
        for attribute in found.keys().filter(|attribute| !expected.xattrs.contains_key(*attribute)) {
            self.findings.differs(format!("{name}: {attribute} must not be there"));
        }
    }

    fn file(&mut self, name: &str, node: &T::Node, expected: &Entry) {
        if let Some(error) = &expected.error {
            return self.lost(name, node, expected.size, error);
        }
        if let Some(segments) = &expected.segments {
            return self.segments(name, node, expected.size, segments);
        }
        match self.contents(node, expected.size) {
            Ok(hash) => self.findings.same(name, "sha256", &Some(hash), &expected.sha256),
            Err(error) => self.findings.differs(format!("{name}: reading: {error}")),
        }
        if self.carries.holes && expected.size > 0 {
            self.holes(name, node, expected.size);
        }
    }

    /// Checks a file with lost blocks: reading these fails with the named error; all other reads succeed.
    fn lost(&mut self, name: &str, node: &T::Node, size: u64, error: &str) {
        let mut lost = 0;
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(4096);
            match self.tree.read(node, offset, length as usize) {
                Ok(_) => {}
                Err(TreeError::Input(_)) if error == "EIO" => lost += 1,
                Err(found) => self.findings.differs(format!("{name}: at {offset}: {found}, must be {error}")),
            }
            offset += length;
        }
        self.findings.facts += 1;
        if lost == 0 {
            self.findings.differs(format!("{name}: reads without the error {error}"));
        }
    }

    /// Checks a file too sparse to read as a whole: its runs of data are at their offsets and have their contents.
    fn segments(&mut self, name: &str, node: &T::Node, size: u64, segments: &[(u64, u64, String)]) {
        for (offset, length, sha256) in segments {
            match self.tree.read(node, *offset, *length as usize) {
                Ok(bytes) => self.findings.same(name, &format!("sha256 at {offset}"), &hex_of(&bytes), sha256),
                Err(error) => self.findings.differs(format!("{name}: at {offset}: {error}")),
            }
        }
        if !self.carries.holes {
            return;
        }
        let expected: Vec<(u64, u64)> = segments.iter().map(|(offset, length, _)| (*offset, *length)).collect();
        match self.tree.data_runs(node, size) {
            Ok(found) => self.findings.same(name, "runs of data", &found, &expected),
            Err(error) => self.findings.differs(format!("{name}: seeking: {error}")),
        }
    }

    /// Checks that the ranges that the front end reports as holes read as zeros.
    fn holes(&mut self, name: &str, node: &T::Node, size: u64) {
        let runs = match self.tree.data_runs(node, size) {
            Ok(runs) => runs,
            Err(error) => return self.findings.differs(format!("{name}: seeking: {error}")),
        };
        let mut end_of_data = 0;
        for (start, length) in runs.into_iter().chain([(size, 0)]) {
            if start < end_of_data || start > size {
                self.findings.differs(format!("{name}: a run of data at {start} is out of order"));
                return;
            }
            if let Err(error) = self.all_zero(node, end_of_data, start) {
                self.findings.differs(format!("{name}: hole {end_of_data}..{start}: {error}"));
            }
            end_of_data = start.saturating_add(length);
        }
        self.findings.facts += 1;
    }

    fn all_zero(&mut self, node: &T::Node, start: u64, end: u64) -> Result<(), TreeError> {
        let mut offset = start;
        while offset < end {
            let bytes = self.tree.read(node, offset, (end - offset).min(READ_BYTES as u64) as usize)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Err(TreeError::Other("is not zero".to_string()));
            }
            if bytes.is_empty() {
                return Err(TreeError::Other(format!("ends at {offset}")));
            }
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    fn contents(&mut self, node: &T::Node, size: u64) -> Result<String, TreeError> {
        let mut hash = Hash::default();
        let mut offset = 0;
        while offset < size {
            let bytes = self.tree.read(node, offset, (size - offset).min(READ_BYTES as u64) as usize)?;
            if bytes.is_empty() {
                return Err(TreeError::Other(format!("ends at {offset} of {size}")));
            }
            hash.update(&bytes);
            offset += bytes.len() as u64;
        }
        self.findings.bytes += offset;
        Ok(hash.hex())
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path != b"/" {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) | None => b"/",
        Some(at) => path.get(..at).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
