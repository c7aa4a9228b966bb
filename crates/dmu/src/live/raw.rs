//! Object sets that are received from raw streams (`zfs receive` of `zfs send -w`): encrypted, and written without the key.
//!
//! ```text
//!   blocks of data     stored as they come, with salt, IV and MAC of the stream            [`RawForm`]
//!   indirect blocks    made here: their MAC is a hash of the MACs below, which needs no key
//!   blocks of dnodes   dnodes in the clear, bonus areas as they come; the stream gives the MAC of the whole block, so the
//!                      dnodes must get the layout that they have at the sender: [`RawLayout`]
//!   header             made here, with the portable MAC of the stream, which covers the meta dnode: [`RawHeader`]
//! ```
//!
//! The MACs cover sizes, levels and numbers of pointers, but nothing that depends on the pool. They are not verified before
//! the key is loaded. Until a stream is complete, the MACs of blocks of dnodes and of the header are those of the end.
//!
//! Usage of owners is not accounted, because the owners are encrypted.
//!
//! Source: OpenZFS `module/zfs/dmu_recv.c` (`receive_object`, `receive_object_range`), `dsl_crypt.c`
//! (`dsl_crypto_recv_raw_objset_sync`), `dmu.c` (`dmu_convert_mdn_block_to_raw`), `dbuf.c` (`dbuf_prepare_encrypted_dnode_leaf`).

use crate::error::ObjectError;
use crate::handles::ObjectChanges;
use crate::txg::Tx;
use bytes::Bytes;
use weir_blocks::RawForm;
use weir_format::{BlockPointer, Dnode, ObjectId, Objset};
use weir_machine::{Request, invariant};

/// Header of the object set in a raw stream: the portable MAC, and the fields of the meta dnode that this covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHeader {
    /// `os_portable_mac`.
    pub portable_mac: [u8; 32],
    /// Levels of the meta dnode's tree.
    pub levels: u8,
    /// Size in bytes of a block of dnodes.
    pub block_bytes: u32,
    /// Log2 of the size in bytes of an indirect block.
    pub indirect_shift: u8,
    /// Number of pointers in the meta dnode.
    pub pointers: u8,
    /// Last block of dnodes.
    pub max_block_id: u64,
    /// Checksum that the meta dnode asks for.
    pub checksum: u8,
    /// Compression that the meta dnode asks for.
    pub compression: u8,
}

/// Layout of a dnode, which its block's MAC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawLayout {
    /// Levels of its tree.
    pub levels: u8,
    /// Last block.
    pub max_block_id: u64,
    /// Bytes of the bonus area in use.
    pub bonus_len: u16,
}

impl RawHeader {
    /// Gives a meta dnode the fields of the stream. The levels are those of its tree.
    pub(super) fn apply(&self, meta: &mut Dnode) {
        (meta.checksum, meta.compression) = (self.checksum, self.compression);
        meta.max_block_id = self.max_block_id;
    }

    /// The meta dnode of a set that has no objects yet.
    pub(super) fn meta_dnode(&self, mut fresh: Dnode) -> Dnode {
        fresh.data_block_bytes = self.block_bytes;
        fresh.indirect_shift = self.indirect_shift;
        fresh.levels = self.levels;
        fresh.block_pointers.resize(usize::from(self.pointers), BlockPointer::HOLE);
        fresh
    }

    /// Whether a meta dnode has the layout that cannot be changed (`dsl_crypto_recv_raw_objset_check`).
    pub fn fits(&self, meta: &Dnode) -> bool {
        meta.levels == self.levels
            && meta.data_block_bytes == self.block_bytes
            && meta.indirect_shift == self.indirect_shift
            && meta.block_pointers.len() == usize::from(self.pointers)
    }

    /// Gives a header the MACs of the stream. The local one covers the accounting, which is not done.
    pub(super) fn seal(&self, header: &mut Objset) {
        header.portable_mac = self.portable_mac;
        header.local_mac = [0; 32];
        header.flags &= !(Objset::USER_ACCOUNTING | Objset::OBJECT_ACCOUNTING | Objset::PROJECT_ACCOUNTING);
    }
}

/// The form of a block of dnodes, which is never compressed.
pub(super) fn dnode_form(pointer: &BlockPointer, lsize_bytes: u64) -> RawForm {
    RawForm {
        salt: pointer.crypt_salt(),
        iv: pointer.crypt_iv(),
        mac: pointer.crypt_mac(),
        ..RawForm::clear(lsize_bytes)
    }
}

impl ObjectChanges<'_> {
    /// Gives an object the layout of a raw stream, and its block of dnodes the form of the stream.
    ///
    /// # Errors
    /// [`ObjectError::NoObject`]; [`ObjectError::Unsupported`] in a set that is not received raw.
    pub async fn set_raw_layout(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        layout: RawLayout,
        form: RawForm,
    ) -> Result<(), ObjectError> {
        self.set.must_be_raw()?;
        self.change_image(rq, tx, id, |image, changes| {
            image.bonus_len = layout.bonus_len;
            image.max_block_id = layout.max_block_id;
            changes.levels = layout.levels;
            Ok(())
        })
        .await?;
        let live = self.set.must_be_live()?;
        let block = id.0 / self.per_block();
        live.settings().raw_dnodes.insert((tx.txg(), block), form);
        invariant!(self.set.is_locked(), "a set that is received raw is written without its key");
        Ok(())
    }

    /// Writes the spill block as a raw stream gives it.
    ///
    /// # Errors
    /// As [`set_spill`](Self::set_spill).
    pub async fn set_raw_spill(
        self,
        rq: &Request,
        tx: &Tx,
        id: ObjectId,
        stored: Bytes,
        form: RawForm,
    ) -> Result<(), ObjectError> {
        self.set.must_be_raw()?;
        self.put_spill(rq, tx, id, Some(stored), Some(form)).await
    }
}
