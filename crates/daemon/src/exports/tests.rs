#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use super::*;
use bytes::Bytes;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, Setting, VolumeSpec};
use weir_engine::{CreateOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::FilePosition;
use weir_files::{Cred, New, NewKind, Snapdir, WriteAt};
use weir_front::BlockExports as _;
use weir_machine::Source;
use weir_pool::config::Class;
use weir_sim::{SimWorld, Timing};

/// A destroyed dataset's number is reused by the next one. Nodes of the destroyed dataset must not resolve to the new
/// one.
#[test]
fn reused_dataset_numbers_do_not_resolve_old_nodes() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let machine = world.machine();
    let run = world.run(async {
        let rq = &Request::internal("test");
        let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
        let mut options = CreateOptions::new("tank", vec![top]);
        options.arc_bytes = 16 << 20;
        let engine = Engine::create(&machine, &options).await.unwrap();
        let make = async |name: &str, kind| {
            let new = NewDataset { name: name.into(), kind, properties: Vec::new() };
            engine.create_dataset(new).await.unwrap();
        };
        let snapshot = async |name: &str| engine.snapshot(vec![name.into()], Vec::new()).await.unwrap();
        let destroy = async |name: &str| engine.destroy_snapshots(vec![name.into()], false).await.unwrap();
        make("tank/a", Kind::FileSystem(FileSystemSpec::default())).await;
        make("tank/vol", Kind::Volume(VolumeSpec { size_bytes: 1 << 20, block_bytes: 4096 })).await;
        for of in ["tank@s", "tank/vol@s"] {
            snapshot(of).await;
        }
        let exports = Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap();
        let tree = &exports.tree;
        let a = tree.lookup(rq, tree.root(), b"a").await.unwrap();
        let id = tree.export_of(a).unwrap().id;
        let number = async |name| engine.synced().dsl(rq).await.unwrap().find(rq, name).await.unwrap().objset();
        let freed = number("tank/a").await;
        let old_snapshot = number("tank@s").await;
        let snapshots = tree.lookup(rq, tree.root(), b".zfs").await.unwrap();
        let snapshots = tree.lookup(rq, snapshots, b"snapshot").await.unwrap();
        let old = tree.lookup(rq, snapshots, b"s").await.unwrap();
        assert!(tree.lookup(rq, old, b"new").await.is_err());
        let volume = async || exports.volumes.open(rq, "tank/vol@s").await.unwrap().read(rq, 0, 4).await.unwrap();
        assert_eq!(volume().await, [0; 4][..]);

        engine.destroy_dataset("tank/a".into()).await.unwrap();
        make("tank/b", Kind::FileSystem(FileSystemSpec::default())).await;
        assert_eq!(number("tank/b").await, freed, "the number was reused");
        let mut applied = exports.shares.changes();
        let before = *applied.borrow_and_update();
        exports.renew(rq).await.unwrap();
        assert_eq!(*applied.borrow_and_update(), before + 1, "one signal for those who configure targets");
        exports.renew(rq).await.unwrap();
        assert!(!applied.has_changed().unwrap(), "nothing changed");
        assert_eq!(tree.branch_by_id(id), None);
        assert!(tree.attributes(rq, a).await.is_err());
        assert!(tree.lookup(rq, tree.root(), b"b").await.unwrap() != a);

        // Snapshots are destroyed and created again with the same name.
        for of in ["tank@s", "tank/vol@s"] {
            destroy(of).await;
        }
        let files = engine.file_system(rq, "tank").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        files.create(rq, &Cred::root(), files.root(), b"new", &new).await.unwrap();
        engine.volume(rq, "tank/vol").await.unwrap().write(rq, 0, Bytes::from_static(b"new!"), true).await.unwrap();
        for of in ["tank@s", "tank/vol@s"] {
            snapshot(of).await;
        }
        assert_eq!(number("tank@s").await, old_snapshot);
        exports.renew(rq).await.unwrap();
        assert!(tree.attributes(rq, old).await.is_err());
        let again = tree.lookup(rq, snapshots, b"s").await.unwrap();
        tree.lookup(rq, again, b"new").await.unwrap();
        assert_eq!(volume().await, b"new!"[..]);
        engine.export().await.unwrap();
    });
    run.unwrap();
}

/// A pool of one small disk in memory.
async fn pool_of(world: &SimWorld) -> Arc<Engine> {
    let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    options.features.push("longname".into());
    Engine::create(&world.machine(), &options).await.unwrap()
}

/// An open file pins its snapshot. An unused snapshot can be destroyed; from then on, even before the exports are
/// renewed, it cannot be read or cloned from, and a new snapshot of the same name is not found in its place.
#[test]
fn snapshots_with_open_files_are_busy() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let run = world.run(async {
        let rq = &Request::internal("test");
        let engine = pool_of(&world).await;
        let files = engine.file_system(rq, "tank").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let cred = Cred::root();
        let file = files.create(rq, &cred, files.root(), b"f", &new).await.unwrap().object;
        files.write(rq, &cred, file, WriteAt::Offset(0), Bytes::from(vec![7; 256 << 10])).await.unwrap();
        engine.snapshot(vec!["tank@s".into()], Vec::new()).await.unwrap();
        files.remove(rq, &cred, files.root(), b"f").await.unwrap();
        let exports = Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap();
        let tree = &exports.tree;
        let mut old = tree.root();
        for name in [&b".zfs"[..], b"snapshot", b"s", b"f"] {
            old = tree.lookup(rq, old, name).await.unwrap();
        }
        let destroy = || engine.destroy_snapshots(vec!["tank@s".into()], false);
        let dir = tree.parent(rq, tree.parent(rq, old).await.unwrap()).await.unwrap();
        let changed = async || tree.attributes(rq, dir).await.unwrap().ctime_ns;
        let before = changed().await;
        exports.renew(rq).await.unwrap();
        assert_eq!(changed().await, before, "no snapshot was created or destroyed");
        tree.hold(rq, old).await.unwrap();
        assert!(destroy().await.unwrap_err().to_string().contains("busy"));
        let read = async || tree.read(rq, old, 0, 4).await.map(|pieces| pieces.concat());
        assert_eq!(read().await.unwrap(), [7; 4]);
        tree.release(rq, old).await.unwrap();

        let snapshot = engine.file_system(rq, "tank@s").await.unwrap();
        let copy = files.create(rq, &cred, files.root(), b"copy", &new).await.unwrap().object;
        destroy().await.unwrap();
        engine.snapshot(vec!["tank@s".into()], Vec::new()).await.unwrap();
        assert!(matches!(read().await, Err(FileError::Stale { .. })));
        assert!(matches!(snapshot.read(rq, file, 0, 4).await, Err(FileError::Stale { .. })));
        let source = FilePosition { file, offset: 0 };
        let copied = files
            .contents()
            .copy_range(rq, &cred, &snapshot, source, FilePosition { file: copy, offset: 0 }, 256 << 10)
            .await;
        assert!(matches!(copied, Err(FileError::Stale { .. })), "the snapshot was destroyed");
        exports.renew(rq).await.unwrap();
        assert!(matches!(read().await, Err(FileError::Stale { .. })));
        assert!(changed().await > before);
        engine.export().await.unwrap();
    });
    run.unwrap();
}

/// An open file system follows property changes, set locally or inherited.
#[test]
fn property_changes_apply_to_open_file_systems() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let run = world.run(async {
        let rq = &Request::internal("test");
        let engine = pool_of(&world).await;
        for name in ["tank/a", "tank/b"] {
            let kind = Kind::FileSystem(FileSystemSpec::default());
            let new = NewDataset { name: name.into(), kind, properties: Vec::new() };
            engine.create_dataset(new).await.unwrap();
        }
        let set = async |name: &str, property: &str, value: u64| {
            let settings = vec![(property.to_owned(), Setting::Set(Value::Number(value)))];
            engine.properties().set_properties(name.into(), settings).await.unwrap();
        };
        let files = engine.file_system(rq, "tank/a").await.unwrap();
        assert_eq!((files.snapdir(), files.name_max()), (Snapdir::Hidden, 255));
        set("tank/a", "snapdir", 1).await;
        set("tank/a", "longname", 1).await;
        assert_eq!((files.snapdir(), files.name_max()), (Snapdir::Visible, 1023));
        let long = "n".repeat(1000);
        let new = New::of(NewKind::Regular, 0o600);
        files.create(rq, &Cred::root(), files.root(), long.as_bytes(), &new).await.unwrap();

        let bytes: Bytes = (0..8192u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        // Uncached data come from the disk, even if written just now.
        let from_disk = async |name: &str, keeps: u64| {
            set("tank/a", "primarycache", keeps).await;
            let file = files.create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.unwrap().object;
            files.write(rq, &Cred::root(), file, WriteAt::Offset(0), bytes.clone()).await.unwrap();
            engine.sync().await.unwrap();
            let reading = Request::internal("test");
            assert_eq!(files.contents().read(&reading, file, 0, 8192).await.unwrap(), bytes);
            reading.read_bytes(Source::Disk) > 0
        };
        assert!(!from_disk("kept", 2).await && from_disk("passing", 1).await && !from_disk("kept again", 2).await);

        let shown = OpenPool::Engine(engine.clone());
        assert_eq!(shown.first_with_off(rq, "setuid").await.unwrap(), None);
        set("tank/b", "setuid", 0).await;
        assert_eq!(shown.first_with_off(rq, "setuid").await.unwrap().as_deref(), Some("tank/b"));

        set("tank/b", "readonly", 1).await;
        assert!(files.is_writable());
        engine.rename("tank/a".into(), "tank/b/a".into()).await.unwrap();
        assert!(!files.is_writable(), "by inheritance");
        engine.export().await.unwrap();
    });
    run.unwrap();
}

/// Every kind of change of datasets leaves the exports that a fresh list gives.
#[test]
fn exports_follow_every_kind_of_change() {
    let world = SimWorld::new(3);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let run = world.run(async {
        let rq = &Request::internal("test");
        let engine = pool_of(&world).await;
        let pool = OpenPool::Engine(engine.clone());
        let exports = Exports::open(rq, &pool).await.unwrap();
        let mut steps = 0;
        let mut check = async |what: &str| {
            exports.renew(rq).await.unwrap();
            let all = datasets(rq, &pool, &DamagedDatasets::default()).await.unwrap();
            let mut wanted = tree_exports(&all);
            wanted.sort_by(|a, b| a.name.cmp(&b.name));
            let mut found = exports.tree.exports();
            found.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(found, wanted, "after {what}");
            let volumes = all.iter().filter(|dataset| dataset.kind == DatasetKind::Volume || dataset.of_volume);
            let mut volumes: Vec<&str> = volumes.map(|dataset| dataset.name.as_str()).collect();
            volumes.sort_unstable();
            assert_eq!(exports.volumes.names(), volumes, "after {what}");
            assert_eq!(engine.changed.take(), Changed::default(), "changes are taken");
            steps += 1;
        };
        let make = async |name: &str, kind| {
            let new = NewDataset { name: name.into(), kind, properties: Vec::new() };
            engine.create_dataset(new).await.unwrap();
        };
        let files = || Kind::FileSystem(FileSystemSpec::default());
        let pair = |a: &str, b: &str| vec![(a.to_owned(), b.to_owned())];
        make("tank/a", files()).await;
        make("tank/a/b", files()).await;
        make("tank/ab", files()).await;
        make("tank/a/vol", Kind::Volume(VolumeSpec { size_bytes: 1 << 20, block_bytes: 4096 })).await;
        check("create").await;
        engine.snapshot(vec!["tank/a@1".into(), "tank/a/b@1".into(), "tank/a/vol@1".into()], Vec::new()).await.unwrap();
        check("snapshot").await;
        engine.clone_snapshot("tank/a/b@1".into(), "tank/clone".into(), Vec::new()).await.unwrap();
        check("clone").await;
        engine.rename("tank/a".into(), "tank/moved".into()).await.unwrap();
        check("rename").await;
        engine.rename_snapshots(pair("tank/moved/vol@1", "2")).await.unwrap();
        check("rename of a snapshot").await;
        engine.promote("tank/clone".into()).await.unwrap();
        check("promote").await;
        engine.rollback("tank/clone".into(), Some("tank/clone@1".into())).await.unwrap();
        check("rollback").await;
        engine.hold(pair("tank/moved@1", "tag")).await.unwrap();
        engine.destroy_snapshots(vec!["tank/moved@1".into()], true).await.unwrap();
        check("deferred destroy").await;
        engine.release(pair("tank/moved@1", "tag")).await.unwrap();
        check("release").await;
        engine.destroy_snapshots(vec!["tank/clone@1".into()], true).await.unwrap();
        check("deferred destroy of a clone's origin").await;
        engine.destroy_dataset("tank/moved/b".into()).await.unwrap();
        check("destroy of the last clone").await;
        engine.destroy_snapshots(vec!["tank/moved/vol@2".into()], false).await.unwrap();
        engine.destroy_dataset("tank/moved/vol".into()).await.unwrap();
        engine.destroy_dataset("tank/moved".into()).await.unwrap();
        check("destroy").await;
        assert_eq!(exports.tree.exports().len(), 3, "the pool, ab and the clone");
        assert_eq!(steps, 12);
        engine.export().await.unwrap();
    });
    run.unwrap();
}
