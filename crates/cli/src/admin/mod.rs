//! Administration of a pool that a process has open: it listens on a socket, and the commands that find it in their way
//! ask it to do the work.
//!
//! ```text
//!   weir zfs create p/x ─► finds p's devices locked by process 71 ─► /run/weir/71.sock ─► weir serve (71)
//!        ▲                                                                                   │ the same command, on
//!        └─────────────── output, prompts, exit code ◄───────────────────────────────────────┘ its open engine
//! ```
//!
//! A command is one function in both processes: [`crate::call::Call`] is all that differs. The socket is its owner's alone
//! (mode 0600, in a folder of mode 0700), the kernel says who is at its other end, and only the same user and root are
//! heard. The frames, and their bounds, are in [`weir_daemon::admin`].
//!
//! *What is found where.* A pool is held by whoever has its devices locked ([`crate::locks`]); the kernel says which process
//! that is, and the process's number is the socket's name. So a socket that a dead process left behind misleads nobody.

mod client;
mod held;
mod server;

pub use client::ask;
pub use held::{Ending, Held};
pub use server::Door;

use crate::locks::{self, Identity};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A process that has a pool open and can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The process.
    pub pid: u32,
    /// Its socket.
    pub socket: PathBuf,
}

/// Longest path of a socket (`sun_path`).
const LONGEST: usize = 107;

/// The folders where a user's sockets may be, the first that can be used first.
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

/// Whether a folder is that user's alone, and no link to one.
fn is_private(folder: &Path, uid: u32) -> bool {
    let metadata = std::fs::symlink_metadata(folder);
    metadata.is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0)
}

/// Where this process's socket goes: a folder that is its user's alone, made if need be.
fn own_socket() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    // So that what killed processes left does not gather.
    listeners();
    folders(uid).into_iter().find_map(|folder| {
        // What cannot be made may be there already.
        let _made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        let socket = socket_in(&folder, std::process::id());
        (is_private(&folder, uid) && socket.as_os_str().len() <= LONGEST).then_some(socket)
    })
}

/// The socket of a process, if it has one.
pub fn elsewhere(pid: u32) -> Option<Elsewhere> {
    if pid == std::process::id() {
        return None;
    }
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let sockets = folders(uid).into_iter().filter(|folder| is_private(folder, uid)).map(|f| socket_in(&f, pid));
    sockets.into_iter().find(|socket| socket.exists()).map(|socket| Elsewhere { pid, socket })
}

/// The processes that listen for this user, by their sockets. A socket that its process left behind is removed.
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
                // What cannot be removed is passed over.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => drop(std::fs::remove_file(&path)),
                Err(_) => {}
            }
        }
    }
    out.into_iter().collect()
}

/// The devices of the pools that other processes have open and can be asked about.
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
    fn folders_that_others_reach_are_not_used() {
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
        assert_eq!(elsewhere(std::process::id()), None);
    }
}
