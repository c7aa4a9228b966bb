//! The mounts of single file systems that this process has.
//!
//! ```text
//!   tank/a      mountpoint /tank/a      its own FUSE mount at /tank/a
//!   tank/a/b    inherited: /tank/a/b    contained in the mount of tank/a, at its place in the tree
//!   tank/a/c    mountpoint /srv/c       its own FUSE mount at /srv/c; hidden in the mount of tank/a
//!   tank/a/d    canmount=noauto         hidden until 'zfs mount tank/a/d', then contained in the mount of tank/a
//!   tank/a/e    key not loaded          in the mount of tank/a, as a directory that cannot be listed
//! ```
//!
//! A file system is contained in the mount of its parent if its mount point is the path at which the parent's mount shows it:
//! one FUSE mount then serves both, and no mount point has to be made in the parent. If the values of `devices`, `setuid` or
//! `exec` of parent and child differ, the child has a mount of its own there. If such a property changes, the mount gets the new
//! options while it is in use, or the child a mount of its own over its directory. All mounts end with the process.

mod above;
mod options;
pub mod points;
mod request;

pub use request::MountRequest;

use crate::failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_daemon::fuse::{self, CachedNames, FuseError, MountOptions, Mounted, Unmounter};
use weir_daemon::{DatasetShares, Exports, MountAllows, MountRule};
use weir_dsl::MountedFileSystems;
use weir_dsl::props::DatasetKind;
use weir_files::FileError;
use weir_files::tree::Node;
use weir_machine::lock::{Mutex, order};
use weir_machine::{Machine, Request};

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
    allows: MountAllows,
    /// Options that it was mounted with.
    request: MountRequest,
}

#[derive(Default)]
struct Table {
    by_id: BTreeMap<u64, MountedFileSystem>,
    /// File systems that are not contained in the mount of their parent, and whose directory is shown there: those whose key is
    /// not loaded, which may not look as if they did not exist, and those with a mount of their own at that place.
    shown: BTreeSet<u64>,
    /// The mount that shows all file systems of the pool, if there is one.
    whole_pool: Option<Unmounter>,
}

impl Table {
    /// ID and mount of the parent of a file system, if that is mounted and shows the file system at this path.
    fn parent_at(&self, dataset: &str, path: &Path) -> Option<(u64, &MountedFileSystem)> {
        let (parent, leaf) = dataset.rsplit_once('/')?;
        let is_parent = |mounted: &MountedFileSystem| mounted.dataset == parent && mounted.path.join(leaf) == path;
        self.by_id.iter().find(|(_, mounted)| is_parent(mounted)).map(|(id, mounted)| (*id, mounted))
    }

    /// The FUSE mount that serves a path: the nearest one at or above it.
    fn own_above(&self, path: &Path) -> Option<&Mounted> {
        let at = |above: &Path| {
            self.by_id.values().find_map(|other| match &other.place {
                Place::Own(own) if other.path == above => Some(own),
                _ => None,
            })
        };
        path.ancestors().find_map(at)
    }

    /// The name of a file system in the mount that contains its parent.
    fn name_in_parent(&self, dataset: &str, path: &Path) -> Option<NameInParent> {
        let (parent, _) = self.parent_at(dataset, path)?;
        let names = self.own_above(path.parent()?)?.cached_names();
        let leaf = dataset.rsplit('/').next()?.to_owned();
        Some(NameInParent { names, parent, leaf })
    }

    /// A file system that is mounted below this path by a mount of its own.
    fn own_below(&self, path: &Path) -> Option<&MountedFileSystem> {
        let is_below = |other: &&MountedFileSystem| other.path != path && other.path.starts_with(path);
        self.by_id.values().filter(is_below).find(|other| matches!(other.place, Place::Own(_)))
    }

    /// Whether programs have files open in a file system that the mount of another one contains.
    fn is_used_in_parent(&self, id: u64) -> bool {
        let Some(mounted) = self.by_id.get(&id) else { return false };
        self.own_above(&mounted.path).is_some_and(|own| own.uses(id))
    }
}

/// The name of a file system in the mount that contains its parent.
struct NameInParent {
    names: CachedNames,
    /// ID of the parent.
    parent: u64,
    leaf: String,
}

impl NameInParent {
    /// Makes the kernel look the name up again. The table of mounts must not be locked: the kernel waits for this process.
    fn look_again(&self) {
        self.names.forget(self.parent, &self.leaf);
    }
}

/// The mounts of a pool.
#[derive(Default)]
pub struct Mounts(Arc<Mutex<Table, { order::MOUNTS }>>);

/// Why a file system is not mounted, without the command and the name.
#[derive(Debug)]
pub enum MountError {
    /// The file system is encrypted, and its key is not loaded.
    NoKey,
    /// Another reason.
    Other(String),
}

impl std::fmt::Display for MountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MountError::NoKey => "encryption key not loaded",
            MountError::Other(why) => why,
        })
    }
}

impl From<String> for MountError {
    fn from(why: String) -> Self {
        MountError::Other(why)
    }
}

/// Unmounting that ended at a busy file system.
struct Unfinished {
    /// Path and reason.
    why: String,
    /// IDs of the file systems that were unmounted before.
    ended: Vec<u64>,
}

impl Mounts {
    /// Records that one mount shows all file systems.
    pub fn set_whole_pool(&self, mount: Unmounter) {
        self.0.lock().whole_pool = Some(mount);
    }

    /// Fails if a process uses the mount that shows all file systems. It blocks.
    ///
    /// # Errors
    /// The mount point and the reason.
    pub fn check_whole_pool(&self) -> Result<(), String> {
        let mount = self.0.lock().whole_pool.clone();
        match mount.filter(Unmounter::is_busy) {
            Some(mount) => Err(format!("'{}': {}", mount.path().display(), FuseError::Busy)),
            None => Ok(()),
        }
    }

    /// The mounted file systems. Mounts that an administrator ended with `umount` are not.
    pub fn mounted(&self) -> MountedFileSystems {
        self.forget_ended();
        let table = self.0.lock();
        match table.whole_pool.is_some() {
            true => MountedFileSystems::All,
            false => MountedFileSystems::These(table.by_id.keys().copied().collect()),
        }
    }

    /// Names and mount points, sorted by name.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        self.forget_ended();
        let table = self.0.lock();
        let mut list: Vec<_> =
            table.by_id.values().map(|mounted| (mounted.dataset.clone(), mounted.path.clone())).collect();
        list.sort();
        list
    }

    /// Names and mount points, by ID.
    pub fn by_id(&self) -> BTreeMap<u64, (String, String)> {
        self.forget_ended();
        let of = |mounted: &MountedFileSystem| (mounted.dataset.clone(), mounted.path.to_string_lossy().into_owned());
        self.0.lock().by_id.iter().map(|(id, mounted)| (*id, of(mounted))).collect()
    }

    /// Takes over the names of file systems that were renamed and stayed mounted.
    pub fn follow_names(&self, names: &BTreeMap<u64, String>) {
        for (id, mounted) in &mut self.0.lock().by_id {
            if let Some(name) = names.get(id) {
                mounted.dataset.clone_from(name);
            }
        }
    }

    /// Shows in the mounts of their parents the directories of these file systems, whose keys are not loaded, and of no others
    /// that are not mounted.
    pub fn show_without_key(&self, all: &[&DatasetShares]) {
        let mut table = self.0.lock();
        let is_there = |shares: &&&DatasetShares| {
            // The directory that carries a mount below it would be hidden.
            let is_free = |path: &&Path| table.own_below(path).is_none();
            let path = shares.mount.path().map(Path::new).filter(is_free);
            path.is_some_and(|path| table.parent_at(&shares.dataset, path).is_some())
        };
        let ids: BTreeSet<u64> = all.iter().filter(is_there).map(|shares| shares.id).collect();
        let Table { by_id, shown, .. } = &mut *table;
        shown.retain(|id| by_id.contains_key(id));
        shown.extend(ids);
    }

    /// Forgets the mounts that were ended from outside, with the file systems that they contained.
    fn forget_ended(&self) {
        let Some(present) = kernel_mounts() else { return };
        let mut table = self.0.lock();
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

    /// Mounts a file system at its mount point. Returns false if it is mounted already. It blocks.
    ///
    /// # Errors
    /// [`MountError::NoKey`], or another reason.
    pub fn mount(
        &self,
        front: &Exports,
        machine: &Machine,
        shares: &DatasetShares,
        request: MountRequest,
    ) -> Result<bool, MountError> {
        let path = mount_point(shares)?;
        self.mount_in(front, machine, shares, path, request, false)
    }

    /// The same, at a directory, whatever its mount point is; with `own`, always by a mount of its own.
    ///
    /// # Errors
    /// As [`Mounts::mount`].
    pub fn mount_in(
        &self,
        front: &Exports,
        machine: &Machine,
        shares: &DatasetShares,
        path: PathBuf,
        request: MountRequest,
        own: bool,
    ) -> Result<bool, MountError> {
        self.forget_ended();
        if self.0.lock().by_id.contains_key(&shares.id) {
            return Ok(false);
        }
        let allows = request.of_those(shares.allows);
        let parent = self.0.lock().parent_at(&shares.dataset, &path).map(|(_, parent)| parent.allows);
        let has_key = has_key(front, machine, shares.id);
        let below = self.0.lock().own_below(&path).map(|below| below.dataset.clone());
        if let Some(below) = below {
            // The directory that carries it would go, or be hidden.
            has_key?;
            return match own {
                true => Err(format!("'{below}' is mounted below '{}': unmount it first", path.display()).into()),
                false => self.mount_above(front, machine, shares, &path, request),
            };
        }
        if parent.is_some() {
            // An own mount needs the directory; without the key, it must be there and not be empty.
            self.0.lock().shown.insert(shares.id);
        }
        has_key?;
        let as_parent = |parent: MountAllows| options::is_alike(parent, allows);
        let made = match parent.is_some_and(as_parent) && !request.read_only && !own {
            true => Ok(Place::InParent),
            false => self.mount_at(front, machine, shares, &path, request, allows).map(Place::Own),
        };
        let mut table = self.0.lock();
        if !matches!(made, Ok(Place::Own(_))) {
            table.shown.remove(&shares.id);
        }
        let dataset = shares.dataset.clone();
        let place = made?;
        let before = table.by_id.insert(shares.id, MountedFileSystem { dataset, path, place, allows, request });
        debug_assert!(before.is_none(), "a file system is mounted once");
        let name = table.by_id.get(&shares.id).filter(|made| matches!(made.place, Place::InParent));
        let name = name.and_then(|made| table.name_in_parent(&made.dataset, &made.path));
        drop(table);
        name.iter().for_each(NameInParent::look_again);
        Ok(true)
    }

    fn mount_at(
        &self,
        front: &Exports,
        machine: &Machine,
        shares: &DatasetShares,
        path: &Path,
        request: MountRequest,
        allows: MountAllows,
    ) -> Result<Mounted, String> {
        let is_root = rustix::process::geteuid().is_root();
        // The directory below the mount of a killed process cannot be used before.
        fuse::unmount_stale_at(path, &shares.dataset);
        let made = points::Made::at(path).map_err(|error| {
            let advice = if is_root { String::new() } else { without_permission(shares) };
            format!("failed to create mountpoint '{}': {error}{advice}", path.display())
        })?;
        let is_in_parent = self.0.lock().shown.contains(&shares.id);
        let is_empty = std::fs::read_dir(path).map(|mut entries| entries.next().is_none()).unwrap_or(true);
        if !is_empty && !is_in_parent && !allows.overlay {
            return Err(format!("directory '{}' is not empty, and overlay is off: -O mounts over it", path.display()));
        }
        let options = MountOptions {
            source: shares.dataset.clone(),
            allow_other: is_root,
            threads: THREADS,
            // `readonly` may be turned off while it is mounted, if the mount can be changed then.
            writable: front.pool.is_writable() && !request.read_only && (is_root || !shares.is_readonly),
            exclusive: false,
            // Users other than root may not allow these.
            dev: is_root && allows.devices,
            suid: is_root && allows.setuid,
            exec: allows.exec,
        };
        let table = self.0.clone();
        let contains = Arc::new(move |id: u64| {
            let table = table.lock();
            let is_contained = |mounted: &MountedFileSystem| matches!(mounted.place, Place::InParent);
            table.shown.contains(&id) || table.by_id.get(&id).is_some_and(is_contained)
        });
        let tasks = machine.tasks.clone();
        let mounted = fuse::mount_file_system(front.tree.clone(), tasks, path, &options, shares.id, contains);
        let mounted = mounted.map_err(|error| {
            made.remove();
            match error {
                FuseError::Refused { .. } if !is_root => format!("{error}{}", without_permission(shares)),
                other => other.to_string(),
            }
        })?;
        if shares.is_readonly && is_root {
            let shown = mounted.remounter().remount(options::of(shares, allows));
            shown.map_err(|error| error.to_string())?;
        }
        Ok(mounted)
    }

    /// Unmounts a file system and those below it, the deepest first. Returns false if it is not mounted.
    ///
    /// # Errors
    /// The path and the reason, without the command.
    pub fn unmount(&self, dataset: &str, force: bool) -> Result<bool, String> {
        let mounted = self.by_id();
        if !mounted.values().any(|(name, _)| name == dataset) {
            return Ok(false);
        }
        let below =
            |name: &str| name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let ids: BTreeSet<u64> = mounted.iter().filter(|(_, (name, _))| below(name)).map(|(id, _)| *id).collect();
        self.unmount_these(&ids, force).map_err(|unfinished| unfinished.why)?;
        Ok(true)
    }

    /// Unmounts one file system, and those that its mount contains.
    ///
    /// # Errors
    /// The path and the reason, without the command.
    pub fn unmount_alone(&self, id: u64, force: bool) -> Result<(), String> {
        self.unmount_these(&BTreeSet::from([id]), force).map(drop).map_err(|unfinished| unfinished.why)
    }

    /// Unmounts these file systems and those that their mounts contain, and returns their IDs; or none of them. With `force`, those
    /// in use are detached: what is open goes on.
    ///
    /// # Errors
    /// The path and the reason, without the command. Then all are mounted as before.
    pub fn suspend(
        &self,
        ids: &BTreeSet<u64>,
        force: bool,
        front: &Exports,
        machine: &Machine,
        all: &BTreeMap<String, DatasetShares>,
    ) -> Result<Vec<u64>, String> {
        let Unfinished { why, ended } = match self.unmount_these(ids, force) {
            Ok(ended) => return Ok(ended),
            Err(unfinished) => unfinished,
        };
        let request = MountRequest { overlay: true, ..MountRequest::default() };
        // By name: parents first.
        for shares in all.values().filter(|shares| ended.contains(&shares.id)) {
            if let Err(error) = self.mount(front, machine, shares, request) {
                tracing::warn!("not mounted again: {}: {error}", shares.dataset);
            }
        }
        Err(why)
    }

    /// Unmounts these file systems, the deepest first, and those that their mounts contain.
    fn unmount_these(&self, ids: &BTreeSet<u64>, force: bool) -> Result<Vec<u64>, Unfinished> {
        let (own, contained) = {
            let table = self.0.lock();
            let is_own = |mounted: &MountedFileSystem| matches!(mounted.place, Place::Own(_));
            let chosen = table.by_id.iter().filter(|(id, mounted)| ids.contains(id) && is_own(mounted));
            let mut own: Vec<(String, PathBuf, u64)> =
                chosen.map(|(id, mounted)| (mounted.dataset.clone(), mounted.path.clone(), *id)).collect();
            own.sort_by(|a, b| b.cmp(a));
            let ends = |mounted: &MountedFileSystem| {
                let mut above = mounted.path.ancestors();
                let nearest =
                    above.find(|above| table.by_id.values().any(|other| is_own(other) && other.path == *above));
                nearest.is_some_and(|nearest| own.iter().any(|(_, path, _)| path == nearest))
            };
            let contained = table.by_id.iter().filter(|(_, mounted)| !is_own(mounted));
            let contained: Vec<u64> =
                contained.filter(|(id, mounted)| ids.contains(id) || ends(mounted)).map(|(id, _)| *id).collect();
            if let Some(used) = contained.iter().find(|id| !force && table.is_used_in_parent(**id)) {
                let path = table.by_id.get(used).map(|mounted| mounted.path.clone()).unwrap_or_default();
                let why = format!("'{}': {}", path.display(), FuseError::Busy);
                return Err(Unfinished { why, ended: Vec::new() });
            }
            (own, contained)
        };
        let mut ended = Vec::new();
        for (_, path, id) in own {
            let Some(mounted) = self.0.lock().by_id.remove(&id) else { continue };
            let MountedFileSystem { place: Place::Own(own), dataset, allows, request, .. } = mounted else { continue };
            let is_detached = match own.unmounter().unmount_if_free(force) {
                Ok(is_detached) => is_detached,
                Err(error) => {
                    let place = Place::Own(own);
                    let back = MountedFileSystem { dataset, path: path.clone(), place, allows, request };
                    self.0.lock().by_id.insert(id, back);
                    return Err(Unfinished { why: format!("'{}': {error}", path.display()), ended });
                }
            };
            self.0.lock().shown.remove(&id);
            ended.push(id);
            // The kernel ends a detached mount when its last open file is closed: nothing waits for its thread.
            if !is_detached && let Err(error) = own.join() {
                return Err(Unfinished { why: format!("'{}': {error}", path.display()), ended });
            }
        }
        let names: Vec<NameInParent> = {
            let mut table = self.0.lock();
            let gone = contained.iter().filter_map(|id| table.by_id.get(id));
            let names = gone.filter_map(|gone| table.name_in_parent(&gone.dataset, &gone.path)).collect();
            contained.iter().for_each(|id| drop(table.by_id.remove(id)));
            names
        };
        names.iter().for_each(NameInParent::look_again);
        ended.extend(contained);
        Ok(ended)
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

/// Fails if the key of a file system is not loaded, or the file system cannot be opened.
fn has_key(front: &Exports, machine: &Machine, id: u64) -> Result<(), MountError> {
    let gone = || MountError::Other("dataset does not exist".to_owned());
    let root = Node { branch: front.tree.branch_by_id(id).ok_or_else(gone)?, object: Node::ROOT };
    machine.block_on(front.tree.require_usable(&Request::internal("mount"), root)).map_err(|error| match error {
        FileError::NoKey => MountError::NoKey,
        other => MountError::Other(other.to_string()),
    })
}

/// The mount point of a file system.
fn mount_point(shares: &DatasetShares) -> Result<PathBuf, String> {
    match &shares.mount {
        MountRule::At(path) | MountRule::OnCommand(path) => Ok(PathBuf::from(path)),
        MountRule::Legacy => Err(format!(
            "legacy mountpoint: use 'mount -t zfs {} DIRECTORY', or set mountpoint to a path",
            shares.dataset
        )),
        MountRule::Redacted(_) => {
            Err("Dataset is not complete, was created by receiving a redacted zfs send stream.".into())
        }
        MountRule::Never(_) if shares.kind == DatasetKind::Volume => Err("operation not applicable to volumes".into()),
        MountRule::Never(why) => Err(forbids_mount(why)),
    }
}

/// The message for a reason of [`MountRule::Never`].
pub fn forbids_mount(why: &str) -> String {
    match why.split_once('=') {
        Some((property, value)) => format!("'{property}' property is set to '{value}'"),
        None => why.to_owned(),
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

/// Sources and mount points of the mounts of Weir in the text of `/proc/mounts`. Their type is `fuse.weir`; earlier versions
/// made those of root with the type `fuse`. The source of a mount of Weir is the name of a dataset.
pub fn weir_mounts(text: &str) -> Vec<(String, PathBuf)> {
    let fields = text.lines().map(|line| line.split(' ').map(unescaped).collect::<Vec<_>>());
    let ours = fields.filter_map(|fields| match fields.as_slice() {
        // Samba has mounts of its own, at which users find nothing: see `weir_daemon::smb`.
        [source, ..] if source.starts_with("smb@") => None,
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
        let text = "tank/a\\040b /tank/a\\040b fuse.weir rw,nosuid 0 0\nproc /proc proc rw 0 0\nsmb@4450 /run/weir/smb fuse.weir rw 0 0\nx /y fuse.other rw 0 0\n\
                    /dev/x /z fuse rw 0 0\ntank/b /b fuse rw 0 0\nbroken\n";
        let found = [("tank/a b".to_owned(), PathBuf::from("/tank/a b")), ("tank/b".to_owned(), PathBuf::from("/b"))];
        assert_eq!(weir_mounts(text), found);
    }
}
