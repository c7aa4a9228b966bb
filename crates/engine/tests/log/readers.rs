//! Readers of names, properties and scrubs do not wait for the syncer, and the syncer does not wait for them.

use crate::world::{self, HOME, Shape};
use futures_util::FutureExt;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
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

/// The syncer does not wait for the reads of a dataset, or a snapshot, that is being opened.
#[test]
fn txgs_sync_while_a_dataset_is_opened_slowly() {
    let world = world::world(13, SHAPE);
    let machine = world.machine();
    let disk = world.disks().remove(0);
    let run = world.run(async move {
        let (engine, files) = world::create(&machine, SHAPE).await.unwrap();
        let names = ["tank/other".to_owned(), format!("{HOME}@before")];
        let kind = Kind::FileSystem(FileSystemSpec::default());
        engine.create_dataset(NewDataset { name: names[0].clone(), kind, properties: Vec::new() }).await.unwrap();
        engine.snapshot(vec![names[1].clone()], Vec::new()).await.unwrap();
        for name in names {
            engine.cache.clear();
            let slow = disk.lay(Fault::Slow { factor: 10_000 });
            let waited_before = engine.syncer_waited();
            let began = machine.clock.now();
            let opening = machine.tasks.spawn({
                let (engine, clock, name) = (engine.clone(), machine.clock.clone(), name.clone());
                async move {
                    engine.file_system(&Request::internal("test"), &name).await.unwrap();
                    clock.now()
                }
            });
            let first = engine.txgs().last_synced();
            for n in 0..3 {
                world::write(&files, &format!("{n} of {}", name.len())).await;
                engine.sync().await.unwrap();
            }
            assert!(engine.txgs().last_synced() >= Txg(first.0 + 3));
            let read_for = opening.await.unwrap().since(began);
            assert!(read_for.as_secs() >= 1, "the opening of {name} reads for {read_for:?}");
            assert_eq!(engine.syncer_waited(), waited_before, "the syncer waits for the opening of {name}");
            disk.lift(slow);
        }
        engine.export().await.unwrap();
    });
    run.unwrap();
}
