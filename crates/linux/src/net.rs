//! TCP sockets, sockets in the file system, and UDP.
#![allow(clippy::disallowed_methods, reason = "this is the machine's network")]

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpSocket as UnboundSocket, TcpStream, UdpSocket, UnixStream};
use weir_machine::net::{Accepted, Connected, Datagrams, Listener, Net, Remote};

/// The sockets of this machine. Use them inside a tokio runtime.
pub struct TcpNet;

struct TcpSocket {
    listener: TcpListener,
    address: SocketAddr,
}

impl Net for TcpNet {
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Listener>>> {
        async move {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok(Arc::new(TcpSocket { listener, address }) as Arc<dyn Listener>)
        }
        .boxed()
    }

    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        async move {
            // The port is not used.
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip().to_canonical()).collect())
        }
        .boxed()
    }

    fn connect<'a>(&'a self, to: &'a Remote) -> BoxFuture<'a, io::Result<Connected>> {
        async move {
            match to {
                Remote::Tcp(address) => connected(TcpStream::connect(address).await?),
                Remote::TcpFromReserved(address) => connected(from_reserved_port(*address).await?),
                Remote::Local(path) => {
                    let (reader, writer) = UnixStream::connect(path).await?.into_split();
                    Ok(Connected { reader: Box::new(reader), writer: Box::new(writer), local: None })
                }
            }
        }
        .boxed()
    }

    fn datagrams(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Datagrams>>> {
        async move {
            let socket = UdpSocket::bind(address).await?;
            let address = socket.local_addr()?;
            Ok(Arc::new(Udp { socket, address }) as Arc<dyn Datagrams>)
        }
        .boxed()
    }
}

fn connected(stream: TcpStream) -> io::Result<Connected> {
    stream.set_nodelay(true)?;
    let local = Some(stream.local_addr()?.ip());
    let (reader, writer) = stream.into_split();
    Ok(Connected { reader: Box::new(reader), writer: Box::new(writer), local })
}

/// Reserved ports from which connections are made, as `bindresvport(3)` does: those below are of well-known services.
const RESERVED_PORTS: std::ops::Range<u16> = 665..1024;

/// Connects from the first reserved port that is free.
async fn from_reserved_port(to: SocketAddr) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in RESERVED_PORTS.rev() {
        let (socket, from) = match to {
            SocketAddr::V4(_) => (UnboundSocket::new_v4()?, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
            SocketAddr::V6(_) => (UnboundSocket::new_v6()?, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        };
        let made = match socket.bind(from) {
            Ok(()) => socket.connect(to).await,
            Err(error) => Err(error),
        };
        match made {
            Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {
                last = error;
            }
            made => return made,
        }
    }
    Err(last)
}

struct Udp {
    socket: UdpSocket,
    address: SocketAddr,
}

impl Datagrams for Udp {
    fn receive<'a>(&'a self, bytes: &'a mut [u8]) -> BoxFuture<'a, io::Result<(usize, SocketAddr)>> {
        self.socket.recv_from(bytes).boxed()
    }

    fn send<'a>(&'a self, bytes: &'a [u8], to: SocketAddr) -> BoxFuture<'a, io::Result<()>> {
        async move { self.socket.send_to(bytes, to).await.map(|_| ()) }.boxed()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Listener for TcpSocket {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        async move {
            let (stream, peer) = self.listener.accept().await?;
            stream.set_nodelay(true)?;
            let local = stream.local_addr()?;
            let local = SocketAddr::new(local.ip().to_canonical(), local.port());
            let (reader, writer) = stream.into_split();
            Ok(Accepted { reader: Box::new(reader), writer: Box::new(writer), peer, local })
        }
        .boxed()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}
