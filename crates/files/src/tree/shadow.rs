//! Second names of snapshots, by the time of their creation: `.zfs/shadow/@GMT-2026.11.24-09.48.57`.
//!
//! SMB knows earlier versions of a file by such names alone ("Previous Versions"), and Samba's module `shadow_copy2` finds
//! them in a directory, whatever the snapshots' own names are.
//!
//! Invariants. Each snapshot has exactly one name. Of several snapshots of one second, the first (in the order of their
//! times and IDs) has the name of that second, each further one that of the next free second: both are reachable, and the
//! order of the names is that of the snapshots. The directory can be entered like `.zfs/snapshot`; it is not listed in `.zfs`,
//! so that programs that descend into everything do not find each snapshot twice.
//!
//! The names are computed when they are first used after the list of snapshots has changed; the time of a snapshot is read
//! once.

use super::namespace::MountedDataset;
use super::source::Created;
use super::synthetic_entries::Entries;
use super::{Node, Tree};
use crate::FileError;
use std::sync::Arc;
use weir_machine::Request;
use weir_machine::time::civil_day;

/// The last second that has a name: in the year 9999.
const MAX_SECONDS: u64 = 253_402_300_799;

/// Names of the snapshots of a file system.
#[derive(Default)]
pub(super) struct ShadowNames {
    /// Indices of the snapshots, in the order of their own names, when the names were computed.
    of: Vec<u32>,
    pub names: Entries,
}

/// The name of a second, in UTC.
pub(super) fn name_of(seconds: u64) -> String {
    let seconds = seconds.min(MAX_SECONDS);
    let (year, month, day) = civil_day(seconds / 86_400);
    let hour = seconds % 86_400 / 3600;
    let minute = seconds % 3600 / 60;
    format!("@GMT-{year:04}.{month:02}.{day:02}-{hour:02}.{minute:02}.{:02}", seconds % 60)
}

/// A snapshot that gets a second name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Snapshot {
    created: Created,
    id: u64,
    index: u32,
}

/// Gives snapshots distinct seconds, in the order of their creation: each later than the one before.
fn distinct(mut snapshots: Vec<Snapshot>) -> Vec<Snapshot> {
    snapshots.sort_unstable();
    let mut next = 0;
    for snapshot in &mut snapshots {
        snapshot.created.seconds = snapshot.created.seconds.max(next);
        next = snapshot.created.seconds + 1;
    }
    let is_later = |pair: &[Snapshot]| pair[0].created.seconds < pair[1].created.seconds;
    debug_assert!(snapshots.windows(2).all(is_later), "names are distinct");
    snapshots
}

/// The directory `.zfs/shadow` of a file system.
#[derive(Clone, Copy)]
pub(super) struct ShadowDirectory<'a> {
    pub tree: &'a Tree,
    pub branch: &'a MountedDataset,
}

impl ShadowDirectory<'_> {
    /// The second names of the snapshots.
    pub(super) async fn names(self, rq: &Request) -> Result<Arc<ShadowNames>, FileError> {
        let of: Vec<u32> = self.branch.snapshots.by_name.values().copied().collect();
        let lock = || self.branch.shadow.lock();
        if let Some(known) = lock().clone().filter(|known| known.of == of) {
            return Ok(known);
        }
        let mut snapshots = Vec::with_capacity(of.len());
        for index in &of {
            // A snapshot that was destroyed meanwhile has no name.
            let Ok(snapshot) = self.tree.branch(Node { branch: *index, object: Node::ROOT }) else { continue };
            let created = match snapshot.created.get() {
                Some(created) => *created,
                None => match self.tree.opener.created(rq, &snapshot.export).await {
                    Ok(created) => *snapshot.created.get_or_init(|| created),
                    Err(FileError::NotFound) => continue,
                    Err(error) => return Err(error),
                },
            };
            snapshots.push(Snapshot { created, id: snapshot.export.id, index: *index });
        }
        let mut names = Entries::default();
        for Snapshot { created, id, index } in distinct(snapshots) {
            names.insert(name_of(created.seconds).as_bytes(), id, index);
        }
        let shadow = Arc::new(ShadowNames { of, names });
        *lock() = Some(shadow.clone());
        Ok(shadow)
    }

    /// The snapshot with this second name.
    pub(super) async fn lookup(self, rq: &Request, name: &[u8]) -> Result<Node, FileError> {
        let index = self.names(rq).await?.names.get(name).ok_or(FileError::NotFound)?;
        Ok(Node { branch: index, object: Node::ROOT })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_utc() {
        assert_eq!(name_of(0), "@GMT-1970.01.01-00.00.00");
        assert_eq!(name_of(1_795_513_737), "@GMT-2026.11.24-09.48.57");
        assert_eq!(name_of(u64::MAX), "@GMT-9999.12.31-23.59.59");
    }

    #[test]
    fn snapshots_of_one_second_have_two_names() {
        let named = |seconds: &[u64]| {
            let created = |seconds, at: usize| Created { seconds, txg: at as u64 };
            // IDs are random: they do not decide.
            let snapshot =
                |(at, s): (usize, &u64)| Snapshot { created: created(*s, at), id: 9 - at as u64, index: at as u32 };
            let snapshots = seconds.iter().enumerate().map(snapshot).collect();
            distinct(snapshots).into_iter().map(|s| (s.created.seconds, s.index)).collect::<Vec<_>>()
        };
        assert_eq!(named(&[7, 5, 5, 6]), [(5, 1), (6, 2), (7, 3), (8, 0)]);
        assert_eq!(named(&[1, 1, 1, 2]), [(1, 0), (2, 1), (3, 2), (4, 3)]);
    }
}
