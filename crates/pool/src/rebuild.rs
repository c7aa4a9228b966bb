//! The record of a vdev's last sequential rebuild.

use crate::config::VdevConfig;
use crate::mos::Mos;
use weir_dmu::{ObjectError, zap};
use weir_format::ObjectId;
use weir_format::dsl::RebuildPhys;
use weir_format::dsl::rebuild::VDEV_REBUILD;
use weir_machine::Request;

/// Returns the record of a top-level vdev; `None` if the vdev has none. A malformed record counts as none, as in OpenZFS
/// (`vdev_rebuild_load`), so that the pool can be opened.
///
/// # Errors
/// Errors of reading the ZAP.
pub async fn of_top(rq: &Request, mos: &Mos, top: &VdevConfig) -> Result<Option<RebuildPhys>, ObjectError> {
    if top.top_zap == 0 {
        return Ok(None);
    }
    let found = zap::lookup(rq, &mos.set, ObjectId(top.top_zap), VDEV_REBUILD).await?;
    Ok(found.and_then(|value| RebuildPhys::from_words(&value.words)))
}
