//! Writing blocks of a mounted file anew (`ZFS_IOC_REWRITE`; OpenZFS `include/sys/fs/zfs.h`, `zfs_rewrite_args_t`).
#![allow(unsafe_code, reason = "ioctl has no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `ZFS_IOC_REWRITE`: `_IOW(0x83, 3, zfs_rewrite_args_t)`.
pub const COMMAND: u32 = 0x4020_8303;
/// The flag that keeps the logical birth times of the blocks (`ZFS_REWRITE_PHYSICAL`).
pub const PHYSICAL: u64 = 1;

/// `zfs_rewrite_args_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RewriteArgs {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; 0 stands for the rest of the file.
    pub length: u64,
    /// Flags, such as [`PHYSICAL`].
    pub flags: u64,
    /// Argument of the flags; 0.
    pub argument: u64,
}

impl RewriteArgs {
    /// Decodes the argument of an ioctl; `None` if it is too short.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let word = |n: usize| Some(u64::from_ne_bytes(*data.get(n * 8..)?.first_chunk()?));
        Some(RewriteArgs { offset: word(0)?, length: word(1)?, flags: word(2)?, argument: word(3)? })
    }

    /// Encodes the argument of an ioctl.
    pub fn encode(self) -> Vec<u8> {
        [self.offset, self.length, self.flags, self.argument].into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// Writes the blocks of an open file anew.
    ///
    /// # Errors
    /// The file system's error: `ENOTTY` if it is not ZFS, `EBADF` of OpenZFS if the file is not open for writing.
    pub fn apply(self, file: &File) -> io::Result<()> {
        // SAFETY: the call reads one `zfs_rewrite_args_t`, which `self` is, and the descriptor is open as long as `file` is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), COMMAND as _, std::ptr::from_ref(&self)) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
