//! Time of requests by stage: each wait is charged to the stage that waits, and the stages of a request that does one thing at
//! a time take no longer than the request.

use crate::accounts::RECORD_BYTES;
use crate::world::{Shape, noise, options, world};
use bytes::Bytes;
use futures_util::future::join;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::FailMode;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt, XattrMode};
use weir_format::ObjectId;
use weir_machine::{Clock, Operation, Protocol, Request, Stage};
use weir_pool::config::Class;

const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: true };

/// Client of a file system in a pool of its own.
struct Pool {
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    file: ObjectId,
}

impl Pool {
    /// Runs `work` on a new pool whose dirty data is limited to `dirty_bytes`.
    fn run(seed: u64, dirty_bytes: u64, work: impl AsyncFnOnce(&Pool)) {
        let world = world(seed, SHAPE);
        let machine = world.machine();
        let run = world.run(async {
            let mut options = options(SHAPE);
            options.dirty.max_bytes = dirty_bytes;
            let engine = Engine::create(&machine, &options).await.unwrap();
            let kind = Kind::FileSystem(FileSystemSpec::default());
            let properties = vec![("recordsize".into(), Value::Number(RECORD_BYTES as u64))];
            engine.create_dataset(NewDataset { name: "tank/home".into(), kind, properties }).await.unwrap();
            let rq = &Request::internal("test");
            let files = engine.file_system(rq, "tank/home").await.unwrap();
            let new = New::of(NewKind::Regular, 0o600);
            let made = files.names().create(rq, &Cred::root(), files.root(), b"file", &new).await.unwrap();
            let pool = Pool { engine, files, file: made.object };
            pool.write(&pool.begin(), 0, 4 * RECORD_BYTES).await;
            pool.engine.sync().await.unwrap();
            work(&pool).await;
            pool.engine.export().await.unwrap();
        });
        run.unwrap();
    }

    fn clock(&self) -> &Clock {
        &self.engine.machine.clock
    }

    fn begin(&self) -> Request {
        let accounts = self.engine.cache.accounts();
        accounts.begin(&accounts.client(Protocol::Nbd, "client"), Operation::Write)
    }

    async fn write(&self, rq: &Request, offset: u64, len: usize) {
        let data = noise(len, offset + 1);
        self.files.contents().write(rq, &Cred::root(), self.file, WriteAt::Offset(offset), data).await.unwrap();
    }

    async fn read(&self, rq: &Request) -> Bytes {
        self.files.contents().read(rq, self.file, 0, RECORD_BYTES).await.unwrap()
    }

    /// Runs a request alone. Returns it with its time in nanoseconds, which its stages do not exceed.
    async fn alone(&self, work: impl AsyncFnOnce(&Request)) -> (Request, u64) {
        let rq = self.begin();
        let started = self.clock().now();
        work(&rq).await;
        let elapsed = self.clock().now().ns_since(started);
        let staged: u64 = Stage::ALL.iter().map(|stage| rq.stage_ns(*stage)).sum();
        assert!(staged <= elapsed, "{staged} ns in stages of {elapsed} ns: {:?}", stages(&rq));
        (rq, elapsed)
    }
}

fn stages(rq: &Request) -> Vec<(&'static str, u64)> {
    Stage::ALL.iter().map(|stage| (stage.name(), rq.stage_ns(*stage))).filter(|(_, ns)| *ns > 0).collect()
}

#[test]
fn a_commit_waits_for_the_log_or_for_the_txg() {
    Pool::run(1, 64 << 20, async |pool| {
        let commit = async |rq: &Request| pool.files.sync(rq, Some(pool.file)).await.unwrap();
        for _ in 0..2 {
            let (logged, elapsed) = pool
                .alone(async |rq| {
                    pool.write(rq, 0, 100).await;
                    commit(rq).await;
                })
                .await;
            assert!(logged.stage_ns(Stage::LogCommit) > elapsed / 2, "{:?} of {elapsed}", stages(&logged));
            assert_eq!(logged.stage_ns(Stage::TxgSync), 0, "{:?}", stages(&logged));
        }
        // No record of the log describes an empty extended attribute.
        let xattrs = pool.files.xattrs();
        xattrs.set(&pool.begin(), &Cred::root(), pool.file, b"user.empty", b"", XattrMode::Any).await.unwrap();
        let (synced, elapsed) = pool.alone(commit).await;
        assert!(synced.stage_ns(Stage::TxgSync) > elapsed / 2, "{:?} of {elapsed}", stages(&synced));
    });
}

/// The writer of the log runs on the thread of the request until it waits for a device, and a device may answer at once.
#[test]
fn a_commit_counts_the_time_in_which_its_own_thread_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let leaf = NewLeaf { path, is_file: true };
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
        let engine = Engine::create(&machine, &CreateOptions::new("one", vec![top])).await.unwrap();
        let rq = &Request::internal("test");
        let files = engine.file_system(rq, "one").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let file = files.names().create(rq, &Cred::root(), files.root(), b"f", &new).await.unwrap().object;
        let rq = Request::internal("commit");
        let mut elapsed = 0;
        for block in 0..50 {
            let data = noise(8192, block);
            files.contents().write(&rq, &Cred::root(), file, WriteAt::Offset(block * 8192), data).await.unwrap();
            let began = machine.clock.now();
            files.sync(&rq, Some(file)).await.unwrap();
            elapsed += machine.clock.now().ns_since(began);
        }
        let logged = rq.stage_ns(Stage::LogCommit) + rq.stage_ns(Stage::TxgSync);
        assert!(logged > elapsed / 2 && logged <= elapsed, "{logged} ns of {elapsed}: {:?}", stages(&rq));
        engine.export().await.unwrap();
    });
}

#[test]
fn a_read_is_at_the_device_and_a_second_one_waits_for_the_first() {
    Pool::run(2, 64 << 20, async |pool| {
        pool.engine.cache.clear();
        let (alone, elapsed) = pool.alone(async |rq| drop(pool.read(rq).await)).await;
        let at_device = alone.stage_ns(Stage::Queue) + alone.stage_ns(Stage::Device);
        assert!(at_device > elapsed / 2 && alone.device_ops() > 0, "{:?} of {elapsed}", stages(&alone));
        pool.engine.cache.clear();
        // The dnode is in memory, so both begin with the same block.
        pool.files.attrs().get(&pool.begin(), pool.file).await.unwrap();
        let requests = [pool.begin(), pool.begin()];
        join(pool.read(&requests[0]), pool.read(&requests[1])).await;
        let waits = requests.each_ref().map(|rq| rq.stage_ns(Stage::Cache));
        let devices = requests.each_ref().map(|rq| rq.stage_ns(Stage::Device));
        assert!(waits[1] > 0 && devices[0] > 0, "{:?}, {:?}", stages(&requests[0]), stages(&requests[1]));
        assert_eq!(devices[1], 0, "one of them read: {:?}", stages(&requests[1]));
    });
}

#[test]
fn writers_of_one_file_wait_for_its_lock() {
    Pool::run(3, 64 << 20, async |pool| {
        pool.engine.cache.clear();
        let requests = [pool.begin(), pool.begin()];
        // Changing a part of a record reads the rest of it under the lock.
        join(pool.write(&requests[0], 10, 20), pool.write(&requests[1], 50, 20)).await;
        let [first, second] = requests.each_ref().map(|rq| rq.stage_ns(Stage::Locks));
        assert!(first == 0 && second > 0, "{:?}, {:?}", stages(&requests[0]), stages(&requests[1]));
    });
}

#[test]
fn writers_wait_at_the_limit_of_dirty_data() {
    Pool::run(4, 1 << 20, async |pool| {
        let (rq, elapsed) = pool
            .alone(async |rq| {
                for n in 0..200 {
                    pool.write(rq, n * RECORD_BYTES as u64, RECORD_BYTES).await;
                }
            })
            .await;
        assert!(rq.stage_ns(Stage::Throttle) > elapsed / 4, "{:?} of {elapsed}", stages(&rq));
    });
}

#[test]
fn a_writer_waits_for_a_suspended_pool() {
    Pool::run(5, 64 << 20, async |pool| {
        let pause = Duration::from_secs(3);
        let tree = pool.engine.cache.blocks().tree();
        let suspension = tree.suspension();
        suspension.set_mode(FailMode::Wait);
        let resume = async {
            pool.clock().sleep(pause).await;
            assert!(suspension.resume());
        };
        let write = pool.alone(async |rq| pool.write(rq, 0, 100).await);
        let (_, ((rq, _), ())) = join(suspension.wait(&"a test"), join(write, resume)).await;
        let waited = rq.stage_ns(Stage::Admission);
        assert!(waited >= pause.as_nanos() as u64, "{:?}", stages(&rq));
    });
}
