//! `weir-guest-agent`: runs inside the emulated machine of `judge guest`.
//!
//! Without arguments it serves the virtio port named by `WEIR_GUEST_PORT`: it runs the scripts that the judge sends,
//! several at once, and sends their output back line by line.
//!
//! ```text
//!   judge ─► RUN id seconds bytes⏎ script      the script is run by sh; after this time its process group is killed
//!   judge ─► QUIT⏎                             the agent ends, and its machine with it
//!   agent ─► READY⏎                            it can be asked
//!   agent ─► OUT id text⏎                      a line of standard output or error
//!   agent ─► END id code⏎                      the script ended; 124: its time was over, 137: also deaf to SIGKILL
//! ```
//!
//! `write FILE SEED` overwrites units of a file at random, makes each stable with fsync, and only then prints `STABLE
//! unit version`; it ends when /tmp/stop exists. `check FILE unit:version…` compares units with what was promised.
#![allow(clippy::disallowed_methods, reason = "it runs other programs in real time")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use weir_conformance::guest::units::{UNIT_BYTES, UNITS, content, next_unit};

/// Time that a killed script gets to end; a process that waits for a server cannot be killed.
const GRACE: Duration = Duration::from_secs(5);
/// Time in which the output of a script that ended must end, if no process of its own holds it.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// Longest script that is accepted, in bytes.
const MAX_SCRIPT_BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] => serve(),
        ["write", file, seed] => write(Path::new(file), seed.parse().unwrap_or(0)),
        ["check", file, promises @ ..] => check(Path::new(file), promises),
        _ => Err(Error::other("usage: agent [write FILE SEED | check FILE unit:version…]")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-guest-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The port, written to by one thread at a time in whole lines.
#[derive(Clone)]
struct Port(Arc<Mutex<File>>);

impl Port {
    fn line(&self, text: &str) {
        if let Ok(mut port) = self.0.lock() {
            // If the judge is gone, the machine ends with the port's next read.
            let _ = port.write_all(format!("{text}\n").as_bytes());
        }
    }
}

fn serve() -> Result<(), Error> {
    let path = std::env::var_os("WEIR_GUEST_PORT").ok_or_else(|| Error::other("WEIR_GUEST_PORT is not set"))?;
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let port = Port(Arc::new(Mutex::new(file.try_clone()?)));
    let mut requests = BufReader::new(file);
    port.line("READY");
    loop {
        let mut line = String::new();
        if requests.read_line(&mut line)? == 0 || line.trim() == "QUIT" {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let &["RUN", id, seconds, bytes] = words.as_slice() else { continue };
        let seconds: u64 = seconds.parse().map_err(Error::other)?;
        let bytes: usize = bytes.parse().map_err(Error::other)?;
        if bytes > MAX_SCRIPT_BYTES {
            return Err(Error::other("a script is too long"));
        }
        let mut script = vec![0; bytes];
        requests.read_exact(&mut script)?;
        let (id, port) = (id.to_owned(), port.clone());
        std::thread::spawn(move || {
            let code = job(&id, &script, Duration::from_secs(seconds), &port).unwrap_or_else(|error| {
                port.line(&format!("OUT {id} {error}"));
                126
            });
            port.line(&format!("END {id} {code}"));
        });
    }
}

/// Runs one script; returns its exit code.
fn job(id: &str, script: &[u8], limit: Duration, port: &Port) -> Result<i32, Error> {
    let file = format!("/tmp/job-{id}");
    std::fs::write(&file, script)?;
    let (output, input) = std::io::pipe()?;
    let mut command = Command::new("/bin/sh");
    command.arg(&file).stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input).process_group(0);
    let mut child = command.spawn()?;
    drop(command);
    let name = id.to_owned();
    let to = port.clone();
    let (done, finished) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            to.line(&format!("OUT {name} {}", String::from_utf8_lossy(&line)));
        }
        // The receiver is gone if the script has ended long before.
        let _ = done.send(());
    });
    let until = Instant::now() + limit;
    let mut killed = false;
    loop {
        if let Some(status) = child.try_wait()? {
            // The output ends with the last process that holds the pipe: a daemon outlives the script.
            let _ = finished.recv_timeout(OUTPUT_GRACE);
            return Ok(if killed { 124 } else { status.code().unwrap_or(125) });
        }
        if Instant::now() >= until && !killed {
            killed = true;
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        if Instant::now() >= until + GRACE {
            return Ok(137);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn write(path: &Path, seed: u64) -> Result<(), Error> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.set_len((UNITS * UNIT_BYTES) as u64)?;
    file.sync_all()?;
    let mut out = std::io::stdout().lock();
    for version in 1.. {
        let unit = next_unit(seed, version);
        file.write_all_at(&content(seed, unit, version), (unit * UNIT_BYTES) as u64)?;
        file.sync_data()?;
        writeln!(out, "STABLE {unit} {version}")?;
        out.flush()?;
        if version % 8 == 0 && Path::new("/tmp/stop").exists() {
            break;
        }
    }
    Ok(())
}

/// Compares; the seed is the first word.
fn check(path: &Path, promises: &[&str]) -> Result<(), Error> {
    let file = File::open(path)?;
    let (seed, promises) = promises.split_first().ok_or_else(|| Error::other("no seed"))?;
    let seed: u64 = seed.parse().map_err(Error::other)?;
    let mut wrong = 0;
    for promise in promises {
        let (unit, version) = promise.split_once(':').ok_or_else(|| Error::other("a promise is unit:version"))?;
        let unit: usize = unit.parse().map_err(Error::other)?;
        let version: u64 = version.parse().map_err(Error::other)?;
        let mut found = vec![0; UNIT_BYTES];
        file.read_exact_at(&mut found, (unit * UNIT_BYTES) as u64)?;
        if found != content(seed, unit, version) {
            let word = u64::from_le_bytes(found[..8].try_into().map_err(Error::other)?);
            println!("unit {unit}: version {version} was stable, the file begins with {word:#x}");
            wrong += 1;
        }
    }
    if wrong == 0 { Ok(()) } else { Err(Error::other(format!("{wrong} of {} units differ", promises.len()))) }
}
