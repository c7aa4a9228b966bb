//! What limits the network between clients and this server, and the settings of the machine that change it.
//!
//! ```text
//!   /proc, /sys, ip, tc, ss, ping ─▶ [`Reader`] ─▶ [`Facts`] ─▶ [`findings`] ─▶ what, why, and the command that helps
//!                                                     └───────▶ [`tune`]: current, default, recommended, saved sets
//! ```
//!
//! Facts are read once; the rules are pure. A fact that cannot be read (no permission, a program that is not installed) is
//! absent, and no rule guesses it. The rules come from what the experiments of other people's storage servers show: a cable
//! that retransmits, a client without jumbo frames, a half-duplex link, and buffers that are too small for the link cost more
//! than any setting of a pool.

pub mod clients;
mod facts;
mod findings;
mod read;
mod ss;
pub mod tune;

pub use facts::{Buffers, Connection, Disk, Duplex, Facts, Interface, InterruptUse, MtuProbe};
pub use findings::{
    ENOUGH_BUSY_MS, ENOUGH_BYTES, Finding, JUMBO_MTU_BYTES, LIMITED_PERCENT, Level, RETRANSMITTED_PERMILLE, findings,
    payload_ceiling_bytes,
};
pub use read::{Host, Reader, RealHost};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz targets of the decoders of this crate.
pub const TARGETS: &[Target] = &[("doctor-ss", ss::fuzz)];
