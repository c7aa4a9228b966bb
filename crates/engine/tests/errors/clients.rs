//! Clients of a pool whose devices fail. They continue after every error and record the promises that they get.

use crate::acknowledged_state::{Due, Known, Shared, Slot, UNIT, bytes_of};
use crate::world::make_file;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::Engine;
use weir_files::DirName;
use weir_files::{Cred, FileSystem, RenameMode, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Clock, Request};
use weir_sim::Rng;
use weir_volumes::Volume;

/// Maximum units of a file.
const FILE_UNITS: u64 = 24;

/// State that all clients have.
#[derive(Clone)]
pub struct Client {
    pub clock: Clock,
    pub known: Shared,
    pub rng: Rng,
    /// Number that makes the names and versions of this client unique.
    pub number: u64,
}

impl Client {
    fn know<T>(&self, with: impl FnOnce(&mut Known) -> T) -> T {
        with(&mut self.known.lock().unwrap())
    }

    fn due(&self) -> Due {
        self.know(|k| k.due())
    }

    /// Records the result of an operation: its promise, or that it was an error.
    fn answered<T, E>(&self, answer: Result<T, E>, good: impl FnOnce(&mut Known)) -> Option<T> {
        self.know(|k| match answer {
            Ok(value) => {
                good(k);
                Some(value)
            }
            Err(_) => {
                k.refusals += 1;
                None
            }
        })
    }

    async fn pause(&mut self) {
        let pause = Duration::from_micros(self.rng.below(2_000));
        self.clock.sleep(pause).await;
    }

    fn version(&self, n: u64) -> u64 {
        100 + self.number * 10_000 + n
    }
}

/// A file that a client writes to.
struct Mine {
    name: String,
    file: usize,
    object: ObjectId,
}

/// Client of files.
pub struct Files {
    pub client: Client,
    pub files: Arc<FileSystem>,
}

impl Files {
    pub async fn run(mut self, changes: u64) {
        let mut mine = Vec::new();
        if self.client.number == 0 {
            self.find(&mut mine).await;
        }
        for n in 0..changes {
            self.client.pause().await;
            match self.client.rng.below(10) {
                0 | 1 => self.make(&mut mine, n).await,
                2 => self.rename(&mut mine, n).await,
                3 => self.remove(&mut mine).await,
                4 => self.read(&mine).await,
                _ => self.write(&mine, n).await,
            }
            match self.client.rng.below(4) {
                0 => self.commit(&mine, None).await,
                1 | 2 => {
                    let at = self.client.rng.below(mine.len() as u64) as usize;
                    self.commit(&mine, Some(at)).await;
                }
                _ => {}
            }
        }
    }

    /// Looks up the files that existed before the history.
    async fn find(&self, mine: &mut Vec<Mine>) {
        let rq = Request::internal("client");
        for (n, name) in ["old-0", "old-1", "logged"].into_iter().enumerate() {
            let found = self.files.directories().lookup(&rq, self.files.root(), name.as_bytes()).await;
            if let Some(object) = self.client.answered(found, |_| ()) {
                mine.push(Mine { name: name.to_owned(), file: n, object });
            }
        }
    }

    async fn make(&mut self, mine: &mut Vec<Mine>, n: u64) {
        let name = format!("c{}-{n}", self.client.number);
        let file = self.client.know(|k| {
            k.files.push(Vec::new());
            let file = k.files.len() - 1;
            let mut slot = Slot::new(None);
            slot.begin(Some(file));
            k.names.insert(name.clone(), slot);
            file
        });
        let made = make_file(&self.files, &name).await;
        let made = self.client.answered(made, |k| k.names.get_mut(&name).unwrap().acknowledge());
        mine.extend(made.map(|object| Mine { name, file, object }));
    }

    async fn rename(&mut self, mine: &mut Vec<Mine>, n: u64) {
        if mine.is_empty() {
            return;
        }
        let at = self.client.rng.below(mine.len() as u64) as usize;
        let old = mine[at].name.clone();
        let new = format!("r{}-{n}", self.client.number);
        self.client.know(|k| {
            k.names.get_mut(&old).unwrap().begin(None);
            let mut slot = Slot::new(None);
            slot.begin(Some(mine[at].file));
            k.names.insert(new.clone(), slot);
        });
        let rq = Request::internal("client");
        let root = self.files.root();
        let from = DirName { dir: root, name: old.as_bytes() };
        let to = DirName { dir: root, name: new.as_bytes() };
        let done = self.files.names().rename(&rq, &Cred::root(), from, to, RenameMode::Replace).await;
        let done = self.client.answered(done, |k| {
            [&old, &new].into_iter().for_each(|name| k.names.get_mut(name).unwrap().acknowledge());
        });
        match done {
            Some(_) => mine[at].name = new,
            // The name of the file is unknown from here on.
            None => drop(mine.remove(at)),
        }
    }

    async fn remove(&mut self, mine: &mut Vec<Mine>) {
        if mine.is_empty() {
            return;
        }
        let at = self.client.rng.below(mine.len() as u64) as usize;
        let Mine { name, .. } = mine.remove(at);
        self.client.know(|k| k.names.get_mut(&name).unwrap().begin(None));
        let rq = Request::internal("client");
        let done = self.files.names().remove(&rq, &Cred::root(), self.files.root(), name.as_bytes()).await;
        self.client.answered(done, |k| k.names.get_mut(&name).unwrap().acknowledge());
    }

    async fn read(&mut self, mine: &[Mine]) {
        let at = self.client.rng.below(mine.len() as u64) as usize;
        let Some(one) = mine.get(at) else { return };
        let read =
            self.files.contents().read(&Request::internal("client"), one.object, 0, FILE_UNITS as usize * UNIT).await;
        self.client.answered(read, |_| ());
    }

    async fn write(&mut self, mine: &[Mine], n: u64) {
        let at = self.client.rng.below(mine.len() as u64) as usize;
        let Some(one) = mine.get(at) else { return };
        let first = self.client.rng.below(FILE_UNITS);
        let count = (1 + self.client.rng.below(12)).min(FILE_UNITS - first);
        let range = first as usize..(first + count) as usize;
        let version = self.client.version(n);
        self.client.know(|k| {
            let units = &mut k.files[one.file];
            if units.len() < range.end {
                units.resize(range.end, Slot::new(0));
            }
            units[range.clone()].iter_mut().for_each(|unit| unit.begin(version));
        });
        let data: Vec<u8> = range.clone().flat_map(|unit| bytes_of(version, unit)).collect();
        let rq = Request::internal("client");
        let place = WriteAt::Offset(first * UNIT as u64);
        let done = self.files.contents().write(&rq, &Cred::root(), one.object, place, Bytes::from(data)).await;
        self.client.answered(done, |k| k.files[one.file][range].iter_mut().for_each(Slot::acknowledge));
    }

    async fn commit(&mut self, mine: &[Mine], at: Option<usize>) {
        let one = at.and_then(|at| mine.get(at));
        if at.is_some() && one.is_none() {
            return;
        }
        let due = self.client.due();
        let done = self.files.sync(&Request::internal("client"), one.map(|one| one.object)).await;
        self.client.answered(done, |k| k.promise_files(&due, one.map(|one| one.file)));
    }
}

/// Client of a volume.
pub struct Blocks {
    pub client: Client,
    pub volume: Arc<Volume>,
}

impl Blocks {
    pub async fn run(mut self, changes: u64) {
        let rq = Request::internal("client");
        let units = self.client.know(|k| k.volume.len() as u64);
        for n in 0..changes {
            self.client.pause().await;
            if self.client.rng.chance(1, 3) {
                let due = self.client.due();
                let done = self.volume.flush(&rq).await;
                self.client.answered(done, |k| k.promise_volume(&due));
                continue;
            }
            let first = self.client.rng.below(units);
            let count = (1 + self.client.rng.below(6)).min(units - first);
            let stable = self.client.rng.chance(1, 3);
            let version = self.client.version(n);
            let range = first as usize..(first + count) as usize;
            let of = |k: &mut Known, how: &dyn Fn(&mut Slot<u64>)| k.volume[range.clone()].iter_mut().for_each(how);
            self.client.know(|k| of(k, &|unit| unit.begin(version)));
            let data: Vec<u8> = range.clone().flat_map(|unit| bytes_of(version, unit)).collect();
            let done = self.volume.write(&rq, first * UNIT as u64, Bytes::from(data), stable).await;
            self.client.answered(done, |k| {
                of(k, &Slot::acknowledge);
                if stable {
                    k.promises += 1;
                    of(k, &|unit| unit.promise(unit.due()));
                }
            });
        }
    }
}

/// Client that syncs the pool, takes snapshots and creates datasets.
pub struct Admin {
    pub client: Client,
    pub engine: Arc<Engine>,
}

impl Admin {
    pub async fn run(mut self, changes: u64) {
        for n in 0..changes {
            self.client.pause().await;
            let due = self.client.due();
            match self.client.rng.below(3) {
                0 => {
                    let done = self.engine.sync().await;
                    self.client.answered(done, |k| k.promise_all(&due));
                }
                1 => {
                    let name = format!("{}@s{n}", crate::world::FILES);
                    self.begin(&name);
                    let done = self.engine.snapshot(vec![name.clone()], Vec::new()).await;
                    self.done(done, &name, &due);
                }
                _ => {
                    let name = format!("tank/d{n}");
                    self.begin(&name);
                    let kind = Kind::FileSystem(FileSystemSpec::default());
                    let new = NewDataset { name: name.clone(), kind, properties: Vec::new() };
                    let done = self.engine.create_dataset(new).await;
                    self.done(done, &name, &due);
                }
            }
        }
    }

    fn begin(&self, name: &str) {
        self.client.know(|k| {
            let mut slot = Slot::new(false);
            slot.begin(true);
            k.datasets.insert(name.to_owned(), slot);
        });
    }

    fn done<E>(&self, done: Result<(), E>, name: &str, due: &Due) {
        self.client.answered(done, |k| {
            let slot = k.datasets.get_mut(name).unwrap();
            slot.acknowledge();
            slot.promise(slot.due());
            k.promise_all(due);
        });
    }
}
