//! Reports device faults when they happen. The counters ([`crate::vdev::Counts`]) hold only their number.
//!
//! ```text
//!   leaf: device error, wrong bytes ──┐
//!   RAID-Z: column with wrong bytes ──┼─► FaultNotifier ─► FaultObserver   (at most one per pool)
//!   block lost in all copies ─────────┘
//! ```
//!
//! A report names the device, the range on it and, if the reader knows it, the block and its object.
//!
//! Source: OpenZFS `module/zfs/zfs_fm.c` (the callers of `zfs_ereport_post`).

use crate::error::BlockError;
use crate::vdev::counters::Counts;
use std::sync::{Arc, OnceLock};
use weir_codec::CodecError;
use weir_format::{ChecksumKind, ObjsetId, Txg};
use weir_machine::{DiskError, Priority};

/// The block that an operation is about (`zbookmark_phys_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bookmark {
    /// Object set.
    pub objset: ObjsetId,
    /// Object.
    pub object: u64,
    /// Level; [`Bookmark::ROOT_LEVEL`] for an object set's header, below that for intent logs.
    pub level: i64,
    /// Number of the block on its level.
    pub block: u64,
}

impl Bookmark {
    /// Level of an object set's header (`ZB_ROOT_LEVEL`).
    pub const ROOT_LEVEL: i64 = -1;
}

/// The block that an operation is about, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockContext {
    /// The block.
    pub origin: Option<Bookmark>,
    /// Physical birth of the block; 0 if it is not known.
    pub birth: Txg,
    /// Kind of the block's checksum.
    pub checksum: Option<ChecksumKind>,
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug)]
pub enum FaultKind<'a> {
    /// A device returned wrong bytes. With the checksum error, if the checksum covers this device's bytes alone.
    Checksum(Option<&'a CodecError>),
    /// A read failed.
    Read(&'a DiskError),
    /// A write failed.
    Write(&'a DiskError),
    /// A flush failed.
    Flush(&'a DiskError),
    /// A block is lost: no copy and no reconstruction has the right bytes.
    Lost(&'a BlockError),
}

/// A range of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange {
    /// GUID of the leaf.
    pub leaf: u64,
    /// Offset from the start of the device, in bytes.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for faults without a range, such as failed flushes.
    pub size_bytes: u64,
    /// Counters of the leaf, including this fault.
    pub counts: Counts,
}

/// A fault of a device or a block.
#[derive(Clone, Copy, Debug)]
pub struct Fault<'a> {
    /// Kind of the fault.
    pub what: FaultKind<'a>,
    /// Device and range; `None` if the fault cannot be attributed to one device.
    pub spot: Option<DeviceRange>,
    /// The block that was read or written.
    pub about: BlockContext,
    /// Priority of the operation.
    pub priority: Priority,
}

/// Receives the reports of faults.
pub trait FaultObserver: Send + Sync {
    /// Handles a fault. Called synchronously by the operation that found it, so it must not block.
    fn fault(&self, fault: &Fault<'_>);
}

/// Passes faults of all devices of a tree to the observer.
#[derive(Clone, Default)]
pub(crate) struct FaultNotifier(Arc<OnceLock<Arc<dyn FaultObserver>>>);

impl FaultNotifier {
    /// Sets the observer, unless one is set already.
    pub fn set(&self, observer: Arc<dyn FaultObserver>) {
        // An error means that an observer is set already.
        let _ = self.0.set(observer);
    }

    pub fn notify(&self, fault: &Fault<'_>) {
        if let Some(observer) = self.0.get() {
            observer.fault(fault);
        }
    }
}
