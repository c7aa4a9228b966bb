//! State of a pool for writing blocks.

use super::evacuation::Evacuation;
use super::loads::Loads;
use crate::alloc::{AllocStatus, Allocator};
use crate::reads::{ReadHold, Reads};
use crate::scan_queue::ScanQueue;
use crate::vdev::{Place, PointerFreshness};
use futures_util::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use weir_codec::crypt::{DatasetKey, IV_BYTES, SALT_BYTES};
use weir_format::Txg;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{BufPool, Compute, Entropy, FixedMap, Machine};

/// Number of blocks that are encrypted with one salt.
const MAX_SALT_USES: u64 = 400_000_000;

/// Encodings of blocks and pointers that depend on enabled features of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritableEncodings {
    /// `lz4_compress`; without it lzjb is used instead of lz4.
    pub lz4: bool,
    /// `embedded_data`: payloads in pointers.
    pub embedded_data: bool,
    /// `hole_birth`: holes have a birth txg.
    pub hole_birth: bool,
}

impl WritableEncodings {
    /// Encodings of a pool with all of these features enabled.
    pub const ALL: WritableEncodings = WritableEncodings { lz4: true, embedded_data: true, hole_birth: true };
}

/// Freed ranges of top-level vdevs that are not freed in metaslabs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonMetaslabFrees {
    /// Ranges that stay allocated because the checkpoint needs them (checkpoint space map).
    pub kept: Vec<(u32, Range<u64>)>,
    /// Ranges of removed vdevs that no block uses any more (obsolete space map).
    pub removed: Vec<(u32, Range<u64>)>,
}

/// State of a pool for writing blocks.
pub(crate) struct Writer {
    pub(super) compute: Compute,
    pub(super) entropy: Entropy,
    /// Buffers for encoded blocks.
    pub(super) buffers: BufPool,
    pub(super) space: Arc<Mutex<Allocator, { order::ALLOCATOR }>>,
    pub(super) loads: Loads,
    pub(super) reads: Arc<Reads>,
    pub(super) scan_queue: Arc<ScanQueue>,
    pub(super) formats: Mutex<WritableEncodings, { order::ENCODINGS }>,
    /// Txg of the pool's checkpoint; 0 if it has none.
    pub(super) checkpoint_txg: AtomicU64,
    pub(super) non_metaslab_frees: Mutex<NonMetaslabFrees, { order::OTHER_FREES }>,
    /// The vdev that is being removed, if there is one.
    pub(super) evacuation: Mutex<Option<Evacuation>, { order::EVACUATION }>,
    /// Present salt and number of its uses, by the GUID of the key.
    salts: Mutex<FixedMap<u64, ([u8; SALT_BYTES], u64)>, { order::SALTS }>,
}

impl Writer {
    pub(crate) fn new(machine: &Machine) -> Self {
        Writer {
            compute: machine.compute.clone(),
            entropy: machine.entropy.clone(),
            buffers: machine.write_buffers.clone(),
            space: Arc::default(),
            loads: Loads::new(machine.tasks.clone()),
            reads: Arc::default(),
            scan_queue: Arc::default(),
            formats: Mutex::new(WritableEncodings::ALL),
            checkpoint_txg: AtomicU64::new(0),
            non_metaslab_frees: Mutex::default(),
            evacuation: Mutex::default(),
            salts: Mutex::default(),
        }
    }

    /// Locks the allocator. The lock is held for a few instructions, never across an await.
    pub(super) fn space(&self) -> MutexGuard<'_, Allocator> {
        self.space.lock()
    }

    /// Locks the frees outside of metaslabs; held like [`Writer::space`].
    pub(super) fn non_metaslab_frees(&self) -> MutexGuard<'_, NonMetaslabFrees> {
        self.non_metaslab_frees.lock()
    }

    /// Salt and IV for one block; the pair repeats an earlier one with a probability of 2⁻⁹⁶.
    pub(super) fn salt_and_iv(&self, keys: &DatasetKey) -> ([u8; SALT_BYTES], [u8; IV_BYTES]) {
        let mut iv = [0; IV_BYTES];
        self.entropy.fill(&mut iv);
        let mut salts = self.salts.lock();
        let entry = salts.entry(keys.guid()).or_insert(([0; SALT_BYTES], MAX_SALT_USES));
        if entry.1 >= MAX_SALT_USES {
            self.entropy.fill(&mut entry.0);
            entry.1 = 0;
        }
        entry.1 += 1;
        (entry.0, iv)
    }
}

impl PointerFreshness for Writer {
    fn alloc_status(&self, place: Place, psize_bytes: u64, birth: Txg) -> AllocStatus {
        self.space().alloc_status(place.vdev, place.offset, psize_bytes, birth)
    }

    fn hold(&self) -> ReadHold {
        self.reads.begin()
    }

    fn load_at(&self, place: Place) -> BoxFuture<'_, ()> {
        Box::pin(self.load_range(place.vdev, place.offset..place.offset.saturating_add(1)))
    }
}
