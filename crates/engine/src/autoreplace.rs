//! The pool property `autoreplace`: a blank device at the path of a missing one replaces that.
//!
//! Source: OpenZFS `cmd/zed/agents/zfs_mod.c` (`zfs_process_add`), which overwrites what is on the device; here a device with
//! contents of any kind is left alone.

use super::attach::{AttachRequest, parsed};
use super::create::NewLeaf;
use super::spares::MayUse;
use super::{Engine, Spares};
use std::path::PathBuf;
use weir_dmu::zap;
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_machine::Request;
use weir_pool::config::VdevKind;
use weir_pool::error::PoolError;

/// Name of the property.
const AUTOREPLACE: &str = "autoreplace";

impl Spares<'_> {
    /// To be called every few seconds: if the pool has `autoreplace=on`, replaces a missing device by the blank one at its path.
    /// Returns its path; the resilver is started.
    ///
    /// # Errors
    /// Errors of reading the property; [`PoolError::Suspended`].
    pub async fn keep_replacing(&self, may_use: MayUse<'_>) -> Result<Option<PathBuf>, PoolError> {
        let root = parsed(&self.engine.shown().config.root)?;
        let tree = self.engine.cache.blocks().tree();
        let mut missing = Vec::new();
        for parent in root.walk().into_iter().filter(|vdev| vdev.kind != VdevKind::Replacing) {
            let is_missing = |leaf: &&weir_pool::VdevConfig| {
                leaf.is_leaf() && !leaf.offline && tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.disk().is_none())
            };
            missing.extend(parent.children.iter().filter(is_missing));
        }
        if missing.is_empty() || number(self.engine, AUTOREPLACE).await?.unwrap_or(0) == 0 {
            return Ok(None);
        }
        for leaf in missing {
            let Some(path) = leaf.path.as_ref().map(PathBuf::from).filter(|path| may_use(path)) else { continue };
            let new = NewLeaf { path: path.clone(), is_file: leaf.kind == VdevKind::File };
            let request = AttachRequest { device: leaf.guid, new, replaces: true, ashift: None, force: false };
            match self.engine.vdevs().attach(&request).await {
                Ok(()) => {
                    tracing::warn!(device = %path.display(), "replaced by the blank device at its path");
                    return Ok(Some(path));
                }
                Err(error @ PoolError::Suspended { .. }) => return Err(error),
                Err(error) => tracing::debug!(device = %path.display(), %error, "not replaced"),
            }
        }
        Ok(None)
    }
}

/// A pool property that is stored as a number; `None` if it was never set.
pub(crate) async fn number(engine: &Engine, name: &str) -> Result<Option<u64>, PoolError> {
    let rq = &Request::internal("properties");
    let state = engine.synced().state(rq).await?;
    let directory = ObjectId(names::DIRECTORY_OBJECT);
    match zap::lookup_word(rq, &state.mos, directory, names::PROPS).await? {
        Some(properties) => Ok(zap::lookup_word(rq, &state.mos, ObjectId(properties), name).await?),
        None => Ok(None),
    }
}
