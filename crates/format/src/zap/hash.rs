//! The hash of ZAP names: CRC-64 (ECMA-182, reflected) started with the ZAP's salt, of which only the leading bits count.

use super::ZapFlags;

const POLY: u64 = 0xc96c_5795_d787_0f42;

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut bit = 0;
        while bit < 8 {
            c = (c >> 1) ^ (if c & 1 == 1 { POLY } else { 0 });
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

fn step(h: u64, byte: u8) -> u64 {
    (h >> 8) ^ TABLE[usize::from(h as u8 ^ byte)]
}

fn cut(h: u64, flags: ZapFlags) -> u64 {
    let bits = if flags.hash64() { 48 } else { 28 };
    h & !((1 << (64 - bits)) - 1)
}

/// The hash of a name (without its NUL; normalised if the ZAP says so).
pub fn hash_bytes(salt: u64, flags: ZapFlags, name: &[u8]) -> u64 {
    cut(name.iter().fold(salt, |h, b| step(h, *b)), flags)
}

/// The hash of a key of 64-bit integers.
pub fn hash_words(salt: u64, flags: ZapFlags, key: &[u64]) -> u64 {
    if flags.pre_hashed() {
        return cut(key.first().copied().unwrap_or(0), flags);
    }
    cut(key.iter().flat_map(|w| w.to_le_bytes()).fold(salt, step), flags)
}
