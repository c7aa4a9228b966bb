//! Files as the protocols for them see them: NFS version 3 today; the interface suits NFS version 4 and SMB as well.
//!
//! ```text
//!   protocol: bytes ─▶ FileId, names ─▶ Files: one call each ─▶ attributes before and after, or an error ─▶ bytes
//! ```
//!
//! *One call, one step.* An implementation resolves the file, pins it until the answer, checks the permissions of the
//! [`Caller`], executes, and reports the attributes with the result, also of a failure. So the protocols contain encodings
//! only, and permissions, stability and overlapping changes are handled in one place for all of them.
//!
//! *What is shared.* Each file system has its own rules ([`crate::FileRules`]). An implementation applies those of the file's
//! file system to every call, so a change of the rules takes effect at the next call, also for files that a client has open:
//! a file system that is not shared is [`FileError::Stale`], one that is shared with other hosts only is
//! [`FileError::Denied`]. A lookup does not lead into a file system that is not shared with the caller's host.
//!
//! *Stability.* Every change except [`Files::write`] is on stable storage when it is answered.
//!
//! *Dispatch* is dynamic: each call returns one boxed future, in which the steps of the implementation run without further
//! ones. Every protocol maps [`FileError`] to its status in one table.

use crate::rules::Caller;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use thiserror::Error;
use weir_machine::Request;

/// Identity of a file for its lifetime: also after a restart and a rename, and never that of another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// GUID of the pool.
    pub pool: u64,
    /// The file system or snapshot: its persistent ID, which is never reused.
    pub export: u64,
    /// Number of the file.
    pub object: u64,
    /// Tells successive files with the same number apart.
    pub generation: u64,
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file, or one of a kind that no protocol knows.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky (12 bits).
    pub mode: u32,
    /// Number of links.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space used in bytes.
    pub used_bytes: u64,
    /// Block size in bytes: reads return slices of blocks.
    pub block_bytes: u32,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Number of the file system.
    pub fsid: u64,
    /// Number of the file within its file system.
    pub file_number: u64,
    /// Last access, in nanoseconds since 1970.
    pub atime_ns: i128,
    /// Last change of the contents.
    pub mtime_ns: i128,
    /// Last change of the attributes or contents.
    pub ctime_ns: i128,
    /// Creation.
    pub crtime_ns: i128,
}

/// A file with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Identity.
    pub id: FileId,
    /// Attributes.
    pub attributes: Attributes,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// No such name.
    #[error("not found")]
    NotFound,
    /// The file is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The file is a directory, but another kind is required.
    #[error("a directory")]
    IsDirectory,
    /// The name is longer than the file system allows.
    #[error("the name is too long")]
    NameTooLong,
    /// Data cannot be read or written: corrupt, or a device failed.
    #[error("{why}")]
    Io {
        /// Cause and place; clients do not see it, so servers log it.
        why: String,
    },
    /// The file of the identity does not exist any more.
    #[error("the file does not exist any more")]
    Stale,
    /// Not implemented, or not possible in this file system.
    #[error("{what} is not supported")]
    Unsupported {
        /// Name of the feature.
        what: String,
    },
    /// The file system is read-only, or the caller's host may not write.
    #[error("read-only")]
    ReadOnly,
    /// Only the owner or the superuser may do this, or it is forbidden to everyone.
    #[error("not permitted")]
    NotPermitted,
    /// No permission by mode or access control list, or the key of the file system is not loaded.
    #[error("permission denied")]
    Denied,
    /// The name exists.
    #[error("the name exists")]
    Exists,
    /// The directory is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The two names are in different file systems.
    #[error("the names are in different file systems")]
    CrossDevice,
    /// The file would exceed the maximum size.
    #[error("a file cannot be that large")]
    TooLarge,
    /// The pool or the file system is full.
    #[error("no space left")]
    NoSpace,
    /// A quota of a user, group or project is reached.
    #[error("a quota is reached")]
    Quota,
    /// The file has the maximum number of links.
    #[error("too many links")]
    TooManyLinks,
    /// The arguments do not fit the file.
    #[error("{why}")]
    Invalid {
        /// Reason.
        why: &'static str,
    },
    /// The condition of [`Files::set_attributes`] is not met.
    #[error("the file has changed")]
    Changed,
    /// Others change the same name again and again: the call may be repeated later.
    #[error("try again")]
    TryAgain,
}

/// An error, and the attributes of the file or directory of the call if it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: FileError,
    /// Attributes of the file or directory.
    pub file: Option<Attributes>,
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure { error, file: None }
    }
}

/// Attributes of a file or directory around a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeforeAfter {
    /// Attributes just before the change, only if nothing else changed the file meanwhile: then the change was atomic, and
    /// a client whose cache has these attributes may keep it.
    pub before: Option<Attributes>,
    /// Attributes afterwards, if the file was found.
    pub after: Option<Attributes>,
}

impl BeforeAfter {
    /// Of a file that was not changed.
    pub fn unchanged(file: Option<Attributes>) -> Self {
        BeforeAfter { before: None, after: file }
    }
}

/// Result of a change, and the file or directory that was to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    /// The result.
    pub result: Result<T, FileError>,
    /// The file or directory.
    pub file: BeforeAfter,
}

/// Result of a rename: both directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The result.
    pub result: Result<(), FileError>,
    /// The directory of the old name.
    pub from: BeforeAfter,
    /// The directory of the new name.
    pub to: BeforeAfter,
}

/// Result of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The result.
    pub result: Result<(), FileError>,
    /// Attributes of the file, if it was found.
    pub file: Option<Attributes>,
    /// The directory of the new name.
    pub dir: BeforeAfter,
}

/// Permissions of a caller on a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Read data, or list a directory.
    pub read: bool,
    /// Change data, or entries of a directory. Not on a read-only file system.
    pub write: bool,
    /// Execute, or look names up in a directory.
    pub execute: bool,
}

/// Data of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadData {
    /// Attributes of the file.
    pub file: Attributes,
    /// The bytes, as slices of cached blocks. Fewer than requested at the end of the file only.
    pub pieces: SmallVec<[Bytes; 4]>,
    /// Whether they reach the end of the file.
    pub at_end: bool,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// Position after the entry: stays valid when entries are added and removed. Never 0, below 2^63.
    pub cookie: u64,
    /// Number of the file.
    pub file_number: u64,
    /// The file, if it was requested, can be read, and is not the root of another file system.
    pub file: Option<File>,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Attributes of the directory.
    pub dir: Attributes,
    /// The entries, `.` and `..` first.
    pub entries: Vec<Entry>,
    /// Whether they reach the end.
    pub at_end: bool,
}

/// Space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Used and available bytes.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub available_bytes: u64,
    /// Existing and possible files.
    pub total_files: u64,
    /// Files that can still be created.
    pub available_files: u64,
}

/// Properties of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemInfo {
    /// Maximum length of a name in bytes.
    pub name_max: usize,
    /// Whether names that differ only in case are equal.
    pub is_case_insensitive: bool,
    /// Whether the caller may change anything in it.
    pub is_writable: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// Nanoseconds since 1970.
    At(i128),
}

/// Attributes to set; `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (12 bits).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

impl SetAttributes {
    /// Whether no attribute is set.
    pub fn is_empty(&self) -> bool {
        *self == SetAttributes::default()
    }
}

/// A condition on the attributes of a file before a change.
pub type Condition<'a> = &'a (dyn Fn(&Attributes) -> bool + Sync);

/// How stable a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Visible to all clients; stable after [`Files::commit`].
    Unstable,
    /// On stable storage, with all metadata.
    Stable,
}

/// Treatment of a name that exists when a regular file is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// An existing regular file is used; of the attributes, only the size is set.
    Unchecked,
    /// The creation fails.
    Guarded,
    /// The creation fails, unless an earlier one with the same verifier created the file and nothing changed it since. The
    /// verifier is kept in the times of the file, so the client sets its attributes afterwards; none are set here.
    Exclusive([u8; 8]),
}

/// Kind of a new file, with what the kind needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New {
    /// A regular file.
    Regular(CreateMode),
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Future of an operation that changes nothing.
pub type FileFuture<'a, T> = BoxFuture<'a, Result<T, Failure>>;
/// Future of a change.
pub type ChangeFuture<'a, T> = BoxFuture<'a, Change<T>>;

/// Files of one or several pools: trees of file systems and snapshots. See the module for what all operations have in
/// common.
pub trait Files: Send + Sync {
    /// Names of the file systems that are shared with the caller's host, without snapshots.
    fn file_systems(&self, caller: &Caller) -> Vec<String>;
    /// The directory at a path that begins with the name of a shared file system, for example
    /// `pool/child/.zfs/snapshot/monday`, or with its mount point. The administrator chose what is shared, so no permissions
    /// of users are checked; `..` is denied.
    fn open_path<'a>(&'a self, rq: &'a Request, caller: &'a Caller, path: &'a [u8]) -> FileFuture<'a, File>;
    /// Attributes of a file.
    fn attributes<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> FileFuture<'a, Attributes>;
    /// Permissions of the caller on a file.
    fn access<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (Attributes, Permissions)>;
    /// The file of a name, and the attributes of its directory. Needs execute permission on the directory.
    fn lookup<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
    ) -> FileFuture<'a, (File, Attributes)>;
    /// The target of a symbolic link, and the attributes of the link.
    fn read_link<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (Bytes, Attributes)>;
    /// Reads at most `len` bytes of a file at `offset`. Needs read or execute permission (clients read the pages of programs
    /// that they execute), or ownership: the client checked when it opened the file, and the mode may have changed since.
    fn read<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        offset: u64,
        len: usize,
    ) -> FileFuture<'a, ReadData>;
    /// At most `max` entries of a directory after `cookie` (0: from the start), with their files if `with_files`. Needs read
    /// permission.
    fn read_dir<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        cookie: u64,
        max: usize,
        with_files: bool,
    ) -> FileFuture<'a, Listing>;
    /// Space of the file system of a file, and the attributes of the file.
    fn usage<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> FileFuture<'a, (Usage, Attributes)>;
    /// Properties of the file system of a file, and the attributes of the file.
    fn file_system<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (FileSystemInfo, Attributes)>;
    /// Sets attributes, if the condition holds just before.
    fn set_attributes<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        set: &'a SetAttributes,
        condition: Option<Condition<'a>>,
    ) -> ChangeFuture<'a, ()>;
    /// Writes data at `offset`, and returns the stability that was reached. Needs write permission or ownership, as
    /// [`Files::read`].
    fn write<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> ChangeFuture<'a, Stability>;
    /// Makes all earlier changes of a file stable.
    fn commit<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> ChangeFuture<'a, ()>;
    /// Creates a file. Of `set`, an owner counts for the superuser only, a group for its members, and a size for regular
    /// files; what is not permitted is ignored.
    fn create<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
        new: New,
        set: SetAttributes,
    ) -> ChangeFuture<'a, File>;
    /// Removes a name, of an empty directory if `is_dir`, else of any other file.
    fn remove<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
        is_dir: bool,
    ) -> ChangeFuture<'a, ()>;
    /// Renames within a file system. An existing file of the new name is replaced.
    fn rename<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        from: (FileId, &'a [u8]),
        to: (FileId, &'a [u8]),
    ) -> BoxFuture<'a, Rename>;
    /// Creates a hard link of a file in a directory of the same file system.
    fn link<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        dir: FileId,
        name: &'a [u8],
    ) -> BoxFuture<'a, Link>;
}
