//! Changes of objects of a live object set by files, volumes, ZAPs and the pool, each within a [`Tx`].

use super::dirty_object::{BlockLookup, DirtyBlock, DirtyObject, DirtyRecords, bonus_capacity, fresh};
use super::overlay::{DirtyObjset, State};
use super::policy::Policy;
use super::tx_admission::{SpaceReserve, TxAdmission};
use crate::error::ObjectError;
use crate::object::{NewObject, Object};
use crate::object_set::{ObjectSet, Opening};
use crate::txg::{Tx, TxgTracker};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_cache::Cache;
use weir_format::{BlockPointer, Dnode, ObjectId, ObjectType, ObjsetId, ObjsetKind, Txg};
use weir_machine::{Request, Target};

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

impl ObjectSet {
    /// Opens the object set of `pointer` for changes.
    pub async fn open_live(
        rq: &Request,
        cache: Arc<Cache>,
        pointer: BlockPointer,
        opening: Opening,
        admission: Arc<dyn TxAdmission>,
        policy: Policy,
    ) -> Result<Arc<Self>, ObjectError> {
        let set = Self::read_root(rq, cache, pointer, opening).await?;
        let last = set.meta().map_or(0, |meta| meta.dnode.max_block_id);
        Ok(Arc::new(set.alive(DirtyObjset::new(admission, policy, last))))
    }

    /// Creates an object set that the first sync writes.
    pub fn make(
        cache: Arc<Cache>,
        id: ObjsetId,
        kind: ObjsetKind,
        admission: Arc<dyn TxAdmission>,
        policy: Policy,
    ) -> Arc<Self> {
        Self::make_with(cache, Opening { id, ..Opening::default() }, kind, admission, policy)
    }

    /// Creates an object set with these options, such as the key of an encrypted dataset.
    pub fn make_with(
        cache: Arc<Cache>,
        opening: Opening,
        kind: ObjsetKind,
        admission: Arc<dyn TxAdmission>,
        policy: Policy,
    ) -> Arc<Self> {
        let header = super::sync::new_header(kind, policy.owner_of.is_some());
        let set = Self::with_header(cache, opening, BlockPointer::HOLE, header);
        Arc::new(set.alive(DirtyObjset::new(admission, policy, 0)))
    }

    /// Whether the object set can be changed.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    pub(super) fn must_be_live(&self) -> Result<&DirtyObjset, ObjectError> {
        self.live().ok_or(ObjectError::ReadOnly { objset: self.id() })
    }

    /// Sets the policy for writing blocks from now on.
    pub fn set_policy(&self, policy: Policy) {
        if let Some(live) = self.live() {
            live.state().policy = policy;
        }
    }

    /// Returns the policy for writing blocks; `None` if the object set is read-only.
    pub fn policy(&self) -> Option<Policy> {
        self.live().map(|live| live.state().policy)
    }

    /// Returns the number of changes since the object set was opened. An unchanged number means unchanged objects.
    pub fn edits(&self) -> u64 {
        self.live().map_or(0, |live| live.state().edits)
    }

    /// Returns the pool's transaction groups; `None` if the object set is read-only.
    pub fn txgs(&self) -> Option<Arc<TxgTracker>> {
        self.live().map(|live| live.admission.txgs().clone())
    }

    /// Returns the referenced bytes and the bytes that dirty data may still add; `None` if the object set is read-only.
    pub fn usage(&self) -> Option<(u64, u64)> {
        self.live()?.admission.usage(self.id())
    }

    /// Begins a transaction that changes up to `bytes` bytes. Waits while the pool has too much dirty data.
    ///
    /// # Errors
    /// [`ObjectError::ReadOnly`], [`ObjectError::NoSpace`], [`ObjectError::Quota`], [`ObjectError::Suspended`];
    /// [`ObjectError::Closed`] after [`ObjectSet::close`].
    pub async fn begin(&self, rq: &Request, bytes: u64, purpose: SpaceReserve) -> Result<Tx, ObjectError> {
        let tx = self.must_be_live()?.admission.assign_tx(rq, self.id(), bytes, purpose).await?;
        let tx = tx.with_writer(rq.origin());
        // Checked after the transaction has begun: no transaction of a closed object set begins after `close`.
        if self.is_closed() { Err(ObjectError::Closed { objset: self.id() }) } else { Ok(tx) }
    }

    /// Records bytes that a client writes to an object in `tx`. They are unstable until the intent log or the txg has
    /// them.
    pub fn account_write(&self, rq: &Request, tx: &Tx, object: ObjectId, offset: u64, len: u64) {
        rq.set_target(Target { dataset: self.id().0, object: object.0, offset_bytes: offset, size_bytes: len });
        rq.wrote(len);
        self.cache().accounts().became_unstable(tx.txg().0, len);
    }

    /// Closes the object set for new transactions, or opens it again. Transactions that have begun are in the open txg
    /// or an older one. A read-only object set is closed before its blocks are reallocated.
    pub fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    /// Whether the object set is closed, or its key was unloaded.
    pub fn is_closed(&self) -> bool {
        self.options().keys.as_ref().is_some_and(|keys| keys.is_revoked()) || self.closed.load(Ordering::SeqCst)
    }

    /// Changes the node of object `id` in its newest state, under the lock.
    pub(super) async fn change<T>(
        self: &Arc<Self>,
        rq: &Request,
        id: ObjectId,
        mut how: impl FnMut(&mut DirtyObject) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let live = self.must_be_live()?;
        loop {
            let version = {
                let mut state = live.state();
                if state.nodes.contains_key(&id) {
                    return state.change(id, None, &mut how);
                }
                state.version
            };
            let base = self.object(rq, id).await?;
            let mut state = live.state();
            if state.version == version {
                return state.change(id, Some(base), &mut how);
            }
        }
    }

    pub(super) fn no_object(&self, id: ObjectId) -> ObjectError {
        ObjectError::NoObject { objset: self.id(), object: id }
    }

    /// Changes the dnode's own fields.
    pub(super) async fn change_image<T>(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        mut how: impl FnMut(&mut Dnode, &mut DirtyRecords) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        self.change(rq, id, |node| {
            let mut image = node.current.as_ref().ok_or(self.no_object(id))?.dnode.clone();
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
    pub async fn create(self: &Arc<Self>, rq: &Request, tx: &Tx, new: &NewObject) -> Result<ObjectId, ObjectError> {
        let live = self.must_be_live()?;
        let slots = u64::from(new.slots.max(1));
        loop {
            let block = {
                let mut state = live.state();
                if let Some(id) = state.allocator.take(slots, self.per_block()) {
                    state.insert(id, tx.txg(), new);
                    return Ok(id);
                }
                state.allocator.next_block()
            };
            let used = self.slots_used(rq, block).await?;
            let first = block * self.per_block();
            let mut state = live.state();
            let State { nodes, allocator, .. } = &mut *state;
            let end = ObjectId(first + self.per_block());
            let claimed: Vec<u64> = nodes
                .range(ObjectId(first)..end)
                .flat_map(|(id, node)| {
                    let of = |o: &Arc<Object>| o.dnode.slots() as u64;
                    let slots = node.current.as_ref().or(node.base.as_ref()).map_or(1, of);
                    id.0..id.0 + slots
                })
                .collect();
            let free = (first..end.0).filter(|n| !used.contains(n) && !claimed.contains(n));
            allocator.refill(block, free);
        }
    }

    fn per_block(&self) -> u64 {
        self.meta().map_or(32, |meta| meta.block_bytes() / Dnode::SLOT as u64).max(1)
    }

    async fn slots_used(self: &Arc<Self>, rq: &Request, block: u64) -> Result<Vec<u64>, ObjectError> {
        let mut used = Vec::new();
        for (id, dnode) in self.dnodes_in_block(rq, block).await? {
            used.extend(id.0..id.0 + dnode?.slots() as u64);
        }
        Ok(used)
    }

    /// Creates an object with a given number, for replay and well-known objects.
    ///
    /// # Errors
    /// [`ObjectError::Exists`] if the number is taken.
    pub async fn create_at(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        new: &NewObject,
    ) -> Result<(), ObjectError> {
        let live = self.must_be_live()?;
        loop {
            let version = live.state().version;
            match self.object(rq, id).await {
                Ok(_) => return Err(ObjectError::Exists { objset: self.id(), object: id }),
                Err(ObjectError::NoObject { .. }) => {}
                Err(error) => return Err(error),
            }
            let mut state = live.state();
            if state.version == version && state.nodes.get(&id).is_none_or(|node| node.current.is_none()) {
                state.allocator.mark_used(id, u64::from(new.slots.max(1)));
                state.insert(id, tx.txg(), new);
                return Ok(());
            }
        }
    }

    /// Writes `bytes` at `offset`. Reads the blocks that it changes in part.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; errors of reading.
    pub async fn write(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ObjectError> {
        let block_bytes = self.object(rq, id).await?.block_bytes();
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
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        bytes: Bytes,
    ) -> Result<(), ObjectError> {
        if !tx.is_syncing() {
            self.read_indirects_ahead(rq, id, block..block.saturating_add(1)).await?;
        }
        self.change(rq, id, |node| {
            let object = node.current.clone().ok_or(self.no_object(id))?;
            if bytes.len() as u64 != object.block_bytes() {
                return Err(ObjectError::Unsupported { what: "a block that is not as long as the object's" });
            }
            let contents = DirtyBlock { bytes: bytes.clone(), writer: rq.origin() };
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
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block_bytes: Option<u32>,
        blocks: &[(u64, Bytes)],
    ) -> Result<(), ObjectError> {
        for (block, _) in blocks.iter().filter(|_| !tx.is_syncing()) {
            self.read_indirects_ahead(rq, id, *block..block.saturating_add(1)).await?;
        }
        self.change(rq, id, |node| {
            let object = node.current.clone().ok_or(self.no_object(id))?;
            let size = block_bytes.map_or(object.block_bytes(), u64::from);
            if blocks.iter().any(|(_, bytes)| bytes.len() as u64 != size) {
                return Err(ObjectError::Unsupported { what: "a block that is not as long as the object's" });
            }
            if size != object.block_bytes() {
                if object.dnode.max_block_id > 0 || !blocks.iter().any(|(block, _)| *block == 0) {
                    return Err(ObjectError::Unsupported { what: "another block size for an object of many blocks" });
                }
                let mut image = object.dnode.clone();
                image.data_block_bytes = size as u32;
                node.set_image(id, tx.txg(), image);
            }
            for (block, bytes) in blocks {
                let contents = DirtyBlock { bytes: bytes.clone(), writer: rq.origin() };
                self.put(node, tx.txg(), id, *block, contents, false);
            }
            Ok(())
        })
        .await
    }

    /// Makes one whole block refer to a block that is on disk already.
    pub(super) async fn put_shared(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        pointer: BlockPointer,
    ) -> Result<(), ObjectError> {
        self.read_indirects_ahead(rq, id, block..block.saturating_add(1)).await?;
        self.change(rq, id, |node| {
            let object = node.current.clone().ok_or(self.no_object(id))?;
            if pointer.lsize_bytes() != object.block_bytes() {
                return Err(ObjectError::Unsupported { what: "sharing a block that is not as long as the object's" });
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
    fn put(&self, node: &mut DirtyObject, txg: Txg, id: ObjectId, block: u64, contents: DirtyBlock, is_counted: bool) {
        let len = contents.bytes.len() as u64;
        let changes = node.changes(txg);
        changes.displace(block..block.saturating_add(1));
        changes.shared.remove(&block);
        let known = changes.blocks.insert(block, contents).is_some() || is_counted;
        if let (false, Some(live)) = (known, self.live()) {
            live.admission.txgs().add_dirty(txg, len);
        }
        extend_to(node, txg, id, block);
    }

    /// Changes a part of one block.
    pub(super) async fn patch(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block: u64,
        from: usize,
        bytes: &[u8],
    ) -> Result<(), ObjectError> {
        let mut read: Option<(u64, Option<Bytes>)> = None;
        loop {
            let version = self.must_be_live()?.state().version;
            let done = self
                .change(rq, id, |node| {
                    let object = node.current.clone().ok_or(self.no_object(id))?;
                    let zeros = || Bytes::from(vec![0; object.block_bytes() as usize]);
                    let open = node.take_open(tx.txg(), block);
                    let is_counted = open.is_some();
                    let whole = match (open, &read) {
                        (Some(open), _) => open,
                        (None, read) => match (node.lookup(block), read) {
                            (BlockLookup::Data(bytes), _) => bytes,
                            (BlockLookup::Hole, _) => zeros(),
                            (BlockLookup::Synced, Some((of, found))) if *of == version => {
                                found.clone().unwrap_or_else(zeros)
                            }
                            (BlockLookup::Shared(_), Some((of, Some(found)))) if *of == version => found.clone(),
                            (BlockLookup::Synced | BlockLookup::Shared(_), _) => return Ok(false),
                        },
                    };
                    let contents = DirtyBlock { bytes: patched(whole, from, bytes), writer: rq.origin() };
                    self.put(node, tx.txg(), id, block, contents, is_counted);
                    Ok(true)
                })
                .await?;
            if done {
                return Ok(());
            }
            let object = self.object(rq, id).await?;
            read = Some((version, self.read_block(rq, &object, block).await?));
        }
    }

    /// Sets the contents of the bonus buffer.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] if they do not fit.
    pub async fn set_bonus(
        self: &Arc<Self>,
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
    pub async fn set_spill(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        spill: Option<Bytes>,
    ) -> Result<(), ObjectError> {
        self.change_image(rq, tx, id, |image, changes| {
            let capacity = bonus_capacity(image.slots(), image.block_pointers.len(), spill.is_some());
            if spill.is_some() && (capacity == 0 || usize::from(image.bonus_len) > capacity) {
                return Err(ObjectError::Unsupported {
                    what: "a spill pointer that does not fit beside the bonus area",
                });
            }
            changes.spill = Some(spill.clone());
            Ok(())
        })
        .await
    }

    /// Sets the type of an object: a DSL directory becomes a ZAP as well.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`].
    pub async fn set_kind(
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        kind: ObjectType,
    ) -> Result<(), ObjectError> {
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
        self: &Arc<Self>,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        block_bytes: u32,
    ) -> Result<(), ObjectError> {
        loop {
            let object = self.object(rq, id).await?;
            if object.dnode.max_block_id > 0 {
                return Err(ObjectError::Unsupported { what: "another block size for an object of many blocks" });
            }
            let found = self.read_block(rq, &object, 0).await?;
            let done = self
                .change(rq, id, |node| {
                    let now = node.current.clone().ok_or(self.no_object(id))?;
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
                        let contents = DirtyBlock { bytes: whole.freeze(), writer: rq.origin() };
                        self.put(node, tx.txg(), id, 0, contents, false);
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

impl State {
    /// Changes a node; a new one begins with `base`.
    fn change<T>(
        &mut self,
        id: ObjectId,
        base: Option<Arc<Object>>,
        how: &mut impl FnMut(&mut DirtyObject) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let node = self.nodes.entry(id).or_insert_with(|| DirtyObject::new(base));
        let before = node.edits;
        let out = how(node);
        self.edits += node.edits - before;
        out
    }

    fn insert(&mut self, id: ObjectId, txg: Txg, new: &NewObject) {
        self.edits += 1;
        let node = self.nodes.entry(id).or_insert_with(|| DirtyObject::new(None));
        node.set_image(id, txg, fresh(new));
    }
}
