//! POSIX ACLs in the encoding of Linux's extended attributes (`include/uapi/linux/posix_acl_xattr.h`): version 2,
//! then entries of tag, permissions and ID, little-endian. Semantics: POSIX 1003.1e draft 17.

use crate::change::Cred;
use crate::permission::{EXECUTE, READ, WRITE};

/// Attribute with the access ACL.
pub(crate) const ACCESS: &[u8] = crate::permission::POSIX_ACCESS;
/// Attribute with the default ACL, which new files in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const ALL: u16 = (READ | WRITE | EXECUTE) as u16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid POSIX ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List(Vec<Entry>);

impl List {
    /// Decodes an ACL; `None` if it is invalid.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return None;
        }
        let entries = rest.chunks_exact(8).map(|entry| {
            let (tag, rest) = entry.split_first_chunk::<2>()?;
            let (perm, id) = rest.split_first_chunk::<2>()?;
            let id = u32::from_le_bytes(id.try_into().ok()?);
            Some(Entry { tag: u16::from_le_bytes(*tag), perm: u16::from_le_bytes(*perm), id })
        });
        let list = List(entries.collect::<Option<_>>()?);
        list.is_valid().then_some(list)
    }

    /// Whether owner, group and others occur exactly once, entries are in tag order, and there is at most one mask,
    /// which is required if there are named entries.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP) > 0;
        let tags = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        self.0.iter().all(|e| tags.contains(&e.tag) && e.perm & !ALL == 0)
            && self.0.is_sorted_by_key(|e| e.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (!named || count(MASK) == 1)
    }

    /// Encodes the ACL.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            let is_named = matches!(entry.tag, USER | GROUP);
            out.extend_from_slice(&if is_named { entry.id } else { u32::MAX }.to_le_bytes());
        }
        out
    }

    fn find(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn find_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// Whether it is equivalent to a mode.
    pub fn is_mode(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// Permission bits of the mode; the group bits are the mask, if there is one.
    pub fn mode(&self) -> u64 {
        let owner = self.find(USER_OBJ).unwrap_or(0);
        let group = self.find(MASK).or(self.find(GROUP_OBJ)).unwrap_or(0);
        let other = self.find(OTHER).unwrap_or(0);
        u64::from(owner) << 6 | u64::from(group) << 3 | u64::from(other)
    }

    /// Applies `chmod`.
    pub fn chmod(&mut self, mode: u64) {
        let bits = |shift: u32| (mode >> shift) as u16 & ALL;
        let group = if self.find(MASK).is_some() { MASK } else { GROUP_OBJ };
        for (tag, perm) in [(USER_OBJ, bits(6)), (group, bits(3)), (OTHER, bits(0))] {
            if let Some(entry) = self.find_mut(tag) {
                *entry = perm;
            }
        }
    }

    /// The access ACL of a new file created with `mode` in a directory with this default ACL.
    pub fn of_new(&self, mode: u64) -> Self {
        let mut list = self.clone();
        let both = self.mode() & mode;
        list.chmod(both);
        list
    }

    /// Rights of a caller on a file with this owner and group.
    pub fn granted(&self, cred: &Cred, uid: u32, gid: u32) -> u32 {
        let mask = self.find(MASK).unwrap_or(ALL);
        if cred.uid == uid {
            return self.find(USER_OBJ).unwrap_or(0).into();
        }
        if let Some(named) = self.0.iter().find(|e| e.tag == USER && e.id == cred.uid) {
            return (named.perm & mask).into();
        }
        let groups = self.0.iter().filter(|e| match e.tag {
            GROUP_OBJ => cred.in_group(gid),
            GROUP => cred.in_group(e.id),
            _ => false,
        });
        match groups.map(|e| e.perm).reduce(|a, b| a | b) {
            Some(perm) => (perm & mask).into(),
            None => self.find(OTHER).unwrap_or(0).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn invalid_acls_are_rejected() {
        let good = list(&[(USER_OBJ, 7, NONE), (USER, 6, 10), (GROUP_OBJ, 5, NONE), (MASK, 4, NONE), (OTHER, 0, NONE)]);
        let decoded = List::decode(&good).unwrap();
        assert_eq!(decoded.encode(), good);
        assert_eq!((decoded.mode(), decoded.is_mode()), (0o740, false));
        for bad in [
            list(&[(USER_OBJ, 7, NONE), (USER, 6, 10), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]),
            list(&[(USER_OBJ, 7, NONE), (OTHER, 0, NONE), (GROUP_OBJ, 5, NONE)]),
            list(&[(USER_OBJ, 8, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)]),
            list(&[(USER_OBJ, 7, NONE)]),
            good[..good.len() - 1].to_vec(),
        ] {
            assert_eq!(List::decode(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_others() {
        let entries = [
            (USER_OBJ, 0, NONE),
            (USER, 7, 10),
            (GROUP_OBJ, 6, NONE),
            (GROUP, 1, 5),
            (MASK, 5, NONE),
            (OTHER, 2, NONE),
        ];
        let list = List::decode(&list(&entries)).unwrap();
        let may = |uid, gid: u32, groups: &[u32]| list.granted(&Cred::new(uid, gid, groups), 1, 2);
        assert_eq!(
            [may(1, 2, &[]), may(10, 2, &[]), may(11, 2, &[5]), may(11, 9, &[5]), may(11, 9, &[])],
            [0, 5, 5, 1, 2]
        );
    }

    #[test]
    fn new_files_get_at_most_the_requested_mode() {
        let entries = [(USER_OBJ, 7, NONE), (USER, 7, 10), (GROUP_OBJ, 7, NONE), (MASK, 7, NONE), (OTHER, 5, NONE)];
        let new = List::decode(&list(&entries)).unwrap().of_new(0o640);
        assert_eq!((new.mode(), new.find(USER), new.find(GROUP_OBJ)), (0o640, Some(7), Some(7)));
    }
}
