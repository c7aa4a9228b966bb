//! File systems that a process mounts by itself, as OpenZFS does: when the pool is opened, and when a command creates a file
//! system, or changes where it is mounted.
//!
//! ```text
//!   new, canmount=on                      mounted
//!   mountpoint changed                    unmounted, and mounted at its new place if it was mounted or canmount=on
//!   name changed                          unmounted, and mounted at its new place if it was mounted
//!   canmount=off                          unmounted; canmount=on alone mounts nothing
//!   readonly, devices, setuid, exec       the mount is changed, also while it is in use
//!   destroyed                             unmounted
//!   destroyed, renamed, mountpoint set    its former directory is removed if it followed the names and is empty
//!   otherwise                             left as it is: 'zfs unmount' holds until one of these happens
//! ```
//!
//! What cannot be mounted is logged. A command that created a file system which is not mounted says so, as OpenZFS's does, and fails;
//! the file system exists ([`AutoMounts::take_failure`]). A file system whose key is missing is
//! not mounted later by itself: as in OpenZFS, `zfs load-key` loads the key, and `zfs mount` or `zfs mount -l` mounts. Commands that move a file system unmount it themselves before they change anything
//! ([`ServedPool::prepare_mounts`]), and with `-u` they leave it as it is.

use crate::admin::ServedPool;
use crate::failure::Failure;
use crate::mounts::{MountError, MountRequest, points, weir_mounts};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use weir_machine::lock::{Mutex, MutexGuard, order};

use weir_daemon::{DatasetShares, Exports, MountAllows, MountRule, Sharing, fuse};
use weir_dsl::props::DatasetKind;
use weir_machine::Request;

/// Properties that decide where a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    dataset: String,
    mount: MountRule,
    /// Whether `mountpoint` is set on the file system itself: an administrator chose the directory.
    is_mountpoint_set: bool,
    is_readonly: bool,
    allows: MountAllows,
}

impl Known {
    /// Whether only `canmount` has changed. As in OpenZFS, its new value `on` mounts nothing: `zfs mount` does.
    fn only_canmount(&self, now: &Known) -> bool {
        let was = match &self.mount {
            MountRule::OnCommand(path) => now.mount.path() == Some(path),
            MountRule::Never(why) => why.starts_with("canmount="),
            MountRule::At(_) | MountRule::Legacy | MountRule::Redacted(_) => false,
        };
        was && self.dataset == now.dataset
    }

    /// The directory of its name, unless it is still the one of the file system as it is now; `None` if the file system is gone.
    ///
    /// Source: OpenZFS `lib/libzfs/libzfs_mount.c` (`remove_mountpoint`, which leaves directories that were chosen), called by
    /// `zfs_destroy` and, for a change of `mountpoint` or of the name, by `changelist_postfix`.
    fn directory_left(&self, now: Option<&Known>) -> Option<PathBuf> {
        let path = self.mount.path().filter(|_| !self.is_mountpoint_set)?;
        let is_left = match now.map(|now| &now.mount) {
            None | Some(MountRule::Legacy) => true,
            Some(MountRule::At(other) | MountRule::OnCommand(other) | MountRule::Redacted(other)) => other != path,
            // A change of `canmount` leaves the directory.
            Some(MountRule::Never(why)) => why.starts_with("mountpoint="),
        };
        is_left.then(|| PathBuf::from(path))
    }
}

#[derive(Debug, Default)]
struct State {
    /// The file systems of a pool as they were when they were looked at last, by ID.
    known: BTreeMap<u64, Known>,
    /// File systems that commands leave as they are, with those below them (`-u`); each command adds one and removes it.
    left: Vec<String>,
    /// Why file systems could not be mounted, by ID. Those that are gone are not among them.
    failures: BTreeMap<u64, String>,
}

/// The mounts that a process makes by itself.
#[derive(Debug, Default)]
pub struct AutoMounts(Mutex<State, { order::AUTOMOUNTS }>);

/// Mounts to make and to end, from two states of the properties. Pure.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Names under which they are mounted.
    gone: Vec<String>,
    moved: Vec<String>,
    /// IDs of those whose mounts stay and get other options.
    changed: BTreeSet<u64>,
    /// IDs to mount, unless they are mounted.
    wanted: BTreeSet<u64>,
    /// Directories that follow the names of file systems which are not mounted there any more, parents first.
    left_directories: Vec<PathBuf>,
}

/// Whether a dataset is `top` or below it.
pub fn is_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// IDs of a file system and of those below it that are mounted, by names and paths by ID.
fn below<'a>(mounted: &'a BTreeMap<u64, (String, String)>, name: &'a str) -> impl Iterator<Item = u64> + 'a {
    mounted.iter().filter(|(_, (other, _))| is_below(other, name)).map(|(id, _)| *id)
}

/// `mounted` are names and paths of the mounted file systems by ID. Nothing is done with those in and below `left`.
fn changes(
    before: &BTreeMap<u64, Known>,
    now: &BTreeMap<u64, Known>,
    mounted: &BTreeMap<u64, (String, String)>,
    left: &[String],
) -> Changes {
    let is_left = |known: &Known| left.iter().any(|top| is_below(&known.dataset, top));
    let mut out = Changes::default();
    for (id, (name, path)) in mounted {
        let Some(new) = now.get(id) else {
            out.gone.push(name.clone());
            continue;
        };
        if is_left(new) {
            continue;
        }
        let Some(old) = before.get(id).filter(|old| *old != new) else { continue };
        // A mount that mount(8) made is where the administrator wants it.
        let is_legacy = [&old.mount, &new.mount].iter().all(|mount| matches!(mount, MountRule::Legacy));
        let stays = is_legacy || new.mount.place() == Some(path) && new.dataset == *name;
        if stays && (old.is_readonly, old.allows) != (new.is_readonly, new.allows) {
            out.changed.insert(*id);
        }
        if !stays {
            // Those below are unmounted with it.
            out.moved.push(name.clone());
            let is_possible = |id: &u64| now.get(id).is_some_and(|new| new.mount.is_possible());
            out.wanted.extend(below(mounted, name).filter(is_possible));
        }
    }
    // As in OpenZFS (`changelist_postfix`), a new name mounts nothing that was not mounted.
    let has_place_as_before = |id: &u64, new: &Known| {
        let old = before.get(id);
        old.is_some_and(|old| old.dataset != new.dataset || old.mount == new.mount || old.only_canmount(new))
    };
    let is_new = |id: &u64, new: &Known| new.mount.is_automatic() && !has_place_as_before(id, new) && !is_left(new);
    let turned_on = now.iter().filter(|(id, new)| is_new(id, new));
    out.wanted.extend(turned_on.map(|(id, _)| *id));
    let moves = before.iter().filter(|(id, _)| !now.get(id).is_some_and(is_left));
    out.left_directories = moves.filter_map(|(id, old)| old.directory_left(now.get(id))).collect();
    out.left_directories.sort();
    out
}

impl AutoMounts {
    /// Knows the file systems that there are; none of them is mounted by itself, as after `zpool import -N`. It blocks.
    ///
    /// # Errors
    /// If their properties cannot be read.
    pub fn know(&self, pool: &ServedPool, front: &Exports) -> Result<(), Failure> {
        self.lock().known = known(pool, front)?.0;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Leaves the mounts of a file system and of those below it as they are, until [`AutoMounts::follow_again`].
    pub fn leave(&self, name: &str) {
        self.lock().left.push(name.to_owned());
    }

    /// Ends one [`AutoMounts::leave`], after the change is known.
    pub fn follow_again(&self, name: &str) {
        let mut state = self.lock();
        let at = state.left.iter().position(|left| left == name);
        debug_assert!(at.is_some(), "a command ends what it began");
        at.map(|at| state.left.remove(at));
    }

    /// Why a file system could not be mounted, once; `None` if it was mounted, or no mount was tried.
    pub fn take_failure(&self, name: &str) -> Option<String> {
        let mut state = self.lock();
        let id = state.known.iter().find(|(_, known)| known.dataset == name).map(|(id, _)| *id)?;
        state.failures.remove(&id)
    }

    /// Mounts, moves and unmounts. It blocks until the kernel has done so.
    pub fn renew(&self, pool: &ServedPool, front: &Exports) {
        // One at a time: the later call finds what the earlier one did.
        let mut state = self.lock();
        let Ok((now, shares)) = known(pool, front).inspect_err(|error| tracing::warn!("not mounted: {error}")) else {
            return;
        };
        let mounted = pool.mounts.by_id();
        let mut changes = changes(&state.known, &now, &mounted, &state.left);
        for (names, force) in [(&changes.gone, true), (&changes.moved, false)] {
            for name in names {
                if let Err(why) = pool.mounts.unmount(name, force) {
                    tracing::warn!("not unmounted: {why}");
                }
            }
        }
        // A directory that is still a mount point, or is not empty, stays.
        points::remove(std::mem::take(&mut changes.left_directories));
        let changed: Vec<&DatasetShares> =
            shares.values().filter(|shares| changes.changed.contains(&shares.id)).collect();
        for (name, why) in pool.mounts.change_options(front, &pool.machine, &changed, &shares) {
            // Users other than root mount again what is not in use.
            match pool.mounts.unmount(&name, false) {
                Ok(_) => changes.wanted.extend(below(&mounted, &name)),
                Err(busy) => tracing::warn!("options of a mount not changed: {busy}; {why}"),
            }
        }
        // By name: parents first.
        for shares in shares.values().filter(|shares| changes.wanted.contains(&shares.id)) {
            let done = mount(pool, front, shares);
            state.failures.remove(&shares.id);
            match done {
                Ok(true) => {
                    tracing::info!("mounted: {} at {}", shares.dataset, shares.mount.path().unwrap_or_default())
                }
                Ok(false) => {}
                // As in OpenZFS, `zfs load-key` mounts nothing: `zfs mount` does, when the key is loaded.
                Err(MountError::NoKey) => tracing::info!("not mounted: the key of {} is not loaded", shares.dataset),
                Err(why) => {
                    tracing::warn!("not mounted: {}: {why}", shares.dataset);
                    state.failures.insert(shares.id, why.to_string());
                }
            }
        }
        show_without_key(pool, &shares);
        state.failures.retain(|id, _| now.contains_key(id));
        state.known = now;
    }
}

/// Shows the directories of file systems that would be mounted in the mounts of their parents if their keys were loaded.
fn show_without_key(pool: &ServedPool, shares: &BTreeMap<String, DatasetShares>) {
    let mounted = pool.mounts.by_id();
    let rq = Request::internal("mount");
    let is_loaded = |name: &str| pool.machine.block_on(pool.engine.encryption_keys().is_loaded(&rq, name));
    let is_without = |shares: &&DatasetShares| {
        let is_wanted = shares.mount.is_automatic() && !mounted.contains_key(&shares.id);
        is_wanted && matches!(is_loaded(&shares.dataset), Ok(Some(false)))
    };
    let without: Vec<&DatasetShares> = shares.values().filter(is_without).collect();
    pool.mounts.show_without_key(&without);
}

/// File systems by ID and by name.
type FileSystems = (BTreeMap<u64, Known>, BTreeMap<String, DatasetShares>);

/// The file systems of the pool.
fn known(pool: &ServedPool, front: &Exports) -> Result<FileSystems, Failure> {
    let mut shares = match front.shares.sharing() {
        Sharing::ByProperties => front.shares.all(),
        // The daemon opens its first pools before it shares.
        _ => pool.machine.block_on(front.dataset_shares(&Request::internal("mount")))?,
    };
    shares.retain(|_, shares| shares.kind == DatasetKind::Filesystem);
    let of = |shares: &DatasetShares| Known {
        dataset: shares.dataset.clone(),
        mount: shares.mount.clone(),
        is_mountpoint_set: shares.is_mountpoint_set,
        is_readonly: shares.is_readonly,
        // Whether it may cover files matters when it is mounted, not afterwards.
        allows: MountAllows { overlay: true, ..shares.allows },
    };
    Ok((shares.values().map(|shares| (shares.id, of(shares))).collect(), shares))
}

fn mount(pool: &ServedPool, front: &Exports, shares: &DatasetShares) -> Result<bool, MountError> {
    if shares.mount.path() == Some("/") {
        let why = "its mount point is the root of this machine: set another one";
        return Err(MountError::Other(why.to_owned()));
    }
    pool.mounts.mount(front, &pool.machine, shares, MountRequest::default())
}

/// Detaches mounts of the pool that a killed process left behind, wherever they are.
pub fn unmount_stale(pool: &str) {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let sources: BTreeSet<String> =
        weir_mounts(&text).into_iter().map(|(source, _)| source).filter(|source| is_below(source, pool)).collect();
    for path in sources.iter().flat_map(|source| fuse::unmount_stale(source)) {
        let path: &Path = &path;
        tracing::info!("unmounted: {}: its server was killed", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(all: &[(u64, &str, MountRule)]) -> BTreeMap<u64, Known> {
        let of = |dataset: &str, mount: &MountRule| Known {
            dataset: dataset.to_owned(),
            mount: mount.clone(),
            is_mountpoint_set: false,
            is_readonly: false,
            allows: MountAllows { devices: true, setuid: true, exec: true, overlay: true },
        };
        all.iter().map(|(id, dataset, mount)| (*id, of(dataset, mount))).collect()
    }

    fn at(path: &str) -> MountRule {
        MountRule::At(path.to_owned())
    }

    #[test]
    fn mounts_follow_the_properties_and_the_administrator() {
        let old = known(&[(1, "t", at("/t")), (2, "t/a", at("/t/a")), (3, "t/b", at("/t/b"))]);
        let mounted: BTreeMap<u64, (String, String)> =
            [(1, ("t".into(), "/t".into())), (2, ("t/a".into(), "/t/a".into()))].into();
        // At the start all are new; afterwards nothing happens, also if one was unmounted by hand.
        let first = changes(&BTreeMap::new(), &old, &BTreeMap::new(), &[]);
        assert_eq!((first.wanted, first.gone.len(), first.moved.len()), ([1, 2, 3].into(), 0, 0));
        assert_eq!(changes(&old, &old, &mounted, &[]), Changes::default());
        // A mount point that moves takes those below it along, except one that may not be mounted any more.
        let never = MountRule::Never("canmount=off".into());
        let new = known(&[(1, "t", at("/x")), (2, "t/a", never.clone()), (3, "t/b", at("/x/b"))]);
        let moved = changes(&old, &new, &mounted, &[]);
        assert_eq!((moved.moved, moved.wanted), (vec!["t".into(), "t/a".into()], [1, 3].into()));
        // canmount=noauto leaves a mount alone, canmount=off and a destroyed file system end it.
        let new = known(&[(1, "t", MountRule::OnCommand("/t".into())), (2, "t/a", never)]);
        assert_eq!(changes(&old, &new, &mounted, &[]).moved, ["t/a"]);
        assert_eq!(changes(&old, &known(&[(1, "t", at("/t"))]), &mounted, &[]).gone, ["t/a"]);
        // Nor does canmount=on alone mount anything; the mount point of one with canmount=on does.
        let off = known(&[(1, "t", at("/t")), (2, "t/a", MountRule::Never("canmount=off".into()))]);
        let on = known(&[(1, "t", at("/t")), (2, "t/a", at("/t/a"))]);
        assert_eq!(changes(&off, &on, &BTreeMap::new(), &[]), Changes::default());
        let none = known(&[(1, "t", at("/t")), (2, "t/a", MountRule::Never("mountpoint=none".into()))]);
        assert_eq!(changes(&none, &on, &BTreeMap::new(), &[]).wanted, [2].into());
        // Other options change a mount that stays; one that an administrator ended is not made again.
        let mut new = old.clone();
        for known in new.values_mut() {
            known.allows.exec = false;
        }
        let options = changes(&old, &new, &mounted, &[]);
        assert_eq!(options, Changes { changed: [1, 2].into(), ..Changes::default() });
        // A renamed file system is mounted again under its name; one that was not mounted stays so.
        let new = known(&[(1, "t", at("/t")), (2, "t/c", at("/t/c")), (3, "t/d", at("/t/d"))]);
        let renamed = changes(&old, &new, &mounted, &[]);
        assert_eq!((renamed.moved, renamed.wanted), (vec!["t/a".into()], [2].into()));
    }

    #[test]
    fn directories_of_former_names_are_left() {
        let old = known(&[(1, "t", at("/t")), (2, "t/a", at("/t/a")), (3, "t/b", at("/t/b"))]);
        let left = |new: &BTreeMap<u64, Known>, leaves: &[String]| {
            let of = changes(&old, new, &BTreeMap::new(), leaves).left_directories;
            of.into_iter().map(|path| path.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(left(&old, &[]), [""; 0]);
        // Destroyed, and renamed.
        let new = known(&[(1, "t", at("/t")), (3, "t/c", at("/t/c"))]);
        assert_eq!(left(&new, &[]), ["/t/a", "/t/b"]);
        assert_eq!(left(&new, &["t/c".into()]), ["/t/a"], "with -u it stays mounted");
        // mountpoint=none and canmount=off.
        let never = |why: &str| MountRule::Never(why.into());
        let none = [(1, "t", at("/t")), (2, "t/a", never("mountpoint=none")), (3, "t/b", never("canmount=off"))];
        assert_eq!(left(&known(&none), &[]), ["/t/a"]);
        // Chosen directories stay.
        let mut chosen = old.clone();
        chosen.values_mut().for_each(|known| known.is_mountpoint_set = true);
        assert_eq!(
            changes(&chosen, &BTreeMap::new(), &BTreeMap::new(), &[]).left_directories,
            [""; 0].map(PathBuf::from)
        );
    }
}
