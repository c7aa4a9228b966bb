//! Faults that can be injected into a disk and removed again.

/// Identifies an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(pub(crate) u64);

/// A disk fault. Faults overlay the disk's true contents, so removing a fault restores them. Overwriting a range also
/// repairs bit rot, unreadable sectors and misdirected bytes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bit rot: bits in the range read flipped.
    Rot {
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Number of flipped bits, at positions that the seed determines.
        bits: u32,
    },
    /// Sectors that overlap the range are unreadable (EIO).
    Unreadable {
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// The `nth` write from now (0 is the next) is written at `to` instead of its offset, which keeps the old bytes.
    /// The write reports success.
    Misdirect {
        /// Number of writes before it.
        nth: u64,
        /// Byte offset at which it is written.
        to: u64,
    },
    /// Flushes report success and do nothing.
    LyingFlush,
    /// Operations do not complete until the fault is removed.
    Hang,
    /// The disk is missing: opening it and every operation fail.
    Gone,
    /// The `nth` operation from now (0 is the next) fails with `errno`, once.
    FailNth {
        /// Number of operations before it.
        nth: u64,
        /// The error number.
        errno: i32,
    },
    /// Every flush fails with `errno`, and the disk drops any subset of the writes that it would have made durable.
    FailFlushes {
        /// The error number.
        errno: i32,
    },
    /// Every write fails with `errno` and changes nothing.
    FailWrites {
        /// The error number.
        errno: i32,
    },
    /// Every operation takes `factor` times as long.
    Slow {
        /// Factor by which operations are slowed down.
        factor: u32,
    },
}
