//! Checkpoints: created, discarded and gone back to; zdb judges each state.

use crate::attach::assert_healthy;
use crate::real::{folder, import, pool_of};
use crate::resilver::look;
use crate::{work, zdb};
use std::path::Path;
use std::sync::Arc;
use weir_engine::checkpoint::{create, discard, keep_discarding};
use weir_engine::{Activity, Engine, ImportOptions, Layout};
use weir_machine::{Machine, Request};
use weir_pool::OpenOptions;

async fn rewound(machine: &Machine, dir: &Path) -> Arc<Engine> {
    let open = OpenOptions { checkpoint: true, ..OpenOptions::new(vec![dir.to_owned()], "tank") };
    Engine::import(machine, &ImportOptions::new(open)).await.unwrap()
}

async fn datasets(machine: &Machine, dir: &Path) -> Vec<String> {
    look(machine, dir).await.dsl.dirs().into_iter().map(|dir| dir.name.clone()).collect()
}

/// A pool with a checkpoint; since then, all that was there is destroyed and more is written.
async fn with_checkpoint(machine: &Machine, name: &str, layout: Layout, count: usize) -> std::path::PathBuf {
    let dir = folder(&format!("checkpoint-{name}"));
    let engine = Engine::create(machine, &pool_of(&dir, layout, count)).await.unwrap();
    work::make_dataset(&engine, "tank/before").await.unwrap();
    work::write_object(&engine, "tank/before", 100, 1).await.unwrap();
    work::snapshot(&engine, "tank/before@s").await.unwrap();
    create(&engine).await.unwrap();
    assert!(create(&engine).await.unwrap_err().to_string().contains("checkpoint exists"));
    engine.destroy_snapshots(vec!["tank/before@s".to_owned()], false).await.unwrap();
    engine.destroy_dataset("tank/before".to_owned()).await.unwrap();
    work::make_dataset(&engine, "tank/after").await.unwrap();
    for seed in 0..3 {
        work::write_object(&engine, "tank/after", 100, seed).await.unwrap();
        engine.sync().await.unwrap();
    }
    engine.stop().await.unwrap();
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    work::assert_pool_clean(machine, &dir, "tank").await;
    assert!(look(machine, &dir).await.capacity.checkpoint_bytes > 50 * (16 << 10), "the checkpoint keeps blocks");
    dir
}

#[test]
fn a_discarded_checkpoint_returns_its_space() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count) in [("mirror", Layout::Mirror, 2), ("raidz", Layout::Raidz(1), 3)] {
        machine.block_on(async {
            let dir = with_checkpoint(&machine, name, layout, count).await;
            let engine = import(&machine, &dir).await.unwrap();
            let rq = &Request::internal("test");
            let before = engine.gate.space().used_bytes;
            discard(&engine).await.unwrap();
            assert!(!engine.synced().activities(rq).await.unwrap().contains(&Activity::Discard));
            assert!(discard(&engine).await.unwrap_err().to_string().contains("does not exist"));
            keep_discarding(&engine).await.unwrap();
            // Freed space is free a few txgs later.
            for seed in 0..4 {
                work::write_object(&engine, "tank/after", 2, seed).await.unwrap();
                engine.sync().await.unwrap();
            }
            assert!(engine.gate.space().used_bytes < before, "{before}");
            create(&engine).await.unwrap();
            engine.stop().await.unwrap();
            let engine = import(&machine, &dir).await.unwrap();
            discard(&engine).await.unwrap();
            engine.stop().await.unwrap();
            assert_healthy(&machine, &dir).await;
            assert_eq!(look(&machine, &dir).await.capacity.checkpoint_bytes, 0);
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = with_checkpoint(&machine, "rewound", Layout::Raidz(1), 3).await;
        assert_eq!(datasets(&machine, &dir).await, ["tank", "tank/after"]);
        let engine = rewound(&machine, &dir).await;
        engine.stop().await.unwrap();
        assert_eq!(datasets(&machine, &dir).await, ["tank", "tank/before"]);
        assert_healthy(&machine, &dir).await;
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank/before", 100, 7).await.unwrap();
        create(&engine).await.unwrap();
        engine.stop().await.unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
