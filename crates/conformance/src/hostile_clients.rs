//! Clients that keep connections and memory of a server without using them, on real sockets.
//!
//! Each connection comes again a second after the server has closed it, so the server never gets rid of them for long.
#![allow(clippy::disallowed_methods, reason = "clients run in real time, in a runtime of their own")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::JudgeError;
use crate::kill::mixed;

/// Usual number of connections.
pub const CONNECTIONS: usize = 300;
/// Delay before a closed connection comes again. These clients hold what they have; they do not flood the server.
const RETURNS_AFTER: Duration = Duration::from_secs(1);
/// Number of words of bytes that are no message.
const GARBAGE_WORDS: u64 = 512;
/// Time for which a client that does not read keeps its connection: it does not notice that it was closed.
const UNREAD_FOR: Duration = Duration::from_secs(5);

/// How the clients behave, after the bytes that a well-behaved client would send first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Send nothing.
    Idle,
    /// Send bytes that are no message.
    Garbage,
    /// Send a part of a message.
    HalfSending,
    /// Ask for much and read nothing.
    NeverReading,
}

/// Bytes of the clients of one server.
#[derive(Clone, Debug)]
pub struct Script {
    /// The server.
    pub server: SocketAddr,
    /// The handshake, and the number of bytes that the server answers to it.
    pub begin: (Vec<u8>, usize),
    /// Offset of four bytes of the handshake that differ for each connection.
    pub differs_at: Option<usize>,
    /// A part of a message.
    pub part: Vec<u8>,
    /// Calls with long replies.
    pub calls: Vec<u8>,
}

/// Hostile clients at work, until dropped.
pub struct HostileClients {
    connections: Arc<AtomicU32>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HostileClients {
    /// Starts the clients on a thread of their own, from these addresses in turn.
    ///
    /// # Errors
    /// If the runtime cannot be made.
    pub fn start(
        script: &Arc<Script>,
        behaviour: Behaviour,
        hosts: &[IpAddr],
        count: usize,
    ) -> Result<Self, JudgeError> {
        let failed = |source| JudgeError::Io { what: "hostile clients".to_string(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let clients: Vec<_> = hosts.iter().copied().cycle().take(count).collect();
        let connections = Arc::new(AtomicU32::new(0));
        let counted = connections.clone();
        let script = script.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                for host in clients {
                    let script = script.clone();
                    let connections = counted.clone();
                    drop(tokio::spawn(async move {
                        loop {
                            let number = connections.fetch_add(1, Ordering::Relaxed);
                            // An error is a connection that the server has closed.
                            let _closed = connection(&script, behaviour, host, number).await;
                            tokio::time::sleep(RETURNS_AFTER).await;
                        }
                    }));
                }
                // Both an order to stop and a dropped handle end the clients.
                let _ = stopped.await;
            });
        });
        Ok(HostileClients { connections, stop: Some(stop), thread: Some(thread) })
    }

    /// Number of connections that were tried so far.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for HostileClients {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A client that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

/// Connects from this host.
async fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

/// One connection, until the server closes it.
async fn connection(script: &Script, behaviour: Behaviour, host: IpAddr, number: u32) -> std::io::Result<()> {
    let mut stream = connect(host, script.server).await?;
    if !matches!(behaviour, Behaviour::Idle | Behaviour::Garbage) {
        let (mut begin, answer_bytes) = script.begin.clone();
        if let Some(part) = script.differs_at.and_then(|at| begin.get_mut(at..at + 4)) {
            part.copy_from_slice(&number.to_be_bytes());
        }
        stream.write_all(&begin).await?;
        stream.read_exact(&mut vec![0; answer_bytes]).await?;
    }
    match behaviour {
        Behaviour::Idle => {}
        Behaviour::Garbage => {
            let words = (0..GARBAGE_WORDS).map(|n| mixed(u64::from(number) << 32 | n));
            stream.write_all(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).await?;
        }
        Behaviour::HalfSending => stream.write_all(&script.part).await?,
        Behaviour::NeverReading => {
            stream.write_all(&script.calls).await?;
            tokio::time::sleep(UNREAD_FOR).await;
            return Ok(());
        }
    }
    let mut sink = [0; 4096];
    while stream.read(&mut sink).await? > 0 {}
    Ok(())
}
