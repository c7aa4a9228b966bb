//! The trace: a hash over all events of a run.
//!
//! Two runs of a seed with equal traces made the same choices and transferred the same bytes in the same order. If
//! the traces differ, the run depends on something other than the seed.

/// A running hash over the events of a run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
}

/// Mixes two words into a hash that depends on all of their bits.
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    let wide = u128::from(state ^ word ^ 0x2d35_8dcc_aa6c_78a5) * 0x8bb8_4b93_962e_acc9;
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// A non-cryptographic hash of bytes, for traces and the canary.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = mix(0x4b33_a62e_d433_d4a3, bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash.rotate_left(5), u64::from_le_bytes(word));
    }
    hash
}

impl Trace {
    /// Adds an event.
    pub fn add(&mut self, what: &'static str, numbers: &[u64]) {
        self.events += 1;
        self.hash = mix(self.hash.rotate_left(7), hash_bytes(what.as_bytes()));
        for number in numbers {
            self.hash = mix(self.hash.rotate_left(7), *number);
        }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }
}
