//! The simulated network: pipes between a listening socket and the clients that a test makes.
//!
//! Bytes arrive in order and whole; which connection runs next is the world's choice. A client that is dropped is a
//! connection that was cut: the server reads what had been sent, which may end in the middle of a message, and then the
//! end, and its replies go nowhere.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::DuplexStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use weir_machine::net::{Accepted, Listener, Net};

/// Bytes that are on their way in one direction, at most.
const PIPE_BYTES: usize = 64 << 10;
/// First port that is given to a socket that asks for any.
const FIRST_FREE_PORT: u16 = 40_000;

type Sockets = BTreeMap<SocketAddr, UnboundedSender<Accepted>>;

/// The sockets of a simulated world.
#[derive(Clone, Default)]
pub struct SimNet(Arc<Mutex<Sockets>>);

struct SimSocket {
    address: SocketAddr,
    incoming: futures_util::lock::Mutex<UnboundedReceiver<Accepted>>,
}

impl SimNet {
    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a client at `from` to the socket at `to`.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] if no socket listens there.
    pub fn connect(&self, from: SocketAddr, to: SocketAddr) -> io::Result<DuplexStream> {
        let (client, server) = tokio::io::duplex(PIPE_BYTES);
        let (reader, writer) = tokio::io::split(server);
        let accepted = Accepted { reader: Box::new(reader), writer: Box::new(writer), peer: from };
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        self.sockets().get(&to).ok_or_else(refused)?.send(accepted).map_err(|_| refused())?;
        Ok(client)
    }
}

impl Net for SimNet {
    fn listen(&self, mut address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Listener>>> {
        async move {
            let mut sockets = self.sockets();
            if address.port() == 0 {
                let taken = |port: u16| sockets.keys().any(|other| other.port() == port);
                address.set_port((FIRST_FREE_PORT..).find(|port| !taken(*port)).unwrap_or(0));
            }
            // A socket whose listener was dropped is free again.
            if sockets.get(&address).is_some_and(|sender| !sender.is_closed()) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let (sender, incoming) = unbounded_channel();
            sockets.insert(address, sender);
            let incoming = futures_util::lock::Mutex::new(incoming);
            Ok(Arc::new(SimSocket { address, incoming }) as Arc<dyn Listener>)
        }
        .boxed()
    }
}

impl Listener for SimSocket {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        async move {
            let accepted = self.incoming.lock().await.recv().await;
            accepted.ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
        }
        .boxed()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}
