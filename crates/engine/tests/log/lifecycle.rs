//! Several imports of a pool, each of which continues with the log that the previous one left.

use crate::world::{HOME, Shape, assert_pool_clean, create, import, make, noise, world};
use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::Layout;
use weir_files::FilePosition;
use weir_files::{Cred, FileError, FileSystem, New, NewKind, SetAttributes, WriteAt, XattrMode};
use weir_machine::Request;
use weir_zil::needs_replay;

/// A position in a file.
fn at(file: weir_format::ObjectId, offset: u64) -> FilePosition<weir_format::ObjectId> {
    FilePosition { file, offset }
}

const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };

async fn assert_file(files: &Arc<FileSystem>, name: &str) {
    let rq = Request::internal("test");
    let file =
        files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(files.contents().read(&rq, file, 0, 1 << 20).await.unwrap(), name.repeat(1000), "{name}");
}

/// A log without records is reused: its one block begins the next chain, and the first commit waits for no txg.
#[test]
fn a_kept_block_begins_the_next_chain() {
    let world = world(1, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        make(&files, "first").await;
        engine.export().await.unwrap();
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert!(!files.objects().root().header.zil.log.is_hole(), "the block is kept");
        let synced = engine.txgs().last_synced();
        for n in 0..5 {
            make(&files, &format!("second-{n}")).await;
        }
        assert_eq!(engine.txgs().last_synced(), synced, "commits wait for no txg");
    });
    second.unwrap();
    world.power_failure();
    let machine = world.machine();
    let third = world.run(async {
        assert_pool_clean(&machine, "with a log").await;
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert_file(&files, "first").await;
        for n in 0..5 {
            assert_file(&files, &format!("second-{n}")).await;
        }
        assert!(!needs_replay(&files.objects().root().header.zil));
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    third.unwrap();
}

/// A log stays claimed over imports until its file system is opened.
#[test]
fn a_claimed_log_waits_for_its_file_system() {
    let world = world(2, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        make(&files, "early").await;
        engine.sync().await.unwrap();
        make(&files, "late").await;
    });
    first.unwrap();
    world.power_failure();
    for _ in 0..3 {
        let machine = world.machine();
        let idle = world.run(async {
            let engine = import(&machine).await.unwrap();
            engine.sync().await.unwrap();
            engine.export().await.unwrap();
            assert_pool_clean(&machine, "claimed").await;
        });
        idle.unwrap();
        world.power_failure();
    }
    let machine = world.machine();
    let last = world.run(async {
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert_file(&files, "early").await;
        assert_file(&files, "late").await;
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "replayed").await;
    });
    last.unwrap();
}

/// A cloned file is stable when the log is written; its blocks stay allocated although the source file is removed.
#[test]
fn copies_are_replayed() {
    let world = world(5, SHAPE);
    let machine = world.machine();
    let mut data = vec![0; 3 * (128 << 10) + 100];
    weir_sim::Rng::new(5).fill(&mut data);
    let wanted = data.clone();
    let first = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        make(&files, "begun").await;
        let new = New::of(NewKind::Regular, 0o600);
        let source = files.names().create(&rq, &root, files.root(), b"source", &new).await.unwrap().object;
        files.contents().write(&rq, &root, source, WriteAt::Offset(0), Bytes::from(data)).await.unwrap();
        engine.sync().await.unwrap();
        let synced = engine.txgs().last_synced();
        let copy = files.names().create(&rq, &root, files.root(), b"copy", &new).await.unwrap().object;
        files.contents().copy_range(&rq, &root, &files, at(source, 0), at(copy, 0), 1 << 30).await.unwrap();
        files.names().remove(&rq, &root, files.root(), b"source").await.unwrap();
        files.sync(&rq, Some(copy)).await.unwrap();
        assert_eq!(engine.txgs().last_synced(), synced, "the log alone makes it stable");
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        assert_pool_clean(&machine, "with a log").await;
        let engine = import(&machine).await.unwrap();
        assert!(engine.gate.space().saved_bytes >= 3 * (128 << 10), "claimed");
        engine.sync().await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        let copy = files.directories().lookup(&rq, files.root(), b"copy").await.unwrap();
        assert!(files.contents().read(&rq, copy, 0, 1 << 20).await.unwrap() == wanted);
        assert!(files.directories().lookup(&rq, files.root(), b"source").await.is_err());
        engine.sync().await.unwrap();
        assert_eq!(engine.gate.space().saved_bytes, 0, "only the copy refers to the blocks");
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    second.unwrap();
}

/// Blocks beyond the end of the BRT, because the vdev has grown since its creation, can be cloned.
#[test]
fn blocks_in_the_grown_part_of_a_vdev_are_cloned() {
    use weir_format::brt::{BrtVdev, table_name};
    let world = world(15, SHAPE);
    let machine = world.machine();
    let data = noise(1 << 20, 15);
    let run = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let make = async |files: &FileSystem, name: &str| {
            files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object
        };
        let small = make(&files, "small").await;
        files.contents().write(&rq, &root, small, WriteAt::Offset(0), data.slice(..128 << 10)).await.unwrap();
        engine.sync().await.unwrap();
        let copy = make(&files, "copy").await;
        files.contents().copy_range(&rq, &root, &files, at(small, 0), at(copy, 0), 128 << 10).await.unwrap();
        engine.sync().await.unwrap();
        let shrunk = engine.sync_task(|syncing: &mut weir_engine::TxgSync<'_>| {
            Box::pin(async move {
                let mos = syncing.change.mos.clone();
                let rq = syncing.change.rq;
                let tx = syncing.change.tx;
                let directory = weir_format::ObjectId(1);
                let table = weir_dmu::zap::lookup_word(rq, &mos, directory, &table_name(0)).await?;
                let table = weir_format::ObjectId(table.unwrap());
                let dnode = mos.object(rq, table).await?.dnode.clone();
                let header = BrtVdev::decode(dnode.bonus(), dnode.endian).unwrap();
                let bonus = BrtVdev { regions: 0, ..header }.encode(dnode.endian);
                mos.changes().set_bonus(rq, tx, table, dnode.bonus_type, &bonus).await?;
                Ok(header.regions)
            })
        });
        assert!(shrunk.await.unwrap() > 0);
        engine.export().await.unwrap();

        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        let large = make(&files, "large").await;
        files.contents().write(&rq, &root, large, WriteAt::Offset(0), data.clone()).await.unwrap();
        engine.sync().await.unwrap();
        let copy = make(&files, "copy of large").await;
        let copied =
            files.contents().copy_range(&rq, &root, &files, at(large, 0), at(copy, 0), data.len() as u64).await;
        assert_eq!(copied, Ok(data.len() as u64));
        engine.sync().await.unwrap();
        assert!(engine.gate.space().saved_bytes >= data.len() as u64);
        files.names().remove(&rq, &root, files.root(), b"large").await.unwrap();
        engine.sync().await.unwrap();
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "shared").await;
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        assert!(files.contents().read(&rq, copy, 0, data.len()).await.unwrap() == data);
        files.names().remove(&rq, &root, files.root(), b"copy of large").await.unwrap();
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "removed").await;
    });
    run.unwrap();
}

/// Access times are written with the regular txgs, and start no txg of their own.
#[test]
fn access_times_last() {
    let world = world(8, SHAPE);
    let machine = world.machine();
    let run = world.run(async {
        let rq = Request::internal("test");
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        let atime = async |files: &Arc<FileSystem>, name: &str| {
            let file = files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap();
            files.attrs().get(&rq, file).await.unwrap().atime_ns
        };
        make(&files, "one").await;
        make(&files, "two").await;
        machine.clock.sleep(std::time::Duration::from_secs(60)).await;
        let synced = engine.txgs().last_synced();
        assert_file(&files, "one").await;
        assert_eq!(engine.txgs().last_synced(), synced, "no txg of its own");
        machine.clock.sleep(std::time::Duration::from_secs(20)).await;
        assert!(!files.atimes().is_pending(), "stored with the regular txgs");
        assert_file(&files, "two").await;
        let read = (atime(&files, "one").await, atime(&files, "two").await);
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "exported").await;
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        assert_eq!((atime(&files, "one").await, atime(&files, "two").await), read);
        assert!(read.1 - read.0 >= 20_000_000_000);
    });
    run.unwrap();
}

/// Compares the accounting of users and groups with sums over all files.
async fn assert_counted(files: &Arc<FileSystem>) {
    use std::collections::BTreeMap;
    use weir_format::znode::Fuid;
    let rq = Request::internal("test");
    let set = files.objects();
    let mut id = weir_format::ObjectId(0);
    let mut users = BTreeMap::<Fuid, (u64, u64)>::new();
    let mut groups = BTreeMap::<Fuid, (u64, u64)>::new();
    while let Some(next) = set.dnodes().next_object(&rq, weir_format::ObjectId(id.0 + 1)).await.unwrap() {
        id = next;
        let Ok(found) = files.attrs().get(&rq, id).await else { continue };
        let bytes = set.object(&rq, id).await.unwrap().dnode.used_bytes() + 512;
        for (counts, owner) in [(&mut users, found.uid), (&mut groups, found.gid)] {
            let sum = counts.entry(Fuid(owner.into())).or_default();
            *sum = (sum.0 + bytes, sum.1 + 1);
        }
    }
    for (principal, counted) in [(QuotaPrincipal::User, users), (QuotaPrincipal::Group, groups)] {
        let accounts = set.accounting().accounts(&rq, principal).await.unwrap().into_iter();
        let accounts: BTreeMap<_, _> = accounts.map(|(id, a)| (id, (a.used_bytes, a.used_objects))).collect();
        let accounts: BTreeMap<_, _> = accounts.into_iter().filter(|(_, sums)| *sums != (0, 0)).collect();
        assert_eq!(accounts, counted, "{principal:?}");
    }
}

/// Byte and object quotas of users and groups are enforced, and the accounting is right after a replay.
#[test]
fn quotas_are_enforced() {
    let world = world(9, SHAPE);
    let machine = world.machine();
    let mut data = vec![0; 1 << 20];
    weir_sim::Rng::new(9).fill(&mut data);
    let data = Bytes::from(data);
    let first = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        let alice = Cred::new(1000, 100, &[]);
        let bob = Cred::new(1001, 100, &[]);
        files.attrs().set(&rq, &root, files.root(), &SetAttributes::mode(0o777)).await.unwrap();
        let set = async |principal, kind, id, limit| {
            engine.properties().set_quota(HOME.into(), principal, kind, Some(id), limit).await.unwrap();
        };
        set(QuotaPrincipal::User, QuotaKind::Bytes, 1000, 2 << 20).await;
        set(QuotaPrincipal::Group, QuotaKind::Objects, 100, 6).await;
        let new = New::of(NewKind::Regular, 0o600);
        let file = files.names().create(&rq, &alice, files.root(), b"alice", &new).await.unwrap().object;
        for n in 0..2 {
            files.contents().write(&rq, &alice, file, WriteAt::Offset(n << 20), data.clone()).await.unwrap();
            engine.sync().await.unwrap();
        }
        let over = |done: Result<_, FileError>| assert_eq!(done.map(drop).unwrap_err(), FileError::Quota);
        over(files.contents().write(&rq, &alice, file, WriteAt::End, data.clone()).await);
        over(files.contents().write(&rq, &root, file, WriteAt::End, data.clone()).await);
        over(files.names().create(&rq, &alice, files.root(), b"more", &new).await);
        let other = files.names().create(&rq, &bob, files.root(), b"bob", &new).await.unwrap().object;
        files.contents().write(&rq, &bob, other, WriteAt::End, data.clone()).await.unwrap();
        let give = SetAttributes { uid: Some(1000), ..SetAttributes::default() };
        over(files.attrs().set(&rq, &root, other, &give).await);
        let copied = files.contents().copy_range(&rq, &root, &files, at(other, 0), at(file, 4 << 20), 1 << 20).await;
        assert_eq!(copied, Err(FileError::Quota));
        for n in 0..4 {
            files.names().create(&rq, &bob, files.root(), format!("bob-{n}").as_bytes(), &new).await.unwrap();
        }
        engine.sync().await.unwrap();
        over(files.names().create(&rq, &bob, files.root(), b"seventh", &new).await);
        set(QuotaPrincipal::Group, QuotaKind::Objects, 100, 0).await;
        files.names().create(&rq, &bob, files.root(), b"seventh", &new).await.unwrap();
        set(QuotaPrincipal::User, QuotaKind::Bytes, 1000, 3 << 20).await;
        files.contents().write(&rq, &alice, file, WriteAt::End, data.clone()).await.unwrap();
        assert_counted_after(&engine, &files).await;
        // For the replay: files of others grow, shrink, change hands and go.
        files.attrs().set(&rq, &root, other, &SetAttributes { uid: Some(7), gid: Some(8), ..give }).await.unwrap();
        files.contents().write(&rq, &root, other, WriteAt::End, data.slice(..100_000)).await.unwrap();
        files.attrs().set(&rq, &root, file, &SetAttributes::size(100)).await.unwrap();
        files.names().remove(&rq, &root, files.root(), b"bob-1").await.unwrap();
        files.names().create(&rq, &bob, files.root(), b"eighth", &new).await.unwrap();
        files.sync(&rq, None).await.unwrap();
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        assert_counted_after(&engine, &files).await;
        let limits = files.objects().accounting().limits_of(&rq, QuotaPrincipal::User, QuotaKind::Bytes).await.unwrap();
        assert_eq!(limits.into_iter().collect::<Vec<_>>(), [(1000, 3 << 20)]);
        let owner = files.objects().accounting().accounts(&rq, QuotaPrincipal::User).await.unwrap();
        assert_eq!(owner[&weir_format::znode::Fuid(7)].used_objects, 1);
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    second.unwrap();
}

async fn assert_counted_after(engine: &weir_engine::Engine, files: &Arc<FileSystem>) {
    engine.sync().await.unwrap();
    assert_counted(files).await;
}

/// Extended attributes are replayed from their own log records (`TX_SETSAXATTR`), without a txg sync.
#[test]
fn attributes_are_replayed() {
    let world = world(10, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        make(&files, "begun").await;
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        files.xattrs().set(&rq, &root, file, b"user.old", b"gone", XattrMode::Any).await.unwrap();
        engine.sync().await.unwrap();
        let synced = engine.txgs().last_synced();
        files.xattrs().set(&rq, &root, file, b"user.new", &[7; 300], XattrMode::Any).await.unwrap();
        files.xattrs().remove(&rq, &root, file, b"user.old").await.unwrap();
        files.sync(&rq, Some(file)).await.unwrap();
        assert_eq!(engine.txgs().last_synced(), synced, "the log alone makes it stable");
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        assert_pool_clean(&machine, "with a log").await;
        let pool = crate::world::open(&machine).await;
        assert_eq!(pool.features.count("org.openzfs:zilsaxattr"), Some(1));
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        let file = files.directories().lookup(&rq, files.root(), b"begun").await.unwrap();
        assert_eq!(files.xattrs().names(&rq, file).await.unwrap(), [b"user.new".to_vec()]);
        assert_eq!(files.xattrs().get(&rq, file, b"user.new").await.unwrap().unwrap(), vec![7; 300]);
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    second.unwrap();
}

/// Large dnodes hold attributes without a spill block; the feature counts the file systems with large dnodes.
#[test]
fn attributes_fit_large_dnodes() {
    let world = world(11, SHAPE);
    let machine = world.machine();
    let run = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        for (size, slots) in [(0, 1), (1, 2), (4096, 8), (16384, 32)] {
            let value = Setting::Set(Value::Number(size));
            engine.properties().set_properties(HOME.into(), vec![("dnodesize".into(), value)]).await.unwrap();
            for n in 0..20 {
                let name = format!("file-{size}-{n}");
                make(&files, &name).await;
                let file = files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap();
                files.xattrs().set(&rq, &root, file, b"user.note", &[n; 300], XattrMode::Any).await.unwrap();
                engine.sync().await.unwrap();
                let dnode = files.objects().object(&rq, file).await.unwrap().dnode.clone();
                assert_eq!((dnode.slots(), dnode.spill.is_some()), (slots, slots == 1));
                if n % 3 == 0 {
                    files.names().remove(&rq, &root, files.root(), name.as_bytes()).await.unwrap();
                }
            }
        }
        files.sync(&rq, None).await.unwrap();
    });
    run.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq, HOME).await.unwrap();
        for (size, n) in [(0, 1), (1, 2), (4096, 4), (16384, 19)] {
            let name = format!("file-{size}-{n}");
            assert_file(&files, &name).await;
            let file = files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap();
            assert_eq!(files.xattrs().get(&rq, file, b"user.note").await.unwrap().unwrap(), vec![n; 300]);
        }
        assert_counted_after(&engine, &files).await;
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after").await;
        assert_eq!(crate::world::open(&machine).await.features.count("org.zfsonlinux:large_dnode"), Some(1));
    });
    second.unwrap();
}

/// Object numbers of large dnodes are reused, also if the dnode was created and removed within one txg.
#[test]
fn object_numbers_of_large_dnodes_are_reused() {
    let world = world(16, SHAPE);
    let machine = world.machine();
    let run = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        let value = Setting::Set(Value::Number(2048));
        engine.properties().set_properties(HOME.into(), vec![("dnodesize".into(), value)]).await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let mut first = None;
        for n in 0..40 {
            let made = files.names().create(&rq, &root, files.root(), b"made", &new).await.unwrap().object;
            assert_eq!(*first.get_or_insert(made), made, "round {n}");
            if n % 4 == 0 {
                engine.sync().await.unwrap();
            }
            files.names().remove(&rq, &root, files.root(), b"made").await.unwrap();
            engine.sync().await.unwrap();
        }
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "exported").await;
    });
    run.unwrap();
}

/// Counts write records of the log that point to a block, and those that carry their data.
async fn written_in_place(machine: &weir_machine::Machine) -> (usize, usize) {
    let rq = Request::internal("test");
    let pool = crate::world::open(machine).await;
    let files = pool.file_system(&rq, HOME).await.unwrap();
    let mut walk = weir_zil::LogWalk::new(files.objects());
    let mut placed = 0;
    let mut carried = 0;
    while let Some(block) = walk.next(&rq).await.unwrap() {
        for record in block.records().unwrap().iter().filter(|r| r.txg > pool.uberblock.txg) {
            if let weir_format::zil::LogBody::Write(write) = record.body().unwrap() {
                *if write.data.is_none() { &mut placed } else { &mut carried } += 1;
            }
        }
    }
    (placed, carried)
}

/// Large writes go to their final place: the log points there, the sync does not write them again, and a block that is
/// changed again in the same txg is freed.
fn judge_in_place(seed: u64, shape: Shape, throughput: bool) -> (usize, usize) {
    let world = world(seed, shape);
    let machine = world.machine();
    let long = noise((1 << 20) + 5000, seed);
    let wanted = long.clone();
    let small = noise(3000, 1);
    let first = world.run(async {
        let rq = Request::internal("test");
        let root = Cred::root();
        let (engine, files) = create(&machine, shape).await.unwrap();
        if throughput {
            let value = Setting::Set(Value::Number(1));
            engine.properties().set_properties(HOME.into(), vec![("logbias".into(), value)]).await.unwrap();
        }
        make(&files, "begun").await;
        engine.sync().await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let mut made = Vec::new();
        for name in ["long", "small", "gone", "cut"] {
            made.push(files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object);
        }
        let write = async |file, at, data: &Bytes| {
            files.contents().write(&rq, &root, file, WriteAt::Offset(at), data.clone()).await.unwrap();
            files.sync(&rq, Some(file)).await.unwrap();
        };
        // Repeated writes of the whole file and of parts.
        write(made[0], 0, &noise(1 << 20, 77)).await;
        write(made[0], 0, &long).await;
        write(made[1], 0, &small).await;
        write(made[2], 0, &long).await;
        write(made[3], 0, &long).await;
        files.attrs().set(&rq, &root, made[3], &SetAttributes::size(200_000)).await.unwrap();
        files.names().remove(&rq, &root, files.root(), b"gone").await.unwrap();
        files.sync(&rq, None).await.unwrap();
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let rq = Request::internal("test");
        assert_pool_clean(&machine, "with a log").await;
        let counts = written_in_place(&machine).await;
        for round in ["replayed", "again"] {
            let engine = import(&machine).await.unwrap();
            let files = engine.file_system(&rq, HOME).await.unwrap();
            for (name, data) in [("long", &wanted), ("small", &small), ("cut", &wanted.slice(..200_000))] {
                let file = files.directories().lookup(&rq, files.root(), name.as_bytes()).await.unwrap();
                assert!(files.contents().read(&rq, file, 0, 2 << 20).await.unwrap() == data, "{name} {round}");
            }
            // Placed, changed again, and synced.
            let file = files.directories().lookup(&rq, files.root(), b"long").await.unwrap();
            for _ in 0..3 {
                files
                    .contents()
                    .write(&rq, &Cred::root(), file, WriteAt::Offset(0), wanted.slice(..300_000))
                    .await
                    .unwrap();
                files.sync(&rq, Some(file)).await.unwrap();
            }
            engine.export().await.unwrap();
            assert_pool_clean(&machine, round).await;
        }
        counts
    });
    second.unwrap()
}

#[test]
fn large_writes_are_written_once() {
    let (placed, carried) = judge_in_place(12, SHAPE, false);
    assert!(placed >= 27 && carried >= 1, "{placed} in place, {carried} in the log");
    let (placed, carried) = judge_in_place(13, SHAPE, true);
    assert!(placed >= 28 && carried == 0, "throughput: {placed} in place, {carried} in the log");
    let (placed, carried) = judge_in_place(14, Shape { layout: Layout::Single, devices: 1, log: true }, false);
    assert!(placed == 0 && carried > 28, "log device: {placed} in place, {carried} in the log");
}
