//! Access times (`atime`, `relatime`).
//!
//! A read must not cost a write. So a read only records the time in memory, and attributes show it from there; the
//! owner of the file system stores the recorded times periodically in low-priority transactions
//! ([`Atimes::store`](crate::Atimes::store)). A crash may lose recorded times; the intent log does not contain them.
//!
//! Source: OpenZFS `zfs_relatime_need_update` in `module/os/linux/zfs/zfs_vnops_os.c`, `zfs_inactive`.

use super::make::NAME_BYTES;
use crate::attributes::Attributes;
use crate::error::FileError;
use crate::handles::Atimes;
use crate::metadata::{Metadata, index};
use std::collections::BTreeMap;
use weir_machine::lock::Mutex;

use weir_dmu::live::SpaceReserve;
use weir_format::ObjectId;
use weir_format::znode::{FileFlags, Timestamp};
use weir_machine::Request;

/// When a read updates the access time (`atime`, `relatime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never.
    Off,
    /// If it is not newer than the last change, or older than a day.
    #[default]
    Relative,
    /// Always.
    On,
}

/// Access times that are not stored yet.
pub(super) type PendingAtimes = Mutex<BTreeMap<ObjectId, Timestamp>>;

/// Maximum number of recorded times; reads of further files do not update theirs.
const MAX_PENDING: usize = 100_000;
const DAY_S: i64 = 24 * 60 * 60;
const NS_PER_S: i128 = 1_000_000_000;

fn in_order(time: Timestamp) -> (i64, u32) {
    (time.sec, time.nsec)
}

impl AccessTimes {
    /// Whether a read now updates the access time `accessed`.
    fn sets(self, accessed: Timestamp, modified: Timestamp, changed: Timestamp, now: Timestamp) -> bool {
        let accessed_at = in_order(accessed);
        match self {
            AccessTimes::Off => false,
            AccessTimes::On => in_order(now) > accessed_at,
            AccessTimes::Relative => {
                accessed_at <= in_order(modified)
                    || accessed_at <= in_order(changed)
                    || now.sec.saturating_sub(accessed.sec) >= DAY_S
            }
        }
    }
}

impl Atimes<'_> {
    /// Records a read of a file.
    pub(crate) fn note(self, object: ObjectId, metadata: &Metadata) {
        let Ok(writing) = self.files.writing() else { return };
        let rule = writing.settings().access_times;
        if rule == AccessTimes::Off || metadata.flags.0 & FileFlags::XATTR != 0 {
            return;
        }
        let now = writing.now();
        let [stored, modified, changed, _] = metadata.times;
        let mut noted = writing.accessed.lock();
        let accessed = noted.get(&object).copied().unwrap_or(stored);
        let has_room = noted.len() < MAX_PENDING || noted.contains_key(&object);
        if has_room && rule.sets(accessed, modified, changed, now) {
            noted.insert(object, now);
        }
    }

    /// Adds a recorded time to attributes.
    pub(crate) fn show(self, attributes: &mut Attributes) {
        let Some(writing) = &self.files.writing else { return };
        if let Some(time) = writing.accessed.lock().get(&attributes.object) {
            let ns = i128::from(time.sec) * NS_PER_S + i128::from(time.nsec);
            attributes.atime_ns = attributes.atime_ns.max(ns);
        }
    }

    /// Drops a recorded time: the time is set explicitly, or the file is freed.
    pub(super) fn forget(self, object: ObjectId) {
        if let Some(writing) = &self.files.writing {
            writing.accessed.lock().remove(&object);
        }
    }

    /// Whether there are recorded times.
    pub fn is_pending(self) -> bool {
        self.files.writing.as_ref().is_some_and(|writing| !writing.accessed.lock().is_empty())
    }

    /// Stores the recorded times. They are stable with their txg.
    ///
    /// # Errors
    /// If the pool is not writable; times that were not stored are lost.
    pub async fn store(self, rq: &Request) -> Result<(), FileError> {
        let Some(writing) = &self.files.writing else { return Ok(()) };
        let noted: Vec<(ObjectId, Timestamp)> = writing.accessed.lock().iter().map(|(id, time)| (*id, *time)).collect();
        for (object, time) in noted {
            let _held = writing.locks.one(rq, object).await;
            // Attributes show the recorded time until it is stored.
            let stored = self.store_one(rq, object, time).await;
            writing.accessed.lock().retain(|id, now| *id != object || *now != time);
            match stored {
                Ok(()) | Err(FileError::Stale { .. } | FileError::Corrupt { .. }) => {}
                Err(error) => {
                    writing.accessed.lock().clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn store_one(self, rq: &Request, object: ObjectId, time: Timestamp) -> Result<(), FileError> {
        let mut node = self.files.nodes().load(rq, object).await?;
        let stored = node.time(index::ATIME);
        // The object number may have been reused by a file newer than the recorded time.
        if node.links() == 0 || stored.is_some_and(|stored| in_order(stored) >= in_order(time)) {
            return Ok(());
        }
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        node.set_time(index::ATIME, time)?;
        self.files.nodes().store(rq, &tx, &node).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime_rules() {
        let at = |sec| Timestamp { sec, nsec: 5 };
        let sets = |rule: AccessTimes, accessed, modified, changed, now| {
            rule.sets(at(accessed), at(modified), at(changed), at(now))
        };
        assert!(!sets(AccessTimes::Off, 1, 2, 2, 9));
        assert!(sets(AccessTimes::On, 5, 2, 2, 9) && !sets(AccessTimes::On, 9, 2, 2, 9));
        assert!(sets(AccessTimes::Relative, 2, 2, 1, 9), "not newer than the last change");
        assert!(sets(AccessTimes::Relative, 2, 1, 2, 9), "not newer than the last attribute change");
        assert!(!sets(AccessTimes::Relative, 3, 2, 2, 9));
        assert!(sets(AccessTimes::Relative, 3, 2, 2, 3 + DAY_S), "a day later");
    }
}
