//! Histories of pools on disk: segments in files, a directory for each pool, bounded in bytes.
//!
//! ```text
//!   DIR/GUID/second-2991666          frames of 10 minutes
//!           /ten_seconds-498611      frames of an hour
//!           /minute-62326            frames of 8 hours
//! ```
//!
//! A file is written under another name, made stable, and renamed, so that a crash leaves the old or the new one. It is made from
//! the history in memory and never changed, so there is nothing to repair: damage inside a file takes the frames that it hit,
//! and a file that cannot be read takes its segment.
//!
//! *Bounds.* Of each resolution as many segments are kept as memory has points of. Before a file is written, others are removed
//! until it fits: first those of pools that are not open, the oldest first; then, of all open pools, the one that is the oldest
//! compared with the time that its resolution keeps. A file counts in whole units of 4 KiB, a directory as one unit; a file
//! that is being replaced counts twice.
//!
//! *Failures.* After an error the history goes on in memory and is tried again with the next flush. The log gets one line when
//! that begins and one when it ends.
//!
//! Rejected: redb and fjall, which give up all frames for some damaged bytes (docs/dependencies.md).

mod files;
#[cfg(test)]
mod tests;

use files::{Directories, FileName, Files};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_analytics::{Point, Resolution, Segment};
use weir_machine::lock::{Mutex, MutexGuard, order};

/// Unit in which files are counted, in bytes: a block of common file systems.
const UNIT_BYTES: u64 = 4096;

/// Segments of a pool with their points.
pub(crate) type Segments = Vec<(Segment, Vec<Point>)>;

/// A file of a pool.
type Place = (u64, Segment);

fn name_of(place: Place) -> FileName {
    FileName { directory: place.0.to_string(), file: place.1.name() }
}

/// Bytes that a file counts for.
fn counted(length: u64) -> u64 {
    length.div_ceil(UNIT_BYTES).saturating_mul(UNIT_BYTES)
}

/// Files that there are.
#[derive(Default)]
struct Inventory {
    /// Bytes that each file counts for; `None` until they could be listed.
    places: Option<BTreeMap<Place, u64>>,
    /// Pools whose history is in memory.
    open: BTreeSet<u64>,
}

impl Inventory {
    /// Bytes of all files and directories.
    fn bytes(&self) -> u64 {
        let places = self.places.iter().flatten();
        let pools: BTreeSet<u64> = places.clone().map(|((pool, _), _)| *pool).collect();
        places.map(|(_, bytes)| bytes).sum::<u64>() + pools.len() as u64 * UNIT_BYTES
    }

    /// The file to remove when `written` needs space: never itself.
    fn victim(&self, written: Place) -> Option<Place> {
        let now_ms = written.1.last_ms();
        let others = || self.places.iter().flatten().map(|(place, _)| *place).filter(|place| *place != written);
        let closed = others().filter(|(pool, _)| !self.open.contains(pool));
        // A share of the time that is kept, in parts of a million.
        let age = |(_, segment): &Place| {
            let kept_ms = segment.resolution.kept() as u64 * segment.resolution.seconds() * 1000;
            u128::from(segment.last_ms().abs_diff(now_ms)) * 1_000_000 / u128::from(kept_ms.max(1))
        };
        closed.min_by_key(|(_, segment)| segment.last_ms()).or_else(|| others().max_by_key(age))
    }

    /// Of too many segments of a resolution, the one that is farthest from `written`.
    fn surplus(&self, written: Place) -> Option<Place> {
        let (pool, Segment { resolution, index }) = written;
        let of = |index| (pool, Segment { resolution, index });
        let own: Vec<Place> = self.places.as_ref()?.range(of(0)..=of(u64::MAX)).map(|(place, _)| *place).collect();
        let far = |place: &Place| place.1.index.abs_diff(index);
        // Of two at the same distance, the older one.
        (own.len() > resolution.kept_segments()).then(|| own.into_iter().rev().max_by_key(far)).flatten()
    }
}

/// Histories of pools on disk.
pub struct Store {
    files: Box<dyn Files>,
    place: String,
    max_bytes: u64,
    /// Held while files are read or written.
    inventory: Mutex<Inventory, { order::HISTORY_FILES }>,
    disk_bytes: AtomicU64,
    damaged: AtomicU64,
    problem: Mutex<Option<String>>,
}

/// State of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// Bytes of its files, in whole units of 4 KiB.
    pub disk_bytes: u64,
    /// Maximum of them.
    pub max_bytes: u64,
    /// Damaged places that were found in files since the start.
    pub damaged: u64,
    /// Error of the last attempt to store.
    pub problem: Option<String>,
}

/// The files of a store, while no other task reads or writes them.
pub(crate) struct FilesGuard<'a> {
    store: &'a Store,
    inventory: MutexGuard<'a, Inventory>,
}

impl Store {
    /// Least maximum: that of the segments that are written for some pools.
    pub const MIN_BYTES: u64 = 1 << 20;
    /// Usual maximum: enough for all points of more than thirty pools, even if they cannot be compressed.
    pub const DEFAULT_BYTES: u64 = 256 << 20;

    /// Histories in a directory, which is made when it is first used; the one above it exists. Their files have at most `max_bytes`
    /// bytes, except that more are there from a time with another maximum, until the next flush.
    pub fn new(directory: PathBuf, max_bytes: u64) -> Self {
        let place = directory.display().to_string();
        Self::of_files(Box::new(Directories::new(directory)), place, max_bytes)
    }

    fn of_files(files: Box<dyn Files>, place: String, max_bytes: u64) -> Self {
        Store {
            files,
            place,
            max_bytes: max_bytes.max(Self::MIN_BYTES),
            inventory: Mutex::default(),
            disk_bytes: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            problem: Mutex::default(),
        }
    }

    /// State of the store, without waiting for the disk.
    pub fn status(&self) -> StoreStatus {
        StoreStatus {
            disk_bytes: self.disk_bytes.load(Ordering::Relaxed),
            max_bytes: self.max_bytes,
            damaged: self.damaged.load(Ordering::Relaxed),
            problem: self.problem.lock().clone(),
        }
    }

    /// Waits until no other task reads or writes files.
    pub(crate) fn lock_files(&self) -> FilesGuard<'_> {
        FilesGuard { store: self, inventory: self.inventory.lock() }
    }

    /// Logs when storing begins to fail, and when it works again.
    pub(crate) fn note(&self, outcome: Result<(), io::Error>) {
        let mut problem = self.problem.lock();
        match outcome {
            Ok(()) if problem.is_some() => {
                tracing::info!("the history of analytics is stored in {} again", self.place);
                *problem = None;
            }
            Ok(()) => {}
            Err(error) => {
                if problem.is_none() {
                    tracing::warn!(
                        "the history of analytics is kept in memory only until it can be stored in {}: {error}",
                        self.place
                    );
                }
                *problem = Some(error.to_string());
            }
        }
    }
}

impl FilesGuard<'_> {
    /// Points of a pool that were stored. From now on it counts as open.
    pub fn load(&mut self, pool: u64, name: &str) -> io::Result<Vec<(Resolution, Vec<Point>)>> {
        self.inventory.open.insert(pool);
        self.list()?;
        let of = |resolution, index| (pool, Segment { resolution, index });
        let [first, last] = [of(Resolution::Second, 0), of(Resolution::Minute, u64::MAX)];
        let places: Vec<Place> = self
            .inventory
            .places
            .iter()
            .flat_map(|places| places.range(first..=last))
            .map(|(place, _)| *place)
            .collect();
        let mut loaded = Vec::new();
        let mut damaged = Vec::new();
        for place in places {
            let file = name_of(place);
            match self.store.files.read(&file) {
                Ok(bytes) => {
                    let (points, places) = place.1.decode(pool, &bytes);
                    loaded.push((place.1.resolution, points));
                    if places > 0 {
                        damaged.push((file.file, places));
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => damaged.push((format!("{} ({error})", file.file), 1)),
            }
        }
        if let Some((first, _)) = damaged.first() {
            let all: u64 = damaged.iter().map(|(_, places)| places).sum();
            self.store.damaged.fetch_add(all, Ordering::Relaxed);
            let place = &self.store.place;
            tracing::warn!(
                "pool '{name}': {all} damaged places in {} files of its history in {place}/{pool}, which lacks what was there; \
                 the first is in {first}",
                damaged.len()
            );
        }
        Ok(loaded)
    }

    /// The history of a pool is not in memory any more.
    pub fn close(&mut self, pool: u64) {
        self.inventory.open.remove(&pool);
    }

    /// Stores segments of a pool. Returns those that were not stored, and why.
    pub fn write(&mut self, pool: u64, segments: Segments) -> (Segments, Result<(), io::Error>) {
        let mut rest = segments.into_iter();
        while let Some((segment, points)) = rest.next() {
            if let Err(error) = self.replace((pool, segment), &segment.encode(pool, &points)) {
                return ([(segment, points)].into_iter().chain(rest).collect(), Err(error));
            }
        }
        (Vec::new(), Ok(()))
    }

    /// Lists the files, if that was not done yet.
    fn list(&mut self) -> io::Result<()> {
        if self.inventory.places.is_none() {
            let place = |(name, bytes): (FileName, u64)| {
                // Others are not ours.
                let pool: u64 = name.directory.parse().ok().filter(|guid: &u64| guid.to_string() == name.directory)?;
                Some(((pool, Segment::named(&name.file)?), counted(bytes)))
            };
            self.inventory.places = Some(self.store.files.list()?.into_iter().filter_map(place).collect());
            self.count();
        }
        Ok(())
    }

    fn count(&self) {
        self.store.disk_bytes.store(self.inventory.bytes(), Ordering::Relaxed);
    }

    /// Replaces a file, after others have made room for it.
    fn replace(&mut self, place: Place, bytes: &[u8]) -> io::Result<()> {
        self.list()?;
        let needed = counted(bytes.len() as u64) + UNIT_BYTES;
        while self.inventory.bytes() + needed > self.store.max_bytes {
            let Some(victim) = self.inventory.victim(place) else { break };
            self.remove(victim)?;
        }
        self.store.files.replace(&name_of(place), bytes)?;
        self.inventory.places.iter_mut().for_each(|places| {
            places.insert(place, counted(bytes.len() as u64));
        });
        self.count();
        debug_assert!(self.inventory.bytes() <= self.store.max_bytes);
        while let Some(surplus) = self.inventory.surplus(place) {
            self.remove(surplus)?;
        }
        Ok(())
    }

    fn remove(&mut self, place: Place) -> io::Result<()> {
        self.store.files.remove(&name_of(place))?;
        self.inventory.places.iter_mut().for_each(|places| {
            places.remove(&place);
        });
        self.count();
        Ok(())
    }
}
