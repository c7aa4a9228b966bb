//! Versions of a file's contents and attributes, and the mixtures of versions that a cut may leave.
//!
//! The promised version or a later one must be found. Changes after it may be there in part, in exactly three ways:
//!
//! - A long write is split over blocks of the log. The last blocks may be missing, so only the front of the write is there.
//! - A range that is freed over several txgs still has its old data at the front and zeros at the end.
//! - A log record holds the data of its range at the time when the record was packed, which may include a later write.
//!   Then bytes of the later write are found inside the range of the earlier write, and nowhere else.

use std::collections::BTreeMap;
use std::ops::Range;

/// Contents and attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub bytes: Vec<u8>,
    pub mode: u32,
    pub uid: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Contents {
    pub fn new() -> Self {
        Contents { bytes: Vec::new(), mode: 0o644, uid: 0, xattrs: BTreeMap::new() }
    }

    /// Returns the version after a write of `data` at offset `at`.
    pub fn written(mut self, at: usize, data: &[u8]) -> Version {
        let range = at..at + data.len();
        self.bytes.resize(self.bytes.len().max(range.end), 0);
        self.bytes[range.clone()].copy_from_slice(data);
        Version { contents: self, written: range }
    }

    /// Byte at `at`; zero beyond the end.
    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Whether all attributes are equal.
    fn is_like(&self, other: &Contents) -> bool {
        (self.mode, self.uid, &self.xattrs) == (other.mode, other.uid, &other.xattrs)
    }
}

/// Contents and attributes of a file after a change.
#[derive(Clone, Debug)]
pub struct Version {
    pub contents: Contents,
    /// Range of the change's write; empty if the change was no write.
    written: Range<usize>,
}

impl Version {
    /// Version after a change that wrote no data.
    pub fn of(contents: Contents) -> Self {
        Version { contents, written: 0..0 }
    }
}

/// Whether one of these versions, oldest first, or a part of the change that led to one, explains what was found.
pub fn is_explained(versions: &[&Version], found: &Contents) -> bool {
    (0..versions.len()).any(|n| {
        let (past, later) = versions.split_at(n + 1);
        is_version(past, later, found) || (!later.is_empty() && is_begun(past, later, found))
    })
}

/// Whether `found` is the last past version, in which past writes may have brought bytes of later versions.
fn is_version(past: &[&Version], later: &[&Version], found: &Contents) -> bool {
    let version = &past[past.len() - 1].contents;
    let is_right = |at| found.byte(at) == version.byte(at) || is_early(past, later, found, at);
    version.is_like(found) && version.bytes.len() == found.bytes.len() && (0..found.bytes.len()).all(is_right)
}

/// Whether a byte of a later version was brought by a past write. The oldest version was not brought by a log record.
fn is_early(past: &[&Version], later: &[&Version], found: &Contents, at: usize) -> bool {
    let brings = past.iter().skip(1).any(|version| version.written.contains(&at));
    brings && later.iter().any(|version| version.contents.byte(at) == found.byte(at))
}

/// Whether `found` is the last past version with a part of the next change.
fn is_begun(past: &[&Version], later: &[&Version], found: &Contents) -> bool {
    let older = &past[past.len() - 1].contents;
    let newer = &later[0].contents;
    older.is_like(found)
        && (is_partly_freed(&older.bytes, &newer.bytes, &found.bytes)
            || (older.is_like(newer) && is_partly_written(past, later, found)))
}

/// Whether the end of the range that the next change frees is zero already; the size is the old one.
fn is_partly_freed(older: &[u8], newer: &[u8], found: &[u8]) -> bool {
    let kept = older.iter().zip(found).take_while(|(a, b)| a == b).count();
    let new = |n: usize| newer.get(n).copied().unwrap_or(0);
    found.len() == older.len() && (kept..found.len()).all(|n| found[n] == new(n) && [older[n], 0].contains(&found[n]))
}

/// Whether the front of the next change's write is there.
fn is_partly_written(past: &[&Version], later: &[&Version], found: &Contents) -> bool {
    let older = &past[past.len() - 1].contents;
    let written = &later[0].written;
    let len = found.bytes.len();
    let is_old = |at: usize| found.byte(at) == older.byte(at) || is_early(past, later, found, at);
    let is_new = |at: usize| later.iter().any(|version| version.contents.byte(at) == found.byte(at));
    // The part ends after the last byte that changed, or at the end of the file.
    let end = (0..len).rev().find(|at| !is_old(*at)).map_or(written.start, |at| at + 1);
    let end = if len > older.bytes.len() { len } else { end };
    (len == older.bytes.len() || len > older.bytes.len().max(written.start))
        && end <= written.end
        && (0..end.min(written.start)).all(is_old)
        && (written.start..end).all(is_new)
}

/// Mixtures that no cut can leave are rejected.
#[test]
fn impossible_mixtures_are_rejected() {
    let old = Contents { bytes: vec![1; 40], ..Contents::new() };
    let first = old.clone().written(10, &[2; 20]);
    let second = first.contents.clone().written(25, &[3; 20]);
    let zeroed = Version::of(Contents { bytes: [[1; 20], [0; 20]].concat(), ..Contents::new() });
    let found = |parts: &[(u8, usize)]| Contents {
        bytes: parts.iter().flat_map(|(byte, len)| vec![*byte; *len]).collect(),
        ..Contents::new()
    };
    let old = Version::of(old);
    let writes = [&old, &first, &second];
    for (explained, parts) in [
        (true, vec![(1, 40)]),
        (true, vec![(1, 10), (2, 20), (1, 10)]),
        (true, vec![(1, 10), (2, 15), (3, 20)]),
        // Partial writes: the first, the second.
        (true, vec![(1, 10), (2, 7), (1, 23)]),
        (true, vec![(1, 10), (2, 15), (3, 10), (1, 5)]),
        (true, vec![(1, 10), (2, 15), (3, 18)]),
        // The first write with bytes of the second write inside its range.
        (true, vec![(1, 10), (2, 15), (3, 5), (1, 10)]),
        // The second write without the first; outside its range; with a gap; too short; too long.
        (false, vec![(1, 25), (3, 20)]),
        (false, vec![(1, 5), (2, 25), (1, 10)]),
        (false, vec![(1, 10), (2, 15), (3, 4), (1, 1), (3, 10)]),
        (false, vec![(1, 10), (2, 20), (1, 9)]),
        (false, vec![(1, 10), (2, 15), (3, 21)]),
    ] {
        assert_eq!(is_explained(&writes, &found(&parts)), explained, "{parts:?}");
    }
    let frees = [&old, &zeroed];
    for (explained, parts) in [
        (true, vec![(1, 20), (0, 20)]),
        (true, vec![(1, 33), (0, 7)]),
        (false, vec![(1, 20), (0, 7), (1, 13)]),
        (false, vec![(1, 19), (0, 21)]),
    ] {
        assert_eq!(is_explained(&frees, &found(&parts)), explained, "{parts:?}");
    }
    let owned = Contents { uid: 1, ..found(&[(1, 40)]) };
    assert!(!is_explained(&writes, &owned));
}
