//! The two objects of a volume (OpenZFS `zvol_create_cb` in `module/zfs/zvol.c`): 1 holds the data, 2 is a ZAP with the
//! size.

use super::DslError;
use crate::props::ZfsProp;
use std::sync::Arc;
use weir_dmu::live::NewObject;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, NewZap};
use weir_format::{ObjectId, ObjectType};
use weir_machine::Request;

/// The object with the data.
const DATA: ObjectId = ObjectId(1);
/// The ZAP with the size.
const PROPERTIES: ObjectId = ObjectId(2);
/// The entry with the size in bytes.
const SIZE: &str = "size";

/// Sizes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Bytes of the volume, a multiple of the block size.
    pub size_bytes: u64,
    /// Bytes of a block: a power of two, at least 512.
    pub block_bytes: u32,
}

impl VolumeSpec {
    /// Default block size in bytes (`volblocksize`).
    pub const DEFAULT_BLOCK_BYTES: u32 = 16 << 10;

    /// Checks the two sizes (`zvol_check_volsize`, `zvol_check_volblocksize`).
    ///
    /// # Errors
    /// [`DslError::Property`].
    pub fn check(&self, name: &str) -> Result<(), DslError> {
        if !self.block_bytes.is_power_of_two() || !(512..=16 << 20).contains(&self.block_bytes) {
            let why = "must be a power of two from 512 bytes to 16 MiB";
            return Err(DslError::property(name, ZfsProp::VolBlockSize.name(), why));
        }
        check_size(name, self.size_bytes, self.block_bytes.into())
    }

    /// Creates the objects of a volume in an empty set.
    pub async fn create(&self, rq: &Request, set: &Arc<ObjectSet>, tx: &Tx) -> Result<(), DslError> {
        set.changes().create_at(rq, tx, DATA, &NewObject::new(ObjectType::ZVOL, self.block_bytes)).await?;
        zap::create_at(rq, set, tx, PROPERTIES, &NewZap::new(ObjectType::ZVOL_PROP)).await?;
        set_volume_size(rq, set, tx, self.size_bytes).await
    }
}

fn check_size(name: &str, size_bytes: u64, block_bytes: u64) -> Result<(), DslError> {
    if size_bytes == 0 {
        return Err(DslError::property(name, ZfsProp::VolSize.name(), "cannot be zero"));
    }
    if !size_bytes.is_multiple_of(block_bytes) {
        let next = size_bytes.checked_next_multiple_of(block_bytes).unwrap_or(block_bytes);
        let why = format!("must be a multiple of volblocksize, {block_bytes} bytes; the next is {next}");
        return Err(DslError::property(name, ZfsProp::VolSize.name(), why));
    }
    if size_bytes > i64::MAX as u64 {
        return Err(DslError::property(name, ZfsProp::VolSize.name(), "is too large"));
    }
    Ok(())
}

/// Checks a new size of an existing volume against its block size.
///
/// # Errors
/// [`DslError::Property`].
pub async fn check_volume_size(
    rq: &Request,
    set: &Arc<ObjectSet>,
    name: &str,
    size_bytes: u64,
) -> Result<(), DslError> {
    check_size(name, size_bytes, set.object(rq, DATA).await?.block_bytes())
}

/// Stores a volume's new size in its set; the caller frees the blocks beyond it.
pub async fn set_volume_size(rq: &Request, set: &Arc<ObjectSet>, tx: &Tx, size_bytes: u64) -> Result<(), DslError> {
    Ok(zap::put_word(rq, set, tx, PROPERTIES, SIZE, size_bytes).await?)
}
