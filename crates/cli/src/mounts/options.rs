//! Options of mounts that follow their properties while the mounts are in use.
//!
//! | mounted | `readonly` | `devices`, `setuid`, `exec` |
//! |---|---|---|
//! | by a mount of its own | the file system refuses changes; the kernel's flag is changed | the kernel's flags are changed |
//! | in the mount of its parent | the file system refuses changes | a mount of its own covers the directory |
//!
//! What programs have open in a directory that is covered goes on in the mount of the parent.

use super::{MountError, MountRequest, Mounts, Place};
use std::collections::BTreeMap;
use weir_daemon::fuse::{ChangedOptions, Remounter};
use weir_daemon::{DatasetShares, Exports, MountAllows};
use weir_machine::Machine;

/// Options of the mount of a file system that allows this. Users other than root may not allow devices and set-user-id bits.
pub(super) fn of(shares: &DatasetShares, allows: MountAllows) -> ChangedOptions {
    let is_root = rustix::process::geteuid().is_root();
    let MountAllows { devices, setuid, exec, .. } = allows;
    ChangedOptions { writable: !shares.is_readonly, dev: is_root && devices, suid: is_root && setuid, exec }
}

/// Whether one mount can serve both.
pub(super) fn is_alike(one: MountAllows, other: MountAllows) -> bool {
    MountAllows { overlay: other.overlay, ..one } == other
}

impl Mounts {
    /// Gives file systems that are mounted the options of their properties, at once. `all` are the file systems of the pool; parents
    /// precede their children in it. It blocks; returns those whose mounts are as before, with the reason.
    pub fn change_options(
        &self,
        front: &Exports,
        machine: &Machine,
        changed: &[&DatasetShares],
        all: &BTreeMap<String, DatasetShares>,
    ) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        for shares in changed {
            // The kernel may look up the path in another mount, which asks the table.
            if let Some((remounter, options)) = self.set_allows(shares)
                && let Err(error) = remounter.remount(options)
            {
                problems.push((shares.dataset.clone(), error.to_string()));
            }
        }
        for shares in all.values().filter(|shares| self.must_be_separate(shares.id)) {
            if let Err(error) = self.separate(front, machine, shares) {
                problems.push((shares.dataset.clone(), error.to_string()));
            }
        }
        problems
    }

    /// Records what a mounted file system allows now; what it was mounted with still holds. Returns what changes its own mount, if it
    /// has one, and to which options.
    fn set_allows(&self, shares: &DatasetShares) -> Option<(Remounter, ChangedOptions)> {
        let mut table = self.0.lock();
        let mounted = table.by_id.get_mut(&shares.id)?;
        let overlay = mounted.allows.overlay;
        mounted.allows = MountAllows { overlay, ..mounted.request.of_those(shares.allows) };
        let options = of(shares, mounted.allows);
        let options = ChangedOptions { writable: options.writable && !mounted.request.read_only, ..options };
        match &mounted.place {
            Place::Own(own) => Some((own.remounter(), options)),
            Place::InParent => None,
        }
    }

    /// Whether a file system is contained in the mount of its parent, and may not be.
    fn must_be_separate(&self, id: u64) -> bool {
        let table = self.0.lock();
        let Some(mounted) = table.by_id.get(&id).filter(|mounted| matches!(mounted.place, Place::InParent)) else {
            return false;
        };
        let parent = table.parent_at(&mounted.dataset, &mounted.path);
        parent.is_some_and(|(_, parent)| !is_alike(parent.allows, mounted.allows))
    }

    /// Gives a file system that is contained in the mount of its parent a mount of its own.
    fn separate(&self, front: &Exports, machine: &Machine, shares: &DatasetShares) -> Result<(), MountError> {
        let before = {
            let mut table = self.0.lock();
            let Some(before) = table.by_id.remove(&shares.id) else { return Ok(()) };
            debug_assert!(matches!(before.place, Place::InParent));
            // Its directory stays visible, and what is open there goes on.
            table.shown.insert(shares.id);
            before
        };
        let request = MountRequest { overlay: true, ..MountRequest::default() };
        let done = self.mount(front, machine, shares, request);
        let mut table = self.0.lock();
        if done.is_err() {
            table.shown.remove(&shares.id);
            table.by_id.entry(shares.id).or_insert(before);
        }
        debug_assert!(table.by_id.contains_key(&shares.id), "it is mounted as before, or by itself");
        done.map(drop)
    }
}
