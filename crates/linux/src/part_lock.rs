//! Locks on a range of bytes of a file that belong to the open file, not to the process (`F_OFD_SETLK`).

#![allow(unsafe_code, reason = "the standard library has locks on whole files alone")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks `len` bytes from `offset` on exclusively, without waiting, until the file is closed. The file is open for writing.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if a byte of the range is locked through another open file; what the kernel says.
pub fn lock_part(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    // SAFETY: all-zero is a value of this plain structure; the kernel demands that `l_pid` is 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = number(offset)?;
    lock.l_len = number(len)?;
    // SAFETY: the structure is of the type that the command reads, and lives until the call returns.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_overlap_are_locked_once() {
        let path = std::env::temp_dir().join(format!("weir-part-lock-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let files = [open(), open(), open()];
        lock_part(&files[0], 4096, 4096).unwrap();
        lock_part(&files[1], 8192, 4096).unwrap();
        let refused = |offset| lock_part(&files[2], offset, 512).unwrap_err().kind();
        assert_eq!([refused(4096), refused(8191)], [io::ErrorKind::WouldBlock; 2]);
        lock_part(&files[2], 0, 4096).unwrap();
        let [first, ..] = files;
        drop(first);
        lock_part(&open(), 4096, 4096).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
