//! What the front ends on the network share: the accept loop, limits in total and per host, deadlines that count bytes,
//! memory budgets per host, and shutdown; what datasets share, and which hosts and users may use it ([`shares`],
//! [`FileRules`]); and the interface to what is served ([`Files`], [`BlockDevice`]).
//!
//! ```text
//!   listener ─► serve ─► limits: full? close the connection that was quiet longest ─► session (NFS, NBD)
//!                 │                                                                     │ Reader, Writer: progress
//!                 └─ every second: connections that are idle, or that stalled ◄─────────┘
//! ```
//!
//! *No client keeps others out.* A new connection is always accepted: if there is no room, in total or for its host, the
//! connection of the host with the most connections that was quiet longest is closed. NFS and NBD clients reconnect by
//! themselves. A client that sends half of a message or does not read its replies holds memory, so it is closed after
//! [`Limits::stalled`] without a byte, and after [`Limits::stalled_under_pressure`] while another client waits for memory.
//! One host gets at most a quarter of what the others leave of a [`HostBudget`], so that a few hosts together leave memory
//! to the next.
//!
//! A client that waits for the server is neither idle nor stalled: its call is in progress, or the server has no memory for
//! the rest of its message ([`ConnectionHandle::acquire`]).

mod block;
mod budget;
mod connection;
pub mod files;
mod hosts;
pub mod locks;
pub mod memory;
mod rules;
mod serve;
pub mod shares;
pub mod tls;

pub use block::{
    BlockDevice, BlockError, BlockExport, BlockExports, BlockFuture, Extent, HostBlockExports, Pieces,
    copy_through_memory,
};
pub use budget::{HostBudget, HostPermit};
pub use connection::{CallGuard, ClientConnection, Connection, ConnectionHandle, Reader, Writer};
pub use files::Files;
pub use hosts::{Hosts, InvalidHost};
pub use locks::FileLocks;
pub use rules::{Caller, Credentials, ExportRules, FileRules, Host, IdentityMap, NOBODY, Permission, Squash};
pub use serve::{FrontEnd, Limits, serve};
