//! Network Block Device: each volume of the pool, and each snapshot of one, as an export under its data set's name.
//!
//! ```text
//!   TCP ─▶ handshake (pure): which export, which features
//!       ─▶ requests ─▶ transmission: plan (pure) ─▶ device ─▶ chunks ─▶ TCP
//! ```
//!
//! Fixed newstyle, several connections at once: all connections to an export share one device, so what one has written
//! another reads, and a flush on one makes the others' finished writes stable (`CAN_MULTI_CONN`). Volumes are writable to
//! the clients that the server was told, snapshots to nobody.
//! Structured replies let a client receive holes as holes and lose no more than a bad block's piece; `base:allocation`
//! tells it where the holes are. TLS is not offered: bind to loopback, or put a tunnel before it.
//!
//! Source of the facts: `doc/proto.md` of the NetworkBlockDevice/nbd repository.

pub mod device;
pub mod fuzz;
pub mod handshake;
pub mod serve;
pub mod transmission;
pub mod wire;

pub use device::{Device, DeviceError, Exports, Extent};
pub use handshake::{Directory, ExportInfo};
pub use serve::{Server, Writers, serve};
