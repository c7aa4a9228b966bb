//! A pool in the middle of the removal of a vdev, as OpenZFS leaves it: the vdev still has its blocks, a mapping leads
//! to copies of the first of them, and no block pointer leads to the copies.

use crate::real;
use std::collections::BTreeMap;
use std::path::Path;
use weir_blocks::WriteOptions;
use weir_dmu::live::NewObject;
use weir_engine::TxgSync;
use weir_engine::{CreateOptions, Engine, Layout};
use weir_format::indirect::MappingEntry;
use weir_format::{Encoder, Endian, ObjectId, ObjectType, Txg};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::verify::{Plan, Report, verify};
use weir_pool::walk::{Prove, Walk};
use weir_pool::{OpenOptions, Pool, PoolError};

/// Bytes of a copied piece.
const PIECE_BYTES: u64 = 64 << 10;
/// Arrays of 64-bit metadata (`DMU_OTN_UINT64_METADATA`).
const UINT64_METADATA: ObjectType = ObjectType(0xc3);

/// Takes places on vdev 1 for what is allocated at the start of vdev 0, and writes the mapping that leads to them.
async fn copy_a_part(syncing: &mut TxgSync<'_>, pieces: usize) -> Result<ObjectId, PoolError> {
    let blocks = syncing.engine.cache.blocks().clone();
    let mut entries = Vec::new();
    blocks.metaslabs().load(0, 0).await.unwrap();
    for range in blocks.metaslabs().allocated_as_synced(0, 0).unwrap() {
        let mut at = range.start;
        while at < range.end && entries.len() < pieces {
            let len = PIECE_BYTES.min(range.end - at);
            let options = WriteOptions::new(syncing.change.txg(), ObjectType::PLAIN_FILE_CONTENTS);
            let reserved = blocks.reserve(len, &options).await.unwrap();
            let target = reserved.dvas()[0];
            assert_eq!((target.vdev, target.asize_bytes), (1, len));
            entries.push(MappingEntry { source_bytes: at, target });
            at += len;
        }
    }
    let end = entries.last().map_or(0, MappingEntry::source_end_bytes);
    let bytes = entries.len() as u64 * 24;
    let mapped: u64 = entries.iter().map(|entry| entry.target.asize_bytes).sum();
    let header: Vec<u8> = [end, mapped, entries.len() as u64].iter().flat_map(|word| word.to_le_bytes()).collect();
    let rq = syncing.change.rq;
    let mos = &syncing.change.mos;
    let tx = syncing.change.tx;
    let new = NewObject::new(UINT64_METADATA, 128 << 10).bonus(UINT64_METADATA, header);
    let id = mos.changes().create(rq, tx, &new).await?;
    let mut e = Encoder::new(Endian::Little);
    entries.iter().for_each(|entry| entry.encode(&mut e));
    assert_eq!(bytes, entries.len() as u64 * MappingEntry::SIZE as u64);
    mos.writes().write(rq, tx, id, 0, &e.finish()).await?;
    Ok(id)
}

/// Verifies the pool as if vdev 0 were being removed, with this mapping.
async fn verify_removing(machine: &Machine, dir: &Path, mapping: Option<ObjectId>, max_segments: u64) -> Report {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap();
    let mut tops = pool.tree.children.clone();
    if let Some(mapping) = mapping {
        tops[0].removing = true;
        tops[0].indirect_object = mapping.0;
    }
    let log_before = Txg(pool.uberblock.txg.0 + 1);
    let walk = Walk { machine: machine.clone(), blocks: pool.blocks.clone(), prove: Prove::Nothing, log_before };
    let plan = Plan { walk, mos: &pool.mos, tops: &tops, moved: BTreeMap::new(), space: true, max_segments };
    let (roots, _) = weir_pool::roots::roots(rq, &pool.mos).await.unwrap();
    verify(rq, &plan, roots, &mut |_| ()).await.unwrap()
}

#[test]
fn copies_of_a_removal_in_progress_are_no_leak() {
    let dir = real::folder("removing");
    let machine = weir_linux::machine().unwrap();
    let tops = ["a", "b"].map(|name| real::top(&dir, name, Class::Normal, Layout::Single, 1));
    machine.block_on(async {
        let engine = Engine::create(&machine, &CreateOptions::new("tank", tops.into())).await.unwrap();
        crate::work::write_object(&engine, "tank", 64, 1).await.unwrap();
        engine.sync().await.unwrap();
        engine.cache.blocks().set_non_allocating(0, true).unwrap();
        // What each of these groups changes in the MOS leaves vdev 0, so that the last of them frees nothing there.
        let mut mapping = ObjectId(0);
        for pieces in [0, 0, 0, 9] {
            mapping = engine
                .sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(copy_a_part(syncing, pieces)))
                .await
                .unwrap();
        }
        engine.stop().await.unwrap();
        for max_segments in [1, u64::MAX] {
            let without = verify_removing(&machine, &dir, None, max_segments).await;
            assert!(without.leaks().count() > 0, "copies without a removal are leaks");
            let report = verify_removing(&machine, &dir, Some(mapping), max_segments).await;
            assert!(report.is_clean(), "leaks {:x?}, clashes {:?}", report.leaks().collect::<Vec<_>>(), report.clashes);
            assert!(report.removing_bytes > 0);
            assert_eq!(report.found_bytes(), report.allocated_bytes());
            assert_eq!(report.space.unwrap().passes > 1, max_segments == 1);
        }
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
