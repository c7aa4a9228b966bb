//! Who is told what goes wrong with devices, as it happens: beside the counters ([`crate::vdev::Counts`]), which only say
//! how often.
//!
//! ```text
//!   leaf: an error, wrong bytes ─┐
//!   RAID-Z: which column was it ─┼─► Bell ─► Watch   (one for all devices of a pool; nobody at first)
//!   a block lost in all copies ──┘
//! ```
//!
//! What is told says which device, where on it, and, as far as whoever reads knows it, which block of which object.
//!
//! Source: OpenZFS `module/zfs/zfs_fm.c` (the callers of `zfs_ereport_post`).

use crate::error::BlockError;
use crate::vdev::Counts;
use std::sync::{Arc, OnceLock};
use weir_codec::CodecError;
use weir_format::{ChecksumKind, ObjsetId};
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
    /// Number of the block.
    pub block: u64,
}

impl Bookmark {
    /// The level of the header that an object set begins with (`ZB_ROOT_LEVEL`).
    pub const ROOT_LEVEL: i64 = -1;
}

/// What an operation is about, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockContext {
    /// The block.
    pub origin: Option<Bookmark>,
    /// What its bytes are proven by.
    pub checksum: Option<ChecksumKind>,
}

/// What went wrong.
#[derive(Clone, Copy, Debug)]
pub enum FaultKind<'a> {
    /// A device gave other bytes than were written. With what its checksum says, where that is the device's alone.
    Checksum(Option<&'a CodecError>),
    /// A device did not give what was asked for.
    Read(&'a DiskError),
    /// A device did not take what was to be written.
    Write(&'a DiskError),
    /// A device did not make stable what it took.
    Flush(&'a DiskError),
    /// A block cannot be read: no copy is right, nothing makes good for it.
    Lost(&'a BlockError),
}

/// A place on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange {
    /// The leaf's GUID.
    pub leaf: u64,
    /// Where, in bytes from the start of the device.
    pub offset_bytes: u64,
    /// How much; 0 for what is of no place.
    pub size_bytes: u64,
    /// What the leaf has counted, this with it.
    pub counts: Counts,
}

/// Something that went wrong.
#[derive(Clone, Copy, Debug)]
pub struct Fault<'a> {
    /// What.
    pub what: FaultKind<'a>,
    /// Where; `None` if it is no device's alone.
    pub spot: Option<DeviceRange>,
    /// With what.
    pub about: BlockContext,
    /// For whom.
    pub priority: Priority,
}

/// Is told.
pub trait FaultObserver: Send + Sync {
    /// Something went wrong. Called where it happens: it must not wait.
    fn fault(&self, fault: &Fault<'_>);
}

/// How whoever watches is reached, from all devices of a tree.
#[derive(Clone, Default)]
pub(crate) struct FaultNotifier(Arc<OnceLock<Arc<dyn FaultObserver>>>);

impl FaultNotifier {
    /// From now on this one is told. The first one stays.
    pub fn set(&self, watch: Arc<dyn FaultObserver>) {
        // There is one already.
        let _ = self.0.set(watch);
    }

    pub fn ring(&self, fault: &Fault<'_>) {
        if let Some(watch) = self.0.get() {
            watch.fault(fault);
        }
    }
}
