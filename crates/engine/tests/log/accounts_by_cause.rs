//! The bytes that devices write are the sum of their causes: over pools of several top-level vdevs and allocation classes,
//! and for volumes, encrypted datasets, gang blocks, clones and repairs.

use crate::accounts::{RECORD_BYTES, device_bytes};
use crate::world::{SEARCH, noise};
use bytes::Bytes;
use std::sync::Arc;
use weir_codec::crypt::Suite;
use weir_dsl::KeyFormat;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Crypt, Encryption, Engine, Layout, NewLeaf, NewRoot, NewTopLevelVdev};
use weir_files::{Cred, FilePosition, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::Request;
use weir_machine::accounts::{Content, DeviceBytes, Redundancy};
use weir_pool::config::Class;
use weir_sim::{Fault, SimWorld, Timing};

const HOME: &str = "tank/home";
/// Bytes of a file of whole records.
const FILE_BYTES: u64 = 8 * RECORD_BYTES as u64;

/// A pool of top-level vdevs: their class, layout and number of devices. Devices are numbered in this order.
struct PoolUnderTest {
    world: SimWorld,
    options: CreateOptions,
}

/// Accounts and device counters of the time while the pool worked.
struct Written {
    before: DeviceBytes,
    after: DeviceBytes,
    /// By device.
    devices: Vec<u64>,
}

impl Written {
    fn of(&self, content: Content, redundancy: Redundancy) -> u64 {
        self.after.of(content, redundancy) - self.before.of(content, redundancy)
    }

    fn of_content(&self, content: Content) -> u64 {
        self.after.of_content(content) - self.before.of_content(content)
    }
}

impl PoolUnderTest {
    fn new(seed: u64, tops: &[(Class, Layout, usize)]) -> Self {
        let world = SimWorld::new(seed);
        let mut paths = (0..).map(|i| format!("{SEARCH}/d{i}"));
        let tops = tops.iter().map(|&(class, layout, count)| {
            let leaves = paths.by_ref().take(count).map(|path| {
                world.add_disk(&path, 64 << 20, 512, Timing::SataSsd);
                NewLeaf { path: path.into(), is_file: true }
            });
            NewTopLevelVdev { class, layout, leaves: leaves.collect() }
        });
        let mut options = CreateOptions::new("tank", tops.collect());
        options.ashift = Some(9);
        options.arc_bytes = 16 << 20;
        PoolUnderTest { world, options }
    }

    /// Creates the pool, works on it and exports it. The devices write as many bytes as the accounts say.
    fn run(&self, work: impl AsyncFnOnce(&Arc<Engine>)) -> Written {
        let machine = self.world.machine();
        let engine = self.world.run(async {
            let engine = Engine::create(&machine, &self.options).await.unwrap();
            engine.sync().await.unwrap();
            engine
        });
        let engine = engine.unwrap();
        let accounts = engine.cache.accounts().clone();
        let by_device = || self.world.disks().iter().map(|disk| disk.stats().write_bytes).collect::<Vec<_>>();
        let before = accounts.device_bytes();
        let total = device_bytes(&self.world);
        let devices = by_device();
        let run = self.world.run(async move {
            work(&engine).await;
            engine.export().await.unwrap();
        });
        run.unwrap();
        let after = accounts.device_bytes();
        assert_eq!(device_bytes(&self.world) - total, after.total() - before.total(), "{after:?}");
        let rows: u64 = accounts.datasets().iter().map(|row| row.device.total()).sum();
        assert_eq!(rows, after.total(), "by dataset and client");
        let devices = by_device().iter().zip(devices).map(|(after, before)| after - before).collect();
        Written { before, after, devices }
    }
}

async fn file_system(engine: &Engine, name: &str, properties: &[(&str, Value)]) -> Arc<FileSystem> {
    let usual = [("recordsize", Value::Number(RECORD_BYTES as u64)), ("compression", Value::Number(2))];
    let properties = usual.iter().chain(properties).map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.into(), kind, properties }).await.unwrap();
    engine.file_system(&Request::internal("test"), name).await.unwrap()
}

async fn create(files: &Arc<FileSystem>, name: &str) -> ObjectId {
    let rq = Request::internal("test");
    let new = New::of(NewKind::Regular, 0o600);
    files.names().create(&rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.unwrap().object
}

async fn write(files: &Arc<FileSystem>, file: ObjectId, offset: u64, data: Bytes) {
    let rq = Request::internal("test");
    files.contents().write(&rq, &Cred::root(), file, WriteAt::Offset(offset), data).await.unwrap();
}

/// A file of whole records of noise, synced.
async fn filled(engine: &Engine, files: &Arc<FileSystem>, name: &str, seed: u64) -> ObjectId {
    let file = create(files, name).await;
    write(files, file, 0, noise(FILE_BYTES as usize, seed)).await;
    engine.sync().await.unwrap();
    file
}

#[test]
fn stripe_of_a_disk_a_mirror_and_raidz() {
    const FILES: u64 = 60;
    let tops =
        [(Class::Normal, Layout::Single, 1), (Class::Normal, Layout::Mirror, 2), (Class::Normal, Layout::Raidz(1), 3)];
    let written = PoolUnderTest::new(1, &tops).run(async |engine| {
        let files = file_system(engine, HOME, &[]).await;
        for n in 0..FILES {
            filled(engine, &files, &format!("{n}"), n).await;
        }
    });
    assert_eq!(written.of(Content::Data, Redundancy::First), FILES * FILE_BYTES);
    let copies = written.of(Content::Data, Redundancy::Copy);
    let parity = written.of(Content::Data, Redundancy::Parity);
    assert!(copies > 0 && copies < FILES * FILE_BYTES, "some blocks are on the mirror: {copies}");
    assert!(parity > 0 && parity < FILES * FILE_BYTES, "and some on the RAID-Z: {parity}");
    assert_eq!(written.devices[1], written.devices[2], "sides of the mirror");
    assert!(written.devices.iter().all(|bytes| *bytes > FILE_BYTES / 4), "{:?}", written.devices);
}

#[test]
fn special_and_dedup_vdevs_of_a_new_pool() {
    let tops = [Class::Normal, Class::Special, Class::Dedup].map(|class| (class, Layout::Single, 1));
    let pool = PoolUnderTest::new(2, &tops);
    let labels = |written: &Written| written.of_content(Content::Label) / 3;
    let written = pool.run(async |engine| {
        let files = file_system(engine, HOME, &[]).await;
        filled(engine, &files, "file", 2).await;
    });
    let [normal, special, dedup] = written.devices[..] else { panic!("{:?}", written.devices) };
    assert_eq!(normal, FILE_BYTES + labels(&written), "nothing but the file's records");
    assert_eq!(special, written.of_content(Content::Metadata) + labels(&written), "all metadata");
    assert_eq!(dedup, labels(&written), "there is no dedup table");

    let written = PoolUnderTest::new(3, &tops).run(async |engine| {
        let dedup = [("dedup", Value::Number(1)), ("special_small_blocks", Value::Number(4096))];
        let files = file_system(engine, HOME, &dedup).await;
        filled(engine, &files, "one", 3).await;
        filled(engine, &files, "two", 3).await;
        let small = create(&files, "small").await;
        write(&files, small, 0, noise(3000, 4)).await;
        engine.sync().await.unwrap();
        let rq = &Request::internal("test");
        for seed in [5, 6] {
            // The first commit makes the log, and waits for a txg; the second one writes to it.
            write(&files, small, 0, noise(3000, seed)).await;
            files.sync(rq, Some(small)).await.unwrap();
        }
        assert_eq!(engine.cache.accounts().unstable_bytes(), 0);
    });
    let [normal, special, dedup] = written.devices[..] else { panic!("{:?}", written.devices) };
    assert_eq!(normal, FILE_BYTES + labels(&written), "equal records once; the log is on the special vdev");
    let small = written.of_content(Content::Data) - FILE_BYTES;
    assert_eq!(small, 3 * 3072, "the small file, three times");
    let log = written.of_content(Content::IntentLog);
    assert!(log >= 3000 && special > small + log + labels(&written), "{special} bytes, {log} of the log");
    assert!(dedup > labels(&written), "the dedup table");
    assert_eq!(special + dedup, small + log + written.of_content(Content::Metadata) + 2 * labels(&written));
}

/// A quarter of the special vdevs is for metadata only.
#[test]
fn small_blocks_leave_the_reserve_of_the_special_vdevs() {
    let tops = [Class::Normal, Class::Special, Class::Normal, Class::Normal].map(|class| (class, Layout::Single, 1));
    PoolUnderTest::new(4, &tops).run(async |engine| {
        let small = [("special_small_blocks", Value::Number(RECORD_BYTES as u64))];
        let files = file_system(engine, HOME, &small).await;
        let space = |class| engine.cache.blocks().space(class);
        for n in 0..7 {
            let file = create(&files, &format!("{n}")).await;
            for part in 0..8 {
                write(&files, file, part << 20, noise(1 << 20, n * 8 + part)).await;
            }
            engine.sync().await.unwrap();
        }
        let special = space(Class::Special);
        let normal = space(Class::Normal);
        let share = special.allocated_bytes as f64 / special.size_bytes as f64;
        assert!((0.75..0.80).contains(&share), "{share} of the special vdev is allocated");
        assert!(normal.allocated_bytes > 8 << 20, "the rest of the files is on the normal vdev");
    });
}

#[test]
fn volume_with_its_log() {
    let written = PoolUnderTest::new(5, &[(Class::Normal, Layout::Mirror, 2)]).run(async |engine| {
        let spec = VolumeSpec { size_bytes: 4 << 20, block_bytes: RECORD_BYTES as u32 };
        let properties = vec![("compression".to_owned(), Value::Number(2))];
        let new = NewDataset { name: "tank/vol".into(), kind: Kind::Volume(spec), properties };
        engine.create_dataset(new).await.unwrap();
        let rq = &Request::internal("test");
        let volume = engine.volume(rq, "tank/vol").await.unwrap();
        volume.write(rq, 0, noise(FILE_BYTES as usize, 6), false).await.unwrap();
        volume.flush(rq).await.unwrap();
        engine.sync().await.unwrap();
        volume.write(rq, 0, noise(512, 7), true).await.unwrap();
        engine.sync().await.unwrap();
    });
    let first = written.of(Content::Data, Redundancy::First);
    assert_eq!(first, FILE_BYTES + RECORD_BYTES as u64, "a block of a volume is written whole");
    assert_eq!(written.of(Content::Data, Redundancy::Copy), first);
    assert!(written.of(Content::IntentLog, Redundancy::First) > 512);
}

#[test]
fn encrypted_file_system() {
    let written = PoolUnderTest::new(6, &[(Class::Normal, Layout::Raidz(1), 3)]).run(async |engine| {
        let machine = &engine.machine;
        let root = NewRoot::new(machine, HOME, KeyFormat::Raw, "prompt", None, vec![7; 32]).await.unwrap();
        let encryption = Encryption { crypt: Crypt::With(Suite::Aes256Gcm), root: Some(root) };
        let properties = [("recordsize", RECORD_BYTES as u64), ("compression", 2)];
        let properties = properties.map(|(name, value)| (name.to_owned(), Value::Number(value))).to_vec();
        let kind = Kind::FileSystem(FileSystemSpec::default());
        engine.create_encrypted(NewDataset { name: HOME.into(), kind, properties }, encryption).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        filled(engine, &files, "file", 8).await;
    });
    assert_eq!(written.of(Content::Data, Redundancy::First), FILE_BYTES);
    assert_eq!(written.of(Content::Data, Redundancy::Parity), FILE_BYTES / 2, "one of three columns");
}

#[test]
fn gang_headers_are_metadata() {
    let written = PoolUnderTest::new(7, &[(Class::Normal, Layout::Single, 1)]).run(async |engine| {
        engine.cache.blocks().force_gangs_above(Some(4096)).unwrap();
        let files = file_system(engine, HOME, &[]).await;
        filled(engine, &files, "file", 9).await;
    });
    assert_eq!(written.of(Content::Data, Redundancy::First), FILE_BYTES, "the pieces of the records");
    assert_eq!(written.of(Content::Data, Redundancy::Copy), 0, "headers have copies, records have none");
    // A record of four pieces of 4 KiB has a header with three pointers, one of them to a second gang.
    let headers = FILE_BYTES / RECORD_BYTES as u64 * 2 * 512;
    assert!(written.of(Content::Metadata, Redundancy::First) > headers);
}

#[test]
fn clones_write_no_data() {
    let written = PoolUnderTest::new(8, &[(Class::Normal, Layout::Mirror, 2)]).run(async |engine| {
        let files = file_system(engine, HOME, &[]).await;
        let source = filled(engine, &files, "source", 10).await;
        let target = create(&files, "target").await;
        let at = |file| FilePosition { file, offset: 0 };
        let rq = &Request::internal("test");
        let cred = &Cred::root();
        let copied = files.contents().copy_range(rq, cred, &files, at(source), at(target), FILE_BYTES).await.unwrap();
        assert_eq!(copied, FILE_BYTES);
        engine.sync().await.unwrap();
    });
    assert_eq!(written.of(Content::Data, Redundancy::First), FILE_BYTES, "the source");
}

#[test]
fn repairs_of_wrong_bytes() {
    let pool = PoolUnderTest::new(9, &[(Class::Normal, Layout::Mirror, 2)]);
    let disk = pool.world.disks()[0].clone();
    let written = pool.run(async |engine| {
        let files = file_system(engine, HOME, &[]).await;
        let file = filled(engine, &files, "file", 11).await;
        engine.cache.clear();
        // The labels at both ends stay intact.
        disk.lay(Fault::Unreadable { offset: 4 << 20, len: 56 << 20 });
        let rq = &Request::internal("test");
        for _ in 0..4 {
            let found = files.contents().read(rq, file, 0, FILE_BYTES as usize).await.unwrap();
            assert_eq!(found, noise(FILE_BYTES as usize, 11));
            engine.cache.clear();
        }
    });
    let repaired = written.of_content(Content::Repair);
    assert!(repaired >= RECORD_BYTES as u64 && repaired.is_multiple_of(512), "{repaired} bytes were repaired");
    assert_eq!(written.of(Content::Data, Redundancy::First), FILE_BYTES, "repairs are no data");
}
