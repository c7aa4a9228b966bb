//! The table of datasets that are open for writing; the syncer writes the changes of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_files::FileSystem;
use weir_format::{ObjsetId, Txg};
use weir_machine::invariant;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_send::ResumePoints;
use weir_volumes::Volume;
use weir_zil::Zil;

/// The client-facing object of an open dataset.
#[derive(Clone)]
pub enum OpenDataset {
    /// A file system.
    Files(Arc<FileSystem>),
    /// A volume.
    Volume(Arc<Volume>),
}

impl OpenDataset {
    /// Whether clients use the dataset: they have files open or are attached.
    pub fn is_used(&self) -> bool {
        match self {
            OpenDataset::Files(files) => files.holds().open_count() > 0,
            OpenDataset::Volume(volume) => volume.users() > 0,
        }
    }

    /// Closes the dataset permanently unless clients use it; returns whether it is closed.
    ///
    /// `syncing` is the txg that destroys it.
    pub fn close_unless_used(&self, syncing: Txg) -> bool {
        match self {
            OpenDataset::Files(files) => files.holds().close_unless_used(syncing),
            OpenDataset::Volume(volume) => volume.close_unless_used(syncing),
        }
    }
}

/// A dataset that is open for writing.
#[derive(Clone)]
pub struct OpenSet {
    /// The object set.
    pub set: Arc<ObjectSet>,
    /// The intent log; `None` until a client opens the dataset.
    pub zil: Option<Arc<Zil>>,
    /// The file system or volume; `None` until a client opens the dataset.
    pub contents: Option<OpenDataset>,
    /// How far a stream was received into it, if that is kept.
    pub received: Option<Arc<ResumePoints>>,
}

/// Number of open datasets beyond which idle ones are closed.
pub const MAX_IDLE: usize = 128;

impl OpenSet {
    /// Whether it has no client, no changes, and no other reference.
    fn is_unused(&self) -> bool {
        self.zil.is_none()
            && self.contents.is_none()
            && self.received.is_none()
            && Arc::strong_count(&self.set) == 1
            && self.set.syncing().is_clean()
    }

    /// Closes the file system if only this entry refers to it, no file is held, and all changes have synced. Returns whether the
    /// object set has no user left, either, or had none.
    ///
    /// A log that has blocks ends its chain: a later txg frees them, and the file system can be closed.
    fn close_if_idle(&mut self, synced: Txg) -> bool {
        let Some(OpenDataset::Files(files)) = &self.contents else { return self.is_unused() };
        let is_used = Arc::strong_count(files) > 1 || !files.holds().is_idle(synced);
        if is_used || self.received.is_some() || !self.set.syncing().is_clean() {
            return false;
        }
        if let Some(zil) = self.zil.as_ref().filter(|zil| !zil.is_idle()) {
            zil.leave(None);
            return false;
        }
        let Some(OpenDataset::Files(files)) = self.contents.take() else { return false };
        match Arc::try_unwrap(files) {
            Ok(files) => drop(files),
            Err(files) => {
                self.contents = Some(OpenDataset::Files(files));
                return false;
            }
        }
        invariant!(self.set.syncing().is_clean(), "object set {} has changes without a user", self.set.id().0);
        self.zil = None;
        self.is_unused()
    }
}

/// The open datasets by object set number.
#[derive(Default)]
pub struct OpenDatasets(Mutex<BTreeMap<ObjsetId, OpenSet>, { order::OPEN_DATASETS }>);

impl OpenDatasets {
    fn all_of(&self) -> MutexGuard<'_, BTreeMap<ObjsetId, OpenSet>> {
        self.0.lock()
    }

    /// Adds an object set; returns the one already present if there is one.
    pub fn insert(&self, set: Arc<ObjectSet>) -> Arc<ObjectSet> {
        let open = OpenSet { set, zil: None, contents: None, received: None };
        self.all_of().entry(open.set.id()).or_insert(open).set.clone()
    }

    /// The open dataset of this number, if any.
    pub fn get(&self, id: ObjsetId) -> Option<OpenSet> {
        self.all_of().get(&id).cloned()
    }

    /// Changes the entry of an open dataset.
    pub fn update(&self, id: ObjsetId, how: impl FnOnce(&mut OpenSet)) {
        if let Some(open) = self.all_of().get_mut(&id) {
            how(open);
        }
    }

    /// Removes a dataset; the syncer writes none of its changes from now on.
    pub fn remove(&self, id: ObjsetId) -> Option<OpenSet> {
        self.all_of().remove(&id)
    }

    /// Removes those of these object sets that have no changes, no intent log and no user; returns the others that are open.
    ///
    /// No task can begin to use one meanwhile: the table is locked, and it has the only reference.
    pub fn close_unused(&self, mut ids: Vec<ObjsetId>) -> Vec<ObjsetId> {
        let mut open = self.all_of();
        ids.retain(|id| {
            let is_used = open.get(id).map(|open| !open.is_unused());
            if is_used == Some(false) {
                open.remove(id);
            }
            is_used == Some(true)
        });
        ids
    }

    /// Closes idle file systems, and object sets without a user, if more than [`MAX_IDLE`] datasets are open; `synced` is the last
    /// synced txg. The front ends keep those open that were accessed lately.
    ///
    /// No task can begin to use one meanwhile: the table is locked, and it has the only reference.
    pub fn close_idle(&self, synced: Txg) {
        let mut open = self.all_of();
        if open.len() > MAX_IDLE {
            open.retain(|_, open| !open.close_if_idle(synced));
        }
    }

    /// The open datasets for which `wanted` is true, in ascending order of their numbers.
    pub fn select(&self, wanted: impl Fn(&OpenSet) -> bool) -> Vec<OpenSet> {
        self.all_of().values().filter(|open| wanted(open)).cloned().collect()
    }

    /// All open datasets, in ascending order of their numbers.
    pub fn all(&self) -> Vec<OpenSet> {
        self.all_of().values().cloned().collect()
    }
}
