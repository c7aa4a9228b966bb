//! Volumes that share blocks, in pools on real files, judged by zdb.

use crate::files::{import, noise};
use crate::real::{folder, pool_of};
use crate::{work, zdb};
use bytes::Bytes;
use std::sync::Arc;
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::{Engine, Layout};
use weir_machine::Request;
use weir_volumes::Volume;

const BLOCK: usize = 16 << 10;
const BYTES: usize = 8 << 20;

async fn create(engine: &Engine, name: &str, block_bytes: u32) -> Arc<Volume> {
    let kind = Kind::Volume(VolumeSpec { size_bytes: BYTES as u64, block_bytes });
    engine.create_dataset(NewDataset { name: name.into(), kind, properties: Vec::new() }).await.unwrap();
    engine.volume(&Request::internal("test"), name).await.unwrap()
}

async fn demand(volume: &Volume, wanted: &[u8]) {
    let found = volume.read(&Request::internal("test"), 0, wanted.len()).await.unwrap();
    let same = found.chunks(BLOCK).zip(wanted.chunks(BLOCK)).position(|(found, wanted)| found != wanted);
    assert_eq!(same, None, "{}: the first block that differs", volume.name());
}

/// Clones a whole range, call by call.
async fn clone_all(to: &Volume, from: &Volume, from_offset: usize, offset: usize, len: usize) {
    let rq = &Request::internal("test");
    let mut at = 0;
    while at < len {
        let left = (len - at) as u64;
        let cloned = to.clone_range(rq, from, (from_offset + at) as u64, (offset + at) as u64, left).await.unwrap();
        assert!(cloned > 0 && cloned <= left, "{cloned} of {left} bytes at {at}");
        at += cloned as usize;
    }
}

/// Clones within a volume, to another one and from a snapshot; with holes, and of what was written just before.
async fn clones(engine: &Engine, data: &Bytes) {
    let rq = &Request::internal("test");
    let a = create(engine, "tank/a", BLOCK as u32).await;
    let b = create(engine, "tank/b", BLOCK as u32).await;
    let other = create(engine, "tank/other", 8 << 10).await;
    a.write(rq, 0, data.clone(), false).await.unwrap();
    a.zero(rq, 1 << 20, 1 << 20, true, false).await.unwrap();
    let mut wanted_a = data.to_vec();
    wanted_a[1 << 20..2 << 20].fill(0);
    // The blocks are not synced: a long copy waits for it.
    clone_all(&b, &a, 0, 0, BYTES).await;
    demand(&b, &wanted_a).await;
    b.flush(rq).await.unwrap();
    assert_eq!(engine.gate.space().saved_bytes, 7 << 20, "each block exists once");
    demand(&b, &wanted_a).await;
    // A block that is changed is the changer's own.
    a.write(rq, 9, Bytes::from_static(b"mine"), false).await.unwrap();
    b.write(rq, 3 << 20, Bytes::from(vec![7; BLOCK]), false).await.unwrap();
    let mut wanted_b = wanted_a.clone();
    wanted_b[3 << 20..][..BLOCK].fill(7);
    engine.snapshot(vec!["tank/a@old".into()], Vec::new()).await.unwrap();
    let old = engine.volume(rq, "tank/a@old").await.unwrap();
    let mut wanted_old = wanted_a.clone();
    wanted_old[9..13].copy_from_slice(b"mine");
    a.write(rq, 0, Bytes::from(vec![1; 1 << 20]), false).await.unwrap();
    clone_all(&b, &old, 0, 4 << 20, 1 << 20).await;
    wanted_b[4 << 20..5 << 20].copy_from_slice(&wanted_old[..1 << 20]);
    clone_all(&b, &b, 5 << 20, 0, 1 << 20).await;
    wanted_b.copy_within(5 << 20..6 << 20, 0);
    demand(&b, &wanted_b).await;
    engine.sync().await.unwrap();
    demand(&b, &wanted_b).await;
    demand(&old, &wanted_old).await;
    // Not clonable: half blocks, blocks of another size, overlapping ranges, a short range that is not synced.
    a.write(rq, 0, Bytes::from(vec![2; 2 * BLOCK]), false).await.unwrap();
    let block = BLOCK as u64;
    for (to, from, from_offset, offset, len) in [
        (&b, &a, 512, 0, 4 * block),
        (&b, &a, 0, 512, 4 * block),
        (&b, &a, 0, 0, block - 1),
        (&other, &a, 0, 0, 4 * block),
        (&b, &b, 0, block, 2 * block),
        (&b, &a, 0, 0, 2 * block),
    ] {
        let cloned = to.clone_range(rq, from, from_offset, offset, len).await.unwrap();
        assert_eq!(cloned, 0, "{} {from_offset} to {} {offset}", from.name(), to.name());
    }
    assert!(a.clone_range(rq, &b, 0, BYTES as u64, block).await.is_err(), "beyond the end");
    assert!(old.clone_range(rq, &a, 0, 0, block).await.is_err(), "a snapshot is read-only");
    demand(&b, &wanted_b).await;
}

#[test]
fn volumes_share_blocks() {
    let dir = folder("volume-clones");
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    let data = noise(BYTES, 3);
    let wanted = machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        clones(&engine, &data).await;
        let b = engine.volume(rq, "tank/b").await.unwrap();
        let wanted = b.read(rq, 0, BYTES).await.unwrap();
        drop(b);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        wanted
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let engine = import(&machine, &dir).await;
        let b = engine.volume(rq, "tank/b").await.unwrap();
        demand(&b, &wanted).await;
        engine.destroy_snapshots(vec!["tank/a@old".into()], false).await.unwrap();
        engine.destroy_dataset("tank/a".into()).await.unwrap();
        engine.sync().await.unwrap();
        demand(&b, &wanted).await;
        b.zero(rq, 0, 1 << 20, true, false).await.unwrap();
        engine.sync().await.unwrap();
        assert_eq!(engine.gate.space().saved_bytes, 0, "one holder is left");
        drop(b);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A volume is destroyed right after its blocks were cloned: the clones keep them.
#[test]
fn a_source_that_is_destroyed_at_once_leaves_its_clones() {
    let dir = folder("volume-clones-destroyed");
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    let data = noise(BYTES, 5);
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        let b = create(&engine, "tank/b", BLOCK as u32).await;
        for round in 0..4 {
            let name = format!("tank/a{round}");
            let a = create(&engine, &name, BLOCK as u32).await;
            a.write(rq, 0, data.clone(), false).await.unwrap();
            engine.sync().await.unwrap();
            clone_all(&b, &a, 0, 0, BYTES).await;
            drop(a);
            if engine.destroy_dataset(name.clone()).await.is_err() {
                // References that are not synced yet keep it.
                engine.sync().await.unwrap();
                engine.destroy_dataset(name).await.unwrap();
            }
            demand(&b, &data).await;
        }
        drop(b);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A crash came when one side of a mirror had the data of a commit and the other had not: the log has the commit, and the other
/// side is not at fault.
#[test]
fn data_of_a_log_that_one_side_lacks_is_no_fault_of_the_device() {
    let dir = folder("log-data-on-one-side");
    let crashed = folder("log-data-on-one-side-crashed");
    let machine = weir_linux::machine().unwrap();
    let block = 128 << 10;
    let data = noise(4 << 20, 5);
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        let volume = create(&engine, "tank/v", block as u32).await;
        engine.sync().await.unwrap();
        let rq = &Request::internal("test");
        // The first commit begins the log, which a txg writes.
        volume.write(rq, 0, Bytes::from_static(b"begin"), false).await.unwrap();
        volume.flush(rq).await.unwrap();
        engine.sync().await.unwrap();
        let txg = engine.shown().uberblock.txg;
        volume.write(rq, 0, data.clone(), false).await.unwrap();
        volume.flush(rq).await.unwrap();
        let sides = ["a0", "a1"].map(|name| (crashed.join(name), std::fs::read(dir.join(name)).unwrap()));
        assert_eq!(engine.shown().uberblock.txg, txg, "the data is in the log only");
        let mut lacking = 0;
        for (path, mut bytes) in sides {
            let places: Vec<usize> = (0..bytes.len() - block)
                .step_by(4096)
                .filter(|at| data.chunks(block).any(|block| bytes[*at..*at + block.len()] == *block))
                .collect();
            assert_eq!(
                places.len(),
                data.len() / block,
                "{}: the commit has the data beside its records",
                path.display()
            );
            if path.ends_with("a1") {
                lacking = places.len();
                places.into_iter().for_each(|at| bytes[at..at + block].fill(0));
            }
            std::fs::write(path, bytes).unwrap();
        }
        assert!(lacking > 0);
        engine.export().await.unwrap();
        let engine = import(&machine, &crashed).await;
        demand(&engine.volume(rq, "tank/v").await.unwrap(), &data).await;
        let health = engine.cache.blocks().tree().health();
        assert!(health.iter().all(|leaf| leaf.counts.checksum_errors == 0), "{health:?}");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &crashed, "tank").await;
    });
    zdb::assert_clean(&crashed, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::remove_dir_all(&crashed).unwrap();
}
