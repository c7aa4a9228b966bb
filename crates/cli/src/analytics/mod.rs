//! Commands that show what pools do: they ask the processes that have the pools open for their counters, and print differences.

pub mod arcstat;
mod arcstat_fields;
pub mod recent;
pub mod top;
mod top_text;
pub mod why;

use crate::admin;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::remote::RemoteProcess;
use crate::zpool::opened::held;
use weir_admin::{Action, Command, Outcome};
use weir_analytics::{Interval, PoolObservation, Sample};

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
        let pools = held(call, places, names, why)?;
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
fn observation(call: &Call, name: &str, remote: &RemoteProcess, seconds: u64) -> Result<PoolObservation, Failure> {
    let command = Command { pool: name.to_owned(), line: String::new(), action: Action::Observe { seconds } };
    match admin::send(call, remote, &command)? {
        Ok(Outcome::Observation(seen)) => Ok(*seen),
        Ok(_) => Err(Failure::failed(format!("process {} answers with something else than counters", remote.pid))),
        Err(refusal) => Err(Failure::failed(refusal.why)),
    }
}
