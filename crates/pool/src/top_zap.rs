//! The ZAP of a top-level vdev: names (OpenZFS `include/sys/fs/zfs.h`, `VDEV_TOP_ZAP_*`) and lookup of objects.

use crate::config::VdevConfig;
use crate::mos::Mos;
use weir_dmu::{ObjectError, zap};
use weir_format::ObjectId;
use weir_machine::Request;

/// Checkpoint space map (`VDEV_TOP_ZAP_POOL_CHECKPOINT_SM`).
pub const CHECKPOINT_SM: &str = "com.delphix:pool_checkpoint_sm";
/// Obsolete space map of a removed vdev (`VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM`).
pub const OBSOLETE_SM: &str = "com.delphix:indirect_obsolete_sm";
/// Flag that the counts of obsolete bytes of a removed vdev are exact (`VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE`).
pub const COUNTS_ARE_PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// Array of the first unflushed txg of each metaslab (`VDEV_TOP_ZAP_MS_UNFLUSHED_PHYS_TXGS`).
pub const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Allocation class (`VDEV_TOP_ZAP_ALLOCATION_BIAS`).
pub const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";

/// Object that the ZAP of `top` refers to under `name`.
pub async fn object(rq: &Request, mos: &Mos, top: &VdevConfig, name: &str) -> Result<Option<ObjectId>, ObjectError> {
    if top.top_zap == 0 {
        return Ok(None);
    }
    let found = zap::lookup_word(rq, &mos.set, ObjectId(top.top_zap), name).await?;
    Ok(found.filter(|id| *id != 0).map(ObjectId))
}
