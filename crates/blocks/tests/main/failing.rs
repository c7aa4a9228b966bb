//! Devices that fail together: what one refused and another could not keep, and what no repair reaches.

use crate::store::*;
use futures_util::future::{Either, join, join_all, select};
use std::time::Duration;
use weir_blocks::raidz::Map;
use weir_blocks::vdev::DistributedSpare;
use weir_blocks::{Blocks, Class, VdevGrid, VdevKind, VdevSpec, WriteOptions};
use weir_format::{BlockPointer, Txg};
use weir_machine::{Priority, Request};
use weir_sim::{Fault, Timing};

fn fail(bench: &Bench, disk: usize, nth: u64) {
    bench.disks[disk].lay(Fault::FailNth { nth, errno: 5 });
}

fn flush(bench: &Bench, blocks: &Blocks) -> bool {
    bench.world.run(blocks.flush()).unwrap().is_ok()
}

fn scrub(bench: &Bench, blocks: &Blocks, pointer: &BlockPointer) -> Vec<u8> {
    let request = Request::internal("scrub").with_priority(Priority::Scrub);
    bench.world.run(blocks.read(&request, pointer, &Default::default())).unwrap().unwrap().to_vec()
}

/// One device refuses a block, and another, which took it, cannot keep it: each alone is borne, both together are not,
/// nor are they forgotten by the next flush.
#[test]
fn what_one_refused_and_another_lost_is_not_stable() {
    for (kind, disks, bears) in
        [(VdevKind::Mirror, 2usize, 1), (raidz(1), 3, 1), (VdevKind::Mirror, 3, 2), (raidz(2), 4, 2)]
    {
        for (refuses, loses) in [(true, false), (false, true), (true, true)] {
            let bench = Bench::new(1, disks, Timing::Nvme);
            let blocks = pool_of(&bench, kind, 12, disks, &[]);
            if refuses {
                fail(&bench, 0, 0);
            }
            let data = pattern(64 << 10, 1);
            let pointer = write(&bench, &blocks, &data, &options()).unwrap();
            if loses {
                fail(&bench, 1, 0);
            }
            let is_borne = usize::from(refuses) + usize::from(loses) <= bears;
            for _ in 0..2 {
                assert_eq!(flush(&bench, &blocks), is_borne, "{kind:?} {refuses} {loses}");
            }
            assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
        }
    }
}

/// A device that failed a flush is given more, and none of that is believed to be there.
#[test]
fn what_a_device_takes_after_a_failed_flush_goes_into_its_dtl() {
    let bench = Bench::new(2, 2, Timing::Nvme);
    let blocks = pool_of(&bench, VdevKind::Mirror, 12, 2, &[]);
    write(&bench, &blocks, &pattern(4096, 1), &options()).unwrap();
    fail(&bench, 0, 0);
    assert!(flush(&bench, &blocks));
    let next = WriteOptions { txg: Txg(TXG.0 + 1), ..options() };
    write(&bench, &blocks, &pattern(4096, 2), &next).unwrap();
    assert!(flush(&bench, &blocks));
    assert_eq!(blocks.tree().dtls(), [(100, vec![(TXG, next.txg)].into())].into());
    fail(&bench, 1, 0);
    write(&bench, &blocks, &pattern(4096, 3), &next).unwrap();
    assert!(!flush(&bench, &blocks), "the other side alone refused it");
}

/// After a failed flush of its labels a disk may have lost the blocks that it had received, too.
#[test]
fn a_device_whose_labels_were_not_flushed_is_not_believed() {
    for (disks, bears) in [(1usize, false), (2, true)] {
        let bench = Bench::new(8, disks, Timing::Nvme);
        let blocks = pool_of(&bench, VdevKind::Mirror, 12, disks, &[]);
        write(&bench, &blocks, &pattern(4096, 1), &options()).unwrap();
        fail(&bench, 0, 0);
        assert!(bench.world.run(async { blocks.tree().leaf(100).unwrap().flush_labels().await }).unwrap().is_err());
        assert_eq!(flush(&bench, &blocks), bears);
        assert_eq!(blocks.tree().dtls(), [(100, vec![(TXG, TXG)].into())].into());
        // Labels themselves are made stable by their own flush, also where nothing else may be written.
        blocks.tree().set_writable(false);
        assert!(bench.world.run(async { blocks.tree().leaf(100).unwrap().flush_labels().await }).unwrap().is_ok());
        assert!(blocks.tree().leaf(77).is_err());
    }
}

/// A disk reports once that it lost its writes. A flush of blocks that begins during the failing flush of labels would
/// succeed if it were sent to the disk.
#[test]
fn a_flush_of_blocks_does_not_pass_by_a_failing_flush_of_labels() {
    for seed in 0..50 {
        let bench = Bench::new(seed, 1, Timing::Chaos);
        let blocks = pool_of(&bench, VdevKind::Mirror, 12, 1, &[]);
        write(&bench, &blocks, &pattern(4096, 1), &options()).unwrap();
        fail(&bench, 0, 0);
        let (labels, flush) = bench
            .world
            .run(join(async { blocks.tree().leaf(100).unwrap().flush_labels().await }, blocks.flush()))
            .unwrap();
        assert!(labels.is_err() && flush.is_err(), "seed {seed}: {labels:?}, {flush:?}");
    }
}

/// A column on a device whose DTL has earlier txgs is kept, so one other device may fail.
#[test]
fn a_dtl_of_earlier_txgs_costs_a_new_block_no_redundancy() {
    let bench = Bench::new(3, 3, Timing::Nvme);
    let mut leaves = bench.leaves(0..3, &[]);
    leaves[2].dtl = vec![(Txg(1), Txg(TXG.0 - 1))].into();
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves)]);
    open(&blocks, 1);
    fail(&bench, 0, 0);
    let data = pattern(64 << 10, 2);
    let pointer = write(&bench, &blocks, &data, &options()).unwrap();
    assert!(flush(&bench, &blocks));
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
}

/// A block that continues in the next redundancy group of a dRAID vdev is two rows, each of which tolerates a missing
/// disk.
#[test]
fn each_row_of_draid_bears_a_missing_disk() {
    let draid = VdevKind::Draid { nparity: 1, ndata: 2, nspares: 0, ngroups: 4 };
    let group = 3 * (16u64 << 20);
    for missing in 0..4 {
        let bench = Bench::new(4, 4, Timing::Nvme);
        let build = |missing: &[usize]| bench.blocks(vec![top(0, draid, 12, bench.leaves(0..4, missing))]);
        let blocks = build(&[missing]);
        blocks.tree().set_writable(true);
        let grid =
            VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: 30, metaslab_count: 1, non_allocating: false };
        blocks.add_vdev(&grid).unwrap();
        let free = group - (96 << 10)..group + (192 << 10);
        blocks.metaslabs().set_free(0, 0, std::slice::from_ref(&free)).unwrap();
        let data = pattern(128 << 10, 5);
        let pointer = write(&bench, &blocks, &data, &options()).unwrap();
        assert_eq!(pointer.dva(0).offset_bytes, group - (96 << 10));
        assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
        assert_eq!(bench.read(&build(&[missing]), &pointer).unwrap(), data, "without {missing}");
        assert_accounts_add_up(&bench, &blocks, "dRAID");
    }
}

/// As many disks of a dRAID vdev are replaced by distributed spares as there are: a block that continues in the next slice, which
/// has other disks for the spares, is whole on the others.
#[test]
fn distributed_spares_have_each_row_of_a_block() {
    let draid = VdevKind::Draid { nparity: 1, ndata: 4, nspares: 3, ngroups: 1 };
    let group = 5 * (16u64 << 20);
    let used = |disk: &VdevSpec, spare: u64| {
        let draid_spare = VdevSpec {
            kind: VdevKind::DraidSpare,
            distributed_spare: Some(DistributedSpare { top: 0, spare }),
            ..VdevSpec::leaf(1, 70 + spare, format!("draid1-0-{spare}"), None)
        };
        VdevSpec::inner(disk.id, 80 + spare, format!("spare-{spare}"), VdevKind::Spare, vec![disk.clone(), draid_spare])
    };
    for missing in (0..56).map(|n| [n % 8, (n + 1 + n / 8) % 8, (n + 7) % 8]) {
        if missing[0] == missing[1] || missing[1] == missing[2] || missing[0] == missing[2] {
            continue;
        }
        let bench = Bench::new(4, 8, Timing::Nvme);
        let build = |more: Option<usize>| {
            let gone: Vec<usize> = missing.into_iter().chain(more).collect();
            let mut leaves = bench.leaves(0..8, &gone);
            for (disk, spare) in missing.into_iter().zip(0..) {
                leaves[disk] = used(&leaves[disk], spare);
            }
            bench.blocks(vec![top(0, draid, 12, leaves)])
        };
        let blocks = build(None);
        blocks.tree().set_writable(true);
        let grid =
            VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: 30, metaslab_count: 1, non_allocating: false };
        blocks.add_vdev(&grid).unwrap();
        let free = group - (100 << 10)..group + (200 << 10);
        blocks.metaslabs().set_free(0, 0, std::slice::from_ref(&free)).unwrap();
        let data = pattern(128 << 10, 5);
        let pointer = write(&bench, &blocks, &data, &options()).unwrap();
        assert_eq!(pointer.dva(0).offset_bytes, group - (100 << 10));
        assert_eq!(scrub(&bench, &blocks, &pointer), data);
        let errors: u64 = blocks.tree().health().iter().map(|leaf| leaf.counts.checksum_errors).sum();
        assert_eq!(errors, 0, "{missing:?}");
        for more in (0..8).filter(|disk| !missing.contains(disk)) {
            assert_eq!(bench.read(&build(Some(more)), &pointer).unwrap(), data, "{missing:?} and {more}");
        }
    }
}

/// A repair that fails under a scrub goes into the DTL, and stays there until a scrub repairs the block.
#[test]
fn a_repair_that_fails_under_a_scrub_is_on_record() {
    for (kind, disks) in [(VdevKind::Mirror, 2usize), (raidz(1), 3)] {
        let bench = Bench::new(5, disks, Timing::Nvme);
        let blocks = pool_of(&bench, kind, 12, disks, &[]);
        let data = pattern(64 << 10, 1);
        let pointer = write(&bench, &blocks, &data, &options()).unwrap();
        blocks.synced(TXG, true);
        bench.disks[1].lay(Fault::Rot { offset: FRONT, len: 16 << 20, bits: 60_000 });
        fail(&bench, 1, 1);
        assert_eq!(scrub(&bench, &blocks, &pointer), data);
        assert_eq!(blocks.tree().dtls(), [(101, vec![(TXG, TXG)].into())].into(), "{kind:?}");
        assert_eq!(
            blocks.tree().leaf(101).unwrap().excise_dtl(TXG),
            Some(vec![(TXG, TXG)].into()),
            "this scrub did not repair it"
        );
        blocks.tree().begin_scrub();
        assert_eq!(scrub(&bench, &blocks, &pointer), data);
        assert_eq!(blocks.tree().leaf(101).unwrap().excise_dtl(TXG), Some(Default::default()));
        assert_eq!(blocks.tree().health()[1].counts.repaired_bytes, if disks == 2 { 64 << 10 } else { 32 << 10 });
    }
}

/// A stale device had its column after all, and the parity in its place was wrong: that is put right.
#[test]
fn a_wrong_parity_that_stood_in_for_a_stale_column_is_put_right() {
    let bench = Bench::new(9, 3, Timing::Nvme);
    let whole = pool_of(&bench, raidz(1), 12, 3, &[]);
    let data = pattern(64 << 10, 1);
    let pointer = write(&bench, &whole, &data, &options()).unwrap();
    let columns = Map::new(pointer.dva(0).offset_bytes, 64 << 10, 12, 3, 1).rows.remove(0).columns;
    let mut leaves = bench.leaves(0..3, &[]);
    leaves[columns[1].child].dtl = vec![(TXG, TXG)].into();
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves)]);
    open(&blocks, 1);
    let request = Request::internal("test");
    bench.world.run(blocks.claim(&request, &pointer, TXG)).unwrap().unwrap();
    blocks.synced(TXG, true);
    bench.disks[columns[0].child].lay(Fault::Rot { offset: FRONT, len: 16 << 20, bits: 60_000 });
    assert_eq!(scrub(&bench, &blocks, &pointer), data);
    let counts = blocks.tree().health()[columns[0].child].counts;
    assert_eq!((counts.checksum_errors, counts.repaired_bytes), (1, 32 << 10));
}

/// Of a disk and its replacement one side is wrong, and nothing else makes good for it: it gets what the other has.
#[test]
fn a_wrong_side_below_raidz_is_put_right_by_the_other() {
    let bench = Bench::new(10, 4, Timing::Nvme);
    let build = |missing: &[usize]| {
        let mut leaves = bench.leaves(0..4, missing);
        let pair = vec![leaves[1].clone(), leaves.remove(3)];
        leaves[1] = weir_blocks::VdevSpec::inner(1, 77, "replacing-1", VdevKind::Replacing, pair);
        let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves)]);
        open(&blocks, 1);
        blocks
    };
    let blocks = build(&[2]);
    let data = pattern(64 << 10, 1);
    let pointer = write(&bench, &blocks, &data, &options()).unwrap();
    blocks.synced(TXG, true);
    bench.disks[1].lay(Fault::Rot { offset: FRONT, len: 16 << 20, bits: 60_000 });
    assert_eq!(scrub(&bench, &blocks, &pointer), data);
    assert!(bench.read(&build(&[2, 3]), &pointer) == Ok(data), "the side that was wrong is right now");
}

/// A gang header has more copies than its pieces: a scrub verifies and repairs all of them, a read only those it tried.
#[test]
fn all_copies_of_a_gang_header_are_put_right() {
    let bench = Bench::new(6, 2, Timing::Nvme);
    let blocks = stripe_of(&bench, 12, 2);
    blocks.force_gangs_above(Some(8 << 10)).unwrap();
    let data = pattern(16 << 10, 6);
    let pointer = write(&bench, &blocks, &data, &options()).unwrap();
    blocks.synced(TXG, true);
    let headers: Vec<_> = pointer.dvas().collect();
    assert!(pointer.is_gang() && headers.len() == 2 && headers[0].vdev != headers[1].vdev);
    let rot = |n: usize| {
        let at = FRONT + headers[n].offset_bytes;
        bench.disks[headers[n].vdev as usize].lay(Fault::Rot { offset: at, len: 4096, bits: 999 })
    };
    let repaired = |n: usize| blocks.tree().health()[headers[n].vdev as usize].counts.repaired_bytes;
    rot(1);
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    assert_eq!(repaired(1), 0, "the first copy was right");
    assert_eq!(scrub(&bench, &blocks, &pointer), data);
    assert_eq!(repaired(1), 4096);
    rot(0);
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    assert_eq!(repaired(0), 4096);
}

/// However many reads wait for a disk that refuses at once, each is refused in its turn.
#[test]
fn any_number_of_reads_beyond_the_end_of_a_disk_is_refused() {
    let bench = Bench::new(7, 1, Timing::Nvme);
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(12, 1 << 40)).collect());
    let request = Request::internal("test");
    let reads = (0..20_000u64).map(|n| blocks.read_raw(&request, 0, (1 << 30) + n * (1 << 20), 4096));
    // The first ones are in progress, so that all others wait.
    let first = (0..40u64).map(|n| blocks.read_raw(&request, 0, n * 4096, 4096));
    let (first, rest) = bench.world.run(async { join(join_all(first), join_all(reads)).await }).unwrap();
    assert!(first.iter().all(Result::is_ok) && rest.iter().all(Result::is_err));
}

/// A write is dropped while a slow disk still executes it: its space is not allocated to another block before the end.
#[test]
fn the_space_of_a_dropped_write_is_kept_until_it_has_ended() {
    let bench = Bench::new(11, 1, Timing::Nvme);
    let blocks = pool_of(&bench, VdevKind::Mirror, 12, 1, &[]);
    let (request, clock) = (Request::internal("test"), bench.machine.clock.clone());
    blocks.synced(Txg(TXG.0 - 1), true);
    let hangs = bench.disks[0].lay(Fault::Hang);
    let left = bench.world.run(async {
        let options = options();
        let write = std::pin::pin!(blocks.write(&request, pattern(8192, 1).into(), &options));
        matches!(select(write, std::pin::pin!(clock.sleep(Duration::from_millis(5)))).await, Either::Right(_))
    });
    assert!(left.unwrap());
    blocks.take_changes(TXG);
    let ripe =
        |from: u64| (TXG.0 + from..TXG.0 + from + 4).map(|txg| blocks.synced(Txg(txg), true).len()).sum::<usize>();
    assert_eq!(ripe(0), 0, "the disk may still write there");
    bench.disks[0].lift(hangs);
    bench.world.run(clock.sleep(Duration::from_millis(5))).unwrap();
    assert_eq!(ripe(4), 1);
}
