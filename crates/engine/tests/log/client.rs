//! A client in its own directory, and its acknowledged state: every state of its names and files, and which of them was
//! acknowledged as stable.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_files::DirName;
use weir_files::FilePosition;
use weir_files::{Cred, FileSystem, New, NewKind, RenameMode, SetAttributes, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Clock, Request};
use weir_sim::Rng;

/// Directory entries: for each name the client's number of the file; none for directories.
type Names = BTreeMap<String, Option<usize>>;

/// Contents of one file after each change.
#[derive(Clone, Default)]
struct Contents {
    states: Vec<Vec<u8>>,
    stable: usize,
}

/// Acknowledged state of one client.
#[derive(Clone, Default)]
pub struct Known {
    names: Vec<Names>,
    /// Index of the last state of the names that was acknowledged as stable.
    stable: usize,
    files: Vec<Contents>,
    /// The directory exists on stable storage.
    begun: bool,
    pub commits: u64,
}

impl Known {
    fn now(&self) -> Names {
        self.names.last().cloned().unwrap_or_default()
    }

    fn named(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.now();
        change(&mut names);
        self.names.push(names);
    }

    /// The last states, which a commit that begins now makes stable.
    fn due(&self) -> (usize, Vec<usize>) {
        (self.names.len() - 1, self.files.iter().map(|f| f.states.len() - 1).collect())
    }
}

pub type Shared = Arc<Mutex<Known>>;

pub struct Client {
    pub files: Arc<FileSystem>,
    pub clock: Clock,
    pub known: Shared,
    pub number: u64,
    pub rng: Rng,
}

pub fn directory(number: u64) -> String {
    format!("client-{number}")
}

impl Client {
    fn know<T>(&self, with: impl FnOnce(&mut Known) -> T) -> T {
        with(&mut self.known.lock().unwrap())
    }

    /// Creates the client's directory, and then makes one change after the other.
    pub async fn run(mut self, changes: u64) {
        let rq = Request::internal("client");
        let root = Cred::root();
        let name = directory(self.number);
        let new = New::of(NewKind::Directory, 0o755);
        let dir = self.files.names().create(&rq, &root, self.files.root(), name.as_bytes(), &new).await.unwrap().object;
        self.know(|k| k.names.push(Names::new()));
        self.files.sync(&rq, None).await.unwrap();
        self.know(|k| k.begun = true);
        let mut objects: Vec<ObjectId> = Vec::new();
        for n in 0..changes {
            self.clock.sleep(Duration::from_micros(self.rng.below(20_000))).await;
            self.change(&rq, dir, &mut objects, n).await;
            match self.rng.below(6) {
                0 => self.commit(&rq, None, &objects).await,
                1 | 2 if !objects.is_empty() => {
                    let file = self.rng.below(objects.len() as u64) as usize;
                    self.commit(&rq, Some(file), &objects).await;
                }
                _ => {}
            }
        }
    }

    async fn commit(&mut self, rq: &Request, file: Option<usize>, objects: &[ObjectId]) {
        let (names, states) = self.know(|k| k.due());
        // A commit of an unlinked file promises nothing.
        let named = |k: &Known, n: usize| k.now().values().any(|of| *of == Some(n));
        if file.is_some_and(|n| !self.know(|k| named(k, n))) {
            return;
        }
        self.files.sync(rq, file.map(|n| objects[n])).await.unwrap();
        self.know(|k| {
            k.commits += 1;
            k.stable = k.stable.max(names);
            for (n, state) in states.into_iter().enumerate() {
                if file.is_none_or(|file| file == n) {
                    k.files[n].stable = k.files[n].stable.max(state);
                }
            }
        });
    }

    fn pick(&mut self) -> Option<(String, usize)> {
        let files: Vec<_> = self.know(|k| k.now().into_iter().filter_map(|(name, n)| Some((name, n?))).collect());
        let at = self.rng.below(files.len() as u64) as usize;
        files.into_iter().nth(at)
    }

    async fn change(&mut self, rq: &Request, dir: ObjectId, objects: &mut Vec<ObjectId>, n: u64) {
        let root = Cred::root();
        let name = format!("name-{n}");
        let picked = self.pick();
        match (self.rng.below(15), picked) {
            (0..3, _) | (_, None) => {
                let new = New::of(NewKind::Regular, 0o644);
                let made = self.files.names().create(rq, &root, dir, name.as_bytes(), &new).await.unwrap();
                let file = objects.len();
                objects.push(made.object);
                self.know(|k| {
                    k.files.push(Contents { states: vec![Vec::new()], stable: 0 });
                    k.named(|names| _ = names.insert(name, Some(file)));
                });
            }
            (3, Some(_)) => {
                let new = New::of(NewKind::Directory, 0o755);
                self.files.names().create(rq, &root, dir, name.as_bytes(), &new).await.unwrap();
                self.know(|k| k.named(|names| _ = names.insert(name, None)));
            }
            (4, Some((old, _))) => {
                self.files.names().remove(rq, &root, dir, old.as_bytes()).await.unwrap();
                self.know(|k| k.named(|names| _ = names.remove(&old)));
            }
            (5, Some((old, file))) => {
                // Some renames replace a file.
                let target = self.pick().filter(|(target, _)| *target != old).map_or(name, |(target, _)| target);
                let from = DirName { dir, name: old.as_bytes() };
                let to = DirName { dir, name: target.as_bytes() };
                self.files.names().rename(rq, &root, from, to, RenameMode::Replace).await.unwrap();
                self.know(|k| {
                    k.named(|names| {
                        names.remove(&old);
                        names.insert(target, Some(file));
                    });
                });
            }
            (7 | 8, Some((_, file))) => self.copy(rq, objects, file).await,
            (6, Some((_, file))) => {
                let size = self.rng.below(90_000);
                self.files.attrs().set(rq, &root, objects[file], &SetAttributes::size(size)).await.unwrap();
                self.contents(file, |bytes| bytes.resize(size as usize, 0));
            }
            (_, Some((_, file))) => {
                let at = self.rng.below(60_000) as usize;
                let len = 1 + self.rng.below(60_000) as usize;
                let mut data = vec![0; len];
                self.rng.fill(&mut data);
                let data = Bytes::from(data);
                let place = WriteAt::Offset(at as u64);
                self.files.contents().write(rq, &root, objects[file], place, data.clone()).await.unwrap();
                self.contents(file, |bytes| {
                    bytes.resize(bytes.len().max(at + len), 0);
                    bytes[at..at + len].copy_from_slice(&data);
                });
            }
        }
    }

    /// Copies a whole file over another, or a part of it.
    async fn copy(&mut self, rq: &Request, objects: &[ObjectId], file: usize) {
        let Some((_, target)) = self.pick().filter(|(_, target)| *target != file) else { return };
        let source = self.know(|k| k.files[file].states.last().unwrap().clone());
        let whole = self.rng.below(3) > 0;
        if whole {
            // Only synced blocks can be cloned.
            let txgs = self.files.objects().txgs().unwrap();
            txgs.wait_synced(txgs.open()).await.unwrap();
        }
        let from = if whole { 0 } else { self.rng.below(source.len() as u64 + 1) };
        let at = if whole { 0 } else { self.rng.below(60_000) };
        let source_object = objects[file];
        let files = &self.files;
        let copied = files
            .contents()
            .copy_range(
                rq,
                &Cred::root(),
                files,
                FilePosition { file: source_object, offset: from },
                FilePosition { file: objects[target], offset: at },
                60_000,
            )
            .await;
        let data = &source[from as usize..][..copied.unwrap() as usize];
        if !data.is_empty() {
            self.contents(target, |bytes| {
                bytes.resize(bytes.len().max(at as usize + data.len()), 0);
                bytes[at as usize..][..data.len()].copy_from_slice(data);
            });
        }
    }

    fn contents(&self, file: usize, change: impl FnOnce(&mut Vec<u8>)) {
        self.know(|k| {
            let mut bytes = k.files[file].states.last().unwrap().clone();
            change(&mut bytes);
            k.files[file].states.push(bytes);
        });
    }
}

/// Checks that the directory and each file in it have a state at or after the acknowledged one. A change in progress at
/// the power failure may be there or not: `known` has states only of completed changes.
pub async fn judge(files: &FileSystem, number: u64, known: &Known, place: &str) {
    let rq = Request::internal("judge");
    let dir = match files.directories().lookup(&rq, files.root(), directory(number).as_bytes()).await {
        Ok(dir) => dir,
        Err(error) => return assert!(!known.begun, "{place}: directory of client {number}: {error}"),
    };
    let mut found = BTreeMap::new();
    for entry in files.directories().read_dir(&rq, dir, 0, 10_000).await.unwrap() {
        found.insert(String::from_utf8(entry.name).unwrap(), entry.object);
    }
    if !known.begun {
        return;
    }
    let names: Vec<&String> = found.keys().collect();
    let has_names = |state: &&Names| state.keys().collect::<Vec<_>>() == names;
    let since = &known.names[known.stable..];
    // A rename in progress may have replaced a file: then the names may be those of an earlier state, too.
    let last_change_was_cut = differs_by_one(known.names.last().unwrap(), &found);
    assert!(
        last_change_was_cut || since.iter().any(|state| has_names(&state)),
        "{place}, client {number}: names {names:?}, stable was {:?}",
        known.names[known.stable].keys().collect::<Vec<_>>()
    );
    for (name, object) in &found {
        let leads_to = since.iter().rev().find_map(|state| state.get(name).copied().flatten());
        let Some(file) = leads_to else { continue };
        let bytes = files.contents().read(&rq, *object, 0, 1 << 20).await.unwrap();
        // A name that was reused may refer to any of its files.
        let mut of: Vec<usize> = since.iter().filter_map(|state| state.get(name).copied().flatten()).collect();
        if last_change_was_cut {
            of.extend(0..known.files.len());
        }
        let right = of.iter().any(|n| {
            let file = &known.files[*n];
            let states = &file.states[file.stable..];
            states.iter().any(|state| *state == bytes)
                || states.windows(2).any(|states| is_half_logged(&states[0], &states[1], &bytes))
                || file.states.last().is_some_and(|last| was_being_written(last, &bytes))
        });
        let lens: Vec<usize> = known.files[file].states.iter().map(Vec::len).collect();
        let other = known.files.iter().position(|file| file.states.iter().any(|state| *state == bytes));
        let len = bytes.len();
        assert!(
            right,
            "{place}, client {number}: {name} has {len} bytes (a state of {other:?}), file {file}: {lens:?}"
        );
    }
}

/// Whether the names differ from the last state by one more change.
fn differs_by_one(last: &Names, found: &BTreeMap<String, ObjectId>) -> bool {
    let gone = last.keys().filter(|name| !found.contains_key(*name)).count();
    let new = found.keys().filter(|name| !last.contains_key(*name)).count();
    gone <= 1 && new <= 1 && gone + new > 0
}

/// Whether the contents are those after the beginning of a change: a commit in progress had logged a part of a long write, of
/// which the log has a record in each of its blocks.
fn is_half_logged(before: &[u8], after: &[u8], found: &[u8]) -> bool {
    let logged = after.iter().zip(found).take_while(|(a, b)| a == b).count();
    found.len() == before.len().max(logged) && before.get(logged..).unwrap_or_default() == &found[logged..]
}

/// Whether the contents differ from the last state by one more write or truncation, which is one range.
fn was_being_written(last: &[u8], found: &[u8]) -> bool {
    let common = last.len().min(found.len());
    let first = last.iter().zip(found).position(|(a, b)| a != b).unwrap_or(common);
    let differs = (first..common).rev().find(|at| last[*at] != found[*at]).map_or(0, |end| end + 1 - first);
    // Maximum length of this test's writes; a truncation does not change the front.
    differs <= 60_000 && (found.len() <= 120_000) && (found.len() >= last.len() || differs == 0)
}
