//! Hash maps with the same iteration order in every run.
//!
//! The standard library's maps use a random hash key, so two simulations of one seed would visit entries in different
//! orders. These maps use a fixed hash key. An attacker who chooses the map keys can therefore cause collisions: use
//! these maps for keys from a checksummed pool or from Weir itself, and a `BTreeMap` for keys chosen by clients.

#![allow(clippy::disallowed_types, reason = "the fixed-key variants are built on the standard maps")]

use std::hash::{BuildHasherDefault, Hasher};

/// A hash map with a fixed hash key.
pub type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;
/// A hash set with a fixed hash key.
pub type FixedSet<K> = std::collections::HashSet<K, BuildHasherDefault<FixedHasher>>;

/// A multiply-and-fold hasher: a few nanoseconds for small keys (identifiers, offsets, block addresses).
#[derive(Clone, Copy, Debug)]
pub struct FixedHasher(u64);

impl Default for FixedHasher {
    fn default() -> Self {
        // The fractional part of the golden ratio: any odd constant with mixed bits would do.
        FixedHasher(0x9e37_79b9_7f4a_7c15)
    }
}

impl FixedHasher {
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * 0xa076_1d64_78bd_642f;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(u64::from(n));
    }
    fn write_u16(&mut self, n: u16) {
        self.mix(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.mix(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iteration_order_is_deterministic_and_keys_are_distributed() {
        let order = |_| {
            let map: FixedMap<u64, ()> = (0..1000).map(|n| (n << 17, ())).collect();
            map.keys().copied().collect::<Vec<_>>()
        };
        assert_eq!(order(0), order(1));
        let low_bits: FixedSet<u64> = (0u64..4096)
            .map(|n| {
                let mut hasher = FixedHasher::default();
                hasher.write_u64(n << 40);
                hasher.finish() & 0xffff
            })
            .collect();
        assert!(low_bits.len() > 3500, "only {} of 4096 distinct", low_bits.len());
    }
}
