//! The data sets that are open for changes: the syncer asks each for what a group changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_dmu::ObjectSet;
use weir_files::FileSystem;
use weir_format::{ObjsetId, Txg};
use weir_volumes::Volume;
use weir_zil::Zil;

/// What clients use of an open data set.
#[derive(Clone)]
pub enum OpenDataset {
    /// A file system.
    Files(Arc<FileSystem>),
    /// A volume.
    Volume(Arc<Volume>),
}

impl OpenDataset {
    /// Whether clients use it now: they have files open, or are attached.
    pub fn is_used(&self) -> bool {
        match self {
            OpenDataset::Files(files) => files.held_count() > 0,
            OpenDataset::Volume(volume) => volume.users() > 0,
        }
    }

    /// Closes it for good, unless clients use it. Gives whether it is closed.
    /// `syncing`: the group in which it goes.
    pub fn close_unless_used(&self, syncing: Txg) -> bool {
        match self {
            OpenDataset::Files(files) => files.close_unless_used(syncing),
            OpenDataset::Volume(volume) => volume.close_unless_used(),
        }
    }
}

/// A data set that is open for changes.
#[derive(Clone)]
pub struct OpenSet {
    /// Its objects.
    pub set: Arc<ObjectSet>,
    /// Its intent log, once clients may change it.
    pub zil: Option<Arc<Zil>>,
    /// What clients use of it.
    pub door: Option<OpenDataset>,
}

/// The sets, by their number.
#[derive(Default)]
pub struct OpenDatasets(Mutex<BTreeMap<ObjsetId, OpenSet>>);

impl OpenDatasets {
    fn all_of(&self) -> MutexGuard<'_, BTreeMap<ObjsetId, OpenSet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a set in. If one of that number is there already, that one stays and is given.
    pub fn insert(&self, set: Arc<ObjectSet>) -> Arc<ObjectSet> {
        let open = OpenSet { set, zil: None, door: None };
        self.all_of().entry(open.set.id()).or_insert(open).set.clone()
    }

    /// The set of that number, if it is open.
    pub fn get(&self, id: ObjsetId) -> Option<OpenSet> {
        self.all_of().get(&id).cloned()
    }

    /// Changes what is known of an open set.
    pub fn update(&self, id: ObjsetId, how: impl FnOnce(&mut OpenSet)) {
        if let Some(open) = self.all_of().get_mut(&id) {
            how(open);
        }
    }

    /// Takes a set out: nothing of it is written from now on.
    pub fn remove(&self, id: ObjsetId) -> Option<OpenSet> {
        self.all_of().remove(&id)
    }

    /// All of them, by number.
    pub fn all(&self) -> Vec<OpenSet> {
        self.all_of().values().cloned().collect()
    }
}
