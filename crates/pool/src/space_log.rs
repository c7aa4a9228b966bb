//! Log space maps: recent changes of all metaslabs in one log, and the choice of the metaslabs to flush. Pure.
//!
//! ```text
//!   txg      17        18        19        20  ◄─ one log space map per txg, with the changes of all metaslabs
//!            │         │                   │
//!            A since   B since             C since      (per vdev: an array of these txgs)
//! ```
//!
//! The problem: the frees of a txg are spread over many metaslabs, and each has a space map of its own, of which every
//! txg would write a block. So a txg appends to one log instead, and a metaslab is *flushed* from time to time: all its
//! changes since the last flush, which are kept in memory, are appended to its own space map.
//!
//! A log is needed by a metaslab if its txg is not before the metaslab's *since*. Logs before the oldest *since* of the
//! pool are obsolete. The log of the next txg reuses the object of one of them, and some of the others are kept for
//! that purpose, so that mostly no object is created or destroyed. A metaslab is *dirty* if a log that it needs has
//! changes of it. The *since* of a metaslab that is not dirty advances without a write.
//!
//! *When.* A txg flushes the oldest dirty metaslabs, in such a number that three limits hold now and, at the present
//! rate, later: the number of logs, of their blocks, and of segments in memory. The number is rounded down, so that an
//! idle pool flushes nothing in most txgs; the remainder is flushed before a limit is exceeded.
//!
//! Source: OpenZFS `module/zfs/spa_log_spacemap.c` (theory, `spa_estimate_metaslabs_to_flush`), including the limits,
//! except for the number of logs, which depends on the number of dirty metaslabs.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::SpaceKind;
use weir_blocks::alloc::Segments;
use weir_format::features::Feature;
use weir_format::{ObjectId, Txg};

/// Feature of pools with log space maps.
pub const FEATURE: &Feature = Feature::LOG_SPACEMAP;
/// log2 of the unit of logs in bytes.
pub const LOG_SHIFT: u32 = 9;
/// Size of a log's blocks in bytes (`zfs_log_sm_blksz`).
pub const LOG_BLOCK_BYTES: u32 = 128 << 10;

/// Minimum and maximum number of logs (`zfs_unflushed_log_txg_max`); in between, one for each dirty metaslab.
const LOGS: (u64, u64) = (32, 1000);
/// Minimum and maximum number of their blocks (`zfs_unflushed_log_block_min`, `…_max`).
const BLOCKS: (u64, u64) = (1000, 1 << 17);
/// In between, this number for each dirty metaslab (`zfs_unflushed_log_block_pct`).
const BLOCKS_PER_METASLAB: u64 = 4;
/// Maximum number of segments of unflushed changes in memory: about 16 MiB.
const MAX_SEGMENTS: usize = 1 << 17;
/// Number of obsolete logs that are kept for their objects.
pub const KEPT: usize = 32;
/// Number of recent logs from which the blocks of the next log are estimated (`zfs_max_log_walking`).
const RECENT_LOGS: usize = 5;

/// A metaslab: id of its top-level vdev, and its index there.
pub type MetaslabId = (u32, u64);

/// Changes of a metaslab that its own space map does not have.
#[derive(Clone, Debug, Default)]
pub struct Unflushed {
    /// First txg whose log the metaslab needs.
    pub since: Txg,
    /// Whether these logs have changes of the metaslab.
    pub dirty: bool,
    /// Allocated segments since then, with offsets on the vdev.
    pub taken: Segments,
    /// Freed segments since then.
    pub given_back: Segments,
}

impl Unflushed {
    /// Applies a change. Returns the number of bytes that were in that state already.
    fn note(&mut self, kind: SpaceKind, range: Range<u64>) -> u64 {
        let (to, from) = match kind {
            SpaceKind::Alloc => (&mut self.taken, &mut self.given_back),
            SpaceKind::Free => (&mut self.given_back, &mut self.taken),
        };
        let mut rest = Segments::default();
        rest.add(range.clone());
        for undone in from.remove_common(&range) {
            rest.remove(undone);
        }
        let mut already = 0;
        for part in rest.iter() {
            already += to.remove_common(&part).iter().map(|known| known.end - known.start).sum::<u64>();
            to.add(part);
        }
        already
    }

    /// Allocated bytes minus freed bytes.
    pub fn balance_bytes(&self) -> i64 {
        self.taken.total_bytes().cast_signed().saturating_sub(self.given_back.total_bytes().cast_signed())
    }

    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.taken.len() + self.given_back.len()
    }
}

/// Log of one txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Object of the log space map.
    pub object: ObjectId,
    /// Number of its blocks.
    pub blocks: u64,
}

/// Logs of a pool, and the unflushed changes of its metaslabs.
#[derive(Clone, Debug, Default)]
pub struct SpaceLog {
    /// ZAP with the logs by txg, if there is one.
    pub zap: Option<ObjectId>,
    /// The logs.
    pub logs: BTreeMap<Txg, Log>,
    /// Metaslabs that have been in a log.
    pub metaslabs: BTreeMap<MetaslabId, Unflushed>,
    /// Objects of the arrays of *since*, by vdev.
    pub arrays: BTreeMap<u32, ObjectId>,
    /// Changes that the syncing txg flushes: the maps of the last synced txg do not have them.
    flushing: BTreeMap<MetaslabId, Arc<Unflushed>>,
}

impl SpaceLog {
    /// Records that txg `txg` will change a metaslab. Returns true if its *since* changes.
    pub fn mark(&mut self, id: MetaslabId, txg: Txg) -> bool {
        let metaslab = self.metaslabs.entry(id).or_default();
        let moved = !metaslab.dirty;
        if moved {
            metaslab.since = txg;
            metaslab.dirty = true;
        }
        moved
    }

    /// Records a change of a metaslab in the log of txg `txg`. Returns the number of bytes that were in that state already.
    pub fn note(&mut self, id: MetaslabId, txg: Txg, kind: SpaceKind, range: Range<u64>) -> u64 {
        let Some(metaslab) = self.metaslabs.get_mut(&id).filter(|m| m.since <= txg) else { return 0 };
        metaslab.dirty = true;
        metaslab.note(kind, range)
    }

    /// Marks a metaslab as flushed up to the beginning of txg `txg`: returns the changes that its space map did not
    /// have.
    pub fn flushed(&mut self, id: MetaslabId, txg: Txg) -> Arc<Unflushed> {
        let new = Unflushed { since: txg, ..Unflushed::default() };
        let flushed = Arc::new(self.metaslabs.insert(id, new).unwrap_or_default());
        let earlier = self.flushing.insert(id, flushed.clone());
        debug_assert!(earlier.is_none(), "a metaslab is flushed once in a txg");
        flushed
    }

    /// Forgets the metaslabs of a top-level vdev that leaves the pool: their changes in the logs are ignored from now on.
    pub fn remove_vdev(&mut self, vdev: u32) {
        self.metaslabs.retain(|(of, _), _| *of != vdev);
        self.flushing.retain(|(of, _), _| *of != vdev);
        self.arrays.remove(&vdev);
    }

    /// Records that the txg of the last flushes was committed: the space maps have their changes now.
    pub fn committed(&mut self) {
        self.flushing.clear();
    }

    /// Changes of a metaslab that the space maps of the last synced txg do not have.
    pub fn unflushed(&self, id: MetaslabId) -> Arc<Unflushed> {
        let kept = || Arc::new(self.metaslabs.get(&id).cloned().unwrap_or_default());
        self.flushing.get(&id).cloned().unwrap_or_else(kept)
    }

    /// Returns the metaslabs to flush in txg `txg`, in order: those that are due, or `all`. Some may not be dirty.
    pub fn due(&self, txg: Txg, all: bool) -> Vec<MetaslabId> {
        let mut oldest: Vec<(Txg, MetaslabId)> = self.metaslabs.iter().map(|(id, m)| (m.since, *id)).collect();
        oldest.sort_unstable();
        oldest.retain(|(since, _)| *since < txg);
        if all {
            return oldest.into_iter().map(|(_, id)| id).collect();
        }
        let (mut wanted, crowded) = self.wanted(txg);
        let mut segments: usize = self.metaslabs.values().map(Unflushed::segments).sum();
        let mut due = Vec::new();
        if wanted == 0 && !crowded && segments <= MAX_SEGMENTS {
            return due;
        }
        for (_, id) in oldest {
            let Some(metaslab) = self.metaslabs.get(&id) else { continue };
            if metaslab.dirty {
                if wanted == 0 && segments <= MAX_SEGMENTS {
                    break;
                }
                wanted = wanted.saturating_sub(1);
                segments -= metaslab.segments();
            }
            due.push(id);
        }
        due
    }

    /// Returns how many dirty metaslabs to flush so that the limits hold, and whether a limit is exceeded already.
    fn wanted(&self, txg: Txg) -> (u64, bool) {
        let mut dirty: BTreeMap<Txg, u64> = BTreeMap::new();
        for metaslab in self.metaslabs.values().filter(|m| m.dirty) {
            *dirty.entry(metaslab.since).or_default() += 1;
        }
        let all: u64 = dirty.values().sum();
        let logs: Vec<(Txg, Log)> = self.logs.range(self.oldest(txg)..).map(|(txg, log)| (*txg, *log)).collect();
        let blocks: u64 = logs.iter().map(|(_, log)| log.blocks).sum();
        let recent: Vec<u64> = logs.iter().rev().take(RECENT_LOGS).map(|(_, log)| log.blocks).collect();
        let rate = recent.iter().sum::<u64>().div_ceil(recent.len().max(1) as u64).max(1).cast_signed();
        let most_blocks = (all * BLOCKS_PER_METASLAB).clamp(BLOCKS.0, BLOCKS.1).cast_signed();
        // Including the log of this txg.
        let mut room_blocks = most_blocks - blocks.cast_signed() - rate;
        let mut room_logs = all.clamp(LOGS.0, LOGS.1).cast_signed() - logs.len() as i64 - 1;
        let crowded = room_blocks < 0 || room_logs < 0;
        let mut txgs = 1;
        let mut sum = 0;
        let mut wanted = 0;
        for (txg, log) in &logs {
            if room_blocks >= 0 && room_logs >= 0 {
                let pass = (room_blocks / rate).min(room_logs) + 1;
                room_blocks -= pass * rate;
                room_logs -= pass;
                txgs += pass.cast_unsigned();
            }
            // By then, this log must be obsolete.
            room_blocks += log.blocks.cast_signed();
            room_logs += 1;
            sum += dirty.get(txg).copied().unwrap_or(0);
            wanted = wanted.max(sum / txgs);
        }
        (wanted, crowded)
    }

    /// Returns the txg of the oldest log that a metaslab needs; `txg` if there is none.
    fn oldest(&self, txg: Txg) -> Txg {
        self.metaslabs.values().map(|m| m.since).min().unwrap_or(txg).min(txg)
    }

    /// Removes obsolete logs, the oldest first: one, if there is one, and all but the last `kept`.
    pub fn take_obsolete(&mut self, txg: Txg, kept: usize) -> Vec<(Txg, Log)> {
        let oldest = self.oldest(txg);
        let obsolete: Vec<(Txg, Log)> = self.logs.range(..oldest).map(|(txg, log)| (*txg, *log)).collect();
        let take = obsolete.len().min(obsolete.len().saturating_sub(kept).max(1));
        let taken: Vec<(Txg, Log)> = obsolete.into_iter().take(take).collect();
        self.logs.retain(|txg, _| taken.iter().all(|(of, _)| of != txg));
        taken
    }
}
