//! The object sets that are open for changes: the syncer asks each for what a group changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_format::ObjsetId;
use weir_objects::ObjectSet;

/// The sets, by their number.
#[derive(Default)]
pub struct Sets(Mutex<BTreeMap<ObjsetId, Arc<ObjectSet>>>);

impl Sets {
    fn all_of(&self) -> MutexGuard<'_, BTreeMap<ObjsetId, Arc<ObjectSet>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a set in. If one of that number is there already, that one stays and is given.
    pub fn insert(&self, set: Arc<ObjectSet>) -> Arc<ObjectSet> {
        self.all_of().entry(set.id()).or_insert(set).clone()
    }

    /// The set of that number, if it is open.
    pub fn get(&self, id: ObjsetId) -> Option<Arc<ObjectSet>> {
        self.all_of().get(&id).cloned()
    }

    /// Takes a set out: nothing of it is written from now on.
    pub fn remove(&self, id: ObjsetId) -> Option<Arc<ObjectSet>> {
        self.all_of().remove(&id)
    }

    /// All of them, by number.
    pub fn all(&self) -> Vec<Arc<ObjectSet>> {
        self.all_of().values().cloned().collect()
    }
}
