//! `weir mount`: all file systems of a pool through FUSE, in the foreground, until unmounted or stopped. With `-o ro` not a
//! byte of the pool changes.

use crate::admin::{Door, Ending, Held};
use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::limits::{self, Limits};
use crate::locks::Locks;
use crate::pools::search_paths;
use crate::secrets::{Asked, ask_all};
use crate::written::{Wish, Written};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use weir_daemon::fuse::{self, FuseError, MountOptions, Mounted};
use weir_daemon::{Exports, OpenPool};
use weir_linux::Production;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, Rewind};

const SPEC: Spec = Spec {
    command: "weir mount",
    letters: "o:d:k:T:r:FlM:Y:",
    long: &[("key", 'k'), ("ready-fd", 'r'), limits::LONG[0], limits::LONG[1]],
    usage: "weir mount [-l] [-o ro|rw[,OPTION]...] [-d DIR]... [--arc-max SIZE] [--dirty-max SIZE] \
            [--key DATASET=file://FILE]... [--ready-fd N] [-F | -T TXG] POOL MOUNTPOINT",
};

/// Threads that take requests from the kernel; what waits for disks does not occupy them.
const THREADS: usize = 4;

impl From<FuseError> for Failure {
    fn from(error: FuseError) -> Self {
        Failure::failed(format!("weir mount: {error}"))
    }
}

/// Whether a pool is opened for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It must be.
    Write,
    /// If it can be; else it is only read, and that is said.
    TryToWrite,
    /// It must not be: not a byte of it changes.
    Read,
}

/// A pool opened one way or the other, until it is closed.
pub struct OpenedPool {
    /// What is shown of it.
    pub shown: OpenPool,
    served: Option<Served>,
}

/// A pool that is open for changes for as long as this process serves it.
struct Served {
    written: Written,
    held: Arc<Held>,
    door: Mutex<Option<Door>>,
    endings: tokio::sync::Mutex<mpsc::Receiver<Ending>>,
    ending: Mutex<Option<Ending>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenedPool {
    /// Opens the pool that the command line names.
    pub fn open(machine: &Machine, options: &OpenOptions, access: Access, limits: &Limits) -> Result<Self, Failure> {
        if access != Access::Read {
            let wish = Wish {
                search: options.search.clone(),
                pool: options.pool.clone(),
                keys: options.keys.clone(),
                rewind: options.rewind == Rewind::Auto,
                limits: Some(limits.clone()),
                ..Wish::default()
            };
            match Written::open(machine.clone(), &wish) {
                Ok(written) => return Ok(Self::written(written)),
                Err(failure) if access == Access::Write => return Err(failure),
                // Whoever has it open may change what we would read.
                Err(failure) if failure.is_busy() => return Err(failure),
                Err(failure) => eprintln!("{failure}\nit is opened for reading alone"),
            }
        }
        let options = OpenOptions { arc_bytes: limits.arc_bytes, ..options.clone() };
        let pool = machine.block_on(open_pool(machine, &options))?;
        Ok(OpenedPool { shown: OpenPool::ReadOnly(pool), served: None })
    }

    /// A pool that is open for changes already.
    pub fn written(written: Written) -> Self {
        let (wish, endings) = mpsc::channel(1);
        let devices = written.locks().map(Locks::identities).unwrap_or_default();
        let held = Held::new(written.machine.clone(), written.engine.clone(), devices, wish);
        held.go_on_scrubbing();
        let shown = OpenPool::Writable(written.engine.clone());
        let (door, ending) = (Mutex::default(), Mutex::default());
        let endings = tokio::sync::Mutex::new(endings);
        OpenedPool { shown, served: Some(Served { written, held, door, endings, ending }) }
    }

    /// What its doors show. From now on administrators are heard, if it is open for changes.
    pub async fn front(&self) -> Result<Arc<Exports>, Failure> {
        let front = Arc::new(Exports::open(&Request::internal("serve"), &self.shown).await?);
        if let Some(served) = &self.served {
            served.held.set_front(front.clone());
            match Door::open(&served.held) {
                Ok(door) => *lock(&served.door) = Some(door),
                Err(failure) => eprintln!("{failure}\ncommands about the pool have to wait until this process ends"),
            }
        }
        Ok(front)
    }

    /// Returns when the process is to end, by a signal or at an administrator's wish.
    pub async fn until_stopped(&self, stop: &mut StopSignal) {
        let Some(served) = &self.served else { return stop.wait().await };
        let mut endings = served.endings.lock().await;
        tokio::select! {
            () = stop.wait() => {}
            Some(ending) = endings.recv() => *lock(&served.ending) = Some(ending),
        }
    }

    /// Closes it as it was before, or as an administrator wished; and tells that one.
    pub fn close(self) -> Result<(), Failure> {
        drop(self.shown);
        let Some(served) = self.served else { return Ok(()) };
        let machine = served.written.machine.clone();
        let done = match lock(&served.ending).take() {
            None => served.written.close(),
            Some(ending) => {
                let done = served.written.end(ending.destroyed, true);
                served.held.let_go();
                // Whoever wished it may be gone.
                let _ = ending.tell.send(done.clone());
                done.map_err(Failure::failed)
            }
        };
        if let Some(door) = lock(&served.door).take() {
            machine.block_on(door.close());
        }
        done
    }
}

/// Says where what is acknowledged as stable is not.
pub async fn tell_of_unsynced(shown: &OpenPool) -> Result<(), Failure> {
    for name in shown.with_sync_disabled(&Request::internal("sync")).await? {
        eprintln!("{name}: sync=disabled: what is acknowledged as stable here may be lost in a crash");
    }
    Ok(())
}

/// The time after which a txg of a mounted pool is synced.
const MOUNT_TXG_TIMEOUT: Duration = Duration::from_secs(1);

/// Has the changes of a mount synced sooner than those of a server, and says which calls of `sync` do not reach it.
///
/// Linux sends a FUSE mount no request for `sync(2)` and `syncfs(2)`, so both return before the changes are stable. A short
/// txg timeout bounds the changes that a power cut after such a call takes.
fn shorten_window(shown: &OpenPool) {
    let OpenPool::Writable(engine) = shown else { return };
    engine.set_txg_timeout(MOUNT_TXG_TIMEOUT);
    let pool = shown.name();
    let seconds = MOUNT_TXG_TIMEOUT.as_secs();
    eprintln!("sync and syncfs do not reach a FUSE mount: use fsync, or 'zpool sync {pool}';");
    eprintln!("what neither covers is on stable storage after about {seconds} s");
}

/// Whether a mount may have what a property can forbid. There is one mount for all file systems: what one forbids, it has not.
async fn allowed(shown: &OpenPool, wanted: bool, property: &str) -> Result<bool, Failure> {
    let off = if wanted { shown.first_with_off(&Request::internal("mount"), property).await? } else { None };
    if let Some(name) = &off {
        eprintln!("{name}: {property}=off: so it is in all of this mount");
    }
    Ok(wanted && off.is_none())
}

/// Runs the command.
pub fn run(words: Vec<std::ffi::OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(words)?;
    let ([pool, mountpoint], (options, access)) = (two_words(&args)?, mount_options(&args)?);
    let mut open = open_options(&SPEC, &args, pool)?;
    let access = if open.rewind == Rewind::No || open.rewind == Rewind::Auto { access } else { Access::Read };
    let (ready, limits) = (ready(&args)?, Limits::of(&SPEC, &args)?);
    let machine = Production::from_env().build()?;
    if args.has('l') {
        ask_all(Asked::Own, &machine, &mut open)?;
    }
    let opened = OpenedPool::open(&machine, &open, access, &limits)?;
    let done = machine.block_on(async {
        let shown = &opened.shown;
        tell_of_unsynced(shown).await?;
        limits.tell();
        shorten_window(shown);
        let front = opened.front().await?;
        let writable = shown.is_writable();
        let (dev, suid) =
            (allowed(shown, options.dev, "devices").await?, allowed(shown, options.suid, "setuid").await?);
        let options = MountOptions { source: shown.name(), threads: THREADS, writable, dev, suid, ..options };
        let mounted = fuse::mount(front.tree.clone(), machine.tasks.clone(), Path::new(&mountpoint), &options)?;
        let stop = StopSignal::new()?;
        ready.tell()?;
        until_unmounted(mounted, &opened, stop).await
    });
    let closed = opened.close();
    if done? == Ended::Detached {
        // It is gone from the tree; whoever still has a file open loses it with us.
        eprintln!("weir mount: the mount was in use and was detached");
        closed?;
        std::process::exit(0);
    }
    closed.map(|()| 0)
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It is gone.
    Unmounted,
    /// It is out of the tree, and somebody still uses it.
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

/// What asks a server to end: SIGINT, SIGTERM and SIGHUP. Made before a server says that it is ready, so that whoever
/// was told so and stops it at once finds it closing its pool and not dying with it open.
pub struct StopSignal([Signal; 3]);

impl StopSignal {
    /// From here on the signals no longer end the process by themselves.
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

fn two_words(args: &Args) -> Result<[String; 2], Failure> {
    match (args.word(0), args.word(1), args.words.len()) {
        (Some(pool), Some(mountpoint), 2) => Ok([pool, mountpoint]),
        _ => Err(SPEC.misused("name a pool and a mount point")),
    }
}

/// What `-o` says: read-write if nothing else is said and the pool can be written.
fn mount_options(args: &Args) -> Result<(MountOptions, Access), Failure> {
    let root = rustix::process::geteuid().is_root();
    let mut access = Access::TryToWrite;
    let (mut allow_other, mut dev, mut suid) = (root, root, root);
    for value in args.values('o') {
        for word in value.to_string_lossy().split(',') {
            match word {
                "ro" => access = Access::Read,
                "rw" => access = Access::Write,
                "allow_other" => allow_other = true,
                "nodev" => dev = false,
                "nosuid" => suid = false,
                "" | "noatime" => {}
                other => {
                    let there_is = "there is: ro, rw, allow_other, nodev, nosuid";
                    return Err(SPEC.misused(&format!("unknown mount option '{other}'; {there_is}")));
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
    };
    Ok((options, access))
}

/// Which pool, from where, with which keys.
pub fn open_options(spec: &Spec, args: &Args, pool: String) -> Result<OpenOptions, Failure> {
    let mut options = OpenOptions::new(search_paths(args.values('d'))?, pool);
    for value in args.values('k') {
        let text = value.to_string_lossy();
        let parts = text.split_once('=').filter(|(dataset, place)| !dataset.is_empty() && !place.is_empty());
        let Some((dataset, place)) = parts else {
            return Err(spec.misused(&format!("--key takes DATASET=file://FILE, not '{text}'")));
        };
        let path = PathBuf::from(place.strip_prefix("file://").unwrap_or(place));
        let key = std::fs::read(&path)
            .map_err(|error| Failure::failed(format!("{}: key of {dataset}: {error}", path.display())))?;
        options.keys.push((dataset.to_owned(), key));
    }
    if args.has('F') {
        options.rewind = Rewind::Auto;
    }
    if let Some(txg) = args.value('T') {
        let parsed = txg.parse().map_err(|_| spec.misused(&format!("-T takes the number of a txg, not '{txg}'")))?;
        options.rewind = Rewind::Before(weir_format::Txg(parsed));
    }
    Ok(options)
}

/// Opens the pool and says what is not as it should be.
pub async fn open_pool(machine: &Machine, options: &OpenOptions) -> Result<Arc<Pool>, Failure> {
    let pool = Pool::open(machine, options).await?;
    for warning in &pool.warnings {
        eprintln!("{warning}");
    }
    Ok(Arc::new(pool))
}

/// Whom to tell when all is up.
pub enum Ready {
    /// A line on standard output.
    Line,
    /// A line into this file descriptor.
    Descriptor(std::fs::File),
}

/// What `--ready-fd` says.
pub fn ready(args: &Args) -> Result<Ready, Failure> {
    let Some(text) = args.value('r') else { return Ok(Ready::Line) };
    let number: u32 = text
        .parse()
        .map_err(|_| Failure::usage(format!("--ready-fd takes a file descriptor's number, not '{text}'")))?;
    // Opened by its name: that gives us a descriptor of our own for the same pipe, without adopting a foreign one.
    let file = std::fs::File::options().write(true).open(format!("/proc/self/fd/{number}"));
    file.map(Ready::Descriptor).map_err(|error| Failure::usage(format!("--ready-fd {number}: {error}")))
}

impl Ready {
    /// Says `ready`.
    pub fn tell(self) -> Result<(), Failure> {
        let said = match self {
            Ready::Line => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "ready").and_then(|()| out.flush())
            }
            Ready::Descriptor(mut file) => writeln!(file, "ready"),
        };
        // Whoever does not listen any more does not need to know.
        match said {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::failed(format!("cannot say that all is ready: {error}")))
            }
            _ => Ok(()),
        }
    }
}
