//! The record of the pools in the cache file, and those of them that could not be opened, with the reason.
//!
//! They are tried again when the set of their devices that exist changes, once a minute, and at every reload. A reason is logged once,
//! and again only if it changes.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::keeper::Daemon;
use super::opening::OpeningPool;
use crate::admin::ServedPool;
use crate::cache_file::{CacheFile, CachePlace, CachedPool};
use crate::failure::Failure;
use crate::limits::Limits;
use crate::stores::may_exist;
use crate::writable::{WritablePool, WriteIntent};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_admin::{Action, Command, Outcome, ProcessChange, Refusal, RefusalKind};
use weir_format::Txg;
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Machine, Nanos};
use weir_object_store::is_url_path;
use weir_pool::assemble::{Assembly, FoundPool, state};
use weir_pool::{assemble, scan};

/// Time after which a pool is tried again although its devices are as they were.
const TRIED_AGAIN: Duration = Duration::from_secs(60);

/// A pool that is not open.
#[derive(Clone, Debug)]
pub struct MissingPool {
    /// The pool in the cache file.
    pub cached: CachedPool,
    /// Why it could not be opened; empty before the first attempt has ended.
    pub why: String,
    /// Devices of the pool that existed at the last attempt.
    present: BTreeSet<PathBuf>,
    /// When the last attempt ended.
    tried: Option<Nanos>,
}

/// Pools of the cache file that are not open, by GUID.
#[derive(Default)]
pub struct RememberedPools(Mutex<BTreeMap<u64, MissingPool>>);

impl RememberedPools {
    fn pools(&self) -> MutexGuard<'_, BTreeMap<u64, MissingPool>> {
        self.0.lock()
    }

    /// Number of pools.
    pub fn len(&self) -> usize {
        self.pools().len()
    }

    /// Whether a pool is among them.
    fn contains(&self, guid: u64) -> bool {
        self.pools().contains_key(&guid)
    }

    /// Their GUIDs.
    pub fn guids(&self) -> BTreeSet<u64> {
        self.pools().keys().copied().collect()
    }

    /// All of them, by GUID.
    pub fn all(&self) -> Vec<MissingPool> {
        self.pools().values().cloned().collect()
    }

    /// Removes a pool that is open now, or that was exported.
    pub fn remove(&self, guid: u64) {
        self.pools().remove(&guid);
    }

    /// Adds a pool of the cache file.
    pub fn add(&self, cached: CachedPool) {
        let missing = MissingPool { cached, why: String::new(), present: BTreeSet::new(), tried: None };
        self.pools().insert(missing.cached.guid, missing);
    }

    /// Records a failed attempt; returns whether its reason is new. A pool that another command has open is due again at
    /// once.
    fn failed(&self, guid: u64, why: &str, is_busy: bool, now: Nanos) -> bool {
        let mut pools = self.pools();
        let Some(pool) = pools.get_mut(&guid) else { return false };
        let is_new = pool.why != why;
        pool.why = why.to_owned();
        pool.tried = Some(now);
        // Whether a store answers again shows in the next attempt only.
        let is_due = is_busy || pool.cached.paths.iter().any(|path| is_url_path(path));
        pool.present = if is_due { BTreeSet::new() } else { present(&pool.cached) };
        is_new
    }
}

/// Devices of a pool that exist.
fn present(pool: &CachedPool) -> BTreeSet<PathBuf> {
    pool.paths.iter().filter(|path| may_exist(path)).cloned().collect()
}

impl Daemon {
    /// Adds the pools of the cache file that are not open to the remembered ones.
    ///
    /// # Errors
    /// If the cache file cannot be read.
    pub fn remember(&self) -> Result<(), Failure> {
        let cached = CacheFile::usual().map_or(Ok(Vec::new()), |file| file.pools())?;
        let known: BTreeSet<u64> = self.remembered.all().iter().map(|pool| pool.cached.guid).collect();
        let is_open = |guid: u64| self.process.named(&guid.to_string()).is_some();
        cached.into_iter().filter(|pool| !known.contains(&pool.guid) && !is_open(pool.guid)).for_each(|pool| {
            self.remembered.add(pool);
        });
        self.expect_remembered();
        Ok(())
    }

    /// Records the configurations of pools that have changed since the last call: a command has added devices, for example.
    pub fn refresh_cache_files(&self) {
        for pool in self.process.all() {
            if let Err(failure) = self.refresh_cache_file(&pool) {
                tracing::error!("pool '{}': {failure}", pool.engine.name());
            }
        }
    }

    /// Records the configuration of a pool, if it has changed since it was recorded.
    pub(super) fn refresh_cache_file(&self, pool: &ServedPool) -> Result<(), Failure> {
        let config = pool.engine.shown().config.mos_list(Txg(0)).encode_xdr();
        let now = (pool.guid(), config);
        let before = self.cached.lock().get(&pool.key()).cloned();
        if before.as_ref() == Some(&now) {
            return Ok(());
        }
        let place = self.places.lock().get(&pool.key()).cloned().unwrap_or_default();
        let former = before.map(|(guid, _)| guid).filter(|guid| *guid != now.0);
        place.file().map_or(Ok(()), |file| file.put_instead(former, &pool.engine))?;
        self.cached.lock().insert(pool.key(), now);
        Ok(())
    }

    /// Carries out a command on a pool that is not open, and is not being opened: an export removes it from the cache file.
    ///
    /// # Errors
    /// All other commands are refused, with the reason why the pool is not open.
    pub fn carry_out_without_pool(&self, command: &Command) -> Result<Outcome, Refusal> {
        let name = &command.pool;
        let is_named = |pool: &MissingPool| pool.cached.name == *name || pool.cached.guid.to_string() == *name;
        let Some(missing) = self.remembered.all().into_iter().find(is_named) else {
            return Err(Refusal::new(
                RefusalKind::OtherPool,
                "no such pool; 'zpool import' lists those that can be imported",
            ));
        };
        let Action::Process(ProcessChange::Close { destroyed: false, .. }) = command.action else {
            return Err(Refusal::new(RefusalKind::Pool, format!("the pool is not open: {}", missing.why)));
        };
        let guid = missing.cached.guid;
        let forgotten = self.opening.unless_opening(guid, || {
            self.remembered.remove(guid);
            CacheFile::usual().map_or(Ok(()), |file| file.remove(guid))
        });
        let again = || Refusal::new(RefusalKind::Pool, "the pool is being opened again: try once more");
        let forgotten = forgotten.ok_or_else(again)?;
        forgotten.map_err(|failure| Refusal::new(RefusalKind::Pool, failure.line))?;
        self.expect_remembered();
        tracing::info!("pool '{}' ({guid}) is not remembered any more", missing.cached.name);
        Ok(Outcome::Changed)
    }

    /// Tries to open the pools of the cache file that are not open. Without `all`, only those are tried of which a device has appeared or
    /// gone since the last attempt, or whose last attempt was a minute ago: the cause may be gone.
    /// Returns one line for each pool that was opened or could not be.
    pub async fn open_remembered(self: &Arc<Self>, all: bool) -> Vec<String> {
        let mut attempts = Vec::new();
        for pool in self.remembered.all() {
            let is_old = pool.tried.is_some_and(|tried| self.machine.clock.now().since(tried) >= TRIED_AGAIN);
            if all || is_old || present(&pool.cached) != pool.present {
                attempts.push(self.clone().attempt(pool.cached));
            }
        }
        futures_util::future::join_all(attempts).await
    }

    /// Tries to open a remembered pool; returns a line about the outcome.
    async fn attempt(self: Arc<Self>, pool: CachedPool) -> String {
        let guid = pool.guid;
        let opening = OpeningPool { name: pool.name.clone(), since: self.machine.clock.now() };
        let Some(_opening) = self.opening.begin(guid, opening, || self.remembered.contains(guid)) else {
            return format!("pool '{}' is still being opened: 'weir daemon status' shows when it is served", pool.name);
        };
        let opened = self.open(&pool).await;
        let CachedPool { name, guid, .. } = pool;
        let Err(failure) = opened else { return format!("pool '{name}' opened") };
        if self.remembered.failed(guid, &failure.line, failure.is_busy(), self.machine.clock.now()) {
            tracing::error!("pool '{name}' ({guid}) is not served: {failure}");
        }
        format!("pool '{name}' is not served: {failure}")
    }

    /// Imports a pool of the cache file.
    async fn open(self: &Arc<Self>, pool: &CachedPool) -> Result<(), Failure> {
        let mut search: Vec<PathBuf> = pool.paths.iter().filter(|path| may_exist(path)).cloned().collect();
        search.extend(self.pool_dirs());
        if search.is_empty() {
            return Err(Failure::failed(format!("none of its devices exists: {}", shown(&pool.paths))));
        }
        let limits = self.limits_of_pool();
        let machine = self.machine.clone();
        let former = pool.guid;
        let pool = pool.clone();
        let opening = tokio::task::spawn_blocking(move || import(machine, &pool, search, limits)).await;
        let writable = opening.unwrap_or_else(|error| Err(Failure::failed(error.to_string())))?;
        self.adopt(writable, CachePlace::Usual, true).await?;
        // The pool may have another GUID by now: the one that it had in the file is not waited for.
        self.remembered.remove(former);
        self.expect_remembered();
        Ok(())
    }
}

/// GUID of a pool of the cache file in its labels. `zpool reguid` may have changed it in them, and have been killed before it
/// changed the file: then it is the active pool that has leaves of this one. A leaf keeps its GUID.
fn current_guid(assembly: &Assembly, pool: &CachedPool) -> u64 {
    if assembly.pools.contains_key(&pool.guid) {
        return pool.guid;
    }
    let is_it = |found: &FoundPool| {
        found.config.state == state::ACTIVE && found.devices.keys().any(|leaf| pool.leaves.contains(leaf))
    };
    assembly.pools.iter().find(|(_, found)| is_it(found)).map_or(pool.guid, |(guid, _)| *guid)
}

/// Imports a pool of the cache file from these places, unless it was exported or destroyed meanwhile.
fn import(machine: Machine, pool: &CachedPool, search: Vec<PathBuf>, limits: Limits) -> Result<WritablePool, Failure> {
    let assembly = assemble(machine.block_on(scan(&machine, &search))?);
    let guid = current_guid(&assembly, pool);
    match assembly.pools.get(&guid).map(|pool| pool.config.state) {
        Some(state::ACTIVE) => {}
        None => return Err(Failure::failed(format!("no device has its label: {}", shown(&pool.paths)))),
        Some(state::DESTROYED) => return Err(Failure::failed("it was destroyed")),
        Some(_) => {
            let why = format!("it was exported; 'zpool import {}' imports it", pool.name);
            return Err(Failure::failed(why));
        }
    }
    drop(assembly);
    if guid != pool.guid {
        tracing::warn!("pool '{}' has the GUID {guid} in its labels, and {} in the cache file", pool.name, pool.guid);
    }
    let pool = guid.to_string();
    let intent = WriteIntent { search, pool, limits: Some(limits), ..WriteIntent::default() };
    WritablePool::open(machine, &intent)
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
