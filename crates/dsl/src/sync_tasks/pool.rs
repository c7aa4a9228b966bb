//! Contents of every new pool (OpenZFS `dsl_pool_create`, `dsl_pool_create_origin`).
//!
//! ```text
//!   root directory ─┬ $MOS      space of the meta object set
//!                   ├ $FREE     space that waits to be freed; the MOS's directory names the list free_bpobj
//!                   ├ $ORIGIN   an empty dataset; its snapshot $ORIGIN@$ORIGIN is the origin of all datasets
//!                   └ head      the root file system
//! ```

use super::space::{Delta, Use};
use super::{Created, DslError, DslSyncContext};
use weir_format::ObjectId;
use weir_format::dsl::pool;

/// The directory that accounts the MOS's space.
pub const MOS: &str = "$MOS";
/// The directory that accounts space waiting to be freed.
pub const FREE: &str = "$FREE";
/// The directory, and the snapshot in it, that is the origin of datasets.
pub const ORIGIN: &str = "$ORIGIN";

/// Objects that [`DslSyncContext::create_pool_dirs`] creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDirs {
    /// The root directory.
    pub root: ObjectId,
    /// The list of blocks to be freed.
    pub free_bpobj: ObjectId,
}

impl DslSyncContext<'_> {
    /// Creates the directories of an empty pool, whose MOS has its own directory (object 1) and nothing else. The
    /// caller then creates the features' ZAPs ([`DslSyncContext::create_feature_objects`]), enables the features, and
    /// calls [`DslSyncContext::create_root_dataset`].
    pub async fn create_pool_dirs(&mut self) -> Result<PoolDirs, DslError> {
        let root = self.create_dir(None, "").await?;
        self.create_dir(Some(root), MOS).await?;
        self.create_dir(Some(root), FREE).await?;
        let free_bpobj = self.list().await?;
        self.insert_word(super::DIRECTORY, pool::FREE_BPOBJ, free_bpobj.0).await?;
        let origin = self.create_head(root, ORIGIN, None).await?;
        self.snapshot_head(origin.dataset, ORIGIN).await?;
        Ok(PoolDirs { root, free_bpobj })
    }

    /// Creates the dataset of the root file system. As with [`DslSyncContext::create`], the caller creates its first
    /// objects.
    pub async fn create_root_dataset(&mut self) -> Result<Created, DslError> {
        let dir = self.root_dir().await?;
        let origin = self.empty_origin().await?;
        let dataset = self.create_dataset(dir, origin).await?;
        self.use_accounting(dataset).await?;
        Ok(Created { dir, dataset })
    }

    /// Accounts the growth of the MOS.
    pub async fn book_mos(&mut self, delta: Delta) -> Result<(), DslError> {
        match self.special_dir(MOS).await? {
            Some(dir) if !delta.is_zero() => self.book(dir, Use::Head, delta).await,
            _ => Ok(()),
        }
    }

    /// Accounts space that waits to be freed, or (negative) was freed.
    pub async fn book_free(&mut self, delta: Delta) -> Result<(), DslError> {
        match self.special_dir(FREE).await? {
            Some(dir) if !delta.is_zero() => self.book(dir, Use::Head, delta).await,
            _ => Ok(()),
        }
    }
}
