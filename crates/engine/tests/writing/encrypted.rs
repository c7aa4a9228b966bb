//! Encrypted datasets: made, written, snapshotted and cloned, with changed keys; judged by zdb without the key, and
//! read again with it.

use crate::{real, work, zdb};
use std::path::Path;
use std::sync::Arc;
use weir_codec::crypt::{Suite, WrappingKey};
use weir_dmu::live::{NewObject, Policy, SpaceReserve, TxAdmission};
use weir_dmu::{ObjectSet, Opening};
use weir_dsl::sync_tasks::{
    FileSystemSpec, KeySource, Kind, NewDataset, NewKey, bookmark, branch, create, destroy, destroy_head, key,
};
use weir_dsl::{KeyFormat, SetKey};
use weir_engine::{CreateOptions, Engine, Layout};
use weir_engine::{ImportOptions, TxgSync};
use weir_format::{ObjectId, ObjsetId, ObjsetKind};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};

const BLOCKS: u64 = 24;

fn secret(n: u8) -> Vec<u8> {
    vec![n; 32]
}

fn source() -> KeySource {
    KeySource { format: KeyFormat::Raw, salt: 0, iterations: 0, location: "prompt".into() }
}

async fn make(engine: &Engine, name: &str, suite: Suite, key: NewKey, n: u8) -> Result<SetKey, PoolError> {
    let name = name.to_owned();
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let spec = FileSystemSpec::default();
                let new = NewDataset { name, kind: Kind::FileSystem(spec), properties: Vec::new() };
                let created = create::create(&mut syncing.change, &new).await?;
                let wrapping = WrappingKey::from_raw(&secret(n)).unwrap();
                let (_, _, key) = key::encrypt_new(&mut syncing.change, created, suite, &key, &wrapping).await?;
                let gate: Arc<dyn TxAdmission> = syncing.engine.gate.clone();
                let opening = Opening { id: ObjsetId(created.dataset.0), key: Some(key.clone()), ..Opening::default() };
                let cache = syncing.engine.cache.clone();
                let set = ObjectSet::make_with(cache, opening, ObjsetKind::Zfs, gate, Policy::default());
                spec.create(syncing.change.rq, &set, syncing.change.tx).await?;
                syncing.add_set(set);
                Ok(key)
            })
        })
        .await
}

/// Makes an encrypted dataset with an object of `blocks` blocks of 16 KiB: its key and object, with the contents of seed 3.
pub async fn write_encrypted(engine: &Engine, name: &str, blocks: u64) -> (SetKey, u64) {
    let key = make(engine, name, Suite::Aes256Gcm, NewKey::Root(source()), 1).await.unwrap();
    let object = write_blocks(engine, name, key.clone(), 3, blocks).await;
    (key, object)
}

async fn write(engine: &Engine, name: &str, key: SetKey, seed: u64) -> u64 {
    write_blocks(engine, name, key, seed, BLOCKS).await
}

async fn write_blocks(engine: &Engine, name: &str, key: SetKey, seed: u64, blocks: u64) -> u64 {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, name, Some(key)).await.unwrap();
    let tx = set.begin(rq, blocks << 14, SpaceReserve::Normal).await.unwrap();
    let new = NewObject::new(weir_format::ObjectType::PLAIN_FILE_CONTENTS, 16 << 10);
    let id = set.changes().create(rq, &tx, &new).await.unwrap();
    for block in 0..blocks {
        set.writes().write(rq, &tx, id, block << 14, &work::contents(seed, block)).await.unwrap();
    }
    id.0
}

/// Demands that `object` of a dataset can be read with the key.
async fn assert_readable(machine: &Machine, dir: &Path, name: &str, (root, n): (&str, u8), object: u64, seed: u64) {
    let rq = &Request::internal("test");
    let mut options = OpenOptions::new(vec![dir.to_owned()], "tank");
    options.keys = vec![(root.to_owned(), secret(n))];
    let pool = Pool::open(machine, &options).await.unwrap();
    let dataset = pool.dsl.find(rq, name).await.unwrap();
    let key = pool.loaded.get(&dataset.dir).cloned();
    assert!(key.is_some(), "{name} has no key");
    let set = pool.dsl.open_set(rq, &dataset, key).await.unwrap();
    let found = set.object(rq, ObjectId(object)).await.unwrap();
    for block in 0..BLOCKS {
        let bytes = set.reader().read_block(rq, &found, block).await.unwrap().unwrap();
        assert!(bytes[..] == work::contents(seed, block)[..], "{name} object {object} block {block}");
    }
}

#[test]
fn encrypted_datasets() {
    let dir = real::folder("encrypted");
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![real::top(&dir, "a", Class::Normal, Layout::Mirror, 2)]);
    let objects = machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let root = make(&engine, "tank/e", Suite::Aes256Gcm, NewKey::Root(source()), 1).await.unwrap();
        let child = make(&engine, "tank/e/c", Suite::Aes128Ccm, NewKey::Inherited, 1).await.unwrap();
        let objects = [write(&engine, "tank/e", root.clone(), 5).await, write(&engine, "tank/e/c", child, 6).await];
        work::snapshot(&engine, "tank/e@s").await.unwrap();
        write(&engine, "tank/e", root, 7).await;
        engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    branch::clone_snapshot(&mut syncing.change, "tank/e@s", "tank/e/k", &[]).await?;
                    bookmark::bookmark(&mut syncing.change, &[("tank/e#b".into(), "tank/e@s".into())]).await?;
                    let [old, new] = [1, 2].map(|n| WrappingKey::from_raw(&secret(n)).unwrap());
                    Ok(key::change_key(&mut syncing.change, "tank/e", &old, &new, &source()).await?)
                })
            })
            .await
            .unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        objects
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    machine.block_on(async {
        for (name, object, seed) in [
            ("tank/e", objects[0], 5),
            ("tank/e@s", objects[0], 5),
            ("tank/e/k", objects[0], 5),
            ("tank/e/c", objects[1], 6),
        ] {
            assert_readable(&machine, &dir, name, ("tank/e", 2), object, seed).await;
        }
        let import = ImportOptions::new(OpenOptions::new(vec![dir.clone()], "tank"));
        let engine = Engine::import(&machine, &import).await.unwrap();
        engine
            .sync_task(|syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    for name in ["tank/e/k", "tank/e/c"] {
                        destroy_head::destroy(&mut syncing.change, name).await?;
                    }
                    Ok(destroy::destroy_snapshots(&mut syncing.change, &["tank/e@s".into()], false).await?)
                })
            })
            .await
            .unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}
