//! One connection: its halves report progress, and can be closed from outside.

use crate::budget::{HostBudget, HostPermit};
use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::net::{Accepted, ReadHalf, WriteHalf};
use weir_machine::{Clock, Nanos};

/// Maximum number of pieces of one vectored write.
const MAX_SLICES: usize = 64;

/// Facts about a connection for the log and for tables.
#[derive(Default)]
struct Notes {
    /// Export or protocol that the client uses; empty until its first valid message.
    used: String,
    /// Why the server closed the connection, if it did.
    closed_because: Option<&'static str>,
}

/// A connection as tables show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConnection {
    /// Address and port of the client.
    pub peer: SocketAddr,
    /// Export or protocol that the client uses; empty until its first valid message.
    pub used: String,
    /// Time since the connection was accepted.
    pub age: Duration,
    /// Bytes received from the client.
    pub received_bytes: u64,
    /// Bytes sent to the client.
    pub sent_bytes: u64,
}

/// Wakers of the tasks that wait for the halves.
#[derive(Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct Shared {
    peer: SocketAddr,
    local: SocketAddr,
    clock: Clock,
    /// Time of the last byte in either direction, or of the last call that ended.
    progress_ns: AtomicU64,
    /// Time at which the message began that is being received; 0 if none is.
    message_ns: AtomicU64,
    calls: AtomicUsize,
    /// Whether the client does not take bytes that the server has for it.
    is_write_blocked: AtomicBool,
    is_closed: AtomicBool,
    /// Time at which it was accepted.
    accepted: Nanos,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    notes: Mutex<Notes>,
    waiting: Mutex<Waiting>,
}

/// A reference to a connection.
#[derive(Clone)]
pub struct ConnectionHandle(Arc<Shared>);

/// A call in progress, until dropped.
pub struct CallGuard(ConnectionHandle);

impl Drop for CallGuard {
    fn drop(&mut self) {
        let before = self.0.0.calls.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more calls ended than began");
        self.0.progressed();
    }
}

impl ConnectionHandle {
    /// Address of the client.
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Address at which the client reached the server.
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// Counts a call in progress.
    pub fn begin_call(&self) -> CallGuard {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        CallGuard(self.clone())
    }

    /// Sets whether a part of a message has been received, and the rest is awaited.
    pub fn set_in_message(&self, is_in_message: bool) {
        let ns = if is_in_message { self.0.clock.now().0.max(1) } else { 0 };
        if !is_in_message || self.0.message_ns.load(Ordering::Relaxed) == 0 {
            self.0.message_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Acquires memory for the client. While the server has none, the connection waits for the server: it is neither idle
    /// nor in a message, and the time for the rest of the message begins afterwards.
    pub async fn acquire(&self, budget: &HostBudget, bytes: usize) -> HostPermit {
        let was_in_message = self.0.message_ns.swap(0, Ordering::Relaxed) != 0;
        let waiting = self.begin_call();
        let permit = budget.acquire(self.peer().ip(), bytes).await;
        drop(waiting);
        self.set_in_message(was_in_message);
        permit
    }

    /// Halves over those of this connection, for example encrypted ones: the session uses them in place of the others, which
    /// they contain.
    pub fn layer(&self, reader: ReadHalf, writer: WriteHalf) -> (Reader, Writer) {
        (Reader { half: reader, handle: self.clone() }, Writer { half: writer, handle: self.clone() })
    }

    /// Records what the client uses, after its first valid message, and logs that it is connected.
    pub fn uses(&self, protocol: &str, used: impl Into<String>) {
        let used = used.into();
        tracing::info!(protocol, peer = %self.peer(), "connected: {used}");
        self.notes().used = used;
    }

    /// The connection as tables show it.
    pub fn shown(&self) -> ClientConnection {
        let of = |register: &AtomicU64| register.load(Ordering::Relaxed);
        ClientConnection {
            peer: self.peer(),
            used: self.notes().used.clone(),
            age: self.0.clock.now().since(self.0.accepted),
            received_bytes: of(&self.0.received_bytes),
            sent_bytes: of(&self.0.sent_bytes),
        }
    }

    /// Why the server closed the connection, if it did.
    pub(crate) fn closed_because(&self) -> Option<&'static str> {
        self.notes().closed_because
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.notes.lock()
    }

    /// Closes the connection for this reason: see [`ConnectionHandle::close`].
    pub fn close_because(&self, why: &'static str) {
        self.notes().closed_because.get_or_insert(why);
        self.close();
    }

    /// Closes the connection: its session gets [`io::ErrorKind::TimedOut`] from both halves.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        let Waiting { reader, writer } = std::mem::take(&mut *self.waiting());
        reader.into_iter().chain(writer).for_each(Waker::wake);
    }

    /// Whether the connection was closed by [`ConnectionHandle::close`].
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// Number of calls in progress.
    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Time without a byte in either direction.
    pub(crate) fn quiet(&self, now: Nanos) -> Duration {
        now.since(Nanos(self.0.progress_ns.load(Ordering::Relaxed)))
    }

    /// Time since the message that is being received began, if there is one.
    pub(crate) fn in_message(&self, now: Nanos) -> Option<Duration> {
        let begun = self.0.message_ns.load(Ordering::Relaxed);
        (begun != 0).then(|| now.since(Nanos(begun)))
    }

    /// Whether the client does not take bytes that the server has for it.
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.0.is_write_blocked.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock()
    }

    fn progressed(&self) {
        self.0.progress_ns.store(self.0.clock.now().0, Ordering::Relaxed);
    }

    fn closed(&self) -> Option<io::Error> {
        self.is_closed().then(|| io::ErrorKind::TimedOut.into())
    }
}

/// An accepted connection, as its session uses it.
pub struct Connection {
    /// The half that is read.
    pub reader: Reader,
    /// The half that is written.
    pub writer: Writer,
    /// State of the connection.
    pub handle: ConnectionHandle,
}

impl Connection {
    pub(crate) fn new(accepted: Accepted, clock: &Clock) -> Self {
        let Accepted { reader, writer, peer, local } = accepted;
        let handle = ConnectionHandle(Arc::new(Shared {
            peer,
            local,
            clock: clock.clone(),
            progress_ns: AtomicU64::new(clock.now().0),
            message_ns: AtomicU64::new(0),
            calls: AtomicUsize::new(0),
            is_write_blocked: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            accepted: clock.now(),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            notes: Mutex::default(),
            waiting: Mutex::default(),
        }));
        let reader = Reader { half: reader, handle: handle.clone() };
        let writer = Writer { half: writer, handle: handle.clone() };
        Connection { reader, writer, handle }
    }
}

/// The half that is read.
pub struct Reader {
    half: ReadHalf,
    handle: ConnectionHandle,
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let answer = Pin::new(&mut self.half).poll_read(cx, buf);
        let received = buf.filled().len().saturating_sub(before);
        if received > 0 {
            self.handle.0.received_bytes.fetch_add(received as u64, Ordering::Relaxed);
            self.handle.progressed();
        }
        if answer.is_pending() {
            self.handle.waiting().reader = Some(cx.waker().clone());
        }
        // Checked after the waker is stored: `close` either sees the waker or is seen here.
        self.handle.closed().map_or(answer, |error| Poll::Ready(Err(error)))
    }
}

/// The half that is written.
pub struct Writer {
    half: WriteHalf,
    handle: ConnectionHandle,
}

impl Writer {
    /// Writes all pieces with vectored writes, without joining them. Leaves of them what was not written.
    ///
    /// # Errors
    /// Errors of the connection.
    pub async fn write_pieces(&mut self, pieces: &mut [Bytes]) -> io::Result<()> {
        let mut first = 0;
        while let Some(rest) = pieces.get_mut(first..).filter(|rest| !rest.is_empty()) {
            let mut written = {
                let slices: SmallVec<[io::IoSlice<'_>; 16]> =
                    rest.iter().take(MAX_SLICES).map(|piece| io::IoSlice::new(piece)).collect();
                let written = self.write_vectored(&slices).await?;
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

    /// Counts the bytes of a write.
    fn sent(&self, answer: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = answer {
            self.handle.0.sent_bytes.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
    }

    fn ended<T>(&self, cx: &Context<'_>, answer: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.handle.0.is_write_blocked.store(answer.is_pending(), Ordering::Relaxed);
        if answer.is_pending() {
            self.handle.waiting().writer = Some(cx.waker().clone());
        } else {
            self.handle.progressed();
        }
        self.handle.closed().map_or(answer, |error| Poll::Ready(Err(error)))
    }
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let answer = Pin::new(&mut self.half).poll_write(cx, buf);
        self.sent(&answer);
        self.ended(cx, answer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.half).poll_flush(cx);
        self.ended(cx, answer)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.half).poll_shutdown(cx);
        self.ended(cx, answer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let answer = Pin::new(&mut self.half).poll_write_vectored(cx, bufs);
        self.sent(&answer);
        self.ended(cx, answer)
    }

    fn is_write_vectored(&self) -> bool {
        self.half.is_write_vectored()
    }
}
