//! lzjb compression (OpenZFS `module/zfs/lzjb.c`): Lempel-Ziv over a window of 1023 bytes.
//!
//! ```text
//!   control byte: bit i (from the lowest) gives the kind of the ith of the next eight items
//!     0: a literal byte
//!     1: two bytes   LLLLLLDD DDDDDDDD   copy L + 3 bytes (3…66) from D bytes back (1…1023)
//! ```
//! Decompression ends when the block is full; the last copy may be longer than the rest of the block.

use crate::error::DecompressFault;

const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
const DISTANCE_MASK: usize = 0x3ff;
const HASH_SLOTS: usize = 1024;

/// Decompresses `source` into `block`, which it fills exactly.
pub fn decompress(source: &[u8], block: &mut [u8]) -> Result<(), DecompressFault> {
    let mut from = 0;
    let mut to = 0;
    while to < block.len() {
        let control = *source.get(from).ok_or(DecompressFault::Truncated)?;
        from += 1;
        // Fast path: eight literals at once, common in incompressible data.
        if control == 0
            && let (Some(now), Some(target)) = (source.get(from..from + 8), block.get_mut(to..to + 8))
        {
            target.copy_from_slice(now);
            (from, to) = (from + 8, to + 8);
            continue;
        }
        for bit in 0..8 {
            let Some(left) = block.len().checked_sub(to).filter(|&n| n > 0) else { return Ok(()) };
            if control >> bit & 1 == 0 {
                block[to] = *source.get(from).ok_or(DecompressFault::Truncated)?;
                (from, to) = (from + 1, to + 1);
                continue;
            }
            let &[high, low] = source.get(from..).and_then(|s| s.first_chunk()).ok_or(DecompressFault::Truncated)?;
            from += 2;
            let length = (usize::from(high >> 2) + MATCH_MIN).min(left);
            let distance = usize::from(u16::from_be_bytes([high, low])) & DISTANCE_MASK;
            let start = to.checked_sub(distance).filter(|_| distance > 0).ok_or(DecompressFault::Invalid)?;
            repeat(block, start, to, length);
            to += length;
        }
    }
    Ok(())
}

/// Copies `length` bytes from `start` to `to > start`, repeating the copied bytes where the ranges overlap.
#[inline(always)]
fn repeat(block: &mut [u8], start: usize, to: usize, length: usize) {
    if to - start >= length {
        block.copy_within(start..start + length, to);
    } else {
        for i in 0..length {
            block[to + i] = block[start + i];
        }
    }
}

/// Compresses `block` into `output` and returns the compressed size in bytes; `None` if it does not fit.
pub fn compress(block: &[u8], output: &mut [u8]) -> Option<usize> {
    let mut seen = [0usize; HASH_SLOTS];
    let mut at = 0;
    let mut to = 0;
    while at < block.len() {
        let control_at = to;
        let mut control = 0u8;
        // A control byte and eight copies fit, so the writes below stay in bounds.
        output.get(control_at..control_at + 17)?;
        to += 1;
        for bit in 0..8 {
            let Some(&byte) = block.get(at) else { break };
            match find(block, at, &mut seen) {
                Some((start, length)) => {
                    control |= 1 << bit;
                    let pair = ((length - MATCH_MIN) << 10 | (at - start)) as u16;
                    output[to..to + 2].copy_from_slice(&pair.to_be_bytes());
                    (at, to) = (at + length, to + 2);
                }
                None => {
                    output[to] = byte;
                    (at, to) = (at + 1, to + 1);
                }
            }
        }
        output[control_at] = control;
    }
    Some(to)
}

/// The last position with the same three bytes, if it is within the window, and the length of the match. `seen` holds
/// positions plus one by hash; the slot is overwritten with the current position.
#[inline(always)]
fn find(block: &[u8], at: usize, seen: &mut [usize; HASH_SLOTS]) -> Option<(usize, usize)> {
    // As in OpenZFS, the last bytes of a block are always literals, so the comparison needs no bounds checks.
    let ahead = block.get(at..at + MATCH_MAX)?;
    let mut hash = usize::from(ahead[0]) << 16 | usize::from(ahead[1]) << 8 | usize::from(ahead[2]);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = &mut seen[hash & (HASH_SLOTS - 1)];
    let start = std::mem::replace(slot, at + 1).checked_sub(1)?;
    if at - start > DISTANCE_MASK {
        return None;
    }
    let behind = block.get(start..start + MATCH_MAX)?;
    let length = ahead.iter().zip(behind).take_while(|(a, b)| a == b).count();
    (length >= MATCH_MIN).then_some((start, length))
}
