//! The tree of file systems as files for the front ends on the network ([`weir_front::Files`]).
//!
//! ```text
//!   call ─▶ pin the files ─▶ resolve: export still there? same generation? ─▶ permission ─▶ Tree ─▶ attributes ─▶ unpin
//! ```
//!
//! Files named by a call are pinned until its answer, so an object number cannot be reused between the check of a generation
//! and a later write.
//!
//! **Stability.** Every change except an unstable write is answered after the file system's intent log is on stable storage
//! ([`Tree::sync`]).
//!
//! **The owner may read and write.** A client checked permissions when it opened the file; POSIX allows it to continue after
//! the mode was changed. So the owner of a file may always read, write and truncate it.
//!
//! - `reading`: attributes, permissions, names, data, directories
//! - `changing`: data and attributes of one file
//! - `names`: entries of directories
//! - `locking`: advisory locks
//! - `tracker`: changes that overlap

mod changing;
mod locking;
mod names;
mod reading;
mod tracker;

use crate::shares::FileShares;
use bytes::Bytes;
use changing::ChangingCall;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use std::sync::Arc;
use tracker::ChangeTracker;
use weir_files::tree::{Hold, Node, Tree};
use weir_files::{Attributes, Cred, FileKind, HoldKind};
use weir_front::files::{
    BeforeAfter, Change, ChangeFuture, Condition, File, FileError, FileFuture, FileId, FileSystemInfo, Link, Listing,
    New, Permissions, ReadData, Rename, SetAttributes, Stability, Usage,
};
use weir_front::{Caller, Files, Host, files as front};
use weir_machine::Request;

/// The files of a pool's tree.
pub struct TreeFiles {
    tree: Arc<Tree>,
    /// GUID of the pool.
    pool: u64,
    shares: Arc<FileShares>,
    tracker: ChangeTracker,
}

/// A file of the tree that a call names or finds.
#[derive(Clone)]
struct ResolvedFile {
    node: Node,
    attributes: Attributes,
    fsid: u64,
}

impl ResolvedFile {
    /// The attributes for front ends.
    fn shown(&self) -> front::Attributes {
        let from = &self.attributes;
        front::Attributes {
            kind: kind(from.kind),
            mode: from.mode & 0o7777,
            links: from.links,
            uid: from.uid,
            gid: from.gid,
            size_bytes: from.size_bytes,
            used_bytes: from.blocks512.saturating_mul(512),
            block_bytes: from.block_bytes,
            device: from.device,
            fsid: self.fsid,
            file_number: from.object.0,
            atime_ns: from.atime_ns,
            mtime_ns: from.mtime_ns,
            ctime_ns: from.ctime_ns,
            crtime_ns: from.crtime_ns,
        }
    }
}

fn kind(kind: FileKind) -> front::FileKind {
    match kind {
        FileKind::Regular | FileKind::Other => front::FileKind::Regular,
        FileKind::Directory => front::FileKind::Directory,
        FileKind::Symlink => front::FileKind::Symlink,
        FileKind::BlockDevice => front::FileKind::BlockDevice,
        FileKind::CharDevice => front::FileKind::CharDevice,
        FileKind::Fifo => front::FileKind::Fifo,
        FileKind::Socket => front::FileKind::Socket,
    }
}

/// The error as front ends know it.
fn shown(error: weir_files::FileError) -> FileError {
    use weir_files::FileError as Stored;
    match error {
        Stored::NotFound => FileError::NotFound,
        Stored::NotDirectory { .. } => FileError::NotDirectory,
        Stored::IsDirectory { .. } => FileError::IsDirectory,
        Stored::NameTooLong { .. } => FileError::NameTooLong,
        Stored::Corrupt { .. } | Stored::Device { .. } => FileError::Io { why: error.to_string() },
        Stored::Stale { .. } => FileError::Stale,
        Stored::Unsupported { what } => FileError::Unsupported { what },
        Stored::ReadOnly => FileError::ReadOnly,
        Stored::NotPermitted { .. } | Stored::Busy => FileError::NotPermitted,
        Stored::NoKey | Stored::Denied { .. } => FileError::Denied,
        Stored::Exists => FileError::Exists,
        Stored::CrossDevice => FileError::CrossDevice,
        Stored::TooLarge => FileError::TooLarge,
        Stored::NoSpace => FileError::NoSpace,
        Stored::TooManyLinks { .. } => FileError::TooManyLinks,
        Stored::NotEmpty { .. } => FileError::NotEmpty,
        Stored::Quota => FileError::Quota,
        Stored::NotSymlink { .. } => FileError::Invalid { why: "not a symbolic link" },
        Stored::BadName => FileError::Invalid { why: "the name is not UTF-8" },
        Stored::Invalid { why } => FileError::Invalid { why },
        // No operation here sets extended attributes.
        Stored::NoAttribute | Stored::AttributeTooLarge { .. } => FileError::Invalid { why: "extended attribute" },
    }
}

/// One call: what its steps have in common.
struct Call<'a> {
    tree: &'a Tree,
    pool: u64,
    shares: &'a FileShares,
    host: Host,
    rq: &'a Request,
    cred: Cred,
    may_write: bool,
}

impl Call<'_> {
    /// Node of a file, if its export still exists.
    fn node(&self, id: FileId) -> Result<Node, FileError> {
        let branch = Some(id.export).filter(|_| id.pool == self.pool).and_then(|id| self.tree.branch_by_id(id));
        let branch = branch.ok_or(FileError::Stale)?;
        Ok(Node { branch, object: id.object })
    }

    /// Finds a file by its identity.
    async fn resolve(&self, id: FileId) -> Result<ResolvedFile, FileError> {
        let node = self.node(id)?;
        let attributes = self.tree.by_file_id(self.rq, node, id.generation).await.map_err(shown)?;
        self.found(node, attributes).await
    }

    /// The current attributes of a node.
    async fn at(&self, node: Node) -> Result<ResolvedFile, FileError> {
        let attributes = self.tree.attributes(self.rq, node).await.map_err(shown)?;
        self.found(node, attributes).await
    }

    async fn found(&self, node: Node, attributes: Attributes) -> Result<ResolvedFile, FileError> {
        let fsid = self.tree.fsid(self.rq, node).await.map_err(shown)?;
        Ok(ResolvedFile { node, attributes, fsid })
    }

    /// The file with its identity.
    fn file(&self, found: &ResolvedFile) -> Result<File, FileError> {
        let export = self.tree.export_of(found.node).ok_or(FileError::Stale)?.id;
        let id = FileId { pool: self.pool, export, object: found.node.object, generation: found.attributes.generation };
        Ok(File { id, attributes: found.shown() })
    }

    /// Whether the file system of a node is shared with the caller's host.
    fn is_shared(&self, node: Node) -> bool {
        self.tree.export_of(node).is_some_and(|export| self.shares.permit(export.id, self.host).is_ok())
    }

    /// Fails unless the caller's host may write and the file's file system is writable.
    async fn require_writable(&self, found: &ResolvedFile) -> Result<(), FileError> {
        let writable = self.tree.is_writable(self.rq, found.node).await.map_err(shown)?;
        if self.may_write && writable { Ok(()) } else { Err(FileError::ReadOnly) }
    }

    fn is_owner(&self, found: &ResolvedFile) -> bool {
        self.cred.uid == found.attributes.uid
    }
}

/// The result of a change of a file that the caller may not use.
fn unchanged<T>(error: FileError) -> Change<T> {
    Change { result: Err(error), file: BeforeAfter::default() }
}

impl TreeFiles {
    /// The files of this tree, shared by these rules; `pool` is the pool's GUID.
    pub fn new(tree: Arc<Tree>, pool: u64, shares: Arc<FileShares>) -> Self {
        TreeFiles { tree, pool, shares, tracker: ChangeTracker::default() }
    }

    /// A call on a file, as the user that the rules of its file system make of the caller.
    fn call<'a>(&'a self, rq: &'a Request, caller: &Caller, file: FileId) -> Result<Call<'a>, FileError> {
        let permission = self.shares.permit(file.export, caller.host)?;
        let user = permission.identity.map(caller.credentials.as_ref());
        let cred = Cred::new(user.uid, user.gid, &user.groups);
        Ok(Call { cred, may_write: permission.may_write, ..self.unchecked(rq, caller) })
    }

    /// A call of a user without permissions, to find a directory by its path.
    fn unchecked<'a>(&'a self, rq: &'a Request, caller: &Caller) -> Call<'a> {
        let cred = Cred::new(weir_front::NOBODY, weir_front::NOBODY, &[]);
        let TreeFiles { tree, pool, shares, .. } = self;
        Call { tree, pool: *pool, shares, host: caller.host, rq, cred, may_write: false }
    }

    /// A call that changes a file, or a directory's entries.
    fn changing<'a>(&'a self, rq: &'a Request, caller: &Caller, file: FileId) -> Result<ChangingCall<'a>, FileError> {
        Ok(ChangingCall { call: self.call(rq, caller, file)?, tracker: &self.tracker })
    }

    /// Executes a call while its files are pinned.
    async fn pinned<T, const N: usize>(&self, call: &Call<'_>, files: [FileId; N], step: impl Future<Output = T>) -> T {
        let mut holds = SmallVec::<[Hold; 2]>::new();
        for file in files {
            let Ok(node) = call.node(file) else { continue };
            // A file that fails here also fails in the call, which returns the error.
            holds.extend(call.tree.hold_as(call.rq, node, HoldKind::Call).await.ok().flatten());
        }
        let done = step.await;
        for hold in holds {
            if let Err(error) = hold.release(call.rq).await {
                tracing::warn!(%error, "an unlinked file stays in the unlinked set until its file system is opened again");
            }
        }
        done
    }
}

impl Files for TreeFiles {
    fn file_systems(&self, caller: &Caller) -> Vec<String> {
        let all =
            || self.tree.exports().into_iter().map(|export| export.name).filter(|name| !name.contains('@')).collect();
        self.shares.paths(caller.host).unwrap_or_else(all)
    }

    fn open_path<'a>(&'a self, rq: &'a Request, caller: &'a Caller, path: &'a [u8]) -> FileFuture<'a, File> {
        Box::pin(async move { Ok(self.unchecked(rq, caller).open_path(path).await?) })
    }

    fn attributes<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, front::Attributes> {
        Box::pin(async move {
            let call = self.call(rq, caller, file)?;
            self.pinned(&call, [file], call.attributes(file)).await
        })
    }

    fn access<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (front::Attributes, Permissions)> {
        Box::pin(async move {
            let call = self.call(rq, caller, file)?;
            self.pinned(&call, [file], call.access(file)).await
        })
    }

    fn lookup<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
    ) -> FileFuture<'a, (File, front::Attributes)> {
        Box::pin(async move {
            let call = self.call(rq, caller, dir)?;
            self.pinned(&call, [dir], call.lookup(dir, name)).await
        })
    }

    fn read_link<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (Bytes, front::Attributes)> {
        Box::pin(async move {
            let call = self.call(rq, caller, file)?;
            self.pinned(&call, [file], call.read_link(file)).await
        })
    }

    fn read<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        offset: u64,
        len: usize,
    ) -> FileFuture<'a, ReadData> {
        Box::pin(async move {
            let call = self.call(rq, caller, file)?;
            self.pinned(&call, [file], call.read(file, offset, len)).await
        })
    }

    fn read_dir<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        cookie: u64,
        max: usize,
        with_files: bool,
    ) -> FileFuture<'a, Listing> {
        Box::pin(async move {
            let call = self.call(rq, caller, dir)?;
            self.pinned(&call, [dir], call.read_dir(dir, cookie, max, with_files)).await
        })
    }

    fn usage<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (Usage, front::Attributes)> {
        Box::pin(async move {
            let call = self.call(rq, caller, file)?;
            self.pinned(&call, [file], call.usage(file)).await
        })
    }

    fn file_system<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (FileSystemInfo, front::Attributes)> {
        Box::pin(async move {
            let call = self.call(rq, caller, file)?;
            self.pinned(&call, [file], call.file_system(file)).await
        })
    }

    fn set_attributes<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        set: &'a SetAttributes,
        condition: Option<Condition<'a>>,
    ) -> ChangeFuture<'a, ()> {
        Box::pin(async move {
            let call = match self.changing(rq, caller, file) {
                Ok(call) => call,
                Err(error) => return unchanged(error),
            };
            self.pinned(&call.call, [file], call.set_attributes(file, set, condition)).await
        })
    }

    fn write<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> ChangeFuture<'a, Stability> {
        Box::pin(async move {
            let call = match self.changing(rq, caller, file) {
                Ok(call) => call,
                Err(error) => return unchanged(error),
            };
            self.pinned(&call.call, [file], call.write(file, offset, data, stability)).await
        })
    }

    fn commit<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> ChangeFuture<'a, ()> {
        Box::pin(async move {
            let call = match self.changing(rq, caller, file) {
                Ok(call) => call,
                Err(error) => return unchanged(error),
            };
            self.pinned(&call.call, [file], call.commit(file)).await
        })
    }

    fn create<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
        new: New,
        set: SetAttributes,
    ) -> ChangeFuture<'a, File> {
        Box::pin(async move {
            let call = match self.changing(rq, caller, dir) {
                Ok(call) => call,
                Err(error) => return unchanged(error),
            };
            self.pinned(&call.call, [dir], call.create(dir, name, new, set)).await
        })
    }

    fn remove<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
        is_dir: bool,
    ) -> ChangeFuture<'a, ()> {
        Box::pin(async move {
            let call = match self.changing(rq, caller, dir) {
                Ok(call) => call,
                Err(error) => return unchanged(error),
            };
            self.pinned(&call.call, [dir], call.remove(dir, name, is_dir)).await
        })
    }

    fn rename<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        from: (FileId, &'a [u8]),
        to: (FileId, &'a [u8]),
    ) -> BoxFuture<'a, Rename> {
        Box::pin(async move {
            let call =
                match self.changing(rq, caller, from.0).and_then(|call| self.call(rq, caller, to.0).map(|_| call)) {
                    Ok(call) => call,
                    Err(error) => {
                        return Rename { result: Err(error), from: BeforeAfter::default(), to: BeforeAfter::default() };
                    }
                };
            self.pinned(&call.call, [from.0, to.0], call.rename(from, to)).await
        })
    }

    fn link<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        dir: FileId,
        name: &'a [u8],
    ) -> BoxFuture<'a, Link> {
        Box::pin(async move {
            let call = match self.changing(rq, caller, file).and_then(|call| self.call(rq, caller, dir).map(|_| call)) {
                Ok(call) => call,
                Err(error) => return Link { result: Err(error), file: None, dir: BeforeAfter::default() },
            };
            self.pinned(&call.call, [file, dir], call.link(file, dir, name)).await
        })
    }
}
