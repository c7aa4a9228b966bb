//! The server on TCP.
//!
//! ```text
//!   accept ─▶ connection: read ─▶ Assembler ─▶ one task per call ─▶ channel ─▶ writer: write_vectored
//!                                  │ a permit each, given back when the reply is written
//! ```
//!
//! Bounds: [`MAX_CONNECTIONS`] connections; per connection [`MAX_CALLS`] calls between reading and written reply. Long calls
//! of all connections together (that is, WRITEs) hold at most [`MAX_LONG_BYTES`]: a call that claims to be a long one is not
//! read further before there is room for the longest, and must be complete after [`LONG_SECONDS`]. Replies, by what is
//! asked for, hold at most [`MAX_REPLY_BYTES`] per connection and [`MAX_ALL_REPLY_BYTES`] together: a call whose reply has
//! no room is not begun, nor is anything read behind it. If somebody waits for such room, a client must take each reply
//! within [`REPLY_SECONDS`] or is cut off; it will come again.
//!
//! Replies leave in the order in which they are ready, as the protocol allows. A connection ends when its peer closes it,
//! sends nonsense, or the server stops; calls under way are still answered.

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
use weir_machine::{Place, Room, Tasks};

/// Connections at a time; further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 512;
/// Calls of one connection at a time.
pub const MAX_CALLS: usize = 64;
/// What is longer is a long call, in bytes.
pub const LONG_BYTES: usize = 8 << 10;
/// Long calls of all connections together, in bytes.
pub const MAX_LONG_BYTES: usize = 128 << 20;
/// Replies of one connection that are being made or wait to be taken, in bytes.
pub const MAX_REPLY_BYTES: usize = 16 << 20;
/// The same of all connections together.
pub const MAX_ALL_REPLY_BYTES: usize = 128 << 20;
/// Time to take a reply, if others wait.
pub const REPLY_SECONDS: u64 = 30;
/// Time for a long call to come in.
pub const LONG_SECONDS: u64 = 60;
/// So long a client that does not take its replies may keep a server that is to stop.
pub const CLOSING_SECONDS: u64 = 5;
const READ_BYTES: usize = 64 << 10;
/// How long it is waited after a connection could not be accepted: for lack of descriptors, most likely.
const REFUSED_WAIT: Duration = Duration::from_millis(100);
/// The unit of the permits for long calls.
const PERMIT_BYTES: usize = 4096;

const _: () = assert!(MAX_MESSAGE_BYTES.is_multiple_of(PERMIT_BYTES));

/// Which clients may change anything.
pub type Writers = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// A reply, and what is given back when it is written.
type Outgoing = (Reply, Held);

/// What a call holds until its reply is written.
struct Held {
    _call: OwnedSemaphorePermit,
    _reply: (Place, Place),
}

/// What connections share.
#[derive(Clone)]
struct Shared {
    server: Arc<Server>,
    tasks: Tasks,
    long: Arc<Semaphore>,
    replies: Room,
    stop: watch::Receiver<bool>,
}

/// Accepts and serves connections until `stop` says true (or its sender is gone), then waits for calls under way, but no
/// longer than [`CLOSING_SECONDS`]. All clients but the `writers` may only read.
pub async fn serve(
    listener: TcpListener,
    server: Arc<Server>,
    writers: Writers,
    tasks: Tasks,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let long = Arc::new(Semaphore::new(MAX_LONG_BYTES / PERMIT_BYTES));
    let shared = Shared { server, tasks, long, replies: Room::new(MAX_ALL_REPLY_BYTES), stop: stop.clone() };
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // A connection that was gone before it was taken, or no more descriptors: neither is the end.
                tracing::warn!(%error, "cannot accept a connection");
                drop(tokio::time::timeout(REFUSED_WAIT, stop.wait_for(|stop| *stop)).await);
                continue;
            }
        };
        let client = Peer::new(&peer.ip().to_string(), writers(peer.ip())).from_port(peer.port());
        let connection = connection(stream, client, shared.clone());
        drop(shared.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(permit);
        }));
    }
    // All permits back means that all connections are done.
    let ended = room.acquire_many(MAX_CONNECTIONS as u32);
    drop(tokio::time::timeout(Duration::from_secs(CLOSING_SECONDS), ended).await);
}

async fn connection(stream: TcpStream, client: Peer, shared: Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (incoming, outgoing) = stream.into_split();
    let (sender, receiver) = mpsc::channel(MAX_CALLS);
    let writer = shared.tasks.spawn(write(outgoing, receiver, shared.replies.clone()));
    let read = read(incoming, client, shared, sender).await;
    // The senders are gone when the last call is answered; then the writer ends.
    let written = writer.await.unwrap_or(Ok(()));
    read.and(written)
}

/// The room that a long call holds while it comes in, and until when it must be complete.
struct Claim {
    permit: OwnedSemaphorePermit,
    deadline: tokio::time::Instant,
}

impl Claim {
    /// Waits for room for the longest call: with less, calls that grow could wait for each other.
    async fn new(long: &Arc<Semaphore>) -> io::Result<Self> {
        let permit = Arc::clone(long).acquire_many_owned((MAX_MESSAGE_BYTES / PERMIT_BYTES) as u32).await;
        let permit = permit.map_err(io::Error::other)?;
        Ok(Claim { permit, deadline: tokio::time::Instant::now() + Duration::from_secs(LONG_SECONDS) })
    }

    /// The room that a call of so many bytes goes on holding.
    fn cut(mut self, len: usize) -> Option<OwnedSemaphorePermit> {
        self.permit.split(len.div_ceil(PERMIT_BYTES))
    }
}

async fn read(
    mut incoming: OwnedReadHalf,
    client: Peer,
    shared: Shared,
    sender: mpsc::Sender<Outgoing>,
) -> io::Result<()> {
    let (calls, replies) = (Arc::new(Semaphore::new(MAX_CALLS)), Room::new(MAX_REPLY_BYTES));
    let mut stop = shared.stop.clone();
    let mut assembler = Assembler::default();
    let mut buffer = bytes::BytesMut::with_capacity(READ_BYTES);
    let mut claim: Option<Claim> = None;
    loop {
        buffer.reserve(READ_BYTES);
        let deadline = claim.as_ref().map(|claim| claim.deadline);
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
            let is_long = message.as_ref().map_or(assembler.claimed_bytes(), Vec::len) > LONG_BYTES;
            if is_long && claim.is_none() {
                claim = Some(Claim::new(&shared.long).await?);
            }
            let Some(message) = message else { break };
            let long = claim.take().and_then(|claim| claim.cut(message.len()));
            let Ok(call) = Arc::clone(&calls).acquire_owned().await else { return Ok(()) };
            let bytes = reply_bytes(&message);
            let reply = (replies.take(bytes).await, shared.replies.take(bytes).await);
            let held = Held { _call: call, _reply: reply };
            let (server, client, sender) = (Arc::clone(&shared.server), client.clone(), sender.clone());
            drop(shared.tasks.spawn(async move {
                let reply = server.answer(&client, &Bytes::from(message)).await;
                // The call is gone, whenever its reply is taken.
                drop(long);
                if let Some(reply) = reply {
                    // A writer that is gone needs no reply.
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

async fn write(mut outgoing: OwnedWriteHalf, mut receiver: mpsc::Receiver<Outgoing>, replies: Room) -> io::Result<()> {
    let limit = Duration::from_secs(REPLY_SECONDS);
    while let Some((reply, held)) = receiver.recv().await {
        replies.hurried(limit, write_pieces(&mut outgoing, reply.pieces)).await?;
        drop(held);
    }
    outgoing.shutdown().await
}

/// Writes pieces without joining them.
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
