//! Supervised pools: a device that hangs is taken out of service while redundancy lasts, and a failure beyond redundancy
//! suspends the pool until it is cleared.

use crate::world::{self, Shape};
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::vdev::Deadlines;
use weir_engine::{Engine, Layout, PoolProperty, VdevSetting};
use weir_files::{Cred, FileSystem, New, NewKind};
use weir_machine::{Machine, Request};
use weir_sim::{Fault, SimWorld};

const DEADLINES: Deadlines = Deadlines { slow: Duration::from_secs(2), hang: Duration::from_secs(10) };
const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn shape(layout: Layout, devices: usize) -> Shape {
    Shape { layout, devices, log: false }
}

/// A supervised pool with one synced file.
fn supervised(world: &SimWorld, shape: Shape) -> (Machine, Arc<Engine>, Arc<FileSystem>) {
    supervised_by(world, shape, DEADLINES)
}

fn supervised_by(world: &SimWorld, shape: Shape, deadlines: Deadlines) -> (Machine, Arc<Engine>, Arc<FileSystem>) {
    let machine = world.machine();
    let made = world.run({
        let machine = machine.clone();
        async move {
            let (engine, files) = world::create(&machine, shape).await.unwrap();
            world::write(&files, "before").await;
            weir_engine::supervision::supervise(&engine, deadlines, Arc::new(|why| panic!("{why}"))).await.unwrap();
            engine.sync().await.unwrap();
            (engine, files)
        }
    });
    let (engine, files) = made.unwrap();
    (machine, engine, files)
}

fn classes(engine: &Engine) -> Vec<String> {
    engine.events.after(0).events.iter().map(|event| event.class.clone()).collect()
}

/// Number of devices whose labels say that a device is faulted, as a new import sees it.
async fn faulted(machine: &Machine) -> usize {
    let pool = world::open(machine).await;
    pool.tree.leaves().iter().filter(|leaf| leaf.faulted).count()
}

#[test]
fn b1_a_device_that_hangs_is_taken_out_of_service_and_writes_go_on() {
    for (seed, layout, devices) in [(1, Layout::Mirror, 2), (2, Layout::Raidz(1), 3), (4, Layout::Raidz(2), 5)] {
        let world = world::world(seed, shape(layout, devices));
        let (machine, engine, files) = supervised(&world, shape(layout, devices));
        let disk = world.disks().remove(1);
        let hang = disk.lay(Fault::Hang);
        let begun = world.now_ns();
        let write = {
            let (engine, files) = (engine.clone(), files.clone());
            async move {
                world::make(&files, "while one hangs").await;
                engine.sync().await.unwrap();
                engine.sync().await.unwrap();
            }
        };
        world.run(write).unwrap();
        let waited_s = (world.now_ns() - begun) / 1_000_000_000;
        assert!((8..40).contains(&waited_s), "{layout:?}: the first write waited {waited_s} s");
        let health = engine.cache.blocks().tree().health();
        assert!(health[1].faulted && health[1].counts.slow > 0, "{layout:?}: {health:?}");
        let seen = classes(&engine);
        for class in ["ereport.fs.zfs.delay", "ereport.fs.zfs.deadman", "resource.fs.zfs.statechange"] {
            assert!(seen.iter().any(|c| c == class), "{layout:?}: {class} is not among {seen:?}");
        }
        // From now on nothing waits.
        let begun = world.now_ns();
        let files_later = files.clone();
        world.run(async move { world::make(&files_later, "later").await }).unwrap();
        assert!(world.now_ns() - begun < 1_000_000_000, "{layout:?}");
        assert_eq!(engine.devices().suspended_because(), None, "{layout:?}");
        let refused = world
            .run({
                let engine = engine.clone();
                async move { engine.devices().clear(None).await }
            })
            .unwrap();
        assert!(refused.is_err(), "{layout:?}: operations of the device are still in progress");
        disk.lift(hang);
        world
            .run({
                let machine = machine.clone();
                async move {
                    machine.clock.sleep(Duration::from_secs(5)).await;
                    assert_eq!(faulted(&machine).await, 1, "{layout:?}: the labels say so");
                    engine.devices().clear(None).await.unwrap();
                    assert!(!engine.cache.blocks().tree().health()[1].faulted);
                    engine.sync().await.unwrap();
                    assert_eq!(faulted(&machine).await, 0, "{layout:?}");
                    // What the device missed is in its DTL; a scrub repairs it.
                    engine.scrubs().start().await.unwrap();
                    engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap();
                    assert!(engine.cache.blocks().tree().dtls().is_empty(), "{layout:?}");
                    engine.export().await.unwrap();
                    world::assert_pool_clean(&machine, "after the hang").await;
                }
            })
            .unwrap();
    }
}

/// Slow operations of a device with `slow_io_events=off` are counted, and are no events; those of the one beside it are.
#[test]
fn slow_operations_are_events_unless_the_administrator_says_no() {
    let shape = shape(Layout::Mirror, 2);
    let world = world::world(6, shape);
    let (machine, engine, files) =
        supervised_by(&world, shape, Deadlines { hang: Duration::from_secs(3600), ..DEADLINES });
    let disks = world.disks();
    let work = async move {
        let guids: Vec<u64> = engine.cache.blocks().tree().health().iter().map(|leaf| leaf.guid).collect();
        let set = async |number| {
            let setting = VdevSetting::Number(number);
            engine.vdev_properties().set(guids[1], "slow_io_events".into(), setting).await
        };
        let delays_of = async |disk: usize, name: &str| {
            let before = classes(&engine).len();
            let slow = disks[disk].lay(Fault::Slow { factor: 12_000 });
            world::make(&files, name).await;
            engine.sync().await.unwrap();
            disks[disk].lift(slow);
            machine.clock.sleep(Duration::from_secs(3)).await;
            classes(&engine)[before..].iter().filter(|class| *class == "ereport.fs.zfs.delay").count()
        };
        assert!(set(2).await.is_err());
        set(0).await.unwrap();
        assert_eq!(delays_of(1, "quiet").await, 0);
        let health = engine.cache.blocks().tree().health();
        assert!(health[1].counts.slow > 0, "slow operations are counted");
        assert!(delays_of(0, "beside").await > 0);
        set(1).await.unwrap();
        let health = engine.cache.blocks().tree().health();
        assert!(health.iter().all(|leaf| !leaf.faulted), "{health:?}");
        assert!(delays_of(1, "loud").await > 0);
        engine.stop().await.unwrap();
    };
    world.run(work).unwrap();
}

#[test]
fn a_device_without_redundancy_that_hangs_is_waited_for() {
    let world = world::world(7, shape(Layout::Single, 1));
    let (machine, engine, files) = supervised(&world, shape(Layout::Single, 1));
    let disk = world.disks().remove(0);
    let hang = disk.lay(Fault::Hang);
    let write = {
        let (engine, files) = (engine.clone(), files.clone());
        async move {
            world::write(&files, "late").await;
            engine.sync().await.unwrap();
        }
    };
    let write = machine.tasks.spawn(write);
    let clock = machine.clock.clone();
    let why = world
        .run({
            let engine = engine.clone();
            async move {
                clock.sleep(Duration::from_secs(30)).await;
                engine.devices().suspended_because()
            }
        })
        .unwrap();
    assert!(why.is_some_and(|why| why.contains("does not answer")), "the status says what the pool waits for");
    assert!(classes(&engine).iter().any(|class| class == "ereport.fs.zfs.deadman"));
    disk.lift(hang);
    world
        .run(async move {
            write.await.unwrap();
            machine.clock.sleep(Duration::from_secs(3)).await;
            assert_eq!(engine.devices().suspended_because(), None);
            engine.export().await.unwrap();
            world::assert_pool_clean(&machine, "after the wait").await;
        })
        .unwrap();
}

#[test]
fn b3_a_pool_without_room_below_is_suspended_and_resumes_when_it_is_cleared() {
    for seed in 20..26 {
        let world = world::world(seed, shape(Layout::Single, 1));
        let (machine, engine, files) = supervised(&world, shape(Layout::Single, 1));
        let disk = world.disks().remove(0);
        let full = disk.lay(Fault::FailWrites { errno: ENOSPC });
        let write = {
            let (engine, files) = (engine.clone(), files.clone());
            async move {
                world::write(&files, "no room").await;
                engine.sync().await
            }
        };
        let write = machine.tasks.spawn(write);
        let why = world
            .run({
                let engine = engine.clone();
                let clock = machine.clock.clone();
                async move {
                    clock.sleep(Duration::from_secs(8)).await;
                    engine.devices().suspended_because()
                }
            })
            .unwrap();
        assert!(why.as_deref().is_some_and(|why| why.contains("space")), "seed {seed}: {why:?}");
        assert!(classes(&engine).iter().any(|class| class == "ereport.fs.zfs.io_failure"));
        // Clearing without room suspends the pool again.
        let again = world
            .run({
                let engine = engine.clone();
                let clock = machine.clock.clone();
                async move {
                    engine.devices().clear(None).await.unwrap();
                    clock.sleep(Duration::from_secs(3)).await;
                    engine.devices().suspended_because().is_some()
                }
            })
            .unwrap();
        assert!(again, "seed {seed}");
        disk.lift(full);
        world
            .run(async move {
                engine.devices().clear(None).await.unwrap();
                write.await.unwrap().unwrap();
                assert_eq!(engine.devices().suspended_because(), None);
                let last = engine.txgs().last_synced();
                world::write(&files, "afterwards").await;
                engine.sync().await.unwrap();
                assert!(engine.txgs().last_synced() > last);
                let rq = &Request::internal("test");
                for name in ["before", "no room", "afterwards"] {
                    files.directories().lookup(rq, files.root(), name.as_bytes()).await.unwrap();
                }
                engine.export().await.unwrap();
                world::assert_pool_clean(&machine, "after the room came back").await;
            })
            .unwrap();
    }
}

/// The verdict about a device that had too many errors cannot be recorded while the pool is suspended. `zpool clear` ends it.
#[test]
fn a_device_whose_errors_were_cleared_while_the_pool_was_suspended_stays_healthy() {
    let shape = shape(Layout::Single, 1);
    let world = world::world(26, shape);
    let (machine, engine, files) = supervised(&world, shape);
    let disk = world.disks().remove(0);
    let work = async move {
        let guid = engine.cache.blocks().tree().health()[0].guid;
        for (name, value) in [("io_n", 2), ("io_t", 600)] {
            engine.vdev_properties().set(guid, name.into(), VdevSetting::Number(value)).await.unwrap();
        }
        let full = disk.lay(Fault::FailWrites { errno: ENOSPC });
        for i in 0..40 {
            world::write(&files, &format!("no room {i}")).await;
        }
        let syncing = machine.tasks.spawn({
            let engine = engine.clone();
            async move { engine.sync().await }
        });
        machine.clock.sleep(Duration::from_secs(8)).await;
        assert!(engine.devices().suspended_because().is_some());
        assert!(classes(&engine).iter().any(|class| class == "resource.fs.zfs.statechange"), "there was a verdict");
        disk.lift(full);
        engine.devices().clear(None).await.unwrap();
        syncing.await.unwrap().unwrap();
        machine.clock.sleep(Duration::from_secs(10)).await;
        engine.export().await.unwrap();
        assert!(!world::open(&machine).await.tree.leaves()[0].degraded);
        world::assert_pool_clean(&machine, "after the room came back").await;
    };
    world.run(work).unwrap();
}

/// A device that does not write, or does not answer, with `failmode=continue`: new changes fail at once, what is in the ARC is
/// read, and the pool goes on when it is cleared.
#[test]
fn with_failmode_continue_new_changes_fail_and_reads_go_on() {
    for (seed, fault) in [(31, Fault::FailWrites { errno: ENOSPC }), (32, Fault::Hang)] {
        let world = world::world(seed, shape(Layout::Single, 1));
        let (machine, engine, files) = supervised(&world, shape(Layout::Single, 1));
        let setting = PoolProperty::Number { property: "failmode".to_owned(), number: 1 };
        world
            .run({
                let engine = engine.clone();
                async move {
                    engine.properties().set_on_pool(setting).await.unwrap();
                    engine.sync().await.unwrap();
                }
            })
            .unwrap();
        let disk = world.disks().remove(0);
        let laid = disk.lay(fault.clone());
        let stuck = machine.tasks.spawn({
            let (engine, files) = (engine.clone(), files.clone());
            async move {
                world::write(&files, "in memory").await;
                engine.sync().await
            }
        });
        let (why, refused, read) = world
            .run({
                let (engine, files, clock) = (engine.clone(), files.clone(), machine.clock.clone());
                async move {
                    clock.sleep(Duration::from_secs(30)).await;
                    let rq = &Request::internal("test");
                    let new = New::of(NewKind::Regular, 0o600);
                    let refused = files.names().create(rq, &Cred::root(), files.root(), b"refused", &new).await;
                    let read = files.directories().lookup(rq, files.root(), b"in memory").await;
                    (engine.devices().suspended_because(), refused.is_err(), read.is_ok())
                }
            })
            .unwrap();
        assert!(why.is_some(), "{fault:?}");
        assert!(read && refused, "{fault:?}");
        disk.lift(laid);
        world
            .run(async move {
                // Operations from before have to end first.
                machine.clock.sleep(Duration::from_secs(5)).await;
                engine.devices().clear(None).await.unwrap();
                stuck.await.unwrap().unwrap();
                machine.clock.sleep(Duration::from_secs(3)).await;
                assert_eq!(engine.devices().suspended_because(), None);
                world::write(&files, "afterwards").await;
                engine.export().await.unwrap();
                world::assert_pool_clean(&machine, "after failmode=continue").await;
            })
            .unwrap();
    }
}

/// Lays failing flushes on the first `failing` disks during a txg, then lifts them and clears the pool: the disks dropped
/// writes of that txg, and nothing of it may be missing afterwards.
fn flushes_fail(seed: u64, shape: Shape, failing: usize) {
    let world = world::world(seed, shape);
    let (machine, engine, files) = supervised(&world, shape);
    let disks: Vec<_> = world.disks().into_iter().take(failing).collect();
    let laid: Vec<_> = disks.iter().map(|disk| disk.lay(Fault::FailFlushes { errno: EIO })).collect();
    let write = machine.tasks.spawn({
        let (engine, files) = (engine.clone(), files.clone());
        async move {
            world::write(&files, "not flushed").await;
            engine.sync().await
        }
    });
    let wait = |engine: Arc<Engine>, clear: bool| {
        let clock = machine.clock.clone();
        async move {
            if clear {
                engine.devices().clear(None).await.unwrap();
            }
            clock.sleep(Duration::from_secs(8)).await;
            (engine.devices().suspended_because(), engine.txgs().failure())
        }
    };
    let (why, failure) = world.run(wait(engine.clone(), false)).unwrap();
    assert!(why.is_some() && failure.is_none(), "seed {seed}: {why:?}, {failure:?}");
    // Clearing while flushes still fail suspends the pool again.
    let (why, failure) = world.run(wait(engine.clone(), true)).unwrap();
    assert!(why.is_some() && failure.is_none(), "seed {seed}: {why:?}, {failure:?}");
    disks.iter().zip(laid).for_each(|(disk, laid)| disk.lift(laid));
    world
        .run(async move {
            engine.devices().clear(None).await.unwrap();
            write.await.unwrap().unwrap();
            assert_eq!(engine.devices().suspended_because(), None);
            world::write(&files, "afterwards").await;
            engine.sync().await.unwrap();
            let dtls = engine.cache.blocks().tree().dtls();
            assert!(dtls.is_empty(), "seed {seed}: no device has lost anything: {dtls:?}");
            let rq = &Request::internal("test");
            for name in ["before", "not flushed", "afterwards"] {
                files.directories().lookup(rq, files.root(), name.as_bytes()).await.unwrap();
            }
            engine.export().await.unwrap();
            world::assert_pool_clean(&machine, "after the flushes succeed").await;
        })
        .unwrap();
}

#[test]
fn a_pool_whose_flushes_failed_resumes_and_writes_again_what_the_devices_dropped() {
    for seed in 50..60 {
        flushes_fail(seed, shape(Layout::Single, 1), 1);
        flushes_fail(seed, shape(Layout::Mirror, 2), 2);
        flushes_fail(seed, shape(Layout::Raidz(1), 3), 2);
    }
}

/// Closes a pool whose only disk has had `fault` for `wait`, while a txg is being written: the pool is as before that txg.
fn close_during(seed: u64, fault: Fault, wait: Duration) {
    let world = world::world(seed, shape(Layout::Single, 1));
    let (machine, engine, files) = supervised(&world, shape(Layout::Single, 1));
    let disk = world.disks().remove(0);
    let laid = disk.lay(fault);
    let write = machine.tasks.spawn({
        let (engine, files) = (engine.clone(), files.clone());
        async move {
            world::write(&files, "lost").await;
            engine.sync().await
        }
    });
    let stopped = world
        .run({
            let machine = machine.clone();
            async move {
                machine.clock.sleep(wait).await;
                let stopped = engine.stop().await;
                (stopped.is_err(), write.await.unwrap().is_err())
            }
        })
        .unwrap();
    assert_eq!(stopped, (true, true), "both say that the txg was not written");
    disk.lift(laid);
    world.run(async move { world::assert_pool_clean(&machine, "closed during a fault").await }).unwrap();
}

#[test]
fn a_pool_that_waits_for_a_device_can_be_closed() {
    close_during(41, Fault::Hang, Duration::from_secs(30));
}

#[test]
fn a_suspended_pool_can_be_closed_as_of_its_last_txg() {
    close_during(31, Fault::FailWrites { errno: ENOSPC }, Duration::from_secs(8));
}
