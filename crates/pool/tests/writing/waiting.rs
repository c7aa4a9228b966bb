//! Destroyed datasets that are freed over many groups: what waits to be freed is no leak, at any place in between.

use crate::files::{fill, home};
use crate::real::{folder, pool_of};
use crate::{work, zdb};
use std::path::Path;
use std::sync::Arc;
use weir_machine::{Machine, Request};
use weir_pool::counts::DEFERRED;
use weir_pool::engine::ImportOptions;
use weir_pool::engine::syncing::Syncing;
use weir_pool::{Engine, Layout, OpenOptions, Pool};

/// From now on, a group frees so many blocks of destroyed datasets.
async fn free_per_group(engine: &Engine, blocks: u64) {
    engine
        .sync_task(move |syncing: &mut Syncing<'_>| {
            Box::pin(async move {
                syncing.core.freed_per_group = blocks;
                Ok(())
            })
        })
        .await
        .unwrap();
}

async fn import(machine: &Machine, dir: &Path) -> Arc<Engine> {
    Engine::import(machine, &ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"))).await.unwrap()
}

/// Lets both walks judge an exported pool. Gives how many blocks wait to be freed.
async fn judged(machine: &Machine, dir: &Path) -> u64 {
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap();
    let waiting = pool.verify(&Request::internal("test")).await.unwrap().counts.cell(DEFERRED, None).count;
    drop(pool);
    work::demand_whole(machine, dir, "tank").await;
    zdb::demand_clean(dir, "tank");
    waiting
}

#[test]
fn what_waits_to_be_freed_is_no_leak() {
    let dir = folder("waiting");
    let machine = Machine::production().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap().export().await.unwrap();
        // Few blocks, and no divisors of what a block of pointers or of dnodes holds; the rest stays as it is.
        for per_group in [7, 23, 61] {
            let engine = import(&machine, &dir).await;
            engine.create_dataset(home()).await.unwrap();
            fill(&engine.file_system(rq, "tank/home").await.unwrap(), rq, 1).await;
            engine.sync().await.unwrap();
            free_per_group(&engine, per_group).await;
            engine.destroy_dataset("tank/home".into()).await.unwrap();
            free_per_group(&engine, 0).await;
            engine.export().await.unwrap();
            let waiting = judged(&machine, &dir).await;
            assert!(waiting > 0, "freed by {per_group} at a time, nothing waits");
            // What another program opens, it frees.
            import(&machine, &dir).await.export().await.unwrap();
            assert_eq!(judged(&machine, &dir).await, 0);
        }
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
