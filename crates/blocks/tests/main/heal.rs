//! What a read finds wrong, and redundancy makes good, is put right on the disk.

use crate::store::*;
use std::sync::Arc;
use weir_blocks::{Blocks, VdevKind, WriteOptions};
use weir_format::BlockPointer;
use weir_machine::{Priority, Request};
use weir_sim::{Fault, Timing};

fn read_as(bench: &Bench, blocks: &Blocks, pointer: &BlockPointer, priority: Priority) -> Vec<u8> {
    let request = Request::internal("test").with_priority(priority);
    bench.world.run(blocks.read(&request, pointer, &Default::default())).unwrap().unwrap().to_vec()
}

fn repaired(blocks: &Blocks) -> Vec<u64> {
    blocks.tree().health().iter().map(|h| h.counts.repaired_bytes).collect()
}

fn rot_all(bench: &Bench, disk: usize) {
    bench.disks[disk].lay(Fault::Rot { offset: FRONT, len: 16 << 20, bits: 60_000 });
}

fn cases() -> [(VdevKind, usize); 5] {
    [(VdevKind::Mirror, 2), (VdevKind::Mirror, 3), (raidz(1), 3), (raidz(2), 5), (raidz(3), 7)]
}

/// Each disk in turn rots all over; after the blocks were scrubbed, all the other disks may be lost as far as redundancy
/// goes.
#[test]
fn a_scrub_puts_every_column_right() {
    for (kind, disks) in cases() {
        for bad in 0..disks {
            let bench = Bench::new(bad as u64, disks, Timing::Nvme);
            let blocks = pool_of(&bench, kind, 12, disks, &[]);
            let sizes = [4096usize, 8192, 12 << 10, 100 << 10, 128 << 10];
            let written: Vec<_> = sizes
                .into_iter()
                .map(|len| {
                    let data = pattern(len, len as u64);
                    (write(&bench, &blocks, &data, &options()).unwrap(), data)
                })
                .collect();
            blocks.synced(TXG, true);
            rot_all(&bench, bad);
            for (pointer, data) in &written {
                assert_eq!(&read_as(&bench, &blocks, pointer, Priority::Scrub), data, "{kind:?}");
            }
            let done = repaired(&blocks);
            assert!(done[bad] > 0 && done.iter().enumerate().all(|(d, &n)| d == bad || n == 0), "{kind:?} {done:?}");
            let errors = || blocks.tree().health().iter().map(|h| h.counts.checksum_errors).sum::<u64>();
            let before = errors();
            for (pointer, data) in &written {
                assert_eq!(&read_as(&bench, &blocks, pointer, Priority::Scrub), data);
            }
            assert_eq!((errors(), repaired(&blocks)), (before, done), "{kind:?}: nothing is wrong any more");
        }
    }
}

#[test]
fn a_plain_read_puts_right_what_it_stumbled_on() {
    for (kind, disks) in cases() {
        let bench = Bench::new(3, disks, Timing::Chaos);
        let blocks = pool_of(&bench, kind, 12, disks, &[]);
        let data = pattern(128 << 10, 3);
        let pointer = write(&bench, &blocks, &data, &options()).unwrap();
        blocks.synced(TXG, true);
        // Disks that the read asks: the first side of a mirror, data columns of RAID-Z.
        let (first, second) = if kind == VdevKind::Mirror { (0, 1) } else { (disks - 2, disks - 1) };
        rot_all(&bench, second);
        bench.disks[first].lay(Fault::Unreadable { offset: FRONT, len: 1 << 20 });
        let bears = if kind == raidz(1) || (kind == VdevKind::Mirror && disks == 2) { 1 } else { 2 };
        if bears == 1 {
            assert!(bench.read(&blocks, &pointer).is_err(), "{kind:?}");
            assert_eq!(repaired(&blocks).iter().sum::<u64>(), 0, "what is not proven is not written");
            continue;
        }
        for _ in 0..3 {
            assert_eq!(bench.read(&blocks, &pointer).unwrap(), data, "{kind:?}");
        }
        let errors = |b: &Arc<Blocks>| {
            b.tree().health().iter().map(|h| h.counts.checksum_errors + h.counts.read_errors).sum::<u64>()
        };
        let before = errors(&blocks);
        assert!(before > 0);
        assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
        assert_eq!(errors(&blocks), before, "{kind:?}: the read found nothing wrong");
    }
}

#[test]
fn copies_on_other_vdevs_put_each_other_right() {
    let bench = Bench::new(4, 2, Timing::Chaos);
    let blocks = stripe_of(&bench, 12, 2);
    let data = pattern(16 << 10, 4);
    let pointer = write(&bench, &blocks, &data, &WriteOptions { copies: 2, ..options() }).unwrap();
    blocks.synced(TXG, true);
    let first = pointer.dva(0).vdev as usize;
    rot_all(&bench, first);
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    assert_eq!(repaired(&blocks)[first], 16 << 10);
    rot_all(&bench, 1 - first);
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
}

#[test]
fn gang_headers_and_pieces_are_put_right() {
    let bench = Bench::new(5, 2, Timing::Chaos);
    let blocks = pool_of(&bench, VdevKind::Mirror, 12, 2, &[]);
    blocks.force_gangs_above(Some(8 << 10)).unwrap();
    let data = pattern(64 << 10, 5);
    let pointer = write(&bench, &blocks, &data, &options()).unwrap();
    blocks.synced(TXG, true);
    rot_all(&bench, 0);
    assert_eq!(read_as(&bench, &blocks, &pointer, Priority::Scrub), data);
    rot_all(&bench, 1);
    assert_eq!(read_as(&bench, &blocks, &pointer, Priority::Scrub), data);
    assert!(repaired(&blocks).iter().all(|&n| n >= 68 << 10), "{:?}", repaired(&blocks));
}

#[test]
fn a_pool_that_is_only_read_is_not_changed() {
    let bench = Bench::new(6, 2, Timing::Chaos);
    let data = pattern(16 << 10, 6);
    (0..2).for_each(|d| bench.write(d, 1 << 20, &data));
    let bp = pointer(&[(0, 1 << 20, 16 << 10)], false, &data);
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 12, bench.leaves(0..2, &[]))]);
    rot_all(&bench, 0);
    let before: Vec<u64> = bench.disks.iter().map(|d| d.stats().changes()).collect();
    for priority in [Priority::Sync, Priority::Scrub] {
        assert_eq!(read_as(&bench, &blocks, &bp, priority), data);
    }
    assert_eq!(bench.disks.iter().map(|d| d.stats().changes()).collect::<Vec<_>>(), before);
}
