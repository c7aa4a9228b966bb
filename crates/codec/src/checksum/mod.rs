//! Block checksums (OpenZFS `module/zfs/zio_checksum.c` and the checksum functions beside it).
//!
//! A checksum is four 64-bit words. Most are stored in the block pointer; labels, gang headers and intent log blocks
//! contain theirs (see [`embedded`]).
//!
//! *Byte order.* The checksum words depend on the byte order of the *writing* host. fletcher sums the block's words
//! in that order. sha512, skein, edonr and blake3 give a string of bytes, which is read as four words in that order.
//! Only sha256 is always four big-endian words. So every function here takes the [`Endian`] of the block (a bit of
//! its pointer), and its result equals the words of the pointer decoded in the same order.
//!
//! *Salt.* skein, edonr and blake3 are keyed with the pool's 32 bytes of salt (`org.illumos:checksum_salt` in the
//! pool directory), so that collisions cannot be prepared without knowledge of the salt. [`Salt`] holds the function
//! states derived from it.
//!
//! **Encryption.* In a pointer with the X bit, except of an object set, the last two words are the MAC. The first two
//! are those of the checksum; for a checksum too weak for dedup, each is xored with the word two positions later.

pub mod edonr;
pub mod embedded;
pub mod fletcher;
pub mod sha512;
pub mod skein;

use crate::error::CodecError;
use aws_lc_rs::digest;
use weir_format::{BlockPointer, ChecksumKind, Endian, ObjectType};

pub use embedded::{Verifier, verify_embedded};

/// The pool's checksum salt, with the initial states of the functions keyed with it.
#[derive(Clone)]
pub struct Salt {
    bytes: [u8; Salt::BYTES],
    skein: skein::Skein512,
    edonr: edonr::EdonR512,
}

impl Salt {
    /// Size of a salt in bytes.
    pub const BYTES: usize = 32;

    /// From the 32 bytes in the pool directory.
    pub fn new(bytes: [u8; Self::BYTES]) -> Self {
        // The key is the block H(salt) ‖ H(H(salt)), since Edon-R takes only whole blocks (edonr_zfs.c).
        let first = edonr::EdonR512::hash(&bytes);
        let second = edonr::EdonR512::hash(&first);
        let mut edonr = edonr::EdonR512::new();
        edonr.update(&first);
        edonr.update(&second);
        Salt { bytes, skein: skein::Skein512::keyed(256, &bytes), edonr }
    }

    /// A zero salt, for pools without a salt; they have no salted checksums.
    pub fn none() -> Self {
        Self::new([0; Self::BYTES])
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Salt({:02x?})", self.bytes)
    }
}

/// The four checksum words of `data`, a block written in byte order `endian`.
///
/// For embedded kinds this is the plain function that they use ([`verify_embedded`] verifies such a block); `Off` and
/// `NoParity` give zeros.
///
/// # Errors
/// [`CodecError::ChecksumKind`] for `Inherit` and `On`, which name no function.
pub fn checksum(kind: ChecksumKind, endian: Endian, salt: &Salt, data: &[u8]) -> Result<[u64; 4], CodecError> {
    use ChecksumKind::*;
    Ok(match kind {
        Inherit | On => return Err(CodecError::ChecksumKind { kind }),
        Off | NoParity => [0; 4],
        Fletcher2 | Zilog => fletcher::fletcher2(endian, data),
        Fletcher4 | Zilog2 => fletcher::fletcher4(endian, data),
        Sha256 | Label | GangHeader => words(Endian::Big, digest::digest(&digest::SHA256, data).as_ref()),
        Sha512 => words(endian, &sha512::sha512_256(data)),
        Skein => {
            let mut state = salt.skein.clone();
            state.update(data);
            words(endian, &state.finish::<32>())
        }
        Edonr => {
            let mut state = salt.edonr.clone();
            state.update(data);
            words(endian, &state.finish())
        }
        Blake3 => words(endian, blake3::keyed_hash(&salt.bytes, data).as_bytes()),
    })
}

/// The first 32 bytes as four words.
fn words(endian: Endian, bytes: &[u8]) -> [u64; 4] {
    let mut out = [0; 4];
    for (w, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *w = if endian == Endian::Big { u64::from_be_bytes(*b) } else { u64::from_le_bytes(*b) };
    }
    out
}

/// Whether a function is strong enough for dedup (`ZCHECKSUM_FLAG_DEDUP`), so that its first half alone is stored
/// beside a MAC.
fn is_strong(kind: ChecksumKind) -> bool {
    use ChecksumKind::*;
    matches!(kind, Sha256 | Sha512 | Skein | Blake3)
}

/// The two checksum words that are stored beside a MAC; the last two are zero.
fn shorten_for_mac(kind: ChecksumKind, w: [u64; 4]) -> [u64; 4] {
    if is_strong(kind) { [w[0], w[1], 0, 0] } else { [w[0] ^ w[2], w[1] ^ w[3], 0, 0] }
}

/// Whether the last two checksum words of a pointer are a MAC.
fn has_mac(pointer: &BlockPointer) -> bool {
    pointer.uses_crypt() && pointer.object_type() != ObjectType::OBJSET
}

fn compare(kind: ChecksumKind, with_mac: bool, mut expected: [u64; 4], mut actual: [u64; 4]) -> Result<(), CodecError> {
    if with_mac {
        expected = [expected[0], expected[1], 0, 0];
        actual = shorten_for_mac(kind, actual);
    }
    if expected == actual { Ok(()) } else { Err(CodecError::Checksum { kind, expected, actual }) }
}

/// Computes the four checksum words for `pointer`, whose block is `data`. All its other fields except the DVAs must
/// be set. If its last two words are a MAC, they are kept.
///
/// # Errors
/// [`CodecError::ChecksumKind`] if the pointer has no checksum function or an embedded one.
pub fn pointer_checksum(pointer: &BlockPointer, salt: &Salt, data: &[u8]) -> Result<[u64; 4], CodecError> {
    let kind = pointer.checksum_kind().ok_or(CodecError::ChecksumKind { kind: ChecksumKind::Inherit })?;
    if kind.is_embedded() {
        return Err(CodecError::ChecksumKind { kind });
    }
    let sum = checksum(kind, pointer.endian(), salt, data)?;
    if !has_mac(pointer) {
        return Ok(sum);
    }
    let [a, b, ..] = shorten_for_mac(kind, sum);
    let [_, _, mac0, mac1] = pointer.checksum();
    Ok([a, b, mac0, mac1])
}

/// Verifies that `data` (the physical bytes, as stored) is the block of `pointer`.
///
/// For plain blocks and for reassembled gang blocks; [`verify_gang_header`] verifies a gang *header*. Intent log
/// blocks are verified with the pointer's checksum words as verifier.
///
/// # Errors
/// [`CodecError::Checksum`] if the checksum differs, [`CodecError::NoTrailer`] for a log block that was never
/// written, [`CodecError::ChecksumKind`] if the pointer has no checksum function or is an embedded pointer.
pub fn verify_block(pointer: &BlockPointer, salt: &Salt, data: &[u8]) -> Result<(), CodecError> {
    let kind = pointer.checksum_kind().ok_or(CodecError::ChecksumKind { kind: ChecksumKind::Inherit })?;
    match kind {
        ChecksumKind::Off | ChecksumKind::NoParity => Ok(()),
        ChecksumKind::Zilog | ChecksumKind::Zilog2 => {
            let verifier = Verifier::Log { checksum: pointer.checksum(), with_mac: has_mac(pointer) };
            verify_embedded(kind, verifier, data).map(drop)
        }
        ChecksumKind::Label | ChecksumKind::GangHeader => Err(CodecError::ChecksumKind { kind }),
        _ => {
            let actual = checksum(kind, pointer.endian(), salt, data)?;
            compare(kind, has_mac(pointer), pointer.checksum(), actual)
        }
    }
}

/// Verifies the gang header read through `pointer` and returns the byte order in which it was written.
///
/// The header is 512 bytes, or a whole sector with `dynamic_gang_header`: the caller tries the larger first.
///
/// # Errors
/// As for [`verify_block`].
pub fn verify_gang_header(pointer: &BlockPointer, data: &[u8]) -> Result<Endian, CodecError> {
    let dva = pointer.dva(0);
    let verifier = Verifier::Gang {
        vdev: dva.vdev.into(),
        offset_bytes: dva.offset_bytes,
        physical_birth: pointer.physical_birth().0,
        halved: has_mac(pointer),
    };
    verify_embedded(ChecksumKind::GangHeader, verifier, data)
}

#[cfg(test)]
mod tests;
