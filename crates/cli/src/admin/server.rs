//! Server of the administration socket, in the process that has pools open.
//!
//! Bounds: the number of commands that run concurrently, and that of others that wait for something ([`super::permits`]). [`MAX_IDLE`] connections may be idle, that
//! is, have sent no command: idle connections take no command's permit, one more closes the oldest, and each is closed
//! after [`CALL_TIMEOUT`]. A client has [`WRITE_TIMEOUT`] to accept a frame. A command whose client disconnected runs
//! to its end, or until it checks [`Call::is_gone`] or its [`ChangeMonitor`]; a query stops ([`queries`]).
#![allow(clippy::disallowed_methods, reason = "the socket of a real process, in real time")]

use super::permits::Permits;
use super::{ServingHost, own_socket, queries};
use crate::cache_file;
use crate::call::{Call, Input, Line};
use crate::command_target::now;
use crate::failure::{FAILED, Failure};
use crate::process::PoolProcess;
use futures_util::future::Either;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, UCred};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;
use tokio::time::timeout;
use weir_admin::{Action, Answer, Author, ChangeMonitor, Command, Refusal, RefusalKind};
use weir_daemon::admin::{Caller, Frame, HEADER_BYTES, MAX_ANSWER_BYTES};

/// Maximum number of idle connections, which have sent no command yet; one more closes the oldest of them.
const MAX_IDLE: usize = 128;
/// Timeout for a command to arrive on a connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a client to accept a frame.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a client that waits is sent the progress of its command.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after `accept` failed, for example because no file descriptor is left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listening administration socket. Dropping it removes the socket's file.
pub struct AdminSocket {
    path: PathBuf,
    /// The daemon's link to it.
    link: Option<PathBuf>,
    stop: watch::Sender<bool>,
    permits: Permits,
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // A socket that could not be removed refuses connections, and clients skip it.
        for path in self.link.iter().chain([&self.path]) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AdminSocket {
    /// Listens for commands about the pools of this process. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If there is no folder for the socket, or listening on it fails.
    pub fn open(process: &Arc<PoolProcess>) -> Result<Self, Failure> {
        let path = own_socket()?;
        // Removes the socket of an earlier process with the same process id.
        let _ = std::fs::remove_file(&path);
        let failed = |error: io::Error| Failure::failed(format!("cannot listen on {}: {error}", path.display()));
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let permits = Permits::default();
        drop(process.machine.tasks.spawn(accept(listener, process.clone(), permits.clone(), stopped)));
        Ok(AdminSocket { path, link: None, stop, permits })
    }

    /// Makes this the socket of the daemon in its runtime directory, to which commands without a place go.
    ///
    /// # Errors
    /// If the link cannot be created.
    pub fn announce_daemon(&mut self) -> Result<(), Failure> {
        let link = self.path.with_file_name(super::DAEMON_LINK);
        let failed = |error: io::Error| Failure::failed(format!("cannot create {}: {error}", link.display()));
        let target = self.path.file_name().unwrap_or_default();
        let new = self.path.with_extension("link");
        // Left behind by an earlier process with this process id.
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink(target, &new).and_then(|()| std::fs::rename(&new, &link)).map_err(failed)?;
        self.link = Some(link);
        Ok(())
    }

    /// Stops accepting commands, and returns after the running ones have been answered, at most [`WRITE_TIMEOUT`]
    /// later. Commands that have not begun by then are not run: their clients send them again elsewhere.
    pub async fn close(self) {
        let _ = self.stop.send(true);
        // The timeout bounds the wait for a client that does not read.
        let _ended = timeout(WRITE_TIMEOUT, self.permits.all_ended()).await;
        self.permits.close();
    }
}

async fn accept(
    listener: UnixListener,
    process: Arc<PoolProcess>,
    permits: Permits,
    mut stopped: watch::Receiver<bool>,
) {
    // One sender per idle connection, oldest first. Dropping a sender closes its connection.
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
                process.machine.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        idle.retain(|connection| !connection.is_closed());
        if idle.len() >= MAX_IDLE {
            idle.pop_front();
        }
        let (is_idle, closed) = oneshot::channel();
        idle.push_back(is_idle);
        debug_assert!(idle.len() <= MAX_IDLE, "idle connections are bounded");
        let connection = connection(stream, process.clone(), permits.clone(), closed);
        drop(process.machine.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an administrator's connection ended");
            }
        }));
    }
}

/// Runs the one command or query of a connection. `closed` resolves when too many connections are idle and this one must close.
async fn connection(
    stream: UnixStream,
    process: Arc<PoolProcess>,
    permits: Permits,
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
        Ok(Frame::Command(json)) => {
            let _permit = permits.of_command().await.map_err(io::Error::other)?;
            write_frame(&mut write, &Frame::Begun).await?;
            let monitor = ChangeMonitor::default();
            let work = carry_out(&process, &json, peer, &monitor);
            let answer = watched(&mut read, &mut write, &monitor, work).await;
            refresh_cache_files(&process).await;
            let answer = answer.to_json().map_err(io::Error::other)?;
            if answer.len() > MAX_ANSWER_BYTES {
                return Err(io::Error::other("an answer that is too long"));
            }
            return write_frame(&mut write, &Frame::Answer(answer)).await;
        }
        Ok(Frame::Query(json)) => {
            let permit = match queries::goes_on(&json) {
                true => permits.of_wait().map(Either::Left),
                false => Ok(Either::Right(permits.of_command().await.map_err(io::Error::other)?)),
            };
            write_frame(&mut write, &Frame::Begun).await?;
            let _permit = match permit {
                Ok(permit) => permit,
                Err(failure) => {
                    let answer = Answer::Refused(Refusal::new(RefusalKind::Busy, failure.line));
                    let answer = answer.to_json().map_err(io::Error::other)?;
                    return write_frame(&mut write, &Frame::Answer(answer)).await;
                }
            };
            return queries::answer(&process, json, &mut read, &mut write).await;
        }
        Ok(Frame::Call(caller)) => Caller { ids: (peer.uid(), peer.gid()), ..caller },
        Ok(_) => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        Err(error) => {
            write_frame(&mut write, &Frame::Err(format!("{error}\n").into_bytes())).await?;
            return write_frame(&mut write, &Frame::End(1)).await;
        }
    };
    // The permit is released when the command has been answered, or waits.
    let permit = permits.of_command().await.map_err(io::Error::other)?;
    write_frame(&mut write, &Frame::Begun).await?;
    let gone = Arc::new(AtomicBool::new(false));
    let (to, from) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let call = Call::of_client(caller, process.clone(), to, gone.clone(), waiting.clone()).with_permit(permit.clone());
    let done = tokio::task::spawn_blocking(move || crate::carry_out(&call));
    tokio::pin!(done);
    let sent_all = send_output(&mut read, &mut write, from, &waiting).await;
    if sent_all.is_err() {
        gone.store(true, Ordering::Relaxed);
    }
    let (code, fault) = done.await.map_or_else(|failed| (FAILED, Some(faulty(&failed))), |code| (code, None));
    refresh_cache_files(&process).await;
    sent_all?;
    if let Some(line) = fault {
        write_frame(&mut write, &Frame::Err(line.into_bytes())).await?;
    }
    write_frame(&mut write, &Frame::End(code)).await
}

/// Tells a client that its command ended by a panic.
fn faulty(failed: &JoinError) -> String {
    let pid = std::process::id();
    format!("the command failed by a fault of weir, which is in the log of process {pid}: {failed}\n")
}

/// Carries out a command to its end. A client that cancels it, or goes away, cancels it; one that waits is sent its progress.
async fn watched(
    read: &mut OwnedReadHalf,
    write: &mut OwnedWriteHalf,
    monitor: &ChangeMonitor,
    work: impl Future<Output = Answer>,
) -> Answer {
    let mut work = pin!(work);
    let mut sent = None;
    let mut is_there = true;
    while is_there {
        let mut frame = pin!(read_frame(read));
        loop {
            tokio::select! {
                answer = &mut work => return answer,
                frame = &mut frame => {
                    monitor.cancel();
                    is_there = matches!(frame, Ok(Frame::Cancel));
                    break;
                }
                () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                    let Some(progress) = monitor.progress().filter(|now| sent != Some(*now)) else { continue };
                    let json = serde_json::to_vec(&progress).unwrap_or_default();
                    if write_frame(write, &Frame::Progress(json)).await.is_err() {
                        monitor.cancel();
                    }
                    sent = Some(progress);
                }
            }
        }
    }
    work.await
}

/// Brings the cache files of the daemon up to date after a command.
pub async fn refresh_cache_files(process: &PoolProcess) {
    let daemon = process.daemon();
    let pools = process.all();
    let refresh = move || match daemon {
        Some(daemon) => daemon.refresh_cache_files(),
        None => {
            for failure in pools.iter().filter_map(|pool| cache_file::renew(&pool.engine).err()) {
                tracing::warn!("{failure}");
            }
        }
    };
    // A task that failed left a cache file as it was.
    let _done = tokio::task::spawn_blocking(refresh).await;
}

/// Carries out a command of a user on the pool that it names, and brings the exports up to date.
async fn carry_out(process: &Arc<PoolProcess>, json: &[u8], peer: UCred, monitor: &ChangeMonitor) -> Answer {
    let command = match Command::from_json(json) {
        Ok(command) => command,
        Err(error) => {
            return Answer::Refused(Refusal::new(RefusalKind::Name, format!("not a command of this version: {error}")));
        }
    };
    if let Some(daemon) = process.daemon()
        && let Err(why) = daemon.until_opened(&command.pool).await
    {
        return Answer::Refused(Refusal::new(RefusalKind::Pool, why));
    }
    let Some(served_pool) = process.named(&command.pool) else {
        if let Some(daemon) = process.daemon() {
            return daemon.carry_out_without_pool(&command).into();
        }
        let why = format!("process {} does not have pool '{}' open", std::process::id(), command.pool);
        return Answer::Refused(Refusal::new(RefusalKind::OtherPool, why));
    };
    if matches!(command.action, Action::Process(_)) {
        served_pool.refresh_clients().await;
    }
    let shared_again = match &command.action {
        Action::Change(change) | Action::ChangeWithoutMounts(change) => change.shares_again().map(str::to_owned),
        _ => None,
    };
    let mut author =
        Author { monitor: monitor.clone(), ..Author::new((peer.uid(), peer.gid()), now(), command.line.clone()) };
    let mut done = command.run(&ServingHost(served_pool.clone()), &mut author).await;
    if let Err(refusal) = &mut done
        && refusal.kind == RefusalKind::Busy
        && refusal.names.is_empty()
    {
        served_pool.refresh_clients().await;
        refusal.names = served_pool.all_users(peer.pid().and_then(|pid| u32::try_from(pid).ok())).await;
    }
    if let (Ok(_), Some(top), Some(front)) = (&done, shared_again, served_pool.front()) {
        front.share_again(&top);
    }
    // A command that failed may have changed something before.
    if let Err(failure) = served_pool.renew().await {
        tracing::warn!("the exports are not up to date: {failure}");
    }
    done.into()
}

/// Sends the command's output to the client until the command ends. It owns `from` and closes it on return, so that a command
/// that asks for input after the client has disconnected gets an error instead of waiting.
async fn send_output(
    read: &mut OwnedReadHalf,
    write: &mut OwnedWriteHalf,
    mut from: mpsc::UnboundedReceiver<Line>,
    waiting: &AtomicUsize,
) -> io::Result<()> {
    loop {
        let line = tokio::select! {
            line = from.recv() => line,
            // No input was requested, so the frame is invalid or the client disconnected.
            unasked = read_frame(read) => return Err(unasked.err().unwrap_or(io::ErrorKind::InvalidData.into())),
        };
        let sent = line.as_ref().map_or(0, Line::bytes);
        let (bytes, make): (_, fn(Vec<u8>) -> Frame) = match line {
            None => return Ok(()),
            Some(Line::Out(bytes)) => (bytes, Frame::Out),
            Some(Line::Err(bytes)) => (bytes, Frame::Err),
            Some(Line::Ask(wanted, to)) => {
                let asked = match wanted {
                    Input::Line(prompt) => Frame::Ask(prompt.into_bytes()),
                    Input::Bytes(most) => Frame::AskBytes(most),
                };
                write_frame(write, &asked).await?;
                match read_frame(read).await? {
                    // The receiver is closed if the command ended meanwhile.
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

/// Writes one frame within [`WRITE_TIMEOUT`].
pub async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, to.write_all(&frame.encode())).await?
}
