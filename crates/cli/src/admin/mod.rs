//! Administration of a pool that a process has open: the process listens on a socket, and commands that find the pool's
//! devices locked by it send it the command to run.
//!
//! ```text
//!   weir zfs create p/x ─► finds p's devices locked by process 71 ─► /run/weir/71.sock ─► weir serve (71)
//!        ▲                              Command (JSON)                                       │ on its open engine
//!        └─────────────── Answer (JSON) ◄────────────────────────────────────────────────────┘
//! ```
//!
//! Changes of datasets and pools are [`weir_admin::Command`]s: this process parses the command line and prints the answer, the other
//! one carries the command out. Of the other commands, the whole command line is sent, and output, prompts and the exit code
//! come back: the command is the same function in both processes; only its [`crate::call::Call`] differs.
//!
//!  The socket is accessible
//! to its owner alone (mode 0600, in a folder of mode 0700). The kernel reports the peer's user (`SO_PEERCRED`), and
//! the process accepts commands from the same user and from root only. [`weir_daemon::admin`] defines the frames and
//! bounds.
//!
//! *Discovery.* A process that has a pool open has the pool's devices locked ([`crate::locks`]). The kernel reports the
//! process id of a lock's holder, and the process id is the name of the socket. A socket that a dead process left
//! behind is therefore never used.

mod client;
mod served_pool;
mod server;

pub use client::{ask, send};
pub use served_pool::{CloseMode, ServedPool, ServingHost};
pub use server::AdminSocket;

use crate::locks::{self, Identity};
use crate::remote::RemoteProcess;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum length of a socket's path in bytes (`sun_path`).
const MAX_SOCKET_PATH_LEN: usize = 107;

/// Folders that may contain a user's sockets, in order of preference.
fn folders(uid: u32) -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("weir"));
    let of_user = PathBuf::from(format!("/run/user/{uid}/weir"));
    let of_root = (uid == 0).then(|| PathBuf::from("/run/weir"));
    let last = PathBuf::from(format!("/tmp/weir-{uid}"));
    own.filter(|dir| dir.is_absolute()).into_iter().chain([of_user]).chain(of_root).chain([last]).collect()
}

fn socket_in(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{pid}.sock"))
}

/// Whether a path is a folder, not a symbolic link, that only that user can access.
fn is_private(folder: &Path, uid: u32) -> bool {
    let metadata = std::fs::symlink_metadata(folder);
    metadata.is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0)
}

/// Path for this process's socket, in a folder that only its user can access. Creates the folder if it is missing.
fn own_socket() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    // Removes the sockets that killed processes left behind.
    listeners();
    folders(uid).into_iter().find_map(|folder| {
        // Creation fails if the folder exists, which the check below accepts.
        let _made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        let socket = socket_in(&folder, std::process::id());
        (is_private(&folder, uid) && socket.as_os_str().len() <= MAX_SOCKET_PATH_LEN).then_some(socket)
    })
}

/// Finds the socket of another process; `None` if it has none.
pub fn remote_process(pid: u32) -> Option<RemoteProcess> {
    if pid == std::process::id() {
        return None;
    }
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let sockets = folders(uid).into_iter().filter(|folder| is_private(folder, uid)).map(|f| socket_in(&f, pid));
    sockets.into_iter().find(|socket| socket.exists()).map(|socket| RemoteProcess { pid, socket })
}

/// Ids of the processes that listen on a socket of this user. Removes sockets that dead processes left behind.
fn listeners() -> Vec<u32> {
    let uid = rustix::process::geteuid().as_raw();
    let mut out = BTreeSet::new();
    for folder in folders(uid).into_iter().filter(|folder| is_private(folder, uid)) {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some("sock".as_ref()))
        {
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

/// Devices of the pools that other processes of this user have open.
pub fn devices() -> Vec<PathBuf> {
    let own = std::process::id();
    let mut out = BTreeSet::new();
    for pid in listeners().into_iter().filter(|pid| *pid != own) {
        let locked = locks::held_by(pid);
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let paths = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        out.extend(paths.filter(|path| Identity::of(path).is_some_and(|identity| locked.contains(&identity))));
    }
    out.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folders_accessible_to_other_users_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let set = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o700);
        assert!(is_private(dir.path(), uid) && !is_private(dir.path(), uid + 1));
        set(0o750);
        assert!(!is_private(dir.path(), uid));
        set(0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(!is_private(&link, uid));
        assert_eq!(remote_process(std::process::id()), None);
    }
}
