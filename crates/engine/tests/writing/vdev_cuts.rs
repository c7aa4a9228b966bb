//! In the simulator: the power fails at every write and flush while a device is replaced, another attached and one detached, or
//! while hot spares step in, back, and become permanent, with their resilvers. The pool is whole each time, is carried to the
//! end, and each device of the mirror alone has everything.

use crate::cuts::is_cut;
use crate::work;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_engine::checkpoint;
use weir_engine::reguid::change_guid;
use weir_engine::removal;
use weir_engine::scrub::ScanLimits;
use weir_engine::{AttachRequest, CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{DirtyLimits, OfflineMode, SpareWatch, VdevAddRequest};
use weir_machine::Machine;
use weir_pool::config::Class;
use weir_pool::{OpenOptions, PoolError, VdevConfig};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";

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

/// A mirror of the first two devices with some blocks.
async fn prepare(machine: &Machine) -> Result<(), PoolError> {
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Mirror, leaves: vec![new(0), new(1)] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    let engine = Engine::create(machine, &options).await?;
    work::write_object(&engine, "tank", 12, 1).await.map_err(|error| PoolError::Refused { what: error.to_string() })?;
    engine.sync().await?;
    engine.stop().await
}

/// Runs the resilver in several passes, each of which is recorded.
async fn resilver(engine: &Engine) -> Result<(), PoolError> {
    let limits =
        ScanLimits { time: Duration::from_secs(60), bytes: 64 << 10, sorted_blocks: 16, ..ScanLimits::default() };
    engine.scrubs().run(&limits, &mut |_| true).await.map(drop)
}

async fn attach(engine: &Engine, beside: usize, index: usize, replaces: bool) -> Result<(), PoolError> {
    let device = guid(engine, beside);
    let request = AttachRequest { device, new: new(index), replaces, ashift: None, force: true };
    engine.vdevs().attach(&request).await?;
    resilver(engine).await
}

/// Replaces the second device by the third, attaches the second again, detaches the first.
async fn change_devices(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    attach(&engine, 1, 2, true).await?;
    attach(&engine, 0, 1, false).await?;
    engine.vdevs().detach(guid(&engine, 0)).await?;
    engine.stop().await
}

/// A hot spare steps in for the second device, which is faulted, and back when that works again; then it takes the place of the
/// first for good.
async fn change_spares(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    let more = VdevAddRequest { spares: vec![new(2)], ..VdevAddRequest::default() };
    engine.devices().add(&more).await?;
    engine.vdevs().offline(guid(&engine, 1), OfflineMode::Faulted).await?;
    engine.spares().keep_spares(&mut SpareWatch::default(), &mut |_| true).await?;
    resilver(&engine).await?;
    engine.devices().clear(Some(guid(&engine, 1))).await?;
    engine.scrubs().start_resilver_if_needed().await?;
    resilver(&engine).await?;
    attach(&engine, 0, 2, true).await?;
    engine.vdevs().detach(guid(&engine, 0)).await?;
    engine.stop().await
}

/// The pool gets another GUID.
async fn change_pool_guid(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    for _ in 0..2 {
        change_guid(&engine, None).await?;
        work::write_object(&engine, "tank", 2, 3)
            .await
            .map_err(|error| PoolError::Refused { what: error.to_string() })?;
    }
    engine.stop().await
}

/// The devices have grown: their space is used.
async fn change_size(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    engine.growth().expand(None).await?;
    for seed in 0..2 {
        let written = work::write_object(&engine, "tank", 300, seed).await;
        written.map_err(|error| PoolError::Refused { what: error.to_string() })?;
    }
    engine.stop().await
}

/// A checkpoint, more blocks, and the checkpoint discarded.
async fn change_checkpoint(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    take_checkpoint(&engine).await?;
    checkpoint::discard(&engine).await?;
    engine.stop().await
}

async fn take_checkpoint(engine: &Engine) -> Result<(), PoolError> {
    checkpoint::create(engine).await?;
    work::destroy_all(engine).await?;
    work::make_dataset(engine, "tank/later").await?;
    engine.sync().await
}

/// The pool goes back to its checkpoint.
async fn rewind(machine: &Machine) -> Result<(), PoolError> {
    let open = OpenOptions { checkpoint: true, ..open() };
    Engine::import(machine, &ImportOptions::new(open)).await?.stop().await
}

/// A second vdev, with blocks.
async fn add_vdev(machine: &Machine) -> Result<(), PoolError> {
    let engine = import(machine).await?;
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![new(2)] };
    engine.devices().add(&VdevAddRequest { tops: vec![top], ..VdevAddRequest::default() }).await?;
    for seed in 0..2 {
        let written = work::write_object(&engine, "tank", 40, seed).await;
        written.map_err(|error| PoolError::Refused { what: error.to_string() })?;
        engine.sync().await?;
    }
    engine.stop().await
}

/// The second vdev is removed while blocks are written and freed; the first removal is canceled.
async fn remove_vdev(machine: &Machine) -> Result<(), PoolError> {
    let mut options = ImportOptions::new(open());
    options.dirty = DirtyLimits { copied_bytes: 32 << 10, ..DirtyLimits::default() };
    let engine = Engine::import(machine, &options).await?;
    let top = guid(&engine, 2);
    removal::start(&engine, top).await?;
    engine.sync().await?;
    engine.vdev_removals().cancel().await?;
    removal::start(&engine, top).await?;
    work::destroy_all(&engine).await?;
    work::make_dataset(&engine, "tank/later").await?;
    engine.vdev_removals().wait().await?;
    engine.sync().await?;
    engine.stop().await
}

/// The spare of the pool, if it has one, can stand in for a device, whatever its labels say.
async fn use_spare(machine: &Machine) {
    let engine = import(machine).await.unwrap();
    let Some(spare) = engine.shown().config.aux.spares.first().cloned() else { return engine.stop().await.unwrap() };
    let is_active = leaves(&engine).iter().any(|leaf| Some(leaf.guid) == spare.get_u64("guid"));
    if !is_active {
        attach(&engine, 1, 2, true).await.unwrap();
    }
    assert!(engine.cache.blocks().tree().dtls().is_empty());
    engine.stop().await.unwrap();
}

/// Carries a pool to the end of what the cut interrupted. Returns the devices that it has.
async fn finish(machine: &Machine) -> Vec<String> {
    work::assert_pool_clean(machine, Path::new(SEARCH), "tank").await;
    let engine = import(machine).await.unwrap();
    engine.devices().clear(None).await.unwrap();
    engine.vdev_removals().wait().await.unwrap();
    checkpoint::keep_discarding(&engine).await.unwrap();
    engine.scrubs().start_resilver_if_needed().await.unwrap();
    resilver(&engine).await.unwrap();
    engine.spares().finish_replacing().await.unwrap();
    let paths = leaves(&engine).into_iter().filter_map(|leaf| leaf.path).collect();
    assert!(engine.cache.blocks().tree().dtls().is_empty());
    engine.stop().await.unwrap();
    paths
}

/// The changes that are cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Devices,
    Spares,
    Guid,
    Size,
    Checkpoint,
    Rewind,
    Removal,
}

/// Cuts at change `at`, counted from the beginning of the changes; `None` if there are fewer.
fn cut(change: Change, seed: u64, at: u64) -> Option<()> {
    let world = SimWorld::new(seed);
    let disk = |i| world.add_disk(format!("{SEARCH}/d{i}"), 64 << 20, 512, Timing::Nvme);
    let disks: Vec<Arc<SimDisk>> = (0..3).map(disk).collect();
    let machine = world.machine();
    world.run(prepare(&machine)).unwrap().unwrap();
    if change == Change::Size {
        disks.iter().for_each(|disk| disk.grow(160 << 20));
    }
    if change == Change::Removal {
        disks.iter().for_each(|disk| disk.grow(320 << 20));
        let prepared = world.run(async {
            let engine = import(&machine).await?;
            engine.growth().expand(None).await?;
            engine.stop().await?;
            add_vdev(&machine).await
        });
        prepared.unwrap().unwrap();
    }
    if change == Change::Rewind {
        let taken = world.run(async {
            let engine = import(&machine).await?;
            take_checkpoint(&engine).await?;
            engine.stop().await
        });
        taken.unwrap().unwrap();
    }
    world.cut_after(at);
    let run = match change {
        Change::Devices => world.run(change_devices(&machine)),
        Change::Spares => world.run(change_spares(&machine)),
        Change::Guid => world.run(change_pool_guid(&machine)),
        Change::Size => world.run(change_size(&machine)),
        Change::Checkpoint => world.run(change_checkpoint(&machine)),
        Change::Rewind => world.run(rewind(&machine)),
        Change::Removal => world.run(remove_vdev(&machine)),
    };
    world.cancel_cut();
    let is_cut = is_cut(run, seed, at);
    let machine = world.machine();
    let judged = world.run(async {
        let devices = finish(&machine).await;
        use_spare(&machine).await;
        assert!((1..=3).contains(&devices.len()), "{devices:?}");
        if change == Change::Removal && devices.len() == 3 {
            // The removal was not recorded, or canceled: the vdev can be removed now.
            remove_vdev(&machine).await.unwrap();
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            return;
        }
        for alone in &devices {
            let others = disks.iter().filter(|disk| disk.path() != Path::new(alone));
            let gone: Vec<_> = others.map(|disk| (disk, disk.lay(Fault::Gone))).collect();
            work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
            gone.into_iter().for_each(|(disk, fault)| disk.lift(fault));
        }
    });
    judged.unwrap_or_else(|error| panic!("seed {seed} cut {at}: {error}"));
    is_cut.then_some(())
}

/// Every 421st change, or as many as the kind has; `WEIR_SIM_CUT_STEP=1` cuts at each of about 5100.
fn cut_all(change: Change, seed: u64) {
    let usual = match change {
        Change::Devices | Change::Spares => 421,
        Change::Guid => 7,
        Change::Size => 97,
        Change::Checkpoint => 61,
        Change::Rewind => 11,
        Change::Removal => 127,
    };
    let step = std::env::var("WEIR_SIM_CUT_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(usual);
    let mut at = 1;
    while cut(change, seed + at, at).is_some() {
        at += step;
    }
    assert!(at > 40, "{at} changes");
}

#[test]
fn any_cut_while_devices_are_replaced_leaves_a_whole_pool() {
    cut_all(Change::Devices, 4000);
}

/// All labels name the former pool or the new one, and never is there a second pool.
#[test]
fn any_cut_while_the_pool_gets_another_guid_leaves_one_pool() {
    cut_all(Change::Guid, 15_000);
}

#[test]
fn any_cut_while_devices_are_used_that_have_grown_leaves_a_whole_pool() {
    cut_all(Change::Size, 21_000);
}

#[test]
fn any_cut_while_a_checkpoint_comes_and_goes_leaves_a_whole_pool() {
    cut_all(Change::Checkpoint, 27_000);
}

#[test]
fn any_cut_while_a_pool_goes_back_to_its_checkpoint_leaves_a_whole_pool() {
    cut_all(Change::Rewind, 33_000);
}

#[test]
fn any_cut_while_spares_step_in_and_back_leaves_a_whole_pool() {
    cut_all(Change::Spares, 9000);
}

/// After each cut the removal goes on, or can begin again; then each side of the mirror that stays has everything.
#[test]
fn any_cut_while_a_vdev_with_data_is_removed_leaves_a_whole_pool() {
    cut_all(Change::Removal, 39_000);
}
