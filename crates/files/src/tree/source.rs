//! The tree's interface to file systems, as traits: implemented by the pool's file systems, and by an in-memory file
//! system for tests of the front ends.

use super::Export;
use crate::{
    Acl, Attributes, CaseSensitivity, Cred, DirEntry, FileError, FileSystem, New, RenameMode, Seek, SetAttributes,
    SetFlags, Snapdir, Space, Usage, WriteAt, XattrMode,
};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use weir_dmu::zap::Match;
use weir_format::ObjectId;
use weir_machine::Request;

/// Future of a file operation.
pub type FileFuture<'a, T> = BoxFuture<'a, Result<T, FileError>>;

/// Opens file systems and snapshots.
pub trait Opener: Send + Sync {
    /// Opens the file system of an export.
    ///
    /// # Errors
    /// [`FileError::NoKey`] if it is encrypted and its key is not loaded; [`FileError::NotFound`] if it was
    /// destroyed, even if its name was reused.
    fn open<'a>(&'a self, rq: &'a Request, export: &'a Export) -> FileFuture<'a, Arc<dyn Files>>;
}

/// One file system: the operations of [`FileSystem`], see there.
#[allow(missing_docs)]
pub trait Files: Send + Sync {
    fn root(&self) -> ObjectId;
    fn fsid(&self) -> u64;
    fn name_max(&self) -> usize;
    fn is_case_insensitive(&self) -> bool;
    /// Whether each name has exactly one spelling.
    fn has_exact_names(&self) -> bool {
        !self.is_case_insensitive()
    }
    fn snapdir(&self) -> Snapdir;
    /// Whether it was closed permanently: every other operation then fails.
    fn is_closed(&self) -> bool {
        false
    }
    fn attributes<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Attributes>;
    fn by_file_id<'a>(&'a self, rq: &'a Request, object: ObjectId, generation: u64) -> FileFuture<'a, Attributes>;
    fn parent<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, ObjectId>;
    fn lookup<'a>(&'a self, rq: &'a Request, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ObjectId>;
    fn read_dir<'a>(&'a self, rq: &'a Request, dir: ObjectId, cookie: u64, max: usize)
    -> FileFuture<'a, Vec<DirEntry>>;
    fn read<'a>(
        &'a self,
        rq: &'a Request,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> FileFuture<'a, SmallVec<[Bytes; 4]>>;
    fn seek<'a>(&'a self, rq: &'a Request, object: ObjectId, offset: u64, what: Seek) -> FileFuture<'a, Option<u64>>;
    fn read_link<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Bytes>;
    fn xattr_names<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Vec<Vec<u8>>>;
    fn xattr<'a>(&'a self, rq: &'a Request, object: ObjectId, name: &'a [u8]) -> FileFuture<'a, Option<Bytes>>;
    fn acl<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Acl>;
    fn usage<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Usage>;
    /// Whether it is writable; if not, the modifying operations fail with [`FileError::ReadOnly`].
    fn is_writable(&self) -> bool {
        false
    }
    fn create<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _dir: ObjectId,
        _name: &'a [u8],
        _new: &'a New,
    ) -> FileFuture<'a, Attributes> {
        refused()
    }
    fn link<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _file: ObjectId,
        _dir: ObjectId,
        _name: &'a [u8],
    ) -> FileFuture<'a, Attributes> {
        refused()
    }
    fn remove<'a>(&'a self, _rq: &'a Request, _cred: &'a Cred, _dir: ObjectId, _name: &'a [u8]) -> FileFuture<'a, ()> {
        refused()
    }
    fn remove_dir<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _dir: ObjectId,
        _name: &'a [u8],
    ) -> FileFuture<'a, ()> {
        refused()
    }
    fn rename<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _from: (ObjectId, &'a [u8]),
        _to: (ObjectId, &'a [u8]),
        _mode: RenameMode,
    ) -> FileFuture<'a, ()> {
        refused()
    }
    fn write<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _file: ObjectId,
        _at: WriteAt,
        _data: Bytes,
    ) -> FileFuture<'a, Attributes> {
        refused()
    }
    /// The underlying file system, if it belongs to a pool: two of the same pool can clone blocks.
    fn file_system(&self) -> Option<&FileSystem> {
        None
    }
    fn set_attributes<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _object: ObjectId,
        _set: &'a SetAttributes,
    ) -> FileFuture<'a, Attributes> {
        refused()
    }
    fn set_flags<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _object: ObjectId,
        _set: &'a SetFlags,
    ) -> FileFuture<'a, Attributes> {
        refused()
    }
    fn allocate<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _file: ObjectId,
        _range: Range<u64>,
        _space: Space,
    ) -> FileFuture<'a, Attributes> {
        refused()
    }
    fn set_xattr<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _object: ObjectId,
        _name: &'a [u8],
        _value: &'a [u8],
        _mode: XattrMode,
    ) -> FileFuture<'a, ()> {
        refused()
    }
    fn remove_xattr<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _object: ObjectId,
        _name: &'a [u8],
    ) -> FileFuture<'a, ()> {
        refused()
    }
    fn set_acl<'a>(
        &'a self,
        _rq: &'a Request,
        _cred: &'a Cred,
        _object: ObjectId,
        _acl: &'a Acl,
    ) -> FileFuture<'a, ()> {
        refused()
    }
    fn sync<'a>(&'a self, _rq: &'a Request, _object: Option<ObjectId>) -> FileFuture<'a, ()> {
        ready(Ok(())).boxed()
    }
    fn hold(&self, _object: ObjectId) {}
    fn release<'a>(&'a self, _rq: &'a Request, _object: ObjectId) -> FileFuture<'a, ()> {
        ready(Ok(())).boxed()
    }
    /// Pins a file for the duration of a call.
    fn hold_for_call(&self, object: ObjectId) {
        self.hold(object);
    }
    fn end_call<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, ()> {
        self.release(rq, object)
    }
}

fn refused<'a, T: Send + 'a>() -> FileFuture<'a, T> {
    ready(Err(FileError::ReadOnly)).boxed()
}

impl Files for FileSystem {
    fn root(&self) -> ObjectId {
        FileSystem::root(self)
    }

    fn fsid(&self) -> u64 {
        FileSystem::fsid(self)
    }

    fn name_max(&self) -> usize {
        FileSystem::name_max(self)
    }

    fn snapdir(&self) -> Snapdir {
        FileSystem::snapdir(self)
    }

    fn is_closed(&self) -> bool {
        FileSystem::is_closed(self)
    }

    fn is_case_insensitive(&self) -> bool {
        self.case_sensitivity() == CaseSensitivity::Insensitive
    }

    fn has_exact_names(&self) -> bool {
        self.matching() == Match::Exact
    }

    fn attributes<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Attributes> {
        self.attrs().get(rq, object).boxed()
    }

    fn by_file_id<'a>(&'a self, rq: &'a Request, object: ObjectId, generation: u64) -> FileFuture<'a, Attributes> {
        self.attrs().by_file_id(rq, object, generation).boxed()
    }

    fn parent<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, ObjectId> {
        self.attrs().parent(rq, object).boxed()
    }

    fn lookup<'a>(&'a self, rq: &'a Request, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ObjectId> {
        self.directories().lookup(rq, dir, name).boxed()
    }

    fn read_dir<'a>(
        &'a self,
        rq: &'a Request,
        dir: ObjectId,
        cookie: u64,
        max: usize,
    ) -> FileFuture<'a, Vec<DirEntry>> {
        self.directories().read_dir(rq, dir, cookie, max).boxed()
    }

    fn read<'a>(
        &'a self,
        rq: &'a Request,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> FileFuture<'a, SmallVec<[Bytes; 4]>> {
        self.contents().read_segments(rq, object, offset, len).boxed()
    }

    fn seek<'a>(&'a self, rq: &'a Request, object: ObjectId, offset: u64, what: Seek) -> FileFuture<'a, Option<u64>> {
        self.contents().seek(rq, object, offset, what).boxed()
    }

    fn read_link<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Bytes> {
        self.contents().read_link(rq, object).boxed()
    }

    fn xattr_names<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Vec<Vec<u8>>> {
        self.xattrs().names(rq, object).boxed()
    }

    fn xattr<'a>(&'a self, rq: &'a Request, object: ObjectId, name: &'a [u8]) -> FileFuture<'a, Option<Bytes>> {
        self.xattrs().get(rq, object, name).boxed()
    }

    fn acl<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Acl> {
        self.acls().get(rq, object).boxed()
    }

    fn usage<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, Usage> {
        self.quotas().usage(rq, object).boxed()
    }

    fn is_writable(&self) -> bool {
        FileSystem::is_writable(self)
    }

    fn create<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        dir: ObjectId,
        name: &'a [u8],
        new: &'a New,
    ) -> FileFuture<'a, Attributes> {
        self.names().create(rq, cred, dir, name, new).boxed()
    }

    fn link<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        file: ObjectId,
        dir: ObjectId,
        name: &'a [u8],
    ) -> FileFuture<'a, Attributes> {
        self.names().link(rq, cred, file, dir, name).boxed()
    }

    fn remove<'a>(&'a self, rq: &'a Request, cred: &'a Cred, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ()> {
        self.names().remove(rq, cred, dir, name).boxed()
    }

    fn remove_dir<'a>(&'a self, rq: &'a Request, cred: &'a Cred, dir: ObjectId, name: &'a [u8]) -> FileFuture<'a, ()> {
        self.names().remove_dir(rq, cred, dir, name).boxed()
    }

    fn rename<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        from: (ObjectId, &'a [u8]),
        to: (ObjectId, &'a [u8]),
        mode: RenameMode,
    ) -> FileFuture<'a, ()> {
        self.names().rename(rq, cred, from, to, mode).boxed()
    }

    fn write<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        file: ObjectId,
        at: WriteAt,
        data: Bytes,
    ) -> FileFuture<'a, Attributes> {
        self.contents().write(rq, cred, file, at, data).boxed()
    }

    fn file_system(&self) -> Option<&FileSystem> {
        Some(self)
    }

    fn set_attributes<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        object: ObjectId,
        set: &'a SetAttributes,
    ) -> FileFuture<'a, Attributes> {
        self.attrs().set(rq, cred, object, set).boxed()
    }

    fn set_flags<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        object: ObjectId,
        set: &'a SetFlags,
    ) -> FileFuture<'a, Attributes> {
        self.attrs().set_flags(rq, cred, object, set).boxed()
    }

    fn allocate<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        file: ObjectId,
        range: Range<u64>,
        space: Space,
    ) -> FileFuture<'a, Attributes> {
        self.contents().allocate(rq, cred, file, range, space).boxed()
    }

    fn set_xattr<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        object: ObjectId,
        name: &'a [u8],
        value: &'a [u8],
        mode: XattrMode,
    ) -> FileFuture<'a, ()> {
        self.xattrs().set(rq, cred, object, name, value, mode).boxed()
    }

    fn remove_xattr<'a>(
        &'a self,
        rq: &'a Request,
        cred: &'a Cred,
        object: ObjectId,
        name: &'a [u8],
    ) -> FileFuture<'a, ()> {
        self.xattrs().remove(rq, cred, object, name).boxed()
    }

    fn set_acl<'a>(&'a self, rq: &'a Request, cred: &'a Cred, object: ObjectId, acl: &'a Acl) -> FileFuture<'a, ()> {
        self.acls().set(rq, cred, object, acl).boxed()
    }

    fn sync<'a>(&'a self, rq: &'a Request, object: Option<ObjectId>) -> FileFuture<'a, ()> {
        FileSystem::sync(self, rq, object).boxed()
    }

    fn hold(&self, object: ObjectId) {
        self.holds().hold(object);
    }

    fn release<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, ()> {
        self.holds().release(rq, object).boxed()
    }

    fn hold_for_call(&self, object: ObjectId) {
        self.holds().hold_for_call(object);
    }

    fn end_call<'a>(&'a self, rq: &'a Request, object: ObjectId) -> FileFuture<'a, ()> {
        self.holds().end_call(rq, object).boxed()
    }
}
