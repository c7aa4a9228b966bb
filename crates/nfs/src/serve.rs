//! The server on TCP.
//!
//! ```text
//!   accept ─▶ connection: read ─▶ Assembler ─▶ one task per call ─▶ channel ─▶ writer: write_vectored
//!                                  │ one permit per call, released after the reply is written
//! ```
//!
//! Bounds: those of [`LIMITS`] and of `weir_front`; per connection [`MAX_CALLS`] calls between reading and the written reply.
//! Long calls (WRITEs) of all connections together hold at most [`MAX_LONG_CALLS_BYTES`], of which one host gets a quarter:
//! after the length of a long call is known, the connection is not read further until a call of maximum length fits.
//! Replies, sized by the count that the call requests, hold at most [`MAX_CONNECTION_REPLY_BYTES`] per connection and
//! [`MAX_TOTAL_REPLY_BYTES`] together, of which one host gets a quarter: a call is not started, and nothing behind it is
//! read, until its reply fits. The front end closes connections that stall in the middle of a call or do not read their
//! replies; NFS clients reconnect by themselves.
//!
//! Replies are sent in the order of completion, as the protocol allows. A connection ends when its peer closes it or
//! sends malformed records, or when the server stops; calls in progress are still answered.

use crate::record::{Assembler, MAX_MESSAGE_BYTES};
use crate::reply::Reply;
use crate::server::{Peer, Server, is_about_locks, is_call, reply_bytes};
use bytes::{Buf, Bytes};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use weir_front::{CallGuard, Connection, ConnectionHandle, FrontEnd, HostBudget, HostPermit, Limits, Reader, Writer};
use weir_machine::net::{Datagrams, Listener};
use weir_machine::{BytePermit, ByteSemaphore, Machine, Protocol, Tasks};

/// Limits of connections.
pub const LIMITS: Limits = Limits::new(512);
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
const READ_BYTES: usize = 64 << 10;
/// Maximum number of concurrent calls that came as datagrams.
const MAX_DATAGRAM_CALLS: usize = 64;
/// Maximum length of a datagram in bytes: a lock call with the longest names and handles.
const DATAGRAM_BYTES: usize = 8 << 10;
/// Delay before the next datagram is received after a failure.
const DATAGRAM_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A reply and the permits that are released after it was written.
type Outgoing = (Reply, CallPermits);

/// Permits that a call holds until its reply is written.
struct CallPermits {
    _call: OwnedSemaphorePermit,
    _reply: (BytePermit, HostPermit),
    _guard: CallGuard,
}

/// State shared by all connections.
#[derive(Clone)]
struct ConnectionContext {
    server: Arc<Server>,
    tasks: Tasks,
    long: Arc<HostBudget>,
    replies: Arc<HostBudget>,
    stop: watch::Receiver<bool>,
}

/// Accepts and serves connections until `stop` becomes true or its sender is dropped, then waits a few seconds for calls in
/// progress.
pub async fn serve(listener: Arc<dyn Listener>, server: Arc<Server>, machine: Machine, stop: watch::Receiver<bool>) {
    let long = Arc::new(HostBudget::new(MAX_LONG_CALLS_BYTES));
    let replies = Arc::new(HostBudget::new(MAX_TOTAL_REPLY_BYTES));
    let tasks = machine.tasks.clone();
    let budgets = vec![long.clone(), replies.clone()];
    let front = FrontEnd::of_protocol(Protocol::Nfs3.name(), machine.clock, tasks.clone(), LIMITS, budgets);
    server.set_front(&front);
    let shared = ConnectionContext { server: server.clone(), tasks, long, replies, stop: stop.clone() };
    let session = |connection: Connection| {
        let peer = connection.handle.peer();
        let client = Arc::new(Peer::new(peer.ip()).from_port(peer.port()));
        server.connected(&client);
        serve_connection(connection, client, shared.clone())
    };
    weir_front::serve(front, listener, stop, session).await;
}

/// Answers calls of the lock manager and the status monitor that come as datagrams, until `stop` becomes true or its sender
/// is dropped. Clients announce over UDP that they have restarted. Other calls are dropped, and so are those beyond
/// [`MAX_DATAGRAM_CALLS`]; their senders repeat them.
pub async fn serve_datagrams(
    socket: Arc<dyn Datagrams>,
    server: Arc<Server>,
    machine: Machine,
    mut stop: watch::Receiver<bool>,
) {
    let calls = Arc::new(Semaphore::new(MAX_DATAGRAM_CALLS));
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        let received = tokio::select! {
            received = socket.receive(&mut buffer) => received,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok((len, from)) = received else {
            machine.clock.sleep(DATAGRAM_RETRY_DELAY).await;
            continue;
        };
        let message = buffer.get(..len).unwrap_or(&[]);
        let Ok(permit) = Arc::clone(&calls).try_acquire_owned() else { continue };
        if !is_about_locks(message) {
            continue;
        }
        let message = Bytes::copy_from_slice(message);
        let socket = Arc::clone(&socket);
        let server = Arc::clone(&server);
        machine.tasks.start(async move {
            let peer = Peer::new(from.ip()).from_port(from.port());
            if let Some(reply) = server.answer(&peer, &message).await {
                // A reply that is lost is asked for again.
                let _ = socket.send(&reply.body(), from).await;
            }
            drop(permit);
        });
    }
}

async fn serve_connection(connection: Connection, client: Arc<Peer>, shared: ConnectionContext) -> io::Result<()> {
    let Connection { reader, writer, handle } = connection;
    let (sender, receiver) = mpsc::channel(MAX_CALLS);
    let writer = shared.tasks.spawn(write(writer, receiver));
    let read = read(reader, handle, client, shared, sender).await;
    // The senders are dropped when the last call is answered; then the writer ends.
    let written = writer.await.unwrap_or(Ok(()));
    read.and(written)
}

async fn read(
    mut incoming: Reader,
    handle: ConnectionHandle,
    client: Arc<Peer>,
    shared: ConnectionContext,
    sender: mpsc::Sender<Outgoing>,
) -> io::Result<()> {
    let calls = Arc::new(Semaphore::new(MAX_CALLS));
    let replies = ByteSemaphore::new(MAX_CONNECTION_REPLY_BYTES);
    let mut stop = shared.stop.clone();
    let mut assembler = Assembler::default();
    let mut buffer = bytes::BytesMut::with_capacity(READ_BYTES);
    let mut long_permit: Option<HostPermit> = None;
    let mut is_known = false;
    loop {
        buffer.reserve(READ_BYTES);
        handle.set_in_message(assembler.claimed_bytes() > 0 || !buffer.is_empty());
        let got = tokio::select! {
            got = incoming.read_buf(&mut buffer) => got?,
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
                // Memory for the longest call. If each connection acquired only what its call needs so far, and later the
                // rest, two connections could wait for each other's memory.
                long_permit = tokio::select! {
                    permit = handle.acquire(&shared.long, MAX_MESSAGE_BYTES) => Some(permit),
                    _ = sender.closed() => return Ok(()),
                };
            }
            let Some(message) = message else { break };
            handle.set_in_message(false);
            let mut long = long_permit.take();
            long.iter_mut().for_each(|permit| permit.shrink_to(message.len()));
            let bytes = reply_bytes(&message);
            let permits = async {
                let call = Arc::clone(&calls).acquire_owned().await;
                let reply = (replies.acquire(bytes).await, handle.acquire(&shared.replies, bytes).await);
                call.map(|call| CallPermits { _call: call, _reply: reply, _guard: handle.begin_call() })
            };
            // Calls that wait are not executed for a client that is gone: no client would read their replies.
            let held = tokio::select! {
                biased;
                _ = sender.closed() => return Ok(()),
                held = permits => held,
            };
            let Ok(held) = held else { return Ok(()) };
            if !is_known && is_call(&message) {
                is_known = true;
                handle.uses(Protocol::Nfs3.name(), "NFS version 3");
            }
            let server = Arc::clone(&shared.server);
            let client = Arc::clone(&client);
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

async fn write(mut outgoing: Writer, mut receiver: mpsc::Receiver<Outgoing>) -> io::Result<()> {
    while let Some((mut reply, held)) = receiver.recv().await {
        outgoing.write_pieces(&mut reply.pieces).await?;
        drop(held);
    }
    outgoing.shutdown().await
}
