//! In the simulator: the power fails at every write and flush while devices of a mirror or dRAID vdev are rebuilt, and devices fail
//! meanwhile. The pool is whole each time, is carried to the end, and each device of the mirror alone has everything.

use crate::cuts::is_cut;
use crate::work;
use std::path::Path;
use std::sync::Arc;
use weir_engine::create::DraidRequest;
use weir_engine::{AttachRequest, CreateOptions, DirtyLimits, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{OfflineMode, rebuild};
use weir_format::dsl::RebuildPhys;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError, VdevConfig};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";
const EIO: i32 = 5;

/// The vdev that is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Two devices, and a blank one.
    Mirror,
    /// Five devices with one parity and two distributed spares, and a blank device.
    Draid,
}

impl Shape {
    fn layout(self) -> Layout {
        match self {
            Shape::Mirror => Layout::Mirror,
            Shape::Draid => Layout::Draid(DraidRequest::parse("draid1:2d:2s").unwrap()),
        }
    }

    fn devices(self) -> usize {
        match self {
            Shape::Mirror => 2,
            Shape::Draid => 5,
        }
    }
}

fn new(index: usize) -> NewLeaf {
    NewLeaf { path: format!("{SEARCH}/d{index}").into(), is_file: true }
}

fn open() -> OpenOptions {
    OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::new(vec![SEARCH.into()], "tank") }
}

/// Imports with short passes, each of which records its position.
async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    let mut options = ImportOptions::new(open());
    options.dirty = DirtyLimits { rebuilt_bytes: 64 << 10, ..DirtyLimits::default() };
    Engine::import(machine, &options).await
}

fn leaves(engine: &Engine) -> Vec<VdevConfig> {
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    root.leaves().into_iter().cloned().collect()
}

fn guid(engine: &Engine, index: usize) -> u64 {
    let path = format!("{SEARCH}/d{index}");
    leaves(engine).iter().find(|leaf| leaf.path.as_deref() == Some(&path)).unwrap().guid
}

fn world(shape: Shape, seed: u64) -> (SimWorld, Vec<Arc<SimDisk>>) {
    let world = SimWorld::new(seed);
    let mib = if shape == Shape::Mirror { 64 } else { 100 };
    let disk = |i| world.add_disk(format!("{SEARCH}/d{i}"), mib << 20, 512, Timing::Nvme);
    let disks = (0..=shape.devices()).map(disk).collect();
    (world, disks)
}

async fn write(engine: &Engine, blocks: u64, seed: u64) -> Result<(), PoolError> {
    let written = work::write_object(engine, "tank", blocks, seed).await;
    written.map(drop).map_err(|error| PoolError::Refused { what: error.to_string() })
}

async fn prepare(machine: &Machine, shape: Shape) -> Result<(), PoolError> {
    let top = NewTopLevelVdev {
        class: Class::Normal,
        layout: shape.layout(),
        leaves: (0..shape.devices()).map(new).collect(),
    };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    let engine = Engine::create(machine, &options).await?;
    for seed in 0..3 {
        write(&engine, 12, seed).await?;
        engine.sync().await?;
    }
    engine.stop().await
}

async fn attach(engine: &Arc<Engine>, beside: usize, new: NewLeaf, replaces: bool) -> Result<(), PoolError> {
    let device = guid(engine, beside);
    rebuild::attach(engine, &AttachRequest { device, new, replaces, ashift: None, force: true }).await
}

/// Waits for the rebuild, while blocks are written and freed; then scrubs.
async fn rebuilt(engine: &Engine) -> Result<(), PoolError> {
    let mut seed = 10;
    while engine.rebuilds().is_running() && !engine.events.is_ended() && seed < 16 {
        write(engine, 3, seed).await?;
        engine.sync().await?;
        seed += 1;
    }
    engine.rebuilds().wait().await?;
    let record = record(engine).await?;
    assert!(record.rebuilt_bytes > 0, "nothing was rebuilt: {record:?}");
    engine.scrubs().run(&Default::default(), &mut |_| true).await?;
    engine.spares().finish_replacing().await
}

/// The record of the last rebuild.
async fn record(engine: &Engine) -> Result<RebuildPhys, PoolError> {
    let rq = &Request::internal("test");
    let state = engine.synced().state(rq).await?;
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    let mos = weir_pool::mos::Mos { set: state.mos.clone() };
    Ok(weir_pool::rebuild::of_top(rq, &mos, &root.children[0]).await?.unwrap_or_default())
}

async fn change(machine: &Machine, shape: Shape) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    if shape == Shape::Mirror {
        attach(&engine, 1, new(2), true).await?;
        rebuilt(&engine).await?;
        attach(&engine, 0, new(1), false).await?;
        rebuilt(&engine).await?;
        engine.vdevs().detach(guid(&engine, 0)).await?;
        return engine.stop().await;
    }
    let failed = crate::rebuild::first_group(2, 1, 2, 5).0[0];
    engine.vdevs().offline(guid(&engine, failed), OfflineMode::Faulted).await?;
    let spare = NewLeaf { path: "draid1-0-0".into(), is_file: false };
    attach(&engine, failed, spare, true).await?;
    rebuilt(&engine).await?;
    attach(&engine, failed, new(5), true).await?;
    rebuilt(&engine).await?;
    engine.stop().await
}

/// Carries a pool to the end of what the cut interrupted. Returns the indices of the devices that it has.
async fn finish(machine: &Machine, shape: Shape) -> Vec<usize> {
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
    let engine = import(machine).await.unwrap();
    engine.rebuilds().wait().await.unwrap();
    engine.devices().clear(None).await.unwrap();
    engine.scrubs().start_resilver_if_needed().await.unwrap();
    engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap();
    engine.spares().finish_replacing().await.unwrap();
    let dtls = engine.cache.blocks().tree().dtls();
    assert!(dtls.is_empty(), "{dtls:?}");
    let health = engine.cache.blocks().tree().health();
    assert!(health.iter().all(|leaf| leaf.counts.checksum_errors == 0), "{health:?}");
    let paths: Vec<_> = leaves(&engine).into_iter().filter_map(|leaf| leaf.path).collect();
    engine.stop().await.unwrap();
    (0..=shape.devices()).filter(|i| paths.contains(&format!("{SEARCH}/d{i}"))).collect()
}

/// Demands that all devices of a mirror but one can be lost, of dRAID any one.
async fn assert_redundant(machine: &Machine, shape: Shape, disks: &[Arc<SimDisk>], devices: &[usize]) {
    for one in devices {
        let goes = |i: &&usize| (*i != one) == (shape == Shape::Mirror);
        let gone: Vec<_> = devices.iter().filter(goes).map(|i| (&disks[*i], disks[*i].lay(Fault::Gone))).collect();
        work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
        gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
    }
}

/// Cuts at change `at`, counted from the beginning of the changes; `None` if there are fewer.
fn cut(shape: Shape, seed: u64, at: u64) -> Option<()> {
    let (world, disks) = world(shape, seed);
    let machine = world.machine();
    world.run(prepare(&machine, shape)).unwrap().unwrap();
    world.cut_after(at);
    let run = world.run(change(&machine, shape));
    world.cancel_cut();
    let is_cut = is_cut(run, seed, at);
    let machine = world.machine();
    let judged = world.run(async {
        let devices = finish(&machine, shape).await;
        assert!(!devices.is_empty(), "no device is left");
        assert_redundant(&machine, shape, &disks, &devices).await;
    });
    judged.unwrap_or_else(|error| panic!("seed {seed} cut {at}: {error}"));
    is_cut.then_some(())
}

/// `WEIR_SIM_CUT_STEP=1` cuts at each change.
fn cut_all(shape: Shape, seed: u64, usual: u64) {
    let step = std::env::var("WEIR_SIM_CUT_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(usual);
    let mut at = 1;
    while cut(shape, seed + at, at).is_some() {
        at += step;
    }
    assert!(at > 300, "{at} changes");
}

#[test]
fn any_cut_while_a_mirror_is_rebuilt_leaves_a_whole_pool() {
    cut_all(Shape::Mirror, 71_000, 211);
}

#[test]
fn any_cut_while_a_draid_vdev_is_rebuilt_leaves_a_whole_pool() {
    cut_all(Shape::Draid, 81_000, 701);
}

/// While device 2 is rebuilt in the place of device 1, device `failing` fails, then the power. Returns whether the rebuild was
/// completed without an error.
fn fault(seed: u64, failing: usize, fault: &Fault) -> bool {
    let (world, disks) = world(Shape::Mirror, seed);
    let machine = world.machine();
    world.run(prepare(&machine, Shape::Mirror)).unwrap().unwrap();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        attach(&engine, 1, new(2), true).await.unwrap();
        let laid = disks[failing].lay(fault.clone());
        let mut whole = false;
        // Writes that fail are not acknowledged.
        for seed in 20..24 {
            let _refused = write(&engine, 6, seed).await;
            let _failed = engine.sync().await;
        }
        if engine.rebuilds().wait().await.is_ok() {
            let record = record(&engine).await.unwrap();
            whole = record.errors == 0 && engine.cache.blocks().tree().dtls().is_empty();
        }
        disks[failing].lift(laid);
        whole
    });
    let is_whole = run.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    world.power_failure();
    let machine = world.machine();
    let judged = world.run(async {
        let devices = finish(&machine, Shape::Mirror).await;
        assert_redundant(&machine, Shape::Mirror, &disks, &devices).await;
    });
    judged.unwrap_or_else(|error| panic!("seed {seed}, {fault:?} of device {failing}: {error}"));
    is_whole
}

/// Device 1 is replaced, 2 is the new one; device 0 makes good for the failing one. A target that fails does not count as rebuilt.
#[test]
fn a_device_that_fails_while_another_is_rebuilt_loses_nothing() {
    let faults = [
        Fault::FailWrites { errno: EIO },
        Fault::FailFlushes { errno: EIO },
        Fault::Gone,
        Fault::FailNth { nth: 7, errno: EIO },
    ];
    let mut seed = 91_000;
    for failing in [0, 1, 2] {
        for one in &faults {
            seed += 1;
            let is_whole = fault(seed, failing, one);
            // One operation may be a write of a label.
            let is_permanent = !matches!(one, Fault::FailNth { .. });
            assert!(!(is_whole && failing == 2 && is_permanent), "{one:?}: the new device counts as rebuilt");
        }
    }
}

/// The bug that these tests must find: ranges are left out, and the DTL is excised nevertheless.
#[test]
fn canary_a_rebuild_that_skips_ranges_is_found() {
    let (world, disks) = world(Shape::Mirror, 99_000);
    let machine = world.machine();
    world.run(prepare(&machine, Shape::Mirror)).unwrap().unwrap();
    let is_found = world.run(async {
        let engine = import(&machine).await.unwrap();
        attach(&engine, 1, new(2), true).await.unwrap();
        engine.cache.blocks().tree().plant(weir_blocks::vdev::DeviceBug::SkipsResilver);
        engine.rebuilds().wait().await.unwrap();
        engine.stop().await.unwrap();
        let gone = [0, 1].map(|i| (&disks[i], disks[i].lay(Fault::Gone)));
        let is_found = match Pool::open(&machine, &open()).await {
            Err(_) => true,
            Ok(pool) => {
                let report = weir_pool::verify::verify_pool(&pool, &Request::internal("test")).await.unwrap();
                !report.unreadable.is_empty()
            }
        };
        gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
        is_found
    });
    assert!(is_found.unwrap(), "blocks are missing, and no one noticed");
    // The scrub that follows repairs them.
    let devices = world.run(async {
        let engine = import(&machine).await.unwrap();
        engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap();
        engine.spares().finish_replacing().await.unwrap();
        engine.stop().await.unwrap();
        assert_redundant(&machine, Shape::Mirror, &disks, &[0, 2]).await;
    });
    devices.unwrap();
}
