#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use super::*;
use weir_files::{Cred, New, NewKind};
use weir_objects::dsl::change::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_pool::config::Class;
use weir_pool::{CreateOptions, Layout, NewLeaf, NewTop};
use weir_sim::{SimWorld, Timing};

/// A data set that is destroyed leaves its number to the next. What led to it leads nowhere then.
#[test]
fn numbers_of_the_destroyed_lead_to_nobody_else() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 64 << 20, 512, Timing::SataSsd);
    let machine = world.machine();
    let run = world.run(async {
        let rq = &Request::internal("test");
        let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
        let top = NewTop { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
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
        let front = Front::open(rq, &Shown::Written(engine.clone())).await.unwrap();
        let tree = &front.tree;
        let a = tree.lookup(rq, tree.root(), b"a").await.unwrap();
        let id = tree.member(a).unwrap().id;
        let number = async |name| engine.dsl(rq).await.unwrap().find(rq, name).await.unwrap().objset();
        let freed = number("tank/a").await;
        let old_snapshot = number("tank@s").await;
        let snapshots = tree.lookup(rq, tree.root(), b".zfs").await.unwrap();
        let snapshots = tree.lookup(rq, snapshots, b"snapshot").await.unwrap();
        let old = tree.lookup(rq, snapshots, b"s").await.unwrap();
        assert!(tree.lookup(rq, old, b"new").await.is_err());
        let volume = async || front.volumes.open(rq, "tank/vol@s").await.unwrap().read(rq, 0, 4).await.unwrap();
        assert_eq!(volume().await, [0; 4][..]);

        engine.destroy_dataset("tank/a".into()).await.unwrap();
        make("tank/b", Kind::FileSystem(FileSystemSpec::default())).await;
        assert_eq!(number("tank/b").await, freed, "the number is another's now");
        front.renew(rq).await.unwrap();
        assert_eq!(tree.branch_by_id(id), None);
        assert!(tree.attributes(rq, a).await.is_err());
        assert!(tree.lookup(rq, tree.root(), b"b").await.unwrap() != a);

        // Snapshots that are made anew by their names.
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
        front.renew(rq).await.unwrap();
        assert!(tree.attributes(rq, old).await.is_err());
        let again = tree.lookup(rq, snapshots, b"s").await.unwrap();
        tree.lookup(rq, again, b"new").await.unwrap();
        assert_eq!(volume().await, b"new!"[..]);
        engine.export().await.unwrap();
    });
    run.unwrap();
}
