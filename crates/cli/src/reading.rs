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

use crate::admin;
use crate::call::{Call, PoolOwner};
use crate::failure::Failure;
use crate::pools::{self, keys_of, owner_of, search};
use crate::remote::RemoteProcess;
use futures_util::future::join;
use std::ffi::OsString;
use std::path::PathBuf;
use weir_admin::{PoolQuery, Query, Refusal, RefusalKind, Row, Rows};
use weir_pool::OpenOptions;

/// Answer to a query: `Err` if it was refused.
pub type Answered = Result<(), Refusal>;

/// Pools in some places, and in the daemon.
pub struct PoolReader<'a> {
    call: &'a Call,
    search: Vec<PathBuf>,
    keys: Vec<(String, Vec<u8>)>,
    daemon: Option<RemoteProcess>,
}

impl<'a> PoolReader<'a> {
    /// Pools in these places, or else where the caller's environment says, or in the daemon.
    pub fn new(call: &'a Call, dirs: &[OsString]) -> Result<Self, Failure> {
        let daemon = pools::daemon_for(call, dirs);
        let search = match daemon {
            // What the daemon does not have open is open in other processes, or where the environment says.
            Some(_) => match pools::paths_of_environment(call) {
                paths if paths.is_empty() => admin::devices(),
                paths => paths,
            },
            None => search(call, dirs)?,
        };
        Ok(PoolReader { call, search, keys: Vec::new(), daemon })
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
        Ok(PoolReader { call, search, keys, daemon: None })
    }

    /// Names of all pools, sorted; GUIDs of pools with the same name.
    ///
    /// # Errors
    /// If the places cannot be scanned, or the daemon does not answer.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let mut open = Vec::new();
        if let Some(daemon) = &self.daemon {
            let mut take = |row| {
                if let Row::Pool(pool) = row {
                    open.push((pool.name, pool.guid));
                }
            };
            admin::query(self.call, daemon, &Query::Pools, &mut take)?.map_err(refused)?;
        }
        pools::names_with(self.call, &self.search, open)
    }

    /// Runs a query on the pool of that name or GUID, and gives each row to `each`.
    ///
    /// # Errors
    /// If the pool cannot be opened, or the process that has it open does not answer. A refusal is not an error here.
    pub fn read(&self, pool: &str, query: PoolQuery, each: &mut dyn FnMut(Row)) -> Result<Answered, Failure> {
        let sent = Query::Pool { name: pool.to_owned(), query: query.clone() };
        if let Some(daemon) = &self.daemon {
            let answer = admin::query(self.call, daemon, &sent, each)?;
            if !is_of_other_pool(&answer) {
                return Ok(answer);
            }
        }
        let own = match owner_of(self.call, &self.search, pool)? {
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
        let mut options = OpenOptions::new(self.search.clone(), pool);
        options.keys = self.keys.iter().filter(|(of, _)| of.split('/').next() == Some(pool)).cloned().collect();
        let opened = pools::open_here(self.call, &options, own.as_deref())?;
        let mounted = own.map(|served_pool| served_pool.mounts.mounted()).unwrap_or_default();
        let (rows, mut received) = Rows::channel();
        let receive = async {
            while let Some(row) = received.next().await {
                each(row);
            }
        };
        let (answer, ()) = self.call.machine()?.block_on(join(query.run(&opened, &mounted, rows), receive));
        Ok(answer)
    }
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
