//! Access control lists.

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The owner.
    Owner,
    /// The owning group.
    OwningGroup,
    /// Everyone, owner and group included.
    Everyone,
    /// A user, by number (a FUID: the upper half is the index of a domain, 0 for POSIX).
    User(u64),
    /// A group, likewise.
    Group(u64),
}

/// An NFSv4 access control entry. The numbers are those of RFC 7530, section 6.2.1, which ZFS uses on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// 0 allow, 1 deny, 2 audit, 3 alarm.
    pub kind: u16,
    /// Inheritance flags.
    pub flags: u16,
    /// Access mask.
    pub mask: u32,
    /// Whom.
    pub who: Who,
}

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// The entries, in order.
    pub entries: Vec<Ace>,
    /// It says no more than the mode does.
    pub trivial: bool,
}
