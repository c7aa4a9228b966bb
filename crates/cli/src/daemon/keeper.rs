//! The pools of the daemon: opened, served, remembered and closed, each while the others go on being served.
//!
//! Invariants: a pool of the table of the process is locked, has a running engine, and has exports. It is served once the
//! listeners are there. Its GUID is in its cache file from [`Daemon::adopt`] until it is exported or destroyed.
//!
//! Order of the asynchronous locks: `changing` (one pool is opened or closed at a time), then those of the engine.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::alerts::Alerts;
use super::jobs::Jobs;
use super::notify::Notifier;
use super::opening::{OpeningGuard, OpeningPool, OpeningPools, still_opening};
use super::pool_log;
use super::remembered::RememberedPools;
use super::run::{Settings, unreadable};
use crate::admin::{CloseMode, ServedPool};
use crate::cache_file::CachePlace;
use crate::directories;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::mounts::points;
use crate::process::PoolProcess;
use crate::web;
use crate::writable::WritablePool;
use futures_util::lock::Mutex as AsyncMutex;
use rustix::termios::isatty;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use weir_analytics::History;
use weir_daemon::service::{device_summary, summary};
use weir_daemon::{Exports, OpenPool, Service};
use weir_engine::Engine;
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Nanos, Request};
use weir_pool::PoolError;
use weir_web::{Access, HistoryStatus, Recorder, Web, WebOptions};

/// Time that a pool which is being closed waits for clients that were disconnected.
const DISCONNECT_TIME: Duration = Duration::from_secs(5);
/// Interval in which it checks them.
const DISCONNECT_POLL: Duration = Duration::from_millis(10);
/// Maximum time for the last flush of the history of analytics.
const LAST_FLUSH_TIME: Duration = Duration::from_secs(5);
/// Maximum time for the last txgs of all pools when the daemon stops.
const LAST_TXG_TIME: Duration = Duration::from_secs(20);

/// How a pool is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Export,
    Destroy,
    /// The pool stays in use by this machine: the next start imports it.
    Stop,
}

/// The daemon.
pub struct Daemon {
    /// Machine on which everything runs.
    pub machine: Machine,
    /// The open pools.
    pub process: Arc<PoolProcess>,
    /// Pools of the cache file that are not open.
    pub remembered: RememberedPools,
    /// Pools that are being opened.
    pub opening: Arc<OpeningPools>,
    /// Time of the start.
    pub started: Nanos,
    /// The service manager.
    pub notifier: Notifier,
    /// Scheduled snapshots and scrubs.
    pub jobs: Jobs,
    /// Conditions of pools and jobs that are sent to receivers.
    pub alerts: Alerts,
    pub(super) settings: Mutex<Settings>,
    pub(super) reload_settings: Box<dyn Fn() -> Result<Settings, Failure> + Send + Sync>,
    service: OnceLock<Arc<Service>>,
    recorder: Mutex<Option<Arc<Recorder>>>,
    web: Mutex<Option<Web>>,
    access: OnceLock<Arc<Access>>,
    pub(super) places: Mutex<BTreeMap<u64, CachePlace>>,
    /// GUIDs and configurations of the pools as the cache files have them.
    pub(super) cached: Mutex<BTreeMap<u64, (u64, Vec<u8>)>>,
    /// Held while a pool is opened, served for the first time, or closed.
    changing: AsyncMutex<()>,
    stop: watch::Sender<Option<String>>,
}

impl Daemon {
    /// A daemon without pools and listeners.
    pub fn new(
        machine: &Machine,
        settings: Settings,
        reload_settings: impl Fn() -> Result<Settings, Failure> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let jobs = Jobs::load(directories::state());
        jobs.set(settings.jobs.clone());
        let alerts = Alerts::new(settings.alerts.clone(), directories::state());
        let daemon = Arc::new(Daemon {
            machine: machine.clone(),
            process: PoolProcess::new(machine),
            remembered: RememberedPools::default(),
            opening: Arc::default(),
            started: machine.clock.now(),
            notifier: Notifier::from_env(),
            jobs,
            alerts,
            settings: Mutex::new(settings),
            reload_settings: Box::new(reload_settings),
            service: OnceLock::new(),
            recorder: Mutex::default(),
            web: Mutex::default(),
            access: OnceLock::new(),
            places: Mutex::default(),
            cached: Mutex::default(),
            changing: AsyncMutex::default(),
            stop: watch::Sender::new(None),
        });
        daemon.process.set_daemon(&daemon);
        daemon
    }

    /// Memory limits of one more pool: its share of those of the daemon.
    pub fn limits_of_pool(&self) -> Limits {
        let limits = self.settings.lock().limits.clone();
        let pools = self.process.all().len().max(self.remembered.len()).max(1);
        limits.shared_by(pools)
    }

    /// Memory limits of all pools together.
    pub fn limits(&self) -> Limits {
        self.settings.lock().limits.clone()
    }

    /// The servers, once they listen.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.service.get()
    }

    /// Moves an open pool to another cache file: the property `cachefile`.
    ///
    /// # Errors
    /// If a cache file cannot be written.
    pub fn set_place(&self, pool: &ServedPool, place: CachePlace) -> Result<(), Failure> {
        let before = self.places.lock().insert(pool.key(), place.clone()).unwrap_or_default();
        pool.engine.properties().show_cachefile(&place.value());
        if before != place {
            before.file().map_or(Ok(()), |file| file.remove(pool.guid()))?;
        }
        place.file().map_or(Ok(()), |file| file.put(&pool.engine))
    }

    /// Begins to open a pool that a command names. `None`: another task is opening it.
    pub fn begin_opening(&self, guid: u64, name: &str) -> Option<OpeningGuard> {
        let pool = OpeningPool { name: name.to_owned(), since: self.machine.clock.now() };
        self.opening.begin(guid, pool, || true)
    }

    /// Waits while a pool with this name or GUID is being opened, for a bounded time.
    ///
    /// # Errors
    /// If it is not open by then.
    pub async fn until_opened(&self, name: &str) -> Result<(), String> {
        let names = [name.to_owned()];
        let wait = self.opening.until_opened(&self.machine.clock, &names, Vec::new);
        wait.await.map_err(|_| still_opening())
    }

    /// Waits while one of these pools, or any if there are none, is being opened or is about to be, for a bounded time.
    ///
    /// # Errors
    /// The first that is not open by then.
    pub async fn until_all_opened(&self, pools: &[String]) -> Result<(), String> {
        // At the start all remembered pools are tried; of one that was, there is a reason why it is not open.
        let untried = || {
            let all = if self.service.get().is_none() { self.remembered.all() } else { Vec::new() };
            let untried = all.into_iter().filter(|pool| pool.why.is_empty());
            untried.map(|pool| (pool.cached.guid, pool.cached.name)).collect()
        };
        let wait = self.opening.until_opened(&self.machine.clock, pools, untried);
        wait.await.map_err(|name| format!("cannot open '{name}': {}", still_opening()))
    }

    /// Keeps a pool open that a command or the start has opened: serves it, and records it in its cache file. Its file systems
    /// are mounted now if `mounts`, and otherwise those that are created later. Returns why it could not be recorded, for the user.
    ///
    /// # Errors
    /// If its datasets cannot be read; then it is closed again.
    pub async fn adopt(
        self: &Arc<Self>,
        writable: WritablePool,
        place: CachePlace,
        mounts: bool,
    ) -> Result<Option<String>, Failure> {
        let Ok((engine, locks)) = writable.into_engine() else { return Ok(None) };
        let _one_at_a_time = self.changing.lock().await;
        let name = engine.name();
        let guid = engine.shown().config.guid;
        let adopted = self.take_over(&engine, locks).await;
        let pool = match adopted {
            Ok(pool) => pool,
            Err(failure) => {
                self.process.remove(guid);
                engine.stop().await.map_err(Failure::from).and(Err(failure))?
            }
        };
        self.remembered.remove(guid);
        self.expect_remembered();
        // As in OpenZFS: it is opened for writing after a restart, or not at all.
        let place = if engine.is_read_only() { CachePlace::None } else { place };
        engine.properties().show_cachefile(&place.value());
        self.places.lock().insert(guid, place);
        let recorded = self.refresh_cache_file(&pool);
        self.refresh_cache_files();
        self.share_memory();
        pool_log::start(&pool);
        pool.go_on().await;
        let wants_mounts = self.settings.lock().mounts;
        // Mounts that a killed process left, be they its own or made by `zfs mount`.
        crate::automount::unmount_stale(&name);
        if wants_mounts {
            pool.mount_automatically(mounts).await;
        }
        tracing::info!("pool '{name}' opened ({guid})");
        let why =
            |failure| format!("pool '{name}' is served, but will not be after a restart of the daemon: {failure}");
        Ok(recorded.err().map(why))
    }

    /// Puts an open pool into the tables of the process and of the servers.
    async fn take_over(self: &Arc<Self>, engine: &Arc<Engine>, locks: Locks) -> Result<Arc<ServedPool>, Failure> {
        let (deadlines, l2arc) = {
            let settings = self.settings.lock();
            (settings.limits.deadlines, settings.limits.l2arc)
        };
        engine.cache.l2arc().set_settings(l2arc);
        weir_engine::supervision::supervise(engine, deadlines, Arc::new(crate::mount::abort)).await?;
        let (sender, requests) = mpsc::channel(1);
        let pool = ServedPool::new(self.machine.clone(), engine.clone(), locks.identities(), sender);
        pool.also_has(locks);
        let rq = Request::internal("serve");
        let exports = Arc::new(Exports::open(&rq, &OpenPool::Engine(engine.clone())).await?);
        crate::mount::tell_of_unsynced(&exports.pool).await?;
        pool.set_front(exports.clone());
        if let Some(service) = self.service.get() {
            service.add(&exports).await.map_err(|error| Failure::failed(error.to_string()))?;
            pool.set_service(service);
        }
        self.process.add(&pool);
        debug_assert!(self.process.named(&pool.guid().to_string()).is_some(), "commands find the pool");
        drop(self.machine.tasks.spawn(close_on_request(self.clone(), pool.clone(), requests)));
        Ok(pool)
    }

    /// Starts the listeners with the pools that are open.
    ///
    /// # Errors
    /// If a port is unavailable.
    pub async fn listen(&self) -> Result<&Arc<Service>, Failure> {
        let _one_at_a_time = self.changing.lock().await;
        let options = self.settings.lock().service.clone();
        let pools = self.process.all();
        let exports: Vec<Arc<Exports>> = pools.iter().filter_map(|pool| pool.front()).collect();
        let service = Service::start_with(&self.machine, &exports, &options, &self.remembered.guids()).await;
        let service = Arc::new(service.map_err(|error| Failure::failed(format!("weir daemon: {error}")))?);
        pools.iter().for_each(|pool| pool.set_service(&service));
        // smbd begins to listen with the first share.
        for server in service.protocols().iter().filter(|server| server.protocol() != weir_machine::Protocol::Smb) {
            tracing::info!(protocol = server.protocol().name(), "listening on {}", server.address());
        }
        service.notices().iter().for_each(|notice| tracing::info!("{notice}"));
        let service = self.service.get_or_init(|| service);
        // Pools may have been opened meanwhile.
        service.expect(&self.remembered.guids());
        Ok(service)
    }

    /// Begins to record what the pools do. Must be called inside a tokio runtime.
    pub fn record(&self) {
        let history_bytes = self.settings.lock().history_bytes;
        let recorder = web::record(&self.process, history_bytes.and_then(web::history_store));
        *self.recorder.lock() = Some(Arc::new(recorder));
    }

    /// Sizes of the history.
    pub fn history(&self) -> Option<HistoryStatus> {
        // Its locks are not taken under this one.
        let recorder = self.recorder.lock().clone();
        recorder.map(|recorder| recorder.status())
    }

    /// Starts the server of page, API and metrics. Without a configured port, a daemon whose usual one is taken has none; nor has one
    /// whose files of tokens cannot be used: the pools are served all the same.
    ///
    /// # Errors
    /// If the configured port is taken.
    pub async fn listen_http(&self) -> Result<(), Failure> {
        let (configured, page) = {
            let settings = self.settings.lock();
            (settings.http_port, settings.page.clone())
        };
        let access = match web::stored_access(&self.machine) {
            Ok(access) => access,
            Err(failure) => {
                tracing::error!("no page, API and metrics: {failure}");
                return Ok(());
            }
        };
        let access = self.access.get_or_init(|| Arc::new(access)).clone();
        let administrator = web::administrator(&self.process, web::audit());
        let port = configured.unwrap_or(web::DEFAULT_PORT);
        let Some(recorder) = self.recorder.lock().clone() else { return Ok(()) };
        let options = WebOptions { address: SocketAddr::new(page.ip, port), tls: page.tls(&self.machine)? };
        let started = Web::start(&self.machine, &recorder, options, access, Some(administrator)).await;
        let web = match (started, configured) {
            (Ok(web), _) => web,
            (Err(failure), Some(_)) => return Err(failure.into()),
            (Err(failure), None) => {
                tracing::warn!("no page, API and metrics: {failure}; set http_port");
                return Ok(());
            }
        };
        let file = web::token_file().map(|path| path.display().to_string()).unwrap_or_default();
        let all = if page.ip.is_unspecified() { " and all other addresses of this host" } else { "" };
        tracing::info!("page, API and metrics at {}{all}, with the token in {file}", web.page());
        if isatty(std::io::stdout()) {
            // The token is for those who started the daemon by hand, and not for a log.
            println!("page, API and metrics: {}", web.url());
        }
        *self.web.lock() = Some(web);
        Ok(())
    }

    /// The tokens of the page, once they have been read.
    pub fn access(&self) -> Option<&Arc<Access>> {
        self.access.get()
    }

    /// Address of page, API and metrics, if they are served.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.web.lock().as_ref().map(Web::address)
    }

    /// Address of the page without the token, if it is served.
    pub fn page(&self) -> Option<String> {
        self.web.lock().as_ref().map(Web::page)
    }

    /// Closes a pool while the others are served. Its devices are unlocked afterwards, even if closing failed.
    async fn close(&self, pool: &Arc<ServedPool>, how: Closing) -> Result<(), String> {
        let _one_at_a_time = self.changing.lock().await;
        let (key, guid) = (pool.key(), pool.guid());
        let name = pool.engine.name();
        if self.process.named(&guid.to_string()).is_none() {
            return Err("it is closed already".to_owned());
        }
        // It is exported without its last txg, as asked for, and not opened again.
        let gives_up = how == Closing::Export && pool.engine.devices().suspended_because().is_some();
        let points = if how == Closing::Stop { Vec::new() } else { pool.mount_points_by_name() };
        pool.unmount_all().await;
        // OpenZFS leaves no empty directories behind, either.
        points::remove(points);
        if let Some(service) = self.service.get() {
            service.remove(key);
            service.settle().await;
        }
        let until = self.machine.clock.now() + DISCONNECT_TIME;
        while pool.has_open_files() && self.machine.clock.now() < until {
            self.machine.clock.sleep(DISCONNECT_POLL).await;
        }
        let done = match how {
            Closing::Export => pool.engine.export().await,
            Closing::Destroy => pool.engine.destroy().await,
            Closing::Stop => pool.engine.stop().await,
        };
        self.process.remove(key);
        pool.let_go();
        log_totals(pool);
        let place = self.places.lock().remove(&key).unwrap_or_default();
        self.cached.lock().remove(&key);
        let forgotten = how != Closing::Stop && (done.is_ok() || gives_up);
        if let Err(failure) = place.file().filter(|_| forgotten).map_or(Ok(()), |file| file.remove(guid)) {
            tracing::error!("pool '{name}': {failure}");
        }
        self.share_memory();
        log_closed(&name, how, &done);
        done.map_err(|error| error.to_string())
    }

    /// Tells the servers which pools may be opened later.
    pub(super) fn expect_remembered(&self) {
        if let Some(service) = self.service.get() {
            service.expect(&self.remembered.guids());
        }
    }

    /// Divides the memory of the ARC among the open pools. The history of each pool is a part of its share.
    fn share_memory(&self) {
        let pools = self.process.all();
        let limits = self.settings.lock().limits.shared_by(pools.len().max(1));
        let arc_bytes = limits.arc_bytes_beside(History::MAX_BYTES as u64);
        pools.iter().for_each(|pool| pool.engine.cache.set_budget(arc_bytes));
    }

    /// Asks the daemon to stop.
    pub fn stop(&self, why: &str) {
        self.stop.send_if_modified(|stop| {
            let is_first = stop.is_none();
            stop.get_or_insert_with(|| why.to_owned());
            is_first
        });
    }

    /// Waits until the daemon is asked to stop, and returns why.
    pub async fn stopped(&self) -> String {
        let mut stop = self.stop.subscribe();
        let why = stop.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or_else(|| "it was dropped".to_owned())
    }

    /// Answers the calls in progress, and closes all pools without exporting them.
    ///
    /// # Errors
    /// If a pool could not be closed in time.
    pub async fn close_all(self: &Arc<Self>) -> Result<(), Failure> {
        drop(self.web.lock().take());
        let recorder = self.recorder.lock().take();
        if let Some(recorder) = recorder
            && tokio::time::timeout(LAST_FLUSH_TIME, recorder.stop()).await.is_err()
        {
            let seconds = LAST_FLUSH_TIME.as_secs();
            tracing::warn!("the last points of the history of analytics were not stored within {seconds} s");
        }
        if let Some(service) = self.service.get() {
            service.stop().await;
        }
        let pools = self.process.all();
        let closing = pools.iter().map(|pool| {
            let daemon = self.clone();
            let pool = pool.clone();
            async move { daemon.end(&pool).await.map_err(|why| format!("pool '{}': {why}", pool.engine.name())) }
        });
        let failures: Vec<String> =
            futures_util::future::join_all(closing).await.into_iter().filter_map(Result::err).collect();
        if failures.is_empty() { Ok(()) } else { Err(Failure::failed(failures.join("\n"))) }
    }

    /// The last txg of a pool when the daemon stops. All pools end at the same time, so no lock is taken.
    async fn end(&self, pool: &Arc<ServedPool>) -> Result<(), String> {
        let name = pool.engine.name();
        pool.unmount_all().await;
        let done = tokio::time::timeout(LAST_TXG_TIME, pool.engine.stop()).await;
        self.process.remove(pool.key());
        log_totals(pool);
        match done {
            Ok(done) => {
                pool.let_go();
                log_closed(&name, Closing::Stop, &done);
                done.map_err(|error| error.to_string())
            }
            // The devices stay locked until the process ends.
            Err(_) => Err(format!(
                "its last txg did not end within {} s; what was acknowledged as stable is replayed at the next start",
                LAST_TXG_TIME.as_secs()
            )),
        }
    }
}

fn log_closed(name: &str, how: Closing, done: &Result<(), PoolError>) {
    let (what, failure) = match how {
        Closing::Export => ("exported", "closed, but not exported"),
        Closing::Destroy => ("destroyed", "closed, but not destroyed"),
        Closing::Stop => ("closed", "closed, but not cleanly"),
    };
    match done {
        Ok(()) => tracing::info!("pool '{name}' {what}"),
        Err(error) => tracing::error!("pool '{name}' {failure}: {error}"),
    }
}

/// Logs what clients and devices of a pool did while it was open.
fn log_totals(pool: &ServedPool) {
    let accounts = pool.engine.cache.accounts();
    let name = pool.engine.name();
    use weir_machine::Protocol::{Iscsi, Nbd, Nfs3, Smb};
    for protocol in [Nfs3, Nbd, Iscsi, Smb] {
        let served = accounts.protocol(protocol);
        if served.requests > 0 {
            tracing::info!("pool '{name}': {}", summary(protocol.name(), &served));
        }
    }
    tracing::info!("pool '{name}': {}", device_summary(accounts));
}

/// Closes a pool when an administrator asks for it.
async fn close_on_request(daemon: Arc<Daemon>, pool: Arc<ServedPool>, mut requests: mpsc::Receiver<CloseMode>) {
    if let Some(CloseMode { destroyed, done }) = requests.recv().await {
        let how = if destroyed { Closing::Destroy } else { Closing::Export };
        let closed = daemon.close(&pool, how).await;
        // Sending fails if the administrator's command was interrupted, which is ignored.
        let _ = done.send(closed);
    }
}

impl Daemon {
    /// Whether all users of the machine may read names, properties and state of the pools.
    pub fn has_user_queries(&self) -> bool {
        self.settings.lock().user_queries
    }

    /// Directories and devices of the configuration in which pools are found. Those that cannot be read are passed over: the disk of
    /// one may be unplugged, and pools on others are served without it.
    pub fn pool_dirs(&self) -> Vec<std::path::PathBuf> {
        let mut dirs = self.settings.lock().pool_dirs.clone();
        dirs.retain(|dir| unreadable(dir).is_none());
        dirs
    }

    /// See [`Settings::unreadable_dirs`].
    pub fn unreadable_dirs(&self) -> Vec<String> {
        self.settings.lock().unreadable_dirs()
    }

    /// Reads the configuration again, tries to open the remembered pools, and brings all exports up to date. Returns what
    /// happened, one line each; what could not be done is an error among them.
    ///
    /// # Errors
    /// If the configuration is invalid; then everything stays as it was.
    pub async fn reload(self: &Arc<Self>) -> Result<Vec<Result<String, String>>, Failure> {
        let new = (self.reload_settings)()?;
        let mut lines = Vec::new();
        let mut rebound = Vec::new();
        let begins_to_mount;
        let service_options = new.service.clone();
        self.jobs.set(new.jobs.clone());
        self.alerts.set(new.alerts.clone());
        {
            let mut settings = self.settings.lock();
            if new.log != settings.log {
                lines.push("the log changes when the daemon is started again".to_owned());
            }
            if new.http_port != settings.http_port {
                lines.push("http_port changes when the daemon is started again".to_owned());
            }
            if new.page != settings.page {
                lines.push("http_listen and the page's certificate change when the daemon is started again".to_owned());
            }
            if new.user_queries != settings.user_queries {
                lines.push("user_queries changes when the daemon is started again".to_owned());
            }
            if new.history_bytes != settings.history_bytes {
                lines.push("history changes when the daemon is started again".to_owned());
            }
            begins_to_mount = new.mounts && !settings.mounts;
            if settings.mounts && !new.mounts {
                lines.push("mounts = false holds for pools that are opened from now on".to_owned());
            }
            *settings = new;
        }
        lines.extend(self.unreadable_dirs());
        if let Some(service) = self.service() {
            // No pool comes or goes meanwhile.
            let _one_at_a_time = self.changing.lock().await;
            rebound = service.rebind(&service_options).await;
        }
        self.share_memory();
        self.remember()?;
        if begins_to_mount {
            for pool in self.process.all() {
                pool.mount_automatically(true).await;
            }
        }
        lines.extend(self.open_remembered(true).await);
        self.process.renew().await?;
        if let Some(service) = self.service() {
            service.renew_users();
        }
        Ok(lines.into_iter().map(Ok).chain(rebound).collect())
    }
}
