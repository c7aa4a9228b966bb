//! What administrators ask for in one group: each task finds whole what the one before it made, and one that could not
//! be done to its end is not done at all.

use crate::files::{check, fill, home};
use crate::work;
use futures_util::future::join;
use std::path::Path;
use std::sync::Arc;
use weir_dmu::{ErrorLocation, ObjectError};
use weir_dsl::Dataset;
use weir_dsl::sync_tasks::{DslError, Kind, NewDataset, VolumeSpec, snapshot};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{ImportOptions, TxgSync};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{SimWorld, Timing};

const SEARCH: &str = "/sim";

fn run<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Machine) -> F) {
    let world = SimWorld::new(seed);
    world.add_disk(format!("{SEARCH}/d"), 64 << 20, 512, Timing::SataSsd);
    let machine = world.machine();
    world.run(test(machine)).unwrap();
}

async fn create(machine: &Machine) -> Arc<Engine> {
    let leaf = NewLeaf { path: format!("{SEARCH}/d").into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    Engine::create(machine, &options).await.unwrap()
}

async fn import(machine: &Machine) -> Arc<Engine> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![SEARCH.into()], "tank"));
    options.open.arc_bytes = 16 << 20;
    Engine::import(machine, &options).await.unwrap()
}

/// Finds a dataset in the exported pool.
async fn find(machine: &Machine, name: &str) -> Result<Dataset, ObjectError> {
    let pool = Pool::open(machine, &OpenOptions::new(vec![SEARCH.into()], "tank")).await.unwrap();
    pool.dsl.find(&Request::internal("test"), name).await
}

#[test]
fn a_snapshot_has_what_its_group_made() {
    run(1, |machine| async move {
        let rq = &Request::internal("test");
        let engine = create(&machine).await;
        let snapshot = engine.snapshot(vec!["tank/home@s".into()], Vec::new());
        let (made, taken) = join(engine.create_dataset(home()), snapshot).await;
        made.unwrap();
        taken.unwrap();
        let before = engine.file_system(rq, "tank/home@s").await.unwrap();
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        assert_eq!(before.root(), files.root());
        fill(&files, rq, 1).await;
        engine.sync().await.unwrap();
        fill(&files, rq, 2).await;
        check(&files, rq, 2).await;
        drop((before, files));
        engine.export().await.unwrap();
        let [of, at] = [find(&machine, "tank/home").await, find(&machine, "tank/home@s").await];
        assert_eq!(of.unwrap().phys.creation_txg, at.unwrap().phys.creation_txg, "both are of one group");
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
}

/// A task that meets what cannot be read before it has changed anything, or half of it done.
async fn fails(engine: &Engine, halfway: bool) -> Result<(), PoolError> {
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                if halfway {
                    snapshot::snapshot(&mut syncing.change, &["tank/home@half".to_owned()], &[]).await?;
                }
                Err(ObjectError::Corrupt { place: ErrorLocation::default(), why: "a block that cannot be read" }.into())
            })
        })
        .await
}

#[test]
fn half_a_task_is_none() {
    run(2, |machine| async move {
        let engine = create(&machine).await;
        engine.create_dataset(home()).await.unwrap();
        assert!(matches!(fails(&engine, false).await, Err(PoolError::Object(_))));
        engine.snapshot(vec!["tank/home@before".into()], Vec::new()).await.unwrap();
        let half = fails(&engine, true).await;
        assert!(matches!(half, Err(PoolError::Suspended { .. })), "{half:?}");
        assert!(engine.snapshot(vec!["tank/home@after".into()], Vec::new()).await.is_err());
        drop(engine);
        let engine = import(&machine).await;
        engine.export().await.unwrap();
        assert!(find(&machine, "tank/home@before").await.is_ok());
        assert!(find(&machine, "tank/home@half").await.is_err());
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
}

#[test]
fn a_snapshot_stays_while_clients_are_attached_to_it() {
    run(3, |machine| async move {
        let rq = &Request::internal("test");
        let engine = create(&machine).await;
        let spec = VolumeSpec { size_bytes: 1 << 20, block_bytes: 16 << 10 };
        let new = NewDataset { name: "tank/v".into(), kind: Kind::Volume(spec), properties: Vec::new() };
        engine.create_dataset(new).await.unwrap();
        let names = vec!["tank/v@s".to_owned()];
        engine.snapshot(names.clone(), Vec::new()).await.unwrap();
        let attached = engine.volume(rq, "tank/v@s").await.unwrap().attach();
        for defer in [false, true] {
            let busy = engine.destroy_snapshots(names.clone(), defer).await;
            assert!(matches!(busy, Err(PoolError::Dsl(DslError::Busy { .. }))), "{busy:?}");
        }
        assert_eq!(attached.volume().read(rq, 0, 512).await.unwrap()[..], [0; 512]);
        drop(attached);
        engine.destroy_snapshots(names, false).await.unwrap();
        engine.export().await.unwrap();
    });
}

/// The command lines in the history of the exported pool, without that of its creation.
async fn commands(machine: &Machine) -> Vec<String> {
    let pool = Pool::open(machine, &OpenOptions::new(vec![SEARCH.into()], "tank")).await.unwrap();
    let records = weir_dsl::history::history(&pool.dsl, &Request::internal("test")).await.unwrap();
    records.iter().filter_map(|record| record.get_str("history command").map(str::to_string)).collect()
}

/// A command waits for no txg to write its line into the history; the next txg has it, and so has the last one.
#[test]
fn the_history_costs_a_command_no_txg() {
    run(4, |machine| async move {
        let engine = create(&machine).await;
        engine.create_dataset(home()).await.unwrap();
        let before = engine.txgs().open();
        for n in 0..5 {
            engine.log_command(format!("zfs command {n}"), 0).unwrap();
        }
        assert_eq!(engine.txgs().open(), before, "a line of the history closed a txg");
        engine.sync().await.unwrap();
        assert!(engine.txgs().open() > before);
        engine.log_command("zfs last command".into(), 0).unwrap();
        engine.export().await.unwrap();
        let lines = commands(&machine).await;
        let last: Vec<_> = lines.iter().rev().take(3).map(String::as_str).collect();
        assert_eq!(last, ["zfs last command", "zfs command 4", "zfs command 3"]);
        assert!(engine.log_command("zfs too late".into(), 0).is_err());
    });
}
