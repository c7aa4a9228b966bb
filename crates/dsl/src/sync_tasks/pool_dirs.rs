//! Contents of every new pool (OpenZFS `dsl_pool_create`, `dsl_pool_create_origin`).
//!
//! ```text
//!   root directory ─┬ $MOS      space of the meta object set
//!                   ├ $FREE     space that waits to be freed; the MOS's directory names the list free_bpobj
//!                   ├ $ORIGIN   an empty dataset; its snapshot $ORIGIN@$ORIGIN is the origin of all datasets
//!                   └ head      the root file system
//! ```

use super::space::{Delta, Use};
use super::{Created, DslError, DslSyncContext, create, lists, names, snapshot, synced};
use weir_format::ObjectId;
use weir_format::dsl::pool;

/// The directory that accounts the MOS's space.
pub const MOS: &str = "$MOS";
/// The directory that accounts space waiting to be freed.
pub const FREE: &str = "$FREE";
/// The directory, and the snapshot in it, that is the origin of datasets.
pub const ORIGIN: &str = "$ORIGIN";

/// Objects that [`create_pool_dirs`] creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDirs {
    /// The root directory.
    pub root: ObjectId,
    /// The list of blocks to be freed.
    pub free_bpobj: ObjectId,
}

/// Creates the directories of an empty pool, whose MOS has its own directory (object 1) and nothing else. The
/// caller then creates the features' ZAPs ([`features::create_feature_objects`](super::features::create_feature_objects)), enables the features, and
/// calls [`create_root_dataset`].
pub async fn create_pool_dirs(cx: &mut DslSyncContext<'_>) -> Result<PoolDirs, DslError> {
    let root = create::create_dir(cx, None, "").await?;
    create::create_dir(cx, Some(root), MOS).await?;
    create::create_dir(cx, Some(root), FREE).await?;
    let free_bpobj = lists::list(cx).await?;
    cx.insert_word(super::DIRECTORY, pool::FREE_BPOBJ, free_bpobj.0).await?;
    let origin = create::create_head(cx, root, ORIGIN, None).await?;
    snapshot::snapshot_head(cx, origin.dataset, ORIGIN).await?;
    Ok(PoolDirs { root, free_bpobj })
}

/// Creates the dataset of the root file system. As with [`create::create`](super::create::create), the caller creates its first
/// objects.
pub async fn create_root_dataset(cx: &mut DslSyncContext<'_>) -> Result<Created, DslError> {
    let dir = names::root_dir(cx).await?;
    let origin = create::empty_origin(cx).await?;
    let dataset = create::create_dataset(cx, dir, origin).await?;
    create::use_accounting(cx, dataset).await?;
    Ok(Created { dir, dataset })
}

/// Accounts the growth of the MOS.
pub async fn book_mos(cx: &mut DslSyncContext<'_>, delta: Delta) -> Result<(), DslError> {
    match names::special_dir(cx, MOS).await? {
        Some(dir) if !delta.is_zero() => synced::book(cx, dir, Use::Head, delta).await,
        _ => Ok(()),
    }
}

/// Accounts space that waits to be freed, or (negative) was freed.
pub async fn book_free(cx: &mut DslSyncContext<'_>, delta: Delta) -> Result<(), DslError> {
    match names::special_dir(cx, FREE).await? {
        Some(dir) if !delta.is_zero() => synced::book(cx, dir, Use::Head, delta).await,
        _ => Ok(()),
    }
}

/// The space that waits to be freed, in bytes (`freeing`).
///
/// # Errors
/// Errors of reading the directory that it is accounted in.
pub async fn freeing_bytes(cx: &mut DslSyncContext<'_>) -> Result<u64, DslError> {
    match names::special_dir(cx, FREE).await? {
        Some(dir) => Ok(cx.dir(dir).await?.used_bytes),
        None => Ok(0),
    }
}
