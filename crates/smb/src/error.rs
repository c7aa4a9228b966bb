//! Errors of this crate.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Error of managing Samba.
#[derive(Debug, Error)]
pub enum SmbError {
    /// A program of Samba is not installed.
    #[error("{program} is not installed: install Samba 4.17 or later (Debian: samba, samba-vfs-modules, smbclient)")]
    NoProgram {
        /// The program.
        program: &'static str,
    },
    /// Samba is too old.
    #[error("smbd is version {found}; SMB needs 4.17 or later")]
    TooOld {
        /// The version that it reports.
        found: String,
    },
    /// A library is not installed.
    #[error("{library} is not installed, and {why}: install it (Debian: {package})")]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// The need for it.
        why: String,
        /// Debian's package.
        package: &'static str,
    },
    /// A file or directory cannot be used.
    #[error("{}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// A program cannot be started, or its answer cannot be read.
    #[error("cannot run {program}: {why}")]
    Run {
        /// The program.
        program: String,
        /// The cause.
        why: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {said}")]
    Failed {
        /// The program.
        program: String,
        /// The last line that it printed.
        said: String,
    },
    /// A program did not end in time.
    #[error("{program} did not answer within {seconds} s")]
    Late {
        /// The program.
        program: String,
        /// The limit.
        seconds: u64,
    },
    /// A value cannot be written into smb.conf, or is not permitted there.
    #[error("{what} '{value}': {why}")]
    Value {
        /// The kind of value.
        what: &'static str,
        /// The value.
        value: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// No such user.
    #[error("no SMB user '{name}'; 'weir smb user list' shows all")]
    NoUser {
        /// The name.
        name: String,
    },
    /// The server did not begin to listen.
    #[error("smbd does not listen on {address}: {why}; --smb-port chooses another port")]
    NotListening {
        /// Address and port.
        address: std::net::SocketAddr,
        /// The last line that it logged, or the time it was given.
        why: String,
    },
    /// Another process of Weir serves SMB on this port.
    #[error("another process serves SMB with {}; --smb-port chooses another port", .runtime.display())]
    InUse {
        /// The runtime directory.
        runtime: PathBuf,
    },
    /// The output of `smbstatus` cannot be understood.
    #[error("smbstatus printed what is not its JSON: {why}")]
    Status {
        /// The cause.
        why: String,
    },
}

impl SmbError {
    /// An error about a file.
    pub(crate) fn file(path: &std::path::Path, why: io::Error) -> Self {
        SmbError::File { path: path.to_path_buf(), why }
    }
}
