//! Places in a listing, as one number that a client can bring back.
//!
//! ```text
//!   bit 63   62     61       60 … 0
//!       0     1      0       1 `.`, 2 `..`, 3 `.zfs` or `snapshot`       laid over the directory
//!       0     1      1       a member's number                          the same
//!       0     0      the file system's own cookie                       what the directory's ZAP holds
//! ```
//!
//! What is laid over a directory is listed first, in this order; so a place says after what, and never how many: entries
//! that come and go meanwhile move no other, and who brings a place back, be it from before a restart, misses nothing and
//! gets nothing twice. Cookies stay positive as signed 64-bit offsets, which FUSE needs.

const LAID: u64 = 1 << 62;
const MEMBER: u64 = 1 << 61;

/// After the first entry, `.`, and after the second, `..`.
pub(super) const AFTER_SELF: u64 = 1;
pub(super) const AFTER_PARENT: u64 = 2;
/// After the directory that leads to snapshots.
pub(super) const AFTER_CONTROL: u64 = 3;

/// What stands for a member in cookies: its number, which has 56 bits.
pub(super) fn number_of(id: u64) -> u64 {
    id & (MEMBER - 1)
}

/// A place in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// After this one of the entries that every directory of its kind has; 0 is the beginning.
    Fixed(u64),
    /// After the member of this number.
    Member(u64),
    /// After the file system's own entry with this cookie.
    Stored(u64),
}

impl Position {
    /// The place that a cookie stands for; 0 is the beginning.
    pub(super) fn of(cookie: u64) -> Position {
        match cookie {
            0 => Position::Fixed(0),
            cookie if cookie & LAID == 0 => Position::Stored(cookie & (LAID - 1)),
            cookie if cookie & MEMBER != 0 => Position::Member(cookie & (MEMBER - 1)),
            cookie => Position::Fixed(cookie & (MEMBER - 1)),
        }
    }

    /// The cookie of a place.
    pub(super) fn cookie(self) -> u64 {
        match self {
            Position::Fixed(index) => LAID | (index & (MEMBER - 1)),
            Position::Member(number) => LAID | MEMBER | (number & (MEMBER - 1)),
            Position::Stored(cookie) => cookie & (LAID - 1),
        }
    }
}
