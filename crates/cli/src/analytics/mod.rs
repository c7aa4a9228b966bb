//! Commands that show what pools do: they ask the processes that have the pools open for their counters, and print differences.

pub mod arcstat;
mod arcstat_fields;
pub mod recent;
pub mod store;
pub mod top;
mod top_text;
pub mod why;

use crate::admin;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools;
use crate::reading::is_called;
use crate::remote::RemoteProcess;
use crate::zpool::holder::PoolHolder;
use crate::zpool::opened::{held, held_in};
use weir_admin::{Action, Command, OpenPool, Outcome};
use weir_analytics::{FileTable, Interval, PoolObservation, Sample};

/// Pools whose counters are read again and again.
pub struct Watched {
    pools: Vec<(String, RemoteProcess)>,
    last: Vec<Option<Sample>>,
}

impl Watched {
    /// Finds the pools of these names, or all pools, that other processes have open.
    ///
    /// # Errors
    /// If a pool is not open.
    pub fn find(call: &Call, places: &PoolDirs, names: &[String]) -> Result<Self, Failure> {
        let why = "what it does is counted by the process that has (weir daemon, serve, mount, demo)";
        let pools = open_pools(call, places, names, why)?;
        let last = pools.iter().map(|_| None).collect();
        Ok(Watched { pools, last })
    }

    /// Number of pools.
    pub fn len(&self) -> usize {
        self.pools.len()
    }

    /// Present counters of each pool.
    ///
    /// # Errors
    /// If a process does not answer.
    pub fn samples(&self, call: &Call) -> Result<Vec<Sample>, Failure> {
        self.pools.iter().map(|(name, remote)| sample(call, name, remote)).collect()
    }

    /// Work of each pool since the last call; in the first call, since its process opened it.
    ///
    /// # Errors
    /// If a process does not answer.
    pub fn next(&mut self, call: &Call) -> Result<Vec<Interval>, Failure> {
        let mut out = Vec::new();
        for ((name, remote), last) in self.pools.iter().zip(&mut self.last) {
            let sample = sample(call, name, remote)?;
            out.push(Interval::between(last.as_ref(), &sample));
            *last = Some(sample);
        }
        Ok(out)
    }

    /// Gives the files of an interval of the pool with this place the paths that its process finds.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn name_files(&self, call: &Call, place: usize, files: &mut FileTable) -> Result<(), Failure> {
        let Some((name, remote)) = self.pools.get(place).filter(|_| !files.rows.is_empty()) else { return Ok(()) };
        let wanted = files.rows.iter().map(|row| (row.objset, row.object)).collect();
        let command = Command { pool: name.clone(), line: String::new(), action: Action::Paths { files: wanted } };
        match admin::send(call, remote, &command)? {
            Ok(Outcome::Paths(found)) => {
                files.rows.iter_mut().zip(found).for_each(|(row, path)| row.path = path);
                Ok(())
            }
            Ok(_) => Err(Failure::failed(format!("process {} answers with something else than paths", remote.pid))),
            Err(refusal) => Err(Failure::failed(refusal.why)),
        }
    }
}

/// Whether a daemon runs, and neither it nor another process has a pool open.
///
/// # Errors
/// If the daemon does not answer.
pub fn has_daemon_without_pools(call: &Call, places: &PoolDirs) -> Result<bool, Failure> {
    let Some(daemon) = pools::daemon_for(call, &places.dirs) else { return Ok(false) };
    let of_daemon = PoolHolder::Other(daemon).pools(call, None)?;
    Ok(of_daemon.is_empty() && held_in(call, &pools::places_beside_daemon(call), &[], "").is_err())
}

/// The pools of these names, or all, that other processes have open, each with its process: without a place on the command line,
/// those of the daemon come first. `why` ends the error if there is none.
///
/// # Errors
/// If a pool is not found or not open.
pub fn open_pools(
    call: &Call,
    places: &PoolDirs,
    names: &[String],
    why: &str,
) -> Result<Vec<(String, RemoteProcess)>, Failure> {
    let Some(daemon) = pools::daemon_for(call, &places.dirs) else {
        let found = held(call, places, names, why);
        // The daemon of root may have them.
        return found.map_err(|none| match pools::readers_daemon_for(call, &places.dirs) {
            Some(daemon) => admin::denied(&daemon),
            None => none,
        });
    };
    let of_daemon = PoolHolder::Other(daemon.clone()).pools(call, None)?;
    let with_daemon = |pool: &OpenPool| (pool.name.clone(), daemon.clone());
    let elsewhere = pools::places_beside_daemon(call);
    if names.is_empty() {
        let mut all: Vec<_> = of_daemon.iter().map(with_daemon).collect();
        match held_in(call, &elsewhere, names, why) {
            Ok(others) => all.extend(others.into_iter().filter(|(_, remote)| remote.pid != daemon.pid)),
            Err(none) if all.is_empty() => return Err(none),
            Err(_) => {}
        }
        return Ok(all);
    }
    let mut named = Vec::new();
    for name in names {
        match of_daemon.iter().find(|pool| is_called(pool, name)) {
            Some(pool) => named.push(with_daemon(pool)),
            None => named.extend(held_in(call, &elsewhere, std::slice::from_ref(name), why)?),
        }
    }
    Ok(named)
}

/// The counters of a pool that another process has open.
fn sample(call: &Call, name: &str, remote: &RemoteProcess) -> Result<Sample, Failure> {
    let command = Command { pool: name.to_owned(), line: String::new(), action: Action::Sample };
    match admin::send(call, remote, &command)? {
        Ok(Outcome::Sample(sample)) => Ok(*sample),
        Ok(_) => Err(Failure::failed(format!("process {} answers with something else than a sample", remote.pid))),
        Err(refusal) => Err(Failure::failed(refusal.why)),
    }
}

/// The counters of a pool that another process has open, now and `seconds` ago, and its state.
///
/// # Errors
/// If the process does not answer, or refuses.
pub fn observation(call: &Call, name: &str, remote: &RemoteProcess, seconds: u64) -> Result<PoolObservation, Failure> {
    let command = Command { pool: name.to_owned(), line: String::new(), action: Action::Observe { seconds } };
    match admin::send(call, remote, &command)? {
        Ok(Outcome::Observation(seen)) => Ok(*seen),
        Ok(_) => Err(Failure::failed(format!("process {} answers with something else than counters", remote.pid))),
        Err(refusal) => Err(Failure::failed(refusal.why)),
    }
}
