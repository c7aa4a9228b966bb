//! Fault management: devices with too many errors are degraded or faulted, in the labels too, until they are cleared.

use crate::world::{self, Shape};
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::vdev::Deadlines;
use weir_engine::{Engine, Layout, VdevSetting};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::Pool;
use weir_pool::status::VdevState;
use weir_sim::{Fault, SimWorld};

const EIO: i32 = 5;
const MIRROR: Shape = Shape { layout: Layout::Mirror, devices: 2, log: false };
const SINGLE: Shape = Shape { layout: Layout::Single, devices: 1, log: false };

async fn supervise(engine: &Arc<Engine>) {
    let deadlines = Deadlines::default();
    weir_engine::supervision::supervise(engine, deadlines, Arc::new(|why| panic!("{why}"))).await.unwrap();
}

/// Classes of the events, and the values of the states that devices changed to.
fn events(engine: &Engine) -> (Vec<String>, Vec<u64>) {
    let events = engine.events.after(0).events;
    let states = events.iter().filter(|event| event.class == "resource.fs.zfs.statechange");
    let states = states.filter_map(|event| event.list.get_u64("vdev_state")).collect();
    (events.iter().map(|event| event.class.clone()).collect(), states)
}

/// State of the leaves, in their order, and the reason in their configuration.
fn leaves(pool: &Pool) -> Vec<(VdevState, Option<String>)> {
    pool.tree.leaves().iter().map(|leaf| (pool.states[&leaf.guid], leaf.aux_state.clone())).collect()
}

async fn at_rest(machine: &Machine) -> Vec<(VdevState, Option<String>)> {
    leaves(&world::open(machine).await)
}

/// Creates a file of 100 KB that cannot be compressed: a mirror reads from each side what is in every other MiB.
async fn make_large(files: &Arc<FileSystem>, name: &str, seed: u64) {
    let rq = Request::internal("test");
    let root = Cred::root();
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &root, files.root(), name.as_bytes(), &new).await.unwrap().object;
    files.contents().write(&rq, &root, made, WriteAt::Offset(0), world::noise(100_000, seed)).await.unwrap();
}

/// A pool with 60 files that nothing has in a cache.
async fn reopened(machine: &Machine, shape: Shape) -> Arc<Engine> {
    let (engine, files) = world::create(machine, shape).await.unwrap();
    for i in 0..60 {
        make_large(&files, &format!("f{i}"), i).await;
    }
    drop(files);
    engine.stop().await.unwrap();
    let engine = world::import(machine).await.unwrap();
    supervise(&engine).await;
    engine
}

/// The files, looked up but not read.
async fn look_up(engine: &Arc<Engine>) -> (Arc<FileSystem>, Vec<ObjectId>) {
    let rq = &Request::internal("test");
    let files = engine.file_system(rq, world::HOME).await.unwrap();
    let mut objects = Vec::new();
    for i in 0..60 {
        let object = files.directories().lookup(rq, files.root(), format!("f{i}").as_bytes()).await.unwrap();
        files.contents().read(rq, object, 0, 0).await.unwrap();
        objects.push(object);
    }
    (files, objects)
}

/// Reads all files; gives the number of those that cannot be read.
async fn read_all((files, objects): &(Arc<FileSystem>, Vec<ObjectId>)) -> usize {
    let rq = &Request::internal("test");
    let mut lost = 0;
    for object in objects {
        lost += usize::from(files.contents().read(rq, *object, 0, 1 << 20).await.is_err());
    }
    lost
}

#[test]
fn a_device_with_too_many_io_errors_is_faulted_until_it_is_cleared() {
    let world = world::world(1, MIRROR);
    let machine = world.machine();
    let disk = world.disks().remove(1);
    world
        .run(async move {
            let (engine, files) = world::create(&machine, MIRROR).await.unwrap();
            supervise(&engine).await;
            let fault = disk.lay(Fault::FailWrites { errno: EIO });
            for i in 0..20 {
                world::make(&files, &format!("f{i}")).await;
            }
            engine.sync().await.unwrap();
            machine.clock.sleep(Duration::from_secs(3)).await;
            engine.sync().await.unwrap();
            let (classes, states) = events(&engine);
            assert!(classes.iter().any(|class| class == "ereport.fs.zfs.io"), "{classes:?}");
            assert_eq!(states, [5], "{classes:?}");
            let failed = [(VdevState::Online, None), (VdevState::Faulted, Some("err_exceeded".to_owned()))];
            disk.lift(fault);
            assert_eq!(at_rest(&machine).await, failed);
            world::make(&files, "meanwhile").await;
            drop(files);
            engine.stop().await.unwrap();
            assert_eq!(at_rest(&machine).await, failed);

            let engine = world::import(&machine).await.unwrap();
            supervise(&engine).await;
            assert!(engine.cache.blocks().tree().health()[1].faulted, "after a restart");
            let guid = engine.cache.blocks().tree().health()[1].guid;
            engine.devices().clear(Some(guid)).await.unwrap();
            assert_eq!(events(&engine).1, [7]);
            assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
            engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap();
            engine.export().await.unwrap();
            assert_eq!(at_rest(&machine).await, [(VdevState::Online, None), (VdevState::Online, None)]);
            world::assert_pool_clean(&machine, "after the device was cleared").await;
        })
        .unwrap();
}

/// The only device of a pool stays in service, whatever its errors.
#[test]
fn a_device_that_the_pool_needs_is_degraded_instead_of_faulted() {
    let world = world::world(2, SINGLE);
    let machine = world.machine();
    let disk = world.disks().remove(0);
    world
        .run(async move {
            let engine = reopened(&machine, SINGLE).await;
            let files = look_up(&engine).await;
            let fault = disk.lay(Fault::Unreadable { offset: 5 << 20, len: 58 << 20 });
            assert!(read_all(&files).await > 10);
            drop(files);
            disk.lift(fault);
            machine.clock.sleep(Duration::from_secs(3)).await;
            engine.sync().await.unwrap();
            assert_eq!(events(&engine).1, [6]);
            let health = engine.cache.blocks().tree().health();
            assert!(health[0].present && !health[0].faulted, "{health:?}");
            engine.stop().await.unwrap();
            assert_eq!(at_rest(&machine).await, [(VdevState::Degraded, Some("err_exceeded".to_owned()))]);
            let engine = world::import(&machine).await.unwrap();
            engine.devices().clear(None).await.unwrap();
            engine.export().await.unwrap();
            assert_eq!(at_rest(&machine).await, [(VdevState::Online, None)]);
        })
        .unwrap();
}

#[test]
fn a_device_with_too_many_checksum_errors_is_degraded_and_used() {
    let world = world::world(3, MIRROR);
    let machine = world.machine();
    let disk = world.disks().remove(0);
    world
        .run(async move {
            let engine = reopened(&machine, MIRROR).await;
            let files = look_up(&engine).await;
            let fault = disk.lay(Fault::Rot { offset: 5 << 20, len: 1 << 30, bits: 1 << 16 });
            assert_eq!(read_all(&files).await, 0);
            drop(files);
            disk.lift(fault);
            machine.clock.sleep(Duration::from_secs(3)).await;
            engine.sync().await.unwrap();
            let (classes, states) = events(&engine);
            assert!(classes.iter().any(|class| class == "ereport.fs.zfs.checksum"), "{classes:?}");
            assert_eq!(states, [6], "{classes:?}");
            assert!(!engine.cache.blocks().tree().health()[0].faulted);
            engine.stop().await.unwrap();
            assert_eq!(at_rest(&machine).await[0], (VdevState::Degraded, Some("err_exceeded".to_owned())));
        })
        .unwrap();
}

/// A scrub repairs what it finds: its checksum errors are counted and shown, and no reason to degrade a device.
#[test]
fn checksum_errors_of_a_scrub_degrade_no_device() {
    let world = world::world(4, MIRROR);
    let machine = world.machine();
    let disk = world.disks().remove(1);
    let run = |world: &SimWorld| {
        world.run(async move {
            let engine = reopened(&machine, MIRROR).await;
            let fault = disk.lay(Fault::Rot { offset: 5 << 20, len: 1 << 30, bits: 1 << 16 });
            engine.scrubs().start().await.unwrap();
            engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap();
            disk.lift(fault);
            machine.clock.sleep(Duration::from_secs(3)).await;
            assert!(engine.cache.blocks().tree().health()[1].counts.checksum_errors > 10);
            assert!(events(&engine).1.is_empty(), "no state changed");
            engine.export().await.unwrap();
        })
    };
    run(&world).unwrap();
}

/// The vdev properties of OpenZFS set the thresholds; a leaf has those of the vdevs above it.
#[test]
fn thresholds_are_those_that_the_administrator_chose() {
    let world = world::world(5, MIRROR);
    let machine = world.machine();
    let disk = world.disks().remove(1);
    world
        .run(async move {
            let (engine, files) = world::create(&machine, MIRROR).await.unwrap();
            let top = weir_pool::VdevConfig::parse(&engine.shown().config.root).unwrap().children[0].guid;
            let zero = || VdevSetting::Number(0);
            let set = |vdev, name: &str, setting| {
                let engine = engine.clone();
                let name = name.to_owned();
                async move { engine.vdev_properties().set(vdev, name, setting).await }
            };
            set(top, "io_n", zero()).await.unwrap();
            assert!(set(top, "io_m", zero()).await.is_err());
            assert!(set(1, "io_n", zero()).await.is_err());
            assert!(set(top, "io_n", VdevSetting::Text("many".into())).await.is_err());
            supervise(&engine).await;
            let fail = async |names: std::ops::Range<u32>| {
                let fault = disk.lay(Fault::FailWrites { errno: EIO });
                for i in names {
                    world::make(&files, &format!("f{i}")).await;
                }
                engine.sync().await.unwrap();
                disk.lift(fault);
                machine.clock.sleep(Duration::from_secs(3)).await;
                engine.sync().await.unwrap();
            };
            fail(0..20).await;
            assert!(events(&engine).1.is_empty(), "0 stands for no diagnosis");
            let leaf = engine.cache.blocks().tree().health()[1].guid;
            set(leaf, "io_n", VdevSetting::Number(3)).await.unwrap();
            fail(20..23).await;
            assert_eq!(events(&engine).1, [5], "the leaf has a value of its own");
            assert_eq!(engine.vdev_properties().threshold(leaf, "io_n").await.unwrap(), Some(3));
            set(leaf, "io_n", VdevSetting::Remove).await.unwrap();
            assert_eq!(engine.vdev_properties().threshold(leaf, "io_n").await.unwrap(), None);
            engine.stop().await.unwrap();
        })
        .unwrap();
}
