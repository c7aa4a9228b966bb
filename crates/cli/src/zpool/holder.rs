//! Processes that have pools open, for commands about what is in their memory: events, counters.

use super::opened::holders;
use crate::admin::{self, ServingHost};
use crate::call::Call;
use crate::command_target::now;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools::readers_daemon_for;
use crate::reading::{Answered, is_called, receive, refused, run_here};
use crate::remote::RemoteProcess;
use weir_admin::{Action, Author, Command, IostatQuery, OpenPool, Outcome, PoolQuery, Query, Refusal, Row};
use weir_engine::Engine;
use weir_pool::OpenOptions;

/// A process that has pools open.
#[derive(PartialEq, Eq)]
pub enum PoolHolder {
    /// This process.
    Own,
    /// Another process.
    Other(RemoteProcess),
}

impl PoolHolder {
    /// The other processes that have the pool of that name open, or any pool without a name. `why` ends the error if there is
    /// none. The daemon is asked alone if the command names no place.
    ///
    /// # Errors
    /// If the pool is not found or not open.
    pub fn find(call: &Call, places: &PoolDirs, name: Option<&String>, why: &str) -> Result<Vec<Self>, Failure> {
        match holders(call, places, name, why) {
            Ok(found) => Ok(found.into_iter().map(PoolHolder::Other).collect()),
            Err(mut failure) => {
                let remote = failure.take_remote().or_else(|| readers_daemon_for(call, &places.dirs));
                Ok(vec![PoolHolder::Other(remote.ok_or(failure)?)])
            }
        }
    }

    /// The pools that the process has open, by name: the one of that name or GUID, or all.
    ///
    /// # Errors
    /// If there is no pool of that name, or the process does not answer.
    pub fn pools(&self, call: &Call, name: Option<&String>) -> Result<Vec<OpenPool>, Failure> {
        let mut pools = Vec::new();
        match self {
            PoolHolder::Own => {
                let own = call.served_pools().into_iter();
                pools.extend(own.map(|pool| pool.open_pool()));
            }
            PoolHolder::Other(remote) => {
                let mut take = |row| {
                    if let Row::Pool(pool) = row {
                        pools.push(pool);
                    }
                };
                admin::query(call, remote, &Query::Pools, &mut take)?.map_err(refused)?;
            }
        }
        let Some(name) = name else { return Ok(pools) };
        let found = pools.into_iter().find(|pool| is_called(pool, name));
        found.map(|pool| vec![pool]).ok_or_else(|| Failure::failed(format!("cannot open '{name}': no such pool")))
    }

    /// Runs a query on a pool that the process has open, and gives each row to `each`.
    ///
    /// # Errors
    /// If the process does not answer, or has closed the pool. A refusal is not an error here.
    pub fn query(
        &self,
        call: &Call,
        pool: &OpenPool,
        query: PoolQuery,
        each: &mut dyn FnMut(Row),
    ) -> Result<Answered, Failure> {
        let guid = pool.guid.to_string();
        match self {
            PoolHolder::Other(remote) => admin::query(call, remote, &Query::Pool { name: guid, query }, each),
            PoolHolder::Own => {
                let served_pool = call.served_pool(&guid).ok_or_else(|| closed(pool))?;
                run_here(call, Some(&served_pool), &OpenOptions::new(Vec::new(), guid), &query, each)
            }
        }
    }

    /// Samples the reads and writes of pools that the process has open, and gives each row to `each`.
    ///
    /// # Errors
    /// As [`PoolHolder::query`].
    pub fn sample(&self, call: &Call, query: IostatQuery, each: &mut dyn FnMut(Row)) -> Result<Answered, Failure> {
        match self {
            PoolHolder::Other(remote) => admin::query(call, remote, &Query::Iostat(query), each),
            PoolHolder::Own => {
                let pools: Vec<_> = query.pools.iter().filter_map(|name| call.served_pool(name)).collect();
                receive(call, each, async |rows| {
                    let engines: Vec<&Engine> = pools.iter().map(|pool| &*pool.engine).collect();
                    query.run(&engines, rows).await
                })
            }
        }
    }

    /// Carries out an action that is not recorded in the pool's history.
    ///
    /// # Errors
    /// As [`PoolHolder::query`].
    pub fn send(&self, call: &Call, pool: &OpenPool, action: Action) -> Result<Result<Outcome, Refusal>, Failure> {
        let guid = pool.guid.to_string();
        match self {
            PoolHolder::Other(remote) => {
                admin::send(call, remote, &Command { pool: guid, line: String::new(), action })
            }
            PoolHolder::Own => {
                let served_pool = call.served_pool(&guid).ok_or_else(|| closed(pool))?;
                let mut author = Author::new(call.caller.ids, now(), String::new());
                Ok(call.machine()?.block_on(action.run(&ServingHost(served_pool), &mut author)))
            }
        }
    }
}

fn closed(pool: &OpenPool) -> Failure {
    Failure::failed(format!("cannot open '{}': no such pool", pool.name))
}
