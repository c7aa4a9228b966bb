//! Where log blocks lie, and where data of writes is read that was not kept: the log's two seams.

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

/// The blocks of logs.
pub trait LogStore: Send + Sync {
    /// Takes room for a log block of `size_bytes` in `txg`, which the caller holds, and gives its pointer: of checksum
    /// kind zilog2, with these checksum words (its place in the chain).
    ///
    /// # Errors
    /// If there is no room.
    fn allocate(
        &self,
        size_bytes: u64,
        txg: Txg,
        checksum: [u64; 4],
    ) -> BoxFuture<'_, Result<BlockPointer, ObjectError>>;

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

    /// Makes stable what was written before the call to these top-level vdevs, or to all.
    ///
    /// # Errors
    /// If a device does not say that it did.
    fn flush<'a>(&'a self, rq: &'a Request, vdevs: Option<&'a BTreeSet<u32>>)
    -> BoxFuture<'a, Result<(), ObjectError>>;
}

/// Log blocks in a pool, for one dataset.
pub struct BlockLog {
    /// The pool's blocks.
    pub blocks: Arc<Blocks>,
    /// The dataset's key, if it is encrypted.
    pub keys: Option<Arc<DatasetKey>>,
    /// Whose log it is: for errors.
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
            let pointer = self.blocks.allocate_log(size_bytes, txg, checksum, self.keys.as_ref()).await;
            pointer.map_err(|e| self.error(e))
        })
    }

    fn write<'a>(
        &'a self,
        rq: &'a Request,
        pointer: &'a BlockPointer,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let written = self.blocks.write_log(rq, pointer, Bytes::from(bytes), self.keys.as_ref()).await;
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

    /// Writes a block that was changed in `tx`'s group to its final place and gives the pointer to it; `None` if that cannot
    /// be.
    ///
    /// # Errors
    /// If it cannot be written.
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
            Ok(Some(set.read(rq, &object, offset, length as usize, end).await?))
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
            set.place_block(rq, tx, object, block).await
        })
    }
}
