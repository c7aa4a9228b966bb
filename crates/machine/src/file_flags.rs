//! Flags and project of a file of the machine, as Linux tells and sets them (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` in
//! `linux/fs.h`): for commands on mounted files.
#![allow(unsafe_code, reason = "no safe call says this")]

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
    /// The project.
    pub project: u32,
    cow_extent_bytes: u32,
    unused: [u8; 8],
}

impl FileFlags {
    /// What is made in the directory gets its project (`FS_XFLAG_PROJINHERIT`).
    pub const PROJECT_INHERIT: u32 = 0x200;

    /// Those of an open file.
    ///
    /// # Errors
    /// What the file system says: `ENOTTY` or `EOPNOTSUPP` if it has none.
    pub fn of(file: &File) -> io::Result<Self> {
        let mut out = FileFlags::default();
        // SAFETY: the call writes one `struct fsxattr`, which `out` is, and the descriptor is open as long as `file` is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), GET as _, &raw mut out) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(out) }
    }

    /// Sets them.
    ///
    /// # Errors
    /// What the file system says.
    pub fn set(&self, file: &File) -> io::Result<()> {
        // SAFETY: the call reads one `struct fsxattr`, which `self` is, and the descriptor is open as long as `file` is.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), SET as _, std::ptr::from_ref(self)) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
