//! The simulated network: pipes between a listening socket and the clients that a test makes.
//!
//! Bytes of a connection arrive in order; which connection runs next is the world's choice. A test lays faults over a
//! connection, each of which the canary ([`crate::net_canary`]) must detect:
//!
//! - *cut*, in either direction after any number of bytes ([`SimStream::cut_after`]): the server reads what had been sent,
//!   which may end in the middle of a message, and then the end; its replies go nowhere. A client that is dropped is a
//!   connection that was cut as well;
//! - *delays* ([`SimStream::delayed`]): messages arrive in parts and late, and those of several connections in another order
//!   than they were sent.

use crate::rng::Rng;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use weir_machine::Clock;
use weir_machine::net::{Accepted, Connected, Listener, Net, Remote};

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
    pub fn connect(&self, from: SocketAddr, to: SocketAddr) -> io::Result<SimStream> {
        let (client, server) = tokio::io::duplex(PIPE_BYTES);
        let (reader, writer) = tokio::io::split(server);
        let accepted = Accepted { reader: Box::new(reader), writer: Box::new(writer), peer: from, local: to };
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        self.sockets().get(&to).ok_or_else(refused)?.send(accepted).map_err(|_| refused())?;
        Ok(SimStream { pipe: Some(client), cut: None, delays: None })
    }
}

/// Direction of the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Random delays of the parts of messages.
struct Delays {
    clock: Clock,
    rng: Rng,
    max: Duration,
    /// The part of each direction that is on its way, by [`Direction`].
    waiting: [Option<BoxFuture<'static, ()>>; 2],
}

impl Delays {
    /// Waits until the next part arrives, and returns how long it may be at most.
    fn poll_part(&mut self, direction: Direction, cx: &mut Context<'_>, len: usize) -> Poll<usize> {
        let max_ns = u64::try_from(self.max.as_nanos()).unwrap_or(u64::MAX);
        let waiting = &mut self.waiting[direction as usize];
        let on_its_way = waiting.get_or_insert_with(|| {
            let delay = Duration::from_nanos(self.rng.below(max_ns.saturating_add(1)));
            let clock = self.clock.clone();
            async move { clock.sleep(delay).await }.boxed()
        });
        ready!(on_its_way.poll_unpin(cx));
        *waiting = None;
        Poll::Ready(1 + self.rng.below(len.max(1) as u64) as usize)
    }
}

/// The client's end of a connection.
pub struct SimStream {
    /// `None` once the connection is cut.
    pipe: Option<DuplexStream>,
    /// Direction, and number of bytes that still pass.
    cut: Option<(Direction, u64)>,
    delays: Option<Delays>,
}

impl SimStream {
    /// Cuts the connection when `bytes` more bytes have passed in one direction. With 0 bytes to the client it is cut when
    /// the server has sent something, none of which arrives.
    pub fn cut_after(&mut self, direction: Direction, bytes: u64) {
        self.cut = Some((direction, bytes));
        if direction == Direction::ToServer && bytes == 0 {
            self.pipe = None;
        }
    }

    /// Whether the connection is cut.
    pub fn is_cut(&self) -> bool {
        self.pipe.is_none()
    }

    /// Splits the messages of both directions into parts, each of which is delayed by at most `max`, as `seed` chooses.
    pub fn delayed(self, clock: &Clock, seed: u64, max: Duration) -> Self {
        let delays = Delays { clock: clock.clone(), rng: Rng::new(seed), max, waiting: [None, None] };
        SimStream { delays: Some(delays), ..self }
    }

    /// Number of bytes of `len` that may pass in a direction.
    fn passing(&self, direction: Direction, len: usize) -> usize {
        match self.cut {
            Some((cut, left)) if cut == direction => usize::try_from(left).map_or(len, |left| left.min(len)),
            _ => len,
        }
    }

    /// Counts bytes that have passed, and cuts the connection after the last one.
    fn passed(&mut self, direction: Direction, bytes: usize) {
        if let Some((cut, left)) = &mut self.cut
            && *cut == direction
        {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                self.pipe = None;
            }
        }
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl AsyncRead for SimStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let part = match &mut self.delays {
            Some(delays) => ready!(delays.poll_part(Direction::ToClient, cx, buf.remaining())),
            None => buf.remaining(),
        };
        let passing = self.passing(Direction::ToClient, part.min(buf.remaining()));
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Err(reset())) };
        // Of a reply of which nothing may pass, the first byte is read and lost.
        let mut bytes = vec![0; passing.max(1)];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(pipe).poll_read(cx, &mut read))?;
        let arrived = read.filled().len().min(passing);
        buf.put_slice(&read.filled()[..arrived]);
        if !read.filled().is_empty() {
            self.passed(Direction::ToClient, arrived);
        }
        if passing == 0 { Poll::Ready(Err(reset())) } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let part = match &mut self.delays {
            Some(delays) => ready!(delays.poll_part(Direction::ToServer, cx, buf.len())),
            None => buf.len(),
        };
        let passing = self.passing(Direction::ToServer, part.min(buf.len()));
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Err(reset())) };
        let written = ready!(Pin::new(pipe).poll_write(cx, &buf[..passing]))?;
        self.passed(Direction::ToServer, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.as_mut().map_or(Poll::Ready(Ok(())), |pipe| Pin::new(pipe).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.as_mut().map_or(Poll::Ready(Ok(())), |pipe| Pin::new(pipe).poll_shutdown(cx))
    }
}

/// Address from which the code under test connects.
const OWN_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));

impl Net for SimNet {
    fn connect<'a>(&'a self, to: &'a Remote) -> BoxFuture<'a, io::Result<Connected>> {
        async move {
            let (Remote::Tcp(to) | Remote::TcpFromReserved(to)) = to else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let from = SocketAddr::new(OWN_ADDRESS, FIRST_FREE_PORT);
            let (reader, writer) = tokio::io::split(SimNet::connect(self, from, *to)?);
            Ok(Connected { reader: Box::new(reader), writer: Box::new(writer), local: Some(OWN_ADDRESS) })
        }
        .boxed()
    }

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
