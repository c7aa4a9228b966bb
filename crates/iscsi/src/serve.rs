//! The server on TCP.
//!
//! ```text
//!   accept ─▶ login ─▶ reader: header, place, data ─▶ session (pure) ─▶ a task per command ─▶ queue ─▶ writer
//!                        └── memory before data ◄─ budgets                                     released when written
//! ```
//!
//! Bounds: those of [`LIMITS`] and of `weir_front`; per session its window of commands, their unsolicited data (memory that is
//! acquired at login), and [`running::MAX_SESSION_BYTES`] of data that was asked for or is being sent; over all sessions
//! [`crate::server::MAX_TOTAL_BYTES`] and [`crate::server::MAX_UNSOLICITED_BYTES`], of which one host gets a quarter. A session
//! for whose window there is no memory is refused. The reader waits for memory never, and for the writer only when it rejects
//! or answers pings; so data that was asked for always gets through.
//!
//! The front end closes connections that do not log in, stall in the middle of a unit or of data that was asked for, or do not
//! read their answers. An idle initiator is pinged; one that does not answer is closed.

mod command;
mod manage;
mod reader;
pub(crate) mod running;
mod writer;

use crate::login::{
    Admission, Directory, Established, FIRST_BURST_BYTES, Login, MAX_RECEIVE_BYTES, Next, Step, status,
};
use crate::scsi::inquiry::PORT_GROUP;
use crate::server::Server;
use crate::session::{Action, MAX_WINDOW, Place, logout_response};
use crate::wire::text::MAX_TEXT_BYTES;
use crate::wire::{Bhs, Keys};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use reader::UnitReader;
use running::{Memory, Parts, Running};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use weir_front::{Connection, ConnectionHandle, FrontEnd, HostPermit, Limits, Writer};
use weir_machine::net::Listener;
use weir_machine::{Machine, Protocol};
use writer::{Encoder, Outgoing};

/// Limits of connections.
pub const LIMITS: Limits = Limits::new(128);
/// Time without a unit after which an initiator is pinged, and after which a ping must be answered.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of units that the reader has queued and the writer has not written.
const MAX_READER_UNITS: usize = 32;
/// Windows of this many commands in all are given away before new sessions get less than the maximum.
const SHARED_WINDOW: u32 = 512;
/// Minimum window of a session.
const MIN_WINDOW: u32 = 8;

/// Accepts and serves connections until `stop` becomes true or its sender is dropped; then tells the initiators, and waits a
/// few seconds for commands in progress.
pub async fn serve(listener: Arc<dyn Listener>, server: Arc<Server>, machine: Machine, stop: watch::Receiver<bool>) {
    let budgets = vec![server.memory.clone(), server.unsolicited.clone()];
    let clock = machine.clock.clone();
    let front = FrontEnd::of_protocol(Protocol::Iscsi.name(), clock, machine.tasks.clone(), LIMITS, budgets);
    server.set_front(&front);
    let session = |connection: Connection| serve_connection(connection, server.clone(), machine.clone(), stop.clone());
    weir_front::serve(front, listener, stop.clone(), session).await;
}

async fn serve_connection(
    connection: Connection,
    server: Arc<Server>,
    machine: Machine,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let Connection { reader, mut writer, handle } = connection;
    // Targets are where the initiator found the server, also if it listens on all addresses.
    let portal = handle.local();
    let mut reader = UnitReader::new(reader);
    // A client that does not log in is closed like one that stops in the middle of a message.
    handle.set_in_message(true);
    let login = tokio::select! {
        login = log_in(&mut reader, &mut writer, &server, (&handle, portal), &machine) => login,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let peer = handle.peer();
    // The front end logs the end of the connection: one line for a client that never logged in.
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("login failed: {error}"));
    let Some(login) = login.map_err(failed)? else { return Ok(()) };
    handle.set_in_message(false);
    let LoggedIn { session, step, receiver, sender, _unsolicited } = login;
    let target = session.nexus.as_ref().map_or("discovery", |nexus| &nexus.target).to_owned();
    handle.uses(Protocol::Iscsi.name(), target.clone());
    tracing::info!(%peer, initiator = session.initiator, target, "session begins");
    let parameters = *session.state().parameters();
    let numbers = session.state().numbers().clone();
    let next_stat_sn = step.bhs.word(24).wrapping_add(1);
    let sent = send_step(&mut writer, step).await;
    reader.digests = parameters.digests;
    let encoder = Encoder::new(numbers, parameters.digests, next_stat_sn);
    let writing = machine.tasks.spawn(writer::write(writer, encoder, receiver));
    drop(machine.tasks.spawn(ping(Arc::downgrade(&session))));
    let read = match sent {
        Ok(()) => read(&mut reader, &session, &sender, stop).await,
        Err(error) => Err(error),
    };
    session.set_over();
    let why = read.as_ref().map_or_else(|error| error.to_string(), |end| end.to_string());
    if read.is_ok_and(|end| end != End::Disconnected) {
        session.drain().await;
    }
    drop(sender);
    session.close().await;
    server.end_session(session.number);
    tracing::info!(%peer, initiator = session.initiator, target, "session ended: {why}");
    writing.await.unwrap_or(Ok(()))
}

/// A completed login.
struct LoggedIn {
    session: Arc<Running>,
    /// The last response, which is still to be sent.
    step: Step,
    receiver: mpsc::UnboundedReceiver<Outgoing>,
    sender: mpsc::UnboundedSender<Outgoing>,
    /// Memory for the window's unsolicited data.
    _unsolicited: HostPermit,
}

/// The server, as the login of one client asks it.
struct Asking<'a> {
    server: &'a Server,
    host: IpAddr,
    window: u32,
}

impl Directory for Asking<'_> {
    fn admission(&self, initiator: &str, target: &str) -> Admission {
        self.server.admission(initiator, self.host, target)
    }

    fn has_session(&self, tsih: u16, isid: [u8; 6]) -> bool {
        self.server.all_sessions().iter().any(|session| session.tsih == tsih && session.isid == isid)
    }

    fn window(&self) -> u32 {
        self.window
    }
}

/// Runs a login. `None`: it was refused, or the client left.
async fn log_in(
    reader: &mut UnitReader,
    writer: &mut Writer,
    server: &Arc<Server>,
    (handle, portal): (&ConnectionHandle, SocketAddr),
    machine: &Machine,
) -> io::Result<Option<LoggedIn>> {
    let numbers = server.new_session();
    let others = server.sessions() as u32;
    let window = (SHARED_WINDOW / (others + 1)).clamp(MIN_WINDOW, MAX_WINDOW);
    let host = handle.peer().ip();
    let directory = Asking { server, host, window };
    let mut login = Login::new(machine.entropy.clone(), numbers.1);
    loop {
        let Some(bhs) = reader.header().await? else { return Ok(None) };
        let mut text = BytesMut::new();
        if bhs.data_bytes() > MAX_TEXT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a login request is too long"));
        }
        reader.data(bhs.data_bytes(), MAX_TEXT_BYTES, &mut text).await?;
        let mut step = login.receive(&directory, &bhs, &text);
        let established = match std::mem::replace(&mut step.next, Next::Close) {
            Next::Request => {
                send_step(writer, step).await?;
                continue;
            }
            Next::Close => {
                let why = login.refusal().unwrap_or_default();
                tracing::warn!(peer = %handle.peer(), "login refused: {why}");
                return send_step(writer, step).await.map(|()| None);
            }
            Next::Session(established) => *established,
        };
        let bytes = window as usize * FIRST_BURST_BYTES as usize;
        let Some(unsolicited) = server.unsolicited.acquire(host, bytes).now_or_never() else {
            tracing::info!(peer = %handle.peer(), "login refused: no memory for another session of this host");
            let [class, detail] = status::OUT_OF_RESOURCES.to_be_bytes();
            step.bhs = step.bhs.with_flags(0).with_byte(36, class).with_byte(37, detail);
            return send_step(writer, step).await.map(|()| None);
        };
        end_earlier(server, &established).await;
        let (sender, receiver) = mpsc::unbounded_channel();
        let parts = Parts {
            server: server.clone(),
            tasks: machine.tasks.clone(),
            clock: machine.clock.clone(),
            handle: handle.clone(),
            portal,
            outgoing: sender.downgrade(),
        };
        let session = Arc::new(Running::new(parts, numbers, established, window));
        server.begin_session(&session);
        return Ok(Some(LoggedIn { session, step, receiver, sender, _unsolicited: unsolicited }));
    }
}

/// Session reinstatement: ends the session that has the same name, ISID and target. Then waits until all commands of ended
/// sessions of the initiator have ended: none of them overtakes a command of the new one.
async fn end_earlier(server: &Server, new: &Established) {
    for session in server.all_sessions() {
        let target = session.nexus.as_ref().map(|nexus| &nexus.target);
        if session.initiator == new.initiator && session.isid == new.isid && target == new.target.as_ref() {
            session.end("the initiator logged in again");
            session.handle.close();
        }
    }
    loop {
        let ended = server.session_ended();
        let is_old = |session: &Arc<Running>| session.initiator == new.initiator && session.is_over();
        if !server.all_sessions().iter().any(is_old) {
            return;
        }
        ended.await;
    }
}

async fn send_step(writer: &mut Writer, step: Step) -> io::Result<()> {
    let padding = crate::wire::bhs::padding(step.text.len());
    let mut bytes = step.bhs.0.to_vec();
    bytes.extend(step.text);
    bytes.resize(bytes.len() + padding, 0);
    writer.write_pieces(&mut [Bytes::from(bytes)]).await
}

/// Pings an initiator that has been silent for a while, and closes the connection of one that does not answer.
async fn ping(session: std::sync::Weak<Running>) {
    let mut seen = 0;
    loop {
        let Some(clock) = session.upgrade().map(|session| session.clock.clone()) else { return };
        clock.sleep(PING_INTERVAL).await;
        let Some(session) = session.upgrade().filter(|session| !session.is_over()) else { return };
        let received = session.received.load(Ordering::Relaxed);
        if received == seen {
            let ping = session.state().ping();
            match ping {
                Some(ping) => session.send_one(ping, ()),
                None => session.handle.close(),
            }
        }
        seen = received;
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The initiator logged out.
    LoggedOut,
    /// The initiator closed the connection.
    Disconnected,
    /// The target ends the session.
    Stopped,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            End::LoggedOut => "logged out",
            End::Disconnected => "disconnected",
            End::Stopped => "stopped by the target",
        })
    }
}

/// Reads units until the session ends.
async fn read(
    reader: &mut UnitReader,
    session: &Arc<Running>,
    sender: &mpsc::UnboundedSender<Outgoing>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<End> {
    let queue = Arc::new(Semaphore::new(MAX_READER_UNITS));
    loop {
        let awaits_data = session.state().awaits_data();
        session.handle.set_in_message(false);
        session.handle.set_in_message(reader.has_part() || awaits_data);
        let bhs = tokio::select! {
            bhs = reader.header() => bhs?,
            _ = stop.wait_for(|stop| *stop) => {
                session.end("the server stops");
                return Ok(End::Stopped);
            }
            _ = session.ending.notified() => return Ok(End::Stopped),
            _ = sender.closed() => return Ok(End::Disconnected),
        };
        let Some(bhs) = bhs else { return Ok(End::Disconnected) };
        session.received.fetch_add(1, Ordering::Relaxed);
        session.handle.set_in_message(bhs.data_bytes() > 0);
        let actions = receive(reader, session, &bhs).await?;
        for action in actions {
            if let Some(end) = act(session, &queue, action).await? {
                return Ok(end);
            }
        }
    }
}

/// Reads the data of a unit to their place, and processes it.
async fn receive(reader: &mut UnitReader, session: &Arc<Running>, bhs: &Bhs) -> io::Result<Vec<Action<Memory>>> {
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let len = bhs.data_bytes();
    let place = session.state().place(bhs).map_err(invalid)?;
    let mut memory = None;
    let (mut buffer, keep) = match place {
        Place::Skip => (BytesMut::new(), 0),
        Place::Collect(max) => (BytesMut::new(), max),
        Place::Command(wanted) => {
            let first_burst = session.state().parameters().first_burst_bytes as usize;
            // Memory for all of the data, if there is some now: then they arrive in one buffer.
            if wanted > first_burst {
                memory = session.acquire(wanted).now_or_never();
            }
            let capacity = if wanted <= first_burst || memory.is_some() { wanted } else { len };
            (BytesMut::with_capacity(capacity), len)
        }
        Place::Task(itt) => (session.state().take_buffer(itt).unwrap_or_default(), len),
    };
    let matches = reader.data(len, keep, &mut buffer).await?;
    if !matches {
        let rejected = crate::session::reject(bhs, crate::wire::bhs::reject::DATA_DIGEST, false);
        session.send_one(rejected, ());
        return Err(invalid("data does not match its digest"));
    }
    debug_assert!(len <= MAX_RECEIVE_BYTES as usize, "{len} bytes of data");
    let mut state = session.state();
    if let Place::Task(itt) = place {
        state.put_buffer(itt, std::mem::take(&mut buffer));
    }
    Ok(state.receive(bhs, buffer, memory))
}

/// Does what the session asks for. Returns the end of the session if this is it.
async fn act(session: &Arc<Running>, queue: &Arc<Semaphore>, action: Action<Memory>) -> io::Result<Option<End>> {
    match action {
        Action::Execute(ready) => command::start(session, ready),
        Action::Memory { itt, bytes } => command::acquire(session, itt, bytes),
        Action::Manage(request) => manage::start(session, request),
        Action::Send(pdu) => {
            let permit = queue.clone().acquire_owned().await;
            session.send_one(pdu, permit);
        }
        Action::Text { bhs, text, frees_slot } => {
            let permit = queue.clone().acquire_owned().await;
            let reply = text_reply(session, &text);
            let pdu = session.state().text_reply(&bhs, reply, frees_slot);
            session.send_one(pdu, permit);
        }
        Action::Logout(request) => {
            session.drain().await;
            session.send_one(logout_response(&request.bhs, 0, request.frees_slot), ());
            return Ok(Some(End::LoggedOut));
        }
        Action::Close(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
    }
    Ok(None)
}

/// Answers a text: lists targets, and takes the length of data that the initiator accepts from now on.
fn text_reply(session: &Running, text: &[u8]) -> Vec<u8> {
    let mut reply = Keys::default();
    let Some(keys) = Keys::decode(text) else { return Vec::new() };
    for (key, value) in keys.iter() {
        match key {
            "SendTargets" => send_targets(session, value, &mut reply),
            "MaxRecvDataSegmentLength" => session.state().declare(value, &mut reply),
            _ => reply.push(key, "NotUnderstood"),
        }
    }
    reply.encode()
}

/// Lists the targets that the initiator may use: all in a discovery session, else its own.
fn send_targets(session: &Running, which: &str, reply: &mut Keys) {
    let visible = session.server.visible(&session.initiator, session.host());
    let own = session.nexus.as_ref().map(|nexus| &nexus.target);
    let is_wanted = |name: &String| match (which, own) {
        ("All", None) => true,
        ("All", Some(_)) => false,
        ("", own) => own.is_some_and(|own| own.eq_ignore_ascii_case(name)),
        (which, None) => which.eq_ignore_ascii_case(name),
        (which, Some(own)) => which.eq_ignore_ascii_case(name) && own.eq_ignore_ascii_case(name),
    };
    for name in visible.into_iter().filter(is_wanted) {
        reply.push("TargetName", name);
        reply.push("TargetAddress", format!("{},{PORT_GROUP}", session.portal));
    }
}
