//! Administration of a pool that a process has open: the process listens on a socket, and commands that find the pool's
//! devices locked by it send it the command to run.
//!
//! ```text
//!   weir zfs create p/x ─► finds p's devices locked by process 71 ─► /run/weir/71.sock ─► weir serve (71)
//!        ▲                              Command (JSON)                                       │ on its open engine
//!        └─────────────── Answer (JSON) ◄────────────────────────────────────────────────────┘
//! ```
//!
//! Changes of datasets and pools are [`weir_admin::Command`]s, and what is read of them more and more [`weir_admin::Query`]s: this
//! process parses the command line and prints the answer, the other one carries the command or query out. Of the other
//! commands, the whole command line is sent, and output, prompts and the exit code come back: the command is the same function
//! in both processes; only its [`crate::call::Call`] differs. So is a query with keys (`--key`), which no message contains.
//!
//! The socket is accessible to its owner alone (mode 0600, in a folder that others cannot change). The kernel reports the
//! peer's user (`SO_PEERCRED`), and the process accepts commands from the same user and from root only.
//! [`weir_daemon::admin`] defines the frames and bounds.
//!
//! Users who administer nothing read the state of the pools of root's daemon from a second socket ([`readers`]).
//!
//! *Discovery.* A process that has a pool open has the pool's devices locked ([`crate::locks`]). The kernel reports the
//! process id of a lock's holder, and the process id is the name of the socket. A socket that a dead process left
//! behind is therefore never used. A daemon (`weir daemon`) also has the link `daemon.sock` to its socket: commands that name
//! no place to look for pools go to the daemon, before anything is scanned.

mod awaiting;
mod client;
mod moving_mounts;
mod network;
mod permits;
mod processes;
mod queries;
mod readers;
mod served_pool;
mod server;

pub use awaiting::await_opening;
pub use client::{ask, ask_command, ask_rows, denied, open_pools, query, send, tell};
pub use moving_mounts::CREATED_NOT_MOUNTED;
pub use permits::Permit;
pub use readers::ReadersSocket;
pub use served_pool::{CloseMode, ServedPool, ServingHost};
pub use server::{AdminSocket, refresh_cache_files};

use crate::call::Call;
use crate::directories::{self, belongs_to};
use crate::failure::Failure;
use crate::locks::{self, Identity};
use crate::reading::is_called;
use crate::remote::RemoteProcess;
use crate::stores::device_of;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout of the question which pools a process has open.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Maximum length of a socket's path in bytes (`sun_path`).
const MAX_SOCKET_PATH_LEN: usize = 107;

fn socket_in(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{pid}.sock"))
}

/// Path for this process's socket, in its runtime directory.
///
/// # Errors
/// If this process has no usable runtime directory, or the path of the socket is too long.
fn own_socket() -> Result<PathBuf, Failure> {
    // Removes the sockets that killed processes left behind.
    listeners();
    let folder = directories::own_runtime()?;
    let socket = socket_in(&folder, std::process::id());
    if socket.as_os_str().len() > MAX_SOCKET_PATH_LEN {
        let why = format!("{}: the path of a socket has at most {MAX_SOCKET_PATH_LEN} bytes", socket.display());
        return Err(Failure::failed(format!("{why}: name a shorter one with RUNTIME_DIRECTORY")));
    }
    Ok(socket)
}

/// Name of the link to a daemon's socket in its runtime directory.
const DAEMON_LINK: &str = "daemon.sock";
/// Name of the link to the socket of a daemon for queries of all users, in its runtime directory.
const READERS_LINK: &str = "readers.sock";
/// Name of the files that a daemon has locked in its directories.
pub const DAEMON_LOCK: &str = "daemon.lock";

/// The daemon that commands of this user go to; `None` if none is running.
pub fn daemon() -> Option<RemoteProcess> {
    directories::runtime().into_iter().find_map(|folder| daemon_in(&folder))
}

/// The daemon with this runtime directory. A link that a dead daemon left behind leads to no listener.
fn daemon_in(folder: &Path) -> Option<RemoteProcess> {
    let socket = std::fs::read_link(folder.join(DAEMON_LINK)).map(|target| folder.join(target)).ok()?;
    let pid = socket.file_stem()?.to_str()?.parse::<u32>().ok()?;
    // A folder that others can write to could lead commands to another user's process.
    let owner = std::fs::symlink_metadata(folder).ok()?.uid();
    let is_own = belongs_to(folder, owner) && std::os::unix::net::UnixStream::connect(&socket).is_ok();
    (pid != std::process::id() && is_own).then_some(RemoteProcess { pid, socket, is_daemon: true })
}

/// Path for this process's socket for queries of all users.
///
/// # Errors
/// As [`own_socket`].
fn own_readers_socket() -> Result<PathBuf, Failure> {
    let socket = own_socket()?.with_extension("readers");
    match socket.as_os_str().len() > MAX_SOCKET_PATH_LEN {
        true => Err(Failure::failed(format!("{}: the path of a socket is too long", socket.display()))),
        false => Ok(socket),
    }
}

/// The daemon of root whose pools this user may read, if it allows that; `None` for root, who has the daemon's socket.
pub fn readers_daemon() -> Option<RemoteProcess> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let of_system = directories::runtime_of(0).into_iter();
    of_system.filter(|folder| belongs_to(folder, 0)).find_map(|folder| {
        let socket = std::fs::read_link(folder.join(READERS_LINK)).map(|target| folder.join(target)).ok()?;
        let pid = socket.file_stem()?.to_str()?.parse::<u32>().ok()?;
        let listens = std::os::unix::net::UnixStream::connect(&socket).is_ok();
        listens.then_some(RemoteProcess { pid, socket, is_daemon: true })
    })
}

/// Finds the socket of another process; `None` if it has none.
pub fn remote_process(pid: u32) -> Option<RemoteProcess> {
    if pid == std::process::id() {
        return None;
    }
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let folders = directories::runtime_of(uid).into_iter().filter(|folder| belongs_to(folder, uid));
    let mut sockets = folders.map(|folder| socket_in(&folder, pid));
    sockets.find(|socket| socket.exists()).map(|socket| RemoteProcess { pid, socket, is_daemon: false })
}

/// Ids of the processes that listen on a socket of this user. Removes sockets that dead processes left behind.
fn listeners() -> Vec<u32> {
    let uid = rustix::process::geteuid().as_raw();
    let mut out = BTreeSet::new();
    for folder in directories::runtime().into_iter().filter(|folder| belongs_to(folder, uid)) {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let is_socket = |path: &PathBuf| path.extension().is_some_and(|end| end == "sock" || end == "readers");
        for path in entries.flatten().map(|entry| entry.path()).filter(is_socket) {
            let Some(pid) = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok()) else { continue };
            match std::os::unix::net::UnixStream::connect(&path) {
                Ok(_) => drop(out.insert(pid)),
                // A failed removal is ignored: the socket is skipped either way.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => drop(std::fs::remove_file(&path)),
                Err(_) => {}
            }
        }
    }
    out.into_iter().collect()
}

/// The processes that listen on a socket of this user.
pub fn servers() -> Vec<RemoteProcess> {
    listeners().into_iter().filter_map(remote_process).collect()
}

/// The process that has a pool open which the daemon does not have open; `None` if there is none.
///
/// # Errors
/// If there is no machine.
pub fn holder_beside(call: &Call, daemon: &RemoteProcess, pool: &str) -> Result<Option<RemoteProcess>, Failure> {
    let others: Vec<RemoteProcess> = servers().into_iter().filter(|server| server.pid != daemon.pid).collect();
    if others.is_empty() {
        return Ok(None);
    }
    let has_pool = |server: &RemoteProcess| {
        let pools = open_pools(call, server, ANSWERS_WITHIN)?.unwrap_or_default();
        Ok::<bool, Failure>(pools.iter().any(|open| is_called(open, pool)))
    };
    // Of two pools with one name, the daemon's is meant.
    if has_pool(daemon)? {
        return Ok(None);
    }
    for server in others {
        if has_pool(&server)? {
            debug_assert_ne!(server.pid, daemon.pid, "the daemon was asked before");
            return Ok(Some(server));
        }
    }
    Ok(None)
}

/// Devices of the pools that other processes of this user have open.
pub fn devices() -> Vec<PathBuf> {
    let own = std::process::id();
    let mut out = BTreeSet::new();
    for pid in listeners().into_iter().filter(|pid| *pid != own) {
        let locked = locks::held_by(pid);
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let paths = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        let paths = paths.filter(|path| path.file_name() != Some(DAEMON_LOCK.as_ref()));
        out.extend(
            paths.filter(|path| Identity::of(path).is_some_and(|identity| locked.contains(&identity))).map(device_of),
        );
    }
    out.into_iter().collect()
}
