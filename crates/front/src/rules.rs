//! Who calls, and what an export permits: hosts that may read and write, and the mapping of users.
//!
//! ```text
//!   call ─▶ Caller: host, stated user ─▶ Files: the file's export ─▶ FileRules::permit(host) ─▶ may write? user after mapping
//! ```
//!
//! Credentials are trusted as a protocol states them, except for those that are mapped. Rules are those of an export, and a
//! call names a file, so what is served ([`crate::Files`]) applies the rules, before it checks permissions on the file.

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

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Address.
    pub address: IpAddr,
    /// Source port.
    pub port: u16,
}

/// A caller of an operation, as its protocol states it. What is served finds out by the rules of the file's export who that
/// is ([`FileRules::permit`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The host.
    pub host: Host,
    /// The user; `None` if the client states none.
    pub credentials: Option<Credentials>,
}

/// Permission of a host in an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Whether it may change anything.
    pub may_write: bool,
    /// Mapping of its users. User 0 bypasses permission checks.
    pub identity: IdentityMap,
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

/// Ports below this one can be bound by a privileged process alone.
const UNPRIVILEGED_PORTS: u16 = 1024;

/// The rules of one export: which hosts may read and write, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRules {
    /// Hosts that may read and write.
    pub writers: Hosts,
    /// Hosts that may only read. A host in both sets has the permission of the longer prefix.
    pub readers: Hosts,
    /// Hosts whose user 0 is not mapped.
    pub root: Hosts,
    /// Mapping of users.
    pub identity: IdentityMap,
    /// Whether clients must call from a port below 1024.
    pub needs_privileged_port: bool,
}

impl FileRules {
    /// Permission of a host; `None` if it has no access.
    pub fn permit(&self, host: Host) -> Option<Permission> {
        if self.needs_privileged_port && host.port >= UNPRIVILEGED_PORTS {
            return None;
        }
        let may_write = match (self.writers.longest_prefix(host.address), self.readers.longest_prefix(host.address)) {
            (None, None) => return None,
            (write, read) => write > read,
        };
        let mut identity = self.identity;
        if identity.squash == Squash::Root && self.root.has(host.address) {
            identity.squash = Squash::None;
        }
        Some(Permission { may_write, identity })
    }
}

/// Rules for everything in a pool, whatever the properties say: every host that can connect may read.
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

    /// Permission of a host.
    pub fn permit(&self, host: Host) -> Permission {
        Permission { may_write: self.may_write(host.address), identity: self.identity }
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
