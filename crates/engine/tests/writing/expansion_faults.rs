//! In the simulator: power cuts at any write while a RAID-Z vdev is expanded, and devices that fail meanwhile. Nothing that was
//! synced is lost within redundancy.

use crate::cuts::is_cut;
use crate::work;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_blocks::vdev::DeviceBug;
use weir_engine::expansion;
use weir_engine::scrub::ScanLimits;
use weir_engine::{AttachRequest, CreateOptions, DirtyLimits, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError, VdevConfig};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";
const EIO: i32 = 5;

/// Objects that are synced: number, blocks, seed.
type Stable = Arc<Mutex<Vec<(u64, u64, u64)>>>;

/// A RAID-Z vdev of `count` disks, and one more disk.
#[derive(Clone, Copy)]
struct Shape {
    parity: u8,
    count: usize,
}

fn new(index: usize) -> NewLeaf {
    NewLeaf { path: format!("{SEARCH}/d{index}").into(), is_file: true }
}

fn open() -> OpenOptions {
    OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::new(vec![SEARCH.into()], "tank") }
}

/// Imports the pool; each txg copies at most `copied_bytes`.
async fn import_copying(machine: &Machine, copied_bytes: u64) -> Result<Arc<Engine>, PoolError> {
    let mut options = ImportOptions::new(open());
    options.dirty = DirtyLimits { copied_bytes, ..DirtyLimits::default() };
    Engine::import(machine, &options).await
}

/// Imports the pool; each txg copies at most 1 MiB.
async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    import_copying(machine, 1 << 20).await
}

fn top(engine: &Engine) -> VdevConfig {
    VdevConfig::parse(&engine.shown().config.root).unwrap().children.remove(0)
}

fn world(seed: u64, shape: Shape) -> (SimWorld, Vec<Arc<SimDisk>>) {
    let world = SimWorld::new(seed);
    let disk = |i| world.add_disk(format!("{SEARCH}/d{i}"), 64 << 20, 512, Timing::Nvme);
    let disks = (0..=shape.count).map(disk).collect();
    (world, disks)
}

/// Writes an object and makes it stable.
async fn write(engine: &Engine, stable: &Stable, blocks: u64) -> Result<(), PoolError> {
    let seed = stable.lock().unwrap().len() as u64 + 1;
    let id = work::write_object(engine, "tank", blocks, seed).await;
    let id = id.map_err(|error| PoolError::Refused { what: error.to_string() })?;
    engine.sync().await?;
    stable.lock().unwrap().push((id, blocks, seed));
    Ok(())
}

async fn prepare(machine: &Machine, shape: Shape, stable: &Stable) -> Result<(), PoolError> {
    let layout = Layout::Raidz(shape.parity);
    let top = NewTopLevelVdev { class: Class::Normal, layout, leaves: (0..shape.count).map(new).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    options.features.push("raidz_expansion".into());
    let engine = Engine::create(machine, &options).await?;
    for _ in 0..3 {
        write(&engine, stable, 300).await?;
    }
    engine.stop().await
}

async fn begin(engine: &Arc<Engine>, shape: Shape) -> Result<(), PoolError> {
    let device = top(engine).guid;
    let request = AttachRequest { device, new: new(shape.count), replaces: false, ashift: None, force: true };
    expansion::start(engine, &request).await
}

/// Expands the vdev while objects are written.
async fn change(machine: &Machine, shape: Shape, stable: &Stable, bug: bool) -> Result<(), PoolError> {
    // The bug is that one txg copies beyond what the last uberblock allows.
    let engine = import_copying(machine, if bug { 64 << 20 } else { 1 << 20 }).await?;
    begin(&engine, shape).await?;
    if bug {
        engine.cache.blocks().tree().plant(DeviceBug::OverrunsReflow);
    }
    for _ in 0..4 {
        write(&engine, stable, 30).await?;
    }
    engine.expansions().wait().await?;
    write(&engine, stable, 30).await?;
    engine.stop().await
}

/// All synced objects have their bytes, in a pool that is only read; compares each `step`th block.
async fn assert_contents(machine: &Machine, stable: &Stable, step: usize) {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &open()).await.unwrap();
    let set = pool.object_set(rq, "tank").await.unwrap();
    let stable = stable.lock().unwrap().clone();
    for (id, blocks, seed) in stable {
        let object = set.object(rq, ObjectId(id)).await.unwrap();
        for block in (id % step as u64..blocks).step_by(step) {
            let bytes = set.reader().read_block(rq, &object, block).await.unwrap().unwrap();
            assert!(bytes.as_ref() == work::contents(seed, block), "object {id}, block {block}");
        }
    }
}

/// All is there without any `parity` devices that follow each other.
async fn assert_survives(machine: &Machine, disks: &[Arc<SimDisk>], shape: Shape, stable: &Stable) {
    for first in 0..disks.len() {
        let lost = (0..usize::from(shape.parity)).map(|n| &disks[(first + n) % disks.len()]);
        let gone: Vec<_> = lost.map(|disk| (disk, disk.lay(Fault::Gone))).collect();
        assert_contents(machine, stable, 9).await;
        gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
    }
    assert_contents(machine, stable, 1).await;
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
}

async fn resilver(engine: &Engine) {
    engine.devices().clear(None).await.unwrap();
    engine.scrubs().start_resilver_if_needed().await.unwrap();
    let limits =
        ScanLimits { time: Duration::from_secs(60), bytes: 1 << 20, sorted_blocks: 64, ..ScanLimits::default() };
    engine.scrubs().run(&limits, &mut |_| true).await.unwrap();
}

/// Carries the pool to the end of the expansion.
async fn finish(machine: &Machine, shape: Shape) {
    let engine = import(machine).await.unwrap();
    resilver(&engine).await;
    if top(&engine).children.len() == shape.count {
        begin(&engine, shape).await.unwrap();
    }
    engine.expansions().wait().await.unwrap();
    // The scrub that follows.
    resilver(&engine).await;
    let top = top(&engine);
    assert!(!top.raidz_expanding && top.children.len() == shape.count + 1 && top.raidz_expand_txgs.len() == 1);
    assert!(engine.cache.blocks().tree().dtls().is_empty());
    engine.stop().await.unwrap();
}

/// Cuts at change `at`, counted from the begin of the import; `None` if there are fewer.
fn cut(shape: Shape, seed: u64, at: u64, bug: bool) -> Option<()> {
    let (world, disks) = world(seed, shape);
    let machine = world.machine();
    let stable = Stable::default();
    world.run(prepare(&machine, shape, &stable)).unwrap().unwrap();
    world.cut_after(at);
    let run = world.run(change(&machine, shape, &stable, bug));
    world.cancel_cut();
    let is_cut = is_cut(run, seed, at);
    let machine = world.machine();
    let judged = world.run(async {
        assert_survives(&machine, &disks, shape, &stable).await;
        finish(&machine, shape).await;
        assert_survives(&machine, &disks, shape, &stable).await;
    });
    judged.unwrap_or_else(|error| panic!("seed {seed} cut {at}: {error}"));
    is_cut.then_some(())
}

/// `WEIR_SIM_CUT_STEP=1` cuts at each change.
fn cut_all(shape: Shape, seed: u64, usual: u64) {
    let step = std::env::var("WEIR_SIM_CUT_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(usual);
    let mut at = 1;
    while cut(shape, seed + at, at, false).is_some() {
        at += step;
    }
    eprintln!("{at} changes");
    assert!(at > 400, "{at} changes");
}

#[test]
fn any_cut_while_a_raidz1_is_expanded_leaves_a_whole_pool() {
    cut_all(Shape { parity: 1, count: 3 }, 71_000, 2003);
}

#[test]
fn any_cut_while_a_raidz2_is_expanded_leaves_a_whole_pool() {
    cut_all(Shape { parity: 2, count: 4 }, 75_000, 4001);
}

/// The bug that these tests must find: sectors are overwritten that the last uberblock needs.
#[test]
fn canary_an_expansion_that_overruns_its_position_is_found() {
    let found = (19..24).any(|n| {
        let cut = || cut(Shape { parity: 1, count: 3 }, 79_000 + n, 150 + n * 50, true);
        std::panic::catch_unwind(cut).is_err()
    });
    assert!(found, "blocks are lost, and no one noticed");
}

/// A device fails while the vdev is expanded and written to; then, if `cuts`, the power.
fn survives(seed: u64, failing: usize, fault: Fault, cuts: bool) {
    let shape = Shape { parity: 2, count: 4 };
    let (world, disks) = world(seed, shape);
    let machine = world.machine();
    let stable = Stable::default();
    world.run(prepare(&machine, shape, &stable)).unwrap().unwrap();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        begin(&engine, shape).await.unwrap();
        write(&engine, &stable, 20).await.unwrap();
        let laid = disks[failing].lay(fault.clone());
        for _ in 0..6 {
            write(&engine, &stable, 20).await.unwrap();
        }
        disks[failing].lift(laid);
        if !cuts {
            // After a failed flush the expansion waits for the next import.
            resilver(&engine).await;
            engine.stop().await.unwrap();
        }
    });
    run.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    if cuts {
        world.power_failure();
    }
    let machine = world.machine();
    let judged = world.run(async {
        // One more device can be lost.
        for other in (0..disks.len()).filter(|other| *other != failing) {
            let gone = [failing, other].map(|i| (&disks[i], disks[i].lay(Fault::Gone)));
            assert_contents(&machine, &stable, 9).await;
            gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
        }
        finish(&machine, shape).await;
        assert_survives(&machine, &disks, shape, &stable).await;
    });
    judged.unwrap_or_else(|error| panic!("seed {seed}, {fault:?} of device {failing}: {error}"));
}

#[test]
fn a_device_that_fails_while_its_vdev_is_expanded_loses_nothing() {
    let faults = [
        Fault::FailWrites { errno: EIO },
        Fault::FailFlushes { errno: EIO },
        Fault::Gone,
        Fault::FailNth { nth: 5, errno: EIO },
        Fault::FailNth { nth: 60, errno: EIO },
        Fault::Unreadable { offset: 8 << 20, len: 4 << 20 },
    ];
    let failing = [0, 4, 2, 1, 3, 0];
    // Each takes ten seconds of processor time; `WEIR_SIM_CUT_STEP` runs all.
    let is_long = std::env::var_os("WEIR_SIM_CUT_STEP").is_some();
    for (n, (failing, fault)) in failing.into_iter().zip(faults).enumerate() {
        for cuts in [false, true].into_iter().filter(|cuts| is_long || n == 1 + usize::from(*cuts)) {
            survives(81_001 + n as u64 + 100 * u64::from(cuts), failing, fault.clone(), cuts);
        }
    }
}
