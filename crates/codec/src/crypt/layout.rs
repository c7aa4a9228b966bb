//! Which bytes of a block are encrypted, and which are authenticated only.
//!
//! Most blocks are encrypted as a whole. Dnode and log blocks remain partly readable, so that a pool can be
//! traversed, scrubbed and its log claimed without the key:
//!
//! ```text
//!   dnode block, dnode by dnode (512 bytes per slot):
//!     core (64)            plaintext; authenticated but for non-portable flags and the space used
//!     pointers, spill      plaintext; their portable parts authenticated (see mac)
//!     bonus area           encrypted if of an encrypted type and in use; else plaintext and authenticated
//!
//!   log block, up to the bytes in use:
//!     chain header (184)   plaintext; its first 144 bytes authenticated (the rest is the trailer, where the MAC goes)
//!     record header (32)   plaintext; authenticated
//!     write record         32 bytes encrypted · pointer (128) plaintext, authenticated · data encrypted
//!     clone record         32 bytes encrypted · count and pointers plaintext, authenticated
//!     other records        encrypted
//!   beyond the bytes in use: zeros
//! ```
//!
//! The encrypted bytes of a block, in order, form one message, and the authenticated bytes, in order, the additional
//! authenticated data (aad). Plaintext fields are untrusted until then: every length is checked against the block
//! before use.

use super::mac::{self, DNODE_FLAGS_AT, DNODE_SPILL, DNODE_USED_AT};
use super::{BlockCrypt, MAC_BYTES};
use crate::error::CodecError;
use std::ops::Range;
use weir_format::{BlockPointer, Endian, ObjectType};

const SLOT: usize = 512;
const CORE: usize = 64;

const CHAIN_HEADER: usize = 184;
const CHAIN_USED_AT: usize = 136;
const CHAIN_TRAILER_AT: usize = 144;
/// The last two words of the checksum in the trailer.
const CHAIN_MAC_AT: usize = 168;
const RECORD_HEADER: usize = 32;
/// Record types `TX_WRITE` and `TX_CLONE_RANGE`, and the byte offsets of their pointer and count.
const WRITE: u64 = 9;
const WRITE_POINTER_AT: usize = 64;
const CLONE: u64 = 24;
const CLONE_COUNT_AT: usize = 64;

/// The encrypted and authenticated parts of a block.
#[derive(Debug)]
pub(super) struct Layout {
    /// Encrypted byte ranges, in order.
    secret: Vec<Range<usize>>,
    /// Additional authenticated data.
    aad: Vec<u8>,
    /// End of the bytes in use.
    used: usize,
}

impl Layout {
    pub(super) fn of(block: &BlockCrypt, version: u64, data: &[u8]) -> Result<Self, CodecError> {
        match block.object_type {
            ObjectType::DNODE => Self::dnodes(version, block.endian, data),
            ObjectType::INTENT_LOG => Self::log(block.endian, data),
            _ => Ok(Layout { secret: std::iter::once(0..data.len()).collect(), aad: Vec::new(), used: data.len() }),
        }
    }

    /// Calls `work` with the authenticated data and the encrypted bytes as one slice, and copies the result back.
    pub(super) fn with_secret_bytes<T>(
        &self,
        data: &mut [u8],
        work: impl FnOnce(&[u8], &mut [u8]) -> Result<T, CodecError>,
    ) -> Result<T, CodecError> {
        if let [range] = &self.secret[..]
            && let Some(whole) = data.get_mut(range.clone())
        {
            return work(&self.aad, whole);
        }
        let mut message: Vec<u8> =
            self.secret.iter().flat_map(|r| data.get(r.clone()).unwrap_or_default()).copied().collect();
        let outcome = work(&self.aad, &mut message)?;
        let mut rest = &message[..];
        for range in &self.secret {
            let (now, later) = rest.split_at(range.len().min(rest.len()));
            data.get_mut(range.clone()).unwrap_or_default().copy_from_slice(now);
            rest = later;
        }
        Ok(outcome)
    }

    /// Zeroes the bytes after those in use.
    pub(super) fn finish(&self, data: &mut [u8]) {
        data.get_mut(self.used..).unwrap_or_default().fill(0);
    }

    fn dnodes(version: u64, endian: Endian, data: &[u8]) -> Result<Self, CodecError> {
        let mut layout = Layout { secret: Vec::new(), aad: Vec::with_capacity(data.len()), used: data.len() };
        let mut at = 0;
        while at + SLOT <= data.len() {
            let bad = CodecError::Structure { what: "dnode", offset: at };
            let slots = data.get(at + 12).map_or(0, |&extra| usize::from(extra)) + 1;
            let dnode = data.get(at..at + slots * SLOT).ok_or(bad)?;
            layout.dnode(version, endian, dnode, at)?;
            at += slots * SLOT;
        }
        Ok(layout)
    }

    /// Adds one dnode with its extra slots, at byte offset `at` in the block.
    fn dnode(&mut self, version: u64, endian: Endian, dnode: &[u8], at: usize) -> Result<(), CodecError> {
        let bad = || CodecError::Structure { what: "dnode", offset: at };
        let (core, rest) = dnode.split_first_chunk::<CORE>().ok_or_else(bad)?;
        let mut core = *core;
        let [object_type, _, _, pointers, bonus_type, ..] = core;
        let has_bonus = core[10..12] != [0, 0];
        core[DNODE_FLAGS_AT] &= DNODE_SPILL;
        core[DNODE_USED_AT..DNODE_USED_AT + 8].fill(0);
        self.aad.extend(core);

        let (pointers, bonus) = rest.split_at_checked(usize::from(pointers) * BlockPointer::SIZE).ok_or_else(bad)?;
        for pointer in pointers.as_chunks().0 {
            mac::portable_pointer(version, endian, pointer, &mut self.aad);
        }
        let bonus = if core[DNODE_FLAGS_AT] & DNODE_SPILL != 0 {
            let (bonus, spill) = bonus.split_last_chunk().ok_or_else(bad)?;
            mac::portable_pointer(version, endian, spill, &mut self.aad);
            bonus
        } else {
            bonus
        };
        if object_type != 0 && ObjectType(bonus_type).is_encrypted() && has_bonus {
            let start = at + CORE + pointers.len();
            self.secret.push(start..start + bonus.len());
        } else {
            self.aad.extend(bonus);
        }
        Ok(())
    }

    fn log(endian: Endian, data: &[u8]) -> Result<Self, CodecError> {
        let bad = |offset| CodecError::Structure { what: "log record", offset };
        let used = word(endian, data, CHAIN_USED_AT).and_then(|n| usize::try_from(n).ok());
        let used = used.filter(|n| (CHAIN_HEADER..=data.len()).contains(n)).ok_or(bad(CHAIN_USED_AT))?;
        let mut layout = Layout { secret: Vec::new(), aad: Vec::with_capacity(data.len()), used };
        layout.aad.extend(data.get(..CHAIN_TRAILER_AT).unwrap_or_default());
        let mut at = CHAIN_HEADER;
        while at < used {
            let kind = word(endian, data, at).ok_or(bad(at))?;
            let length = word(endian, data, at + 8).and_then(|n| usize::try_from(n).ok()).ok_or(bad(at))?;
            let end = at.checked_add(length).filter(|end| *end <= used).ok_or(bad(at))?;
            layout.record(kind, data.get(at..end).ok_or(bad(at))?, at)?;
            at = end;
        }
        Ok(layout)
    }

    /// Adds one log record, at byte offset `at` in the block.
    fn record(&mut self, kind: u64, record: &[u8], at: usize) -> Result<(), CodecError> {
        let bad = CodecError::Structure { what: "log record", offset: at };
        let clear = match kind {
            WRITE => WRITE_POINTER_AT..WRITE_POINTER_AT + BlockPointer::SIZE,
            CLONE => CLONE_COUNT_AT..record.len(),
            _ => record.len()..record.len(),
        };
        let (Some(header), Some(secret), Some(middle)) =
            (record.get(..RECORD_HEADER), record.get(RECORD_HEADER..clear.start), record.get(clear.clone()))
        else {
            return Err(bad);
        };
        self.aad.extend(header);
        self.aad.extend(middle);
        let parts = [at + RECORD_HEADER..at + RECORD_HEADER + secret.len(), at + clear.end..at + record.len()];
        self.secret.extend(parts.into_iter().filter(|part| !part.is_empty()));
        Ok(())
    }
}

fn word(endian: Endian, data: &[u8], at: usize) -> Option<u64> {
    let bytes = *data.get(at..)?.first_chunk::<8>()?;
    Some(if endian == Endian::Big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
}

/// The MAC in a log block's trailer.
///
/// # Errors
/// [`CodecError::Structure`] if the block is too short.
pub fn log_mac(data: &[u8]) -> Result<[u8; MAC_BYTES], CodecError> {
    let found = data.get(CHAIN_MAC_AT..).and_then(|d| d.first_chunk().copied());
    found.ok_or(CodecError::Structure { what: "log block", offset: CHAIN_MAC_AT })
}

/// Stores the MAC in a log block's trailer; computing the checksum later does not overwrite it.
///
/// # Errors
/// As for [`log_mac`].
pub fn set_log_mac(data: &mut [u8], mac: &[u8; MAC_BYTES]) -> Result<(), CodecError> {
    let slot = data.get_mut(CHAIN_MAC_AT..).and_then(|d| d.first_chunk_mut());
    *slot.ok_or(CodecError::Structure { what: "log block", offset: CHAIN_MAC_AT })? = *mac;
    Ok(())
}
