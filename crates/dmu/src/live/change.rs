//! Changes of objects of a live object set by files, volumes, ZAPs and the pool, each within a [`Tx`].

use super::dirty_object::{BlockLookup, DirtyBlock, DirtyObject, DirtyRecords, bonus_capacity, fresh};
use super::overlay::Overlay;
use crate::error::ObjectError;
use crate::handles::ObjectChanges;
use crate::object::NewObject;
use crate::txg::Tx;
use bytes::{Bytes, BytesMut};
use weir_blocks::RawForm;
use weir_format::{Dnode, ObjectId, ObjectType, Txg};
use weir_machine::Request;

impl ObjectChanges<'_> {
    /// Changes the node of object `id` in its newest state, under the lock.
    pub(super) async fn change_node<T>(
        self,
        rq: &Request,
        id: ObjectId,
        mut how: impl FnMut(&mut DirtyObject) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let live = self.set.must_be_live()?;
        loop {
            let version = {
                let mut shard = live.shard(id);
                if shard.contains_key(&id) {
                    return live.change(&mut shard, id, None, &mut how);
                }
                live.version()
            };
            let base = self.set.object(rq, id).await?;
            let mut shard = live.shard(id);
            if live.version() == version {
                return live.change(&mut shard, id, Some(base), &mut how);
            }
        }
    }

    /// Changes the dnode's own fields.
    pub(super) async fn change_image<T>(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        mut how: impl FnMut(&mut Dnode, &mut DirtyRecords) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        self.change_node(rq, id, |node| {
            let mut image = node.current.as_ref().ok_or(self.set.no_object(id))?.dnode.clone();
            let out = how(&mut image, node.changes(tx.txg()))?;
            node.set_image(id, tx.txg(), image);
            Ok(out)
        })
        .await
    }

    /// Creates an object and returns its number.
    ///
    /// # Errors
    /// Errors of reading blocks of dnodes.
    pub async fn create(self, rq: &Request, tx: &Tx, new: &NewObject) -> Result<ObjectId, ObjectError> {
        let live = self.set.must_be_live()?;
        let slots = u64::from(new.slots.max(1));
        loop {
            let per_block = self.per_block();
            let version = live.version();
            let block = {
                let mut allocator = live.allocator();
                if let Some(id) = allocator.take(slots, per_block) {
                    insert(live, id, tx.txg(), new);
                    return Ok(id);
                }
                allocator.next_block()
            };
            let used = self.slots_used(rq, block).await?;
            let first = block * per_block;
            let end = first + per_block;
            let mut allocator = live.allocator();
            // A sync in between may have written objects to the block that are no longer among the changed ones.
            if live.version() == version {
                let claimed = live.slots_taken(ObjectId(first)..ObjectId(end));
                allocator.refill(block, (first..end).filter(|n| !used.contains(n) && !claimed.contains(n)));
            }
        }
    }

    pub(super) fn per_block(self) -> u64 {
        self.set.meta().map_or(32, |meta| meta.block_bytes() / Dnode::SLOT as u64).max(1)
    }

    async fn slots_used(self, rq: &Request, block: u64) -> Result<Vec<u64>, ObjectError> {
        let mut used = Vec::new();
        for (id, dnode) in self.set.dnodes().in_block(rq, block).await? {
            used.extend(id.0..id.0 + dnode?.slots() as u64);
        }
        Ok(used)
    }

    /// Creates an object with a given number, for replay and well-known objects.
    ///
    /// # Errors
    /// [`ObjectError::Exists`] if the number is taken.
    pub async fn create_at(self, rq: &Request, tx: &Tx, id: ObjectId, new: &NewObject) -> Result<(), ObjectError> {
        let live = self.set.must_be_live()?;
        loop {
            let version = live.version();
            match self.set.object(rq, id).await {
                Ok(_) => return Err(ObjectError::Exists { objset: self.set.id(), object: id }),
                Err(ObjectError::NoObject { .. }) => {}
                Err(error) => return Err(error),
            }
            let mut allocator = live.allocator();
            let is_free = live.shard(id).get(&id).is_none_or(|node| node.current.is_none());
            if live.version() == version && is_free {
                allocator.mark_used(id, u64::from(new.slots.max(1)));
                insert(live, id, tx.txg(), new);
                return Ok(());
            }
        }
    }

    /// Sets the contents of the bonus buffer.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if they do not fit.
    pub async fn set_bonus(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        kind: ObjectType,
        bytes: &[u8],
    ) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, _| {
            if bytes.len() > image.bonus.len() {
                return Err(ObjectError::Unsupported { what: "contents that exceed the bonus area" });
            }
            image.bonus_type = kind;
            image.bonus_len = bytes.len() as u16;
            image.bonus.fill(0);
            if let Some(part) = image.bonus.get_mut(..bytes.len()) {
                part.copy_from_slice(bytes);
            }
            Ok(())
        })
        .await
    }

    /// Writes the spill block, or removes it.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if the bonus buffer leaves no space for its pointer.
    pub async fn set_spill(self, rq: &Request, tx: &Tx, id: ObjectId, spill: Option<Bytes>) -> Result<(), ObjectError> {
        self.put_spill(rq, tx, id, spill, None).await
    }

    pub(super) async fn put_spill(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        spill: Option<Bytes>,
        raw: Option<RawForm>,
    ) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, changes| {
            let capacity = bonus_capacity(image.slots(), image.block_pointers.len(), spill.is_some());
            if spill.is_some() && (capacity == 0 || usize::from(image.bonus_len) > capacity) {
                return Err(ObjectError::Unsupported {
                    what: "a spill pointer that does not fit beside the bonus area",
                });
            }
            changes.spill = Some(spill.clone());
            changes.raw_spill = raw;
            Ok(())
        })
        .await
    }

    /// Gives an object another type, block size and bonus area, as a received stream describes it; it keeps its number,
    /// slots and pointers (`dmu_object_reclaim_dnsize`). The spill block stays if `keeps_spill`. If the block size changes,
    /// the caller has freed all blocks.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if the bonus area does not fit.
    pub async fn reclaim(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        new: &NewObject,
        keeps_spill: bool,
    ) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, changes| {
            let has_spill = keeps_spill && image.spill.is_some();
            let capacity = bonus_capacity(image.slots(), image.block_pointers.len(), has_spill);
            if new.bonus.len() > capacity {
                return Err(ObjectError::Unsupported { what: "contents that exceed the bonus area" });
            }
            if !keeps_spill {
                changes.spill = Some(None);
            }
            image.object_type = new.kind;
            image.data_block_bytes = new.block_bytes.max(512).next_multiple_of(512);
            image.bonus_type = new.bonus_type;
            image.bonus_len = new.bonus.len() as u16;
            image.bonus.clear();
            image.bonus.extend_from_slice(&new.bonus);
            image.bonus.resize(capacity, 0);
            Ok(())
        })
        .await
    }

    /// Sets the checksum and the compression that an object's dnode asks for; 0 is that of the dataset.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`].
    pub async fn set_encoding(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        checksum: u8,
        compression: u8,
    ) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, _| {
            (image.checksum, image.compression) = (checksum, compression);
            Ok(())
        })
        .await
    }

    /// Sets the type of an object: a DSL directory becomes a ZAP as well.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`].
    pub async fn set_kind(self, rq: &Request, tx: &Tx, id: ObjectId, kind: ObjectType) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, _| {
            image.object_type = kind;
            Ok(())
        })
        .await
    }

    /// Changes the block size of an object that has no block but block 0.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if there are further blocks.
    pub async fn set_block_bytes(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block_bytes: u32,
    ) -> Result<(), ObjectError> {
        loop {
            let object = self.set.object(rq, id).await?;
            if object.dnode.max_block_id > 0 {
                return Err(ObjectError::Unsupported { what: "another block size for an object of many blocks" });
            }
            let found = self.set.reader().read_block(rq, &object, 0).await?;
            let done = self
                .change_node(rq, id, |node| {
                    let now = node.current.clone().ok_or(self.set.no_object(id))?;
                    // If the pointers are the same, the blocks that were read are still current.
                    if now.dnode != object.dnode {
                        return Ok(false);
                    }
                    let bytes = match node.lookup(0) {
                        BlockLookup::Data(bytes) => Some(bytes),
                        BlockLookup::Hole => None,
                        BlockLookup::Synced | BlockLookup::Shared(_) => found.clone(),
                    };
                    let mut image = now.dnode.clone();
                    image.data_block_bytes = block_bytes;
                    node.set_image(id, tx.txg(), image);
                    if let Some(bytes) = bytes {
                        let mut whole = BytesMut::from(&bytes[..]);
                        whole.resize(block_bytes as usize, 0);
                        let contents = DirtyBlock::new(whole.freeze(), rq.origin());
                        self.set.writes().put(node, tx.txg(), id, 0, contents, false);
                    }
                    Ok(true)
                })
                .await?;
            if done {
                return Ok(());
            }
        }
    }
}

/// Inserts a new object. The caller has the lock of the object numbers.
fn insert(live: &Overlay, id: ObjectId, txg: Txg, new: &NewObject) {
    live.change(&mut live.shard(id), id, None, |node| node.set_image(id, txg, fresh(new)));
}
