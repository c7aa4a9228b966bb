//! Faults that can be laid over a disk, and lifted again.

/// Names a fault that was laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(pub(crate) u64);

/// What goes wrong. All of it lies over the disk's true contents, so that lifting the fault brings them back; rot,
/// unreadable sectors and misdirected bytes are also mended by writing the place anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// So many bits in the range read flipped.
    Rot {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// How many bits, at places that the seed chooses.
        bits: u32,
    },
    /// Sectors that touch the range cannot be read.
    Unreadable {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The `nth` write from now (0 is the next) lands at `to`, and its own place keeps the old bytes. It reports success.
    Misdirect {
        /// Which write.
        nth: u64,
        /// Where it lands, in bytes.
        to: u64,
    },
    /// Flushes report success and do nothing.
    LyingFlush,
    /// Operations get no answer until the fault is lifted.
    Hang,
    /// The disk is not there: opening and every operation fail.
    Gone,
    /// The `nth` operation from now (0 is the next) fails with `errno`, once.
    FailNth {
        /// Which operation.
        nth: u64,
        /// The error.
        errno: i32,
    },
    /// Every answer takes so many times as long.
    Slow {
        /// How many times.
        factor: u32,
    },
}
