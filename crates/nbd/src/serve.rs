//! The server on TCP.
//!
//! ```text
//!   accept ─▶ handshake ─▶ requests: a task each ─▶ channel ─▶ writer: write_vectored
//!                           │ permits by data size, released after the reply is written
//! ```
//!
//! Bounds: those of [`LIMITS`] and of `weir_front`; per connection [`MAX_REQUESTS`] requests and [`MAX_CONNECTION_BYTES`] of
//! data between reading and the written reply, however slowly the client reads; over all connections [`MAX_TOTAL_BYTES`], of
//! which one host gets a quarter. A request is not started, and nothing behind it is read, until its data fit. The front end
//! closes connections that do not negotiate, stall in the middle of a request, or do not read their replies.

use crate::handshake::{Handshake, HandshakeStep, Negotiated, NextAction, OPTION_HEADER_BYTES, TlsMode};
use crate::tls::Tls;
use crate::transmission::{self, CommandPlan, Pieces};
use crate::wire::{self, REQUEST_BYTES, RequestHeader, command};
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use weir_front::{
    BlockDevice, BlockExports, CallGuard, ClientConnection, Connection, ConnectionHandle, FrontEnd, HostBlockExports,
    HostBudget, HostPermit, Limits, Reader, Writer,
};
use weir_machine::lock::RwLock;
use weir_machine::net::Listener;
use weir_machine::{Accounts, BytePermit, ByteSemaphore, Client, Machine, Operation, Protocol, RequestTotals, Tasks};

/// Limits of connections.
pub const LIMITS: Limits = Limits::new(128);
/// Maximum number of concurrent requests of one connection.
pub const MAX_REQUESTS: usize = 128;
/// Maximum size of one connection's data, received or unsent, in bytes.
pub const MAX_CONNECTION_BYTES: u32 = 2 * wire::MAX_TRANSFER_BYTES;
/// Maximum size of the data of all connections, in bytes.
pub const MAX_TOTAL_BYTES: usize = 256 << 20;
/// A reply and the permits that are released after it was written.
type Outgoing = (Pieces, RequestPermits);

/// Permits that a request holds until its reply is written.
struct RequestPermits {
    _request: OwnedSemaphorePermit,
    _data: (BytePermit, HostPermit),
    _guard: CallGuard,
}

/// State shared by all connections.
pub struct Server {
    exports: Arc<dyn HostBlockExports>,
    /// Accounts of requests that concern no device with accounts of its own.
    accounts: Arc<Accounts>,
    /// Memory budget for the data of all connections.
    memory: Arc<HostBudget>,
    /// Set while [`serve`] runs.
    front: OnceLock<Arc<FrontEnd>>,
    /// For clients that connect from now on.
    tls: RwLock<Option<Tls>>,
}

impl Server {
    /// Serves these exports.
    pub fn new(exports: Arc<dyn HostBlockExports>) -> Self {
        let memory = Arc::new(HostBudget::new(MAX_TOTAL_BYTES));
        Server { exports, accounts: Arc::default(), memory, front: OnceLock::new(), tls: RwLock::default() }
    }

    /// The open connections; each uses the export that it names.
    pub fn connections(&self) -> Vec<ClientConnection> {
        self.front.get().map(|front| front.shown()).unwrap_or_default()
    }

    /// Offers or requires TLS; without this, it is not offered.
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        self.set_tls(tls);
        self
    }

    /// Offers, requires or ends TLS for clients that connect from now on; the others keep their connections.
    pub fn set_tls(&self, tls: Option<Tls>) {
        *self.tls.write() = tls;
    }

    /// TLS of a connection that begins now.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.read().clone()
    }

    /// Totals of the requests so far that concern no device with accounts of its own.
    pub fn served(&self) -> RequestTotals {
        self.accounts.protocol(Protocol::Nbd)
    }
}

/// Accepts and serves connections until `stop` becomes true or its sender is dropped, then waits a few seconds for requests
/// in progress.
pub async fn serve(listener: Arc<dyn Listener>, server: Arc<Server>, machine: Machine, stop: watch::Receiver<bool>) {
    let tasks = machine.tasks.clone();
    let budgets = vec![server.memory.clone()];
    let front = FrontEnd::of_protocol(Protocol::Nbd.name(), machine.clock, tasks.clone(), LIMITS, budgets);
    // A server is served once.
    let _ = server.front.set(front.clone());
    let session =
        |connection: Connection| serve_connection(connection, Arc::clone(&server), tasks.clone(), stop.clone());
    weir_front::serve(front, listener, stop.clone(), session).await;
}

async fn serve_connection(
    connection: Connection,
    server: Arc<Server>,
    tasks: Tasks,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let Connection { reader, writer, handle } = connection;
    let peer = handle.peer().ip();
    let client = server.accounts.client(Protocol::Nbd, &peer.to_string());
    let exports = server.exports.seen_by(peer);
    // A client that does not negotiate is closed like one that stops in the middle of a message.
    handle.set_in_message(true);
    let negotiated = tokio::select! {
        negotiated = handshake(reader, writer, &handle, &server, &*exports) => negotiated?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    handle.set_in_message(false);
    let Some((negotiated, reader, writer)) = negotiated else { return Ok(()) };
    let rq = server.accounts.begin(&client, Operation::Open);
    let device = exports.open(&rq, &negotiated.export).await.map_err(io::Error::other)?;
    server.accounts.record(&rq);
    drop(rq);
    handle.uses(Protocol::Nbd.name(), negotiated.export.clone());
    let accounts = device.accounts().unwrap_or_else(|| server.accounts.clone());
    let client = accounts.client(Protocol::Nbd, &peer.to_string());
    let (sender, receiver) = mpsc::channel(MAX_REQUESTS);
    let writing = tasks.spawn(write(writer, receiver));
    let session = Arc::new(Session { server, device, accounts, negotiated, client, handle });
    let read = requests(reader, session, &tasks, sender, stop).await;
    let written = writing.await.unwrap_or(Ok(()));
    read.and(written)
}

/// Negotiates an export, and returns the halves to use from then on; `None` if the client disconnects without choosing one.
async fn handshake(
    mut reader: Reader,
    mut writer: Writer,
    handle: &ConnectionHandle,
    server: &Server,
    exports: &dyn BlockExports,
) -> io::Result<Option<(Negotiated, Reader, Writer)>> {
    let tls = server.tls();
    let (mut handshake, mut step) = Handshake::begin(tls.as_ref().map_or(TlsMode::Off, Tls::mode));
    loop {
        let HandshakeStep { send, next } = step;
        writer.write_all(&send).await?;
        writer.flush().await?;
        step = match next {
            NextAction::Read(len) => {
                let mut bytes = vec![0; len];
                reader.read_exact(&mut bytes).await?;
                handshake.receive(exports, &bytes)
            }
            NextAction::Skip(len) => {
                skip(&mut reader, len).await?;
                handshake.receive(exports, &[])
            }
            NextAction::StartTls => {
                let Some(tls) = &tls else { return Ok(None) };
                (reader, writer) = tls.accept(reader, writer, handle).await?;
                let mut bytes = vec![0; OPTION_HEADER_BYTES];
                reader.read_exact(&mut bytes).await?;
                handshake.receive(exports, &bytes)
            }
            NextAction::Serve(negotiated) => return Ok(Some((negotiated, reader, writer))),
            NextAction::Close => return Ok(None),
        };
    }
}

/// Discards bytes.
async fn skip(stream: &mut (impl AsyncRead + Unpin), len: u32) -> io::Result<()> {
    let mut left = stream.take(len.into());
    let skipped = tokio::io::copy(&mut left, &mut tokio::io::sink()).await?;
    if skipped == u64::from(len) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// State shared by the requests of one connection.
struct Session {
    server: Arc<Server>,
    device: Arc<dyn BlockDevice>,
    accounts: Arc<Accounts>,
    negotiated: Negotiated,
    client: Client,
    handle: ConnectionHandle,
}

async fn requests(
    mut incoming: Reader,
    session: Arc<Session>,
    tasks: &Tasks,
    sender: mpsc::Sender<Outgoing>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
    let own = ByteSemaphore::new(MAX_CONNECTION_BYTES as usize);
    loop {
        let mut header = [0; REQUEST_BYTES];
        tokio::select! {
            got = incoming.read_exact(&mut header) => match got {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                got => drop(got?),
            },
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            _ = sender.closed() => return Ok(()),
            () = session.device.withdrawn() => return Ok(()),
        }
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not a request");
        let header = RequestHeader::decode(&header).ok_or_else(malformed)?;
        let plan = transmission::plan(&header, session.device.size_bytes(), &session.negotiated);
        match plan {
            CommandPlan::Disconnect => return Ok(()),
            CommandPlan::Close => return Err(malformed()),
            CommandPlan::SkipAndRefuse(len, _) => skip(&mut incoming, len).await?,
            _ => {}
        }
        let bytes = transmission::memory_bytes(&plan, &header) as usize;
        let permits = async {
            let request = Arc::clone(&requests).acquire_owned().await;
            let data = (own.acquire(bytes).await, session.handle.acquire(&session.server.memory, bytes).await);
            request.map(|request| (request, data))
        };
        // Requests that wait are not executed for a client that is gone: no client would read their replies.
        let permits = tokio::select! {
            biased;
            _ = sender.closed() => return Ok(()),
            permits = permits => permits,
        };
        let Ok((request, data)) = permits else { return Ok(()) };
        // The payload is read only after its memory is reserved; this bounds the memory.
        let payload = match plan {
            CommandPlan::Write { .. } => {
                session.handle.set_in_message(true);
                payload(&mut incoming, header.length).await?
            }
            _ => Bytes::new(),
        };
        session.handle.set_in_message(false);
        let held = RequestPermits { _request: request, _data: data, _guard: session.handle.begin_call() };
        let session = Arc::clone(&session);
        let sender = sender.clone();
        drop(tasks.spawn(async move {
            let rq = session.accounts.begin(&session.client, operation(header.command));
            let reply = transmission::answer(&*session.device, &rq, &session.negotiated, &header, plan, payload).await;
            session.accounts.record(&rq);
            drop(rq);
            // If the writer has ended, the connection is closed and the reply is dropped.
            let _ = sender.send((reply, held)).await;
        }));
    }
}

/// Reads the payload of a WRITE.
async fn payload(incoming: &mut Reader, len: u32) -> io::Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(len as usize);
    let mut left = incoming.take(len.into());
    while bytes.len() < len as usize {
        if left.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes.freeze())
}

/// Operation of a command, for the request's context.
fn operation(command: u16) -> Operation {
    match command {
        command::READ => Operation::Read,
        command::WRITE => Operation::Write,
        command::FLUSH => Operation::Flush,
        command::TRIM => Operation::Trim,
        command::CACHE => Operation::Cache,
        command::WRITE_ZEROES => Operation::WriteZeroes,
        command::BLOCK_STATUS => Operation::BlockStatus,
        _ => Operation::Unknown,
    }
}

async fn write(mut outgoing: Writer, mut receiver: mpsc::Receiver<Outgoing>) -> io::Result<()> {
    while let Some((mut reply, held)) = receiver.recv().await {
        outgoing.write_pieces(&mut reply).await?;
        // TLS may hold the last bytes back.
        outgoing.flush().await?;
        drop(held);
    }
    outgoing.shutdown().await
}
