//! Allocation of a block: contiguous, or as a gang when no free segment is long enough. Pure.
//!
//! ```text
//!  Gang ─► header, with its own copies        holds the pointers to the pieces; its checksum depends on its address
//!            └─► up to three pieces: contiguous, or gangs again
//! ```
//!
//! All parts of a gang are allocated before any of them is written, so a gang is allocated completely or not at all.

use crate::alloc::{AllocRequest, Allocator, Class, NotAllocated};
use bytes::Bytes;
use weir_codec::checksum::embedded::{Verifier, seal_embedded};
use weir_codec::checksum::pointer_checksum;
use weir_codec::{CodecError, Salt};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, ObjectType, Txg, gang};

/// Maximum nesting of gangs: 3 to the power of this many pieces are enough for 16 MiB in sectors.
const MAX_DEPTH: u8 = 10;

/// A request for the space of a block.
#[derive(Clone, Copy)]
pub(super) struct PlacementRequest {
    pub class: Class,
    pub copies: u8,
    /// Copies of gang headers.
    pub header_copies: u8,
    pub txg: Txg,
    pub unit_bytes: u64,
}

/// Allocated addresses of a block.
#[derive(Debug)]
pub(super) enum Placed {
    Whole(Vec<Dva>),
    Gang {
        header: Vec<Dva>,
        /// Length in bytes and addresses of each piece.
        pieces: Vec<(u64, Placed)>,
    },
}

/// Bytes that are written to each of some addresses.
pub(super) struct Write {
    pub dvas: Vec<Dva>,
    pub bytes: Bytes,
    /// The bytes are the header of a gang, not contents of the block.
    pub is_gang_header: bool,
}

impl Placed {
    pub const NOWHERE: Placed = Placed::Whole(Vec::new());

    /// DVAs of the block pointer; the allocated size of a gang includes its pieces.
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

    /// Visits every allocated range.
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

/// Allocates space for a block, or nothing.
pub(super) fn place(
    space: &mut Allocator,
    psize_bytes: u64,
    request: &PlacementRequest,
) -> Result<Placed, NotAllocated> {
    place_at(space, psize_bytes, request, 0)
}

fn place_at(
    space: &mut Allocator,
    psize_bytes: u64,
    request: &PlacementRequest,
    depth: u8,
) -> Result<Placed, NotAllocated> {
    let PlacementRequest { class, copies, header_copies, txg, unit_bytes } = *request;
    match space.allocate(&AllocRequest { class, psize_bytes, copies, txg }) {
        Err(NotAllocated::Full) if depth < MAX_DEPTH && psize_bytes > unit_bytes => {}
        placed => return placed.map(Placed::Whole),
    }
    let header_request = |copies| AllocRequest { class, psize_bytes: gang::CLASSIC_BYTES as u64, copies, txg };
    let header = match space.allocate(&header_request(header_copies)) {
        Err(NotAllocated::Full) => space.allocate(&header_request(copies))?,
        header => header?,
    };
    let mut gang = (header, Vec::new());
    let mut rest = psize_bytes;
    let count = gang::pointers_in(gang::CLASSIC_BYTES) as u64;
    for left in (1..=count).rev() {
        let bytes = rest.div_ceil(left).next_multiple_of(unit_bytes).min(rest);
        match place_at(space, bytes, request, depth + 1) {
            Ok(piece) => gang.1.push((bytes, piece)),
            Err(why) => {
                let (header, pieces) = gang;
                Placed::Gang { header, pieces }.each(&mut |dva| space.undo(dva, txg));
                return Err(why);
            }
        }
        rest -= bytes;
        if rest == 0 {
            break;
        }
    }
    let (header, pieces) = gang;
    Ok(Placed::Gang { header, pieces })
}

/// Adds the addresses to `pointer`, whose checksum is that of `bytes`, and collects the necessary writes.
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
        Placed::Whole(dvas) => {
            writes.push(Write { dvas: dvas.clone(), bytes: bytes.clone(), is_gang_header: false });
        }
        Placed::Gang { header, pieces } => {
            let mut pointers = Vec::with_capacity(pieces.len());
            let mut at = 0;
            for (len, piece) in pieces {
                let part = bytes.slice(at..at + *len as usize);
                at += *len as usize;
                pointers.push(compose(piece, piece_pointer(&pointer, &part, salt)?, &part, salt, writes)?);
            }
            let bytes = seal_header(&pointer, &pointers)?;
            writes.push(Write { dvas: header.clone(), bytes, is_gang_header: true });
        }
    }
    Ok(pointer)
}

/// The pointer of a gang's piece without its addresses: of no type, uncompressed, with the gang's kind of checksum.
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
