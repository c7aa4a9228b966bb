//! Blocks with an embedded checksum (`zio_eck_t`): labels and uberblocks, gang headers, intent log blocks.
//!
//! ```text
//!   trailer, 40 bytes:  magic 0x0210da7ab10c7a11 (u64) · checksum (4 × u64)
//!   label, gang header, zilog: the last 40 bytes of the block
//!   zilog2:  at byte 144, in the chain header (pad 8 · next pointer 128 · bytes used 8 · trailer 40)
//! ```
//!
//! While the checksum is computed, a *verifier* that identifies the block's location replaces it, so that a valid
//! block at the wrong location fails. The verifier is the byte offset for labels; vdev, offset and birth for gang
//! headers; the checksum words of the pointer (two random words, the object set, the sequence number) for the log.
//! The magic number determines the byte order of trailer and verifier (`zio_checksum_error_impl`).

use super::{compare, fletcher, words};
use crate::error::CodecError;
use aws_lc_rs::digest;
use weir_format::{ChecksumKind, Endian};

/// The trailer's magic number (`ZEC_MAGIC`).
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Size of the trailer in bytes.
pub const TRAILER_BYTES: usize = 40;
/// Byte offset of the trailer in a zilog2 block.
const LOG2_TRAILER_AT: usize = 144;
/// The checksum of a zilog2 block covers its bytes in use, rounded up to a multiple of this (`ZIL_MIN_BLKSZ`).
const LOG2_ALIGN: u64 = 4096;

/// The expected location of a self-checksummed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verifier {
    /// An area of a label.
    Label {
        /// Offset of the area from the start of the *device* in bytes, for all four labels.
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
        /// The pointer has the X bit and is not of an object set: the checksum is shortened to two words, as beside a
        /// MAC.
        halved: bool,
    },
    /// An intent log block.
    Log {
        /// The checksum words of the pointer to the block.
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

/// The trailer's byte offset, the byte order, and the number of bytes that the checksum covers.
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

/// Verifies a block with an embedded checksum and returns the byte order in which it was written.
///
/// # Errors
/// [`CodecError::NoTrailer`] if the magic number is missing (or, for zilog2, the length in use exceeds the block),
/// [`CodecError::Checksum`] if the bytes are corrupt or the block belongs elsewhere, [`CodecError::ChecksumKind`] for
/// kinds that are stored in the pointer.
pub fn verify_embedded(kind: ChecksumKind, verifier: Verifier, data: &[u8]) -> Result<Endian, CodecError> {
    let (at, endian, covered) = locate(kind, data)?;
    let expected = words(endian, &array::<32>(data, at + 8).ok_or(CodecError::NoTrailer { kind, found: MAGIC })?);
    let actual = sum(kind, endian, verifier, at, data.get(..covered).unwrap_or(data));
    compare(kind, verifier.halved(), expected, actual)?;
    Ok(endian)
}

/// Writes magic number and checksum into the block's trailer. The last two checksum words are kept if they hold a
/// MAC. The bytes in use of a zilog2 block must already be set in its chain header.
///
/// # Errors
/// [`CodecError::NoTrailer`] if the block is too short, [`CodecError::ChecksumKind`] as for [`verify_embedded`].
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
        sums = super::shorten_for_mac(kind, sums);
    }
    // A log block's trailer already holds the MAC.
    let count = if matches!(verifier, Verifier::Log { with_mac: true, .. }) { 2 } else { 4 };
    let trailer = data.get_mut(at + 8..at + TRAILER_BYTES).unwrap_or_default();
    for (to, w) in trailer.as_chunks_mut::<8>().0.iter_mut().zip(sums).take(count) {
        *to = bytes_of(w);
    }
    Ok(())
}

/// The checksum of `data` with the verifier in place of the checksum words in the trailer, which starts at `at`.
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
