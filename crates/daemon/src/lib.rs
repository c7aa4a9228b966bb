//! Connects pools to the protocol servers and mounts that export them.
//!
//! ```text
//!   Pool or Engine ─▶ file systems ─▶ Tree ─▶ FUSE mount; a mount of its own ─▶ smbd
//!                │                     └──▶ PoolTable of all pools ─▶ NFS server
//!                └──▶ volumes ─▶ PoolTable of all pools ─▶ NBD server
//! ```
//!
//! The pool provides datasets by name; the front ends need a tree of file systems and a list of devices.
//! [`exports::Exports`] converts between them. [`pool_table::PoolTable`] joins the exports of several pools, so that each
//! protocol has one server and one port. [`service::Service`] starts and stops the servers that [`protocols`] lists.

pub mod admin;
pub mod damaged;
pub mod exports;
pub mod files;
pub mod fuzz;
pub mod locks;
pub mod pool_table;
pub mod protocols;
pub mod service;
pub mod shares;
pub mod smb;
pub mod users;
pub mod volumes;

pub use exports::{Exports, OpenPool};
pub use locks::LockServiceOptions;
pub use pool_table::PoolTable;
pub use protocols::ProtocolServer;
pub use service::{PortSettings, Service, ServiceError, ServiceOptions};
pub use shares::{DatasetShares, FileShares, MountAllows, MountRule, Sharing};
pub use weir_front::tls::{CertificateNames, PemFiles, TlsError};
pub use weir_front::{ExportRules, Hosts, IdentityMap, Squash};
pub use weir_nbd::Tls;

/// The FUSE front end, for programs that mount.
pub mod fuse {
    pub use weir_fuse::{
        CachedNames, ChangedOptions, DATASET_XATTR, FuseError, MountOptions, Mounted, Remounter, Unmounter, mount,
        mount_file_system, unmount_stale, unmount_stale_at,
    };
}
