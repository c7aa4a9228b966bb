//! Mounting of a file system above others that are mounted already.
//!
//! OpenZFS mounts it over them, and hides them until they are mounted again. Here a file system may be contained in the mount of
//! another one, whose directory then carries the mounts below: they have to move.

use super::{MountError, MountRequest, MountedFileSystem, Mounts};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_daemon::{DatasetShares, Exports};
use weir_machine::{Machine, Request};

impl Mounts {
    /// Mounts a file system at a path below which others of the pool are mounted: these are unmounted before, and mounted again
    /// in the file system, as if it had been mounted first.
    ///
    /// # Errors
    /// If one of them is in use: then nothing is changed. As [`Mounts::mount`]; the others are mounted again in that case, too.
    pub(super) fn mount_above(
        &self,
        front: &Exports,
        machine: &Machine,
        shares: &DatasetShares,
        path: &Path,
        request: MountRequest,
    ) -> Result<bool, MountError> {
        let all = machine.block_on(front.dataset_shares(&Request::internal("mount")));
        let all = all.map_err(|error| MountError::Other(error.to_string()))?;
        let mut below: Vec<(PathBuf, u64, MountRequest)> = {
            let table = self.0.lock();
            let is_below = |other: &&MountedFileSystem| other.path != path && other.path.starts_with(path);
            let with_id = table.by_id.iter().filter(|(_, other)| is_below(other));
            with_id.map(|(id, other)| (other.path.clone(), *id, other.request)).collect()
        };
        // Outer ones first.
        below.sort_by(|(a, _, _), (b, _, _)| a.cmp(b));
        let ids: BTreeSet<u64> = below.iter().map(|(_, id, _)| *id).collect();
        let busy = |why: String| MountError::Other(format!("cannot unmount what is mounted below it: {why}"));
        self.suspend(&ids, false, front, machine, &all).map_err(busy)?;
        if self.0.lock().own_below(path).is_some() {
            return Err(MountError::Other(format!("another command mounts below '{}'", path.display())));
        }
        let mounted = self.mount_in(front, machine, shares, path.to_path_buf(), request, false);
        let mut lost = Vec::new();
        for (path, id, request) in below {
            let Some(of) = all.values().find(|of| of.id == id) else { continue };
            let request = MountRequest { overlay: true, ..request };
            if let Err(error) = self.mount_in(front, machine, of, path, request, false) {
                lost.push(format!("'{}' is not mounted again: {error}", of.dataset));
            }
        }
        match lost.is_empty() {
            true => mounted,
            false => mounted.and(Err(MountError::Other(lost.join("; ")))),
        }
    }
}
