//! Equal blocks are kept once: what is saved, what happens when the last reference goes, what is not shared.

use crate::{real, work, zdb};
use std::sync::Arc;
use weir_dmu::ddt_brt_reader::{dedup_entries, dedup_tables};
use weir_dmu::live::SpaceReserve;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_engine::prefetch::{PrefetchType, prefetch};
use weir_engine::{Engine, Layout, PoolProperty};
use weir_format::{BlockPointer, ObjectId};
use weir_machine::{Machine, Request};
use weir_pool::dedup::Shared;
use weir_pool::{OpenOptions, Pool};

const BLOCKS: u64 = 20;

async fn set(engine: &Engine, property: &str, number: u64) {
    let setting = Setting::Set(Value::Number(number));
    engine.properties().set_properties("tank".into(), vec![(property.to_owned(), setting)]).await.unwrap();
}

async fn pointers(engine: &Arc<Engine>, id: u64) -> Vec<BlockPointer> {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let object = set.object(rq, ObjectId(id)).await.unwrap();
    let mut out = Vec::new();
    for block in 0..BLOCKS {
        assert_eq!(
            set.reader().read_block(rq, &object, block).await.unwrap().unwrap(),
            work::contents(1, block),
            "block {block}"
        );
        out.extend(set.pointers().at(rq, &object, 0, block).await.unwrap());
    }
    out
}

async fn remove(engine: &Engine, id: u64) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
    set.frees().remove(rq, &tx, ObjectId(id)).await.unwrap();
    drop(tx);
    engine.sync().await.unwrap();
}

/// Number of entries in the tables, and the bytes in the statistics.
async fn entries_and_shared(machine: &Machine, dir: &std::path::Path) -> (usize, Shared) {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap();
    let mut entries = 0;
    for table in dedup_tables(rq, &pool.mos.set).await.unwrap() {
        entries += dedup_entries(rq, &pool.mos.set, &table, 0).await.unwrap().0.len();
    }
    (entries, pool.capacity.shared)
}

/// Three equal objects, one of them gone again, in a table of either form.
fn judge(name: &str, feature: Option<&str>) {
    let dir = real::folder(name);
    let machine = weir_linux::machine().unwrap();
    let mut options = real::pool_of(&dir, Layout::Mirror, 2);
    options.features.extend(feature.map(str::to_owned));
    let (first, third) = machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        set(&engine, "dedup", 1).await;
        let first = work::write_object(&engine, "tank", BLOCKS, 1).await.unwrap();
        let second = work::write_object(&engine, "tank", BLOCKS, 1).await.unwrap();
        engine.sync().await.unwrap();
        let third = work::write_object(&engine, "tank", BLOCKS, 1).await.unwrap();
        engine.sync().await.unwrap();
        let [first_at, second_at, third_at] =
            [pointers(&engine, first).await, pointers(&engine, second).await, pointers(&engine, third).await];
        // Every other block is so short that it is embedded in its pointer.
        for (block, one) in first_at.iter().enumerate().filter(|(n, _)| n.is_multiple_of(2)) {
            let places = [&second_at, &third_at].map(|at| (at[block].dva(0), at[block].physical_birth()));
            assert_eq!(places, [(one.dva(0), one.physical_birth()); 2], "block {block}");
            assert!(one.is_dedup() && third_at[block].logical_birth() > one.logical_birth());
        }
        remove(&engine, second).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let (entries, shared) = entries_and_shared(&machine, &dir).await;
        let bytes = (BLOCKS / 2) << 14;
        assert_eq!((entries as u64, shared.dedup, shared.dedup_referenced), (BLOCKS / 2, bytes, 2 * bytes));
        assert_eq!(shared.dedup_ratio(), 200);
        (first, third)
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    machine.block_on(async {
        let engine = real::import(&machine, &dir).await.unwrap();
        remove(&engine, first).await;
        remove(&engine, third).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let (entries, shared) = entries_and_shared(&machine, &dir).await;
        assert_eq!((entries, shared.dedup, shared.tables), (0, 0, 0), "a table without entries goes");
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn equal_blocks_are_kept_once() {
    judge("dedup-legacy", None);
}

#[test]
fn equal_blocks_are_kept_once_in_fast_tables() {
    judge("dedup-fast", Some("fast_dedup"));
}

/// More copies than the table has, and gangs, are written by themselves.
#[test]
fn what_the_table_cannot_give_is_written() {
    let dir = real::folder("dedup-apart");
    let machine = weir_linux::machine().unwrap();
    let mut options = real::pool_of(&dir, Layout::Single, 1);
    options.features.push("fast_dedup".into());
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        set(&engine, "dedup", 1 | 1 << 8).await;
        let shared = work::write_object(&engine, "tank", BLOCKS, 1).await.unwrap();
        engine.sync().await.unwrap();
        set(&engine, "copies", 2).await;
        let copied = work::write_object(&engine, "tank", BLOCKS, 1).await.unwrap();
        engine.sync().await.unwrap();
        set(&engine, "copies", 1).await;
        set(&engine, "checksum", 8).await;
        set(&engine, "dedup", 14).await;
        engine.cache.blocks().force_gangs_above(Some(4096)).unwrap();
        let scattered = work::write_object(&engine, "tank", BLOCKS, 1).await.unwrap();
        engine.sync().await.unwrap();
        let is_dedup = |at: Vec<BlockPointer>| at.iter().any(BlockPointer::is_dedup);
        assert!(is_dedup(pointers(&engine, shared).await));
        assert!(!is_dedup(pointers(&engine, copied).await));
        assert!(!is_dedup(pointers(&engine, scattered).await));
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// After a prefetch of the tables, their entries are read from memory.
#[test]
fn prefetched_tables_are_in_the_arc() {
    let dir = real::folder("prefetch");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let rq = &Request::internal("test");
        let engine = Engine::create(&machine, &real::pool_of(&dir, Layout::Single, 1)).await.unwrap();
        set(&engine, "dedup", 8).await;
        for seed in 0..40 {
            work::write_object(&engine, "tank", BLOCKS, seed).await.unwrap();
        }
        engine.export().await.unwrap();
        let engine = real::import(&machine, &dir).await.unwrap();
        let bytes = prefetch(&engine, PrefetchType::Ddt).await.unwrap();
        assert!(bytes > 0);
        assert_eq!(prefetch(&engine, PrefetchType::Brt).await.unwrap(), 0, "no block is cloned");
        let misses = engine.cache.stats().misses;
        let state = engine.synced().state(rq).await.unwrap();
        let mut entries = 0;
        for table in dedup_tables(rq, &state.mos).await.unwrap() {
            entries += dedup_entries(rq, &state.mos, &table, 0).await.unwrap().0.len();
        }
        assert!(entries as u64 >= 20 * BLOCKS);
        assert_eq!(engine.cache.stats().misses, misses, "no entry is read from the device");
        engine.export().await.unwrap();
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

/// With full tables, new contents are written by themselves, and others still share their block.
#[test]
fn a_full_table_gets_no_new_entries() {
    let dir = real::folder("dedup-quota");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &real::pool_of(&dir, Layout::Single, 1)).await.unwrap();
        set(&engine, "dedup", 1).await;
        let written = async |engine: &Arc<Engine>, seed| {
            let id = work::write_object(engine, "tank", BLOCKS, seed).await.unwrap();
            engine.sync().await.unwrap();
            shared_blocks(engine, id).await
        };
        let quota = async |engine: &Arc<Engine>, bytes| {
            let number = PoolProperty::Number { property: "dedup_table_quota".into(), number: bytes };
            engine.properties().set_on_pool(number).await.unwrap();
        };
        assert_eq!(written(&engine, 1).await, BLOCKS / 2);
        quota(&engine, 512).await;
        assert_eq!(written(&engine, 2).await, 0, "new contents");
        assert_eq!(written(&engine, 1).await, BLOCKS / 2, "contents with an entry");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let engine = real::import(&machine, &dir).await.unwrap();
        assert_eq!(written(&engine, 3).await, 0, "the quota is kept");
        quota(&engine, 1 << 30).await;
        assert_eq!(written(&engine, 2).await, BLOCKS / 2, "below the quota");
        quota(&engine, 0).await;
        assert_eq!(written(&engine, 4).await, BLOCKS / 2, "without one");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let (entries, _) = entries_and_shared(&machine, &dir).await;
        assert_eq!(entries as u64, 3 * (BLOCKS / 2), "of the contents 1, 2 and 4");
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Number of blocks of an object that are in a dedup table.
async fn shared_blocks(engine: &Arc<Engine>, id: u64) -> u64 {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let object = set.object(rq, ObjectId(id)).await.unwrap();
    let mut count = 0;
    for block in 0..BLOCKS {
        let pointer = set.pointers().at(rq, &object, 0, block).await.unwrap();
        count += u64::from(pointer.is_some_and(|pointer| pointer.is_dedup()));
    }
    count
}
