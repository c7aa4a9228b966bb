#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use crate::exports::{Exports, OpenPool};
use futures_util::future::join;
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_front::{BlockError, BlockExports};
use weir_machine::Request;
use weir_pool::config::Class;
use weir_sim::{SimWorld, Timing};

#[test]
fn a_device_keeps_its_identity_and_reports_its_new_size() {
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
        for name in ["tank/a", "tank/b"] {
            let kind = Kind::Volume(VolumeSpec { size_bytes: 1 << 20, block_bytes: 4096 });
            engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await.unwrap();
        }
        let exports = Exports::open(rq, &OpenPool::Engine(engine.clone())).await.unwrap();
        let open = |name| exports.volumes.open(rq, name);
        let a = open("tank/a").await.unwrap();
        let again = open("tank/a").await.unwrap();
        let b = open("tank/b").await.unwrap();
        assert!(a.id() == again.id() && a.id() != b.id());
        assert!(matches!(open("tank/c").await, Err(BlockError::NotFound)));
        let grow = async { engine.volume(rq, "tank/a").await.unwrap().resize(rq, 2 << 20).await.unwrap() };
        let (seen, ()) = join(a.resized(1 << 20), grow).await;
        assert_eq!((seen, a.size_bytes(), b.size_bytes()), (2 << 20, 2 << 20, 1 << 20));
        assert_eq!(a.resized(1 << 20).await, 2 << 20, "a change before the call is seen");
        a.write(rq, 0, vec![7; 8192].into(), true).await.unwrap();
        a.unmap(rq, 1, 8191, true).await.unwrap();
        let read = a.read(rq, 0, 8192).await.unwrap();
        assert!(read[..4096] == [7; 4096] && read[4096..] == [0; 4096], "only whole blocks are unmapped");
        drop((a, again, b));
        engine.export().await.unwrap();
    });
    run.unwrap();
}
