//! Container Storage Interface: volumes of Weir for Kubernetes and other orchestrators.
//!
//! ```text
//!   kubelet, sidecars ── gRPC over a Unix socket ─► serve ─► Identity
//!                                                     │ ───► Controller ── Command, Query ─► Storage: the daemon with the pools
//!                                                     └────► Node ── mount(8), umount(8), iscsiadm(8), mkfs(8) ─► this machine
//! ```
//!
//! A volume is a dataset: a file system that nodes mount over NFS, or a ZFS volume that they reach over iSCSI. Its handle is the
//! name of the dataset, the handle of a snapshot is the name of the snapshot. No other state exists: what must be known later is
//! in user properties of the dataset (`weir:csi`: the request that created it; `weir:csi-nodes`: the nodes that it is published
//! to), so a controller can be replaced at any time.
//!
//! Invariants:
//!
//! - Only datasets and snapshots with the property `weir:csi` of their own are changed or destroyed. One that merely has the
//!   wanted name is an error.
//! - A call that is repeated has the same result. At most one call changes a dataset at a time; another one is answered with
//!   ABORTED, upon which callers try again.
//! - Names that callers choose become one component of a name of a dataset ([`names::component`]); none can leave the parent.
//!
//! The gRPC errors are those of the specification: [`storage::status_of`] is the table.

mod controller;
mod identity;
pub mod names;
mod node;
mod parameters;
mod pending;
mod serve;
pub mod storage;
mod volumes;
#[allow(missing_docs, reason = "the specification describes each field")]
pub mod wire;

pub use controller::ControllerOptions;
pub use node::{NodeMount, NodeOptions};
pub use parameters::Parameters;
pub use serve::{Endpoint, Plugin, ServeError, serve};

/// Name of the plugin: the `provisioner` of storage classes.
pub const PLUGIN_NAME: &str = "csi.weir";

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz targets of this crate: each must return for any input, in time and memory bounded by the input's length.
pub const TARGETS: &[Target] = &[("csi-names", names::names_target), ("csi-parameters", parameters::parameters_target)];
