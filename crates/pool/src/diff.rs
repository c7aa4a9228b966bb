//! Determines whether two states of file systems can be compared. The older one must be a snapshot that the newer one
//! descends from: then only blocks born after it can differ.
//!
//! Source: OpenZFS `module/zfs/dsl_dataset.c` (`dsl_dataset_is_before`), `lib/libzfs/libzfs_diff.c`.

use crate::error::PoolError;
use weir_dsl::props::{Value, ZfsProp};
use weir_dsl::{Dataset, Dsl, PoolFacts};
use weir_format::{ObjsetId, Txg};
use weir_machine::Request;

/// Two states that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The older one, a snapshot.
    pub older: ObjsetId,
    /// The newer one.
    pub newer: ObjsetId,
    /// Txg of the older one.
    pub after: Txg,
    /// Mount point of the newer one's file system: an absolute path, empty if its property is not a path.
    pub mountpoint: String,
}

impl Pair {
    /// Finds two states by name: a snapshot, and a later snapshot or the present state of the same file system, or of a
    /// clone that descends from it.
    ///
    /// # Errors
    /// Errors if one of the names does not exist; [`PoolError::Refused`] if they cannot be compared.
    pub async fn find(rq: &Request, dsl: &Dsl, facts: &PoolFacts, older: &str, newer: &str) -> Result<Pair, PoolError> {
        let a = dsl.find(rq, older).await?;
        let b = dsl.find(rq, newer).await?;
        if !a.is_snapshot() || !dsl.is_before(rq, &b, &a).await? {
            let what = format!("'{older}' is not an earlier snapshot of the file system of '{newer}'");
            return Err(PoolError::Refused { what });
        }
        let head = head_of(rq, dsl, &b).await?;
        let found = dsl.property(rq, &head, facts, ZfsProp::MountPoint.name()).await?;
        let mountpoint = match found.map(|property| property.value) {
            // The root of the tree brings its slash with each path.
            Some(Value::Text(path)) if path.starts_with('/') => path.trim_end_matches('/').to_owned(),
            _ => String::new(),
        };
        Ok(Pair { older: a.objset(), newer: b.objset(), after: a.phys.creation_txg, mountpoint })
    }
}

async fn head_of(rq: &Request, dsl: &Dsl, dataset: &Dataset) -> Result<Dataset, PoolError> {
    match dsl.dir(dataset.dir) {
        Some(dir) => Ok(dsl.head(rq, dir).await?),
        None => Ok(dataset.clone()),
    }
}
