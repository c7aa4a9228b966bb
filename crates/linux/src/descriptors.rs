//! The limit of open files, `RLIMIT_NOFILE`.
//!
//! A pool of 100 disks needs a few hundred descriptors, and the usual soft limit is 1024; the hard limit is far above it.
//! Programs that call `select` are the reason for the low soft limit, and Weir calls none, so the soft limit is raised to the
//! hard one. The task runtime panics if it cannot open the descriptors of its signal handling, so they are probed first.

#![allow(unsafe_code, reason = "getrlimit and setrlimit")]

use std::fs::File;

/// Descriptors that must be free before the task runtime starts: its own (about 8), those of the rings, and the first
/// device.
const LEAST_FREE: usize = 24;

/// Raises the soft limit of open files to the hard limit; gives the soft limit that holds afterwards.
///
/// If the kernel refuses, the limit stays as it was.
pub(crate) fn raise_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is that of an exclusive structure of the right type.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return 0;
    }
    if limit.rlim_cur < limit.rlim_max {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        // SAFETY: the structure is read only, and lives until the call returns.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            return raised.rlim_cur;
        }
    }
    limit.rlim_cur
}

/// Whether an error says that this process or the whole machine has no descriptor left.
pub(crate) fn none_left(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Opens and closes [`LEAST_FREE`] descriptors.
///
/// # Errors
/// EMFILE or ENFILE if fewer are free.
pub(crate) fn probe() -> std::io::Result<()> {
    let mut open = Vec::with_capacity(LEAST_FREE);
    for _ in 0..LEAST_FREE {
        match File::open("/") {
            Ok(file) => open.push(file),
            Err(error) if none_left(&error) => return Err(error),
            // Another reason is met again by whatever needs a file, and is reported there.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}
