//! Client of a file system that changes names, contents and attributes, commits, and takes, destroys and rolls back to
//! snapshots.
//!
//! Names and the contents and attributes of each file are judged separately: a commit of one file promises that file and
//! all names; writes to other files may be missing. All names of a file must refer to one object.

mod found;
mod versions;

pub use found::{Found, judge, look};

use self::versions::{Contents, Version};
use crate::op_counters::Counter;
use crate::states::{Moments, Shared, States, When};
use crate::world::retry_while_busy;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::Engine;
use weir_files::DirName;
use weir_files::FilePosition;
use weir_files::{Cred, FileSystem, New, NewKind, RenameMode, SetAttributes, Space, WriteAt, XattrMode};
use weir_format::ObjectId;
use weir_machine::{Clock, Request};
use weir_sim::Rng;

/// Directory entries: for each name the client's number of the file; none for directories.
#[derive(Clone, Debug, Default)]
struct Names {
    entries: BTreeMap<String, Option<usize>>,
    /// Quota of the user [`LIMITED`] in bytes; 0: none.
    quota_bytes: u64,
}

/// The user with a quota.
const LIMITED: u64 = 3;
/// Alignment in bytes of some of the copied ranges, so that blocks can be cloned.
const BLOCK: u64 = 16 << 10;

/// A snapshot, its contents, and the moments at which it was taken and destroyed.
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
    pub dataset: String,
    names: Option<States<Names>>,
    files: Vec<States<Version>>,
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

    /// The last states, which a commit that begins now makes stable.
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
    counter: Counter,
    objects: Vec<ObjectId>,
    snapshots: u64,
}

impl Client {
    pub fn new(
        engine: Arc<Engine>,
        clock: Clock,
        moments: Moments,
        known: Shared<Known>,
        rng: Rng,
        counter: Counter,
    ) -> Self {
        Client { engine, clock, moments, known, rng, counter, objects: Vec::new(), snapshots: 0 }
    }

    fn know<T>(&self, with: impl FnOnce(&mut Known) -> T) -> T {
        with(&mut self.known.lock().unwrap())
    }

    async fn open(&self, rq: &Request) -> Arc<FileSystem> {
        let dataset = self.know(|k| k.dataset.clone());
        self.engine.file_system(rq, &dataset).await.unwrap()
    }

    /// Makes `changes` changes, one after the other, in an existing file system.
    pub async fn run(mut self, changes: u64) {
        let rq = Request::internal("client");
        let mut files = self.open(&rq).await;
        let begun = self.moments.now();
        self.know(|k| {
            let mut names = States::new(begun, Names::default());
            names.promise(begun, 0);
            k.names = Some(names);
        });
        for n in 0..changes {
            self.clock.sleep(std::time::Duration::from_micros(self.rng.below(15_000))).await;
            match self.rng.below(25) {
                0 | 1 => self.snapshot().await,
                2 => self.destroy_snapshot().await,
                4 => self.limit(n).await,
                3 | 5 => {
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
        // A commit of an unlinked file promises nothing.
        if file.is_some_and(|n| !self.know(|k| k.now().entries.values().any(|of| *of == Some(n)))) {
            return;
        }
        files.sync(rq, file.map(|n| self.objects[n])).await.unwrap();
        self.counter.did(if file.is_some() { "commit-file" } else { "commit-all" });
        let now = self.moments.now();
        self.know(|k| k.promise(now, due, file));
    }

    async fn snapshot(&mut self) {
        let began = self.moments.now();
        let due = self.know(|k| k.due());
        let name = format!("s{}", self.snapshots);
        self.snapshots += 1;
        let full = self.know(|k| {
            let contents = k.files.iter().map(|f| f.last().contents.clone()).collect();
            let names = k.now();
            let name = name.clone();
            let done = None;
            let destroy_began = None;
            let destroy_done = None;
            k.snapshots.push(Snapshot { name, began, done, destroy_began, destroy_done, names, contents });
            format!("{}@{}", k.dataset, k.snapshots[k.snapshots.len() - 1].name)
        });
        self.engine.snapshot(vec![full], Vec::new()).await.unwrap();
        self.counter.did("snapshot");
        let now = self.moments.now();
        self.know(|k| {
            k.promise(now, due, None);
            k.snapshots.iter_mut().find(|s| s.name == name).unwrap().done = Some(now);
        });
    }

    async fn limit(&mut self, n: u64) {
        let began = self.moments.now();
        let quota_bytes = (1 << 30) + n;
        let dataset = self.know(|k| {
            k.rename(began, |names| names.quota_bytes = quota_bytes);
            k.dataset.clone()
        });
        let due = self.know(|k| k.due());
        self.engine
            .properties()
            .set_quota(dataset, QuotaPrincipal::User, QuotaKind::Bytes, Some(LIMITED), quota_bytes)
            .await
            .unwrap();
        self.counter.did("user-quota");
        let now = self.moments.now();
        self.know(|k| k.promise(now, due, None));
    }

    /// Picks an existing snapshot: the newest, or any.
    fn pick_snapshot(&mut self, newest: bool) -> Option<usize> {
        let existing: Vec<usize> = self.know(|k| {
            k.snapshots.iter().enumerate().filter(|(_, s)| s.destroy_began.is_none()).map(|(n, _)| n).collect()
        });
        let at = if newest { existing.len().checked_sub(1)? as u64 } else { self.rng.below(existing.len() as u64) };
        existing.get(at as usize).copied()
    }

    async fn destroy_snapshot(&mut self) {
        let Some(n) = self.pick_snapshot(false) else { return };
        let began = self.moments.now();
        let name = self.know(|k| {
            k.snapshots[n].destroy_began = Some(began);
            format!("{}@{}", k.dataset, k.snapshots[n].name)
        });
        self.engine.destroy_snapshots(vec![name], false).await.unwrap();
        self.counter.did("snapshot-destroy");
        let now = self.moments.now();
        self.know(|k| k.snapshots[n].destroy_done = Some(now));
    }

    async fn roll_back(&mut self) {
        let Some(n) = self.pick_snapshot(true) else { return };
        let began = self.moments.now();
        let dataset = self.know(|k| {
            let names = k.snapshots[n].names.clone();
            let contents = k.snapshots[n].contents.clone();
            k.names.as_mut().unwrap().push(began, names);
            for (file, contents) in k.files.iter_mut().zip(contents) {
                file.push(began, Version::of(contents));
            }
            k.dataset.clone()
        });
        let due = self.know(|k| k.due());
        retry_while_busy(&self.clock, || self.engine.rollback(dataset.clone(), None)).await;
        self.counter.did("rollback");
        let now = self.moments.now();
        self.know(|k| k.promise(now, due, None));
    }

    fn pick(&mut self) -> Option<(String, usize)> {
        let files: Vec<_> =
            self.know(|k| k.now().entries.into_iter().filter_map(|(name, n)| Some((name, n?))).collect());
        let at = self.rng.below(files.len() as u64) as usize;
        files.into_iter().nth(at)
    }

    async fn change(&mut self, rq: &Request, files: &FileSystem, n: u64) {
        let root = Cred::root();
        let dir = files.root();
        let began = self.moments.now();
        let name = format!("name-{n}");
        match (self.rng.below(28), self.pick()) {
            (0..4, _) | (_, None) => {
                let file = self.objects.len();
                self.know(|k| {
                    k.files.push(States::new(began, Version::of(Contents::new())));
                    k.rename(began, |names| _ = names.entries.insert(name.clone(), Some(file)));
                });
                let new = New::of(NewKind::Regular, 0o644);
                let made = files.names().create(rq, &root, dir, name.as_bytes(), &new).await.unwrap();
                self.objects.push(made.object);
                self.counter.did("create");
            }
            (4, Some(_)) => {
                self.know(|k| k.rename(began, |names| _ = names.entries.insert(name.clone(), None)));
                files
                    .names()
                    .create(rq, &root, dir, name.as_bytes(), &New::of(NewKind::Directory, 0o755))
                    .await
                    .unwrap();
                self.counter.did("mkdir");
            }
            (5 | 6, Some((old, _))) => {
                self.know(|k| k.rename(began, |names| _ = names.entries.remove(&old)));
                files.names().remove(rq, &root, dir, old.as_bytes()).await.unwrap();
                self.counter.did("remove");
            }
            (7 | 20 | 21, Some(old)) => self.rename(rq, files, old, name).await,
            (8 | 9, Some((_, file))) => {
                self.know(|k| k.rename(began, |names| _ = names.entries.insert(name.clone(), Some(file))));
                files.names().link(rq, &root, self.objects[file], dir, name.as_bytes()).await.unwrap();
                self.counter.did("link");
            }
            (10 | 11, Some((_, file))) => self.set_attributes(rq, files, file).await,
            (12 | 13, Some((_, file))) => self.set_xattr(rq, files, file).await,
            (14, Some((_, file))) => self.zero(rq, files, file).await,
            (15..20, Some((_, file))) => self.copy(rq, files, file).await,
            (_, Some((_, file))) => self.write(rq, files, file).await,
        }
    }

    /// Renames a file, in some cases to the name of another file, which is replaced or exchanged.
    async fn rename(&mut self, rq: &Request, files: &FileSystem, (old, file): (String, usize), fresh: String) {
        let root = Cred::root();
        let dir = files.root();
        let began = self.moments.now();
        let other = self.pick().filter(|(name, of)| *name != old && *of != file);
        let exchanges = self.rng.chance(1, 2);
        let (target, replaced) = other.map_or((fresh, None), |(name, of)| (name, Some(of)));
        let mode = if exchanges && replaced.is_some() { RenameMode::Exchange } else { RenameMode::Replace };
        self.know(|k| {
            k.rename(began, |names| {
                names.entries.remove(&old);
                names.entries.insert(target.clone(), Some(file));
                if mode == RenameMode::Exchange {
                    names.entries.insert(old.clone(), replaced);
                }
            });
        });
        let from = DirName { dir, name: old.as_bytes() };
        let to = DirName { dir, name: target.as_bytes() };
        files.names().rename(rq, &root, from, to, mode).await.unwrap();
        self.counter.did(if mode == RenameMode::Exchange { "exchange" } else { "rename" });
    }

    async fn set_attributes(&mut self, rq: &Request, files: &FileSystem, file: usize) {
        let mut set = SetAttributes::default();
        let what = self.rng.below(3) as usize;
        match what {
            0 => set.size_bytes = Some(self.rng.below(70_000)),
            1 => set.mode = Some(0o600 + self.rng.below(64) as u32),
            _ => set.uid = Some(self.rng.below(5) as u32),
        }
        self.contents(self.moments.now(), file, |file| {
            file.bytes.resize(set.size_bytes.map_or(file.bytes.len(), |size| size as usize), 0);
            file.mode = set.mode.unwrap_or(file.mode);
            file.uid = set.uid.unwrap_or(file.uid);
        });
        files.attrs().set(rq, &Cred::root(), self.objects[file], &set).await.unwrap();
        self.counter.did(["truncate", "mode", "owner"][what]);
    }

    async fn set_xattr(&mut self, rq: &Request, files: &FileSystem, file: usize) {
        let root = Cred::root();
        let began = self.moments.now();
        let object = self.objects[file];
        let name = format!("user.{}", self.rng.below(2)).into_bytes();
        let exists = self.know(|k| k.files[file].last().contents.xattrs.contains_key(&name));
        if exists && self.rng.chance(1, 2) {
            self.contents(began, file, |file| _ = file.xattrs.remove(&name));
            files.xattrs().remove(rq, &root, object, &name).await.unwrap();
            return self.counter.did("xattr-remove");
        }
        let mut value = vec![0; 1 + self.rng.below(600) as usize];
        self.rng.fill(&mut value);
        self.contents(began, file, |file| _ = file.xattrs.insert(name.clone(), value.clone()));
        files.xattrs().set(rq, &root, object, &name, &value, XattrMode::Any).await.unwrap();
        self.counter.did("xattr-set");
    }

    /// Zeroes a range of a file, punches a hole, or writes the blocks anew.
    async fn zero(&mut self, rq: &Request, files: &FileSystem, file: usize) {
        let at = self.rng.below(60_000);
        let len = 1 + self.rng.below(40_000);
        let space = [Space::Punch, Space::Zero { keep_size: false }, Space::Rewrite][self.rng.below(3) as usize];
        if space == Space::Rewrite {
            // The contents stay, so a power cut may leave what it might have left before.
            files.contents().allocate(rq, &Cred::root(), self.objects[file], at..at + len, space).await.unwrap();
            return self.counter.did("rewrite");
        }
        self.contents(self.moments.now(), file, |file| {
            let bytes = &mut file.bytes;
            let end = (at + len) as usize;
            if space != Space::Punch {
                bytes.resize(bytes.len().max(end), 0);
            }
            let end = end.min(bytes.len());
            bytes[(at as usize).min(end)..end].fill(0);
        });
        files.contents().allocate(rq, &Cred::root(), self.objects[file], at..at + len, space).await.unwrap();
        self.counter.did(if space == Space::Punch { "punch" } else { "zero" });
    }

    /// Copies a file or a range of it to another file. Synced blocks in an aligned range are cloned.
    async fn copy(&mut self, rq: &Request, files: &FileSystem, from: usize) {
        let Some((_, to)) = self.pick().filter(|(_, to)| *to != from) else { return };
        let source = self.know(|k| k.files[from].last().contents.bytes.clone());
        let mut at = 0;
        let mut target_at = 0;
        let mut left = source.len() as u64;
        if self.rng.chance(1, 2) {
            at = self.rng.below(4) * BLOCK;
            target_at = self.rng.below(4) * BLOCK;
            left = left.saturating_sub(at).min((1 + self.rng.below(4)) * BLOCK);
        }
        if left == 0 {
            return;
        }
        self.written(to, target_at as usize, &source[at as usize..(at + left) as usize]);
        let root = Cred::root();
        let source_object = self.objects[from];
        let target_object = self.objects[to];
        while left > 0 {
            let target = FilePosition { file: target_object, offset: target_at };
            let done = files
                .contents()
                .copy_range(rq, &root, files, FilePosition { file: source_object, offset: at }, target, left)
                .await
                .unwrap();
            assert!(done > 0 && done <= left);
            at += done;
            target_at += done;
            left -= done;
        }
        self.counter.did("copy");
    }

    async fn write(&mut self, rq: &Request, files: &FileSystem, file: usize) {
        let at = self.rng.below(40_000) as usize;
        let len = 1 + self.rng.below(40_000) as usize;
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        self.written(file, at, &data);
        let place = WriteAt::Offset(at as u64);
        files.contents().write(rq, &Cred::root(), self.objects[file], place, Bytes::from(data)).await.unwrap();
        self.counter.did("write");
    }

    fn contents(&self, began: When, file: usize, change: impl FnOnce(&mut Contents)) {
        self.know(|k| {
            let mut contents = k.files[file].last().contents.clone();
            change(&mut contents);
            k.files[file].push(began, Version::of(contents));
        });
    }

    /// Records a write of `data` at offset `at`.
    fn written(&self, file: usize, at: usize, data: &[u8]) {
        let began = self.moments.now();
        self.know(|k| {
            let version = k.files[file].last().contents.clone().written(at, data);
            k.files[file].push(began, version);
        });
    }
}
