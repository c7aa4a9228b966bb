//! Hostile clients of `weir serve` on loopback: idle ones, half-sending ones, never-reading ones and, over iSCSI, ones that
//! send garbage, from one host and from several. A good client on a host of its own is never refused, and its 99th
//! percentile stays within twice that without them.
//!
//! ```text
//!   good client (127.0.0.1)      ─► READ, WRITE of 64 KiB; WRITE of 1 MiB ─┐
//!   300 connections (127.0.66.1, or 127.0.1.1 to 127.0.1.8) ───────────────┴─► weir serve: NFS, NBD, iSCSI
//! ```
//!
//! Over iSCSI there are 1,000 connections. For those that never log in, the log has one line each, and after all cases the
//! server has not used more than [`MEMORY_BYTES`].
//!
//! Rounds with and without hostile clients alternate, so that other load of the machine is in both. The good client begins
//! each round with a new connection. A difference of less than [`FLOOR`] does not count: that is the noise of a busy
//! machine, while a client that waits for memory or for a connection waits for seconds. The percentile of a few calls is
//! their maximum, which one pause of the machine decides: while percentiles are too high, more rounds are added to the
//! measured ones, at most [`ATTEMPTS`] times [`ROUNDS`]. A refused client counts at once.
#![allow(clippy::disallowed_methods, reason = "a judge measures real time")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::JudgeError;
use crate::hostile_clients::{Behaviour, CONNECTIONS, HostileClients, Script};
use crate::iscsi_unit::{self, IscsiUnit};
use crate::nbd::NbdDevice;
use crate::nfs::{Handle, NfsTree};
use crate::process::{Serving, weir};
use crate::report::Report;
use crate::rpc::Writer;
use crate::tree::{BlockDevice as _, Tree as _, TreeError};

const POOL: &str = "hostile";
const VOLUME: &str = "hostile/vol";
const DEVICE_BYTES: u64 = 512 << 20;
const VOLUME_BYTES: &str = "16M";
/// Differences of percentiles below this do not count. Without optimization, a call computes for milliseconds, which the
/// clients' own work multiplies where server, clients and judge share two cores.
const FLOOR: Duration = Duration::from_millis(if cfg!(debug_assertions) { 40 } else { 10 });
/// Rounds of each kind in one attempt.
const ROUNDS: usize = 2;
/// Attempts whose calls are judged together.
const ATTEMPTS: usize = 12;
/// READs and WRITEs of one round, each.
const CALLS: usize = 150;
/// One WRITE of [`LARGE_BYTES`] follows this number of small ones.
const SMALL_PER_LARGE: usize = 4;
const SMALL_BYTES: usize = 64 << 10;
const LARGE_BYTES: usize = 1 << 20;
/// Time in which the hostile clients connect and take what they can get, and in which the server forgets them.
const SETTLES_WITHIN: Duration = Duration::from_millis(700);
/// Calls of a client that does not read.
const UNREAD_CALLS: usize = 64;

/// Connections over iSCSI.
const ISCSI_CONNECTIONS: usize = 1000;
/// Peak memory of the server: its ARC, its dirty data, and the budgets of its protocols (docs/memory.md).
const MEMORY_BYTES: u64 = 2 << 30;
const INITIATOR: &str = "iqn.2000-01.org.example:good";
const HOSTILE_INITIATOR: &str = "iqn.2000-01.org.example:hostile";

/// A protocol under attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Nfs,
    Nbd,
    Iscsi,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Protocol::Nfs => "NFS",
            Protocol::Nbd => "NBD",
            Protocol::Iscsi => "iSCSI",
        }
    }

    fn behaviours(self) -> &'static [Behaviour] {
        use Behaviour::{Garbage, HalfSending, Idle, NeverReading};
        match self {
            Protocol::Iscsi => &[Idle, Garbage, HalfSending, NeverReading],
            Protocol::Nfs | Protocol::Nbd => &[Idle, HalfSending, NeverReading],
        }
    }

    fn connections(self) -> usize {
        if self == Protocol::Iscsi { ISCSI_CONNECTIONS } else { CONNECTIONS }
    }
}

/// A good client.
enum Good {
    Nfs(NfsTree, Handle),
    Nbd(NbdDevice),
    Iscsi(IscsiUnit),
}

impl Good {
    fn connect(serving: &Serving, protocol: Protocol) -> Result<Good, TreeError> {
        match protocol {
            Protocol::Nfs => {
                let mut tree = NfsTree::mount(serving.nfs, serving.mount, &format!("/{POOL}"))?;
                let file = tree.made(b"file")?;
                Ok(Good::Nfs(tree, file))
            }
            Protocol::Nbd => NbdDevice::open(serving.nbd.ok_or_else(|| missing(protocol))?, VOLUME).map(Good::Nbd),
            Protocol::Iscsi => {
                let (address, target) = serving.iscsi.as_ref().ok_or_else(|| missing(protocol))?;
                IscsiUnit::open(*address, target, INITIATOR).map(Good::Iscsi)
            }
        }
    }

    fn read(&mut self, len: usize) -> Result<(), TreeError> {
        let bytes = match self {
            Good::Nfs(tree, file) => tree.read(file, 0, len)?,
            Good::Nbd(device) => device.read(0, len)?,
            Good::Iscsi(unit) => unit.read(0, len)?,
        };
        if bytes.len() == len { Ok(()) } else { Err(TreeError::Other(format!("{} of {len} bytes", bytes.len()))) }
    }

    fn write(&mut self, data: &[u8]) -> Result<(), TreeError> {
        match self {
            Good::Nfs(tree, file) => tree.write(file, 0, data, false).map(|_| ()),
            Good::Nbd(device) => device.write(0, data, false),
            Good::Iscsi(unit) => unit.write(0, data),
        }
    }
}

fn missing(protocol: Protocol) -> TreeError {
    TreeError::Other(format!("no {} server", protocol.name()))
}

/// Durations of calls.
#[derive(Default)]
struct Latencies {
    small: Vec<Duration>,
    large: Vec<Duration>,
}

impl Latencies {
    /// One round of a new client.
    fn round(&mut self, serving: &Serving, protocol: Protocol) -> Result<(), TreeError> {
        let mut client = Good::connect(serving, protocol)?;
        let small = vec![1; SMALL_BYTES];
        let large = vec![2; LARGE_BYTES];
        let timed = |into: &mut Vec<Duration>, done: &mut dyn FnMut() -> Result<(), TreeError>| {
            let begun = Instant::now();
            done()?;
            into.push(begun.elapsed());
            Ok(())
        };
        for call in 0..CALLS {
            timed(&mut self.small, &mut || client.write(&small))?;
            timed(&mut self.small, &mut || client.read(SMALL_BYTES))?;
            if call % SMALL_PER_LARGE == 0 {
                timed(&mut self.large, &mut || client.write(&large))?;
            }
        }
        Ok(())
    }
}

/// The 99th percentile: at most one call in a hundred took longer.
fn p99(durations: &mut [Duration]) -> Duration {
    durations.sort_unstable();
    durations.get((durations.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// Runs all cases, or those of the named protocols (`iscsi`).
///
/// # Errors
/// If a program is missing, or the server cannot be started.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let folder = tempfile::tempdir().map_err(|source| JudgeError::Io { what: "folder".to_string(), source })?;
    create(folder.path())?;
    let serving = Serving::logging(folder.path(), POOL)?;
    let hosts = |network: u8, count: u8| -> Vec<IpAddr> {
        (1..=count).map(|n| IpAddr::V4(Ipv4Addr::new(127, 0, network, n))).collect()
    };
    let mut without_login = 0;
    let is_named = |protocol: &Protocol| {
        arguments.is_empty() || arguments.iter().any(|name| name.eq_ignore_ascii_case(protocol.name()))
    };
    for protocol in [Protocol::Nfs, Protocol::Nbd, Protocol::Iscsi].into_iter().filter(is_named) {
        let script = Arc::new(script(&serving, protocol).map_err(|error| failed(&error))?);
        for behaviour in protocol.behaviours() {
            for hosts in [hosts(66, 1), hosts(1, 8)] {
                let attack = Attack { protocol, script: &script, behaviour: *behaviour, hosts: &hosts };
                let count = protocol.connections();
                let name = format!("{}, {count} {behaviour:?} on {} hosts", protocol.name(), hosts.len());
                let found = case(&serving, &attack)?;
                without_login += found.without_login;
                let differences = [found.refused, found.slower].concat();
                match differences.is_empty() {
                    true => report.pass(&name, &found.as_fast.join("; ")),
                    false => report.fail(&name, &differences),
                }
            }
        }
    }
    let peak = serving.peak_bytes();
    match peak <= MEMORY_BYTES {
        true => report.pass("memory", &format!("at most {} MiB", peak >> 20)),
        false => report.fail("memory", &[format!("{} MiB at its peak", peak >> 20)]),
    }
    let log = serving.stop_and_read()?;
    if without_login > 0 {
        judge_log(&log, without_login, report);
    }
    Ok(())
}

/// Demands at most one line for each connection over iSCSI that did not log in.
fn judge_log(log: &[String], without_login: u32, report: &mut Report) {
    let of_hosts = |line: &&String| line.contains("127.0.66.") || line.contains("127.0.1.");
    let is_session = |line: &&String| line.contains(HOSTILE_INITIATOR);
    let lines = log.iter().filter(of_hosts).filter(|line| line.contains("login") && !is_session(line)).count();
    match lines > 0 && lines as u64 <= u64::from(without_login) {
        true => report.pass("log", &format!("{lines} lines for {without_login} connections that did not log in")),
        false => report.fail("log", &[format!("{lines} lines for {without_login} connections that did not log in")]),
    }
}

fn failed(error: &TreeError) -> JudgeError {
    JudgeError::Process { command: "weir serve".to_string(), why: format!("{error:?}") }
}

/// The result of one case.
#[derive(Default)]
struct CaseResult {
    /// Errors that the good client got.
    refused: Vec<String>,
    /// Percentiles that are too high.
    slower: Vec<String>,
    /// The other percentiles.
    as_fast: Vec<String>,
    /// Connections over iSCSI that did not log in.
    without_login: u32,
}

/// Hostile clients of one case.
struct Attack<'a> {
    protocol: Protocol,
    script: &'a Arc<Script>,
    behaviour: Behaviour,
    hosts: &'a [IpAddr],
}

fn case(serving: &Serving, attack: &Attack<'_>) -> Result<CaseResult, JudgeError> {
    let mut out = CaseResult::default();
    let mut quiet = Latencies::default();
    let mut pressed = Latencies::default();
    for _ in 0..ATTEMPTS {
        for _ in 0..ROUNDS {
            round_of_each(serving, attack, &mut quiet, &mut pressed, &mut out)?;
        }
        out.compare(&mut quiet, &mut pressed);
        if !out.refused.is_empty() || out.slower.is_empty() {
            break;
        }
    }
    Ok(out)
}

/// One round without hostile clients and one with them.
fn round_of_each(
    serving: &Serving,
    attack: &Attack<'_>,
    quiet: &mut Latencies,
    pressed: &mut Latencies,
    out: &mut CaseResult,
) -> Result<(), JudgeError> {
    let Attack { protocol, script, behaviour, hosts } = *attack;
    if let Err(error) = quiet.round(serving, protocol) {
        out.refused.push(format!("without hostile clients: {error:?}"));
    }
    let clients = HostileClients::start(script, behaviour, hosts, protocol.connections())?;
    std::thread::sleep(SETTLES_WITHIN);
    if let Err(error) = pressed.round(serving, protocol) {
        out.refused.push(format!("the good client was refused: {error:?}"));
    }
    if protocol == Protocol::Iscsi && matches!(behaviour, Behaviour::Idle | Behaviour::Garbage) {
        out.without_login += clients.connections();
    }
    drop(clients);
    // The server notices that they are gone.
    std::thread::sleep(SETTLES_WITHIN);
    Ok(())
}

impl CaseResult {
    /// Compares the percentiles of all rounds so far.
    fn compare(&mut self, quiet: &mut Latencies, pressed: &mut Latencies) {
        self.slower.clear();
        self.as_fast.clear();
        let sizes = [("64 KiB", &mut quiet.small, &mut pressed.small), ("1 MiB", &mut quiet.large, &mut pressed.large)];
        for (size, quiet, pressed) in sizes {
            let calls = pressed.len();
            let (quiet, pressed) = (p99(quiet), p99(pressed));
            let line = format!("{size}: p99 {:.1} ms, without {:.1} ms, {calls} calls", ms(pressed), ms(quiet));
            let is_slower = pressed > quiet * 2 && pressed > quiet + FLOOR;
            if is_slower { self.slower.push(line) } else { self.as_fast.push(line) }
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Makes a pool with a volume.
fn create(folder: &Path) -> Result<(), JudgeError> {
    let device = folder.join("d0");
    let made = std::fs::File::create(&device).and_then(|file| file.set_len(DEVICE_BYTES));
    made.map_err(|source| JudgeError::Io { what: device.display().to_string(), source })?;
    let device = device.display().to_string();
    for arguments in [&["zpool", "create", POOL, &device][..], &["zfs", "create", "-V", VOLUME_BYTES, VOLUME]] {
        let mut command = Command::new(weir()?);
        command.env("WEIR_POOL_DIRS", folder).args(arguments);
        let output = command.output().map_err(|source| JudgeError::Io { what: format!("{command:?}"), source })?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(JudgeError::Process { command: format!("{command:?}"), why });
        }
    }
    Ok(())
}

/// Bytes of hostile clients. NFS: a WRITE of which the first half arrives, READs of 1 MiB. NBD and iSCSI: the same after the
/// handshake; over iSCSI half of the data that comes with a WRITE.
fn script(serving: &Serving, protocol: Protocol) -> Result<Script, TreeError> {
    let mut client = Good::connect(serving, protocol)?;
    client.write(&vec![3; LARGE_BYTES])?;
    let half = vec![0; LARGE_BYTES / 2];
    match client {
        Good::Nfs(_, file) => {
            let mark = (1 << 31 | LARGE_BYTES as u32).to_be_bytes();
            let part = [&mark[..], &half].concat();
            let calls = (0..UNREAD_CALLS as u32).flat_map(|id| read_call(id, &file)).collect();
            Ok(Script { server: serving.nfs, begin: (Vec::new(), 0), differs_at: None, part, calls })
        }
        Good::Nbd(_) => {
            let server: SocketAddr = serving.nbd.ok_or_else(|| TreeError::Other("no NBD server".to_string()))?;
            let mut begin = b"\0\0\0\x03IHAVEOPT\0\0\0\x01".to_vec();
            begin.extend((VOLUME.len() as u32).to_be_bytes());
            begin.extend(VOLUME.as_bytes());
            let request = |kind: u16| {
                let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
                request.extend(u32::from(kind).to_be_bytes());
                request.extend([0; 16]);
                request.extend((LARGE_BYTES as u32).to_be_bytes());
                request
            };
            let part = [request(1), half].concat();
            // The greeting and the answer to EXPORT_NAME without zeros.
            let calls = request(0).repeat(UNREAD_CALLS);
            Ok(Script { server, begin: (begin, 18 + 10), differs_at: None, part, calls })
        }
        Good::Iscsi(_) => {
            let (server, target) = serving.iscsi.clone().ok_or_else(|| missing(protocol))?;
            // The answer to the login has the same length for all.
            let answer_bytes = IscsiUnit::open(server, &target, HOSTILE_INITIATOR)?.login_bytes;
            let begin = (iscsi_unit::login(HOSTILE_INITIATOR, &target), answer_bytes);
            let write = iscsi_unit::command(0, 0, LARGE_BYTES, Some(&half));
            let part = write[..write.len() / 2].to_vec();
            let reads = (0..UNREAD_CALLS as u32).flat_map(|n| iscsi_unit::command(n, 0, LARGE_BYTES, None));
            Ok(Script { server, begin, differs_at: Some(iscsi_unit::ISID_AT), part, calls: reads.collect() })
        }
    }
}

/// A READ of 1 MiB with its record mark, from user 0.
fn read_call(id: u32, file: &Handle) -> Vec<u8> {
    let mut call = Writer::default();
    for word in [id, 0, 2, 100_003, 3, 6] {
        call.u32(word);
    }
    let mut credential = Writer::default();
    credential.u32(0).opaque(b"hostile").u32(0).u32(0).u32(0);
    call.u32(1).opaque(&credential.0).u32(0).u32(0);
    call.opaque(file).u64(0).u32(LARGE_BYTES as u32);
    [&(1 << 31 | call.0.len() as u32).to_be_bytes()[..], &call.0].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_if_they_are_twice_as_high_and_above_the_noise() {
        let latencies = |ms| Latencies {
            small: vec![Duration::from_millis(1); 100],
            large: [vec![Duration::from_millis(ms); 50], vec![Duration::from_millis(1); 50]].concat(),
        };
        let mut out = CaseResult::default();
        let floor = FLOOR.as_millis() as u64;
        out.compare(&mut latencies(floor), &mut latencies(2 * floor + 1));
        assert_eq!((out.slower.len(), out.as_fast.len()), (1, 1), "{:?}", out.slower);
        out.compare(&mut latencies(floor), &mut latencies(2 * floor));
        assert_eq!((out.slower.len(), out.as_fast.len()), (0, 2), "within twice");
        out.compare(&mut latencies(1), &mut latencies(floor));
        assert_eq!((out.slower.len(), out.as_fast.len()), (0, 2), "below the floor");
    }

    #[test]
    fn one_call_in_a_hundred_may_take_longer() {
        let mut durations: Vec<Duration> = (1..=200).map(Duration::from_millis).rev().collect();
        assert_eq!(p99(&mut durations), Duration::from_millis(198));
        assert_eq!((p99(&mut [Duration::from_secs(1)]), p99(&mut [])), (Duration::from_secs(1), Duration::ZERO));
    }
}
