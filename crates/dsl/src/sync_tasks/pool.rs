//! What every pool has before anybody uses it (OpenZFS `dsl_pool_create`, `dsl_pool_create_origin`).
//!
//! ```text
//!   root directory ─┬ $MOS      how much the meta object set takes
//!                   ├ $FREE     what waits to be freed; the list stands in the MOS's directory as free_bpobj
//!                   ├ $ORIGIN   an empty dataset; its snapshot $ORIGIN@$ORIGIN is what all datasets begin with
//!                   └ head      the root file system
//! ```

use super::space::{Delta, Use};
use super::{Created, DslError, DslSyncContext};
use weir_format::ObjectId;
use weir_format::dsl::pool;

/// The directory that the MOS's space is booked on.
pub const MOS: &str = "$MOS";
/// The directory that space to be freed is booked on.
pub const FREE: &str = "$FREE";
/// The directory, and the snapshot in it, that datasets begin with.
pub const ORIGIN: &str = "$ORIGIN";

/// What [`DslSyncContext::create_pool_dirs`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDirs {
    /// The root directory.
    pub root: ObjectId,
    /// The list of blocks to be freed.
    pub free_bpobj: ObjectId,
}

impl DslSyncContext<'_> {
    /// Makes the directories of an empty pool, whose MOS has its own directory (object 1) and nothing else. The ZAPs of
    /// the features come next ([`DslSyncContext::create_feature_objects`]), then the features, then
    /// [`DslSyncContext::create_root_dataset`].
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

    /// Makes the dataset of the root file system. As with [`DslSyncContext::create`], its first objects are the caller's to make.
    pub async fn create_root_dataset(&mut self) -> Result<Created, DslError> {
        let dir = self.root_dir().await?;
        let origin = self.empty_origin().await?;
        let dataset = self.create_dataset(dir, origin).await?;
        self.use_accounting(dataset).await?;
        Ok(Created { dir, dataset })
    }

    /// Books what the MOS grew by.
    pub async fn book_mos(&mut self, delta: Delta) -> Result<(), DslError> {
        match self.special_dir(MOS).await? {
            Some(dir) if !delta.is_zero() => self.book(dir, Use::Head, delta).await,
            _ => Ok(()),
        }
    }

    /// Books what waits to be freed, or (negative) was freed.
    pub async fn book_free(&mut self, delta: Delta) -> Result<(), DslError> {
        match self.special_dir(FREE).await? {
            Some(dir) if !delta.is_zero() => self.book(dir, Use::Head, delta).await,
            _ => Ok(()),
        }
    }
}
