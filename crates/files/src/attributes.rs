//! Attributes of a file as reported by `stat`.

use crate::error::FileError;
use crate::file_system::Snapdir;
use crate::handles::Attrs;
use crate::metadata::MetadataScope;
use weir_format::ObjectId;
use weir_format::znode::FileFlags;
use weir_machine::Request;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
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
    /// A Solaris door or event port, which Linux does not have.
    Other,
}

impl FileKind {
    /// From the `S_IFMT` bits of a mode.
    pub fn from_mode(mode: u32) -> FileKind {
        Self::from_dirent(((mode >> 12) & 15) as u8)
    }

    /// From the four kind bits of a directory entry (`DT_*`, the mode's `S_IFMT` >> 12).
    pub fn from_dirent(bits: u8) -> FileKind {
        match bits {
            1 => FileKind::Fifo,
            2 => FileKind::CharDevice,
            4 => FileKind::Directory,
            6 => FileKind::BlockDevice,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => FileKind::Other,
        }
    }

    /// The `S_IFMT` bits; those of a regular file for kinds that Linux does not have.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010000,
            FileKind::CharDevice => 0o020000,
            FileKind::Directory => 0o040000,
            FileKind::BlockDevice => 0o060000,
            FileKind::Regular | FileKind::Other => 0o100000,
            FileKind::Symlink => 0o120000,
            FileKind::Socket => 0o140000,
        }
    }
}

/// Attributes of a file: those of `stat`, and ZFS-specific ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Object number, used as inode number.
    pub object: ObjectId,
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky (12 bits).
    pub mode: u32,
    /// Owner. Identities that come from a Windows domain and have no POSIX number are 65534.
    pub uid: u32,
    /// Group, with the same mapping.
    pub gid: u32,
    /// Links, as `stat` shows them.
    pub links: u64,
    /// Size in bytes (of a directory: entries + 2, as ZFS counts).
    pub size_bytes: u64,
    /// Space used in units of 512 bytes, as `stat` shows it.
    pub blocks512: u64,
    /// Block size in bytes, as `stat` shows it.
    pub block_bytes: u32,
    /// Device number in Linux's `dev_t` (major, minor) for devices.
    pub device: Option<(u32, u32)>,
    /// Last access, nanoseconds since 1970.
    pub atime_ns: i128,
    /// Last change of the contents.
    pub mtime_ns: i128,
    /// Last change of the attributes.
    pub ctime_ns: i128,
    /// Creation.
    pub crtime_ns: i128,
    /// Generation: tells successive files with the same object number apart (the txg of creation).
    pub generation: u64,
    /// Attribute flags.
    pub flags: FileFlags,
    /// The directory in which it was created or last renamed to.
    pub parent: ObjectId,
    /// Project, if the file has one.
    pub project: Option<u64>,
}

impl Attrs<'_> {
    /// Attributes of an object.
    pub async fn get(self, rq: &Request, object: ObjectId) -> Result<Attributes, FileError> {
        let (object, metadata) = self.files.load(rq, object, MetadataScope::Basics).await?;
        let mut attributes = metadata.attributes(&object);
        if object.id == self.files.root() && self.files.snapdir() == Snapdir::Visible {
            attributes.links = attributes.links.saturating_add(1);
        }
        self.files.atimes().show(&mut attributes);
        Ok(attributes)
    }

    /// Attributes of an object if it still has this generation; for file handles.
    ///
    /// # Errors
    /// [`FileError::Stale`] if the object is free, is not a file, or has another generation.
    pub async fn by_file_id(self, rq: &Request, object: ObjectId, generation: u64) -> Result<Attributes, FileError> {
        match self.get(rq, object).await {
            Ok(attributes) if attributes.generation == generation => Ok(attributes),
            Ok(_) | Err(FileError::NotFound) => Err(FileError::Stale { object }),
            Err(error) => Err(error),
        }
    }

    /// Directory that contains (or last contained) the object; the root is its own parent.
    pub async fn parent(self, rq: &Request, object: ObjectId) -> Result<ObjectId, FileError> {
        Ok(self.get(rq, object).await?.parent)
    }
}
