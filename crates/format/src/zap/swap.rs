//! Converts a ZAP block to the other byte order, since a changed block is written in host byte order.

use super::leaf::{CHUNK, ENTRY, HEADER};
use super::{BlockKind, MicroZap};
use crate::cursor::{DecodeError, Endian};

/// Sizes in bytes of the integers at the start of a leaf, of an entry's chunk and of a micro ZAP's slot.
const LEAF_FIELDS: [usize; 8] = [8, 8, 8, 4, 2, 2, 2, 2];
const ENTRY_FIELDS: [usize; 9] = [1, 1, 2, 2, 2, 2, 2, 4, 8];
const SLOT_FIELDS: [usize; 2] = [8, 4];

/// Converts a ZAP block from byte order `from` to `to`: a micro ZAP, or the header or a leaf of a fat ZAP. Any other
/// block is converted as a block of the pointer table.
pub fn byteswapped(block: &[u8], from: Endian, to: Endian) -> Result<Vec<u8>, DecodeError> {
    let mut out = block.to_vec();
    if from == to {
        return Ok(out);
    }
    match BlockKind::of(block, from) {
        Ok(BlockKind::Micro) => {
            let (head, slots) = out.split_at_mut(MicroZap::SLOT.min(block.len()));
            words(head);
            slots.chunks_exact_mut(MicroZap::SLOT).for_each(|slot| fields(slot, &SLOT_FIELDS));
        }
        Ok(BlockKind::Leaf) => leaf(&mut out),
        Ok(BlockKind::Header) | Err(DecodeError::Magic { .. }) => words(&mut out),
        Err(e) => return Err(e),
    }
    Ok(out)
}

fn words(bytes: &mut [u8]) {
    bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
}

/// Reverses the bytes of consecutive integers of these sizes.
fn fields(bytes: &mut [u8], sizes: &[usize]) {
    let mut at = 0;
    for size in sizes {
        if let Some(field) = bytes.get_mut(at..at + size) {
            field.reverse();
        }
        at += size;
    }
}

fn leaf(block: &mut [u8]) {
    fields(block, &LEAF_FIELDS);
    let table_end = HEADER + block.len() / 16;
    if let Some(buckets) = block.get_mut(HEADER..table_end) {
        buckets.chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    for chunk in block.get_mut(table_end..).unwrap_or_default().chunks_exact_mut(CHUNK) {
        match chunk.first() {
            Some(&ENTRY) => fields(chunk, &ENTRY_FIELDS),
            _ => chunk.get_mut(CHUNK - 2..).unwrap_or_default().reverse(),
        }
    }
}
