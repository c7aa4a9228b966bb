//! Space limits (OpenZFS `dsl_dir_space_available`, `dsl_dir_tempreserve_space`, `dsl_dataset_check_quota`): the
//! arithmetic for operations here, and for the admission of transactions.
//!
//! Transaction admission must decide without reading the MOS: it keeps [`Limits`], a copy of the directories' numbers.
//! The syncer reads them all once ([`limits()`]), and after each txg those that it changed
//! ([`refresh`]). Dirty data in memory is added per txg: [`Limits::book`] when a transaction begins,
//! [`Limits::synced`] when its txg is on the disks.
//!
//! ```text
//!   set ─ refquota: referenced + waiting          head's directory ─ quota: used + waiting, less what the
//!         refreservation: covers the first bytes         │           refreservation holds unused for this head
//!                                                        ▼ charge: what its reservation does not cover
//!                                                   directory above ─ quota … ─ root: the pool's size less the slop
//! ```

use super::space::{available, available_without, charged};
use super::{DslError, DslSyncContext, create, names, properties};
use crate::props::ZfsProp;
use std::collections::{BTreeMap, BTreeSet};
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::live::{SpaceReserve, SpaceUsage};
use weir_format::dsl::dir_field;
use weir_format::{DslDir, ObjectId, ObjectType, ObjsetId, Txg};

/// Bytes that can still be written below a directory.
pub(super) async fn available_in(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<u64, DslError> {
    let way = names::upwards(cx, dir).await?;
    let levels: Vec<_> = way.iter().rev().map(|(_, phys)| level_of(phys)).collect();
    Ok(available(&levels, cx.pool.capacity_bytes))
}

/// Whether `bytes` more fit below a directory, together with those in `taken`, by directory, that others will take;
/// then adds these as well.
pub(super) async fn take_space(
    cx: &mut DslSyncContext<'_>,
    dir: ObjectId,
    bytes: u64,
    taken: &mut BTreeMap<ObjectId, u64>,
) -> Result<bool, DslError> {
    let mut path = Vec::new();
    for (at, phys) in names::upwards(cx, dir).await? {
        let used = phys.used_bytes.saturating_add(taken.get(&at).copied().unwrap_or(0));
        path.push((at, (phys.quota_bytes, used, phys.reserved_bytes)));
    }
    let levels: Vec<_> = path.iter().rev().map(|(_, level)| *level).collect();
    if bytes > available(&levels, cx.pool.capacity_bytes) {
        return Ok(false);
    }
    let mut more = bytes;
    for (id, (_, used, reserved)) in path {
        *taken.entry(id).or_default() += more;
        more = u64::try_from(charged(used, more as i64, reserved)).unwrap_or(0);
    }
    Ok(true)
}

/// Checks that a subtree may move below another directory: the new ancestors need space for it, where the first
/// common ancestor is relieved of the old charge (`dsl_dir_transfer_possible`).
///
/// # Errors
/// [`DslError::Space`] if a limit of datasets or snapshots is exceeded.
pub(super) async fn check_transfer(
    cx: &mut DslSyncContext<'_>,
    from: ObjectId,
    to: ObjectId,
    moved: &Moved,
) -> Result<bool, DslError> {
    let old = names::upwards(cx, from).await?;
    let new = names::upwards(cx, to).await?;
    let has = |way: &[(ObjectId, DslDir)], id: ObjectId| way.iter().any(|(at, _)| *at == id);
    let shared = new.iter().map(|(id, _)| *id).find(|id| has(&old, *id)).unwrap_or_default();
    let mut leaves = -i64::try_from(moved.bytes).unwrap_or(i64::MAX);
    for (_, phys) in old.iter().take_while(|(id, _)| *id != shared) {
        leaves = charged(phys.used_bytes, leaves, phys.reserved_bytes);
    }
    let levels: Vec<_> = new.iter().rev().map(|(_, phys)| level_of(phys)).collect();
    let at = new.iter().rev().position(|(id, _)| *id == shared).unwrap_or(usize::MAX);
    if moved.bytes > available_without(&levels, cx.pool.capacity_bytes, at, leaves) {
        return Ok(false);
    }
    create::check_count_limit(cx, to, dir_field::FILESYSTEM_COUNT, moved.datasets, shared).await?;
    create::check_count_limit(cx, to, dir_field::SNAPSHOT_COUNT, moved.snapshots, shared).await?;
    Ok(true)
}

/// The numbers of all directories and heads, for transaction admission.
pub async fn limits(cx: &mut DslSyncContext<'_>) -> Result<Limits, DslError> {
    let mut limits = Limits { capacity_bytes: cx.pool.capacity_bytes, ..Limits::default() };
    let mut to_read = vec![names::root_dir(cx).await?];
    let mut trail = CycleGuard::default();
    while let Some(id) = to_read.pop() {
        trail.step(&cx.mos, id)?;
        let dir = cx.dir(id).await?;
        to_read.extend(names::children_of(cx, &dir).await?.into_iter().map(|(_, child)| child));
        read_limits(cx, id, &mut limits).await?;
    }
    cx.touched.clear();
    Ok(limits)
}

/// Reads again the numbers that this txg changed. Returns the directories that it read.
pub async fn refresh(cx: &mut DslSyncContext<'_>, limits: &mut Limits) -> Result<BTreeSet<ObjectId>, DslError> {
    limits.capacity_bytes = cx.pool.capacity_bytes;
    let touched = std::mem::take(&mut cx.touched);
    for id in touched.iter().copied() {
        match cx.mos.object(cx.rq, id).await {
            Ok(object) if object.dnode.bonus_type == ObjectType::DSL_DIR => read_limits(cx, id, limits).await?,
            Ok(_) => {}
            Err(error) if error.is_absent() => limits.forget(id),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(touched)
}

async fn read_limits(cx: &mut DslSyncContext<'_>, id: ObjectId, limits: &mut Limits) -> Result<(), DslError> {
    let dir = cx.dir(id).await?;
    let of = DirLimits {
        parent: dir.parent,
        head: ObjsetId(dir.head_dataset.0),
        quota_bytes: dir.quota_bytes,
        used_bytes: dir.used_bytes,
        reserved_bytes: dir.reserved_bytes,
    };
    limits.forget(id);
    limits.dirs.insert(id, of);
    if dir.head_dataset.0 == 0 {
        return Ok(());
    }
    let head = cx.dataset(dir.head_dataset).await?;
    let set = SetLimits {
        dir: id,
        referenced_bytes: head.referenced_bytes,
        unique_bytes: head.unique_bytes,
        ref_quota_bytes: properties::own_number(cx, id, ZfsProp::RefQuota).await?,
        ref_reservation_bytes: properties::own_number(cx, id, ZfsProp::RefReservation).await?,
    };
    limits.sets.insert(ObjsetId(dir.head_dataset.0), set);
    Ok(())
}

/// Charge and counts of a subtree that moves from one directory to another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Bytes charged to the old parent, and to the new one.
    pub bytes: u64,
    /// File systems and volumes.
    pub datasets: u64,
    /// Snapshots.
    pub snapshots: u64,
}

/// The limits of a directory: quota, bytes used, bytes reserved.
pub(super) fn level_of(phys: &DslDir) -> (u64, u64, u64) {
    (phys.quota_bytes, phys.used_bytes, phys.reserved_bytes)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DirLimits {
    parent: ObjectId,
    /// The directory's live dataset; 0 for none.
    head: ObjsetId,
    quota_bytes: u64,
    used_bytes: u64,
    reserved_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SetLimits {
    dir: ObjectId,
    referenced_bytes: u64,
    unique_bytes: u64,
    ref_quota_bytes: u64,
    ref_reservation_bytes: u64,
}

/// Reason for which a transaction cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitRefusal {
    /// A quota or refquota is used up (`EDQUOT`).
    Quota,
    /// The pool is full (`ENOSPC`).
    Full,
    /// Too much together with the upper bound of the dirty data in memory: it may fit once that is synced.
    Wait,
}

/// The numbers that limit writing, as of the last synced txg, and the dirty data in memory.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The pool's size less its slop.
    pub capacity_bytes: u64,
    dirs: BTreeMap<ObjectId, DirLimits>,
    sets: BTreeMap<ObjsetId, SetLimits>,
    waiting: BTreeMap<Txg, BTreeMap<ObjsetId, u64>>,
    waiting_in: BTreeMap<ObjectId, u64>,
}

impl Limits {
    fn forget(&mut self, dir: ObjectId) {
        let Some(of) = self.dirs.remove(&dir) else { return };
        if self.sets.get(&of.head).is_some_and(|set| set.dir == dir) {
            self.sets.remove(&of.head);
        }
    }

    /// Referenced and available bytes of a set, where dirty data in memory counts as written.
    pub fn usage(&self, set: ObjsetId) -> Option<SpaceUsage> {
        let of = self.sets.get(&set)?;
        let waiting = self.waiting_of(set);
        let mut path = Vec::new();
        let mut at = of.dir;
        while let Some(dir) = self.dirs.get(&at).filter(|_| path.len() <= self.dirs.len()) {
            let in_flight = self.waiting_in.get(&at).copied().unwrap_or(0);
            path.push((dir.quota_bytes, dir.used_bytes.saturating_add(in_flight), dir.reserved_bytes));
            at = dir.parent;
        }
        path.reverse();
        let referenced_bytes = of.referenced_bytes.saturating_add(waiting);
        let held = of.ref_reservation_bytes.saturating_sub(of.unique_bytes.saturating_add(waiting));
        let mut available_bytes = available(&path, self.capacity_bytes).saturating_add(held);
        if of.ref_quota_bytes != 0 {
            available_bytes = available_bytes.min(of.ref_quota_bytes.saturating_sub(referenced_bytes));
        }
        Some(SpaceUsage { referenced_bytes, available_bytes })
    }

    /// Adds the upper bound of the bytes that a transaction of `txg` changes.
    pub fn book(&mut self, set: ObjsetId, txg: Txg, bytes: u64) {
        *self.waiting.entry(txg).or_default().entry(set).or_default() += bytes;
        self.climb(set, |waiting| *waiting = waiting.saturating_add(bytes));
    }

    /// Whether some transaction is not in the numbers yet: it may have freed space.
    pub fn anything_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Replaces the numbers by those that the syncer has read, and keeps the dirty data in memory.
    pub fn take_numbers(&mut self, read: &Limits) {
        self.capacity_bytes = read.capacity_bytes;
        self.dirs.clone_from(&read.dirs);
        self.sets.clone_from(&read.sets);
        self.add_up();
    }

    /// Replaces the numbers of these directories and their live datasets, the only ones that differ from `read`. The cost
    /// does not depend on the number of the others.
    pub fn take_changed(&mut self, read: &Limits, changed: &BTreeSet<ObjectId>) {
        self.capacity_bytes = read.capacity_bytes;
        for id in changed {
            self.forget(*id);
            let Some(of) = read.dirs.get(id) else { continue };
            self.dirs.insert(*id, *of);
            if let Some(set) = read.sets.get(&of.head).filter(|set| set.dir == *id) {
                self.sets.insert(of.head, *set);
            }
        }
        debug_assert!(self.dirs == read.dirs && self.sets == read.sets, "other numbers differ, too");
        self.add_up();
    }

    /// Subtracts the dirty data of `txg` and all txgs before it, which are synced: the numbers include it now.
    pub fn synced(&mut self, txg: Txg) {
        let later = self.waiting.split_off(&Txg(txg.0 + 1));
        self.waiting = later;
        self.add_up();
    }

    /// Recomputes the dirty data of each directory.
    fn add_up(&mut self) {
        self.waiting_in.clear();
        let sets: Vec<(ObjsetId, u64)> = self.waiting.values().flatten().map(|(set, bytes)| (*set, *bytes)).collect();
        for (set, bytes) in sets {
            self.climb(set, |waiting| *waiting = waiting.saturating_add(bytes));
        }
    }

    fn climb(&mut self, set: ObjsetId, change: impl Fn(&mut u64)) {
        let mut at = self.sets.get(&set).map(|of| of.dir);
        // Parents come from the disk: take no more steps than there are directories.
        for _ in 0..self.dirs.len() {
            let Some(dir) = at.filter(|id| id.0 != 0) else { break };
            change(self.waiting_in.entry(dir).or_default());
            at = self.dirs.get(&dir).map(|d| d.parent);
        }
    }

    fn waiting_of(&self, set: ObjsetId) -> u64 {
        self.waiting.values().filter_map(|sets| sets.get(&set)).sum()
    }

    /// Whether a transaction may change `bytes` more of `set`. One that frees passes quotas; `slop_bytes` is the part
    /// of the slop that its reserve gives access to.
    ///
    /// # Errors
    /// A [`LimitRefusal`]. Unknown sets (the MOS) are not refused.
    pub fn admit(&self, set: ObjsetId, bytes: u64, purpose: SpaceReserve, slop_bytes: u64) -> Result<(), LimitRefusal> {
        let Some(of) = self.sets.get(&set) else { return Ok(()) };
        let freeing = purpose == SpaceReserve::NetFree;
        let waiting = self.waiting_of(set);
        if !freeing && of.ref_quota_bytes != 0 && of.referenced_bytes.saturating_add(waiting) >= of.ref_quota_bytes {
            let full = waiting == 0 && of.referenced_bytes >= of.ref_quota_bytes;
            return Err(if full { LimitRefusal::Quota } else { LimitRefusal::Wait });
        }
        // The unused refreservation of this head does not count against it.
        let held = of.ref_reservation_bytes.saturating_sub(of.unique_bytes);
        let mut more = bytes - bytes.min(held.saturating_sub(waiting));
        let mut at = of.dir;
        let mut less = held;
        for _ in 0..self.dirs.len() {
            let Some(dir) = self.dirs.get(&at) else { break };
            let used = dir.used_bytes.saturating_sub(less);
            let in_flight = self.waiting_in.get(&at).copied().unwrap_or(0);
            let root = dir.parent.0 == 0;
            check_dir(dir, used, in_flight, root.then(|| self.capacity_bytes.saturating_add(slop_bytes)), freeing)?;
            let charge = charged(used.saturating_add(in_flight), more as i64, dir.reserved_bytes);
            if charge <= 0 || root {
                break;
            }
            (at, more, less) = (dir.parent, charge as u64, 0);
        }
        Ok(())
    }
}

/// Checks one directory: admits until the limit is reached. Dirty data counts in full, so that what would exceed the limit waits
/// until it is known what the dirty data occupies. (In OpenZFS it may exceed the limit by a thirty-second part, and is estimated
/// at the worst case.)
fn check_dir(dir: &DirLimits, used: u64, in_flight: u64, pool: Option<u64>, freeing: bool) -> Result<(), LimitRefusal> {
    let mut quota = if freeing || dir.quota_bytes == 0 { u64::MAX } else { dir.quota_bytes };
    let mut refusal = LimitRefusal::Quota;
    if let Some(open) = pool.filter(|open| *open < quota) {
        (quota, refusal) = (open, LimitRefusal::Full);
    }
    match () {
        () if quota == u64::MAX => Ok(()),
        () if used >= quota => Err(refusal),
        () if used.saturating_add(in_flight) >= quota => Err(LimitRefusal::Wait),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: ObjsetId = ObjsetId(9);
    const TXG: Txg = Txg(7);

    /// A root of 1000 bytes with a directory of one set below it.
    fn limits(quota: u64, used: u64, set: SetLimits) -> Limits {
        let mut limits = Limits { capacity_bytes: 1000, ..Limits::default() };
        let root = DirLimits { used_bytes: used + 100, ..DirLimits::default() };
        let dir = DirLimits { parent: ObjectId(1), head: SET, quota_bytes: quota, used_bytes: used, reserved_bytes: 0 };
        limits.dirs.insert(ObjectId(1), root);
        limits.dirs.insert(ObjectId(2), dir);
        limits.sets.insert(SET, SetLimits { dir: ObjectId(2), ..set });
        limits
    }

    #[test]
    fn changed_directories_are_enough_to_follow() {
        let mut read = limits(300, 100, SetLimits::default());
        let mut followed = read.clone();
        followed.book(SET, TXG, 40);
        // A directory changes its numbers and its live dataset, one appears, and then both are gone.
        read.forget(ObjectId(2));
        let of = |head, used_bytes| DirLimits { parent: ObjectId(1), head, used_bytes, ..DirLimits::default() };
        for (dir, head) in [(ObjectId(2), ObjsetId(10)), (ObjectId(3), ObjsetId(11))] {
            read.dirs.insert(dir, of(head, 150));
            read.sets.insert(head, SetLimits { dir, ..SetLimits::default() });
        }
        followed.take_changed(&read, &BTreeSet::from([ObjectId(2), ObjectId(3)]));
        assert_eq!((&followed.dirs, &followed.sets), (&read.dirs, &read.sets));
        assert!(followed.anything_waits() && followed.usage(SET).is_none(), "the old dataset is gone");
        for dir in [ObjectId(2), ObjectId(3)] {
            read.forget(dir);
        }
        followed.take_changed(&read, &BTreeSet::from([ObjectId(2), ObjectId(3), ObjectId(7)]));
        assert_eq!((followed.dirs.len(), followed.sets.len()), (1, 0));
    }

    #[test]
    fn quotas_refuse_writes_and_admit_frees() {
        let full = limits(300, 300, SetLimits::default());
        assert_eq!(full.admit(SET, 10, SpaceReserve::Normal, 0), Err(LimitRefusal::Quota));
        assert_eq!(full.admit(SET, 10, SpaceReserve::NetFree, 0), Ok(()));
        let mut nearly = limits(300, 290, SetLimits::default());
        assert_eq!(nearly.admit(SET, 50, SpaceReserve::Normal, 0), Ok(()), "no refusal before the limit is reached");
        nearly.book(SET, TXG, 50);
        assert_eq!(nearly.admit(SET, 10, SpaceReserve::Normal, 0), Err(LimitRefusal::Wait));
        nearly.synced(TXG);
        assert_eq!(nearly.admit(SET, 10, SpaceReserve::Normal, 0), Ok(()));
    }

    #[test]
    fn dirty_data_counts_in_full_against_a_quota() {
        let mut nearly = limits(300, 290, SetLimits::default());
        nearly.book(SET, TXG, 9);
        assert_eq!(nearly.admit(SET, 10, SpaceReserve::Normal, 0), Ok(()));
        nearly.book(SET, TXG, 1);
        assert_eq!(nearly.admit(SET, 10, SpaceReserve::Normal, 0), Err(LimitRefusal::Wait));
    }

    #[test]
    fn a_full_pool_can_be_emptied() {
        let full = limits(0, 900, SetLimits::default());
        assert_eq!(full.admit(SET, 10, SpaceReserve::Normal, 0), Err(LimitRefusal::Full));
        assert_eq!(full.admit(SET, 10, SpaceReserve::NetFree, 50), Ok(()));
        assert_eq!(full.admit(ObjsetId(0), 10, SpaceReserve::Normal, 0), Ok(()));
    }

    #[test]
    fn usage_counts_dirty_data() {
        let of = SetLimits { referenced_bytes: 50, ..SetLimits::default() };
        let mut limits = limits(300, 200, of);
        assert_eq!(limits.usage(SET), Some(SpaceUsage { referenced_bytes: 50, available_bytes: 100 }));
        limits.book(SET, TXG, 30);
        assert_eq!(limits.usage(SET), Some(SpaceUsage { referenced_bytes: 80, available_bytes: 70 }));
        assert_eq!(limits.usage(ObjsetId(1)), None);
    }

    #[test]
    fn limits_of_the_head_alone() {
        let of = SetLimits { referenced_bytes: 50, ref_quota_bytes: 50, ..SetLimits::default() };
        assert_eq!(limits(0, 50, of).admit(SET, 1, SpaceReserve::Normal, 0), Err(LimitRefusal::Quota));
        // 900 used, 400 of them held by the refreservation for this head.
        let of = SetLimits { unique_bytes: 500, ref_reservation_bytes: 900, ..SetLimits::default() };
        assert_eq!(limits(0, 900, of).admit(SET, 100, SpaceReserve::Normal, 0), Ok(()));
    }
}
