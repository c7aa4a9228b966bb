use crate::store::*;
use weir_blocks::raidz::Map;
use weir_blocks::{BlockError, VdevKind};
use weir_sim::{Fault, Timing};

fn rot(bench: &Bench, disk: usize, offset: u64, len: u64) -> weir_sim::FaultId {
    bench.disks[disk].lay(Fault::Rot { offset: offset.wrapping_add(FRONT), len, bits: 9 })
}

#[test]
fn a_mirror_gives_what_any_side_still_has() {
    let bench = Bench::new(1, 3, Timing::Chaos);
    let data = pattern(64 << 10, 1);
    (0..3).for_each(|d| bench.write(d, 1 << 20, &data));
    let bp = pointer(&[(0, 1 << 20, 64 << 10)], false, &data);
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 12, bench.leaves(0..3, &[]))]);
    rot(&bench, 0, 1 << 20, 64 << 10);
    bench.disks[1].lay(Fault::Unreadable { offset: FRONT + (1 << 20) + 512, len: 512 });
    for _ in 0..4 {
        assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    }
    rot(&bench, 2, 1 << 20, 64 << 10);
    // What the device that gave an error has may be right.
    assert!(matches!(bench.read(&blocks, &bp), Err(BlockError::Device { vdev: 0, offset: 0x10_0000, .. })));
    let health = blocks.tree().health();
    assert!(health[2].counts.checksum_errors > 0 && health[1].counts.read_errors > 0);
    let alone = bench.blocks(vec![top(0, VdevKind::Mirror, 12, bench.leaves(0..3, &[0, 1, 2]))]);
    assert!(
        matches!(bench.read(&alone, &bp), Err(BlockError::Missing { devices, .. }) if devices == ["d0", "d1", "d2"])
    );
}

#[test]
fn copies_are_tried_one_after_the_other() {
    let bench = Bench::new(2, 2, Timing::Chaos);
    let data = pattern(4096, 2);
    bench.write(1, 8192, &data);
    let bp = pointer(&[(0, 4096, 4096), (1, 8192, 4096)], false, &data);
    let tops = |missing: &[usize]| {
        let leaves = bench.leaves(0..2, missing).into_iter();
        bench.blocks(leaves.map(|l| l.top(9, ASIZE)).collect())
    };
    assert_eq!(bench.read(&tops(&[]), &bp).unwrap(), data);
    assert_eq!(bench.read(&tops(&[0]), &bp).unwrap(), data);
    // Of a wrong copy and a missing one, the wrong one says more.
    assert!(matches!(bench.read(&tops(&[1]), &bp), Err(BlockError::Corrupt { vdev: 0, .. })));
}

/// Every set of up to `nparity` silently wrong, unreadable or missing disks is borne, one more is not.
#[test]
fn raidz_bears_every_set_of_as_many_disks_as_it_has_parities() {
    for (width, nparity, sectors) in [(3usize, 1u32, 5u64), (5, 2, 7), (6, 3, 10), (4, 2, 1)] {
        let bench = Bench::new(3, width, Timing::Nvme);
        let data = pattern((sectors << 12) as usize, 3);
        let offset = 3 << 12;
        let map = Map::new(offset, data.len() as u64, 12, width as u64, nparity.into());
        bench.write_rows(&map, &data);
        let bp = pointer(&[(0, offset, sectors << 13)], false, &data);
        let used: Vec<usize> = map.columns().map(|c| c.child).collect();
        for bad in 0u32..1 << width {
            let set: Vec<usize> = (0..width).filter(|d| bad >> d & 1 == 1).collect();
            let hit = set.iter().filter(|d| used.contains(d)).count() as u32;
            let missing = &set[..set.len() / 2];
            let blocks = bench.blocks(vec![top(0, raidz(nparity as u8), 12, bench.leaves(0..width, missing))]);
            let wrong: Vec<_> = set[set.len() / 2..]
                .iter()
                .map(|&d| {
                    let c = map.columns().find(|c| c.child == d).map_or((0, 4096), |c| (c.offset_bytes, c.size_bytes));
                    (d, rot(&bench, d, c.0, c.1 as u64))
                })
                .collect();
            let read = bench.read(&blocks, &bp);
            let context = format!("{width} wide, parity {nparity}, bad {set:?}: {:?}", read.as_ref().err());
            if hit <= nparity {
                assert_eq!(read.unwrap(), data, "{context}");
            } else {
                let known = matches!(read, Err(BlockError::Corrupt { .. } | BlockError::Missing { .. }));
                // Wrong parity alone does not matter.
                assert!(known || read.is_ok_and(|r| r == data), "{context}");
            }
            wrong.into_iter().for_each(|(d, id)| bench.disks[d].lift(id));
        }
    }
}

#[test]
fn raidz_tells_which_disks_are_missing_and_counts_which_lie() {
    let bench = Bench::new(4, 5, Timing::Chaos);
    let data = pattern(48 << 10, 4);
    let map = Map::new(0, data.len() as u64, 12, 5, 1);
    bench.write_rows(&map, &data);
    let bp = pointer(&[(0, 0, 64 << 10)], false, &data);
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, bench.leaves(0..5, &[1, 3]))]);
    assert!(matches!(bench.read(&blocks, &bp), Err(BlockError::Missing { devices, .. }) if devices == ["d1", "d3"]));
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, bench.leaves(0..5, &[]))]);
    rot(&bench, 2, 0, 4096);
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    let wrong: Vec<u64> = blocks.tree().health().iter().map(|h| h.counts.checksum_errors).collect();
    assert_eq!(wrong, [0, 0, 1, 0, 0]);
}

/// Which of its columns are wrong is not known if no combination of them is the block: each device that gave one has an error.
#[test]
fn raidz_counts_an_error_at_each_device_of_a_block_that_cannot_be_repaired() {
    let bench = Bench::new(4, 5, Timing::Chaos);
    let data = pattern(48 << 10, 4);
    let map = Map::new(0, data.len() as u64, 12, 5, 1);
    bench.write_rows(&map, &data);
    let bp = pointer(&[(0, 0, 64 << 10)], false, &data);
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, bench.leaves(0..5, &[]))]);
    rot(&bench, 1, 0, 4096);
    rot(&bench, 2, 0, 4096);
    assert!(matches!(bench.read(&blocks, &bp), Err(BlockError::Corrupt { .. })));
    let counted: Vec<u64> = blocks.tree().health().iter().map(|h| h.counts.checksum_errors).collect();
    assert_eq!(counted, [1; 5]);
}

/// A stale child is asked last: what it says is only believed when the checksum holds.
#[test]
fn stale_children_are_last_but_not_least() {
    let bench = Bench::new(5, 4, Timing::Chaos);
    let data = pattern(12 << 10, 5);
    let map = Map::new(0, data.len() as u64, 12, 4, 1);
    bench.write_rows(&map, &data);
    let bp = pointer(&[(0, 0, 16 << 10)], false, &data);
    let mut leaves = bench.leaves(0..4, &[]);
    leaves[1].dtl = vec![(weir_format::Txg(40), weir_format::Txg(60))].into();
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves.clone())]);
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    assert_eq!(blocks.tree().health()[1].counts.reads, 0, "rebuilt from parity instead");
    leaves[2].disk = None;
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves)]);
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data, "the stale child has to help");
}

#[test]
fn invalid_pointers_are_refused_by_the_field() {
    let bench = Bench::new(6, 1, Timing::Chaos);
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(12, ASIZE)).collect());
    let data = pattern(4096, 6);
    let good = pointer(&[(0, 4096, 4096)], false, &data);
    bench.write(0, 4096, &data);
    assert_eq!(bench.read(&blocks, &good).unwrap(), data);
    let forged = |change: &dyn Fn(&mut [u64; 16])| {
        let mut words = *good.words();
        change(&mut words);
        match bench.read(&blocks, &weir_format::BlockPointer::from_words(words)) {
            Err(BlockError::InvalidPointer { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(forged(&|w| w[0] |= 7 << 32), "vdev");
    assert_eq!(forged(&|w| w[1] = ASIZE >> 9), "offset (beyond the device)");
    assert_eq!(forged(&|w| w[1] = u64::MAX >> 1), "offset (not a multiple of the sector size)");
    assert_eq!(forged(&|w| w[1] = 9), "offset (not a multiple of the sector size)");
    assert_eq!(forged(&|w| w[6] |= 0xffff), "logical size");
    assert_eq!(forged(&|w| w[6] |= 0xffff_0000), "physical size");
    assert_eq!(forged(&|w| w[6] |= 0x7f << 32), "compression");
    assert_eq!(forged(&|w| w[0] = 0), "number of copies");
}

/// The end of an intent log's chain is a block that was never written, which is not counted as an error of the device.
#[test]
fn the_end_of_a_log_is_no_device_error() {
    let bench = Bench::new(7, 2, Timing::Chaos);
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 12, bench.leaves(0..2, &[]))]);
    let data = pattern(4096, 7);
    let mut words = *pointer(&[(0, 4096, 4096)], false, &data).words();
    let plain = weir_format::BlockPointer::from_words(words);
    words[6] = words[6] & !(0xff << 40) | 9 << 40;
    let log = weir_format::BlockPointer::from_words(words);
    assert!(matches!(bench.read(&blocks, &log), Err(BlockError::Corrupt { .. })));
    let errors = || blocks.tree().health().iter().map(|h| h.counts.checksum_errors).sum::<u64>();
    assert_eq!(errors(), 0);
    assert!(bench.read(&blocks, &plain).is_err());
    assert_eq!(errors(), 2);
}

/// Of a disk and its replacement, one side is silently wrong, and another disk is missing: the right side is found.
#[test]
fn raidz_asks_each_side_of_a_child_that_is_being_replaced() {
    let bench = Bench::new(8, 4, Timing::Chaos);
    let data = pattern(12 << 10, 8);
    let map = Map::new(0, data.len() as u64, 12, 3, 1);
    bench.write_rows(&map, &data);
    let copy = map.columns().find(|c| c.child == 1).unwrap();
    let bp = pointer(&[(0, 0, 20 << 10)], false, &data);
    for good in [1usize, 3] {
        bench.write(good, copy.offset_bytes, &data[copy.at..copy.at + copy.size_bytes]);
        bench.write(4 - good, copy.offset_bytes, &pattern(copy.size_bytes, 99));
        let mut leaves = bench.leaves(0..4, &[2]);
        let pair = vec![leaves[1].clone(), leaves.remove(3)];
        leaves[1] = weir_blocks::VdevSpec::inner(1, 77, "replacing-1", VdevKind::Replacing, pair);
        let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves)]);
        assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    }
}
