//! A client of a file system of its own: names and contents, what it committed, snapshots, roll-backs.
//!
//! Names and the contents of each file are judged apart: a commit of one file promises that file and all names; what was
//! written to others may be missing.

use crate::states::{Moments, Shared, States, When};
use crate::world::patiently;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_files::{Cred, FileKind, FileSystem, New, NewKind, RenameMode, SetAttributes, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Clock, Request};
use weir_pool::Engine;
use weir_sim::Rng;

/// What the names lead to: numbers of files as the client counts them; directories have none.
type Names = BTreeMap<String, Option<usize>>;
type Contents = Vec<u8>;

/// A snapshot: what it holds, and when it was taken and taken away.
struct Snapshot {
    name: String,
    began: When,
    done: Option<When>,
    destroy_began: Option<When>,
    destroy_done: Option<When>,
    names: Names,
    contents: Vec<Contents>,
}

pub struct Known {
    dataset: String,
    names: Option<States<Names>>,
    files: Vec<States<Contents>>,
    snapshots: Vec<Snapshot>,
    pub promises: u64,
}

impl Known {
    pub fn new(dataset: &str) -> Self {
        let dataset = dataset.to_owned();
        Known { dataset, names: None, files: Vec::new(), snapshots: Vec::new(), promises: 0 }
    }

    fn now(&self) -> Names {
        self.names.as_ref().map(|names| names.last().clone()).unwrap_or_default()
    }

    fn rename(&mut self, when: When, how: impl FnOnce(&mut Names)) {
        let mut names = self.now();
        how(&mut names);
        self.names.as_mut().unwrap().push(when, names);
    }

    /// The last states: what a promise asked for now is about.
    fn due(&self) -> (usize, Vec<usize>) {
        (self.names.as_ref().map_or(0, States::number), self.files.iter().map(States::number).collect())
    }

    fn promise(&mut self, when: When, (names, files): (usize, Vec<usize>), only: Option<usize>) {
        self.promises += 1;
        self.names.as_mut().unwrap().promise(when, names);
        for (n, state) in files.into_iter().enumerate().filter(|(n, _)| only.is_none_or(|only| only == *n)) {
            self.files[n].promise(when, state);
        }
    }
}

pub struct Client {
    pub engine: Arc<Engine>,
    pub clock: Clock,
    pub moments: Moments,
    pub known: Shared<Known>,
    pub rng: Rng,
    objects: Vec<ObjectId>,
    snapshots: u64,
}

impl Client {
    pub fn new(engine: Arc<Engine>, clock: Clock, moments: Moments, known: Shared<Known>, rng: Rng) -> Self {
        Client { engine, clock, moments, known, rng, objects: Vec::new(), snapshots: 0 }
    }

    fn know<T>(&self, with: impl FnOnce(&mut Known) -> T) -> T {
        with(&mut self.known.lock().unwrap())
    }

    async fn open(&self, rq: &Request) -> Arc<FileSystem> {
        let dataset = self.know(|k| k.dataset.clone());
        self.engine.file_system(rq, &dataset).await.unwrap()
    }

    /// One change after the other, in a file system that is there already.
    pub async fn run(mut self, changes: u64) {
        let rq = Request::internal("client");
        let mut files = self.open(&rq).await;
        let begun = self.moments.now();
        self.know(|k| {
            let mut names = States::new(begun, Names::new());
            names.promise(begun, 0);
            k.names = Some(names);
        });
        for n in 0..changes {
            self.clock.sleep(std::time::Duration::from_micros(self.rng.below(15_000))).await;
            match self.rng.below(24) {
                0 | 1 => self.snapshot().await,
                2 => self.destroy_snapshot().await,
                3 => {
                    drop(files);
                    self.roll_back().await;
                    files = self.open(&rq).await;
                }
                _ => self.change(&rq, &files, n).await,
            }
            match self.rng.below(6) {
                0 => self.commit(&rq, &files, None).await,
                1 | 2 if !self.objects.is_empty() => {
                    let file = self.rng.below(self.objects.len() as u64) as usize;
                    self.commit(&rq, &files, Some(file)).await;
                }
                _ => {}
            }
        }
    }

    async fn commit(&mut self, rq: &Request, files: &FileSystem, file: Option<usize>) {
        let due = self.know(|k| k.due());
        // A file without a name is nobody's promise.
        if file.is_some_and(|n| !self.know(|k| k.now().values().any(|of| *of == Some(n)))) {
            return;
        }
        files.sync(rq, file.map(|n| self.objects[n])).await.unwrap();
        let now = self.moments.now();
        self.know(|k| k.promise(now, due, file));
    }

    async fn snapshot(&mut self) {
        let (began, due) = (self.moments.now(), self.know(|k| k.due()));
        let name = format!("s{}", self.snapshots);
        self.snapshots += 1;
        let full = self.know(|k| {
            let contents = k.files.iter().map(|f| f.last().clone()).collect();
            let (names, name) = (k.now(), name.clone());
            let (done, destroy_began, destroy_done) = (None, None, None);
            k.snapshots.push(Snapshot { name, began, done, destroy_began, destroy_done, names, contents });
            format!("{}@{}", k.dataset, k.snapshots[k.snapshots.len() - 1].name)
        });
        self.engine.snapshot(vec![full], Vec::new()).await.unwrap();
        let now = self.moments.now();
        self.know(|k| {
            k.promise(now, due, None);
            k.snapshots.iter_mut().find(|s| s.name == name).unwrap().done = Some(now);
        });
    }

    /// One that is there; the newest, or any.
    fn pick_snapshot(&mut self, newest: bool) -> Option<usize> {
        let there: Vec<usize> = self.know(|k| {
            k.snapshots.iter().enumerate().filter(|(_, s)| s.destroy_began.is_none()).map(|(n, _)| n).collect()
        });
        let at = if newest { there.len().checked_sub(1)? as u64 } else { self.rng.below(there.len() as u64) };
        there.get(at as usize).copied()
    }

    async fn destroy_snapshot(&mut self) {
        let Some(n) = self.pick_snapshot(false) else { return };
        let began = self.moments.now();
        let name = self.know(|k| {
            k.snapshots[n].destroy_began = Some(began);
            format!("{}@{}", k.dataset, k.snapshots[n].name)
        });
        self.engine.destroy_snapshots(vec![name], false).await.unwrap();
        let now = self.moments.now();
        self.know(|k| k.snapshots[n].destroy_done = Some(now));
    }

    async fn roll_back(&mut self) {
        let Some(n) = self.pick_snapshot(true) else { return };
        let began = self.moments.now();
        let dataset = self.know(|k| {
            let (names, contents) = (k.snapshots[n].names.clone(), k.snapshots[n].contents.clone());
            k.names.as_mut().unwrap().push(began, names);
            for (file, contents) in k.files.iter_mut().zip(contents) {
                file.push(began, contents);
            }
            k.dataset.clone()
        });
        let due = self.know(|k| k.due());
        patiently(&self.clock, || self.engine.rollback(dataset.clone(), None)).await;
        let now = self.moments.now();
        self.know(|k| k.promise(now, due, None));
    }

    fn pick(&mut self) -> Option<(String, usize)> {
        let files: Vec<_> = self.know(|k| k.now().into_iter().filter_map(|(name, n)| Some((name, n?))).collect());
        let at = self.rng.below(files.len() as u64) as usize;
        files.into_iter().nth(at)
    }

    async fn change(&mut self, rq: &Request, files: &FileSystem, n: u64) {
        let (root, dir, began) = (Cred::root(), files.root(), self.moments.now());
        let name = format!("name-{n}");
        match (self.rng.below(12), self.pick()) {
            (0..3, _) | (_, None) => {
                let file = self.objects.len();
                self.know(|k| {
                    k.files.push(States::new(began, Contents::new()));
                    k.rename(began, |names| _ = names.insert(name.clone(), Some(file)));
                });
                let new = New::of(NewKind::Regular, 0o644);
                let made = files.create(rq, &root, dir, name.as_bytes(), &new).await.unwrap();
                self.objects.push(made.object);
            }
            (3, Some(_)) => {
                self.know(|k| k.rename(began, |names| _ = names.insert(name.clone(), None)));
                files.create(rq, &root, dir, name.as_bytes(), &New::of(NewKind::Directory, 0o755)).await.unwrap();
            }
            (4, Some((old, _))) => {
                self.know(|k| k.rename(began, |names| _ = names.remove(&old)));
                files.remove(rq, &root, dir, old.as_bytes()).await.unwrap();
            }
            (5, Some((old, file))) => {
                // Every other renaming replaces a file.
                let target = self.pick().filter(|(target, _)| *target != old).map_or(name, |(target, _)| target);
                self.know(|k| {
                    k.rename(began, |names| {
                        names.remove(&old);
                        names.insert(target.clone(), Some(file));
                    });
                });
                let (from, to) = ((dir, old.as_bytes()), (dir, target.as_bytes()));
                files.rename(rq, &root, from, to, RenameMode::Replace).await.unwrap();
            }
            (6, Some((_, file))) => {
                let size = self.rng.below(70_000);
                self.contents(began, file, |bytes| bytes.resize(size as usize, 0));
                files.set_attributes(rq, &root, self.objects[file], &SetAttributes::size(size)).await.unwrap();
            }
            (_, Some((_, file))) => {
                let (at, len) = (self.rng.below(40_000) as usize, 1 + self.rng.below(40_000) as usize);
                let mut data = vec![0; len];
                self.rng.fill(&mut data);
                self.contents(began, file, |bytes| {
                    bytes.resize(bytes.len().max(at + len), 0);
                    bytes[at..at + len].copy_from_slice(&data);
                });
                let place = WriteAt::Offset(at as u64);
                files.write(rq, &root, self.objects[file], place, Bytes::from(data)).await.unwrap();
            }
        }
    }

    fn contents(&self, began: When, file: usize, change: impl FnOnce(&mut Contents)) {
        self.know(|k| {
            let mut bytes = k.files[file].last().clone();
            change(&mut bytes);
            k.files[file].push(began, bytes);
        });
    }
}

/// What a file system or snapshot holds: names, and the contents of files; directories have none.
pub type Holds = BTreeMap<String, Option<Bytes>>;

/// What there is after a cut.
pub struct Found {
    now: Holds,
    /// As the client counts its snapshots; none, and why, if one is not there.
    snapshots: Vec<Result<Holds, String>>,
}

/// Looks at the file system, and at all of its snapshots that there could be after a cut at `cut` or earlier.
pub async fn look(engine: &Arc<Engine>, known: &Known, cut: When) -> Result<Found, String> {
    let rq = Request::internal("judge");
    let dataset = &known.dataset;
    let files = engine.file_system(&rq, dataset).await.map_err(|e| format!("{dataset}: {e}"))?;
    let mut found = Found { now: holds(&files, dataset).await?, snapshots: Vec::new() };
    for snapshot in known.snapshots.iter().take_while(|snapshot| snapshot.began <= cut) {
        let full = format!("{dataset}@{}", snapshot.name);
        found.snapshots.push(match engine.file_system(&rq, &full).await {
            Ok(files) => Ok(holds(&files, &full).await?),
            Err(missing) => Err(missing.to_string()),
        });
    }
    Ok(found)
}

async fn holds(files: &FileSystem, dataset: &str) -> Result<Holds, String> {
    let (rq, mut holds) = (Request::internal("judge"), Holds::new());
    let bad = |e| format!("{dataset}: {e}");
    for entry in files.read_dir(&rq, files.root(), 0, 10_000).await.map_err(bad)? {
        let bytes = match entry.kind {
            Some(FileKind::Directory) => None,
            _ => Some(files.read(&rq, entry.object, 0, 1 << 20).await.map_err(bad)?),
        };
        holds.insert(String::from_utf8_lossy(&entry.name).into_owned(), bytes);
    }
    Ok(holds)
}

/// Holds what was found after a cut at `cut` against what is known.
pub fn judge(found: &Found, known: &Known, cut: When) -> Result<(), String> {
    let Some(names) = known.names.as_ref().filter(|names| names.is_promised(cut)) else { return Ok(()) };
    let alike = |state: &&Names| state.keys().eq(found.now.keys());
    let states: Vec<&Names> = names.allowed(cut).filter(alike).collect();
    if states.is_empty() {
        let newest: Vec<_> = names.allowed(cut).next().map(|n| n.keys().collect()).unwrap_or_default();
        let names = found.now.keys();
        return Err(format!("{}: names {names:?} are none of those allowed, such as {newest:?}", known.dataset));
    }
    // Names that were exchanged leave several states alike: one of them must explain all files.
    let mut wrong = String::new();
    let explained = states.into_iter().any(|state| match unexplained(&found.now, state, known, cut) {
        None => true,
        Some(name) => {
            wrong = name;
            false
        }
    });
    if !explained {
        return Err(format!("{}: the contents of {wrong} are none of those allowed", known.dataset));
    }
    known.snapshots.iter().zip(&found.snapshots).try_for_each(|(known, found)| judge_snapshot(found, known, cut))
}

/// The name of a file whose contents this state does not explain.
fn unexplained(found: &Holds, state: &Names, known: &Known, cut: When) -> Option<String> {
    let wrong = found.iter().find(|(name, bytes)| match (state.get(*name).copied().flatten(), bytes) {
        (None, None) => false,
        (Some(file), Some(bytes)) => {
            let allowed: Vec<&Contents> = known.files[file].allowed(cut).collect();
            let whole = allowed.iter().any(|state| **state == *bytes);
            !whole && !allowed.windows(2).any(|pair| partly_written(pair[1], pair[0], bytes))
        }
        _ => true,
    });
    wrong.map(|(name, bytes)| format!("{name} ({:?} bytes)", bytes.as_ref().map(Bytes::len)))
}

/// Whether `found` is what a write that led from `older` to `newer` leaves when its last part is missing: the log splits
/// long writes, and one that no commit had promised may be cut off between two blocks.
fn partly_written(older: &[u8], newer: &[u8], found: &[u8]) -> bool {
    let new = newer.iter().zip(found).take_while(|(a, b)| a == b).count();
    found.len() == new.max(older.len()) && found.get(new..) == older.get(new.min(older.len())..)
}

fn judge_snapshot(found: &Result<Holds, String>, known: &Snapshot, cut: When) -> Result<(), String> {
    let reached = |when: Option<When>| when.is_some_and(|when| when <= cut);
    let (must, may) =
        (reached(known.done) && !reached(known.destroy_began), known.began <= cut && !reached(known.destroy_done));
    let name = &known.name;
    let found = match found {
        Ok(_) if !may => return Err(format!("snapshot {name} is there")),
        Err(e) if must => return Err(format!("snapshot {name}: {e}")),
        Err(_) => return Ok(()),
        Ok(found) => found,
    };
    if !found.keys().eq(known.names.keys()) {
        return Err(format!("snapshot {name} has {:?}, not {:?}", found.keys(), known.names.keys()));
    }
    let as_it_was = |(file, bytes): (&Option<usize>, &Option<Bytes>)| match (file, bytes) {
        (None, None) => true,
        (Some(file), Some(bytes)) => known.contents[*file] == *bytes,
        _ => false,
    };
    match known.names.values().zip(found.values()).position(|pair| !as_it_was(pair)) {
        Some(nth) => Err(format!("snapshot {name}: the {nth}th name is not as it was")),
        None => Ok(()),
    }
}
