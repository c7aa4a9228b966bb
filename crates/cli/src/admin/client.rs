//! The side that was called: asks the process that has the pool, and shows what that says.

use super::Elsewhere;
use super::server::{read_frame, write_frame};
use crate::call::{Call, Input, Said, show};
use crate::failure::Failure;
use std::io;
use tokio::net::UnixStream;
use weir_daemon::admin::Frame;

/// Has a command done elsewhere; gives its exit code.
///
/// # Errors
/// If nobody answers there, or somebody else than that process.
pub fn ask(call: &Call, elsewhere: &Elsewhere) -> Result<u8, Failure> {
    let (pid, socket) = (elsewhere.pid, elsewhere.socket.display());
    let failed = |error: io::Error| {
        Failure::failed(format!("process {pid} has the pool open and does not answer on {socket}: {error}"))
    };
    call.machine()?.block_on(converse(call, elsewhere)).map_err(failed)
}

/// Most bytes of standard input that are given away.
const MOST_ASKED: u32 = 4096;

/// Gives what is wanted from standard input.
async fn answer(stream: &mut UnixStream, wanted: Input) -> io::Result<()> {
    let read = tokio::task::spawn_blocking(move || wanted.read()).await.unwrap_or_default();
    write_frame(stream, &Frame::Input(read)).await
}

async fn converse(call: &Call, elsewhere: &Elsewhere) -> io::Result<u8> {
    let mut stream = UnixStream::connect(&elsewhere.socket).await?;
    let peer = stream.peer_cred()?.pid();
    if peer != i32::try_from(elsewhere.pid).ok() {
        return Err(io::Error::other("another process listens there"));
    }
    let mut caller = call.caller.clone();
    if caller.dirs.is_none() {
        // Where this process found the pool, and others that somebody has open.
        caller.dirs = std::env::join_paths(super::devices()).ok().filter(|dirs| !dirs.is_empty());
    }
    write_frame(&mut stream, &Frame::Call(caller)).await?;
    loop {
        match read_frame(&mut stream).await? {
            Frame::Out(bytes) => show(&Said::Out(bytes)),
            Frame::Err(bytes) => show(&Said::Err(bytes)),
            Frame::Ask(prompt) => {
                answer(&mut stream, Input::Line(String::from_utf8_lossy(&prompt).into_owned())).await?
            }
            Frame::AskBytes(most) => answer(&mut stream, Input::Bytes(most.min(MOST_ASKED))).await?,
            Frame::End(code) => return Ok(code),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    }
}
