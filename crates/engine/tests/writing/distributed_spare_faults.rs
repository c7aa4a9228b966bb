//! In the simulator: power cuts while distributed spares step in, follow each other and step back, and devices that fail writes
//! and flushes while one is in use. Nothing that was synced is lost within redundancy.

use crate::cuts::is_cut;
use crate::work;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_engine::create::DraidRequest;
use weir_engine::scrub::ScanLimits;
use weir_engine::{AttachRequest, CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{OfflineMode, SpareWatch};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError, VdevConfig};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";
/// Devices of the dRAID vdev; the one after them is blank.
const DEVICES: usize = 5;
/// Three columns per group and row, the other two of a row are spare.
const TWO_PARITIES: &str = "draid2:1d:2s";
const ONE_PARITY: &str = "draid1:2d:2s";
const EIO: i32 = 5;

fn new(index: usize) -> NewLeaf {
    NewLeaf { path: format!("{SEARCH}/d{index}").into(), is_file: true }
}

fn open() -> OpenOptions {
    OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::new(vec![SEARCH.into()], "tank") }
}

async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    Engine::import(machine, &ImportOptions::new(open())).await
}

fn leaves(engine: &Engine) -> Vec<VdevConfig> {
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    root.leaves().into_iter().cloned().collect()
}

fn guid(engine: &Engine, index: usize) -> u64 {
    let path = format!("{SEARCH}/d{index}");
    leaves(engine).iter().find(|leaf| leaf.path.as_deref() == Some(&path)).unwrap().guid
}

fn world(seed: u64) -> (SimWorld, Vec<Arc<SimDisk>>) {
    let world = SimWorld::new(seed);
    let disk = |i| world.add_disk(format!("{SEARCH}/d{i}"), 100 << 20, 512, Timing::Nvme);
    let disks = (0..=DEVICES).map(disk).collect();
    (world, disks)
}

/// Writes an object and makes it stable. Returns its number.
async fn write(engine: &Engine, blocks: u64, seed: u64) -> Result<u64, PoolError> {
    let id = work::write_object(engine, "tank", blocks, seed).await;
    let id = id.map_err(|error| PoolError::Refused { what: error.to_string() })?;
    engine.sync().await.map(|()| id)
}

async fn prepare(machine: &Machine, layout: &str) -> Result<(), PoolError> {
    let layout = Layout::Draid(DraidRequest::parse(layout).unwrap());
    let top = NewTopLevelVdev { class: Class::Normal, layout, leaves: (0..DEVICES).map(new).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    let engine = Engine::create(machine, &options).await?;
    for seed in 0..3 {
        write(&engine, 12, seed).await?;
    }
    engine.stop().await
}

/// Runs the resilver in several passes, each of which is recorded.
async fn resilver(engine: &Engine) -> Result<(), PoolError> {
    let limits =
        ScanLimits { time: Duration::from_secs(60), bytes: 64 << 10, sorted_blocks: 16, ..ScanLimits::default() };
    engine.scrubs().run(&limits, &mut |_| true).await.map(drop)
}

async fn step_in(engine: &Engine) -> Result<Option<PathBuf>, PoolError> {
    engine.spares().keep_spares(&mut SpareWatch::default(), &mut |_| true).await
}

/// Faults a device, for which a distributed spare steps in.
async fn fail(engine: &Engine, index: usize) -> Result<(), PoolError> {
    engine.vdevs().offline(guid(engine, index), OfflineMode::Faulted).await?;
    assert!(step_in(engine).await?.is_some_and(|spare| spare.to_string_lossy().starts_with("draid")));
    resilver(engine).await
}

/// Two devices fail, one after the other; the first is replaced by a blank one, the second works again.
async fn change(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    fail(&engine, 1).await?;
    write(&engine, 6, 2).await?;
    fail(&engine, 3).await?;
    write(&engine, 6, 3).await?;
    let device = guid(&engine, 1);
    let request = AttachRequest { device, new: new(DEVICES), replaces: true, ashift: None, force: true };
    engine.vdevs().attach(&request).await?;
    resilver(&engine).await?;
    engine.devices().clear(Some(guid(&engine, 3))).await?;
    engine.scrubs().start_resilver_if_needed().await?;
    resilver(&engine).await?;
    engine.stop().await
}

/// Carries a pool to the end of what the cut interrupted. Returns the indices of the devices that it has.
async fn finish(machine: &Machine) -> Vec<usize> {
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
    let engine = import(machine).await.unwrap();
    engine.devices().clear(None).await.unwrap();
    engine.scrubs().start_resilver_if_needed().await.unwrap();
    resilver(&engine).await.unwrap();
    engine.spares().finish_replacing().await.unwrap();
    let dtls = engine.cache.blocks().tree().dtls();
    assert!(dtls.is_empty(), "{dtls:?}");
    let spares = engine.shown().config.aux.spares;
    assert_eq!(spares.len(), 2, "a distributed spare stays in the list");
    let paths: Vec<_> = leaves(&engine).into_iter().filter_map(|leaf| leaf.path).collect();
    engine.stop().await.unwrap();
    (0..=DEVICES).filter(|i| paths.contains(&format!("{SEARCH}/d{i}"))).collect()
}

/// Resilvers the spares in use, and demands that the devices can be lost which they replace, and as many others as there are
/// parities that no failed device without a spare takes.
async fn assert_spares_make_good(machine: &Machine, disks: &[Arc<SimDisk>]) {
    let engine = import(machine).await.unwrap();
    engine.scrubs().start_resilver_if_needed().await.unwrap();
    resilver(&engine).await.unwrap();
    engine.spares().finish_replacing().await.unwrap();
    let all = leaves(&engine);
    let at = |i: usize| all.iter().find(|leaf| leaf.path.as_deref() == Some(&format!("{SEARCH}/d{i}")));
    let failed: Vec<usize> = (0..=DEVICES).filter(|i| at(*i).is_some_and(|leaf| leaf.faulted)).collect();
    let whole: Vec<usize> = (0..=DEVICES).filter(|i| at(*i).is_some_and(|leaf| !leaf.faulted)).collect();
    let spares = all.iter().filter(|leaf| leaf.is_spare).count();
    engine.stop().await.unwrap();
    let gone: Vec<_> = failed.iter().map(|i| (&disks[*i], disks[*i].lay(Fault::Gone))).collect();
    match 2usize.saturating_sub(failed.len().saturating_sub(spares)) {
        2 => assert_two_can_be_lost(machine, disks, &whole).await,
        _ => work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await,
    }
    gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
}

/// Demands that two of these devices can be lost: each with the one that follows it.
async fn assert_two_can_be_lost(machine: &Machine, disks: &[Arc<SimDisk>], devices: &[usize]) {
    let followers = devices.iter().cycle().skip(1);
    for (first, second) in devices.iter().zip(followers) {
        let gone = [first, second].map(|i| (&disks[*i], disks[*i].lay(Fault::Gone)));
        work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
        gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
    }
}

/// Cuts at change `at`, counted from the beginning of the changes; `None` if there are fewer.
fn cut(seed: u64, at: u64) -> Option<()> {
    let (world, disks) = world(seed);
    let machine = world.machine();
    world.run(prepare(&machine, TWO_PARITIES)).unwrap().unwrap();
    world.cut_after(at);
    let run = world.run(change(&machine));
    world.cancel_cut();
    let is_cut = is_cut(run, seed, at);
    let machine = world.machine();
    let judged = world.run(async {
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
        assert_spares_make_good(&machine, &disks).await;
        let devices = finish(&machine).await;
        assert!(devices.len() >= DEVICES, "{devices:?}");
        assert_two_can_be_lost(&machine, &disks, &devices).await;
        // The spares can be used again.
        let engine = import(&machine).await.unwrap();
        fail(&engine, 0).await.unwrap();
        engine.stop().await.unwrap();
        assert_spares_make_good(&machine, &disks).await;
    });
    judged.unwrap_or_else(|error| panic!("seed {seed} cut {at}: {error}"));
    is_cut.then_some(())
}

/// `WEIR_SIM_CUT_STEP=1` cuts at each change.
#[test]
fn any_cut_while_distributed_spares_step_in_and_back_leaves_a_whole_pool() {
    let step = std::env::var("WEIR_SIM_CUT_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(2003);
    let mut at = 1;
    while cut(51_000 + at, at).is_some() {
        at += step;
    }
    assert!(at > 4000, "{at} changes");
}

/// Contents of the objects in a pool that is only read.
async fn assert_contents(machine: &Machine, stable: &[(u64, u64, u64)]) {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &open()).await.unwrap();
    let set = pool.object_set(rq, "tank").await.unwrap();
    for (id, blocks, seed) in stable {
        let object = set.object(rq, ObjectId(*id)).await.unwrap();
        for block in 0..*blocks {
            let bytes = set.reader().read_block(rq, &object, block).await.unwrap().unwrap();
            assert_eq!(bytes.as_ref(), work::contents(*seed, block), "object {id}, block {block}");
        }
    }
}

/// While a distributed spare is in the place of device 1, another device fails; the power fails; then the original and a third
/// one are lost. Two parities make good for the failing and the third device; with one parity, no third one is lost.
fn spare_survives(layout: &str, seed: u64, failing: usize, fault: Fault) {
    let (world, disks) = world(seed);
    let machine = world.machine();
    world.run(prepare(&machine, layout)).unwrap().unwrap();
    let mut stable = Vec::new();
    let run = world.run(async {
        let engine = import(&machine).await.unwrap();
        fail(&engine, 1).await.unwrap();
        let laid = disks[failing].lay(fault.clone());
        for n in 0..6 {
            // What fails is not acknowledged.
            if let Ok(id) = write(&engine, 20, 70 + n).await {
                stable.push((id, 20, 70 + n));
            }
        }
        disks[failing].lift(laid);
    });
    run.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    world.power_failure();
    assert!(stable.len() == 6, "seed {seed}, {fault:?} of device {failing}: redundancy covers it: {stable:?}");
    let machine = world.machine();
    let judged = world.run(async {
        if layout == ONE_PARITY {
            let gone = disks[1].lay(Fault::Gone);
            assert_contents(&machine, &stable).await;
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            disks[1].lift(gone);
            finish(&machine).await;
            return assert_contents(&machine, &stable).await;
        }
        let whole = (0..DEVICES).filter(|i| *i != 1 && *i != failing);
        for third in whole {
            let gone = [1, third].map(|i| (&disks[i], disks[i].lay(Fault::Gone)));
            assert_contents(&machine, &stable).await;
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
        }
        assert_spares_make_good(&machine, &disks).await;
        let devices = finish(&machine).await;
        assert_two_can_be_lost(&machine, &disks, &devices).await;
        assert_contents(&machine, &stable).await;
    });
    judged.unwrap_or_else(|error| panic!("seed {seed}, {fault:?} of device {failing}: {error}"));
}

#[test]
fn a_device_below_a_distributed_spare_that_fails_loses_nothing() {
    let faults = [
        Fault::FailWrites { errno: EIO },
        Fault::FailFlushes { errno: EIO },
        Fault::Gone,
        Fault::FailNth { nth: 5, errno: EIO },
        Fault::FailNth { nth: 60, errno: EIO },
    ];
    let failing = (0..DEVICES).filter(|i| *i != 1).cycle();
    for (seed, (failing, fault)) in (61_001..).zip(failing.zip(faults)) {
        spare_survives(TWO_PARITIES, seed, failing, fault);
    }
}

/// One parity makes good for the failing device, because that costs each row one column at most: its own or that of the spare.
#[test]
fn a_device_below_a_distributed_spare_fails_once_only() {
    let mut seed = 63_000;
    for failing in (0..DEVICES).filter(|i| *i != 1) {
        for fault in [Fault::FailWrites { errno: EIO }, Fault::FailFlushes { errno: EIO }, Fault::Gone] {
            seed += 1;
            spare_survives(ONE_PARITY, seed, failing, fault);
        }
    }
}
