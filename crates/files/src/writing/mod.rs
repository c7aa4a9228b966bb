//! Modification of file systems.
//!
//! Every operation follows the same steps:
//!
//! ```text
//!  1  look up its objects without locks
//!  2  lock all objects to modify in ascending order (`locks`)         a rename: the rename lock first
//!  3  load them and look up again; if a name changed, go to 1
//!  4  check permissions, quota and space: no check follows later (`access_checks`)
//!  5  begin a transaction                                             waits while there is too much dirty data
//!  6  change objects and log the change (`log`) within the transaction
//!  7  end the transaction, release the locks
//!  8  commit the intent log, if `sync=always`
//! ```
//!
//! Invariants:
//! - After step 5 the operation is not rejected any more. It can only fail because a block is unreadable; then
//!   nothing is changed, or, if two objects are involved, the new file is removed again.
//! - An operation with an open transaction waits neither for object locks nor for the intent log.
//! - The log records of one object are in the order of its changes, because they are logged under its lock.
//! - An unlinked file that is open is kept until its last hold is released; it is listed in the delete queue, which
//!   is emptied when the file system is opened for writing (`unlinked`).
//!
//! The on-disk result is that of OpenZFS's ZPL version 5 (`module/os/linux/zfs/zfs_vnops_os.c`, `zfs_znode_os.c`,
//! `zfs_dir.c`); older versions are rejected.

mod access;
pub(crate) mod access_checks;
mod acls;
mod copy;
mod data;
mod entries;
mod flags;
mod locks;
mod log;
mod make;
mod names;
mod node;
mod owner;
pub(crate) mod posix_acl;
mod quota;
mod rename;
mod replay;
mod rewrite;
pub(crate) mod sa_attrs;
mod set;
mod set_acl;
#[cfg(test)]
mod tests;
pub(crate) mod unlinked;
mod xattrs;

pub use access::AccessTimes;
pub use acls::{AclInherit, AclMode};
pub use owner::{Owner, owner_of};
pub(crate) use sa_attrs::AttrRegistry;

use crate::error::FileError;
use crate::file_system::{FileSystem, NEWEST_VERSION, Snapdir, WITH_SYSTEM_ATTRIBUTES};
use crate::metadata::AttrIds;
use futures_util::lock::Mutex as AsyncMutex;
use locks::Locks;
use std::sync::{Arc, OnceLock, Weak};
use weir_dmu::live::SpaceReserve;
use weir_dmu::sa::SaTable;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, NewZap};
use weir_format::znode::{Timestamp, master};
use weir_format::{ObjectId, ObjectType};
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Request, Stage, Target};
use weir_zil::Zil;

/// The only ZPL version that can be written.
const WRITTEN_VERSION: u64 = 5;

/// Type of access control lists (`acltype`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclType {
    /// No POSIX ACLs.
    #[default]
    Off,
    /// POSIX ACLs.
    Posix,
    /// NFSv4 ACLs.
    Nfsv4,
}

/// Properties of a file system that affect modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `readonly`: modification is rejected.
    pub read_only: bool,
    /// `recordsize`, in bytes: a power of two from 512 to 16 MiB.
    pub record_bytes: u32,
    /// `dnodesize` of new files, in slots of 512 bytes.
    pub dnode_slots: u8,
    /// `xattr=sa`: extended attributes that fit are stored in a system attribute.
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
    /// The pool accounts space by project: new files get a project ID.
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

/// Parameters of opening a file system for writing.
#[derive(Clone)]
pub struct Opening {
    /// Clock and task spawner.
    pub machine: Machine,
    /// Intent log; without one, a sync waits for the txg.
    pub zil: Option<Arc<Zil>>,
    /// Properties of the file system.
    pub settings: Settings,
}

/// State of a writable file system.
pub(crate) struct Writing {
    machine: Machine,
    /// The file system, for background tasks.
    own: OnceLock<Weak<FileSystem>>,
    zil: Option<Arc<Zil>>,
    settings: Mutex<Settings>,
    locks: Locks,
    /// Held by renames between directories, so that the directory hierarchy changes one step at a time.
    rename_lock: AsyncMutex<()>,
    /// Held while SA attributes or layouts are registered.
    sa_registry_lock: AsyncMutex<()>,
    /// Held while a large file is freed asynchronously.
    delete_queue_lock: AsyncMutex<()>,
    /// The delete queue.
    unlinked: ObjectId,
    /// Access times that are not stored yet.
    accessed: access::PendingAtimes,
    /// Cached quotas of users, groups and projects.
    quotas: Mutex<Option<Arc<quota::Limits>>>,
}

impl Writing {
    pub fn new(opening: Opening, unlinked: ObjectId) -> Self {
        Writing {
            locks: Locks::new(&opening.machine.clock),
            machine: opening.machine,
            own: OnceLock::new(),
            zil: opening.zil,
            settings: Mutex::new(opening.settings),
            rename_lock: AsyncMutex::new(()),
            sa_registry_lock: AsyncMutex::new(()),
            delete_queue_lock: AsyncMutex::new(()),
            unlinked,
            accessed: Mutex::default(),
            quotas: Mutex::default(),
        }
    }

    /// Sets the file system that this state belongs to.
    pub fn belongs_to(&self, files: &Arc<FileSystem>) {
        // Set once.
        let _ = self.own.set(Arc::downgrade(files));
    }

    /// The properties.
    pub fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// Current time.
    pub fn now(&self) -> Timestamp {
        let since = self.machine.clock.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
    }
}

impl FileSystem {
    /// Whether the file system is writable.
    pub fn is_writable(&self) -> bool {
        self.writing().is_ok()
    }

    /// Replaces the properties.
    pub fn set_settings(&self, settings: Settings) {
        if let Some(writing) = &self.writing {
            *writing.settings.lock() = settings;
        }
    }

    /// `recordsize` of new files, in bytes; `None` if the file system is not open for writing.
    pub fn record_bytes(&self) -> Option<u32> {
        self.writing.as_ref().map(|writing| writing.settings().record_bytes)
    }

    /// State for modification.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`] if the file system is read-only; [`FileError::Unsupported`] for old versions.
    pub(crate) fn writing(&self) -> Result<&Writing, FileError> {
        let writing = self.writing.as_ref().ok_or(FileError::ReadOnly)?;
        if writing.settings().read_only {
            return Err(FileError::ReadOnly);
        }
        if self.version() != WRITTEN_VERSION {
            let what = format!("writing to a file system of version {}, before 'zfs upgrade'", self.version());
            return Err(FileError::Unsupported { what });
        }
        Ok(writing)
    }

    /// Upgrades the file system to a ZPL version (`zfs upgrade`; OpenZFS `zfs_set_version`). Files keep their znodes until they are
    /// changed. It is stable with its txg.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`] if the pool is; [`FileError::Invalid`] if the version is older than the present one or
    /// unknown; [`FileError::NoSpace`]; errors of reading the master node.
    pub async fn upgrade(&self, rq: &Request, version: u64) -> Result<(), FileError> {
        let writing = self.writing.as_ref().ok_or(FileError::ReadOnly)?;
        let master = ObjectId(master::OBJECT);
        let _alone = writing.locks.one(rq, master).await;
        if version < self.version() || version > NEWEST_VERSION {
            return Err(FileError::Invalid { why: "a file system is only upgraded to a newer version that is known" });
        }
        let failed = |e| FileError::at(e, master, 0);
        let set = self.objects();
        let tx = self.begin(rq, make::NAME_BYTES, SpaceReserve::Half).await?;
        if version >= WITH_SYSTEM_ATTRIBUTES && self.version() < WITH_SYSTEM_ATTRIBUTES {
            let new = NewZap::new(ObjectType::SA_MASTER_NODE);
            let attributes = zap::create(rq, set, &tx, &new).await.map_err(failed)?;
            zap::put_word(rq, set, &tx, master, master::SA_ATTRS, attributes.0).await.map_err(failed)?;
            let mut table = SaTable::read(rq, set, attributes).await.map_err(failed)?;
            table.register_known(rq, set, &tx).await.map_err(failed)?;
            self.set_attr_ids(AttrIds::new(table));
        }
        zap::put_word(rq, set, &tx, master, master::VERSION, version).await.map_err(failed)?;
        self.set_version(version);
        Ok(())
    }

    /// Begins a transaction that modifies about `bytes` bytes. Replay bypasses quotas and may use reserved space.
    async fn begin(&self, rq: &Request, bytes: u64, purpose: SpaceReserve) -> Result<Tx, FileError> {
        let zil = self.writing.as_ref().and_then(|writing| writing.zil.as_ref());
        let purpose = if zil.is_some_and(|zil| zil.is_replaying()) { SpaceReserve::NetFree } else { purpose };
        self.objects().begin(rq, bytes, purpose).await.map_err(FileError::opening)
    }

    /// After a change: commits the intent log if `sync=always`.
    async fn commit_if_sync_always(&self, rq: &Request, object: Option<ObjectId>) -> Result<(), FileError> {
        match &self.writing()?.zil {
            Some(zil) if zil.commits_each() => zil.commit(rq, object).await.map_err(FileError::opening),
            _ => Ok(()),
        }
    }

    /// Waits until earlier changes are on stable storage, through the intent log: all changes of names, and changes
    /// of contents and attributes of `object`, or of all objects.
    ///
    /// # Errors
    /// [`FileError::Device`] if the pool is suspended.
    pub async fn sync(&self, rq: &Request, object: Option<ObjectId>) -> Result<(), FileError> {
        let number = object.map_or(0, |object| object.0);
        rq.set_target(Target { dataset: self.objects().id().0, object: number, ..Target::default() });
        let Some(writing) = &self.writing else { return Ok(()) };
        match (&writing.zil, self.objects().txgs()) {
            (Some(zil), _) => zil.commit(rq, object).await.map_err(FileError::opening),
            (None, Some(groups)) => {
                let clock = &self.objects().cache().machine().clock;
                let synced = groups.wait_synced(groups.open());
                rq.timed(clock, Stage::TxgSync, synced).await.map_err(FileError::opening)
            }
            (None, None) => Ok(()),
        }
    }
}
