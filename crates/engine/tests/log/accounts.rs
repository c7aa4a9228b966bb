//! The accounts of a pool: the bytes by source are the bytes answered, and the bytes by cause are the bytes that the
//! devices wrote, over every layout.

use crate::world::{self, Shape, noise};
use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{Engine, Layout};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::accounts::{Content, DeviceBytes, Redundancy};
use weir_machine::{Accounts, Operation, Protocol, Request, Source};
use weir_sim::SimWorld;

const LAYOUTS: [(Layout, usize, bool); 7] = [
    (Layout::Single, 1, false),
    (Layout::Single, 1, true),
    (Layout::Mirror, 3, false),
    (Layout::Raidz(1), 3, false),
    (Layout::Raidz(1), 4, true),
    (Layout::Raidz(2), 5, false),
    (Layout::Raidz(3), 6, false),
];
/// Bytes of a file: four records, the third of which is a hole, and a part of a fifth.
const FILE_BYTES: usize = 4 * RECORD_BYTES + 1000;
pub const RECORD_BYTES: usize = 16 << 10;

fn shapes() -> impl Iterator<Item = Shape> {
    LAYOUTS.into_iter().map(|(layout, devices, log)| Shape { layout, devices, log })
}

/// Bytes of all writes that were submitted to the devices.
pub fn device_bytes(world: &SimWorld) -> u64 {
    world.disks().iter().map(|disk| disk.stats().write_bytes).sum()
}

async fn file_system(engine: &Arc<Engine>, name: &str, copies: u64) -> Arc<FileSystem> {
    let properties = [("recordsize", RECORD_BYTES as u64), ("copies", copies)];
    let properties = properties.map(|(name, value)| (name.to_owned(), Value::Number(value))).to_vec();
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.into(), kind, properties }).await.unwrap();
    engine.file_system(&Request::internal("test"), name).await.unwrap()
}

/// A client of a file system.
struct ClientOf<'a> {
    accounts: &'a Accounts,
    client: weir_machine::Client,
    files: &'a Arc<FileSystem>,
}

impl ClientOf<'_> {
    async fn create(&self, name: &str) -> ObjectId {
        let rq = self.accounts.begin(&self.client, Operation::Create);
        let new = New::of(NewKind::Regular, 0o600);
        let made =
            self.files.names().create(&rq, &Cred::root(), self.files.root(), name.as_bytes(), &new).await.unwrap();
        self.accounts.record(&rq);
        made.object
    }

    async fn write(&self, file: ObjectId, offset: u64, data: Bytes) {
        let rq = self.accounts.begin(&self.client, Operation::Write);
        let len = data.len() as u64;
        self.files.contents().write(&rq, &Cred::root(), file, WriteAt::Offset(offset), data).await.unwrap();
        assert_eq!(rq.written_bytes(), len);
        assert_eq!((rq.target().dataset, rq.target().object), (self.files.objects().id().0, file.0));
        self.accounts.record(&rq);
    }

    async fn sync(&self, file: ObjectId) {
        let rq = self.accounts.begin(&self.client, Operation::Flush);
        self.files.sync(&rq, Some(file)).await.unwrap();
        self.accounts.record(&rq);
    }

    /// Reads, and returns the bytes by source.
    async fn read(&self, file: ObjectId, offset: u64, len: usize) -> [u64; Source::ALL.len()] {
        let rq = self.accounts.begin(&self.client, Operation::Read);
        let bytes = self.files.contents().read(&rq, file, offset, len).await.unwrap();
        let sources = Source::ALL.map(|source| rq.answered_bytes(source));
        let answered = bytes.len() as u64;
        assert_eq!(sources.iter().sum::<u64>(), answered, "at {offset}, {len} bytes: {sources:?}");
        self.accounts.record(&rq);
        sources
    }
}

/// Writes, commits and reads as two clients in two file systems.
async fn history(engine: &Arc<Engine>, shape: Shape) {
    let accounts = engine.cache.accounts();
    let plain = file_system(engine, "tank/plain", 1).await;
    let double = file_system(engine, "tank/double", 2).await;
    engine.sync().await.unwrap();
    let client = |protocol, name, files| ClientOf { accounts, client: accounts.client(protocol, name), files };
    let alice = client(Protocol::Nfs3, "10.0.0.1", &plain);
    let bob = client(Protocol::Fuse, "uid 7", &double);
    let mut known = Vec::new();
    for (seed, who) in [(1, &alice), (2, &bob)] {
        let file = who.create("file").await;
        who.write(file, 0, noise(2 * RECORD_BYTES, seed)).await;
        who.write(file, 3 * RECORD_BYTES as u64, noise(RECORD_BYTES + 1000, seed)).await;
        assert_eq!(accounts.unstable_bytes(), (3 * RECORD_BYTES + 1000) as u64, "{shape:?}");
        let sources = who.read(file, 100, FILE_BYTES).await;
        let expected = (FILE_BYTES - 100 - RECORD_BYTES, RECORD_BYTES);
        let found = (sources[Source::Dirty as usize] as usize, sources[Source::Hole as usize] as usize);
        assert_eq!(found, expected, "{shape:?}");
        if seed == 1 {
            // The first block of a log is stable after a txg; the second commit writes it.
            who.sync(file).await;
            who.write(file, 0, noise(2 * RECORD_BYTES, seed)).await;
            assert_eq!(accounts.unstable_bytes(), 2 * RECORD_BYTES as u64, "{shape:?}");
            who.sync(file).await;
            assert_eq!(accounts.unstable_bytes(), 0, "{shape:?}: all is in the log");
        }
        known.push((who, file));
        engine.sync().await.unwrap();
        assert_eq!(accounts.unstable_bytes(), 0, "{shape:?}");
    }
    engine.cache.clear();
    for (who, file) in known {
        let from = |sources: [u64; Source::ALL.len()], source: Source| sources[source as usize];
        let first = who.read(file, 5, 2 * RECORD_BYTES).await;
        assert_eq!(from(first, Source::Disk), 2 * RECORD_BYTES as u64 - 5, "{shape:?}: {first:?}");
        let again = who.read(file, 5, 2 * RECORD_BYTES).await;
        assert_eq!(from(again, Source::Disk), 0, "{shape:?}: {again:?}");
        // Changing a part of a record reads the rest of it, which answers nothing.
        engine.cache.clear();
        who.write(file, 7, Bytes::from_static(b"changed")).await;
        engine.sync().await.unwrap();
    }
}

fn check(shape: Shape, accounts: &Accounts, written: DeviceBytes) {
    let datasets = accounts.datasets();
    let total = |of: fn(&DeviceBytes) -> u64| datasets.iter().map(|row| of(&row.device)).sum::<u64>();
    let labels = written.of_content(Content::Label);
    assert_eq!(total(DeviceBytes::total), written.total(), "{shape:?}: by dataset and client");
    let txgs: u64 = accounts.device_bytes_by_txg().iter().map(|(_, bytes)| bytes.total()).sum();
    assert_eq!(txgs, written.total(), "{shape:?}: by txg");
    let of = |name: &str| datasets.iter().find(|row| row.client == name && row.device.total() > 0).unwrap();
    let [alice, bob] = [of("10.0.0.1"), of("uid 7")];
    let data = |row: &weir_machine::accounts::DatasetTotals, form| row.device.of(Content::Data, form);
    // Records 0, 1, 3 and the rest of the file, of less than 2 KiB; alice's records 0 and 1 again; and record 0.
    for (row, records) in [(alice, 6), (bob, 4)] {
        let stored = records * RECORD_BYTES as u64;
        assert!((stored..stored + 2048).contains(&data(row, Redundancy::First)), "{shape:?}: {row:?}");
    }
    let sides = if shape.layout == Layout::Mirror { shape.devices as u64 } else { 1 };
    let first = data(alice, Redundancy::First);
    assert_eq!(data(alice, Redundancy::Copy), first * (sides - 1), "{shape:?}: the other sides of a mirror");
    let copies = data(bob, Redundancy::First) * (2 * sides - 1);
    assert_eq!(data(bob, Redundancy::Copy), copies, "{shape:?}: copies=2");
    match shape.layout {
        Layout::Raidz(parity) => {
            let data_columns = shape.devices as u64 - u64::from(parity);
            let least = first / data_columns * u64::from(parity);
            assert!(data(alice, Redundancy::Parity) >= least, "{shape:?}: {alice:?}");
        }
        _ => assert_eq!(written.of(Content::Data, Redundancy::Parity), 0),
    }
    // Without a log device, a large write goes to its final place, and its record has no data.
    let logged = if shape.log { 2 * RECORD_BYTES as u64 } else { 4096 };
    assert!(alice.device.of_content(Content::IntentLog) >= logged, "{shape:?}: {alice:?}");
    assert_eq!(bob.device.of_content(Content::IntentLog), 0, "{shape:?}: bob committed nothing");
    assert!(labels > 0 && written.of_content(Content::Metadata) > 0, "{shape:?}");
    assert_eq!(alice.written_bytes, (FILE_BYTES + RECORD_BYTES + 7) as u64, "{shape:?}");
    let answered: u64 =
        [Protocol::Nfs3, Protocol::Fuse].map(|p| accounts.protocol(p).all_answered_bytes()).iter().sum();
    assert_eq!(alice.answered_bytes + bob.answered_bytes, answered, "{shape:?}");
}

#[test]
fn bytes_by_source_and_by_cause_add_up_over_every_layout() {
    for (seed, shape) in (1..).zip(shapes()) {
        let world = world::world(seed, shape);
        let machine = world.machine();
        let engine = world.run(async move { world::create(&machine, shape).await.unwrap().0 }).unwrap();
        let accounts = engine.cache.accounts().clone();
        world
            .run({
                let engine = engine.clone();
                async move { engine.sync().await.unwrap() }
            })
            .unwrap();
        // What creating the pool wrote is not all in its accounts: labels are written before it is open.
        let before = (device_bytes(&world), accounts.device_bytes().total());
        world
            .run(async move {
                history(&engine, shape).await;
                engine.export().await.unwrap();
            })
            .unwrap();
        let written = accounts.device_bytes();
        assert_eq!(device_bytes(&world) - before.0, written.total() - before.1, "{shape:?}: {written:?}");
        check(shape, &accounts, written);
    }
}
