//! The server on TCP.
//!
//! ```text
//!   accept ─▶ connection: read ─▶ Assembler ─▶ one task per call ─▶ channel ─▶ writer: write_vectored
//!                                  │ a permit each, given back when the reply is written
//! ```
//!
//! Bounds: [`MAX_CONNECTIONS`] connections; per connection [`MAX_CALLS`] calls between reading and written reply, so at
//! most that many replies (of 1 MiB and a bit) wait in memory for a client that does not read. Replies leave in the
//! order in which they are ready, as the protocol allows. A connection ends when its peer closes it, sends nonsense, or
//! the server stops; calls under way are still answered.

use crate::record::Assembler;
use crate::reply::Reply;
use crate::server::Server;
use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use weir_machine::Tasks;

/// Connections at a time; further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 512;
/// Calls of one connection at a time.
pub const MAX_CALLS: usize = 64;
const READ_BYTES: usize = 64 << 10;

type Outgoing = (Reply, OwnedSemaphorePermit);

/// Accepts and serves connections until `stop` says true (or its sender is gone), then waits for calls under way.
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
                // A connection that was gone before it was taken, or no more descriptors: neither is the end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let connection = connection(stream, peer.ip().to_string(), Arc::clone(&server), tasks.clone(), stop.clone());
        drop(tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(permit);
        }));
    }
    // All permits back means that all connections are done.
    drop(room.acquire_many(MAX_CONNECTIONS as u32).await);
}

async fn connection(
    stream: TcpStream,
    client: String,
    server: Arc<Server>,
    tasks: Tasks,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (incoming, outgoing) = stream.into_split();
    let (sender, receiver) = mpsc::channel(MAX_CALLS);
    let writer = tasks.spawn(write(outgoing, receiver));
    let read = read(incoming, client, server, &tasks, sender, stop).await;
    // The senders are gone when the last call is answered; then the writer ends.
    let written = writer.await.unwrap_or(Ok(()));
    read.and(written)
}

async fn read(
    mut incoming: OwnedReadHalf,
    client: String,
    server: Arc<Server>,
    tasks: &Tasks,
    sender: mpsc::Sender<Outgoing>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let client: Arc<str> = client.into();
    let calls = Arc::new(Semaphore::new(MAX_CALLS));
    let mut assembler = Assembler::default();
    let mut buffer = bytes::BytesMut::with_capacity(READ_BYTES);
    loop {
        buffer.reserve(READ_BYTES);
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
            let Some(message) = message else { break };
            let Ok(permit) = Arc::clone(&calls).acquire_owned().await else { return Ok(()) };
            let (server, client, sender) = (Arc::clone(&server), Arc::clone(&client), sender.clone());
            drop(tasks.spawn(async move {
                if let Some(reply) = server.answer(&client, &message).await {
                    // A writer that is gone needs no reply.
                    let _ = sender.send((reply, permit)).await;
                }
            }));
        }
    }
}

async fn write(mut outgoing: OwnedWriteHalf, mut receiver: mpsc::Receiver<Outgoing>) -> io::Result<()> {
    while let Some((reply, permit)) = receiver.recv().await {
        write_pieces(&mut outgoing, reply.pieces).await?;
        drop(permit);
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
