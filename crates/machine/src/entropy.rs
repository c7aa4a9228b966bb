//! Random bytes: from the kernel in production, from the seed in the simulator.

use std::fmt;
use std::sync::Arc;

/// Source of random bytes behind [`Entropy`].
pub trait EntropySource: Send + Sync {
    /// Fills `bytes` with random bytes; in the simulator they are determined by the seed.
    fn fill(&self, bytes: &mut [u8]);
}

/// The machine's source of random bytes.
#[derive(Clone)]
pub struct Entropy(Arc<dyn EntropySource>);

impl Entropy {
    /// Random bytes from `source`.
    pub fn new(source: Arc<dyn EntropySource>) -> Self {
        Entropy(source)
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }

    /// A uniformly distributed random number.
    pub fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A random number below `bound` (0 if `bound` is 0), almost uniformly distributed.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}
