//! TCP sockets.
#![allow(clippy::disallowed_methods, reason = "this is the machine's network")]

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use weir_machine::net::{Accepted, Listener, Net};

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
}

impl Listener for TcpSocket {
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        async move {
            let (stream, peer) = self.listener.accept().await?;
            stream.set_nodelay(true)?;
            let (reader, writer) = stream.into_split();
            Ok(Accepted { reader: Box::new(reader), writer: Box::new(writer), peer })
        }
        .boxed()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}
