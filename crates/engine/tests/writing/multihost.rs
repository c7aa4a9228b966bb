//! The property multihost: two machines that share the disks of a pool.

use crate::work;
use futures_util::future::join;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::Tree;
use weir_blocks::vdev::VdevSpec;
use weir_engine::create::PoolValue;
use weir_engine::labels::{Leaf, commit};
use weir_engine::{CreateOptions, Engine, Host, ImportOptions, Layout, NewLeaf, NewTopLevelVdev, PoolProperty};
use weir_format::uberblock::Mmp;
use weir_format::{Txg, Uberblock};
use weir_machine::{Access, Machine};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";
const DISK: &str = "/sim/d0";

/// Takes the pool over by force.
async fn force(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![SEARCH.into()], "tank"));
    options.host = Host { id: 8, name: "here".into() };
    options.force = true;
    Engine::import(machine, &options).await
}

/// Writes the heartbeat of the other machine.
async fn beat(machine: &Machine, leaf: &Leaf, uberblock: &mut Uberblock) {
    uberblock.timestamp_s += 1;
    let spec = VdevSpec::leaf(0, leaf.guid, "d0", Some(leaf.disk.clone())).top(leaf.ashift as u32, 0);
    let tree = Tree::new(vec![spec], &machine.clock).unwrap();
    commit(&tree, std::slice::from_ref(leaf), None, uberblock, Txg(uberblock.txg.0)).await.unwrap();
    machine.clock.sleep(Duration::from_secs(1)).await;
}

#[test]
fn what_another_machine_writes_is_not_taken_by_force() {
    let world = SimWorld::new(5);
    world.add_disk(DISK, 64 << 20, 512, Timing::Nvme);
    let machine = world.machine();
    let run = world.run(async {
        let leaf = NewLeaf { path: DISK.into(), is_file: true };
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
        let mut options = CreateOptions::new("tank", vec![top]);
        options.host = Host { id: 7, name: "there".into() };
        Engine::create(&machine, &options).await.unwrap().stop().await.unwrap();
        let pool = Pool::open(&machine, &OpenOptions::new(vec![SEARCH.into()], "tank")).await.unwrap();
        let vdev = pool.tree.children.first().unwrap();
        let disk = machine.disks.open(Path::new(DISK), Access::ReadWrite).unwrap();
        let guid = vdev.guid;
        let ashift = vdev.ashift;
        let leaf = Leaf { guid, top: 0, ashift, is_log: false, path: DISK.into(), disk };
        let mut uberblock = pool.uberblock.clone();
        // Once a second; after ten times without success it would stop.
        uberblock.mmp = Some(Mmp { delay_ns: 1_000_000_000, config: 10 << 48 | 1000 << 8 | 5 });
        beat(&machine, &leaf, &mut uberblock).await;
        let there = machine.tasks.spawn({
            let machine = machine.clone();
            async move {
                for _ in 0..60 {
                    beat(&machine, &leaf, &mut uberblock).await;
                }
            }
        });
        let error = force(&machine).await.unwrap_err();
        assert!(error.to_string().contains("there is writing to it"), "{error}");
        there.await.unwrap();
        // It is silent: it lost the pool, or its power.
        force(&machine).await.unwrap().export().await.unwrap();
    });
    run.unwrap();
}

const DISKS: usize = 3;

fn world(seed: u64) -> (SimWorld, Vec<Arc<SimDisk>>) {
    let world = SimWorld::new(seed);
    let disks = (0..DISKS).map(|i| world.add_disk(format!("{SEARCH}/d{i}"), 64 << 20, 512, Timing::Nvme)).collect();
    (world, disks)
}

fn host(id: u64) -> Host {
    Host { id, name: format!("host{id}") }
}

/// A pool with the property, which host 7 has.
async fn create(machine: &Machine) -> Arc<Engine> {
    let leaf = |i| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let layout = Layout::Raidz(1);
    let top = NewTopLevelVdev { class: Class::Normal, layout, leaves: (0..DISKS).map(leaf).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.properties = vec![("multihost".into(), PoolValue::Number(1))];
    options.host = host(7);
    Engine::create(machine, &options).await.unwrap()
}

async fn import_as(machine: &Machine, id: u64, force: bool) -> Result<Arc<Engine>, PoolError> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![SEARCH.into()], "tank"));
    options.host = host(id);
    options.force = force;
    Engine::import(machine, &options).await
}

async fn write(engine: &Engine) -> Result<(), PoolError> {
    let written = work::write_object(engine, "tank", 8, 1).await;
    written.map_err(|error| PoolError::Refused { what: error.to_string() })?;
    engine.sync().await
}

/// The pool's newest uberblock has the fields of heartbeats as OpenZFS writes them.
async fn mmp(machine: &Machine) -> Mmp {
    let pool = Pool::open(machine, &OpenOptions::new(vec![SEARCH.into()], "tank")).await.unwrap();
    pool.uberblock.mmp.unwrap()
}

#[test]
fn an_idle_pool_is_seen_to_be_in_use() {
    let (world, _) = world(11);
    let machine = world.machine();
    let run = world.run(async {
        let there = create(&machine).await;
        write(&there).await.unwrap();
        machine.clock.sleep(Duration::from_secs(60)).await;
        let seen = mmp(&machine).await;
        assert_eq!((seen.write_interval_ms(), seen.fail_intervals()), (Some(1000), Some(10)));
        // Three devices share the second.
        assert!((300_000_000..1_000_000_000).contains(&seen.delay_ns), "{}", seen.delay_ns);
        let began = machine.clock.now();
        let error = import_as(&machine, 8, true).await.unwrap_err();
        assert!(error.to_string().contains("host7 is writing to it now"), "{error}");
        assert!(machine.clock.now().since(began) < Duration::from_secs(3), "activity is seen at once");
        write(&there).await.unwrap();
        there.export().await.unwrap();
        // An exported pool is free, and so is one that this host had.
        let began = machine.clock.now();
        let here = import_as(&machine, 8, false).await.unwrap();
        here.stop().await.unwrap();
        let here = import_as(&machine, 8, false).await.unwrap();
        assert!(machine.clock.now().since(began) < Duration::from_secs(1));
        let off = PoolProperty::Number { property: "multihost".into(), number: 0 };
        here.properties().set_on_pool(off).await.unwrap();
        here.stop().await.unwrap();
        assert_eq!(mmp(&machine).await, Mmp::default());
        import_as(&machine, 7, true).await.unwrap().export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    run.unwrap();
}

/// Two hosts find a pool whose host lost its power, within 2 ms. In some histories both have watched it for the same time.
#[test]
fn of_two_hosts_that_take_a_pool_over_one_has_it() {
    let mut taken = 0;
    for seed in 0..16 {
        let (world, _) = world(100 + seed);
        let machine = world.machine();
        world.run(async { write(&*create(&machine).await).await.unwrap() }).unwrap();
        world.power_failure();
        let machine = world.machine();
        let run = world.run(async {
            let error = import_as(&machine, 8, false).await.unwrap_err();
            assert!(error.to_string().contains("-f forces it"), "{error}");
            let began = machine.clock.now();
            let late = async {
                machine.clock.sleep(Duration::from_millis(seed % 3)).await;
                import_as(&machine, 9, true).await
            };
            let both = join(import_as(&machine, 8, true), late).await;
            assert!(machine.clock.now().since(began) >= Duration::from_secs(20));
            let mut won: Vec<Arc<Engine>> = Vec::new();
            for answer in [both.0, both.1] {
                match answer {
                    Ok(engine) => won.push(engine),
                    Err(error) => assert!(error.to_string().contains("is writing to it now"), "{error}"),
                }
            }
            assert!(won.len() <= 1, "seed {seed}: two hosts have the pool");
            for engine in &won {
                write(engine).await.unwrap();
                engine.export().await.unwrap();
            }
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            won.len()
        });
        taken += run.unwrap();
    }
    assert!(taken >= 8, "{taken} of 16");
}

/// A host that cannot write, or whose devices hang, never writes again; another one takes the pool over.
#[test]
fn a_host_that_is_silent_gives_the_pool_up() {
    for (seed, fault) in [(31, Fault::FailWrites { errno: 5 }), (32, Fault::Hang)] {
        let (world, disks) = world(seed);
        let machine = world.machine();
        let run = world.run(async {
            let there = create(&machine).await;
            write(&there).await.unwrap();
            // One device is enough for heartbeats.
            let laid: Vec<_> = disks[1..].iter().map(|disk| disk.lay(fault.clone())).collect();
            machine.clock.sleep(Duration::from_secs(30)).await;
            assert_eq!(there.devices().suspended_because(), None);
            let last = disks[0].lay(fault.clone());
            machine.clock.sleep(Duration::from_secs(12)).await;
            let why = there.devices().suspended_because().unwrap();
            assert!(why.contains("no heartbeat of the property multihost"), "{why}");
            disks[1..].iter().zip(laid).for_each(|(disk, laid)| disk.lift(laid));
            disks[0].lift(last);
            let error = there.devices().clear(None).await.unwrap_err();
            assert!(error.to_string().contains("another host may have imported the pool"), "{error}");
            let here = import_as(&machine, 8, true).await.unwrap();
            write(&here).await.unwrap();
            assert!(write(&there).await.is_err() && there.export().await.is_err());
            write(&here).await.unwrap();
            here.export().await.unwrap();
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
        });
        run.unwrap();
    }
}

#[test]
fn a_host_without_an_id_cannot_have_the_pool() {
    let (world, _) = world(41);
    let machine = world.machine();
    let run = world.run(async {
        create(&machine).await.export().await.unwrap();
        let error = import_as(&machine, 0, true).await.unwrap_err();
        assert!(error.to_string().contains("/etc/hostid"), "{error}");
        let here = import_as(&machine, 8, false).await.unwrap();
        here.export().await.unwrap();
    });
    run.unwrap();
}
