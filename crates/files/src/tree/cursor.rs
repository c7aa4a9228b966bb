//! Places in a listing, as one number that a client can bring back.
//!
//! A directory of the tree lists first what is laid over it (`.`, `..`, `.zfs`, child file systems), then what its ZAP
//! holds. Bit 62 tells the two apart, so cookies stay positive as signed 64-bit offsets, which FUSE needs; bit 63 is
//! never set. The file system's own cookies must leave both bits free.

const LAID: u64 = 1 << 62;

/// A place in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// After so many laid-over entries.
    Laid(u64),
    /// After the file system's own entry with this cookie.
    Stored(u64),
}

impl Position {
    /// The place that a cookie stands for; 0 is the beginning.
    pub(super) fn of(cookie: u64) -> Position {
        match cookie {
            0 => Position::Laid(0),
            cookie if cookie & LAID != 0 => Position::Laid(cookie & (LAID - 1)),
            cookie => Position::Stored(cookie & (LAID - 1)),
        }
    }

    /// The cookie of a place.
    pub(super) fn cookie(self) -> u64 {
        match self {
            Position::Laid(index) => LAID | (index & (LAID - 1)),
            Position::Stored(cookie) => cookie & (LAID - 1),
        }
    }
}
