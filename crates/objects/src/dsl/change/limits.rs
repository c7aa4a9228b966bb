//! What may still be written (OpenZFS `dsl_dir_space_available`, `dsl_dir_tempreserve_space`,
//! `dsl_dataset_check_quota`): the arithmetic for operations here, and for the gate that lets transactions begin.
//!
//! The gate must answer at once, without reading the MOS: it keeps [`Limits`], a copy of the directories' numbers, which
//! the syncer refreshes after each group ([`Change::limits`]), and adds what waits in memory.

use super::space::{available, charged};
use super::{Change, ChangeError};
use std::collections::BTreeMap;
use weir_format::{ObjectId, ObjsetId};

impl Change<'_> {
    /// Bytes that may still be written below a directory.
    pub(super) async fn available_in(&mut self, dir: ObjectId) -> Result<u64, ChangeError> {
        let mut path = Vec::new();
        let mut at = dir;
        while at.0 != 0 {
            let phys = self.dir(at).await?;
            path.push((phys.quota_bytes, phys.used_bytes, phys.reserved_bytes));
            at = phys.parent;
        }
        path.reverse();
        Ok(available(&path, self.pool.capacity_bytes))
    }

    /// The numbers of all directories and heads, for the gate.
    pub async fn limits(&mut self) -> Result<Limits, ChangeError> {
        let mut limits = Limits { capacity_bytes: self.pool.capacity_bytes, ..Limits::default() };
        let mut to_read = vec![self.root_dir().await?];
        while let Some(id) = to_read.pop() {
            let dir = self.dir(id).await?;
            to_read.extend(self.children_of(&dir).await?.into_iter().map(|(_, child)| child));
            self.read_limits(id, &mut limits).await?;
        }
        Ok(limits)
    }

    /// Reads the numbers of one directory and its head again: after it was synced, set or made. Those above it change
    /// too: the caller walks up by [`Limits::parent`].
    pub async fn read_limits(&mut self, id: ObjectId, limits: &mut Limits) -> Result<(), ChangeError> {
        let dir = self.dir(id).await?;
        let of = DirLimits {
            parent: dir.parent,
            quota_bytes: dir.quota_bytes,
            used_bytes: dir.used_bytes,
            reserved_bytes: dir.reserved_bytes,
        };
        limits.dirs.insert(id, of);
        if dir.head_dataset.0 == 0 {
            return Ok(());
        }
        let head = self.dataset(dir.head_dataset).await?;
        let set = SetLimits {
            dir: id,
            referenced_bytes: head.referenced_bytes,
            unique_bytes: head.unique_bytes,
            ref_quota_bytes: self.own_number(id, "refquota").await?,
            ref_reservation_bytes: self.own_number(id, "refreservation").await?,
        };
        limits.sets.insert(ObjsetId(dir.head_dataset.0), set);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DirLimits {
    parent: ObjectId,
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

/// Why a transaction may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A quota or refquota is used up (`EDQUOT`).
    Quota,
    /// The pool is full (`ENOSPC`).
    Full,
    /// It would be too much together with what waits in memory: once that is synced it may fit. Wait for a group.
    Wait,
}

/// The numbers that limit writing, as of the last synced group.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The pool's size less its slop.
    pub capacity_bytes: u64,
    dirs: BTreeMap<ObjectId, DirLimits>,
    sets: BTreeMap<ObjsetId, SetLimits>,
}

impl Limits {
    /// The directory above; `None` for the root and for unknown ones.
    pub fn parent(&self, dir: ObjectId) -> Option<ObjectId> {
        self.dirs.get(&dir).map(|d| d.parent).filter(|id| id.0 != 0)
    }

    /// The directory of a head's object set.
    pub fn dir_of(&self, set: ObjsetId) -> Option<ObjectId> {
        self.sets.get(&set).map(|s| s.dir)
    }

    /// Forgets a directory that was destroyed.
    pub fn forget(&mut self, dir: ObjectId) {
        self.dirs.remove(&dir);
        self.sets.retain(|_, set| set.dir != dir);
    }

    /// Whether `bytes` more may be written to `set`. `in_flight` gives the bytes that wait in memory for a set; `freeing`:
    /// the transaction gives back more than it takes, so quotas do not hold it, and `slop_bytes` more of the pool are
    /// open to it.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn admit(
        &self,
        set: ObjsetId,
        bytes: u64,
        in_flight: &dyn Fn(ObjsetId) -> u64,
        freeing: bool,
        slop_bytes: u64,
    ) -> Result<(), Refusal> {
        let Some(of) = self.sets.get(&set) else { return Ok(()) };
        let waiting = self.waiting(in_flight);
        let own_waiting = in_flight(set);
        if !freeing && of.ref_quota_bytes != 0 {
            let full = of.referenced_bytes >= of.ref_quota_bytes;
            if of.referenced_bytes.saturating_add(own_waiting) >= of.ref_quota_bytes {
                return Err(if full && own_waiting == 0 { Refusal::Quota } else { Refusal::Wait });
            }
        }
        // What a refreservation holds for this very head does not count against it.
        let unused = of.ref_reservation_bytes.saturating_sub(of.unique_bytes);
        let from_reservation = bytes.min(unused.saturating_sub(own_waiting));
        let (mut at, mut more) = (of.dir, bytes);
        let (mut less, mut first) = (unused, true);
        while let Some(dir) = self.dirs.get(&at) {
            let used = dir.used_bytes.saturating_sub(less);
            let in_flight = waiting.get(&at).copied().unwrap_or(0);
            let root = dir.parent.0 == 0;
            check_dir(dir, used, in_flight, root.then_some((self.capacity_bytes, slop_bytes)), freeing)?;
            let beyond = if first { more - from_reservation } else { more };
            let charge = charged(used.saturating_add(in_flight), beyond as i64, dir.reserved_bytes);
            if charge <= 0 || root {
                return Ok(());
            }
            (at, more, less, first) = (dir.parent, charge as u64, 0, false);
        }
        Ok(())
    }

    /// What waits in memory, by directory, those below included.
    fn waiting(&self, in_flight: &dyn Fn(ObjsetId) -> u64) -> BTreeMap<ObjectId, u64> {
        let mut out = BTreeMap::new();
        for (set, of) in &self.sets {
            let bytes = in_flight(*set);
            let mut at = Some(of.dir).filter(|_| bytes > 0);
            while let Some(dir) = at {
                *out.entry(dir).or_default() += bytes;
                at = self.parent(dir);
            }
        }
        out
    }
}

/// One level: nobody is refused before the limit is reached, and what waits may pass it by a thirty-second part.
fn check_dir(
    dir: &DirLimits,
    used: u64,
    in_flight: u64,
    pool: Option<(u64, u64)>,
    freeing: bool,
) -> Result<(), Refusal> {
    let mut quota = if freeing || dir.quota_bytes == 0 { u64::MAX } else { dir.quota_bytes };
    let mut refusal = Refusal::Quota;
    if let Some((capacity, slop)) = pool {
        let open = if freeing { capacity.saturating_add(slop) } else { capacity };
        if open < quota {
            (quota, refusal) = (open, Refusal::Full);
        }
    }
    if quota == u64::MAX {
        return Ok(());
    }
    match () {
        () if used >= quota => Err(refusal),
        () if used.saturating_add(in_flight) >= quota.saturating_add(quota >> 5) => Err(Refusal::Wait),
        () => Ok(()),
    }
}
