//! Pools that a command reads: all pools found, or those named, each opened read-only or as a snapshot of the pool that
//! this process has open; and the processes that have pools open.

use crate::admin::ServedPool;
use crate::call::{Call, PoolOwner, errln};
use crate::failure::Failure;
use crate::open_elsewhere::OpenElsewhere;
use crate::options::PoolDirs;
use crate::pools::{self, PoolHandle, search};
use crate::reading::is_called;
use crate::remote::RemoteProcess;
use std::path::PathBuf;
use std::sync::Arc;
use weir_pool::assemble::state;
use weir_pool::{Assembly, FoundPool, OpenOptions, assemble, scan};

/// Memory for each pool's cache: only metadata is read.
const ARC_BYTES: u64 = 64 << 20;

/// Pools opened, and whether some could not be.
pub struct OpenedPools {
    /// Those that could be opened, by name.
    pools: Vec<PoolHandle>,
    /// One line for each pool that could not be opened.
    failures: Vec<String>,
}

impl OpenedPools {
    /// Opens the pools `named`, or all.
    pub fn open(call: &Call, places: &PoolDirs, named: &[String]) -> Result<Self, Failure> {
        let machine = call.machine()?;
        let paths = search(call, &places.dirs)?;
        let assembly = assemble(machine.block_on(scan(machine, &paths))?);
        let mut wanted = Vec::new();
        let mut failures = Vec::new();
        let of = |pool: &FoundPool| (pool.config.name.clone(), pool.config.guid);
        let of_served = |pool: Arc<ServedPool>| (pool.engine.name(), pool.guid());
        for name in named {
            if let Some(pool) = call.served_pool(name) {
                wanted.push(of_served(pool));
                continue;
            }
            match live(&assembly, Some(name)) {
                Ok(found) => wanted.extend(found.into_iter().map(of)),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        if named.is_empty() {
            // The pools that this process has open, also those whose devices are all away.
            wanted.extend(call.served_pools().into_iter().map(of_served));
            wanted.extend(live(&assembly, None)?.into_iter().map(of));
            wanted.sort();
            wanted.dedup();
        }
        drop(assembly);
        let mut pools = Vec::new();
        for (name, guid) in wanted {
            let mut options = OpenOptions::new(paths.clone(), guid.to_string());
            options.arc_bytes = ARC_BYTES;
            match pools::look(call, &options) {
                Ok(pool) => pools.push(pool),
                Err(mut failure) => match failure.take_remote() {
                    Some(remote) => return Err(Failure::remote(&name, remote)),
                    None => failures.push(format!("cannot open '{name}': {failure}")),
                },
            }
        }
        Ok(OpenedPools { pools, failures })
    }

    /// Runs `work` for each pool. An error is recorded as one of its pool, and hides no other pool.
    pub fn each(&mut self, mut work: impl FnMut(&PoolHandle) -> Result<(), Failure>) {
        for pool in &self.pools {
            if let Err(failure) = work(pool) {
                self.failures.push(format!("cannot read '{}': {failure}", pool.name()));
            }
        }
    }

    /// Prints on standard error which pools could not be opened, and returns the exit code.
    pub fn close(&self, call: &Call) -> u8 {
        for line in &self.failures {
            errln!(call, "{line}");
        }
        u8::from(!self.failures.is_empty())
    }
}

/// The pools of that name or number, or all that were not destroyed, by name.
///
/// # Errors
/// If there is none of that name.
pub fn live<'a>(assembly: &'a Assembly, name: Option<&String>) -> Result<Vec<&'a FoundPool>, Failure> {
    let is_named = |own: &str, guid: u64| name.is_none_or(|name| *name == own || *name == guid.to_string());
    let mut found: Vec<_> = assembly.pools.values().filter(|p| p.config.state != state::DESTROYED).collect();
    found.retain(|p| is_named(&p.config.name, p.config.guid));
    if let Some(name) = name.filter(|_| found.is_empty()) {
        return Err(Failure::failed(format!("cannot open '{name}': no such pool")));
    }
    found.sort_by(|a, b| (&a.config.name, a.config.guid).cmp(&(&b.config.name, b.config.guid)));
    Ok(found)
}

/// The processes that have the pool of that name open, or any pool without a name. `why` ends the error if there is
/// none.
pub fn holders(
    call: &Call,
    places: &PoolDirs,
    name: Option<&String>,
    why: &str,
) -> Result<Vec<RemoteProcess>, Failure> {
    let names: Vec<String> = name.cloned().into_iter().collect();
    let mut holders: Vec<RemoteProcess> = Vec::new();
    for (_, remote) in held(call, places, &names, why)? {
        if !holders.contains(&remote) {
            holders.push(remote);
        }
    }
    Ok(holders)
}

/// The pools that other processes have open, by name, each with its process: those named, or all. `why` ends the error if there
/// is none.
///
/// # Errors
/// If a pool is not found or not open.
pub fn held(
    call: &Call,
    places: &PoolDirs,
    names: &[String],
    why: &str,
) -> Result<Vec<(String, RemoteProcess)>, Failure> {
    held_in(call, &search(call, &places.dirs)?, names, why)
}

/// The same, for pools in these places.
///
/// # Errors
/// As [`held`].
pub fn held_in(
    call: &Call,
    paths: &[PathBuf],
    names: &[String],
    why: &str,
) -> Result<Vec<(String, RemoteProcess)>, Failure> {
    let elsewhere = OpenElsewhere::in_places(call, paths)?;
    let assembly = elsewhere.others(call, paths)?;
    let mut out = Vec::new();
    let mut take = |name: Option<&String>| {
        let before = out.len();
        let held = elsewhere.held().filter(|(_, pool)| name.is_none_or(|name| is_called(pool, name)));
        out.extend(held.map(|(server, pool)| (pool.name.clone(), server.clone())));
        let others = match live(&assembly, name) {
            Err(failure) if out.len() == before => return Err(failure),
            others => others.unwrap_or_default(),
        };
        for pool in others {
            if let PoolOwner::Theirs(remote) = call.owner_of(pool) {
                out.push((pool.config.name.clone(), remote));
            }
        }
        let of_pool = name.map_or_else(|| "a pool".to_owned(), |name| format!("pool '{name}'"));
        let not_open = || Failure::failed(format!("no process has {of_pool} open: {why}"));
        if out.len() == before { Err(not_open()) } else { Ok(()) }
    };
    match names {
        [] => take(None)?,
        names => names.iter().try_for_each(|name| take(Some(name)))?,
    }
    Ok(out)
}
