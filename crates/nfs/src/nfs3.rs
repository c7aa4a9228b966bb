//! NFS version 3 (RFC 1813): attributes, and the dispatch of procedures to these modules:
//!
//! - `files`: GETATTR, LOOKUP, ACCESS, READLINK, READ
//! - `listing`: READDIR, READDIRPLUS
//! - `fs_info`: FSSTAT, FSINFO, PATHCONF
//! - `changes`: SETATTR, WRITE, COMMIT
//! - `names`: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK
//! - `arguments` decodes the arguments of modifying procedures
//!
//! Each procedure decodes its arguments (`None` is GARBAGE_ARGS) and the handle, calls what is served
//! ([`weir_front::Files`]), which checks permissions, and encodes its results. The results of an error must match the protocol's union for that procedure: the `post_op_attr` of the
//! object if it is known, else "no attributes". Omitting that word would shift everything after it.

mod arguments;
mod changes;
mod files;
mod fs_info;
mod listing;
mod names;

use crate::handle::{HandleError, Handles};
use crate::reply::Results;
use crate::status::{Status, status};
use crate::wire::{Decoder, Encoder};
use bytes::Bytes;
use weir_front::files::{Attributes, BeforeAfter, Change, Failure, FileError, FileId, FileKind};
use weir_front::{Caller, Files};
use weir_machine::{Operation, Request};

/// RPC program number.
pub const PROGRAM: u32 = 100_003;
/// The only supported version.
pub const VERSION: u32 = 3;
/// Maximum handle length in the protocol, in bytes.
const MAX_HANDLE_BYTES: usize = 64;
/// Maximum name length that is decoded, in bytes; the file system enforces its own, smaller limit.
const MAX_NAME_BYTES: usize = 4096;
/// Maximum size of a READ in bytes.
pub const READ_MAX_BYTES: u32 = 1 << 20;
/// Maximum size of a WRITE in bytes.
pub const WRITE_MAX_BYTES: u32 = 1 << 20;
/// Maximum size of a READDIR or READDIRPLUS reply in bytes.
pub const LIST_MAX_BYTES: u32 = 1 << 20;
/// Maximum length of a symbolic link's target in a READLINK reply, in bytes.
const MAX_LINK_TARGET_BYTES: u32 = 1 << 16;
/// XDR size of `fattr3` in bytes.
const FATTR3_BYTES: usize = 84;

/// Name of a procedure, for the request's context.
pub fn operation(procedure: u32) -> Option<Operation> {
    const OPERATIONS: [Operation; 22] = [
        Operation::Null,
        Operation::GetAttr,
        Operation::SetAttr,
        Operation::Lookup,
        Operation::Access,
        Operation::ReadLink,
        Operation::Read,
        Operation::Write,
        Operation::Create,
        Operation::MkDir,
        Operation::Symlink,
        Operation::MkNod,
        Operation::Remove,
        Operation::RmDir,
        Operation::Rename,
        Operation::Link,
        Operation::ReadDir,
        Operation::ReadDirPlus,
        Operation::StatFs,
        Operation::StatFs,
        Operation::StatFs,
        Operation::Flush,
    ];
    OPERATIONS.get(procedure as usize).copied()
}

/// Whether a retransmitted call must not run again, because it could undo a later change.
pub(crate) fn is_non_idempotent(procedure: u32) -> bool {
    matches!(procedure, 2 | 7..=15)
}

/// Maximum payload of the reply in bytes, from the requested count; 0 for procedures with short replies. See `files`
/// and `listing`.
pub(crate) fn reply_bytes(procedure: u32, arguments: &[u8]) -> usize {
    let mut input = Decoder::new(arguments);
    let mut requested = || {
        handle_argument(&mut input)?;
        match procedure {
            5 => Some(MAX_LINK_TARGET_BYTES),
            6 => (input.u64()?, input.u32().map(|count| count.min(READ_MAX_BYTES))).1,
            16 => (input.u64()?, input.u64()?, input.u32().map(|count| count.min(LIST_MAX_BYTES))).2,
            17 => (input.u64()?, input.u64()?, input.u32()?, input.u32().map(|count| count.min(LIST_MAX_BYTES))).3,
            _ => None,
        }
    };
    requested().unwrap_or(0) as usize
}

/// Context of one procedure call.
pub(crate) struct Context<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) handles: &'a Handles,
    pub(crate) caller: Caller,
    pub(crate) rq: &'a Request,
    /// Boot verifier of unstable writes.
    pub(crate) verifier: [u8; 8],
    /// The whole call; the data of a WRITE are a slice of it.
    pub(crate) message: &'a Bytes,
}

/// Error status and the attributes for its `post_op_attr`, if known.
pub(crate) type Failed = (Status, Option<Attributes>);

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        (status, None)
    }
}

/// Runs a procedure; `None` if its arguments are malformed.
pub(crate) async fn run(context: &Context<'_>, procedure: u32, arguments: &[u8], out: Encoder) -> Option<Results> {
    let input = Decoder::new(arguments);
    let mut out = Results::new(out);
    match procedure {
        0 => {}
        1 => files::getattr(context, input, &mut out).await?,
        2 => changes::setattr(context, input, &mut out).await?,
        3 => files::lookup(context, input, &mut out).await?,
        4 => files::access(context, input, &mut out).await?,
        5 => files::readlink(context, input, &mut out).await?,
        6 => files::read(context, input, &mut out).await?,
        7 => changes::write(context, input, &mut out).await?,
        8 => names::create(context, input, &mut out).await?,
        9 => names::mkdir(context, input, &mut out).await?,
        10 => names::symlink(context, input, &mut out).await?,
        11 => names::mknod(context, input, &mut out).await?,
        12 => names::remove(context, input, &mut out).await?,
        13 => names::rmdir(context, input, &mut out).await?,
        14 => names::rename(context, input, &mut out).await?,
        15 => names::link(context, input, &mut out).await?,
        16 => listing::readdir(context, input, &mut out).await?,
        17 => listing::readdirplus(context, input, &mut out).await?,
        18 => fs_info::fsstat(context, input, &mut out).await?,
        19 => fs_info::fsinfo(context, input, &mut out).await?,
        20 => fs_info::pathconf(context, input, &mut out).await?,
        21 => changes::commit(context, input, &mut out).await?,
        _ => return None,
    }
    Some(out)
}

impl Context<'_> {
    /// The file of a handle.
    pub(crate) fn id(&self, handle: &[u8]) -> Result<FileId, Status> {
        self.handles.read(handle).map_err(|error| match error {
            HandleError::Bad => Status::BadHandle,
            HandleError::Stale => Status::Stale,
            HandleError::NotYet => Status::JukeBox,
        })
    }

    /// Maps an error to an NFS status and logs I/O errors, because the client sees only a number.
    pub(crate) fn report(&self, error: &FileError) -> Status {
        let status = status(error);
        if matches!(status, Status::Io | Status::NotSupp) {
            tracing::warn!(operation = self.rq.operation.name(), client = self.rq.client.name(), %error, "call failed");
        }
        status
    }

    /// The status of a change, for its reply.
    pub(crate) fn ended<T>(&self, change: &Change<T>) -> Status {
        change.result.as_ref().err().map_or(Status::Ok, |error| self.report(error))
    }

    /// Maps a failure to status and `post_op_attr`.
    pub(crate) fn failed(&self, failure: Failure) -> Failed {
        (self.report(&failure.error), failure.file)
    }
}

/// Decodes a handle.
pub(crate) fn handle_argument<'a>(input: &mut Decoder<'a>) -> Option<&'a [u8]> {
    input.opaque(MAX_HANDLE_BYTES)
}

/// Decodes a name.
pub(crate) fn name_argument<'a>(input: &mut Decoder<'a>) -> Option<&'a [u8]> {
    input.opaque(MAX_NAME_BYTES)
}

/// Encodes `post_op_attr`.
pub(crate) fn post_op(out: &mut Encoder, file: Option<&Attributes>) {
    out.bool(file.is_some());
    if let Some(file) = file {
        attributes(out, file);
    }
}

/// Encodes `wcc_data`.
pub(crate) fn put_wcc(out: &mut Encoder, file: &BeforeAfter) {
    out.bool(file.before.is_some());
    if let Some(before) = &file.before {
        out.u64(before.size_bytes);
        time(out, before.mtime_ns);
        time(out, before.ctime_ns);
    }
    post_op(out, file.after.as_ref());
}

/// Encodes `fattr3`.
pub(crate) fn attributes(out: &mut Encoder, from: &Attributes) {
    let kind = match from.kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::BlockDevice => 3,
        FileKind::CharDevice => 4,
        FileKind::Symlink => 5,
        FileKind::Socket => 6,
        FileKind::Fifo => 7,
    };
    let (major, minor) = from.device.unwrap_or((0, 0));
    out.u32(kind)
        .u32(from.mode)
        .u32(u32::try_from(from.links).unwrap_or(u32::MAX))
        .u32(from.uid)
        .u32(from.gid)
        .u64(from.size_bytes)
        .u64(from.used_bytes)
        .u32(major)
        .u32(minor)
        .u64(from.fsid)
        .u64(from.file_number);
    time(out, from.atime_ns);
    time(out, from.mtime_ns);
    time(out, from.ctime_ns);
}

/// Encodes `nfstime3`.
pub(crate) fn time(out: &mut Encoder, ns: i128) {
    let (seconds, ns) = nfs_time(ns);
    out.u32(seconds).u32(ns);
}

/// Converts nanoseconds since 1970 to seconds and nanoseconds of an `nfstime3`, which holds 1970 to 2106; times
/// outside are clamped.
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
    fn reply_size_is_bounded_by_the_requested_count() {
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
