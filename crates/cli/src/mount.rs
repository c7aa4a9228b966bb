//! `weir mount`: all file systems of a pool through FUSE, in the foreground, until unmounted or stopped. With `-o ro`
//! not a byte of the pool changes.

use crate::admin::{AdminSocket, CloseMode, ServedPool};
use crate::args::CommandLine;
use crate::failure::Failure;
use crate::limits::{LimitOptions, Limits};
use crate::pools::search_paths;
use crate::process::PoolProcess;
use crate::secrets::{KeyPrompt, ask_all};
use crate::turn::in_turn;
use crate::writable::{WritablePool, WriteIntent};
use clap::{Args, Parser};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use weir_daemon::fuse::{self, FuseError, MountOptions, Mounted};
use weir_daemon::{Exports, OpenPool};
use weir_engine::{IDLE_TXG_TIMEOUT, TXG_TIMEOUT};
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Request};
use weir_pool::assemble::state;
use weir_pool::{FoundPool, OpenOptions, Pool, Rewind, assemble, scan};

/// Options of the processes that open a pool and keep it open.
#[derive(Args, Debug)]
pub struct OpenPoolOptions {
    /// Directory, file or device to scan for the pool; may be repeated [default: WEIR_POOL_DIRS, else the cache file and the
    /// block devices]
    #[arg(short = 'd', value_name = "DIR")]
    pub dirs: Vec<OsString>,
    /// Key of an encrypted dataset; may be repeated
    #[arg(long = "key", value_name = "DATASET=file://FILE")]
    pub keys: Vec<OsString>,
    /// Ask for the keys of encrypted datasets
    #[arg(short = 'l')]
    pub ask_keys: bool,
    /// Open a pool that another host used last, and did not export
    #[arg(short = 'f')]
    pub force: bool,
    /// If the last txg is unreadable, open an earlier one
    #[arg(short = 'F')]
    pub rewind: bool,
    /// Open the pool in the state of this txg or an earlier one, read-only
    #[arg(short = 'T', value_name = "TXG")]
    pub txg: Option<String>,
    /// Write the line "ready" to this file descriptor instead of standard output
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<String>,
    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Mount the file systems of a pool through FUSE.
///
/// The command stays in the foreground until the file systems are unmounted or it is stopped.
#[derive(Debug, Parser)]
#[command(
    name = "weir mount",
    override_usage = "weir mount [-fl] [-o ro|rw[,OPTION]…] [-d DIR]… [--arc-max SIZE] [--dirty-max SIZE]\n       [--key DATASET=file://FILE]… [--ready-fd N] [-F | -T TXG] POOL MOUNTPOINT"
)]
pub struct MountArgs {
    /// Mount options, separated by commas: ro, rw, allow_other, nodev, nosuid, noexec, noatime; may be repeated. Default:
    /// writable if the pool can be written
    #[arg(short, value_name = "OPTION,…")]
    options: Vec<String>,
    #[command(flatten)]
    open: OpenPoolOptions,
    /// Pool, and the directory to mount it on
    #[arg(value_name = "POOL MOUNTPOINT")]
    words: Vec<String>,
}

/// Threads that read requests from the kernel; a request that waits for a disk occupies none.
const THREADS: usize = 4;

impl From<FuseError> for Failure {
    fn from(error: FuseError) -> Self {
        Failure::failed(format!("weir mount: {error}"))
    }
}

/// Whether a pool is opened for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Open for writing, or fail.
    Write,
    /// Open for writing if possible; else open read-only with a warning.
    TryToWrite,
    /// Open read-only: no byte of the pool changes.
    Read,
}

/// A pool opened read-only or for writing, until it is closed.
pub struct OpenedPool {
    /// View of the pool that front ends serve.
    pub shown: OpenPool,
    served: Option<Served>,
}

/// State of a pool that is open for writing while this process serves it.
struct Served {
    writable: WritablePool,
    served_pool: Arc<ServedPool>,
    admin_socket: Mutex<Option<AdminSocket>>,
    close_requests: tokio::sync::Mutex<mpsc::Receiver<CloseMode>>,
    close_mode: Mutex<Option<CloseMode>>,
}

/// Ends the process at once (`failmode=panic`).
pub fn abort(why: &str) {
    eprintln!("failmode=panic: {why}");
    std::process::abort();
}

impl OpenedPool {
    /// Opens the pool that the command line names.
    ///
    /// # Errors
    /// If there is no such pool, or it was destroyed, or it cannot be opened.
    pub fn open(
        machine: &Machine,
        options: &OpenOptions,
        access: Access,
        force: bool,
        limits: &Limits,
    ) -> Result<Self, Failure> {
        check_not_destroyed(machine, options)?;
        if let Some(who) = other_host(machine, options)?.filter(|_| !force) {
            let why =
                format!("cannot open '{}': it may be in use on another machine ({who}); -f forces it", options.pool);
            match access {
                Access::Read => eprintln!("{}: in use on another machine ({who})? Then reads may fail", options.pool),
                // Not even read-only: what is served would change below the clients.
                Access::Write | Access::TryToWrite => return Err(Failure::failed(why)),
            }
        }
        let mut not_writable = None;
        if access != Access::Read {
            let intent = WriteIntent {
                search: options.search.clone(),
                pool: options.pool.clone(),
                keys: options.keys.clone(),
                rewind: if options.rewind == Rewind::Auto { Rewind::Auto } else { Rewind::No },
                force,
                limits: Some(limits.clone()),
                ..WriteIntent::default()
            };
            let open = || WritablePool::open(machine.clone(), &intent);
            match in_turn(machine, |line| eprintln!("{line}"), open) {
                Ok(writable) => {
                    if writable.was_exported() {
                        let pool = &options.pool;
                        eprintln!(
                            "pool '{pool}' was exported: it is imported until this command ends, then exported again"
                        );
                    }
                    return Self::writable(writable, limits);
                }
                Err(failure) if access == Access::Write => return Err(failure),
                // The process that has the pool open may overwrite blocks that a read-only import would read.
                Err(failure) if failure.is_busy() => return Err(failure),
                Err(failure) => not_writable = Some(failure),
            }
        }
        let options = OpenOptions { arc_bytes: limits.arc_bytes, ..options.clone() };
        let pool = match (machine.block_on(open_pool(machine, &options)), not_writable) {
            (Ok(pool), None) => pool,
            (Ok(pool), Some(failure)) => {
                eprintln!("{failure}; it is opened read-only");
                pool
            }
            // The reason why it cannot be opened at all is the first one.
            (Err(_), Some(failure)) | (Err(failure), None) => return Err(failure),
        };
        Ok(OpenedPool { shown: OpenPool::ReadOnly(pool), served: None })
    }

    /// Wraps a pool that is already open for writing.
    pub fn writable(mut writable: WritablePool, limits: &Limits) -> Result<Self, Failure> {
        writable.engine.cache.l2arc().set_settings(limits.l2arc);
        let supervising = weir_engine::supervision::supervise(&writable.engine, limits.deadlines, Arc::new(abort));
        writable.machine.block_on(supervising)?;
        let (sender, close_requests) = mpsc::channel(1);
        let locks = writable.take_locks().unwrap_or_default();
        let served_pool =
            ServedPool::new(writable.machine.clone(), writable.engine.clone(), locks.identities(), sender);
        // They are released with the devices that leave the pool.
        served_pool.also_has(locks);
        writable.machine.block_on(served_pool.go_on());
        let shown = OpenPool::Engine(writable.engine.clone());
        let admin_socket = Mutex::default();
        let close_mode = Mutex::default();
        let close_requests = tokio::sync::Mutex::new(close_requests);
        let served = Served { writable, served_pool, admin_socket, close_requests, close_mode };
        Ok(OpenedPool { shown, served: Some(served) })
    }

    /// Opens the exports for the front ends.
    pub async fn exports(&self) -> Result<Arc<Exports>, Failure> {
        let front = Arc::new(Exports::open(&Request::internal("serve"), &self.shown).await?);
        if let Some(served) = &self.served {
            served.served_pool.set_front(front.clone());
        }
        Ok(front)
    }

    /// Opens the exports for the front ends, and listens for administrators' commands if the pool is open for writing.
    pub async fn front(&self) -> Result<Arc<Exports>, Failure> {
        let front = self.exports().await?;
        if let Some(served) = &self.served {
            match AdminSocket::open(&PoolProcess::of_pool(&served.served_pool)) {
                Ok(admin_socket) => *served.admin_socket.lock() = Some(admin_socket),
                Err(failure) => eprintln!("{failure}\ncommands about the pool have to wait until this process ends"),
            }
        }
        Ok(front)
    }

    /// Runs `work` while commands of other processes are run on the pool. Ends early if an administrator requests that
    /// the pool be closed; then returns `None`. Commands in progress end before this returns.
    ///
    /// # Errors
    /// The error of `work`.
    pub async fn serve_commands<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Option<T>, Failure> {
        let Some(served) = &self.served else { return work.await.map(Some) };
        // Without a socket, other commands wait until the work is done.
        let admin_socket = AdminSocket::open(&PoolProcess::of_pool(&served.served_pool)).ok();
        let mut close_requests = served.close_requests.lock().await;
        let done = tokio::select! {
            done = work => done.map(Some),
            Some(close_mode) = close_requests.recv() => {
                *served.close_mode.lock() = Some(close_mode);
                *served.admin_socket.lock() = admin_socket;
                return Ok(None);
            }
        };
        if let Some(admin_socket) = admin_socket {
            admin_socket.close().await;
        }
        done
    }

    /// The pool as commands of other processes see it, if it is open for writing.
    pub fn served_pool(&self) -> Option<&Arc<ServedPool>> {
        self.served.as_ref().map(|served| &served.served_pool)
    }

    /// Waits until an administrator asks for the pool to be closed.
    pub async fn until_closing(&self) {
        let Some(served) = &self.served else { return std::future::pending().await };
        let mut close_requests = served.close_requests.lock().await;
        match close_requests.recv().await {
            Some(close_mode) => *served.close_mode.lock() = Some(close_mode),
            None => std::future::pending().await,
        }
    }

    /// Waits until a signal or an administrator's request ends the process.
    pub async fn until_stopped(&self, stop: &mut StopSignal) {
        let Some(served) = &self.served else { return stop.wait().await };
        let mut close_requests = served.close_requests.lock().await;
        tokio::select! {
            () = stop.wait() => {}
            Some(close_mode) = close_requests.recv() => *served.close_mode.lock() = Some(close_mode),
        }
    }

    /// Closes the pool in its previous state or as an administrator requested, and sends that administrator the result.
    pub fn close(self) -> Result<(), Failure> {
        drop(self.shown);
        let Some(served) = self.served else { return Ok(()) };
        served.served_pool.mounts.unmount_all();
        let machine = served.writable.machine.clone();
        let close_mode = served.close_mode.lock().take();
        let done = match close_mode {
            None => {
                let done = served.writable.close();
                served.served_pool.let_go();
                done
            }
            Some(close_mode) => {
                let done = served.writable.end(close_mode.destroyed);
                served.served_pool.let_go();
                // Sending fails if the administrator's command was interrupted, which is ignored.
                let _ = close_mode.done.send(done.clone());
                done.map_err(Failure::failed)
            }
        };
        let admin_socket = served.admin_socket.lock().take();
        if let Some(admin_socket) = admin_socket {
            machine.block_on(admin_socket.close());
        }
        done
    }
}

/// Fails if all pools of the name were destroyed.
fn check_not_destroyed(machine: &Machine, options: &OpenOptions) -> Result<(), Failure> {
    let assembly = assemble(machine.block_on(scan(machine, &options.search))?);
    let name = &options.pool;
    let named = assembly.pools.values().filter(|p| p.config.name == *name || p.config.guid.to_string() == *name);
    let states: Vec<u64> = named.map(|pool| pool.config.state).collect();
    let is_destroyed = !states.is_empty() && states.iter().all(|state| *state == state::DESTROYED);
    let how = format!("cannot open '{name}': the pool was destroyed; 'zpool import -D {name}' brings it back");
    if is_destroyed { Err(Failure::failed(how)) } else { Ok(()) }
}

/// The other host that used the pool last and did not export it, if its labels name one.
fn other_host(machine: &Machine, options: &OpenOptions) -> Result<Option<String>, Failure> {
    let assembly = assemble(machine.block_on(scan(machine, &options.search))?);
    let name = &options.pool;
    let is_named = |p: &&FoundPool| p.config.name == *name || p.config.guid.to_string() == *name;
    let own = crate::writable::host().id;
    let used = assembly
        .pools
        .values()
        .filter(is_named)
        .find(|pool| pool.config.state == state::ACTIVE && pool.config.hostid.is_some_and(|id| id != own));
    Ok(used.map(|pool| {
        let host = pool.config.hostname.as_deref().unwrap_or("unknown");
        format!("{host}, hostid {:x}", pool.config.hostid.unwrap_or_default())
    }))
}

/// Warns of datasets with `sync=disabled`, whose acknowledged writes may be lost in a crash.
pub async fn tell_of_unsynced(shown: &OpenPool) -> Result<(), Failure> {
    for name in shown.with_sync_disabled(&Request::internal("sync")).await? {
        eprintln!("{name}: sync=disabled: what is acknowledged as stable here may be lost in a crash");
    }
    Ok(())
}

/// Makes a mounted pool sync when it is idle, and names the calls of `sync` that do not reach it.
///
/// Linux sends a FUSE mount no request for `sync(2)` and `syncfs(2)`, so both return before the changes are stable. A txg
/// soon after the last change bounds what a power cut after such a call takes.
fn shorten_window(shown: &OpenPool) {
    let OpenPool::Engine(engine) = shown else { return };
    engine.sync_when_idle();
    let pool = shown.name();
    let [idle, most] = [IDLE_TXG_TIMEOUT, TXG_TIMEOUT].map(|timeout| timeout.as_secs());
    eprintln!("sync and syncfs do not reach a FUSE mount: use fsync, or 'zpool sync {pool}';");
    eprintln!(
        "what neither covers is on stable storage about {idle} s after the pool's last change, or {most} s after its own"
    );
}

/// Whether the mount may allow what a property can forbid. One mount serves all file systems, so it allows only what
/// every file system allows.
async fn allowed(shown: &OpenPool, wanted: bool, property: &str) -> Result<bool, Failure> {
    let off = if wanted { shown.first_with_off(&Request::internal("mount"), property).await? } else { None };
    if let Some(name) = &off {
        eprintln!("{name}: {property}=off: so it is in all of this mount");
    }
    Ok(wanted && off.is_none())
}

/// Runs the command.
pub fn run(args: &MountArgs) -> Result<u8, Failure> {
    let [pool, mountpoint] = args.words.as_slice() else {
        return Err(MountArgs::misused("name a pool and a mount point"));
    };
    let (options, access) = mount_options(&args.options)?;
    let mut open = open_options::<MountArgs>(&args.open, pool)?;
    let access = if open.rewind == Rewind::No || open.rewind == Rewind::Auto { access } else { Access::Read };
    let ready = ready(&args.open)?;
    let limits = Limits::of::<MountArgs>(&args.open.limits)?;
    let (machine, _disks) = crate::stores::serving_machine()?;
    if args.open.ask_keys {
        ask_all(KeyPrompt::Own, &machine, &mut open)?;
    }
    let opened = OpenedPool::open(&machine, &open, access, args.open.force, &limits)?;
    let done = machine.block_on(async {
        let shown = &opened.shown;
        tell_of_unsynced(shown).await?;
        limits.tell();
        shorten_window(shown);
        let front = opened.front().await?;
        let writable = shown.is_writable();
        let dev = allowed(shown, options.dev, "devices").await?;
        let suid = allowed(shown, options.suid, "setuid").await?;
        let exec = allowed(shown, options.exec, "exec").await?;
        let options = MountOptions { source: shown.name(), threads: THREADS, writable, dev, suid, exec, ..options };
        let mounted = fuse::mount(front.tree.clone(), machine.tasks.clone(), Path::new(mountpoint), &options)?;
        if let Some(served_pool) = opened.served_pool() {
            served_pool.mounts.set_whole_pool(mounted.unmounter());
        }
        let stop = StopSignal::new()?;
        ready.tell()?;
        until_unmounted(mounted, &opened, stop).await
    });
    let closed = opened.close();
    if done? == Ended::Detached {
        // The mount is detached from the tree; processes with open files lose access when this process ends.
        eprintln!("weir mount: the mount was in use and was detached");
        closed?;
        std::process::exit(0);
    }
    closed.map(|()| 0)
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Unmounted.
    Unmounted,
    /// Detached from the tree while a process still uses it.
    Detached,
}

/// Waits for `umount` or a signal.
async fn until_unmounted(mounted: Mounted, opened: &OpenedPool, mut stop: StopSignal) -> Result<Ended, Failure> {
    let unmounter = mounted.unmounter();
    let mut ended = tokio::task::spawn_blocking(move || mounted.join());
    let end = |joined: Result<Result<(), FuseError>, tokio::task::JoinError>| match joined {
        Ok(result) => Ok(result.map(|()| Ended::Unmounted)?),
        Err(error) => Err(Failure::failed(format!("weir mount: {error}"))),
    };
    tokio::select! {
        joined = &mut ended => return end(joined),
        () = opened.until_stopped(&mut stop) => {}
    }
    if unmounter.unmount()? { Ok(Ended::Detached) } else { end(ended.await) }
}

/// The signals that stop a server: SIGINT, SIGTERM and SIGHUP. Created before the server reports that it is ready, so
/// that a signal sent right after that report closes the pool instead of killing the process with the pool open.
pub struct StopSignal([Signal; 3]);

impl StopSignal {
    /// Installs the handlers: from now on the signals no longer kill the process.
    pub fn new() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")));
        Ok(StopSignal([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    /// Returns at the first of them.
    pub async fn wait(&mut self) {
        let [int, term, hup] = &mut self.0;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}

/// Parses `-o`: read-write by default if the pool can be written.
fn mount_options(given: &[String]) -> Result<(MountOptions, Access), Failure> {
    let root = rustix::process::geteuid().is_root();
    let mut access = Access::TryToWrite;
    let mut allow_other = root;
    let mut dev = root;
    let mut suid = root;
    let mut exec = true;
    for value in given {
        for word in value.split(',') {
            match word {
                "ro" => access = Access::Read,
                "rw" => access = Access::Write,
                "allow_other" => allow_other = true,
                "nodev" => dev = false,
                "nosuid" => suid = false,
                "noexec" => exec = false,
                "" | "noatime" => {}
                other => {
                    let there_is = "there is: ro, rw, allow_other, nodev, nosuid, noexec";
                    return Err(MountArgs::misused(&format!("unknown mount option '{other}'; {there_is}")));
                }
            }
        }
    }
    if access == Access::Read {
        (dev, suid) = (false, false);
    }
    let options = MountOptions {
        source: String::new(),
        allow_other,
        threads: THREADS,
        writable: false,
        exclusive: true,
        dev,
        suid,
        exec,
    };
    Ok((options, access))
}

/// Parses the options that say where the pool is, in which txg to open it, and with which keys.
pub fn open_options<C: CommandLine>(args: &OpenPoolOptions, pool: &str) -> Result<OpenOptions, Failure> {
    let mut options = OpenOptions::new(search_paths(&args.dirs), pool.to_owned());
    for value in &args.keys {
        let text = value.to_string_lossy();
        let parts = text.split_once('=').filter(|(dataset, place)| !dataset.is_empty() && !place.is_empty());
        let Some((dataset, place)) = parts else {
            return Err(C::misused(&format!("--key takes DATASET=file://FILE, not '{text}'")));
        };
        let path = PathBuf::from(place.strip_prefix("file://").unwrap_or(place));
        let key = std::fs::read(&path)
            .map_err(|error| Failure::failed(format!("{}: key of {dataset}: {error}", path.display())))?;
        options.keys.push((dataset.to_owned(), key));
    }
    if args.rewind {
        options.rewind = Rewind::Auto;
    }
    if let Some(txg) = &args.txg {
        let parsed = txg.parse().map_err(|_| C::misused(&format!("-T takes the number of a txg, not '{txg}'")))?;
        options.rewind = Rewind::Before(weir_format::Txg(parsed));
    }
    Ok(options)
}

/// Opens the pool and prints its warnings.
pub async fn open_pool(machine: &Machine, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
    let pool = Pool::open(machine, options).await?;
    for warning in &pool.warnings {
        eprintln!("{warning}");
    }
    Ok(Arc::new(pool))
}

/// Destination of the line `ready`.
pub enum Ready {
    /// A line on standard output.
    Line,
    /// A line into this file descriptor.
    Descriptor(std::fs::File),
}

/// Parses `--ready-fd`.
pub fn ready(args: &OpenPoolOptions) -> Result<Ready, Failure> {
    let Some(text) = &args.ready_fd else { return Ok(Ready::Line) };
    let number: u32 = text
        .parse()
        .map_err(|_| Failure::usage(format!("--ready-fd takes a file descriptor's number, not '{text}'")))?;
    // Opening it through /proc returns a new descriptor for the same pipe, without `unsafe` adoption of a raw
    // descriptor.
    let file = std::fs::File::options().write(true).open(format!("/proc/self/fd/{number}"));
    file.map(Ready::Descriptor).map_err(|error| Failure::usage(format!("--ready-fd {number}: {error}")))
}

impl Ready {
    /// Writes `ready`.
    pub fn tell(self) -> Result<(), Failure> {
        let said = match self {
            Ready::Line => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "ready").and_then(|()| out.flush())
            }
            Ready::Descriptor(mut file) => writeln!(file, "ready"),
        };
        // A closed pipe is no error: its reader does not need the line.
        match said {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::failed(format!("cannot say that all is ready: {error}")))
            }
            _ => Ok(()),
        }
    }
}
