//! Blocks without proof: for tests of what stands behind the checksums, and for nothing else.
//!
//! A checksum keeps chance damage from the decoders, but not a hostile pool: who forges an image writes the checksums
//! that go with it. Damage that is to reach decompressors, dnodes, ZAPs, space maps and the rest, as forged bytes would,
//! must therefore get past the proof. [`Blocks::unproven`](crate::Blocks::unproven) takes proof away and lets a test
//! change the bytes on their way, as a function of the pointer, so that every read of a block tells the same lie.
//!
//! Nothing outside tests may use this: bytes that were read so are worth nothing.

use std::fmt;
use std::sync::Arc;
use weir_format::BlockPointer;

/// Where on its way a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// As it stood on the devices: compressed, perhaps encrypted.
    Physical,
    /// As it is handed out.
    Logical,
    /// The header of a gang.
    Gang,
}

/// Changes bytes on their way.
type Change = dyn Fn(&BlockPointer, Stage, &mut [u8]) + Send + Sync;

/// Changes blocks as who forges a pool would.
#[derive(Clone)]
pub struct PointerForger(Arc<Change>);

impl PointerForger {
    /// Blocks become what `change` makes of them.
    pub fn new(change: impl Fn(&BlockPointer, Stage, &mut [u8]) + Send + Sync + 'static) -> Self {
        PointerForger(Arc::new(change))
    }

    pub(crate) fn forge(&self, pointer: &BlockPointer, stage: Stage, bytes: &mut [u8]) {
        (self.0)(pointer, stage, bytes);
    }
}

impl fmt::Debug for PointerForger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forger")
    }
}
