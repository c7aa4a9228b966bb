//! The pools that a server serves, and the clients of each.
//!
//! ```text
//!   call ─▶ first argument: handle or path ─▶ pool ─▶ accounts, boot verifier; the handle's key
//!                                               └──▶ recorded at the connection: its client uses the pool
//! ```
//!
//! The table is replaced as a whole when a pool is added or removed: each call works with the table at its beginning.
//!
//! NFS version 3 has no open files: a client uses a pool from its first call on the pool until its connection ends, or until
//! it says that it has unmounted (UMNT).

use crate::handle::Handles;
use crate::rpc::Call;
use crate::server::{Peer, Secrets};
use crate::wire::Decoder;
use crate::{mount, nfs3};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use weir_machine::lock::{Mutex, MutexGuard, RwLock, order};
use weir_machine::{Accounts, Client, Protocol};

/// One pool.
#[derive(Clone)]
pub(crate) struct PoolEntry {
    name: String,
    /// Boot verifier of unstable writes.
    pub(crate) verifier: [u8; 8],
    pub(crate) accounts: Arc<Accounts>,
}

/// The pools at one time.
#[derive(Clone, Default)]
pub(crate) struct Pools {
    pub(crate) handles: Handles,
    by_guid: BTreeMap<u64, PoolEntry>,
}

impl Pools {
    /// GUID of the pool that a call concerns, unverified; `None` if it concerns none of these pools.
    pub(crate) fn pool_of(&self, call: &Call<'_>) -> Option<u64> {
        let argument = Decoder::new(call.arguments).opaque(mount::MAX_PATH_BYTES)?;
        match call.program {
            nfs3::PROGRAM => Handles::pool_of(argument).filter(|guid| self.by_guid.contains_key(guid)),
            mount::PROGRAM => {
                let path = argument.strip_prefix(b"/").unwrap_or(argument);
                let name = path.split(|byte| *byte == b'/').next()?;
                self.by_guid.iter().find(|(_, pool)| pool.name.as_bytes() == name).map(|(guid, _)| *guid)
            }
            _ => None,
        }
    }

    pub(crate) fn get(&self, guid: u64) -> Option<&PoolEntry> {
        self.by_guid.get(&guid)
    }

    /// The accounts of all pools.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Arc<Accounts>> {
        self.by_guid.values().map(|pool| &pool.accounts)
    }
}

/// The table of pools.
#[derive(Default)]
pub(crate) struct PoolTable {
    pools: RwLock<Arc<Pools>, { order::NFS_POOLS }>,
    /// Clients with a connection.
    peers: Mutex<Vec<Weak<Peer>>, { order::NFS_PEERS }>,
}

impl PoolTable {
    /// The table as it is now.
    pub(crate) fn now(&self) -> Arc<Pools> {
        self.pools.read().clone()
    }

    pub(crate) fn add(&self, guid: u64, name: &str, secrets: Secrets, accounts: &Arc<Accounts>) {
        let Secrets { handles, verifier } = secrets;
        let mut pools = self.pools.write();
        let pools = Arc::make_mut(&mut pools);
        pools.handles.add(guid, handles);
        let entry = PoolEntry { name: name.to_owned(), verifier, accounts: accounts.clone() };
        pools.by_guid.insert(guid, entry);
        debug_assert!(pools.by_guid.contains_key(&guid), "the pool is in the table");
    }

    pub(crate) fn expect(&self, guids: BTreeSet<u64>) {
        let mut pools = self.pools.write();
        Arc::make_mut(&mut pools).handles.expect(guids);
    }

    pub(crate) fn remove(&self, guid: u64) {
        let mut pools = self.pools.write();
        let pools = Arc::make_mut(&mut pools);
        pools.handles.remove(guid);
        pools.by_guid.remove(&guid);
        drop(self.peers_that(|peer| peer.uses.forget(guid)));
    }

    /// Records the client of a new connection.
    pub(crate) fn connected(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers();
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Arc::downgrade(peer));
    }

    /// Addresses of the clients that use a pool, each once.
    pub(crate) fn users(&self, guid: u64) -> Vec<String> {
        let users = self.peers_that(|peer| peer.uses.has(guid));
        let names: BTreeSet<String> = users.iter().map(|peer| peer.name.to_string()).collect();
        names.into_iter().collect()
    }

    /// Records that a client has unmounted a pool, or all pools.
    pub(crate) fn unmounted(&self, host: &str, guid: Option<u64>) {
        let forget = |peer: &Peer| match guid {
            _ if &*peer.name != host => false,
            Some(guid) => peer.uses.forget(guid),
            None => peer.uses.forget_all(),
        };
        drop(self.peers_that(forget));
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Weak<Peer>>> {
        self.peers.lock()
    }

    fn peers_that(&self, wanted: impl Fn(&Peer) -> bool) -> Vec<Arc<Peer>> {
        self.peers().iter().filter_map(Weak::upgrade).filter(|peer| wanted(peer)).collect()
    }
}

/// A pool that a connection's client uses, and the client in the pool's accounts.
#[derive(Debug)]
struct Use {
    guid: u64,
    accounts: Weak<Accounts>,
    client: Client,
}

/// The pools that the client of a connection uses. A clone is empty.
#[derive(Debug, Default)]
pub(crate) struct PoolUses(Mutex<Vec<Use>, { order::POOL_USES }>);

impl Clone for PoolUses {
    fn clone(&self) -> Self {
        PoolUses::default()
    }
}

impl PoolUses {
    fn uses(&self) -> MutexGuard<'_, Vec<Use>> {
        self.0.lock()
    }

    /// The client in the accounts of a pool, which it uses from now on.
    pub(crate) fn client(&self, guid: u64, accounts: &Arc<Accounts>, name: &str) -> Client {
        let mut uses = self.uses();
        let is_same = |one: &Use| one.guid == guid && Weak::as_ptr(&one.accounts) == Arc::as_ptr(accounts);
        if let Some(known) = uses.iter().find(|one| is_same(one)) {
            return known.client.clone();
        }
        // A pool that was imported again has new accounts.
        uses.retain(|one| one.guid != guid);
        let client = accounts.client(Protocol::Nfs3, name);
        uses.push(Use { guid, accounts: Arc::downgrade(accounts), client: client.clone() });
        client
    }

    fn has(&self, guid: u64) -> bool {
        self.uses().iter().any(|one| one.guid == guid)
    }

    /// Removes a pool; returns whether it was there.
    fn forget(&self, guid: u64) -> bool {
        let mut uses = self.uses();
        let before = uses.len();
        uses.retain(|one| one.guid != guid);
        uses.len() < before
    }

    fn forget_all(&self) -> bool {
        let mut uses = self.uses();
        let had = !uses.is_empty();
        uses.clear();
        had
    }
}
