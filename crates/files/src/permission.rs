//! Permission decisions: mode bits, POSIX ACLs and NFSv4 ACLs are evaluated only here, with ZFS's semantics, for all
//! front ends.
//!
//! ```text
//!  uid 0                     all rights; execute only if any execute bit is set
//!  a stored POSIX ACL        owner · named users · groups · others, masked (POSIX 1003.1e draft 17)
//!  a non-trivial ACL         entries in order; the first that mentions a right decides it (RFC 7530, 6.2)
//!  otherwise                 the mode
//! ```
//!
//! All functions are pure; the caller provides the file's attributes. Which rights an operation needs, and what else
//! forbids it, is decided in [`crate::writing`].

use crate::acl::{self, Ace, AceWho, Acl};
use crate::attributes::{Attributes, FileKind};
use crate::change::Cred;
use crate::writing::posix_acl::List;
use weir_format::acl::Ace as StoredAce;
use weir_format::znode::FileFlags;

/// Read permission, in the bit order of the mode.
pub const READ: u32 = 4;
/// Write permission.
pub const WRITE: u32 = 2;
/// Execute or search permission.
pub const EXECUTE: u32 = 1;

/// The attributes of a file that determine access.
#[derive(Clone, Copy, Debug)]
pub struct AccessInfo<'a> {
    /// Whether the file is a directory.
    pub is_dir: bool,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Value of the extended attribute [`POSIX_ACCESS`], if present.
    pub posix: Option<&'a [u8]>,
    /// NFSv4 ACL, if present.
    pub acl: Option<&'a Acl>,
}

/// Name of the extended attribute with the POSIX access ACL.
pub const POSIX_ACCESS: &[u8] = b"system.posix_acl_access";

impl AccessInfo<'_> {
    /// Attributes of a file without ACLs.
    pub fn by_mode(attributes: &Attributes) -> Self {
        let Attributes { mode, uid, gid, kind, .. } = *attributes;
        AccessInfo { is_dir: kind == FileKind::Directory, mode, uid, gid, posix: None, acl: None }
    }
}

/// Whether the mode alone determines the caller's rights, whatever ACLs exist.
pub fn is_decided_by_mode(cred: &Cred, attributes: &Attributes) -> bool {
    cred.uid == 0 || (cred.uid == attributes.uid && attributes.flags.has(FileFlags::ACL_TRIVIAL))
}

/// Rights of a caller as bits of [`READ`], [`WRITE`] and [`EXECUTE`]. An invalid POSIX ACL is ignored.
pub fn granted(cred: &Cred, file: &AccessInfo<'_>) -> u32 {
    let AccessInfo { is_dir, mode, uid, gid, posix, acl } = *file;
    if cred.uid == 0 {
        let passable = is_dir || mode & 0o111 != 0;
        return READ | WRITE | if passable { EXECUTE } else { 0 };
    }
    if let Some(list) = posix.and_then(List::decode) {
        return list.granted(cred, uid, gid);
    }
    if let Some(acl) = acl.filter(|acl| !acl.trivial) {
        return by_entries(cred, &acl.entries, uid, gid);
    }
    let shift = match () {
        () if cred.uid == uid => 6,
        () if cred.in_group(gid) => 3,
        () => 0,
    };
    mode >> shift & 7
}

/// Rights of a caller in the terms of NFSv4 ACLs, as a mask of an entry, and those that an entry denies. The owner may
/// always read and change the ACL and the attributes.
pub fn granted_mask(cred: &Cred, file: &AccessInfo<'_>) -> (u32, u32) {
    const OF_OWNER: u32 = acl::READ_ACL | acl::WRITE_ACL | acl::READ_ATTRIBUTES | acl::WRITE_ATTRIBUTES;
    let (allowed, denied) = match file.acl.filter(|acl| !acl.trivial && file.posix.is_none()) {
        _ if cred.uid == 0 => (u32::MAX, 0),
        Some(acl) => masks_by_entries(cred, &acl.entries, file.uid, file.gid),
        None => {
            let rights = granted(cred, file);
            let part = |bit, mask| if rights & bit != 0 { mask } else { 0 };
            let in_dir = if file.is_dir && rights & EXECUTE != 0 { acl::DELETE_CHILD } else { 0 };
            let always = acl::READ_NAMED_ATTRS | acl::READ_ATTRIBUTES | acl::READ_ACL | acl::SYNCHRONIZE;
            let owner = if cred.uid == file.uid { acl::WRITE_NAMED_ATTRS | acl::WRITE_OWNER } else { 0 };
            let write = acl::WRITE_DATA | acl::APPEND_DATA | in_dir;
            let by_mode = part(READ, acl::READ_DATA) | part(WRITE, write) | part(EXECUTE, acl::EXECUTE);
            (by_mode | always | owner, 0)
        }
    };
    let of_owner = if cred.uid == file.uid { OF_OWNER } else { 0 };
    (allowed | of_owner, denied & !of_owner)
}

fn by_entries(cred: &Cred, entries: &[Ace], uid: u32, gid: u32) -> u32 {
    let (allowed, _) = masks_by_entries(cred, entries, uid, gid);
    let part = |right, bit| if allowed & right != 0 { bit } else { 0 };
    part(acl::READ_DATA, READ) | part(acl::WRITE_DATA, WRITE) | part(acl::EXECUTE, EXECUTE)
}

/// The rights that entries allow and deny: for each right, the first entry that mentions it decides.
fn masks_by_entries(cred: &Cred, entries: &[Ace], uid: u32, gid: u32) -> (u32, u32) {
    let mut allowed = 0;
    let mut denied = 0;
    for ace in entries.iter().filter(|ace| ace.flags & StoredAce::INHERIT_ONLY == 0) {
        let meant = match ace.who {
            AceWho::Owner => cred.uid == uid,
            AceWho::OwningGroup => cred.in_group(gid),
            AceWho::Everyone => true,
            AceWho::User(id) => u64::from(cred.uid) == id,
            AceWho::Group(id) => u32::try_from(id).is_ok_and(|gid| cred.in_group(gid)),
        };
        match ace.kind {
            StoredAce::ALLOW if meant => allowed |= ace.mask & !denied,
            StoredAce::DENY if meant => denied |= ace.mask & !allowed,
            _ => {}
        }
    }
    debug_assert_eq!(allowed & denied, 0, "one entry decides each right");
    (allowed, denied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file<'a>(mode: u32) -> AccessInfo<'a> {
        AccessInfo { is_dir: false, mode, uid: 10, gid: 20, posix: None, acl: None }
    }

    fn caller(uid: u32, groups: &[u32]) -> Cred {
        Cred::new(uid, groups[0], &groups[1..])
    }

    #[test]
    fn mode_classes_are_checked_in_order() {
        let granted = |uid, groups: &[u32]| granted(&caller(uid, groups), &file(0o461));
        assert_eq!([granted(10, &[20]), granted(11, &[5, 20]), granted(11, &[5])], [4, 6, 1]);
    }

    #[test]
    fn root_needs_any_execute_bit() {
        let root = |file| granted(&caller(0, &[0]), &file);
        assert_eq!([root(file(0o461)), root(file(0o600)), root(AccessInfo { is_dir: true, ..file(0) })], [7, 6, 7]);
    }

    fn posix(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&perm.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    #[test]
    fn posix_masks_limit_named_entries() {
        let list = posix(&[(1, 6, 0), (2, 7, 30), (4, 4, 0), (8, 6, 40), (16, 4, 0), (32, 0, 0)]);
        let with = |list| AccessInfo { posix: Some(list), ..file(0o640) };
        let may = |uid, groups: &[u32]| granted(&caller(uid, groups), &with(&list));
        assert_eq!([may(10, &[1]), may(30, &[1]), may(31, &[20]), may(31, &[40]), may(31, &[1])], [6, 4, 4, 4, 0]);
        let unmasked = posix(&[(1, 7, 0), (2, 7, 30), (4, 7, 0), (32, 7, 0)]);
        for broken in [&list[..3], &list[..11], b"", b"\x09\0\0\0", &unmasked] {
            assert_eq!(granted(&caller(31, &[20]), &with(broken)), 4, "the mode decides");
        }
    }

    #[test]
    fn a_mode_grants_the_rights_of_its_acl() {
        let masks = |uid, file: AccessInfo<'_>| granted_mask(&caller(uid, &[1]), &file).0;
        let other = masks(11, file(0o642));
        assert_eq!(other & (acl::READ_DATA | acl::WRITE_DATA | acl::WRITE_ACL), acl::WRITE_DATA);
        assert_ne!(other & acl::READ_ACL, 0);
        assert_ne!(masks(10, file(0)) & acl::WRITE_OWNER, 0);
        let dir = |mode| AccessInfo { is_dir: true, ..file(mode) };
        assert_eq!([2, 3].map(|mode| masks(11, dir(mode)) & acl::DELETE_CHILD != 0), [false, true]);
    }

    #[test]
    fn the_first_matching_ace_decides_a_right() {
        let ace = |kind, flags, mask, who| Ace { kind, flags, mask, who };
        let mut acl = Acl {
            flags: 0,
            entries: vec![
                ace(0, 0x8, 0x21, AceWho::Everyone),
                ace(1, 0, 0x1, AceWho::User(30)),
                ace(0, 0, 0x1, AceWho::Group(40)),
                ace(1, 0, 0x1, AceWho::Group(40)),
                ace(0, 0, 0x20, AceWho::Everyone),
                ace(0, 0, 0x3, AceWho::Owner),
            ],
            trivial: false,
        };
        let may =
            |acl: &Acl, uid, groups: &[u32]| granted(&caller(uid, groups), &AccessInfo { acl: Some(acl), ..file(0) });
        let all = [may(&acl, 30, &[40]), may(&acl, 31, &[40]), may(&acl, 31, &[1]), may(&acl, 10, &[1])];
        assert_eq!(all, [1, 5, 1, 7]);
        let masks = |uid| granted_mask(&caller(uid, &[40]), &AccessInfo { acl: Some(&acl), ..file(0) });
        assert_eq!((masks(31), masks(30)), ((0x21, 0), (0x20, 0x1)));
        assert_eq!(masks(10).0 & (acl::WRITE_ACL | acl::READ_ACL), acl::WRITE_ACL | acl::READ_ACL, "the owner");
        acl.trivial = true;
        assert_eq!(may(&acl, 10, &[1]), 0, "a trivial ACL is equivalent to the mode");
    }
}
