//! Copies the files of one dataset by their names, and volumes.

use super::copy::{Ranges, Source, copy};
use super::dest::{Destination, component, directory, text};
use super::orphans::Bits;
use crate::failure::Failure;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fsetxattr, linkat,
    mknodat, symlinkat, utimensat,
};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_files::{Attributes, DirEntry, FileKind, FileSystem, Identity};
use weir_format::{ObjectId, ObjsetKind};
use weir_machine::{Machine, Request};
use weir_pool::survivors::{Survivor, View};
use weir_volumes::Volume;

/// Entries that are read at once.
const BATCH: usize = 256;
/// Maximum depth of directories.
const MAX_DEPTH: usize = 512;
/// Part of the range of cookies that is passed over at once where entries cannot be read.
const STEP: u64 = 1 << 54;
/// End of the range of cookies.
const END: u64 = 1 << 62;
/// Object of a volume's contents (`ZVOL_OBJ`).
const VOLUME: ObjectId = ObjectId(1);

/// Copies what a state has of a dataset.
///
/// # Errors
/// Errors of writing.
pub async fn dataset(
    rq: &Request,
    machine: &Machine,
    view: &View,
    one: &Survivor,
    to: &mut Destination,
) -> Result<(), Failure> {
    let of = format!("{}:", one.name);
    let set = match view.open(rq, &one.dataset).await {
        Ok(set) if set.is_locked() => return to.lacks("lost", &of, "", "its key is needed: --key"),
        Ok(set) => set,
        Err(error) => return to.lacks("lost", &of, "", &error.to_string()),
    };
    let walk = Walk { rq, machine, set: set.clone(), dataset: &one.name };
    match set.kind() {
        ObjsetKind::Zfs => {
            let identity =
                Identity { name: one.name.clone(), is_snapshot: one.dataset.is_snapshot(), ..Identity::default() };
            match FileSystem::open(rq, set, identity).await {
                Ok(files) => {
                    to.has_names(&of)?;
                    walk.files(&files, to).await
                }
                Err(error) => to.lacks("names", &of, "", &error.to_string()),
            }
        }
        ObjsetKind::Zvol => walk.volume(to).await,
        _ => Ok(()),
    }
}

/// The files of a dataset in one state.
struct Walk<'a> {
    rq: &'a Request,
    machine: &'a Machine,
    set: Arc<ObjectSet>,
    dataset: &'a str,
}

/// A directory that is being copied.
struct Level {
    fd: OwnedFd,
    object: ObjectId,
    path: Vec<u8>,
    cookie: u64,
    entries: VecDeque<DirEntry>,
    is_ended: bool,
    /// Entries are read one by one, since some cannot be read.
    is_careful: bool,
    has_lost: bool,
}

impl Level {
    fn new(fd: OwnedFd, object: ObjectId, path: Vec<u8>) -> Self {
        let entries = VecDeque::new();
        Level { fd, object, path, cookie: 0, entries, is_ended: false, is_careful: false, has_lost: false }
    }
}

impl Walk<'_> {
    fn key(&self, path: &[u8]) -> String {
        format!("{}:{}", self.dataset, text(path))
    }

    async fn files(&self, files: &FileSystem, to: &mut Destination) -> Result<(), Failure> {
        let mut entered = Bits::default();
        entered.insert(files.root().0);
        let mut levels = vec![Level::new(to.dataset(self.dataset)?, files.root(), Vec::new())];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { break };
            let Some(entry) = self.next(files, level, to).await? else {
                let Some(done) = levels.pop() else { break };
                if !done.has_lost {
                    to.has_names(&self.key(&[done.path.as_slice(), b"/"].concat()))?;
                }
                if let Ok(attributes) = files.attrs().get(self.rq, done.object).await {
                    set_attributes(&done.fd, &attributes);
                }
                continue;
            };
            let name = component(&entry.name);
            let path = [level.path.as_slice(), b"/", &entry.name].concat();
            if entry.kind == Some(FileKind::Directory) {
                if !entered.insert(entry.object.0) || depth >= MAX_DEPTH {
                    to.lacks("lost", &self.key(&path), "", "a directory in two places, or too deep")?;
                    continue;
                }
                let fd = directory(&level.fd, &name).map_err(|e| self.failed(&path, e))?;
                levels.push(Level::new(fd, entry.object, path));
            } else {
                let place = Place { within: &level.fd, name, path: &path };
                self.other(files, &entry, &place, to).await?;
            }
        }
        Ok(())
    }

    fn failed(&self, path: &[u8], error: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("cannot make {}: {error}\nto go on, run the command again", self.key(path)))
    }

    /// The next entry of a directory. Those that cannot be read are passed over.
    async fn next(&self, files: &FileSystem, level: &mut Level, to: &Destination) -> Result<Option<DirEntry>, Failure> {
        while level.entries.is_empty() && !level.is_ended {
            let most = if level.is_careful { 1 } else { BATCH };
            match files.directories().read_dir(self.rq, level.object, level.cookie, most).await {
                Ok(entries) => {
                    level.is_ended = entries.len() < most;
                    level.cookie = entries.last().map_or(level.cookie, |entry| entry.cookie);
                    level.entries = entries.into();
                }
                Err(_) if !level.is_careful => level.is_careful = true,
                Err(error) => {
                    level.has_lost = true;
                    let path = [level.path.as_slice(), b"/"].concat();
                    to.lacks("names", &self.key(&path), "", &error.to_string())?;
                    level.cookie = (level.cookie / STEP + 1) * STEP;
                    level.is_ended = level.cookie >= END;
                    level.is_careful = false;
                }
            }
        }
        Ok(level.entries.pop_front())
    }

    /// Copies an entry that is no directory.
    async fn other(
        &self,
        files: &FileSystem,
        entry: &DirEntry,
        place: &Place<'_>,
        to: &mut Destination,
    ) -> Result<(), Failure> {
        let key = self.key(place.path);
        let attributes = files.attrs().get(self.rq, entry.object).await;
        let kind = attributes.as_ref().map(|a| a.kind).ok().or(entry.kind).unwrap_or(FileKind::Regular);
        if kind == FileKind::Regular {
            return self.regular(files, entry.object, attributes.ok(), place, to).await;
        }
        if Destination::kind_of(place.within, &place.name).is_some() {
            return to.was_whole(&key);
        }
        let Ok(attributes) = attributes else { return to.lacks("lost", &key, "", "its attributes cannot be read") };
        let name = place.name.as_slice();
        let made = match kind {
            FileKind::Symlink => match files.contents().read_link(self.rq, entry.object).await {
                Ok(target) => symlinkat(std::ffi::OsStr::from_bytes(&target), place.within, name),
                Err(error) => return to.lacks("lost", &key, "", &error.to_string()),
            },
            kind => {
                let (major, minor) = attributes.device.unwrap_or((0, 0));
                let device = rustix::fs::makedev(major, minor);
                let kind = FileType::from_raw_mode(kind.mode_bits());
                mknodat(place.within, name, kind, Mode::from_raw_mode(attributes.mode & 0o777), device)
            }
        };
        match made {
            Ok(()) => {
                owner_and_times(place, &attributes);
                to.is_whole(&key)
            }
            Err(error) => to.lacks("lost", &key, "", &format!("it cannot be made here: {error}")),
        }
    }

    async fn regular(
        &self,
        files: &FileSystem,
        id: ObjectId,
        attributes: Option<Attributes>,
        place: &Place<'_>,
        to: &mut Destination,
    ) -> Result<(), Failure> {
        let key = self.key(place.path);
        let object = match self.set.object(self.rq, id).await {
            Ok(object) => object,
            Err(error) => return self.lost(&key, place, &error.to_string(), to),
        };
        let all_blocks = object.dnode.max_block_id.saturating_add(1).saturating_mul(object.block_bytes());
        // Without its attributes a file ends with its last block.
        let size_bytes = attributes.as_ref().map_or(all_blocks, |a| a.size_bytes).min(i64::MAX as u64);
        let identity = match &attributes {
            Some(a) => format!("{} {} {}", a.generation, a.size_bytes, a.mtime_ns),
            None => String::new(),
        };
        let source = Source { rq: self.rq, machine: self.machine, set: &self.set, object, size_bytes };
        let is_copied = self.contents(&source, &key, &identity, place, attributes.as_ref(), to).await?;
        if let (Some(file), Some(attributes)) = (is_copied, &attributes) {
            self.xattrs(files, id, &file, &key, to).await?;
            set_attributes(&file.into(), attributes);
        }
        Ok(())
    }

    fn lost(&self, key: &str, place: &Place<'_>, why: &str, to: &mut Destination) -> Result<(), Failure> {
        match Destination::kind_of(place.within, &place.name) {
            // It is there from another state.
            Some(_) => Ok(()),
            None => to.lacks("lost", key, "", why),
        }
    }

    /// Copies or completes the contents of a file. Returns the file if it was copied now.
    async fn contents(
        &self,
        source: &Source<'_>,
        key: &str,
        identity: &str,
        place: &Place<'_>,
        attributes: Option<&Attributes>,
        to: &mut Destination,
    ) -> Result<Option<File>, Failure> {
        let size_bytes = source.size_bytes;
        if let Some(kind) = Destination::kind_of(place.within, &place.name) {
            let Some(record) = to.record(key).filter(|_| kind == FileType::RegularFile) else {
                to.was_whole(key)?;
                return Ok(None);
            };
            let (Some(lost), true) = (Ranges::parse(&record.detail), record.identity == identity) else {
                return Ok(None);
            };
            let Some(file) = Destination::partial(place.within, &place.name) else { return Ok(None) };
            let left = copy(source, &lost, &file, to).await?;
            match left.0.is_empty() {
                true => to.is_whole(key)?,
                false => to.lacks("partial", key, identity, &left.to_text())?,
            }
            return Ok(None);
        }
        let link = attributes.filter(|a| a.links > 1).map(|_| to.link_of(self.dataset, source.object.id.0));
        if let Some(first) = link.as_ref().and_then(|link| std::fs::read(link).ok()) {
            let first = std::ffi::OsString::from_vec(first);
            if linkat(CWD, Path::new(&first), place.within, place.name.as_slice(), AtFlags::empty()).is_ok() {
                to.is_whole(key)?;
                return Ok(None);
            }
        }
        let file = to.part()?;
        if let Err(error) = file.set_len(size_bytes) {
            to.lacks("lost", key, identity, &format!("a file of {size_bytes} bytes cannot be made here: {error}"))?;
            return Ok(None);
        }
        let lost = copy(source, &Ranges::first(size_bytes), &file, to).await?;
        if lost.bytes() >= size_bytes && size_bytes > 0 {
            to.forget_part();
            to.lacks("lost", key, identity, "none of its blocks can be read")?;
            return Ok(None);
        }
        if !lost.0.is_empty() || attributes.is_none() {
            let detail = if lost.0.is_empty() { "attributes".to_owned() } else { lost.to_text() };
            to.lacks("partial", key, identity, &detail)?;
            to.place(place.within, &place.name)?;
            return Ok(Some(file));
        }
        to.place(place.within, &place.name)?;
        to.is_whole(key)?;
        if let Some(link) = link {
            let at = to.path_of(self.dataset, place.path);
            std::fs::write(link, at.as_os_str().as_bytes()).map_err(|e| self.failed(place.path, e))?;
        }
        Ok(Some(file))
    }

    /// Copies extended attributes, as far as the file system here has them.
    async fn xattrs(
        &self,
        files: &FileSystem,
        id: ObjectId,
        file: &File,
        key: &str,
        to: &Destination,
    ) -> Result<(), Failure> {
        let mark = format!("{key} (extended attributes)");
        let names = match files.xattrs().names(self.rq, id).await {
            Ok(names) => names,
            Err(error) => return to.lacks("lost", &mark, "", &error.to_string()),
        };
        for name in names {
            match files.xattrs().get(self.rq, id, &name).await {
                // Some need privileges, and others are not known here.
                Ok(Some(value)) => drop(fsetxattr(file, name.as_slice(), &value, XattrFlags::empty())),
                Ok(None) => {}
                Err(error) => return to.lacks("lost", &mark, "", &error.to_string()),
            }
        }
        to.has_names(&mark)
    }

    async fn volume(&self, to: &mut Destination) -> Result<(), Failure> {
        let key = self.key(b"");
        let object = match self.set.object(self.rq, VOLUME).await {
            Ok(object) => object,
            Err(error) => return to.lacks("lost", &key, "", &error.to_string()),
        };
        let all_blocks = object.dnode.max_block_id.saturating_add(1).saturating_mul(object.block_bytes());
        let known = Volume::open(self.rq, self.set.clone(), self.dataset).await.ok();
        let size_bytes = known.map_or(all_blocks, |volume| volume.size_bytes()).min(i64::MAX as u64);
        let within = to.dataset(self.dataset)?;
        let place = Place { within: &within, name: b"volume".to_vec(), path: b"" };
        let source = Source { rq: self.rq, machine: self.machine, set: &self.set, object, size_bytes };
        // A volume has no generation or time: that of its txg.
        let identity = format!("{} {size_bytes}", self.set.birth());
        let attributes = Attributes { links: 1, ..no_attributes() };
        self.contents(&source, &key, &identity, &place, Some(&attributes), to).await.map(drop)
    }
}

/// Place of a file in DEST.
struct Place<'a> {
    within: &'a OwnedFd,
    name: Vec<u8>,
    path: &'a [u8],
}

fn no_attributes() -> Attributes {
    Attributes {
        object: ObjectId(0),
        kind: FileKind::Regular,
        mode: 0o600,
        uid: 0,
        gid: 0,
        links: 1,
        size_bytes: 0,
        blocks512: 0,
        block_bytes: 0,
        device: None,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        crtime_ns: 0,
        generation: 0,
        flags: Default::default(),
        parent: ObjectId(0),
        project: None,
    }
}

fn times(attributes: &Attributes) -> Timestamps {
    let of = |ns: i128| Timespec {
        tv_sec: i64::try_from(ns.div_euclid(1_000_000_000)).unwrap_or(0),
        tv_nsec: ns.rem_euclid(1_000_000_000) as i64,
    };
    Timestamps { last_access: of(attributes.atime_ns), last_modification: of(attributes.mtime_ns) }
}

/// Gives a file or directory its owner, mode and times, as far as this user may.
fn set_attributes(fd: &OwnedFd, attributes: &Attributes) {
    let _ = rustix::fs::fchown(fd, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
    let _ = fchmod(fd, Mode::from_raw_mode(attributes.mode & 0o7777));
    let _ = rustix::fs::futimens(fd, &times(attributes));
}

fn owner_and_times(place: &Place<'_>, attributes: &Attributes) {
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    let name = place.name.as_slice();
    let _ = chownat(place.within, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
    let _ = utimensat(place.within, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW);
}
