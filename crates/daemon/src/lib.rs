//! Connects pools to the protocol servers and mounts that export them.
//!
//! ```text
//!   Pool or Engine ─▶ file systems ─▶ Tree ─▶ FUSE mount, NFS server
//!                │                    └▶ a mount of its own ─▶ smbd
//!                └──▶ volumes ─▶ NBD server
//! ```
//!
//! The pool provides datasets by name; the front ends need a tree of file systems and a list of devices.
//! [`exports::Exports`] converts between them. [`service::Service`] starts and stops the servers.

pub mod admin;
pub mod exports;
pub mod files;
pub mod fuzz;
pub mod service;
pub mod smb;
pub mod volumes;

pub use exports::{Exports, OpenPool};
pub use service::{Service, ServiceError, ServiceOptions};
pub use weir_front::{ExportRules, Hosts, IdentityMap, Squash};

/// The FUSE front end, for programs that mount.
pub mod fuse {
    pub use weir_fuse::{FuseError, MountOptions, Mounted, Unmounter, mount};
}
