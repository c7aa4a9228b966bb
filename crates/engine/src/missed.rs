//! What devices missed: written down, so that whoever has such a device later knows what is old on it.
//!
//! A leaf that is not there, or refused a write, misses the group's blocks. Its dirty-time log is a space map in the MOS
//! whose segments are transaction groups; the configuration names it. It is written with the group itself: a group that
//! counts has its gaps on record. What is missed only while the MOS is being written stands in the log of the next group.
//! A scrub without errors, from its beginning in this program's hands, ends what it covered, but not for sides of mirrors
//! below RAID-Z: of those it asks one only. Nor does it where blocks may have passed it by: a copy shares them with a file
//! that the scrub has behind it, a snapshot that goes leaves them to the next.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (theory above `vdev_dtl_dirty`, `vdev_dtl_sync`).

use super::labels;
use super::syncing::Syncing;
use std::collections::BTreeMap;
use weir_dmu::space_map::{self, Style};
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{NvList, ObjectId, Txg};
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::ranges::Ranges;

/// Bytes of a block of such a log (`zfs_vdev_dtl_sm_blksz`).
const BLOCK_BYTES: u32 = 4 << 10;
/// Name in a leaf's configuration.
const DTL: &str = "DTL";

/// What each leaf missed, by its GUID.
#[derive(Clone, Debug, Default)]
pub struct Missed {
    by_leaf: BTreeMap<u64, Ranges>,
    /// Leaves that are not there.
    absent: Vec<u64>,
}

impl Missed {
    /// What the pool's logs say, and which leaves are not there.
    pub fn new(logs: &BTreeMap<u64, Vec<(Txg, Txg)>>, absent: Vec<u64>) -> Self {
        let mut out = Missed { absent, ..Missed::default() };
        for (guid, ranges) in logs {
            out.add(*guid, ranges);
        }
        out
    }

    /// Adds inclusive ranges of groups; true if any of it is new.
    fn add(&mut self, guid: u64, ranges: &[(Txg, Txg)]) -> bool {
        let all = self.by_leaf.entry(guid).or_default();
        let before = all.bytes();
        for (from, to) in ranges {
            all.add(from.0, (to.0 - from.0.min(to.0)).saturating_add(1));
        }
        all.bytes() != before
    }

    /// Forgets what leaves missed up to a group, but not those that are absent or in `but`. Gives those that are changed.
    fn forget(&mut self, up_to: Txg, but: &[u64]) -> Vec<u64> {
        let mut changed = Vec::new();
        for (guid, ranges) in &mut self.by_leaf {
            let before = ranges.bytes();
            if !self.absent.contains(guid) && !but.contains(guid) {
                ranges.remove(0, up_to.0.saturating_add(1));
            }
            if ranges.bytes() != before {
                changed.push(*guid);
            }
        }
        changed
    }

    fn segments(&self, guid: u64) -> Vec<SpaceSegment> {
        let one = |(start, length): (u64, u64)| SpaceSegment {
            kind: SpaceKind::Alloc,
            vdev: None,
            offset_bytes: start,
            length_bytes: length,
            words: 1,
        };
        self.by_leaf.get(&guid).map_or_else(Vec::new, |ranges| ranges.iter().map(one).collect())
    }
}

/// The leaves that a scrub does not ask for all that they hold: a disk and its spare or replacement below RAID-Z or dRAID.
fn untested(root: &VdevConfig) -> Vec<u64> {
    let striped = |vdev: &&VdevConfig| matches!(vdev.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. });
    let sides = root.walk().into_iter().filter(striped).flat_map(|vdev| &vdev.children).filter(|c| !c.is_leaf());
    sides.flat_map(VdevConfig::leaves).map(|leaf| leaf.guid).collect()
}

impl Syncing<'_> {
    /// A scrub went through all blocks up to group `up_to`, since this program opened the pool, and found right, or put
    /// right, every copy: the leaves that were there all the time have missed nothing older.
    pub(super) async fn forget_missed(&mut self, up_to: Txg) -> Result<(), PoolError> {
        let bad = |source| PoolError::Decode { what: "vdev tree".into(), source };
        let mut kept = untested(&VdevConfig::parse(&self.core.config.root).map_err(bad)?);
        kept.extend(self.engine.cache.blocks().tree().missed().into_iter().map(|(guid, _)| guid));
        for guid in self.core.missed.forget(up_to, &kept) {
            self.write_log(guid).await?;
        }
        Ok(())
    }

    /// Writes down what devices missed up to this group.
    pub(super) async fn write_missed(&mut self) -> Result<(), PoolError> {
        let txg = self.change.txg();
        let found = self.engine.cache.blocks().tree().missed();
        let mut changed = Vec::new();
        for (guid, ranges) in &found {
            // A device that fails may fail once more before the group ends.
            let mut ranges = ranges.clone();
            ranges.push((txg, txg));
            if self.core.missed.add(*guid, &ranges) {
                changed.push(*guid);
            }
        }
        for guid in self.core.missed.absent.clone() {
            if self.core.missed.add(guid, &[(txg, txg)]) && !changed.contains(&guid) {
                changed.push(guid);
            }
        }
        for guid in changed {
            self.write_log(guid).await?;
        }
        Ok(())
    }

    async fn write_log(&mut self, guid: u64) -> Result<(), PoolError> {
        let known = labels::find(&self.core.config.root, guid).and_then(|leaf: &NvList| leaf.get_u64(DTL));
        let id = match known.filter(|id| *id != 0) {
            Some(id) => ObjectId(id),
            None => self.new_log(guid).await?,
        };
        let two_words = self.change.is_active("spacemap_v2").await?;
        let style = Style { shift: 0, two_words, pass: 1 };
        let segments = self.core.missed.segments(guid);
        let (rq, mos, tx) = (self.change.rq, &self.change.mos, self.change.tx);
        Ok(space_map::rewrite(rq, mos, tx, id, style, &segments, None).await?)
    }

    async fn new_log(&mut self, guid: u64) -> Result<ObjectId, PoolError> {
        let id = space_map::create(self.change.rq, &self.change.mos, self.change.tx, BLOCK_BYTES).await?;
        if self.change.is_enabled("spacemap_histogram").await? {
            self.change.count_feature("spacemap_histogram", 1).await?;
        }
        self.core.config.set_number(guid, DTL, id.0);
        self.core.config_dirty = true;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_groups_are_added_once() {
        let logs = BTreeMap::from([(7, vec![(Txg(10), Txg(12))])]);
        let mut missed = Missed::new(&logs, vec![8]);
        assert!(!missed.add(7, &[(Txg(11), Txg(12))]));
        assert!(missed.add(7, &[(Txg(13), Txg(13))]));
        assert!(missed.add(8, &[(Txg(13), Txg(13))]));
        let segments = missed.segments(7);
        assert_eq!(segments.iter().map(|s| (s.offset_bytes, s.length_bytes)).collect::<Vec<_>>(), [(10, 4)]);
        assert_eq!(missed.segments(9), []);
        // A scrub puts right what is there.
        assert!(missed.add(6, &[(Txg(3), Txg(3))]));
        assert_eq!(missed.forget(Txg(12), &[6]), [7]);
        assert_eq!(missed.segments(7).iter().map(|s| (s.offset_bytes, s.length_bytes)).collect::<Vec<_>>(), [(13, 1)]);
        assert_eq!(missed.segments(8).len() + missed.segments(6).len(), 2);
        assert_eq!(missed.forget(Txg(12), &[6]), [0u64; 0]);
    }

    #[test]
    fn sides_below_raidz_are_not_tested_by_a_scrub() {
        let vdev = |kind: &str, guid: u64, children: Vec<NvList>| {
            let mut list = NvList::new();
            list.set("type", kind);
            list.set("guid", guid);
            list.set("nparity", 1u64);
            if !children.is_empty() {
                list.set("children", children);
            }
            list
        };
        let disk = |guid| vdev("disk", guid, vec![]);
        let pair = |guid, a, b| vdev("replacing", guid, vec![disk(a), disk(b)]);
        let raidz = vdev("raidz", 1, vec![disk(10), pair(2, 11, 12), disk(13)]);
        let mirror = vdev("mirror", 3, vec![disk(20), pair(4, 21, 22)]);
        let root = VdevConfig::parse(&vdev("root", 5, vec![raidz, mirror])).unwrap();
        assert_eq!(untested(&root), [11, 12]);
    }
}
