//! The spelling of a name whose case the caller does not know, on a mount for a file server.
//!
//! SMB's clients know no case. If a name does not exist as it is asked for, smbd lists the whole directory to find another
//! spelling, also before it creates a file: the time to fill a directory grows with the square of its files. Samba's module
//! `glusterfs_fuse` asks for an extended attribute of the directory instead, whose name contains the wanted name. Its value is
//! the name as it is stored, with a NUL; the attribute does not exist (ENODATA) if no spelling does, and smbd then lists
//! nothing. Weir finds it by one look-up where `casesensitivity` is `insensitive` or `mixed`; else it searches the directory.
//!
//! The kernel limits names of attributes to 255 bytes, hence such names to 227.
//!
//! Source: `vfs_glusterfs_fuse(8)`.

use crate::inner::{Inner, report};
use bytes::Bytes;
use fuser::Errno;
use weir_files::tree::{self, Node};
use weir_files::{Cred, masks};
use weir_machine::Request;

/// Beginning of the attribute's name.
const PREFIX: &[u8] = b"glusterfs.get_real_filename:";

/// The name whose spelling an attribute stands for, on a mount for a file server.
pub(crate) fn wanted<'a>(inner: &Inner, attribute: &'a [u8]) -> Option<&'a [u8]> {
    attribute.strip_prefix(PREFIX).filter(|_| inner.server.is_some())
}

/// The spelling of a name in a directory, with a NUL. The caller must be allowed to search the directory.
pub(crate) async fn find(inner: &Inner, rq: &Request, cred: &Cred, dir: Node, name: &[u8]) -> Result<Bytes, Errno> {
    inner.permissions().require(rq, cred, dir, masks::EXECUTE).await?;
    let found = tree::spelling(&inner.tree, rq, dir, name).await.map_err(|e| report(rq, &e))?;
    let mut stored = found.ok_or(Errno::NO_XATTR)?;
    debug_assert!(!stored.contains(&0), "names contain no NUL");
    stored.push(0);
    Ok(stored.into())
}
