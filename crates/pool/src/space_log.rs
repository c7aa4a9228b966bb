//! The log of space maps: what changed lately in all metaslabs together, and when to bring which metaslab's own map up to
//! date. Pure.
//!
//! ```text
//!   group    17        18        19        20  ◄─ one space map a group, with the changes of all metaslabs
//!            │         │                   │
//!            A since   B since             C since      (per vdev: an array of these groups)
//! ```
//!
//! The problem: a group that frees here and there touches many metaslabs, and each has a space map of its own: a block
//! each, in every group. So a group appends to one log instead, and a metaslab's own map is brought up to date (*flushed*)
//! once in a while, with all its changes since the last time, which are kept in memory for that.
//!
//! A log counts for a metaslab if its group is not before the metaslab's *since*. What is older than the oldest *since* of
//! the pool nobody needs: the next group's log takes over the object of one of them, and of the rest a few are kept for
//! that, so that mostly nothing is made, removed and counted. A metaslab is *dirty* when a log that counts for it speaks of it; one that is not
//! can be moved on to the present at no cost.
//!
//! *When.* As many dirty metaslabs are flushed in a group, the oldest first, as are needed for three limits to hold now and,
//! at the present rate, later: so many logs, so many blocks in them, so many segments in memory. Each group's share is
//! rounded down, so that a pool in which little happens has nothing to flush in most groups; what was left undone is made
//! good before a limit is passed.
//!
//! Source: OpenZFS `module/zfs/spa_log_spacemap.c` (theory, `spa_estimate_metaslabs_to_flush`), whose limits these are,
//! but for the number of logs: that follows the number of dirty metaslabs.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use weir_blocks::SpaceKind;
use weir_blocks::alloc::Segments;
use weir_format::{ObjectId, Txg};

/// The feature of pools that have such logs.
pub const FEATURE: &str = "log_spacemap";
/// Name in a top-level vdev's ZAP: the array of its metaslabs' *since* (`VDEV_TOP_ZAP_MS_UNFLUSHED_PHYS_TXGS`).
pub const UNFLUSHED: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Units of logs, as log2 of bytes.
pub const LOG_SHIFT: u32 = 9;
/// Bytes of a log's blocks (`zfs_log_sm_blksz`).
pub const LOG_BLOCK_BYTES: u32 = 128 << 10;

/// Fewest and most logs that there may be (`zfs_unflushed_log_txg_max`); between them, one for each dirty metaslab.
const LOGS: (u64, u64) = (32, 1000);
/// Fewest and most blocks that they may have (`zfs_unflushed_log_block_min`, `…_max`).
const BLOCKS: (u64, u64) = (1000, 1 << 17);
/// Between them, so many for each dirty metaslab (`zfs_unflushed_log_block_pct`).
const BLOCKS_PER_METASLAB: u64 = 4;
/// Most segments of unflushed changes in memory: about 16 MiB.
const MAX_SEGMENTS: usize = 1 << 17;
/// So many logs that nobody needs are kept for their objects.
pub const KEPT: usize = 32;
/// The last logs, whose blocks say how many are to be expected (`zfs_max_log_walking`).
const RECENT_LOGS: usize = 5;

/// A metaslab: top-level vdev, and number in it.
pub type MetaslabId = (u32, u64);

/// What a metaslab's own map does not say yet.
#[derive(Clone, Debug, Default)]
pub struct Unflushed {
    /// The group from which on logs count for it.
    pub since: Txg,
    /// They speak of it.
    pub dirty: bool,
    /// What was taken since, in the vdev's space.
    pub taken: Segments,
    /// What was given back since.
    pub given_back: Segments,
}

impl Unflushed {
    fn note(&mut self, kind: SpaceKind, range: Range<u64>) {
        let (to, from) = match kind {
            SpaceKind::Alloc => (&mut self.taken, &mut self.given_back),
            SpaceKind::Free => (&mut self.given_back, &mut self.taken),
        };
        let mut rest = Segments::default();
        rest.add(range.clone());
        for undone in from.remove_common(&range) {
            rest.remove(undone);
        }
        for part in rest.iter() {
            to.add(part);
        }
    }

    fn segments(&self) -> usize {
        self.taken.len() + self.given_back.len()
    }
}

/// The log of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Its space map.
    pub object: ObjectId,
    /// Blocks in it.
    pub blocks: u64,
}

/// The logs of a pool, and what they mean for its metaslabs.
#[derive(Clone, Debug, Default)]
pub struct SpaceLog {
    /// The ZAP that leads from groups to logs, if there is one.
    pub zap: Option<ObjectId>,
    /// The logs.
    pub logs: BTreeMap<Txg, Log>,
    /// The metaslabs that were in a log since there are logs.
    pub metaslabs: BTreeMap<MetaslabId, Unflushed>,
    /// Objects of the arrays of *since*, by vdev.
    pub arrays: BTreeMap<u32, ObjectId>,
}

impl SpaceLog {
    /// Group `txg` is about to change a metaslab. True if its *since* is another now.
    pub fn mark(&mut self, id: MetaslabId, txg: Txg) -> bool {
        let metaslab = self.metaslabs.entry(id).or_default();
        let moved = !metaslab.dirty;
        if moved {
            metaslab.since = txg;
            metaslab.dirty = true;
        }
        moved
    }

    /// A log of group `txg` speaks of a metaslab.
    pub fn note(&mut self, id: MetaslabId, txg: Txg, kind: SpaceKind, range: Range<u64>) {
        if let Some(metaslab) = self.metaslabs.get_mut(&id).filter(|m| m.since <= txg) {
            metaslab.dirty = true;
            metaslab.note(kind, range);
        }
    }

    /// A metaslab's own map is up to date with the beginning of group `txg`: gives what it had not said.
    pub fn flushed(&mut self, id: MetaslabId, txg: Txg) -> Unflushed {
        let new = Unflushed { since: txg, ..Unflushed::default() };
        self.metaslabs.insert(id, new).unwrap_or_default()
    }

    /// The metaslabs that group `txg` brings up to date, in this order: those that are due, or `all`. Some are not dirty.
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

    /// How many dirty metaslabs are to be flushed for the limits to hold, and whether one is passed already.
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
        // With this group's own.
        let mut room_blocks = most_blocks - blocks.cast_signed() - rate;
        let mut room_logs = all.clamp(LOGS.0, LOGS.1).cast_signed() - logs.len() as i64 - 1;
        let crowded = room_blocks < 0 || room_logs < 0;
        let (mut txgs, mut sum, mut wanted) = (1, 0, 0);
        for (txg, log) in &logs {
            if room_blocks >= 0 && room_logs >= 0 {
                let pass = (room_blocks / rate).min(room_logs) + 1;
                room_blocks -= pass * rate;
                room_logs -= pass;
                txgs += pass.cast_unsigned();
            }
            // By then, this log has to be gone.
            room_blocks += log.blocks.cast_signed();
            room_logs += 1;
            sum += dirty.get(txg).copied().unwrap_or(0);
            wanted = wanted.max(sum / txgs);
        }
        (wanted, crowded)
    }

    /// The group of the oldest log that counts for a metaslab; `txg` if none does.
    fn oldest(&self, txg: Txg) -> Txg {
        self.metaslabs.values().map(|m| m.since).min().unwrap_or(txg).min(txg)
    }

    /// Takes out logs that nobody needs any more, the oldest first: one, if there is one, and all but the last `kept`.
    pub fn take_obsolete(&mut self, txg: Txg, kept: usize) -> Vec<(Txg, Log)> {
        let oldest = self.oldest(txg);
        let obsolete: Vec<(Txg, Log)> = self.logs.range(..oldest).map(|(txg, log)| (*txg, *log)).collect();
        let take = obsolete.len().min(obsolete.len().saturating_sub(kept).max(1));
        let taken: Vec<(Txg, Log)> = obsolete.into_iter().take(take).collect();
        self.logs.retain(|txg, _| taken.iter().all(|(of, _)| of != txg));
        taken
    }
}
