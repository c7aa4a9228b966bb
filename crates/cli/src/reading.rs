//! Pools that a command reads by typed queries: opened by this process, or in the process that has them open.
//!
//! ```text
//!   PoolReader::read(pool, query) ─► the daemon, if the command names no place ──┐ "another pool"
//!                                    the process that has the devices locked ◄───┤
//!                                    this process, read-only                 ◄───┘
//! ```
//!
//! A process that answers that it does not have the pool open may be opening or closing it: the pool is then read from its
//! devices, as one that no process has open.
//!
//! Commands about several pools find them first ([`PoolReader::find`]), read each by its GUID, and print last which pools do not
//! exist, cannot be opened, or cannot be read, in this order.

use crate::admin::{self, ServedPool};
use crate::cache_file::{CacheFile, CachedPool};
use crate::call::{Call, PoolOwner, errln};
use crate::failure::Failure;
use crate::open_elsewhere::OpenElsewhere;
use crate::pools::{self, holder_of, keys_of, search};
use crate::remote::RemoteProcess;
use crate::zpool::opened::live;
use futures_util::future::join;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use weir_admin::{OpenPool, PoolQuery, Query, Refusal, RefusalKind, Row, Rows};
use weir_dsl::MountedFileSystems;
use weir_pool::{FoundPool, OpenOptions, Pool};

/// Memory for the cache of a pool that is read by its GUID: only metadata is read.
const ARC_BYTES: u64 = 64 << 20;

/// Answer to a query: `Err` if it was refused.
pub type Answered = Result<(), Refusal>;

/// Pools in some places, and in the daemon.
pub struct PoolReader<'a> {
    call: &'a Call,
    search: Vec<PathBuf>,
    keys: Vec<(String, Vec<u8>)>,
    daemon: Option<RemoteProcess>,
    /// The pools in the cache file, if neither the command nor the environment names places.
    remembered: Vec<CachedPool>,
}

impl<'a> PoolReader<'a> {
    /// Pools in these places, or else where the caller's environment says, or in the daemon.
    pub fn new(call: &'a Call, dirs: &[OsString]) -> Result<Self, Failure> {
        let daemon = pools::daemon_for(call, dirs);
        let search = match daemon {
            // What the daemon does not have open is open in other processes, or where the environment says.
            Some(_) => pools::places_beside_daemon(call),
            None => search(call, dirs)?,
        };
        let daemon = daemon.or_else(|| pools::readers_daemon_for(call, dirs));
        let is_free = dirs.is_empty() && call.caller.dirs.is_none() && call.process().is_none();
        let file = CacheFile::usual().filter(|_| is_free);
        let remembered = file.and_then(|file| file.pools().ok()).unwrap_or_default();
        Ok(PoolReader { call, search, keys: Vec::new(), daemon, remembered })
    }

    /// The same, with keys of encrypted datasets (`--key`). No query contains a key: a process that has such a pool open runs the
    /// whole command.
    ///
    /// # Errors
    /// [`Failure::remote`] if that process is the daemon.
    pub fn with_keys(call: &'a Call, dirs: &[OsString], keys: &[OsString]) -> Result<Self, Failure> {
        if keys.is_empty() {
            return Self::new(call, dirs);
        }
        let search = search(call, dirs)?;
        let keys = keys_of(call, &search, keys)?;
        Ok(PoolReader { call, search, keys, daemon: None, remembered: Vec::new() })
    }

    /// Names of all pools, sorted; GUIDs of pools with the same name.
    ///
    /// # Errors
    /// If the places cannot be scanned, or the daemon does not answer.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let open = self.pools_of_daemon()?.into_iter().map(|pool| (pool.name, pool.guid)).collect();
        pools::names_with(self.call, &self.search, open)
    }

    /// The pools that the daemon has open; none if the command names places.
    fn pools_of_daemon(&self) -> Result<Vec<OpenPool>, Failure> {
        let mut open = Vec::new();
        if let Some(daemon) = &self.daemon {
            let mut take = |row| {
                if let Row::Pool(pool) = row {
                    open.push(pool);
                }
            };
            admin::query(self.call, daemon, &Query::Pools, &mut take)?.map_err(refused)?;
        }
        Ok(open)
    }

    /// The pools that the daemon or this process has open.
    fn open_pools(&self) -> Result<Vec<OpenPool>, Failure> {
        let own = self.call.served_pools().into_iter();
        let own = own.map(|pool| pool.open_pool());
        Ok(self.pools_of_daemon()?.into_iter().chain(own).collect())
    }

    /// Finds the pools of these names or GUIDs, in their order, or all, by name.
    ///
    /// # Errors
    /// If the places cannot be scanned, or the daemon does not answer. A pool that does not exist is not an error here.
    pub fn find(&self, named: &[String]) -> Result<FoundPools, Failure> {
        let elsewhere = OpenElsewhere::in_places(self.call, &self.search)?;
        let mut open = self.open_pools()?;
        open.extend(elsewhere.pools().cloned());
        open.sort();
        open.dedup_by_key(|pool| pool.guid);
        // The daemon opens the pools of the cache file: one that it does not have open cannot be opened.
        let is_open = |cached: &CachedPool| open.iter().any(|pool| pool.guid == cached.guid);
        let away: Vec<&CachedPool> = self.remembered.iter().filter(|cached| !is_open(cached)).collect();
        let mut places = self.search.clone();
        places.extend(away.iter().flat_map(|cached| &cached.paths).filter(|path| path.exists()).cloned());
        let mut assembly = elsewhere.others(self.call, &places)?;
        let is_absent = |cached: &&CachedPool| !assembly.pools.contains_key(&cached.guid);
        let absent: Vec<OpenPool> = away.into_iter().filter(is_absent).map(remembered_pool).collect();
        // An open pool may have a temporary name, and another one in its labels.
        assembly.pools.retain(|guid, _| !open.iter().any(|pool| pool.guid == *guid));
        let of =
            |pool: &FoundPool| OpenPool { name: pool.config.name.clone(), guid: pool.config.guid, devices: Vec::new() };
        let mut found = FoundPools { places, ..FoundPools::default() };
        found.absent = absent.iter().map(|pool| pool.guid).collect();
        for name in named {
            if let Some(pool) = open.iter().chain(&absent).find(|pool| is_called(pool, name)) {
                found.pools.push(pool.clone());
                continue;
            }
            match live(&assembly, Some(name)) {
                Ok(pools) => found.pools.extend(pools.into_iter().map(of)),
                Err(failure) => found.missing.push(failure.to_string()),
            }
        }
        if named.is_empty() {
            // Also the open pools whose devices are all away.
            found.pools = open;
            found.pools.extend(absent);
            found.pools.extend(live(&assembly, None)?.into_iter().map(of));
            found.pools.sort();
            found.pools.dedup();
        }
        Ok(found)
    }

    /// Whether all of these are names or GUIDs of pools.
    ///
    /// # Errors
    /// If the places cannot be scanned, or the daemon does not answer.
    pub fn are_pools(&self, names: &[String]) -> Result<bool, Failure> {
        let elsewhere = OpenElsewhere::in_places(self.call, &self.search)?;
        let assembly = elsewhere.others(self.call, &self.search)?;
        let mut open = self.open_pools()?;
        open.extend(elsewhere.pools().cloned());
        let is_found = |name: &str| {
            let mut found = assembly.pools.values();
            found.any(|pool| pool.config.name == name || pool.config.guid.to_string() == name)
        };
        Ok(names.iter().all(|name| is_found(name) || open.iter().any(|pool| is_called(pool, name))))
    }

    /// Runs a query on the pool of that name or GUID, and gives each row to `each`.
    ///
    /// # Errors
    /// If the pool cannot be opened, or the process that has it open does not answer. A refusal is not an error here.
    pub fn read(&self, pool: &str, query: PoolQuery, each: &mut dyn FnMut(Row)) -> Result<Answered, Failure> {
        let mut options = OpenOptions::new(self.search.clone(), pool);
        options.keys = self.keys.iter().filter(|(of, _)| of.split('/').next() == Some(pool)).cloned().collect();
        match self.answer(&options, &query, each)? {
            Err(refusal) if refusal.kind == RefusalKind::Unopened => Err(Failure::failed(refusal.why)),
            answer => Ok(answer),
        }
    }

    /// Runs a query on a pool that was found. A pool that cannot be opened is recorded in `found`, and hides no
    /// other pool.
    ///
    /// # Errors
    /// If the process that has the pool open does not answer.
    pub fn read_found(
        &self,
        found: &mut FoundPools,
        pool: &OpenPool,
        query: &PoolQuery,
        each: &mut dyn FnMut(Row),
    ) -> Result<Reached, Failure> {
        let mut options = OpenOptions::new(found.places.clone(), pool.guid.to_string());
        options.arc_bytes = ARC_BYTES;
        let name = &pool.name;
        if found.absent.contains(&pool.guid) {
            let why = "none of its devices can be opened".to_owned();
            found.unopened.push(format!("cannot open '{name}': {why}"));
            return Ok(Reached::Unopened(why));
        }
        match self.answer(&options, query, each)? {
            Ok(()) => Ok(Reached::End),
            Err(Refusal { kind: RefusalKind::Unopened, why, .. }) => {
                found.unopened.push(format!("cannot open '{name}': {why}"));
                Ok(Reached::Unopened(why))
            }
            Err(refusal) => Ok(Reached::Refused(refusal)),
        }
    }

    /// Runs a query on the pool that `options` names. A pool that cannot be opened is a refusal ([`RefusalKind::Unopened`]).
    fn answer(&self, options: &OpenOptions, query: &PoolQuery, each: &mut dyn FnMut(Row)) -> Result<Answered, Failure> {
        let pool = &options.pool;
        let sent = Query::Pool { name: pool.clone(), query: query.clone() };
        if let Some(daemon) = &self.daemon {
            let answer = admin::query(self.call, daemon, &sent, each)?;
            if !is_of_other_pool(&answer) {
                return Ok(answer);
            }
        }
        let owner = match holder_of(self.call, &options.search, pool) {
            Ok(owner) => owner,
            Err(failure) => return Ok(Err(unopened(&failure))),
        };
        let own = match owner {
            PoolOwner::Ours(served_pool) => Some(served_pool),
            PoolOwner::Theirs(remote) if !self.keys.is_empty() => return Err(Failure::remote(pool, remote)),
            PoolOwner::Theirs(remote) if self.daemon.as_ref().is_none_or(|daemon| daemon.pid != remote.pid) => {
                let answer = admin::query(self.call, &remote, &sent, each)?;
                if !is_of_other_pool(&answer) {
                    return Ok(answer);
                }
                None
            }
            PoolOwner::Theirs(_) | PoolOwner::Free => None,
        };
        run_here(self.call, own.as_deref(), options, query, each)
    }
}

/// Runs a query in this process, which has the pool open if there is a `served_pool`, and gives each row to `each`. A pool that
/// cannot be opened is a refusal.
///
/// # Errors
/// If there is no machine. A refusal is not an error here.
pub fn run_here(
    call: &Call,
    served_pool: Option<&ServedPool>,
    options: &OpenOptions,
    query: &PoolQuery,
    each: &mut dyn FnMut(Row),
) -> Result<Answered, Failure> {
    let machine = call.machine()?;
    receive(call, each, async |rows| {
        match served_pool {
            Some(served_pool) => {
                // Its own devices, wherever the command looks for other pools.
                let options = OpenOptions { search: served_pool.device_paths(), ..options.clone() };
                query.run_open(&served_pool.engine, &options, &served_pool.mounts.mounted(), rows).await
            }
            None => match Pool::open(machine, options).await {
                Ok(opened) => query.run(&opened, &MountedFileSystems::default(), rows).await,
                Err(error) if pools::is_absence(&error) => {
                    Err(unopened(&format!("cannot open '{}': dataset does not exist", options.pool)))
                }
                Err(error) => Err(unopened(&error)),
            },
        }
    })
}

/// Runs a query in this process, and gives each row to `each`. The query stops if the reader of the output has gone away.
///
/// # Errors
/// If there is no machine. A refusal is not an error here.
pub fn receive(
    call: &Call,
    each: &mut dyn FnMut(Row),
    query: impl AsyncFnOnce(Rows) -> Answered,
) -> Result<Answered, Failure> {
    let (rows, mut received) = Rows::channel();
    let receive = async {
        // Dropping the receiver stops the query.
        while let Some(row) = received.next().await {
            each(row);
            call.wait_for_output().await;
            if call.is_gone() {
                break;
            }
        }
        drop(received);
    };
    let (answer, ()) = call.machine()?.block_on(join(query(rows), receive));
    Ok(answer)
}

/// How far a query about a pool that was found came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The pool cannot be opened, and the reason.
    Unopened(String),
    /// The pool was opened, and the reason why not all rows can be read.
    Refused(Refusal),
    /// All rows were read.
    End,
}

/// Pools that a command reads, and the messages about those that cannot be read.
#[derive(Default)]
pub struct FoundPools {
    /// The pools.
    pub pools: Vec<OpenPool>,
    /// Places in which they were looked for.
    pub places: Vec<PathBuf>,
    /// GUIDs of pools of the cache file of which no device was found.
    absent: BTreeSet<u64>,
    /// Messages about names that are no pool's.
    missing: Vec<String>,
    /// Messages about pools that cannot be opened.
    unopened: Vec<String>,
    /// Messages about pools that cannot be read.
    unread: Vec<String>,
}

impl FoundPools {
    /// Records that a pool cannot be read, which hides no other pool.
    pub fn unread(&mut self, pool: &OpenPool, why: &str) {
        self.unread.push(format!("cannot read '{}': {why}", pool.name));
    }

    /// Withdraws the message about the last pool that could not be opened: the output shows it.
    pub fn show_unopened(&mut self) {
        self.unopened.pop();
    }

    /// Whether there is neither a pool nor a message.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty() && !self.has_failed()
    }

    /// Whether there is a message.
    pub fn has_failed(&self) -> bool {
        !(self.missing.is_empty() && self.unopened.is_empty() && self.unread.is_empty())
    }

    /// Prints on standard error which pools could not be read, and returns the exit code.
    pub fn close(&self, call: &Call) -> u8 {
        let mut code = 0;
        for line in self.missing.iter().chain(&self.unopened).chain(&self.unread) {
            errln!(call, "{line}");
            code = 1;
        }
        code
    }
}

fn remembered_pool(cached: &CachedPool) -> OpenPool {
    OpenPool { name: cached.name.clone(), guid: cached.guid, devices: Vec::new() }
}

/// Whether a pool has that name or GUID.
pub fn is_called(pool: &OpenPool, name: &str) -> bool {
    pool.name == name || pool.guid.to_string() == name
}

fn unopened(error: &impl std::fmt::Display) -> Refusal {
    Refusal::new(RefusalKind::Unopened, error.to_string())
}

fn is_of_other_pool(answer: &Answered) -> bool {
    answer.as_ref().is_err_and(|refusal| refusal.kind == RefusalKind::OtherPool)
}

/// The failure that a refused query is.
pub fn refused(refusal: Refusal) -> Failure {
    match (refusal.kind, refusal.names.first()) {
        (RefusalKind::Missing, Some(name)) => Failure::failed(format!("cannot open '{name}': {}", refusal.why)),
        _ => Failure::failed(refusal.why),
    }
}
