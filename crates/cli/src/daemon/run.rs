//! Start, signals and end of the daemon.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use super::alerts::{self, AlertSettings};
use super::configuration::Configuration;
use super::jobs::{self, Job};
use super::keeper::Daemon;
use super::notify;
use crate::admin::{AdminSocket, ReadersSocket};
use crate::call::Call;
use crate::directories;
use crate::failure::Failure;
use crate::limits::{LimitOptions, Limits};
use crate::log;
use crate::serve_options::{TlsOptions, set_daemon_locks};
use crate::size;
use crate::smb::places;
use crate::smb::serving::default_port;
use crate::units::human_bytes;
use crate::web::{CertificateFiles, PageAddress};
use std::fs::{File, Permissions, TryLockError};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_daemon::protocols::ISCSI_PORT;
use weir_daemon::smb::Options;
use weir_daemon::users::ChapUsers;
use weir_daemon::{PortSettings, ServiceOptions, Sharing, Tls};
use weir_machine::{Clock, Machine};
use weir_object_store::{Prices, StoreDisks, is_url_path};
use weir_web::Store;

/// Interval in which pools that could not be opened are looked at again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time that the first import of all pools may take before the listeners start without those that are not open yet.
const FIRST_IMPORT_TIME: Duration = Duration::from_secs(8);
/// Time within which a daemon that was asked to stop has ended.
const STOP_TIME: Duration = Duration::from_secs(40);
/// Time within which a lock is expected to become free.
const LOCKED_WITHIN: Duration = Duration::from_secs(3);
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses and ports.
    pub service: ServiceOptions,
    /// Memory limits and deadlines.
    pub limits: Limits,
    /// Port of page, API and metrics; `None` takes the usual one if it is free.
    pub http_port: Option<u16>,
    /// Address of page, API and metrics, and their certificate.
    pub page: PageAddress,
    /// Maximum size of the stored history of analytics in bytes; `None` keeps it in memory only.
    pub history_bytes: Option<u64>,
    /// Whether file systems are mounted at their mount points.
    pub mounts: bool,
    /// Filter of the log.
    pub log: String,
    /// Directories and devices in which pools are found beside the cache file.
    pub pool_dirs: Vec<PathBuf>,
    /// Whether all users of the machine may read names, properties and state of the pools.
    pub user_queries: bool,
    /// Price list of object stores.
    pub prices: Prices,
    /// Scheduled snapshots and scrubs.
    pub jobs: Vec<Job>,
    /// Alerts, and who receives them.
    pub alerts: AlertSettings,
}

impl Settings {
    /// Checks the values of a configuration, and reads the certificates that it names, whose validity ends by this clock.
    ///
    /// # Errors
    /// The first value that is invalid, or a certificate that cannot be used.
    pub fn of(configuration: &Configuration, clock: &Clock) -> Result<Self, Failure> {
        let place = configuration.path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
        let seconds = |number: Option<f64>| number.map(|number| number.to_string());
        let options = LimitOptions {
            arc_max: configuration.arc_max.clone(),
            dirty_max: configuration.dirty_max.clone(),
            slow_io: seconds(configuration.slow_io),
            deadman: seconds(configuration.deadman),
        };
        let limits = Limits::chosen(&options).map_err(|why| {
            let (key, rest) = why.split_at(why.find([':', ' ']).unwrap_or(why.len()));
            Failure::failed(format!("{place}{}{rest}", key.trim_start_matches("--").replace('-', "_")))
        })?;
        let usual = ServiceOptions { port_settings: PortSettings::Keys, ..ServiceOptions::default() };
        let mut service = ServiceOptions {
            sharing: Sharing::ByProperties,
            listen: configuration.listen.unwrap_or(usual.listen),
            nfs_port: configuration.nfs_port.unwrap_or(usual.nfs_port),
            nbd_port: configuration.nbd_port.unwrap_or(usual.nbd_port),
            iscsi_port: Some(configuration.iscsi_port.unwrap_or(ISCSI_PORT)),
            needs_iscsi: configuration.iscsi_port.is_some(),
            chap_users: directories::state().map(ChapUsers::new),
            needs_nbd: true,
            nbd_tls: nbd_tls(configuration, clock).map_err(|failure| {
                let line = format!("{place}{failure}");
                failure.saying(line)
            })?,
            ..usual
        };
        check_ports(configuration, &service).map_err(|why| Failure::failed(format!("{place}{why}")))?;
        let smb_port = configuration.smb_port.unwrap_or_else(default_port);
        // Without a directory for it there is no socket for commands, either, which ends the daemon with its own message.
        let directories = places::of_port(smb_port).ok();
        service.smb = directories.map(|directories| Options { listen: service.listen, port: smb_port, directories });
        set_daemon_locks(&mut service);
        let log = configuration.log.clone().unwrap_or_else(|| "info".to_owned());
        log::check(&log).map_err(|why| Failure::failed(format!("{place}log: {why}")))?;
        let pool_dirs = configuration.pool_dirs.clone().unwrap_or_default();
        let user_queries = configuration.user_queries.unwrap_or_else(|| rustix::process::geteuid().is_root());
        let mounts = configuration.mounts.unwrap_or_else(|| rustix::process::geteuid().is_root());
        let history_bytes =
            history_bytes(configuration.history.as_deref()).map_err(|why| Failure::failed(format!("{place}{why}")))?;
        let jobs = jobs::checked(configuration.jobs.clone()).map_err(|why| Failure::failed(format!("{place}{why}")))?;
        let alerts =
            alerts::checked(configuration.alerts.clone()).map_err(|why| Failure::failed(format!("{place}{why}")))?;
        let prices = crate::stores::prices(configuration.store_prices.as_deref()).map_err(|failure| {
            let line = format!("{place}{failure}");
            failure.saying(line)
        })?;
        let http_port = configuration.http_port;
        let page = page_address(configuration, clock).map_err(|failure| {
            let line = format!("{place}{failure}");
            failure.saying(line)
        })?;
        Ok(Settings {
            service,
            limits,
            http_port,
            page,
            history_bytes,
            mounts,
            log,
            pool_dirs,
            user_queries,
            prices,
            jobs,
            alerts,
        })
    }
}

impl Settings {
    /// A warning for each path of `pool_dirs` that cannot be read: the search for pools skips it.
    pub fn unreadable_dirs(&self) -> Vec<String> {
        let line = |dir: &PathBuf| {
            unreadable(dir).map(|why| format!("pool_dirs: {}: {why}: no pools are searched there", dir.display()))
        };
        self.pool_dirs.iter().filter_map(line).collect()
    }
}

/// Why a folder, file or device of `pool_dirs` cannot be searched for pools; `None` if it can, or if only its object store knows.
pub fn unreadable(path: &Path) -> Option<std::io::Error> {
    if is_url_path(path) {
        return None;
    }
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => std::fs::read_dir(path).err(),
        Ok(_) => None,
        Err(error) => Some(error),
    }
}

/// Refuses two servers on one port. Ports that the configuration does not name and that need not be available do not count.
fn check_ports(configuration: &Configuration, service: &ServiceOptions) -> Result<(), String> {
    let page = configuration.http_listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let is_beside_http = service.listen == page || service.listen.is_unspecified() || page.is_unspecified();
    let ports = [
        ("nfs_port", Some(service.nfs_port)),
        ("nbd_port", Some(service.nbd_port)),
        ("iscsi_port", configuration.iscsi_port),
        ("smb_port", configuration.smb_port),
        ("http_port", configuration.http_port.filter(|_| is_beside_http)),
    ];
    let mut taken: Vec<(&str, u16)> = Vec::new();
    for (key, port) in ports.into_iter().filter_map(|(key, port)| Some((key, port.filter(|port| *port != 0)?))) {
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == port) {
            return Err(format!("{other} and {key} are both {port}: each protocol needs a port of its own"));
        }
        taken.push((key, port));
    }
    Ok(())
}

/// Address of page, API and metrics, and their certificate, which is read once to see that it can be used.
fn page_address(configuration: &Configuration, clock: &Clock) -> Result<PageAddress, Failure> {
    let ip = configuration.http_listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let certificate = match (configuration.http_tls_cert.clone(), configuration.http_tls_key.clone()) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        (None, None) => None,
        _ => return Err(Failure::failed("TLS of the page needs both http_tls_cert and http_tls_key")),
    };
    if let Some(files) = &certificate {
        files.tls(clock)?;
    }
    Ok(PageAddress { ip, certificate })
}

/// Maximum size of the stored history, in bytes; `None` if it is not stored.
fn history_bytes(text: Option<&str>) -> Result<Option<u64>, String> {
    match text {
        None => Ok(Some(Store::DEFAULT_BYTES)),
        Some("off") => Ok(None),
        Some(text) => match size::parse(text).filter(|bytes| *bytes >= Store::MIN_BYTES) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(format!(
                "history takes 'off' or a size of at least {}, such as 256M, not '{text}'",
                human_bytes(Store::MIN_BYTES)
            )),
        },
    }
}

/// TLS of NBD as the configuration says; messages name its keys instead of the options of `weir serve`.
fn nbd_tls(configuration: &Configuration, clock: &Clock) -> Result<Option<Tls>, Failure> {
    let file = |path: &Option<PathBuf>| path.clone().map(PathBuf::into_os_string);
    let options = TlsOptions {
        nbd_tls_cert: file(&configuration.nbd_tls_cert),
        nbd_tls_key: file(&configuration.nbd_tls_key),
        nbd_tls_ca: file(&configuration.nbd_tls_ca),
        nbd_tls: configuration.nbd_tls.clone(),
    };
    options.tls(clock, |why| Failure::failed(why.replace("--nbd-tls", "nbd_tls").replace("_tls-", "_tls_")))
}

/// Locks a file, within 3 s: the locks of a process that was killed end when the kernel has freed its memory.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    let begun = std::time::Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCKED_WITHIN => std::thread::sleep(LOCK_INTERVAL),
            done => return done,
        }
    }
}

/// Keeps other daemons out of the runtime and the state directory while it exists.
struct OnlyDaemon(#[expect(dead_code, reason = "locked until they are closed")] Vec<File>);

impl OnlyDaemon {
    /// Creates the directories and locks them.
    fn lock() -> Result<Self, Failure> {
        let runtime = directories::own_runtime()?;
        let state = directories::state().ok_or_else(|| Failure::failed("there is no state directory: set HOME"))?;
        directories::create(&state)?;
        let mut files = Vec::new();
        for folder in [runtime, state] {
            let path = folder.join(crate::admin::DAEMON_LOCK);
            let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", path.display()));
            let file =
                File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
            // Who can open the file can lock it, and so keep the daemon from starting.
            file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
            match try_lock(&file) {
                Ok(()) => files.push(file),
                Err(TryLockError::WouldBlock) => {
                    let why = format!("another daemon uses {}: stop it with 'weir daemon stop'", folder.display());
                    return Err(Failure::busy(why));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Ok(OnlyDaemon(files))
    }
}

/// Runs the daemon until it is stopped.
pub fn run(
    machine: Machine,
    disks: Arc<StoreDisks>,
    settings: Settings,
    config: Option<PathBuf>,
) -> Result<u8, Failure> {
    log::start_daemon(&settings.log);
    let only = OnlyDaemon::lock()?;
    let clock = machine.clock.clone();
    disks.set_prices(settings.prices.clone());
    let reload = move || {
        let read = Configuration::load(config.as_deref()).and_then(|read| Settings::of(&read, &clock))?;
        disks.set_prices(read.prices.clone());
        Ok(read)
    };
    let daemon = Daemon::new(&machine, settings, reload);
    let done = machine.block_on(serve(&daemon));
    drop(only);
    match &done {
        Ok(()) => tracing::info!("ended"),
        Err(failure) => tracing::error!("ended: {failure}"),
    }
    done.map(|()| 0)
}

/// The signals that the daemon obeys.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")));
        let [interrupt, terminate, hangup] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Ok(Signals { interrupt: of(interrupt)?, terminate: of(terminate)?, hangup: of(hangup)? })
    }
}

async fn serve(daemon: &Arc<Daemon>) -> Result<(), Failure> {
    let signals = Signals::new()?;
    tracing::info!("weir {} started, process {}; {}", env!("CARGO_PKG_VERSION"), std::process::id(), daemon.limits());
    // First, so that the first command finds the pools that are going to be opened.
    if let Err(failure) = daemon.remember() {
        tracing::error!("no pool is imported: {failure}");
    }
    if daemon.limits().exceed_memory() {
        tracing::warn!("arc_max and dirty_max exceed the memory: the kernel may kill this process");
    }
    daemon.unreadable_dirs().iter().for_each(|line| tracing::warn!("{line}"));
    daemon.record();
    let mut socket = AdminSocket::open(&daemon.process)?;
    socket.announce_daemon()?;
    let readers = match daemon.has_user_queries() {
        // Without it, everything else works.
        true => ReadersSocket::open(&daemon.process)
            .inspect_err(|error| tracing::error!("users read nothing: {error}"))
            .ok(),
        false => None,
    };
    let started = start(daemon).await;
    let done = match started {
        Ok(()) => {
            let why = work(daemon, signals).await;
            tracing::info!("stopping: {why}");
            daemon.notifier.stopping(&why);
            Ok(())
        }
        Err(failure) => Err(failure),
    };
    let closed = daemon.close_all().await;
    drop(readers);
    socket.close().await;
    done.and(closed)
}

/// Imports the remembered pools, then starts the listeners.
async fn start(daemon: &Arc<Daemon>) -> Result<(), Failure> {
    let opening = tokio::spawn({
        let daemon = daemon.clone();
        async move { daemon.open_remembered(true).await }
    });
    // The import of pools that take longer goes on.
    let _ended = tokio::time::timeout(FIRST_IMPORT_TIME, opening).await;
    daemon.listen().await?;
    daemon.listen_http().await?;
    daemon.notifier.ready(&daemon.summary());
    // For those who started the daemon by hand or in a script.
    println!("ready");
    Ok(())
}

/// Serves until the daemon is asked to stop; returns why.
async fn work(daemon: &Arc<Daemon>, mut signals: Signals) -> String {
    let clock = daemon.machine.clock.clone();
    let watchdog = notify::watchdog_interval();
    let mut retry_at = clock.now() + RETRY_INTERVAL;
    let mut watchdog_at = clock.now();
    loop {
        let tick = watchdog.map_or(RETRY_INTERVAL, |interval| interval.min(RETRY_INTERVAL));
        tokio::select! {
            why = daemon.stopped() => return why,
            _ = signals.interrupt.recv() => return "SIGINT".to_owned(),
            _ = signals.terminate.recv() => return "SIGTERM".to_owned(),
            _ = signals.hangup.recv() => reload(daemon).await,
            () = clock.sleep(tick) => {}
        }
        if watchdog.is_some_and(|_| clock.now() >= watchdog_at) {
            daemon.notifier.watchdog();
            watchdog_at = clock.now() + watchdog.unwrap_or_default();
        }
        if clock.now() >= retry_at {
            retry(daemon);
            jobs::start_due(daemon);
            alerts::look(daemon);
            retry_at = clock.now() + RETRY_INTERVAL;
        }
    }
}

/// Tries in the background to open the pools whose devices have changed.
fn retry(daemon: &Arc<Daemon>) {
    if daemon.remembered.len() > 0 {
        let daemon = daemon.clone();
        drop(tokio::spawn(async move {
            if !daemon.open_remembered(false).await.is_empty() {
                daemon.notifier.status(&daemon.summary());
            }
        }));
    }
}

async fn reload(daemon: &Arc<Daemon>) {
    daemon.notifier.reloading(monotonic_us(&daemon.machine.clock));
    tracing::info!("SIGHUP: reading the configuration again");
    match daemon.reload().await {
        Ok(lines) => lines.iter().for_each(|line| match line {
            Ok(line) => tracing::info!("{line}"),
            Err(line) => tracing::error!("{line}"),
        }),
        Err(failure) => tracing::error!("the configuration stays as it was: {failure}"),
    }
    daemon.notifier.ready(&daemon.summary());
}

/// The kernel's monotonic time, which systemd compares with its own.
fn monotonic_us(_: &Clock) -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000 + u128::from(now.tv_nsec.unsigned_abs()) / 1000
}

/// Whether a process runs. One that has ended and whose parent has not read its exit code is no more there.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which is in brackets and may contain any character.
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// Waits until a daemon that was asked to stop has ended.
pub fn wait_for_end(call: &Call, pid: u32) -> Result<(), Failure> {
    let machine = call.machine()?;
    let until = machine.clock.now() + STOP_TIME;
    while is_running(pid) {
        if machine.clock.now() >= until {
            return Err(Failure::failed(format!(
                "the daemon, process {pid}, has not ended within {} s",
                STOP_TIME.as_secs()
            )));
        }
        machine.block_on(machine.clock.sleep(Duration::from_millis(20)));
    }
    Ok(())
}
