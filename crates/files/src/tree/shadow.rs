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
use super::synthetic_entries::Entries;
use super::{Node, Tree};
use crate::FileError;
use std::sync::{Arc, PoisonError};
use weir_dsl::props::civil;
use weir_machine::Request;

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
    let (year, month, day) = civil(seconds / 86_400);
    let hour = seconds % 86_400 / 3600;
    let minute = seconds % 3600 / 60;
    format!("@GMT-{year:04}.{month:02}.{day:02}-{hour:02}.{minute:02}.{:02}", seconds % 60)
}

/// The seconds of snapshots, given as time and ID, in order: each later than the one before.
fn distinct(mut snapshots: Vec<(u64, u64, u32)>) -> Vec<(u64, u64, u32)> {
    snapshots.sort_unstable();
    let mut next = 0;
    for (seconds, _, _) in &mut snapshots {
        *seconds = (*seconds).max(next);
        next = *seconds + 1;
    }
    debug_assert!(snapshots.windows(2).all(|pair| pair[0].0 < pair[1].0), "names are distinct");
    snapshots
}

impl Tree {
    /// The second names of the snapshots of a file system.
    pub(super) async fn shadow_names(
        &self,
        rq: &Request,
        branch: &MountedDataset,
    ) -> Result<Arc<ShadowNames>, FileError> {
        let of: Vec<u32> = branch.snapshots.by_name.values().copied().collect();
        let lock = || branch.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().clone().filter(|known| known.of == of) {
            return Ok(known);
        }
        let mut snapshots = Vec::with_capacity(of.len());
        for index in &of {
            // A snapshot that was destroyed meanwhile has no name.
            let Ok(snapshot) = self.branch(Node { branch: *index, object: Node::ROOT }) else { continue };
            let seconds = match snapshot.created_s.get() {
                Some(seconds) => *seconds,
                None => match self.opener.created_s(rq, &snapshot.export).await {
                    Ok(seconds) => *snapshot.created_s.get_or_init(|| seconds),
                    Err(FileError::NotFound) => continue,
                    Err(error) => return Err(error),
                },
            };
            snapshots.push((seconds, snapshot.export.id, *index));
        }
        let mut names = Entries::default();
        for (seconds, id, index) in distinct(snapshots) {
            names.insert(name_of(seconds).as_bytes(), id, index);
        }
        let shadow = Arc::new(ShadowNames { of, names });
        *lock() = Some(shadow.clone());
        Ok(shadow)
    }

    /// The snapshot with this second name.
    pub(super) async fn shadow(&self, rq: &Request, branch: &MountedDataset, name: &[u8]) -> Result<Node, FileError> {
        let index = self.shadow_names(rq, branch).await?.names.get(name).ok_or(FileError::NotFound)?;
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
            let snapshots = seconds.iter().enumerate().map(|(at, s)| (*s, at as u64, at as u32)).collect();
            distinct(snapshots).into_iter().map(|(seconds, _, index)| (seconds, index)).collect::<Vec<_>>()
        };
        assert_eq!(named(&[7, 5, 5, 6]), [(5, 1), (6, 2), (7, 3), (8, 0)]);
        assert_eq!(named(&[1, 1, 1, 2]), [(1, 0), (2, 1), (3, 2), (4, 3)]);
    }
}
