//! Decisions about the calls of clients: grace period, permissions, owners.
//!
//! Order of locks: the record of clients is held across the store of its file; no other lock is taken under it. The table of
//! grants is held for a look-up.

use super::grants::{Grant, Grants};
use super::wire::{LockArguments, LockResult, ShareArguments, Status, WireLock};
use crate::nfs3::Context;
use crate::nsm::record::{MAX_CLIENTS, Record};
use crate::rpc_client::{Procedure, RpcClient};
use crate::rpcbind;
use crate::wire::Encoder;
use futures_util::lock::Mutex as AsyncMutex;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_front::FileLocks;
use weir_front::files::{FileError, FileId};
use weir_front::locks::{GrantCallback, LockError, LockOutcome, LockOwner};
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Nanos, StateFile};

/// Attempts to tell a client that it holds a lock that it waited for.
pub const GRANT_ATTEMPTS: u32 = 6;

/// Options of a lock manager.
#[derive(Clone)]
pub struct LockOptions {
    /// Where the clients are recorded that a restart is announced to.
    pub record: Arc<dyn StateFile>,
    /// Length of the grace period after a restart.
    pub grace: Duration,
    /// Name of this host, as clients may know it.
    pub host_name: String,
}

impl LockOptions {
    /// The usual grace period: clients are notified within seconds, and repeat refused requests every few seconds.
    pub const GRACE: Duration = Duration::from_secs(45);
}

/// The lock manager and status monitor of a server.
pub struct LockManager {
    pub(super) me: Weak<LockManager>,
    pub(super) locks: Arc<dyn FileLocks>,
    pub(super) machine: Machine,
    pub(super) rpc: RpcClient,
    pub(super) grants: Grants,
    options: LockOptions,
    record: AsyncMutex<Record>,
    /// End of the grace period.
    grace_until: Mutex<Option<Nanos>>,
}

/// The client of a call.
pub(crate) struct LockCaller<'a> {
    pub(crate) context: &'a Context<'a>,
    /// Address of the client.
    pub(crate) peer: &'a Arc<str>,
    /// Whether it uses the message form, and so expects it.
    pub(crate) uses_messages: bool,
}

impl LockCaller<'_> {
    fn owner(&self, process: u32, handle: &[u8]) -> LockOwner {
        LockOwner { client: self.peer.clone(), process, handle: handle.into() }
    }

    fn file(&self, handle: &[u8]) -> Result<FileId, Status> {
        self.context.id(handle).map_err(|status| match status {
            // The client asks again, as in the grace period.
            crate::status::Status::JukeBox => Status::DeniedGracePeriod,
            _ => Status::StaleHandle,
        })
    }

    /// File and owner of a lock.
    fn target(&self, lock: &WireLock<'_>) -> Result<(FileId, LockOwner), Status> {
        Ok((self.file(lock.file)?, self.owner(lock.process, lock.owner)))
    }
}

/// The address of a client by its name in the accounts; an IPv4 address that came over IPv6 as what it is.
pub(super) fn address(peer: &str) -> Option<IpAddr> {
    peer.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// Maps lock errors to statuses.
fn status(error: &LockError) -> Status {
    match error {
        LockError::Deadlock => Status::Deadlock,
        LockError::TooMany => Status::DeniedNoLocks,
        LockError::File(FileError::ReadOnly) => Status::ReadOnly,
        LockError::File(FileError::Stale | FileError::NotFound) => Status::StaleHandle,
        LockError::File(FileError::TryAgain) => Status::DeniedGracePeriod,
        // Also without permission: DENIED would mean that another lock is in the way.
        LockError::File(_) => Status::Failed,
    }
}

impl LockManager {
    /// The lock manager of these files.
    pub fn new(locks: Arc<dyn FileLocks>, machine: &Machine, options: LockOptions) -> Arc<Self> {
        Arc::new_cyclic(|me| LockManager {
            me: me.clone(),
            locks,
            machine: machine.clone(),
            rpc: RpcClient::new(machine),
            grants: Grants::default(),
            options,
            record: AsyncMutex::default(),
            grace_until: Mutex::default(),
        })
    }

    /// Reads the record of clients, stores the new state number, starts the grace period if there were clients, and tells
    /// them of the restart. Call it before the first call is answered.
    ///
    /// # Errors
    /// If the record cannot be read or stored: then clients would not learn of the next restart.
    pub async fn start(&self) -> std::io::Result<()> {
        let stored = self.options.record.read().await?;
        let record = stored.as_deref().map_or(Some(Record::default()), Record::decode).unwrap_or_else(|| {
            tracing::warn!("the record of clients with locks is damaged; this restart is not announced to them");
            Record::default()
        });
        let record = record.restarted();
        self.options.record.replace(record.encode()).await?;
        if !record.clients.is_empty() {
            let until = self.machine.clock.now() + self.options.grace;
            *self.grace_until.lock() = Some(until);
            tracing::info!(clients = record.clients.len(), grace = ?self.options.grace, "clients may reclaim locks");
        }
        for client in record.clients.keys() {
            self.notify(*client, record.state);
        }
        *self.record.lock().await = record;
        Ok(())
    }

    /// Whether only reclaimed locks are granted now.
    pub fn is_in_grace(&self) -> bool {
        let mut until = self.grace_until.lock();
        *until = until.filter(|until| self.machine.clock.now() < *until);
        until.is_some()
    }

    /// The state number of this start.
    pub(crate) async fn state(&self) -> u32 {
        self.record.lock().await.state
    }

    pub(super) fn host_name(&self) -> &str {
        &self.options.host_name
    }

    /// Records a client on stable storage, so that the next restart is announced to it.
    async fn monitor(&self, peer: &str, name: &[u8]) -> std::io::Result<()> {
        let Some(address) = address(peer) else { return Ok(()) };
        let mut record = self.record.lock().await;
        let mut new = record.clone();
        if !new.add(address, name) {
            return Ok(());
        }
        if new.clients.len() > MAX_CLIENTS / 2 {
            let is_needed = |client: &IpAddr| *client == address || self.locks.has_client(&client.to_string());
            new.clients.retain(|client, _| is_needed(client));
        }
        if new.clients.len() > MAX_CLIENTS {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        self.options.record.replace(new.encode()).await?;
        *record = new;
        Ok(())
    }

    /// Releases what a client held before it restarted.
    pub(crate) fn client_restarted(&self, peer: &str) {
        self.grants.forget_client(peer);
        self.locks.release_client(peer);
        debug_assert!(!self.locks.has_client(peer), "a client keeps locks after its restart");
    }

    pub(super) async fn test(&self, caller: &LockCaller<'_>, arguments: &LockArguments<'_>) -> LockResult {
        let LockArguments { cookie, lock: wire, .. } = arguments;
        let tested = async {
            if self.is_in_grace() {
                return Err(Status::DeniedGracePeriod);
            }
            let (file, owner) = caller.target(wire)?;
            let Context { rq, caller, .. } = caller.context;
            self.locks.test_lock(rq, caller, file, &owner, arguments.lock()).await.map_err(|error| status(&error))
        };
        match tested.await {
            Ok(None) => LockResult::new(cookie, Status::Granted),
            Ok(holder) => LockResult { holder, ..LockResult::new(cookie, Status::Denied) },
            Err(status) => LockResult::new(cookie, status),
        }
    }

    pub(super) async fn lock(
        &self,
        caller: &LockCaller<'_>,
        arguments: &LockArguments<'_>,
        is_monitored: bool,
    ) -> LockResult {
        let status = self.try_lock(caller, arguments, is_monitored).await.unwrap_or_else(|status| status);
        LockResult::new(arguments.cookie, status)
    }

    async fn try_lock(
        &self,
        caller: &LockCaller<'_>,
        arguments: &LockArguments<'_>,
        is_monitored: bool,
    ) -> Result<Status, Status> {
        if self.is_in_grace() != arguments.reclaims {
            return Err(Status::DeniedGracePeriod);
        }
        let (file, owner) = caller.target(&arguments.lock)?;
        if is_monitored && let Err(error) = self.monitor(caller.peer, arguments.lock.caller).await {
            tracing::warn!(client = %caller.peer, %error, "no lock is granted: the client cannot be recorded");
            return Err(Status::DeniedNoLocks);
        }
        let lock = arguments.lock();
        let grant = Grant {
            file,
            owner: owner.clone(),
            lock,
            handle: arguments.lock.file.into(),
            uses_messages: caller.uses_messages,
        };
        let me = self.me.clone();
        let granted = arguments.blocks.then(|| -> GrantCallback {
            Box::new(move || {
                if let Some(manager) = me.upgrade() {
                    manager.granted(grant);
                }
            })
        });
        let Context { rq, caller, .. } = caller.context;
        match self.locks.lock(rq, caller, file, &owner, lock, granted).await {
            Ok(LockOutcome::Granted) => {
                // The client knows now; no call is needed.
                self.grants.forget(file, &owner, lock);
                Ok(Status::Granted)
            }
            Ok(LockOutcome::Denied(_)) => Ok(Status::Denied),
            Ok(LockOutcome::Waiting) => Ok(Status::Blocked),
            Err(error) => Err(status(&error)),
        }
    }

    /// Ends a request that waits. If it was granted meanwhile and the client does not know, the lock is released.
    pub(super) fn cancel(&self, caller: &LockCaller<'_>, arguments: &LockArguments<'_>) -> LockResult {
        let status = match caller.target(&arguments.lock) {
            _ if self.is_in_grace() => Status::DeniedGracePeriod,
            Err(status) => status,
            Ok((file, owner)) => {
                let lock = arguments.lock();
                if !self.locks.cancel_lock(file, &owner, lock) && self.grants.forget(file, &owner, lock) {
                    self.release(file, &owner, lock);
                }
                Status::Granted
            }
        };
        LockResult::new(arguments.cookie, status)
    }

    pub(super) fn unlock(&self, caller: &LockCaller<'_>, arguments: &LockArguments<'_>) -> LockResult {
        let status = match caller.target(&arguments.lock) {
            _ if self.is_in_grace() => Status::DeniedGracePeriod,
            Err(status) => status,
            Ok((file, owner)) => match self.locks.unlock(file, &owner, arguments.lock()) {
                Ok(()) => {
                    self.grants.forget_within(file, &owner, arguments.lock());
                    Status::Granted
                }
                Err(error) => status(&error),
            },
        };
        LockResult::new(arguments.cookie, status)
    }

    pub(super) async fn share(
        &self,
        caller: &LockCaller<'_>,
        arguments: &ShareArguments<'_>,
        takes: bool,
    ) -> LockResult {
        let shared = async {
            if self.is_in_grace() != arguments.reclaims {
                return Err(Status::DeniedGracePeriod);
            }
            let file = caller.file(arguments.file)?;
            let owner = caller.owner(0, arguments.owner);
            if !takes {
                self.locks.unshare(file, &owner);
                return Ok(true);
            }
            if self.monitor(caller.peer, arguments.caller).await.is_err() {
                return Err(Status::DeniedNoLocks);
            }
            let Context { rq, caller, .. } = caller.context;
            let shared = self.locks.share(rq, caller, file, &owner, arguments.access, arguments.deny).await;
            shared.map_err(|error| status(&error))
        };
        let status = match shared.await {
            Ok(true) => Status::Granted,
            Ok(false) => Status::Denied,
            Err(status) => status,
        };
        LockResult { has_sequence: true, ..LockResult::new(arguments.cookie, status) }
    }

    /// Releases a lock that the client does not know it holds.
    pub(super) fn release(&self, file: FileId, owner: &LockOwner, lock: weir_front::locks::Lock) {
        if let Err(error) = self.locks.unlock(file, owner, lock) {
            tracing::warn!(client = %owner.client, %error, "a lock that its client refused stays");
        }
    }

    /// Calls a procedure of a client's lock manager in the background; its reply is empty.
    pub(super) fn send(&self, peer: &Arc<str>, procedure: Procedure, arguments: Encoder) {
        let Some(manager) = self.me.upgrade() else { return };
        let peer = peer.clone();
        drop(self.machine.tasks.spawn(async move {
            if let Err(error) = manager.call_client(&peer, procedure, &arguments).await {
                tracing::info!(client = %peer, %error, "the result of a lock call did not reach the client");
            }
        }));
    }

    /// Calls a procedure of a client's lock manager.
    pub(super) async fn call_client(
        &self,
        peer: &str,
        procedure: Procedure,
        arguments: &Encoder,
    ) -> Result<Vec<u8>, crate::rpc_client::CallError> {
        let address = address(peer).ok_or(std::io::Error::from(std::io::ErrorKind::AddrNotAvailable))?;
        Ok(rpcbind::call(&self.rpc, address, procedure, arguments).await?.bytes)
    }
}
