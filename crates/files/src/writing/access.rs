//! Access times: when a file was read last (`atime`, `relatime`).
//!
//! The problem: a reader must not pay for a write. So a read only notes the time in memory, and attributes show it from
//! there; whoever owns the file system stores the notes once in a while, in transactions that hurry nobody
//! ([`FileSystem::store_access_times`]). After a crash notes may be lost; the intent log does not have them either.
//!
//! Source: OpenZFS `zfs_relatime_need_update` in `module/os/linux/zfs/zfs_vnops_os.c`, `zfs_inactive`.

use super::lock;
use super::make::NAME_BYTES;
use crate::attributes::Attributes;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::{Metadata, index};
use std::collections::BTreeMap;
use std::sync::Mutex;
use weir_dmu::live::Purpose;
use weir_format::ObjectId;
use weir_format::znode::{Timestamp, flag};
use weir_machine::Request;

/// When reading a file sets its access time (`atime`, `relatime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never.
    Off,
    /// When it is not younger than the last change, or older than a day.
    #[default]
    Relative,
    /// Always.
    On,
}

/// Times that are noted but not stored.
pub(super) type Noted = Mutex<BTreeMap<ObjectId, Timestamp>>;

/// Most times that are noted; reads of further files leave theirs as they are.
const NOTED_MAX: usize = 100_000;
const DAY_S: i64 = 24 * 60 * 60;
const NS_PER_S: i128 = 1_000_000_000;

fn in_order(time: Timestamp) -> (i64, u32) {
    (time.sec, time.nsec)
}

impl AccessTimes {
    /// Whether a file that was read last at `accessed` gets another time now.
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

impl FileSystem {
    /// A file was read.
    pub(crate) fn note_access(&self, object: ObjectId, metadata: &Metadata) {
        let Ok(writing) = self.writing() else { return };
        let rule = writing.settings().access_times;
        if rule == AccessTimes::Off || metadata.flags.0 & flag::XATTR != 0 {
            return;
        }
        let now = writing.now();
        let [stored, modified, changed, _] = metadata.times;
        let mut noted = lock(&writing.accessed);
        let accessed = noted.get(&object).copied().unwrap_or(stored);
        let has_room = noted.len() < NOTED_MAX || noted.contains_key(&object);
        if has_room && rule.sets(accessed, modified, changed, now) {
            noted.insert(object, now);
        }
    }

    /// Shows a time that is not stored yet.
    pub(crate) fn show_access(&self, attributes: &mut Attributes) {
        let Some(writing) = &self.writing else { return };
        if let Some(time) = lock(&writing.accessed).get(&attributes.object) {
            let ns = i128::from(time.sec) * NS_PER_S + i128::from(time.nsec);
            attributes.atime_ns = attributes.atime_ns.max(ns);
        }
    }

    /// Somebody sets the time, or the file goes: what was noted does not count any more.
    pub(super) fn forget_access(&self, object: ObjectId) {
        if let Some(writing) = &self.writing {
            lock(&writing.accessed).remove(&object);
        }
    }

    /// Whether there is anything to be stored.
    pub fn has_access_times(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !lock(&writing.accessed).is_empty())
    }

    /// Stores the times of the files that were read since the last call. They are stable with their group.
    ///
    /// # Errors
    /// If the pool takes no changes; what was not stored is lost.
    pub async fn store_access_times(&self, rq: &Request) -> Result<(), FileError> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let noted: Vec<(ObjectId, Timestamp)> = lock(&writing.accessed).iter().map(|(id, time)| (*id, *time)).collect();
        for (object, time) in noted {
            let _held = writing.locks.one(object).await;
            // Until it is stored, attributes show the note.
            let stored = self.store_access(rq, object, time).await;
            lock(&writing.accessed).retain(|id, now| *id != object || *now != time);
            match stored {
                Ok(()) | Err(FileError::Stale { .. } | FileError::Corrupt { .. }) => {}
                Err(error) => {
                    lock(&writing.accessed).clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn store_access(&self, rq: &Request, object: ObjectId, time: Timestamp) -> Result<(), FileError> {
        let mut node = self.node(rq, object).await?;
        let stored = node.time(index::ATIME);
        // The number may be another file's by now, which is younger than the note.
        if node.links() == 0 || stored.is_some_and(|stored| in_order(stored) >= in_order(time)) {
            return Ok(());
        }
        let tx = self.begin(rq, NAME_BYTES, Purpose::Names).await?;
        node.set_time(index::ATIME, time)?;
        self.store(rq, &tx, &node).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_kept() {
        let at = |sec| Timestamp { sec, nsec: 5 };
        let sets = |rule: AccessTimes, accessed, modified, changed, now| {
            rule.sets(at(accessed), at(modified), at(changed), at(now))
        };
        assert!(!sets(AccessTimes::Off, 1, 2, 2, 9));
        assert!(sets(AccessTimes::On, 5, 2, 2, 9) && !sets(AccessTimes::On, 9, 2, 2, 9));
        assert!(sets(AccessTimes::Relative, 2, 2, 1, 9), "not younger than the last change");
        assert!(sets(AccessTimes::Relative, 2, 1, 2, 9), "nor than that of attributes");
        assert!(!sets(AccessTimes::Relative, 3, 2, 2, 9));
        assert!(sets(AccessTimes::Relative, 3, 2, 2, 3 + DAY_S), "a day later");
    }
}
