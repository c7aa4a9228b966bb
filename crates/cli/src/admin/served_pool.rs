//! A pool that this process has open, as seen by commands that other processes send.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::network::network_of;
use super::processes;
use crate::analytics::recent::RecentSamples;
use crate::automount::AutoMounts;
use crate::failure::Failure;
use crate::locks::{Identity, Locks, lock};
use crate::mounts::{Mounts, points};
use crate::stores::may_exist;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use weir_admin::{ChangeMonitor, Host, LuaProgram, MountEffect, OpenPool, ProgramEnd, Refusal};
use weir_analytics::{ConnectionFacts, LinkFacts, Sample};
use weir_daemon::{Exports, Service};
use weir_engine::resilver::ResilverWatch;
use weir_engine::scrub::ScanLimits;
use weir_engine::{Engine, SpareWatch};
use weir_files::locks::LockClient;
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Machine, Protocol, Request};
use weir_pool::{FoundPool, PoolError, VdevConfig};

/// Time for the mounts of a pool to end when it is closed.
pub(super) const UNMOUNT_TIME: Duration = Duration::from_secs(5);

/// Interval at which the pool's devices are checked for blocks that they lack.
const RESILVER_INTERVAL: Duration = Duration::from_secs(2);

/// An administrator's request to close the pool, and how to close it.
pub struct CloseMode {
    /// True to destroy the pool: its labels then record the state "destroyed".
    pub destroyed: bool,
    /// Receives the result after the pool is closed and its devices are unlocked, or the reason why closing failed.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// A pool that this process has open.
pub struct ServedPool {
    /// Machine on which the engine runs.
    pub machine: Machine,
    /// The pool.
    pub engine: Arc<Engine>,
    /// GUID of the pool when it was opened.
    key: u64,
    devices: Mutex<BTreeSet<Identity>>,
    /// Locks of devices that were added later; empty after the pool is closed.
    added: Mutex<Vec<Locks>>,
    /// Mounts of single file systems.
    pub mounts: Mounts,
    front: OnceLock<Arc<Exports>>,
    /// Mounts that the process makes by itself, if it does.
    automounts: OnceLock<Arc<AutoMounts>>,
    /// The servers whose clients use the pool, of a process with several pools.
    service: OnceLock<Weak<Service>>,
    close_requests: mpsc::Sender<CloseMode>,
    /// Number of times that the exports were brought up to date.
    renewals: AtomicU64,
    scrub: Mutex<Scrub>,
    recent: RecentSamples,
}

/// This process, for commands on the pool that it has open.
pub struct ServingHost(pub Arc<ServedPool>);

impl Host for ServingHost {
    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    fn go_on_scrubbing(&self) {
        self.0.go_on_scrubbing();
    }

    fn is_scrubbing(&self) -> Result<bool, String> {
        self.0.is_scrubbing()
    }

    fn is_used(&self) -> bool {
        self.0.is_used()
    }

    fn earlier_sample(&self, seconds: u64) -> Option<Sample> {
        let engine = &self.0.engine;
        self.0.recent.earlier(engine.machine.clock.now().ns_since(engine.opened()), seconds)
    }

    fn clients(&self) -> Vec<String> {
        self.0.clients()
    }

    fn network(&self) -> BoxFuture<'_, (Vec<LinkFacts>, Vec<ConnectionFacts>)> {
        Box::pin(self.0.network())
    }

    fn chap_users(&self) -> Result<Vec<String>, String> {
        crate::users::chap_names()
    }

    fn share_conflict(&self, dataset: &str, property: &str, value: &str) -> Option<String> {
        self.0.share_conflict(dataset, property, value)
    }

    fn prepare_mounts<'a>(
        &'a self,
        effect: &'a MountEffect,
        leaves_mounts: bool,
    ) -> BoxFuture<'a, Result<Vec<u64>, Refusal>> {
        Box::pin(self.0.prepare_mounts(effect, leaves_mounts))
    }

    fn settle_mounts<'a>(
        &'a self,
        effect: &'a MountEffect,
        leaves_mounts: bool,
        suspended: Vec<u64>,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(self.0.settle_mounts(effect, leaves_mounts, suspended))
    }

    fn run_program(&self, program: LuaProgram, monitor: ChangeMonitor) -> BoxFuture<'_, Result<ProgramEnd, Refusal>> {
        Box::pin(async move {
            let mounted = self.0.mounts.mounted();
            Ok(weir_program::run(&self.0.engine, mounted, program, monitor).await?)
        })
    }

    fn close(&self, destroyed: bool) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.0.end(destroyed))
    }
}

/// State of the scrub task: whether it runs, and whether a scrub was begun since the task last checked.
#[derive(Default)]
struct Scrub {
    works: bool,
    again: bool,
    /// Error that ended the last run of the task.
    error: Option<String>,
}

impl ServedPool {
    /// Wraps an open pool on these devices. Requests to close it are sent to `close_requests`.
    pub fn new(
        machine: Machine,
        engine: Arc<Engine>,
        devices: BTreeSet<Identity>,
        close_requests: mpsc::Sender<CloseMode>,
    ) -> Arc<Self> {
        let added = Mutex::default();
        let scrub = Mutex::default();
        let key = engine.shown().config.guid;
        Arc::new(ServedPool {
            machine,
            engine,
            key,
            devices: Mutex::new(devices),
            added,
            mounts: Mounts::default(),
            front: OnceLock::new(),
            automounts: OnceLock::new(),
            service: OnceLock::new(),
            close_requests,
            renewals: AtomicU64::new(0),
            scrub,
            recent: RecentSamples::default(),
        })
    }

    /// Key of the pool in the tables of the process and of the servers: its GUID when it was opened, which `zpool reguid` does not
    /// change.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// GUID of the pool.
    pub fn guid(&self) -> u64 {
        self.engine.shown().config.guid
    }

    /// Whether a pool found by a scan is this one: same GUID, and a device in common.
    pub fn has(&self, found: &FoundPool) -> bool {
        let is_ours = |path| Identity::of(path).is_some_and(|identity| self.has_device(identity));
        found.config.guid == self.engine.shown().config.guid && found.leaves().any(|device| is_ours(&device.path))
    }

    /// Whether a file or device is locked for this pool.
    pub fn has_device(&self, identity: Identity) -> bool {
        self.devices().contains(&identity) || self.added().iter().any(|locks| locks.identities().contains(&identity))
    }

    /// Whether the file or device at a path is locked for this pool.
    pub fn has_path(&self, path: &Path) -> bool {
        Identity::of(path).is_some_and(|identity| self.has_device(identity))
    }

    fn devices(&self) -> MutexGuard<'_, BTreeSet<Identity>> {
        self.devices.lock()
    }

    /// Releases the locks of devices that have left the pool, or did not become a part of it, so that they can be used again.
    pub fn release_removed(&self) {
        // A device may be at another path than its configuration says.
        let health = self.engine.cache.blocks().tree().health();
        let opened = health.iter().map(|leaf| leaf.name.rsplit_once(':').map_or(leaf.name.as_str(), |(path, _)| path));
        let named = health.iter().map(|leaf| leaf.name.as_str());
        let own = self.paths().into_iter().chain(opened.chain(named).map(PathBuf::from));
        let own: BTreeSet<Identity> = own.filter_map(|path| Identity::of(&path)).collect();
        // A device that is leaving is written to until the change is complete.
        if self.engine.vdevs().is_changing() {
            return;
        }
        let mut released = BTreeSet::new();
        for locks in self.added().iter_mut() {
            let before = locks.identities();
            locks.release_others(&own);
            released.extend(before.difference(&locks.identities()).copied());
        }
        self.devices().retain(|identity| !released.contains(identity));
    }

    fn added(&self) -> MutexGuard<'_, Vec<Locks>> {
        self.added.lock()
    }

    /// Keeps the locks of added devices until the pool is closed.
    pub fn also_has(&self, locks: Locks) {
        self.added().push(locks);
    }

    /// Releases the locks of added devices. Call it after the pool is closed.
    pub fn let_go(&self) {
        self.added().clear();
    }

    /// Paths of the pool's devices that exist. It blocks as long as the file system of one does not answer.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.device_paths().into_iter().filter(|path| may_exist(path)).collect()
    }

    /// Paths of the pool's devices, also of those that do not exist. Nothing is asked for them.
    pub fn device_paths(&self) -> Vec<PathBuf> {
        let config = self.engine.shown().config;
        let tree = VdevConfig::parse(&config.root);
        let leaves = tree.iter().flat_map(|tree| tree.leaves()).filter_map(|leaf| leaf.path.as_deref());
        let aux = config.aux.spares.iter().chain(&config.aux.caches).filter_map(|vdev| vdev.get_str("path"));
        leaves.chain(aux).map(PathBuf::from).collect()
    }

    /// Name, GUID and devices of the pool, as other processes see them.
    pub fn open_pool(&self) -> OpenPool {
        let devices = self.device_paths().iter().map(|path| path.display().to_string()).collect();
        OpenPool { name: self.engine.name(), guid: self.guid(), devices }
    }

    /// Sets the exports that [`ServedPool::renew`] updates. Only the first call has an effect.
    pub fn set_front(&self, front: Arc<Exports>) {
        // A second set is ignored: a process has one set of exports.
        let _ = self.front.set(front);
    }

    /// The exports, once they are open.
    pub fn front(&self) -> Option<Arc<Exports>> {
        self.front.get().cloned()
    }

    /// Why a dataset of this pool cannot have the name that a value of a property of sharing gives it: another dataset of the process
    /// has it.
    pub fn share_conflict(&self, dataset: &str, property: &str, value: &str) -> Option<String> {
        let service = self.service.get().and_then(Weak::upgrade)?;
        let pools = service.pools().all();
        pools.values().find_map(|exports| exports.shares.conflict_of(dataset, property, value))
    }

    /// Sets the servers whose clients count as users of the pool. Only the first call has an effect.
    pub fn set_service(&self, service: &Arc<Service>) {
        // A second set is ignored: a process has one set of servers.
        let _ = self.service.set(Arc::downgrade(service));
    }

    /// Clients that use the pool, each as protocol and address. An NFS client that holds locks is one, connected or not: it trusts
    /// them until a restart of the server is announced to it.
    pub fn clients(&self) -> Vec<String> {
        let users = self.service.get().and_then(Weak::upgrade).map(|service| service.users(self.key()));
        let users = users.into_iter().flatten().map(|(protocol, host)| format!("{} {host}", protocol.name()));
        let locking = self.front.get().map(|front| front.tree.locks().clients()).unwrap_or_default();
        let locking = locking.into_iter().filter_map(|client| match client {
            LockClient::Nlm(host) => Some(format!("{} {host}: locks", Protocol::Nfs3.name())),
            // A mount's locks end with its open files.
            LockClient::Fuse(_) => None,
        });
        users.chain(locking).collect()
    }

    /// Network interfaces, and the connections of clients to the servers of this process.
    pub async fn network(&self) -> (Vec<LinkFacts>, Vec<ConnectionFacts>) {
        let service = self.service.get().and_then(Weak::upgrade);
        let servers = service.iter().flat_map(|service| service.protocols());
        let ports: Vec<u16> = servers.map(|server| server.address().port()).filter(|port| *port != 0).collect();
        if ports.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let read = tokio::task::spawn_blocking(move || weir_doctor::Reader::new(weir_doctor::RealHost).traffic(&ports));
        // A task that panicked has read nothing.
        network_of(&read.await.unwrap_or_default())
    }

    /// Clients of the network, and processes on the pool's mounts, that may be what keeps a dataset or the pool busy; not the process
    /// with the ID `asking`, which runs the command.
    pub async fn all_users(&self, asking: Option<u32>) -> Vec<String> {
        let mounts: Vec<PathBuf> = self.mounts.list().into_iter().map(|(_, path)| path).collect();
        let except: Vec<u32> = asking.into_iter().chain([std::process::id()]).collect();
        let processes = tokio::task::spawn_blocking(move || processes::that_use(&mounts, &except)).await;
        // A task that panicked names none.
        self.clients().into_iter().chain(processes.unwrap_or_default()).collect()
    }

    /// Reads the connections of other processes, for [`ServedPool::clients`].
    pub async fn refresh_clients(&self) {
        if let Some(service) = self.service.get().and_then(Weak::upgrade) {
            service.refresh().await;
        }
    }

    /// Reads the users with secrets again: what they may use is shared with them from now on.
    pub fn renew_users(&self) {
        if let Some(service) = self.service.get().and_then(Weak::upgrade) {
            service.renew_users();
        }
    }

    /// Updates the exports to the current datasets.
    ///
    /// # Errors
    /// Errors of reading the datasets.
    pub async fn renew(self: &Arc<Self>) -> Result<(), Failure> {
        self.release_removed();
        let Some(front) = self.front.get() else { return Ok(()) };
        front.renew(&Request::internal("renew")).await?;
        if let Some(service) = self.service.get().and_then(Weak::upgrade) {
            service.settle().await;
        }
        self.renew_mounts().await;
        self.renewals.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// From now on, file systems are mounted as their properties say; those that there are already only if `now`.
    pub async fn mount_automatically(self: &Arc<Self>, now: bool) {
        let Some(front) = self.front() else { return };
        // `sync` and `syncfs` do not reach a mount: see [`crate::mount`].
        self.engine.sync_when_idle();
        // A process decides once whether it mounts.
        let _ = self.automounts.set(Arc::default());
        if now {
            return self.renew_mounts().await;
        }
        let (Some(automounts), pool) = (self.automounts.get().cloned(), self.clone()) else { return };
        let known = tokio::task::spawn_blocking(move || automounts.know(&pool, &front)).await;
        if let Ok(Err(failure)) = known {
            tracing::warn!("pool '{}': {failure}", self.engine.name());
        }
    }

    /// The mounts that the process makes by itself, if it does.
    pub fn automounts(&self) -> Option<&AutoMounts> {
        self.automounts.get().map(|automounts| &**automounts)
    }

    async fn renew_mounts(self: &Arc<Self>) {
        let (Some(automounts), Some(front)) = (self.automounts.get().cloned(), self.front()) else { return };
        let pool = self.clone();
        // The kernel asks this process while it mounts. A task that failed has logged why.
        let _done = tokio::task::spawn_blocking(move || automounts.renew(&pool, &front)).await;
    }

    /// The mount points that the process made by the names of the file systems, if it mounts by itself.
    pub fn mount_points_by_name(&self) -> Vec<PathBuf> {
        let front = self.front().filter(|_| self.automounts().is_some());
        front.map(|front| points::by_name(front.shares.all().values())).unwrap_or_default()
    }

    /// Unmounts all file systems, whether they are in use or not; at the latest after 5 s the caller goes on.
    pub async fn unmount_all(self: &Arc<Self>) {
        let pool = self.clone();
        let unmounting = tokio::task::spawn_blocking(move || pool.mounts.unmount_all());
        if tokio::time::timeout(UNMOUNT_TIME, unmounting).await.is_err() {
            tracing::warn!("pool '{}': a mount does not end: another mount namespace has it", self.engine.name());
        }
    }

    /// Number of times that the exports were brought up to date; it changes whenever they may have changed.
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Whether clients use any of the pool's datasets, or are connected to use them.
    pub fn is_used(&self) -> bool {
        self.has_open_files() || !self.clients().is_empty()
    }

    /// Whether clients have files open, or are attached to volumes.
    pub fn has_open_files(&self) -> bool {
        let heads = self.engine.sets.all();
        heads.iter().filter_map(|open| open.contents.as_ref()).any(|door| door.is_used())
            || self.engine.reading.is_used()
    }

    /// Asks the process to close the pool and to exit. Returns after the devices are unlocked.
    ///
    /// # Errors
    /// The reason why the pool could not be closed.
    pub async fn end(&self, destroyed: bool) -> Result<(), String> {
        let (done, closed) = oneshot::channel();
        let ends_already = || "the process that has it open is ending".to_owned();
        self.close_requests.send(CloseMode { destroyed, done }).await.map_err(|_| ends_already())?;
        closed.await.unwrap_or_else(|_| Err(ends_already()))
    }

    /// Goes on with what was in progress when the pool was closed: a scrub, initializations, trims. From now on devices that lack
    /// blocks are resilvered.
    ///
    /// Of a pool that is open read-only, only samples of the counters are taken.
    pub async fn go_on(self: &Arc<Self>) {
        let is_writable = !self.engine.is_read_only();
        if is_writable {
            self.go_on_scrubbing();
        }
        self.keep_resilvered();
        if is_writable && let Err(error) = weir_engine::initialize_trim::go_on(&self.engine).await {
            tracing::warn!(%error, "passes over the free space of devices do not go on");
        }
    }

    /// Continues a scrub that the pool records as running, in a task of its own. The task ends with the pool.
    pub fn go_on_scrubbing(self: &Arc<Self>) {
        {
            let mut scrub = self.scrub_state();
            scrub.again = true;
            scrub.error = None;
            if std::mem::replace(&mut scrub.works, true) {
                return;
            }
        }
        let served_pool = self.clone();
        // The task is detached: the engine stops the scrub when the pool is closed.
        drop(self.machine.tasks.spawn(async move {
            while served_pool.wants_scrub() {
                let scrubs = served_pool.engine.scrubs();
                let mut done = scrubs.run(&ScanLimits::default(), &mut |_| true).await.map(drop);
                if done.is_ok() {
                    done = served_pool.engine.error_scrubs().run().await;
                }
                if let Err(error) = done {
                    tracing::info!("the scrub of pool '{}' was interrupted: {error}", served_pool.engine.name());
                    served_pool.scrub_state().error = Some(error.to_string());
                }
            }
        }));
    }

    /// Replaces devices that fail by hot spares, resilvers devices that lack blocks, and takes samples of the counters, in a task
    /// of its own, from now on until the pool is closed.
    fn keep_resilvered(self: &Arc<Self>) {
        let served_pool = Arc::downgrade(self);
        let clock = self.machine.clock.clone();
        // The task is detached: it ends with the pool.
        drop(self.machine.tasks.spawn(async move {
            let mut watch = ResilverWatch::default();
            let mut spares = SpareWatch::default();
            loop {
                let Some(pool) = served_pool.upgrade().filter(|pool| !pool.engine.events.is_ended()) else { return };
                if !pool.engine.is_read_only() {
                    pool.look_after_devices(&mut watch, &mut spares).await;
                }
                pool.recent.take(&pool.engine);
                drop(pool);
                clock.sleep(RESILVER_INTERVAL).await;
            }
        }));
    }

    /// Opens missing devices again, replaces those that fail, and starts a resilver of those that lack blocks.
    async fn look_after_devices(self: &Arc<Self>, watch: &mut ResilverWatch, spares: &mut SpareWatch) {
        if let Err(error) = self.engine.vdevs().reopen().await {
            tracing::debug!(%error, "cannot look for missing devices");
        }
        if let Err(error) = self.keep_spares(spares).await {
            tracing::debug!(%error, "cannot look for devices that need a hot spare");
        }
        match self.engine.scrubs().keep_resilvered(watch).await {
            Ok(true) => self.go_on_scrubbing(),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "cannot look for devices to resilver"),
        }
        self.release_removed();
    }

    /// Replaces devices that failed by new ones at their paths (`autoreplace`) or by hot spares, and detaches hot spares that are not needed any more. Uses
    /// devices that have grown (`autoexpand`), and goes on with what was interrupted.
    async fn keep_spares(&self, watch: &mut SpareWatch) -> Result<(), PoolError> {
        let mut taken = Vec::new();
        let mut may_use = |path: &Path| match lock(&self.engine.name(), vec![path.to_owned()]) {
            Ok(locks) => {
                taken.push(locks);
                true
            }
            // The process has the device already if it was a part of the pool before.
            Err(_) => self.has_path(path),
        };
        let used = match self.engine.spares().keep_replacing(&mut may_use).await {
            Ok(None) => self.engine.spares().keep_spares(watch, &mut may_use).await,
            replaced => replaced,
        };
        taken.into_iter().filter(|_| matches!(used, Ok(Some(_)))).for_each(|locks| self.also_has(locks));
        used?;
        self.engine.spares().finish_replacing().await?;
        self.engine.growth().keep_expanded().await?;
        weir_engine::checkpoint::keep_discarding(&self.engine).await
    }

    /// Whether the scrub task runs.
    ///
    /// # Errors
    /// The error that ended its last run.
    pub fn is_scrubbing(&self) -> Result<bool, String> {
        let scrub = self.scrub_state();
        scrub.error.clone().map_or(Ok(scrub.works), Err)
    }

    fn scrub_state(&self) -> MutexGuard<'_, Scrub> {
        self.scrub.lock()
    }

    fn wants_scrub(&self) -> bool {
        let mut scrub = self.scrub_state();
        scrub.works = std::mem::take(&mut scrub.again);
        scrub.works
    }
}
