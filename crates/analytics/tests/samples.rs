//! Samples of a pool that clients use: their numbers are those of the clients, of the accounts and of the devices.
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use weir_analytics::{Interval, Sample, metrics, paths};
use weir_blocks::Class;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, DirName, FileSystem, New, NewKind, RenameMode, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Client, Operation, Protocol, Request};
use weir_sim::{SimWorld, Timing};

const PIECE_BYTES: usize = 100_000;

struct Pool {
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    file: ObjectId,
}

impl Pool {
    async fn new(engine: Arc<Engine>) -> Pool {
        let rq = &Request::internal("test");
        let kind = Kind::FileSystem(FileSystemSpec::default());
        engine.create_dataset(NewDataset { name: "tank/home".into(), kind, properties: Vec::new() }).await.unwrap();
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let made = files.names().create(rq, &Cred::root(), files.root(), b"file", &new).await.unwrap();
        Pool { engine, files, file: made.object }
    }

    async fn write(&self, client: &Client, offset: u64) {
        let accounts = self.engine.cache.accounts();
        let rq = accounts.begin(client, Operation::Write);
        let data = Bytes::from(vec![offset as u8 | 1; PIECE_BYTES]);
        self.files.contents().write(&rq, &Cred::root(), self.file, WriteAt::Offset(offset), data).await.unwrap();
        accounts.record(&rq);
    }

    async fn read(&self, client: &Client, offset: u64) {
        let accounts = self.engine.cache.accounts();
        let rq = accounts.begin(client, Operation::Read);
        let found = self.files.contents().read(&rq, self.file, offset, PIECE_BYTES).await.unwrap();
        assert_eq!(found.len(), PIECE_BYTES);
        accounts.record(&rq);
    }
}

#[test]
fn numbers_of_samples_are_those_of_clients_and_devices() {
    let world = SimWorld::new(1);
    let leaves = ["/sim/a", "/sim/b"].map(|path| {
        world.add_disk(path, 128 << 20, 512, Timing::SataSsd);
        NewLeaf { path: path.into(), is_file: true }
    });
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Mirror, leaves: leaves.into() };
    let machine = world.machine();
    let disks = world.disks();
    let run = world.run(async move {
        let pool = Pool::new(Engine::create(&machine, &CreateOptions::new("tank", vec![top])).await.unwrap()).await;
        let accounts = pool.engine.cache.accounts();
        let [alice, bob] = ["10.0.0.1", "10.0.0.2"].map(|name| accounts.client(Protocol::Nfs3, name));
        pool.engine.sync().await.unwrap();
        let before = Sample::take(&pool.engine);
        let on_disks = || {
            let stats = disks.iter().map(|disk| disk.stats());
            stats.fold((0, 0), |sum, disk| (sum.0 + disk.read_bytes, sum.1 + disk.write_bytes))
        };
        let disks_before = on_disks();
        for n in 0..10 {
            pool.write(&alice, n * PIECE_BYTES as u64).await;
        }
        let dirty = Sample::take(&pool.engine);
        assert_eq!(dirty.txg.unstable_bytes, 10 * PIECE_BYTES as u64);
        assert!(dirty.txg.dirty_bytes >= 10 * PIECE_BYTES as u64);
        pool.engine.sync().await.unwrap();
        pool.engine.cache.clear();
        for n in 0..5 {
            pool.read(&bob, n * PIECE_BYTES as u64).await;
        }
        pool.read(&bob, 0).await;
        // Prefetches that no request waits for end.
        machine.clock.sleep(Duration::from_secs(1)).await;
        let after = Sample::take(&pool.engine);
        let interval = Interval::between(Some(&before), &after);

        let all = interval.all_operations();
        assert_eq!((all.requests, all.written_bytes), (16, 10 * PIECE_BYTES as u64));
        assert_eq!(all.read_bytes.total(), 6 * PIECE_BYTES as u64);
        assert!(all.read_bytes.get("disk") > 0 && all.read_bytes.get("arc demand") >= PIECE_BYTES as u64, "{all:?}");
        assert_eq!(all.latency.iter().sum::<u64>(), 16);
        let of = |client: &str| interval.clients.iter().find(|row| row.client == client).unwrap();
        assert_eq!((of("10.0.0.1").written_bytes, of("10.0.0.1").dataset.as_str()), (1_000_000, "tank/home"));
        assert_eq!((of("10.0.0.2").read_bytes, of("10.0.0.2").requests), (600_000, 6));
        let files = &interval.files;
        let rows: Vec<_> =
            files.rows.iter().map(|row| (row.client.as_str(), row.object, row.counted.total())).collect();
        assert_eq!(rows, [("10.0.0.1", pool.file.0, 1_000_000), ("10.0.0.2", pool.file.0, 600_000)]);
        assert!(files.unlisted.requests == 0 && files.rows.iter().all(|row| row.error_bytes == 0), "{files:?}");
        assert_eq!(files.rows[0].dataset, "tank/home");
        // Every byte that the devices moved is a device's in the sample, and every byte written has a cause.
        let now = on_disks();
        let read = now.0 - disks_before.0;
        let written = now.1 - disks_before.1;
        assert_eq!(interval.leaves.iter().map(|leaf| leaf.write_bytes).sum::<u64>(), written);
        assert_eq!(interval.written.iter().map(|cause| cause.bytes).sum::<u64>(), written);
        assert_eq!(interval.leaves.iter().map(|leaf| leaf.read_bytes).sum::<u64>(), read);
        assert_eq!(after.txg.unstable_bytes, 0);

        let json = serde_json::to_string(&after).unwrap();
        assert_eq!(serde_json::from_str::<Sample>(&json).unwrap(), after);
        let served: u64 = after.operations.iter().map(|row| row.read_bytes.get("disk")).sum();
        let text = metrics::text(vec![after], metrics::ServiceState::default(), Vec::new()).unwrap();
        let line = format!("weir_served_bytes_total{{pool=\"tank\",proto=\"nfs3\",source=\"disk\"}} {served}\n");
        assert!(text.contains(&line), "{text}");
        pool.engine.export().await.unwrap();
    });
    run.unwrap();
}

#[test]
fn paths_are_those_of_now_and_directories_keep_their_access_times() {
    let world = SimWorld::new(2);
    world.add_disk("/sim/a", 128 << 20, 512, Timing::SataSsd);
    let leaves = vec![NewLeaf { path: "/sim/a".into(), is_file: true }];
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves };
    let machine = world.machine();
    let run = world.run(async move {
        let pool = Pool::new(Engine::create(&machine, &CreateOptions::new("tank", vec![top])).await.unwrap()).await;
        let (rq, root, files) = (&Request::internal("test"), &Cred::root(), &pool.files);
        let create = async |dir, name: &[u8], kind| {
            files.names().create(rq, root, dir, name, &New::of(kind, 0o700)).await.unwrap().object
        };
        let dir = create(files.root(), b"dir", NewKind::Directory).await;
        let deep = create(dir, b"deep", NewKind::Directory).await;
        let film = create(deep, b"film \xff", NewKind::Regular).await;
        let objset = files.objects().id().0;
        let find = async |object: ObjectId| paths(&pool.engine, &[(objset, object.0)]).await.remove(0);
        assert_eq!(find(film).await.as_deref(), Some("/dir/deep/film \u{fffd}"));
        assert_eq!(find(pool.file).await.as_deref(), Some("/file"));
        assert_eq!(find(files.root()).await.as_deref(), Some("/"));

        // Nothing of it has synced. A day later, reading the directory as a client does changes its access time.
        machine.clock.sleep(Duration::from_secs(2 * 86_400)).await;
        let accessed = async || files.attrs().get(rq, deep).await.unwrap().atime_ns;
        let before = accessed().await;
        let from = DirName { dir: deep, name: b"film \xff" };
        let to = DirName { dir: deep, name: b"movie" };
        files.names().rename(rq, root, from, to, RenameMode::Replace).await.unwrap();
        assert_eq!(find(film).await.as_deref(), Some("/dir/deep/movie"));
        assert_eq!(accessed().await, before);
        files.directories().read_dir(rq, deep, 0, 9).await.unwrap();
        assert!(accessed().await > before);

        files.names().remove(rq, root, deep, b"movie").await.unwrap();
        assert_eq!(find(film).await, None);
        let none = paths(&pool.engine, &[(objset + 1, pool.file.0), (objset, 1 << 40), (objset, pool.file.0)]).await;
        assert_eq!(none, [None, None, Some("/file".to_owned())]);
        // A search ends after a number of entries.
        for n in 0..20 {
            create(dir, format!("{n}").as_bytes(), NewKind::Regular).await;
        }
        let last = files.directories().read_dir(rq, dir, 0, 99).await.unwrap().pop().unwrap();
        let search = async |max| files.directories().paths(rq, &[last.object], max).await.unwrap().len();
        assert_eq!((search(10).await, search(100).await), (0, 1));
        pool.engine.export().await.unwrap();
    });
    run.unwrap();
}
