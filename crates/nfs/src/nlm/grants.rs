//! Locks that were granted to clients that wait, until they know; and the notice of a restart.

use super::manager::{GRANT_ATTEMPTS, LockManager};
use super::wire::{Status, WireLock, result, wire_len};
use super::{GRANTED, GRANTED_MESSAGE, PROGRAM, VERSION};
use crate::nsm;
use crate::rpc_client::{CallError, Procedure};
use crate::rpcbind;
use crate::wire::{Decoder, Encoder};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_front::files::FileId;
use weir_front::locks::{Lock, LockOwner};
use weir_machine::lock::{Mutex, MutexGuard};

/// Time between two attempts to tell a client that it holds a lock.
const GRANT_INTERVAL: Duration = Duration::from_secs(10);
/// Time to the second attempt to tell a client of the restart; it doubles with each further one.
const NOTIFY_INTERVAL: Duration = Duration::from_secs(2);
/// Attempts to tell a client of the restart: about half an hour.
const NOTIFY_ATTEMPTS: u32 = 10;

/// A lock that a client holds and may not know of.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) file: FileId,
    pub(super) owner: LockOwner,
    pub(super) lock: Lock,
    /// Handle of the file, as the client named it.
    pub(super) handle: Arc<[u8]>,
    /// Whether the client expects a message.
    pub(super) uses_messages: bool,
}

#[derive(Debug, Default)]
struct Table {
    grants: BTreeMap<u64, Grant>,
    next: u64,
}

/// Grants by cookie. Their number is bounded by that of the requests that wait, because each was one.
#[derive(Debug, Default)]
pub(super) struct Grants(Mutex<Table>);

impl Grants {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }

    fn add(&self, grant: Grant) -> u64 {
        let mut table = self.table();
        let cookie = table.next;
        table.next += 1;
        let replaced = table.grants.insert(cookie, grant);
        debug_assert!(replaced.is_none(), "two grants have one cookie");
        cookie
    }

    fn get(&self, cookie: u64) -> Option<Grant> {
        self.table().grants.get(&cookie).cloned()
    }

    fn remove(&self, cookie: u64) -> Option<Grant> {
        self.table().grants.remove(&cookie)
    }

    fn retain(&self, keep: impl Fn(&Grant) -> bool) -> bool {
        let mut table = self.table();
        let before = table.grants.len();
        table.grants.retain(|_, grant| keep(grant));
        table.grants.len() < before
    }

    /// Forgets the grants of this lock; false if there is none.
    pub(super) fn forget(&self, file: FileId, owner: &LockOwner, lock: Lock) -> bool {
        self.retain(|grant| (grant.file, &grant.owner, grant.lock) != (file, owner, lock))
    }

    /// Forgets the grants of an owner whose bytes are all within a lock.
    pub(super) fn forget_within(&self, file: FileId, owner: &LockOwner, lock: Lock) {
        let is_within = |grant: &Grant| lock.start <= grant.lock.start && grant.lock.end <= lock.end;
        self.retain(|grant| (grant.file, &grant.owner) != (file, owner) || !is_within(grant));
    }

    /// Forgets all grants of a client.
    pub(super) fn forget_client(&self, peer: &str) {
        self.retain(|grant| &*grant.owner.client != peer);
    }
}

/// Whether a client may have executed a call of which no answer came.
fn may_have_been_executed(error: &CallError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        CallError::TimedOut => true,
        CallError::Connection(error) => {
            matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        }
        CallError::NotRegistered { .. } | CallError::Refused { .. } => false,
    }
}

impl LockManager {
    /// Called when a request that waited is granted: tells the client until it answers.
    pub(super) fn granted(&self, grant: Grant) {
        let cookie = self.grants.add(grant);
        let Some(manager) = self.me.upgrade() else { return };
        // Not `start`: the lock may have been released on a thread without a runtime.
        drop(self.machine.tasks.spawn(async move { manager.tell(cookie).await }));
    }

    async fn tell(&self, cookie: u64) {
        let mut may_know = false;
        for _ in 0..GRANT_ATTEMPTS {
            // The client has asked meanwhile, has released the lock, or has restarted.
            let Some(grant) = self.grants.get(cookie) else { return };
            match self.call_granted(&grant, cookie).await {
                Ok(Some(status)) => {
                    // After an attempt whose answer was lost, a refusal may mean that the client accepted that one.
                    let status = if may_know && status == Status::Denied { Status::Granted } else { status };
                    self.answered(cookie, status);
                }
                Ok(None) => {}
                Err(error) => {
                    may_know |= may_have_been_executed(&error);
                    tracing::debug!(client = %grant.owner.client, %error, "cannot tell the client that it holds a lock");
                }
            }
            if self.grants.get(cookie).is_none() {
                return;
            }
            self.machine.clock.sleep(GRANT_INTERVAL).await;
        }
        if let Some(Grant { file, owner, lock, .. }) = self.grants.remove(cookie) {
            tracing::warn!(client = %owner.client, "released a lock that the client waited for: its lock manager does not answer");
            self.release(file, &owner, lock);
        }
    }

    /// Calls GRANTED of a client; `None` if its answer comes as a call of its own.
    async fn call_granted(&self, grant: &Grant, cookie: u64) -> Result<Option<Status>, CallError> {
        let mut arguments = Encoder::default();
        arguments.opaque(&cookie.to_be_bytes()).bool(grant.lock.is_exclusive);
        let lock = WireLock {
            caller: self.host_name().as_bytes(),
            file: &grant.handle,
            owner: &grant.owner.handle,
            process: grant.owner.process,
            offset: grant.lock.start,
            len: wire_len(grant.lock),
        };
        lock.put(&mut arguments);
        let number = if grant.uses_messages { GRANTED_MESSAGE } else { GRANTED };
        let procedure = Procedure { program: PROGRAM, version: VERSION, number };
        let reply = self.call_client(&grant.owner.client, procedure, &arguments).await;
        match (reply, grant.uses_messages) {
            // Some clients do not reply to messages at all.
            (Ok(_) | Err(CallError::TimedOut), true) => Ok(None),
            (reply, _) => {
                let reply = reply?;
                let (_, status) =
                    result(&mut Decoder::new(&reply)).ok_or(CallError::Refused { why: "not a result" })?;
                Ok(Some(status))
            }
        }
    }

    /// The answer of a client to the message that it holds a lock.
    pub(super) fn granted_result(&self, peer: &str, cookie: &[u8], status: Status) {
        let Some(cookie) = cookie.try_into().ok().map(u64::from_be_bytes) else { return };
        // Only the client that waits may answer.
        if self.grants.get(cookie).is_some_and(|grant| &*grant.owner.client == peer) {
            self.answered(cookie, status);
        }
    }

    fn answered(&self, cookie: u64, status: Status) {
        match status {
            // It asks again later.
            Status::DeniedGracePeriod => {}
            Status::Granted => drop(self.grants.remove(cookie)),
            _ => {
                if let Some(Grant { file, owner, lock, .. }) = self.grants.remove(cookie) {
                    self.release(file, &owner, lock);
                }
            }
        }
    }

    /// Tells a client in the background that this server has restarted.
    pub(super) fn notify(&self, client: IpAddr, state: u32) {
        let Some(manager) = self.me.upgrade() else { return };
        drop(self.machine.tasks.spawn(async move {
            let mut pause = NOTIFY_INTERVAL;
            for _ in 0..NOTIFY_ATTEMPTS {
                match manager.try_notify(client, state).await {
                    Ok(()) => return tracing::info!(%client, "announced this restart to the client"),
                    Err(error) => tracing::debug!(%client, %error, "cannot tell the client of this restart"),
                }
                manager.machine.clock.sleep(pause).await;
                pause *= 2;
            }
            tracing::warn!(%client, "this restart could not be announced to the client, which may have lost its locks");
        }));
    }

    /// Calls NOTIFY with the names under which the client may know this server.
    async fn try_notify(&self, client: IpAddr, state: u32) -> Result<(), CallError> {
        let procedure = Procedure { program: nsm::PROGRAM, version: nsm::VERSION, number: nsm::NOTIFY };
        let arguments = |name: &str| {
            let mut out = Encoder::default();
            out.opaque(name.as_bytes()).u32(state);
            out
        };
        // On this machine, this server is the status monitor: it would take the call for the restart of a client.
        if rpcbind::find(&self.rpc, client, nsm::PROGRAM, nsm::VERSION).await?.is_own {
            return Ok(());
        }
        let reached = rpcbind::call(&self.rpc, client, procedure, &arguments(self.host_name())).await?;
        if let Some(local) = reached.local {
            rpcbind::call(&self.rpc, client, procedure, &arguments(&local.to_canonical().to_string())).await?;
        }
        Ok(())
    }
}
