//! Permissions on a mount without the kernel's checks (`default_permissions`): the ACL decides, not the mode alone.
//!
//! ```text
//!   LOOKUP     search the directory                    OPEN       read, write or append, by the flags
//!   OPENDIR    list                                    ACCESS     as asked
//!   GETXATTR   read (user.*), read the ACL             changes    checked by the file system (`weir_files::writing`)
//! ```
//!
//! The owner may always open its file, as with NFS. Operations on an open file (read, write, fsync, fallocate, ftruncate, copies) are not checked again, as POSIX demands. The
//! kernel does not ask for names that it has cached, so it may cache only names in directories that everyone may search,
//! unless the mount has a single user.

use crate::inner::report;
use fuser::Errno;
use weir_files::permission::{self, AccessInfo, POSIX_ACCESS};
use weir_files::tree::{Node, Tree};
use weir_files::{Ace, AceWho, Acl, Cred, FileFlags, FileKind, acl_xdr, masks};
use weir_machine::Request;

/// Kernel's flag of an open for execution (`FMODE_EXEC`).
const OPEN_FOR_EXECUTION: i32 = 0x20;

/// Rights that an open with these flags needs.
pub(crate) fn open_mask(flags: i32) -> u32 {
    let write =
        if flags & libc::O_APPEND != 0 && flags & libc::O_TRUNC == 0 { masks::APPEND_DATA } else { masks::WRITE_DATA };
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY if flags & OPEN_FOR_EXECUTION != 0 => masks::EXECUTE,
        libc::O_RDONLY => masks::READ_DATA,
        libc::O_WRONLY => write,
        _ => masks::READ_DATA | write,
    };
    access | if flags & libc::O_TRUNC != 0 { masks::WRITE_DATA } else { 0 }
}

/// Rights of an `access(2)`.
pub(crate) fn access_mask(mode: i32) -> u32 {
    let part = |bit, mask| if mode & bit != 0 { mask } else { 0 };
    part(libc::R_OK, masks::READ_DATA) | part(libc::W_OK, masks::WRITE_DATA) | part(libc::X_OK, masks::EXECUTE)
}

/// Whether an ACL permits all users to search a directory: an entry for everyone does, and none denies it.
fn is_passable(acl: &Acl) -> bool {
    let mut entries = acl.entries.iter().filter(|ace| ace.mask & masks::EXECUTE != 0 && !ace.is_inherit_only());
    let everyone = entries.clone().any(|ace| ace.is_allow() && ace.who == AceWho::Everyone);
    everyone && entries.all(Ace::is_allow)
}

/// Checks of permissions on a mount.
#[derive(Clone, Copy)]
pub(crate) struct Permissions<'a> {
    pub(crate) tree: &'a Tree,
    /// Whether permissions are checked here, not by the kernel.
    pub(crate) checks: bool,
    /// Whether only the user that mounted it can use the mount.
    pub(crate) single_user: bool,
}

impl Permissions<'_> {
    /// Fails with EACCES unless the caller has all these rights on a file.
    pub(crate) async fn require(self, rq: &Request, cred: &Cred, node: Node, mask: u32) -> Result<(), Errno> {
        if cred.checked {
            return Ok(());
        }
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
        let by_mode = AccessInfo::by_mode(&attributes);
        let (mut granted, _) = permission::granted_mask(cred, &by_mode);
        if cred.uid == 0 {
            // The superuser executes only what anyone may.
            let executes = attributes.kind == FileKind::Directory || attributes.mode & 0o111 != 0;
            granted = if executes { u32::MAX } else { !masks::EXECUTE };
        } else if !node.is_synthetic() && !permission::is_decided_by_mode(cred, &attributes) {
            let acl = self.tree.acl(rq, node).await.map_err(|e| report(rq, &e))?;
            let posix = self.tree.xattr(rq, node, POSIX_ACCESS).await.map_err(|e| report(rq, &e))?;
            (granted, _) =
                permission::granted_mask(cred, &AccessInfo { posix: posix.as_deref(), acl: acl.as_ref(), ..by_mode });
        }
        if cred.uid == attributes.uid {
            // As for NFS: smbd has checked the client's open, and opens for more than the client asked for.
            granted |= masks::READ_DATA | masks::WRITE_DATA | masks::APPEND_DATA;
        }
        if granted & mask == mask { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Whether the kernel may cache names in a directory.
    pub(crate) async fn may_cache_names(self, rq: &Request, dir: Node) -> Result<bool, Errno> {
        if !self.checks || self.single_user || dir.is_synthetic() {
            return Ok(true);
        }
        let attributes = self.tree.attributes(rq, dir).await.map_err(|e| report(rq, &e))?;
        let passable = match attributes.flags.has(FileFlags::ACL_TRIVIAL) {
            true => attributes.mode & 0o111 == 0o111,
            false => self.tree.acl(rq, dir).await.map_err(|e| report(rq, &e))?.is_some_and(|acl| is_passable(&acl)),
        };
        if !passable {
            return Ok(false);
        }
        Ok(self.tree.xattr(rq, dir, POSIX_ACCESS).await.map_err(|e| report(rq, &e))?.is_none())
    }

    /// Checks reading an extended attribute.
    pub(crate) async fn require_xattr(self, rq: &Request, cred: &Cred, node: Node, name: &[u8]) -> Result<(), Errno> {
        match name {
            acl_xdr::NAME => self.require(rq, cred, node, masks::READ_ACL).await,
            name if name.starts_with(b"user.") => self.require(rq, cred, node, masks::READ_DATA).await,
            // As Linux: to others, these do not exist.
            name if name.starts_with(b"trusted.") && !cred.checked && cred.uid != 0 => Err(Errno::NO_XATTR),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cached_where_everyone_may_search() {
        let entry = |kind, flags, who| Ace { kind, flags, mask: masks::EXECUTE, who };
        let acl = |entries| Acl { entries, trivial: false, flags: 0 };
        let everyone = entry(0, 0, AceWho::Everyone);
        assert!(is_passable(&acl(vec![entry(0, 0, AceWho::Owner), everyone])));
        assert!(!is_passable(&acl(vec![entry(1, 0, AceWho::User(7)), everyone])), "all but one");
        assert!(!is_passable(&acl(vec![entry(0, 8, AceWho::Everyone)])), "only for what inherits it");
        assert!(!is_passable(&acl(vec![entry(0, 0, AceWho::Owner)])) && !is_passable(&acl(vec![])));
    }

    #[test]
    fn opens_need_the_rights_of_their_flags() {
        let masks = [
            (libc::O_RDONLY, masks::READ_DATA),
            (libc::O_WRONLY, masks::WRITE_DATA),
            (libc::O_WRONLY | libc::O_APPEND, masks::APPEND_DATA),
            (libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC, masks::WRITE_DATA),
            (libc::O_RDONLY | libc::O_TRUNC, masks::READ_DATA | masks::WRITE_DATA),
            (libc::O_RDWR, masks::READ_DATA | masks::WRITE_DATA),
            (OPEN_FOR_EXECUTION, masks::EXECUTE),
        ];
        for (flags, mask) in masks {
            assert_eq!(open_mask(flags), mask, "{flags:o}");
        }
        assert_eq!(access_mask(libc::R_OK | libc::X_OK), masks::READ_DATA | masks::EXECUTE);
        assert_eq!(access_mask(libc::F_OK), 0);
    }
}
