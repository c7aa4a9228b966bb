//! Streams over SMB, carried by Samba's smbclient, one process for each worker and pass over its file.
//!
//! ```text
//!   write: random bytes ─▶ stdin of smbclient `put - FILE` ─▶ server
//!   read:  server ─▶ smbclient `get FILE -` on stdout ─▶ counted, dropped
//! ```
//!
//! smbclient (GPL) is a program of its own. It copies whole files, so only sequential streams can be measured: no random places, no
//! mixes, no flush after a write, no latency of an operation. The size of an operation is that of the pieces of the pipe; smbclient
//! chooses that of its requests. The time of a pass contains login and opening. A write whose time is over leaves a short file, even an
//! empty one: it is written again before a load that reads. There is no ceiling of the client: it needs
//! Samba's server.

use super::network::client::file_name;
use super::network::load::UNMEASURED;
use super::network::secret::PASSWORD_VARIABLE;
use super::network::url::{NetworkTarget, Place};
use crate::clock::{self, Stopwatch};
use crate::error::LabError;
use crate::fio::Monitor;
use crate::load::Load;
use crate::result::{Flow, Round, Second};
use crate::statistics::Seeded;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often the streams are looked after.
const POLL: Duration = Duration::from_millis(20);
/// Random bytes that the streams repeat with changes.
const CONTENT_BYTES: usize = 4 << 20;
/// Each sector of a stream has a number of its own.
const SECTOR_BYTES: usize = 512;
/// Words of a time in smbclient's listings.
const WORDS_OF_A_TIME: usize = 5;
/// Bytes of smbclient's messages that are kept.
const MAX_MESSAGE_BYTES: u64 = 4096;

/// Program that carries the load, with its version.
#[must_use]
pub fn client() -> String {
    let asked = Command::new("smbclient").arg("--version").stdin(Stdio::null()).output();
    let version = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    format!("smbclient ({version}), a process for each stream and pass; sequential streams only")
}

/// Refuses loads that smbclient cannot carry.
///
/// # Errors
/// If the load is no sequential stream; the message says which methods are.
pub fn check_load(load: &Load) -> Result<(), LabError> {
    let what = match load {
        Load { random_percent: 1.., .. } => "random places",
        Load { read_percent: 1..100, .. } => "a mix of reads and writes",
        Load { sync: true, .. } => "writes that are made stable one by one",
        Load { depth: 2.., .. } => "several operations in flight in one stream",
        Load { blocks, .. } if blocks.len() != 1 => "operations of several sizes",
        _ => return Ok(()),
    };
    let text = format!(
        "smb:// is carried by smbclient, which copies whole files: it cannot do {what}; use stream, users or singlestream, or mount the share and give the directory"
    );
    Err(LabError::Target(text))
}

/// smbclient with commands for a share.
fn command(target: &NetworkTarget, commands: &str) -> Result<Command, LabError> {
    let Place::Smb { port, share, directory } = &target.place else {
        return Err(LabError::Target(format!("{target}: no share")));
    };
    let mut command = Command::new("smbclient");
    command.arg(format!("//{}/{share}", target.host)).args(["-p", &port.to_string(), "-E"]);
    if !directory.is_empty() {
        command.args(["-D", directory]);
    }
    command.env_remove("PASSWD_FD").env_remove("PASSWD_FILE").env_remove(PASSWORD_VARIABLE);
    match &target.user {
        Some(user) => {
            let password = user.password()?;
            let password = std::ffi::OsStr::new(
                std::str::from_utf8(password.bytes())
                    .map_err(|_| LabError::Target(format!("{target}: the password is not UTF-8")))?,
            );
            // The environment of a process is readable for its own user only.
            command.env("PASSWD", password).args(["-U", &user.name]);
        }
        None => {
            command.env_remove("PASSWD").arg("-N");
        }
    }
    command.args(["-c", commands]);
    Ok(command)
}

fn missing(error: &std::io::Error) -> LabError {
    let what = match error.kind() {
        std::io::ErrorKind::NotFound => {
            "not found; install it (package smbclient in Debian and Ubuntu, samba-client in Fedora)".to_owned()
        }
        _ => error.to_string(),
    };
    LabError::Program { program: "smbclient", what }
}

/// The line of smbclient's messages that says what failed.
fn complaint(target: &NetworkTarget, messages: &[u8]) -> LabError {
    let text = String::from_utf8_lossy(messages);
    let line = text.lines().find(|line| line.contains("NT_STATUS") || line.contains("failed"));
    let what = line.or_else(|| text.lines().next()).unwrap_or("smbclient failed without a message").trim().to_owned();
    LabError::Server { target: target.to_string(), what }
}

/// Executes commands, and returns what smbclient says.
fn execute(target: &NetworkTarget, commands: &str) -> Result<String, LabError> {
    let output = command(target, commands)?.stdin(Stdio::null()).output().map_err(|error| missing(&error))?;
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&all).into_owned()),
        false => Err(complaint(target, &all)),
    }
}

/// Checks that smbclient is installed and the share can be opened. Returns the bytes that are free, if smbclient says so.
///
/// # Errors
/// If it is not, or cannot.
pub fn room_bytes(target: &NetworkTarget) -> Result<Option<u64>, LabError> {
    Ok(room(
        &execute(target, "ls weir-bench-room")
            // A pattern that nothing matches is an error of `ls` after the space was shown, or instead of it.
            .or_else(|error| match error.to_string().contains("NO_SUCH_FILE") {
                true => execute(target, "volume"),
                false => Err(error),
            })?,
    ))
}

/// The free bytes in smbclient's line `N blocks of size M. K blocks available`.
fn room(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(" blocks available"))?;
    let (size, rest) = line.split_once("blocks of size ")?.1.split_once(". ")?;
    size.trim().parse::<u64>().ok()?.checked_mul(rest.split(' ').next()?.parse().ok()?)
}

/// The bytes of a file in the share's directory, which smbclient's `ls` says; 0 if there is none.
///
/// # Errors
/// If the share cannot be opened.
fn file_bytes(target: &NetworkTarget, name: &str) -> Result<u64, LabError> {
    match execute(target, &format!("ls {name}")) {
        Ok(text) => Ok(listed_bytes(&text, name)),
        Err(LabError::Server { what, .. }) if what.contains("NO_SUCH_FILE") => Ok(0),
        Err(error) => Err(error),
    }
}

/// The size in smbclient's line `  NAME  ATTRIBUTES  SIZE  Sun Nov 29 02:00:00 2026`, of which attributes may be missing.
fn listed_bytes(text: &str, name: &str) -> u64 {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.filter(|words| words.first() == Some(&name)).find(|words| words.len() > WORDS_OF_A_TIME + 1);
    line.and_then(|words| words.get(words.len() - WORDS_OF_A_TIME - 1)?.parse().ok()).unwrap_or(0)
}

/// Writes the files of a load again if one is shorter than a worker's part: when the time of writes is over, smbclient is ended in
/// the middle of a file, which it had truncated. `None` if the monitor stopped it.
fn complete_files(target: &NetworkTarget, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<()>, LabError> {
    for number in 0..load.workers {
        if file_bytes(target, &file_name(number))? < load.bytes_per_worker() {
            let pass = Load { read_percent: 0, seconds: 0, ramp_seconds: 0, ..load.clone() };
            return Ok(run(target, &pass, monitor)?.map(drop));
        }
    }
    Ok(Some(()))
}

/// Removes the files that loads made.
///
/// # Errors
/// If the share cannot be opened.
pub fn remove_files(target: &NetworkTarget) -> Result<(), LabError> {
    match execute(target, &format!("del {}.*", crate::load::FILE_PREFIX)) {
        Err(LabError::Server { what, .. }) if what.contains("NO_SUCH_FILE") => Ok(()),
        other => other.map(|_| ()),
    }
}

/// State of a run.
struct Times {
    watch: Stopwatch,
    ramp: f64,
    end: f64,
    is_stopped: AtomicBool,
    /// Bytes that moved within the measurement, and before and after it.
    bytes: AtomicU64,
    unmeasured: AtomicU64,
}

impl Times {
    fn is_over(&self) -> bool {
        self.watch.seconds() >= self.end || self.is_stopped.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: u64) {
        let is_measured = (self.ramp..self.end).contains(&self.watch.seconds());
        let sum = if is_measured { &self.bytes } else { &self.unmeasured };
        sum.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Runs a load of sequential streams. `None` if the monitor stopped it.
///
/// # Errors
/// If smbclient is missing or fails.
pub fn run(target: &NetworkTarget, load: &Load, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
    if !load.writes() && complete_files(target, load, monitor)?.is_none() {
        return Ok(None);
    }
    let is_timed = load.seconds > 0;
    let ramp = if is_timed { load.ramp_seconds as f64 } else { 0.0 };
    let end = if is_timed { ramp + load.seconds as f64 } else { f64::INFINITY };
    let [bytes, unmeasured] = [0, 0].map(AtomicU64::new);
    let times = Times { watch: Stopwatch::start(), ramp, end, is_stopped: AtomicBool::new(false), bytes, unmeasured };
    let second = |moved: u64| {
        let (read_bytes, written_bytes) = if load.writes() { (0, moved) } else { (moved, 0) };
        Second { read_bytes, written_bytes, ..Second::default() }
    };
    let mut is_cancelled = false;
    let mut series: Vec<Second> = Vec::new();
    let mut counted = 0;
    let outcomes: Vec<Result<(), LabError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.workers)
            .map(|number| {
                let times = &times;
                scope.spawn(move || {
                    let outcome = stream(target, load, number, times);
                    if outcome.is_err() {
                        times.is_stopped.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            let now = times.watch.seconds();
            if !is_cancelled && !monitor.poll(now) {
                is_cancelled = true;
                times.is_stopped.store(true, Ordering::Relaxed);
            }
            if now.min(end) >= ramp + series.len() as f64 + 1.0 {
                let total = times.bytes.load(Ordering::Relaxed);
                let moved = total - std::mem::replace(&mut counted, total);
                series.push(second(moved));
            }
            clock::sleep(POLL);
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let seconds = if is_timed { load.seconds as f64 } else { times.watch.seconds() };
    outcomes.into_iter().collect::<Result<Vec<()>, _>>()?;
    if is_cancelled {
        return Ok(None);
    }
    let total = times.bytes.load(Ordering::Relaxed);
    if is_timed && (series.len() as u64) < load.seconds {
        series.push(second(total - counted));
    }
    let block = load.largest_block().max(1);
    let operations = total / block;
    let flow = Flow { bytes: operations * block, operations };
    let (read, written) = if load.writes() { (Flow::default(), flow) } else { (flow, Flow::default()) };
    let unmeasured = times.unmeasured.load(Ordering::Relaxed) + (total - flow.bytes);
    let figures = BTreeMap::from([(UNMEASURED.to_owned(), unmeasured as f64)]);
    Ok(Some(Round { seconds, read, written, series, figures, ..Round::default() }))
}

/// Passes over a worker's file until the time is over; one pass if there is none.
fn stream(target: &NetworkTarget, load: &Load, number: u32, times: &Times) -> Result<(), LabError> {
    let name = file_name(number);
    let commands = if load.writes() { format!("put - {name}") } else { format!("get {name} -") };
    let piece = usize::try_from(load.largest_block()).unwrap_or(CONTENT_BYTES).clamp(1, CONTENT_BYTES);
    let mut random = Seeded::new(clock::unix_nanoseconds() ^ u64::from(number) << 48);
    let mut buffer = vec![0; CONTENT_BYTES];
    random.fill(&mut buffer);
    loop {
        let mut child = command(target, &commands)?
            .stdin(if load.writes() { Stdio::piped() } else { Stdio::null() })
            .stdout(if load.writes() { Stdio::null() } else { Stdio::piped() })
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| missing(&error))?;
        let messages = child.stderr.take();
        let mut said = Vec::new();
        let is_whole = std::thread::scope(|scope| {
            // Its messages are read while it runs: a full pipe would stop it.
            let reader = scope.spawn(|| {
                let _ = messages.map(|mut messages| drain(&mut messages, &mut said));
            });
            let is_whole = match load.writes() {
                true => feed(&mut child, load.bytes_per_worker(), piece, &mut buffer, &mut random, times),
                false => consume(&mut child, piece, &mut buffer, times),
            };
            if !is_whole && times.is_over() {
                let _ = child.kill();
            }
            let _ = reader.join();
            is_whole
        });
        let status = child.wait().map_err(|error| missing(&error))?;
        if times.is_over() && !is_whole {
            return Ok(());
        }
        if !status.success() || !is_whole {
            return Err(complaint(target, &said));
        }
        if load.seconds == 0 || times.is_over() {
            return Ok(());
        }
    }
}

/// Reads a program's messages to their end, and keeps the first ones.
fn drain(messages: &mut impl Read, kept: &mut Vec<u8>) -> std::io::Result<()> {
    messages.take(MAX_MESSAGE_BYTES).read_to_end(kept)?;
    std::io::copy(messages, &mut std::io::sink()).map(|_| ())
}

/// Feeds a file to smbclient. Whether all of it was taken.
fn feed(child: &mut Child, bytes: u64, piece: usize, buffer: &mut [u8], random: &mut Seeded, times: &Times) -> bool {
    let Some(mut input) = child.stdin.take() else { return false };
    let mut left = bytes;
    let mut at = 0;
    while left > 0 {
        if times.is_over() {
            return false;
        }
        if at + piece > buffer.len() {
            at = 0;
        }
        let part = &mut buffer[at..at + piece.min(usize::try_from(left).unwrap_or(piece))];
        let number = random.next_u64();
        for (sector, count) in part.chunks_mut(SECTOR_BYTES).zip(0_u64..) {
            if let Some(place) = sector.first_chunk_mut::<8>() {
                *place = number.wrapping_add(count).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
            }
        }
        if input.write_all(part).is_err() {
            return false;
        }
        times.count(part.len() as u64);
        left -= part.len() as u64;
        at += piece;
    }
    true
}

/// Takes a file from smbclient and drops it. Whether it ended by itself.
fn consume(child: &mut Child, piece: usize, buffer: &mut [u8], times: &Times) -> bool {
    let Some(mut output) = child.stdout.take() else { return false };
    loop {
        if times.is_over() {
            return false;
        }
        match output.read(&mut buffer[..piece]) {
            Ok(0) => return true,
            Ok(count) => times.count(count as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sequential_streams_are_taken() {
        assert!(check_load(&Load { workers: 4, seconds: 9, ..Load::sequential(1 << 20, 100) }).is_ok());
        for (load, says) in [
            (Load::random(4096, 100), "random places"),
            (Load::sequential(4096, 50), "a mix"),
            (Load { sync: true, ..Load::sequential(4096, 0) }, "made stable"),
            (Load { depth: 8, ..Load::sequential(4096, 0) }, "in flight"),
        ] {
            let text = check_load(&load).unwrap_err().to_string();
            assert!(text.contains(says) && text.contains("use stream"), "{text}");
        }
    }

    #[test]
    fn size_is_read_from_the_listing() {
        let text = "  weir-bench.0                        A 16777216  Sun Nov 29 02:00:00 2026\n\n\t\t163840 blocks of size 1024. 9 blocks available\n";
        assert_eq!(listed_bytes(text, "weir-bench.0"), 16_777_216);
        assert_eq!(listed_bytes("  weir-bench.1   7  Sun Nov  9 02:00:00 2026", "weir-bench.1"), 7);
        assert_eq!(listed_bytes(text, "weir-bench.1"), 0);
        assert_eq!(listed_bytes("weir-bench.1 x", "weir-bench.1"), 0);
    }

    #[test]
    fn free_space_is_read_from_the_listing() {
        let text = "  .   D  0  Sat\n\n\t\t163840 blocks of size 1024. 1000 blocks available\n";
        assert_eq!(room(text), Some(1_024_000));
        assert_eq!(room("blocks available blocks of size "), None);
    }
}
