//! zle, zero-length encoding (OpenZFS `module/zfs/zle.c` with n = 64): a byte c < 64 is followed by c + 1 literal
//! bytes; c ≥ 64 encodes c − 63 zeros (1…192).

use crate::error::DecompressFault;

const LITERALS: usize = 64;
const ZEROS: usize = 192;

/// Decompresses `source` into `block`, which it fills exactly.
pub fn decompress(mut source: &[u8], mut block: &mut [u8]) -> Result<(), DecompressFault> {
    while !block.is_empty() {
        let (&code, rest) = source.split_first().ok_or(DecompressFault::Truncated)?;
        source = rest;
        let count = usize::from(code) + 1;
        let literal = count <= LITERALS;
        let count = if literal { count } else { count - LITERALS };
        let (now, later) = block.split_at_mut_checked(count).ok_or(DecompressFault::Length)?;
        if literal {
            let (bytes, rest) = source.split_at_checked(count).ok_or(DecompressFault::Truncated)?;
            now.copy_from_slice(bytes);
            source = rest;
        } else {
            now.fill(0);
        }
        block = later;
    }
    Ok(())
}

/// Compresses `block` into `output` and returns the compressed size in bytes; `None` if it does not fit.
pub fn compress(mut block: &[u8], output: &mut [u8]) -> Option<usize> {
    let mut to = 0;
    while let Some(&first) = block.first() {
        let count = if first == 0 {
            let zeros = block.iter().take(ZEROS).take_while(|&&b| b == 0).count();
            *output.get_mut(to)? = (zeros - 1 + LITERALS) as u8;
            to += 1;
            zeros
        } else {
            // A literal run ends at two zeros in a row; a single zero is cheaper as a literal.
            let max = block.len().min(LITERALS);
            let ends = |i: &usize| block[*i] == 0 && block.get(i + 1).is_none_or(|&b| b == 0);
            let literals = (1..max).find(ends).unwrap_or(max);
            let (head, bytes) = output.get_mut(to..to + 1 + literals)?.split_first_mut()?;
            *head = (literals - 1) as u8;
            bytes.copy_from_slice(&block[..literals]);
            to += 1 + literals;
            literals
        };
        block = &block[count..];
    }
    Some(to)
}
