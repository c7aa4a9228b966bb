//! Arguments of modifying operations: credentials, new files, attributes to set.

use crate::attributes::FileKind;
use smallvec::SmallVec;

/// A name in a directory: an object of a file system, or a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirName<'a, D> {
    /// The directory.
    pub dir: D,
    /// The name, without slashes.
    pub name: &'a [u8],
}

/// A position in a file: an object of a file system, or a node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosition<F> {
    /// The file.
    pub file: F,
    /// Offset in bytes.
    pub offset: u64,
}

/// Credentials of the caller. New files belong to this user; [`crate::FileSystem`] checks permissions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// User ID. 0 bypasses permission checks.
    pub uid: u32,
    /// Primary group, which new files get.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: SmallVec<[u32; 16]>,
    /// The caller has already checked permissions (the kernel does for a mount with `default_permissions`): only
    /// rules that bind every user are enforced, such as file flags.
    pub checked: bool,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Self {
        Cred::default()
    }

    /// A user with groups.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Cred { uid, gid, groups: SmallVec::from_slice(groups), checked: false }
    }

    /// Marks the permissions as already checked.
    pub fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

    /// Whether the user is a member of the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Kind of a new file, with its kind-specific data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewKind {
    /// A regular file.
    Regular,
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

impl NewKind {
    /// Kind of the resulting file.
    pub fn kind(&self) -> FileKind {
        match self {
            NewKind::Regular => FileKind::Regular,
            NewKind::Directory => FileKind::Directory,
            NewKind::Symlink(_) => FileKind::Symlink,
            NewKind::BlockDevice(..) => FileKind::BlockDevice,
            NewKind::CharDevice(..) => FileKind::CharDevice,
            NewKind::Fifo => FileKind::Fifo,
            NewKind::Socket => FileKind::Socket,
        }
    }
}

/// Arguments of a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// Kind of the file.
    pub kind: NewKind,
    /// Permission bits (12 bits).
    pub mode: u32,
    /// Bits to clear in the mode. Ignored if the directory has a default POSIX ACL.
    pub umask: u32,
    /// If true, the name must not exist. If false, an existing regular file of this name is returned unchanged.
    pub exclusive: bool,
    /// Further attributes to set at creation, without permission checks; the front end checks them. `mode` is
    /// ignored.
    pub set: SetAttributes,
    /// Rights in the ACL that the owner of a new regular file gets beyond those of the mode (bits of [`masks`](crate::masks)), where
    /// the mode and no inherited entry decides about the owner. Ignored with `acltype=posix`.
    pub owner_rights: u32,
}

impl New {
    /// A new file that must not exist yet.
    pub fn of(kind: NewKind, mode: u32) -> Self {
        New { kind, mode, umask: 0, exclusive: true, set: SetAttributes::default(), owner_rights: 0 }
    }
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
    /// Size in bytes: data beyond it are freed, an extension reads as zeros.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

impl SetAttributes {
    /// Sets only the size.
    pub fn size(size_bytes: u64) -> Self {
        SetAttributes { size_bytes: Some(size_bytes), ..SetAttributes::default() }
    }

    /// Sets only the permission bits.
    pub fn mode(mode: u32) -> Self {
        SetAttributes { mode: Some(mode), ..SetAttributes::default() }
    }

    /// Whether no attribute is set.
    pub fn is_empty(&self) -> bool {
        *self == SetAttributes::default()
    }
}

/// File flags and project to set (`chattr(1)`, `zfs project`); `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags {
    /// The file cannot be modified.
    pub immutable: Option<bool>,
    /// The file can only be appended to, and not removed.
    pub append_only: Option<bool>,
    /// Excluded from `dump(8)`; stored only.
    pub no_dump: Option<bool>,
    /// New files in the directory inherit its project.
    pub inherit_project: Option<bool>,
    /// Project ID to which the space is accounted.
    pub project: Option<u32>,
}

/// Position of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte offset.
    Offset(u64),
    /// At the end of the file (append).
    End,
}

/// Behaviour of a rename whose target name exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace the target, as `rename(2)` does.
    #[default]
    Replace,
    /// Fail with [`crate::FileError::Exists`].
    NoReplace,
    /// Exchange both files; the target must exist.
    Exchange,
}

/// Operation on a range of a file (`fallocate(2)`, `zfs rewrite`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Check that the range fits, and extend the file to its end unless the size is kept. A copy-on-write file system
    /// cannot reserve space for later writes.
    Reserve {
        /// Keep the file's size.
        keep_size: bool,
    },
    /// Zero the range.
    Zero {
        /// Keep the file's size even if the range exceeds it.
        keep_size: bool,
    },
    /// Free the range; the size stays the same.
    Punch,
    /// Write the blocks of the range anew with the same contents, as the present properties say; times and size stay the same.
    Rewrite,
}

/// Behaviour of setting an extended attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace it.
    #[default]
    Any,
    /// Fail with [`crate::FileError::Exists`] if it exists.
    Create,
    /// Fail with [`crate::FileError::NoAttribute`] if it does not exist.
    Replace,
}
