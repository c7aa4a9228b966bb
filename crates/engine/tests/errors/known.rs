//! What clients know of one thing: the values it was given, and since which of them it is promised.

use std::sync::{Arc, Mutex};

/// One thing that a client changes: the values it was given, in order.
#[derive(Clone, Debug)]
pub struct Slot<T> {
    tried: Vec<T>,
    /// The last value that was acknowledged.
    acknowledged: usize,
    /// The first value that may be found.
    promised: usize,
}

impl<T: Clone + PartialEq> Slot<T> {
    /// A thing that has this value for certain.
    pub fn new(first: T) -> Self {
        Slot { tried: vec![first], acknowledged: 0, promised: 0 }
    }

    /// A change to this value begins.
    pub fn begin(&mut self, value: T) {
        self.tried.push(value);
    }

    /// The last change was answered without an error.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.tried.len() - 1;
    }

    /// What a promise asked for now is about.
    pub fn due(&self) -> usize {
        self.acknowledged
    }

    /// That promise was given.
    pub fn promise(&mut self, due: usize) {
        self.promised = self.promised.max(due);
    }

    /// The values that may be found.
    pub fn allowed(&self) -> &[T] {
        &self.tried[self.promised..]
    }
}

/// Bytes that are written at once, and judged as one.
pub const UNIT: usize = 4 << 10;
/// Bytes that stay together when a write is split between blocks of the intent log.
pub const TOGETHER: usize = 8;

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

/// What the clients of a history know.
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
    /// Answers that promised something.
    pub promises: u64,
    /// Answers to clients that were errors.
    pub refusals: u64,
    /// Imports that were refused: a log's end cannot be told while one of the devices that hold it gives an error.
    pub imports_refused: u64,
}

/// What a promise asked for now is about.
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
    /// All that was acknowledged so far.
    pub fn due(&self) -> Due {
        Due {
            files: self.files.iter().map(due_of).collect(),
            names: self.names.iter().map(|(name, slot)| (name.clone(), slot.due())).collect(),
            volume: due_of(&self.volume),
        }
    }

    /// All names, and the contents of one file or of all, are promised.
    pub fn promise_files(&mut self, due: &Due, file: Option<usize>) {
        self.promises += 1;
        for (name, due) in &due.names {
            self.names.get_mut(name).unwrap().promise(*due);
        }
        for (n, due) in due.files.iter().enumerate().filter(|(n, _)| file.is_none_or(|file| file == *n)) {
            promise_of(&mut self.files[n], due);
        }
    }

    /// The volume's contents are promised.
    pub fn promise_volume(&mut self, due: &Due) {
        self.promises += 1;
        promise_of(&mut self.volume, &due.volume);
    }

    /// Everything is promised: a txg has synced.
    pub fn promise_all(&mut self, due: &Due) {
        self.promise_files(due, None);
        self.promise_volume(due);
    }
}

/// Shared by the clients of a history.
pub type Shared = Arc<Mutex<Known>>;
