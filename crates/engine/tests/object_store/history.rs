//! Lives of processes on one pool.

use crate::bucket::{Behaviour, Bucket, Faults};
use crate::client::{self, Client, directory, judge};
use crate::process::{OBJECT_BYTES, Process, Slot, settings};
use crate::world::{HOME, Shape, assert_pool_clean, create, import};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weir_engine::{Engine, Layout};
use weir_files::FileSystem;
use weir_machine::{Machine, Request};
use weir_object_store::Bug;
use weir_object_store::record::{KEY, Record};
use weir_sim::{Rng, SimWorld};

/// Size of each disk.
const DISK_BYTES: u64 = 64 << 20;
/// Processes of a history, one after the other.
const LIVES: u64 = 5;
/// Clients of each process.
const CLIENTS: u64 = 2;
/// Changes of each client.
const CHANGES: u64 = 12;
/// How often a process is started again because the store's faults prevented its start.
const STARTS: u64 = 12;

/// How a history goes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Buckets: one, or a mirror of several.
    pub buckets: usize,
    /// How they behave.
    pub behaviour: Behaviour,
    /// Processes stop, another one takes the pool, and they go on.
    pub stops: bool,
    /// A planted bug.
    pub bug: Option<Bug>,
}

/// Events of histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Commits that were acknowledged.
    pub commits: u64,
    /// Processes killed.
    pub kills: u64,
    /// Processes stopped, and let go on after another one had the pool.
    pub stops: u64,
    /// Directories of clients that were judged.
    pub judged: u64,
}

impl Count {
    /// Adds those of another history.
    pub fn add(&mut self, other: &Count) {
        self.commits += other.commits;
        self.kills += other.kills;
        self.stops += other.stops;
        self.judged += other.judged;
    }
}

/// Names and contents of a directory; `None` for a directory in it.
type Found = BTreeMap<String, Option<Bytes>>;

/// A client's acknowledged state, and its directory as a later process found it first.
#[derive(Clone, Default)]
struct Past {
    known: client::Shared,
    found: Slot<Option<Found>>,
}

/// A process's work, polled while it lives. It is no task, as the simulator's main future needs not be sent to threads.
type Life<'a> = LocalBoxFuture<'a, ()>;

struct History {
    base: Machine,
    buckets: Vec<Arc<Bucket>>,
    plan: Plan,
    rng: Rng,
    nonce: u64,
    pasts: Vec<Past>,
    count: Count,
}

async fn find(files: &FileSystem, number: u64) -> Found {
    let rq = Request::internal("judge");
    let Ok(dir) = files.directories().lookup(&rq, files.root(), directory(number).as_bytes()).await else {
        return Found::new();
    };
    let mut found = Found::new();
    for entry in files.directories().read_dir(&rq, dir, 0, 10_000).await.unwrap() {
        let bytes = files.contents().read(&rq, entry.object, 0, 1 << 20).await.ok();
        found.insert(String::from_utf8(entry.name).unwrap(), bytes.map(|bytes| Bytes::copy_from_slice(&bytes)));
    }
    found
}

/// Compares the directories of all earlier clients with what they were promised and what was found before.
async fn judge_all(files: &FileSystem, pasts: &[Past], place: &str, judged: &Slot<u64>) {
    for (number, past) in (0..).zip(pasts) {
        // A copy: this process may be killed here, and a stopped one may go on.
        let known = past.known.lock().unwrap().clone();
        judge(files, number, &known, place).await;
        let found = find(files, number).await;
        let mut before = past.found.lock().unwrap();
        match &*before {
            Some(before) => assert!(*before == found, "{place}: the files of client {number} were different before"),
            None => *before = Some(found),
        }
        *judged.lock().unwrap() += 1;
    }
}

/// A process's work: import, judgement, changes by clients. If another process has taken the disks, it may end in any
/// way.
async fn live(machine: Machine, own: Lives, mut rng: Rng, place: String, has_lost: Slot<bool>) {
    let all = async {
        let engine = import(&machine).await.unwrap_or_else(|error| panic!("{place}: {error}"));
        let files = engine.file_system(&Request::internal("test"), HOME).await;
        let files = files.unwrap_or_else(|error| panic!("{place}: {error}"));
        judge_all(&files, &own.pasts, &place, &own.judged).await;
        work(&machine, &engine, &files, own.pasts.len() as u64, own.clients, &mut rng, &has_lost).await;
        // A killed process leaves the pool open: it goes on until then.
        std::future::pending::<()>().await;
    };
    unless_lost(all, &has_lost).await;
    std::future::pending::<()>().await;
}

/// Directories that a process judges, and those that it changes.
struct Lives {
    /// Clients of earlier processes.
    pasts: Vec<Past>,
    /// Clients of this process.
    clients: Vec<Past>,
    /// Directories judged so far.
    judged: Slot<u64>,
}

/// Runs a future; its panic counts unless the process has lost its disks.
async fn unless_lost(future: impl Future<Output = ()>, has_lost: &Slot<bool>) {
    if let Err(panic) = AssertUnwindSafe(future).catch_unwind().await
        && !*has_lost.lock().unwrap()
    {
        resume_unwind(panic);
    }
}

async fn work(
    machine: &Machine,
    engine: &Arc<Engine>,
    files: &Arc<FileSystem>,
    first: u64,
    own: Vec<Past>,
    rng: &mut Rng,
    has_lost: &Slot<bool>,
) {
    let clients: Vec<_> = (first..)
        .zip(own)
        .map(|(number, past)| {
            let (files, clock) = (files.clone(), machine.clock.clone());
            let client = Client { files, clock, known: past.known, number, rng: rng.fork() };
            let has_lost = has_lost.clone();
            machine.tasks.spawn(async move { unless_lost(client.run(CHANGES), &has_lost).await })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    engine.sync().await.unwrap();
}

impl History {
    /// Starts a process; the store's faults may make that fail several times.
    async fn start(&mut self) -> Process {
        let settings = settings(self.plan.behaviour.latest, self.plan.bug);
        for _ in 0..STARTS {
            self.nonce += 1;
            if let Some(process) = Process::start(&self.base, &self.buckets, &settings, self.nonce).await {
                return process;
            }
        }
        panic!("the pool's disks cannot be opened in {STARTS} attempts");
    }

    /// Polls the work of a process for a while.
    async fn pass(&self, life: &mut Life<'_>, limit: Duration) {
        let end = pin!(self.base.clock.sleep(limit));
        if let Either::Left(((), _)) = select(life, end).await {
            unreachable!("a life ends only when its process is killed");
        }
    }

    fn begin_life(&mut self, process: &Process, place: &str, judged: &Slot<u64>) -> Life<'static> {
        let clients: Vec<Past> = (0..CLIENTS).map(|_| Past::default()).collect();
        let own = Lives { pasts: self.pasts.clone(), clients: clients.clone(), judged: judged.clone() };
        self.pasts.extend(clients);
        let has_lost = process.has_lost.clone();
        let life = live(process.machine.clone(), own, self.rng.fork(), place.to_owned(), has_lost);
        Box::pin(life)
    }

    async fn run(&mut self, seed: u64) {
        let judged = Slot::default();
        let first = self.start().await;
        let layout = if self.plan.buckets > 1 { Layout::Mirror } else { Layout::Single };
        let shape = Shape { layout, devices: self.plan.buckets, log: false };
        let (engine, files) = create(&first.machine, shape).await.unwrap();
        engine.sync().await.unwrap();
        let own: Vec<Past> = (0..CLIENTS).map(|_| Past::default()).collect();
        self.pasts = own.clone();
        let (machine, has_lost) = (first.machine.clone(), first.has_lost.clone());
        let mut rng = self.rng.fork();
        let life: Life<'static> = Box::pin(async move {
            unless_lost(work(&machine, &engine, &files, 0, own, &mut rng, &has_lost), &has_lost).await;
            std::future::pending::<()>().await;
        });
        let (mut process, mut life) = (first, life);
        for n in 1..LIVES {
            let place = format!("seed {seed}, {:?}, process {n}", self.plan);
            let limit = Duration::from_millis(self.rng.below(90_000));
            let stops = self.plan.stops && self.rng.chance(1, 2);
            self.pass(&mut life, limit).await;
            if stops {
                process.stop();
                // Its tasks go on, and fail while no request is answered.
                *process.has_lost.lock().unwrap() = true;
                let next = self.start().await;
                let mut next_life = self.begin_life(&next, &place, &judged);
                let pause = Duration::from_millis(self.rng.below(60_000));
                self.pass(&mut next_life, pause).await;
                process.go_on();
                let mut both: Life<'_> = Box::pin(async {
                    let _ended = select(&mut life, &mut next_life).await;
                });
                self.pass(&mut both, Duration::from_secs(20)).await;
                drop(both);
                process.kill();
                self.count.stops += 1;
                (process, life) = (next, next_life);
            } else {
                process.kill();
                drop(life);
                self.count.kills += 1;
                process = self.start().await;
                life = self.begin_life(&process, &place, &judged);
            }
        }
        drop(life);
        process.kill();
        self.count.kills += 1;
        self.last(seed, &judged).await;
        self.count.judged = *judged.lock().unwrap();
        self.count.commits = self.pasts.iter().map(|past| past.known.lock().unwrap().commits).sum();
    }

    /// Imports, judges and exports the pool, and verifies it.
    async fn last(&mut self, seed: u64, judged: &Slot<u64>) {
        let place = format!("seed {seed}, {:?}, at the end", self.plan);
        let process = self.start().await;
        let engine = import(&process.machine).await.unwrap_or_else(|error| panic!("{place}: {error}"));
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        judge_all(&files, &self.pasts, &place, judged).await;
        drop(files);
        engine.export().await.unwrap();
        assert_pool_clean(&process.machine, &place).await;
        process.kill();
    }
}

/// Runs a history.
///
/// # Panics
/// If something that was acknowledged as stable is lost, or an old byte comes back.
pub fn run(world: &SimWorld, plan: Plan, seed: u64) -> (Faults, Count) {
    let base = world.machine();
    let mut rng = world.rng();
    let bucket = |rng: Rng| Bucket::new(rng, plan.behaviour, base.clock.clone(), base.tasks.clone());
    let buckets: Vec<_> = (0..plan.buckets).map(|_| bucket(rng.fork())).collect();
    for bucket in &buckets {
        bucket.set(KEY, Record::new(DISK_BYTES, OBJECT_BYTES, true).encode().into());
    }
    let mut history = History { base, buckets, plan, rng, nonce: 0, pasts: Vec::new(), count: Count::default() };
    let ran = world.run(history.run(seed));
    ran.unwrap_or_else(|error| panic!("seed {seed}, {plan:?}: {error}"));
    let mut faults = Faults::default();
    history.buckets.iter().for_each(|bucket| faults.add(&bucket.faults()));
    let count = history.count;
    drop(history);
    world.power_failure();
    (faults, count)
}
