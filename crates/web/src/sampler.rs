//! Takes a sample of each pool once a second, keeps the history, stores it, and informs those who listen.
//!
//! A pool's history begins empty, and continues the stored one as soon as that is read: a disk that does not answer stops no
//! sample.

use crate::interfaces::Interfaces;
use crate::store::{FilesGuard, Segments, Store, StoreStatus};
use futures_util::future::BoxFuture;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use utoipa::ToSchema;
use weir_analytics::metrics::ServiceState;
use weir_analytics::{DatasetNames, FilePaths, History, Interval, MAX_PATHS, Point, PoolObservation, Sample};
use weir_engine::Engine;
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Nanos};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two flushes of the history: a crash loses at most the points of this time.
const FLUSH_INTERVAL: Duration = Duration::from_secs(20);

/// Number of [`INTERVAL`]s after which the sampler reads the names of datasets and files again: they may have been renamed.
const NAMES_ROUNDS: u32 = 60;

/// Diagnoses at the same time; further ones wait. Each reads the MOS of a pool.
const MAX_DIAGNOSES: usize = 2;

/// The pools that a process has open.
pub trait Pools: Send + Sync {
    /// Their engines.
    fn engines(&self) -> Vec<Arc<Engine>>;

    /// Alerts and jobs, of a process that has any.
    fn service(&self) -> ServiceState {
        ServiceState::default()
    }

    /// Counters of a pool now and, if the process keeps them, about `seconds` ago, and its state, which is read from its devices;
    /// `None` if no pool has this name.
    fn observe<'a>(&'a self, pool: &'a str, seconds: u64) -> BoxFuture<'a, Option<Result<PoolObservation, String>>>;
}

/// Work of a pool in the last second.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LiveSecond {
    #[serde(flatten)]
    interval: Interval,
    /// Values of the history's series for this second, in the order of `/api/v1/series`.
    values: Vec<f32>,
}

/// A pool's last sample and its history.
struct PoolHistory {
    sample: Sample,
    guid: u64,
    history: History,
    /// Whether the points stored by an earlier process have been loaded. Until then the sampler stores no points, so that it does
    /// not replace files that it has not read.
    is_loaded: bool,
}

impl PoolHistory {
    /// One that begins.
    fn new(sample: Sample, is_loaded: bool) -> Self {
        PoolHistory { guid: guid_of(&sample), sample, history: History::default(), is_loaded }
    }
}

fn guid_of(sample: &Sample) -> u64 {
    sample.guid.parse().unwrap_or(0)
}

/// Histories that a process keeps, by their sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryStatus {
    /// Bytes in memory, of all pools.
    pub memory_bytes: usize,
    /// The store; `None` if there is none.
    pub store: Option<StoreStatus>,
}

/// The samples of all pools.
pub(crate) struct Sampler {
    pub machine: Machine,
    pub pools: Arc<dyn Pools>,
    /// By the pools' names.
    kept: Mutex<BTreeMap<String, PoolHistory>>,
    /// Last points of pools that were closed, by their GUIDs, until the next flush.
    closed: Mutex<Vec<(u64, Segments)>>,
    store: Option<Store>,
    /// Places for diagnoses at the same time.
    pub diagnoses: Semaphore,
    interfaces: Mutex<Interfaces>,
    /// Names of datasets that are not open.
    names: Mutex<Arc<DatasetNames>>,
    /// Paths of files that clients read or write.
    paths: Mutex<Arc<FilePaths>>,
    live: watch::Sender<Arc<Vec<LiveSecond>>>,
}

impl Sampler {
    pub fn new(machine: &Machine, pools: Arc<dyn Pools>, store: Option<Store>) -> Arc<Self> {
        let (live, _) = watch::channel(Arc::default());
        let machine = machine.clone();
        let diagnoses = Semaphore::new(MAX_DIAGNOSES);
        Arc::new(Sampler {
            machine,
            pools,
            kept: Mutex::default(),
            closed: Mutex::default(),
            store,
            diagnoses,
            interfaces: Mutex::default(),
            names: Mutex::default(),
            paths: Mutex::default(),
            live,
        })
    }

    /// Takes samples until the task is dropped.
    pub async fn run(self: Arc<Self>) {
        let clock = &self.machine.clock;
        let mut due = clock.now();
        loop {
            for (name, guid) in self.take() {
                let sampler = self.clone();
                drop(tokio::task::spawn_blocking(move || sampler.load(&name, guid)));
            }
            due = next(due, clock.now());
            clock.sleep(due.since(clock.now())).await;
        }
    }

    /// Finds the names of datasets that are not open any more, until the task is dropped. A disk that does not answer stops no
    /// sample meanwhile.
    pub async fn run_names(self: Arc<Self>) {
        let mut names = DatasetNames::default();
        let mut rounds = 0;
        loop {
            if rounds == NAMES_ROUNDS {
                names = DatasetNames::default();
                rounds = 0;
            }
            rounds += 1;
            for engine in self.pools.engines() {
                let sample = Sample::take(&engine);
                if let Err(error) = names.learn(&engine, &sample).await {
                    tracing::debug!(%error, "names of datasets cannot be read");
                }
            }
            *self.names.lock() = Arc::new(names.clone());
            self.machine.clock.sleep(INTERVAL).await;
        }
    }

    /// Finds the paths of the files of the last second while a client follows the live stream, until the task is dropped.
    pub async fn run_paths(self: Arc<Self>) {
        let mut paths = FilePaths::default();
        let mut rounds = 0;
        loop {
            if rounds == NAMES_ROUNDS {
                paths = FilePaths::default();
                rounds = 0;
            }
            rounds += 1;
            let seconds = if self.live.receiver_count() > 0 { self.live.borrow().clone() } else { Arc::default() };
            for engine in self.pools.engines() {
                let pool = engine.shown().config.guid.to_string();
                for second in seconds.iter().filter(|second| second.interval.pool == engine.name()) {
                    paths.learn(&engine, &pool, &second.interval.files.rows).await;
                }
            }
            *self.paths.lock() = Arc::new(paths.clone());
            self.machine.clock.sleep(INTERVAL).await;
        }
    }

    /// Samples of these pools, with the names that are known and the counters of the host.
    fn sampled<'a>(&self, engines: impl IntoIterator<Item = &'a Arc<Engine>>) -> Vec<Sample> {
        let mut samples: Vec<Sample> = engines.into_iter().map(|engine| Sample::take(engine)).collect();
        let names = self.names.lock().clone();
        let paths = self.paths.lock().clone();
        for sample in &mut samples {
            names.apply(sample);
            paths.apply(&sample.guid, &mut sample.files.rows);
        }
        self.interfaces.lock().complete(&mut samples);
        samples
    }

    /// Stores new points every 20 seconds until the task is dropped.
    pub async fn run_flushes(self: Arc<Self>) {
        loop {
            self.machine.clock.sleep(FLUSH_INTERVAL).await;
            let sampler = self.clone();
            // It fails only if the flush panics, which the panic's own message says.
            let _ended = tokio::task::spawn_blocking(move || sampler.flush()).await;
        }
    }

    /// Takes a sample of each pool. Returns names and GUIDs of the pools whose stored history has to be loaded.
    pub fn take(&self) -> Vec<(String, u64)> {
        let samples = self.sampled(&self.pools.engines());
        let mut seconds = Vec::new();
        let mut opened = Vec::new();
        let mut closed = Vec::new();
        {
            let mut kept = self.kept.lock();
            // A pool that has been open for a shorter time than before was closed meanwhile, or is another one.
            let is_open = |of: &PoolHistory| {
                samples.iter().any(|now| now.pool == of.sample.pool && now.uptime_ns >= of.sample.uptime_ns)
            };
            let gone: Vec<String> = kept.iter().filter(|(_, of)| !is_open(of)).map(|(name, _)| name.clone()).collect();
            closed.extend(gone.iter().filter_map(|name| kept.remove(name)));
            for sample in samples {
                let before = kept.get(&sample.pool).map(|kept| &kept.sample);
                let is_first = before.is_none();
                let mut interval = Interval::between(before, &sample);
                interval.files.truncate(MAX_PATHS);
                let guid = guid_of(&sample);
                let entry = kept.entry(sample.pool.clone());
                let kept = entry.or_insert_with(|| PoolHistory::new(sample.clone(), self.store.is_none()));
                if kept.guid != guid {
                    // `zpool reguid`.
                    kept.guid = guid;
                    kept.history.nothing_stored();
                }
                kept.sample = sample;
                // The time since the pool was opened is not that of a second.
                if is_first {
                    opened.push((kept.sample.pool.clone(), guid));
                } else {
                    let point = Point::of(&interval);
                    kept.history.push(point);
                    seconds.push(LiveSecond { interval, values: point.values.into() });
                }
            }
        }
        if self.store.is_none() {
            opened.clear();
        } else {
            let taken =
                closed.into_iter().filter(|of| of.is_loaded).map(|mut of| (of.guid, of.history.take_unstored()));
            self.closed.lock().extend(taken);
        }
        self.live.send_replace(Arc::new(seconds));
        opened
    }

    /// Loads the stored history of a pool. Waits for the disk.
    pub fn load(&self, name: &str, guid: u64) {
        let Some(store) = &self.store else { return };
        let mut files = store.lock_files();
        let outcome = self.flush_closed(&mut files).and(self.load_in(&mut files, name, guid));
        // Success is noted by the flush, which has more to do.
        if outcome.is_err() {
            store.note(outcome);
        }
    }

    /// Loads the stored history of a pool. If that fails, the next flush tries again, and the points stay in memory until then.
    fn load_in(&self, files: &mut FilesGuard<'_>, name: &str, guid: u64) -> Result<(), io::Error> {
        let loaded = files.load(guid, name)?;
        let mut kept = self.kept.lock();
        match kept.get_mut(name).filter(|kept| kept.guid == guid) {
            Some(kept) if !kept.is_loaded => {
                kept.history.restore(loaded);
                kept.is_loaded = true;
            }
            Some(_) => {}
            // It was closed meanwhile.
            None => files.close(guid),
        }
        Ok(())
    }

    /// Stores the points that are new. Waits for the disk.
    pub fn flush(&self) {
        let Some(store) = &self.store else { return };
        let mut files = store.lock_files();
        let mut outcome = self.flush_closed(&mut files);
        let unloaded: Vec<(String, u64)> = {
            let kept = self.kept.lock();
            kept.iter().filter(|(_, kept)| !kept.is_loaded).map(|(name, kept)| (name.clone(), kept.guid)).collect()
        };
        for (name, guid) in unloaded {
            outcome = outcome.and(self.load_in(&mut files, &name, guid));
        }
        // Nothing is taken before it is this task's turn, so that no older state of a segment is written later.
        let taken: Vec<(String, u64, Segments)> = {
            let mut kept = self.kept.lock();
            let loaded = kept.iter_mut().filter(|(_, kept)| kept.is_loaded);
            loaded.map(|(name, kept)| (name.clone(), kept.guid, kept.history.take_unstored())).collect()
        };
        for (name, guid, segments) in taken {
            let (rest, written) = files.write(guid, segments);
            outcome = outcome.and(written);
            let mut kept = self.kept.lock();
            let kept = kept.get_mut(&name).filter(|kept| kept.guid == guid);
            kept.into_iter().for_each(|kept| rest.iter().for_each(|(segment, _)| kept.history.not_stored(*segment)));
        }
        store.note(outcome);
    }

    /// Stores the last points of closed pools. Those that cannot be stored are lost: no one asks for them until the pool is opened
    /// again, and memory is not for pools that are not open.
    fn flush_closed(&self, files: &mut FilesGuard<'_>) -> Result<(), io::Error> {
        let closed = std::mem::take(&mut *self.closed.lock());
        let mut outcome = Ok(());
        for (guid, segments) in closed {
            let (_, written) = files.write(guid, segments);
            outcome = outcome.and(written);
            files.close(guid);
        }
        outcome
    }

    /// Sizes of the histories.
    pub fn status(&self) -> HistoryStatus {
        let memory_bytes = self.kept.lock().values().map(|kept| kept.history.bytes()).sum();
        HistoryStatus { memory_bytes, store: self.store.as_ref().map(Store::status) }
    }

    /// Names of the pools.
    pub fn names(&self) -> Vec<String> {
        self.kept.lock().keys().cloned().collect()
    }

    /// Samples of all pools, as of now.
    pub fn samples(&self) -> Vec<Sample> {
        self.sampled(&self.pools.engines())
    }

    /// A sample of a pool, as of now; `None` if it is not open.
    pub fn sample(&self, pool: &str) -> Option<Sample> {
        self.sampled(self.pools.engines().iter().find(|engine| engine.name() == pool)).pop()
    }

    /// Looks at the history of a pool; `None` if it is not open.
    pub fn history<T>(&self, pool: &str, look: impl FnOnce(&History) -> T) -> Option<T> {
        self.kept.lock().get(pool).map(|kept| look(&kept.history))
    }

    /// The seconds of all pools from now on.
    pub fn live(&self) -> watch::Receiver<Arc<Vec<LiveSecond>>> {
        self.live.subscribe()
    }
}

/// The time of the next sample: a whole number of intervals after the last, in the future.
fn next(last: Nanos, now: Nanos) -> Nanos {
    let late = now.since(last).as_nanos() / INTERVAL.as_nanos();
    last + INTERVAL * u32::try_from(late + 1).unwrap_or(u32::MAX)
}
