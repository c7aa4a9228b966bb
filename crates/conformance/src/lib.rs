//! Judges: golden pools, OpenZFS's own tools and independent readers against Weir.
//!
//! A judge knows the right answer independently of Weir's code. Each module here is one: the
//! manifests in which OpenZFS's own view of a pool is recorded, OpenZFS's tools beside Weir's, readers by others,
//! and small NFS and NBD clients that share no code with the servers. The binary
//! `weir-judge` runs them, prints one line per case, and `N passed, N failed, N skipped` at the end.

pub mod bench;
pub mod cases;
pub mod compare;
pub mod csi;
pub mod engine;
pub mod fault_fs;
pub mod faults;
pub mod fuzz;
mod fuzz_locks;
pub mod golden;
pub mod guest;
pub mod hash;
pub mod hostile;
pub mod hostile_clients;
pub mod iscsi;
pub mod iscsi_unit;
pub mod kill;
pub mod kill_serve;
pub mod manifest;
pub mod many_clients;
pub mod nbd;
pub mod nfs;
pub mod object;
pub mod old_pools;
pub mod posix;
pub mod process;
pub mod properties;
pub mod readers;
pub mod replicated;
pub mod report;
pub mod rescued;
pub mod rewritten;
pub mod rpc;
pub mod sent;
mod sent_raw;
pub mod site;
pub mod smb;
pub mod streams;
pub mod suites;
pub mod tree;
pub mod workload;
pub mod zdb;
pub mod ztest;
pub mod zts;

/// Reason why a judge could not run. A difference that it finds is no error but a finding.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// A file or a process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// Description.
        what: String,
        /// Cause.
        source: std::io::Error,
    },
    /// A manifest is malformed.
    #[error("manifest of {golden}: {source}")]
    Manifest {
        /// Name of the golden pool.
        golden: String,
        /// Cause.
        source: serde_json::Error,
    },
    /// An archive cannot be unpacked.
    #[error("{archive}: zstd or tar failed")]
    Unpack {
        /// The archive.
        archive: String,
    },
    /// A process failed.
    #[error("{command}: {why}")]
    Process {
        /// Command line of the process.
        command: String,
        /// Cause.
        why: String,
    },
    /// A program or file is missing on this machine.
    #[error("{what}")]
    Missing {
        /// Description.
        what: String,
    },
}

/// The error of a file or a process that could not be used.
fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> JudgeError {
    let what = what.to_string();
    move |source| JudgeError::Io { what, source }
}

/// The error of something that is not as it has to be.
fn wrong(what: impl Into<String>, why: impl Into<String>) -> JudgeError {
    JudgeError::Process { command: what.into(), why: why.into() }
}
