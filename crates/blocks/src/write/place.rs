//! Where a block goes: whole, or as a gang when no free segment is long enough. Pure.
//!
//! ```text
//!  Gang ─► header, of its own copies          written with the pointers to the pieces, sealed by where it lies
//!            └─► up to three pieces: whole, or gangs again
//! ```
//!
//! All of a gang is placed before any of it is written, so it is placed entirely or not at all.

use crate::alloc::{AllocRequest, Allocator, Class};
use bytes::Bytes;
use weir_codec::checksum::embedded::{Verifier, seal_embedded};
use weir_codec::checksum::pointer_checksum;
use weir_codec::{CodecError, Salt};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, ObjectType, Txg, gang};

/// Deepest gang of gangs: three to the power of this many pieces are enough for 16 MiB in sectors.
const MAX_DEPTH: u8 = 10;

/// What is to be placed.
#[derive(Clone, Copy)]
pub(super) struct PlacementRequest {
    pub class: Class,
    pub copies: u8,
    /// Copies of gang headers.
    pub header_copies: u8,
    pub txg: Txg,
    pub unit_bytes: u64,
}

/// Where a block lies.
#[derive(Debug)]
pub(super) enum Placed {
    Whole(Vec<Dva>),
    Gang {
        header: Vec<Dva>,
        /// Each with its bytes.
        pieces: Vec<(u64, Placed)>,
    },
}

/// Bytes to be written to each of some places.
pub(super) struct Write {
    pub dvas: Vec<Dva>,
    pub bytes: Bytes,
}

impl Placed {
    pub const NOWHERE: Placed = Placed::Whole(Vec::new());

    /// The addresses of the pointer that leads there: a gang's count what its pieces take up as well.
    pub fn dvas(&self) -> Vec<Dva> {
        match self {
            Placed::Whole(dvas) => dvas.clone(),
            Placed::Gang { header, pieces } => {
                let mut dvas = header.clone();
                for (_, piece) in pieces {
                    for (dva, part) in dvas.iter_mut().zip(piece.dvas()) {
                        dva.asize_bytes += part.asize_bytes;
                    }
                }
                dvas.iter_mut().for_each(|d| d.gang = true);
                dvas
            }
        }
    }

    /// Every place that was taken.
    pub fn each(&self, visit: &mut impl FnMut(&Dva)) {
        match self {
            Placed::Whole(dvas) => dvas.iter().for_each(visit),
            Placed::Gang { header, pieces } => {
                header.iter().for_each(&mut *visit);
                for (_, piece) in pieces {
                    piece.each(visit);
                }
            }
        }
    }
}

/// Takes space for a block; `None`, with nothing taken, if there is not enough.
pub(super) fn place(space: &mut Allocator, psize_bytes: u64, order: &PlacementRequest) -> Option<Placed> {
    place_at(space, psize_bytes, order, 0)
}

fn place_at(space: &mut Allocator, psize_bytes: u64, order: &PlacementRequest, depth: u8) -> Option<Placed> {
    let PlacementRequest { class, copies, header_copies, txg, unit_bytes } = *order;
    if let Some(dvas) = space.allocate(&AllocRequest { class, psize_bytes, copies, txg }) {
        return Some(Placed::Whole(dvas));
    }
    if depth >= MAX_DEPTH || psize_bytes <= unit_bytes {
        return None;
    }
    let header_want = |copies| AllocRequest { class, psize_bytes: gang::CLASSIC_BYTES as u64, copies, txg };
    let header = space.allocate(&header_want(header_copies)).or_else(|| space.allocate(&header_want(copies)))?;
    let mut gang = (header, Vec::new());
    let mut rest = psize_bytes;
    let count = gang::pointers_in(gang::CLASSIC_BYTES) as u64;
    for left in (1..=count).rev() {
        let bytes = rest.div_ceil(left).next_multiple_of(unit_bytes).min(rest);
        match place_at(space, bytes, order, depth + 1) {
            Some(piece) => gang.1.push((bytes, piece)),
            None => {
                let (header, pieces) = gang;
                Placed::Gang { header, pieces }.each(&mut |dva| space.undo(dva, txg));
                return None;
            }
        }
        rest -= bytes;
        if rest == 0 {
            break;
        }
    }
    let (header, pieces) = gang;
    Some(Placed::Gang { header, pieces })
}

/// Completes `pointer` (its checksum is that of `bytes`) by its addresses, and adds what has to be written.
pub(super) fn compose(
    placed: &Placed,
    pointer: BlockPointer,
    bytes: &Bytes,
    salt: &Salt,
    writes: &mut Vec<Write>,
) -> Result<BlockPointer, CodecError> {
    let mut words = *pointer.words();
    for (slot, dva) in words.chunks_exact_mut(2).zip(placed.dvas()) {
        slot.copy_from_slice(&dva.to_words());
    }
    let pointer = BlockPointer::from_words(words);
    match placed {
        Placed::Whole(dvas) => writes.push(Write { dvas: dvas.clone(), bytes: bytes.clone() }),
        Placed::Gang { header, pieces } => {
            let (mut pointers, mut at) = (Vec::with_capacity(pieces.len()), 0);
            for (len, piece) in pieces {
                let part = bytes.slice(at..at + *len as usize);
                at += *len as usize;
                pointers.push(compose(piece, piece_pointer(&pointer, &part, salt)?, &part, salt, writes)?);
            }
            writes.push(Write { dvas: header.clone(), bytes: seal_header(&pointer, &pointers)? });
        }
    }
    Ok(pointer)
}

/// The pointer of a gang's piece, but for its addresses: of no type, uncompressed, with a checksum of the same kind.
fn piece_pointer(gang: &BlockPointer, bytes: &[u8], salt: &Salt) -> Result<BlockPointer, CodecError> {
    let kind = gang.checksum_kind().unwrap_or(ChecksumKind::Fletcher4);
    let sectors = bytes.len() as u64 / 512 - 1;
    let kinds = u64::from(kind as u8) << 40 | u64::from(CompressionKind::Off.to_u8()) << 32;
    let mut words = [0; 16];
    words[6] = 1 << 63 | u64::from(ObjectType::NONE.0) << 48 | kinds | sectors << 16 | sectors;
    words[10] = gang.physical_birth().0;
    let sums = pointer_checksum(&BlockPointer::from_words(words), salt, bytes)?;
    words[12..].copy_from_slice(&sums);
    Ok(BlockPointer::from_words(words))
}

fn seal_header(gang: &BlockPointer, pieces: &[BlockPointer]) -> Result<Bytes, CodecError> {
    let short = CodecError::NoTrailer { kind: ChecksumKind::GangHeader, found: 0 };
    let mut header = gang::encode(pieces, gang::CLASSIC_BYTES, Endian::Little).ok_or(short)?;
    let first = gang.dva(0);
    let verifier = Verifier::Gang {
        vdev: first.vdev.into(),
        offset_bytes: first.offset_bytes,
        physical_birth: gang.physical_birth().0,
        halved: gang.uses_crypt() && gang.object_type() != ObjectType::OBJSET,
    };
    seal_embedded(ChecksumKind::GangHeader, Endian::Little, verifier, &mut header)?;
    Ok(Bytes::from(header))
}
