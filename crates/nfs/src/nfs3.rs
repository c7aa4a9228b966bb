//! NFS version 3 (RFC 1813): statuses, attributes, and the procedures in their rooms.
//!
//! - `files`: GETATTR, LOOKUP, ACCESS, READLINK, READ
//! - `listing`: READDIR, READDIRPLUS
//! - `volume`: FSSTAT, FSINFO, PATHCONF
//! - `changes`: SETATTR, WRITE, COMMIT
//! - `names`: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK
//! - `arguments` decodes what changes are told, `weak` knows what files were like before
//!
//! Each procedure decodes its arguments (`None` is GARBAGE_ARGS), resolves the handle, checks permission and writes its
//! results. An error's results carry what the protocol's union for that procedure says they carry: the `post_op_attr` of
//! the object where it is known, else "no attributes"; forgetting that word is the classic mistake that shifts all that
//! follows.

mod arguments;
mod changes;
mod files;
mod listing;
mod names;
mod volume;
mod weak;

pub(crate) use weak::Changes;

use crate::handle::{FileId, HandleError, Handles};
use crate::reply::Results;
use crate::wire::{Decoder, Encoder};
use bytes::Bytes;
use smallvec::SmallVec;
use weir_files::permission::{Guarded, POSIX_ACCESS, granted, is_decided_by_mode};
use weir_files::tree::{Kept, Node, Tree};
use weir_files::{Attributes, Cred, FileError, FileFlags, FileKind};
use weir_machine::Request;

/// The program's number.
pub const PROGRAM: u32 = 100_003;
/// The only version.
pub const VERSION: u32 = 3;
/// Longest handle in the protocol.
const MAX_HANDLE_BYTES: usize = 64;
/// Longest name that is decoded at all; the file system says which are too long.
const MAX_NAME_BYTES: usize = 4096;
/// The largest READ: bytes.
pub const READ_MAX_BYTES: u32 = 1 << 20;
/// The largest WRITE: bytes.
pub const WRITE_MAX_BYTES: u32 = 1 << 20;
/// The largest listing: bytes.
pub const LIST_MAX_BYTES: u32 = 1 << 20;
/// The longest target of a symbolic link that is read: bytes.
const LINK_BYTES: u32 = 1 << 16;
/// XDR size of attributes, and of optional attributes.
const FATTR_BYTES: usize = 84;

/// The statuses that we answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Status {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    Rofs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10_001,
    NotSync = 10_002,
    BadCookie = 10_003,
    NotSupp = 10_004,
    TooSmall = 10_005,
    BadType = 10_007,
    JukeBox = 10_008,
}

/// The one table from our errors to the protocol's.
pub fn status(error: &FileError) -> Status {
    match error {
        FileError::NotFound => Status::NoEnt,
        FileError::NotDirectory { .. } => Status::NotDir,
        FileError::IsDirectory { .. } => Status::IsDir,
        FileError::NotSymlink { .. } => Status::Inval,
        FileError::NameTooLong { .. } => Status::NameTooLong,
        FileError::Corrupt { .. } | FileError::Device { .. } => Status::Io,
        FileError::NoKey => Status::Acces,
        FileError::Stale { .. } => Status::Stale,
        FileError::Unsupported { .. } => Status::NotSupp,
        FileError::ReadOnly => Status::Rofs,
        FileError::NotPermitted { .. } | FileError::Busy => Status::Perm,
        FileError::Denied { .. } => Status::Acces,
        FileError::Exists => Status::Exist,
        FileError::CrossDevice => Status::XDev,
        FileError::TooLarge => Status::FBig,
        FileError::NoSpace => Status::NoSpc,
        FileError::TooManyLinks { .. } => Status::MLink,
        FileError::NotEmpty { .. } => Status::NotEmpty,
        FileError::Quota => Status::DQuot,
        // No call of this protocol sets extended attributes.
        FileError::Invalid { .. }
        | FileError::BadName
        | FileError::NoAttribute
        | FileError::AttributeTooLarge { .. } => Status::Inval,
    }
}

/// The name of a procedure, for the request's context.
pub fn procedure_name(procedure: u32) -> Option<&'static str> {
    const NAMES: [&str; 22] = [
        "null",
        "getattr",
        "setattr",
        "lookup",
        "access",
        "readlink",
        "read",
        "write",
        "create",
        "mkdir",
        "symlink",
        "mknod",
        "remove",
        "rmdir",
        "rename",
        "link",
        "readdir",
        "readdirplus",
        "fsstat",
        "fsinfo",
        "pathconf",
        "commit",
    ];
    NAMES.get(procedure as usize).copied()
}

/// Whether a call must not be done twice: whatever changes something, for a late copy could undo what came after.
pub(crate) fn changes_something(procedure: u32) -> bool {
    matches!(procedure, 2 | 7..=15)
}

/// How many bytes the reply to a call may hold, by what it asks for; 0 for the short ones. See `files` and `listing`.
pub(crate) fn reply_bytes(procedure: u32, arguments: &[u8]) -> usize {
    let mut input = Decoder::new(arguments);
    let mut asked = || {
        handle_argument(&mut input)?;
        match procedure {
            5 => Some(LINK_BYTES),
            6 => (input.u64()?, input.u32().map(|count| count.min(READ_MAX_BYTES))).1,
            16 => (input.u64()?, input.u64()?, input.u32().map(|count| count.min(LIST_MAX_BYTES))).2,
            17 => (input.u64()?, input.u64()?, input.u32()?, input.u32().map(|count| count.min(LIST_MAX_BYTES))).3,
            _ => None,
        }
    };
    asked().unwrap_or(0) as usize
}

/// What a procedure works with.
pub(crate) struct Context<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) handles: &'a Handles,
    pub(crate) caller: Cred,
    pub(crate) rq: &'a Request,
    /// Whether this client may change anything.
    pub(crate) may_write: bool,
    /// The changes under way.
    pub(crate) changes: &'a Changes,
    /// The verifier of unstable writes.
    pub(crate) verifier: [u8; 8],
    /// The call, of which the data of a WRITE are a part.
    pub(crate) message: &'a Bytes,
}

/// A file that a handle or a name led to.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) node: Node,
    pub(crate) attributes: Attributes,
    pub(crate) fsid: u64,
}

/// An optional file, for the results of an error.
pub(crate) type Failed = (Status, Option<Found>);

/// The handles in the arguments of a procedure, as far as they make sense.
fn handles(procedure: u32, arguments: &[u8]) -> SmallVec<[&[u8]; 2]> {
    let mut input = Decoder::new(arguments);
    let first = if procedure == 0 { None } else { handle_argument(&mut input) };
    let second = match procedure {
        14 => name_argument(&mut input).and_then(|_| handle_argument(&mut input)),
        15 => handle_argument(&mut input),
        _ => None,
    };
    first.into_iter().chain(second).collect()
}

/// Runs a procedure; `None` when the arguments make no sense. The files of its handles are kept meanwhile: a handle that was
/// looked at stays what it was, though the call may wait for long before it writes.
pub(crate) async fn run(context: &Context<'_>, procedure: u32, arguments: &[u8], out: Encoder) -> Option<Results> {
    let mut kept = SmallVec::<[Kept; 2]>::new();
    for handle in handles(procedure, arguments) {
        let Ok((node, _)) = context.node(handle) else { continue };
        // What fails here fails there, where it is answered.
        kept.extend(context.tree.keep(context.rq, node).await.ok().flatten());
    }
    let results = run_kept(context, procedure, arguments, out).await;
    for kept in kept {
        if let Err(error) = kept.release(context.rq).await {
            tracing::warn!(%error, "a removed file waits until its file system is next opened");
        }
    }
    results
}

async fn run_kept(context: &Context<'_>, procedure: u32, arguments: &[u8], out: Encoder) -> Option<Results> {
    let input = Decoder::new(arguments);
    let mut out = Results::new(out);
    match procedure {
        0 => {}
        1 => context.getattr(input, &mut out).await?,
        2 => context.setattr(input, &mut out).await?,
        3 => context.lookup(input, &mut out).await?,
        4 => context.access(input, &mut out).await?,
        5 => context.readlink(input, &mut out).await?,
        6 => context.read(input, &mut out).await?,
        7 => context.write(input, &mut out).await?,
        8 => context.create(input, &mut out).await?,
        9 => context.mkdir(input, &mut out).await?,
        10 => context.symlink(input, &mut out).await?,
        11 => context.mknod(input, &mut out).await?,
        12 => context.remove(input, &mut out).await?,
        13 => context.rmdir(input, &mut out).await?,
        14 => context.rename(input, &mut out).await?,
        15 => context.link(input, &mut out).await?,
        16 => context.readdir(input, &mut out).await?,
        17 => context.readdirplus(input, &mut out).await?,
        18 => context.fsstat(input, &mut out).await?,
        19 => context.fsinfo(input, &mut out).await?,
        20 => context.pathconf(input, &mut out).await?,
        21 => context.commit(input, &mut out).await?,
        _ => return None,
    }
    Some(out)
}

impl Context<'_> {
    /// The node and generation that a handle names.
    pub(crate) fn node(&self, handle: &[u8]) -> Result<(Node, u64), Status> {
        let id = self.handles.read(handle).map_err(|error| match error {
            HandleError::Bad => Status::BadHandle,
            HandleError::Stale => Status::Stale,
        })?;
        let branch = self.tree.branch_by_id(id.member).ok_or(Status::Stale)?;
        Ok((id.node(branch), id.generation))
    }

    /// The file of a handle.
    pub(crate) async fn resolve(&self, handle: &[u8]) -> Result<Found, Status> {
        let (node, generation) = self.node(handle)?;
        self.resolve_node(node, generation).await
    }

    async fn resolve_node(&self, node: Node, generation: u64) -> Result<Found, Status> {
        let attributes = self.tree.by_file_id(self.rq, node, generation).await;
        self.found(node, attributes).await
    }

    /// The file at a node.
    pub(crate) async fn at(&self, node: Node) -> Result<Found, Status> {
        self.found(node, self.tree.attributes(self.rq, node).await).await
    }

    async fn found(&self, node: Node, attributes: Result<Attributes, FileError>) -> Result<Found, Status> {
        let attributes = attributes.map_err(|e| self.report(&e))?;
        let fsid = self.tree.fsid(self.rq, node).await.map_err(|e| self.report(&e))?;
        Ok(Found { node, attributes, fsid })
    }

    /// The handle of a file.
    pub(crate) fn handle(&self, node: Node, generation: u64) -> Option<[u8; crate::handle::HANDLE_BYTES]> {
        let member = self.tree.member(node)?.id;
        Some(self.handles.make(FileId { member, object: node.object, generation }))
    }

    /// The protocol's status of an error; errors that mean lost bytes are logged, for the client sees a number alone.
    pub(crate) fn report(&self, error: &FileError) -> Status {
        let status = status(error);
        if matches!(status, Status::Io | Status::NotSupp) {
            tracing::warn!(operation = self.rq.operation, client = %self.rq.client, %error, "answered with an error");
        }
        status
    }

    /// What the caller may do with a file, as bits of read, write and execute.
    pub(crate) async fn granted(&self, found: &Found) -> Result<u32, Status> {
        let attributes = &found.attributes;
        let by_mode = Guarded::by_mode(attributes);
        if is_decided_by_mode(&self.caller, attributes) || found.node.is_synthetic() {
            return Ok(granted(&self.caller, &by_mode));
        }
        let posix = self.tree.xattr(self.rq, found.node, POSIX_ACCESS).await;
        let posix = posix.map_err(|e| self.report(&e))?;
        let acl = match attributes.flags.has(FileFlags::ACL_TRIVIAL) {
            true => None,
            false => self.tree.acl(self.rq, found.node).await.map_err(|e| self.report(&e))?,
        };
        Ok(granted(&self.caller, &Guarded { posix: posix.as_deref(), acl: acl.as_ref(), ..by_mode }))
    }

    /// An error unless the caller has one of these permissions.
    pub(crate) async fn require(&self, found: &Found, any_of: u32) -> Result<(), Status> {
        if self.granted(found).await? & any_of != 0 { Ok(()) } else { Err(Status::Acces) }
    }

    /// The directory of a handle, in which the caller has one of these permissions.
    pub(crate) async fn directory(&self, handle: &[u8], any_of: u32) -> Result<Found, Failed> {
        let dir = self.resolve(handle).await.map_err(|status| (status, None))?;
        if dir.attributes.kind != FileKind::Directory {
            return Err((Status::NotDir, Some(dir)));
        }
        match self.require(&dir, any_of).await {
            Ok(()) => Ok(dir),
            Err(status) => Err((status, Some(dir))),
        }
    }
}

/// Reads a handle from arguments.
pub(crate) fn handle_argument<'a>(input: &mut Decoder<'a>) -> Option<&'a [u8]> {
    input.opaque(MAX_HANDLE_BYTES)
}

/// Reads a name from arguments.
pub(crate) fn name_argument<'a>(input: &mut Decoder<'a>) -> Option<&'a [u8]> {
    input.opaque(MAX_NAME_BYTES)
}

/// Writes `post_op_attr`.
pub(crate) fn post_op(out: &mut Encoder, found: Option<&Found>) {
    out.bool(found.is_some());
    if let Some(found) = found {
        attributes(out, found);
    }
}

/// Writes `fattr3`.
pub(crate) fn attributes(out: &mut Encoder, found: &Found) {
    let from = &found.attributes;
    let kind = match from.kind {
        FileKind::Regular | FileKind::Other => 1,
        FileKind::Directory => 2,
        FileKind::BlockDevice => 3,
        FileKind::CharDevice => 4,
        FileKind::Symlink => 5,
        FileKind::Socket => 6,
        FileKind::Fifo => 7,
    };
    let (major, minor) = from.device.unwrap_or((0, 0));
    out.u32(kind)
        .u32(from.mode & 0o7777)
        .u32(u32::try_from(from.links).unwrap_or(u32::MAX))
        .u32(from.uid)
        .u32(from.gid)
        .u64(from.size_bytes)
        .u64(from.blocks512.saturating_mul(512))
        .u32(major)
        .u32(minor)
        .u64(found.fsid)
        .u64(from.object.0);
    time(out, from.atime_ns);
    time(out, from.mtime_ns);
    time(out, from.ctime_ns);
}

/// Writes `nfstime3`.
pub(crate) fn time(out: &mut Encoder, ns: i128) {
    let (seconds, ns) = nfs_time(ns);
    out.u32(seconds).u32(ns);
}

/// Seconds and nanoseconds of an `nfstime3`. It holds 1970 to 2106; what lies outside becomes the nearest end.
pub(crate) fn nfs_time(ns: i128) -> (u32, u32) {
    const SECOND: i128 = 1_000_000_000;
    let last = i128::from(u32::MAX) * SECOND + SECOND - 1;
    let ns = ns.clamp(0, last);
    ((ns / SECOND) as u32, (ns % SECOND) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_long_as_what_is_asked_for_at_most() {
        let of = |procedure, words: &[u32]| {
            let mut out = Encoder::default();
            out.opaque(&[7; 52]);
            for word in words {
                out.u32(*word);
            }
            reply_bytes(procedure, &out.bytes)
        };
        assert_eq!((of(6, &[0, 0, 4096]), of(6, &[0, 0, u32::MAX]), of(6, &[0, 0])), (4096, 1 << 20, 0));
        assert_eq!((of(16, &[0, 0, 0, 0, 512]), of(17, &[0, 0, 0, 0, 512, 8192])), (512, 8192));
        assert_eq!((of(5, &[]), of(1, &[]), of(7, &[0; 9])), (1 << 16, 0, 0));
        assert_eq!(reply_bytes(6, &[0xff; 3]), 0);
    }
}
