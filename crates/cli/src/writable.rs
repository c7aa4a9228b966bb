//! Pools opened for writing, for one command or for as long as they are served.
//!
//! A command whose pool is open in this process uses that engine. Otherwise it locks the devices ([`crate::locks`]),
//! imports the pool, makes its changes in txgs, and closes it. A pool that was in use stays in use by this machine, so
//! the next command needs no `-f`. Commands refuse a pool that is exported, until it is imported; `weir serve` and `weir
//! mount` open it, and export it again when they end.

use crate::admin::ServedPool;
use crate::cache_file;
use crate::call::{Call, PoolOwner};
use crate::failure::Failure;
use crate::limits::Limits;
use crate::locks::{Locks, lock};
use crate::open_elsewhere::OpenElsewhere;
use crate::pools::readers_daemon_for;
use crate::reading::is_called;
use crate::turn::in_turn_of;
use futures_util::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use weir_admin::{ChangeMonitor, LuaProgram, MountEffect, ProgramEnd, Query, Refusal, Row};
use weir_engine::read_only::READ_ONLY;
use weir_engine::{DirtyLimits, Engine, Host, ImportOptions};
use weir_machine::Machine;
use weir_pool::assemble::state;
use weir_pool::{FoundPool, OpenOptions, PoolError, Rewind, assemble, scan};

/// A pool opened for writing.
pub struct WritablePool {
    /// Machine on which the engine runs.
    pub machine: Machine,
    /// The pool.
    pub engine: Arc<Engine>,
    hold: Hold,
}

/// Owner of the open pool.
enum Hold {
    /// This command, which opened the pool and closes it.
    Own { exported_before: bool, locks: Locks },
    /// The process, which serves the pool.
    Process(Arc<ServedPool>),
}

/// Which pool to open for writing, and how.
#[derive(Clone, Debug, Default)]
pub struct WriteIntent {
    /// Folders and devices to scan.
    pub search: Vec<PathBuf>,
    /// Name or GUID of the pool.
    pub pool: String,
    /// Keys of encrypted datasets.
    pub keys: Vec<(String, Vec<u8>)>,
    /// Open the pool even if another machine used it last or it was destroyed.
    pub force: bool,
    /// Which txg to go back to.
    pub rewind: Rewind,
    /// Go back to the pool's checkpoint.
    pub to_checkpoint: bool,
    /// Discard the intent logs on missing log devices.
    pub without_logs: bool,
    /// Open the pool read-only, in a process that keeps it open (`zpool import -o readonly=on`).
    pub read_only: bool,
    /// Whether the command may use a pool that is open read-only.
    pub accepts_read_only: bool,
    /// New name of the pool, if it is renamed.
    pub new_name: Option<String>,
    /// Whether the new name lasts until the pool is closed, and is not written to it.
    pub is_temporary: bool,
    /// Memory limits; `None` for the limits of a short command.
    pub limits: Option<Limits>,
}

/// Finds the pool with that name or GUID; only among destroyed pools if `destroyed`, else only among the others.
pub fn find<'a>(
    pools: impl Iterator<Item = &'a FoundPool>,
    name: &str,
    destroyed: bool,
) -> Result<&'a FoundPool, Failure> {
    let alive = |p: &&FoundPool| destroyed == (p.config.state == state::DESTROYED);
    let mut found = pools.filter(alive).filter(|p| p.config.name == name || p.config.guid.to_string() == name);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Failure::failed(format!("cannot open '{name}': no such pool"))),
        (Some(_), Some(_)) => {
            Err(Failure::failed(format!("cannot open '{name}': more than one pool has that name; use its number")))
        }
    }
}

/// The failure of a user's command about a pool that root's daemon has open and that the user cannot find: permission denied.
fn denied(call: &Call, pool: &str, failure: Failure) -> Failure {
    let Some(daemon) = readers_daemon_for(call, &[]).filter(|_| !failure.is_remote()) else { return failure };
    let mut is_open = false;
    let mut take = |row| is_open |= matches!(row, Row::Pool(open) if is_called(&open, pool));
    match crate::admin::query(call, &daemon, &Query::Pools, &mut take) {
        Ok(Ok(())) if is_open => Failure::failed(format!("cannot open '{pool}': permission denied")),
        _ => failure,
    }
}

/// A pool as its labels describe it.
struct Scanned {
    devices: Vec<PathBuf>,
    guid: u64,
    state: u64,
}

/// Locks the cache devices of a pool that was just opened: only its configuration names them. One that another process has is
/// not used.
fn lock_caches(machine: &Machine, engine: &Engine, locks: &mut Locks) {
    for cache in engine.shown().config.aux.caches {
        let (Some(guid), Some(path)) = (cache.get_u64("guid"), cache.get_str("path")) else { continue };
        match lock(&engine.name(), vec![path.into()]) {
            Ok(more) => locks.join(more),
            Err(failure) => {
                tracing::warn!(path, %failure, "the cache device is not used");
                let _was_in_service = machine.block_on(engine.cache.l2arc().remove(guid));
            }
        }
    }
}

impl WritablePool {
    /// Uses the pool that this process has open, or opens it for the command, after other commands that have it open
    /// have ended.
    ///
    /// # Errors
    /// [`Failure::remote`] if another process has the pool open and accepts commands.
    pub fn of_call(call: &Call, intent: &WriteIntent) -> Result<Self, Failure> {
        in_turn_of(call, || Self::attempt_of_call(call, intent)).map_err(|failure| denied(call, &intent.pool, failure))
    }

    fn attempt_of_call(call: &Call, intent: &WriteIntent) -> Result<Self, Failure> {
        let machine = call.machine()?;
        match Self::owner(call, intent)? {
            PoolOwner::Theirs(remote) => Err(Failure::remote(&intent.pool, remote)),
            PoolOwner::Ours(served_pool) if served_pool.engine.is_read_only() && !intent.accepts_read_only => {
                Err(Failure::failed(format!("cannot open '{}': {READ_ONLY}", intent.pool)))
            }
            PoolOwner::Ours(served_pool) => {
                let machine = served_pool.machine.clone();
                let engine = served_pool.engine.clone();
                Ok(WritablePool { machine, engine, hold: Hold::Process(served_pool) })
            }
            PoolOwner::Free => {
                Self::check_imported(machine, intent)?;
                let opened = Self::open(machine.clone(), intent).or_else(|failure| match Self::owner(call, intent)? {
                    // It began to accept commands after the first look.
                    PoolOwner::Theirs(remote) if failure.is_busy() => Err(Failure::remote(&intent.pool, remote)),
                    _ => Err(failure),
                });
                let writable = opened?;
                call.begin();
                Ok(writable)
            }
        }
    }

    /// Fails if the pool is exported: it belongs to no host until it is imported.
    fn check_imported(machine: &Machine, intent: &WriteIntent) -> Result<(), Failure> {
        let name = &intent.pool;
        match Self::scan(machine, intent)?.state {
            state::EXPORTED => Err(Failure::failed(format!(
                "cannot open '{name}': it is exported; import it first: zpool import {name}"
            ))),
            _ => Ok(()),
        }
    }

    /// Finds the process that has the pool open.
    fn owner(call: &Call, intent: &WriteIntent) -> Result<PoolOwner, Failure> {
        if let Some(served_pool) = call.served_pool(&intent.pool) {
            return Ok(PoolOwner::Ours(served_pool));
        }
        let elsewhere = OpenElsewhere::in_places(call, &intent.search)?;
        if let Some(server) = elsewhere.holder(&intent.pool).filter(|_| !call.has_begun()) {
            return Ok(PoolOwner::Theirs(server));
        }
        let assembly = elsewhere.others(call, &intent.search)?;
        let found = find(assembly.pools.values(), &intent.pool, false);
        Ok(found.map_or(PoolOwner::Free, |found| call.owner_of(found)))
    }

    /// The served pool, if this process serves it.
    pub fn served_pool(&self) -> Option<&Arc<ServedPool>> {
        match &self.hold {
            Hold::Own { .. } => None,
            Hold::Process(served_pool) => Some(served_pool),
        }
    }

    /// Whether the pool was exported before this command imported it, and is exported again when it is closed.
    pub fn was_exported(&self) -> bool {
        matches!(self.hold, Hold::Own { exported_before: true, .. })
    }

    /// Gives the locks of the devices to the caller, who holds them until the pool is closed; `None` if the process serves the pool.
    pub fn take_locks(&mut self) -> Option<Locks> {
        match &mut self.hold {
            Hold::Own { locks, .. } => Some(std::mem::take(locks)),
            Hold::Process(_) => None,
        }
    }

    /// Locks the devices of a pool and opens it.
    pub fn open(machine: Machine, intent: &WriteIntent) -> Result<Self, Failure> {
        let first = Self::scan(&machine, intent)?;
        let mut locks = lock(&intent.pool, first.devices.clone())?;
        // Another command may have changed the pool between the scan and the lock.
        let locked = Self::scan(&machine, intent)?;
        if locked.devices != first.devices || locked.guid != first.guid {
            let line = format!("cannot open '{}': another command changed its devices at the same time", intent.pool);
            return Err(Failure::not_yet(line, "another command"));
        }
        let exported_before = locked.state == state::EXPORTED;
        let mut open = OpenOptions::new(intent.search.clone(), locked.guid.to_string());
        open.keys = intent.keys.clone();
        open.rewind = intent.rewind;
        open.checkpoint = intent.to_checkpoint;
        let limits = intent.limits.clone().unwrap_or_else(Limits::of_command);
        open.arc_bytes = limits.arc_bytes;
        let mut options = ImportOptions::new(open);
        options.dirty = DirtyLimits::new(limits.dirty_bytes);
        options.host = host();
        options.force = intent.force;
        options.without_logs = intent.without_logs;
        options.read_only = intent.read_only;
        options.new_name = intent.new_name.clone();
        options.is_temporary = intent.is_temporary;
        let cannot = |error: PoolError| Failure::failed(format!("cannot open '{}': {error}", intent.pool));
        let engine = machine.block_on(Engine::import(&machine, &options)).map_err(cannot)?;
        if !intent.read_only {
            lock_caches(&machine, &engine, &mut locks);
        }
        Ok(WritablePool { machine, engine, hold: Hold::Own { exported_before, locks } })
    }

    /// Finds the pool to open.
    fn scan(machine: &Machine, intent: &WriteIntent) -> Result<Scanned, Failure> {
        let assembly = assemble(machine.block_on(scan(machine, &intent.search))?);
        let destroyed = intent.force && find(assembly.pools.values(), &intent.pool, false).is_err();
        let found = find(assembly.pools.values(), &intent.pool, destroyed)?;
        let devices = found.leaves().map(|device| device.path.clone()).collect();
        Ok(Scanned { devices, guid: found.config.guid, state: found.config.state })
    }

    /// Wraps a new pool on locked devices.
    pub fn made(machine: Machine, engine: Arc<Engine>, locks: Locks) -> Self {
        WritablePool { machine, engine, hold: Hold::Own { exported_before: false, locks } }
    }

    /// Runs `work` on the pool, then closes the pool. Returns the first error.
    pub fn with<T>(self, work: impl AsyncFnOnce(&Engine) -> Result<T, Failure>) -> Result<T, Failure> {
        let done = self.machine.block_on(work(&self.engine));
        let closed = self.close();
        let value = done?;
        closed.map(|()| value)
    }

    /// Runs `work` on the pool and the process that serves it, then closes the pool. Returns the first error.
    pub fn with_pool<T>(self, work: impl FnOnce(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let done = work(&self);
        let closed = self.close();
        let value = done?;
        closed.map(|()| value)
    }

    /// Closes the pool, and exports it again if it was exported. A served pool stays open and updates its exports.
    pub fn close(self) -> Result<(), Failure> {
        let closed = match &self.hold {
            Hold::Process(served_pool) => return self.machine.block_on(served_pool.renew()),
            Hold::Own { exported_before: true, .. } => self.machine.block_on(self.engine.export()),
            Hold::Own { exported_before: false, .. } => self.machine.block_on(self.engine.stop()),
        };
        closed?;
        cache_file::renew(&self.engine)
    }

    /// Exports or destroys the pool. If this process serves the pool, the process exits.
    pub fn end(self, destroyed: bool) -> Result<(), String> {
        self.machine.block_on(weir_admin::Host::close(&self, destroyed))
    }

    /// The engine and the locks, if this command has opened the pool.
    ///
    /// # Errors
    /// The pool itself, if this process serves it already.
    pub fn into_engine(self) -> Result<(Arc<Engine>, Locks), Arc<ServedPool>> {
        match self.hold {
            Hold::Own { locks, .. } => Ok((self.engine, locks)),
            Hold::Process(served_pool) => Err(served_pool),
        }
    }

    /// Leaves the pool in use by this machine when it is closed, even if it was exported before.
    pub fn stays(mut self) -> Self {
        if let Hold::Own { exported_before, .. } = &mut self.hold {
            *exported_before = false;
        }
        self
    }
}

/// A pool that this command has opened: nothing runs in the background, and no client uses it.
impl weir_admin::Host for WritablePool {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn go_on_scrubbing(&self) {
        if let Some(served_pool) = self.served_pool() {
            served_pool.go_on_scrubbing();
        }
    }

    fn is_scrubbing(&self) -> Result<bool, String> {
        self.served_pool().map_or(Ok(false), |served_pool| served_pool.is_scrubbing())
    }

    fn is_used(&self) -> bool {
        self.served_pool().is_some_and(|served_pool| served_pool.is_used())
    }

    fn clients(&self) -> Vec<String> {
        self.served_pool().map(|served_pool| served_pool.clients()).unwrap_or_default()
    }

    fn chap_users(&self) -> Result<Vec<String>, String> {
        crate::users::chap_names()
    }

    fn share_conflict(&self, dataset: &str, property: &str, value: &str) -> Option<String> {
        self.served_pool()?.share_conflict(dataset, property, value)
    }

    fn prepare_mounts<'a>(
        &'a self,
        effect: &'a MountEffect,
        leaves_mounts: bool,
    ) -> BoxFuture<'a, Result<Vec<u64>, Refusal>> {
        Box::pin(async move {
            match self.served_pool() {
                Some(served_pool) => served_pool.prepare_mounts(effect, leaves_mounts).await,
                None => Ok(Vec::new()),
            }
        })
    }

    fn settle_mounts<'a>(
        &'a self,
        effect: &'a MountEffect,
        leaves_mounts: bool,
        suspended: Vec<u64>,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            match self.served_pool() {
                Some(served_pool) => served_pool.settle_mounts(effect, leaves_mounts, suspended).await,
                None => Ok(()),
            }
        })
    }

    fn run_program(&self, program: LuaProgram, monitor: ChangeMonitor) -> BoxFuture<'_, Result<ProgramEnd, Refusal>> {
        Box::pin(async move {
            let mounted = self.served_pool().map(|served_pool| served_pool.mounts.mounted()).unwrap_or_default();
            Ok(weir_program::run(&self.engine, mounted, program, monitor).await?)
        })
    }

    fn close(&self, destroyed: bool) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            match (&self.hold, destroyed) {
                (Hold::Process(served_pool), _) => served_pool.end(destroyed).await,
                (Hold::Own { .. }, true) => self.engine.destroy().await.map_err(|error| error.to_string()),
                (Hold::Own { .. }, false) => self.engine.export().await.map_err(|error| error.to_string()),
            }
        })
    }
}

/// Host name and host id of this machine for labels: OpenZFS's host id if it is set, else one derived from the
/// persistent machine id.
pub fn host() -> Host {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    Host { id: host_id(), name }
}

fn host_id() -> u64 {
    let module = std::fs::read_to_string("/sys/module/spl/parameters/spl_hostid").ok();
    let of_module = module.and_then(|text| text.trim().parse::<u64>().ok()).filter(|id| *id != 0);
    let of_file = || {
        let bytes = std::fs::read("/etc/hostid").ok()?;
        bytes.first_chunk::<4>().map(|bytes| u64::from(u32::from_le_bytes(*bytes))).filter(|id| *id != 0)
    };
    let of_machine = || {
        let text = std::fs::read_to_string("/etc/machine-id").ok()?;
        u64::from_str_radix(text.trim().get(..8)?, 16).ok().filter(|id| *id != 0)
    };
    of_module.or_else(of_file).or_else(of_machine).unwrap_or(0)
}

/// Error message for a refused change: `cannot destroy 'p/x': dataset is busy`.
pub fn refused(doing: &str, refusal: impl Into<Refusal>) -> Failure {
    let Refusal { why, names, .. } = refusal.into();
    let names = names.iter().map(|name| format!("\n{name}")).collect::<String>();
    Failure::failed(format!("{doing}: {why}{names}"))
}
