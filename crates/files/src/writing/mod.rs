//! Changing a file system.
//!
//! Every operation goes the same way:
//!
//! ```text
//!  1  look up what it is about, without a lock
//!  2  lock all objects that it changes, by ascending number (`locks`)         a rename: the rename lock before
//!  3  load them, and look again: if a name leads elsewhere now, back to 1
//!  4  may he? is there room? all reasons to refuse are found here (`may`)
//!  5  begin a transaction                                                     waits while too much waits in memory
//!  6  change objects and log the change (`log`) within the transaction
//!  7  end the transaction, give back the locks
//!  8  commit the intent log, if `sync=always`
//! ```
//!
//! Invariants:
//! - After 5 nothing is refused. What fails there is a block that cannot be read; then nothing of the change is there,
//!   or (where two objects are concerned) the file that was to be made is taken away again.
//! - Whoever holds a transaction waits for no lock of an object and not for the log.
//! - The log gets the records of one object in the order of its changes: they are logged under its lock.
//! - A file whose last name goes while somebody has it open stays until the last hold is given back; its number stands
//!   in the delete queue, which is emptied when the file system is opened for writing (`unlinked`).
//!
//! On disk all is as OpenZFS's ZPL writes it in version 5 (`module/os/linux/zfs/zfs_vnops_os.c`, `zfs_znode_os.c`,
//! `zfs_dir.c`); older versions are refused.

mod access;
mod acls;
mod copy;
mod data;
mod entries;
mod flags;
mod locks;
mod log;
mod make;
pub(crate) mod may;
mod names;
mod node;
mod owner;
pub(crate) mod posix_acl;
mod quota;
mod rename;
mod replay;
pub(crate) mod row;
mod set;
mod set_acl;
#[cfg(test)]
mod tests;
pub(crate) mod unlinked;
mod xattrs;

pub use access::AccessTimes;
pub use acls::{AclInherit, AclMode};
pub use owner::{Owner, owner_of};
pub(crate) use row::Naming;

use crate::error::FileError;
use crate::file_system::{FileSystem, Snapdir};
use futures_util::lock::Mutex as AsyncMutex;
use locks::Locks;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use weir_dmu::live::Purpose;
use weir_dmu::txg::Tx;
use weir_format::ObjectId;
use weir_format::znode::Timestamp;
use weir_machine::{Machine, Request};
use weir_zil::Zil;

/// The only version of the ZPL that is written.
const WRITTEN_VERSION: u64 = 5;

/// Which lists control access (`acltype`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclType {
    /// POSIX lists are not taken.
    #[default]
    Off,
    /// POSIX lists.
    Posix,
    /// NFSv4 lists.
    Nfsv4,
}

/// What a file system's properties say about changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `readonly`: every change is refused.
    pub read_only: bool,
    /// `recordsize`, in bytes: a power of two from 512 to 16 MiB.
    pub record_bytes: u32,
    /// `dnodesize` of new files, in slots of 512 bytes.
    pub dnode_slots: u8,
    /// `xattr=sa`: extended attributes go among the system attributes, where they fit.
    pub xattr_in_sa: bool,
    /// `xattr` is not `off`.
    pub xattrs: bool,
    /// `acltype`.
    pub acl_type: AclType,
    /// `aclmode`.
    pub acl_mode: AclMode,
    /// `aclinherit`.
    pub acl_inherit: AclInherit,
    /// `atime` and `relatime`.
    pub access_times: AccessTimes,
    /// The pool counts space by project: new files get a project number.
    pub projects: bool,
    /// `longname`: names may have 1023 bytes instead of 255.
    pub long_names: bool,
    /// `snapdir`.
    pub snapdir: Snapdir,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            read_only: false,
            record_bytes: 128 << 10,
            dnode_slots: 1,
            xattr_in_sa: true,
            xattrs: true,
            acl_type: AclType::Off,
            acl_mode: AclMode::default(),
            acl_inherit: AclInherit::default(),
            access_times: AccessTimes::default(),
            projects: false,
            long_names: false,
            snapdir: Snapdir::Hidden,
        }
    }
}

/// What a file system is opened for writing with.
#[derive(Clone)]
pub struct Opening {
    /// Time, and tasks.
    pub machine: Machine,
    /// Its intent log; without one, what must be stable waits for its group.
    pub zil: Option<Arc<Zil>>,
    /// Its properties.
    pub settings: Settings,
}

/// What a file system has that can be changed.
pub(crate) struct Writing {
    machine: Machine,
    /// The file system itself, for what goes on when nobody waits for it.
    own: OnceLock<Weak<FileSystem>>,
    zil: Option<Arc<Zil>>,
    settings: Mutex<Settings>,
    locks: Locks,
    /// Held by renames that move something to another directory: the tree's shape changes one step at a time.
    renames: AsyncMutex<()>,
    /// Held while attributes or layouts are registered.
    shapes: AsyncMutex<()>,
    /// Held while a large file goes by and by.
    reaping: AsyncMutex<()>,
    /// The delete queue.
    unlinked: ObjectId,
    /// When files were read, as far as that is not stored.
    accessed: access::Noted,
    /// Limits of users, groups and projects, once they were asked for.
    quotas: Mutex<Option<Arc<quota::Quotas>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writing {
    pub fn new(opening: Opening, unlinked: ObjectId) -> Self {
        Writing {
            machine: opening.machine,
            own: OnceLock::new(),
            zil: opening.zil,
            settings: Mutex::new(opening.settings),
            locks: Locks::default(),
            renames: AsyncMutex::new(()),
            shapes: AsyncMutex::new(()),
            reaping: AsyncMutex::new(()),
            unlinked,
            accessed: Mutex::default(),
            quotas: Mutex::default(),
        }
    }

    /// It belongs to this file system.
    pub fn belongs_to(&self, files: &Arc<FileSystem>) {
        // There is one, and it is told once.
        let _ = self.own.set(Arc::downgrade(files));
    }

    /// The properties.
    pub fn settings(&self) -> Settings {
        *lock(&self.settings)
    }

    /// The time of day.
    pub fn now(&self) -> Timestamp {
        let since = self.machine.clock.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
    }
}

impl FileSystem {
    /// Whether it takes changes.
    pub fn is_writable(&self) -> bool {
        self.writing().is_ok()
    }

    /// Gives it other properties.
    pub fn set_settings(&self, settings: Settings) {
        if let Some(writing) = &self.writing {
            *lock(&writing.settings) = settings;
        }
    }

    /// What changes need.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`] if there are to be none; [`FileError::Unsupported`] in old versions.
    pub(crate) fn writing(&self) -> Result<&Writing, FileError> {
        let writing = self.writing.as_ref().ok_or(FileError::ReadOnly)?;
        if writing.settings().read_only {
            return Err(FileError::ReadOnly);
        }
        if self.version() != WRITTEN_VERSION {
            let what = format!("writing to a file system of version {}", self.version());
            return Err(FileError::Unsupported { what });
        }
        Ok(writing)
    }

    /// Begins a transaction that changes about so many bytes. What is replayed passes quotas, and takes of the reserve.
    async fn begin(&self, rq: &Request, bytes: u64, purpose: Purpose) -> Result<Tx, FileError> {
        let zil = self.writing.as_ref().and_then(|writing| writing.zil.as_ref());
        let purpose = if zil.is_some_and(|zil| zil.is_replaying()) { Purpose::Free } else { purpose };
        self.objects().begin(rq, bytes, purpose).await.map_err(FileError::opening)
    }

    /// After a change: makes it stable if every change has to be.
    async fn settle(&self, rq: &Request, object: Option<ObjectId>) -> Result<(), FileError> {
        match &self.writing()?.zil {
            Some(zil) if zil.commits_each() => zil.commit(rq, object).await.map_err(FileError::opening),
            _ => Ok(()),
        }
    }

    /// Returns when all that was changed before the call is on stable storage: every change of names, and of contents
    /// and attributes those of `object`, or of all objects. Through the intent log.
    ///
    /// # Errors
    /// [`FileError::Device`] if the pool cannot be written any more.
    pub async fn sync(&self, rq: &Request, object: Option<ObjectId>) -> Result<(), FileError> {
        let Some(writing) = &self.writing else { return Ok(()) };
        match (&writing.zil, self.objects().groups()) {
            (Some(zil), _) => zil.commit(rq, object).await.map_err(FileError::opening),
            (None, Some(groups)) => groups.wait_synced(groups.open()).await.map_err(FileError::opening),
            (None, None) => Ok(()),
        }
    }
}
