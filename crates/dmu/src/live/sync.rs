//! Syncs an object set: the changes of one closed txg become its new root.
//!
//! ```text
//!   trees of the changed objects ─► dnodes ─► accounting of owners ─► blocks of dnodes ─► header ─► root pointer
//! ```
//!
//! Until the end the overlay stays and the old root is current; then both change in one step. An error on the way
//! changes nothing in memory, so the txg, and the pool on disk, are as before.

use super::dirty_object::{DirtyBlock, DirtyRecords, fresh};
use super::overlay::{ChangedObject, Overlay};
use super::raw::dnode_form;
use super::sync_result::{Killed, ObjsetSyncResult};
use super::tree::Writer;
use super::usage::Usage;
use crate::error::ObjectError;
use crate::handles::Syncing;
use crate::object::{NewObject, Object};
use crate::object_set::{Root, empty_header};
use crate::tree_geometry::TreeGeometry;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_blocks::{RawForm, WriteOptions};
use weir_format::zil::ZilHeader;
use weir_format::{BlockPointer, Dnode, Endian, ObjectId, ObjectType, Objset, ObjsetId, ObjsetKind, Txg};
use weir_machine::Request;

/// Maximum number of objects whose trees are written at the same time; most objects have one block.
const MAX_CONCURRENT_OBJECTS: usize = 64;
/// Size of a block of dnodes in bytes (`DNODE_BLOCK_SHIFT`).
const DNODE_BLOCK_BYTES: u32 = 16 << 10;
/// Maximum number of objects of an object set (`DN_MAX_OBJECT`).
const MAX_OBJECTS: u64 = 1 << 48;
/// Offset in a dnode of its number of additional slots.
const EXTRA_SLOTS: usize = 12;

/// An object as it was written; `None` if it was removed.
pub(crate) type Adopted = (ObjectId, Option<Arc<Object>>);

impl<'a> Syncing<'a> {
    /// Whether `txg` changed the object set.
    pub fn is_dirty(self, txg: Txg) -> bool {
        self.set.live().is_some_and(|live| live.settings().zil.is_some() || live.has_changes_in(txg))
    }

    /// Whether everything in memory has been synced.
    pub fn is_clean(self) -> bool {
        self.set.live().is_none_or(|live| live.settings().zil.is_none() && live.is_empty())
    }

    /// Sets the header of the intent log for the next sync.
    pub fn set_zil_header(self, header: ZilHeader) {
        if let Some(live) = self.set.live() {
            live.settings().zil = Some(header);
        }
    }

    /// Records that a directory got a name of more than 255 bytes, for the next sync.
    pub(crate) fn note_long_name(self) {
        if let Some(live) = self.set.live() {
            live.settings().long_names = true;
        }
    }

    /// Makes the next sync write the root even if nothing changed.
    pub fn touch(self) {
        if let Some(live) = self.set.live() {
            let mut settings = live.settings();
            let zil = settings.zil.take().unwrap_or_else(|| self.set.root().header.zil.clone());
            settings.zil = Some(zil);
        }
    }

    /// Writes the changes of `txg`, which must be closed; `None` if it has none. All earlier txgs must be synced.
    ///
    /// # Errors
    /// Errors of reading the old trees and writing the new ones. The object set is then as before.
    pub async fn sync(self, rq: &Request, txg: Txg) -> Result<Option<ObjsetSyncResult>, ObjectError> {
        let Some(live) = self.set.live() else { return Ok(None) };
        if !self.is_dirty(txg) {
            return Ok(None);
        }
        if self.set.pointer().endian() == Endian::Big && !self.set.pointer().is_hole() {
            return Err(ObjectError::Unsupported { what: "writing to a set of the other byte order" });
        }
        if self.set.is_locked() && self.set.raw().is_none() && live.has_changes_in(txg) {
            return Err(ObjectError::NoKey { objset: self.set.id() });
        }
        let policy = live.settings().policy;
        let writer = Writer::new(self.set, rq, txg, policy);
        let mut synced: Vec<Adopted> = Vec::new();
        let mut usage = Usage::default();
        let objects = live.changed_in(txg).into_iter().filter(|d| !is_accounting(d.id));
        let trees = objects.map(|dirty| writer.sync_counted(dirty));
        let mut trees = stream::iter(trees).buffered(MAX_CONCURRENT_OBJECTS);
        while let Some(tree) = trees.next().await {
            let (dirty, dnode) = tree?;
            let dnode = usage.count(&writer, &dirty.base, dnode, &dirty.changes).await?;
            synced.push(written(dirty.id, dnode));
        }
        drop(trees);
        usage.apply(self.set, rq, txg).await?;
        for dirty in live.changed_in(txg).into_iter().filter(|d| is_accounting(d.id)) {
            synced.push(written(dirty.id, writer.sync_object(&dirty).await?));
        }
        let zil = live.settings().zil.clone();
        let root = writer.root(&synced, zil).await?;
        let mut outcome = writer.outcome.into_inner();
        outcome.root = root.pointer;
        outcome.long_names = std::mem::take(&mut live.settings().long_names);
        outcome.large_dnodes = synced.iter().any(|(_, o)| o.as_ref().is_some_and(|o| o.dnode.extra_slots > 0));
        self.adopt(live, txg, root, synced);
        Ok(Some(outcome))
    }

    /// Makes the new root current, and drops the overlay of `txg`.
    pub(crate) fn adopt(self, live: &Overlay, txg: Txg, root: Arc<Root>, synced: Vec<Adopted>) {
        let per_block = root.meta.as_ref().map_or(32, |m| m.block_bytes() / Dnode::SLOT as u64).max(1);
        // Until the end, no number is taken and no block of dnodes is searched for free ones.
        let mut allocator = live.allocator();
        {
            // `touch` finds the header of the log either here or in the new root.
            let mut settings = live.settings();
            settings.zil = None;
            settings.raw_dnodes.retain(|(of, _), _| *of > txg);
            self.set.set_root(root);
        }
        // Readers depend on this order: see the module `overlay`.
        live.next_version();
        self.set.forget(synced.iter().map(|(id, _)| *id));
        for (id, base) in synced {
            let mut shard = live.shard(id);
            let Some(node) = shard.get_mut(&id) else { continue };
            // An object that was created in this txg is not on disk, but has its object numbers.
            let was = node.base.as_ref().map_or(node.removed_slots.max(1), |base| base.dnode.slots()) as u64;
            let is_gone = base.is_none();
            if node.synced(txg, base) {
                shard.remove(&id);
                if is_gone && !is_accounting(id) {
                    allocator.free(id, was, per_block);
                }
            }
        }
    }
}

fn written(id: ObjectId, dnode: Option<Dnode>) -> Adopted {
    (id, dnode.map(|dnode| Arc::new(Object::new(id, dnode))))
}

/// Whether the object's dnode is in the header.
fn is_accounting(id: ObjectId) -> bool {
    id.0 >= Objset::PROJECTUSED_OBJECT
}

impl Writer<'_> {
    /// Writes one object's tree. The accounting of owners needs the former dnode.
    async fn sync_counted(&self, dirty: ChangedObject) -> Result<(ChangedObject, Option<Dnode>), ObjectError> {
        let dnode = self.sync_object(&dirty).await?;
        Ok((dirty, dnode))
    }

    async fn sync_object(&self, dirty: &ChangedObject) -> Result<Option<Dnode>, ObjectError> {
        if !dirty.changes.orphans.is_empty() {
            let mut outcome = self.outcome.lock();
            outcome.orphans.extend(&dirty.changes.orphans);
        }
        let base = dirty.base.as_ref().map(|object| &object.dnode);
        self.object(dirty.id, base, &dirty.changes).await
    }

    /// Writes the blocks of dnodes and the header.
    async fn root(&self, synced: &[Adopted], zil: Option<ZilHeader>) -> Result<Arc<Root>, ObjectError> {
        let old = self.set.root();
        let mut header = old.header.clone();
        let slots: Vec<&Adopted> = synced.iter().filter(|(id, _)| !is_accounting(*id)).collect();
        if !slots.is_empty() || self.set.raw().is_some() {
            header.meta_dnode = self.meta(&old, &slots).await?;
        }
        for (id, object) in synced {
            let dnode = || object.as_ref().map(|object| object.dnode.clone());
            match id.0 {
                Objset::USERUSED_OBJECT => header.user_used = dnode(),
                Objset::GROUPUSED_OBJECT => header.group_used = dnode(),
                Objset::PROJECTUSED_OBJECT => header.project_used = dnode(),
                _ => {}
            }
        }
        header.zil = zil.unwrap_or(header.zil);
        if let Some(raw) = self.set.raw() {
            raw.seal(&mut header);
        }
        let bytes = Bytes::from(header.encode(Objset::SIZE_V3, Endian::Little));
        let fill = header.meta_dnode.iter().flat_map(|m| &m.block_pointers).map(BlockPointer::fill).sum();
        let options = self.options(ObjectId(0), ObjectType::OBJSET, 0, 0, bytes.len());
        // Without the key, only the header of the log can have changed, which no MAC covers; or the stream gave the MAC.
        let options = WriteOptions { fill, embed: false, sealed: self.set.is_locked(), ..options };
        let place = self.set.place(ObjectId(0), 0, 0);
        let written = self.set.cache().blocks().write(self.rq, bytes, &options).await;
        let pointer = written.map_err(|e| ObjectError::block(place, e))?;
        let mut outcome = self.outcome.lock();
        outcome.born.push(pointer);
        if !old.pointer.is_hole() {
            outcome.killed.push(Killed { pointer: old.pointer, object: ObjectId(0), level: 0, block: 0 });
        }
        Ok(Root::new(pointer, header))
    }

    /// Writes the blocks of the dnodes that changed.
    async fn meta(&self, old: &Root, synced: &[&Adopted]) -> Result<Option<Dnode>, ObjectError> {
        let base = old.meta.as_ref().map(|meta| &meta.dnode);
        let raw = self.set.raw();
        let mut image = base.cloned().unwrap_or_else(|| {
            let fresh = meta_dnode(self.set.id());
            raw.map_or(fresh.clone(), |raw| raw.meta_dnode(fresh))
        });
        let block_bytes = u64::from(image.data_block_bytes).max(512);
        let per_block = block_bytes / Dnode::SLOT as u64;
        let mut by_block: BTreeMap<u64, Vec<&Adopted>> = BTreeMap::new();
        for one in synced {
            by_block.entry(one.0.0 / per_block).or_default().push(one);
        }
        image.max_block_id = by_block.keys().next_back().copied().unwrap_or(0).max(image.max_block_id);
        if let Some(raw) = raw {
            raw.apply(&mut image);
        }
        let changes = DirtyRecords { image: Some(Box::new(image)), ..DirtyRecords::default() };
        let blocks = stream::iter(by_block).then(|(block, objects)| async move {
            let (bytes, raw) = self.dnodes_changed(old, block, block_bytes, &objects).await?;
            Ok((block, DirtyBlock { raw, ..DirtyBlock::of_pool(bytes) }))
        });
        self.object_of(ObjectId(0), base, &changes, blocks, &|bytes| dnodes_in(bytes)).await
    }

    /// Returns block `number` of the dnodes, of `block_bytes` bytes, with the changed `objects`; in a set that is received raw
    /// also its form.
    async fn dnodes_changed(
        &self,
        old: &Root,
        number: u64,
        block_bytes: u64,
        objects: &[&Adopted],
    ) -> Result<(Bytes, Option<RawForm>), ObjectError> {
        let place = self.set.place(ObjectId(0), 0, number);
        let pointer = match old.meta.as_ref() {
            Some(meta) => self.set.pointers().at(self.rq, meta, 0, number).await?,
            None => None,
        };
        let mut bytes = match (pointer, old.meta.as_ref()) {
            (Some(pointer), Some(meta)) if self.set.raw().is_some() => {
                self.set.pointers().read(self.rq, meta, number, &pointer).await?.to_vec()
            }
            (Some(pointer), _) => {
                let read = self.set.cache().read(self.rq, &pointer, &self.set.options_at(place)).await;
                read.map_err(|e| ObjectError::block(place, e))?.to_vec()
            }
            (None, _) => vec![0; block_bytes as usize],
        };
        let per_block = block_bytes / Dnode::SLOT as u64;
        // Removed dnodes are wiped first, because a larger dnode may cover their slots now.
        for gone in [true, false] {
            for (id, object) in objects.iter().filter(|(_, object)| object.is_none() == gone) {
                let at = (id.0 % per_block) as usize * Dnode::SLOT;
                put_dnode(&mut bytes, at, object.as_ref().map(|object| &object.dnode));
            }
        }
        if self.set.raw().is_none() {
            return Ok((Bytes::from(bytes), None));
        }
        // The last form that the stream gave; a hole needs none.
        let before = pointer.as_ref().map(|pointer| dnode_form(pointer, block_bytes));
        let form = self.set.raw_dnodes(self.txg, number).or(before);
        let form = form.or((dnodes_in(&bytes) == 0).then(|| RawForm::clear(block_bytes)));
        Ok((Bytes::from(bytes), Some(form.ok_or(ObjectError::NoKey { objset: self.set.id() })?)))
    }
}

/// Puts a dnode into its block, or wipes the slots that it had.
pub(crate) fn put_dnode(block: &mut [u8], at: usize, dnode: Option<&Dnode>) {
    let there = match block.get(at) {
        Some(kind) if *kind != 0 => 1 + block.get(at + EXTRA_SLOTS).map_or(0, |n| usize::from(*n)),
        _ => 1,
    };
    let bytes = dnode.map(Dnode::encode).unwrap_or_default();
    let end = (at + (there * Dnode::SLOT).max(bytes.len())).min(block.len());
    if let Some(place) = block.get_mut(at..end) {
        place.fill(0);
        place.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    }
}

/// Number of dnodes in use in a block of dnodes.
pub(crate) fn dnodes_in(block: &[u8]) -> u64 {
    let mut at = 0;
    let mut count = 0;
    while let Some(kind) = block.get(at) {
        let used = *kind != 0;
        count += u64::from(used);
        let extra = if used { block.get(at + EXTRA_SLOTS).map_or(0, |n| usize::from(*n)) } else { 0 };
        at += (1 + extra) * Dnode::SLOT;
    }
    count
}

/// Meta dnode of a new object set. It has all levels from the start, as OpenZFS expects
/// (`dmu_objset_create_impl_dnstats`), except in the MOS, which only the syncer changes.
fn meta_dnode(id: ObjsetId) -> Dnode {
    let new = NewObject::new(ObjectType::DNODE, DNODE_BLOCK_BYTES);
    let mut dnode = fresh(&new);
    if id != ObjsetId::MOS {
        let last = MAX_OBJECTS / u64::from(DNODE_BLOCK_BYTES / Dnode::SLOT as u32) - 1;
        dnode.levels = TreeGeometry::of(&dnode).levels_to_reach(last, dnode.block_pointers.len(), 1);
    }
    dnode
}

/// Header of an object set that is not on disk yet; `counts`: whether usage is accounted by owner from the start.
pub(crate) fn new_header(kind: ObjsetKind, counts: bool) -> Objset {
    let all = Objset::USER_ACCOUNTING | Objset::OBJECT_ACCOUNTING | Objset::PROJECT_ACCOUNTING;
    Objset { kind, flags: if counts { all } else { 0 }, ..empty_header() }
}
