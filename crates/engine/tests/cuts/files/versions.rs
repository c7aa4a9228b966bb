//! What belonged to a file, one version after the other, and which mixtures of them a cut may leave.
//!
//! A version that was promised is there, or a later one. What no promise covers may be there in part, in three ways and
//! no other:
//!
//! - A long write is split over blocks of the log, of which the last may be missing: it ends early.
//! - A range that is freed in several groups begins as it was and ends in zeros already.
//! - A log record holds what its range held when the record was packed, which a later write may have brought: that one's
//!   bytes are then there where an earlier write went, and nowhere else.

use std::collections::BTreeMap;
use std::ops::Range;

/// What belongs to a file.
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

    /// With data from `at` on.
    pub fn written(mut self, at: usize, data: &[u8]) -> Version {
        let range = at..at + data.len();
        self.bytes.resize(self.bytes.len().max(range.end), 0);
        self.bytes[range.clone()].copy_from_slice(data);
        Version { contents: self, written: range }
    }

    /// A byte; zero behind the end.
    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Whether all but the bytes is the same.
    fn is_like(&self, other: &Contents) -> bool {
        (self.mode, self.uid, &self.xattrs) == (other.mode, other.uid, &other.xattrs)
    }
}

/// What belonged to a file after a change.
#[derive(Clone, Debug)]
pub struct Version {
    pub contents: Contents,
    /// Where the change wrote data; empty if it did something else.
    written: Range<usize>,
}

impl Version {
    /// After a change that wrote no data.
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

/// Whether it is the last version of the past, some of whose writes have brought what belongs to later ones.
fn is_version(past: &[&Version], later: &[&Version], found: &Contents) -> bool {
    let version = &past[past.len() - 1].contents;
    let is_right = |at| found.byte(at) == version.byte(at) || is_early(past, later, found, at);
    version.is_like(found) && version.bytes.len() == found.bytes.len() && (0..found.bytes.len()).all(is_right)
}

/// Whether a byte is a later version's, brought by a write of the past. The oldest version is there in any case.
fn is_early(past: &[&Version], later: &[&Version], found: &Contents, at: usize) -> bool {
    let brings = past.iter().skip(1).any(|version| version.written.contains(&at));
    brings && later.iter().any(|version| version.contents.byte(at) == found.byte(at))
}

/// Whether it is the last version of the past with a part of the change that came next.
fn is_begun(past: &[&Version], later: &[&Version], found: &Contents) -> bool {
    let (older, newer) = (&past[past.len() - 1].contents, &later[0].contents);
    older.is_like(found)
        && (is_partly_freed(&older.bytes, &newer.bytes, &found.bytes)
            || (older.is_like(newer) && is_partly_written(past, later, found)))
}

/// Whether the range that the next change freed is zeros in its last part already; the size is the old one.
fn is_partly_freed(older: &[u8], newer: &[u8], found: &[u8]) -> bool {
    let kept = older.iter().zip(found).take_while(|(a, b)| a == b).count();
    let new = |n: usize| newer.get(n).copied().unwrap_or(0);
    found.len() == older.len() && (kept..found.len()).all(|n| found[n] == new(n) && [older[n], 0].contains(&found[n]))
}

/// Whether the next change's write is there in its first part.
fn is_partly_written(past: &[&Version], later: &[&Version], found: &Contents) -> bool {
    let (older, written, len) = (&past[past.len() - 1].contents, &later[0].written, found.bytes.len());
    let is_old = |at: usize| found.byte(at) == older.byte(at) || is_early(past, later, found, at);
    let is_new = |at: usize| later.iter().any(|version| version.contents.byte(at) == found.byte(at));
    // The part ends behind the last byte that is not what it was, or where the file ends now.
    let end = (0..len).rev().find(|at| !is_old(*at)).map_or(written.start, |at| at + 1);
    let end = if len > older.bytes.len() { len } else { end };
    (len == older.bytes.len() || len > older.bytes.len().max(written.start))
        && end <= written.end
        && (0..end.min(written.start)).all(is_old)
        && (written.start..end).all(is_new)
}

/// The explanations are not so wide that anything passes.
#[test]
fn explains_no_other_mixtures() {
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
        // In parts: the first, the second.
        (true, vec![(1, 10), (2, 7), (1, 23)]),
        (true, vec![(1, 10), (2, 15), (3, 10), (1, 5)]),
        (true, vec![(1, 10), (2, 15), (3, 18)]),
        // The first with what the second brought to its place.
        (true, vec![(1, 10), (2, 15), (3, 5), (1, 10)]),
        // The second without the first; where it never wrote; with a hole; too short; longer than any.
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
