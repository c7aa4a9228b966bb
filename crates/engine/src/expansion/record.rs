//! What the pool records of an expansion: the entries in the vdev's ZAP, and the uberblock's position.
//!
//! Source: OpenZFS `include/sys/fs/zfs.h` (`VDEV_TOP_ZAP_RAIDZ_EXPAND_*`), `include/sys/uberblock_impl.h` (`RRSS_*`).

use super::refused;
use weir_blocks::vdev::Reflow as Position;
use weir_dmu::zap;
use weir_dsl::sync_tasks::DslSyncContext;
use weir_format::ObjectId;
use weir_format::uberblock::Reflow;
use weir_machine::Request;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::mos::Mos;

const STATE: &str = "org.openzfs:raidz_expand_state";
const START_TIME: &str = "org.openzfs:raidz_expand_start_time";
const END_TIME: &str = "org.openzfs:raidz_expand_end_time";
const BYTES_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";

/// States of an expansion (`dsl_scan_state_t`).
const RUNNING: u64 = 1;
const FINISHED: u64 = 2;

/// States of the scratch area (`raidz_reflow_scratch_state_t`): the first rows are there; rows are copied from place to place.
const SCRATCH_VALID: u16 = 1;
const SYNCED_REFLOW: u16 = 4;

/// An expansion in progress, as the syncer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expanding {
    /// Index of the vdev.
    pub vdev: u32,
    /// Position of copies that are not synced yet.
    pub copied: Option<Position>,
    /// Whether an uberblock with that position was written, not to all devices.
    pub is_written: bool,
    /// Bytes that have been copied.
    pub copied_bytes: u64,
    /// Those before the copies that are not synced yet.
    pub synced_bytes: u64,
}

impl Expanding {
    pub fn new(vdev: u32, copied_bytes: u64) -> Self {
        Expanding { vdev, copied: None, is_written: false, copied_bytes, synced_bytes: copied_bytes }
    }

    /// The expansion that an imported pool records, if one is in progress.
    ///
    /// # Errors
    /// Errors of reading the MOS; [`PoolError::Refused`] if the uberblock's position is impossible.
    pub async fn read(rq: &Request, mos: &Mos, root: &VdevConfig, at: &Reflow) -> Result<Option<Self>, PoolError> {
        let mut all = root.children.iter().filter(|top| top.raidz_expanding);
        let Some(top) = all.next() else { return Ok(None) };
        if all.next().is_some() {
            return Err(refused("two of its vdevs are being expanded"));
        }
        check(top, at)?;
        let copied = zap::lookup_word(rq, &mos.set, ObjectId(top.top_zap), BYTES_COPIED).await?;
        Ok(Some(Expanding::new(top.id as u32, copied.unwrap_or(0))))
    }
}

/// Checks the position of an expansion: none, in the scratch area, or far enough that it can go on.
fn check(top: &VdevConfig, at: &Reflow) -> Result<(), PoolError> {
    let geometry = MetaslabGeometry::of(top);
    let end = geometry.count() << geometry.shift();
    let scratch = super::begin::SCRATCH_BYTES.saturating_mul(top.children.len() as u64);
    let is_aligned = at.offset_bytes.is_multiple_of(1 << top.ashift.min(16));
    let is_possible = match at.scratch_state {
        SCRATCH_VALID => at.offset_bytes == scratch,
        0 if at.offset_bytes == 0 => true,
        0 | 5.. => false,
        _ => (scratch..=end).contains(&at.offset_bytes),
    };
    match is_possible && is_aligned && top.top_zap != 0 && scratch <= end {
        true => Ok(()),
        false => Err(refused(format!("the position {} of its RAID-Z expansion is impossible", at.offset_bytes))),
    }
}

/// The position as an uberblock has it.
pub(super) fn in_uberblock(position: Position) -> Reflow {
    let scratch_state = if position.scratch { SCRATCH_VALID } else { SYNCED_REFLOW };
    Reflow { scratch_state, offset_bytes: position.offset_bytes }
}

async fn put(change: &DslSyncContext<'_>, top: &VdevConfig, name: &str, word: u64) -> Result<(), PoolError> {
    Ok(zap::put_word(change.rq, &change.mos, change.tx, ObjectId(top.top_zap), name, word).await?)
}

/// Records that the expansion has begun.
pub(super) async fn begun(change: &DslSyncContext<'_>, top: &VdevConfig) -> Result<(), PoolError> {
    put(change, top, STATE, RUNNING).await?;
    put(change, top, START_TIME, change.now_s).await?;
    for name in [END_TIME, BYTES_COPIED] {
        zap::remove_name(change.rq, &change.mos, change.tx, ObjectId(top.top_zap), name).await?;
    }
    Ok(())
}

/// Records the bytes that have been copied.
pub(super) async fn copied(change: &DslSyncContext<'_>, top: &VdevConfig, bytes: u64) -> Result<(), PoolError> {
    put(change, top, BYTES_COPIED, bytes).await
}

/// Records that the expansion has ended.
pub(super) async fn ended(change: &DslSyncContext<'_>, top: &VdevConfig) -> Result<(), PoolError> {
    put(change, top, STATE, FINISHED).await?;
    put(change, top, END_TIME, change.now_s).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::NvList;

    #[test]
    fn a_position_is_possible_if_the_expansion_can_go_on_there() {
        let mut list = NvList::new();
        list.set("type", "raidz");
        list.set("nparity", 1u64);
        list.set("ashift", 12u64);
        list.set("metaslab_shift", 24u64);
        list.set("asize", 10u64 << 24);
        list.set("com.delphix:vdev_zap_top", 70u64);
        let child = || {
            let mut child = NvList::new();
            child.set("type", "file");
            child
        };
        list.set("children", vec![child(), child(), child(), child()]);
        let top = VdevConfig::parse(&list).unwrap();
        let at = |scratch_state, offset_bytes| check(&top, &Reflow { scratch_state, offset_bytes }).is_ok();
        let scratch = 14 << 20;
        assert!(at(0, 0) && at(1, scratch) && at(2, scratch) && at(4, 20 << 20) && at(4, 10 << 24));
        assert!(!at(0, scratch) && !at(1, 0) && !at(1, 20 << 20) && !at(4, 0) && !at(4, scratch - 4096));
        assert!(!at(4, (10 << 24) + 4096) && !at(4, scratch + 512) && !at(7, scratch));
        assert_eq!(in_uberblock(Position { offset_bytes: 8, scratch: true }).scratch_state, 1);
    }
}
