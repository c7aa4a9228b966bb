//! One file system or snapshot: the operations that front ends call.

use crate::acl::Acl;
use crate::attributes::{Attributes, FileKind};
use crate::directory::{self, DirEntry};
use crate::error::FileError;
use crate::metadata::{AttrIds, Metadata, MetadataScope};
use crate::writing::unlinked::Holds;
use crate::writing::{Opening, Settings, Writing};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock};
use weir_dmu::sa::SaTable;
use weir_dmu::zap::{Match, Zap};
use weir_dmu::{Object, ObjectSet};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::zap::NormFlags;
use weir_format::znode::{DirEntry as StoredEntry, FileFlags, master};
use weir_format::{ObjectId, ObjectType, ObjsetKind};
use weir_machine::Request;

/// The newest known version of the ZPL.
const NEWEST_VERSION: u64 = 5;
/// The first version with system attributes.
const WITH_SYSTEM_ATTRIBUTES: u64 = 5;
/// Maximum length of a name in bytes, without and with the `longname` feature.
const NAME_MAX: usize = 255;
const LONG_NAME_MAX: usize = 1023;
/// Maximum length of a symbolic link's target in bytes.
const LINK_MAX: u64 = 1 << 16;
/// Object numbers have 48 bits.
const OBJECTS_MAX: u64 = 1 << 48;

/// Visibility of the directory `.zfs` (`snapdir`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snapdir {
    /// Reachable by name, but not listed.
    #[default]
    Hidden,
    /// Listed in the root directory, which has one link more.
    Visible,
    /// Not reachable.
    Disabled,
}

impl Snapdir {
    /// Decodes a value of the property.
    pub fn from_number(number: u64) -> Self {
        match number {
            1 => Snapdir::Visible,
            2 => Snapdir::Disabled,
            _ => Snapdir::Hidden,
        }
    }
}

/// Properties of a file system that are not stored in its object set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Full name: `pool/a/b` or `pool/a/b@snapshot`.
    pub name: String,
    /// The dataset's `ds_fsid_guid`.
    pub fsid: u64,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
    /// The property `referenced`, in bytes.
    pub referenced_bytes: u64,
    /// The property `available`, in bytes.
    pub available_bytes: u64,
    /// The property `longname`: names may have 1023 bytes instead of 255.
    pub long_names: bool,
    /// The property `snapdir`.
    pub snapdir: Snapdir,
}

/// Kind of position to seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte in an allocated block.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}

/// Comparison of names that differ only in case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// Such names are different.
    #[default]
    Sensitive,
    /// Such names are equal.
    Insensitive,
    /// Different for POSIX, equal for SMB.
    Mixed,
}

/// Space usage as reported by `statvfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the file system refers to.
    pub referenced_bytes: u64,
    /// Bytes that can still be written.
    pub available_bytes: u64,
    /// Objects in use.
    pub objects_used: u64,
    /// Objects that can still be created.
    pub objects_available: u64,
}

/// A file system or a snapshot of one. Modification: [`crate::writing`].
pub struct FileSystem {
    objects: Arc<ObjectSet>,
    identity: Identity,
    root: ObjectId,
    version: u64,
    case: CaseSensitivity,
    normalization: u64,
    utf8_only: bool,
    numbers: RwLock<Arc<AttrIds>>,
    pub(crate) writing: Option<Writing>,
    pub(crate) holds: Holds,
    /// The newest txg in which blocks of it were cloned into another file system.
    pub(crate) cloned_txg: AtomicU64,
}

impl FileSystem {
    /// Opens the file system in `objects`.
    ///
    /// # Errors
    /// [`FileError::NoKey`] if it is encrypted and its key is not loaded; [`FileError::Unsupported`] if the object
    /// set is not a file system or has an unknown version.
    pub async fn open(rq: &Request, objects: Arc<ObjectSet>, identity: Identity) -> Result<Arc<Self>, FileError> {
        Self::open_as(rq, objects, identity, None).await.map(Arc::new)
    }

    /// Opens the file system in the writable object set `objects`. Before any other change the caller must replay its
    /// intent log ([`weir_zil::Zil::replay`]) and then empty the delete queue
    /// ([`FileSystem::empty_delete_queue`]).
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub async fn open_writable(
        rq: &Request,
        objects: Arc<ObjectSet>,
        identity: Identity,
        opening: Opening,
    ) -> Result<Arc<Self>, FileError> {
        let files = Arc::new(Self::open_as(rq, objects, identity, Some(opening)).await?);
        files.writing.iter().for_each(|writing| writing.belongs_to(&files));
        Ok(files)
    }

    async fn open_as(
        rq: &Request,
        objects: Arc<ObjectSet>,
        identity: Identity,
        opening: Option<Opening>,
    ) -> Result<Self, FileError> {
        if objects.is_locked() {
            return Err(FileError::NoKey);
        }
        if objects.kind() != ObjsetKind::Zfs {
            return Err(FileError::Unsupported {
                what: format!("a {} object set as a file system", objects.kind().name()),
            });
        }
        let master = ObjectId(master::OBJECT);
        let failed = |e| FileError::at(e, master, 0);
        let zap = Zap::open(rq, &objects, master).await.map_err(failed)?;
        let word = async |name: &str| -> Result<Option<u64>, FileError> {
            let found = zap.lookup(rq, name.as_bytes(), Match::Exact).await.map_err(failed)?;
            Ok(found.and_then(|v| v.first()))
        };
        let need = async |name: &'static str| -> Result<u64, FileError> {
            let missing = || FileError::Corrupt { object: master, offset: 0, why: format!("no entry {name}") };
            word(name).await?.ok_or_else(missing)
        };
        let version = need(master::VERSION).await?;
        if version > NEWEST_VERSION {
            return Err(FileError::Unsupported { what: format!("file system version {version}") });
        }
        let numbers = match word(master::SA_ATTRS).await?.filter(|_| version >= WITH_SYSTEM_ATTRIBUTES) {
            Some(id) => AttrIds::new(SaTable::read(rq, &objects, ObjectId(id)).await.map_err(failed)?),
            None => AttrIds::default(),
        };
        let case = match word(master::CASESENSITIVITY).await? {
            Some(1) => CaseSensitivity::Insensitive,
            Some(2) => CaseSensitivity::Mixed,
            _ => CaseSensitivity::Sensitive,
        };
        let writing = match opening.filter(|_| objects.is_live() && !identity.is_snapshot) {
            Some(opening) => Some(Writing::new(opening, ObjectId(need(master::UNLINKED_SET).await?))),
            None => None,
        };
        Ok(FileSystem {
            root: ObjectId(need(master::ROOT).await?),
            normalization: word(master::NORMALIZATION).await?.unwrap_or(0),
            utf8_only: word(master::UTF8ONLY).await?.unwrap_or(0) != 0,
            objects,
            identity,
            version,
            case,
            numbers: RwLock::new(Arc::new(numbers)),
            writing,
            holds: Holds::default(),
            cloned_txg: AtomicU64::new(0),
        })
    }

    /// The current SA registry.
    pub(crate) fn numbers(&self) -> Arc<AttrIds> {
        self.numbers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_attr_ids(&self, numbers: AttrIds) {
        *self.numbers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(numbers);
    }

    /// Name comparison of its directories.
    pub(crate) fn norm_flags(&self) -> NormFlags {
        let folds = self.case != CaseSensitivity::Sensitive;
        NormFlags(self.normalization | if folds { NormFlags::TO_UPPER } else { 0 })
    }

    /// The root directory.
    pub fn root(&self) -> ObjectId {
        self.root
    }

    /// ID of this file system, stable over renames (`fsid_guid`, 56 bits).
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

    /// ZPL version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Visibility of `.zfs`.
    pub fn snapdir(&self) -> Snapdir {
        self.settings().map_or(self.identity.snapdir, |settings| settings.snapdir)
    }

    /// Current properties, if it is open for writing.
    fn settings(&self) -> Option<Settings> {
        self.writing.as_ref().map(Writing::settings)
    }

    /// Comparison of names that differ only in case.
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        self.case
    }

    /// The property `normalization`, as its number (the flags of [`weir_format::zap::NormFlags`]); 0 for none.
    pub fn normalization(&self) -> u64 {
        self.normalization
    }

    /// Whether names must be UTF-8.
    pub fn utf8_only(&self) -> bool {
        self.utf8_only
    }

    /// Maximum length of a name in bytes: 255, or 1023 with the `longname` property.
    pub fn name_max(&self) -> usize {
        let long = self.settings().map_or(self.identity.long_names, |settings| settings.long_names);
        if long { LONG_NAME_MAX } else { NAME_MAX }
    }

    /// The object set of the file system.
    pub fn objects(&self) -> &Arc<ObjectSet> {
        &self.objects
    }

    pub(crate) async fn object(&self, rq: &Request, id: ObjectId) -> Result<Arc<Object>, FileError> {
        self.objects.object(rq, id).await.map_err(|e| FileError::at(e, id, 0))
    }

    async fn load(
        &self,
        rq: &Request,
        id: ObjectId,
        extent: MetadataScope,
    ) -> Result<(Arc<Object>, Metadata), FileError> {
        let object = self.object(rq, id).await?;
        let metadata = Metadata::load(rq, &self.objects, &self.numbers(), &object, extent).await?;
        Ok((object, metadata))
    }

    /// Attributes of an object.
    pub async fn attributes(&self, rq: &Request, object: ObjectId) -> Result<Attributes, FileError> {
        let (object, metadata) = self.load(rq, object, MetadataScope::Basics).await?;
        let mut attributes = metadata.attributes(&object);
        if object.id == self.root && self.snapdir() == Snapdir::Visible {
            attributes.links = attributes.links.saturating_add(1);
        }
        self.show_access(&mut attributes);
        Ok(attributes)
    }

    /// Attributes of an object if it still has this generation; for file handles.
    ///
    /// # Errors
    /// [`FileError::Stale`] if the object is free, is not a file, or has another generation.
    pub async fn by_file_id(&self, rq: &Request, object: ObjectId, generation: u64) -> Result<Attributes, FileError> {
        match self.attributes(rq, object).await {
            Ok(attributes) if attributes.generation == generation => Ok(attributes),
            Ok(_) | Err(FileError::NotFound) => Err(FileError::Stale { object }),
            Err(error) => Err(error),
        }
    }

    /// Directory that contains (or last contained) the object; the root is its own parent.
    pub async fn parent(&self, rq: &Request, object: ObjectId) -> Result<ObjectId, FileError> {
        Ok(self.attributes(rq, object).await?.parent)
    }

    async fn directory(&self, rq: &Request, id: ObjectId) -> Result<Zap, FileError> {
        let object = self.object(rq, id).await?;
        if object.dnode.object_type != ObjectType::DIRECTORY_CONTENTS {
            return Err(FileError::NotDirectory { object: id });
        }
        Zap::of(rq, &self.objects, object).await.map_err(|e| FileError::at(e, id, 0))
    }

    /// Looks up `name` in directory `dir`, with the file system's case sensitivity and normalization. `.` and `..`
    /// are not handled here.
    pub async fn lookup(&self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<ObjectId, FileError> {
        // Long names may exist although the property is off now.
        if name.len() > LONG_NAME_MAX {
            return Err(FileError::NameTooLong { len: name.len() });
        }
        let zap = self.directory(rq, dir).await?;
        let found = zap.lookup(rq, name, self.matching()).await.map_err(|e| FileError::at(e, dir, 0))?;
        match found.and_then(|v| v.first()) {
            Some(word) => Ok(StoredEntry::from_word(word).object),
            None if name.len() > self.name_max() => Err(FileError::NameTooLong { len: name.len() }),
            None => Err(FileError::NotFound),
        }
    }

    /// Match mode of POSIX lookups.
    pub(crate) fn matching(&self) -> Match {
        match self.case {
            CaseSensitivity::Insensitive => Match::Normalized,
            CaseSensitivity::Mixed => Match::NormalizedCase,
            CaseSensitivity::Sensitive if self.normalization != 0 => Match::Normalized,
            CaseSensitivity::Sensitive => Match::Exact,
        }
    }

    /// Reads up to `max` entries of directory `dir` after `cookie` (0: from the start), without `.` and `..`. Fewer
    /// than `max` entries mean the end. The order is that of the names' hashes, which is stable.
    pub async fn read_dir(
        &self,
        rq: &Request,
        dir: ObjectId,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<DirEntry>, FileError> {
        let zap = self.directory(rq, dir).await?;
        if cookie == 0 && self.writing.is_some() {
            let (_, metadata) = self.load(rq, dir, MetadataScope::Basics).await?;
            self.note_access(dir, &metadata);
        }
        let entries = zap.entries(rq, cookie, max).await.map_err(|e| FileError::at(e, dir, 0))?;
        entries.into_iter().map(|entry| directory::entry(dir, entry)).collect()
    }

    /// Reads up to `len` bytes of a file at `offset`, limited by the file's end.
    pub async fn read(&self, rq: &Request, object: ObjectId, offset: u64, len: usize) -> Result<Bytes, FileError> {
        let (object, metadata) = self.file(rq, object).await?;
        self.note_access(object.id, &metadata);
        let bytes = self.objects.read(rq, &object, offset, len, metadata.size_bytes).await;
        self.require_open_snapshot(object.id)?;
        bytes.map_err(|e| FileError::of(e, &object))
    }

    /// Fails if this is a destroyed snapshot, whose blocks may have been reused.
    fn require_open_snapshot(&self, object: ObjectId) -> Result<(), FileError> {
        if self.is_snapshot() && self.is_closed() { Err(FileError::Stale { object }) } else { Ok(()) }
    }

    /// Like [`FileSystem::read`], as slices of cached blocks without a copy.
    pub async fn read_segments(
        &self,
        rq: &Request,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> Result<SmallVec<[Bytes; 4]>, FileError> {
        let (object, metadata) = self.file(rq, object).await?;
        self.note_access(object.id, &metadata);
        let segments = self.objects.read_segments(rq, &object, offset, len, metadata.size_bytes).await;
        self.require_open_snapshot(object.id)?;
        segments.map_err(|e| FileError::of(e, &object))
    }

    /// Loads an object with contents and its metadata.
    async fn file(&self, rq: &Request, id: ObjectId) -> Result<(Arc<Object>, Metadata), FileError> {
        let (object, metadata) = self.load(rq, id, MetadataScope::Basics).await?;
        match metadata.kind() {
            FileKind::Directory => Err(FileError::IsDirectory { object: id }),
            _ => Ok((object, metadata)),
        }
    }

    /// Reads a whole file of at most `max_bytes` bytes.
    pub(crate) async fn read_whole(&self, rq: &Request, id: ObjectId, max_bytes: u64) -> Result<Bytes, FileError> {
        let (object, metadata) = self.file(rq, id).await?;
        let size_bytes = metadata.size_bytes;
        if size_bytes > max_bytes {
            let why = format!("{size_bytes} bytes exceed the limit of {max_bytes}");
            return Err(FileError::Corrupt { object: id, offset: 0, why });
        }
        let bytes = self.objects.read(rq, &object, 0, size_bytes as usize, size_bytes).await;
        bytes.map_err(|e| FileError::of(e, &object))
    }

    /// Next data or hole at or after `offset`; `None` (for `ENXIO`) if there is none or `offset` is at or beyond the
    /// end. Granularity is a block.
    pub async fn seek(
        &self,
        rq: &Request,
        object: ObjectId,
        offset: u64,
        what: Seek,
    ) -> Result<Option<u64>, FileError> {
        let (object, metadata) = self.file(rq, object).await?;
        let size_bytes = metadata.size_bytes;
        if offset >= size_bytes {
            return Ok(None);
        }
        let in_blocks = match what {
            Seek::Data => weir_dmu::Seek::Data,
            Seek::Hole => weir_dmu::Seek::Hole,
        };
        let found = self.objects.seek(rq, &object, offset, size_bytes, in_blocks).await;
        let found = found.map_err(|e| FileError::of(e, &object))?;
        // The end of a file counts as a hole.
        Ok(found.or((what == Seek::Hole).then_some(size_bytes)))
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, rq: &Request, object: ObjectId) -> Result<Bytes, FileError> {
        let (_, metadata) = self.load(rq, object, MetadataScope::All).await?;
        if metadata.kind() != FileKind::Symlink {
            return Err(FileError::NotSymlink { object });
        }
        self.note_access(object, &metadata);
        match metadata.symlink {
            Some(target) => Ok(target.slice(..(metadata.size_bytes as usize).min(target.len()))),
            None => self.read_whole(rq, object, LINK_MAX).await,
        }
    }

    /// Names of all extended attributes as on Linux (`user.x`, `security.selinux`, …), sorted.
    pub async fn xattr_names(&self, rq: &Request, object: ObjectId) -> Result<Vec<Vec<u8>>, FileError> {
        let (_, metadata) = self.load(rq, object, MetadataScope::All).await?;
        self.list_xattrs(rq, object, &metadata).await
    }

    /// Value of an extended attribute by its Linux name; `None` if it does not exist.
    pub async fn xattr(&self, rq: &Request, object: ObjectId, name: &[u8]) -> Result<Option<Bytes>, FileError> {
        let (_, metadata) = self.load(rq, object, MetadataScope::All).await?;
        self.find_xattr(rq, object, &metadata, name).await
    }

    /// The ACL: the stored one, or one computed from the mode.
    pub async fn acl(&self, rq: &Request, object: ObjectId) -> Result<Acl, FileError> {
        let (_, metadata) = self.load(rq, object, MetadataScope::All).await?;
        Acl::load(rq, &self.objects, object, &metadata).await
    }

    /// Space usage for `statvfs` of a file or directory: that of the file system; below a directory with an inherited
    /// project, the limits of that project, if any (`zfs_statfs_project`).
    ///
    /// # Errors
    /// If the object or the project's limits cannot be read.
    pub async fn usage(&self, rq: &Request, object: ObjectId) -> Result<Usage, FileError> {
        let mut usage = self.whole_usage();
        let Attributes { flags, project, .. } = self.attributes(rq, object).await?;
        let heir = project.filter(|project| *project != 0 && flags.has(FileFlags::PROJINHERIT));
        let Some(project) = heir.filter(|_| self.objects.counts_projects()) else { return Ok(usage) };
        for what in QuotaKind::ALL {
            let failed = |e| FileError::at(e, ObjectId(master::OBJECT), 0);
            let limit = self.objects.limit_of(rq, QuotaPrincipal::Project, what, project).await.map_err(failed)?;
            let Some(limit) = limit else { continue };
            let used = self.objects.used_by(rq, QuotaPrincipal::Project, what, project).await.map_err(failed)?;
            let left = limit.saturating_sub(used);
            match what {
                QuotaKind::Bytes => (usage.referenced_bytes, usage.available_bytes) = (limit - left, left),
                QuotaKind::Objects => (usage.objects_used, usage.objects_available) = (limit - left, left),
            }
        }
        Ok(usage)
    }

    fn whole_usage(&self) -> Usage {
        let at_opening = (self.identity.referenced_bytes, self.identity.available_bytes);
        let (referenced_bytes, available_bytes) = self.objects.usage().unwrap_or(at_opening);
        let objects_used = self.objects.pointer().fill();
        Usage {
            referenced_bytes,
            available_bytes,
            objects_used,
            // A dnode occupies at least 512 bytes.
            objects_available: OBJECTS_MAX.saturating_sub(objects_used).min(available_bytes >> 9),
        }
    }
}
