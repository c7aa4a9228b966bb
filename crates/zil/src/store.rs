//! Interfaces of the log to its environment: [`LogStore`] allocates and writes log blocks, [`LogData`] reads data of
//! writes that was not kept in memory.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use weir_blocks::{BlockError, Blocks};
use weir_codec::crypt::DatasetKey;
use weir_dmu::error::{ErrorLocation, ObjectError};
use weir_dmu::object_set::ObjectSet;
use weir_dmu::txg::Tx;
use weir_format::{BlockPointer, ObjectId, ObjsetId, Txg};
use weir_machine::Request;
use weir_machine::accounts::Shares;

/// Allocation, writing and flushing of log blocks.
pub trait LogStore: Send + Sync {
    /// Allocates a log block of `size_bytes` in `txg`, which the caller holds, and returns its pointer. The pointer has
    /// the checksum kind zilog2 and the given checksum words, which are its position in the chain.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`] if no space is left.
    fn allocate(
        &self,
        size_bytes: u64,
        txg: Txg,
        checksum: [u64; 4],
    ) -> BoxFuture<'_, Result<BlockPointer, ObjectError>>;

    /// Seals a block with its embedded checksum and writes it. Its chain header holds the number of used bytes; `bytes`
    /// has at least that length, a multiple of 4096. `writers` are the origins of its records. The block need not be
    /// stable until [`LogStore::flush`] returns.
    ///
    /// # Errors
    /// Errors of writing the block.
    fn write<'a>(
        &'a self,
        rq: &'a Request,
        pointer: &'a BlockPointer,
        bytes: Vec<u8>,
        writers: Shares,
    ) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// Makes stable all data that was written before the call to these top-level vdevs, or to all for `None`.
    ///
    /// # Errors
    /// Errors of flushing: a device failed, or did not confirm the flush.
    fn flush<'a>(&'a self, rq: &'a Request, vdevs: Option<&'a BTreeSet<u32>>)
    -> BoxFuture<'a, Result<(), ObjectError>>;
}

/// Log blocks in a pool, for one dataset.
pub struct BlockLog {
    /// The pool's block layer.
    pub blocks: Arc<Blocks>,
    /// The dataset's key, if it is encrypted.
    pub keys: Option<Arc<DatasetKey>>,
    /// Object set that owns the log, for errors.
    pub set: ObjsetId,
}

impl BlockLog {
    fn error(&self, error: BlockError) -> ObjectError {
        ObjectError::block(ErrorLocation { objset: self.set, ..ErrorLocation::default() }, error)
    }
}

impl LogStore for BlockLog {
    fn allocate(
        &self,
        size_bytes: u64,
        txg: Txg,
        checksum: [u64; 4],
    ) -> BoxFuture<'_, Result<BlockPointer, ObjectError>> {
        Box::pin(async move {
            let pointer = self.blocks.log().allocate(size_bytes, txg, checksum, self.keys.as_ref()).await;
            pointer.map_err(|e| self.error(e))
        })
    }

    fn write<'a>(
        &'a self,
        rq: &'a Request,
        pointer: &'a BlockPointer,
        bytes: Vec<u8>,
        writers: Shares,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let written = self.blocks.log().write(rq, pointer, Bytes::from(bytes), self.keys.as_ref(), writers).await;
            written.map_err(|e| self.error(e))
        })
    }

    fn flush<'a>(
        &'a self,
        rq: &'a Request,
        vdevs: Option<&'a BTreeSet<u32>>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move { self.blocks.flush_vdevs(rq, vdevs).await.map_err(|e| self.error(e)) })
    }
}

/// Current contents of objects.
pub trait LogData: Send + Sync {
    /// Reads `length` bytes (at most those of a log block) of an object from `offset`, zeros where it has no data;
    /// `None` if there is no such object.
    ///
    /// # Errors
    /// Errors of reading the object.
    fn read<'a>(
        &'a self,
        rq: &'a Request,
        object: ObjectId,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>>;

    /// Writes a block that was changed in `tx`'s txg to its final location and returns the pointer to it; `None` if
    /// that is not possible.
    ///
    /// # Errors
    /// Errors of writing the block.
    fn place<'a>(
        &'a self,
        _rq: &'a Request,
        _tx: &'a Tx,
        _object: ObjectId,
        _block: u64,
    ) -> BoxFuture<'a, Result<Option<BlockPointer>, ObjectError>> {
        Box::pin(async { Ok(None) })
    }
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
            Ok(Some(set.reader().read(rq, &object, offset, length as usize, end).await?))
        })
    }

    fn place<'a>(
        &'a self,
        rq: &'a Request,
        tx: &'a Tx,
        object: ObjectId,
        block: u64,
    ) -> BoxFuture<'a, Result<Option<BlockPointer>, ObjectError>> {
        Box::pin(async move {
            let Some(set) = self.upgrade() else { return Ok(None) };
            set.writes().place_block(rq, tx, object, block).await
        })
    }
}
