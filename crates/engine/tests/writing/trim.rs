//! Background trim: freed space is discarded on the devices after a while, and nothing else is. The simulated
//! disks fill discarded ranges with noise.

use crate::work;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_dmu::live::SpaceReserve;
use weir_engine::create::PoolValue;
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::ObjectId;
use weir_machine::Request;
use weir_pool::config::Class;
use weir_pool::initialize_trim::LeafActivity;
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";

/// Three disks, and the options to create a RAID-Z pool on them.
fn raidz(seed: u64) -> (SimWorld, Vec<Arc<SimDisk>>, CreateOptions) {
    let world = SimWorld::new(seed);
    let add = |i: usize| world.add_disk(format!("{SEARCH}/d{i}"), 64 << 20, 512, Timing::Nvme);
    let disks = (0..3).map(add).collect();
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Raidz(1), leaves: (0..3).map(leaf).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    (world, disks, options)
}

/// Gives how many discards the disks saw soon, and in the end.
fn discards(autotrim: bool) -> (u64, u64) {
    let (world, disks, mut options) = raidz(3);
    let machine = world.machine();
    options.properties = vec![("autotrim".into(), PoolValue::Number(autotrim.into()))];
    let seen = || disks.iter().map(|disk| disk.stats().discards).sum::<u64>();
    let rq = &Request::internal("test");
    world
        .run(async {
            let engine = Engine::create(&machine, &options).await.unwrap();
            let mut ids = Vec::new();
            for n in 0..12 {
                ids.push(work::write_object(&engine, "tank", 64, n).await.unwrap());
            }
            engine.sync().await.unwrap();
            let set = engine.open_set(rq, "tank", None).await.unwrap();
            for id in ids.iter().step_by(2) {
                let tx = set.begin(rq, 16 << 10, SpaceReserve::NetFree).await.unwrap();
                set.frees().remove(rq, &tx, ObjectId(*id)).await.unwrap();
            }
            engine.sync().await.unwrap();
            let soon = seen();
            for n in 0..40 {
                work::write_object(&engine, "tank", 2, n).await.unwrap();
                engine.sync().await.unwrap();
            }
            engine.export().await.unwrap();
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            (soon, seen())
        })
        .unwrap()
}

#[test]
fn what_was_freed_is_trimmed_in_the_background() {
    let (soon, in_the_end) = discards(true);
    assert_eq!(soon, 0, "what was just freed may be needed by a rewind");
    assert!(in_the_end >= 3, "{in_the_end} discards");
    assert_eq!(discards(false), (0, 0));
}

/// Space being trimmed cannot be allocated; it is never so much that a txg finds no space.
#[test]
fn groups_go_on_while_all_is_trimmed() {
    let world = SimWorld::new(4);
    let disk = world.add_disk(format!("{SEARCH}/d0"), 64 << 20, 512, Timing::Nvme);
    let machine = world.machine();
    let leaf = NewLeaf { path: disk.path().to_owned(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let run = world.run(async {
        let engine = Engine::create(&machine, &CreateOptions::new("tank", vec![top])).await.unwrap();
        work::write_object(&engine, "tank", 64, 1).await.unwrap();
        engine.sync().await.unwrap();
        let before = engine.cache.blocks().vdev_space(0).free_bytes;
        disk.lay(Fault::Slow { factor: 10_000 });
        let trim = machine.tasks.spawn({
            let engine = engine.clone();
            async move { engine.devices().trim().await.unwrap() }
        });
        while disk.stats().discards == 0 {
            machine.clock.sleep(Duration::from_micros(10)).await;
        }
        let left = engine.cache.blocks().vdev_space(0).free_bytes;
        assert!(left < before && left > before / 2, "{left} of {before} bytes can be used");
        work::write_object(&engine, "tank", 64, 2).await.unwrap();
        engine.sync().await.unwrap();
        disk.lift_all();
        assert!(trim.await.unwrap() > before / 2);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    run.unwrap();
}

/// Passes over all devices of a RAID-Z vdev at once, while blocks are written and freed.
#[test]
fn passes_over_single_devices_touch_no_block() {
    let (world, disks, options) = raidz(5);
    let machine = world.machine();
    let done = world.run(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        for n in 0..12 {
            work::write_object(&engine, "tank", 64, n).await.unwrap();
        }
        engine.sync().await.unwrap();
        let leaves: Vec<u64> = engine.cache.blocks().tree().health().iter().map(|leaf| leaf.guid).collect();
        for kind in LeafActivity::ALL {
            weir_engine::initialize_trim::start(&engine, kind, &leaves, 0).await.unwrap();
            let twice = weir_engine::initialize_trim::start(&engine, kind, &leaves[..1], 0).await.unwrap_err();
            assert!(twice.to_string().contains("currently"), "{twice}");
            for n in 0..6 {
                work::write_object(&engine, "tank", 16, n).await.unwrap();
                engine.sync().await.unwrap();
            }
            engine.initialize_trim().wait(kind, &leaves).await.unwrap();
        }
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    done.unwrap();
    assert!(disks.iter().all(|disk| disk.stats().discards > 0), "each device is trimmed");
}
