//! Runs a program to its end: bounded in time and output, its input never in its arguments.

use crate::error::SmbError;
use futures_util::future::{Either, select};
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use weir_machine::Clock;

/// Maximum number of bytes of output that are kept.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// A command in the C locale that ends with its handle.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").kill_on_drop(true);
    command
}

/// Name of a program for messages.
pub(crate) fn name(command: &Command) -> String {
    Path::new(command.as_std().get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs `command` with `input` on its standard input; returns its standard output.
///
/// # Errors
/// If it cannot be started, does not end in `time`, or fails: then with the last line of its output.
pub(crate) async fn output(
    clock: &Clock,
    command: &mut Command,
    input: Option<&[u8]>,
    time: Duration,
) -> Result<String, SmbError> {
    let program = name(command);
    let failed = |why| SmbError::Run { program: program.clone(), why };
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let ended = match select(pin!(converse(child, input)), pin!(clock.sleep(time))).await {
        Either::Left((ended, _)) => ended.map_err(failed)?,
        Either::Right(_) => return Err(SmbError::Late { program, seconds: time.as_secs() }),
    };
    if ended.success {
        return Ok(ended.out);
    }
    let last = |text: &str| text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    let said = last(&ended.err).or_else(|| last(&ended.out)).unwrap_or_else(|| "without a message".into());
    Err(SmbError::Failed { program, said })
}

struct Ended {
    success: bool,
    out: String,
    err: String,
}

async fn converse(mut child: Child, input: Option<&[u8]>) -> std::io::Result<Ended> {
    let stdin = child.stdin.take();
    let write = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A program that ends without reading its input says why on its own.
            let _ = stdin.write_all(input).await;
        }
    };
    let out = child.stdout.take();
    let err = child.stderr.take();
    let read_out = async {
        let mut bytes = Vec::new();
        if let Some(out) = out {
            out.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).await?;
        }
        std::io::Result::Ok(bytes)
    };
    let read_err = async {
        let mut bytes = Vec::new();
        if let Some(err) = err {
            err.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).await?;
        }
        std::io::Result::Ok(bytes)
    };
    let ((), out, err) = futures_util::future::join3(write, read_out, read_err).await;
    let status = child.wait().await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ended { success: status.success(), out: text(out?), err: text(err?) })
}
