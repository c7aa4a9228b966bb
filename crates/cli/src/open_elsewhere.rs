//! Pools that processes have open. The processes say which devices these are, so that no command reads one of them, which may not
//! answer.
//!
//! ```text
//!   places ─► files and devices ─┬─► of a pool that a process has open: the process is asked
//!                                └─► the others: their labels are read
//! ```

use crate::admin::{self, ANSWERS_WITHIN};
use crate::call::Call;
use crate::failure::Failure;
use crate::locks::Identity;
use crate::reading::is_called;
use crate::remote::RemoteProcess;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_admin::OpenPool;
use weir_pool::scan::candidates;
use weir_pool::{Assembly, ScanOptions, assemble, scan_with};

/// Pools that processes have open.
#[derive(Default)]
pub struct OpenElsewhere {
    /// Those of other processes with a device in the places, and the processes.
    pools: Vec<(RemoteProcess, OpenPool)>,
    /// Devices of these pools, and of those that this process has open.
    devices: BTreeSet<Identity>,
}

impl OpenElsewhere {
    /// Asks the processes that listen on a socket of this user for their pools, and keeps those with a device in these places. This
    /// process asks no other one if it has pools open itself.
    ///
    /// # Errors
    /// If a place does not exist.
    pub fn in_places(call: &Call, places: &[PathBuf]) -> Result<Self, Failure> {
        if call.process().is_some() {
            let own = call.served_pools().iter().flat_map(|pool| pool.paths()).collect::<Vec<_>>();
            return Ok(OpenElsewhere { pools: Vec::new(), devices: identities(&own) });
        }
        let mut found = OpenElsewhere::default();
        let servers = admin::servers();
        if servers.is_empty() {
            return Ok(found);
        }
        let candidates: Vec<PathBuf> = candidates(call.machine()?, places)?.into_iter().map(|(path, _)| path).collect();
        let there = identities(&candidates);
        for server in servers {
            // The labels of its devices are read if it does not answer.
            let Some(pools) = admin::open_pools(call, &server, ANSWERS_WITHIN)? else { continue };
            for pool in pools {
                let devices = identities(&pool.devices);
                if !devices.is_disjoint(&there) {
                    found.devices.extend(devices);
                    found.pools.push((server.clone(), pool));
                }
            }
        }
        debug_assert!(
            found.pools.iter().all(|(server, _)| server.pid != std::process::id()),
            "this process asks itself"
        );
        Ok(found)
    }

    /// The other process that has the pool with that name or GUID open.
    pub fn holder(&self, pool: &str) -> Option<RemoteProcess> {
        self.pools.iter().find(|(_, open)| is_called(open, pool)).map(|(server, _)| server.clone())
    }

    /// The pools of other processes.
    pub fn pools(&self) -> impl Iterator<Item = &OpenPool> {
        self.held().map(|(_, pool)| pool)
    }

    /// The pools of other processes, each with its process.
    pub fn held(&self) -> impl Iterator<Item = (&RemoteProcess, &OpenPool)> {
        self.pools.iter().map(|(server, pool)| (server, pool))
    }

    /// The other pools in these places.
    ///
    /// # Errors
    /// If the places cannot be scanned.
    pub fn others(&self, call: &Call, places: &[PathBuf]) -> Result<Assembly, Failure> {
        let leaves_out = |path: &Path| Identity::of(path).is_some_and(|identity| self.devices.contains(&identity));
        let options = ScanOptions { leaves_out: Some(&leaves_out), ..ScanOptions::default() };
        let machine = call.machine()?;
        Ok(assemble(machine.block_on(scan_with(machine, places, &options))?))
    }
}

fn identities(paths: &[impl AsRef<Path>]) -> BTreeSet<Identity> {
    paths.iter().filter_map(|path| Identity::of(path.as_ref())).collect()
}
