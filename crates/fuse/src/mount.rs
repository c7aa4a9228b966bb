//! Mounting, waiting for the end, unmounting.
//!
//! As root the mount is made with `mount(2)` and no helper is needed; other users need `fusermount3`, which is set-uid.
//! The end comes from outside (`umount`, and the kernel closes the session) or from inside ([`Mounted::unmount`]); a
//! mount that is still in use is detached, so that it vanishes from the tree at once and the program can end.

use crate::door::Door;
use crate::inner::Inner;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use weir_files::tree::Tree;
use weir_machine::{Served, Tasks};

/// Why there is no mount.
#[derive(Debug, Error)]
pub enum FuseError {
    /// The mount point is no directory.
    #[error("{}: {why}", .path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// What is wrong with it.
        why: io::Error,
    },
    /// The kernel has no FUSE, or it is not open to this user.
    #[error("/dev/fuse: {0}; load the kernel module 'fuse' or pass the device into the container")]
    NoDevice(io::Error),
    /// The kernel or its helper refused.
    #[error("cannot mount at {}: {why}{hint}", .path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// What was said.
        why: io::Error,
        /// What may help.
        hint: &'static str,
    },
    /// The session broke.
    #[error("the mount ended: {0}")]
    Session(io::Error),
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `mount` shows as the source: the pool's name.
    pub source: String,
    /// Whether other users may look in (the kernel still checks modes).
    pub allow_other: bool,
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Whether the mount takes changes. If not, the kernel refuses them.
    pub writable: bool,
    /// Whether no other door changes what is shown while this mount stands.
    pub alone: bool,
    /// Whether device nodes are devices.
    pub dev: bool,
    /// Whether set-user-id and set-group-id bits of programs count.
    pub suid: bool,
}

/// A mount that is up.
pub struct Mounted {
    session: BackgroundSession,
    path: PathBuf,
    inner: Arc<Inner>,
}

/// Hands out the means to end a mount from another thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    path: PathBuf,
}

/// Mounts `tree` at `path`.
pub fn mount(
    tree: impl Into<Arc<Tree>>,
    tasks: Tasks,
    path: &Path,
    options: &MountOptions,
) -> Result<Mounted, FuseError> {
    let point = |why| FuseError::MountPoint { path: path.to_path_buf(), why };
    let path = path.canonicalize().map_err(point)?;
    if !path.metadata().map_err(point)?.is_dir() {
        return Err(point(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    std::fs::File::options().read(true).write(true).open("/dev/fuse").map_err(FuseError::NoDevice)?;
    let mut config = Config::default();
    config.mount_options = vec![
        if options.writable { MountOption::RW } else { MountOption::RO },
        MountOption::DefaultPermissions,
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("weir".into()),
    ];
    // Without a word of it the mount has neither.
    config.mount_options.extend(options.dev.then_some(MountOption::Dev));
    config.mount_options.extend(options.suid.then_some(MountOption::Suid));
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = false;
    let inner = Arc::new(Inner::new(tree, options.writable, options.alone));
    let door = Door { inner: Arc::clone(&inner), tasks };
    let refused = |why: io::Error| {
        let helper = ["fusermount3", "fusermount"].iter().any(|name| is_on_path(name));
        let hint = match (rustix::process::geteuid().is_root(), helper) {
            (false, false) => " (users other than root need the program fusermount3, Debian's package fuse3)",
            _ => "",
        };
        FuseError::Refused { path: path.clone(), why, hint }
    };
    let session = Session::new(door, &path, &config).map_err(refused)?;
    inner.kernel.tell(session.notifier());
    let session = session.spawn().map_err(refused)?;
    Ok(Mounted { session, path, inner })
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

impl Mounted {
    /// The means to end it.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { path: self.path.clone() }
    }

    /// What was given so far.
    pub fn served(&self) -> &Served {
        &self.inner.served
    }

    /// Blocks until the mount is gone.
    pub fn join(self) -> Result<(), FuseError> {
        self.session.join().map_err(FuseError::Session)
    }
}

impl Unmounter {
    /// Unmounts; a mount in use is detached. Returns whether the mount was detached only: then [`Mounted::join`] returns
    /// when its last user is gone.
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
            // Not mounted any more: somebody was faster.
            Err(rustix::io::Errno::INVAL) => Ok(false),
            Err(errno) => Err(session(errno)),
        }
    }
}
