//! The hash of ZAP names: CRC-64 (ECMA-182, reflected) started with the ZAP's salt, of which only the leading bits
//! are used.

use super::ZapFlags;

const POLY: u64 = 0xc96c_5795_d787_0f42;

/// Slicing-by-8 tables: table `k` is the CRC of a byte followed by `k` zero bytes.
static TABLES: [[u64; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut bit = 0;
        while bit < 8 {
            c = (c >> 1) ^ (if c & 1 == 1 { POLY } else { 0 });
            bit += 1;
        }
        tables[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            let c = tables[k - 1][i];
            tables[k][i] = (c >> 8) ^ tables[0][(c & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    tables
};

fn step(h: u64, byte: u8) -> u64 {
    (h >> 8) ^ TABLES[0][usize::from(h as u8 ^ byte)]
}

/// Advances the hash by eight bytes, the first in the lowest bits.
fn step_word(h: u64, word: u64) -> u64 {
    let bytes = (h ^ word).to_be_bytes();
    TABLES.iter().zip(bytes).fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)])
}

fn cut(h: u64, flags: ZapFlags) -> u64 {
    let bits = if flags.hash64() { 48 } else { 28 };
    h & !((1 << (64 - bits)) - 1)
}

/// The hash of a name without its NUL; the caller normalises it as the ZAP requires.
pub fn hash_bytes(salt: u64, flags: ZapFlags, name: &[u8]) -> u64 {
    let (words, rest) = name.as_chunks::<8>();
    let h = words.iter().fold(salt, |h, word| step_word(h, u64::from_le_bytes(*word)));
    cut(rest.iter().fold(h, |h, b| step(h, *b)), flags)
}

/// Index of the first NUL in eight bytes, the first in the lowest bits; 8 if there is none.
fn nul_in(word: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    ((word.wrapping_sub(ONES) & !word & (ONES << 7)).trailing_zeros() / 8) as usize
}

/// Hashes many names of one ZAP that are NUL-terminated or fill their fields. Adjacent names often share a prefix, so
/// the hash of the last name's first eight bytes is cached.
pub(super) struct FieldHasher {
    salt: u64,
    /// The first eight bytes of the last name, and the hash after them.
    first: (u64, u64),
}

impl FieldHasher {
    pub(super) fn new(salt: u64) -> Self {
        FieldHasher { salt, first: (0, step_word(salt, 0)) }
    }

    /// The hash of the name in a field, equal to [`hash_bytes`] without flags.
    pub(super) fn hash(&mut self, field: &[u8]) -> u64 {
        let (words, rest) = field.as_chunks::<8>();
        let mut h = self.salt;
        for (n, bytes) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*bytes);
            let end = nul_in(word);
            if end < bytes.len() {
                return cut(bytes.iter().take(end).fold(h, |h, b| step(h, *b)), ZapFlags(0));
            }
            if n > 0 {
                h = step_word(h, word);
                continue;
            }
            if word != self.first.0 {
                self.first = (word, step_word(h, word));
            }
            h = self.first.1;
        }
        cut(rest.iter().take_while(|b| **b != 0).fold(h, |h, b| step(h, *b)), ZapFlags(0))
    }
}

/// The hash of a key of 64-bit integers.
pub fn hash_words(salt: u64, flags: ZapFlags, key: &[u64]) -> u64 {
    if flags.pre_hashed() {
        return cut(key.first().copied().unwrap_or(0), flags);
    }
    cut(key.iter().fold(salt, |h, word| step_word(h, *word)), flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn word_and_byte_steps_agree(salt: u64, name in proptest::collection::vec(any::<u8>(), 0..70)) {
            let flags = ZapFlags(1);
            let slow = cut(name.iter().fold(salt, |h, b| step(h, *b)), flags);
            prop_assert_eq!(hash_bytes(salt, flags, &name), slow);
        }

        #[test]
        fn field_hasher_agrees_with_hash_bytes(
            salt: u64,
            names in proptest::collection::vec(proptest::collection::vec(1u8..4, 0..50), 1..8),
        ) {
            let mut hasher = FieldHasher::new(salt);
            for name in names {
                let mut field = [0; 50];
                field[..name.len()].copy_from_slice(&name);
                prop_assert_eq!(hasher.hash(&field), hash_bytes(salt, ZapFlags(0), &name));
            }
        }
    }
}
