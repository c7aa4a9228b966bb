//! Client of the administration socket: sends the command to the process that has the pool open and prints its output.

use super::server::{read_frame, write_frame};
use crate::call::{Call, Input, Line, show};
use crate::failure::Failure;
use crate::locks::described;
use crate::remote::RemoteProcess;
use std::io::{self, ErrorKind};
use tokio::net::UnixStream;
use weir_daemon::admin::Frame;

/// Runs a command in another process and returns its exit code.
///
/// # Errors
/// If no process answers on the socket, or another process than `remote` does. A command that the process has not begun
/// to run, because it is closing the pool, can be tried again.
pub fn ask(call: &Call, remote: &RemoteProcess) -> Result<u8, Failure> {
    let pid = remote.pid;
    let socket = remote.socket.display();
    let mut begun = false;
    call.machine()?.block_on(converse(call, remote, &mut begun)).map_err(|error| {
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
    })
}

/// Maximum number of bytes of standard input that are sent to the other process.
const MAX_INPUT_BYTES: u32 = 4096;

/// Sends the requested input from standard input.
async fn answer(stream: &mut UnixStream, wanted: Input) -> io::Result<()> {
    let read = tokio::task::spawn_blocking(move || wanted.read()).await.unwrap_or_default();
    write_frame(stream, &Frame::Input(read)).await
}

async fn converse(call: &Call, remote: &RemoteProcess, begun: &mut bool) -> io::Result<u8> {
    let mut stream = UnixStream::connect(&remote.socket).await?;
    let peer = stream.peer_cred()?.pid();
    if peer != i32::try_from(remote.pid).ok() {
        return Err(io::Error::other("another process listens there"));
    }
    let mut caller = call.caller.clone();
    if caller.dirs.is_none() {
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
