//! Volumes: one block device over an object set (what OpenZFS calls a zvol).
//!
//! ```text
//!   object 1   the device's bytes, in blocks of `volblocksize`; a hole reads as zeros
//!   object 2   a ZAP: `size`, the device's size in bytes
//! ```
//!
//! Reading is here, changing in `writing`. The size is the ZAP's word; what the object holds beyond it is not shown, and where it holds
//! less the rest reads as zeros. A bad block is an error for the range that touches it alone.
//!
//! Source: OpenZFS `include/sys/zvol_impl.h` (`ZVOL_OBJ`, `ZVOL_ZAP_OBJ`), `module/zfs/zvol.c`.

mod ranges;
mod writing;

pub use writing::Opening;

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use thiserror::Error;
use weir_format::ObjectId;
use weir_machine::Request;
use weir_objects::{Object, ObjectError, ObjectSet, Seek, zap};
use writing::Writing;

const DATA: ObjectId = ObjectId(1);
const PROPERTIES: ObjectId = ObjectId(2);

/// Why a volume, or a part of it, can't be read.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// It is encrypted and its key is not loaded.
    #[error("the key of volume {name} is not loaded")]
    NoKey {
        /// The volume.
        name: String,
    },
    /// The object set is none of a volume.
    #[error("{name} does not say how large it is: it is no volume, or a damaged one")]
    NoSize {
        /// The volume.
        name: String,
    },
    /// The range reaches past the end.
    #[error("{len} bytes at {offset} reach past the end of volume {name} ({size_bytes} bytes)")]
    OutOfRange {
        /// The volume.
        name: String,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
        /// The volume's size.
        size_bytes: u64,
    },
    /// It is a snapshot, or open for reading alone.
    #[error("volume {name} is read-only")]
    ReadOnly {
        /// The volume.
        name: String,
    },
    /// The pool, or what the properties let the volume have of it, is full.
    #[error("no space left for volume {name}")]
    NoSpace {
        /// The volume.
        name: String,
    },
    /// Its objects can't be read.
    #[error("volume {name}, at byte {offset}: {source}")]
    Object {
        /// The volume.
        name: String,
        /// Where in the volume; 0 while it is being opened.
        offset: u64,
        /// Why.
        source: Box<ObjectError>,
    },
}

/// A stretch of a volume that is either stored or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether there are blocks; what is not stored reads as zeros.
    pub data: bool,
}

/// A volume or a snapshot of one. How it is changed: [`Volume::open_writable`].
pub struct Volume {
    objects: Arc<ObjectSet>,
    name: String,
    size_bytes: AtomicU64,
    block_bytes: u32,
    read_only: AtomicBool,
    writing: Option<Writing>,
    users: AtomicUsize,
}

/// Somebody uses a volume, until this is dropped.
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
    /// Opens the volume in `objects`.
    pub async fn open(rq: &Request, objects: Arc<ObjectSet>, name: &str) -> Result<Arc<Self>, VolumeError> {
        Self::open_as(rq, objects, name).await.map(Arc::new)
    }

    async fn open_as(rq: &Request, objects: Arc<ObjectSet>, name: &str) -> Result<Self, VolumeError> {
        let name = name.to_owned();
        if objects.is_locked() {
            return Err(VolumeError::NoKey { name });
        }
        let size_bytes = AtomicU64::new(Self::read_size(rq, &objects, &name).await?);
        let failed = |source| VolumeError::Object { name: name.clone(), offset: 0, source: Box::new(source) };
        let block_bytes = objects.object(rq, DATA).await.map_err(failed)?.dnode.data_block_bytes;
        let read_only = AtomicBool::new(false);
        Ok(Volume { objects, name, size_bytes, block_bytes, read_only, writing: None, users: AtomicUsize::new(0) })
    }

    async fn read_size(rq: &Request, objects: &Arc<ObjectSet>, name: &str) -> Result<u64, VolumeError> {
        let failed = |source| VolumeError::Object { name: name.to_owned(), offset: 0, source: Box::new(source) };
        let size = zap::lookup_word(rq, objects, PROPERTIES, "size").await.map_err(failed)?;
        size.ok_or_else(|| VolumeError::NoSize { name: name.to_owned() })
    }

    /// Its data, as it is now.
    async fn data(&self, rq: &Request, offset: u64) -> Result<Arc<Object>, VolumeError> {
        self.objects.object(rq, DATA).await.map_err(|source| self.failed(offset, source))
    }

    /// Registers a user: a volume that somebody uses is not destroyed, unless it is closed already.
    pub fn attach(self: &Arc<Self>) -> Attachment {
        self.users.fetch_add(1, Ordering::SeqCst);
        Attachment(self.clone())
    }

    /// Closes it for good, unless somebody uses it. Gives whether it is closed.
    pub fn close_unless_used(&self) -> bool {
        // Who attaches counts first and looks then, and here it is the other way round: one of both sees the other.
        self.objects.close(true);
        let used = self.users() > 0;
        if used {
            self.objects.close(false);
        }
        !used
    }

    /// How many use it.
    pub fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    /// Whether it was closed for good.
    pub fn is_closed(&self) -> bool {
        self.objects.is_closed()
    }

    /// Its full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// The size of its blocks in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Exactly `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`] if they are not all inside the volume.
    pub async fn read(&self, rq: &Request, offset: u64, len: usize) -> Result<Bytes, VolumeError> {
        self.check(offset, len as u64)?;
        let data = self.data(rq, offset).await?;
        let bytes = self.objects.read(rq, &data, offset, len, self.size_bytes()).await;
        bytes.map_err(|source| self.failed(offset, source))
    }

    /// The stretches of a range in order and without gaps, at most `max` of them. Exact to the block.
    pub async fn extents(&self, rq: &Request, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, VolumeError> {
        self.check(offset, len)?;
        let end = offset + len;
        let (mut at, mut out) = (offset, Vec::new());
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
        let found = self.objects.seek(rq, &data, at, self.size_bytes(), what).await;
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
