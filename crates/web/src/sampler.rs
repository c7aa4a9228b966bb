//! Takes a sample of each pool once a second, keeps the history, and tells those who listen.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use utoipa::ToSchema;
use weir_analytics::{History, Interval, Point, Sample};
use weir_engine::Engine;
use weir_machine::lock::Mutex;
use weir_machine::{Machine, Nanos};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pools that a process has open.
pub trait Pools: Send + Sync {
    /// Their engines.
    fn engines(&self) -> Vec<Arc<Engine>>;
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
    history: History,
}

/// The samples of all pools.
pub(crate) struct Sampler {
    machine: Machine,
    pools: Arc<dyn Pools>,
    /// By the pools' names. A pool that is closed loses its history.
    kept: Mutex<BTreeMap<String, PoolHistory>>,
    live: watch::Sender<Arc<Vec<LiveSecond>>>,
}

impl Sampler {
    pub fn new(machine: &Machine, pools: Arc<dyn Pools>) -> Arc<Self> {
        let (live, _) = watch::channel(Arc::default());
        Arc::new(Sampler { machine: machine.clone(), pools, kept: Mutex::default(), live })
    }

    /// Takes samples until the task is dropped.
    pub async fn run(self: Arc<Self>) {
        let clock = &self.machine.clock;
        let mut due = clock.now();
        loop {
            self.take();
            due = next(due, clock.now());
            clock.sleep(due.since(clock.now())).await;
        }
    }

    /// Takes a sample of each pool.
    pub fn take(&self) {
        let samples: Vec<Sample> = self.pools.engines().iter().map(|engine| Sample::take(engine)).collect();
        let mut seconds = Vec::new();
        {
            let mut kept = self.kept.lock();
            kept.retain(|name, _| samples.iter().any(|sample| sample.pool == *name));
            for sample in samples {
                let before = kept.get(&sample.pool).map(|kept| &kept.sample);
                let is_first = before.is_none();
                let interval = Interval::between(before, &sample);
                let entry = kept.entry(sample.pool.clone());
                let kept = entry.or_insert_with(|| PoolHistory { sample: sample.clone(), history: History::default() });
                kept.sample = sample;
                // The time since the pool was opened is not that of a second.
                if !is_first {
                    let point = Point::of(&interval);
                    kept.history.push(point);
                    seconds.push(LiveSecond { interval, values: point.values.into() });
                }
            }
        }
        self.live.send_replace(Arc::new(seconds));
    }

    /// Names of the pools.
    pub fn names(&self) -> Vec<String> {
        self.kept.lock().keys().cloned().collect()
    }

    /// Samples of all pools, as of now.
    pub fn samples(&self) -> Vec<Sample> {
        self.pools.engines().iter().map(|engine| Sample::take(engine)).collect()
    }

    /// A sample of a pool, as of now; `None` if it is not open.
    pub fn sample(&self, pool: &str) -> Option<Sample> {
        self.pools.engines().iter().find(|engine| engine.name() == pool).map(|engine| Sample::take(engine))
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
