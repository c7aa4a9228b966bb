//! Writing of DTLs to the MOS: the txgs that each leaf lacks, so that the next import knows its stale blocks.
//!
//! ```text
//!   DTLs of the leaves ([`weir_blocks::Tree::dtls`]) ─┐
//!                                                     ├─ differ? ─► space map of the leaf ─► `DTL` in its configuration
//!   DTLs as the space maps have them ─────────────────┘
//! ```
//!
//! The vdev tree owns the DTLs; this module compares them with what the MOS has.
//!
//! An absent leaf, or one that failed a write, lacks the txg's blocks. Its DTL is a space map in the MOS whose segments
//! are txgs; the leaf's configuration refers to it. The same txg writes it, so that a committed uberblock leads to a MOS
//! with that txg's DTLs. Writes that fail while the MOS is being written are recorded in the next txg. A leaf that failed
//! a flush fails every later one, so each txg is added to the DTL of these in advance.
//!
//! An error-free scrub that started in this process excises the txgs that it covered, except for mirror children below
//! RAID-Z, because a scrub reads only one of those, and for all devices of a dRAID vdev while a distributed spare, which
//! has its space on them, is in use. It excises nothing if blocks may have moved behind its position: block
//! cloning can share them with a file that was already visited, and destroying a snapshot moves them to the next one.
//!
//! As in OpenZFS, the space map of an empty DTL remains.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (theory above `vdev_dtl_dirty`, `vdev_dtl_sync`, `vdev_dtl_should_excise`).

use super::config::Config;
use super::labels;
use super::space::create_map;
use weir_blocks::{Dtl, Tree};
use weir_dmu::space_map::{self, Style};
use weir_dsl::sync_tasks::{DslSyncContext, features};
use weir_format::features::Feature;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{NvList, ObjectId, Txg};
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::dtls::Dtls;
use weir_pool::error::PoolError;

/// Block size of a DTL's space map, in bytes (`zfs_vdev_dtl_sm_blksz`).
const BLOCK_BYTES: u32 = 4 << 10;
/// Name in a leaf's configuration (`ZPOOL_CONFIG_DTL`).
const DTL: &str = "DTL";

/// The DTLs as the space maps of the MOS have them at the end of the syncing txg.
#[derive(Clone, Debug, Default)]
pub struct StoredDtls {
    stored: Dtls,
    /// The DTLs that the leaves had at the last comparison. A leaf whose DTL has grown since then fails now.
    compared: Dtls,
}

impl StoredDtls {
    /// The DTLs at import: `stored` from the space maps, `opened` with the txgs that the labels add.
    pub fn new(stored: Dtls, opened: Dtls) -> Self {
        StoredDtls { stored, compared: opened }
    }

    /// Whether the leaves lack txgs that the MOS does not record yet.
    pub(super) fn is_behind(&self, tree: &Tree) -> bool {
        tree.dtls().iter().any(|(guid, dtl)| has_more(&self.stored, *guid, dtl))
    }

    /// Leaves whose DTL is not the one of the MOS, with their DTL at the end of `txg`.
    ///
    /// A leaf that lacks more than before may fail again before the txg ends, so `txg` is added to its DTL.
    fn changed(&mut self, tree: &Tree, txg: Txg) -> Dtls {
        tree.dirty_lost(txg);
        for (guid, dtl) in tree.dtls() {
            if has_more(&self.compared, guid, &dtl)
                && let Ok(leaf) = tree.leaf(guid)
            {
                leaf.dirty_dtl(txg);
            }
        }
        let mut now = tree.dtls();
        self.compared = now.clone();
        // The space map of a DTL that became empty is emptied.
        for guid in self.stored.keys() {
            now.entry(*guid).or_default();
        }
        now.retain(|guid, dtl| self.stored.get(guid).map_or(!dtl.is_empty(), |stored| stored != dtl));
        now
    }

    /// Writes the DTLs that changed up to the txg of `change`. Returns whether `config` refers to a new space map.
    pub(super) async fn write(
        &mut self,
        change: &mut DslSyncContext<'_>,
        tree: &Tree,
        config: &mut Config,
    ) -> Result<bool, PoolError> {
        let mut config_changed = false;
        for (guid, dtl) in self.changed(tree, change.txg()) {
            // A device that is being detached has no DTL any more.
            let Some(is_new) = self.write_dtl(change, config, guid, &dtl).await? else {
                self.stored.remove(&guid);
                continue;
            };
            config_changed |= is_new;
            self.stored.insert(guid, dtl);
        }
        Ok(config_changed)
    }

    /// Forgets a leaf that was detached; its space map is gone.
    pub(super) fn forget(&mut self, guid: u64) {
        self.stored.remove(&guid);
        self.compared.remove(&guid);
    }

    /// A leaf has another GUID.
    pub(super) fn rename(&mut self, old: u64, new: u64) {
        for dtls in [&mut self.stored, &mut self.compared] {
            if let Some(dtl) = dtls.remove(&old) {
                dtls.insert(new, dtl);
            }
        }
    }

    /// Writes the DTL of one leaf. Returns whether its space map is new; `None` if the configuration has no such leaf.
    async fn write_dtl(
        &self,
        change: &mut DslSyncContext<'_>,
        config: &mut Config,
        guid: u64,
        dtl: &Dtl,
    ) -> Result<Option<bool>, PoolError> {
        let Some(leaf) = labels::find(&config.root, guid) else { return Ok(None) };
        let known = leaf.get_u64(DTL).filter(|id| *id != 0).map(ObjectId);
        let id = match known {
            Some(id) => id,
            None => {
                let id = create_map(change, BLOCK_BYTES).await?;
                config.set_number(guid, DTL, id.0);
                id
            }
        };
        let two_words = features::is_active(change, Feature::SPACEMAP_V2).await?;
        let style = Style { shift: 0, two_words, pass: 1 };
        space_map::rewrite(change.rq, &change.mos, change.tx, id, style, &segments(dtl), None).await?;
        Ok(Some(known.is_none()))
    }
}

/// Excises the DTLs of the leaves that were present from txgs up to `scrubbed`.
///
/// Precondition: a scrub that started in this process verified or repaired every copy of all blocks born up to `scrubbed`.
pub(super) fn excise(root: &NvList, tree: &Tree, scrubbed: Txg) -> Result<(), PoolError> {
    let bad = |source| PoolError::Decode { what: "vdev tree".into(), source };
    let kept = not_scrubbed(&VdevConfig::parse(root).map_err(bad)?);
    for guid in tree.dtls().into_keys().filter(|guid| !kept.contains(guid)) {
        if let Ok(leaf) = tree.leaf(guid) {
            let rest = leaf.excise_dtl(scrubbed);
            tracing::debug!(device = leaf.name(), ?rest, "the scrub covered the DTL");
        }
    }
    Ok(())
}

/// Excises the DTLs of the leaves in service from txgs up to `last`, after a resilver gave them every block born up to then.
/// Unlike a scrub, it writes to each side of a disk and its spare or replacement.
pub(super) fn excise_resilvered(tree: &Tree, last: Txg) {
    for guid in tree.dtls().into_keys() {
        if let Ok(leaf) = tree.leaf(guid) {
            let rest = leaf.excise_dtl(last);
            tracing::debug!(device = leaf.name(), ?rest, "resilvered");
        }
    }
}

/// Whether a DTL has txgs that the one of `known` has not.
fn has_more(known: &Dtls, guid: u64, dtl: &Dtl) -> bool {
    known.get(&guid).cloned().unwrap_or_default().add_all(dtl)
}

/// The ranges of a DTL as segments of a space map.
fn segments(dtl: &Dtl) -> Vec<SpaceSegment> {
    let one = |(first, last): &(Txg, Txg)| SpaceSegment {
        kind: SpaceKind::Alloc,
        vdev: None,
        offset_bytes: first.0,
        length_bytes: (last.0 - first.0).saturating_add(1),
        words: 1,
    };
    dtl.ranges().iter().map(one).collect()
}

/// Leaves that a scrub does not read completely: a disk and its spare or replacement below RAID-Z or dRAID, and the disks
/// that have the space of a distributed spare in use.
fn not_scrubbed(root: &VdevConfig) -> Vec<u64> {
    let striped = |vdev: &&VdevConfig| matches!(vdev.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. });
    let has_spare = |vdev: &VdevConfig| vdev.leaves().iter().any(|leaf| leaf.kind == VdevKind::DraidSpare);
    let children = root.walk().into_iter().filter(striped).flat_map(|vdev| {
        let has_spare = has_spare(vdev);
        vdev.children.iter().filter(move |child| has_spare || !child.is_leaf())
    });
    children.flat_map(VdevConfig::leaves).map(|leaf| leaf.guid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_blocks::VdevSpec;

    fn dtl(ranges: &[(u64, u64)]) -> Dtl {
        ranges.iter().map(|(first, last)| (Txg(*first), Txg(*last))).collect::<Vec<_>>().into()
    }

    /// A mirror of a present leaf 7, whose DTL is given, and a missing leaf 8.
    fn tree(lacks: &[(u64, u64)]) -> std::sync::Arc<Tree> {
        let world = weir_sim::SimWorld::new(1);
        world.add_disk("/d", 1 << 26, 512, weir_sim::Timing::Nvme);
        let machine = world.machine();
        let disk = machine.disks.open("/d".as_ref(), weir_machine::Access::ReadWrite).unwrap();
        let present = VdevSpec { dtl: dtl(lacks), ..VdevSpec::leaf(0, 7, "present", Some(disk)) };
        let mirror =
            VdevSpec::inner(0, 1, "mirror-0", VdevKind::Mirror, vec![present, VdevSpec::leaf(1, 8, "gone", None)]);
        Tree::new(vec![mirror.top(12, 0)], &machine.clock).unwrap()
    }

    #[test]
    fn a_dtl_grows_while_a_leaf_fails_or_is_absent() {
        let tree = tree(&[(10, 12)]);
        let mut stored = StoredDtls::new(tree.dtls(), tree.dtls());
        assert!(!stored.is_behind(&tree));
        let changed = stored.changed(&tree, Txg(20));
        assert_eq!(changed, Dtls::from([(8, dtl(&[(20, 20)]))]), "leaf 8 is absent");
        stored.stored.extend(changed);
        tree.leaf(7).unwrap().dirty_dtl(Txg(13));
        assert!(stored.is_behind(&tree));
        let changed = stored.changed(&tree, Txg(21));
        let expected = Dtls::from([(7, dtl(&[(10, 13), (21, 21)])), (8, dtl(&[(20, 21)]))]);
        assert_eq!(changed, expected, "leaf 7 may fail again in this txg");
        stored.stored.extend(changed);
        tree.leaf(7).unwrap().dirty_dtl(Txg(21));
        assert!(!stored.is_behind(&tree), "it is recorded already");
        assert!(tree.leaf(7).unwrap().excise_dtl(Txg(20)).is_none(), "it lacks later txgs");
        assert_eq!(tree.leaf(7).unwrap().excise_dtl(Txg(30)), Some(Dtl::default()));
        assert!(tree.leaf(8).unwrap().excise_dtl(Txg(30)).is_none(), "a scrub does not repair absent leaves");
        assert_eq!(stored.changed(&tree, Txg(22)).get(&7), Some(&Dtl::default()));
    }

    #[test]
    fn a_dtl_that_the_labels_imply_is_written() {
        let tree = tree(&[(10, 12)]);
        let changed = StoredDtls::new(Dtls::new(), tree.dtls()).changed(&tree, Txg(20));
        assert_eq!(changed.get(&7), Some(&dtl(&[(10, 12)])), "and it lacks nothing new");
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
        let spared = vdev("spare", 7, vec![disk(31), vdev("dspare", 32, vec![])]);
        let mut draid = vdev("draid", 6, vec![disk(30), spared, disk(33), disk(34)]);
        draid.set("draid_ndata", 2u64);
        draid.set("draid_nspares", 1u64);
        draid.set("draid_ngroups", 3u64);
        let root = VdevConfig::parse(&vdev("root", 5, vec![draid])).unwrap();
        assert_eq!(not_scrubbed(&root), [30, 31, 32, 33, 34], "each has space of the distributed spare");
    }
}
