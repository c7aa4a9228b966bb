//! Connects pools to the protocol servers and mounts that export them.
//!
//! ```text
//!   Pool or Engine ─▶ file systems ─▶ Tree ─▶ FUSE mount, NFS server
//!                └──▶ volumes ─▶ NBD server
//! ```
//!
//! The pool provides datasets by name; the front ends need a tree of file systems and a list of devices.
//! [`exports::Exports`] converts between them. [`service::Service`] starts and stops the servers.

pub mod admin;
pub mod exports;
pub mod hosts;
pub mod service;

pub use exports::{Exports, OpenPool};
pub use hosts::Hosts;
pub use service::{Service, ServiceError, ServiceOptions};

/// Identity mapping of NFS clients.
pub mod nfs {
    pub use weir_nfs::{Options, Squash};
}

/// The FUSE front end, for programs that mount.
pub mod fuse {
    pub use weir_fuse::{FuseError, MountOptions, Mounted, Unmounter, mount};
}
