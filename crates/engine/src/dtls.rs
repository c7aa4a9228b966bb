//! Writing of DTLs to the MOS: the txgs that each leaf lacks, so that the next import knows its stale blocks.
//!
//! ```text
//!   devices' DTLs ([`weir_blocks::Tree::dtls`]) ─┐
//!   absent leaves: the syncing txg ──────────────┼─► changes ─► space map of the leaf ─► `DTL` in its configuration
//!   a finished scrub: excised txgs ──────────────┘
//! ```
//!
//! An absent leaf, or one that failed a write, lacks the txg's blocks. Its DTL is a space map in the MOS whose segments
//! are txgs; the leaf's configuration refers to it. The same txg writes it, so that a committed uberblock leads to a MOS
//! with that txg's DTLs. Writes that fail while the MOS is being written are recorded in the next txg. A leaf that failed
//! a flush fails every later one, so each txg is recorded for it in advance.
//!
//! An error-free scrub that started in this process excises the txgs that it covered, except for mirror children below
//! RAID-Z, because a scrub reads only one of those. It excises nothing if blocks may have moved behind its position: block
//! cloning can share them with a file that was already visited, and destroying a snapshot moves them to the next one.
//!
//! As in OpenZFS, the space map of an empty DTL remains.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (theory above `vdev_dtl_dirty`, `vdev_dtl_sync`, `vdev_dtl_should_excise`).

use super::config::Config;
use super::labels;
use super::space::create_map;
use std::collections::BTreeSet;
use weir_blocks::{Dtl, Tree};
use weir_dmu::space_map::{self, Style};
use weir_dsl::sync_tasks::DslSyncContext;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{NvList, ObjectId, Txg};
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::dtls::Dtls;
use weir_pool::error::PoolError;

/// Block size of a DTL's space map, in bytes (`zfs_vdev_dtl_sm_blksz`).
const BLOCK_BYTES: u32 = 4 << 10;
/// Name in a leaf's configuration (`ZPOOL_CONFIG_DTL`).
const DTL: &str = "DTL";

/// The DTL of each leaf as of the syncing txg.
#[derive(Clone, Debug, Default)]
pub struct LeafDtls {
    by_leaf: Dtls,
    /// Leaves whose space map must be rewritten.
    dirty: BTreeSet<u64>,
    /// Leaves that the import did not find.
    absent: Vec<u64>,
}

impl LeafDtls {
    /// The DTLs at import: `on_disk` from the space maps, `opened` with the txgs that the labels add.
    pub fn new(on_disk: &Dtls, opened: Dtls, absent: Vec<u64>) -> Self {
        let dirty = opened.iter().filter(|(guid, dtl)| on_disk.get(guid) != Some(dtl)).map(|(guid, _)| *guid).collect();
        LeafDtls { by_leaf: opened, dirty, absent }
    }

    /// Whether the devices lack txgs that are not recorded yet.
    pub(super) fn is_behind(&self, devices: &Dtls) -> bool {
        devices.iter().any(|(guid, dtl)| self.by_leaf.get(guid).is_none_or(|own| own.clone().add_all(dtl)))
    }

    /// Adds the txgs that the devices lack at the end of `txg`.
    ///
    /// A device whose DTL grew may fail again before the txg ends, so `txg` is added too. The same holds for absent
    /// devices and those that failed a flush (`unflushed`).
    fn grow(&mut self, devices: &Dtls, unflushed: &[u64], txg: Txg) {
        for (guid, dtl) in devices {
            let own = self.by_leaf.entry(*guid).or_default();
            if own.add_all(dtl) {
                own.add(txg, txg);
                self.dirty.insert(*guid);
            }
        }
        for guid in self.absent.iter().chain(unflushed) {
            if self.by_leaf.entry(*guid).or_default().add(txg, txg) {
                self.dirty.insert(*guid);
            }
        }
        debug_assert!(!self.is_behind(devices));
        debug_assert!(self.absent.iter().all(|guid| self.by_leaf[guid].contains(txg)));
    }

    /// The leaves that a scrub of all blocks born up to `scrubbed` may have repaired completely.
    ///
    /// These leaves are present and lack no later txg.
    fn scrubbed(&self, scrubbed: Txg) -> Vec<u64> {
        let ended = |dtl: &Dtl| dtl.max().is_some_and(|last| last <= scrubbed);
        let all = self.by_leaf.iter().filter(|(guid, dtl)| ended(dtl) && !self.absent.contains(guid));
        all.map(|(guid, _)| *guid).collect()
    }

    /// Replaces the DTL of a leaf.
    fn replace(&mut self, guid: u64, dtl: Dtl) {
        if self.by_leaf.get(&guid) != Some(&dtl) {
            self.by_leaf.insert(guid, dtl);
            self.dirty.insert(guid);
        }
    }

    /// Excises txgs up to `scrubbed` from the DTLs of the leaves that were present.
    ///
    /// Precondition: a scrub that started in this process verified or repaired every copy of all blocks born up to
    /// `scrubbed`.
    pub(super) fn excise(&mut self, root: &NvList, tree: &Tree, scrubbed: Txg) -> Result<(), PoolError> {
        let bad = |source| PoolError::Decode { what: "vdev tree".into(), source };
        let kept = not_scrubbed(&VdevConfig::parse(root).map_err(bad)?);
        for guid in self.scrubbed(scrubbed).into_iter().filter(|guid| !kept.contains(guid)) {
            if let Some(rest) = tree.excise_dtl(guid, scrubbed) {
                self.replace(guid, rest);
            }
        }
        Ok(())
    }

    /// Writes the DTLs that changed up to the txg of `change`. Returns whether `config` refers to a new space map.
    pub(super) async fn write(
        &mut self,
        change: &mut DslSyncContext<'_>,
        tree: &Tree,
        config: &mut Config,
    ) -> Result<bool, PoolError> {
        let txg = change.txg();
        self.grow(&tree.dtls(), &tree.unflushed(), txg);
        self.absent.iter().for_each(|guid| tree.dirty_dtl(*guid, txg));
        let mut config_changed = false;
        for guid in self.dirty.clone() {
            config_changed |= self.write_dtl(change, config, guid).await?;
            self.dirty.remove(&guid);
        }
        Ok(config_changed)
    }

    /// Writes the DTL of one leaf. Returns whether its space map is new.
    async fn write_dtl(
        &self,
        change: &mut DslSyncContext<'_>,
        config: &mut Config,
        guid: u64,
    ) -> Result<bool, PoolError> {
        let Some(leaf) = labels::find(&config.root, guid) else { return Ok(false) };
        let known = leaf.get_u64(DTL).filter(|id| *id != 0).map(ObjectId);
        let id = match known {
            Some(id) => id,
            None => {
                let id = create_map(change, BLOCK_BYTES).await?;
                config.set_number(guid, DTL, id.0);
                id
            }
        };
        let two_words = change.is_active("spacemap_v2").await?;
        let style = Style { shift: 0, two_words, pass: 1 };
        space_map::rewrite(change.rq, &change.mos, change.tx, id, style, &self.segments(guid), None).await?;
        Ok(known.is_none())
    }

    fn segments(&self, guid: u64) -> Vec<SpaceSegment> {
        let one = |(first, last): &(Txg, Txg)| SpaceSegment {
            kind: SpaceKind::Alloc,
            vdev: None,
            offset_bytes: first.0,
            length_bytes: (last.0 - first.0).saturating_add(1),
            words: 1,
        };
        self.by_leaf.get(&guid).map_or_else(Vec::new, |dtl| dtl.ranges().iter().map(one).collect())
    }
}

/// Leaves that a scrub does not read completely: a disk and its spare or replacement below RAID-Z or dRAID.
fn not_scrubbed(root: &VdevConfig) -> Vec<u64> {
    let striped = |vdev: &&VdevConfig| matches!(vdev.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. });
    let mirrors = root.walk().into_iter().filter(striped).flat_map(|vdev| &vdev.children).filter(|c| !c.is_leaf());
    mirrors.flat_map(VdevConfig::leaves).map(|leaf| leaf.guid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dtl(first: u64, last: u64) -> Dtl {
        vec![(Txg(first), Txg(last))].into()
    }

    fn lengths(dtls: &LeafDtls, guid: u64) -> Vec<(u64, u64)> {
        dtls.segments(guid).iter().map(|s| (s.offset_bytes, s.length_bytes)).collect()
    }

    #[test]
    fn a_dtl_grows_while_a_leaf_fails_or_is_absent() {
        let mut dtls = LeafDtls::new(&Dtls::from([(7, dtl(10, 12))]), Dtls::from([(7, dtl(10, 12))]), vec![8]);
        assert!(dtls.dirty.is_empty());
        dtls.grow(&Dtls::from([(7, dtl(10, 12))]), &[], Txg(20));
        assert_eq!((lengths(&dtls, 7), lengths(&dtls, 8)), (vec![(10, 3)], vec![(20, 1)]));
        assert!(dtls.is_behind(&Dtls::from([(7, dtl(10, 13))])));
        dtls.grow(&Dtls::from([(7, dtl(10, 13))]), &[], Txg(21));
        assert_eq!((lengths(&dtls, 7), lengths(&dtls, 8)), (vec![(10, 4), (21, 1)], vec![(20, 2)]));
        dtls.grow(&Dtls::from([(7, dtl(10, 13))]), &[9], Txg(22));
        assert_eq!(lengths(&dtls, 7), [(10, 4), (21, 1)], "the leaf did not fail again");
        assert_eq!(lengths(&dtls, 9), [(22, 1)], "the leaf fails every flush");
        assert_eq!(lengths(&dtls, 6), []);
        assert_eq!(dtls.scrubbed(Txg(20)), [0u64; 0]);
        assert_eq!(dtls.scrubbed(Txg(30)), [7, 9], "a scrub does not repair absent leaves");
        dtls.replace(7, dtl(11, 11));
        assert_eq!(lengths(&dtls, 7), [(11, 1)]);
    }

    #[test]
    fn a_dtl_that_the_labels_imply_is_written() {
        let dtls = LeafDtls::new(&Dtls::new(), Dtls::from([(7, dtl(10, 12))]), Vec::new());
        assert!(dtls.dirty.contains(&7));
    }

    #[test]
    fn a_scrub_does_not_read_all_mirror_children_below_raidz() {
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
        assert_eq!(not_scrubbed(&root), [11, 12]);
    }
}
