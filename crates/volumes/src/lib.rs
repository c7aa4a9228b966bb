//! Volumes (zvols): a block device over an object set.
//!
//! ```text
//!   object 1   the device's bytes, in blocks of `volblocksize`; a hole reads as zeros
//!   object 2   a ZAP: `size`, the device's size in bytes
//! ```
//!
//! This module reads; `writing` writes, `cloning` shares blocks. The size is that in the ZAP: data of object 1 beyond it is not visible, and
//! bytes that object 1 does not have read as zeros. An unreadable block is an error only for reads that touch it.
//!
//! Source: OpenZFS `include/sys/zvol_impl.h` (`ZVOL_OBJ`, `ZVOL_ZAP_OBJ`), `module/zfs/zvol.c`.

mod cloning;
mod ranges;
mod writing;

pub use writing::WriteOptions;

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use thiserror::Error;
use tokio::sync::watch;
use weir_dmu::{Object, ObjectError, ObjectSet, Seek, Segments, zap};
use weir_format::{ObjectId, Txg};
use weir_machine::{Request, Target};
use writing::WriteState;

const DATA: ObjectId = ObjectId(1);
const PROPERTIES: ObjectId = ObjectId(2);

/// Why an operation on a volume failed.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The volume is encrypted and its key is not loaded.
    #[error("the key of volume {name} is not loaded")]
    NoKey {
        /// The volume.
        name: String,
    },
    /// The object set has no volume size: it is not that of a volume, or is corrupt.
    #[error("{name} has no volume size: not a volume, or corrupt")]
    NoSize {
        /// The volume.
        name: String,
    },
    /// The range extends past the end of the volume.
    #[error("{len} bytes at {offset} extend past the end of volume {name} ({size_bytes} bytes)")]
    OutOfRange {
        /// The volume.
        name: String,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Size of the volume in bytes.
        size_bytes: u64,
    },
    /// The volume is a snapshot, or was opened read-only.
    #[error("volume {name} is read-only")]
    ReadOnly {
        /// The volume.
        name: String,
    },
    /// The pool is full, or the volume's quota is used up.
    #[error("no space left for volume {name}")]
    NoSpace {
        /// The volume.
        name: String,
    },
    /// Access to the volume's objects failed.
    #[error("volume {name}, at byte {offset}: {source}")]
    Object {
        /// The volume.
        name: String,
        /// Byte offset in the volume; 0 while it is being opened.
        offset: u64,
        /// The cause.
        source: Box<ObjectError>,
    },
}

/// A contiguous range of a volume that is either allocated or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether the range is allocated; a hole reads as zeros.
    pub data: bool,
}

/// A volume or a snapshot of one; [`Volume::open_writable`] opens it for writing.
pub struct Volume {
    objects: Arc<ObjectSet>,
    name: String,
    size: watch::Sender<u64>,
    block_bytes: u32,
    read_only: AtomicBool,
    write_state: Option<WriteState>,
    users: AtomicUsize,
    /// The last txg in which blocks of this volume were cloned into others.
    cloned_txg: AtomicU64,
}

/// Registers a user of a volume until dropped: see [`Volume::attach`].
pub struct Attachment(Arc<Volume>);

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Attachment {
    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.0
    }
}

impl Volume {
    /// Opens the volume in `objects` read-only.
    pub async fn open(rq: &Request, objects: Arc<ObjectSet>, name: &str) -> Result<Arc<Self>, VolumeError> {
        Self::open_as(rq, objects, name).await.map(Arc::new)
    }

    async fn open_as(rq: &Request, objects: Arc<ObjectSet>, name: &str) -> Result<Self, VolumeError> {
        let name = name.to_owned();
        if objects.is_locked() {
            return Err(VolumeError::NoKey { name });
        }
        let size = watch::Sender::new(Self::read_size(rq, &objects, &name).await?);
        let failed = |source| VolumeError::Object { name: name.clone(), offset: 0, source: Box::new(source) };
        let block_bytes = objects.object(rq, DATA).await.map_err(failed)?.dnode.data_block_bytes;
        let read_only = AtomicBool::new(false);
        let users = AtomicUsize::new(0);
        let cloned_txg = AtomicU64::new(0);
        Ok(Volume { objects, name, size, block_bytes, read_only, write_state: None, users, cloned_txg })
    }

    async fn read_size(rq: &Request, objects: &Arc<ObjectSet>, name: &str) -> Result<u64, VolumeError> {
        let failed = |source| VolumeError::Object { name: name.to_owned(), offset: 0, source: Box::new(source) };
        let size = zap::lookup_word(rq, objects, PROPERTIES, "size").await.map_err(failed)?;
        size.ok_or_else(|| VolumeError::NoSize { name: name.to_owned() })
    }

    /// The current state of the data object.
    async fn data(&self, rq: &Request, offset: u64) -> Result<Arc<Object>, VolumeError> {
        self.objects.object(rq, DATA).await.map_err(|source| self.failed(offset, source))
    }

    /// Registers a user. A volume with users cannot be destroyed; the user must check [`Volume::is_closed`]
    /// afterwards.
    pub fn attach(self: &Arc<Self>) -> Attachment {
        self.users.fetch_add(1, Ordering::SeqCst);
        Attachment(self.clone())
    }

    /// Closes the volume permanently, unless it has users, or blocks of it were cloned in a txg after `syncing`, whose
    /// references are not synced yet. Returns whether it is closed.
    pub fn close_unless_used(&self, syncing: Txg) -> bool {
        // Close before reading the count, mirrored by count-then-check in `attach`: at least one side observes the
        // other.
        self.objects.close(true);
        let used = self.users() > 0 || self.cloned_txg.load(Ordering::SeqCst) > syncing.0;
        if used {
            self.objects.close(false);
        }
        !used
    }

    /// Number of users.
    pub fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    /// Whether the volume was closed permanently.
    pub fn is_closed(&self) -> bool {
        self.objects.is_closed()
    }

    /// Full name of the volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        *self.size.borrow()
    }

    /// Waits until the size differs from `known_bytes`, and returns it.
    pub async fn resized(&self, known_bytes: u64) -> u64 {
        // The sender is this volume's: it is not dropped meanwhile.
        let changed = self.size.subscribe().wait_for(|size| *size != known_bytes).await.map(|size| *size);
        changed.unwrap_or(known_bytes)
    }

    /// Block size (`volblocksize`) in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Reads exactly `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`] if the range extends past the end of the volume; [`VolumeError::Object`] if a
    /// block cannot be read.
    pub async fn read(&self, rq: &Request, offset: u64, len: usize) -> Result<Bytes, VolumeError> {
        self.check(offset, len as u64)?;
        let data = self.data(rq, offset).await?;
        let bytes = self.objects.reader().read(rq, &data, offset, len, self.size_bytes()).await;
        bytes.map_err(|source| self.failed(offset, source))
    }

    /// Reads like [`Volume::read`], in slices of the blocks instead of one copy.
    ///
    /// # Errors
    /// As for [`Volume::read`].
    pub async fn read_segments(&self, rq: &Request, offset: u64, len: usize) -> Result<Segments, VolumeError> {
        self.check(offset, len as u64)?;
        let data = self.data(rq, offset).await?;
        let segments = self.objects.reader().read_segments(rq, &data, offset, len, self.size_bytes()).await;
        segments.map_err(|source| self.failed(offset, source))
    }

    /// The extents of a range in order and without gaps, at most `max` of them. Their bounds are block boundaries.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`]; [`VolumeError::Object`].
    pub async fn extents(&self, rq: &Request, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, VolumeError> {
        self.check(offset, len)?;
        // An answer of holes only is made without a read.
        rq.set_target(Target { dataset: self.objects.id().0, object: DATA.0, offset_bytes: offset, size_bytes: len });
        let end = offset + len;
        let mut at = offset;
        let mut out = Vec::new();
        while at < end && out.len() < max {
            let data_at = self.seek(rq, at, Seek::Data).await?.unwrap_or(end).clamp(at, end);
            let (next, data) = match data_at == at {
                true => (self.seek(rq, at, Seek::Hole).await?.unwrap_or(end).clamp(at, end), true),
                false => (data_at, false),
            };
            if next == at {
                break;
            }
            out.push(Extent { len_bytes: next - at, data });
            at = next;
        }
        Ok(out)
    }

    async fn seek(&self, rq: &Request, at: u64, what: Seek) -> Result<Option<u64>, VolumeError> {
        let data = self.data(rq, at).await?;
        let found = self.objects.reader().seek(rq, &data, at, self.size_bytes(), what).await;
        found.map_err(|source| self.failed(at, source))
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size_bytes()) {
            return Ok(());
        }
        Err(VolumeError::OutOfRange { name: self.name.clone(), offset, len, size_bytes: self.size_bytes() })
    }

    fn failed(&self, offset: u64, source: ObjectError) -> VolumeError {
        VolumeError::Object { name: self.name.clone(), offset, source: Box::new(source) }
    }
}
