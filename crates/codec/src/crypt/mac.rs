//! Authentication of data that is not encrypted: the portable parts of block pointers, dnodes and object sets.
//!
//! A MAC must survive a raw send to a pool with other devices, checksums and byte order. So the MAC covers only this
//! part of a block pointer ([`portable_pointer`]):
//!
//! ```text
//!   version 1, 32 bytes:  properties word, masked (u64, little-endian) · MAC of the block below (16) · zeros (8)
//!   version 0, 24 bytes:  the same without the zeros, and with fewer fields masked
//!   masked:  checksum kind and dedup bit always; above level 0 also byte order, compression and physical size;
//!            everything in a hole.  (version 0: checksum kind, dedup bit, physical size; holes like the rest)
//! ```
//!
//! An object set (`objset_phys_t`) carries two HMACs of 32 bytes. The *portable* MAC covers the object set's type (as
//! big-endian), its portable flags (none are defined) and the meta dnode. The *local* MAC covers the other flags and
//! the user, group and project accounting dnodes, which are not sent. Dnodes are converted to little-endian first.

use super::secret::HmacKey;
use crate::error::CodecError;
use aws_lc_rs::digest;
use weir_format::{BlockPointer, Cursor, Endian};

/// Size in bytes of each of an object set's MACs.
const OBJECT_SET_MAC_BYTES: usize = 32;
const DNODE_BYTES: usize = 512;
const DNODE_CORE_BYTES: usize = 64;
/// The only portable dnode flag: the dnode has a spill pointer.
pub(super) const DNODE_SPILL: u8 = 4;
pub(super) const DNODE_FLAGS_AT: usize = 7;
pub(super) const DNODE_USED_AT: usize = 24;

/// Number of pointers of which the portable parts are hashed at once.
const POINTERS_AT_ONCE: usize = 128;

/// Size in bytes of the portable part of a block pointer.
fn portable_bytes(version: u64) -> usize {
    if version == 0 { 24 } else { 32 }
}

/// Appends the portable part of a block pointer to `to`. `bytes` are its 128 on-disk bytes in byte order `endian`.
pub(super) fn portable_pointer(version: u64, endian: Endian, bytes: &[u8; BlockPointer::SIZE], to: &mut Vec<u8>) {
    if *bytes == [0; BlockPointer::SIZE] {
        // Most pointers of an indirect block are null.
        to.resize(to.len() + portable_bytes(version), 0);
        return;
    }
    let pointer = BlockPointer::decode(&mut Cursor::new(bytes, endian, "block pointer")).unwrap_or_default();
    const PSIZE: u64 = 0xffff << 16;
    const COMPRESSION: u64 = 0x7f << 32;
    const CHECKSUM: u64 = 0xff << 40;
    const DEDUP: u64 = 1 << 62;
    const BYTE_ORDER: u64 = 1 << 63;
    let words = pointer.words();
    let is_hole = !pointer.is_embedded() && words[0] == 0 && words[1] == 0;
    let properties = match version {
        0 => words[6] & !(PSIZE | CHECKSUM | DEDUP),
        _ if is_hole => 0,
        _ if pointer.level() > 0 => words[6] & !(PSIZE | COMPRESSION | CHECKSUM | DEDUP | BYTE_ORDER),
        _ => words[6] & !(CHECKSUM | DEDUP),
    };
    to.extend(properties.to_le_bytes());
    to.extend(pointer.crypt_mac());
    if version != 0 {
        to.extend([0; 8]);
    }
}

/// The MAC of a decompressed indirect block: SHA-512 over the portable parts of its pointers.
pub(super) fn indirect(version: u64, endian: Endian, logical: &[u8]) -> [u8; 16] {
    let mut context = digest::Context::new(&digest::SHA512);
    let mut buffer = Vec::with_capacity(POINTERS_AT_ONCE * portable_bytes(version));
    for pointers in logical.as_chunks::<{ BlockPointer::SIZE }>().0.chunks(POINTERS_AT_ONCE) {
        buffer.clear();
        pointers.iter().for_each(|bytes| portable_pointer(version, endian, bytes, &mut buffer));
        context.update(&buffer);
    }
    let digest = context.finish();
    std::array::from_fn(|i| digest.as_ref()[i])
}

/// The two MACs of an object set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSetMacs {
    /// MAC over the fields that a raw send preserves.
    pub portable: [u8; OBJECT_SET_MAC_BYTES],
    /// MAC over the accounting dnodes; zero if there are none.
    pub local: [u8; OBJECT_SET_MAC_BYTES],
}

impl ObjectSetMacs {
    const TYPE_AT: usize = 704;
    const FLAGS_AT: usize = 712;
    const PORTABLE_AT: usize = 720;
    const LOCAL_AT: usize = 752;
    const META_AT: usize = 0;
    const USER_AT: usize = 1024;
    const GROUP_AT: usize = 1536;
    const PROJECT_AT: usize = 2048;
    /// Sizes in bytes of the three versions of an object set header.
    const V1_BYTES: usize = 1024;
    const V2_BYTES: usize = 2048;
    const V3_BYTES: usize = 4096;
    /// Flag: user accounting is complete.
    const ACCOUNTING_COMPLETE: u64 = 1;

    /// The MACs stored in the block.
    ///
    /// # Errors
    /// [`CodecError::Structure`] if the block is shorter than an object set header.
    pub fn stored(data: &[u8]) -> Result<Self, CodecError> {
        Ok(ObjectSetMacs { portable: field(data, Self::PORTABLE_AT)?, local: field(data, Self::LOCAL_AT)? })
    }

    /// Stores the MACs in the block.
    ///
    /// # Errors
    /// As for [`ObjectSetMacs::stored`].
    pub fn store(&self, data: &mut [u8]) -> Result<(), CodecError> {
        for (at, mac) in [(Self::PORTABLE_AT, &self.portable), (Self::LOCAL_AT, &self.local)] {
            let slot = data.get_mut(at..).and_then(|d| d.first_chunk_mut());
            *slot.ok_or(CodecError::Structure { what: "object set", offset: at })? = *mac;
        }
        Ok(())
    }

    /// Verifies the stored MACs (`self`) against the computed ones.
    pub(super) fn verify(&self, computed: &Self) -> Result<(), CodecError> {
        if self.portable != computed.portable {
            return Err(CodecError::Authentication { what: "object set" });
        }
        // The computed local MAC is zero while the accounting is incomplete; a stale stored one is ignored then.
        if self.local != computed.local && computed.local != [0; OBJECT_SET_MAC_BYTES] {
            return Err(CodecError::Authentication { what: "object set's accounting" });
        }
        Ok(())
    }

    pub(super) fn compute(key: &HmacKey, version: u64, endian: Endian, data: &[u8]) -> Result<Self, CodecError> {
        let word = |at| -> Result<u64, CodecError> {
            let bytes = field::<8>(data, at)?;
            Ok(if endian == Endian::Big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
        };
        let flags = word(Self::FLAGS_AT)?;
        let mut portable = Vec::with_capacity(256);
        portable.extend(word(Self::TYPE_AT)?.to_be_bytes());
        portable.extend([0; 8]);
        portable_dnode(version, endian, data, Self::META_AT, &mut portable)?;
        let portable = key.truncated(&[&portable]);

        let is_present = |at: usize| data.get(at).is_some_and(|&object_type| object_type != 0);
        let has_projects = data.len() >= Self::V3_BYTES && is_present(Self::PROJECT_AT);
        let has_users = data.len() >= Self::V2_BYTES && (is_present(Self::USER_AT) || is_present(Self::GROUP_AT));
        // As in OpenZFS, there is no local MAC if only the project accounting dnode is present.
        if flags & Self::ACCOUNTING_COMPLETE == 0 || data.len() <= Self::V1_BYTES || !has_users {
            return Ok(ObjectSetMacs { portable, local: [0; OBJECT_SET_MAC_BYTES] });
        }
        let mut local = Vec::with_capacity(512);
        local.extend(flags.to_le_bytes());
        for (at, present) in [
            (Self::USER_AT, is_present(Self::USER_AT)),
            (Self::GROUP_AT, is_present(Self::GROUP_AT)),
            (Self::PROJECT_AT, has_projects),
        ] {
            if present {
                portable_dnode(version, endian, data, at, &mut local)?;
            }
        }
        Ok(ObjectSetMacs { portable, local: key.truncated(&[&local]) })
    }
}

/// `N` bytes of an object set header at offset `at`.
fn field<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], CodecError> {
    let found = data.get(at..).and_then(|d| d.first_chunk::<N>().copied());
    found.ok_or(CodecError::Structure { what: "object set", offset: at })
}

/// Appends the portable parts of an object set's dnode at offset `at`: core fields as little-endian, and its
/// pointers.
fn portable_dnode(version: u64, endian: Endian, data: &[u8], at: usize, to: &mut Vec<u8>) -> Result<(), CodecError> {
    let dnode: [u8; DNODE_BYTES] = field(data, at)?;
    let mut core: [u8; DNODE_CORE_BYTES] = std::array::from_fn(|i| dnode[i]);
    if endian == Endian::Big {
        core[8..10].reverse();
        core[10..12].reverse();
        core[16..24].reverse();
    }
    core[DNODE_FLAGS_AT] &= DNODE_SPILL;
    core[DNODE_USED_AT..DNODE_USED_AT + 8].fill(0);
    to.extend(core);
    let pointers = dnode[DNODE_CORE_BYTES..].as_chunks::<{ BlockPointer::SIZE }>().0;
    let bad = CodecError::Structure { what: "dnode", offset: at };
    for pointer in pointers.get(..usize::from(dnode[3])).ok_or(bad)? {
        portable_pointer(version, endian, pointer, to);
    }
    if let (true, Some(spill)) = (core[DNODE_FLAGS_AT] != 0, dnode.last_chunk()) {
        portable_pointer(version, endian, spill, to);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_pointers_are_hashed_like_other_holes() {
        // A hole with a birth is not null; its birth is not portable.
        let mut hole = [0; 16];
        hole[10] = 77;
        let hole = BlockPointer::from_words(hole).encode(Endian::Little);
        for version in [0, 1] {
            let portable = |pointer| {
                let mut out = vec![1];
                portable_pointer(version, Endian::Little, pointer, &mut out);
                out
            };
            assert_eq!(portable(&hole), portable(&[0; BlockPointer::SIZE]), "version {version}");
            let mut block = vec![0; 300 * BlockPointer::SIZE];
            let null = indirect(version, Endian::Little, &block);
            block[200 * BlockPointer::SIZE..][..BlockPointer::SIZE].copy_from_slice(&hole);
            assert_eq!(indirect(version, Endian::Little, &block), null);
        }
    }
}
