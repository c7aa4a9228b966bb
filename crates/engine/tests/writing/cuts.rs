//! In the simulator: the power fails at every write and flush of a history, and the pool is there each time.

use crate::work;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_engine::create::DraidRequest;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_machine::Machine;
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{SimError, SimWorld, Timing};

const SEARCH: &str = "/sim";
const DEVICE_BYTES: u64 = 64 << 20;

fn world(seed: u64, devices: usize) -> SimWorld {
    let world = SimWorld::new(seed);
    for i in 0..devices {
        world.add_disk(format!("{SEARCH}/d{i}"), DEVICE_BYTES, 512, Timing::SataSsd);
    }
    world
}

/// Whether the power failed before the end of changes that were cut at change `at` in the world of a seed. Without a cut they must have
/// succeeded.
pub fn is_cut<T, E: std::fmt::Debug>(run: Result<Result<T, E>, SimError>, seed: u64, at: u64) -> bool {
    match run {
        Ok(Ok(_)) => false,
        Err(SimError::PowerCut { .. }) => true,
        Ok(Err(error)) => panic!("seed {seed} cut {at}: {error:?}"),
        Err(other) => panic!("seed {seed} cut {at}: {other}"),
    }
}

fn options(layout: Layout, devices: usize) -> CreateOptions {
    let leaf = |i: usize| NewLeaf { path: format!("{SEARCH}/d{i}").into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout, leaves: (0..devices).map(leaf).collect() };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.ashift = Some(9);
    options.arc_bytes = 16 << 20;
    options
}

/// Last txg that was reported as stable.
type StableTxg = Arc<AtomicU64>;

async fn make(machine: &Machine, options: &CreateOptions, stable: &StableTxg) -> Result<(), PoolError> {
    let engine = Engine::create(machine, options).await?;
    let note = |engine: &Engine| stable.store(engine.txgs().last_synced().0, Ordering::SeqCst);
    note(&engine);
    work::history(&engine, &note).await?;
    engine.export().await?;
    note(&engine);
    Ok(())
}

async fn import(machine: &Machine) -> Result<Arc<Engine>, PoolError> {
    let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
    open.arc_bytes = 16 << 20;
    Engine::import(machine, &ImportOptions::new(open)).await
}

/// Cuts at change `cut` of making the pool and working on it; what is there afterwards must be whole, and be written
/// on.
fn cut(seed: u64, layout: Layout, devices: usize, cut: u64) -> u64 {
    let world = world(seed, devices);
    let machine = world.machine();
    let options = options(layout, devices);
    world.cut_after(cut);
    let stable = StableTxg::default();
    let run = world.run(make(&machine, &options, &stable));
    world.cancel_cut();
    match run {
        Ok(done) => done.unwrap(),
        Err(SimError::PowerCut { .. }) => {}
        Err(other) => panic!("seed {seed} cut {cut}: {other}"),
    }
    let machine = world.machine();
    let judged = world.run(async {
        let mut open = OpenOptions::new(vec![SEARCH.into()], "tank");
        open.arc_bytes = 16 << 20;
        match Pool::open(&machine, &open).await {
            // Before the first uberblock there is no pool.
            Err(PoolError::NothingFound { .. } | PoolError::NoUberblock { .. } | PoolError::NoSuchPool { .. })
                if stable.load(Ordering::SeqCst) == 0 =>
            {
                return;
            }
            Err(error) => panic!("seed {seed} cut {cut}: {error}"),
            Ok(pool) => {
                let stable = stable.load(Ordering::SeqCst);
                assert!(pool.uberblock.txg.0 >= stable, "seed {seed} cut {cut}: txg {stable} was said to be stable");
            }
        }
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
        let engine = import(&machine).await.unwrap_or_else(|e| panic!("seed {seed} cut {cut}: {e}"));
        work::write_object(&engine, "tank", 5, seed).await.unwrap();
        engine.sync().await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    judged.unwrap_or_else(|e| panic!("seed {seed} cut {cut}: {e}"));
    world.trace_hash()
}

/// How many changes the whole history has.
fn changes(seed: u64, layout: Layout, devices: usize) -> u64 {
    let world = world(seed, devices);
    let machine = world.machine();
    world.run(make(&machine, &options(layout, devices), &StableTxg::default())).unwrap().unwrap();
    world.changes()
}

/// Every `step`th change; `WEIR_SIM_CUT_STEP=1` cuts at each.
fn cut_everywhere(seed: u64, layout: Layout, devices: usize, step: u64) {
    let said = std::env::var("WEIR_SIM_CUT_STEP").ok().and_then(|s| s.parse().ok());
    let all = changes(seed, layout, devices);
    let mut at = 1;
    while at < all {
        cut(seed + at, layout, devices, at);
        at += said.unwrap_or(step);
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = || changes(7, Layout::Mirror, 2);
    assert_eq!(run(), run());
    assert_eq!(cut(3, Layout::Mirror, 2, 500), cut(3, Layout::Mirror, 2, 500));
}

#[test]
fn any_cut_leaves_a_whole_mirror() {
    cut_everywhere(1000, Layout::Mirror, 2, 97);
}

#[test]
fn any_cut_leaves_a_whole_raidz() {
    cut_everywhere(2000, Layout::Raidz(1), 3, 151);
}

#[test]
fn any_cut_leaves_a_whole_draid() {
    let layout = DraidRequest { parity: 1, data: Some(1), children: None, spares: 1 };
    cut_everywhere(4000, Layout::Draid(layout), 4, 211);
}
