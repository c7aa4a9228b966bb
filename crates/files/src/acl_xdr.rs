//! NFSv4 ACLs as the extended attribute `system.nfs4_acl_xdr`, in the encoding that Samba's module `nfs4acl_xattr` reads and
//! writes with `encoding = xdr` (`nfs41acl.x`).
//!
//! ```text
//!   list    flags (u32) · number of entries (u32) · entries
//!   entry   type (u32) · flags (u32) · kind of principal (u32) · mask (u32) · principal (u32)       20 bytes
//! ```
//!
//! Numbers are big-endian. The kind of principal has bit 0 for a special one: 1 the owner, 2 the owning group, 3 everyone.
//! Otherwise the principal is a user ID, or a group ID if the entry's flags contain 0x40. Flags, types and masks are those of
//! RFC 7530, which ZFS stores too. FUIDs of Windows domains (IDs above 32 bits) have no encoding.

use crate::acl::{Ace, AceWho, Acl};
use crate::error::FileError;
use weir_format::acl::Ace as StoredAce;

/// Name of the attribute.
pub const NAME: &[u8] = b"system.nfs4_acl_xdr";

const ENTRY_BYTES: usize = 20;
const HEAD_BYTES: usize = 8;
/// Bit of the kind of principal: a special one.
const SPECIAL: u32 = 1;
const OWNER: u32 = 1;
const OWNING_GROUP: u32 = 2;
const EVERYONE: u32 = 3;
/// Principal of an entry whose ID has no encoding: the ID that no user has.
const NO_ID: u32 = u32::MAX;
/// Flags of entries that the attribute carries: inheritance, audit, group, inherited.
const ENTRY_FLAGS: u32 = 0xff;

/// Encodes a list.
pub fn encode(acl: &Acl) -> Vec<u8> {
    let count = acl.entries.len();
    let mut out = Vec::with_capacity(HEAD_BYTES + count * ENTRY_BYTES);
    let mut add = |words: &[u32]| words.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
    add(&[acl.flags, count as u32]);
    for ace in &acl.entries {
        let group = u32::from(StoredAce::IDENTIFIER_GROUP);
        let (kind, principal, group) = match ace.who {
            AceWho::Owner => (SPECIAL, OWNER, 0),
            AceWho::OwningGroup => (SPECIAL, OWNING_GROUP, group),
            AceWho::Everyone => (SPECIAL, EVERYONE, 0),
            AceWho::User(id) => (0, u32::try_from(id).unwrap_or(NO_ID), 0),
            AceWho::Group(id) => (0, u32::try_from(id).unwrap_or(NO_ID), group),
        };
        let flags = u32::from(ace.flags) & ENTRY_FLAGS & !u32::from(StoredAce::IDENTIFIER_GROUP) | group;
        add(&[u32::from(ace.kind), flags, kind, ace.mask, principal]);
    }
    out
}

/// Decodes a list.
///
/// # Errors
/// [`FileError::Invalid`] if the length does not fit the number of entries, there are more than 1024, or a type, flag or
/// special principal is unknown.
pub fn decode(bytes: &[u8]) -> Result<Acl, FileError> {
    let invalid = |why| FileError::Invalid { why };
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|word| word.iter().fold(0, |n, byte| n << 8 | u32::from(*byte))).collect();
    let [flags, count, entries @ ..] = words.as_slice() else { return Err(invalid("the ACL is too short")) };
    let count = *count as usize;
    if count > Acl::MAX_ENTRIES {
        return Err(invalid("the ACL has more than 1024 entries"));
    }
    if bytes.len() != HEAD_BYTES + count * ENTRY_BYTES {
        return Err(invalid("the length of the ACL does not fit its number of entries"));
    }
    let entries = entries.chunks_exact(ENTRY_BYTES / 4).map(entry).collect::<Option<Vec<_>>>();
    let entries = entries.ok_or(invalid("an entry of the ACL has an unknown type, flag or principal"))?;
    debug_assert_eq!(entries.len(), count, "each entry is decoded");
    let known = Acl::AUTO_INHERIT | Acl::PROTECTED | Acl::DEFAULTED;
    Ok(Acl { entries, trivial: false, flags: flags & known })
}

fn entry(words: &[u32]) -> Option<Ace> {
    let [kind, flags, special, mask, principal] = *words else { return None };
    let is_group = flags & u32::from(StoredAce::IDENTIFIER_GROUP) != 0;
    let who = match (special, principal) {
        (SPECIAL, OWNER) => AceWho::Owner,
        (SPECIAL, OWNING_GROUP) => AceWho::OwningGroup,
        (SPECIAL, EVERYONE) => AceWho::Everyone,
        (0, NO_ID) => return None,
        (0, id) if is_group => AceWho::Group(id.into()),
        (0, id) => AceWho::User(id.into()),
        _ => return None,
    };
    let kind = u16::try_from(kind).ok().filter(|kind| *kind <= StoredAce::ALARM)?;
    let flags = u16::try_from(flags).ok().filter(|flags| u32::from(*flags) & !ENTRY_FLAGS == 0)?;
    let of_group = if matches!(who, AceWho::OwningGroup | AceWho::Group(_)) { StoredAce::IDENTIFIER_GROUP } else { 0 };
    Some(Ace { kind, flags: flags & !StoredAce::IDENTIFIER_GROUP | of_group, mask, who })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: Vec<Ace>) -> Acl {
        Acl { entries, trivial: false, flags: Acl::PROTECTED }
    }

    #[test]
    fn the_encoding_is_that_of_samba() {
        let list = acl(vec![
            Ace { kind: 0, flags: 0, mask: 0x1f_01ff, who: AceWho::Owner },
            Ace { kind: 1, flags: 0x43, mask: 2, who: AceWho::Group(1000) },
        ]);
        let words = [2u32, 2, 0, 0, 1, 0x1f_01ff, 1, 1, 0x43, 0, 2, 1000];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(encode(&list), bytes);
        assert_eq!(decode(&bytes).unwrap(), list);
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = encode(&acl(vec![Ace { kind: 0, flags: 0, mask: 1, who: AceWho::Everyone }]));
        decode(&good).unwrap();
        decode(&encode(&acl(vec![]))).unwrap();
        assert!(decode(&good[..27]).is_err() && decode(&[&good[..], &[0]].concat()).is_err() && decode(b"").is_err());
        for (at, byte) in [(7, 2), (4, 0xff), (11, 4), (14, 1), (19, 2), (27, 4)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
        let many = acl(vec![Ace { kind: 0, flags: 0, mask: 1, who: AceWho::User(5) }; 1025]);
        assert!(decode(&encode(&many)).is_err());
        let domain = acl(vec![Ace { kind: 0, flags: 0, mask: 1, who: AceWho::User(1 << 32 | 5) }]);
        assert!(decode(&encode(&domain)).is_err(), "an ID of a domain cannot be set by this attribute");
    }

    proptest! {
        #[test]
        fn lists_round_trip(entries in proptest::collection::vec((0u16..4, 0u16..64, any::<u32>(), 0u8..5, 0u32..1_000_000), 0..20)) {
            let entries = entries.into_iter().map(|(kind, flags, mask, who, id)| {
                let who = match who {
                    0 => AceWho::Owner,
                    1 => AceWho::OwningGroup,
                    2 => AceWho::Everyone,
                    3 => AceWho::User(id.into()),
                    _ => AceWho::Group(id.into()),
                };
                let group = matches!(who, AceWho::OwningGroup | AceWho::Group(_));
                Ace { kind, flags: flags | if group { StoredAce::IDENTIFIER_GROUP } else { 0 }, mask, who }
            }).collect();
            let list = acl(entries);
            prop_assert_eq!(decode(&encode(&list)).unwrap(), list);
        }
    }
}
