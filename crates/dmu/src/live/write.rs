//! Writes blocks of objects, each within a [`Tx`].

use super::dirty_object::{BlockLookup, DirtyBlock, DirtyObject};
use crate::error::ObjectError;
use crate::handles::Writes;
use crate::object::Object;
use crate::txg::Tx;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use weir_blocks::{Compressed, RawForm};
use weir_format::{BlockPointer, ObjectId, Txg};
use weir_machine::Request;

/// Sets `bytes` at `offset` of a block; copies the block first if another task holds it.
fn patched(block: Bytes, offset: usize, bytes: &[u8]) -> Bytes {
    let mut block = block.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    if let Some(part) = block.get_mut(offset..offset + bytes.len()) {
        part.copy_from_slice(bytes);
    }
    block.freeze()
}

/// Marks the object as changed, and extends it to a block.
fn extend_to(node: &mut DirtyObject, txg: Txg, id: ObjectId, block: u64) {
    let grows = |o: &Arc<Object>| !o.dirty || o.dnode.max_block_id < block;
    if let Some(mut image) = node.current.as_ref().filter(|o| grows(o)).map(|o| o.dnode.clone()) {
        image.max_block_id = image.max_block_id.max(block);
        node.set_image(id, txg, image);
    }
}

impl Writes<'_> {
    /// Writes `bytes` at `offset`. Reads the blocks that it changes in part.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; errors of reading.
    pub async fn write(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ObjectError> {
        let block_bytes = self.set.object(rq, id).await?.block_bytes();
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let block = at / block_bytes;
            let from = (at % block_bytes) as usize;
            let (piece, after) = rest.split_at(rest.len().min(block_bytes as usize - from));
            if piece.len() as u64 == block_bytes {
                self.write_block(rq, tx, id, block, Bytes::copy_from_slice(piece)).await?;
            } else {
                self.patch(rq, tx, id, block, from, piece).await?;
            }
            at += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Writes one whole block; `bytes` must have the object's block size.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] for another length; errors of reading indirect blocks.
    pub async fn write_block(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        bytes: Bytes,
    ) -> Result<(), ObjectError> {
        self.write_compressed(rq, tx, id, block, bytes, None).await
    }

    /// Writes one whole block that came compressed: `compressed` holds the same bytes as they are stored.
    ///
    /// # Errors
    /// As [`write_block`](Self::write_block).
    pub async fn write_compressed(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        bytes: Bytes,
        compressed: Option<Compressed>,
    ) -> Result<(), ObjectError> {
        if !tx.is_syncing() {
            self.set.frees().read_indirects_ahead(rq, id, block..block.saturating_add(1)).await?;
        }
        self.set
            .changes()
            .change_node(rq, id, |node| {
                let object = node.current.clone().ok_or(self.set.no_object(id))?;
                if bytes.len() as u64 != object.block_bytes() {
                    return Err(ObjectError::Unsupported { what: "a block that is not as long as the object's" });
                }
                let (bytes, compressed) = (bytes.clone(), compressed.clone());
                let contents = DirtyBlock { compressed, ..DirtyBlock::new(bytes, rq.origin()) };
                self.put(node, tx.txg(), id, block, contents, false);
                Ok(())
            })
            .await
    }

    /// Writes one whole block as a raw stream gives it: `stored` bytes of this form.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] for a block of another length or beyond the last one; errors of
    /// reading indirect blocks.
    pub async fn write_raw(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        (stored, form): (Bytes, RawForm),
    ) -> Result<(), ObjectError> {
        self.set.must_be_raw()?;
        self.set.frees().read_indirects_ahead(rq, id, block..block.saturating_add(1)).await?;
        self.set
            .changes()
            .change_node(rq, id, |node| {
                let object = node.current.clone().ok_or(self.set.no_object(id))?;
                if form.lsize_bytes != object.block_bytes() {
                    return Err(ObjectError::Unsupported { what: "a block that is not as long as the object's" });
                }
                if block > object.dnode.max_block_id {
                    return Err(ObjectError::Unsupported { what: "a raw block beyond the object's last one" });
                }
                let contents = DirtyBlock { raw: Some(form), ..DirtyBlock::new(stored.clone(), rq.origin()) };
                self.put(node, tx.txg(), id, block, contents, false);
                Ok(())
            })
            .await
    }

    /// Writes whole blocks; readers see all of them or none. `block_bytes` changes the block size, which requires an
    /// object with no block but block 0, and block 0 among those written.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] for blocks of another length, or an object with more
    /// blocks.
    pub async fn write_blocks(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block_bytes: Option<u32>,
        blocks: &[(u64, Bytes)],
    ) -> Result<(), ObjectError> {
        for (block, _) in blocks.iter().filter(|_| !tx.is_syncing()) {
            self.set.frees().read_indirects_ahead(rq, id, *block..block.saturating_add(1)).await?;
        }
        self.set
            .changes()
            .change_node(rq, id, |node| {
                let object = node.current.clone().ok_or(self.set.no_object(id))?;
                let size = block_bytes.map_or(object.block_bytes(), u64::from);
                if blocks.iter().any(|(_, bytes)| bytes.len() as u64 != size) {
                    return Err(ObjectError::Unsupported { what: "a block that is not as long as the object's" });
                }
                if size != object.block_bytes() {
                    if object.dnode.max_block_id > 0 || !blocks.iter().any(|(block, _)| *block == 0) {
                        return Err(ObjectError::Unsupported {
                            what: "another block size for an object of many blocks",
                        });
                    }
                    let mut image = object.dnode.clone();
                    image.data_block_bytes = size as u32;
                    node.set_image(id, tx.txg(), image);
                }
                for (block, bytes) in blocks {
                    let contents = DirtyBlock::new(bytes.clone(), rq.origin());
                    self.put(node, tx.txg(), id, *block, contents, false);
                }
                Ok(())
            })
            .await
    }

    /// Makes one whole block refer to a block that is on disk already.
    pub(super) async fn put_shared(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        pointer: BlockPointer,
    ) -> Result<(), ObjectError> {
        self.set.frees().read_indirects_ahead(rq, id, block..block.saturating_add(1)).await?;
        self.set
            .changes()
            .change_node(rq, id, |node| {
                let object = node.current.clone().ok_or(self.set.no_object(id))?;
                if pointer.lsize_bytes() != object.block_bytes() {
                    return Err(ObjectError::Unsupported {
                        what: "sharing a block that is not as long as the object's",
                    });
                }
                let changes = node.changes(tx.txg());
                changes.displace(block..block.saturating_add(1));
                changes.blocks.remove(&block);
                changes.shared.insert(block, pointer);
                extend_to(node, tx.txg(), id, block);
                Ok(())
            })
            .await
    }

    /// Puts a whole block into the overlay; `is_counted`: its bytes are counted as dirty already.
    pub(super) fn put(
        self,
        node: &mut DirtyObject,
        txg: Txg,
        id: ObjectId,
        block: u64,
        contents: DirtyBlock,
        is_counted: bool,
    ) {
        let len = contents.bytes.len() as u64;
        let changes = node.changes(txg);
        changes.displace(block..block.saturating_add(1));
        changes.shared.remove(&block);
        let known = changes.blocks.insert(block, contents).is_some() || is_counted;
        if let (false, Some(live)) = (known, self.set.live()) {
            live.admission.txgs().add_dirty(txg, len);
        }
        extend_to(node, txg, id, block);
    }

    /// Changes a part of one block.
    pub(super) async fn patch(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        from: usize,
        bytes: &[u8],
    ) -> Result<(), ObjectError> {
        let live = self.set.must_be_live()?;
        let mut read: Option<(u64, Option<Bytes>)> = None;
        loop {
            // A sync between here and the read makes the bytes that were read useless.
            let version = live.version();
            let done = self
                .set
                .changes()
                .change_node(rq, id, |node| {
                    let object = node.current.clone().ok_or(self.set.no_object(id))?;
                    let zeros = || Bytes::from(vec![0; object.block_bytes() as usize]);
                    let open = node.take_open(tx.txg(), block);
                    let is_counted = open.is_some();
                    let whole = match (open, &read) {
                        (Some(open), _) => open,
                        (None, read) => match (node.lookup(block), read) {
                            (BlockLookup::Data(bytes), _) => bytes,
                            (BlockLookup::Hole, _) => zeros(),
                            (BlockLookup::Synced, Some((of, found))) if *of == live.version() => {
                                found.clone().unwrap_or_else(zeros)
                            }
                            (BlockLookup::Shared(_), Some((of, Some(found)))) if *of == live.version() => found.clone(),
                            (BlockLookup::Synced | BlockLookup::Shared(_), _) => return Ok(false),
                        },
                    };
                    let contents = DirtyBlock::new(patched(whole, from, bytes), rq.origin());
                    self.put(node, tx.txg(), id, block, contents, is_counted);
                    Ok(true)
                })
                .await?;
            if done {
                return Ok(());
            }
            let object = self.set.object(rq, id).await?;
            read = Some((version, self.set.reader().read_block(rq, &object, block).await?));
        }
    }
}
