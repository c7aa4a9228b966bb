//! The lock service of a pool: the lock manager of NFS, its socket for datagrams, and the registration with rpcbind.
//!
//! ```text
//!   record of clients ─▶ LockManager ─▶ NFS's port, over TCP and UDP ─▶ registered with rpcbind: NFS, MOUNT, locks
//! ```
//!
//! A client finds the lock manager through rpcbind alone. So without a registration there are no locks, and clients mount
//! with `nolock` and the ports.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use weir_front::FileLocks;
use weir_machine::net::Datagrams;
use weir_machine::{Machine, StateFile};
use weir_nfs::rpcbind::{RegisterError, Registration, Service};
use weir_nfs::{LockManager, LockOptions, mount, nfs3, nlm, nsm};

/// Where rpcbind's socket in the file system is.
pub const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

/// Options of the lock service.
#[derive(Clone)]
pub struct LockServiceOptions {
    /// Where the clients with locks are recorded, so that a restart is announced to them.
    pub record: Arc<dyn StateFile>,
    /// Name of this host.
    pub host_name: String,
}

impl fmt::Debug for LockServiceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockServiceOptions({})", self.host_name)
    }
}

/// Starts the lock manager; `None`, with a notice, if its record cannot be used.
pub(crate) async fn manager(
    files: Arc<dyn FileLocks>,
    machine: &Machine,
    options: &LockServiceOptions,
    notices: &mut Vec<String>,
) -> Option<Arc<LockManager>> {
    let LockServiceOptions { record, host_name } = options.clone();
    let manager = LockManager::new(files, machine, LockOptions { record, grace: LockOptions::GRACE, host_name });
    match manager.start().await {
        Ok(()) => Some(manager),
        Err(error) => {
            notices.push(format!("no locks for NFS clients: the record of clients cannot be kept: {error}"));
            None
        }
    }
}

/// Registers what is served with this machine's rpcbind; what fails becomes a notice.
pub(crate) async fn register(
    machine: &Machine,
    socket: PathBuf,
    tcp: SocketAddr,
    datagrams: Option<&Arc<dyn Datagrams>>,
    has_locks: bool,
    notices: &mut Vec<String>,
) -> Option<Registration> {
    let mut registration = match Registration::begin(machine, socket).await {
        Ok(registration) => registration,
        Err(error) => {
            notices.push(format!("not registered with rpcbind: {error}; clients need the ports, and have no locks"));
            return None;
        }
    };
    let udp = datagrams.map(|socket| socket.address());
    let service = |name, program, version, udp| Service { name, program, version, tcp, udp };
    let mut services = vec![
        service("NFS", nfs3::PROGRAM, nfs3::VERSION, None),
        service("MOUNT", mount::PROGRAM, mount::VERSIONS.1, None),
        service("MOUNT", mount::PROGRAM, mount::VERSIONS.0, None),
    ];
    if has_locks {
        services.push(service("the lock manager", nlm::PROGRAM, nlm::VERSION, udp));
        services.push(service("the status monitor", nsm::PROGRAM, nsm::VERSION, udp));
    }
    for service in services {
        match registration.add(service).await {
            Ok(()) => {}
            // Locks work without it, but a client that restarts keeps those that it held before.
            Err(error @ RegisterError::Taken { program: nsm::PROGRAM, .. }) => {
                notices.push(format!("{error} (rpc.statd): locks of clients that restart are not released"));
            }
            Err(error) => notices.push(error.to_string()),
        }
    }
    Some(registration)
}
