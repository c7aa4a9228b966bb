//! Access control lists.
//!
//! ZFS stores NFSv4 ACLs: in a system attribute, before ZPL version 5 in the znode, or (if long) in an object that
//! the znode references. If a file has no ACL or a *trivial* one, its mode determines access, and an equivalent ACL
//! is computed from the mode. POSIX ACLs (`acltype=posix`) are extended attributes instead: see
//! [`Xattrs::get`](crate::Xattrs::get).

use crate::error::FileError;
use crate::handles::Acls;
use crate::metadata::{Metadata, MetadataScope, StoredAcl, corrupt};
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_format::ObjectId;
use weir_format::acl::{Ace as StoredAce, decode_aces};
use weir_format::znode::FileFlags;
use weir_machine::Request;

/// Maximum size of a stored ACL in bytes: OpenZFS allows 1024 entries of at most 48 bytes.
const MAX_STORED_BYTES: u64 = 1 << 16;

/// Principal of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AceWho {
    /// The owner.
    Owner,
    /// The owning group.
    OwningGroup,
    /// Everyone, owner and group included.
    Everyone,
    /// A user ID (a FUID: the upper half is a domain index, 0 for POSIX).
    User(u64),
    /// A group ID, encoded in the same way.
    Group(u64),
}

/// An NFSv4 access control entry. The values are those of RFC 7530, section 6.2.1, which ZFS uses on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// 0 allow, 1 deny, 2 audit, 3 alarm.
    pub kind: u16,
    /// Inheritance flags.
    pub flags: u16,
    /// Access mask.
    pub mask: u32,
    /// Principal.
    pub who: AceWho,
}

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// The entries, in order.
    pub entries: Vec<Ace>,
    /// The ACL is equivalent to the mode.
    pub trivial: bool,
    /// Flags of the whole list: [`Acl::AUTO_INHERIT`] and so on.
    pub flags: u32,
}

/// Right to read a file or list a directory.
pub const READ_DATA: u32 = 0x1;
/// Right to write a file or add files to a directory.
pub const WRITE_DATA: u32 = 0x2;
/// Right to append to a file or add directories to a directory.
pub const APPEND_DATA: u32 = 0x4;
pub(crate) const READ_NAMED_ATTRS: u32 = 0x8;
pub(crate) const WRITE_NAMED_ATTRS: u32 = 0x10;
/// Right to execute a file or search a directory.
pub const EXECUTE: u32 = 0x20;
/// Remove entries of a directory (`ACE_DELETE_CHILD`).
pub const DELETE_CHILD: u32 = 0x40;
pub(crate) const READ_ATTRIBUTES: u32 = 0x80;
pub(crate) const WRITE_ATTRIBUTES: u32 = 0x100;
pub(crate) const DELETE: u32 = 0x1_0000;
/// Right to read the ACL.
pub const READ_ACL: u32 = 0x2_0000;
pub(crate) const WRITE_ACL: u32 = 0x4_0000;
pub(crate) const WRITE_OWNER: u32 = 0x8_0000;
pub(crate) const SYNCHRONIZE: u32 = 0x10_0000;
/// RFC 7530 flag of entries about a group.
const IDENTIFIER_GROUP: u16 = 0x40;

impl Acl {
    /// Maximum number of entries (`MAX_ACL_ENTRIES`).
    pub const MAX_ENTRIES: usize = 1024;
    /// Flag: the list follows changes of inherited entries (RFC 5661, 6.4.2.3).
    pub const AUTO_INHERIT: u32 = 1;
    /// Flag: entries are not inherited.
    pub const PROTECTED: u32 = 2;
    /// Flag: the list was not set explicitly.
    pub const DEFAULTED: u32 = 4;
    /// The flags, and those of a file that store them.
    const FLAG_MAP: [(u32, u64); 3] = [
        (Acl::AUTO_INHERIT, FileFlags::ACL_AUTO_INHERIT),
        (Acl::PROTECTED, FileFlags::ACL_PROTECTED),
        (Acl::DEFAULTED, FileFlags::ACL_DEFAULTED),
    ];

    /// The list's flags among the flags of a file.
    fn flags_of(flags: FileFlags) -> u32 {
        Acl::FLAG_MAP.iter().filter(|(_, stored)| flags.has(*stored)).map(|(flag, _)| flag).sum()
    }

    /// The list's flags, as flags of a file.
    pub(crate) fn stored_flags(&self) -> u64 {
        Acl::FLAG_MAP.iter().filter(|(flag, _)| self.flags & flag != 0).map(|(_, stored)| stored).sum()
    }

    /// The ACL equivalent to a mode: allow entries for owner, group and everyone, preceded by deny entries for rights
    /// that a later entry would grant to an earlier class.
    pub fn from_mode(mode: u32) -> Self {
        let bits = |shift: u32| mode >> shift & 7;
        let owner = bits(6);
        let group = bits(3);
        let other = bits(0);
        let mask = |bits: u32| {
            let part = |bit: u32, mask: u32| if bits & bit != 0 { mask } else { 0 };
            part(4, READ_DATA) | part(2, WRITE_DATA | APPEND_DATA) | part(1, EXECUTE)
        };
        let always = READ_NAMED_ATTRS | READ_ATTRIBUTES | READ_ACL | SYNCHRONIZE;
        let of_owner = always | WRITE_NAMED_ATTRS | WRITE_ATTRIBUTES | WRITE_ACL | WRITE_OWNER;
        let mut entries = Vec::new();
        let mut add = |kind: u16, flags: u16, mask: u32, who: AceWho| {
            if mask != 0 {
                entries.push(Ace { kind, flags, mask, who });
            }
        };
        add(1, 0, mask((group | other) & !owner), AceWho::Owner);
        add(0, 0, mask(owner) | of_owner, AceWho::Owner);
        add(1, IDENTIFIER_GROUP, mask(other & !group), AceWho::OwningGroup);
        add(0, IDENTIFIER_GROUP, mask(group) | always, AceWho::OwningGroup);
        add(0, 0, mask(other) | always, AceWho::Everyone);
        Acl { entries, trivial: true, flags: 0 }
    }

    pub(crate) async fn load(
        rq: &Request,
        set: &Arc<ObjectSet>,
        object: ObjectId,
        metadata: &Metadata,
    ) -> Result<Self, FileError> {
        let stored = match &metadata.acl {
            StoredAcl::None => Vec::new(),
            StoredAcl::Aces(bytes, count, endian) => decode(object, bytes, *endian, *count, true)?,
            StoredAcl::Znode(acl, endian) if acl.external.0 == 0 => {
                decode(object, &acl.data, *endian, acl.count, acl.version != 0)?
            }
            StoredAcl::Znode(acl, _) => {
                let external = set.object(rq, acl.external).await.map_err(|e| FileError::at(e, object, 0))?;
                // Each block has the byte order of the machine that wrote it.
                let first =
                    set.reader().read_ordered_block(rq, &external, 0).await.map_err(|e| FileError::of(e, &external))?;
                let endian = first.map_or(external.dnode.endian, |(_, endian)| endian);
                let len = acl.size_bytes.min(MAX_STORED_BYTES);
                let bytes = set.reader().read(rq, &external, 0, len as usize, len).await;
                let bytes = bytes.map_err(|e| FileError::of(e, &external))?;
                decode(object, &bytes, endian, acl.count, acl.version != 0)?
            }
        };
        if stored.is_empty() {
            return Ok(Acl { flags: Acl::flags_of(metadata.flags), ..Acl::from_mode(metadata.mode as u32) });
        }
        let trivial = metadata.flags.has(FileFlags::ACL_TRIVIAL);
        Ok(Acl { entries: stored.iter().map(Ace::of).collect(), trivial, flags: Acl::flags_of(metadata.flags) })
    }
}

pub(crate) fn decode(
    object: ObjectId,
    bytes: &[u8],
    endian: weir_format::Endian,
    count: u64,
    fuid: bool,
) -> Result<Vec<StoredAce>, FileError> {
    decode_aces(bytes, endian, count, fuid).map_err(|e| corrupt(object, e))
}

impl Ace {
    /// Whether the entry permits its rights.
    pub fn is_allow(&self) -> bool {
        self.kind == StoredAce::ALLOW
    }

    /// Whether the entry applies only to files and directories that inherit it.
    pub fn is_inherit_only(&self) -> bool {
        self.flags & StoredAce::INHERIT_ONLY != 0
    }

    pub(crate) fn of(stored: &StoredAce) -> Self {
        let who = match stored.flags & StoredAce::WHO_FLAGS {
            f if f & StoredAce::OWNER != 0 => AceWho::Owner,
            f if f & StoredAce::GROUP != 0 => AceWho::OwningGroup,
            f if f & StoredAce::EVERYONE != 0 => AceWho::Everyone,
            f if f & StoredAce::IDENTIFIER_GROUP != 0 => AceWho::Group(stored.who),
            _ => AceWho::User(stored.who),
        };
        // The flags that encode the principal are not NFSv4 flags, except for the group flag.
        let flags = stored.flags & !(StoredAce::OWNER | StoredAce::GROUP | StoredAce::EVERYONE);
        Ace { kind: stored.kind, flags, mask: stored.mask, who }
    }
}

impl Acls<'_> {
    /// The ACL: the stored one, or one computed from the mode.
    pub async fn get(self, rq: &Request, object: ObjectId) -> Result<Acl, FileError> {
        let (_, metadata) = self.files.load(rq, object, MetadataScope::All).await?;
        Acl::load(rq, self.files.objects(), object, &metadata).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_as_an_acl() {
        let acl = Acl::from_mode(0o640);
        assert!(acl.trivial);
        let shown: Vec<_> = acl.entries.iter().map(|e| (e.kind, e.who, e.mask & 0x27)).collect();
        assert_eq!(
            shown,
            [(0, AceWho::Owner, 0x7), (0, AceWho::OwningGroup, 0x1), (0, AceWho::Everyone, 0)],
            "nothing to deny: no class has what a later one lacks"
        );
        let denied: Vec<_> = Acl::from_mode(0o077).entries.into_iter().filter(|e| e.kind == 1).collect();
        assert_eq!(denied.len(), 1);
        assert_eq!((denied[0].who, denied[0].mask), (AceWho::Owner, 0x27));
    }
}
