//! The server on TCP.
//!
//! ```text
//!   accept ─▶ handshake ─▶ requests: a task each ─▶ channel ─▶ writer: write_vectored
//!                           │ permits by weight, given back when the reply is written
//! ```
//!
//! Bounds: [`MAX_CONNECTIONS`] connections; per connection [`MAX_REQUESTS`] requests and [`MAX_BYTES`] of data between
//! reading and written reply, however slowly the client reads, and [`MAX_ALL_BYTES`] of all connections together;
//! [`HANDSHAKE_SECONDS`] for the whole handshake. A request whose data have no room is not begun, nor is anything read
//! behind it. If somebody waits for such room, a client must send or take the data of each request within
//! [`DATA_SECONDS`], or is cut off.

use crate::device::{Device, Exports};
use crate::handshake::{Agreed, Handshake, Next, Turn};
use crate::transmission::{self, Pieces, Plan};
use crate::wire::{self, REQUEST_BYTES, RequestHeader, command};
use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use weir_machine::{Place, Request, Room, Served, Tasks};

/// Connections at a time; further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 128;
/// Requests of one connection at a time.
pub const MAX_REQUESTS: usize = 128;
/// Data of one connection, those to be written and those read and not yet sent, in bytes.
pub const MAX_BYTES: u32 = 2 * wire::MAX_TRANSFER_BYTES;
/// The same of all connections together, in bytes.
pub const MAX_ALL_BYTES: usize = 256 << 20;
/// Time to send or take the data of a request, if others wait.
pub const DATA_SECONDS: u64 = 60;
/// Time for the handshake.
pub const HANDSHAKE_SECONDS: u64 = 30;
/// So long a client that neither sends nor takes what it began to may keep a server that is to stop.
pub const CLOSING_SECONDS: u64 = 5;
/// How long it is waited after a connection could not be accepted: for lack of descriptors, most likely.
const REFUSED_WAIT: Duration = Duration::from_millis(100);
const DATA_LIMIT: Duration = Duration::from_secs(DATA_SECONDS);

/// A reply, and what is given back when it is written.
type Outgoing = (Pieces, Held);

/// What a request holds until its reply is written.
struct Held {
    _request: OwnedSemaphorePermit,
    _data: (Place, Place),
}

/// Which clients may write.
pub type Writers = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What connections share.
pub struct Server {
    exports: Arc<dyn Exports>,
    writers: Writers,
    served: Served,
    /// For the data of all connections.
    room: Room,
}

impl Server {
    /// Serves these exports, read-only to all but the `writers`.
    pub fn new(exports: Arc<dyn Exports>, writers: Writers) -> Self {
        Server { exports, writers, served: Served::default(), room: Room::new(MAX_ALL_BYTES) }
    }

    /// What was served so far.
    pub fn served(&self) -> &Served {
        &self.served
    }
}

/// Accepts and serves connections until `stop` says true (or its sender is gone), then waits for requests under way, but no
/// longer than [`CLOSING_SECONDS`].
pub async fn serve(listener: TcpListener, server: Arc<Server>, tasks: Tasks, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                drop(tokio::time::timeout(REFUSED_WAIT, stop.wait_for(|stop| *stop)).await);
                continue;
            }
        };
        let connection = connection(stream, peer.ip(), Arc::clone(&server), tasks.clone(), stop.clone());
        drop(tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(permit);
        }));
    }
    let ended = room.acquire_many(MAX_CONNECTIONS as u32);
    drop(tokio::time::timeout(Duration::from_secs(CLOSING_SECONDS), ended).await);
}

async fn connection(
    mut stream: TcpStream,
    peer: IpAddr,
    server: Arc<Server>,
    tasks: Tasks,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let client = peer.to_string();
    let may_write = (server.writers)(peer);
    let shaking = handshake(&mut stream, &server, may_write);
    let agreed = tokio::select! {
        agreed = tokio::time::timeout(Duration::from_secs(HANDSHAKE_SECONDS), shaking) => agreed??,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let Some(agreed) = agreed else { return Ok(()) };
    let rq = Request::new(client.as_str(), "nbd", "open");
    let device = server.exports.open(&rq, &agreed.export).await.map_err(io::Error::other)?;
    server.served.book(&rq);
    let (incoming, outgoing) = stream.into_split();
    let (sender, receiver) = mpsc::channel(MAX_REQUESTS);
    let writer = tasks.spawn(write(outgoing, receiver, server.room.clone()));
    let session = Arc::new(Session { server, device, agreed, client });
    let read = requests(incoming, session, &tasks, sender, stop).await;
    let written = writer.await.unwrap_or(Ok(()));
    read.and(written)
}

/// `None` if the client left without choosing an export.
async fn handshake(stream: &mut TcpStream, server: &Server, may_write: bool) -> io::Result<Option<Agreed>> {
    let (mut handshake, mut turn) = Handshake::begin(may_write);
    loop {
        let Turn { send, next } = turn;
        stream.write_all(&send).await?;
        turn = match next {
            Next::Read(len) => {
                let mut bytes = vec![0; len];
                stream.read_exact(&mut bytes).await?;
                handshake.take(&*server.exports, &bytes)
            }
            Next::Skip(len) => {
                skip(stream, len).await?;
                handshake.take(&*server.exports, &[])
            }
            Next::Serve(agreed) => return Ok(Some(agreed)),
            Next::Close => return Ok(None),
        };
    }
}

/// Throws bytes away.
async fn skip(stream: &mut (impl AsyncRead + Unpin), len: u32) -> io::Result<()> {
    let mut left = stream.take(len.into());
    let skipped = tokio::io::copy(&mut left, &mut tokio::io::sink()).await?;
    if skipped == u64::from(len) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// What the requests of one connection share.
struct Session {
    server: Arc<Server>,
    device: Arc<dyn Device>,
    agreed: Agreed,
    client: String,
}

async fn requests(
    mut incoming: OwnedReadHalf,
    session: Arc<Session>,
    tasks: &Tasks,
    sender: mpsc::Sender<Outgoing>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let (requests, own) = (Arc::new(Semaphore::new(MAX_REQUESTS)), Room::new(MAX_BYTES as usize));
    loop {
        let mut header = [0; REQUEST_BYTES];
        tokio::select! {
            got = incoming.read_exact(&mut header) => match got {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                got => drop(got?),
            },
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            _ = sender.closed() => return Ok(()),
        }
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "not a request");
        let header = RequestHeader::decode(&header).ok_or_else(nonsense)?;
        let plan = transmission::plan(&header, session.device.size_bytes(), &session.agreed);
        match plan {
            Plan::Disconnect => return Ok(()),
            Plan::Close => return Err(nonsense()),
            Plan::SkipAndRefuse(len, _) => skip(&mut incoming, len).await?,
            _ => {}
        }
        let Ok(request) = Arc::clone(&requests).acquire_owned().await else { return Ok(()) };
        let bytes = transmission::weight_bytes(&plan, &header) as usize;
        let room = &session.server.room;
        let held = Held { _request: request, _data: (own.take(bytes).await, room.take(bytes).await) };
        // Not before there is room for it: that is what bounds the memory.
        let payload = match plan {
            Plan::Write { .. } => room.hurried(DATA_LIMIT, payload(&mut incoming, header.length)).await?,
            _ => Bytes::new(),
        };
        let (session, sender) = (Arc::clone(&session), sender.clone());
        drop(tasks.spawn(async move {
            let rq = Request::new(session.client.as_str(), "nbd", name(header.command));
            let reply = transmission::answer(&*session.device, &rq, &session.agreed, &header, plan, payload).await;
            session.server.served.book(&rq);
            // A writer that is gone needs no reply.
            let _ = sender.send((reply, held)).await;
        }));
    }
}

/// Reads what follows the header of a WRITE.
async fn payload(incoming: &mut OwnedReadHalf, len: u32) -> io::Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(len as usize);
    let mut left = incoming.take(len.into());
    while bytes.len() < len as usize {
        if left.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes.freeze())
}

/// The name of a command, for the request's context.
fn name(command: u16) -> &'static str {
    match command {
        command::READ => "read",
        command::WRITE => "write",
        command::FLUSH => "flush",
        command::TRIM => "trim",
        command::CACHE => "cache",
        command::WRITE_ZEROES => "write zeroes",
        command::BLOCK_STATUS => "block status",
        _ => "unknown",
    }
}

async fn write(mut outgoing: OwnedWriteHalf, mut receiver: mpsc::Receiver<Outgoing>, room: Room) -> io::Result<()> {
    while let Some((reply, held)) = receiver.recv().await {
        room.hurried(DATA_LIMIT, write_pieces(&mut outgoing, reply)).await?;
        drop(held);
    }
    outgoing.shutdown().await
}

/// Writes pieces without joining them.
async fn write_pieces(outgoing: &mut OwnedWriteHalf, mut pieces: Pieces) -> io::Result<()> {
    let mut first = 0;
    while let Some(rest) = pieces.get_mut(first..).filter(|rest| !rest.is_empty()) {
        let mut written = {
            let slices: Vec<IoSlice<'_>> = rest.iter().take(64).map(|piece| IoSlice::new(piece)).collect();
            let written = outgoing.write_vectored(&slices).await?;
            if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written
        };
        for piece in rest {
            let piece: &mut Bytes = piece;
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
