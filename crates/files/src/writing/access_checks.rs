//! Permission checks of modifying operations. [`crate::permission`] computes a caller's rights; this module
//! determines which rights an operation needs, and what else forbids it:
//!
//! ```text
//!  the file's own flags     immutable, append-only, read-only, not to be unlinked     apply to every user
//!  the owner                may read and write the contents regardless of the mode
//! ```
//!
//! A caller whose permissions were checked before (`Cred::checked`, set for kernel mounts) is subject only to the
//! flags.

use super::node::Node;
use crate::acl::{self, Ace, Acl};
use crate::attributes::FileKind;
use crate::change::{Cred, SetAttributes, SetTime};
use crate::error::FileError;
use crate::permission::{self, AccessInfo, EXECUTE, READ, WRITE};
use weir_format::znode::FileFlags;

/// Rights of a caller on a file as bits of [`READ`], [`WRITE`] and [`EXECUTE`].
pub(crate) fn granted(cred: &Cred, node: &Node) -> Result<u32, FileError> {
    with_access_info(cred, node, |file| permission::granted(cred, file))
}

/// Rights of a caller as a mask of an NFSv4 ACL's entries, and those that an entry denies.
fn granted_mask(cred: &Cred, node: &Node) -> Result<(u32, u32), FileError> {
    with_access_info(cred, node, |file| permission::granted_mask(cred, file))
}

/// Evaluates the attributes of a file that determine access.
fn with_access_info<T>(cred: &Cred, node: &Node, evaluate: impl Fn(&AccessInfo<'_>) -> T) -> Result<T, FileError> {
    let (uid, gid) = node.owner();
    let file = AccessInfo { is_dir: node.is_dir(), mode: node.mode() as u32, uid, gid, posix: None, acl: None };
    if cred.uid == 0 {
        return Ok(evaluate(&file));
    }
    let posix = super::xattrs::nvlist_value(node, permission::POSIX_ACCESS)?;
    let acl = match node.has_flag(FileFlags::ACL_TRIVIAL) {
        true => None,
        false => Some(Acl { entries: node.aces()?.iter().map(Ace::of).collect(), trivial: false, flags: 0 }),
    };
    Ok(evaluate(&AccessInfo { posix: posix.as_deref(), acl: acl.as_ref(), ..file }))
}

fn need(cred: &Cred, node: &Node, rights: u32) -> Result<(), FileError> {
    if cred.checked || granted(cred, node)? & rights == rights {
        return Ok(());
    }
    Err(FileError::Denied { object: node.id })
}

fn refuse(node: &Node, flags: u64) -> Result<(), FileError> {
    if node.has_flag(flags) { Err(FileError::NotPermitted { object: node.id }) } else { Ok(()) }
}

/// Whether the caller is the owner or bypasses owner checks.
pub(crate) fn is_owner(cred: &Cred, node: &Node) -> bool {
    cred.checked || cred.uid == 0 || cred.uid == node.owner().0
}

/// Checks adding a name to a directory.
pub(crate) fn add(cred: &Cred, dir: &Node) -> Result<(), FileError> {
    need(cred, dir, WRITE | EXECUTE)?;
    refuse(dir, FileFlags::IMMUTABLE)
}

/// Checks search permission on a directory that is not modified.
pub(crate) fn pass(cred: &Cred, dir: &Node) -> Result<(), FileError> {
    need(cred, dir, EXECUTE)
}

/// Checks creating a hard link.
pub(crate) fn link(node: &Node) -> Result<(), FileError> {
    if node.is_dir() {
        return Err(FileError::NotPermitted { object: node.id });
    }
    refuse(node, FileFlags::IMMUTABLE | FileFlags::APPENDONLY)
}

/// Checks setting the ACL: the owner may, and users to whom the ACL gives this right.
pub(crate) fn set_acl(cred: &Cred, node: &Node) -> Result<(), FileError> {
    if is_owner(cred, node) || granted_mask(cred, node)?.0 & acl::WRITE_ACL != 0 {
        return refuse(node, FileFlags::IMMUTABLE);
    }
    Err(FileError::NotPermitted { object: node.id })
}

/// Checks removing the name of `node` from `dir`: either ACL may permit it (`zfs_zaccess_delete`), else permission to
/// write in the directory does, unless the file's ACL denies it. In a sticky directory only the owner of either may.
pub(crate) fn remove(cred: &Cred, dir: &Node, node: &Node) -> Result<(), FileError> {
    const STICKY: u64 = 0o1000;
    if !cred.checked {
        let (of_node, denied) = granted_mask(cred, node)?;
        if of_node & acl::DELETE == 0 && granted_mask(cred, dir)?.0 & acl::DELETE_CHILD == 0 {
            need(cred, dir, WRITE | EXECUTE)?;
            if denied & acl::DELETE != 0 {
                return Err(FileError::Denied { object: node.id });
            }
        }
    }
    let sticky = dir.mode() & STICKY != 0;
    if sticky && !is_owner(cred, dir) && !is_owner(cred, node) {
        return Err(FileError::NotPermitted { object: node.id });
    }
    refuse(dir, FileFlags::IMMUTABLE | FileFlags::APPENDONLY | FileFlags::NOUNLINK)?;
    refuse(node, FileFlags::IMMUTABLE | FileFlags::APPENDONLY | FileFlags::NOUNLINK)
}

/// Checks moving a directory to another one, which changes its `..`.
pub(crate) fn move_dir(cred: &Cred, node: &Node) -> Result<(), FileError> {
    need(cred, node, WRITE)
}

/// Checks reading a file. The owner always may, as with writing.
pub(crate) fn read(cred: &Cred, node: &Node) -> Result<(), FileError> {
    if cred.uid != node.owner().0 { need(cred, node, READ) } else { Ok(()) }
}

/// Checks writing to a file, at its end or elsewhere. The owner always may: a process that opened the file can
/// continue writing after the mode was changed.
pub(crate) fn write(cred: &Cred, node: &Node, at_end: bool) -> Result<(), FileError> {
    if cred.uid != node.owner().0 {
        need(cred, node, WRITE)?;
    }
    refuse(node, FileFlags::IMMUTABLE | FileFlags::READONLY | if at_end { 0 } else { FileFlags::APPENDONLY })
}

/// Checks setting attributes.
pub(crate) fn set(cred: &Cred, node: &Node, set: &SetAttributes) -> Result<(), FileError> {
    refuse(node, FileFlags::IMMUTABLE)?;
    let not_permitted = Err(FileError::NotPermitted { object: node.id });
    if set.size_bytes.is_some() {
        write(cred, node, false)?;
    }
    if cred.checked || cred.uid == 0 {
        return Ok(());
    }
    let owner = is_owner(cred, node);
    let (granted, _) = granted_mask(cred, node)?;
    let (uid, gid) = node.owner();
    // With the right to change the owner, a user may make a file its own, and give it to a group of its own.
    let takes = granted & acl::WRITE_OWNER != 0;
    if set.mode.is_some() && !owner && granted & acl::WRITE_ACL == 0
        || set.uid.is_some_and(|new| if new == uid { !owner } else { !(takes && new == cred.uid) })
        || set.gid.is_some_and(|new| !(owner || takes) || new != gid && !cred.in_group(new))
    {
        return not_permitted;
    }
    let times = [set.atime, set.mtime];
    let sets_times = owner || granted & acl::WRITE_ATTRIBUTES != 0;
    if !sets_times && times.iter().any(|time| matches!(time, Some(SetTime::At(_)))) {
        return not_permitted;
    }
    if !sets_times && times.iter().any(Option::is_some) {
        need(cred, node, WRITE)?;
    }
    Ok(())
}

/// Checks setting flags; `guarded`: the change includes flags that bind the superuser and that only the superuser may
/// set.
pub(crate) fn set_flags(cred: &Cred, node: &Node, guarded: bool) -> Result<(), FileError> {
    let superuser = cred.checked || cred.uid == 0;
    let allowed = if guarded { superuser } else { is_owner(cred, node) };
    if allowed { Ok(()) } else { Err(FileError::NotPermitted { object: node.id }) }
}

/// Checks setting an extended attribute: `user` ones need write permission, `trusted` ones the superuser, ACLs and
/// other `system` ones the owner. `user` attributes exist only on files and directories, in a sticky directory only
/// for its owner.
pub(crate) fn set_xattr(cred: &Cred, node: &Node, name: &[u8]) -> Result<(), FileError> {
    refuse(node, FileFlags::IMMUTABLE | FileFlags::APPENDONLY)?;
    let not_permitted = FileError::NotPermitted { object: node.id };
    if name.starts_with(b"user.") {
        if !matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            return Err(not_permitted);
        }
        if node.is_dir() && node.mode() & 0o1000 != 0 && !is_owner(cred, node) {
            return Err(not_permitted);
        }
        return need(cred, node, WRITE);
    }
    let superuser = cred.checked || cred.uid == 0;
    let allowed = if name.starts_with(b"trusted.") { superuser } else { is_owner(cred, node) };
    if allowed { Ok(()) } else { Err(not_permitted) }
}
