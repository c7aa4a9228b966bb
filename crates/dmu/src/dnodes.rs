//! Finds objects: number → dnode block → dnode, and the objects in use.
//!
//! A dnode block that cannot be read is an error for its 32 dnodes only.

use crate::error::ObjectError;
use crate::handles::Dnodes;
use crate::object::Object;
use crate::read::{SEEK_DESCENTS, Seek};
use bytes::Bytes;
use std::sync::Arc;
use weir_format::{Dnode, Endian, ObjectId, Objset};
use weir_machine::Request;

impl Dnodes<'_> {
    pub(crate) async fn dnode(self, rq: &Request, id: ObjectId) -> Result<Dnode, ObjectError> {
        let absent = ObjectError::NoObject { objset: self.set.id(), object: id };
        let root = self.set.root();
        let special = match id.0 {
            0 => Some(&root.header.meta_dnode),
            Objset::USERUSED_OBJECT => Some(&root.header.user_used),
            Objset::GROUPUSED_OBJECT => Some(&root.header.group_used),
            Objset::PROJECTUSED_OBJECT => Some(&root.header.project_used),
            _ => None,
        };
        if let Some(dnode) = special {
            return dnode.clone().ok_or(absent);
        }
        let meta = root.meta.as_ref().ok_or(absent.clone())?;
        let per_block = meta.block_bytes() / Dnode::SLOT as u64;
        let block = id.0 / per_block;
        let Some((bytes, endian)) = self.dnode_block(rq, meta, block).await? else { return Err(absent) };
        let slot = (id.0 % per_block) as usize;
        if !starts_dnode(&bytes, slot) {
            return Err(absent);
        }
        let at = slot * Dnode::SLOT;
        let decoded = Dnode::decode(bytes.get(at..).unwrap_or_default(), endian);
        decoded.map_err(|e| ObjectError::decode(self.set.place(id, 0, block), e))?.ok_or(absent)
    }

    /// The numbers and dnodes of all objects in data block `block` of the meta dnode, in order; `None` for a hole.
    /// A dnode that cannot be decoded is returned as an error for that object.
    ///
    /// # Errors
    /// Errors of reading the block.
    pub async fn in_block(
        self,
        rq: &Request,
        block: u64,
    ) -> Result<Vec<(ObjectId, Result<Dnode, ObjectError>)>, ObjectError> {
        let Some(meta) = self.set.meta() else { return Ok(Vec::new()) };
        let Some((bytes, endian)) = self.dnode_block(rq, &meta, block).await? else { return Ok(Vec::new()) };
        let slots = bytes.len() / Dnode::SLOT;
        let mut out = Vec::new();
        let mut slot = 0;
        while slot < slots {
            let id = ObjectId(block.saturating_mul(slots as u64).saturating_add(slot as u64));
            match Dnode::decode(bytes.get(slot * Dnode::SLOT..).unwrap_or_default(), endian) {
                Ok(None) => slot += 1,
                Ok(Some(dnode)) => {
                    slot += dnode.slots();
                    if id.0 != 0 {
                        out.push((id, Ok(dnode)));
                    }
                }
                Err(e) => {
                    slot += 1;
                    out.push((id, Err(ObjectError::decode(self.set.place(id, 0, block), e))));
                }
            }
        }
        Ok(out)
    }

    /// Returns the first object in use with a number of at least `from`. Subtrees without objects are skipped. To list
    /// all objects, see [`crate::Objects`].
    ///
    /// # Errors
    /// Errors of reading dnodes; [`ObjectError::Corrupt`] if fill counts exceed the number of objects.
    pub async fn next_object(self, rq: &Request, from: ObjectId) -> Result<Option<ObjectId>, ObjectError> {
        let Some(meta) = self.set.meta() else { return Ok(None) };
        let per_block = meta.block_bytes() / Dnode::SLOT as u64;
        let mut block = from.0 / per_block;
        // All objects of the first block may be before `from`. Later blocks have objects if their fill counts are
        // right.
        for _ in 0..SEEK_DESCENTS {
            let found = self.set.pointers().next_block(rq, &meta, block, Seek::Dnodes, None).await?;
            let Some(found) = found else { return Ok(None) };
            let dnodes = self.in_block(rq, found).await?;
            if let Some((id, _)) = dnodes.into_iter().find(|(id, _)| *id >= from) {
                return Ok(Some(id));
            }
            block = found.saturating_add(1);
        }
        Err(ObjectError::Corrupt { place: self.set.place(ObjectId(0), 0, block), why: "wrong fill counts" })
    }

    /// Reads a block of dnodes. In a locked set its bonus areas are still encrypted.
    async fn dnode_block(
        self,
        rq: &Request,
        meta: &Arc<Object>,
        block: u64,
    ) -> Result<Option<(Bytes, Endian)>, ObjectError> {
        self.set.reader().prefetch_after(
            meta,
            block.saturating_mul(meta.block_bytes()),
            meta.block_bytes(),
            meta.span_bytes(),
        );
        let Some(pointer) = self.set.pointers().at(rq, meta, 0, block).await? else { return Ok(None) };
        Ok(Some((self.set.pointers().read(rq, meta, block, &pointer).await?, pointer.endian())))
    }
}

/// Whether a dnode can begin at `slot`, because no larger dnode before it covers the slot.
fn starts_dnode(block: &[u8], slot: usize) -> bool {
    const EXTRA_SLOTS: usize = 12;
    let mut at = 0;
    while at < slot {
        let base = at * Dnode::SLOT;
        let free = block.get(base).is_none_or(|kind| *kind == 0);
        at += 1 + if free { 0 } else { block.get(base + EXTRA_SLOTS).map_or(0, |n| usize::from(*n)) };
    }
    at == slot
}
