//! Flags and project id of a file, as read and set by Linux (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` in
//! `linux/fs.h`): for commands on mounted files.
#![allow(unsafe_code, reason = "ioctl has no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_IOC_FSGETXATTR`.
pub const GET: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub const SET: u32 = 0x401c_5820;

/// `struct fsxattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FileFlags {
    /// Flags ([`FileFlags::PROJECT_INHERIT`] and others).
    pub flags: u32,
    extent_bytes: u32,
    extents: u32,
    /// Project id.
    pub project: u32,
    cow_extent_bytes: u32,
    unused: [u8; 8],
}

impl FileFlags {
    /// New files in the directory inherit its project id (`FS_XFLAG_PROJINHERIT`).
    pub const PROJECT_INHERIT: u32 = 0x200;

    /// Reads the flags of an open file.
    ///
    /// # Errors
    /// The file system's error: `ENOTTY` or `EOPNOTSUPP` if it does not support them.
    pub fn of(file: &File) -> io::Result<Self> {
        let mut out = FileFlags::default();
        // SAFETY: the call writes one `struct fsxattr`, which `out` is, and the descriptor is open as long as `file`
        // is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), GET as _, &raw mut out) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(out) }
    }

    /// Sets the flags of an open file.
    ///
    /// # Errors
    /// The file system's error.
    pub fn set(&self, file: &File) -> io::Result<()> {
        // SAFETY: the call reads one `struct fsxattr`, which `self` is, and the descriptor is open as long as `file`
        // is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), SET as _, std::ptr::from_ref(self)) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
