//! Sequential rebuild of a vdev of [`Blocks`]: which ranges are copied, and the copies.
//!
//! All space is copied that is not allocatable, with short gaps between. That includes space that the open txgs have freed, because the
//! last uberblock still refers to its blocks. A block that is allocated later is written to all devices.

use crate::error::BlockError;
use crate::fault_observer::BlockContext;
use crate::pipeline::Blocks;
use crate::vdev::{
    FailedLeaves, Layouts, RebuildInProgress, RebuiltVdev, Recipients, UNKNOWN_BIRTH, VdevRead, WriteJob,
};
use std::collections::BTreeSet;
use std::ops::Range;
use weir_format::Txg;
use weir_machine::Request;
use weir_machine::accounts::{Content, Shares};

/// A vdev of [`Blocks`], for a rebuild ([`super::Metaslabs::rebuild`]).
#[derive(Clone, Copy)]
pub struct Rebuild<'a> {
    pub(super) blocks: &'a Blocks,
    pub(super) vdev: u32,
}

impl std::fmt::Debug for Rebuild<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rebuild({})", self.vdev)
    }
}

/// Result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuiltRange {
    /// Bytes of the range that some device lacked.
    pub issued_bytes: u64,
    /// Bytes that were written to devices.
    pub written_bytes: u64,
    /// Whether a device that lacks the range could not be given it.
    pub has_failed: bool,
}

impl<'a> Rebuild<'a> {
    fn of(self) -> RebuiltVdev<'a> {
        RebuiltVdev { tree: self.blocks.tree(), vdev: self.vdev }
    }

    /// Whether the vdev is of a kind that can be rebuilt: a device, a mirror of devices, dRAID.
    pub fn is_possible(self) -> bool {
        self.of().is_possible()
    }

    /// Begins a rebuild: as long as the result exists, writes and copies of the same range wait for each other. Nothing may be
    /// copied until [`Rebuild::is_ready`].
    pub fn begin(self) -> RebuildInProgress {
        self.blocks.tree().range_locks().begin_rebuild()
    }

    /// Whether all operations have ended that began before `txg` was synced, in which, or before, the rebuild began.
    pub fn is_ready(self, txg: Txg) -> bool {
        self.blocks.writer().is_ok_and(|writer| writer.reads.all_began_since(txg))
    }

    /// GUIDs of the devices in service that lack blocks, and the first and last txg that they lack.
    pub fn targets(self) -> (BTreeSet<u64>, Option<(Txg, Txg)>) {
        self.of().targets()
    }

    /// Whether a device in service failed a flush, and may have dropped copies.
    pub fn has_failed_flush(self) -> bool {
        self.of().has_failed_flush()
    }

    /// GUIDs of all devices of the vdev.
    pub fn leaves(self) -> Vec<u64> {
        self.of().leaves()
    }

    /// Parts of a range of a metaslab that have to be copied, each at a time. `metaslab` is its number.
    ///
    /// # Errors
    /// [`BlockError::Space`] if the metaslab cannot be loaded; [`BlockError::ReadOnly`].
    pub async fn parts(self, metaslab: u64, range: Range<u64>) -> Result<Vec<Range<u64>>, BlockError> {
        let used = self.blocks.metaslabs().not_allocatable(self.vdev, metaslab, range).await?;
        Ok(used.into_iter().flat_map(|used| self.of().parts(used)).collect())
    }

    /// Copies a part to the devices that lack blocks. `txg` is at least the open one: if a device fails the next flush, its DTL has it.
    ///
    /// # Errors
    /// [`BlockError`] if the part cannot be read from devices that lack nothing; [`BlockError::ReadOnly`].
    pub async fn copy(self, request: &Request, part: Range<u64>, txg: Txg) -> Result<RebuiltRange, BlockError> {
        let blocks = self.blocks;
        let write = WriteJob {
            request,
            clock: blocks.clock(),
            pool: &blocks.writer()?.buffers,
            txg,
            repair: true,
            plug: None,
            here: false,
            about: BlockContext::default(),
            hold: None,
            layouts: Layouts::default(),
            recipients: Recipients::Behind,
            failed: Some(FailedLeaves::default()),
            cost: blocks.tree().accounts().write_cost(Content::Repair, txg.0, 0, Shares::new()),
        };
        let read = VdevRead { resilver: true, ..blocks.job(request, UNKNOWN_BIRTH) };
        let len = part.end - part.start;
        let lacked_bytes = self.of().copy(&read, &write, part).await?;
        let failed = write.failed.as_ref();
        let written_bytes = failed.map_or(0, FailedLeaves::written_bytes);
        Ok(RebuiltRange {
            issued_bytes: if lacked_bytes > 0 { len } else { 0 },
            written_bytes,
            has_failed: written_bytes < lacked_bytes || failed.is_some_and(|failed| !failed.is_empty()),
        })
    }
}
