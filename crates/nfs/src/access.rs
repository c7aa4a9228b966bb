//! Who may do what: mode bits, POSIX ACLs and NFSv4 ACLs, as ZFS would decide.
//!
//! ```text
//!  uid 0 (not squashed)          everything; execution where any execute bit is set
//!  a stored POSIX ACL            owner · named users · groups · others, masked (POSIX 1003.1e draft 17)
//!  an ACL that is not trivial    entries in order; the first that speaks of a bit decides it (RFC 7530, 6.2)
//!  otherwise                     the mode
//! ```
//!
//! All functions here are pure; the session fetches what they need. Changes are checked by the file systems themselves;
//! what is decided here is reading, and what ACCESS answers.

use crate::rpc::Credential;
use crate::server::Options;
use smallvec::SmallVec;
use weir_files::{Acl, Attributes, FileKind, Who};

/// The user that root and callers without a name become unless told otherwise.
pub const NOBODY: u32 = 65_534;

/// Whom callers become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// User and group 0 become nobody.
    #[default]
    Root,
    /// Everybody becomes nobody.
    All,
    /// Everybody is who they say they are.
    Nobody,
}

/// Permission to read, in the mode's order of bits.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute or to pass through.
pub const EXECUTE: u32 = 1;

/// A caller after squashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// All groups, the first one first.
    pub groups: SmallVec<[u32; 17]>,
}

impl Caller {
    /// The caller that a credential names, once squashed.
    pub fn new(credential: &Credential, options: &Options) -> Self {
        let anonymous = || Caller { uid: options.anon_uid, groups: SmallVec::from_slice(&[options.anon_gid]) };
        let Credential::System { uid, gid, groups } = credential else { return anonymous() };
        let squash = |id: u32, nobody: u32| if options.squash == Squash::Root && id == 0 { nobody } else { id };
        match options.squash {
            Squash::All => anonymous(),
            Squash::Root | Squash::Nobody => {
                let all = std::iter::once(gid).chain(groups).map(|group| squash(*group, options.anon_gid));
                Caller { uid: squash(*uid, options.anon_uid), groups: all.collect() }
            }
        }
    }

    fn in_group(&self, gid: u32) -> bool {
        self.groups.contains(&gid)
    }

    /// Whether the decision needs no more than mode and owner.
    pub fn is_decided_by_mode(&self, attributes: &Attributes) -> bool {
        self.uid == 0 || (self.uid == attributes.uid && attributes.flags.has(weir_files::FileFlags::ACL_TRIVIAL))
    }
}

/// What the caller may do, as bits of [`READ`], [`WRITE`] and [`EXECUTE`]. `posix` is the value of the extended
/// attribute `system.posix_acl_access`, `acl` the NFSv4 list, where there are any.
pub fn granted(caller: &Caller, attributes: &Attributes, posix: Option<&[u8]>, acl: Option<&Acl>) -> u32 {
    let mode = attributes.mode;
    if caller.uid == 0 {
        let passable = attributes.kind == FileKind::Directory || mode & 0o111 != 0;
        return READ | WRITE | if passable { EXECUTE } else { 0 };
    }
    if let Some(bits) = posix.and_then(|value| posix_granted(caller, attributes, value)) {
        return bits;
    }
    if let Some(acl) = acl.filter(|acl| !acl.trivial) {
        return acl_granted(caller, attributes, acl);
    }
    let shift = if caller.uid == attributes.uid {
        6
    } else if caller.in_group(attributes.gid) {
        3
    } else {
        0
    };
    (mode >> shift) & 7
}

fn acl_granted(caller: &Caller, attributes: &Attributes, acl: &Acl) -> u32 {
    const ALLOW: u16 = 0;
    const DENY: u16 = 1;
    const INHERIT_ONLY: u16 = 0x8;
    // READ_DATA, WRITE_DATA and EXECUTE of the ACE mask stand for our three.
    let bits = |mask: u32| {
        (if mask & 0x1 != 0 { READ } else { 0 })
            | (if mask & 0x2 != 0 { WRITE } else { 0 })
            | (if mask & 0x20 != 0 { EXECUTE } else { 0 })
    };
    let (mut allowed, mut denied) = (0, 0);
    for ace in acl.entries.iter().filter(|ace| ace.flags & INHERIT_ONLY == 0) {
        let meant = match ace.who {
            Who::Owner => caller.uid == attributes.uid,
            Who::OwningGroup => caller.in_group(attributes.gid),
            Who::Everyone => true,
            Who::User(id) => u64::from(caller.uid) == id,
            Who::Group(id) => u32::try_from(id).is_ok_and(|gid| caller.in_group(gid)),
        };
        match ace.kind {
            ALLOW if meant => allowed |= bits(ace.mask) & !denied,
            DENY if meant => denied |= bits(ace.mask) & !allowed,
            _ => {}
        }
    }
    allowed
}

/// Decides by a POSIX ACL in Linux's layout: version 2, then entries of tag, permissions and id, little-endian.
/// `None` if the bytes are not one: then the mode decides.
fn posix_granted(caller: &Caller, attributes: &Attributes, value: &[u8]) -> Option<u32> {
    const USER_OBJ: u16 = 1;
    const USER: u16 = 2;
    const GROUP_OBJ: u16 = 4;
    const GROUP: u16 = 8;
    const MASK: u16 = 16;
    const OTHER: u16 = 32;
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || entries.len() % 8 != 0 {
        return None;
    }
    let (mut owner, mut user, mut other, mut mask) = (None, None, None, 7);
    let (mut in_group, mut by_group) = (false, 0);
    for entry in entries.chunks_exact(8) {
        let (tag, rest) = entry.split_first_chunk::<2>()?;
        let (perm, id) = rest.split_first_chunk::<2>()?;
        let (tag, perm) = (u16::from_le_bytes(*tag), u32::from(u16::from_le_bytes(*perm)) & 7);
        let id = u32::from_le_bytes(id.try_into().ok()?);
        match tag {
            USER_OBJ => owner = Some(perm),
            USER if id == caller.uid => user = Some(perm),
            GROUP_OBJ if caller.in_group(attributes.gid) => (in_group, by_group) = (true, by_group | perm),
            GROUP if caller.in_group(id) => (in_group, by_group) = (true, by_group | perm),
            MASK => mask = perm,
            OTHER => other = Some(perm),
            _ => {}
        }
    }
    if caller.uid == attributes.uid {
        return owner;
    }
    match (user, in_group) {
        (Some(perm), _) => Some(perm & mask),
        (None, true) => Some(by_group & mask),
        (None, false) => other,
    }
}

#[cfg(test)]
mod tests;
