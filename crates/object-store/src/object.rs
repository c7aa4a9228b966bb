//! What is known and gathered of one object. Pure: no request is made here.
//!
//! ```text
//!   bytes read =  patches              written, in no request yet
//!              over flying             the whole object of the PUT in progress
//!              over clean              the whole object as it is in the store (may be missing here)
//!              over the store's bytes  at the tag `known`
//! ```

use crate::store::Etag;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use weir_machine::Nanos;

/// State of an object in the store, as this disk knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// Never looked at.
    #[default]
    Unknown,
    /// There is no object: it reads as zeros.
    Missing,
    /// This version.
    Is(Etag),
}

/// A change that was not answered: the store may execute it until `until`, if the object has the state `base` then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// Condition of the request.
    pub base: Known,
    /// After this time the store refuses the request because its signature is too old.
    pub until: Nanos,
}

/// Written ranges that do not overlap, by their first byte in the object.
#[derive(Clone, Debug, Default)]
pub struct Patches(BTreeMap<u32, Bytes>);

impl Patches {
    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of written bytes.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Writes `bytes` at `at`, over what was written there before.
    pub fn write(&mut self, at: u32, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len() as u32;
        let before = self.0.range(..at).next_back().map(|(start, old)| (*start, old.clone()));
        if let Some((start, old)) = before
            && start + old.len() as u32 > at
        {
            self.0.insert(start, old.slice(..(at - start) as usize));
            let old_end = start + old.len() as u32;
            if old_end > end {
                self.0.insert(end, old.slice((end - start) as usize..));
            }
        }
        let inside: Vec<u32> = self.0.range(at..end).map(|(start, _)| *start).collect();
        for start in inside {
            let Some(old) = self.0.remove(&start) else { continue };
            if start + old.len() as u32 > end {
                self.0.insert(end, old.slice((end - start) as usize..));
            }
        }
        self.0.insert(at, bytes);
        debug_assert!(self.is_sound(), "patches overlap");
    }

    fn is_sound(&self) -> bool {
        self.0.iter().zip(self.0.keys().skip(1)).all(|((start, bytes), next)| start + bytes.len() as u32 <= *next)
    }

    /// Whether all of a range is written.
    pub fn cover(&self, at: u32, len: usize) -> bool {
        let end = at + len as u32;
        let mut reached = at;
        let first = self.0.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, bytes) in self.0.range(first..end) {
            if *start > reached {
                return false;
            }
            reached = reached.max(start + bytes.len() as u32);
        }
        reached >= end
    }

    /// Copies what is written of a range over `out`.
    pub fn apply(&self, at: u32, out: &mut [u8]) {
        let end = at + out.len() as u32;
        let first = self.0.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, bytes) in self.0.range(first..end) {
            let from = (*start).max(at);
            let to = (start + bytes.len() as u32).min(end);
            if from < to {
                out[(from - at) as usize..(to - at) as usize]
                    .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
            }
        }
    }

    /// Writes all of `later` over these.
    pub fn join(&mut self, later: Patches) {
        later.0.into_iter().for_each(|(at, bytes)| self.write(at, bytes));
    }
}

/// Ranges that were discarded since they were last written.
#[derive(Clone, Debug, Default)]
pub struct Discarded(BTreeMap<u32, u32>);

impl Discarded {
    /// Adds a range, from its first byte to the one after its last.
    pub fn add(&mut self, mut from: u32, mut to: u32) {
        let touching: Vec<(u32, u32)> =
            self.0.range(..=to).filter(|(_, end)| **end >= from).map(|(start, end)| (*start, *end)).collect();
        for (start, end) in touching {
            self.0.remove(&start);
            from = from.min(start);
            to = to.max(end);
        }
        self.0.insert(from, to);
    }

    /// Removes a range, which was written.
    pub fn remove(&mut self, from: u32, to: u32) {
        let touching: Vec<(u32, u32)> =
            self.0.range(..to).filter(|(_, end)| **end > from).map(|(start, end)| (*start, *end)).collect();
        for (start, end) in touching {
            self.0.remove(&start);
            if start < from {
                self.0.insert(start, from);
            }
            if end > to {
                self.0.insert(to, end);
            }
        }
    }

    /// Whether the first `len` bytes are discarded.
    pub fn cover(&self, len: u32) -> bool {
        self.0.get(&0).is_some_and(|end| *end >= len)
    }
}

/// One object.
#[derive(Debug, Default)]
pub struct Object {
    /// State in the store.
    pub known: Known,
    /// Written, in no request yet.
    pub patches: Patches,
    /// Whether this process wrote the version `known`.
    pub is_own: bool,
    /// The bytes of the PUT in progress.
    pub flying: Option<Bytes>,
    /// The object's bytes in the store, if they are in memory, and their place in the order of use.
    pub clean: Option<(Bytes, u64)>,
    /// Requests that were not answered.
    pub unanswered: Vec<Unanswered>,
    /// Discarded ranges.
    pub discarded: Discarded,
    /// Grows with each change of `known`, `flying` and `clean`: a read that waited for the store compares it.
    pub version: u64,
    /// Whether a background task will write it.
    pub is_scheduled: bool,
}

impl Object {
    /// The whole object in memory without its patches, if it is there.
    pub fn base(&self) -> Option<&Bytes> {
        self.flying.as_ref().or(self.clean.as_ref().map(|(bytes, _)| bytes))
    }

    /// Reads a range if no request is necessary. Returns whether it did.
    pub fn read(&self, at: u32, out: &mut [u8]) -> bool {
        if !self.patches.cover(at, out.len()) {
            match (self.base(), &self.known) {
                (Some(base), _) => out.copy_from_slice(&base[at as usize..at as usize + out.len()]),
                (None, Known::Missing) => out.fill(0),
                (None, _) => return false,
            }
        }
        self.patches.apply(at, out);
        true
    }

    /// Whether requests that were not answered may still be executed; forgets those that cannot be.
    pub fn is_uncertain(&mut self, now: Nanos) -> bool {
        self.unanswered.retain(|request| request.until > now);
        !self.unanswered.is_empty()
    }

    /// Whether a request that was not answered may still change an object in this state; the time until which it may.
    pub fn threat_to(&self, state: &Known, now: Nanos) -> Option<Nanos> {
        self.unanswered.iter().filter(|r| r.base == *state && r.until > now).map(|r| r.until).max()
    }

    /// The whole object with its patches over `base`, or over zeros.
    pub fn image(&self, base: Option<&Bytes>, object_bytes: u64) -> Bytes {
        let mut image = BytesMut::with_capacity(object_bytes as usize);
        match base {
            Some(base) => image.extend_from_slice(base),
            None => image.resize(object_bytes as usize, 0),
        }
        self.patches.apply(0, &mut image);
        image.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::rng::Rng;

    #[test]
    fn patches_and_discarded_ranges_equal_a_plain_array() {
        const LEN: usize = 64;
        let mut rng = Rng::new(7);
        for _ in 0..300 {
            let mut patches = Patches::default();
            let mut discarded = Discarded::default();
            let mut bytes = [None::<u8>; LEN];
            let mut free = [false; LEN];
            for round in 0..40u8 {
                let at = rng.below(LEN as u64) as usize;
                let len = 1 + rng.below((LEN - at) as u64) as usize;
                if rng.below(3) == 0 {
                    discarded.add(at as u32, (at + len) as u32);
                    free[at..at + len].fill(true);
                } else {
                    patches.write(at as u32, Bytes::from(vec![round; len]));
                    discarded.remove(at as u32, (at + len) as u32);
                    bytes[at..at + len].fill(Some(round));
                    free[at..at + len].fill(false);
                }
                assert_eq!(discarded.cover(LEN as u32), free.iter().all(|free| *free));
                assert_eq!(patches.bytes(), bytes.iter().flatten().count() as u64);
                let at = rng.below(LEN as u64) as usize;
                let len = 1 + rng.below((LEN - at) as u64) as usize;
                assert_eq!(patches.cover(at as u32, len), bytes[at..at + len].iter().all(Option::is_some));
                let mut out = vec![255; len];
                patches.apply(at as u32, &mut out);
                let expected: Vec<u8> = bytes[at..at + len].iter().map(|byte| byte.unwrap_or(255)).collect();
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn a_missing_object_reads_as_zeros_and_an_unknown_one_not_at_all() {
        let mut object = Object::default();
        let mut out = [9; 4];
        assert!(!object.read(0, &mut out));
        object.patches.write(1, Bytes::from_static(b"ab"));
        assert!(!object.read(0, &mut out) && object.read(1, &mut out[..2]));
        object.known = Known::Missing;
        assert!(object.read(0, &mut out));
        assert_eq!(&out, b"\0ab\0");
        object.flying = Some(Bytes::from_static(b"wxyz"));
        assert!(object.read(0, &mut out));
        assert_eq!(&out, b"wabz");
    }
}
