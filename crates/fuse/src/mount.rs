//! Mounting and unmounting.
//!
//! Root mounts with `mount(2)` ([`crate::device`]); other users need `fusermount3`, which is set-uid. A mount ends by `umount`,
//! after which the kernel closes the session, by [`Unmounter::unmount_if_free`], or by [`Unmounter::unmount`], which detaches a
//! mount that is busy: it disappears from the directory tree immediately and the program can exit.

use crate::callers::{Clients, FileServer};
use crate::device::{self, DirectMount};
use crate::fuse_ops::FuseOps;
use crate::inner::Inner;
use crate::stale;
use fuser::{BackgroundSession, Config, INodeNo, MountOption, Session, SessionACL};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use thiserror::Error;
use weir_files::tree::{Node, Tree};
use weir_linux::own_mounts::OwnMount;
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
    #[error("/dev/fuse: {why}: {advice}")]
    NoDevice {
        /// The cause.
        why: io::Error,
        /// The missing part, and the command that repairs it.
        advice: String,
    },
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
    /// Programs have files or directories of the mount open.
    #[error("pool or dataset is busy")]
    Busy,
    /// The kernel or its helper did not unmount.
    #[error("{why}")]
    NotUnmounted {
        /// The cause.
        why: String,
    },
    /// The FUSE session failed.
    #[error("the mount ended: {0}")]
    Session(io::Error),
    /// The options of the mount cannot be changed.
    #[error("cannot change the options of the mount: {why}")]
    NotChanged {
        /// The reason.
        why: String,
    },
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
    /// Whether programs can be executed (`exec`).
    pub exec: bool,
}

/// Options that can change while a file system is mounted; see [`MountOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedOptions {
    /// Whether the kernel permits changes. What is served decides in any case.
    pub writable: bool,
    /// Whether device nodes work.
    pub dev: bool,
    /// Whether set-user-id and set-group-id bits take effect.
    pub suid: bool,
    /// Whether programs can be executed.
    pub exec: bool,
}

/// An active mount.
pub struct Mounted {
    session: BackgroundSession,
    path: PathBuf,
    inner: Arc<Inner>,
    /// The mount, if no helper made it.
    direct: Option<DirectMount>,
    /// Keeps devices of pools away from it.
    own: Option<OwnMount>,
}

/// How often a mount that is busy is looked at again, and after which time.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(20);

/// Ends a mount from another thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    path: PathBuf,
}

/// Names that the kernel has cached for a mount.
pub struct CachedNames(Weak<Inner>);

impl CachedNames {
    /// Makes the kernel look up the name of a child in the root directory of the file system with this ID again: a file system is
    /// mounted there, or is not any more. It blocks until operations in that directory have ended.
    pub fn forget(&self, file_system: u64, child: &str) {
        let Some(inner) = self.0.upgrade() else { return };
        let Some(branch) = inner.tree.branch_by_id(file_system) else { return };
        let root = Node { branch, object: Node::ROOT };
        if let Ok(number) = inner.number(root) {
            inner.kernel.invalidate(INodeNo(number), child.as_bytes());
        }
    }
}

/// Changes options of a mount from another thread.
#[derive(Clone, Debug)]
pub struct Remounter {
    path: PathBuf,
    /// The mounted device, if this process made the mount without a helper.
    device: Option<String>,
    is_writable: bool,
}

impl Remounter {
    /// Changes options of the mount at once, also for programs that use it. A mount on which files are open for writing stays
    /// writable for the kernel; one that was mounted read-only stays so. The kernel may look up the path in other mounts of this
    /// process meanwhile.
    ///
    /// # Errors
    /// [`FuseError::NotChanged`] if this process has not made the mount, the mount is gone, or the kernel refuses.
    pub fn remount(&self, options: ChangedOptions) -> Result<(), FuseError> {
        let failed = |why: &str| FuseError::NotChanged { why: why.to_owned() };
        let Some(number) = &self.device else { return Err(failed("only root can")) };
        let options = ChangedOptions { writable: options.writable && self.is_writable, ..options };
        device::remount(&self.path, number, options).map_err(|why| failed(&why.to_string()))
    }
}

/// Mounts the whole `tree` at `path`. A mount of a dead server there is unmounted first.
pub fn mount(
    tree: impl Into<Arc<Tree>>,
    tasks: Tasks,
    path: &Path,
    options: &MountOptions,
) -> Result<Mounted, FuseError> {
    let inner = Inner::new(tree, options.writable, options.exclusive, None);
    mount_inner(inner, tasks, path, options)
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
    mount_inner(inner, tasks, path, options)
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
    mount_inner(inner, machine.tasks.clone(), path, &MountOptions { exec: false, ..options.clone() })
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
    mount_inner(inner, machine.tasks.clone(), path, &MountOptions { exec: false, ..options.clone() })
}

/// The root of the file system of this ID, for a mount at `path`.
fn root_of(tree: &Tree, path: &Path, id: u64) -> Result<Node, FuseError> {
    let gone = || FuseError::MountPoint { path: path.to_path_buf(), why: io::Error::from(io::ErrorKind::NotFound) };
    Ok(Node { branch: tree.branch_by_id(id).ok_or_else(gone)?, object: Node::ROOT })
}

fn mount_inner(inner: Inner, tasks: Tasks, path: &Path, options: &MountOptions) -> Result<Mounted, FuseError> {
    let point = |why| FuseError::MountPoint { path: path.to_path_buf(), why };
    stale::unmount_stale_at(path, &options.source);
    let path = path.canonicalize().map_err(point)?;
    if !path.metadata().map_err(point)?.is_dir() {
        return Err(point(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let device = device::open()?;
    let checks = inner.server.is_none();
    let config = config(options, checks);
    let inner = Arc::new(inner);
    let ops = FuseOps::new(Arc::clone(&inner), tasks);
    let refused = |why: io::Error| {
        let helper = ["fusermount3", "fusermount"].iter().any(|name| is_on_path(name));
        let hint = match (rustix::process::geteuid().is_root(), helper) {
            (false, false) => " (users other than root need the program fusermount3, Debian's package fuse3)",
            _ => "",
        };
        FuseError::Refused { path: path.clone(), why, hint }
    };
    let is_root = rustix::process::geteuid().is_root();
    let direct = match is_root.then(|| device::mount(&device, &path, options, checks)) {
        // Root of a container may need the helper as well.
        Some(Err(why)) if why.raw_os_error() == Some(libc::EPERM) => None,
        Some(mounted) => Some(mounted.map_err(refused)?),
        None => None,
    };
    let session = match direct {
        Some(_) => Session::from_fd(ops, device.into(), config.acl, config),
        None => Session::new(ops, &path, &config),
    };
    let session = session.map_err(refused)?;
    inner.kernel.set_notifier(session.notifier());
    if inner.shares_files() {
        inner.invalidations.start(session.notifier());
        inner.tree.observers().add(inner.protocol(), Arc::<Inner>::downgrade(&inner));
    }
    let own = device::number_at(&path).map(|number| OwnMount::new(&number));
    let session = session.spawn().map_err(refused)?;
    Ok(Mounted { session, path, inner, direct, own })
}

/// Options of a FUSE session. With `checks`, the kernel checks permissions by modes.
fn config(options: &MountOptions, checks: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        if options.writable { MountOption::RW } else { MountOption::RO },
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("weir".into()),
    ];
    // The default of the first two options is off, of the third it is on.
    let all = [
        (checks, MountOption::DefaultPermissions),
        (options.dev, MountOption::Dev),
        (options.suid, MountOption::Suid),
        (!options.exec, MountOption::NoExec),
    ];
    config.mount_options.extend(all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, option)| option));
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = false;
    config
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

    /// Names that the kernel has cached.
    pub fn cached_names(&self) -> CachedNames {
        CachedNames(Arc::downgrade(&self.inner))
    }

    /// Totals of all requests so far.
    pub fn served(&self) -> RequestTotals {
        self.inner.tree.accounts().protocol(self.inner.protocol())
    }

    /// Whether programs have files or directories of the file system of this ID open through the mount. Working directories are
    /// not known, nor is anything on a read-only mount.
    pub fn uses(&self, id: u64) -> bool {
        self.inner.tree.branch_by_id(id).is_some_and(|branch| self.inner.opens.count(branch) > 0)
    }

    /// A handle that changes its options.
    pub fn remounter(&self) -> Remounter {
        let device = self.direct.as_ref().and_then(DirectMount::device);
        Remounter { path: self.path.clone(), device, is_writable: self.inner.writable }
    }

    /// Blocks until the mount is gone.
    ///
    /// # Errors
    /// [`FuseError::Session`] if the connection to the kernel ends before the mount.
    pub fn join(self) -> Result<(), FuseError> {
        let Mounted { session, path, direct, own, .. } = self;
        let ended = session.join();
        let is_there = |number: String| own.as_ref().is_some_and(|own| own.has_number(&number));
        let is_gone = !device::number_at(&path).is_some_and(is_there);
        drop(direct);
        drop(own);
        match ended {
            // A thread that takes a request while the kernel unmounts gets this error (Linux: `fs/fuse/dev.c`, `fuse_dev_do_read`).
            Err(why) if is_gone && why.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            ended => ended.map_err(FuseError::Session),
        }
    }
}

impl Unmounter {
    /// Whether a process uses the mount: has a file open, or works in a directory of it. Only root learns it; for other users this
    /// returns false. It blocks as [`Unmounter::unmount_if_free`] does.
    pub fn is_busy(&self) -> bool {
        // The first call with this flag marks a mount that is free as expired, and leaves it (umount2(2)).
        let probe = || rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::EXPIRE);
        (0..LOOKS).all(|look| {
            if look > 0 {
                std::thread::park_timeout(LOOK);
            }
            probe() == Err(rustix::io::Errno::BUSY)
        })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts if nothing uses the mount, or in any case if `force` is set. Returns true if the mount was only detached.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if it is busy and `force` is not set, [`FuseError::NotUnmounted`] if it cannot be unmounted.
    pub fn unmount_if_free(&self, force: bool) -> Result<bool, FuseError> {
        use rustix::io::Errno;
        let unmount = || rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::empty());
        let mut done = unmount();
        for _ in 0..LOOKS {
            if done != Err(Errno::BUSY) || force {
                break;
            }
            // A program that looks at all mounts, as `df` does, uses it for a moment.
            std::thread::park_timeout(LOOK);
            done = unmount();
        }
        match done {
            Ok(()) => Ok(false),
            Err(_) if force => self.unmount(),
            Err(Errno::BUSY) => Err(FuseError::Busy),
            // The mount of a user who is not root.
            Err(Errno::PERM) => self.unmount_by_helper(&["-u"]).map(|()| false),
            Err(errno) => self.gone_or(errno).map(|()| false),
        }
    }

    /// After an error of unmounting: whether the mount is gone already. The path of one that another mount above it hides leads
    /// elsewhere, where nothing is mounted.
    fn gone_or(&self, errno: rustix::io::Errno) -> Result<(), FuseError> {
        use rustix::io::Errno;
        match (errno, device::is_mount_point(&self.path)) {
            (Errno::INVAL, false) => Ok(()),
            (Errno::INVAL | Errno::NOENT, true) => {
                let why = "a mount at a directory above hides it: unmount that one first".to_owned();
                Err(FuseError::NotUnmounted { why })
            }
            _ => Err(FuseError::NotUnmounted { why: errno.to_string() }),
        }
    }

    /// Unmounts. Returns true if the mount was busy and only detached: then [`Mounted::join`] returns after its last
    /// user is gone.
    ///
    /// # Errors
    /// [`FuseError::NotUnmounted`] if it cannot be unmounted.
    pub fn unmount(&self) -> Result<bool, FuseError> {
        use rustix::io::Errno;
        use rustix::mount::UnmountFlags;
        let failed = |errno: Errno| FuseError::NotUnmounted { why: errno.to_string() };
        match rustix::mount::unmount(&self.path, UnmountFlags::empty()) {
            Ok(()) => Ok(false),
            Err(Errno::BUSY) => {
                rustix::mount::unmount(&self.path, UnmountFlags::DETACH).map_err(failed)?;
                Ok(true)
            }
            Err(Errno::PERM) => self.unmount_by_helper(&["-u", "-z"]).map(|()| true),
            Err(errno) => self.gone_or(errno).map(|()| false),
        }
    }

    /// Asks the set-uid helper, unless the mount is gone already.
    fn unmount_by_helper(&self, options: &[&str]) -> Result<(), FuseError> {
        if !device::is_mount_point(&self.path) {
            return Ok(());
        }
        let mut helper = std::process::Command::new("fusermount3");
        let ended = helper.args(options).arg("--").arg(&self.path).env("LC_ALL", "C").output();
        let ended = ended.map_err(|error| FuseError::NotUnmounted { why: format!("fusermount3: {error}") })?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        match said.contains("busy") {
            true => Err(FuseError::Busy),
            false => Err(FuseError::NotUnmounted { why: said }),
        }
    }
}
