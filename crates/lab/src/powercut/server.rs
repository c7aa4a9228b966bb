//! Servers under test: processes on the layer's disk, started, killed and started again.

use super::client::{Address, Way};
use super::layer::Layer;
use crate::clock::{self, Stopwatch};
use crate::error::LabError;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Pool, and its volume.
const POOL: &str = "powercut";
const VOLUME: &str = "volume";
const TGT_TARGET: &str = "iqn.2000-01.org.example:powercut";
/// Logical unit of tgt; 0 is its controller.
const TGT_LUN: u8 = 1;
/// Caching mode page of tgt without the bit WCE, as a parameter of tgtadm: page, sub-page, length, bytes.
const WRITE_THROUGH_PAGE: &str = "mode_page=8:0:18:0x10:0:0xff:0xff:0:0:0xff:0xff:0xff:0xff:0x80:0x14:0:0:0:0:0:0";
/// Time for a server to start.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Time for a server to end when it is asked to.
const ENDS_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);

/// Property `sync` of Weir's datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncProperty {
    /// Flushes are kept.
    Standard,
    /// Each write is stable when it is answered.
    Always,
    /// Flushes are answered at once.
    Disabled,
}

/// Values of the property and their names.
pub const SYNC_VALUES: [(&str, SyncProperty); 3] =
    [("standard", SyncProperty::Standard), ("always", SyncProperty::Always), ("disabled", SyncProperty::Disabled)];

/// A kind of server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerKind {
    /// Weir, by the path of its program, on a pool of one disk.
    Weir(PathBuf, SyncProperty),
    /// tgt, whose unit is the disk, through the page cache (`rdwr`); with a write cache or without.
    Tgt {
        /// Whether the unit says that it has a write cache, and uses it.
        write_cache: bool,
    },
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerKind::Weir(_, sync) => {
                let name = SYNC_VALUES.iter().find(|(_, value)| value == sync).map_or("", |(name, _)| *name);
                write!(f, "weir sync={name}")
            }
            ServerKind::Tgt { write_cache: true } => f.write_str("tgt with write-back"),
            ServerKind::Tgt { write_cache: false } => f.write_str("tgt with write-through"),
        }
    }
}

/// Directories of a run.
pub struct Places {
    /// Short, because sockets are made in it.
    pub folder: PathBuf,
    /// Mount point for Weir's file systems.
    pub files: PathBuf,
}

/// A server that runs.
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    /// Where clients connect.
    pub address: Option<Address>,
    /// Mount point of a server that mounts.
    mounted: Option<PathBuf>,
    ends_when_asked: bool,
}

fn failed(program: &'static str, what: impl Into<String>) -> LabError {
    LabError::Program { program, what: what.into() }
}

impl ServerKind {
    /// Whether the server promises to keep what it acknowledges as stable.
    #[must_use]
    pub fn keeps_promises(&self) -> bool {
        !matches!(self, ServerKind::Weir(_, SyncProperty::Disabled))
    }

    /// Whether each write is promised when it is acknowledged, without a word of the protocol.
    #[must_use]
    pub fn promises_each_write(&self) -> bool {
        matches!(self, ServerKind::Weir(_, SyncProperty::Always))
    }

    /// Checks that the server's programs are there. Returns what they are.
    ///
    /// # Errors
    /// If one is not installed.
    pub fn version(&self) -> Result<String, LabError> {
        match self {
            ServerKind::Weir(..) => Ok(format!("weir {}", env!("CARGO_PKG_VERSION"))),
            ServerKind::Tgt { .. } => {
                let asked = Command::new("tgtd").arg("--version").stdin(Stdio::null()).output();
                let text =
                    asked.map_err(|_| failed("tgtd", "not found; install it (package tgt in Debian and Ubuntu)"))?;
                Ok(format!("tgt {}", String::from_utf8_lossy(&text.stdout).trim()))
            }
        }
    }

    /// Puts a pool, with a volume of `volume_bytes`, on the disk. tgt needs nothing.
    ///
    /// # Errors
    /// If a command fails.
    pub fn prepare(&self, layer: &Layer, places: &Places, volume_bytes: u64) -> Result<(), LabError> {
        let ServerKind::Weir(program, sync) = self else { return Ok(()) };
        let name = SYNC_VALUES.iter().find(|(_, value)| value == sync).map_or("standard", |(name, _)| *name);
        let disk = layer.path().display().to_string();
        let sync = format!("sync={name}");
        let volume = format!("{POOL}/{VOLUME}");
        let bytes = volume_bytes.to_string();
        for words in [
            // Compression would shrink nothing: the records are incompressible.
            &["zpool", "create", "-f", "-O", &sync, POOL, &disk][..],
            &["zfs", "create", "-s", "-V", &bytes, &volume],
        ] {
            let output = weir(program, layer, places).args(words).output().map_err(LabError::io(program))?;
            if !output.status.success() {
                return Err(failed("weir", format!("{}: {}", words[..2].join(" "), text(&output.stderr))));
            }
        }
        Ok(())
    }

    /// Starts the server, and waits until clients can connect.
    ///
    /// # Errors
    /// If it ends, or is not ready in time.
    pub fn start(&self, layer: &Layer, places: &Places, way: Way) -> Result<Server, LabError> {
        match self {
            ServerKind::Weir(program, _) => start_weir(program, layer, places, way),
            ServerKind::Tgt { write_cache } => start_tgt(layer, places, *write_cache),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().replace('\n', "; ")
}

/// A command of Weir that finds the pool on the layer, and no daemon of the user's.
fn weir(program: &Path, layer: &Layer, places: &Places) -> Command {
    let mut command = Command::new(program);
    command.env("WEIR_POOL_DIRS", layer.directory()).stdin(Stdio::null());
    command.env("STATE_DIRECTORY", places.folder.join("state")).env("RUNTIME_DIRECTORY", places.folder.join("run"));
    command
}

fn start_weir(program: &Path, layer: &Layer, places: &Places, way: Way) -> Result<Server, LabError> {
    let mut command = weir(program, layer, places);
    let is_mount = way == Way::Mount;
    match is_mount {
        true => command.args(["mount", POOL]).arg(&places.files),
        false => {
            command.args(["serve", "--nfs-port", "0", "--nbd-port", "0", "--iscsi-port", "0", "--no-root-squash", POOL])
        }
    };
    let mut server = Server::start("weir", &mut command)?;
    let said = server.wait_for_line("weir", "ready")?;
    server.ends_when_asked = true;
    if is_mount {
        server.mounted = Some(places.files.clone());
    }
    let address = match way {
        Way::Mount => Some(Address::Mount(places.files.clone())),
        Way::Nfs => nfs_address(&said),
        Way::Nbd => uri(&said, "nbd://").and_then(|(server, path)| Some(Address::Nbd(server.parse().ok()?, path))),
        Way::Iscsi => uri(&said, "iscsi://").and_then(|(server, path)| {
            let (target, lun) = path.rsplit_once('/')?;
            Some(Address::Iscsi(server.parse().ok()?, target.to_owned(), lun.parse().ok()?))
        }),
    };
    if address.is_none() {
        return Err(failed("weir", format!("it does not say where it serves {way}: {}", said.join("; "))));
    }
    server.address = address;
    Ok(server)
}

/// Authority and path of the first URI of a scheme in the lines of a server.
fn uri(lines: &[String], scheme: &str) -> Option<(String, String)> {
    let line = lines.iter().find(|line| line.contains(scheme))?;
    let rest = line.split_once(scheme)?.1.split_whitespace().next()?;
    rest.split_once('/').map(|(server, path)| (server.to_owned(), path.to_owned()))
}

/// The address in a line such as `mount -t nfs -o port=N,… 127.0.0.1:/pool /mnt`.
fn nfs_address(lines: &[String]) -> Option<Address> {
    let line = lines.iter().find(|line| line.starts_with("mount -t nfs") && line.contains(&format!(":/{POOL} ")))?;
    let mut options = line.split([' ', ',']).filter_map(|word| word.strip_prefix("port="));
    let port: u16 = options.next_back()?.parse().ok()?;
    Some(Address::Nfs(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), format!("/{POOL}")))
}

/// A TCP port that is free now.
#[allow(clippy::disallowed_methods, reason = "a port for a real server")]
fn free_port() -> Result<u16, LabError> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(LabError::io(Path::new("TCP port")))
}

fn start_tgt(layer: &Layer, places: &Places, write_cache: bool) -> Result<Server, LabError> {
    let port = free_port()?;
    // A socket of its own: another tgtd may run on this machine.
    let socket = places.folder.join("tgt");
    let mut command = Command::new("tgtd");
    command.arg("-f").args(["--iscsi", &format!("portal=127.0.0.1:{port}")]).env("TGT_IPC_SOCKET", &socket);
    let mut server = Server::start("tgtd", &mut command)?;
    let disk = layer.path().display().to_string();
    let target = ["--mode", "target", "--tid", "1"];
    let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", "1"];
    let mut commands = vec![
        [&target[..], &["--op", "new", "--targetname", TGT_TARGET]].concat(),
        [&unit[..], &["--op", "new", "--bstype", "rdwr", "--backing-store", &disk]].concat(),
        [&target[..], &["--op", "bind", "--initiator-address", "ALL"]].concat(),
    ];
    if !write_cache {
        commands.insert(2, [&unit[..], &["--op", "update", "--params", WRITE_THROUGH_PAGE]].concat());
    }
    let watch = Stopwatch::start();
    for words in commands {
        loop {
            let mut tgtadm = Command::new("tgtadm");
            tgtadm.args(["--lld", "iscsi"]).args(&words).env("TGT_IPC_SOCKET", &socket).stdin(Stdio::null());
            let output = tgtadm.output().map_err(|_| failed("tgtadm", "not found; install the package tgt"))?;
            if output.status.success() {
                break;
            }
            // The first command may find no server yet.
            if watch.elapsed() > ENDS_WITHIN || server.has_ended() {
                let why = server.said_so_far();
                return Err(failed("tgtadm", format!("{}; {}", text(&output.stderr), why.join("; "))));
            }
            clock::sleep(POLL);
        }
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    server.address = Some(Address::Iscsi(address, TGT_TARGET.to_owned(), TGT_LUN));
    Ok(server)
}

impl Server {
    #[allow(clippy::disallowed_methods, reason = "threads that read what a real process prints")]
    fn start(program: &'static str, command: &mut Command) -> Result<Self, LabError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(program, error.to_string()))?;
        let (sender, lines) = channel();
        let errors = sender.clone();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || forward(stdout, &sender));
        }
        if let Some(stderr) = child.stderr.take() {
            std::thread::spawn(move || forward(stderr, &errors));
        }
        Ok(Self { child, lines, address: None, mounted: None, ends_when_asked: false })
    }

    /// Waits for a line; returns those before it.
    fn wait_for_line(&mut self, program: &'static str, wanted: &str) -> Result<Vec<String>, LabError> {
        let watch = Stopwatch::start();
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(STARTS_WITHIN.saturating_sub(watch.elapsed())) {
                Ok(line) if line.trim() == wanted => return Ok(seen),
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(failed(program, format!("not ready within a minute: {}", seen.join("; "))));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(failed(program, seen.join("; "))),
            }
        }
    }

    fn said_so_far(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// Sends SIGKILL, and does not wait for the end: requests of the process may be held.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    /// Waits until the process has ended, and removes its dead mount.
    pub fn wait(&mut self) {
        let _ = self.child.wait();
        if let Some(path) = self.mounted.take() {
            unmount(&path);
        }
    }

    /// Ends the server as its administrator would.
    pub fn stop(mut self) {
        if self.ends_when_asked
            && let Some(process) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
            let watch = Stopwatch::start();
            while !self.has_ended() && watch.elapsed() < ENDS_WITHIN {
                clock::sleep(POLL);
            }
        }
        // The rest is in `drop`.
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}

/// Unmounts what a dead process left; a user other than root needs the helper of FUSE.
fn unmount(path: &Path) {
    if rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).is_err() {
        let mut helper = Command::new("fusermount3");
        let _ = helper.args(["-u", "-z", "-q"]).arg(path).stderr(Stdio::null()).status();
    }
}

fn forward(stream: impl std::io::Read, sender: &std::sync::mpsc::Sender<String>) {
    // The receiver may be gone; the process must never wait for a reader.
    BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_what_weir_prints() {
        let lines: Vec<String> = [
            "mount -t nfs -o vers=3,tcp,mountproto=tcp,mountport=40001,port=40001,nolock 127.0.0.1:/powercut /mnt",
            "qemu-img info nbd://127.0.0.1:40002/powercut/volume",
            "qemu-img info iscsi://127.0.0.1:40003/iqn.2000-01.org.example:powercut/0   # powercut/volume",
        ]
        .map(str::to_owned)
        .to_vec();
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(nfs_address(&lines), Some(Address::Nfs(at(40001), "/powercut".to_owned())));
        assert_eq!(uri(&lines, "nbd://"), Some(("127.0.0.1:40002".to_owned(), "powercut/volume".to_owned())));
        let iscsi = uri(&lines, "iscsi://").unwrap();
        assert_eq!(iscsi.1, "iqn.2000-01.org.example:powercut/0");
        assert_eq!(uri(&lines, "smb://"), None);
    }

    #[test]
    fn a_program_that_ends_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no pool; exit 1"]);
        let mut server = Server::start("sh", &mut command).unwrap();
        let error = server.wait_for_line("sh", "ready").unwrap_err().to_string();
        assert_eq!(error, "sh: no pool");
    }
}
