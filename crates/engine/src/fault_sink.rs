//! Receives the faults that the pool's blocks report, and passes each to the parts of the engine that it concerns.
//!
//! ```text
//!   any fault ─────────────► events      ereport.fs.zfs.checksum, .io, .data
//!   of a device, reported ─► diagnosis   degrades or faults the device
//!                          └► probe       its path and labels are looked at
//!   a block is lost ───────► error log   of the next txg
//! ```

use super::diagnosis::{Diagnosis, ErrorKind};
use super::error_log::LostBlocks;
use super::events::Events;
use std::sync::Arc;
use weir_blocks::fault_observer::{Fault, FaultKind, FaultObserver};
use weir_machine::{Clock, Priority};

/// The receiver.
pub(crate) struct FaultSink {
    pub clock: Clock,
    pub events: Arc<Events>,
    pub lost_blocks: Arc<LostBlocks>,
    pub diagnosis: Arc<Diagnosis>,
}

impl FaultObserver for FaultSink {
    fn fault(&self, fault: &Fault<'_>) {
        let reported = self.events.record(fault);
        if let (FaultKind::Lost(_), Some(origin)) = (&fault.what, fault.about.origin) {
            self.lost_blocks.add(origin, fault.about.birth);
        }
        let kind = match fault.what {
            // A scrub or resilver repairs what it finds.
            FaultKind::Checksum(_) if fault.priority == Priority::Scrub => None,
            FaultKind::Checksum(_) => Some(ErrorKind::Checksum),
            FaultKind::Read(_) | FaultKind::Write(_) | FaultKind::Flush(_) => Some(ErrorKind::Io),
            FaultKind::Lost(_) => None,
        };
        if let Some(spot) = fault.spot {
            self.diagnosis.suspect(spot.leaf);
        }
        if let (true, Some(kind), Some(spot)) = (reported, kind, fault.spot) {
            self.diagnosis.record(spot.leaf, self.events.parent_of(spot.leaf), kind, self.clock.now());
        }
    }
}
