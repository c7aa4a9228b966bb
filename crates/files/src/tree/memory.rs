//! A file system in memory, for tests and fuzzing of the front ends without a pool. Modification (`changes`) needs
//! [`MemoryFiles::writable`].

mod changes;

use super::Export;
use super::source::{Created, FileFuture, Files, Opener};
use crate::{
    Acl, Attributes, Cred, DirEntry, FileError, FileFlags, FileKind, New, RenameMode, Seek, SetAttributes, Snapdir,
    Space, Usage, WriteAt, XattrMode,
};
use crate::{DirName, HoldKind};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::ready;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::Request;
use weir_machine::lock::{Mutex, MutexGuard};

const ROOT: u64 = 34;
const GENERATION: u64 = 7;
/// Initial time of all files.
const EPOCH_NS: i128 = 1_700_000_000_123_456_789;

#[derive(Clone)]
struct Entry {
    attributes: Attributes,
    content: Bytes,
    names: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    acl: Option<Acl>,
}

/// A file system in memory.
pub struct MemoryFiles {
    /// Visibility of `.zfs`.
    pub snapdir: Snapdir,
    /// Whether it is writable.
    pub writable: bool,
    fsid: u64,
    state: Mutex<State>,
}

/// Files by object number.
#[derive(Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    /// Number of holds per file.
    holds: BTreeMap<u64, u64>,
    /// Number of changes; each advances the clock by one second.
    changes: u64,
    /// Number of syncs.
    syncs: u64,
    /// Number of reads and changes of files without a hold.
    unheld: u64,
}

impl MemoryFiles {
    /// An empty root directory of mode 755.
    pub fn new(fsid: u64) -> Self {
        let mut state = State::default();
        state.insert(ROOT, ROOT, FileKind::Directory, 0o755, Bytes::new());
        MemoryFiles { snapdir: Snapdir::Hidden, writable: false, fsid, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Number of syncs.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Number of reads, writes and attribute changes of files without a hold. In a pool, the object number might have
    /// been reused before such an access.
    pub fn unheld(&self) -> u64 {
        self.state().unheld
    }

    /// Number of files with holds.
    pub fn held_count(&self) -> usize {
        self.state().holds.len()
    }

    /// Adds a file in directory `parent` (34 is the root); `content` is also a symbolic link's target.
    pub fn add(&mut self, parent: u64, name: &[u8], kind: FileKind, mode: u32, content: &[u8]) -> u64 {
        let mut state = self.state();
        let object = 100 + state.entries.len() as u64;
        state.insert(object, parent, kind, mode, Bytes::copy_from_slice(content));
        if let Some(dir) = state.entries.get_mut(&parent) {
            dir.names.insert(name.to_vec(), object);
            dir.attributes.size_bytes += 1;
        }
        object
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, object: u64, name: &[u8], value: &[u8]) {
        if let Some(entry) = self.state().entries.get_mut(&object) {
            entry.xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value));
        }
    }

    /// Modifies the attributes of a file.
    pub fn change(&mut self, object: u64, change: impl FnOnce(&mut Attributes)) {
        if let Some(entry) = self.state().entries.get_mut(&object) {
            change(&mut entry.attributes);
        }
    }

    /// Sets the ACL of a file.
    pub fn set_acl(&mut self, object: u64, acl: Acl) {
        if let Some(entry) = self.state().entries.get_mut(&object) {
            entry.acl = Some(acl);
        }
    }
}

impl State {
    fn note_use(&mut self, object: ObjectId) {
        self.unheld += u64::from(!self.holds.contains_key(&object.0));
    }

    fn insert(&mut self, object: u64, parent: u64, kind: FileKind, mode: u32, content: Bytes) {
        let size_bytes = if kind == FileKind::Directory { 2 } else { content.len() as u64 };
        let time_ns = EPOCH_NS;
        let attributes = Attributes {
            object: ObjectId(object),
            kind,
            mode,
            uid: 0,
            gid: 0,
            links: 1,
            size_bytes,
            blocks512: size_bytes.div_ceil(512),
            block_bytes: 131_072,
            device: None,
            atime_ns: time_ns,
            mtime_ns: time_ns,
            ctime_ns: time_ns,
            crtime_ns: time_ns,
            generation: GENERATION,
            flags: FileFlags(FileFlags::ACL_TRIVIAL),
            parent: ObjectId(parent),
            project: None,
        };
        self.entries
            .insert(object, Entry { attributes, content, names: BTreeMap::new(), xattrs: BTreeMap::new(), acl: None });
    }

    fn entry(&self, object: ObjectId) -> Result<&Entry, FileError> {
        self.entries.get(&object.0).ok_or(FileError::Stale { object })
    }

    fn directory(&self, object: ObjectId) -> Result<&Entry, FileError> {
        let entry = self.entry(object)?;
        let is_dir = entry.attributes.kind == FileKind::Directory;
        if is_dir { Ok(entry) } else { Err(FileError::NotDirectory { object }) }
    }

    fn list(&self, dir: ObjectId, cookie: u64, max: usize) -> Result<Vec<DirEntry>, FileError> {
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        let names = self.directory(dir)?.names.iter().enumerate().skip(skip).take(max);
        let entry = |(index, (name, object)): (usize, (&Vec<u8>, &u64))| DirEntry {
            name: name.clone(),
            object: ObjectId(*object),
            kind: self.entries.get(object).map(|entry| entry.attributes.kind),
            cookie: index as u64 + 1,
        };
        Ok(names.map(entry).collect())
    }

    fn slice(&self, object: ObjectId, offset: u64, len: usize) -> Result<Bytes, FileError> {
        let entry = self.entry(object)?;
        if entry.attributes.kind == FileKind::Directory {
            return Err(FileError::IsDirectory { object });
        }
        let size = entry.content.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(size);
        Ok(entry.content.slice(start..start.saturating_add(len).min(size)))
    }
}

fn now<T: Send + 'static>(result: Result<T, FileError>) -> FileFuture<'static, T> {
    ready(result).boxed()
}

impl Files for MemoryFiles {
    fn root(&self) -> ObjectId {
        ObjectId(ROOT)
    }

    fn fsid(&self) -> u64 {
        self.fsid
    }

    fn name_max(&self) -> usize {
        255
    }

    fn is_case_insensitive(&self) -> bool {
        false
    }

    fn snapdir(&self) -> Snapdir {
        self.snapdir
    }

    fn attributes<'a>(&'a self, _: &'a Request, object: ObjectId) -> FileFuture<'a, Attributes> {
        now(self.state().entry(object).map(|entry| entry.attributes.clone()))
    }

    fn by_file_id<'a>(&'a self, _: &'a Request, object: ObjectId, generation: u64) -> FileFuture<'a, Attributes> {
        let attributes = self.state().entry(object).map(|entry| entry.attributes.clone());
        let stale = FileError::Stale { object };
        now(attributes.and_then(|a| if a.generation == generation { Ok(a) } else { Err(stale) }))
    }

    fn parent<'a>(&'a self, _: &'a Request, object: ObjectId) -> FileFuture<'a, ObjectId> {
        now(self.state().entry(object).map(|entry| entry.attributes.parent))
    }

    fn lookup<'a>(&'a self, _: &'a Request, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ObjectId> {
        let found = self.state().directory(dir).map(|dir| dir.names.get(name).copied());
        now(found.and_then(|found| found.map(ObjectId).ok_or(FileError::NotFound)))
    }

    fn spelling<'a>(&'a self, _: &'a Request, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, Option<Vec<u8>>> {
        let found = self.state().directory(dir).map(|dir| {
            let exact = dir.names.get_key_value(name);
            let other = || dir.names.iter().find(|(stored, _)| stored.eq_ignore_ascii_case(name));
            exact.or_else(other).map(|(stored, _)| stored.clone())
        });
        now(found)
    }

    fn read_dir<'a>(&'a self, _: &'a Request, dir: ObjectId, cookie: u64, max: usize) -> FileFuture<'a, Vec<DirEntry>> {
        now(self.state().list(dir, cookie, max))
    }

    fn read<'a>(
        &'a self,
        _: &'a Request,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> FileFuture<'a, smallvec::SmallVec<[Bytes; 4]>> {
        let mut state = self.state();
        state.note_use(object);
        now(state.slice(object, offset, len).map(|bytes| smallvec![bytes]))
    }

    fn seek<'a>(&'a self, _: &'a Request, object: ObjectId, offset: u64, what: Seek) -> FileFuture<'a, Option<u64>> {
        let size = self.state().entry(object).map(|entry| entry.content.len() as u64);
        now(size.map(|size| (offset < size).then_some(if what == Seek::Data { offset } else { size })))
    }

    fn read_link<'a>(&'a self, _: &'a Request, object: ObjectId) -> FileFuture<'a, Bytes> {
        let state = self.state();
        let entry = state.entry(object);
        let is_link = |entry: &&Entry| entry.attributes.kind == FileKind::Symlink;
        now(entry
            .and_then(|e| Some(e).filter(is_link).ok_or(FileError::NotSymlink { object }))
            .map(|e| e.content.clone()))
    }

    fn xattr_names<'a>(&'a self, _: &'a Request, object: ObjectId) -> FileFuture<'a, Vec<Vec<u8>>> {
        now(self.state().entry(object).map(|entry| entry.xattrs.keys().cloned().collect()))
    }

    fn xattr<'a>(&'a self, _: &'a Request, object: ObjectId, name: &'a [u8]) -> FileFuture<'a, Option<Bytes>> {
        now(self.state().entry(object).map(|entry| entry.xattrs.get(name).cloned()))
    }

    fn acl<'a>(&'a self, _: &'a Request, object: ObjectId) -> FileFuture<'a, Acl> {
        let trivial = Acl { entries: Vec::new(), trivial: true, flags: 0 };
        now(self.state().entry(object).map(|entry| entry.acl.clone().unwrap_or(trivial)))
    }

    fn usage<'a>(&'a self, _: &'a Request, _: ObjectId) -> FileFuture<'a, Usage> {
        let state = self.state();
        let used = state.entries.values().map(|entry| entry.attributes.size_bytes).sum();
        now(Ok(Usage {
            referenced_bytes: used,
            available_bytes: 1 << 30,
            objects_used: state.entries.len() as u64,
            objects_available: 1 << 20,
        }))
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn create<'a>(
        &'a self,
        _: &'a Request,
        cred: &'a Cred,
        dir: ObjectId,
        name: &'a [u8],
        new: &'a New,
    ) -> FileFuture<'a, Attributes> {
        now(self.changing(|state| state.create(cred, dir, name, new)))
    }

    fn link<'a>(
        &'a self,
        _: &'a Request,
        _: &'a Cred,
        file: ObjectId,
        dir: ObjectId,
        name: &'a [u8],
    ) -> FileFuture<'a, Attributes> {
        now(self.changing(|state| state.link(file, dir, name)))
    }

    fn remove<'a>(&'a self, _: &'a Request, _: &'a Cred, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ()> {
        now(self.changing(|state| state.remove(dir, name, false)))
    }

    fn remove_dir<'a>(&'a self, _: &'a Request, _: &'a Cred, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ()> {
        now(self.changing(|state| state.remove(dir, name, true)))
    }

    fn rename<'a>(
        &'a self,
        _: &'a Request,
        _: &'a Cred,
        from: DirName<'a, ObjectId>,
        to: DirName<'a, ObjectId>,
        mode: RenameMode,
    ) -> FileFuture<'a, ()> {
        now(self.changing(|state| state.rename(from, to, mode)))
    }

    fn write<'a>(
        &'a self,
        _: &'a Request,
        _: &'a Cred,
        file: ObjectId,
        at: WriteAt,
        data: Bytes,
    ) -> FileFuture<'a, Attributes> {
        now(self.changing(|state| state.write(file, at, &data)))
    }

    fn set_attributes<'a>(
        &'a self,
        _: &'a Request,
        _: &'a Cred,
        object: ObjectId,
        set: &'a SetAttributes,
    ) -> FileFuture<'a, Attributes> {
        now(self.changing(|state| state.set(object, set)))
    }

    fn allocate<'a>(
        &'a self,
        _: &'a Request,
        _: &'a Cred,
        file: ObjectId,
        range: Range<u64>,
        space: Space,
    ) -> FileFuture<'a, Attributes> {
        now(self.changing(|state| state.allocate(file, range, space)))
    }

    fn set_xattr<'a>(
        &'a self,
        _: &'a Request,
        _: &'a Cred,
        object: ObjectId,
        name: &'a [u8],
        value: &'a [u8],
        mode: XattrMode,
    ) -> FileFuture<'a, ()> {
        now(self.changing(|state| state.set_xattr(object, name, value, mode)))
    }

    fn remove_xattr<'a>(&'a self, _: &'a Request, _: &'a Cred, object: ObjectId, name: &'a [u8]) -> FileFuture<'a, ()> {
        let removed = |state: &mut State| {
            let entry = state.entries.get_mut(&object.0).ok_or(FileError::Stale { object })?;
            entry.xattrs.remove(name).map(drop).ok_or(FileError::NoAttribute)
        };
        now(self.changing(removed))
    }

    fn set_acl<'a>(&'a self, _: &'a Request, _: &'a Cred, object: ObjectId, acl: &'a Acl) -> FileFuture<'a, ()> {
        let set = |state: &mut State| {
            let entry = state.entries.get_mut(&object.0).ok_or(FileError::Stale { object })?;
            entry.acl = Some(acl.clone());
            Ok(())
        };
        now(self.changing(set))
    }

    fn sync<'a>(&'a self, _: &'a Request, _: Option<ObjectId>) -> FileFuture<'a, ()> {
        self.state().syncs += 1;
        now(Ok(()))
    }

    fn hold(&self, object: ObjectId, _: HoldKind) {
        *self.state().holds.entry(object.0).or_default() += 1;
    }

    fn has_holds(&self) -> bool {
        !self.state().holds.is_empty()
    }

    fn release<'a>(&'a self, _: &'a Request, object: ObjectId, _: HoldKind) -> FileFuture<'a, ()> {
        self.state().release(object);
        now(Ok(()))
    }
}

/// File systems in memory by name; a missing name is a locked file system.
#[derive(Default)]
pub struct MemoryOpener(pub BTreeMap<String, Arc<MemoryFiles>>);

impl Opener for MemoryOpener {
    fn open<'a>(&'a self, _: &'a Request, export: &'a Export) -> FileFuture<'a, Arc<dyn Files>> {
        let files = self.0.get(&export.name).map(|files| Arc::clone(files) as Arc<dyn Files>);
        now(files.ok_or(FileError::NoKey))
    }

    /// The time of the root directory.
    fn created<'a>(&'a self, _: &'a Request, export: &'a Export) -> FileFuture<'a, Created> {
        let files = self.0.get(&export.name).ok_or(FileError::NotFound);
        now(files.map(|files| {
            let root = files.state().entry(files.root()).map(|root| root.attributes.crtime_ns);
            let seconds = root.map_or(0, |ns| u64::try_from(ns / 1_000_000_000).unwrap_or(0));
            Created { seconds, txg: 0 }
        }))
    }
}
