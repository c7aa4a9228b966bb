//! Client that creates, snapshots, holds, bookmarks, clones, renames, promotes and destroys file systems and sets quotas.
//! Each call is stable when it returns.

use crate::op_counters::Counter;
use crate::states::{Moments, Shared, States, When};
use crate::world::{make_files, retry_while_busy};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_engine::{DslReadGuard, Engine};
use weir_files::{Cred, New, NewKind, WriteAt};
use weir_machine::{Clock, Request};
use weir_sim::Rng;

pub const HOME: &str = "tank/many";

/// Names of file systems, snapshots (`…@`, the number of the change that took it), holds of snapshots (`…!`, the tag),
/// bookmarks (`…#`, the numbers of the snapshot and of the bookmark), and quotas (`…=`, bytes).
pub type Names = BTreeSet<String>;

const MARKS: [char; 4] = ['@', '#', '=', '!'];

fn is_dataset(name: &str) -> bool {
    !name.contains(MARKS)
}

fn is_snapshot(name: &str) -> bool {
    name.contains('@') && !name.contains('!')
}

/// New name after the rename of `dataset` to `to`, if the name belongs to that dataset.
fn renamed(name: &str, dataset: &str, to: &str) -> Option<String> {
    let rest = name.strip_prefix(dataset).filter(|rest| rest.is_empty() || rest.starts_with(MARKS))?;
    Some(format!("{to}{rest}"))
}

/// Number of the snapshot in the name of a snapshot or bookmark.
fn snapshot_of(name: &str) -> Option<u64> {
    let (_, rest) = name.split_once(['@', '#'])?;
    rest.split(['-', '!']).next()?.parse().ok()
}

/// Acknowledged state of the file systems, snapshots, bookmarks and quotas.
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
    pub counter: Counter,
}

impl Client {
    fn now(&self) -> Names {
        self.known.lock().unwrap().names.as_ref().unwrap().last().clone()
    }

    /// Records that a change to these names begins.
    fn begin(&self, names: Names) {
        let began = self.moments.now();
        self.known.lock().unwrap().names.as_mut().unwrap().push(began, names);
    }

    /// Counts an operation of this kind and records that the last change is stable.
    fn did(&self, kind: &'static str) {
        self.counter.did(kind);
        self.done();
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
            let dataset = self.pick(&names, |name| is_dataset(name));
            let snapshot = self.pick(&names, |name| is_snapshot(name));
            let bookmark = self.pick(&names, |name| name.contains('#'));
            let hold = self.pick(&names, |name| name.contains('!'));
            match (self.rng.below(19), dataset, snapshot, bookmark) {
                (0..3, Some(dataset), _, _) => self.snapshot(names, format!("{dataset}@{n}")).await,
                (3 | 4, _, Some(origin), _) => self.clone_it(names, origin, n).await,
                (5, _, Some(snapshot), _) => self.destroy_snapshot(names, snapshot).await,
                (6, Some(dataset), _, _) => self.destroy(names, dataset).await,
                (7, Some(dataset), _, _) => self.rename(names, dataset, n).await,
                (8 | 9, _, Some(snapshot), _) => self.promote(names, snapshot, n).await,
                (10 | 13, _, Some(snapshot), _) => self.bookmark(names, snapshot, n).await,
                (11, _, _, Some(bookmark)) => self.destroy_bookmark(names, bookmark).await,
                (12, Some(dataset), _, _) => self.limit(names, dataset, n).await,
                (14 | 15, _, Some(snapshot), _) => self.hold(names, snapshot, n).await,
                (16 | 17, ..) if hold.is_some() => self.release(names, hold.unwrap()).await,
                _ => self.make(names, n).await,
            }
        }
    }

    async fn make(&mut self, mut names: Names, n: u64) {
        let name = format!("{HOME}/d{n}");
        names.insert(name.clone());
        self.begin(names);
        make_files(&self.engine, &name).await;
        self.did("dataset-create");
        let rq = Request::internal("client");
        let files = self.engine.file_system(&rq, &name).await.unwrap();
        let new = New::of(NewKind::Regular, 0o644);
        let made = files.names().create(&rq, &Cred::root(), files.root(), b"file", &new).await.unwrap();
        let data = bytes::Bytes::from(vec![n as u8; 30_000]);
        files.contents().write(&rq, &Cred::root(), made.object, WriteAt::Offset(0), data).await.unwrap();
    }

    async fn snapshot(&mut self, mut names: Names, name: String) {
        names.insert(name.clone());
        self.begin(names);
        self.engine.snapshot(vec![name], Vec::new()).await.unwrap();
        self.did("snapshot");
    }

    async fn clone_it(&mut self, mut names: Names, origin: String, n: u64) {
        let name = format!("{HOME}/c{n}");
        names.insert(name.clone());
        self.begin(names);
        self.engine.clone_snapshot(origin, name, Vec::new()).await.unwrap();
        self.did("clone");
    }

    /// Destroys a snapshot. If it is held or has a clone, the call is refused and nothing changes.
    async fn destroy_snapshot(&mut self, names: Names, name: String) {
        let mut less = names.clone();
        less.remove(&name);
        self.begin(less);
        if self.engine.destroy_snapshots(vec![name], false).await.is_err() {
            self.begin(names);
            return self.done();
        }
        self.did("snapshot-destroy");
    }

    /// Destroys the snapshots of a dataset one after the other, then the dataset. Stops at a snapshot that is held or has
    /// clones.
    async fn destroy(&mut self, mut names: Names, name: String) {
        let own: Vec<String> =
            names.iter().filter(|s| is_snapshot(s) && s.starts_with(&format!("{name}@"))).cloned().collect();
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
        // Bookmarks and the quota are destroyed with the dataset.
        names.retain(|other| renamed(other, &name, "").is_none());
        self.begin(names);
        retry_while_busy(&self.clock, || self.engine.destroy_dataset(name.clone())).await;
        self.did("dataset-destroy");
    }

    async fn rename(&mut self, names: Names, name: String, n: u64) {
        let to = format!("{HOME}/r{n}");
        self.begin(names.into_iter().map(|old| renamed(&old, &name, &to).unwrap_or(old)).collect());
        self.engine.rename(name.clone(), to.clone()).await.unwrap();
        self.did("dataset-rename");
    }

    /// Promotes a clone, which gets the snapshots up to its origin and their bookmarks. Without any clone, clones `snapshot`.
    async fn promote(&mut self, names: Names, snapshot: String, n: u64) {
        let rq = Request::internal("client");
        let dsl = self.engine.synced().dsl(&rq).await.unwrap();
        let mut clones = Vec::new();
        for dir in dsl.dirs().into_iter().filter(|dir| names.contains(&dir.name) && dir.phys.origin.0 != 0) {
            // The origin of a dataset that is not a clone is not in `names`.
            let origin = dsl.snapshot_name(&rq, dir.phys.origin).await.unwrap();
            clones.extend(origin.filter(|origin| names.contains(origin)).map(|origin| (dir.name.clone(), origin)));
        }
        drop(dsl);
        let at = self.rng.below(clones.len() as u64) as usize;
        let Some((clone, origin)) = clones.into_iter().nth(at) else { return self.clone_it(names, snapshot, n).await };
        let from = origin.split('@').next().unwrap().to_owned();
        let last = snapshot_of(&origin).unwrap();
        let promoted = |old: String| match snapshot_of(&old).filter(|number| *number <= last) {
            Some(_) => renamed(&old, &from, &clone).unwrap_or(old),
            None => old,
        };
        self.begin(names.into_iter().map(promoted).collect());
        self.engine.promote(clone).await.unwrap();
        self.did("promote");
    }

    async fn hold(&mut self, mut names: Names, snapshot: String, n: u64) {
        let tag = format!("t{n}");
        names.insert(format!("{snapshot}!{tag}"));
        self.begin(names);
        self.engine.hold(vec![(snapshot, tag)]).await.unwrap();
        self.did("hold");
    }

    async fn release(&mut self, mut names: Names, hold: String) {
        names.remove(&hold);
        self.begin(names);
        let (snapshot, tag) = hold.split_once('!').unwrap();
        self.engine.release(vec![(snapshot.to_owned(), tag.to_owned())]).await.unwrap();
        self.did("release");
    }

    async fn bookmark(&mut self, mut names: Names, snapshot: String, n: u64) {
        let name = format!("{}-{n}", snapshot.replace('@', "#"));
        names.insert(name.clone());
        self.begin(names);
        self.engine.bookmark(vec![(name, snapshot)]).await.unwrap();
        self.did("bookmark");
    }

    async fn destroy_bookmark(&mut self, mut names: Names, name: String) {
        names.remove(&name);
        self.begin(names);
        self.engine.destroy_bookmarks(vec![name]).await.unwrap();
        self.did("bookmark-destroy");
    }

    async fn limit(&mut self, mut names: Names, name: String, n: u64) {
        let bytes = (1 << 30) + n;
        names.retain(|other| !other.starts_with(&format!("{name}=")));
        names.insert(format!("{name}={bytes}"));
        self.begin(names);
        let quota = ("quota".to_owned(), Setting::Set(Value::Number(bytes)));
        self.engine.properties().set_properties(name, vec![quota]).await.unwrap();
        self.did("quota");
    }
}

/// Returns the names that exist, of all names that ever existed.
pub async fn look(engine: &Arc<Engine>, known: &Known) -> Result<Names, String> {
    let dsl = engine.synced().dsl(&Request::internal("judge")).await.map_err(|e| e.to_string())?;
    let possible: BTreeSet<&String> = known.names.iter().flat_map(|names| names.all()).flatten().collect();
    let mut found = Names::new();
    for name in possible {
        if is_there(engine, &dsl, name).await {
            found.insert(name.clone());
        }
    }
    Ok(found)
}

async fn is_there(engine: &Engine, dsl: &DslReadGuard, name: &str) -> bool {
    let rq = &Request::internal("judge");
    let of = name.split(['#', '=', '!']).next().unwrap_or(name);
    let Ok(dataset) = dsl.find(rq, of).await else { return false };
    if let Some((_, tag)) = name.split_once('!') {
        return dsl.holds(rq, &dataset).await.is_ok_and(|all| all.iter().any(|(held, _)| held == tag));
    }
    if name.contains('#') {
        let bookmarks = weir_dsl::bookmarks::bookmarks(dsl, rq, &dataset).await;
        return bookmarks.is_ok_and(|all| all.iter().any(|bookmark| bookmark.name == name));
    }
    let Some((_, bytes)) = name.split_once('=') else { return true };
    let quota = dsl.property(rq, &dataset, &engine.facts(), "quota").await;
    quota.is_ok_and(|quota| quota.is_some_and(|quota| bytes.parse().is_ok_and(|n| quota.value == Value::Number(n))))
}

/// Compares the names after a cut at `cut` with the acknowledged state.
pub fn judge(found: &Names, known: &Known, cut: When) -> Result<(), String> {
    let Some(names) = known.names.as_ref().filter(|names| names.is_promised(cut)) else { return Ok(()) };
    if names.allowed(cut).any(|state| state == found) {
        return Ok(());
    }
    let newest: Vec<_> = names.allowed(cut).next().map(|names| names.iter().collect()).unwrap_or_default();
    Err(format!("{HOME}: {found:?} matches no allowed state, such as {newest:?}"))
}
