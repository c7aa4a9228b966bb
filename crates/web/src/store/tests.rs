//! Stores on files in memory, which are damaged, too few or refused.

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use weir_analytics::{History, LatencyCounts, LatencyKind};

const POOL: u64 = 77;

/// Files in memory, with a space that ends.
#[derive(Default)]
struct MemoryFiles {
    files: Mutex<BTreeMap<FileName, Vec<u8>>>,
    is_full: AtomicBool,
    /// Largest size of all files in whole units, counted while one is replaced, when both are there.
    peak_bytes: AtomicU64,
}

impl MemoryFiles {
    fn bytes(&self) -> u64 {
        let files = self.files.lock();
        let pools: BTreeSet<&String> = files.keys().map(|name| &name.directory).collect();
        let lengths = files.values().map(|bytes| counted(bytes.len() as u64)).sum::<u64>();
        lengths + pools.len() as u64 * UNIT_BYTES
    }

    fn names(&self) -> Vec<String> {
        self.files.lock().keys().map(|name| format!("{}/{}", name.directory, name.file)).collect()
    }
}

impl Files for Arc<MemoryFiles> {
    fn list(&self) -> io::Result<Vec<(FileName, u64)>> {
        Ok(self.files.lock().iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect())
    }

    fn read(&self, name: &FileName) -> io::Result<Vec<u8>> {
        self.files.lock().get(name).cloned().ok_or(ErrorKind::NotFound.into())
    }

    fn replace(&self, name: &FileName, bytes: &[u8]) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(ErrorKind::StorageFull.into());
        }
        let is_replaced = self.files.lock().contains_key(name);
        self.peak_bytes.fetch_max(self.bytes() + counted(bytes.len() as u64), Ordering::Relaxed);
        self.files.lock().insert(name.clone(), bytes.to_vec());
        assert!(is_replaced || self.bytes() > 0);
        Ok(())
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        self.files.lock().remove(name);
        Ok(())
    }
}

fn store(files: &Arc<MemoryFiles>, max_bytes: u64) -> Store {
    Store::of_files(Box::new(files.clone()), "memory".into(), max_bytes)
}

/// Points that compress badly, one in each of these seconds.
fn grow(history: &mut History, seconds: std::ops::Range<u64>) {
    for second in seconds {
        let random = |series: u64| (second * 1000 + series).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let values = std::array::from_fn(|series| random(series as u64) as f32);
        let counts: [u64; 33] = std::array::from_fn(|class| random(100 + class as u64));
        let latency = LatencyCounts::of(&LatencyKind::ALL.map(|kind| (kind, &counts[..])));
        history.push(Point { time_ms: second * 1000, values, latency });
    }
}

/// Stores what is new, which has to work.
fn flush(store: &Store, pool: u64, history: &mut History) {
    let (rest, written) = store.lock_files().write(pool, history.take_unstored());
    written.unwrap();
    assert!(rest.is_empty());
}

fn restored(store: &Store, pool: u64) -> History {
    let mut history = History::default();
    history.restore(store.lock_files().load(pool, "tank").unwrap());
    history
}

fn points(history: &History, resolution: Resolution) -> Vec<Point> {
    history.points(resolution, 0, u64::MAX).copied().collect()
}

#[test]
fn a_history_is_the_same_after_it_was_stored() {
    let files = Arc::new(MemoryFiles::default());
    let mut history = History::default();
    let first = store(&files, Store::DEFAULT_BYTES);
    // Two hours and a half, stored every 20 s.
    for start in (1_000_000..1_009_000).step_by(20) {
        grow(&mut history, start..start + 20);
        flush(&first, POOL, &mut history);
    }
    assert_eq!(first.status().disk_bytes, files.bytes());
    let again = store(&files, Store::DEFAULT_BYTES);
    let read = restored(&again, POOL);
    for resolution in Resolution::ALL {
        let [stored, own] = [&read, &history].map(|history| points(history, resolution));
        // What was stored before the ring was full may be more by a segment, and is as much as memory keeps.
        assert_eq!(stored, own, "{resolution:?}");
    }
    assert_eq!(points(&read, Resolution::Second).len(), 3600);
    assert_eq!((again.status().damaged, again.status().disk_bytes), (0, files.bytes()));
    let seconds = files.names().iter().filter(|name| name.contains("/second-")).count();
    assert_eq!(seconds, Resolution::Second.kept_segments());
    assert!(restored(&again, 78).bytes() == 0, "another pool has none");
}

#[test]
fn each_damaged_byte_loses_its_frame_and_no_other() {
    let files = Arc::new(MemoryFiles::default());
    let mut history = History::default();
    grow(&mut history, 1_000_000..1_000_700);
    flush(&store(&files, Store::DEFAULT_BYTES), POOL, &mut history);
    let all: BTreeMap<FileName, Vec<u8>> = files.files.lock().clone();
    assert!(all.len() >= 4);
    let of = |history: &History| Resolution::ALL.map(|resolution| points(history, resolution));
    let load = || {
        let store = store(&files, Store::DEFAULT_BYTES);
        let mut found: BTreeMap<Resolution, Vec<Point>> = BTreeMap::new();
        for (resolution, points) in store.lock_files().load(POOL, "tank").unwrap() {
            found.entry(resolution).or_default().extend(points);
        }
        (Resolution::ALL.map(|resolution| found.remove(&resolution).unwrap_or_default()), store.status().damaged)
    };
    assert_eq!(load(), (of(&history), 0));
    for (name, bytes) in &all {
        let segment = Segment::named(&name.file).unwrap();
        let frames = segment.decode(POOL, bytes).0;
        let bucket_ms = segment.resolution.seconds() * 60_000;
        let buckets: Vec<&[Point]> =
            frames.chunk_by(|one, next| one.time_ms / bucket_ms == next.time_ms / bucket_ms).collect();
        // Where each frame begins: the frames before it, encoded alone, have that length.
        let mut ends = Vec::new();
        for count in 1..=buckets.len() {
            ends.push(segment.encode(POOL, &buckets[..count].concat()).len());
        }
        assert_eq!(ends.last(), Some(&bytes.len()));
        let start_of = |at: usize| ends.iter().rev().copied().find(|end| *end <= at).unwrap_or(0);
        // A byte of each field of the headers, and some of the others; the test of frames damages every byte.
        let is_tried =
            |at: &usize| [0, 9, 13, 30, 37, 44, 45, 46, 48].contains(&(at - start_of(*at))) || at.is_multiple_of(1997);
        for at in (0..bytes.len()).filter(is_tried) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            files.files.lock().insert(name.clone(), damaged);
            let hit = buckets[ends.iter().position(|end| at < *end).unwrap()];
            let mut expected = of(&history);
            expected[segment.resolution as usize].retain(|point| !hit.contains(point));
            assert!(load() == (expected, 1), "byte {at} of {name:?}");
        }
        files.files.lock().insert(name.clone(), bytes.clone());
    }
}

#[test]
fn files_of_other_names_and_contents_are_passed_over() {
    let files = Arc::new(MemoryFiles::default());
    let mut history = History::default();
    grow(&mut history, 1_000_000..1_000_100);
    flush(&store(&files, Store::DEFAULT_BYTES), POOL, &mut history);
    let name = |directory: &str, file: &str| FileName { directory: directory.into(), file: file.into() };
    let own = files.files.lock().iter().next_back().map(|(name, bytes)| (name.clone(), bytes.clone())).unwrap();
    for (directory, file) in [("77", "README"), ("077", "second-1"), ("lost+found", "second-2"), ("77", "second-09")] {
        files.files.lock().insert(name(directory, file), own.1.clone());
    }
    // Segments of another pool and of another time, and one that is no segment.
    files.files.lock().insert(name("78", &own.0.file), own.1.clone());
    files.files.lock().insert(name("77", "second-1"), own.1.clone());
    files.files.lock().insert(name("77", "minute-1"), vec![0; 5000]);
    let again = store(&files, Store::DEFAULT_BYTES);
    let mut read = restored(&again, POOL);
    assert_eq!(points(&read, Resolution::Second), points(&history, Resolution::Second));
    let damaged = again.status().damaged;
    assert!(damaged >= 2, "{damaged}");
    assert_eq!(points(&restored(&again, 78), Resolution::Second), []);
    // What is not ours stays.
    grow(&mut read, 1_000_100..1_000_200);
    flush(&again, POOL, &mut read);
    assert!(files.names().contains(&"77/README".to_owned()));
}

#[test]
fn a_full_disk_costs_nothing_once_there_is_space_again() {
    let files = Arc::new(MemoryFiles::default());
    let store = store(&files, Store::DEFAULT_BYTES);
    let mut history = History::default();
    grow(&mut history, 1_000_000..1_000_100);
    flush(&store, POOL, &mut history);
    files.is_full.store(true, Ordering::Relaxed);
    for start in (1_000_100..1_001_100).step_by(20) {
        grow(&mut history, start..start + 20);
        let (rest, written) = store.lock_files().write(POOL, history.take_unstored());
        assert!(!rest.is_empty());
        rest.iter().for_each(|(segment, _)| history.not_stored(*segment));
        store.note(written);
        assert!(store.status().problem.is_some());
    }
    assert_eq!(points(&restored(&store, POOL), Resolution::Second).len(), 100, "what was stored stays");
    files.is_full.store(false, Ordering::Relaxed);
    flush(&store, POOL, &mut history);
    store.note(Ok(()));
    assert_eq!(store.status().problem, None);
    let read = restored(&store, POOL);
    for resolution in Resolution::ALL {
        assert_eq!(points(&read, resolution), points(&history, resolution));
    }
}

#[test]
fn bytes_are_bounded_at_every_moment_and_closed_pools_go_first() {
    let files = Arc::new(MemoryFiles::default());
    let store = store(&files, Store::MIN_BYTES);
    let mut histories: Vec<History> = (0..4).map(|_| History::default()).collect();
    // Pool 0 was closed an hour ago.
    store.lock_files().load(0, "old").unwrap();
    grow(&mut histories[0], 1_000_000..1_003_000);
    flush(&store, 0, &mut histories[0]);
    store.lock_files().close(0);
    assert!(files.names().len() > 5);
    (1..4).for_each(|pool| assert!(store.lock_files().load(pool, "new").unwrap().is_empty()));
    for start in (1_003_000..1_012_000).step_by(300) {
        for pool in 1..4 {
            let before = files.names();
            let history = &mut histories[pool as usize];
            grow(history, start..start + 300);
            flush(&store, pool, history);
            assert_eq!(store.status().disk_bytes, files.bytes());
            let after = files.names();
            // An open pool loses only what its resolution keeps no longer, while there are files of a closed one.
            if after.iter().any(|name| name.starts_with("0/")) {
                let is_full = |kind: &str| before.iter().filter(|name| name.starts_with(kind)).count() == 7;
                let seconds = format!("{pool}/second-");
                let mut removed = before.iter().filter(|name| !after.contains(name));
                assert!(
                    removed.all(|name| name.starts_with("0/") || (name.starts_with(&seconds) && is_full(&seconds))),
                    "{before:?}"
                );
            }
        }
    }
    assert!(files.names().iter().all(|name| !name.starts_with("0/")), "{:?}", files.names());
    let peak = files.peak_bytes.load(Ordering::Relaxed);
    assert!(peak <= Store::MIN_BYTES && peak > Store::MIN_BYTES / 2, "{peak}");
    // Each open pool has its newest points.
    for pool in 1..4 {
        let read = restored(&store, pool);
        for resolution in Resolution::ALL {
            let [stored, own] = [&read, &histories[pool as usize]].map(|history| points(history, resolution));
            assert!(!stored.is_empty() && own.ends_with(&stored), "{resolution:?} of {pool}");
        }
    }
}

#[test]
fn a_wrong_clock_does_not_remove_what_was_stored() {
    let files = Arc::new(MemoryFiles::default());
    let store = store(&files, Store::DEFAULT_BYTES);
    let mut history = History::default();
    grow(&mut history, 1_000_000..1_003_600);
    flush(&store, POOL, &mut history);
    let before: Vec<String> = files.names();
    // Ten years ahead for a minute.
    grow(&mut history, 316_000_000..316_000_060);
    flush(&store, POOL, &mut history);
    let after = files.names();
    let lost = before.iter().filter(|name| !after.contains(name)).count();
    assert!(lost <= 1, "{lost} of {before:?}");
    grow(&mut history, 1_003_660..1_003_720);
    flush(&store, POOL, &mut history);
    assert!(points(&restored(&store, POOL), Resolution::Second).len() >= 3000);
}
