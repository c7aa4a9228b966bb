//! Opens disks by URL; other paths go to the disks of the machine.
//!
//! Requests run on a runtime of their own: [`Disks::open`] is a plain call that a task of the machine's runtime may make, and
//! waits for several requests.

use crate::core::{Core, Settings};
use crate::counters::{Counters, Counts, KINDS, Kind};
use crate::io::StoreDisk;
use crate::lease::{self, Lease};
use crate::prices::Prices;
use crate::probe::probe;
use crate::record::{Holder, KEY, Record};
use crate::remote::open_store;
use crate::requests::Requests;
use crate::store::{Condition, Etag};
use crate::url::{DEFAULT_OBJECT_BYTES, DiskUrl, FORMS, Scheme, StoreUrl, is_url_path};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;
use weir_linux::thread_pool::ThreadPool;
use weir_linux::{blocking, separate_runtime};
use weir_machine::lock::Mutex;
use weir_machine::{
    Access, BufPool, Clock, Compute, Disk, DiskError, Disks, Entropy, Machine, Nanos, StoreRequests, StoreSize, Tasks,
};

/// Threads of the runtime for requests.
const RUNTIME_THREADS: usize = 2;
/// Threads for calls on folders.
const FOLDER_THREADS: usize = 8;
/// Limit of a single request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of the operations when a disk is opened or created.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// How long closing a disk waits at most.
const CLOSE_LIMIT: Duration = Duration::from_secs(75);
/// "Not a directory".
const ENOTDIR: i32 = 20;

/// The runtime for requests.
#[derive(Clone)]
struct Runtime {
    tasks: Tasks,
    clock: Clock,
    threads: Compute,
}

/// A disk that is open, and closed when this is dropped: then the next process can take it.
pub struct Handle {
    pub(crate) core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.lease.is_none() {
            return;
        }
        let core = self.core.clone();
        let (done, closed) = mpsc::channel();
        drop(self.core.tasks.spawn(async move {
            core.close().await;
            // The receiver may have given up.
            let _ = done.send(());
        }));
        if blocking(|| closed.recv_timeout(CLOSE_LIMIT)).is_err() {
            tracing::warn!(disk = self.core.requests.place(""), "the disk was not closed in time: its lease expires");
        }
    }
}

type Writers = BTreeMap<String, Arc<tokio::sync::Mutex<Weak<Handle>>>>;

/// Disks by URL, and all others.
pub struct StoreDisks {
    others: Arc<dyn Disks>,
    buffers: BufPool,
    entropy: Entropy,
    settings: Settings,
    runtime: OnceLock<Result<Runtime, String>>,
    writers: Mutex<Writers>,
    open: Mutex<Vec<Weak<Core>>>,
    /// Of each disk that this process has named, by its URL: a disk that is closed and opened again goes on counting.
    counters: Mutex<BTreeMap<String, Arc<Counters>>>,
    prices: Mutex<Prices>,
    /// Records with a holder as they were read when their disks were opened for reading: the tag, and the first time after such a
    /// read. So the leases of several disks expire at the same time, although they are taken one after the other.
    seen: Mutex<BTreeMap<String, (Etag, Nanos)>>,
}

/// The machine with disks in object stores beside its own, and these disks.
pub fn with_stores(machine: Machine) -> (Machine, Arc<StoreDisks>) {
    let disks = Arc::new(StoreDisks::new(&machine, Settings::default()));
    (Machine { disks: disks.clone(), ..machine }, disks)
}

impl StoreDisks {
    /// Disks beside those of `machine`.
    pub fn new(machine: &Machine, settings: Settings) -> Self {
        StoreDisks {
            others: machine.disks.clone(),
            buffers: machine.read_buffers.clone(),
            entropy: machine.entropy.clone(),
            settings,
            runtime: OnceLock::new(),
            writers: Mutex::default(),
            open: Mutex::default(),
            counters: Mutex::default(),
            prices: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    fn runtime(&self) -> Result<Runtime, String> {
        let made = self.runtime.get_or_init(|| {
            let (tasks, clock) = separate_runtime("weir-store", RUNTIME_THREADS).map_err(|error| error.to_string())?;
            let threads = Compute::new(Arc::new(ThreadPool::new("weir-folder", FOLDER_THREADS)));
            Ok(Runtime { tasks, clock, threads })
        });
        made.clone()
    }

    /// Runs a future on the runtime for requests, and waits for it.
    fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let (done, result) = mpsc::channel();
        drop(self.runtime()?.tasks.spawn(async move {
            let _ = done.send(future.await);
        }));
        blocking(|| result.recv()).unwrap_or_else(|_| Err("a task ended without a result".into()))
    }

    fn requests(&self, url: &StoreUrl) -> Result<Arc<Requests>, String> {
        let runtime = self.runtime()?;
        let store = open_store(url, runtime.threads)?;
        let counters = self.counters.lock().entry(url.to_string()).or_default().clone();
        Ok(Arc::new(Requests::counted(store, runtime.clock, TIMEOUT, counters)))
    }

    /// The record of a disk; `None` if there is none.
    ///
    /// # Errors
    /// One line with the place.
    pub fn record(&self, url: &StoreUrl) -> Result<Option<Record>, String> {
        let requests = self.requests(url)?;
        self.run(async move { Ok(lease::read(&requests, OPEN_LIMIT).await?.map(|(record, _)| record)) })
    }

    /// Makes a disk if there is none, after the store was tested.
    ///
    /// # Errors
    /// One line: the disk exists with another size, no size is given for a new one, the store lacks what is needed, or fails.
    pub fn create(&self, disk: &DiskUrl) -> Result<Record, String> {
        let url = &disk.url;
        let object_bytes = disk.object_bytes.unwrap_or(DEFAULT_OBJECT_BYTES);
        let size_bytes = disk.size_bytes.map(|bytes| bytes.next_multiple_of(object_bytes));
        if let Some(record) = self.record(url)? {
            let has_other = |wanted: Option<u64>, is: u64| wanted.is_some_and(|wanted| wanted != is);
            if has_other(disk.object_bytes, record.object_bytes)
                || has_other(
                    disk.size_bytes.map(|bytes| bytes.next_multiple_of(record.object_bytes)),
                    record.size_bytes,
                )
            {
                let size = record.size_bytes;
                let object = record.object_bytes;
                return Err(format!(
                    "{url}: there is a disk of {size} bytes in objects of {object} bytes; name it without '?', or choose another prefix"
                ));
            }
            return Ok(record);
        }
        let Some(size_bytes) = size_bytes else {
            return Err(format!("{url}: there is no disk; a new one needs a size: {url}?size=100G"));
        };
        if url.scheme == Scheme::File {
            std::fs::create_dir_all(&url.prefix).map_err(|error| format!("{url}: {error}"))?;
        }
        let requests = self.requests(url)?;
        let nonce = self.entropy.u64();
        self.run(async move {
            let abilities = probe(&requests, nonce).await?;
            let record = Record::new(size_bytes, object_bytes, abilities.conditional_delete);
            let mut attempts = requests.attempts(OPEN_LIMIT);
            let at = |why: String| format!("{}: {why}", requests.place(KEY));
            loop {
                match requests.put(KEY, record.encode().into(), Condition::Missing).await {
                    Ok(_) => return Ok(record),
                    Err(error) => {
                        // Also a request without an answer may have made it.
                        if let Some((found, _)) = lease::read(&requests, OPEN_LIMIT).await? {
                            let is_same = found.size_bytes == size_bytes && found.object_bytes == object_bytes;
                            return if is_same {
                                Ok(found)
                            } else {
                                Err(at("another process has just made it".into()))
                            };
                        }
                        attempts.again(error).await.map_err(at)?;
                    }
                }
            }
        })
    }

    /// Opens a disk for reading: the one that this process writes, if it does.
    fn open_reader(&self, url: &StoreUrl, writer: Option<Arc<Handle>>) -> Result<Arc<Handle>, String> {
        if let Some(writer) = writer {
            return Ok(writer);
        }
        let requests = self.requests(url)?;
        let (tasks, settings) = (self.runtime()?.tasks, self.settings.clone());
        let clock = requests.clock.clone();
        let (core, held) = self.run(async move {
            match lease::read(&requests, OPEN_LIMIT).await? {
                Some((record, etag)) => {
                    let held = record.holder.is_some().then_some(etag);
                    Ok((Core::new(requests, tasks, settings, &record, None), held))
                }
                None => Err(format!("{}: there is no disk; a new one needs ?size=", requests.place(""))),
            }
        })?;
        let mut seen = self.seen.lock();
        match held {
            Some(etag) if seen.get(&url.to_string()).is_some_and(|(tag, _)| *tag == etag) => {}
            Some(etag) => drop(seen.insert(url.to_string(), (etag, clock.now()))),
            None => drop(seen.remove(&url.to_string())),
        }
        drop(seen);
        Ok(Arc::new(Handle { core }))
    }

    fn open_url(&self, url: &StoreUrl, access: Access) -> Result<Arc<Handle>, String> {
        let slot = self.writers.lock().entry(url.to_string()).or_default().clone();
        let handle = if access == Access::ReadOnly {
            // While another thread opens it for writing, it is not this process's disk yet.
            let writer = slot.try_lock().ok().and_then(|writer| writer.upgrade());
            self.open_reader(url, writer)?
        } else {
            let requests = self.requests(url)?;
            let (tasks, settings, nonce) = (self.runtime()?.tasks, self.settings.clone(), self.entropy.u64());
            if url.scheme == Scheme::File {
                remove_remains(Path::new(&url.prefix));
            }
            let before = self.seen.lock().remove(&url.to_string());
            self.run(async move {
                let mut writer = slot.lock().await;
                if let Some(open) = writer.upgrade() {
                    return Ok(open);
                }
                let core = open_writer(requests, tasks, settings, holder(nonce), before).await?;
                let handle = Arc::new(Handle { core });
                *writer = Arc::downgrade(&handle);
                Ok(handle)
            })?
        };
        let mut open = self.open.lock();
        open.retain(|core| core.strong_count() > 0);
        if !open.iter().any(|core| core.as_ptr() == Arc::as_ptr(&handle.core)) {
            open.push(Arc::downgrade(&handle.core));
        }
        drop(open);
        Ok(handle)
    }

    /// Gives back all disks that are open for writing, although parts of the process still refer to them: before it ends.
    pub fn close_all(&self) {
        let open: Vec<Arc<Core>> = self.open.lock().iter().filter_map(Weak::upgrade).collect();
        let writers: Vec<Arc<Core>> = open.into_iter().filter(|core| core.lease.is_some()).collect();
        if writers.is_empty() {
            return;
        }
        let closed = self.run(async move {
            futures_util::future::join_all(writers.iter().map(|core| core.close())).await;
            Ok(())
        });
        if let Err(why) = closed {
            tracing::warn!(why, "disks in object stores could not be given back");
        }
    }

    /// The requests of each disk by its URL, since this process named it first. A disk without a request is left out.
    pub fn counts(&self) -> Vec<(String, Counts)> {
        let counters = self.counters.lock();
        let all = counters.iter().map(|(disk, counters)| (disk.clone(), counters.now()));
        all.filter(|(_, counts)| counts.requests != [0; 4]).collect()
    }

    /// Replaces the price list. Costs are those of all requests so far, at these prices.
    pub fn set_prices(&self, prices: Prices) {
        *self.prices.lock() = prices;
    }
}

/// Takes a disk for writing. `before` is that of [`Lease::take`].
///
/// # Errors
/// One line with the place.
pub async fn open_writer(
    requests: Arc<Requests>,
    tasks: Tasks,
    settings: Settings,
    me: Holder,
    before: Option<(Etag, Nanos)>,
) -> Result<Arc<Core>, String> {
    let times = settings.lease;
    let (lease, was_held) = Lease::take(requests.clone(), me, times, before).await?;
    let record = lease.record();
    let core = Core::new(requests, tasks, settings, &record, Some(lease));
    core.renew_until_dropped(times.lease / 3);
    if was_held && let Err(why) = core.mark_labels(record.epoch).await {
        core.close().await;
        return Err(why);
    }
    Ok(core)
}

/// This process.
fn holder(nonce: u64) -> Holder {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let started = text("/proc/self/stat");
    // After the command's name, which may have blanks: the 20th field (`proc_pid_stat(5)`, starttime is the 22nd of all).
    let started = started.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    Holder {
        host: text("/proc/sys/kernel/hostname"),
        boot: text("/proc/sys/kernel/random/boot_id"),
        pid: std::process::id(),
        started: started.unwrap_or(0),
        nonce,
        renewal: 0,
    }
}

/// Removes new files that processes left in a folder before they were renamed.
fn remove_remains(folder: &Path) {
    let own = format!(".new-{}-", std::process::id());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(".new-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        let is_running = pid.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists());
        if !is_running && !name.starts_with(&own) {
            // It does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Disks for StoreDisks {
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        if is_url_path(dir) {
            return Err(DiskError::Open { path: dir.into(), errno: ENOTDIR });
        }
        self.others.scan(dir)
    }

    fn store_requests(&self) -> Vec<StoreRequests> {
        let prices = self.prices.lock().clone();
        let rows = |(disk, counts): (String, Counts)| {
            let price = prices.of(&disk);
            KINDS.map(|(kind, name)| StoreRequests {
                disk: disk.clone(),
                kind: name,
                requests: counts.requests[kind as usize],
                failed: counts.failed[kind as usize],
                time_ns: counts.time_ns[kind as usize],
                longest_ns: counts.longest_ns[kind as usize],
                bytes: match kind {
                    Kind::Get => counts.read_bytes,
                    Kind::Put => counts.written_bytes,
                    Kind::Head | Kind::Delete => 0,
                },
                retries: if kind == Kind::Put { counts.retries } else { 0 },
                cost: price.map(|price| price.of_requests(kind, &counts)),
            })
        };
        self.counts().into_iter().flat_map(rows).collect()
    }

    fn store_sizes(&self) -> Vec<StoreSize> {
        let prices = self.prices.lock().clone();
        let open: Vec<Arc<Core>> = self.open.lock().iter().filter_map(Weak::upgrade).collect();
        let sizes: BTreeMap<String, u64> =
            open.iter().map(|core| (core.requests.place(""), core.geometry.size_bytes)).collect();
        let size = |(disk, size_bytes): (String, u64)| {
            let month = prices.of(&disk).map(|price| price.of_month(size_bytes));
            StoreSize { disk, size_bytes, month }
        };
        sizes.into_iter().map(size).collect()
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        if !is_url_path(path) {
            return self.others.open(path, access);
        }
        let unopened = |why: String| DiskError::Unopened { why: why.into() };
        let text = path.to_str().ok_or_else(|| unopened(format!("the accepted forms are {FORMS}")))?;
        let url = StoreUrl::parse(text).map_err(|error| unopened(error.to_string()))?;
        let handle = self.open_url(&url, access).map_err(unopened)?;
        Ok(Arc::new(StoreDisk::new(handle.core.clone(), access, self.buffers.clone(), Some(handle))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::LeaseTimes;
    use std::time::Instant;

    /// Opens two disks of a process that was killed as an import does: each for reading, then one after the other for writing.
    #[test]
    #[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the times of real disks are measured")]
    fn leases_of_several_disks_expire_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let machine = weir_linux::machine().unwrap();
        let lease =
            LeaseTimes { lease: Duration::from_secs(4), margin: Duration::from_secs(1), ..LeaseTimes::default() };
        let disks = StoreDisks::new(&machine, Settings { lease, ..Settings::default() });
        let path = |name: &str| format!("file://{}/{name}", folder.path().display());
        let names = ["a", "b"].map(path);
        for name in &names {
            disks.create(&DiskUrl::parse(&format!("{name}?size=64M")).unwrap()).unwrap();
            let url = StoreUrl::parse(name).unwrap();
            let requests = disks.requests(&url).unwrap();
            // The lease of a process that does not renew it.
            let taken = disks.run(async move { Lease::take(requests, holder(7), lease, None).await });
            drop(taken.unwrap());
        }
        for name in &names {
            drop(Disks::open(&disks, name.as_ref(), Access::ReadOnly).unwrap());
        }
        let begun = Instant::now();
        let open: Vec<_> = names.iter().map(|name| Disks::open(&disks, name.as_ref(), Access::ReadWrite)).collect();
        let took = begun.elapsed();
        assert!(open.iter().all(Result::is_ok));
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(11), "{took:?}");
        drop(open);
        disks.close_all();
    }
}
