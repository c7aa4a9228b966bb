//! Readers whose pointers are old, beside transaction groups that follow each other fast in a tiny pool.

use crate::store::*;
use bytes::Bytes;
use futures_util::future::{join, join_all};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use weir_blocks::{Blocks, Class, VdevGrid, VdevKind, WriteOptions};
use weir_format::{BlockPointer, Txg};
use weir_machine::{Priority, Request};
use weir_sim::{Fault, Timing, run_twice};

/// Contents of the pool, and every pointer that ever existed.
#[derive(Default)]
struct Book {
    live: Vec<(BlockPointer, Vec<u8>)>,
    old: Vec<BlockPointer>,
}

/// A pool that is almost full: one metaslab.
fn tiny(bench: &Bench, kind: VdevKind, disks: usize, missing: &[usize]) -> std::sync::Arc<Blocks> {
    let blocks = bench.blocks(vec![top(0, kind, 12, bench.leaves(0..disks, missing))]);
    blocks.tree().set_writable(true);
    let grid = VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: 18, metaslab_count: 1, non_allocating: false };
    blocks.add_vdev(&grid).unwrap();
    blocks.metaslabs().set_free(0, 0, std::slice::from_ref(&(0..1 << 18))).unwrap();
    blocks
}

/// Transaction groups as fast as the disks allow: each writes some blocks and frees others.
async fn storm(bench: &Bench, blocks: &Blocks, book: &RefCell<Book>, groups: u64) {
    let request = Request::internal("storm").with_priority(Priority::Async);
    for txg in (100..100 + groups).map(Txg) {
        let writes = (0..4u64).map(|i| {
            let data = pattern(4096 * (1 + (txg.0 + i) as usize % 4), txg.0 * 10 + i);
            let options = WriteOptions { txg, ..options() };
            let request = &request;
            async move { blocks.write(request, Bytes::from(data.clone()), &options).await.map(|p| (p, data)) }
        });
        let written = join_all(writes).await;
        let leaving: Vec<_> = {
            let mut book = book.borrow_mut();
            let keep = book.live.len().min(6);
            let leaving = book.live.split_off(keep);
            book.old.extend(leaving.iter().map(|(p, _)| *p));
            leaving
        };
        for (pointer, _) in &leaving {
            blocks.free(&request, pointer, txg).await.unwrap();
        }
        book.borrow_mut().live.extend(written.into_iter().flatten());
        blocks.take_changes(txg);
        blocks.flush().await.unwrap();
        blocks.synced(txg, true);
        if txg.0 % 16 == 0 {
            bench.machine.clock.sleep(Duration::from_micros(200)).await;
        }
    }
}

/// Reads pointers, most of them of blocks that are gone, until the storm is over. Gives how many reads found their
/// block.
async fn readers(bench: &Bench, blocks: &Blocks, book: &RefCell<Book>, over: &Cell<bool>) -> u64 {
    let lanes = (0..6u64).map(|lane| async move {
        let mut found = 0;
        let mut i = lane;
        while !over.get() {
            i = i.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (i >> 33) as usize;
            let pointer = {
                let book = book.borrow();
                // Of the old ones those whose places are being used again just now.
                let old = book.old.len().checked_sub(1 + pick % 60).and_then(|at| book.old.get(at).copied());
                let live = book.live.get(pick % 12).map(|l| l.0);
                if pick.is_multiple_of(4) { live } else { old }
            };
            bench.machine.clock.sleep(Duration::from_micros(20)).await;
            let Some(pointer) = pointer else { continue };
            let request = Request::internal("reader");
            // What it gives does not matter here: the block may be gone.
            let read = blocks.read(&request, &pointer, &Default::default()).await;
            found += u64::from(read.is_ok());
        }
        found
    });
    join_all(lanes).await.into_iter().sum()
}

#[test]
fn old_pointers_never_put_anything_right() {
    for (kind, disks) in [(VdevKind::Mirror, 2usize), (raidz(1), 3)] {
        for seed in 0..4 {
            run_twice(seed, |world| {
                let bench = Bench::over(world.clone(), disks, Timing::Chaos);
                let blocks = tiny(&bench, kind, disks, &[]);
                bench.disks[(seed % 2) as usize].lay(Fault::Slow { factor: 30 });
                let book = RefCell::default();
                let over = Cell::new(false);
                let storm = async {
                    storm(&bench, &blocks, &book, 60).await;
                    over.set(true);
                };
                let (_, found) = bench.world.run(join(storm, readers(&bench, &blocks, &book, &over))).unwrap();
                assert!(found > 50, "{found}");
                for leaf in blocks.tree().health() {
                    assert_eq!(leaf.counts.repaired_bytes, 0, "{kind:?} seed {seed}: {leaf:?}");
                    assert_eq!(leaf.counts.checksum_errors, 0, "{kind:?} seed {seed}: {leaf:?}");
                }
                for missing in 0..disks {
                    let alone = tiny(&bench, kind, disks, &[missing]);
                    for (pointer, data) in &book.borrow().live {
                        assert_eq!(bench.read(&alone, pointer).as_ref(), Ok(data), "{kind:?} without {missing}");
                    }
                }
            })
            .unwrap();
        }
    }
}

/// During a read (or a walk with a read hold), no block that it may refer to is reallocated.
#[test]
fn a_hold_keeps_what_is_freed_from_being_used() {
    let bench = Bench::new(1, 1, Timing::Nvme);
    let blocks = tiny(&bench, VdevKind::Mirror, 1, &[]);
    let request = Request::internal("test");
    let pointer = write(&bench, &blocks, &pattern(64 << 10, 1), &options()).unwrap();
    blocks.synced(TXG, true);
    let hold = blocks.hold();
    bench.world.run(blocks.free(&request, &pointer, Txg(101))).unwrap().unwrap();
    for txg in 101..110 {
        assert!(blocks.synced(Txg(txg), true).is_empty());
    }
    let later = blocks.hold();
    drop(hold);
    assert_eq!(blocks.synced(Txg(110), true), [(0, 0..64 << 10)]);
    drop(later);
}

/// An old pointer does not restore the stale contents that a missed write left on one side.
#[test]
fn what_one_side_missed_is_not_brought_back() {
    let bench = Bench::new(2, 2, Timing::Nvme);
    let blocks = tiny(&bench, VdevKind::Mirror, 2, &[]);
    let request = Request::internal("test");
    let old = write(&bench, &blocks, &pattern(16 << 10, 1), &options()).unwrap();
    let gone = bench.disks[1].lay(Fault::Gone);
    bench.world.run(blocks.free(&request, &old, Txg(101))).unwrap().unwrap();
    let new = {
        let mut txg = 101;
        loop {
            blocks.synced(Txg(txg), true);
            txg += 1;
            let new =
                write(&bench, &blocks, &pattern(16 << 10, 2), &WriteOptions { txg: Txg(txg), ..options() }).unwrap();
            if new.dva(0) == old.dva(0) {
                (20..60).for_each(|n| drop(blocks.synced(Txg(txg + n), true)));
                break new;
            }
        }
    };
    bench.disks[1].lift(gone);
    for _ in 0..4 {
        // The side that missed the new block still has the old one.
        let _ = bench.read(&blocks, &old);
    }
    assert!(blocks.tree().health().iter().all(|h| h.counts.repaired_bytes == 0));
    assert_eq!(bench.read(&blocks, &new).unwrap(), pattern(16 << 10, 2));
    // A scrub, which holds what it reads, brings the side up to date.
    let hold = blocks.hold();
    let scrub = Request::internal("scrub").with_priority(Priority::Scrub);
    bench.world.run(blocks.read(&scrub, &new, &Default::default())).unwrap().unwrap();
    drop(hold);
    assert_eq!(blocks.tree().health()[1].counts.repaired_bytes, 16 << 10);
}
