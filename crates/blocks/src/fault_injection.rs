//! Fault injection behind the checksums: for tests only.
//!
//! A checksum protects the decoders from random damage, but not from a malicious pool, because an attacker writes matching
//! checksums. Tests of decompressors, dnodes, ZAPs and space maps with malformed input therefore have to skip checksum
//! verification. [`Blocks::unproven`](crate::Blocks::unproven) skips it and changes the bytes of each block as a function
//! of the pointer, so that every read of a block returns the same bytes.
//!
//! Nothing outside of tests may use this, because the bytes are not verified.

use std::fmt;
use std::sync::Arc;
use weir_format::BlockPointer;

/// Stage of the read pipeline at which bytes are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Bytes as stored on the devices: compressed, perhaps encrypted.
    Physical,
    /// Bytes as returned to the caller.
    Logical,
    /// Header of a gang.
    Gang,
}

/// Function that changes bytes of a block.
type Change = dyn Fn(&BlockPointer, Stage, &mut [u8]) + Send + Sync;

/// Changes the bytes of blocks after they were read.
#[derive(Clone)]
pub struct PointerForger(Arc<Change>);

impl PointerForger {
    /// Applies `change` to the bytes of every block at every stage.
    pub fn new(change: impl Fn(&BlockPointer, Stage, &mut [u8]) + Send + Sync + 'static) -> Self {
        PointerForger(Arc::new(change))
    }

    pub(crate) fn inject(&self, pointer: &BlockPointer, stage: Stage, bytes: &mut [u8]) {
        (self.0)(pointer, stage, bytes);
    }
}

impl fmt::Debug for PointerForger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PointerForger")
    }
}
