//! The tasks that take samples of pools and store their history.
#![allow(clippy::disallowed_methods, reason = "the tasks of a real process")]

use crate::sampler::{HistoryStatus, Pools, Sampler};
use crate::store::Store;
use std::sync::Arc;
use tokio::task::JoinHandle;
use weir_machine::Machine;

/// Takes samples of the pools of a process once a second, and keeps their history. Dropping it stops it.
pub struct Recorder {
    pub(crate) sampler: Arc<Sampler>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Recorder {
    /// Begins to take samples. Without a store, the history is in memory only. Must be called inside a tokio runtime.
    pub fn start(machine: &Machine, pools: Arc<dyn Pools>, store: Option<Store>) -> Self {
        let is_stored = store.is_some();
        let sampler = Sampler::new(machine, pools, store);
        let mut tasks = vec![
            tokio::spawn(sampler.clone().run()),
            tokio::spawn(sampler.clone().run_names()),
            tokio::spawn(sampler.clone().run_paths()),
        ];
        if is_stored {
            tasks.push(tokio::spawn(sampler.clone().run_flushes()));
        }
        Recorder { sampler, tasks }
    }

    /// Takes no more samples, and stores what is new.
    pub async fn stop(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        let sampler = self.sampler.clone();
        // It fails only if the flush panics, which the panic's own message says.
        let _ended = tokio::task::spawn_blocking(move || sampler.flush()).await;
    }

    /// Sizes of the histories.
    pub fn status(&self) -> HistoryStatus {
        self.sampler.status()
    }
}
