//! A client that makes, snapshots, clones, renames, promotes and destroys file systems. Each call promises what it did.

use crate::states::{Moments, Shared, States, When};
use crate::world::{make_files, patiently};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_files::{Cred, New, NewKind, WriteAt};
use weir_machine::{Clock, Request};
use weir_pool::Engine;
use weir_sim::Rng;

pub const HOME: &str = "tank/many";

type Names = BTreeSet<String>;

/// File systems and snapshots that are there.
pub struct Known {
    names: Option<States<Names>>,
    pub promises: u64,
}

impl Known {
    pub fn new() -> Self {
        Known { names: None, promises: 0 }
    }
}

pub struct Client {
    pub engine: Arc<Engine>,
    pub clock: Clock,
    pub moments: Moments,
    pub known: Shared<Known>,
    pub rng: Rng,
}

impl Client {
    fn now(&self) -> Names {
        self.known.lock().unwrap().names.as_ref().unwrap().last().clone()
    }

    /// What is done now leads to these names.
    fn begin(&self, names: Names) {
        let began = self.moments.now();
        self.known.lock().unwrap().names.as_mut().unwrap().push(began, names);
    }

    fn done(&self) {
        let now = self.moments.now();
        let mut known = self.known.lock().unwrap();
        known.promises += 1;
        let names = known.names.as_mut().unwrap();
        let number = names.number();
        names.promise(now, number);
    }

    fn pick(&mut self, names: &Names, which: impl Fn(&&String) -> bool) -> Option<String> {
        let all: Vec<&String> = names.iter().filter(which).collect();
        all.get(self.rng.below(all.len() as u64) as usize).map(|name| (*name).clone())
    }

    pub async fn run(mut self, changes: u64) {
        let begun = self.moments.now();
        self.known.lock().unwrap().names = Some(States::new(begun, Names::new()));
        self.done();
        for n in 0..changes {
            self.clock.sleep(std::time::Duration::from_micros(self.rng.below(30_000))).await;
            let names = self.now();
            let dataset = self.pick(&names, |name| !name.contains('@'));
            let snapshot = self.pick(&names, |name| name.contains('@'));
            match (self.rng.below(8), dataset, snapshot) {
                (0 | 1, Some(dataset), _) => self.snapshot(names, format!("{dataset}@{n}")).await,
                (2, _, Some(origin)) => self.clone_it(names, origin, n).await,
                (3, _, Some(snapshot)) => self.destroy_snapshot(names, snapshot).await,
                (4, Some(dataset), _) => self.destroy(names, dataset).await,
                (5, Some(dataset), _) => self.rename(names, dataset, n).await,
                _ => self.make(names, n).await,
            }
        }
    }

    async fn make(&mut self, mut names: Names, n: u64) {
        let name = format!("{HOME}/d{n}");
        names.insert(name.clone());
        self.begin(names);
        make_files(&self.engine, &name).await;
        self.done();
        let rq = Request::internal("client");
        let files = self.engine.file_system(&rq, &name).await.unwrap();
        let new = New::of(NewKind::Regular, 0o644);
        let made = files.create(&rq, &Cred::root(), files.root(), b"file", &new).await.unwrap();
        let data = bytes::Bytes::from(vec![n as u8; 30_000]);
        files.write(&rq, &Cred::root(), made.object, WriteAt::Offset(0), data).await.unwrap();
    }

    async fn snapshot(&mut self, mut names: Names, name: String) {
        names.insert(name.clone());
        self.begin(names);
        self.engine.snapshot(vec![name], Vec::new()).await.unwrap();
        self.done();
    }

    async fn clone_it(&mut self, mut names: Names, origin: String, n: u64) {
        let name = format!("{HOME}/c{n}");
        names.insert(name.clone());
        self.begin(names);
        self.engine.clone_snapshot(origin, name, Vec::new()).await.unwrap();
        self.done();
    }

    /// Refused if a clone needs it: then nothing has changed.
    async fn destroy_snapshot(&mut self, names: Names, name: String) {
        let mut less = names.clone();
        less.remove(&name);
        self.begin(less);
        if self.engine.destroy_snapshots(vec![name], false).await.is_err() {
            self.begin(names);
        }
        self.done();
    }

    /// With all its snapshots, one after the other; refused while there are clones of one.
    async fn destroy(&mut self, mut names: Names, name: String) {
        let own: Vec<String> = names.iter().filter(|s| s.starts_with(&format!("{name}@"))).cloned().collect();
        for snapshot in own {
            let before = names.clone();
            names.remove(&snapshot);
            self.begin(names.clone());
            if self.engine.destroy_snapshots(vec![snapshot], false).await.is_err() {
                self.begin(before);
                return self.done();
            }
            self.done();
        }
        names.remove(&name);
        self.begin(names);
        patiently(&self.clock, || self.engine.destroy_dataset(name.clone())).await;
        self.done();
    }

    async fn rename(&mut self, names: Names, name: String, n: u64) {
        let to = format!("{HOME}/r{n}");
        let renamed =
            |old: &String| match old.strip_prefix(&name).filter(|rest| rest.is_empty() || rest.starts_with('@')) {
                Some(rest) => format!("{to}{rest}"),
                None => old.clone(),
            };
        self.begin(names.iter().map(renamed).collect());
        self.engine.rename(name.clone(), to.clone()).await.unwrap();
        self.done();
    }
}

/// Which of all names that could be there after a cut at `cut` or earlier are there.
pub async fn look(engine: &Arc<Engine>, known: &Known, cut: When) -> Result<Names, String> {
    let rq = Request::internal("judge");
    let dsl = engine.dsl(&rq).await.map_err(|e| e.to_string())?;
    let possible: BTreeSet<&String> = known.names.iter().flat_map(|names| names.begun(cut)).flatten().collect();
    let mut found = Names::new();
    for name in possible {
        if dsl.find(&rq, name).await.is_ok() {
            found.insert(name.clone());
        }
    }
    Ok(found)
}

/// Holds what was found after a cut at `cut` against what is known.
pub fn judge(found: &Names, known: &Known, cut: When) -> Result<(), String> {
    let Some(names) = known.names.as_ref().filter(|names| names.is_promised(cut)) else { return Ok(()) };
    if names.allowed(cut).any(|state| state == found) {
        return Ok(());
    }
    let newest: Vec<_> = names.allowed(cut).next().map(|names| names.iter().collect()).unwrap_or_default();
    Err(format!("{HOME}: {found:?} is no state that was allowed, such as {newest:?}"))
}
