//! Acknowledged state of the items that clients change: the values of each, and which of them were promised.

use std::sync::{Arc, Mutex};

/// Values of one item that a client changes, in order.
#[derive(Clone, Debug)]
pub struct Slot<T> {
    values: Vec<T>,
    /// Index of the last acknowledged value.
    acknowledged: usize,
    /// Index of the first value that may be found.
    promised: usize,
}

impl<T: Clone + PartialEq> Slot<T> {
    /// Item that has this value for certain.
    pub fn new(first: T) -> Self {
        Slot { values: vec![first], acknowledged: 0, promised: 0 }
    }

    /// Records that a change to this value begins.
    pub fn begin(&mut self, value: T) {
        self.values.push(value);
    }

    /// Records that the last change returned without an error.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.values.len() - 1;
    }

    /// Index of the value that a commit that begins now makes stable.
    pub fn due(&self) -> usize {
        self.acknowledged
    }

    /// Records that the commit of this value returned.
    pub fn promise(&mut self, due: usize) {
        self.promised = self.promised.max(due);
    }

    /// The values that may be found.
    pub fn allowed(&self) -> &[T] {
        &self.values[self.promised..]
    }
}

/// Bytes of a unit, which is written with one version and judged as a whole.
pub const UNIT: usize = 4 << 10;
/// Bytes that are not split when a write is divided between blocks of the intent log.
pub const ATOMIC_BYTES: usize = 8;

/// A file or volume: each unit has a version; version 0 is zeros, or nothing.
pub type Units = Vec<Slot<u64>>;

/// The bytes of one version of a unit.
pub fn bytes_of(version: u64, unit: usize) -> Vec<u8> {
    let mut bytes = vec![0; UNIT];
    if version > 0 {
        weir_sim::Rng::new(version << 20 | unit as u64).fill(&mut bytes);
    }
    bytes
}

/// Acknowledged state of all clients of a history.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Contents of files.
    pub files: Vec<Units>,
    /// Names in the root directory, each with the number of its file.
    pub names: std::collections::BTreeMap<String, Slot<Option<usize>>>,
    /// The volume.
    pub volume: Units,
    /// Snapshots and datasets, and whether each is there.
    pub datasets: std::collections::BTreeMap<String, Slot<bool>>,
    /// Promises that clients got.
    pub promises: u64,
    /// Errors that clients got.
    pub refusals: u64,
    /// Refused imports: the end of a log cannot be determined while a device that holds it returns errors.
    pub imports_refused: u64,
}

/// Values that a commit that begins now makes stable.
pub struct Due {
    files: Vec<Vec<usize>>,
    names: Vec<(String, usize)>,
    volume: Vec<usize>,
}

fn due_of(units: &Units) -> Vec<usize> {
    units.iter().map(Slot::due).collect()
}

fn promise_of(units: &mut Units, due: &[usize]) {
    units.iter_mut().zip(due).for_each(|(unit, due)| unit.promise(*due));
}

impl Known {
    /// Values that a commit that begins now makes stable.
    pub fn due(&self) -> Due {
        Due {
            files: self.files.iter().map(due_of).collect(),
            names: self.names.iter().map(|(name, slot)| (name.clone(), slot.due())).collect(),
            volume: due_of(&self.volume),
        }
    }

    /// Records a promise of all names, and of the contents of one file or of all.
    pub fn promise_files(&mut self, due: &Due, file: Option<usize>) {
        self.promises += 1;
        for (name, due) in &due.names {
            self.names.get_mut(name).unwrap().promise(*due);
        }
        for (n, due) in due.files.iter().enumerate().filter(|(n, _)| file.is_none_or(|file| file == *n)) {
            promise_of(&mut self.files[n], due);
        }
    }

    /// Records a promise of the volume's contents.
    pub fn promise_volume(&mut self, due: &Due) {
        self.promises += 1;
        promise_of(&mut self.volume, &due.volume);
    }

    /// Records a promise of all state, because a txg has synced.
    pub fn promise_all(&mut self, due: &Due) {
        self.promise_files(due, None);
        self.promise_volume(due);
    }
}

/// Acknowledged state, shared by the clients of a history.
pub type Shared = Arc<Mutex<Known>>;
