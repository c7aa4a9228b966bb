//! The server on TCP.
//!
//! ```text
//!   accept ─▶ connection: read ─▶ Assembler ─▶ one task per call ─▶ channel ─▶ writer: write_vectored
//!                                  │ one permit per call, released after the reply is written
//! ```
//!
//! Bounds: [`MAX_CONNECTIONS`] connections; per connection [`MAX_CALLS`] calls between reading and the written reply.
//! Long calls (WRITEs) of all connections together hold at most [`MAX_LONG_CALLS_BYTES`]: after the length of a long
//! call is known, the connection is not read further until a call of maximum length fits, and the call must be
//! complete within [`LONG_CALL_TIMEOUT_S`]. Replies, sized by the count that the call requests, hold at most
//! [`MAX_CONNECTION_REPLY_BYTES`] per connection and [`MAX_TOTAL_REPLY_BYTES`] together: a call is not started, and
//! nothing behind it is read, until its reply fits. While another call waits for reply memory, a client that does not
//! read a reply within [`REPLY_TIMEOUT_S`] is disconnected; NFS clients reconnect by themselves.
//!
//! Replies are sent in the order of completion, as the protocol allows. A connection ends when its peer closes it or
//! sends malformed records, or when the server stops; calls in progress are still answered.

use crate::record::{Assembler, MAX_MESSAGE_BYTES};
use crate::reply::Reply;
use crate::server::{Peer, Server, reply_bytes};
use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use weir_machine::{BytePermit, ByteSemaphore, Tasks};

/// Maximum number of open connections; further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 512;
/// Maximum number of concurrent calls of one connection.
pub const MAX_CALLS: usize = 64;
/// Calls longer than this count as long calls, in bytes.
pub const LONG_CALL_MIN_BYTES: usize = 8 << 10;
/// Maximum size of the long calls of all connections together, in bytes.
pub const MAX_LONG_CALLS_BYTES: usize = 128 << 20;
/// Maximum size of the replies of one connection that are in preparation or unsent, in bytes.
pub const MAX_CONNECTION_REPLY_BYTES: usize = 16 << 20;
/// Maximum size of the replies of all connections that are in preparation or unsent, in bytes.
pub const MAX_TOTAL_REPLY_BYTES: usize = 128 << 20;
/// Seconds in which a client must read a reply while another call waits for reply memory.
pub const REPLY_TIMEOUT_S: u64 = 30;
/// Seconds in which a long call must arrive completely.
pub const LONG_CALL_TIMEOUT_S: u64 = 60;
/// Shutdown waits at most this many seconds for clients that do not read their replies.
pub const SHUTDOWN_TIMEOUT_S: u64 = 5;
const READ_BYTES: usize = 64 << 10;
/// Delay before the next `accept` after one failed, most likely for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Granularity of the semaphore for long calls, in bytes.
const PERMIT_BYTES: usize = 4096;

const _: () = assert!(MAX_MESSAGE_BYTES.is_multiple_of(PERMIT_BYTES));

/// Decides by address which clients may write.
pub type WriteAcl = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// A reply and the permits that are released after it was written.
type Outgoing = (Reply, CallPermits);

/// Permits that a call holds until its reply is written.
struct CallPermits {
    _call: OwnedSemaphorePermit,
    _reply: (BytePermit, BytePermit),
}

/// State shared by all connections.
#[derive(Clone)]
struct ConnectionContext {
    server: Arc<Server>,
    tasks: Tasks,
    long: Arc<Semaphore>,
    replies: ByteSemaphore,
    stop: watch::Receiver<bool>,
}

/// Accepts and serves connections until `stop` becomes true or its sender is dropped, then waits at most
/// [`SHUTDOWN_TIMEOUT_S`] for calls in progress. Clients that `write_acl` rejects may only read.
pub async fn serve(
    listener: TcpListener,
    server: Arc<Server>,
    write_acl: WriteAcl,
    tasks: Tasks,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let long = Arc::new(Semaphore::new(MAX_LONG_CALLS_BYTES / PERMIT_BYTES));
    let shared = ConnectionContext {
        server,
        tasks,
        long,
        replies: ByteSemaphore::new(MAX_TOTAL_REPLY_BYTES),
        stop: stop.clone(),
    };
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The peer closed the connection before it was accepted, or the process is out of file descriptors;
                // both are temporary.
                tracing::warn!(%error, "cannot accept a connection");
                drop(tokio::time::timeout(ACCEPT_RETRY_DELAY, stop.wait_for(|stop| *stop)).await);
                continue;
            }
        };
        let client = Peer::new(&peer.ip().to_string(), write_acl(peer.ip())).from_port(peer.port());
        let connection = connection(stream, client, shared.clone());
        drop(shared.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(permit);
        }));
    }
    // All permits are available again only after every connection has ended.
    let ended = connections.acquire_many(MAX_CONNECTIONS as u32);
    drop(tokio::time::timeout(Duration::from_secs(SHUTDOWN_TIMEOUT_S), ended).await);
}

async fn connection(stream: TcpStream, client: Peer, shared: ConnectionContext) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (incoming, outgoing) = stream.into_split();
    let (sender, receiver) = mpsc::channel(MAX_CALLS);
    let writer = shared.tasks.spawn(write(outgoing, receiver, shared.replies.clone()));
    let read = read(incoming, client, shared, sender).await;
    // The senders are dropped when the last call is answered; then the writer ends.
    let written = writer.await.unwrap_or(Ok(()));
    read.and(written)
}

/// Permit of a long call that is still arriving, and the deadline for its last byte.
struct LongCallPermit {
    permit: OwnedSemaphorePermit,
    deadline: tokio::time::Instant,
}

impl LongCallPermit {
    /// Reserves the maximum call length: if each call reserved only what has arrived so far, growing calls could
    /// deadlock on each other.
    async fn new(long: &Arc<Semaphore>) -> io::Result<Self> {
        let permit = Arc::clone(long).acquire_many_owned((MAX_MESSAGE_BYTES / PERMIT_BYTES) as u32).await;
        let permit = permit.map_err(io::Error::other)?;
        Ok(LongCallPermit { permit, deadline: tokio::time::Instant::now() + Duration::from_secs(LONG_CALL_TIMEOUT_S) })
    }

    /// Shrinks the permit to a call of `len` bytes.
    fn shrink_to(mut self, len: usize) -> Option<OwnedSemaphorePermit> {
        self.permit.split(len.div_ceil(PERMIT_BYTES))
    }
}

async fn read(
    mut incoming: OwnedReadHalf,
    client: Peer,
    shared: ConnectionContext,
    sender: mpsc::Sender<Outgoing>,
) -> io::Result<()> {
    let calls = Arc::new(Semaphore::new(MAX_CALLS));
    let replies = ByteSemaphore::new(MAX_CONNECTION_REPLY_BYTES);
    let mut stop = shared.stop.clone();
    let mut assembler = Assembler::default();
    let mut buffer = bytes::BytesMut::with_capacity(READ_BYTES);
    let mut long_permit: Option<LongCallPermit> = None;
    loop {
        buffer.reserve(READ_BYTES);
        let deadline = long_permit.as_ref().map(|permit| permit.deadline);
        let got = tokio::select! {
            got = read_until(&mut incoming, &mut buffer, deadline) => got?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            _ = sender.closed() => return Ok(()),
        };
        if got == 0 {
            return Ok(());
        }
        loop {
            let mut input: &[u8] = &buffer;
            let message = assembler.take(&mut input);
            let consumed = buffer.len() - input.len();
            buffer.advance(consumed);
            let message = message.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let is_long = message.as_ref().map_or(assembler.claimed_bytes(), Vec::len) > LONG_CALL_MIN_BYTES;
            if is_long && long_permit.is_none() {
                long_permit = Some(LongCallPermit::new(&shared.long).await?);
            }
            let Some(message) = message else { break };
            let long = long_permit.take().and_then(|permit| permit.shrink_to(message.len()));
            let Ok(call) = Arc::clone(&calls).acquire_owned().await else { return Ok(()) };
            let bytes = reply_bytes(&message);
            let reply = (replies.acquire(bytes).await, shared.replies.acquire(bytes).await);
            let held = CallPermits { _call: call, _reply: reply };
            let server = Arc::clone(&shared.server);
            let client = client.clone();
            let sender = sender.clone();
            drop(shared.tasks.spawn(async move {
                let reply = server.answer(&client, &Bytes::from(message)).await;
                // The call's buffer is freed here, however late the client reads the reply.
                drop(long);
                if let Some(reply) = reply {
                    // If the writer has ended, the connection is closed and the reply is dropped.
                    let _ = sender.send((reply, held)).await;
                }
            }));
        }
    }
}

async fn read_until(
    incoming: &mut OwnedReadHalf,
    buffer: &mut bytes::BytesMut,
    deadline: Option<tokio::time::Instant>,
) -> io::Result<usize> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, incoming.read_buf(buffer)).await?,
        None => incoming.read_buf(buffer).await,
    }
}

async fn write(
    mut outgoing: OwnedWriteHalf,
    mut receiver: mpsc::Receiver<Outgoing>,
    replies: ByteSemaphore,
) -> io::Result<()> {
    let limit = Duration::from_secs(REPLY_TIMEOUT_S);
    while let Some((reply, held)) = receiver.recv().await {
        replies.with_contention_deadline(limit, write_pieces(&mut outgoing, reply.pieces)).await?;
        drop(held);
    }
    outgoing.shutdown().await
}

/// Writes all pieces with vectored writes, without joining them.
async fn write_pieces(outgoing: &mut OwnedWriteHalf, mut pieces: SmallVec<[Bytes; 6]>) -> io::Result<()> {
    let mut first = 0;
    while let Some(rest) = pieces.get_mut(first..).filter(|rest| !rest.is_empty()) {
        let mut written = {
            let slices: SmallVec<[IoSlice<'_>; 16]> = rest.iter().take(64).map(|piece| IoSlice::new(piece)).collect();
            let written = outgoing.write_vectored(&slices).await?;
            if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written
        };
        for piece in rest {
            if written < piece.len() {
                piece.advance(written);
                break;
            }
            written -= piece.len();
            first += 1;
        }
    }
    Ok(())
}
