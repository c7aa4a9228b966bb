//! Scrubs read blocks in the order of their offsets, over several passes, while the pool changes.

use crate::real::{folder, import, top};
use crate::{work, zdb};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::{BlockError, ScanQueue};
use weir_dmu::live::{NewObject, SpaceReserve};
use weir_engine::scrub::ScanLimits;
use weir_engine::{CreateOptions, Engine, Layout};
use weir_format::{BlockPointer, ObjectId, ObjectType, Txg};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::walk::{Claim, Position, Prove, Visit, VisitPosition, Walk};

const BLOCK_BYTES: u64 = 16 << 10;
/// Number of blocks of each of the two files. The tests write both files at the same time.
const BLOCKS: u64 = 400;

/// Limits with which a pass reads a small part of the blocks that the walk found.
fn parts() -> ScanLimits {
    ScanLimits { time: Duration::from_secs(60), bytes: 1 << 20, sorted_blocks: 100_000, ..ScanLimits::default() }
}

/// Writes blocks of an object.
async fn write(engine: &Engine, id: ObjectId, blocks: std::ops::Range<u64>, seed: u64) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let tx = set.begin(rq, (blocks.end - blocks.start) * BLOCK_BYTES, SpaceReserve::Normal).await.unwrap();
    for block in blocks {
        set.writes().write(rq, &tx, id, block * BLOCK_BYTES, &work::contents(seed, 2 * block)).await.unwrap();
    }
}

/// A pool of a mirror with two files whose blocks lie between each other.
async fn pool(machine: &Machine, name: &str) -> (PathBuf, Arc<Engine>, [ObjectId; 2]) {
    let dir = folder(name);
    let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, Layout::Mirror, 2)]);
    let engine = Engine::create(machine, &options).await.unwrap();
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let mut ids = [ObjectId(0); 2];
    for id in &mut ids {
        let tx = set.begin(rq, BLOCK_BYTES, SpaceReserve::Normal).await.unwrap();
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK_BYTES as u32);
        *id = set.changes().create(rq, &tx, &new).await.unwrap();
    }
    for first in (0..BLOCKS).step_by(20) {
        for (seed, id) in (1..).zip(ids) {
            write(&engine, id, first..first + 20, seed).await;
        }
        engine.sync().await.unwrap();
    }
    (dir, engine, ids)
}

/// The offsets of the blocks of files, in the order in which they are visited.
#[derive(Default)]
struct Offsets(Vec<u64>);

impl Visit for Offsets {
    fn block(&mut self, _: &VisitPosition, bp: &BlockPointer) -> bool {
        if bp.level() == 0 && bp.object_type() == ObjectType::PLAIN_FILE_CONTENTS {
            self.0.push(bp.dva(0).offset_bytes);
        }
        false
    }

    fn claim(&mut self, _: &VisitPosition, _: &BlockPointer, _: Claim) {}

    fn unreadable(&mut self, at: &VisitPosition, _: &BlockPointer, error: &BlockError) {
        panic!("{at}: {error}");
    }
}

#[test]
fn found_blocks_are_read_in_the_order_of_their_offsets() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let (dir, engine, _) = pool(&machine, "sorted-order").await;
        let rq = &Request::internal("test");
        let roots = async || {
            let mos = weir_pool::mos::Mos { set: engine.synced().state(rq).await.unwrap().mos.clone() };
            weir_pool::roots::roots(rq, &mos).await.unwrap().0
        };
        let blocks = engine.cache.blocks().clone();
        let walk = Walk { machine: machine.clone(), blocks, prove: Prove::Everything, log_before: Txg(u64::MAX) };
        let mut in_file_order = Offsets::default();
        walk.run(roots().await, &mut in_file_order).await;
        assert_eq!(in_file_order.0.len() as u64, 2 * BLOCKS);
        assert!(!in_file_order.0.is_sorted(), "the files lie one behind the other");

        let queue = Arc::new(ScanQueue::default());
        let mut sorted = Offsets::default();
        let mut from = Some(Position::default());
        let mut ends = Vec::new();
        while let Some(place) = from {
            from = walk.find_from(roots().await, place, (queue.clone(), 300), &mut sorted).await;
            assert!(sorted.0.is_empty() || !ends.is_empty(), "blocks are read while they are looked for");
            walk.read_found(&queue, &mut sorted).await;
            ends.push(sorted.0.len());
        }
        assert!(ends.len() >= 3, "a queue of 300 blocks is filled several times: {ends:?}");
        let mut begin = 0;
        for end in ends {
            assert!(sorted.0[begin..end].is_sorted(), "blocks {begin} to {end} are out of order");
            begin = end;
        }
        sorted.0.sort_unstable();
        in_file_order.0.sort_unstable();
        assert_eq!(sorted.0, in_file_order.0, "all are visited once");
        engine.export().await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A block that was found is freed, and its space is used again, before it is read.
#[test]
fn found_blocks_that_are_freed_are_not_read() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let (dir, engine, ids) = pool(&machine, "sorted-freed").await;
        engine.scrubs().start().await.unwrap();
        let first = engine.scrubs().run(&parts(), &mut |_| false).await.unwrap().unwrap();
        let queue = engine.cache.blocks().scan_queue().unwrap();
        let found = queue.len();
        assert!(first.is_open() && found as u64 > BLOCKS, "{found} blocks wait: {first:?}");
        for seed in 10..20 {
            write(&engine, ids[0], 0..BLOCKS, seed).await;
            engine.sync().await.unwrap();
        }
        assert!(queue.len() <= found - BLOCKS as usize / 2, "{} of {found} wait", queue.len());
        let done = engine.scrubs().run(&parts(), &mut |_| true).await.unwrap().unwrap();
        assert!(done.is_finished() && done.scan.errors == 0 && done.scan.processed_bytes == 0, "{done:?}");
        let health = engine.cache.blocks().tree().health();
        assert!(health.iter().all(|leaf| leaf.counts.checksum_errors == 0), "{health:?}");
        assert!(queue.is_empty());
        engine.export().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A process ends while found blocks are read: the next one begins again at the recorded position, with the counts of that.
#[test]
fn a_scrub_begins_again_where_all_was_read() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let (dir, engine, _) = pool(&machine, "sorted-again").await;
        engine.scrubs().start().await.unwrap();
        let mut places = Vec::new();
        let mut note = |progress: &weir_engine::scrub::Progress| {
            places.push((progress.place, progress.ahead, progress.scan.examined_bytes));
            places.len() < 5
        };
        engine.scrubs().run(&parts(), &mut note).await.unwrap();
        let examined: Vec<u64> = places.iter().map(|(_, _, examined)| *examined).collect();
        assert!(examined.is_sorted() && examined[4] > examined[0] + (3 << 20), "{places:?}");
        for (place, ahead, _) in &places {
            assert_eq!((*place, ahead.map(|counts| counts.examined_bytes)), (Position::default(), Some(0)));
        }
        engine.stop().await.unwrap();

        let engine = import(&machine, &dir).await.unwrap();
        let next = engine.scrubs().run(&parts(), &mut |_| false).await.unwrap().unwrap();
        assert!(next.scan.examined_bytes < examined[2], "{examined:?}, then {next:?}");
        let mut most = 0;
        let mut note = |progress: &weir_engine::scrub::Progress| (most = progress.scan.examined_bytes, true).1;
        let done = engine.scrubs().run(&parts(), &mut note).await.unwrap().unwrap();
        assert!(done.is_finished() && done.scan.errors == 0 && done.ahead.is_none(), "{done:?}");
        assert!(most <= done.scan.to_examine_bytes * 11 / 10, "blocks are counted twice: {done:?}");
        engine.export().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
