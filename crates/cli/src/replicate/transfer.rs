//! One stream from `zfs send` to `zfs receive`, with a limit of its rate and with progress.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::progress::{Progress, report};
use super::side::{Side, reason};
use crate::failure::Failure;
use crate::units::human_bytes;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;
/// Interval between two lines of progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Limit and display of transfers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferOptions {
    /// Maximum bytes per second.
    pub limit: Option<u64>,
    /// Whether progress is printed on standard error.
    pub verbose: bool,
    /// Whether it is said to the daemon.
    pub progress: bool,
}

/// Sends with these arguments, and receives with those. `expected` is the estimated size in bytes, and `progress` that of the dataset
/// at the beginning of the stream. Returns the bytes of the stream.
///
/// # Errors
/// Why the stream was not sent or not received. With `-s`, what arrived is kept.
pub fn transfer(
    (source, send): (&Side, &[&str]),
    (target, receive): (&Side, &[&str]),
    (expected, progress): (Option<u64>, &Progress),
    options: TransferOptions,
) -> Result<u64, Failure> {
    let mut sender = source.start(send, Stdio::null(), Stdio::piped())?;
    let receiver = target.start(receive, Stdio::piped(), Stdio::null());
    let mut receiver = receiver.inspect_err(|_| end(&mut sender))?;
    let errors = [Errors::of(&mut sender), Errors::of(&mut receiver)];
    let sent = AtomicU64::new(0);
    let copied = std::thread::scope(|scope| {
        let (end, done) = channel();
        let sent = &sent;
        if options.progress {
            scope.spawn(move || report(progress, sent, &done));
        }
        let copied = copy(&mut sender, &mut receiver, (expected, sent), options);
        drop::<Sender<()>>(end);
        copied
    });
    // The receiver is at the end of the stream, or its input broke.
    drop(receiver.stdin.take());
    // A sender whose reader is gone ends by itself.
    drop(sender.stdout.take());
    let [sent, received] = [sender.wait(), receiver.wait()];
    let [send_error, receive_error] = errors.map(Errors::reason);
    check(target, "receive", received, &receive_error)?;
    check(source, "send", sent, &send_error)?;
    copied.map_err(|error| Failure::failed(format!("{}: {error}", source.shown())))
}

fn check(side: &Side, what: &str, status: io::Result<ExitStatus>, error: &str) -> Result<(), Failure> {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let why = if error.is_empty() { status.to_string() } else { error.to_owned() };
            Err(Failure::failed(format!("{}: zfs {what}: {why}", side.shown())))
        }
        Err(error) => Err(Failure::failed(format!("{}: zfs {what}: {error}", side.shown()))),
    }
}

fn end(child: &mut Child) {
    let _ended_meanwhile = child.kill();
    let _reaped = child.wait();
}

/// Reads the error output of a child while it runs, so that it never waits for a reader.
struct Errors(Option<std::thread::JoinHandle<String>>);

impl Errors {
    fn of(child: &mut Child) -> Self {
        let stream = child.stderr.take();
        Errors(stream.map(|stream| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let mut stream = stream;
                let mut part = [0; 4096];
                // More than the beginning is read, and forgotten.
                while let Ok(len @ 1..) = stream.read(&mut part) {
                    if text.len() < 65_536 {
                        text.extend_from_slice(part.get(..len).unwrap_or_default());
                    }
                }
                String::from_utf8_lossy(&text).into_owned()
            })
        }))
    }

    fn reason(self) -> String {
        let text = self.0.and_then(|thread| thread.join().ok()).unwrap_or_default();
        reason(&text).unwrap_or_default().to_owned()
    }
}

/// Copies the stream. A receiver that ended is no error here: its exit code says why.
fn copy(
    sender: &mut Child,
    receiver: &mut Child,
    (expected, sent): (Option<u64>, &AtomicU64),
    options: TransferOptions,
) -> io::Result<u64> {
    let (Some(from), Some(to)) = (sender.stdout.as_mut(), receiver.stdin.as_mut()) else {
        return Err(io::Error::other("a pipe is missing"));
    };
    let began = Instant::now();
    let mut shown = began;
    let mut buffer = vec![0; options.limit.map_or(CHUNK, |limit| CHUNK.min((limit / 4).max(4096) as usize))];
    let mut bytes = 0u64;
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match to.write_all(buffer.get(..len).unwrap_or_default()) {
            Ok(()) => bytes += len as u64,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(error),
        }
        sent.store(bytes, Ordering::Relaxed);
        if let Some(limit) = options.limit {
            let due = Duration::from_secs_f64(bytes as f64 / limit as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        if options.verbose && shown.elapsed() >= INTERVAL {
            shown = Instant::now();
            show(bytes, expected, began.elapsed());
        }
    }
    Ok(bytes)
}

/// Prints progress, on a terminal in one line.
fn show(bytes: u64, expected: Option<u64>, time: Duration) {
    let rate = bytes as f64 / time.as_secs_f64().max(0.001);
    let left = expected.filter(|all| *all > bytes && rate > 0.0).map(|all| ((all - bytes) as f64 / rate).ceil());
    let of = expected.map(|all| format!(" of about {}", human_bytes(all))).unwrap_or_default();
    let left = left.map(|seconds| format!(", {seconds:.0} s left")).unwrap_or_default();
    let line = format!("{}{of}, {}/s{left}", human_bytes(bytes), human_bytes(rate as u64));
    match io::stderr().is_terminal() {
        true => eprint!("\r\x1b[K{line}"),
        false => eprintln!("{line}"),
    }
}
