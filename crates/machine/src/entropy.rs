//! Chance: the system's in production, the seed's in the simulator.

use std::fmt;
use std::sync::Arc;

/// What stands behind [`Entropy`].
pub trait EntropySource: Send + Sync {
    /// Fills `bytes` with unpredictable bytes (predictable from the seed, in the simulator).
    fn fill(&self, bytes: &mut [u8]);
}

/// The machine's source of chance.
#[derive(Clone)]
pub struct Entropy(Arc<dyn EntropySource>);

impl Entropy {
    /// Chance from `source`.
    pub fn new(source: Arc<dyn EntropySource>) -> Self {
        Entropy(source)
    }

    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }

    /// A number, each as likely as any other.
    pub fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number below `bound` (0 when `bound` is 0), as good as even.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}
