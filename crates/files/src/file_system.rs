//! One file system or snapshot.

use crate::acl::Acl;
use crate::attributes::Attributes;
use crate::directory::DirEntry;
use crate::error::FileError;
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::Request;
use weir_objects::ObjectSet;

/// What the pool knows of a file system besides its objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Full name: `pool/a/b` or `pool/a/b@snapshot`.
    pub name: String,
    /// The data set's `ds_fsid_guid`.
    pub fsid: u64,
    /// A snapshot.
    pub is_snapshot: bool,
    /// The property `referenced`, in bytes.
    pub referenced_bytes: u64,
    /// The property `available`, in bytes.
    pub available_bytes: u64,
}

/// What to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is in a block.
    Data,
    /// The next byte that is in no block; the end of the file counts.
    Hole,
}

/// How names that differ in case alone compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// They are different names.
    #[default]
    Sensitive,
    /// They are the same name.
    Insensitive,
    /// Different to POSIX, the same to SMB.
    Mixed,
}

/// What `statvfs` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the file system refers to.
    pub referenced_bytes: u64,
    /// Bytes that may still be written.
    pub available_bytes: u64,
    /// Objects in use.
    pub objects_used: u64,
    /// Objects that may still be made.
    pub objects_available: u64,
}

/// A file system or a snapshot of one, opened for reading.
pub struct FileSystem {
    #[allow(dead_code)]
    objects: Arc<ObjectSet>,
    identity: Identity,
    root: ObjectId,
}

impl FileSystem {
    /// Opens the file system in `objects`.
    pub async fn open(rq: &Request, objects: Arc<ObjectSet>, identity: Identity) -> Result<Arc<Self>, FileError> {
        let _ = rq;
        Ok(Arc::new(FileSystem { objects, identity, root: ObjectId(34) }))
    }

    /// The root directory.
    pub fn root(&self) -> ObjectId {
        self.root
    }

    /// The number that tells this file system from others, stable over renames (`fsid_guid`, 56 bits).
    pub fn fsid(&self) -> u64 {
        self.identity.fsid
    }

    /// Full name: `pool/a/b` or `pool/a/b@snapshot`.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// Whether this is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.identity.is_snapshot
    }

    /// How names that differ in case alone compare.
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        CaseSensitivity::Sensitive
    }

    /// Longest name in bytes: 255, or 1023 with the `longname` property.
    pub fn name_max(&self) -> usize {
        255
    }

    /// What `stat` shows of an object.
    pub async fn attributes(&self, rq: &Request, object: ObjectId) -> Result<Attributes, FileError> {
        let _ = (rq, object);
        Err(FileError::NotFound)
    }

    /// The same, if the object still is of that generation: for file handles.
    ///
    /// # Errors
    /// [`FileError::Stale`] if the object is free, is no file, or is of another generation.
    pub async fn by_file_id(&self, rq: &Request, object: ObjectId, generation: u64) -> Result<Attributes, FileError> {
        let attributes = self.attributes(rq, object).await?;
        if attributes.generation == generation { Ok(attributes) } else { Err(FileError::Stale { object }) }
    }

    /// The directory that holds (or last held) the object; the root is its own parent.
    pub async fn parent(&self, rq: &Request, object: ObjectId) -> Result<ObjectId, FileError> {
        Ok(self.attributes(rq, object).await?.parent)
    }

    /// The object that `name` leads to in directory `dir`; case and normalization as the file system has it.
    /// `.` and `..` are not looked up here.
    pub async fn lookup(&self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<ObjectId, FileError> {
        let _ = (rq, dir, name);
        Err(FileError::NotFound)
    }

    /// Up to `max` entries of directory `dir` after `cookie` (0: from the start), without `.` and `..`. Fewer than
    /// `max` entries means that the end is reached. The order is that of the names' hashes: stable.
    pub async fn read_dir(
        &self,
        rq: &Request,
        dir: ObjectId,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<DirEntry>, FileError> {
        let _ = (rq, dir, cookie, max);
        Err(FileError::NotFound)
    }

    /// Up to `len` bytes of a file from `offset`, clipped at its end.
    pub async fn read(&self, rq: &Request, object: ObjectId, offset: u64, len: usize) -> Result<Bytes, FileError> {
        let _ = (rq, object, offset, len);
        Err(FileError::NotFound)
    }

    /// The same as the pieces that lie in the cache, without a copy.
    pub async fn read_segments(
        &self,
        rq: &Request,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> Result<SmallVec<[Bytes; 4]>, FileError> {
        let _ = (rq, object, offset, len);
        Err(FileError::NotFound)
    }

    /// The next data or hole at or after `offset`; `None` (for `ENXIO`) if there is none or `offset` is at or beyond
    /// the end. Exact to the block.
    pub async fn seek(
        &self,
        rq: &Request,
        object: ObjectId,
        offset: u64,
        what: Seek,
    ) -> Result<Option<u64>, FileError> {
        let _ = (rq, object, offset, what);
        Err(FileError::NotFound)
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, rq: &Request, object: ObjectId) -> Result<Bytes, FileError> {
        let _ = (rq, object);
        Err(FileError::NotFound)
    }

    /// The names of all extended attributes, as Linux shows them (`user.x`, `security.selinux`, …), sorted.
    pub async fn xattr_names(&self, rq: &Request, object: ObjectId) -> Result<Vec<Vec<u8>>, FileError> {
        let _ = (rq, object);
        Err(FileError::NotFound)
    }

    /// The value of an extended attribute, by its Linux name; `None` if there is none.
    pub async fn xattr(&self, rq: &Request, object: ObjectId, name: &[u8]) -> Result<Option<Bytes>, FileError> {
        let _ = (rq, object, name);
        Err(FileError::NotFound)
    }

    /// The access control list: the stored one, or one made from the mode.
    pub async fn acl(&self, rq: &Request, object: ObjectId) -> Result<Acl, FileError> {
        let _ = (rq, object);
        Err(FileError::NotFound)
    }

    /// What `statvfs` shows.
    pub async fn usage(&self, rq: &Request) -> Result<Usage, FileError> {
        let _ = rq;
        Ok(Usage {
            referenced_bytes: self.identity.referenced_bytes,
            available_bytes: self.identity.available_bytes,
            ..Usage::default()
        })
    }
}
