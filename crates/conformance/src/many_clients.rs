//! Many NFS clients at once, each on a host of its own: 10 with two threads each read cold data larger than the ARC in pieces
//! of 128 KiB, then 20 with two threads each write 32 KiB at a time, as ten and twenty streaming clients did on a Sun 7410.
//!
//! ```text
//!   127.0.2.1 … 127.0.2.20, 2 connections each ─► weir serve ─► one file, compression=off
//!        └─ payload by client                       └─ its accounts: answered by source, written, devices
//! ```
//!
//! Judged are fairness (the clients' bytes differ by at most a fifth of their mean), steadiness (the halves of the time
//! differ by at most a fifth), and the sums: bytes on the network and written to the device are at least the payload, and
//! the server's accounts agree with the clients' counts to 3 %.
//!
//! A phase that is unfair or not steady is run once more, because the machine may be busy; sums count at once.
#![allow(clippy::disallowed_methods, reason = "a judge measures real time")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::JudgeError;
use crate::kill::mixed;
use crate::nfs::{Handle, NfsTree};
use crate::process::{Serving, weir};
use crate::report::Report;
use crate::tree::TreeError;

const POOL: &str = "clients";
const DEVICE_BYTES: u64 = 8 << 30;
/// The server's ARC, as [`Serving`] sets it.
const ARC_BYTES: u64 = 256 << 20;
const THREADS: u64 = 2;
const READERS: u64 = 10;
const READ_BYTES: u64 = 128 << 10;
/// Bytes of each reader's file: together more than twice the ARC.
const FILE_BYTES: u64 = 64 << 20;
const WRITERS: u64 = 20;
const WRITE_BYTES: u64 = 32 << 10;
/// WRITEs of a thread between two COMMITs.
const WRITES_PER_COMMIT: u64 = 128;
/// Most bytes of each writer's thread, so that the pool does not fill up.
const WRITER_BYTES: u64 = 96 << 20;
const TIME: Duration = Duration::from_secs(8);
/// Largest difference of clients, and of the halves of the time, relative to their mean.
const EVEN: f64 = 0.20;
/// Largest difference between the accounts and the payload.
const ACCOUNTS: f64 = 0.03;

/// Bytes of one phase.
struct Phase {
    by_client: Vec<u64>,
    first_half: u64,
    network_bytes: u64,
}

impl Phase {
    fn payload(&self) -> u64 {
        self.by_client.iter().sum()
    }

    /// The differences that make the phase uneven.
    fn uneven(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mean = self.payload() as f64 / self.by_client.len() as f64;
        let least = self.by_client.iter().copied().min().unwrap_or(0);
        let most = self.by_client.iter().copied().max().unwrap_or(0);
        if (most - least) as f64 > mean * EVEN {
            found.push(format!("not fair: {least} to {most} bytes for a client, {mean:.0} on average"));
        }
        let second_half = self.payload() - self.first_half;
        if self.first_half.abs_diff(second_half) as f64 > self.payload() as f64 / 2.0 * EVEN {
            found.push(format!("not steady: {} bytes in the first half, {second_half} in the second", self.first_half));
        }
        found
    }

    fn shown(&self) -> String {
        let rate = self.payload() as f64 / 1e6 / TIME.as_secs_f64();
        format!("{rate:.0} MB/s of payload, {} bytes on the network for {}", self.network_bytes, self.payload())
    }
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Read,
    Write,
}

/// Runs both phases.
///
/// # Errors
/// If the server cannot be started or does not answer.
pub fn run(report: &mut Report) -> Result<(), JudgeError> {
    let folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "folder".to_string(), source })?;
    create(folder.path())?;
    let serving = Serving::writable(folder.path(), POOL)?;
    fill(&serving)?;
    serving.stop()?;
    let read = judged(folder.path(), Load::Read)?;
    judge(report, "10 clients × 2 threads read 128K, cold", &read);
    let written = judged(folder.path(), Load::Write)?;
    judge(report, "20 clients × 2 threads write 32K", &written);
    Ok(())
}

/// Result of a phase with the differences that were found.
struct Judged {
    phase: Phase,
    differences: Vec<String>,
}

fn judge(report: &mut Report, case: &str, judged: &Judged) {
    match judged.differences.is_empty() {
        true => report.pass(case, &judged.phase.shown()),
        false => report.fail(case, &judged.differences),
    }
}

/// Runs a phase with a server of its own, whose ARC is empty, and compares the sums; once more if it was uneven.
fn judged(devices: &Path, load: Load) -> Result<Judged, JudgeError> {
    let mut again = true;
    loop {
        let serving = Serving::writable(devices, POOL)?;
        let phase = phase(&serving, load)?;
        // Data of the open txg is not on the device yet.
        let mut command = Command::new(weir()?);
        let synced = crate::zdb::output(command.env("WEIR_POOL_DIRS", devices).args(["zpool", "sync", POOL]))?;
        if !synced.status.success() {
            return Err(failed(&String::from_utf8_lossy(&synced.stderr)));
        }
        let accounts = Accounts::read(&serving.stop_and_read()?)?;
        let mut differences = sums(&phase, &accounts, load);
        let uneven = phase.uneven();
        if differences.is_empty() && !uneven.is_empty() && std::mem::take(&mut again) {
            continue;
        }
        differences.extend(uneven);
        return Ok(Judged { phase, differences });
    }
}

fn create(folder: &Path) -> Result<(), JudgeError> {
    let device = folder.join("d0");
    let made = std::fs::File::create(&device).and_then(|file| file.set_len(DEVICE_BYTES));
    made.map_err(|source| JudgeError::Io { what: "device".to_string(), source })?;
    let mut command = Command::new(weir()?);
    command.env("WEIR_POOL_DIRS", folder);
    command.args(["zpool", "create", "-O", "compression=off", POOL]).arg(device);
    let done = crate::zdb::output(&mut command)?;
    if done.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&done.stderr))) }
}

fn failed(why: &dyn std::fmt::Display) -> JudgeError {
    JudgeError::Process { command: "many clients".to_string(), why: why.to_string() }
}

fn name_of(client: u64) -> Vec<u8> {
    format!("file{client}").into_bytes()
}

/// Writes the files that are read.
fn fill(serving: &Serving) -> Result<(), JudgeError> {
    const { assert!(READERS * FILE_BYTES > 2 * ARC_BYTES, "the ARC cannot hold the files") };
    let work = || -> Result<(), TreeError> {
        let mut tree = NfsTree::mount(serving.nfs, serving.mount, &format!("/{POOL}"))?;
        let data: Vec<u8> = (0..1u64 << 17).flat_map(|n| mixed(n).to_le_bytes()).collect();
        for client in 0..READERS {
            let file = tree.made(&name_of(client))?;
            for offset in (0..FILE_BYTES).step_by(data.len()) {
                tree.write(&file, offset, &data, false)?;
            }
            tree.commit(&file)?;
        }
        Ok(())
    };
    work().map_err(|error| failed(&error))
}

/// One thread of a client.
struct Worker<'a> {
    tree: NfsTree,
    file: Handle,
    thread: u64,
    begun: Instant,
    bytes: &'a AtomicU64,
    first_half: &'a AtomicU64,
}

impl Worker<'_> {
    fn done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.begun.elapsed() < TIME / 2 {
            self.first_half.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn read(&mut self) -> Result<(), TreeError> {
        let share = FILE_BYTES / THREADS;
        let mut at = 0;
        while self.begun.elapsed() < TIME {
            let got = self.tree.read_once(&self.file, self.thread * share + at, READ_BYTES as u32)?;
            if got as u64 != READ_BYTES {
                return Err(TreeError::Other(format!("READ of {READ_BYTES} bytes: {got}")));
            }
            self.done(READ_BYTES);
            at = (at + READ_BYTES) % share;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), TreeError> {
        let data: Vec<u8> = (0..WRITE_BYTES / 8).flat_map(|n| mixed(n).to_le_bytes()).collect();
        let first = FILE_BYTES + self.thread * WRITER_BYTES;
        for number in 0..WRITER_BYTES / WRITE_BYTES {
            if self.begun.elapsed() >= TIME {
                break;
            }
            self.tree.write(&self.file, first + number * WRITE_BYTES, &data, false)?;
            self.done(WRITE_BYTES);
            if number % WRITES_PER_COMMIT == WRITES_PER_COMMIT - 1 {
                self.tree.commit(&self.file)?;
            }
        }
        self.tree.commit(&self.file).map(|_| ())
    }
}

fn phase(serving: &Serving, load: Load) -> Result<Phase, JudgeError> {
    let clients = if load == Load::Read { READERS } else { WRITERS };
    let mut connections = Vec::new();
    for client in 0..clients {
        for thread in 0..THREADS {
            let host = IpAddr::V4(Ipv4Addr::new(127, 0, 2, 1 + client as u8));
            let connect = || -> Result<(NfsTree, Handle), TreeError> {
                let mut tree = NfsTree::mount_from(host, serving.nfs, serving.mount, &format!("/{POOL}"))?;
                let file = tree.made(&name_of(client))?;
                Ok((tree, file))
            };
            let (tree, file) = connect().map_err(|error| failed(&error))?;
            connections.push((client, thread, tree, file));
        }
    }
    let by_client: Vec<AtomicU64> = (0..clients).map(|_| AtomicU64::new(0)).collect();
    let first_half = AtomicU64::new(0);
    let network_before = loopback_bytes();
    let begun = Instant::now();
    let results: Vec<Result<(), TreeError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = connections
            .into_iter()
            .map(|(client, thread, tree, file)| {
                let bytes = &by_client[client as usize];
                let mut worker = Worker { tree, file, thread, begun, bytes, first_half: &first_half };
                scope.spawn(move || if load == Load::Read { worker.read() } else { worker.write() })
            })
            .collect();
        let died = |_| Err(TreeError::Other("a client panicked".to_string()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
    });
    results.into_iter().collect::<Result<(), _>>().map_err(|error| failed(&error))?;
    Ok(Phase {
        by_client: by_client.into_iter().map(AtomicU64::into_inner).collect(),
        first_half: first_half.into_inner(),
        network_bytes: loopback_bytes().saturating_sub(network_before),
    })
}

/// Bytes that the loopback has carried (`proc(5)`, net/dev): each is sent once.
fn loopback_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// The accounts that a server prints at its end.
struct Accounts {
    answered: u64,
    from_disk: u64,
    written: u64,
    device_data: u64,
}

impl Accounts {
    fn read(lines: &[String]) -> Result<Accounts, JudgeError> {
        let nfs = lines.iter().find(|line| line.contains("nfs3: "));
        let devices = lines.iter().find(|line| line.contains("devices: "));
        let (Some(nfs), Some(devices)) = (nfs, devices) else {
            return Err(failed(&format!("the server printed no accounts: {lines:?}")));
        };
        let from_disk = number_after(nfs, "disk ");
        let answered = ["from arc ", "dirty data ", "holes "].map(|what| number_after(nfs, what)).iter().sum::<u64>();
        Ok(Accounts {
            answered: answered + from_disk,
            from_disk,
            written: number_after(nfs, "written "),
            device_data: number_after(devices, "data "),
        })
    }
}

fn number_after(line: &str, what: &str) -> u64 {
    let rest = line.split_once(what).map_or("", |(_, rest)| rest);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Sums that do not agree.
fn sums(phase: &Phase, accounts: &Accounts, load: Load) -> Vec<String> {
    let payload = phase.payload();
    let mut found = Vec::new();
    let agrees = |counted: u64| counted.abs_diff(payload) as f64 <= payload as f64 * ACCOUNTS;
    if payload == 0 {
        found.push("no payload".to_string());
    }
    if phase.network_bytes < payload {
        found.push(format!("{} bytes on the network for a payload of {payload}", phase.network_bytes));
    }
    if load == Load::Read {
        if !agrees(accounts.answered) {
            found.push(format!("the server counts {} bytes answered, the clients {payload}", accounts.answered));
        }
        if accounts.from_disk < payload / 2 {
            found.push(format!(
                "{} of {payload} bytes came from the disk: the run did not reach it",
                accounts.from_disk
            ));
        }
    } else {
        if !agrees(accounts.written) {
            found.push(format!("the server counts {} bytes written, the clients {payload}", accounts.written));
        }
        if accounts.device_data < payload {
            found.push(format!("{} bytes of data on the device for a payload of {payload}", accounts.device_data));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_of_a_server_are_read() {
        let lines = [
            "nfs3: 12 requests; bytes answered from arc 10 (prefetched 4), dirty data 2, disk 30, holes 1; metadata 7; written 9",
            "devices: 99 bytes written: data 50, metadata 40, intent log 9, labels 0, repair 0; of these first copy 99",
        ];
        let accounts = Accounts::read(&lines.map(str::to_string)).unwrap();
        assert_eq!((accounts.answered, accounts.from_disk, accounts.written, accounts.device_data), (43, 30, 9, 50));
    }

    #[test]
    fn an_unfair_or_unsteady_phase_is_noticed() {
        let phase =
            |by_client: [u64; 2], first_half| Phase { by_client: by_client.into(), first_half, network_bytes: 0 };
        assert!(phase([100, 110], 105).uneven().is_empty());
        assert_eq!(phase([100, 140], 120).uneven().len(), 1);
        assert_eq!(phase([100, 100], 130).uneven().len(), 1);
    }
}
