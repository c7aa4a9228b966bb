//! iSCSI target: devices of a pool as logical units of targets (RFC 7143).
//!
//! ```text
//!   TCP ─▶ login (pure): who wants which target, CHAP, parameters
//!       ─▶ units ─▶ session (pure): order of commands, data of writes ─▶ scsi: execute ─▶ BlockDevice
//!                      serve: reads units, memory, a task per command ─▶ writer: write_vectored
//! ```
//!
//! Error recovery level 0, one connection per session, any number of sessions. What a target offers, and to whom, is a
//! [`TargetConfig`]; [`Server::set_targets`] replaces all of them while sessions run. Sessions of targets that are gone end;
//! the others learn of changed units by a unit attention.
//!
//! **Stability.** With a write cache (`LunConfig::write_cache`), a write is stable after SYNCHRONIZE CACHE or with FUA; without
//! one, before it is answered. The caching mode page says which.
//!
//! **Nothing is written twice.** A command is executed at most once: its connection carries it once, and error recovery level
//! 0 repeats nothing. An initiator that lost its connection logs in again and repeats commands by itself; the login waits
//! until all commands of its ended sessions have ended, so that no old write overtakes a new one.
//!
//! Source of the facts: RFC 7143 (iSCSI), RFC 7144 (nothing of it is used), SPC-4 and SBC-3 (INCITS T10).
//!
//! ```
//! use weir_iscsi::wire::Keys;
//!
//! let keys = Keys::decode(b"InitiatorName=iqn.2000-01.com.example:a\0SessionType=Discovery\0").unwrap();
//! assert_eq!(keys.get("SessionType"), Some("Discovery"));
//! assert_eq!(Keys::decode(b"no value\0"), None); // no panic, whatever a client sends
//! ```

pub mod fuzz;
pub mod login;
pub mod scsi;
pub mod serve;
mod server;
pub mod session;
mod targets;
pub mod wire;

pub use login::{ChapConfig, Credentials, Secret};
pub use serve::serve;
pub use server::{NoReservations, ReservationStore, Server};
pub use targets::{LunConfig, TargetConfig};
