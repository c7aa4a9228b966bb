//! SMB for the file systems of all pools, as `sharesmb` says: see [`crate::smb`].

use super::{ClientLine, ProtocolContext, ProtocolServer, at_changes};
use crate::exports::Exports;
use crate::service::ServiceError;
use crate::smb::SmbFollower;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use weir_front::ClientConnection;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Machine, Protocol, RequestTotals};

/// The SMB server.
pub(super) struct SmbServer {
    follower: Arc<SmbFollower>,
    machine: Machine,
    is_needed: bool,
    /// The tasks that follow the shares of each pool, by its GUID: each ends when its sender is dropped.
    following: Mutex<BTreeMap<u64, watch::Sender<bool>>, { order::FOLLOWING }>,
}

impl SmbServer {
    /// Starts the server; `None` if there are no options for it.
    pub(super) fn start(context: &ProtocolContext<'_>) -> Option<Self> {
        let options = context.options.smb.clone()?;
        let follower = SmbFollower::start(context.machine, context.pools, options);
        let machine = context.machine.clone();
        Some(SmbServer { follower, machine, is_needed: context.options.needs_smb, following: Mutex::default() })
    }

    fn following(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Sender<bool>>> {
        self.following.lock()
    }
}

impl ProtocolServer for SmbServer {
    fn protocol(&self) -> Protocol {
        Protocol::Smb
    }

    fn address(&self) -> SocketAddr {
        self.follower.address()
    }

    fn is_listening(&self) -> bool {
        self.follower.is_running()
    }

    fn problem(&self) -> Option<String> {
        self.follower.problem()
    }

    fn add<'a>(&'a self, exports: &'a Exports) -> BoxFuture<'a, Result<(), ServiceError>> {
        async move {
            let (stop, stopped) = watch::channel(false);
            let follower = self.follower.clone();
            let following = at_changes(exports.shares.changes(), stopped, move || follower.renew());
            // The task ends when the sender is dropped.
            drop(self.machine.tasks.spawn(following));
            self.following().insert(exports.pool.guid(), stop);
            if !self.is_needed {
                self.follower.renew();
                return Ok(());
            }
            self.follower.settle().await;
            self.follower.problem().map_or(Ok(()), |why| Err(ServiceError::Smb { why }))
        }
        .boxed()
    }

    fn remove(&self, exports: &Exports) {
        self.following().remove(&exports.pool.guid());
        // The pool is not in the table any more: its shares and mounts end.
        self.follower.renew();
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        self.follower.settle().boxed()
    }

    fn refresh(&self) -> BoxFuture<'_, ()> {
        self.follower.refresh().boxed()
    }

    fn users(&self, exports: &Exports) -> Vec<String> {
        self.follower.users(exports.pool.guid()).into_iter().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// smbd has the connections; [`SmbServer::clients`] shows them.
    fn connections(&self) -> Vec<ClientConnection> {
        Vec::new()
    }

    fn clients(&self) -> Vec<ClientLine> {
        let connections = self.follower.connections().into_iter();
        let line = |connection: weir_smb::Connection| ClientLine {
            peer: format!("{}@{}", connection.user, connection.address),
            uses: connection.shares.join(", "),
            counted: None,
        };
        connections.map(line).collect()
    }

    fn served_beside_pools(&self) -> RequestTotals {
        self.follower.served_beside_pools()
    }

    fn lines(&self, exports: &Exports) -> Vec<String> {
        self.follower.lines(exports.pool.guid())
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.following().clear();
        self.follower.stop().boxed()
    }
}
