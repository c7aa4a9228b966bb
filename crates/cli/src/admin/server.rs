//! The side that has the pool open.
//!
//! Bounds: [`MOST_COMMANDS`] commands at a time; further ones wait. [`MOST_IDLE`] connections that have sent no command: they
//! take no place of a command, one more closes the oldest, and each is closed after [`CALL_TIMEOUT`]. [`WRITE_TIMEOUT`] for a
//! client to take a frame. A command whose client left goes on to its end, or to where it looks whether the client is there
//! ([`Call::is_gone`]).

use super::{Held, own_socket};
use crate::call::{Call, Input, Said};
use crate::failure::Failure;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use weir_daemon::admin::{Caller, Frame, HEADER_BYTES};

/// Commands that run at a time; further ones wait for one of them to end.
const MOST_COMMANDS: usize = 64;
/// Connections that have sent no command yet; one more closes the oldest of them.
const MOST_IDLE: usize = 128;
/// Time for a command to arrive on a connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a client to take a frame.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a connection could not be accepted, as where no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that is listened on. Dropped, it is gone.
pub struct Door {
    path: PathBuf,
    stop: watch::Sender<bool>,
    commands: Arc<Semaphore>,
}

impl Drop for Door {
    fn drop(&mut self) {
        // What cannot be removed leads to a process that does not answer, and is passed over.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Door {
    /// Listens for commands about a pool. Inside a tokio runtime.
    ///
    /// # Errors
    /// If there is no place for the socket.
    pub fn open(held: &Arc<Held>) -> Result<Self, Failure> {
        let nowhere = || Failure::failed("there is no folder for a socket: set XDG_RUNTIME_DIR");
        let path = own_socket().ok_or_else(nowhere)?;
        // One of a process that had our number.
        let _ = std::fs::remove_file(&path);
        let failed = |error: io::Error| Failure::failed(format!("cannot listen on {}: {error}", path.display()));
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let commands = Arc::new(Semaphore::new(MOST_COMMANDS));
        drop(held.machine.tasks.spawn(accept(listener, held.clone(), commands.clone(), stopped)));
        Ok(Door { path, stop, commands })
    }

    /// Takes no more commands, and returns when those under way have been answered.
    pub async fn close(self) {
        let _ = self.stop.send(true);
        // Not longer for a client that does not read.
        let _ = timeout(WRITE_TIMEOUT, self.commands.acquire_many(MOST_COMMANDS as u32)).await;
    }
}

async fn accept(listener: UnixListener, held: Arc<Held>, commands: Arc<Semaphore>, mut stopped: watch::Receiver<bool>) {
    // Of connections that have sent no command, the oldest first. Dropping one closes its connection.
    let mut idle: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an administrator's connection");
                held.machine.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        idle.retain(|connection| !connection.is_closed());
        if idle.len() >= MOST_IDLE {
            idle.pop_front();
        }
        let (is_idle, closed) = oneshot::channel();
        idle.push_back(is_idle);
        debug_assert!(idle.len() <= MOST_IDLE, "idle connections are bounded");
        let connection = connection(stream, held.clone(), commands.clone(), closed);
        drop(held.machine.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an administrator's connection ended");
            }
        }));
    }
}

/// Carries out the one command of a connection. `closed` resolves if the connection is to be closed because it is idle.
async fn connection(
    stream: UnixStream,
    held: Arc<Held>,
    commands: Arc<Semaphore>,
    mut closed: oneshot::Receiver<()>,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid() != own && peer.uid() != 0 {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    let (mut read, mut write) = stream.into_split();
    let first = tokio::select! {
        first = timeout(CALL_TIMEOUT, read_frame(&mut read)) => first?,
        _ = &mut closed => return Err(io::Error::from(io::ErrorKind::TimedOut)),
    };
    drop(closed);
    let caller = match first {
        Ok(Frame::Call(caller)) => Caller { ids: (peer.uid(), peer.gid()), ..caller },
        Ok(_) => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        Err(error) => {
            write_frame(&mut write, &Frame::Err(format!("{error}\n").into_bytes())).await?;
            return write_frame(&mut write, &Frame::End(1)).await;
        }
    };
    // It is given back when the command has been answered.
    let _place = commands.acquire_owned().await.map_err(io::Error::other)?;
    let gone = Arc::new(AtomicBool::new(false));
    let (to, mut from) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let call = Call::of_client(caller, held, to, gone.clone(), waiting.clone());
    let done = tokio::task::spawn_blocking(move || crate::carry_out(&call));
    tokio::pin!(done);
    let told = tell(&mut read, &mut write, &mut from, &waiting).await;
    if told.is_err() {
        gone.store(true, Ordering::Relaxed);
    }
    let code = done.await.unwrap_or(1);
    told?;
    write_frame(&mut write, &Frame::End(code)).await
}

/// Hands on what the command says, until it says no more.
async fn tell(
    read: &mut OwnedReadHalf,
    write: &mut OwnedWriteHalf,
    from: &mut mpsc::UnboundedReceiver<Said>,
    waiting: &AtomicUsize,
) -> io::Result<()> {
    loop {
        let said = tokio::select! {
            said = from.recv() => said,
            // Nobody asked: this is how a client leaves.
            unasked = read_frame(read) => return Err(unasked.err().unwrap_or(io::ErrorKind::InvalidData.into())),
        };
        let sent = said.as_ref().map_or(0, Said::bytes);
        let (bytes, make): (_, fn(Vec<u8>) -> Frame) = match said {
            None => return Ok(()),
            Some(Said::Out(bytes)) => (bytes, Frame::Out),
            Some(Said::Err(bytes)) => (bytes, Frame::Err),
            Some(Said::Ask(wanted, to)) => {
                let asked = match wanted {
                    Input::Line(prompt) => Frame::Ask(prompt.into_bytes()),
                    Input::Bytes(most) => Frame::AskBytes(most),
                };
                write_frame(write, &asked).await?;
                match read_frame(read).await? {
                    // Whoever asked may have ended.
                    Frame::Input(read) => drop(to.send(read)),
                    _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
                }
                continue;
            }
        };
        for frame in Frame::chunks(&bytes, make) {
            write_frame(write, &frame).await?;
        }
        waiting.fetch_sub(sent, Ordering::Relaxed);
    }
}

/// Reads one frame.
pub async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).await?;
    let length = Frame::length(header).map_err(io::Error::other)?;
    let mut contents = vec![0; length];
    from.read_exact(&mut contents).await?;
    let [kind, ..] = header;
    Frame::decode(kind, &contents).map_err(io::Error::other)
}

/// Writes one frame, to somebody who takes it in time.
pub async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, to.write_all(&frame.encode())).await?
}
