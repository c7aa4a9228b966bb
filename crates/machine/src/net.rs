//! The network interface: listening sockets, the byte streams of connections, and datagrams.
//!
//! A stream is a pair of halves of tokio's I/O traits, which need no runtime: in production they are TCP sockets, in the
//! simulator pipes that a test can cut. Time-outs are not a matter of a stream; the front ends take them from the
//! machine's [`crate::Clock`].

use futures_util::future::BoxFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// The half of a connection that is read.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The half of a connection that is written.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// An accepted connection.
pub struct Accepted {
    /// The half that is read.
    pub reader: ReadHalf,
    /// The half that is written; dropping it closes the connection for writing.
    pub writer: WriteHalf,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Address at which the client reached the server, also of a socket that listens on all addresses.
    pub local: SocketAddr,
}

/// A socket that accepts connections.
pub trait Listener: Send + Sync {
    /// Waits for the next connection.
    ///
    /// # Errors
    /// Temporary ones: the client is gone already, or no file descriptor is left.
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>>;

    /// The address that the socket listens on.
    fn address(&self) -> SocketAddr;
}

/// Destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A TCP port, from a port below 1024, which takes a privilege. Some services trust such callers more.
    TcpFromReserved(SocketAddr),
    /// A socket in this machine's file system.
    Local(PathBuf),
}

/// A connection that this process made.
pub struct Connected {
    /// The half that is read.
    pub reader: ReadHalf,
    /// The half that is written.
    pub writer: WriteHalf,
    /// This machine's address, as the peer sees it; `None` for a local socket.
    pub local: Option<IpAddr>,
}

/// A socket for datagrams.
pub trait Datagrams: Send + Sync {
    /// Waits for the next datagram and its sender. What does not fit into `bytes` is lost.
    ///
    /// # Errors
    /// Temporary ones, for example that an earlier datagram did not arrive.
    fn receive<'a>(&'a self, bytes: &'a mut [u8]) -> BoxFuture<'a, io::Result<(usize, SocketAddr)>>;

    /// Sends a datagram.
    ///
    /// # Errors
    /// If the system refuses it.
    fn send<'a>(&'a self, bytes: &'a [u8], to: SocketAddr) -> BoxFuture<'a, io::Result<()>>;

    /// The address that the socket is bound to.
    fn address(&self) -> SocketAddr;
}

fn unsupported<T: Send + 'static>() -> BoxFuture<'static, io::Result<T>> {
    Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
}

/// Opens sockets.
pub trait Net: Send + Sync {
    /// Connects to a service. The default is an error: this network has none.
    ///
    /// # Errors
    /// If the service does not answer, or refuses.
    fn connect<'a>(&'a self, _to: &'a Remote) -> BoxFuture<'a, io::Result<Connected>> {
        unsupported()
    }

    /// Opens a socket for datagrams; port 0 chooses a free one. The default is an error: this network has none.
    ///
    /// # Errors
    /// If the address is in use, or is none of this machine.
    fn datagrams(&self, _address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Datagrams>>> {
        unsupported()
    }

    /// Listens on an address; port 0 chooses a free one.
    ///
    /// # Errors
    /// If the address is in use, or is none of this machine.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Listener>>>;

    /// The addresses of a host name. The default has no names.
    ///
    /// # Errors
    /// If the name has no address, or no name server answers.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let why = format!("host names cannot be looked up here: {name}");
        Box::pin(async move { Err(io::Error::new(io::ErrorKind::Unsupported, why)) })
    }
}
