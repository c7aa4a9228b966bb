//! Client of the administration socket: sends the command to the process that has the pool open and prints its output.

use super::server::{read_frame, write_frame};
use crate::call::{Call, Input, Line, show};
use crate::canceling::{Interrupts, ShownProgress, can_be_canceled};
use crate::failure::Failure;
use crate::locks::described;
use crate::remote::RemoteProcess;
use futures_util::future::{Either, select};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use weir_admin::{Answer, Command, OpenPool, Outcome, Query, Refusal, RefusalKind, Row, RowDecoder};
use weir_daemon::admin::Frame;

/// Runs a command in another process and returns its exit code.
///
/// # Errors
/// If no process answers on the socket, or another process than `remote` does. A command that the process has not begun
/// to run, because it is closing the pool, can be tried again.
pub fn ask(call: &Call, remote: &RemoteProcess) -> Result<u8, Failure> {
    let mut begun = false;
    let asked = converse(call, remote, &mut begun, show);
    call.machine()?.block_on(asked).map_err(|error| unanswered(remote, begun, &error))
}

/// Like [`ask`], and drops the output.
///
/// # Errors
/// As [`ask`].
pub fn tell(call: &Call, remote: &RemoteProcess) -> Result<u8, Failure> {
    let mut begun = false;
    let asked = converse(call, remote, &mut begun, |_| ());
    call.machine()?.block_on(asked).map_err(|error| unanswered(remote, begun, &error))
}

/// Sends a command to another process, which carries it out.
///
/// # Errors
/// As [`ask`]. A refusal by that process is no error: it is in the answer.
pub fn send(call: &Call, remote: &RemoteProcess, command: &Command) -> Result<Result<Outcome, Refusal>, Failure> {
    let mut begun = false;
    let mut shown = ShownProgress::new(call);
    let exchange = async {
        let (mut read, mut write) = connect(remote).await?.into_split();
        let mut interrupts = match can_be_canceled(&command.action) && call.process().is_none() {
            true => Some(Interrupts::new().map_err(|failure| io::Error::other(failure.line))?),
            false => None,
        };
        let json = command.to_json().map_err(io::Error::other)?;
        write_frame(&mut write, &Frame::Command(json)).await?;
        loop {
            match frame_or_cancel(&mut read, &mut write, &mut interrupts).await? {
                Frame::Begun => begun = true,
                Frame::Progress(json) => shown.show(serde_json::from_slice(&json).ok()),
                Frame::Answer(json) => return Answer::from_json(&json).map_err(io::Error::other),
                // A process that does not know the message says so.
                Frame::Err(line) => return Err(io::Error::other(String::from_utf8_lossy(&line).trim().to_owned())),
                _ => return Err(io::Error::from(ErrorKind::InvalidData)),
            }
        }
    };
    let answer = call.machine()?.block_on(exchange).map_err(|error| (begun, error));
    shown.end();
    if begun {
        call.set_sent();
    }
    answer.map(Answer::into).map_err(|(begun, error)| unanswered(remote, begun, &error))
}

/// Reads a frame, and asks the other process to cancel the command when the user interrupts it.
async fn frame_or_cancel(
    read: &mut OwnedReadHalf,
    write: &mut OwnedWriteHalf,
    interrupts: &mut Option<Interrupts>,
) -> io::Result<Frame> {
    let mut frame = pin!(read_frame(read));
    loop {
        let interrupted = async {
            match &mut *interrupts {
                Some(interrupts) => interrupts.first().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = &mut frame => return frame,
            () = interrupted => write_frame(write, &Frame::Cancel).await?,
        }
    }
}

/// Sends a query to another process, and gives each row of the answer to `each`. The query stops if the reader of the output has
/// gone away.
///
/// # Errors
/// As [`ask`]. A query that was refused is not an error here.
pub fn query(
    call: &Call,
    remote: &RemoteProcess,
    query: &Query,
    each: &mut dyn FnMut(Row),
) -> Result<Result<(), Refusal>, Failure> {
    let mut begun = false;
    let exchange = exchange(call, remote, query, each, &mut begun);
    let answer = call.machine()?.block_on(exchange).map_err(|error| unanswered(remote, begun, &error))?;
    Ok(Result::from(answer).map(|_| ()))
}

/// The pools that another process has open; `None` if it does not say so in this time.
///
/// # Errors
/// If there is no machine.
pub fn open_pools(call: &Call, remote: &RemoteProcess, within: Duration) -> Result<Option<Vec<OpenPool>>, Failure> {
    let mut pools = Vec::new();
    let mut take = |row| {
        if let Row::Pool(pool) = row {
            pools.push(pool);
        }
    };
    let mut begun = false;
    let machine = call.machine()?;
    let is_answered = {
        let exchange = pin!(exchange(call, remote, &Query::Pools, &mut take, &mut begun));
        let end = pin!(machine.clock.sleep(within));
        match machine.block_on(select(exchange, end)) {
            Either::Left((Ok(answer), _)) => Result::from(answer).is_ok(),
            _ => false,
        }
    };
    Ok(is_answered.then_some(pools))
}

/// Sends a query, and gives each row to `each`. Sets `begun` when the process has begun with it.
async fn exchange(
    call: &Call,
    remote: &RemoteProcess,
    query: &Query,
    each: &mut dyn FnMut(Row),
    begun: &mut bool,
) -> io::Result<Answer> {
    let mut stream = connect(remote).await?;
    write_frame(&mut stream, &Frame::Query(query.to_json().map_err(io::Error::other)?)).await?;
    let mut rows = RowDecoder::default();
    loop {
        match read_frame(&mut stream).await? {
            Frame::Begun => *begun = true,
            Frame::Part(piece) => {
                rows.push(&piece).map_err(io::Error::other)?.into_iter().for_each(&mut *each);
                call.wait_for_output().await;
                if call.is_gone() {
                    let why = "the output has no reader";
                    return Ok(Answer::Refused(Refusal::new(RefusalKind::Stopped, why)));
                }
            }
            Frame::Answer(json) => return Answer::from_json(&json).map_err(io::Error::other),
            // A process that does not know the message says so.
            Frame::Err(line) => return Err(io::Error::other(String::from_utf8_lossy(&line).trim().to_owned())),
            _ => return Err(io::Error::from(ErrorKind::InvalidData)),
        }
    }
}

/// Sends a command to another process, which carries it out. Returns the answer, and prints nothing.
///
/// # Errors
/// If the process does not answer. A refusal by that process is no error: it is in the answer.
pub async fn ask_command(remote: &RemoteProcess, command: &Command) -> io::Result<Result<Outcome, Refusal>> {
    let mut stream = connect(remote).await?;
    write_frame(&mut stream, &Frame::Command(command.to_json().map_err(io::Error::other)?)).await?;
    loop {
        match read_frame(&mut stream).await? {
            Frame::Begun | Frame::Progress(_) => {}
            frame => return answer_in(frame).map(Result::from),
        }
    }
}

/// Sends a query to another process. Returns all rows, and prints nothing.
///
/// # Errors
/// If the process does not answer. A query that was refused is not an error here.
pub async fn ask_rows(remote: &RemoteProcess, query: &Query) -> io::Result<Result<Vec<Row>, Refusal>> {
    let mut stream = connect(remote).await?;
    write_frame(&mut stream, &Frame::Query(query.to_json().map_err(io::Error::other)?)).await?;
    let mut decoder = RowDecoder::default();
    let mut rows = Vec::new();
    loop {
        match read_frame(&mut stream).await? {
            Frame::Begun => {}
            Frame::Part(piece) => rows.extend(decoder.push(&piece).map_err(io::Error::other)?),
            frame => return Ok(Result::from(answer_in(frame)?).map(|_| rows)),
        }
    }
}

/// The answer in the last frame of a conversation.
fn answer_in(frame: Frame) -> io::Result<Answer> {
    match frame {
        Frame::Answer(json) => Answer::from_json(&json).map_err(io::Error::other),
        // A process that does not know the message says so.
        Frame::Err(line) => Err(io::Error::other(String::from_utf8_lossy(&line).trim().to_owned())),
        _ => Err(io::Error::from(ErrorKind::InvalidData)),
    }
}

/// The failure of a user who may not ask a process.
pub fn denied(remote: &RemoteProcess) -> Failure {
    let which = if remote.is_daemon { "the daemon" } else { "the process that has the pool open" };
    Failure::failed(format!("permission denied: only its user and root may ask {which} (process {})", remote.pid))
}

/// The failure of a conversation. A command that has not begun can be tried again if the process is closing the pool.
fn unanswered(remote: &RemoteProcess, begun: bool, error: &io::Error) -> Failure {
    let pid = remote.pid;
    let socket = remote.socket.display();
    if error.kind() == ErrorKind::PermissionDenied {
        return denied(remote);
    }
    let line = format!("process {pid} has the pool open and does not answer on {socket}: {error}");
    let closes = matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::NotFound
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
    );
    if closes && !begun { Failure::not_yet(line, described(pid)) } else { Failure::failed(line) }
}

/// Connects to the process.
async fn connect(remote: &RemoteProcess) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(&remote.socket).await?;
    match stream.peer_cred()?.pid() {
        peer if peer == i32::try_from(remote.pid).ok() => Ok(stream),
        _ => Err(io::Error::other("another process listens there")),
    }
}

/// Maximum number of bytes of standard input that are sent to the other process at once: those of one frame.
const MAX_INPUT_BYTES: u32 = 64 << 10;

/// Sends the requested input from standard input.
async fn answer(stream: &mut UnixStream, wanted: Input) -> io::Result<()> {
    let read = tokio::task::spawn_blocking(move || wanted.read()).await.unwrap_or_default();
    write_frame(stream, &Frame::Input(read)).await
}

async fn converse(call: &Call, remote: &RemoteProcess, begun: &mut bool, show: impl Fn(&Line)) -> io::Result<u8> {
    let mut stream = connect(remote).await?;
    let mut caller = call.caller.clone();
    if caller.dirs.is_none() && !remote.is_daemon {
        // The devices of the pools that other processes have open, among them the pool of this command.
        caller.dirs = std::env::join_paths(super::devices()).ok().filter(|dirs| !dirs.is_empty());
    }
    write_frame(&mut stream, &Frame::Call(caller)).await?;
    loop {
        match read_frame(&mut stream).await? {
            Frame::Begun => *begun = true,
            Frame::Out(bytes) => show(&Line::Out(bytes)),
            Frame::Err(bytes) => show(&Line::Err(bytes)),
            Frame::Ask(prompt) => {
                answer(&mut stream, Input::Line(String::from_utf8_lossy(&prompt).into_owned())).await?
            }
            Frame::AskBytes(most) => answer(&mut stream, Input::Bytes(most.min(MAX_INPUT_BYTES))).await?,
            Frame::End(code) => return Ok(code),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    }
}
