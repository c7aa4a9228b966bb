//! Bytes by file and client, of those with the most, in bounded memory.
//!
//! ```text
//!   a request ends ─► FileCounters of the thread: at most COUNTED files since the last look   (Space-Saving)
//!   a look ─────────► takes those of all threads ─► FileTable: at most LISTED files since they were listed
//! ```
//!
//! *Counting.* A thread counts the bytes of a file that has a place. Another file takes the place of the one with the least
//! weight, and inherits that weight as its error: it may have had this number of bytes before. So a file's true bytes are from
//! what was counted to counted + error, and a file without a place had at most the weight that was given up last, the
//! *floor*. Of N bytes that a thread counted, the floor is at most N / COUNTED, and a file with more has a place.
//!
//! *Listing.* A look adds what the threads counted to the table, and they begin again: between two looks a thread seldom sees
//! more files than it has places for, and then nothing is lost. The files with the most bytes of late stay in the table.
//! What a file had before it was listed is part of what was counted and is in no row of the table (*unlisted*), which bounds
//! its error. No row can lack more than all that is unlisted.
//!
//! Source of the algorithm: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams" (2005); the sum over threads: Agarwal et al., "Mergeable Summaries" (2012).

use super::client::Origin;
use crate::invariant;
use crate::map::FixedMap;
use crate::time::Nanos;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Files, each with one client, that a thread counts between two looks.
pub(super) const COUNTED: usize = 128;
/// Files, each with one client, in the table of a pool.
pub const LISTED: usize = 256;
/// Time in which the weight of bytes in the choice of the listed files is halved, in nanoseconds.
const HALF_LIFE_NS: f64 = 8e9;

/// A file, and a client that reads or writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileKey {
    /// Number of the object set.
    pub dataset: u64,
    /// Number of the object.
    pub object: u64,
    /// The client.
    pub origin: Origin,
}

/// Requests of files, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Requests that read or wrote.
    pub requests: u64,
    /// Bytes answered.
    pub read_bytes: u64,
    /// Bytes written, before compression and redundancy.
    pub written_bytes: u64,
}

impl FileCounts {
    /// Bytes read and written.
    pub fn bytes(self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// The counts without those of `part`.
    #[must_use]
    pub fn without(self, part: FileCounts) -> FileCounts {
        FileCounts {
            requests: self.requests.saturating_sub(part.requests),
            read_bytes: self.read_bytes.saturating_sub(part.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(part.written_bytes),
        }
    }
}

impl AddAssign for FileCounts {
    fn add_assign(&mut self, other: FileCounts) {
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// Counts of a file. Its true bytes are from those in `counts` to `error_bytes` more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    key: FileKey,
    counts: FileCounts,
    error_bytes: u64,
}

/// The files that one thread counts. Its memory is allocated when it is made.
pub(super) struct FileCounters {
    files: Vec<Counted>,
    /// Weights of the files at the same places: bytes counted and error. They are apart, so that the least is found fast.
    weights: Vec<u64>,
    places: FixedMap<FileKey, usize>,
    /// Place of the last request's file: the next request is often one for the same file.
    last: usize,
    floor_bytes: u64,
    all: FileCounts,
}

impl Default for FileCounters {
    fn default() -> Self {
        let mut places = FixedMap::default();
        // So much room that a table from which entries are removed all the time is cleaned in place.
        places.reserve(2 * COUNTED + 2);
        FileCounters {
            files: Vec::with_capacity(COUNTED),
            weights: Vec::with_capacity(COUNTED),
            places,
            last: 0,
            floor_bytes: 0,
            all: FileCounts::default(),
        }
    }
}

impl FileCounters {
    /// Counts a request.
    pub fn record(&mut self, key: FileKey, read_bytes: u64, written_bytes: u64) {
        let counts = FileCounts { requests: 1, read_bytes, written_bytes };
        self.all += counts;
        let place = self.place(key);
        if let (Some(file), Some(weight)) = (self.files.get_mut(place), self.weights.get_mut(place)) {
            file.counts += counts;
            *weight = weight.saturating_add(counts.bytes());
        }
    }

    fn place(&mut self, key: FileKey) -> usize {
        if self.files.get(self.last).is_none_or(|file| file.key != key) {
            self.last = self.places.get(&key).copied().unwrap_or_else(|| self.enter(key));
        }
        self.last
    }

    /// Gives a file a place: that of the file with the least weight if there is no other.
    fn enter(&mut self, key: FileKey) -> usize {
        let place = if self.files.len() < COUNTED {
            self.files.push(Counted { key, counts: FileCounts::default(), error_bytes: 0 });
            self.weights.push(0);
            self.files.len() - 1
        } else {
            let least = self.weights.iter().enumerate().min_by_key(|(_, weight)| **weight);
            let (place, floor_bytes) = least.map_or((0, 0), |(place, weight)| (place, *weight));
            invariant!(floor_bytes >= self.floor_bytes, "a floor of {floor_bytes} after {} bytes", self.floor_bytes);
            self.floor_bytes = floor_bytes;
            if let Some(file) = self.files.get_mut(place) {
                self.places.remove(&file.key);
                *file = Counted { key, counts: FileCounts::default(), error_bytes: floor_bytes };
            }
            place
        };
        self.places.insert(key, place);
        invariant!(self.places.len() == self.files.len(), "{} places of {}", self.places.len(), self.files.len());
        place
    }

    /// Takes the counts since the last call. The thread begins again, with the same memory.
    pub fn take(&mut self) -> Taken {
        let files = self.files.clone();
        self.files.clear();
        self.weights.clear();
        self.places.clear();
        let floor_bytes = std::mem::take(&mut self.floor_bytes);
        Taken { files, floor_bytes, all: std::mem::take(&mut self.all) }
    }
}

/// Counts of a thread in some time.
pub(super) struct Taken {
    files: Vec<Counted>,
    /// Bytes that a file which is not among `files` had at most.
    floor_bytes: u64,
    all: FileCounts,
}

/// A file that is listed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ListedFile {
    /// Tells the times apart that a file was listed: greater each time.
    pub entry: u64,
    /// Counts since it was listed.
    pub counts: FileCounts,
    /// Bytes that it had at most beside the counted ones, since the pool was opened.
    pub error_bytes: u64,
    /// Bytes of late: those of earlier looks count less.
    recent_bytes: f64,
}

/// The files of a pool with the most bytes of late.
#[derive(Default)]
pub(super) struct FileTable {
    files: BTreeMap<FileKey, ListedFile>,
    entries: u64,
    all: FileCounts,
    looked: Nanos,
}

impl FileTable {
    /// Adds what the threads counted since the last look.
    pub fn add(&mut self, taken: &[Taken], now: Nanos) {
        let unlisted_bytes = self.unlisted().bytes();
        let floor_bytes: u64 = taken.iter().map(|of_thread| of_thread.floor_bytes).sum();
        let mut counted = sums(taken, floor_bytes);
        let kept = (-(now.ns_since(self.looked) as f64) / HALF_LIFE_NS).exp2();
        self.looked = now;
        taken.iter().for_each(|of_thread| self.all += of_thread.all);
        for (key, file) in &mut self.files {
            let (counts, error_bytes) = counted.remove(key).unwrap_or((FileCounts::default(), floor_bytes));
            file.counts += counts;
            file.error_bytes = file.error_bytes.saturating_add(error_bytes);
            file.recent_bytes = file.recent_bytes * kept + counts.bytes() as f64;
        }
        for (key, (counts, error_bytes)) in counted {
            self.entries += 1;
            // Before this look, none of its bytes was in a row.
            let error_bytes = unlisted_bytes.saturating_add(error_bytes);
            let recent_bytes = counts.bytes() as f64;
            self.files.insert(key, ListedFile { entry: self.entries, counts, error_bytes, recent_bytes });
        }
        self.trim();
        invariant!(self.files.len() <= LISTED, "{} files are listed", self.files.len());
    }

    /// Removes the files with the least bytes of late.
    fn trim(&mut self) {
        let excess = self.files.len().saturating_sub(LISTED);
        if excess == 0 {
            return;
        }
        let mut order: Vec<_> = self.files.iter().map(|(key, file)| (file.recent_bytes, *key)).collect();
        order.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        for (_, key) in order.iter().take(excess) {
            self.files.remove(key);
        }
    }

    /// Counts that are in no row.
    pub fn unlisted(&self) -> FileCounts {
        let mut listed = FileCounts::default();
        self.files.values().for_each(|file| listed += file.counts);
        self.all.without(listed)
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = (&FileKey, &ListedFile)> {
        self.files.iter()
    }
}

/// Sums over the threads by file, with the errors of the sums. `floor_bytes` is the sum of the floors.
fn sums(taken: &[Taken], floor_bytes: u64) -> BTreeMap<FileKey, (FileCounts, u64)> {
    let mut sums = BTreeMap::new();
    for of_thread in taken {
        for file in &of_thread.files {
            let (counts, error_bytes) = sums.entry(file.key).or_insert((FileCounts::default(), floor_bytes));
            *counts += file.counts;
            // Of a thread that counted the file, its own error is known.
            *error_bytes = error_bytes.saturating_sub(of_thread.floor_bytes.saturating_sub(file.error_bytes));
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(object: u64) -> FileKey {
        FileKey { dataset: 54, object, origin: Origin::OTHER }
    }

    /// Small numbers are more frequent: object 2^n has about as many requests as all up to 2^(n+1).
    fn request() -> impl Strategy<Value = (u64, u64, bool)> {
        let object = (0u32..10, any::<u64>()).prop_map(|(bits, n)| n & ((1 << bits) - 1));
        (object, 1u64..5000, any::<bool>())
    }

    fn counts(bytes: u64, is_write: bool) -> (u64, u64) {
        if is_write { (0, bytes) } else { (bytes, 0) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_file_has_at_least_what_was_counted_and_at_most_the_error_more(
            requests in proptest::collection::vec(request(), 0..3000)
        ) {
            let mut counters = FileCounters::default();
            let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
            for (object, bytes, is_write) in requests {
                let (read, written) = counts(bytes, is_write);
                counters.record(key(object), read, written);
                *exact.entry(object).or_default() += bytes;
            }
            let all: u64 = exact.values().sum();
            let taken = counters.take();
            prop_assert!(taken.files.len() <= COUNTED && taken.all.bytes() == all);
            prop_assert!(taken.floor_bytes <= all / COUNTED as u64);
            for (object, bytes) in exact {
                match taken.files.iter().find(|file| file.key == key(object)) {
                    Some(file) => {
                        let counted = file.counts.bytes();
                        prop_assert!((counted..=counted + file.error_bytes).contains(&bytes), "{file:?}: {bytes}");
                        prop_assert!(file.error_bytes <= taken.floor_bytes);
                    }
                    None => prop_assert!(bytes <= taken.floor_bytes, "object {object} with {bytes} bytes has no place"),
                }
            }
        }

        #[test]
        fn the_sums_of_threads_and_looks_keep_the_bound(
            looks in proptest::collection::vec(proptest::collection::vec((request(), 0usize..3), 0..900), 0..6)
        ) {
            let mut threads: [FileCounters; 3] = Default::default();
            let mut table = FileTable::default();
            let mut exact: BTreeMap<u64, u64> = BTreeMap::new();
            for (n, look) in looks.into_iter().enumerate() {
                for ((object, bytes, is_write), thread) in look {
                    // Each look also has files of its own, which push others out of the table.
                    let object = if object % 3 == 0 { object } else { object + 1024 * n as u64 };
                    let (read, written) = counts(bytes, is_write);
                    threads[thread].record(key(object), read, written);
                    *exact.entry(object).or_default() += bytes;
                }
                let taken: Vec<Taken> = threads.iter_mut().map(FileCounters::take).collect();
                table.add(&taken, Nanos(1_000_000_000 * n as u64));
                let listed: u64 = table.files().map(|(_, file)| file.counts.bytes()).sum();
                prop_assert_eq!(listed + table.unlisted().bytes(), exact.values().sum::<u64>());
                for (key, file) in table.files() {
                    let counted = file.counts.bytes();
                    let error = file.error_bytes.min(table.unlisted().bytes());
                    let bytes = exact[&key.object];
                    prop_assert!((counted..=counted + error).contains(&bytes), "{file:?}: {bytes}, error {error}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_lost_while_there_is_a_place_for_each_file() {
        let mut counters = FileCounters::default();
        let mut table = FileTable::default();
        for look in 0..3 {
            for object in 0..COUNTED as u64 {
                counters.record(key(object), 10, object);
            }
            table.add(&[counters.take()], Nanos(look));
        }
        assert_eq!(table.unlisted(), FileCounts::default());
        let files: Vec<_> = table.files().collect();
        assert_eq!(files.len(), COUNTED);
        for (key, file) in files {
            let expected = FileCounts { requests: 3, read_bytes: 30, written_bytes: 3 * key.object };
            assert_eq!((file.counts, file.error_bytes), (expected, 0));
        }
    }

    #[test]
    fn files_that_are_used_take_the_places_of_those_that_were() {
        let mut counters = FileCounters::default();
        let mut table = FileTable::default();
        let second = |n: u64| Nanos(n * 1_000_000_000);
        for n in 0..4 {
            for object in 0..COUNTED as u64 / 2 {
                counters.record(key(object + 1000 * n), 1 << 40, 0);
            }
            table.add(&[counters.take()], second(n));
        }
        assert_eq!((table.files().count(), table.unlisted().bytes()), (LISTED, 0));
        // A terabyte of ten minutes ago weighs less than a byte of now, and its bytes are in no row any more.
        counters.record(key(7777), 0, 1);
        table.add(&[counters.take()], second(600));
        assert_eq!(table.files().count(), LISTED);
        let (_, file) = table.files().find(|(key, _)| key.object == 7777).unwrap();
        assert_eq!((file.counts.written_bytes, file.error_bytes, file.entry), (1, 0, LISTED as u64 + 1));
        assert_eq!(table.unlisted().bytes(), 1 << 40);
        let first = table.files().next().map(|(key, _)| *key).unwrap();
        assert_eq!(first.object, 1, "the file with the smallest number of the oldest ones went");
        // Back again, it may have had all that is in no row.
        counters.record(key(0), 5, 0);
        table.add(&[counters.take()], second(601));
        let (_, file) = table.files().find(|(key, _)| key.object == 0).unwrap();
        assert_eq!((file.counts.bytes(), file.error_bytes), (5, 1 << 40));
    }
}
