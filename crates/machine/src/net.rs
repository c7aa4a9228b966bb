//! The network interface: listening sockets and the byte streams of accepted connections.
//!
//! A stream is a pair of halves of tokio's I/O traits, which need no runtime: in production they are TCP sockets, in the
//! simulator pipes that a test can cut. Time-outs are not a matter of a stream; the front ends take them from the
//! machine's [`crate::Clock`].

use futures_util::future::BoxFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
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

/// Opens listening sockets.
pub trait Net: Send + Sync {
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
