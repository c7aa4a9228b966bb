//! Flags and projects of files, as `ioctl(2)` says them (`linux/fs.h`; OpenZFS `module/os/linux/zfs/zpl_file.c`).
//!
//! ```text
//!   FS_IOC_GETFLAGS, SETFLAGS       a word of flags                                          chattr, lsattr
//!   FS_IOC_FSGETXATTR, FSSETXATTR   flags, extent size, extents, project, 12 bytes unused    chattr -p, zfs project
//! ```
//!
//! Numbers are in the byte order of the machine. The kernel has checked that the caller owns the file, and that only the
//! superuser changes the flags that bind all.

use crate::inner::{Inner, report};
use fuser::{Errno, INodeNo};
use weir_files::{Cred, FileFlags, SetFlags};
use weir_machine::Request;
use weir_machine::file_flags::{self, GET as GET_XATTR, SET as SET_XATTR};

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// Bytes of `struct fsxattr`, and where the project stands in it.
const XATTR_BYTES: usize = 28;
const PROJECT_AT: usize = 12;
/// No file's project (`ZFS_INVALID_PROJID`, in 32 bits).
const NO_PROJECT: u32 = u32::MAX;

/// Each flag: in a file, in the word, in the structure.
const KNOWN: [(u64, u32, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x10, 0x8),
    (FileFlags::APPENDONLY, 0x20, 0x10),
    (FileFlags::NODUMP, 0x40, 0x80),
    (FileFlags::PROJINHERIT, 0x2000_0000, file_flags::FileFlags::PROJECT_INHERIT),
];

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The word.
    Flags,
    /// The structure.
    Xattr,
    /// To set flags of the word.
    SetFlags(u32),
    /// To set flags of the structure, and the project.
    SetXattr(u32, u32),
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

impl Asked {
    /// What a command asks for; `None` for all others.
    pub(crate) fn of(command: u32, data: &[u8]) -> Option<Self> {
        match command {
            GET_FLAGS => Some(Asked::Flags),
            GET_XATTR => Some(Asked::Xattr),
            SET_FLAGS => Some(Asked::SetFlags(word(data, 0)?)),
            SET_XATTR => Some(Asked::SetXattr(word(data, 0)?, word(data, PROJECT_AT)?)),
            _ => None,
        }
    }
}

/// The word of a file's flags.
fn shown(flags: FileFlags, of: impl Fn(&(u64, u32, u32)) -> u32) -> u32 {
    KNOWN.iter().filter(|known| flags.has(known.0)).map(of).sum()
}

/// What setting a word of flags asks for: each of those that there are.
fn wanted(given: u32, of: impl Fn(&(u64, u32, u32)) -> u32) -> Result<SetFlags, Errno> {
    if given & !KNOWN.iter().map(&of).sum::<u32>() != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut each = KNOWN.iter().map(|known| Some(given & of(known) != 0));
    let mut next = || each.next().flatten();
    Ok(SetFlags { immutable: next(), append_only: next(), no_dump: next(), inherit_project: next(), project: None })
}

impl Inner {
    /// Does what is asked for, and gives the bytes of the answer.
    pub(crate) async fn flags(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        asked: Asked,
    ) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        let set = match asked {
            Asked::SetFlags(flags) => wanted(flags, |known| known.1)?,
            Asked::SetXattr(_, NO_PROJECT) => return Err(Errno::EINVAL),
            Asked::SetXattr(flags, project) => SetFlags { project: Some(project), ..wanted(flags, |known| known.2)? },
            Asked::Flags | Asked::Xattr => {
                let found = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
                if asked == Asked::Flags {
                    return Ok(shown(found.flags, |known| known.1).to_ne_bytes().to_vec());
                }
                let project = found.project.and_then(|project| u32::try_from(project).ok()).unwrap_or(0);
                let mut answer = shown(found.flags, |known| known.2).to_ne_bytes().to_vec();
                answer.resize(PROJECT_AT, 0);
                answer.extend(project.to_ne_bytes());
                answer.resize(XATTR_BYTES, 0);
                return Ok(answer);
            }
        };
        let done = self.tree.set_flags(rq, cred, node, &set).await;
        done.map(|_| Vec::new()).map_err(|e| report(rq, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_linux_says() {
        assert_eq!(Asked::of(GET_FLAGS, &[]), Some(Asked::Flags));
        assert_eq!(Asked::of(SET_FLAGS, &[1, 2]), None, "too short");
        assert_eq!(Asked::of(0x5401, &[0; 99]), None);
        let mut structure = [0; XATTR_BYTES];
        structure[..4].copy_from_slice(&0x208u32.to_ne_bytes());
        structure[12..16].copy_from_slice(&77u32.to_ne_bytes());
        assert_eq!(Asked::of(SET_XATTR, &structure), Some(Asked::SetXattr(0x208, 77)));
        let set = wanted(0x208, |known| known.2).unwrap();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!((set.immutable, set.append_only, set.no_dump, set.inherit_project), (yes, no, no, yes));
        assert!(wanted(0x4, |known| known.2).is_err(), "a flag that is none here");
        let flags = FileFlags(FileFlags::APPENDONLY | FileFlags::PROJINHERIT | FileFlags::ARCHIVE);
        assert_eq!(shown(flags, |known| known.1), 0x2000_0020);
    }
}
