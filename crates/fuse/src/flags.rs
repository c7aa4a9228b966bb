//! File flags and project IDs through `ioctl(2)` (`linux/fs.h`; OpenZFS `module/os/linux/zfs/zpl_file.c`).
//!
//! ```text
//!   FS_IOC_GETFLAGS, SETFLAGS       a word of flags                                          chattr, lsattr
//!   FS_IOC_FSGETXATTR, FSSETXATTR   flags, extent size, extents, project, 12 bytes unused    chattr -p, zfs project
//!   ZFS_IOC_REWRITE                 offset, length, flags, argument: 8 bytes each            zfs rewrite
//! ```
//!
//! Numbers are in native byte order. The kernel has checked that the caller owns the file and that only the superuser
//! changes the immutable and append-only flags.

use crate::inner::report;
use fuser::Errno;
use std::ops::Range;
use weir_files::tree::{Node, Tree};
use weir_files::{Cred, FileFlags, SetFlags, Space};
use weir_linux::file_flags::{self, GET as GET_XATTR, SET as SET_XATTR};
use weir_linux::rewrite::{self, COMMAND as REWRITE, RewriteArgs};
use weir_machine::Request;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// Size of `struct fsxattr` and offset of the project in it, in bytes.
const XATTR_BYTES: usize = 28;
const PROJECT_AT: usize = 12;
/// Invalid project ID (`ZFS_INVALID_PROJID`, in 32 bits).
const NO_PROJECT: u32 = u32::MAX;

/// The supported flags: file flag, bit of the flag word, bit of `struct fsxattr`.
const FLAG_MAP: [(u64, u32, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x10, 0x8),
    (FileFlags::APPENDONLY, 0x20, 0x10),
    (FileFlags::NODUMP, 0x40, 0x80),
    (FileFlags::PROJINHERIT, 0x2000_0000, file_flags::FileFlags::PROJECT_INHERIT),
];

/// A decoded ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoctlRequest {
    /// Get the flag word.
    Flags,
    /// Get `struct fsxattr`.
    Xattr,
    /// Set the flag word.
    SetFlags(u32),
    /// Set the flags and the project of `struct fsxattr`.
    SetXattr(u32, u32),
    /// Write the blocks of a range anew.
    Rewrite(RewriteArgs),
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

impl IoctlRequest {
    /// Decodes an ioctl; `None` for unsupported commands.
    pub(crate) fn of(command: u32, data: &[u8]) -> Option<Self> {
        match command {
            GET_FLAGS => Some(IoctlRequest::Flags),
            GET_XATTR => Some(IoctlRequest::Xattr),
            SET_FLAGS => Some(IoctlRequest::SetFlags(word(data, 0)?)),
            SET_XATTR => Some(IoctlRequest::SetXattr(word(data, 0)?, word(data, PROJECT_AT)?)),
            REWRITE => Some(IoctlRequest::Rewrite(RewriteArgs::decode(data)?)),
            _ => None,
        }
    }
}

/// Encodes file flags as a word, with the bits that `of` selects.
fn encode_flags(flags: FileFlags, of: impl Fn(&(u64, u32, u32)) -> u32) -> u32 {
    FLAG_MAP.iter().filter(|known| flags.has(known.0)).map(of).sum()
}

/// Decodes a word of flags; EOPNOTSUPP if it contains an unsupported flag. All supported flags are set or cleared.
fn decode_flags(given: u32, of: impl Fn(&(u64, u32, u32)) -> u32) -> Result<SetFlags, Errno> {
    if given & !FLAG_MAP.iter().map(&of).sum::<u32>() != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut each = FLAG_MAP.iter().map(|known| Some(given & of(known) != 0));
    let mut next = || each.next().flatten();
    Ok(SetFlags { immutable: next(), append_only: next(), no_dump: next(), inherit_project: next(), project: None })
}

impl IoctlRequest {
    /// Executes the ioctl on a file and returns its output bytes.
    pub(crate) async fn execute(self, rq: &Request, tree: &Tree, cred: &Cred, node: Node) -> Result<Vec<u8>, Errno> {
        let set = match self {
            IoctlRequest::Rewrite(args) => {
                let range = rewrite_range(args)?;
                let done = tree.allocate(rq, cred, node, range, Space::Rewrite).await;
                return done.map(|_| Vec::new()).map_err(|e| report(rq, &e));
            }
            IoctlRequest::SetFlags(flags) => decode_flags(flags, |known| known.1)?,
            IoctlRequest::SetXattr(_, NO_PROJECT) => return Err(Errno::EINVAL),
            IoctlRequest::SetXattr(flags, project) => {
                SetFlags { project: Some(project), ..decode_flags(flags, |known| known.2)? }
            }
            IoctlRequest::Flags | IoctlRequest::Xattr => {
                let found = tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
                if self == IoctlRequest::Flags {
                    return Ok(encode_flags(found.flags, |known| known.1).to_ne_bytes().to_vec());
                }
                let project = found.project.and_then(|project| u32::try_from(project).ok()).unwrap_or(0);
                let mut answer = encode_flags(found.flags, |known| known.2).to_ne_bytes().to_vec();
                answer.resize(PROJECT_AT, 0);
                answer.extend(project.to_ne_bytes());
                answer.resize(XATTR_BYTES, 0);
                return Ok(answer);
            }
        };
        let done = tree.set_flags(rq, cred, node, &set).await;
        done.map(|_| Vec::new()).map_err(|e| report(rq, &e))
    }
}

/// The range of a rewrite: a length of 0 is that to the end. As in OpenZFS, EOPNOTSUPP for a physical rewrite in a pool without its
/// feature, and EINVAL for other flags and an argument.
fn rewrite_range(args: RewriteArgs) -> Result<Range<u64>, Errno> {
    match args {
        RewriteArgs { flags: rewrite::PHYSICAL, argument: 0, .. } => Err(Errno::EOPNOTSUPP),
        RewriteArgs { flags: 0, argument: 0, offset, length: 0 } => Ok(offset..u64::MAX),
        RewriteArgs { flags: 0, argument: 0, offset, length } => Ok(offset..offset.saturating_add(length)),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_requests_are_decoded_as_on_linux() {
        assert_eq!(IoctlRequest::of(GET_FLAGS, &[]), Some(IoctlRequest::Flags));
        assert_eq!(IoctlRequest::of(SET_FLAGS, &[1, 2]), None, "too short");
        assert_eq!(IoctlRequest::of(0x5401, &[0; 99]), None);
        let args = RewriteArgs { offset: 4096, length: 7, ..RewriteArgs::default() };
        assert_eq!(IoctlRequest::of(REWRITE, &args.encode()), Some(IoctlRequest::Rewrite(args)));
        assert_eq!(IoctlRequest::of(REWRITE, &args.encode()[1..]), None, "too short");
        assert_eq!(rewrite_range(args), Ok(4096..4103));
        assert_eq!(rewrite_range(RewriteArgs { length: 0, ..args }), Ok(4096..u64::MAX));
        for (flags, errno) in [(rewrite::PHYSICAL, Errno::EOPNOTSUPP), (2, Errno::EINVAL)] {
            assert_eq!(rewrite_range(RewriteArgs { flags, ..args }).unwrap_err().code(), errno.code());
        }
        let mut structure = [0; XATTR_BYTES];
        structure[..4].copy_from_slice(&0x208u32.to_ne_bytes());
        structure[12..16].copy_from_slice(&77u32.to_ne_bytes());
        assert_eq!(IoctlRequest::of(SET_XATTR, &structure), Some(IoctlRequest::SetXattr(0x208, 77)));
        let set = decode_flags(0x208, |known| known.2).unwrap();
        let yes = Some(true);
        let no = Some(false);
        assert_eq!((set.immutable, set.append_only, set.no_dump, set.inherit_project), (yes, no, no, yes));
        assert!(decode_flags(0x4, |known| known.2).is_err(), "an unsupported flag");
        let flags = FileFlags(FileFlags::APPENDONLY | FileFlags::PROJINHERIT | FileFlags::ARCHIVE);
        assert_eq!(encode_flags(flags, |known| known.1), 0x2000_0020);
    }
}
