//! The mounts of single file systems that this process has.
//!
//! ```text
//!   tank/a      mountpoint /tank/a      its own FUSE mount at /tank/a
//!   tank/a/b    inherited: /tank/a/b    contained in the mount of tank/a, at its place in the tree
//!   tank/a/c    mountpoint /srv/c       its own FUSE mount at /srv/c; hidden in the mount of tank/a
//!   tank/a/d    canmount=noauto         hidden until 'zfs mount tank/a/d', then contained in the mount of tank/a
//! ```
//!
//! A file system is contained in the mount of its parent if its mount point is the path at which the parent's mount shows it:
//! one FUSE mount then serves both, and no mount point has to be made in the parent. All mounts end with the process.

use crate::failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_daemon::fuse::{self, FuseError, MountOptions, Mounted};
use weir_daemon::{DatasetShares, Exports, MountRule};
use weir_dsl::MountedFileSystems;
use weir_dsl::props::DatasetKind;
use weir_machine::Tasks;

/// Threads of one mount that read requests from the kernel.
const THREADS: usize = 2;

/// How a file system is mounted.
enum Place {
    /// By a FUSE mount of its own.
    Own(Mounted),
    /// As a directory of the mount that contains its parent.
    InParent,
}

struct MountedFileSystem {
    dataset: String,
    path: PathBuf,
    place: Place,
}

#[derive(Default)]
struct Table {
    by_id: BTreeMap<u64, MountedFileSystem>,
    /// Whether one mount shows all file systems of the pool.
    has_whole_pool: bool,
}

/// The mounts of a pool.
#[derive(Default)]
pub struct Mounts(Arc<Mutex<Table>>);

/// Options of `zfs mount`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountRequest {
    /// Forbid changes.
    pub read_only: bool,
    /// Mount on a directory that is not empty.
    pub overlay: bool,
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mounts {
    /// Records that one mount shows all file systems.
    pub fn set_whole_pool(&self, has: bool) {
        lock(&self.0).has_whole_pool = has;
    }

    /// The mounted file systems. Mounts that an administrator ended with `umount` are not.
    pub fn mounted(&self) -> MountedFileSystems {
        self.forget_ended();
        let table = lock(&self.0);
        match table.has_whole_pool {
            true => MountedFileSystems::All,
            false => MountedFileSystems::These(table.by_id.keys().copied().collect()),
        }
    }

    /// Names and mount points, sorted by name.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        self.forget_ended();
        let table = lock(&self.0);
        let mut list: Vec<_> =
            table.by_id.values().map(|mounted| (mounted.dataset.clone(), mounted.path.clone())).collect();
        list.sort();
        list
    }

    /// Forgets the mounts that were ended from outside, with the file systems that they contained.
    fn forget_ended(&self) {
        let Some(present) = kernel_mounts() else { return };
        let mut table = lock(&self.0);
        let is_there = |mounted: &MountedFileSystem| match mounted.place {
            Place::Own(_) => present.contains(&mounted.path),
            Place::InParent => true,
        };
        table.by_id.retain(|_, mounted| is_there(mounted));
        let own: BTreeSet<PathBuf> =
            table.by_id.values().filter(|m| matches!(m.place, Place::Own(_))).map(|m| m.path.clone()).collect();
        let is_contained = |path: &Path| path.ancestors().any(|above| own.contains(above));
        table.by_id.retain(|_, mounted| is_contained(&mounted.path));
    }

    /// Mounts a file system at its mount point. Returns false if it is mounted already.
    ///
    /// # Errors
    /// The reason, without the command and the name.
    pub fn mount(
        &self,
        front: &Exports,
        tasks: &Tasks,
        shares: &DatasetShares,
        request: MountRequest,
    ) -> Result<bool, String> {
        self.forget_ended();
        let path = mount_point(shares)?;
        if lock(&self.0).by_id.contains_key(&shares.id) {
            return Ok(false);
        }
        let contained = {
            let table = lock(&self.0);
            let parent = shares.dataset.rsplit_once('/').map(|(parent, leaf)| (parent, Path::new(leaf)));
            parent.is_some_and(|(parent, leaf)| {
                table.by_id.values().any(|mounted| mounted.dataset == parent && mounted.path.join(leaf) == path)
            })
        };
        let place = match contained && !request.read_only {
            true => Place::InParent,
            false => Place::Own(self.mount_at(front, tasks, shares, &path, request)?),
        };
        let dataset = shares.dataset.clone();
        let before = lock(&self.0).by_id.insert(shares.id, MountedFileSystem { dataset, path, place });
        debug_assert!(before.is_none(), "a file system is mounted once");
        Ok(true)
    }

    fn mount_at(
        &self,
        front: &Exports,
        tasks: &Tasks,
        shares: &DatasetShares,
        path: &Path,
        request: MountRequest,
    ) -> Result<Mounted, String> {
        let is_root = rustix::process::geteuid().is_root();
        std::fs::create_dir_all(path).map_err(|error| {
            let advice = if is_root { String::new() } else { without_permission(shares) };
            format!("failed to create mountpoint '{}': {error}{advice}", path.display())
        })?;
        let is_empty = std::fs::read_dir(path).map(|mut entries| entries.next().is_none()).unwrap_or(true);
        if !is_empty && !request.overlay {
            return Err(format!("directory '{}' is not empty: -O mounts over it", path.display()));
        }
        let options = MountOptions {
            source: shares.dataset.clone(),
            allow_other: is_root,
            threads: THREADS,
            writable: front.pool.is_writable() && !shares.is_readonly && !request.read_only,
            exclusive: false,
            dev: false,
            suid: false,
        };
        let table = self.0.clone();
        let contains = Arc::new(move |id: u64| {
            lock(&table).by_id.get(&id).is_some_and(|mounted| matches!(mounted.place, Place::InParent))
        });
        let mounted = fuse::mount_file_system(front.tree.clone(), tasks.clone(), path, &options, shares.id, contains);
        mounted.map_err(|error| match error {
            FuseError::Refused { .. } if !is_root => format!("{error}{}", without_permission(shares)),
            other => other.to_string(),
        })
    }

    /// Unmounts a file system and those below it, the deepest first. Returns false if it is not mounted.
    ///
    /// # Errors
    /// The reason, without the command and the name.
    pub fn unmount(&self, dataset: &str, force: bool) -> Result<bool, String> {
        self.forget_ended();
        let below =
            |name: &str| name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let mut ids: Vec<(String, u64)> = {
            let table = lock(&self.0);
            if !table.by_id.values().any(|mounted| mounted.dataset == dataset) {
                return Ok(false);
            }
            let mounted = table.by_id.iter().filter(|(_, mounted)| below(&mounted.dataset));
            mounted.map(|(id, mounted)| (mounted.dataset.clone(), *id)).collect()
        };
        ids.sort_by(|a, b| b.cmp(a));
        for (name, id) in ids {
            let Some(mounted) = lock(&self.0).by_id.remove(&id) else { continue };
            let MountedFileSystem { path, place: Place::Own(own), .. } = mounted else { continue };
            match own.unmounter().unmount_if_free(force) {
                // A detached mount ends after its last user; its thread is not awaited.
                Ok(true) => {}
                Ok(false) => own.join().map_err(|error| format!("'{name}': {error}"))?,
                Err(error) => {
                    let place = Place::Own(own);
                    lock(&self.0).by_id.insert(id, MountedFileSystem { dataset: name.clone(), path, place });
                    return Err(format!("'{name}': {error}"));
                }
            }
        }
        Ok(true)
    }

    /// Unmounts everything, whether it is in use or not; for the end of the process.
    pub fn unmount_all(&self) {
        let names: Vec<String> = self.list().into_iter().rev().map(|(name, _)| name).collect();
        for name in names {
            if let Err(why) = self.unmount(&name, true) {
                eprintln!("cannot unmount {why}");
            }
        }
    }

    /// The mounted file system at a path.
    pub fn at(&self, path: &Path) -> Option<String> {
        self.list().into_iter().find(|(_, mounted)| mounted == path).map(|(name, _)| name)
    }
}

/// The mount point of a file system.
fn mount_point(shares: &DatasetShares) -> Result<PathBuf, String> {
    match &shares.mount {
        MountRule::At(path) | MountRule::OnCommand(path) => Ok(PathBuf::from(path)),
        MountRule::Legacy => Err("legacy mountpoint: use 'weir mount', or set mountpoint to a path".into()),
        MountRule::Never(_) if shares.kind == DatasetKind::Volume => Err("operation not applicable to volumes".into()),
        MountRule::Never(why) => match why.split_once('=') {
            Some((property, value)) => Err(format!("'{property}' property is set to '{value}'")),
            None => Err(why.clone()),
        },
    }
}

fn without_permission(shares: &DatasetShares) -> String {
    let dataset = &shares.dataset;
    let pool = dataset.split('/').next().unwrap_or(dataset);
    format!(
        "; run the process that has the pool open as root, or set a mount point that is yours (zfs set mountpoint=DIR {dataset}), \
         or mount the whole pool in a directory of yours: weir mount {pool} DIR"
    )
}

/// Mount points of Weir in the kernel's list; `None` if it cannot be read.
fn kernel_mounts() -> Option<BTreeSet<PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/mounts").ok()?;
    Some(weir_mounts(&text).into_iter().map(|(_, path)| path).collect())
}

/// Sources and mount points of the mounts of Weir in the text of `/proc/mounts`. Root's mounts have the kind `fuse`, those of
/// fusermount3 `fuse.weir`; the source of a mount of Weir is the name of a dataset.
pub fn weir_mounts(text: &str) -> Vec<(String, PathBuf)> {
    let fields = text.lines().map(|line| line.split(' ').map(unescaped).collect::<Vec<_>>());
    let ours = fields.filter_map(|fields| match fields.as_slice() {
        [source, path, kind, ..] if kind == "fuse.weir" || kind == "fuse" && is_dataset_name(source) => {
            Some((source.clone(), PathBuf::from(path)))
        }
        _ => None,
    });
    ours.collect()
}

fn is_dataset_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || " -_.:".contains(c);
    text.split('/').all(|part| !part.is_empty() && part.chars().all(allowed))
}

/// A field of `/proc/mounts`: space, tab, line end and backslash are written as octal numbers.
fn unescaped(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Failure of a command about a file system.
pub fn failed(doing: &str, why: &str) -> Failure {
    Failure::failed(format!("{doing}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_weir_are_found_in_the_kernels_list() {
        let text = "tank/a\\040b /tank/a\\040b fuse.weir rw,nosuid 0 0\nproc /proc proc rw 0 0\nx /y fuse.other rw 0 0\n\
                    /dev/x /z fuse rw 0 0\ntank/b /b fuse rw 0 0\nbroken\n";
        let found = [("tank/a b".to_owned(), PathBuf::from("/tank/a b")), ("tank/b".to_owned(), PathBuf::from("/b"))];
        assert_eq!(weir_mounts(text), found);
    }
}
