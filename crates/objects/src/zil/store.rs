//! Where log blocks lie, and where data of writes is read that was not kept: the log's two seams.

use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Weak;
use weir_format::{BlockPointer, ObjectId, Txg};
use weir_machine::Request;

/// The blocks of logs.
pub trait LogStore: Send + Sync {
    /// Takes room for a log block of `size_bytes` in `txg`, which the caller holds, and gives its pointer: checksum kind
    /// zilog2, checksum words still to be set.
    ///
    /// # Errors
    /// If there is no room.
    fn allocate(&self, size_bytes: u64, txg: Txg) -> BoxFuture<'_, Result<BlockPointer, ObjectError>>;

    /// Seals and writes a block: its chain says how many bytes are in use; `bytes` are at least those, a multiple of
    /// 4096. It need not be stable until [`LogStore::flush`] is done.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write<'a>(
        &'a self,
        rq: &'a Request,
        pointer: &'a BlockPointer,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Makes all that was written before the call stable.
    ///
    /// # Errors
    /// If a device does not say that it did.
    fn flush(&self) -> BoxFuture<'_, Result<(), ObjectError>>;
}

/// The contents of objects as they are now.
pub trait LogData: Send + Sync {
    /// `length` bytes (at most a log block's) of an object from `offset`, zeros where it has none; `None` if there is no such object.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read<'a>(
        &'a self,
        rq: &'a Request,
        object: ObjectId,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>>;
}

impl LogData for Weak<ObjectSet> {
    fn read<'a>(
        &'a self,
        rq: &'a Request,
        object: ObjectId,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        Box::pin(async move {
            let Some(set) = self.upgrade() else { return Ok(None) };
            let object = match set.object(rq, object).await {
                Ok(object) => object,
                Err(error) if error.is_absent() => return Ok(None),
                Err(error) => return Err(error),
            };
            let end = offset.saturating_add(length);
            Ok(Some(set.read(rq, &object, offset, length as usize, end).await?))
        })
    }
}
