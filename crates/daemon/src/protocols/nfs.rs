//! NFS version 3 for all pools.

use super::{ProtocolContext, ProtocolServer, ServingTask, bracketed, listen, shell_quoted};
use crate::exports::{Exports, OpenPool};
use crate::service::ServiceError;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use weir_front::ClientConnection;
use weir_machine::{Entropy, Protocol, Request, RequestTotals};
use weir_nfs::Secrets;
use weir_pool::PoolError;

/// The NFS server.
pub(super) struct NfsServer {
    server: Arc<weir_nfs::Server>,
    serving: ServingTask,
    entropy: Entropy,
}

impl NfsServer {
    pub(super) async fn start(context: &ProtocolContext<'_>) -> Result<Self, ServiceError> {
        let ProtocolContext { machine, pools, options } = context;
        let server = weir_nfs::Server::of_pools(Arc::clone(pools) as _, options.rules.clone());
        let server = Arc::new(server.with_clock(&machine.clock));
        let listener = listen(machine, options.listen, options.nfs_port).await?;
        let serving = ServingTask::start(machine, listener, |listener, stopped| {
            weir_nfs::serve(listener, server.clone(), (*machine).clone(), stopped)
        });
        Ok(NfsServer { server, serving, entropy: machine.entropy.clone() })
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

    /// `port=` and `mountport=` are given because no port mapper (port 111) runs here.
    fn lines(&self, exports: &Exports) -> Vec<String> {
        let host = self.address().ip();
        let port = self.address().port();
        let how = if exports.pool.is_writable() { "rw" } else { "ro" };
        let file_systems = exports.tree.exports().into_iter().map(|export| export.name);
        let mounts = file_systems.filter(|name| !name.contains('@')).map(|name| {
            let source = shell_quoted(&format!("{}:/{name}", bracketed(host)));
            format!("mount -t nfs -o {how},vers=3,tcp,nolock,port={port},mountport={port} {source} /mnt")
        });
        mounts.collect()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.serving.stop().boxed()
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
