//! Loading of metaslabs: reads the free ranges of one that the allocator wants to allocate in.
//!
//! ```text
//!   allocation ─► NotAllocated::Load ─► one task per metaslab ─► MetaslabSource ─► its free ranges ─► asks again
//!   claim, trim, repair of a copy ─► load ─┘
//! ```
//!
//! Concurrent callers of one metaslab wait for the same task, which completes even if they are dropped. A source reads with
//! the priority of asynchronous reads, which repair nothing, so no load waits for another.

use super::writer::Writer;
use crate::alloc::Allocator;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use weir_machine::Tasks;
use weir_machine::lock::{Mutex, order};

/// Error of reading the free ranges of a metaslab.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Reads the free ranges of metaslabs.
pub trait MetaslabSource: Send + Sync {
    /// The free ranges of a metaslab, as of a txg that was synced when this was called or later.
    fn free_ranges(&self, vdev: u32, metaslab: u64) -> BoxFuture<'static, Result<Vec<Range<u64>>, SourceError>>;
    /// Reports that a metaslab could not be loaded, or that the ranges contradict what is known of it.
    fn load_failed(&self, vdev: u32, metaslab: u64, error: &SourceError);
}

type Load = Shared<BoxFuture<'static, ()>>;
type Running = Mutex<BTreeMap<(u32, u64), Load>, { order::METASLAB_LOADS }>;

/// The loads of a pool.
pub(super) struct Loads {
    tasks: Tasks,
    source: OnceLock<Arc<dyn MetaslabSource>>,
    running: Arc<Running>,
}

impl Loads {
    pub fn new(tasks: Tasks) -> Self {
        Loads { tasks, source: OnceLock::new(), running: Arc::default() }
    }

    /// Sets the source, once.
    pub fn set_source(&self, source: Arc<dyn MetaslabSource>) {
        let is_first = self.source.set(source).is_ok();
        debug_assert!(is_first, "a pool has one source of metaslabs");
    }

    /// The load of a metaslab: the running one, or a new one.
    fn load(&self, space: &Arc<Mutex<Allocator, { order::ALLOCATOR }>>, id: (u32, u64)) -> Load {
        let mut running = self.running.lock();
        if let Some(load) = running.get(&id) {
            return load.clone();
        }
        let all = self.running.clone();
        let of = space.clone();
        let task = self.tasks.spawn(run(space.clone(), self.source.get().cloned(), id));
        let end = move |done: Result<(), _>| {
            if done.is_err() {
                // The task was lost, so its load failed.
                let _failed = of.lock().finish_load(id.0, id.1, None);
            }
            all.lock().remove(&id);
        };
        let load: Load = task.map(end).boxed().shared();
        running.insert(id, load.clone());
        load
    }
}

async fn run(
    space: Arc<Mutex<Allocator, { order::ALLOCATOR }>>,
    source: Option<Arc<dyn MetaslabSource>>,
    (vdev, metaslab): (u32, u64),
) {
    if !space.lock().begin_load(vdev, metaslab) {
        return;
    }
    let Some(source) = source else {
        let _failed = space.lock().finish_load(vdev, metaslab, None);
        return;
    };
    let free = source.free_ranges(vdev, metaslab).await;
    let done = space.lock().finish_load(vdev, metaslab, free.as_deref().ok());
    if let Err(error) = free.and(done.map_err(SourceError::from)) {
        source.load_failed(vdev, metaslab, &error);
    }
}

impl Writer {
    /// Loads a metaslab, unless it is loaded; waits until it is, or the load failed.
    pub(super) async fn load(&self, vdev: u32, metaslab: u64) {
        let load = self.loads.load(&self.space, (vdev, metaslab));
        load.await;
    }

    /// Loads the metaslabs that contain a part of a range.
    pub(super) async fn load_range(&self, vdev: u32, range: Range<u64>) {
        loop {
            let next = self.space().first_unloaded(vdev, &range);
            let Some(metaslab) = next else { return };
            self.load(vdev, metaslab).await;
        }
    }

    pub(super) fn set_source(&self, source: Arc<dyn MetaslabSource>, max_bytes: u64) {
        self.loads.set_source(source);
        self.space().set_max_loaded(max_bytes);
    }
}
