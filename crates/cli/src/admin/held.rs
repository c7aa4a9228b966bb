//! A pool that this process has open, as commands from elsewhere use it.

use crate::failure::Failure;
use crate::locks::{Identity, Locks};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{mpsc, oneshot};
use weir_daemon::Exports;
use weir_engine::Engine;
use weir_engine::scrub::ScanLimits;
use weir_machine::{Machine, Request};
use weir_pool::{FoundPool, VdevConfig};

/// How a pool is to be closed, at somebody's wish.
pub struct Ending {
    /// Its labels say that it is no more.
    pub destroyed: bool,
    /// Tells who wished it when it is closed, and nobody has its devices any more; or why that failed.
    pub tell: oneshot::Sender<Result<(), String>>,
}

/// A pool that this process has open.
pub struct Held {
    /// What it runs on.
    pub machine: Machine,
    /// The pool.
    pub engine: Arc<Engine>,
    devices: BTreeSet<Identity>,
    /// Of devices that were added later; none once it is closed.
    added: Mutex<Vec<Locks>>,
    front: OnceLock<Arc<Exports>>,
    ending: mpsc::Sender<Ending>,
    scrub: Mutex<Scrub>,
}

/// Whether a scrub is at work, and whether one was begun since it looked last.
#[derive(Default)]
struct Scrub {
    works: bool,
    again: bool,
}

impl Held {
    /// A pool that was opened, on these devices; who wishes it to end says so to `ending`.
    pub fn new(
        machine: Machine,
        engine: Arc<Engine>,
        devices: BTreeSet<Identity>,
        ending: mpsc::Sender<Ending>,
    ) -> Arc<Self> {
        let (added, scrub) = Default::default();
        Arc::new(Held { machine, engine, devices, added, front: OnceLock::new(), ending, scrub })
    }

    /// Whether a pool that was found is this one.
    pub fn has(&self, found: &FoundPool) -> bool {
        let added: BTreeSet<Identity> = self.added().iter().flat_map(Locks::identities).collect();
        let has = |identity| self.devices.contains(&identity) || added.contains(&identity);
        let is_ours = |path| Identity::of(path).is_some_and(has);
        found.config.guid == self.engine.shown().config.guid && found.leaves().any(|device| is_ours(&device.path))
    }

    fn added(&self) -> MutexGuard<'_, Vec<Locks>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has these devices, too, until it is closed.
    pub fn also_has(&self, locks: Locks) {
        self.added().push(locks);
    }

    /// It is closed: others may have the devices that were added.
    pub fn let_go(&self) {
        self.added().clear();
    }

    /// Where its devices are.
    pub fn paths(&self) -> Vec<PathBuf> {
        let config = self.engine.shown().config;
        let tree = VdevConfig::parse(&config.root);
        let leaves = tree.iter().flat_map(|tree| tree.leaves()).filter_map(|leaf| leaf.path.as_ref());
        leaves.map(PathBuf::from).filter(|path| path.exists()).collect()
    }

    /// What its doors show is this.
    pub fn set_front(&self, front: Arc<Exports>) {
        // There is one, and it is set once.
        let _ = self.front.set(front);
    }

    /// Lets its doors show the data sets as they are now.
    ///
    /// # Errors
    /// What reading the data sets meets.
    pub async fn renew(&self) -> Result<(), Failure> {
        match self.front.get() {
            Some(front) => Ok(front.renew(&Request::internal("renew")).await?),
            None => Ok(()),
        }
    }

    /// Whether clients use any of its data sets.
    pub fn is_used(&self) -> bool {
        let heads = self.engine.sets.all();
        heads.iter().filter_map(|open| open.door.as_ref()).any(|door| door.is_used()) || self.engine.reading.is_used()
    }

    /// Has the process close the pool and end; returns when nobody has its devices any more.
    ///
    /// # Errors
    /// Why it could not be closed.
    pub async fn end(&self, destroyed: bool) -> Result<(), String> {
        let (tell, told) = oneshot::channel();
        let ends_already = || "the process that has it open is ending".to_owned();
        self.ending.send(Ending { destroyed, tell }).await.map_err(|_| ends_already())?;
        told.await.unwrap_or_else(|_| Err(ends_already()))
    }

    /// Sees to it that a scrub that is recorded as running goes on, beside everything else. It ends with the pool.
    pub fn go_on_scrubbing(self: &Arc<Self>) {
        {
            let mut scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
            scrub.again = true;
            if std::mem::replace(&mut scrub.works, true) {
                return;
            }
        }
        let held = self.clone();
        // Nobody waits for it.
        drop(self.machine.tasks.spawn(async move {
            while held.wants_scrub() {
                if let Err(error) = held.engine.scrub_on(&ScanLimits::default(), &mut |_| true).await {
                    tracing::info!("the scrub of pool '{}' is left off: {error}", held.engine.name());
                }
            }
        }));
    }

    fn wants_scrub(&self) -> bool {
        let mut scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        scrub.works = std::mem::take(&mut scrub.again);
        scrub.works
    }
}
