//! SMB: the mounts that smbd serves, and smbd itself.
//!
//! ```text
//!   RUNTIME/mnt/POOL      a mount of the whole pool, for smbd alone      `weir serve --smb`: one share
//!   RUNTIME/mnt/GUID-ID   a mount of a file system, for smbd alone       share NAME ─▶ path RUNTIME/mnt/GUID-ID/b
//! ```
//!
//! - `follow`: shares as the properties say
//! - `plan`: which mounts and shares those are
//!
//! A mount begins before its first share and ends after its last. One that a killed process left behind is detached first.

mod follow;
mod plan;

pub use follow::SmbFollower;

use crate::exports::{Exports, OpenPool};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, select};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use weir_dsl::props::Value;
use weir_fuse::{
    Clients, FuseError, MountOptions, Mounted, mount_file_system_for_server, mount_for_server, unmount_stale_at,
};
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Machine, Request, RequestTotals};
use weir_pool::PoolError;
pub use weir_smb::{
    CaseSensitivity, Connection, Directories, Options, Programs, SMB_PORT, Samba, Share, SmbError, Status, TimeMachine,
    UNPRIVILEGED_PORT, User, is_running, status_of, users,
};

/// Threads that read requests from the kernel; a request that waits for a disk occupies none.
const THREADS: usize = 4;

/// Time for the kernel to end a mount after it was unmounted.
const END_TIME: Duration = Duration::from_secs(5);

/// Time for smbd to leave a mount whose shares are gone, and interval in which it is looked at.
const FREE_TIME: Duration = Duration::from_secs(2);
const FREE_POLL: Duration = Duration::from_millis(50);

/// Error of serving SMB.
#[derive(Debug, Error)]
pub enum SmbServiceError {
    /// Samba cannot be used.
    #[error("{0}")]
    Samba(#[from] SmbError),
    /// Samba did not start before, and is not tried again yet.
    #[error("{why}")]
    NotStarted {
        /// The cause.
        why: String,
    },
    /// The pool cannot be mounted.
    #[error("SMB needs a mount: {0}")]
    Mount(#[from] FuseError),
    /// The datasets cannot be read.
    #[error("{0}")]
    Pool(#[from] PoolError),
}

/// The clients of smbd's processes, for the accounts.
struct SmbClients(Arc<weir_smb::clients::Clients>);

impl Clients for SmbClients {
    fn client(&self, tid: u32, uid: u32) -> BoxFuture<'_, String> {
        self.0.client(tid, uid).boxed()
    }
}

/// Mounts and server.
pub struct SmbService {
    machine: Machine,
    samba: Samba,
    directories: Directories,
    /// By name of the directory.
    mounts: Mutex<BTreeMap<String, Mounted>>,
}

impl SmbService {
    /// Starts a server without shares.
    ///
    /// # Errors
    /// If Samba is not installed or does not start.
    pub async fn start(machine: &Machine, options: Options) -> Result<Self, SmbServiceError> {
        let directories = options.directories.clone();
        directories.create()?;
        detach_stale(&directories.mount());
        let samba = Samba::start(machine, options, Vec::new()).await?;
        Ok(SmbService { machine: machine.clone(), samba, directories, mounts: Mutex::default() })
    }

    /// The server.
    pub fn samba(&self) -> &Samba {
        &self.samba
    }

    /// Mounts a pool for smbd.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount_pool(&self, exports: &Exports) -> Result<(), SmbServiceError> {
        let pool = exports.pool.name();
        let (path, options) = self.prepare(exports, &pool, pool.clone())?;
        let clients = Arc::new(SmbClients(self.samba.clients()));
        let mounted = mount_for_server(exports.tree.clone(), &self.machine, clients, &path, &options)?;
        self.mounts().insert(pool, mounted);
        Ok(())
    }

    /// Mounts a file system for smbd in this directory, with those of its descendants for which `contains` returns true.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount_file_system(
        &self,
        exports: &Exports,
        directory: &str,
        id: u64,
        contains: Arc<dyn Fn(u64) -> bool + Send + Sync>,
    ) -> Result<(), SmbServiceError> {
        let (path, options) = self.prepare(exports, directory, source_of(directory))?;
        let clients = Arc::new(SmbClients(self.samba.clients()));
        let tree = exports.tree.clone();
        let mounted = mount_file_system_for_server(tree, &self.machine, clients, &path, &options, id, contains)?;
        let before = self.mounts().insert(directory.to_owned(), mounted);
        debug_assert!(before.is_none(), "a directory has one mount");
        Ok(())
    }

    fn mounts(&self) -> MutexGuard<'_, BTreeMap<String, Mounted>> {
        self.mounts.lock()
    }

    /// The mount point, which exists then, and the options of a mount.
    fn prepare(
        &self,
        exports: &Exports,
        directory: &str,
        source: String,
    ) -> Result<(PathBuf, MountOptions), SmbServiceError> {
        let path = self.directories.mount().join(directory);
        let point = |why| FuseError::MountPoint { path: path.clone(), why };
        std::fs::create_dir_all(&path).map_err(point)?;
        let options = MountOptions {
            source,
            // smbd, started by root, acts as other users.
            allow_other: rustix::process::geteuid().is_root(),
            threads: THREADS,
            writable: exports.pool.is_writable(),
            exclusive: false,
            dev: false,
            suid: false,
            exec: false,
        };
        Ok((path, options))
    }

    /// Directory of a dataset for [`Share::path`].
    pub fn path_of(&self, dataset: &str) -> PathBuf {
        self.directories.mount().join(dataset)
    }

    /// A share of a dataset, with what its properties say of case and ACLs.
    ///
    /// # Errors
    /// If the properties cannot be read.
    pub async fn share(&self, rq: &Request, pool: &OpenPool, dataset: &str, name: &str) -> Result<Share, PoolError> {
        /// Stored values of `casesensitivity=insensitive`, of `mixed`, and of `acltype=posix`.
        const INSENSITIVE: u64 = 1;
        const MIXED: u64 = 2;
        const POSIX: u64 = 1;
        let number = async |property| match pool {
            OpenPool::ReadOnly(_) => Ok::<_, PoolError>(None),
            OpenPool::Engine(engine) => {
                let dsl = engine.synced().dsl(rq).await?;
                let found = dsl.find(rq, dataset).await?;
                let property = dsl.property(rq, &found, &engine.facts(), property).await?;
                Ok(property.and_then(|found| if let Value::Number(number) = found.value { Some(number) } else { None }))
            }
        };
        let insensitive = matches!(number("casesensitivity").await?, Some(INSENSITIVE | MIXED));
        Ok(Share {
            name: name.to_owned(),
            path: self.path_of(dataset),
            read_only: !pool.is_writable(),
            case: if insensitive { CaseSensitivity::Insensitive } else { CaseSensitivity::Sensitive },
            snapshots: true,
            nfs4_acls: number("acltype").await? != Some(POSIX),
            ..Share::default()
        })
    }

    /// Totals of the requests of all mounts.
    pub fn served(&self) -> Vec<RequestTotals> {
        self.mounts().values().map(Mounted::served).collect()
    }

    /// Ends the server, then the mounts.
    pub async fn stop(&self) {
        self.samba.stop().await;
        let mounts = std::mem::take(&mut *self.mounts());
        for (directory, mounted) in mounts {
            self.end(&directory, mounted).await;
        }
    }

    /// Ends the mount in a directory, after its shares. It is given some time to become free, since smbd leaves it when it
    /// learns of the shares.
    pub async fn unmount(&self, directory: &str) {
        let Some(mounted) = self.mounts().remove(directory) else { return };
        let until = self.machine.clock.now() + FREE_TIME;
        while self.machine.clock.now() < until {
            match mounted.unmounter().unmount_if_free(false) {
                Ok(_) => break,
                Err(_) => self.machine.clock.sleep(FREE_POLL).await,
            }
        }
        self.end(directory, mounted).await;
        // The directory of a mount that was detached is empty, too.
        let _ = std::fs::remove_dir(self.directories.mount().join(directory));
    }

    async fn end(&self, directory: &str, mounted: Mounted) {
        match mounted.unmounter().unmount() {
            // A mount in use is detached and ends with its last user.
            Ok(true) => tracing::debug!(directory, "the mount for SMB was in use and was detached"),
            Ok(false) => self.until_ended(directory, mounted).await,
            Err(error) => tracing::warn!(directory, %error, "the mount for SMB cannot be unmounted"),
        }
    }

    /// Waits until the kernel has ended a mount. A copy of it in another mount namespace (a container, a service) keeps it
    /// for as long as that namespace exists.
    async fn until_ended(&self, pool: &str, mounted: Mounted) {
        let (done, ended) = tokio::sync::oneshot::channel();
        let join = move || {
            // The receiver may have given up.
            let _ = done.send(mounted.join());
        };
        if let Err(error) = std::thread::Builder::new().name("weir-unmount".into()).spawn(join) {
            tracing::warn!(pool, %error, "cannot wait for the end of the mount for SMB");
        }
        match select(ended, pin!(self.machine.clock.sleep(END_TIME))).await {
            Either::Left((Ok(Err(error)), _)) => tracing::warn!(pool, %error, "the mount for SMB ended with an error"),
            Either::Left(_) => {}
            Either::Right(_) => tracing::warn!(pool, "the mount for SMB is still used in another mount namespace"),
        }
    }

    /// Commands that use a share.
    pub fn lines(&self, share: &str, user: Option<&str>) -> Vec<String> {
        let user = user.unwrap_or("USER");
        let host = self.samba.address.ip();
        let port = self.samba.address.port();
        vec![
            format!("smbclient -p {port} -U {user} '//{host}/{share}'"),
            format!("mount -t cifs -o port={port},user={user} '//{host}/{share}' /mnt"),
        ]
    }
}

/// Source of the mount in a directory, as the kernel lists it: the name of no dataset.
fn source_of(directory: &str) -> String {
    format!("smb@{directory}")
}

/// Detaches mounts that a killed process left behind, of which every use fails.
fn detach_stale(mounts: &Path) {
    let entries = std::fs::read_dir(mounts).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if [source_of(&name), name].iter().any(|source| unmount_stale_at(&entry.path(), source)) {
            tracing::info!(path = %entry.path().display(), "unmounted: its server was killed");
        }
    }
}
