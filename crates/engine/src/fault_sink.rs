//! Receives the faults that the pool's blocks report, and passes each to the parts of the engine that it concerns.
//!
//! ```text
//!   any fault ───────► events      ereport.fs.zfs.checksum, .io, .data
//!   a block is lost ─► error log   of the next txg
//! ```

use super::error_log::LostBlocks;
use super::events::Events;
use std::sync::Arc;
use weir_blocks::fault_observer::{Fault, FaultKind, FaultObserver};

/// The receiver.
pub(crate) struct FaultSink {
    pub events: Arc<Events>,
    pub lost_blocks: Arc<LostBlocks>,
}

impl FaultObserver for FaultSink {
    fn fault(&self, fault: &Fault<'_>) {
        self.events.fault(fault);
        if let (FaultKind::Lost(_), Some(origin)) = (&fault.what, fault.about.origin) {
            self.lost_blocks.add(origin, fault.about.birth);
        }
    }
}
