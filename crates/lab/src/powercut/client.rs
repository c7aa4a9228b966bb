//! Clients of a server under test: each writes, flushes and reads a range of bytes over one protocol.
//!
//! They are small and synchronous: one request at a time, so that the moment of an acknowledgement is known exactly.

use super::{files, nbd};
use crate::native::network::iscsi::{INITIATOR_NAME, Initiator, Wanted};
use crate::native::network::nfs::{Access, Mounted};
use crate::native::network::wire::Wire;
use crate::native::network::{Operation, Pipeline};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for an answer. A server that a cut stopped closes its connections.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Way from a writer to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A file over NFS version 3: WRITE and COMMIT.
    Nfs,
    /// A volume over NBD: WRITE, FLUSH and FUA.
    Nbd,
    /// A volume over iSCSI: WRITE(16), SYNCHRONIZE CACHE and FUA.
    Iscsi,
    /// A file on a FUSE mount: `write`, `fsync` and `O_DSYNC`.
    Mount,
}

/// Ways and their names on the command line.
pub const WAYS: [(&str, Way); 4] = [("nfs", Way::Nfs), ("nbd", Way::Nbd), ("iscsi", Way::Iscsi), ("mount", Way::Mount)];

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Nfs => "NFS",
            Way::Nbd => "NBD",
            Way::Iscsi => "iSCSI",
            Way::Mount => "FUSE mount",
        })
    }
}

/// Place that a client connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Export of an NFS server.
    Nfs(SocketAddr, String),
    /// Export of an NBD server.
    Nbd(SocketAddr, String),
    /// Target and logical unit.
    Iscsi(SocketAddr, String, u8),
    /// Directory.
    Mount(PathBuf),
}

/// A client. Offsets and lengths are multiples of 512 bytes.
pub trait Client: Send {
    /// Writes; with `is_stable`, the server must answer only after the data are on stable storage. Returns whether the server says
    /// that they are.
    ///
    /// # Errors
    /// If the server refuses, or is gone.
    fn write(&mut self, offset: u64, data: &[u8], is_stable: bool) -> io::Result<bool>;

    /// Makes all acknowledged writes of this client stable.
    ///
    /// # Errors
    /// As [`Client::write`].
    fn flush(&mut self) -> io::Result<()>;

    /// Reads; bytes that do not exist read as zeros.
    ///
    /// # Errors
    /// As [`Client::write`].
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// A client of a benchmark, with one operation in flight.
struct OneInFlight<P>(P);

impl<P: Pipeline> Client for OneInFlight<P> {
    fn write(&mut self, offset: u64, data: &[u8], is_stable: bool) -> io::Result<bool> {
        Ok(self.0.execute(Operation::Write { offset, data, is_stable })?.is_stable)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.execute(Operation::Flush).map(|_| ())
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let done = self.0.execute(Operation::Read { offset, len: buffer.len(), keeps_data: true })?;
        match done.data.len() == buffer.len() {
            true => buffer.copy_from_slice(&done.data),
            false => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

impl Address {
    /// Connects a client for writer `number`. Files are made if they are not there; block devices are shared by all writers.
    ///
    /// # Errors
    /// If the server does not answer, or refuses.
    pub fn connect(&self, number: u32) -> io::Result<Box<dyn Client>> {
        let name = format!("records{number}");
        Ok(match self {
            Address::Nfs(server, path) => {
                // NFS and MOUNT are at one port; the pool's root belongs to user 0.
                let access = Access { nfs: Some(server.port()), mount: None, user: Some(0) };
                Box::new(OneInFlight(Mounted::mount(&server.ip().to_string(), access, path)?.open(&name, true)?))
            }
            Address::Nbd(server, export) => Box::new(nbd::NbdExport::open(*server, export)?),
            Address::Iscsi(server, iqn, lun) => {
                let (lun, session) = (u16::from(*lun), u64::from(number));
                let wanted = Wanted { iqn, lun, user: None, initiator: INITIATOR_NAME, session };
                Box::new(OneInFlight(Initiator::open(Wire::connect(*server)?, &wanted)?))
            }
            Address::Mount(directory) => Box::new(files::MountedFile::open(&directory.join(name))?),
        })
    }

    /// Whether writers have a range of one device each, instead of a file each.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Address::Nbd(..) | Address::Iscsi(..))
    }
}

/// Connects over TCP.
///
/// # Errors
/// If the server does not answer within ten seconds.
#[allow(clippy::disallowed_methods, reason = "a client of a real server")]
pub fn connect(server: SocketAddr) -> io::Result<std::net::TcpStream> {
    let stream = std::net::TcpStream::connect_timeout(&server, Duration::from_secs(10))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
    Ok(stream)
}

/// Reads an array.
///
/// # Errors
/// Errors of the connection.
pub fn array<const LENGTH: usize>(stream: &mut impl io::Read) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
