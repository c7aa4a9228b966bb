//! Destroyed datasets that are freed over many groups: what waits to be freed is no leak, at any place in between. So
//! are clones that OpenZFS destroyed by their live lists.

use crate::files::{fill, home};
use crate::real::{folder, pool_of};
use crate::{work, zdb};
use std::path::Path;
use std::sync::Arc;
use weir_dmu::zap::{self, NewZap};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{NewDataset, ZAP_METADATA, features};
use weir_dsl::{bpobj, deadlist};
use weir_engine::syncing::TxgSync;
use weir_engine::{Engine, ImportOptions, Layout};
use weir_format::dsl::pool as names;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::{Machine, Request};
use weir_pool::block_stats::DEFERRED;
use weir_pool::{OpenOptions, Pool, PoolError};

/// Limits the blocks of destroyed datasets that a txg frees from now on.
pub async fn free_per_group(engine: &Engine, blocks: u64) {
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.core.max_frees_per_txg = blocks;
                Ok(())
            })
        })
        .await
        .unwrap();
}

async fn import(machine: &Machine, dir: &Path) -> Arc<Engine> {
    Engine::import(machine, &ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"))).await.unwrap()
}

/// Judges an exported pool by both walks. Returns how many blocks wait to be freed.
async fn judged(machine: &Machine, dir: &Path) -> u64 {
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap();
    let rq = &Request::internal("test");
    let waiting = weir_pool::verify::verify_pool(&pool, rq).await.unwrap().counts.cell(DEFERRED, None).count;
    let properties = weir_pool::properties::properties(rq, &pool, None).await.unwrap();
    let freeing = properties.iter().find(|p| p.name == "freeing").unwrap().value.text(true);
    assert_eq!(freeing != "0", waiting > 0, "{waiting} blocks wait, {freeing} bytes are said to");
    drop(pool);
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
    waiting
}

#[test]
fn what_waits_to_be_freed_is_no_leak() {
    let dir = folder("waiting");
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap().export().await.unwrap();
        // Few blocks, and no divisors of what a block of pointers or of dnodes holds; the rest stays as it is.
        for per_group in [7, 23, 61] {
            let engine = import(&machine, &dir).await;
            // Enough blocks that some are left when the freeing is stopped.
            let small = vec![("recordsize".to_owned(), Value::Number(4096))];
            engine.create_dataset(NewDataset { properties: small, ..home() }).await.unwrap();
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

/// Converts the pool's list of deferred frees into a live list of a destroyed clone, as OpenZFS would have left
/// it: in two parts, with blocks that were allocated and freed in between. Returns the number of remaining blocks.
async fn leave_as_live_list(syncing: &mut TxgSync<'_>) -> Result<usize, PoolError> {
    let rq = syncing.change.rq;
    let tx = syncing.change.tx;
    let mos = syncing.change.mos.clone();
    let sizes = syncing.change.pool.sizes.clone();
    let directory = ObjectId(names::DIRECTORY_OBJECT);
    let free = ObjectId(zap::lookup_word(rq, &mos, directory, names::FREE_BPOBJ).await?.unwrap());
    let mut pointers: Vec<BlockPointer> = Vec::new();
    loop {
        let some = bpobj::take(rq, &mos, tx, free, 1 << 10, &*sizes).await?;
        if some.is_empty() {
            break;
        }
        pointers.extend(some);
    }
    // Those that lie in their pointers stand in no live list.
    let (embedded, pointers): (Vec<_>, Vec<_>) = pointers.into_iter().partition(BlockPointer::is_embedded);
    bpobj::push(rq, &mos, tx, free, &embedded, false, &*sizes).await?;
    features::count_feature(&mut syncing.change, weir_format::features::Feature::LIVELIST, 1).await?;
    let list = deadlist::create(rq, &mos, tx).await?;
    let (first, second) = pointers.split_at(pointers.len() / 2);
    for (key, pointers) in [(0, first), (7, second)] {
        let part = bpobj::create(rq, &mos, tx, true).await?;
        zap::put_int(rq, &mos, tx, list, key, part.0).await?;
        bpobj::push(rq, &mos, tx, part, &pointers[..1], false, &*sizes).await?;
        bpobj::push(rq, &mos, tx, part, &pointers[..1], true, &*sizes).await?;
        bpobj::push(rq, &mos, tx, part, pointers, false, &*sizes).await?;
        // The last one was cloned within the clone, and its copy has gone.
        bpobj::push(rq, &mos, tx, part, &pointers[pointers.len() - 1..], false, &*sizes).await?;
        bpobj::push(rq, &mos, tx, part, &pointers[pointers.len() - 1..], true, &*sizes).await?;
    }
    let clones = zap::create(rq, &mos, tx, &NewZap::new(ZAP_METADATA)).await?;
    zap::put_int(rq, &mos, tx, clones, list.0, list.0).await?;
    zap::put_word(rq, &mos, tx, directory, names::DELETED_CLONES, clones.0).await?;
    Ok(embedded.len() + pointers.len())
}

#[test]
fn live_lists_of_destroyed_clones_are_no_leak() {
    let dir = folder("waiting-clones");
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        let id = work::write_object(&engine, "tank", 40, 5).await.unwrap();
        engine.sync().await.unwrap();
        work::snapshot(&engine, "tank@s").await.unwrap();
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        {
            let tx = set.begin(rq, 1 << 20, weir_dmu::live::SpaceReserve::NetFree).await.unwrap();
            set.frees().remove(rq, &tx, ObjectId(id)).await.unwrap();
        }
        engine.sync().await.unwrap();
        free_per_group(&engine, 0).await;
        engine.destroy_snapshots(vec!["tank@s".into()], false).await.unwrap();
        let left = std::sync::Arc::new(std::sync::Mutex::new(0));
        let blocks_left = left.clone();
        engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    *blocks_left.lock().unwrap() = leave_as_live_list(syncing).await?;
                    Ok(())
                })
            })
            .await
            .unwrap();
        engine.export().await.unwrap();
        let left = *left.lock().unwrap();
        assert!(left > 20, "{left}");
        assert_eq!(judged(&machine, &dir).await, left as u64);
        // Opened for writing, they are freed, and their lists go.
        import(&machine, &dir).await.export().await.unwrap();
        assert_eq!(judged(&machine, &dir).await, 0);
    });
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}
