//! Applies the records of a stream to a live object set, each in transactions of its own (OpenZFS `receive_object`,
//! `receive_write` and so on).
//!
//! An object of an incremental stream may exist: with the same block size its blocks stay, and the stream replaces those
//! that changed. With another one it is another file under the same number, and its blocks go; unless it is the same file
//! (the ZPL's generation tells), sent in larger pieces than before (`-L`): then its block size stays.

use crate::check::{SLOTS_PER_BLOCK, check, is_raw, is_spill};
use crate::error::ReceiveError;
use crate::make::{HAS_SPILL, SPILL_UNMODIFIED};
use crate::plan::HAS_SPILLS;
use crate::resume_points::ResumePoints;
use bytes::Bytes;
use std::sync::Arc;
use weir_blocks::{Compressed, RawForm};
use weir_codec::decompress;
use weir_dmu::live::RawLayout;
use weir_dmu::txg::Tx;
use weir_dmu::{NewObject, Object, ObjectError, ObjectSet, SpaceReserve};
use weir_dsl::sync_tasks::receive::ResumePoint;
use weir_format::stream::{Begin, ObjectRecord, RECORD_BYTES, Record, SpillRecord, WriteRecord};
use weir_format::{CompressionKind, Cursor, Endian, ObjectId, ObjectType};
use weir_machine::{Request, invariant};

/// Bytes that a change of a dnode is assumed to write.
const DNODE_TX_BYTES: u64 = 32 << 10;
/// Size in bytes of a block of dnodes (`DNODE_BLOCK_SHIFT`).
const DNODE_BLOCK_BYTES: u64 = 16 << 10;
/// Default log2 of the size of an indirect block.
const INDIRECT_SHIFT: u8 = 17;
/// Offset of the generation in a row of system attributes, after its header (`SA_GEN_OFFSET`), and in an old znode.
const GENERATION: [usize; 2] = [16, 64];

/// Applies a stream to an object set.
pub struct Applier {
    set: Arc<ObjectSet>,
    begin: Begin,
    /// Object and offset of the last WRITE: they must ascend.
    last: (ObjectId, u64),
    /// Bytes of the stream.
    bytes: u64,
    points: Option<Arc<ResumePoints>>,
    /// The last OBJECT_RANGE of a raw stream: its first object and the form of the block of dnodes.
    range: Option<(ObjectId, RawForm)>,
}

/// Effect of an OBJECT record on an object that exists.
enum Existing {
    /// The blocks and the block size stay.
    Keep,
    /// The blocks are freed.
    Discard,
    /// The object is removed, and made anew.
    Replace,
}

impl Applier {
    /// Applies the stream that `begin` began to `set`, which must be live.
    pub fn new(set: Arc<ObjectSet>, begin: Begin) -> Self {
        debug_assert!(set.is_live(), "a stream changes the set");
        let last = (ObjectId(0), 0);
        Applier { set, begin, last, bytes: 0, points: None, range: None }
    }

    /// Notes how far the stream is received, of which `bytes` were received before.
    #[must_use]
    pub fn noting(self, points: Option<Arc<ResumePoints>>, bytes: u64) -> Self {
        Applier { points, bytes, ..self }
    }

    fn note(&self, tx: &Tx, object: ObjectId, offset: u64) {
        if let Some(points) = &self.points {
            points.note(tx.txg(), ResumePoint { object, offset, bytes: self.bytes });
        }
    }

    /// Applies one record.
    ///
    /// # Errors
    /// [`ReceiveError::Invalid`] if the record contradicts earlier ones; errors of reading and writing the set.
    pub async fn apply(&mut self, rq: &Request, record: &Record, payload: Bytes) -> Result<(), ReceiveError> {
        check(&self.begin, record)?;
        self.bytes += (RECORD_BYTES + payload.len()) as u64;
        match record {
            Record::Object(object) => self.object(rq, object, &payload).await,
            Record::FreeObjects { first, count, .. } => self.free_objects(rq, *first, *count).await,
            Record::Write(write) => self.write(rq, write, payload).await,
            // Until they come with another stream, redacted blocks are holes, as in OpenZFS (`receive_redact`).
            Record::Free { object, offset, length, .. } | Record::Redact { object, offset, length, .. } => {
                self.free(rq, *object, *offset, *length).await
            }
            Record::Spill(spill) => self.spill(rq, spill, payload).await,
            // Its block of dnodes is written with its objects: without one it would be a hole (`receive_object_range`).
            Record::ObjectRange { first, salt, iv, mac, .. } => {
                let (salt, iv, mac) = (*salt, *iv, *mac);
                self.range = Some((*first, RawForm { salt, iv, mac, ..RawForm::clear(DNODE_BLOCK_BYTES) }));
                Ok(())
            }
            Record::WriteEmbedded { object, offset, length, compression, lsize_bytes, psize_bytes, .. } => {
                let stored_bytes = payload.len().min(*psize_bytes as usize);
                let stored = payload.get(..stored_bytes).unwrap_or_default();
                let mut block = expand(*compression, stored, u64::from(*lsize_bytes))?;
                // The rest of an embedded block is zeros.
                block.resize(usize::try_from(*length).unwrap_or(0), 0);
                if is_spill(*offset, *length) {
                    return self.put_spill(rq, *object, Bytes::from(block)).await;
                }
                let kind = CompressionKind::from_u8(*compression);
                let kind = kind.filter(|_| u64::from(*lsize_bytes) == *length);
                let compressed = kind.map(|kind| Compressed { kind, bytes: payload.slice(..stored_bytes) });
                self.put(rq, *object, *offset, Bytes::from(block), compressed).await
            }
            other => Err(ReceiveError::Invalid(format!("a record {} does not belong here", other.name()))),
        }
    }

    /// The object of that number, if there is one.
    async fn existing(&self, rq: &Request, id: ObjectId) -> Result<Option<Arc<Object>>, ReceiveError> {
        match self.set.object(rq, id).await {
            Ok(object) => Ok(Some(object)),
            Err(ObjectError::NoObject { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn must_exist(&self, rq: &Request, id: ObjectId) -> Result<Arc<Object>, ReceiveError> {
        let missing = || ReceiveError::Invalid(format!("a record of object {id}, which does not exist"));
        self.existing(rq, id).await?.ok_or_else(missing)
    }

    async fn object(&mut self, rq: &Request, o: &ObjectRecord, payload: &[u8]) -> Result<(), ReceiveError> {
        if is_raw(&self.begin) {
            return self.raw_object(rq, o, payload).await;
        }
        let slots = o.dnode_slots.max(1);
        let bonus = payload.get(..o.bonus_len as usize).unwrap_or_default();
        let mut new = NewObject::new(ObjectType(o.object_type as u8), o.block_bytes)
            .bonus(ObjectType(o.bonus_type as u8), bonus.to_vec());
        (new.slots, new.indirect_shift) = (slots, INDIRECT_SHIFT);
        self.make_room(rq, o.object, slots).await?;
        let has_spill = o.flags & HAS_SPILL != 0 || self.begin.flags & HAS_SPILLS == 0;
        let found = self.existing(rq, o.object).await?;
        let how = found.as_ref().map(|now| self.compare(o, now, bonus)).transpose()?;
        match (how, found) {
            (Some(Existing::Replace), _) => self.remove(rq, o.object).await?,
            (Some(Existing::Discard), _) => self.free(rq, o.object, 0, u64::MAX).await?,
            (Some(Existing::Keep), Some(now)) => new.block_bytes = now.block_bytes() as u32,
            _ => {}
        }
        let is_there = self.existing(rq, o.object).await?.is_some();
        let tx = self.set.begin(rq, DNODE_TX_BYTES, SpaceReserve::Normal).await?;
        if is_there {
            self.set.changes().reclaim(rq, &tx, o.object, &new, has_spill).await?;
        } else {
            self.set.changes().create_at(rq, &tx, o.object, &new).await?;
        }
        self.set.changes().set_encoding(rq, &tx, o.object, o.checksum, o.compression).await?;
        self.note(&tx, o.object, 0);
        drop(tx);
        invariant!(self.set.object(rq, o.object).await.is_ok(), "object {} was just received", o.object);
        Ok(())
    }

    /// An object of a raw stream: its dnode gets the layout that it has at the sender, because its MAC covers that.
    async fn raw_object(&mut self, rq: &Request, o: &ObjectRecord, bonus: &[u8]) -> Result<(), ReceiveError> {
        let first = ObjectId(o.object.0 - o.object.0 % SLOTS_PER_BLOCK);
        let form = self.range.filter(|(of, _)| *of == first).map(|(_, form)| form);
        let form = form.ok_or_else(|| ReceiveError::Invalid(format!("object {} outside its range", o.object)))?;
        let slots = o.dnode_slots.max(1);
        let mut new = NewObject::new(ObjectType(o.object_type as u8), o.block_bytes)
            .bonus(ObjectType(o.bonus_type as u8), bonus.to_vec());
        (new.slots, new.indirect_shift, new.pointers) = (slots, o.indirect_shift, o.pointers);
        self.make_room(rq, o.object, slots).await?;
        let has_spill = o.flags & HAS_SPILL != 0 || self.begin.flags & HAS_SPILLS == 0;
        let found = self.existing(rq, o.object).await?;
        match found.as_ref().map(|now| compare_raw(o, now)) {
            Some(Existing::Replace) => self.remove(rq, o.object).await?,
            Some(Existing::Discard) => self.free(rq, o.object, 0, u64::MAX).await?,
            Some(Existing::Keep) => {
                let end = (o.max_block_id + 1).saturating_mul(o.block_bytes.into());
                self.free(rq, o.object, end, u64::MAX).await?;
            }
            None => {}
        }
        let is_there = self.existing(rq, o.object).await?.is_some();
        let tx = self.set.begin(rq, DNODE_TX_BYTES, SpaceReserve::Normal).await?;
        let changes = self.set.changes();
        if is_there {
            changes.reclaim(rq, &tx, o.object, &new, has_spill).await?;
        } else {
            changes.create_at(rq, &tx, o.object, &new).await?;
        }
        changes.set_encoding(rq, &tx, o.object, o.checksum, o.compression).await?;
        let layout = RawLayout { levels: o.levels, max_block_id: o.max_block_id, bonus_len: o.bonus_len as u16 };
        changes.set_raw_layout(rq, &tx, o.object, layout, form).await?;
        self.note(&tx, o.object, 0);
        drop(tx);
        invariant!(self.set.is_locked(), "a raw stream is received without the key");
        Ok(())
    }

    /// Decides what becomes of an object that exists (`receive_handle_existing_object`).
    fn compare(&self, o: &ObjectRecord, now: &Object, bonus: &[u8]) -> Result<Existing, ReceiveError> {
        let slots = usize::from(o.dnode_slots.max(1));
        if slots != now.dnode.slots() {
            return Ok(Existing::Replace);
        }
        // The same rule as for new dnodes: attributes leave room to grow, others have as many pointers as fit.
        let room = (slots * 512 - 64).saturating_sub(bonus.len()) / 128;
        let pointers = if o.bonus_type == u32::from(ObjectType::SA.0) { 1 } else { room.clamp(1, 3) };
        if pointers < now.dnode.block_pointers.len() {
            return Ok(Existing::Replace);
        }
        if u64::from(o.block_bytes) == now.block_bytes() {
            return Ok(Existing::Keep);
        }
        let files = u32::from(ObjectType::PLAIN_FILE_CONTENTS.0);
        let is_file = o.object_type == files && u32::from(now.dnode.object_type.0) == files;
        if self.begin.from_guid == 0 || !is_file || now.span_bytes() <= now.block_bytes() {
            return Ok(Existing::Discard);
        }
        let before = generation(now.dnode.bonus_type, now.dnode.bonus(), now.dnode.endian);
        let after = generation(ObjectType(o.bonus_type as u8), bonus, Endian::Little);
        match (before, after) {
            (Some(before), Some(after)) if before != after => Ok(Existing::Discard),
            (Some(_), Some(_)) if u64::from(o.block_bytes) > now.block_bytes() => Ok(Existing::Keep),
            _ => Err(ReceiveError::Invalid(format!("object {} cannot get smaller blocks", o.object))),
        }
    }

    /// Frees the objects in further slots of a large dnode. Its first slot must not be a further slot of another one.
    async fn make_room(&self, rq: &Request, id: ObjectId, slots: u8) -> Result<(), ReceiveError> {
        for next in id.0 + 1..id.0 + u64::from(slots) {
            if self.existing(rq, ObjectId(next)).await?.is_some() {
                self.remove(rq, ObjectId(next)).await?;
            }
        }
        let first = id.0 - id.0 % SLOTS_PER_BLOCK;
        for before in (first.max(1)..id.0).rev() {
            let Some(object) = self.existing(rq, ObjectId(before)).await? else { continue };
            if before + object.dnode.slots() as u64 > id.0 {
                return Err(ReceiveError::Invalid(format!("object {id} is inside the dnode of object {before}")));
            }
            break;
        }
        Ok(())
    }

    async fn remove(&self, rq: &Request, id: ObjectId) -> Result<(), ReceiveError> {
        self.set.frees().free_long_range(rq, id, 0..u64::MAX).await?;
        let tx = self.set.begin(rq, DNODE_TX_BYTES, SpaceReserve::NetFree).await?;
        Ok(self.set.frees().remove(rq, &tx, id).await?)
    }

    async fn free_objects(&self, rq: &Request, first: ObjectId, count: u64) -> Result<(), ReceiveError> {
        let end = first.0.saturating_add(count);
        let mut from = ObjectId(first.0.max(1));
        while let Some(id) = self.set.dnodes().next_object(rq, from).await?.filter(|id| id.0 < end) {
            if self.existing(rq, id).await?.is_some() {
                self.remove(rq, id).await?;
            }
            from = ObjectId(id.0 + 1);
        }
        Ok(())
    }

    async fn free(&self, rq: &Request, id: ObjectId, offset: u64, length: u64) -> Result<(), ReceiveError> {
        let object = self.must_exist(rq, id).await?;
        if offset >= object.span_bytes() {
            return Ok(());
        }
        let end = offset.saturating_add(length);
        self.set.frees().free_long_range(rq, id, offset..end).await?;
        let tx = self.set.begin(rq, DNODE_TX_BYTES, SpaceReserve::NetFree).await?;
        Ok(self.set.frees().punch(rq, &tx, id, offset, length).await?)
    }

    async fn write(&mut self, rq: &Request, w: &WriteRecord, payload: Bytes) -> Result<(), ReceiveError> {
        if (w.object, w.offset) < self.last {
            return Err(ReceiveError::Invalid("blocks that are not in ascending order".into()));
        }
        self.last = (w.object, w.offset);
        if is_raw(&self.begin) {
            return self.raw_write(rq, w, payload).await;
        }
        if w.compression == 0 {
            return self.put(rq, w.object, w.offset, payload, None).await;
        }
        // Decompressed also to check it.
        let block = Bytes::from(expand(w.compression, &payload, w.logical_bytes)?);
        let kind = CompressionKind::from_u8(w.compression);
        let compressed = kind.map(|kind| Compressed { kind, bytes: payload });
        self.put(rq, w.object, w.offset, block, compressed).await
    }

    async fn put(
        &self,
        rq: &Request,
        id: ObjectId,
        offset: u64,
        bytes: Bytes,
        compressed: Option<Compressed>,
    ) -> Result<(), ReceiveError> {
        let block_bytes = self.must_exist(rq, id).await?.block_bytes();
        let tx = self.set.begin(rq, bytes.len() as u64 + DNODE_TX_BYTES, SpaceReserve::Normal).await?;
        if bytes.len() as u64 == block_bytes && offset.is_multiple_of(block_bytes) {
            let block = offset / block_bytes;
            self.set.writes().write_compressed(rq, &tx, id, block, bytes, compressed).await?;
        } else {
            self.set.writes().write(rq, &tx, id, offset, &bytes).await?;
        }
        self.note(&tx, id, offset);
        Ok(())
    }

    async fn raw_write(&self, rq: &Request, w: &WriteRecord, payload: Bytes) -> Result<(), ReceiveError> {
        let object = self.must_exist(rq, w.object).await?;
        let block_bytes = object.block_bytes();
        let block = w.offset / block_bytes;
        let is_block = w.logical_bytes == block_bytes && w.offset.is_multiple_of(block_bytes);
        if !is_block || block > object.dnode.max_block_id {
            return Err(ReceiveError::Invalid(format!("offset {} is no block of object {}", w.offset, w.object)));
        }
        let form = raw_form(w.compression, w.logical_bytes, (w.salt, w.iv, w.mac))?;
        let tx = self.set.begin(rq, payload.len() as u64 + DNODE_TX_BYTES, SpaceReserve::Normal).await?;
        self.set.writes().write_raw(rq, &tx, w.object, block, (payload, form)).await?;
        self.note(&tx, w.object, w.offset);
        Ok(())
    }

    async fn spill(&self, rq: &Request, s: &SpillRecord, payload: Bytes) -> Result<(), ReceiveError> {
        // A block that is sent again for receivers that lost it. This one keeps it, as OBJECT says.
        if self.begin.flags & HAS_SPILLS != 0 && s.flags & SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        if is_raw(&self.begin) {
            self.must_exist(rq, s.object).await?;
            let form = raw_form(s.compression, s.length, (s.salt, s.iv, s.mac))?;
            let tx = self.set.begin(rq, s.length + DNODE_TX_BYTES, SpaceReserve::Normal).await?;
            return Ok(self.set.changes().set_raw_spill(rq, &tx, s.object, payload, form).await?);
        }
        self.put_spill(rq, s.object, payload).await
    }

    async fn put_spill(&self, rq: &Request, id: ObjectId, block: Bytes) -> Result<(), ReceiveError> {
        self.must_exist(rq, id).await?;
        let tx = self.set.begin(rq, block.len() as u64 + DNODE_TX_BYTES, SpaceReserve::Normal).await?;
        Ok(self.set.changes().set_spill(rq, &tx, id, Some(block)).await?)
    }
}

/// Decides what becomes of an object that exists when a raw stream has another one of its number. Levels cannot become fewer, and
/// indirect blocks, slots and pointers stay as they are.
fn compare_raw(o: &ObjectRecord, now: &Object) -> Existing {
    let dnode = &now.dnode;
    let is_as_deep = dnode.levels <= o.levels && dnode.indirect_shift == o.indirect_shift;
    let is_as_wide = dnode.slots() == usize::from(o.dnode_slots.max(1));
    match u64::from(o.block_bytes) == now.block_bytes() {
        _ if !is_as_deep || !is_as_wide || dnode.block_pointers.len() != usize::from(o.pointers) => Existing::Replace,
        true => Existing::Keep,
        false => Existing::Discard,
    }
}

/// The form of a block of a raw stream.
fn raw_form(
    kind: u8,
    lsize_bytes: u64,
    (salt, iv, mac): ([u8; 8], [u8; 12], [u8; 16]),
) -> Result<RawForm, ReceiveError> {
    let bad = || ReceiveError::Invalid(format!("compression type {kind} does not exist"));
    Ok(RawForm { compression: CompressionKind::from_u8(kind).ok_or_else(bad)?, lsize_bytes, salt, iv, mac })
}

/// The bytes of a compressed block.
fn expand(kind: u8, stored: &[u8], logical_bytes: u64) -> Result<Vec<u8>, ReceiveError> {
    let bad = || ReceiveError::Invalid("a compressed block that cannot be decompressed".into());
    let bytes = usize::try_from(logical_bytes).map_err(|_| bad())?;
    match CompressionKind::from_u8(kind) {
        None => Err(bad()),
        Some(CompressionKind::Inherit | CompressionKind::Off) if stored.len() == bytes => Ok(stored.to_vec()),
        Some(kind) => decompress(kind, stored, bytes).map_err(|_| bad()),
    }
}

/// The generation of a file from its bonus area (`zpl_get_file_info`); `None` if it is too short or of another type.
fn generation(kind: ObjectType, bonus: &[u8], endian: Endian) -> Option<u64> {
    let [in_row, in_znode] = GENERATION;
    let at = match kind {
        ObjectType::SA => {
            let mut cursor = Cursor::new(bonus, endian, "system attributes");
            cursor.skip(4).ok()?;
            let header_bytes = usize::from(cursor.u16().ok()? >> 10) * 8;
            header_bytes + in_row
        }
        ObjectType::ZNODE => in_znode,
        _ => return None,
    };
    let mut cursor = Cursor::new(bonus, endian, "file");
    cursor.skip(at).ok()?;
    cursor.u64().ok()
}
