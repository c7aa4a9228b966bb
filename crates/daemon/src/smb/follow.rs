//! SMB as the properties say: one task that brings mounts and shares up to date whenever what is shared changes.
//!
//! ```text
//!   shares of each pool ─ changed ─▶ plan ─▶ hide what is not shared any more ─▶ new mounts ─▶ smb.conf, end of connections
//!                                                                                         ─▶ end of mounts
//! ```
//!
//! smbd runs from the first share on. If it is not installed or does not start, that is logged once, and tried again at
//! intervals while something is shared.

use super::plan::{MountKey, Plan, hosts_allow, plan};
use super::{Connection, Options, Programs, Share, SmbService, SmbServiceError, TimeMachine, detach_stale, users};
use crate::exports::Exports;
use crate::pool_table::PoolTable;
use futures_util::future::select;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weir_front::shares::TimeMachine as SharedTimeMachine;
use weir_machine::lock::{Mutex, RwLock};
use weir_machine::{JoinHandle, Machine, Nanos, Request, RequestTotals};

/// Interval in which a server that does not start is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Time that [`SmbFollower::settle`] waits at most.
const SETTLE_TIME: Duration = Duration::from_secs(20);

/// IDs of the file systems that a mount contains.
type Contained = Arc<RwLock<BTreeSet<u64>>>;

/// Outcome of the task, for others.
#[derive(Default)]
struct FollowerState {
    service: Option<Arc<SmbService>>,
    /// Why there is no server, or why it is not up to date.
    problem: Option<String>,
    /// Name of each share, with the GUID of its pool.
    shares: Vec<(String, u64)>,
    connections: Vec<Connection>,
}

/// The server that follows the properties.
pub struct SmbFollower {
    machine: Machine,
    pools: PoolTable,
    options: Options,
    state: Mutex<FollowerState>,
    /// Counts the reasons to bring the shares up to date.
    wanted: watch::Sender<u64>,
    /// The count up to which they are.
    done: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl SmbFollower {
    /// Starts the task. Call it inside a tokio runtime.
    pub fn start(machine: &Machine, pools: &PoolTable, options: Options) -> Arc<Self> {
        let follower = Arc::new(SmbFollower {
            machine: machine.clone(),
            pools: pools.clone(),
            options,
            state: Mutex::default(),
            wanted: watch::Sender::new(1),
            done: watch::Sender::new(0),
            stop: watch::Sender::new(false),
            task: Mutex::default(),
        });
        let task = machine.tasks.spawn(follower.clone().work());
        *follower.task.lock() = Some(task);
        follower
    }

    /// Address and port: those of the server, if it runs.
    pub fn address(&self) -> SocketAddr {
        let wanted = SocketAddr::new(self.options.listen, self.options.port);
        self.state.lock().service.as_ref().map_or(wanted, |service| service.samba().address)
    }

    /// Whether smbd runs.
    pub fn is_running(&self) -> bool {
        self.state.lock().service.is_some()
    }

    /// Why SMB is not served as the properties say; `None` if it is.
    pub fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// Brings the shares up to date soon.
    pub fn renew(&self) {
        self.wanted.send_modify(|count| *count += 1);
    }

    /// Brings the shares up to date, and waits until they are, at most 20 s.
    pub async fn settle(&self) {
        self.renew();
        let wanted = *self.wanted.borrow();
        let mut done = self.done.subscribe();
        let late = self.machine.clock.sleep(SETTLE_TIME);
        // The sender lives as long as this value.
        let _ended = select(pin!(done.wait_for(|done| *done >= wanted)), pin!(late)).await;
    }

    /// Asks the server for its connections, for [`SmbFollower::connections`].
    pub async fn refresh(&self) {
        let Some(service) = self.state.lock().service.clone() else { return };
        let found = match service.samba().status().await {
            Ok(status) => status.connections,
            Err(error) => {
                tracing::debug!(%error, "the connections of SMB are unknown");
                return;
            }
        };
        self.state.lock().connections = found;
    }

    /// Connections at the time of the last [`SmbFollower::refresh`].
    pub fn connections(&self) -> Vec<Connection> {
        self.state.lock().connections.clone()
    }

    /// Addresses of the clients that use a share of a pool.
    pub fn users(&self, pool: u64) -> Vec<String> {
        let state = self.state.lock();
        let uses = |connection: &&Connection| {
            let of_pool = |name: &String| state.shares.iter().any(|(share, guid)| share == name && *guid == pool);
            connection.shares.iter().any(of_pool)
        };
        state.connections.iter().filter(uses).map(|connection| connection.address.clone()).collect()
    }

    /// Commands that use the shares of a pool.
    pub fn lines(&self, pool: u64) -> Vec<String> {
        let state = self.state.lock();
        let Some(service) = &state.service else { return Vec::new() };
        let known = users::list(&self.options.directories).unwrap_or_default();
        let user = known.first().map(|user| user.name.as_str());
        let own = state.shares.iter().filter(|(_, guid)| *guid == pool);
        own.flat_map(|(share, _)| service.lines(share, user)).collect()
    }

    /// Totals of the requests that concern no pool: none, since each mount books to its pool.
    pub fn served_beside_pools(&self) -> RequestTotals {
        RequestTotals::default()
    }

    /// Ends the server and its mounts.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task {
            // A failed task has no server: its value was dropped.
            let _ = task.await;
        }
    }

    async fn work(self: Arc<Self>) {
        let mut server = Server {
            follower: self.clone(),
            service: None,
            mounts: BTreeMap::new(),
            plan: Plan::default(),
            failed: None,
        };
        let mut wanted = self.wanted.subscribe();
        let mut stop = self.stop.subscribe();
        if let Err(error) = weir_smb::end_left_behind(&self.machine, &self.options.directories).await {
            tracing::warn!("smbd of an earlier process: {error}");
        }
        detach_stale(&self.options.directories.mount());
        if let Err(error) = Programs::find(&self.machine.clock).await {
            tracing::warn!("SMB is not served: {error}");
            self.state.lock().problem = Some(error.to_string());
        }
        loop {
            let target = *wanted.borrow_and_update();
            let outcome = server.renew().await;
            self.tell(outcome.err().map(|error| error.to_string()), &server);
            self.done.send_replace(target);
            let retry = async {
                match self.state.lock().problem.is_some() && !server.plan.shares.is_empty() {
                    true => self.machine.clock.sleep(RETRY_INTERVAL).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                changed = wanted.changed() => if changed.is_err() { break },
                () = retry => {}
            }
        }
        if let Some(service) = server.service.take() {
            self.state.lock().service = None;
            service.stop().await;
        }
        // Those who wait for shares of a server that has ended need not.
        self.done.send_replace(u64::MAX);
    }

    /// Shows the outcome of bringing the shares up to date; a new problem is logged.
    fn tell(&self, problem: Option<String>, server: &Server) {
        let mut state = self.state.lock();
        if server.plan.shares.is_empty() && problem.is_none() {
            // Nothing was tried: what the start found holds.
        } else {
            if let Some(why) = problem.as_ref().filter(|_| state.problem != problem) {
                tracing::error!("SMB is not served as sharesmb says: {why}");
            }
            state.problem = problem;
        }
        state.service = server.service.clone();
        state.shares = server.plan.shares.iter().map(|planned| (planned.share.name.clone(), planned.mount.0)).collect();
    }
}

/// State of the task: the server, and its mounts.
struct Server {
    follower: Arc<SmbFollower>,
    service: Option<Arc<SmbService>>,
    mounts: BTreeMap<MountKey, Contained>,
    /// The plan that was carried out last.
    plan: Plan,
    /// When the server did not start, and why.
    failed: Option<(Nanos, String)>,
}

impl Server {
    /// Carries out what the properties say now.
    async fn renew(&mut self) -> Result<(), SmbServiceError> {
        let pools = self.follower.pools.all();
        let shared = |exports: &Arc<Exports>| {
            let shares = exports.shares.smb_shares().shares.into_iter();
            shares.filter_map(|share| Some((exports.shares.of(&share.dataset)?.id, share))).collect::<Vec<_>>()
        };
        let mut sorted: Vec<(u64, &Arc<Exports>)> = pools.iter().map(|(guid, exports)| (*guid, exports)).collect();
        sorted.sort_by_cached_key(|(guid, exports)| (exports.pool.name(), *guid));
        let all: Vec<_> = sorted.iter().map(|(guid, exports)| (*guid, shared(exports))).collect();
        let new = plan(&all, &self.plan);
        let known = &self.plan.conflicts;
        new.conflicts.iter().filter(|line| !known.contains(line)).for_each(|line| tracing::warn!("not shared: {line}"));
        self.plan = new;
        let Some(service) = self.service().await? else { return Ok(()) };
        // First, so that nothing is reached any more that is not shared.
        for (key, contained) in &self.mounts {
            let new = self.plan.mounts.get(key).cloned().unwrap_or_default();
            *contained.write() = new;
        }
        let failed = self.mount(&service, &pools);
        let shares = self.shares(&service, &pools).await?;
        service.samba().set_shares(shares).await?;
        let gone: Vec<MountKey> =
            self.mounts.keys().filter(|key| !self.plan.mounts.contains_key(key)).copied().collect();
        for key in gone {
            self.mounts.remove(&key);
            service.unmount(&directory_of(key)).await;
        }
        failed.map_or(Ok(()), Err)
    }

    /// The server; started if something is shared, `None` if nothing was shared yet.
    async fn service(&mut self) -> Result<Option<Arc<SmbService>>, SmbServiceError> {
        if self.service.is_none() && !self.plan.shares.is_empty() {
            let machine = &self.follower.machine;
            let now = machine.clock.now();
            // Commands that change something else need not wait for another attempt.
            if let Some((_, why)) = self.failed.as_ref().filter(|(at, _)| now.since(*at) < RETRY_INTERVAL) {
                return Err(SmbServiceError::NotStarted { why: why.clone() });
            }
            let options = self.follower.options.clone();
            match SmbService::start(machine, options).await {
                Ok(service) => self.service = Some(Arc::new(service)),
                Err(error) => {
                    self.failed = Some((machine.clock.now(), error.to_string()));
                    return Err(error);
                }
            }
        }
        Ok(self.service.clone())
    }

    /// Makes the missing mounts; returns the error of one that cannot be made.
    fn mount(&mut self, service: &SmbService, pools: &BTreeMap<u64, Arc<Exports>>) -> Option<SmbServiceError> {
        let mut failed = None;
        for (key, ids) in &self.plan.mounts {
            let (guid, id) = *key;
            let Some(exports) = pools.get(&guid).filter(|_| !self.mounts.contains_key(key)) else { continue };
            let contained: Contained = Arc::new(RwLock::new(ids.clone()));
            let of_mount = contained.clone();
            let contains = Arc::new(move |id| of_mount.read().contains(&id));
            match service.mount_file_system(exports, &directory_of(*key), id, contains) {
                Ok(()) => drop(self.mounts.insert(*key, contained)),
                Err(error) => failed = Some(error),
            }
        }
        failed
    }

    /// The shares whose mounts there are.
    async fn shares(
        &self,
        service: &SmbService,
        pools: &BTreeMap<u64, Arc<Exports>>,
    ) -> Result<Vec<Share>, SmbServiceError> {
        let mut out = Vec::new();
        for planned in self.plan.shares.iter().filter(|planned| self.mounts.contains_key(&planned.mount)) {
            let Some(exports) = pools.get(&planned.mount.0) else { continue };
            let shared = &planned.share;
            let rq = &Request::internal("share");
            let usual = service.share(rq, &exports.pool, &shared.dataset, &shared.name).await?;
            let place = service.path_of(&directory_of(planned.mount));
            let max_bytes = match shared.time_machine {
                SharedTimeMachine::Limited(bytes) => Some(bytes),
                SharedTimeMachine::Off | SharedTimeMachine::Unlimited => None,
            };
            out.push(Share {
                path: if planned.directory.is_empty() { place } else { place.join(&planned.directory) },
                read_only: usual.read_only || shared.read_only,
                guest: shared.guest,
                time_machine: (shared.time_machine != SharedTimeMachine::Off).then_some(TimeMachine { max_bytes }),
                hosts_allow: hosts_allow(&shared.hosts, &exports.shares.names()),
                hidden: !shared.browseable,
                ..usual
            });
        }
        Ok(out)
    }
}

/// Name of the directory of a mount: it stays when pool and file system are renamed.
fn directory_of((pool, id): MountKey) -> String {
    format!("{pool:016x}-{id:x}")
}
