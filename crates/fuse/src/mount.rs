//! Mounting and unmounting.
//!
//! Root mounts with `mount(2)`; other users need `fusermount3`, which is set-uid. A mount ends by `umount`, after
//! which the kernel closes the session, or by [`Unmounter::unmount`]. If the mount is busy, it is detached: it
//! disappears from the directory tree immediately and the program can exit.

use crate::callers::{Clients, FileServer};
use crate::fuse_ops::FuseOps;
use crate::inner::Inner;
use crate::stale;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use weir_files::tree::{Node, Tree};
use weir_machine::{Machine, RequestTotals, Tasks};

/// Error of mounting or of a mount's session.
#[derive(Debug, Error)]
pub enum FuseError {
    /// The mount point is not an accessible directory.
    #[error("{}: {why}", .path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// The kernel has no FUSE, or this user may not open it.
    #[error("/dev/fuse: {0}; load the kernel module 'fuse' or pass the device into the container")]
    NoDevice(io::Error),
    /// The kernel or its helper rejected the mount.
    #[error("cannot mount at {}: {why}{hint}", .path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        why: io::Error,
        /// A suggestion for the user, or empty.
        hint: &'static str,
    },
    /// The FUSE session failed.
    #[error("the mount ended: {0}")]
    Session(io::Error),
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source shown by `mount`: the pool's name.
    pub source: String,
    /// Whether other users may access the mount (the kernel still checks modes).
    pub allow_other: bool,
    /// Number of threads that read requests from the kernel.
    pub threads: usize,
    /// Whether the mount is writable. If not, the kernel rejects changes.
    pub writable: bool,
    /// Whether no other front end changes the pool while it is mounted.
    pub exclusive: bool,
    /// Whether device nodes work (`dev`).
    pub dev: bool,
    /// Whether set-user-id and set-group-id bits take effect (`suid`).
    pub suid: bool,
}

/// An active mount.
pub struct Mounted {
    session: BackgroundSession,
    path: PathBuf,
    inner: Arc<Inner>,
}

/// Ends a mount from another thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    path: PathBuf,
}

/// Mounts the whole `tree` at `path`. A mount of a dead server there is unmounted first.
pub fn mount(
    tree: impl Into<Arc<Tree>>,
    tasks: Tasks,
    path: &Path,
    options: &MountOptions,
) -> Result<Mounted, FuseError> {
    let inner = Inner::new(tree, options.writable, options.exclusive, None);
    mount_inner(inner, MountOption::DefaultPermissions, tasks, path, options)
}

/// Mounts one file system at `path`, with those of its child file systems for which `contains` returns true when a directory
/// is read; the others are hidden.
///
/// # Errors
/// Those of [`mount`]; [`FuseError::MountPoint`] if there is no file system of this ID.
pub fn mount_file_system(
    tree: Arc<Tree>,
    tasks: Tasks,
    path: &Path,
    options: &MountOptions,
    id: u64,
    contains: Arc<dyn Fn(u64) -> bool + Send + Sync>,
) -> Result<Mounted, FuseError> {
    let part = (root_of(&tree, path, id)?, contains);
    let inner = Inner::new(tree, options.writable, options.exclusive, Some(part));
    mount_inner(inner, MountOption::DefaultPermissions, tasks, path, options)
}

/// Mounts `tree` at `path` for a file server that acts for its clients: ACLs decide instead of modes, and operations are
/// accounted to the clients that `clients` names. Other processes are refused nothing that their user may do.
///
/// # Errors
/// As [`mount`].
pub fn mount_for_server(
    tree: impl Into<Arc<Tree>>,
    machine: &Machine,
    clients: Arc<dyn Clients>,
    path: &Path,
    options: &MountOptions,
) -> Result<Mounted, FuseError> {
    let server = FileServer::new(machine.clock.clone(), clients);
    let inner = Inner::new(tree, options.writable, false, None).for_server(server, !options.allow_other);
    mount_inner(inner, MountOption::NoExec, machine.tasks.clone(), path, options)
}

/// Mounts one file system at `path` as [`mount_for_server`] mounts a tree, with those of its descendants that
/// [`mount_file_system`] would contain.
///
/// # Errors
/// As [`mount_file_system`].
pub fn mount_file_system_for_server(
    tree: Arc<Tree>,
    machine: &Machine,
    clients: Arc<dyn Clients>,
    path: &Path,
    options: &MountOptions,
    id: u64,
    contains: Arc<dyn Fn(u64) -> bool + Send + Sync>,
) -> Result<Mounted, FuseError> {
    let part = (root_of(&tree, path, id)?, contains);
    let server = FileServer::new(machine.clock.clone(), clients);
    let inner = Inner::new(tree, options.writable, false, Some(part)).for_server(server, !options.allow_other);
    mount_inner(inner, MountOption::NoExec, machine.tasks.clone(), path, options)
}

/// The root of the file system of this ID, for a mount at `path`.
fn root_of(tree: &Tree, path: &Path, id: u64) -> Result<Node, FuseError> {
    let gone = || FuseError::MountPoint { path: path.to_path_buf(), why: io::Error::from(io::ErrorKind::NotFound) };
    Ok(Node { branch: tree.branch_by_id(id).ok_or_else(gone)?, object: Node::ROOT })
}

fn mount_inner(
    inner: Inner,
    checks: MountOption,
    tasks: Tasks,
    path: &Path,
    options: &MountOptions,
) -> Result<Mounted, FuseError> {
    let point = |why| FuseError::MountPoint { path: path.to_path_buf(), why };
    stale::unmount_stale_at(path, &options.source);
    let path = path.canonicalize().map_err(point)?;
    if !path.metadata().map_err(point)?.is_dir() {
        return Err(point(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    std::fs::File::options().read(true).write(true).open("/dev/fuse").map_err(FuseError::NoDevice)?;
    let mut config = Config::default();
    config.mount_options = vec![
        if options.writable { MountOption::RW } else { MountOption::RO },
        checks,
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("weir".into()),
    ];
    // The default of both options is off.
    config.mount_options.extend(options.dev.then_some(MountOption::Dev));
    config.mount_options.extend(options.suid.then_some(MountOption::Suid));
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = false;
    let inner = Arc::new(inner);
    let ops = FuseOps { inner: Arc::clone(&inner), tasks };
    let refused = |why: io::Error| {
        let helper = ["fusermount3", "fusermount"].iter().any(|name| is_on_path(name));
        let hint = match (rustix::process::geteuid().is_root(), helper) {
            (false, false) => " (users other than root need the program fusermount3, Debian's package fuse3)",
            _ => "",
        };
        FuseError::Refused { path: path.clone(), why, hint }
    };
    let session = Session::new(ops, &path, &config).map_err(refused)?;
    inner.kernel.set_notifier(session.notifier());
    let session = session.spawn().map_err(refused)?;
    Ok(Mounted { session, path, inner })
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

impl Mounted {
    /// A handle that unmounts it.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { path: self.path.clone() }
    }

    /// Totals of all requests so far.
    pub fn served(&self) -> RequestTotals {
        self.inner.tree.accounts().protocol(self.inner.protocol())
    }

    /// Blocks until the mount is gone.
    pub fn join(self) -> Result<(), FuseError> {
        self.session.join().map_err(FuseError::Session)
    }
}

impl Unmounter {
    /// Unmounts if nothing uses the mount, or in any case if `force` is set. Returns true if the mount was only detached.
    ///
    /// # Errors
    /// [`FuseError::Session`] if it is busy and `force` is not set, or if it cannot be unmounted.
    pub fn unmount_if_free(&self, force: bool) -> Result<bool, FuseError> {
        use rustix::mount::UnmountFlags;
        match rustix::mount::unmount(&self.path, UnmountFlags::empty()) {
            Ok(()) => Ok(false),
            Err(errno @ rustix::io::Errno::BUSY) if !force => Err(FuseError::Session(errno.into())),
            Err(_) => self.unmount(),
        }
    }

    /// Unmounts. Returns true if the mount was busy and only detached: then [`Mounted::join`] returns after its last
    /// user is gone.
    pub fn unmount(&self) -> Result<bool, FuseError> {
        use rustix::mount::UnmountFlags;
        let session = |errno: rustix::io::Errno| FuseError::Session(errno.into());
        match rustix::mount::unmount(&self.path, UnmountFlags::empty()) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::BUSY) => {
                rustix::mount::unmount(&self.path, UnmountFlags::DETACH).map_err(session)?;
                Ok(true)
            }
            Err(rustix::io::Errno::PERM) => {
                let helper = std::process::Command::new("fusermount3").arg("-uz").arg(&self.path).status();
                helper.map(|_| true).map_err(FuseError::Session)
            }
            // Already unmounted.
            Err(rustix::io::Errno::INVAL) => Ok(false),
            Err(errno) => Err(session(errno)),
        }
    }
}
