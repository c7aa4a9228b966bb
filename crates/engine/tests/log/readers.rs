//! Readers of names, properties and scrubs do not wait for the syncer, and the syncer does not wait for them.

use crate::world::{self, HOME, Shape};
use futures_util::FutureExt;
use weir_engine::Layout;
use weir_format::Txg;
use weir_machine::Request;
use weir_sim::Fault;

const SHAPE: Shape = Shape { layout: Layout::Single, devices: 1, log: false };

#[test]
fn readers_are_answered_while_a_txg_cannot_be_written() {
    let world = world::world(11, SHAPE);
    let machine = world.machine();
    let (engine, files) = world.run(async move { world::create(&machine, SHAPE).await.unwrap() }).unwrap();
    let rq = Request::internal("test");
    let read = {
        let engine = engine.clone();
        async move {
            let dsl = engine.synced().dsl(&rq).await.unwrap();
            let found = dsl.find(&rq, HOME).await.map(drop);
            (found.is_ok(), engine.scrubs().progress(&rq).await.unwrap().is_none())
        }
    };
    // What is read is in the cache from now on.
    assert_eq!(world.run(read).unwrap(), (true, true));
    let disk = world.disks().remove(0);
    let hang = disk.lay(Fault::Hang);
    let stuck = {
        let (engine, files) = (engine.clone(), files.clone());
        async move {
            world::write(&files, "file").await;
            engine.sync().await.unwrap();
        }
    };
    let clock = world.machine().clock;
    let done = world.machine().tasks.spawn(stuck);
    let answered = world.run({
        let engine = engine.clone();
        async move {
            clock.sleep(std::time::Duration::from_secs(20)).await;
            let rq = Request::internal("test");
            let dsl = engine.synced().dsl(&rq).await.unwrap();
            dsl.find(&rq, HOME).await.is_ok()
        }
    });
    assert_eq!(answered, Ok(true), "the syncer waits for the disk, the reader does not wait");
    disk.lift(hang);
    world.run(done).unwrap().unwrap();
}

#[test]
fn txgs_sync_while_a_reader_holds_the_state_and_its_blocks_stay() {
    let world = world::world(12, SHAPE);
    let machine = world.machine();
    world
        .run(async move {
            let (engine, files) = world::create(&machine, SHAPE).await.unwrap();
            let rq = &Request::internal("test");
            let held = engine.synced().dsl(rq).await.unwrap();
            let before = held.find(rq, HOME).await.unwrap().phys.clone();
            let first = engine.txgs().last_synced();
            for n in 0..40 {
                world::write(&files, &format!("file{n}")).await;
                engine.sync().await.unwrap();
            }
            assert!(engine.txgs().last_synced() >= Txg(first.0 + 40));
            // The cache has room for little, so this reads the disk.
            engine.cache.clear();
            assert_eq!(held.find(rq, HOME).await.unwrap().phys, before, "the state of its txg");
            let now = engine.synced().dsl(rq).await.unwrap();
            assert_ne!(now.find(rq, HOME).await.unwrap().phys, before, "a new reader gets the new state");
            assert!(engine.synced().dsl(rq).now_or_never().is_some(), "readers of one txg share its state");
            drop((held, now));
            engine.export().await.unwrap();
        })
        .unwrap();
}
