//! The pools that this process has open for writing: none for an ordinary command, one for `weir mount`, any number for
//! `weir serve` and `weir daemon`.

use crate::admin::ServedPool;
use crate::daemon::Daemon;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use weir_machine::Machine;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_pool::FoundPool;

/// The pools that this process has open.
pub struct PoolProcess {
    /// Machine on which the engines run.
    pub machine: Machine,
    pools: Mutex<BTreeMap<u64, Arc<ServedPool>>, { order::OPEN_POOLS }>,
    daemon: OnceLock<Weak<Daemon>>,
}

impl PoolProcess {
    /// A process without open pools.
    pub fn new(machine: &Machine) -> Arc<Self> {
        Arc::new(PoolProcess { machine: machine.clone(), pools: Mutex::default(), daemon: OnceLock::new() })
    }

    /// A process with one open pool.
    pub fn of_pool(pool: &Arc<ServedPool>) -> Arc<Self> {
        let process = Self::new(&pool.machine);
        process.add(pool);
        process
    }

    fn pools(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ServedPool>>> {
        self.pools.lock()
    }

    /// Adds an open pool.
    pub fn add(&self, pool: &Arc<ServedPool>) {
        let before = self.pools().insert(pool.key(), pool.clone());
        debug_assert!(before.is_none(), "a pool is opened once");
    }

    /// Removes a pool that is being closed, by its key: commands do not find it any more.
    pub fn remove(&self, key: u64) {
        self.pools().remove(&key);
    }

    /// All pools, by name.
    pub fn all(&self) -> Vec<Arc<ServedPool>> {
        let mut all: Vec<_> = self.pools().values().cloned().collect();
        all.sort_by_cached_key(|pool| (pool.engine.name(), pool.guid()));
        all
    }

    /// The pool with this name or GUID.
    pub fn named(&self, name: &str) -> Option<Arc<ServedPool>> {
        let is_named = |pool: &&Arc<ServedPool>| pool.engine.name() == name || pool.guid().to_string() == name;
        self.pools().values().find(is_named).cloned()
    }

    /// The pool that a scan found: same GUID, and a device in common.
    pub fn find(&self, found: &FoundPool) -> Option<Arc<ServedPool>> {
        // Not by the key, which is not the GUID any more after `zpool reguid`.
        self.all().into_iter().find(|pool| pool.has(found))
    }

    /// Paths of the devices of all pools.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.all().iter().flat_map(|pool| pool.paths()).collect()
    }

    /// Updates the exports of all pools.
    ///
    /// # Errors
    /// Errors of reading the datasets.
    pub async fn renew(&self) -> Result<(), Failure> {
        let mut done = Ok(());
        for pool in self.all() {
            done = done.and(pool.renew().await);
        }
        done
    }

    /// Sets the daemon that this process is.
    pub fn set_daemon(&self, daemon: &Arc<Daemon>) {
        // A process is one daemon.
        let _ = self.daemon.set(Arc::downgrade(daemon));
    }

    /// The daemon, if this process is one.
    pub fn daemon(&self) -> Option<Arc<Daemon>> {
        self.daemon.get().and_then(Weak::upgrade)
    }
}
