//! RAID-Z expansion of [`Blocks`]: which sectors are copied, and when.
//!
//! ```text
//!   lock the sectors that may be copied ─► what is allocated there ─► copies ─► later writes go to both places ─► unlock
//! ```
//!
//! An allocation after the second step is written after the unlock, so to both places; one before it is copied. Space that is
//! allocatable is skipped, deferred frees are not: an older uberblock or a read in progress may need them.

use crate::error::BlockError;
use crate::fault_observer::BlockContext;
use crate::pipeline::Blocks;
use crate::vdev::{CopyJobs, Layouts, Recipients, Reflow, ReflowCopy, WriteJob};
use std::sync::Arc;
use weir_format::Txg;
use weir_machine::accounts::{Content, Shares};
use weir_machine::{Request, invariant};

/// The expansion of a RAID-Z vdev of [`Blocks`] ([`super::Metaslabs::expansion`]).
#[derive(Clone, Copy)]
pub struct ReflowingVdev<'a> {
    pub(super) blocks: &'a Blocks,
    pub(super) vdev: u32,
}

/// Limits of the copies of one txg.
#[derive(Clone, Copy, Debug)]
pub struct ReflowLimits {
    /// log2 of the size of a metaslab.
    pub metaslab_shift: u32,
    /// End of the last metaslab.
    pub end_bytes: u64,
    /// Bytes that are copied at most, rounded up to a whole range.
    pub max_bytes: u64,
}

/// Result of the copies of one txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflowed {
    /// Position for the uberblock.
    pub position: Reflow,
    /// Bytes that were copied.
    pub copied_bytes: u64,
}

impl ReflowingVdev<'_> {
    fn vdev(&self) -> Result<ReflowCopy<'_>, BlockError> {
        let what = "a vdev that is not being expanded";
        let none = BlockError::NotWritable { vdev: self.vdev, offset: 0, what };
        ReflowCopy::of(self.blocks.tree(), self.vdev).ok_or(none)
    }

    /// Whether the vdev is being expanded.
    pub fn is_running(self) -> bool {
        self.vdev().is_ok()
    }

    /// Whether sectors may be copied: all devices are in service and lack nothing, and none is being replaced.
    pub fn is_whole(self) -> bool {
        self.vdev().is_ok_and(|vdev| vdev.is_whole())
    }

    /// Position on stable storage; `None` if the vdev is not being expanded.
    pub fn position(self) -> Option<Reflow> {
        self.vdev().ok().map(|vdev| vdev.progress().synced)
    }

    /// Records that the uberblock with this position is on stable storage on all devices.
    pub fn committed(self, position: Reflow) {
        if let Ok(vdev) = self.vdev() {
            vdev.committed(position);
        }
    }

    /// Forgets copies that a device may have lost: the uberblock has the former position.
    pub fn revert(self) {
        if let Ok(vdev) = self.vdev() {
            vdev.revert();
        }
    }

    /// Waits until no operation uses a position before the present one: what it might use may be overwritten then.
    pub async fn drained(self) {
        if let Ok(vdev) = self.vdev() {
            vdev.drained().await;
        }
    }

    /// Copies the next sectors, in syncing context. The devices must be flushed before the uberblock has the new position.
    ///
    /// # Errors
    /// Errors of devices and of loading metaslabs. The position stays, and the copies are made again.
    pub async fn copy_next(self, request: &Request, txg: Txg, limits: ReflowLimits) -> Result<Reflowed, BlockError> {
        let vdev = self.vdev()?;
        let jobs = self.jobs(request, txg)?;
        let Reflow { offset_bytes, scratch } = vdev.progress().synced;
        if scratch {
            let lock = vdev.lock(0..offset_bytes).await;
            vdev.copy_scratch(&jobs).await?;
            vdev.copied(&lock, offset_bytes);
            return Ok(Reflowed { position: Reflow { offset_bytes, scratch: false }, copied_bytes: 0 });
        }
        if offset_bytes == 0 {
            let bytes = vdev.scratch_bytes()?;
            let lock = vdev.lock(0..bytes).await;
            vdev.copy(&jobs, 0..bytes, crate::raidz::SCRATCH_BYTES).await?;
            vdev.copied_to_scratch(&lock, bytes);
            return Ok(Reflowed { position: Reflow { offset_bytes: bytes, scratch: true }, copied_bytes: bytes });
        }
        let start = vdev.progress().copies.place_bytes;
        let bound = vdev.bound_bytes()?.min(limits.end_bytes);
        if bound <= start {
            return Ok(Reflowed { position: Reflow { offset_bytes: start, scratch }, copied_bytes: 0 });
        }
        let lock = vdev.lock(start..bound).await;
        let mut next = start;
        let mut copied_bytes = 0;
        while next < bound && copied_bytes < limits.max_bytes {
            let metaslab = next >> limits.metaslab_shift;
            let end = bound.min((metaslab + 1) << limits.metaslab_shift);
            for range in self.blocks.metaslabs().not_allocatable(self.vdev, metaslab, next..end).await? {
                if copied_bytes >= limits.max_bytes {
                    break;
                }
                let left_bytes = (limits.max_bytes - copied_bytes).next_multiple_of(vdev.sector_bytes());
                let end = range.end.min(range.start.saturating_add(left_bytes));
                vdev.copy(&jobs, range.start..end, 0).await?;
                copied_bytes += end - range.start;
                next = end;
            }
            if copied_bytes < limits.max_bytes {
                next = end;
            }
        }
        invariant!(next > start && next <= bound, "an expansion does not go on");
        vdev.copied(&lock, next);
        Ok(Reflowed { position: Reflow { offset_bytes: next, scratch }, copied_bytes })
    }

    fn jobs<'b>(&'b self, request: &'b Request, txg: Txg) -> Result<CopyJobs<'b>, BlockError> {
        let blocks = self.blocks;
        let write = WriteJob {
            request,
            clock: blocks.clock(),
            pool: &blocks.writer()?.buffers,
            txg,
            repair: false,
            plug: None,
            here: false,
            about: BlockContext::default(),
            hold: blocks.hold().map(Arc::new),
            layouts: Layouts::default(),
            recipients: Recipients::All,
            failed: None,
            cost: blocks.tree().accounts().write_cost(Content::Expansion, txg.0, 0, Shares::new()),
        };
        // The vdev has all blocks, so that no DTL matters.
        Ok(CopyJobs { read: blocks.job(request, Txg(u64::MAX)), write })
    }
}
