//! DOS share reservations: what an open file may be used for, and what others may not do meanwhile.

use super::LockOwner;
use std::ops::BitAnd;

/// Reading, writing, both or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareModes {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

impl BitAnd for ShareModes {
    type Output = bool;
    /// Whether both contain the same mode.
    fn bitand(self, other: ShareModes) -> bool {
        self.read && other.read || self.write && other.write
    }
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Owner; it has at most one reservation of a file.
    pub owner: LockOwner,
    /// Use by the owner.
    pub access: ShareModes,
    /// Use that is denied to others.
    pub deny: ShareModes,
}

impl Share {
    /// Whether the two exclude each other.
    pub(super) fn conflicts(&self, other: &Share) -> bool {
        self.owner != other.owner && (self.access & other.deny || self.deny & other.access)
    }
}
