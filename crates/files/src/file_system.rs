//! One file system or snapshot: the operations that front ends call.

use crate::error::FileError;
use crate::metadata::{AttrIds, Metadata, MetadataScope};
use crate::writing::unlinked::HoldCounts;
use crate::writing::{Opening, Settings, Writing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_dmu::sa::SaTable;
use weir_dmu::zap::{Match, Zap};
use weir_dmu::{Object, ObjectSet};
use weir_format::zap::NormFlags;
use weir_format::znode::master;
use weir_format::{ObjectId, ObjsetKind};
use weir_machine::Request;
use weir_machine::lock::RwLock;

/// The newest known version of the ZPL.
pub(crate) const NEWEST_VERSION: u64 = 5;
/// The first version with system attributes.
pub(crate) const WITH_SYSTEM_ATTRIBUTES: u64 = 5;
/// Maximum length of a name in bytes, without and with the `longname` feature.
const NAME_MAX: usize = 255;
pub(crate) const LONG_NAME_MAX: usize = 1023;

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
    version: AtomicU64,
    case: CaseSensitivity,
    normalization: u64,
    utf8_only: bool,
    numbers: RwLock<Arc<AttrIds>>,
    pub(crate) writing: Option<Writing>,
    pub(crate) holds: HoldCounts,
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
    /// ([`DeleteQueue::empty`](crate::DeleteQueue::empty)).
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
            version: AtomicU64::new(version),
            case,
            numbers: RwLock::new(Arc::new(numbers)),
            writing,
            holds: HoldCounts::default(),
            cloned_txg: AtomicU64::new(0),
        })
    }

    /// The current SA registry.
    pub(crate) fn numbers(&self) -> Arc<AttrIds> {
        self.numbers.read().clone()
    }

    pub(crate) fn set_attr_ids(&self, numbers: AttrIds) {
        *self.numbers.write() = Arc::new(numbers);
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
        self.version.load(Ordering::Relaxed)
    }

    pub(crate) fn set_version(&self, version: u64) {
        debug_assert!(version <= NEWEST_VERSION && version >= self.version(), "versions only grow");
        self.version.store(version, Ordering::Relaxed);
    }

    /// Visibility of `.zfs`.
    pub fn snapdir(&self) -> Snapdir {
        self.settings().map_or(self.identity.snapdir, |settings| settings.snapdir)
    }

    /// Current properties, if it is open for writing.
    pub(crate) fn settings(&self) -> Option<Settings> {
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

    /// Whether it was closed permanently.
    pub fn is_closed(&self) -> bool {
        self.objects().is_closed()
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) async fn object(&self, rq: &Request, id: ObjectId) -> Result<Arc<Object>, FileError> {
        self.objects.object(rq, id).await.map_err(|e| FileError::at(e, id, 0))
    }

    pub(crate) async fn load(
        &self,
        rq: &Request,
        id: ObjectId,
        extent: MetadataScope,
    ) -> Result<(Arc<Object>, Metadata), FileError> {
        let object = self.object(rq, id).await?;
        let metadata = Metadata::load(rq, &self.objects, &self.numbers(), &object, extent).await?;
        Ok((object, metadata))
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
}
