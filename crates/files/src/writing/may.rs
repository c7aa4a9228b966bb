//! Who may change what. What rights a caller has is decided in [`crate::permission`]; here, which rights a change needs, and
//! what else forbids it:
//!
//! ```text
//!  the file's own flags     immutable, append-only, read-only, not to be unlinked     bind everyone
//!  the owner                may read and write the contents whatever the mode says
//! ```
//!
//! A caller whose permissions were checked before (`Cred::checked`: the kernel does for a mount) is not checked again,
//! but for the flags.

use super::node::Node;
use crate::acl::{Ace, Acl};
use crate::attributes::FileKind;
use crate::change::{Cred, SetAttributes, SetTime};
use crate::error::FileError;
use crate::permission::{self, EXECUTE, Guarded, READ, WRITE};
use weir_format::znode::flag;

/// The rights that a caller has to a file, as bits of [`READ`], [`WRITE`] and [`EXECUTE`].
pub(crate) fn granted(cred: &Cred, node: &Node) -> Result<u32, FileError> {
    let (uid, gid) = node.owner();
    let file = Guarded { is_dir: node.is_dir(), mode: node.mode() as u32, uid, gid, posix: None, acl: None };
    if cred.uid == 0 {
        return Ok(permission::granted(cred, &file));
    }
    let posix = super::xattrs::listed(node, permission::POSIX_ACCESS)?;
    let acl = match node.has_flag(flag::ACL_TRIVIAL) {
        true => None,
        false => Some(Acl { entries: node.aces()?.iter().map(Ace::of).collect(), trivial: false }),
    };
    Ok(permission::granted(cred, &Guarded { posix: posix.as_deref(), acl: acl.as_ref(), ..file }))
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

/// Whether the caller is the owner, or may act as if.
pub(crate) fn is_owner(cred: &Cred, node: &Node) -> bool {
    cred.checked || cred.uid == 0 || cred.uid == node.owner().0
}

/// Adding a name to a directory.
pub(crate) fn add(cred: &Cred, dir: &Node) -> Result<(), FileError> {
    need(cred, dir, WRITE | EXECUTE)?;
    refuse(dir, flag::IMMUTABLE)
}

/// Passing through a directory, where nothing is changed.
pub(crate) fn pass(cred: &Cred, dir: &Node) -> Result<(), FileError> {
    need(cred, dir, EXECUTE)
}

/// Another name for a file.
pub(crate) fn link(node: &Node) -> Result<(), FileError> {
    if node.is_dir() {
        return Err(FileError::NotPermitted { object: node.id });
    }
    refuse(node, flag::IMMUTABLE | flag::APPENDONLY)
}

/// Taking the name of `node` out of `dir`. In a sticky directory only the owners of either may.
pub(crate) fn remove(cred: &Cred, dir: &Node, node: &Node) -> Result<(), FileError> {
    const STICKY: u64 = 0o1000;
    need(cred, dir, WRITE | EXECUTE)?;
    let sticky = dir.mode() & STICKY != 0;
    if sticky && !is_owner(cred, dir) && !is_owner(cred, node) {
        return Err(FileError::NotPermitted { object: node.id });
    }
    refuse(dir, flag::IMMUTABLE | flag::APPENDONLY | flag::NOUNLINK)?;
    refuse(node, flag::IMMUTABLE | flag::APPENDONLY | flag::NOUNLINK)
}

/// Moving a directory to another one: its entry `..` changes.
pub(crate) fn move_dir(cred: &Cred, node: &Node) -> Result<(), FileError> {
    need(cred, node, WRITE)
}

/// Reading what a file holds. The owner may whatever the mode says, as with writing.
pub(crate) fn read(cred: &Cred, node: &Node) -> Result<(), FileError> {
    if cred.uid != node.owner().0 { need(cred, node, READ) } else { Ok(()) }
}

/// Writing to a file, at its end or elsewhere. The owner may whatever the mode says: who has opened the file and then
/// taken the right away goes on writing.
pub(crate) fn write(cred: &Cred, node: &Node, at_end: bool) -> Result<(), FileError> {
    if cred.uid != node.owner().0 {
        need(cred, node, WRITE)?;
    }
    refuse(node, flag::IMMUTABLE | flag::READONLY | if at_end { 0 } else { flag::APPENDONLY })
}

/// Setting attributes.
pub(crate) fn set(cred: &Cred, node: &Node, set: &SetAttributes) -> Result<(), FileError> {
    refuse(node, flag::IMMUTABLE)?;
    let not_permitted = Err(FileError::NotPermitted { object: node.id });
    if set.size_bytes.is_some() {
        write(cred, node, false)?;
    }
    if cred.checked || cred.uid == 0 {
        return Ok(());
    }
    let owner = is_owner(cred, node);
    let (uid, gid) = node.owner();
    if set.mode.is_some() && !owner
        || set.uid.is_some_and(|new| new != uid || !owner)
        || set.gid.is_some_and(|new| !owner || new != gid && !cred.in_group(new))
    {
        return not_permitted;
    }
    let times = [set.atime, set.mtime];
    if !owner && times.iter().any(|time| matches!(time, Some(SetTime::At(_)))) {
        return not_permitted;
    }
    if !owner && times.iter().any(Option::is_some) {
        need(cred, node, WRITE)?;
    }
    Ok(())
}

/// Setting flags; `guarded`: those that bind the superuser as well, and that only he sets.
pub(crate) fn set_flags(cred: &Cred, node: &Node, guarded: bool) -> Result<(), FileError> {
    let superuser = cred.checked || cred.uid == 0;
    let allowed = if guarded { superuser } else { is_owner(cred, node) };
    if allowed { Ok(()) } else { Err(FileError::NotPermitted { object: node.id }) }
}

/// Setting an extended attribute: those of users need the right to write, `trusted` ones the superuser, lists and other
/// `system` ones the owner. Users' attributes are for files and directories, and in a sticky directory for its owner.
pub(crate) fn set_xattr(cred: &Cred, node: &Node, name: &[u8]) -> Result<(), FileError> {
    refuse(node, flag::IMMUTABLE | flag::APPENDONLY)?;
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
