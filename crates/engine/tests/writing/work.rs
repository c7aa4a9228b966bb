//! What is done to a pool, on real files and in the simulator alike.

use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dmu::live::{NewObject, Policy, SpaceReserve, TxAdmission};
use weir_dsl::Dir;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, create, snapshot};
use weir_engine::{Engine, TxgSync};
use weir_format::{ObjectType, ObjsetId};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, PoolError};

/// Makes a file system below the root one.
pub async fn make_dataset(engine: &Engine, name: &str) -> Result<(), PoolError> {
    let name = name.to_owned();
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let spec = FileSystemSpec::default();
                let new = NewDataset { name, kind: Kind::FileSystem(spec), properties: Vec::new() };
                let created = create::create(&mut syncing.change, &new).await?;
                let engine = syncing.engine;
                let gate: Arc<dyn TxAdmission> = engine.gate.clone();
                let id = ObjsetId(created.dataset.0);
                let set = ObjectSet::make(engine.cache.clone(), id, new.kind.objset(), gate, Policy::default());
                spec.create(syncing.change.rq, &set, syncing.change.tx).await?;
                syncing.add_set(set);
                Ok(())
            })
        })
        .await
}

/// Takes a snapshot.
pub async fn snapshot(engine: &Engine, name: &str) -> Result<(), PoolError> {
    let names = vec![name.to_owned()];
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(snapshot::snapshot(&mut syncing.change, &names, &[]).await.map(drop)?) })
        })
        .await
}

/// Writes an object of `blocks` blocks of 16 KiB, of which every other is incompressible.
pub async fn write_object(engine: &Engine, name: &str, blocks: u64, seed: u64) -> Result<u64, PoolError> {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, name, None).await?;
    let tx = set.begin(rq, blocks << 14, SpaceReserve::Normal).await?;
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 16 << 10);
    let id = set.changes().create(rq, &tx, &new).await?;
    for block in 0..blocks {
        set.writes().write(rq, &tx, id, block << 14, &contents(seed, block)).await?;
    }
    Ok(id.0)
}

/// Contents of a block of such an object.
pub fn contents(seed: u64, block: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(block) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if block.is_multiple_of(2) { (state >> 32) as u8 } else { 7 }
    };
    (0..16 << 10).map(|_| byte()).collect()
}

/// A history of several transaction groups; `on_synced` is called when one is stable.
pub async fn history(engine: &Engine, on_synced: &(dyn Fn(&Engine) + Sync)) -> Result<(), PoolError> {
    let rq = &Request::internal("test");
    let root = engine.name();
    let first = write_object(engine, &root, 20, 1).await?;
    engine.sync().await?;
    on_synced(engine);
    make_dataset(engine, &format!("{root}/weir-a")).await?;
    write_object(engine, &format!("{root}/weir-a"), 30, 2).await?;
    snapshot(engine, &format!("{root}/weir-a@s")).await?;
    let set = engine.open_set(rq, &root, None).await?;
    {
        let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await?;
        set.frees().remove(rq, &tx, weir_format::ObjectId(first)).await?;
    }
    engine.sync().await?;
    on_synced(engine);
    write_object(engine, &format!("{root}/weir-a"), 10, 3).await?;
    engine.sync().await?;
    on_synced(engine);
    Ok(())
}

/// Removes every other file of all file systems below the root, and destroys what can be destroyed.
pub async fn destroy_all(engine: &Engine) -> Result<(), PoolError> {
    let rq = &Request::internal("test");
    let is_plain = |dir: &&Dir| !dir.fields.contains_key("com.datto:crypto_key_obj");
    let names: Vec<String> =
        engine.synced().dsl(rq).await?.dirs().into_iter().filter(is_plain).map(|dir| dir.name.clone()).collect();
    for name in names {
        let set = engine.open_set(rq, &name, None).await?;
        let mut at = 8;
        let mut odd = false;
        while let Some(id) = set.dnodes().next_object(rq, weir_format::ObjectId(at)).await? {
            at = id.0 + 1;
            odd = !odd;
            if odd && set.object(rq, id).await?.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS {
                let tx = set.begin(rq, 16 << 10, SpaceReserve::NetFree).await?;
                set.frees().remove(rq, &tx, id).await?;
            }
        }
    }
    engine.sync().await
}

/// Weir's own judgement of the pool in `search`: all readable, all accounted for.
pub async fn assert_pool_clean(machine: &Machine, search: &std::path::Path, name: &str) {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![search.to_owned()], name)).await.unwrap();
    let report = weir_pool::verify::verify_pool(&pool, rq).await.unwrap();
    let leaks: Vec<_> = report.leaks().take(5).collect();
    let invariants = weir_pool::invariants::check_invariants(&pool, rq).await.unwrap();
    let findings: Vec<String> = invariants.findings.iter().take(12).map(ToString::to_string).collect();
    assert!(invariants.is_clean(), "{name} at txg {}: {findings:#?}", pool.uberblock.txg);
    let faults = report.space.as_ref().map(|s| format!("{:?}", s.faults));
    assert!(
        report.is_clean(),
        "{name} at txg {}: unreadable {:?}, clashes {:?}, leaks {leaks:x?}, {faults:?}",
        pool.uberblock.txg,
        report.unreadable.iter().take(3).collect::<Vec<_>>(),
        report.clashes.iter().take(3).collect::<Vec<_>>()
    );
    // Whether the space maps are compared at once or in passes makes no difference.
    let passes = weir_pool::verify::verify_pool_in_passes(&pool, rq, 16).await.unwrap();
    assert!(passes.is_clean(), "{name} in passes: clashes {:?}", passes.clashes.iter().take(3).collect::<Vec<_>>());
    let sums = |r: &weir_pool::verify::Report| (r.found_bytes(), r.allocated_bytes(), r.deduped, r.cloned);
    assert_eq!(sums(&passes), sums(&report), "{name}");
}
