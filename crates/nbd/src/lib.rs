//! Network Block Device server: each volume of the pool and each snapshot of one is an export under its dataset name.
//!
//! ```text
//!   TCP ─▶ handshake (pure): which export, which features
//!       ─▶ requests ─▶ transmission: plan (pure) ─▶ device ─▶ chunks ─▶ TCP
//! ```
//!
//! Fixed newstyle negotiation with several concurrent connections. All connections to an export share one device:
//! data written on one is visible on the others, and a flush on one makes the completed writes of all stable
//! (`CAN_MULTI_CONN`). Volumes are writable for the configured clients; snapshots are read-only. With structured
//! replies a client receives holes as holes, and an unreadable block costs only its own piece of a READ;
//! `base:allocation` reports the holes. [`tls`] encrypts, if certificates are configured.
//!
//! Source of the facts: `doc/proto.md` of the NetworkBlockDevice/nbd repository.
//!
//! ```
//! use weir_nbd::wire::{RequestHeader, command};
//!
//! let read = RequestHeader { flags: 0, command: command::READ, cookie: 1, offset: 4096, length: 512 };
//! let bytes = read.encode();
//! assert_eq!(RequestHeader::decode(&bytes).unwrap().offset, 4096);
//! assert!(RequestHeader::decode(&bytes[1..]).is_none()); // no panic, whatever a client sends
//! ```

pub mod fuzz;
pub mod handshake;
pub mod serve;
pub mod tls;
pub mod transmission;
pub mod wire;

pub use handshake::TlsMode;
pub use serve::{Server, serve};
pub use tls::Tls;
