//! Invariants of directories, datasets and snapshots: links, counts and sums.
//!
//! ```text
//!   directory   used: the sum of its breakdown · children: their used bytes · head, snapshots: from their datasets
//!   dataset     previous ◄─► next, with its txg · num_children: the next one and the clones
//!               referenced: the previous snapshot's, minus the dead list, plus the blocks born since
//! ```
//!
//! Source: OpenZFS `module/zfs/dsl_dir.c` (`dsl_dir_diduse_space`), `dsl_dataset.c` (`dsl_dataset_block_born`,
//! `dsl_dataset_block_kill`, `dsl_dataset_create_sync_dd`, `dsl_dataset_snapshot_sync_impl`).

use super::deadlists::{self, Dead};
use super::trees::Born;
use super::{Part, Report};
use crate::mos::{MAX_ENTRIES, Mos};
use crate::open::Pool;
use std::collections::{BTreeMap, BTreeSet};
use weir_dmu::{ObjectError, Objects, Zap};
use weir_dsl::bpobj::Sums;
use weir_format::dsl::dir_field;
use weir_format::{DslDataset, DslDir, ObjectId, ObjectType, ObjsetId, Txg};
use weir_machine::Request;

/// Flag of a directory that maintains a breakdown.
const BREAKDOWN: u64 = 1;
/// Indexes of a breakdown (`dd_used_t`).
const HEAD: usize = 0;
const SNAPSHOTS: usize = 1;
const CHILDREN: usize = 2;
const CHILDREN_RESERVED: usize = 3;

/// All directories and datasets of a pool, including hidden ones.
pub(super) struct Datasets {
    dirs: BTreeMap<ObjectId, DslDir>,
    sets: BTreeMap<ObjectId, DslDataset>,
    /// Children of each directory by name.
    children: BTreeMap<ObjectId, BTreeMap<String, ObjectId>>,
    dead: BTreeMap<ObjectId, Dead>,
}

/// Checks the directories and datasets of a pool.
pub(super) async fn check(
    rq: &Request,
    pool: &Pool,
    born: &BTreeMap<ObjsetId, Born>,
    report: &mut Report,
) -> Result<(), ObjectError> {
    let datasets = Datasets::read(rq, pool, report).await?;
    for (id, set) in &datasets.sets {
        datasets.check_links(rq, &pool.mos, *id, set, report).await;
        datasets.check_sums(*id, set, born, report);
    }
    for (id, dir) in &datasets.dirs {
        datasets.check_dir(*id, dir, report);
        datasets.check_counts(rq, &pool.mos, *id, report).await;
    }
    Ok(())
}

fn place(id: ObjectId) -> String {
    format!("object {id}")
}

impl Datasets {
    async fn read(rq: &Request, pool: &Pool, report: &mut Report) -> Result<Self, ObjectError> {
        let mos = &pool.mos;
        let mut dirs = BTreeMap::new();
        let mut sets = BTreeMap::new();
        let mut objects = Objects::of(&mos.set);
        while let Some((id, dnode)) = objects.next(rq).await? {
            let Ok(dnode) = dnode else { continue };
            match dnode.bonus_type {
                ObjectType::DSL_DIR => {
                    drop(DslDir::decode(dnode.bonus(), dnode.endian).map(|dir| dirs.insert(id, dir)))
                }
                ObjectType::DSL_DATASET => {
                    drop(DslDataset::decode(dnode.bonus(), dnode.endian).map(|set| sets.insert(id, set)));
                }
                _ => {}
            }
        }
        let mut children = BTreeMap::new();
        for (id, dir) in dirs.iter().filter(|(_, dir)| dir.children.0 != 0) {
            let read = mos.numbers(rq, dir.children).await;
            let Some(below) = report.readable(Part::Dsl, place(*id), read) else { continue };
            children.insert(*id, below.into_iter().map(|(name, id)| (name, ObjectId(id))).collect());
        }
        let mut dead = BTreeMap::new();
        for (id, set) in sets.iter().filter(|(_, set)| set.deadlist.0 != 0) {
            let read = deadlists::check(rq, pool, set.deadlist, set.prev_snapshot_txg, report).await;
            if let Some(read) = report.readable(Part::Deadlist, place(*id), read) {
                dead.insert(*id, read);
            }
        }
        Ok(Datasets { dirs, sets, children, dead })
    }

    /// Checks the links between a dataset, its directory, the previous and next snapshots, and its clones.
    async fn check_links(&self, rq: &Request, mos: &Mos, id: ObjectId, set: &DslDataset, report: &mut Report) {
        let place = place(id);
        report.demand(self.dirs.contains_key(&set.dir), Part::Dsl, &place, || format!("no directory {}", set.dir));
        let is_head = self.dirs.get(&set.dir).is_some_and(|dir| dir.head_dataset == id);
        let shape = (set.children == 0, set.next_snapshot.0 == 0, set.snapshot_names.0 != 0);
        let expected = (is_head, is_head, is_head);
        report.demand(shape == expected || set.children == 0 && !is_head, Part::Dsl, &place, || {
            let (children, next, names) = (set.children, set.next_snapshot, set.snapshot_names);
            format!("head {is_head}, but {children} children, next {next}, names in {names}")
        });
        if let Some(prev) = self.sets.get(&set.prev_snapshot) {
            let txg = prev.creation_txg;
            report.demand(set.prev_snapshot_txg == txg, Part::Dsl, &place, || {
                format!("previous snapshot of txg {}, that one was made in {txg}", set.prev_snapshot_txg)
            });
            let is_clone = prev.dir != set.dir;
            report.demand(is_clone || prev.next_snapshot == id, Part::Dsl, &place, || {
                format!("its previous snapshot leads on to {}", prev.next_snapshot)
            });
        } else {
            let none = (set.prev_snapshot.0, set.prev_snapshot_txg);
            report.demand(none == (0, Txg(0)), Part::Dsl, &place, || {
                format!("previous snapshot {} of txg {}, which is none", none.0, none.1)
            });
        }
        if let Some(next) = self.sets.get(&set.next_snapshot) {
            report.demand(next.prev_snapshot == id, Part::Dsl, &place, || {
                format!("the next one, {}, goes back to {}", set.next_snapshot, next.prev_snapshot)
            });
        }
        if set.children > 0 {
            self.check_clones(rq, mos, id, set, report).await;
        }
        if is_head {
            self.check_names(rq, mos, id, set, report).await;
        }
    }

    /// Checks the clones of a snapshot: those that the ZAP lists, and their number in the count of children.
    async fn check_clones(&self, rq: &Request, mos: &Mos, id: ObjectId, set: &DslDataset, report: &mut Report) {
        let mut listed = BTreeSet::new();
        if set.next_clones.0 != 0 {
            let read = entries(rq, mos, set.next_clones).await;
            let Some(found) = report.readable(Part::Dsl, place(id), read) else { return };
            listed.extend(found);
        }
        let is_clone = |other: &&DslDataset| other.prev_snapshot == id && other.dir != set.dir;
        let clones: BTreeSet<ObjectId> =
            self.sets.iter().filter(|(_, other)| is_clone(other)).map(|(id, _)| *id).collect();
        // Pools older than version 11 list none.
        report.demand(listed == clones || set.next_clones.0 == 0, Part::Dsl, place(id), || {
            format!("lists the clones {listed:?}, those are {clones:?}")
        });
        let next = u64::from(self.sets.get(&set.next_snapshot).is_some_and(|next| next.dir == set.dir));
        let children = clones.len() as u64 + next;
        report.demand(set.children == children || set.dir.0 == 0, Part::Dsl, place(id), || {
            format!("{} children, there are {children}", set.children)
        });
    }

    /// Checks the names of a dataset's snapshots: one for each in its chain.
    async fn check_names(&self, rq: &Request, mos: &Mos, id: ObjectId, set: &DslDataset, report: &mut Report) {
        let read = mos.numbers(rq, set.snapshot_names).await;
        let Some(names) = report.readable(Part::Dsl, place(id), read) else { return };
        let named: BTreeSet<ObjectId> = names.into_values().map(ObjectId).collect();
        let mut chain = BTreeSet::new();
        let mut at = set.prev_snapshot;
        while let Some(snapshot) = self.sets.get(&at).filter(|s| s.dir == set.dir) {
            if !chain.insert(at) {
                break;
            }
            at = snapshot.prev_snapshot;
        }
        report.demand(named == chain, Part::Dsl, place(id), || {
            format!("names of the snapshots {named:?}, its chain has {chain:?}")
        });
        let origin = self.dirs.get(&set.dir).map_or(ObjectId(0), |dir| dir.origin);
        report.demand(origin == at || origin.0 == 0, Part::Dsl, place(id), || {
            format!("its directory's origin is {origin}, its chain begins at {at}")
        });
    }

    /// Checks the referenced and unique bytes of a dataset.
    fn check_sums(&self, id: ObjectId, set: &DslDataset, born: &BTreeMap<ObjsetId, Born>, report: &mut Report) {
        let Some(Born { sums: Some(born) }) = born.get(&ObjsetId(id.0)) else { return };
        let before = self.sets.get(&set.prev_snapshot);
        let mut sums = before.map_or(Sums::default(), referenced);
        if before.is_some() {
            let Some(dead) = self.dead.get(&id) else { return };
            sums -= dead.sums;
        }
        sums += *born;
        let own = referenced(set);
        report.demand(sums == own, Part::Dsl, place(id), || {
            format!("refers to {own:?}; what it took over, less its dead list, with what was born since: {sums:?}")
        });
        if set.children == 0 && set.flags & DslDataset::UNIQUE_ACCURATE != 0 {
            report.demand(set.unique_bytes == born.used_bytes, Part::Dsl, place(id), || {
                format!("unique {} bytes, born since its snapshot are {}", set.unique_bytes, born.used_bytes)
            });
        }
        if let Some(dead) = self.dead.get(&set.next_snapshot).filter(|_| set.children > 0) {
            let unique = dead.born_after(set.prev_snapshot_txg);
            report.demand(unique.is_none_or(|unique| unique == set.unique_bytes), Part::Dsl, place(id), || {
                format!("unique {} bytes, the next one's dead list has {unique:?}", set.unique_bytes)
            });
        }
    }

    fn below(&self, id: ObjectId) -> impl Iterator<Item = &DslDir> {
        self.children.get(&id).into_iter().flat_map(BTreeMap::values).filter_map(|id| self.dirs.get(id))
    }

    fn check_dir(&self, id: ObjectId, dir: &DslDir, report: &mut Report) {
        for child in self.children.get(&id).into_iter().flat_map(BTreeMap::values) {
            let parent = self.dirs.get(child).map(|child| child.parent);
            report.demand(parent == Some(id), Part::Dsl, place(*child), || {
                format!("parent {parent:?}, it is below {id}")
            });
        }
        if let Some(head) = self.sets.get(&dir.head_dataset) {
            report.demand(head.dir == id, Part::Dsl, place(id), || format!("its head is of directory {}", head.dir));
        } else {
            report.demand(dir.head_dataset.0 == 0, Part::Dsl, place(id), || format!("no head {}", dir.head_dataset));
        }
        if dir.flags & BREAKDOWN == 0 {
            return;
        }
        let used = &dir.used_breakdown;
        let mut demand = |what: &str, found: u64, sum: u64| {
            report.demand(found == sum, Part::Dsl, place(id), || format!("{what} {found} bytes, not {sum}"));
        };
        demand("used", dir.used_bytes, used.iter().fold(0, |sum, n| sum.saturating_add(*n)));
        let children = self.below(id).fold(0u64, |sum, child| sum.saturating_add(child.used_bytes));
        demand("used by children", used[CHILDREN], children);
        let reserved = |child: &DslDir| child.reserved_bytes.saturating_sub(child.used_bytes);
        let reserved = self.below(id).fold(0u64, |sum, child| sum.saturating_add(reserved(child)));
        demand("reserved for children", used[CHILDREN_RESERVED], reserved);
        if let Some((head, snapshots)) = self.own_sums(dir) {
            demand("used by its head", used[HEAD], head);
            demand("used by snapshots", used[SNAPSHOTS], snapshots);
        }
    }

    /// Returns the bytes of a directory that is no clone, in its head and in its snapshots: referenced by the head, and
    /// dead.
    fn own_sums(&self, dir: &DslDir) -> Option<(u64, u64)> {
        let head = self.sets.get(&dir.head_dataset)?;
        let mut dead = 0u64;
        let mut at = dir.head_dataset;
        let mut seen = BTreeSet::new();
        while let Some(set) = self.sets.get(&at).filter(|set| set.dir == head.dir) {
            dead = dead.saturating_add(self.dead.get(&at)?.sums.used_bytes);
            if !seen.insert(at) {
                return None;
            }
            at = set.prev_snapshot;
        }
        // The origin of all file systems holds next to nothing, and its dead list counts all the same.
        let origin = self.sets.get(&at);
        origin.is_none_or(|origin| origin.referenced_bytes == 0).then_some((head.referenced_bytes, dead))
    }

    /// The counts of file systems and snapshots below a directory, if it keeps them (`filesystem_limits`).
    async fn check_counts(&self, rq: &Request, mos: &Mos, id: ObjectId, report: &mut Report) {
        let Some(own) = self.counts(rq, mos, id).await else { return };
        let mut below = 0;
        for (name, child) in self.children.get(&id).into_iter().flatten() {
            // Hidden ones are not counted.
            if name.starts_with(['$', '%']) {
                continue;
            }
            let Some(counts) = self.counts(rq, mos, *child).await else { return };
            below += 1 + counts;
        }
        report.demand(own == below, Part::Dsl, place(id), || {
            format!("{}: {own}, there are {below}", dir_field::FILESYSTEM_COUNT)
        });
    }

    async fn counts(&self, rq: &Request, mos: &Mos, id: ObjectId) -> Option<u64> {
        let object = mos.set.object(rq, id).await.ok().filter(|object| object.dnode.object_type.is_zap())?;
        let zap = Zap::of(rq, &mos.set, object).await.ok()?;
        let found = zap.lookup(rq, dir_field::FILESYSTEM_COUNT.as_bytes(), weir_dmu::zap::Match::Exact).await;
        found.ok()??.first()
    }
}

fn referenced(set: &DslDataset) -> Sums {
    let DslDataset { referenced_bytes, compressed_bytes, uncompressed_bytes, .. } = *set;
    Sums { used_bytes: referenced_bytes, compressed_bytes, uncompressed_bytes }
}

/// The objects that a ZAP of numbers lists.
async fn entries(rq: &Request, mos: &Mos, id: ObjectId) -> Result<Vec<ObjectId>, ObjectError> {
    let all = Zap::open(rq, &mos.set, id).await?.all(rq, MAX_ENTRIES).await?;
    Ok(all.into_iter().filter_map(|entry| entry.value.first()).map(ObjectId).collect())
}
