//! What callers say when they change a file system: who they are, what is to be made, what is to be set.

use crate::attributes::FileKind;
use smallvec::SmallVec;

/// Who acts. New files belong to them; [`crate::FileSystem`] checks what they may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// The user; 0 may everything.
    pub uid: u32,
    /// The first group: that of new files.
    pub gid: u32,
    /// All further groups.
    pub groups: SmallVec<[u32; 16]>,
    /// Somebody else has checked permissions already (the kernel, for a mount with `default_permissions`): only what a
    /// file itself forbids to everyone is refused.
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

    /// The same, its permissions checked by the caller.
    pub fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

    /// Whether it is a member of a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewKind {
    /// A plain file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link to that target.
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
    /// The kind of file that it becomes.
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

/// A file to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// What.
    pub kind: NewKind,
    /// Permission bits (12 bits).
    pub mode: u32,
    /// Bits that are taken off the mode, unless the directory has a default POSIX list: that counts instead.
    pub umask: u32,
    /// It must not exist. If false and a plain file of that name is there, that one is given, unchanged.
    pub exclusive: bool,
    /// What else is set in the same breath, whoever the caller is: who may is for the door to say. `mode` in it is not
    /// looked at.
    pub set: SetAttributes,
}

impl New {
    /// A file of a kind with permission bits that must not exist yet.
    pub fn of(kind: NewKind, mode: u32) -> Self {
        New { kind, mode, umask: 0, exclusive: true, set: SetAttributes::default() }
    }
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// Nanoseconds since 1970.
    At(i128),
}

/// Attributes to be set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (12 bits).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: what is beyond is cut off, what is missing reads as zeros.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

impl SetAttributes {
    /// A size alone.
    pub fn size(size_bytes: u64) -> Self {
        SetAttributes { size_bytes: Some(size_bytes), ..SetAttributes::default() }
    }

    /// Permission bits alone.
    pub fn mode(mode: u32) -> Self {
        SetAttributes { mode: Some(mode), ..SetAttributes::default() }
    }

    /// Whether nothing is to be set.
    pub fn is_empty(&self) -> bool {
        *self == SetAttributes::default()
    }
}

/// Flags of a file to be set, and its project (`chattr(1)`, `zfs project`); `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags {
    /// Nothing of it may change.
    pub immutable: Option<bool>,
    /// It is only written to at its end, and not removed.
    pub append_only: Option<bool>,
    /// `dump(8)` passes it over: nothing here looks at it.
    pub no_dump: Option<bool>,
    /// What is made in the directory gets its project.
    pub inherit_project: Option<bool>,
    /// The project that its space is counted for.
    pub project: Option<u32>,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte.
    Offset(u64),
    /// Behind the last byte.
    End,
}

/// What a rename does when the new name is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It takes the name away from what has it, as `rename(2)` does.
    #[default]
    Replace,
    /// It fails with [`crate::FileError::Exists`].
    NoReplace,
    /// Both change places; the new name must be taken.
    Exchange,
}

/// What to do to a range of a file (`fallocate(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// See that there is room for it. In a file system that never overwrites this can promise nothing for later; it
    /// makes the file as large as the range asks, unless the size is kept.
    Reserve {
        /// The size stays.
        keep_size: bool,
    },
    /// Its bytes become zeros.
    Zero {
        /// The size stays, also where the range reaches beyond it.
        keep_size: bool,
    },
    /// Its bytes become a hole; the size stays.
    Punch,
}

/// What setting an extended attribute does when there is one, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// It is made or replaced.
    #[default]
    Any,
    /// It fails with [`crate::FileError::Exists`] if there is one.
    Create,
    /// It fails with [`crate::FileError::NoAttribute`] if there is none.
    Replace,
}
