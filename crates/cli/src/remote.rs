//! Another process that has a pool open, found by [`crate::admin`] and named by failures.

use std::path::PathBuf;

/// Another process that has a pool open and accepts commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteProcess {
    /// Process id.
    pub pid: u32,
    /// Path of the process's socket.
    pub socket: PathBuf,
    /// Whether it is the daemon, which knows where pools are.
    pub is_daemon: bool,
}
