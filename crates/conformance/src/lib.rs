//! Judges: golden pools, OpenZFS's own tools and independent readers against Weir.
//!
//! A judge is anybody who knows the right answer without having read our code. Each module here holds one: the
//! manifests that OpenZFS's own view of a pool was written down in, its tools run beside ours, other people's readers,
//! and small clients of our own for the doors (NFS, NBD) that share no code with the servers they ask. The binary
//! `weir-judge` runs them, one line per case, and closes with `N passed, N failed, N skipped`.

pub mod bench;
pub mod cases;
pub mod compare;
pub mod engine;
pub mod fuzz;
pub mod golden;
pub mod hash;
pub mod kill;
pub mod kill_serve;
pub mod manifest;
pub mod nbd;
pub mod nfs;
pub mod old_pools;
pub mod posix;
pub mod process;
pub mod properties;
pub mod readers;
pub mod report;
pub mod rewritten;
pub mod rpc;
pub mod streams;
pub mod suites;
pub mod tree;
pub mod workload;
pub mod zdb;
pub mod ztest;

/// Why a judge could not do its work. What it finds against Weir is no error but a finding.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// A file or a process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// A manifest is not what we know.
    #[error("manifest of {golden}: {source}")]
    Manifest {
        /// Whose.
        golden: String,
        /// Why.
        source: serde_json::Error,
    },
    /// An archive did not unpack.
    #[error("{archive}: zstd or tar failed")]
    Unpack {
        /// Which.
        archive: String,
    },
    /// A process of ours or of somebody else failed.
    #[error("{command}: {why}")]
    Process {
        /// Which.
        command: String,
        /// How.
        why: String,
    },
    /// What was needed is not here.
    #[error("{what}")]
    Missing {
        /// What.
        what: String,
    },
}
