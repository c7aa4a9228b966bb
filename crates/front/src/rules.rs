//! Who calls, and what the exports permit: hosts that may write, and the mapping of users.
//!
//! Credentials are trusted as a protocol states them, except for those that are squashed. Permissions on files are checked by
//! what is served ([`crate::Files`]), with the [`Caller`] that results.

use crate::hosts::Hosts;
use smallvec::SmallVec;
use std::net::IpAddr;

/// Default UID and GID of squashed and anonymous callers.
pub const NOBODY: u32 = 65_534;

/// User and groups, as a client states them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User ID.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: SmallVec<[u32; 16]>,
}

/// A caller of an operation: the user after squashing, and what its host may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user. User 0 bypasses permission checks.
    pub credentials: Credentials,
    /// Whether the host may change anything.
    pub may_write: bool,
}

impl Caller {
    /// User ID.
    pub fn uid(&self) -> u32 {
        self.credentials.uid
    }
}

/// Which callers are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// User and group 0 become the anonymous user and group (root squash).
    #[default]
    Root,
    /// All users become the anonymous user.
    All,
    /// No user is mapped.
    None,
}

/// Mapping of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityMap {
    /// Which credentials are replaced by the anonymous user.
    pub squash: Squash,
    /// UID of the anonymous user.
    pub anon_uid: u32,
    /// GID of the anonymous user.
    pub anon_gid: u32,
}

impl Default for IdentityMap {
    fn default() -> Self {
        IdentityMap { squash: Squash::Root, anon_uid: NOBODY, anon_gid: NOBODY }
    }
}

impl IdentityMap {
    /// The user that calls; `None` if the client states no user.
    pub fn map(&self, stated: Option<&Credentials>) -> Credentials {
        let anonymous = Credentials { uid: self.anon_uid, gid: self.anon_gid, groups: SmallVec::new() };
        let Some(stated) = stated.filter(|_| self.squash != Squash::All) else { return anonymous };
        let squash = |id: u32, anonymous: u32| if self.squash == Squash::Root && id == 0 { anonymous } else { id };
        Credentials {
            uid: squash(stated.uid, self.anon_uid),
            gid: squash(stated.gid, self.anon_gid),
            groups: stated.groups.iter().map(|group| squash(*group, self.anon_gid)).collect(),
        }
    }
}

/// Rules of the exports of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRules {
    /// Hosts that may write; all others may read.
    pub writers: Hosts,
    /// Mapping of users.
    pub identity: IdentityMap,
}

impl Default for ExportRules {
    /// This machine may write, and root is squashed.
    fn default() -> Self {
        ExportRules { writers: Hosts::loopback(), identity: IdentityMap::default() }
    }
}

impl ExportRules {
    /// Whether a host may change what is exported.
    pub fn may_write(&self, host: IpAddr) -> bool {
        self.writers.has(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_anonymous_callers_are_squashed() {
        let map = |squash| IdentityMap { squash, anon_gid: 99, ..IdentityMap::default() };
        let user = |uid, gid, groups: &[u32]| Credentials { uid, gid, groups: SmallVec::from_slice(groups) };
        let root = user(0, 0, &[0, 7]);
        assert_eq!(map(Squash::Root).map(Some(&root)), user(NOBODY, 99, &[99, 7]));
        assert_eq!(map(Squash::None).map(Some(&root)), user(0, 0, &[0, 7]));
        assert_eq!(map(Squash::All).map(Some(&root)), user(NOBODY, 99, &[]));
        assert_eq!(map(Squash::None).map(None), user(NOBODY, 99, &[]));
    }
}
