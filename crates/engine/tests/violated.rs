//! After a violated invariant nothing is written any more: a release build suspends the pool as of its last complete txg.
//!
//! The record of a violation belongs to the process, so this test has one of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "log/world.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod world;

use std::sync::Arc;
use weir_blocks::vdev::Deadlines;
use weir_engine::Layout;
use weir_machine::{Request, invariant};

#[test]
fn a_violated_invariant_suspends_the_pool_and_nothing_more_is_written() {
    let shape = world::Shape { layout: Layout::Mirror, devices: 2, log: true };
    let world = world::world(4, shape);
    let machine = world.machine();
    let disks = world.disks();
    let changes = || disks.iter().map(|disk| disk.stats().changes()).sum::<u64>();
    let run = async {
        let (engine, files) = world::create(&machine, shape).await.unwrap();
        weir_engine::supervision::supervise(&engine, Deadlines::default(), Arc::new(|why| panic!("{why}")))
            .await
            .unwrap();
        world::make(&files, "before").await;
        engine.sync().await.unwrap();
        let txg = engine.txgs().last_synced();
        // What a violated invariant does in a release build.
        invariant::record("3 of 2 bytes are free".into());
        let written = changes();
        world::write(&files, "after").await;
        let synced = engine.sync().await.unwrap_err().to_string();
        assert!(synced.contains("internal error (3 of 2 bytes are free)"), "{synced}");
        machine.clock.sleep(std::time::Duration::from_secs(3)).await;
        assert_eq!(changes(), written, "neither the intent log nor a txg was written");
        assert_eq!(engine.devices().suspended_because().as_deref(), Some("internal error: 3 of 2 bytes are free"));
        let events = engine.events.after(0).events;
        assert!(events.iter().any(|event| event.class == "ereport.fs.zfs.io_failure"));
        let refused = engine.devices().clear(None).await.unwrap_err().to_string();
        assert!(refused.contains("import the pool again"), "{refused}");
        let root = files.root();
        assert!(
            files.directories().lookup(&Request::internal("test"), root, b"before").await.is_ok(),
            "reading goes on"
        );
        // Closing reports that the last changes are lost, and writes nothing either.
        assert!(engine.stop().await.is_err());
        (txg, written)
    };
    let (txg, written) = world.run(run).unwrap();
    assert_eq!(changes(), written);
    let pool = world.run(world::open(&machine)).unwrap();
    assert!(pool.uberblock.txg <= txg, "the pool is as of its last complete txg");
}
