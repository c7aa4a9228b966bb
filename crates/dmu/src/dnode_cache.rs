//! Cache of the decoded dnodes of an object set.
//!
//! A miss is inserted into the young generation. When that is full, it replaces the old generation, whose entries are
//! dropped. A hit in the old generation moves the entry to the young one. The memory is bounded without an LRU list.

use crate::object::Object;
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::map::FixedMap;

/// Maximum dnodes in a generation of the cache.
const GENERATION: usize = 8192;

/// Cached dnodes, as objects.
#[derive(Default)]
pub(crate) struct DnodeCache {
    young: FixedMap<ObjectId, Arc<Object>>,
    old: FixedMap<ObjectId, Arc<Object>>,
}

impl DnodeCache {
    /// Returns a cached object.
    pub fn get(&mut self, id: ObjectId) -> Option<Arc<Object>> {
        if let Some(object) = self.young.get(&id) {
            return Some(object.clone());
        }
        let object = self.old.remove(&id)?;
        self.insert(object.clone());
        Some(object)
    }

    /// Adds an object.
    pub fn insert(&mut self, object: Arc<Object>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(object.id, object);
    }

    /// Drops an object.
    pub fn remove(&mut self, id: ObjectId) {
        self.young.remove(&id);
        self.old.remove(&id);
    }
}
