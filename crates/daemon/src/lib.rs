//! Ties pools to the protocols that serve them: the room that knows everyone.
//!
//! ```text
//!   Pool or Engine ─▶ members ─▶ Tree ─▶ FUSE mount, or NFS server
//!                └──▶ volumes ─▶ NBD server
//! ```
//!
//! The pool knows data sets by name; the doors know a tree of file systems and a list of devices. What lies between is
//! here: [`shown::Front`]. [`service::Service`] runs the servers and stops them.

pub mod admin;
pub mod hosts;
pub mod service;
pub mod shown;

pub use hosts::Hosts;
pub use service::{Service, ServiceError, ServiceOptions};
pub use shown::{Front, Shown};

/// Who NFS clients become.
pub mod nfs {
    pub use weir_nfs::{Options, Squash};
}

/// The FUSE door, for programs that mount.
pub mod fuse {
    pub use weir_fuse::{FuseError, MountOptions, Mounted, Unmounter, mount};
}
