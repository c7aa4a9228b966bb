//! Directory cookies of the tree.
//!
//! ```text
//!   bit 63   62     61       60 … 0
//!       0     1      0       1 `.`, 2 `..`, 3 `.zfs` or `snapshot`       synthetic entry
//!       0     1      1       an export's ID                            synthetic entry
//!       0     0      the file system's own cookie                       entry of the directory's ZAP
//! ```
//!
//! Synthetic entries are listed first, in this order. A cookie names the entry after which the listing continues, not
//! a count: entries added or removed meanwhile do not shift the others, so a client that resumes a listing, even
//! after a restart, neither misses an entry nor gets one twice. Cookies are positive as signed 64-bit offsets, which
//! FUSE requires.

const SYNTHETIC: u64 = 1 << 62;
const MEMBER: u64 = 1 << 61;

/// Cookies after the entries `.` and `..`.
pub(super) const AFTER_SELF: u64 = 1;
pub(super) const AFTER_PARENT: u64 = 2;
/// Cookie after the directory that leads to snapshots.
pub(super) const AFTER_CONTROL: u64 = 3;

/// ID of an export in cookies: 56 bits.
pub(super) fn number_of(id: u64) -> u64 {
    id & (MEMBER - 1)
}

/// A position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// After this fixed entry; 0 is the beginning.
    Fixed(u64),
    /// After the export with this ID.
    Member(u64),
    /// After the stored entry with this cookie.
    Stored(u64),
}

impl Position {
    /// Decodes a cookie; 0 is the beginning.
    pub(super) fn of(cookie: u64) -> Position {
        match cookie {
            0 => Position::Fixed(0),
            cookie if cookie & SYNTHETIC == 0 => Position::Stored(cookie & (SYNTHETIC - 1)),
            cookie if cookie & MEMBER != 0 => Position::Member(cookie & (MEMBER - 1)),
            cookie => Position::Fixed(cookie & (MEMBER - 1)),
        }
    }

    /// Encodes the position as a cookie.
    pub(super) fn cookie(self) -> u64 {
        match self {
            Position::Fixed(index) => SYNTHETIC | (index & (MEMBER - 1)),
            Position::Member(number) => SYNTHETIC | MEMBER | (number & (MEMBER - 1)),
            Position::Stored(cookie) => cookie & (SYNTHETIC - 1),
        }
    }
}
