//! Gang headers (OpenZFS `include/sys/zio.h`, `module/zfs/zio.c`): when no free segment is large enough for a block,
//! it is split into constituents. The block's DVA then refers to a header of pointers to the constituents, which may
//! be gang blocks themselves.
//!
//! ```text
//!  512-byte header    | pointer | pointer | pointer | pad (88) | self-checksum (40) |
//!  larger header      | pointer × ((size - 40) / 128)          | pad | self-checksum |
//! ```
//!
//! Classic headers have 512 bytes. With the feature `dynamic_gang_header` a header fills a sector of the smallest
//! ashift among the vdevs of its copies; a reader tries that size, then 512. The constituents are in order and their
//! sizes add up to the block's size; holes contribute nothing.

use crate::blkptr::BlockPointer;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::label::SelfChecksum;

const WHAT: &str = "gang header";

/// Size of a classic header in bytes.
pub const CLASSIC_BYTES: usize = 512;
/// Size of the largest header in bytes: a sector of the largest ashift.
pub const MAX_BYTES: usize = 1 << 16;

/// Number of pointers in a header of `len` bytes.
pub fn pointers_in(len: usize) -> usize {
    len.saturating_sub(SelfChecksum::SIZE) / BlockPointer::SIZE
}

/// The verifier that replaces the stored checksum words while a header's self-checksum is computed: vdev and offset
/// of the first copy, and the allocation txg.
pub fn verifier(pointer: &BlockPointer) -> [u64; 4] {
    let dva = pointer.dva(0);
    [dva.vdev.into(), dva.offset_bytes, pointer.physical_birth().0, 0]
}

/// Decodes a header whose self-checksum has been verified; returns its pointers without the holes. The byte order is
/// that of the self-checksum.
pub fn decode(header: &[u8]) -> Result<Vec<BlockPointer>, DecodeError> {
    if !(CLASSIC_BYTES..=MAX_BYTES).contains(&header.len()) {
        return Err(DecodeError::Field { what: WHAT, field: "size", value: header.len() as u64 });
    }
    let endian = SelfChecksum::at_end_of(header)?.endian;
    let mut c = Cursor::new(header, endian, WHAT);
    let mut out = Vec::new();
    for _ in 0..pointers_in(header.len()) {
        let pointer = BlockPointer::decode(&mut c)?;
        if !pointer.is_hole() {
            out.push(pointer);
        }
    }
    Ok(out)
}

/// Encodes a header of `len` bytes with an empty self-checksum; `None` if the pointers do not fit.
pub fn encode(pointers: &[BlockPointer], len: usize, endian: Endian) -> Option<Vec<u8>> {
    if pointers.len() > pointers_in(len) {
        return None;
    }
    let mut out: Vec<u8> = pointers.iter().flat_map(|p| p.encode(endian)).collect();
    out.resize(len - SelfChecksum::SIZE, 0);
    out.extend(SelfChecksum { endian, checksum: [0; 4] }.encode());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let pointers = [BlockPointer::from_words([7; 16]), BlockPointer::from_words([9; 16])];
        for len in [512, 4096] {
            for endian in [Endian::Little, Endian::Big] {
                assert_eq!(decode(&encode(&pointers, len, endian).unwrap()).unwrap(), pointers);
            }
        }
        assert_eq!((pointers_in(512), pointers_in(4096)), (3, 31));
        assert!(encode(&[pointers[0]; 4], 512, Endian::Big).is_none());
        assert!(decode(&[0; 512]).is_err() && decode(&[0; 40]).is_err());
    }
}
