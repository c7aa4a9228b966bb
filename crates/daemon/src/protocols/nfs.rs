//! NFS version 3 for all pools.

use super::{ProtocolContext, ProtocolServer, ServingTask, bracketed, listen, shell_quoted};
use crate::exports::{Exports, OpenPool};
use crate::locks;
use crate::service::ServiceError;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use weir_front::ClientConnection;
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Entropy, Protocol, Request, RequestTotals};
use weir_nfs::rpcbind::Registration;
use weir_nfs::{Secrets, mount, nfs3, nlm};
use weir_pool::PoolError;

/// The NFS server.
pub(super) struct NfsServer {
    server: Arc<weir_nfs::Server>,
    serving: ServingTask,
    /// Answers calls of the lock manager over UDP.
    datagrams: Option<ServingTask>,
    registration: Mutex<Option<Registration>>,
    notices: Vec<String>,
    entropy: Entropy,
}

impl NfsServer {
    pub(super) async fn start(context: &ProtocolContext<'_>) -> Result<Self, ServiceError> {
        let ProtocolContext { machine, pools, options, .. } = context;
        let server = weir_nfs::Server::of_pools(Arc::clone(pools) as _);
        let mut server = server.with_clock(&machine.clock);
        let mut notices = Vec::new();
        if let Some(options) = &options.locks
            && let Some(manager) = locks::manager(Arc::clone(pools) as _, machine, options, &mut notices).await
        {
            server = server.with_locks(manager);
        }
        let server = Arc::new(server);
        let listener = listen(context, Protocol::Nfs3, options.nfs_port).await?;
        let address = listener.address();
        // Clients announce their restart over UDP; they repeat it, and everything else works without.
        let socket = match server.has_locks() {
            true => machine.net.datagrams(address).await.inspect_err(|e| tracing::warn!("no UDP: {e}")).ok(),
            false => None,
        };
        let registration = match &options.rpcbind {
            Some(rpcbind) => {
                let has_locks = server.has_locks();
                locks::register(machine, rpcbind.clone(), address, socket.as_ref(), has_locks, &mut notices).await
            }
            None => None,
        };
        let datagrams = socket.map(|socket| {
            ServingTask::start(context, address, |stopped| {
                weir_nfs::serve_datagrams(socket, server.clone(), (*machine).clone(), stopped)
            })
        });
        let serving = ServingTask::start(context, address, |stopped| {
            weir_nfs::serve(listener, server.clone(), (*machine).clone(), stopped)
        });
        let registration = Mutex::new(registration);
        let entropy = machine.entropy.clone();
        Ok(NfsServer { server, serving, datagrams, registration, notices, entropy })
    }
}

impl ProtocolServer for NfsServer {
    fn protocol(&self) -> Protocol {
        Protocol::Nfs3
    }

    fn address(&self) -> SocketAddr {
        self.serving.address
    }

    fn add<'a>(&'a self, exports: &'a Exports) -> BoxFuture<'a, Result<(), ServiceError>> {
        async move {
            let pool = &exports.pool;
            let mut verifier = [0; 8];
            self.entropy.fill(&mut verifier);
            let secrets = Secrets { handles: handle_key(&Request::internal("serve"), pool).await?, verifier };
            self.server.add_pool((pool.guid(), &pool.name()), secrets, pool.accounts());
            Ok(())
        }
        .boxed()
    }

    fn remove(&self, exports: &Exports) {
        self.server.remove_pool(exports.pool.guid());
    }

    fn expect(&self, pools: &BTreeSet<u64>) {
        self.server.expect_pools(pools.clone());
    }

    fn users(&self, exports: &Exports) -> Vec<String> {
        self.server.users(exports.pool.guid())
    }

    fn connections(&self) -> Vec<ClientConnection> {
        self.server.connections()
    }

    fn served_beside_pools(&self) -> RequestTotals {
        self.server.served_beside_pools()
    }

    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    fn lines(&self, exports: &Exports) -> Vec<String> {
        let host = self.address().ip();
        let options = self.mount_options(exports.pool.is_writable());
        let mounts = exports.file_system_names().into_iter().filter(|name| !name.contains('@')).map(|name| {
            let source = shell_quoted(&format!("{}:/{name}", bracketed(host)));
            format!("mount -t nfs {options}{source} /mnt")
        });
        mounts.collect()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async move {
            let registration = self.registration().take();
            if let Some(mut registration) = registration {
                registration.end().await;
            }
            self.serving.stop().await;
            if let Some(datagrams) = &self.datagrams {
                datagrams.stop().await;
            }
        }
        .boxed()
    }
}

impl NfsServer {
    fn registration(&self) -> MutexGuard<'_, Option<Registration>> {
        self.registration.lock()
    }

    /// The options of `mount` that clients need: none if rpcbind tells them the ports.
    fn mount_options(&self, is_writable: bool) -> String {
        let port = self.address().port();
        let registration = self.registration();
        let has = |program| registration.as_ref().is_some_and(|registration| registration.has(program));
        let is_found = has(nfs3::PROGRAM) && has(mount::PROGRAM);
        let mut options = Vec::new();
        if is_found {
            options.extend((!is_writable).then(|| "ro".to_owned()));
        } else {
            options.push(format!("{},vers=3,tcp", if is_writable { "rw" } else { "ro" }));
        }
        options.extend((!has(nlm::PROGRAM)).then(|| "nolock".to_owned()));
        options.extend((!is_found).then(|| format!("port={port},mountport={port}")));
        if options.is_empty() { String::new() } else { format!("-o {} ", options.join(",")) }
    }
}

/// MAC key of NFS handles. It must be the same whenever and wherever this pool is served, so that clients' handles
/// survive a restart. It is derived from the GUID of the root dataset, which was chosen at random when the pool was
/// created and which no front end reveals.
async fn handle_key(rq: &Request, pool: &OpenPool) -> Result<[u8; 32], PoolError> {
    let root = pool.dsl(rq).await?.find(rq, &pool.name()).await?.phys.guid;
    let mut hasher = blake3::Hasher::new_derive_key("weir nfs file handles 1");
    for word in [pool.guid(), root] {
        hasher.update(&word.to_le_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}
