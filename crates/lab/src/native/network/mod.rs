//! Loads over network protocols, by clients of Weir's own: no mount, no kernel's client, no page cache in between.
//!
//! ```text
//!   load: a thread for each worker ─▶ Pipeline: iscsi (RFC 7143) │ nfs (RFC 1813) ─▶ wire: one TCP connection ─▶ server
//!         next operation, latencies     many requests in flight, matched by tag                               or peer (ceiling)
//! ```
//!
//! fio has engines for both protocols (`libiscsi`, `nfs`), but Debian, Ubuntu and Fedora build it without them; so these clients
//! carry the load, with the parameters of a [`crate::load::Load`]. A worker has one connection, as many operations in flight as
//! the load says, and a file, or a part of the unit, of its own. A write that is made stable is one request (FUA, FILE_SYNC).
//!
//! The client's own ceiling is measured with the same code and load against [`peer`], which answers every request at once, over
//! loopback.
//!
//! What a server sends is checked: no length, offset or count from the wire is used before it was compared with what was asked
//! for. A server that breaks the protocol, closes the connection or is silent for [`wire::ANSWERS_WITHIN`] ends the load with an
//! error; nothing is repeated.

mod chap;
pub mod client;
pub mod iscsi;
pub mod load;
pub mod nfs;
pub mod peer;
pub mod secret;
pub mod url;
pub mod wire;
mod xdr;

use std::io;
use std::time::Duration;

/// An operation of a load. Offsets and lengths are multiples of the size of a block of the device.
#[derive(Debug, Clone, Copy)]
pub enum Operation<'a> {
    /// Reads `len` bytes; whether the completion carries them.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// Whether the completion carries the data.
        keeps_data: bool,
    },
    /// Writes.
    Write {
        /// First byte.
        offset: u64,
        /// Data.
        data: &'a [u8],
        /// Whether the server may answer only after the data are on stable storage.
        is_stable: bool,
    },
    /// Makes all acknowledged writes stable.
    Flush,
}

/// The end of an operation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the operation.
    pub tag: u32,
    /// Data of a read, if they were asked for.
    pub data: Vec<u8>,
    /// Whether the server says that the data of a write are stable.
    pub is_stable: bool,
}

/// A client that has several operations in flight.
pub trait Pipeline: Send {
    /// Sends an operation. `tag` is that of no operation in flight.
    ///
    /// # Errors
    /// If the connection fails, or the operation is none of this client.
    fn submit(&mut self, tag: u32, operation: Operation<'_>) -> io::Result<()>;

    /// Waits until an operation ends, at most for `within`. `None` if none ended.
    ///
    /// # Errors
    /// If the server refuses, breaks the protocol, is silent for too long, or is gone.
    fn complete(&mut self, within: Duration) -> io::Result<Option<Completion>>;

    /// Executes one operation while no other is in flight.
    ///
    /// # Errors
    /// As [`Pipeline::complete`].
    fn execute(&mut self, operation: Operation<'_>) -> io::Result<Completion> {
        self.submit(0, operation)?;
        loop {
            if let Some(done) = self.complete(wire::ANSWERS_WITHIN)? {
                return Ok(done);
            }
        }
    }
}
