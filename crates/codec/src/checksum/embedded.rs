//! Blocks that carry their own checksum (`zio_eck_t`): labels and uberblocks, gang headers, intent-log blocks.
//!
//! ```text
//!   trailer, 40 bytes:  magic 0x0210da7ab10c7a11 (u64) · checksum (4 × u64)
//!   label, gang header, zilog: the last 40 bytes of the block
//!   zilog2:  at byte 144, in the chain header (pad 8 · next pointer 128 · bytes used 8 · trailer 40)
//! ```
//!
//! The checksum is taken with a *verifier* in the checksum's place, which says where the block should lie, so that a
//! right block in a wrong place does not verify: the byte offset for labels; vdev, offset and birth for gang headers;
//! the words in the pointer (a random pair, the object set, the sequence number) for the log. The magic number tells
//! the byte order in which all of it was written (`zio_checksum_error_impl`).

use super::{compare, fletcher, words};
use crate::error::CodecError;
use aws_lc_rs::digest;
use weir_format::{ChecksumKind, Endian};

/// The trailer's magic number (`ZEC_MAGIC`).
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 40;
/// Where a zilog2 block's trailer starts.
const LOG2_TRAILER_AT: usize = 144;
/// Bytes in use of a zilog2 block are rounded up to this (`ZIL_MIN_BLKSZ`).
const LOG2_ALIGN: u64 = 4096;

/// Where a self-checksummed block should lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verifier {
    /// A label's part.
    Label {
        /// Its offset from the start of the *device* in bytes (labels 2 and 3 count from the start too).
        offset_bytes: u64,
    },
    /// A gang header.
    Gang {
        /// Top-level vdev of the first address.
        vdev: u64,
        /// Offset of the first address in bytes, as in [`weir_format::Dva`].
        offset_bytes: u64,
        /// Physical birth txg of the pointer.
        physical_birth: u64,
        /// The pointer has the X bit (and is none of an object set): the sum is halved as if a MAC followed.
        halved: bool,
    },
    /// An intent-log block.
    Log {
        /// The checksum words of the pointer that leads to it.
        checksum: [u64; 4],
        /// The pointer has the X bit: the trailer's last two words are the block's MAC.
        with_mac: bool,
    },
}

impl Verifier {
    fn words(self) -> [u64; 4] {
        match self {
            Verifier::Label { offset_bytes } => [offset_bytes, 0, 0, 0],
            Verifier::Gang { vdev, offset_bytes, physical_birth, .. } => [vdev, offset_bytes, physical_birth, 0],
            Verifier::Log { checksum, .. } => checksum,
        }
    }

    fn halved(self) -> bool {
        matches!(self, Verifier::Log { with_mac: true, .. } | Verifier::Gang { halved: true, .. })
    }
}

fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk::<N>().copied()
}

fn word(endian: Endian, bytes: [u8; 8]) -> u64 {
    if endian == Endian::Big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
}

/// Where the trailer starts, the byte order, and how many bytes the checksum covers.
fn locate(kind: ChecksumKind, data: &[u8]) -> Result<(usize, Endian, usize), CodecError> {
    let missing = |found| CodecError::NoTrailer { kind, found };
    let at = match kind {
        ChecksumKind::Zilog2 => LOG2_TRAILER_AT,
        ChecksumKind::Label | ChecksumKind::GangHeader | ChecksumKind::Zilog => {
            data.len().checked_sub(TRAILER_BYTES).ok_or(missing(0))?
        }
        _ => return Err(CodecError::ChecksumKind { kind }),
    };
    let magic: [u8; 8] = array(data, at).ok_or(missing(0))?;
    let endian = match u64::from_le_bytes(magic) {
        MAGIC => Endian::Little,
        m if m == MAGIC.swap_bytes() => Endian::Big,
        found => return Err(missing(found)),
    };
    let covered = if kind == ChecksumKind::Zilog2 {
        let used = array(data, LOG2_TRAILER_AT - 8).map(|w| word(endian, w)).ok_or(missing(MAGIC))?;
        let used = used.checked_next_multiple_of(LOG2_ALIGN).and_then(|n| usize::try_from(n).ok());
        used.filter(|&n| n <= data.len() && n >= at + TRAILER_BYTES).ok_or(missing(MAGIC))?
    } else {
        data.len()
    };
    Ok((at, endian, covered))
}

/// Proves a block that carries its own checksum, and tells in which byte order it was written.
///
/// # Errors
/// [`CodecError::NoTrailer`] if the magic number is not there (or, for zilog2, the length in use is more than the
/// block), [`CodecError::Checksum`] if the bytes are others than written or the block belongs elsewhere,
/// [`CodecError::ChecksumKind`] for kinds that stand in the pointer.
pub fn verify_embedded(kind: ChecksumKind, verifier: Verifier, data: &[u8]) -> Result<Endian, CodecError> {
    let (at, endian, covered) = locate(kind, data)?;
    let expected = words(endian, &array::<32>(data, at + 8).ok_or(CodecError::NoTrailer { kind, found: MAGIC })?);
    let actual = sum(kind, endian, verifier, at, data.get(..covered).unwrap_or(data));
    compare(kind, verifier.halved(), expected, actual)?;
    Ok(endian)
}

/// Puts magic number and checksum into a block that carries them itself. What stands in the block's last two checksum
/// words stays there if a MAC belongs there. A zilog2 block must already say how many of its bytes are in use.
///
/// # Errors
/// [`CodecError::NoTrailer`] if the block is too short, [`CodecError::ChecksumKind`] as [`verify_embedded`].
pub fn seal_embedded(
    kind: ChecksumKind,
    endian: Endian,
    verifier: Verifier,
    data: &mut [u8],
) -> Result<(), CodecError> {
    let bytes_of = |w: u64| if endian == Endian::Big { w.to_be_bytes() } else { w.to_le_bytes() };
    let at = if kind == ChecksumKind::Zilog2 { Some(LOG2_TRAILER_AT) } else { data.len().checked_sub(TRAILER_BYTES) };
    let short = CodecError::NoTrailer { kind, found: 0 };
    let magic = at.and_then(|at| data.get_mut(at..)?.first_chunk_mut::<8>()).ok_or(short)?;
    *magic = bytes_of(MAGIC);
    let (at, _, covered) = locate(kind, data)?;
    let mut sums = sum(kind, endian, verifier, at, data.get(..covered).unwrap_or(data));
    if verifier.halved() {
        sums = super::beside_mac(kind, sums);
    }
    // The log's MAC is already there.
    let count = if matches!(verifier, Verifier::Log { with_mac: true, .. }) { 2 } else { 4 };
    let trailer = data.get_mut(at + 8..at + TRAILER_BYTES).unwrap_or_default();
    for (to, w) in trailer.as_chunks_mut::<8>().0.iter_mut().zip(sums).take(count) {
        *to = bytes_of(w);
    }
    Ok(())
}

/// The checksum of `data` with the verifier's words in place of the trailer's, which starts at `at`.
fn sum(kind: ChecksumKind, endian: Endian, verifier: Verifier, at: usize, data: &[u8]) -> [u64; 4] {
    let mut block = data.to_vec();
    for (to, w) in block.get_mut(at + 8..).unwrap_or_default().as_chunks_mut::<8>().0.iter_mut().zip(verifier.words()) {
        *to = if endian == Endian::Big { w.to_be_bytes() } else { w.to_le_bytes() };
    }
    match kind {
        ChecksumKind::Zilog => fletcher::fletcher2(endian, &block),
        ChecksumKind::Zilog2 => fletcher::fletcher4(endian, &block),
        _ => words(Endian::Big, digest::digest(&digest::SHA256, &block).as_ref()),
    }
}
