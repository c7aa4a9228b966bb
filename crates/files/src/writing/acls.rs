//! Access control lists as pure functions: the ACL of a mode, an ACL after `chmod`, inheritance, the mode of an ACL
//! (OpenZFS `module/os/linux/zfs/zfs_acl.c`: `acl_trivial_access_masks`, `zfs_acl_chmod`, `zfs_acl_inherit`,
//! `zfs_mode_compute`, `ace_trivial_common`).
//!
//! A file always has an ACL. A *trivial* one is equivalent to its mode:
//!
//! ```text
//!   allow owner   rights that a later deny entry would remove although the mode grants them  (if any)
//!   deny  owner   rights of the group or others that the owner does not have                (if any)
//!   deny  group   rights of others that the group does not have                             (if any)
//!   allow owner · allow group · allow everyone                                                always
//! ```

use crate::acl::{
    APPEND_DATA, DELETE_CHILD, EXECUTE, READ_ACL, READ_ATTRIBUTES, READ_DATA, READ_NAMED_ATTRS, SYNCHRONIZE, WRITE_ACL,
    WRITE_ATTRIBUTES, WRITE_DATA, WRITE_NAMED_ATTRS, WRITE_OWNER,
};
use weir_format::acl::Ace;
use weir_format::znode::FileFlags;

const OWNING_GROUP: u16 = Ace::GROUP | Ace::IDENTIFIER_GROUP;
const INHERIT_FLAGS: u16 = Ace::FILE_INHERIT | Ace::DIRECTORY_INHERIT | Ace::NO_PROPAGATE | Ace::INHERIT_ONLY;
/// The kind bits of a mode, and the bits that an ACL cannot express: set-uid, set-gid, sticky.
const NOT_IN_LIST: u64 = 0o177_000;

/// Effect of `chmod` on ACLs (`aclmode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclMode {
    /// Replace the ACL by that of the mode.
    #[default]
    Discard,
    /// Limit all entries except owner, group and everyone to the group's rights.
    GroupMask,
    /// Keep the entries.
    Passthrough,
    /// Reject `chmod` of a file with a non-trivial ACL.
    Restricted,
}

impl AclMode {
    /// Decodes the property's value; `None` if it is unknown.
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => AclMode::Discard,
            2 => AclMode::GroupMask,
            3 => AclMode::Passthrough,
            4 => AclMode::Restricted,
            _ => return None,
        })
    }
}

/// Entries that new files inherit from the directory's ACL (`aclinherit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclInherit {
    /// None.
    Discard,
    /// Only deny entries.
    NoAllow,
    /// All entries, without the rights to change owner and ACL.
    #[default]
    Restricted,
    /// All entries; those for owner, group and everyone determine the mode.
    Passthrough,
    /// Like `Passthrough`, but execute rights only if the requested mode has them.
    PassthroughX,
}

impl AclInherit {
    /// Decodes the property's value; `None` if it is unknown.
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => AclInherit::Discard,
            1 => AclInherit::NoAllow,
            3 => AclInherit::Passthrough,
            4 => AclInherit::Restricted,
            5 => AclInherit::PassthroughX,
            _ => return None,
        })
    }
}

/// An ACL, and the flags and mode that follow from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AclAndMode {
    pub aces: Vec<Ace>,
    /// File flags that follow from the ACL ([`flag`]).
    pub flags: u64,
    /// Mode of the file, with its kind bits.
    pub mode: u64,
}

struct Masks {
    allow0: u32,
    deny1: u32,
    deny2: u32,
    owner: u32,
    group: u32,
    everyone: u32,
}

fn masks(mode: u64, is_dir: bool) -> Masks {
    let write = WRITE_DATA | APPEND_DATA | if is_dir { DELETE_CHILD } else { 0 };
    let mask = |bits: u64| {
        let part = |bit: u64, mask: u32| if bits & bit != 0 { mask } else { 0 };
        part(4, READ_DATA) | part(2, write) | part(1, EXECUTE)
    };
    let owner = mode >> 6 & 7;
    let group = mode >> 3 & 7;
    let other = mode & 7;
    let always = READ_ACL | READ_ATTRIBUTES | READ_NAMED_ATTRS | SYNCHRONIZE;
    let of_owner = always | WRITE_ATTRIBUTES | WRITE_OWNER | WRITE_ACL | WRITE_NAMED_ATTRS;
    Masks {
        allow0: mask(owner & !group & other),
        deny1: mask(!owner & (group | other) & 7),
        deny2: mask(!group & other & 7),
        owner: of_owner | mask(owner),
        group: always | mask(group),
        everyone: always | mask(other),
    }
}

fn ace(kind: u16, flags: u16, mask: u32) -> Ace {
    Ace { kind, flags, mask, who: 0, object: None }
}

fn is_about_class(ace: &Ace) -> bool {
    matches!(ace.flags & Ace::WHO_FLAGS, Ace::OWNER | OWNING_GROUP | Ace::EVERYONE)
}

/// The ACL after a change of the mode. `split`: entries for owner, group and everyone are replaced by those of the
/// new mode and kept only for inheritance; `trim`: other entries are limited to the group's rights.
fn after_chmod(aces: &[Ace], mode: u64, is_dir: bool, split: bool, trim: bool, flags: &mut u64) -> Vec<Ace> {
    let masks = masks(mode, is_dir);
    let mut out = Vec::with_capacity(aces.len() + 6);
    let mut head = |kind, flags, mask| {
        if mask != 0 {
            out.push(ace(kind, flags, mask));
        }
    };
    head(Ace::ALLOW, Ace::OWNER, masks.allow0);
    head(Ace::DENY, Ace::OWNER, masks.deny1);
    head(Ace::DENY, OWNING_GROUP, masks.deny2);
    for old in aces {
        let mut new = *old;
        let inheritable = is_dir && old.flags & (Ace::FILE_INHERIT | Ace::DIRECTORY_INHERIT) != 0;
        if split && is_about_class(old) {
            if !inheritable {
                continue;
            }
            new.flags |= Ace::INHERIT_ONLY;
        }
        if inheritable {
            *flags |= FileFlags::INHERIT_ACE;
        }
        let counts = new.kind <= Ace::DENY && new.flags & Ace::INHERIT_ONLY == 0;
        if !counts && new.object.is_some() {
            *flags |= FileFlags::ACL_OBJ_ACE;
        }
        if counts && new.kind == Ace::ALLOW && trim {
            new.mask &= masks.group;
        }
        out.push(new);
    }
    out.push(ace(Ace::ALLOW, Ace::OWNER, masks.owner));
    out.push(ace(Ace::ALLOW, OWNING_GROUP, masks.group));
    out.push(ace(Ace::ALLOW, Ace::EVERYONE, masks.everyone));
    out
}

/// The ACL of a new file with this mode (with its kind bits) in a directory with inheritable entries in its ACL
/// `parent`.
pub(crate) fn of_new(
    mode: u64,
    is_dir: bool,
    parent: Option<&[Ace]>,
    inherit: AclInherit,
    acl_mode: AclMode,
) -> AclAndMode {
    let mut flags = if parent.is_none() { FileFlags::ACL_TRIVIAL } else { 0 };
    let mut aces = Vec::new();
    let mut by_mode = true;
    if let Some(parent) = parent {
        (aces, by_mode) = inherited(mode, is_dir, parent, inherit, &mut flags);
        by_mode &= acl_mode != AclMode::Restricted || aces.is_empty();
    }
    if by_mode {
        if is_dir {
            flags |= FileFlags::ACL_AUTO_INHERIT;
        }
        let pass = matches!(inherit, AclInherit::Passthrough | AclInherit::PassthroughX);
        let trim = acl_mode == AclMode::GroupMask && !pass;
        aces = after_chmod(&aces, mode, is_dir, false, trim, &mut flags);
    }
    let computed = mode_of(mode, &aces, 0, 0);
    if parent.is_none() {
        return AclAndMode { aces, flags: flags | computed.flags, mode };
    }
    if is_trivial(&aces) {
        flags |= FileFlags::ACL_TRIVIAL;
    }
    AclAndMode { aces, flags: flags | computed.flags, mode: computed.mode }
}

/// Gives the owner of a new file rights beyond those of the mode, unless an inherited entry decides about the owner.
pub(crate) fn give_owner(acl: &mut AclAndMode, rights: u32) {
    let of_mode = |ace: &&mut Ace| ace.kind == Ace::ALLOW && ace.flags == Ace::OWNER;
    if let Some(ace) = acl.aces.iter_mut().rev().find(of_mode).filter(|ace| ace.mask & rights != rights) {
        ace.mask |= rights;
        // The log records the ACL then.
        acl.flags &= !FileFlags::ACL_TRIVIAL;
    }
}

/// The inherited entries, and whether the entries of the mode must be added.
fn inherited(mode: u64, is_dir: bool, parent: &[Ace], inherit: AclInherit, flags: &mut u64) -> (Vec<Ace>, bool) {
    const SYMLINK: u64 = 0o120_000;
    const REGULAR: u64 = 0o100_000;
    let kind = mode & 0o170_000;
    let mut out = Vec::new();
    let mut by_mode = true;
    if inherit == AclInherit::Discard || kind == SYMLINK {
        return (out, true);
    }
    for old in parent {
        let to_dirs = old.flags & Ace::DIRECTORY_INHERIT != 0;
        let passes_through_dirs = old.flags & Ace::NO_PROPAGATE == 0;
        let usable = is_dir && to_dirs || old.flags & Ace::FILE_INHERIT != 0 && (!is_dir || passes_through_dirs);
        if !usable || inherit == AclInherit::NoAllow && old.kind == Ace::ALLOW {
            continue;
        }
        let pass = matches!(inherit, AclInherit::Passthrough | AclInherit::PassthroughX);
        let group = old.flags & OWNING_GROUP == OWNING_GROUP;
        if pass && (old.flags & (Ace::OWNER | Ace::EVERYONE) != 0 || group) && (kind == REGULAR || is_dir && to_dirs) {
            by_mode = false;
        }
        let mut new = *old;
        if inherit == AclInherit::PassthroughX && old.kind == Ace::ALLOW && !is_dir && mode & 0o111 == 0 {
            new.mask &= !EXECUTE;
        }
        if inherit == AclInherit::Restricted && old.kind == Ace::ALLOW {
            new.mask &= !(WRITE_ACL | WRITE_OWNER);
        }
        new.flags |= Ace::INHERITED;
        if !is_dir || !passes_through_dirs {
            new.flags &= !INHERIT_FLAGS;
        } else {
            *flags |= FileFlags::INHERIT_ACE;
            let files_alone = old.flags & (Ace::FILE_INHERIT | Ace::DIRECTORY_INHERIT) == Ace::FILE_INHERIT;
            new.flags = if files_alone { new.flags | Ace::INHERIT_ONLY } else { new.flags & !Ace::INHERIT_ONLY };
        }
        out.push(new);
    }
    (out, by_mode)
}

/// The ACL after `chmod` to `mode` (with its kind bits).
pub(crate) fn chmod(aces: &[Ace], mode: u64, is_dir: bool, flags: u64, acl_mode: AclMode) -> AclAndMode {
    const KEPT_FLAGS: u64 = FileFlags::ACL_PROTECTED | FileFlags::ACL_DEFAULTED | FileFlags::ACL_AUTO_INHERIT;
    let mut flags = flags & KEPT_FLAGS;
    let old = if acl_mode == AclMode::Discard { &[] } else { aces };
    let trim = acl_mode == AclMode::GroupMask;
    let aces = after_chmod(old, mode, is_dir, true, trim, &mut flags);
    set(aces, mode, is_dir, flags, 0, 0)
}

/// An explicitly set ACL with the mode and flags that follow from it.
pub(crate) fn set(aces: Vec<Ace>, mode: u64, is_dir: bool, flags: u64, uid: u64, gid: u64) -> AclAndMode {
    let computed = mode_of(mode, &aces, uid, gid);
    let heirs = |a: &Ace| a.flags & (Ace::FILE_INHERIT | Ace::DIRECTORY_INHERIT) != 0;
    let mut flags = flags | computed.flags;
    if is_dir && aces.iter().any(heirs) {
        flags |= FileFlags::INHERIT_ACE;
    }
    if is_trivial(&aces) {
        flags |= FileFlags::ACL_TRIVIAL;
    }
    AclAndMode { aces, flags, mode: computed.mode }
}

struct Computed {
    mode: u64,
    flags: u64,
}

/// The mode of an ACL: for each class and right, the first entry that mentions it decides.
fn mode_of(mode: u64, aces: &[Ace], uid: u64, gid: u64) -> Computed {
    let mut out = mode & NOT_IN_LIST;
    let mut seen = 0u64;
    let mut exec_denied = false;
    for ace in aces.iter().filter(|ace| ace.flags & Ace::INHERIT_ONLY == 0) {
        let classes: &[u32] = match ace.flags & Ace::WHO_FLAGS {
            Ace::OWNER => &[6],
            OWNING_GROUP => &[3],
            Ace::EVERYONE => &[6, 3, 0],
            0 if uid != 0 && ace.who == uid => &[6],
            Ace::IDENTIFIER_GROUP if gid != 0 && ace.who == gid => &[3],
            _ => {
                exec_denied |= ace.mask & EXECUTE != 0 && ace.kind == Ace::DENY;
                &[]
            }
        };
        for (right, bit) in [(READ_DATA, 4u64), (WRITE_DATA, 2), (EXECUTE, 1)] {
            for class in classes.iter().filter(|_| ace.mask & right != 0) {
                let bit = bit << class;
                if seen & bit == 0 && ace.kind == Ace::ALLOW {
                    out |= bit;
                }
                seen |= bit;
            }
        }
    }
    exec_denied |= out & 0o111 != 0o111;
    Computed { mode: out, flags: if exec_denied { 0 } else { FileFlags::NO_EXECS_DENIED } }
}

/// Whether an ACL is equivalent to a mode.
pub(crate) fn is_trivial(aces: &[Ace]) -> bool {
    const OWNERS: u32 = WRITE_OWNER | WRITE_ACL | WRITE_ATTRIBUTES | WRITE_NAMED_ATTRS;
    const DELETE: u32 = 0x1_0000;
    aces.iter().all(|ace| {
        let has = |mask: u32| ace.mask & mask != 0;
        let denies_basics = ace.kind == Ace::DENY && has(READ_ACL | READ_ATTRIBUTES);
        let gives_owners = ace.kind == Ace::ALLOW && ace.flags & Ace::OWNER == 0 && has(OWNERS);
        is_about_class(ace)
            && ace.flags & INHERIT_FLAGS == 0
            && !has(DELETE)
            && (!has(DELETE_CHILD) || has(WRITE_DATA))
            && !denies_basics
            && !gives_owners
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_gets_more_rights_where_the_mode_decides() {
        let of = |mode, parent: Option<&[Ace]>, inherit| {
            let mut acl = of_new(mode, false, parent, inherit, AclMode::Discard);
            give_owner(&mut acl, DELETE_CHILD);
            acl
        };
        let file = of(0o100_644, None, AclInherit::Restricted);
        assert_eq!(shown(&file.aces), [(0, 0x1000, 0x1e_01df), (0, 0x2040, 0x12_0089), (0, 0x4000, 0x12_0089)]);
        assert_eq!((file.mode, file.flags), (0o100_644, 0));
        // The owner may do less than others: the first entry is not the one of the mode.
        let odd = of(0o100_405, None, AclInherit::Restricted);
        assert_eq!(odd.aces.iter().filter(|ace| ace.mask & DELETE_CHILD != 0).count(), 1);
        let owner = Ace { kind: 0, flags: Ace::OWNER | Ace::FILE_INHERIT, mask: READ_DATA, who: 0, object: None };
        let inherited = of(0o100_644, Some(&[owner]), AclInherit::Passthrough);
        assert!(inherited.aces.iter().all(|ace| ace.mask & DELETE_CHILD == 0), "{:?}", shown(&inherited.aces));
    }

    fn shown(aces: &[Ace]) -> Vec<(u16, u16, u32)> {
        aces.iter().map(|a| (a.kind, a.flags, a.mask)).collect()
    }

    #[test]
    fn the_acl_of_a_mode_equals_that_of_openzfs() {
        // As shown by `zdb` and `nfs4xdr_getfacl` for a file of mode 644 and a directory of mode 755.
        let file = of_new(0o100_644, false, None, AclInherit::Restricted, AclMode::Discard);
        assert_eq!(shown(&file.aces), [(0, 0x1000, 0x1e_019f), (0, 0x2040, 0x12_0089), (0, 0x4000, 0x12_0089)]);
        assert_eq!((file.mode, file.flags), (0o100_644, FileFlags::ACL_TRIVIAL));
        let dir = of_new(0o040_755, true, None, AclInherit::Restricted, AclMode::Discard);
        assert_eq!(shown(&dir.aces), [(0, 0x1000, 0x1e_01ff), (0, 0x2040, 0x12_00a9), (0, 0x4000, 0x12_00a9)]);
        assert_eq!(dir.flags, FileFlags::ACL_TRIVIAL | FileFlags::ACL_AUTO_INHERIT | FileFlags::NO_EXECS_DENIED);
    }

    #[test]
    fn every_mode_round_trips_through_its_acl() {
        for bits in 0..0o10000 {
            let acl = of_new(0o100_000 | bits, false, None, AclInherit::Restricted, AclMode::Discard);
            assert_eq!(mode_of(0o100_000 | bits & 0o7000, &acl.aces, 0, 0).mode, 0o100_000 | bits, "{bits:o}");
            assert!(is_trivial(&acl.aces), "{bits:o}");
            let changed = chmod(&acl.aces, 0o100_000 | (bits ^ 0o777), false, acl.flags, AclMode::Passthrough);
            assert_eq!(changed.mode & 0o777, bits & 0o777 ^ 0o777);
            assert_ne!(changed.flags & FileFlags::ACL_TRIVIAL, 0);
        }
    }

    #[test]
    fn inheritance_flags_select_the_inherited_entries() {
        let user = Ace { who: 7, ..ace(Ace::ALLOW, Ace::FILE_INHERIT | Ace::DIRECTORY_INHERIT, 0x1f_01ff) };
        let file = of_new(0o100_640, false, Some(&[user]), AclInherit::Restricted, AclMode::Discard);
        let heir = file.aces.iter().find(|a| a.who == 7).unwrap();
        assert_eq!((heir.flags, heir.mask & (WRITE_ACL | WRITE_OWNER)), (Ace::INHERITED, 0));
        assert_eq!((file.mode, file.flags & FileFlags::ACL_TRIVIAL), (0o100_640, 0));
        let dir = of_new(0o040_750, true, Some(&[user]), AclInherit::Passthrough, AclMode::Discard);
        assert_ne!(dir.flags & FileFlags::INHERIT_ACE, 0);
        let none = of_new(0o100_640, false, Some(&[user]), AclInherit::Discard, AclMode::Discard);
        assert_ne!(none.flags & FileFlags::ACL_TRIVIAL, 0);
        let after = chmod(&file.aces, 0o100_600, false, 0, AclMode::Discard);
        assert_ne!(after.flags & FileFlags::ACL_TRIVIAL, 0);
        let kept = chmod(&file.aces, 0o100_600, false, 0, AclMode::GroupMask);
        assert_eq!(kept.aces.iter().find(|a| a.who == 7).unwrap().mask & READ_DATA, 0);
    }
}
