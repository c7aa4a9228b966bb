//! State of the sequential rebuild of a vdev.
//!
//! Source: OpenZFS `include/sys/fs/zfs.h` (`vdev_rebuild_stat_t`).

use serde::{Deserialize, Serialize};
use weir_format::dsl::{RebuildPhys, RebuildState};

/// A sequential rebuild, in progress or the last one of a vdev. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RebuildStatus {
    /// Id of the vdev.
    pub vdev: u64,
    /// Stage that it has reached.
    pub stage: RebuildStage,
    /// Time of its start.
    pub start_s: u64,
    /// Time of its end; 0 while it is in progress.
    pub end_s: u64,
    /// Time spent, over all imports.
    pub active_ms: u64,
    /// Bytes of the ranges that were examined.
    pub scanned_bytes: u64,
    /// Bytes of those that were copied.
    pub issued_bytes: u64,
    /// Bytes that were written to devices.
    pub rebuilt_bytes: u64,
    /// Estimated bytes to examine.
    pub to_scan_bytes: u64,
    /// Number of ranges that could not be copied, and of failed flushes.
    pub errors: u64,
}

/// Stage of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebuildStage {
    /// In progress.
    Active,
    /// Ended before all was copied.
    Canceled,
    /// All was copied.
    Complete,
}

impl RebuildStage {
    /// Name in `zpool status -j`.
    pub fn name(self) -> &'static str {
        let state = match self {
            RebuildStage::Active => RebuildState::Active,
            RebuildStage::Canceled => RebuildState::Canceled,
            RebuildStage::Complete => RebuildState::Complete,
        };
        state.name()
    }
}

impl RebuildStatus {
    /// From the record of a vdev; `None` if there was no rebuild.
    pub(super) fn of(vdev: u64, record: Option<RebuildPhys>) -> Option<Self> {
        let record = record?;
        let stage = match record.state {
            RebuildState::None => return None,
            RebuildState::Active => RebuildStage::Active,
            RebuildState::Canceled => RebuildStage::Canceled,
            RebuildState::Complete => RebuildStage::Complete,
        };
        Some(RebuildStatus {
            vdev,
            stage,
            start_s: record.start_time_s,
            end_s: record.end_time_s,
            active_ms: record.scan_time_ms,
            scanned_bytes: record.scanned_bytes,
            issued_bytes: record.issued_bytes,
            rebuilt_bytes: record.rebuilt_bytes,
            to_scan_bytes: record.estimated_bytes,
            errors: record.errors,
        })
    }

    /// Whether it is in progress.
    pub fn is_running(&self) -> bool {
        self.stage == RebuildStage::Active
    }
}
