use crate::store::*;
use weir_blocks::raidz::{Map, Reflowed};
use weir_blocks::vdev::{DistributedSpare, Expansion, Reflow};
use weir_blocks::{BlockError, VdevKind, VdevSpec, draid};
use weir_codec::checksum::embedded::{Verifier, seal_embedded};
use weir_format::indirect::MappingEntry;
use weir_format::{BlockPointer, ChecksumKind, Dva, Endian, gang};
use weir_sim::{Fault, Timing};

fn expanded(expansion: Expansion, leaves: Vec<VdevSpec>) -> VdevSpec {
    VdevSpec { expansion: Some(expansion), ..top(0, raidz(1), 12, leaves) }
}

#[test]
fn expanded_vdevs_are_read_in_the_layout_of_each_row() {
    let reflow = |offset_bytes, scratch| Expansion { txgs: vec![], reflow: Some(Reflow { offset_bytes, scratch }) };
    let cases = [
        (Expansion { txgs: vec![60], reflow: None }, u64::MAX, 4, false),
        (Expansion { txgs: vec![40], reflow: None }, u64::MAX, 5, false),
        (Expansion { txgs: vec![30, 70], reflow: None }, u64::MAX, 4, false),
        (reflow(0, false), 0, 4, false),
        (reflow(9 << 12, false), 9 << 12, 4, false),
        (reflow(1 << 20, true), 1 << 20, 4, true),
    ];
    for (expansion, moved_bytes, logical_width, scratch) in cases {
        let bench = Bench::new(1, 5, Timing::Nvme);
        let data = pattern(10 << 12, 1);
        let layout = Reflowed { physical_width: 5, logical_width, moved_bytes, scratch };
        let map = if logical_width == 5 {
            Map::new(4 << 12, 10 << 12, 12, 5, 1)
        } else {
            Map::expanded(4 << 12, 10 << 12, 12, 1, layout)
        };
        bench.write_rows(&map, &data);
        let bp = pointer(&[(0, 4 << 12, 16 << 12)], false, &data);
        let what = format!("{expansion:?}");
        for missing in 0..6 {
            let leaves = bench.leaves(0..5, &[missing]);
            let blocks = bench.blocks(vec![expanded(expansion.clone(), leaves)]);
            let read = bench.read(&blocks, &bp);
            assert_eq!(read.as_ref(), Ok(&data), "{what}, without disk {missing}");
        }
        let blocks = bench.blocks(vec![expanded(expansion, bench.leaves(0..5, &[]))]);
        bench.disks[2].lay(Fault::Rot { offset: 0, len: DISK / 2, bits: 3000 });
        assert_eq!(bench.read(&blocks, &bp).as_ref(), Ok(&data), "{what}, with disk 2 rotten");
    }
}

/// A disk that was silently wrong before the expansion has spread its sectors over all of them.
#[test]
fn what_was_wrong_before_an_expansion_is_found_at_its_former_place() {
    let bench = Bench::new(2, 4, Timing::Nvme);
    let data = pattern(8 << 12, 2);
    let layout = Reflowed { physical_width: 4, logical_width: 3, moved_bytes: u64::MAX, scratch: false };
    let map = Map::expanded(0, 8 << 12, 12, 1, layout);
    bench.write_rows(&map, &data);
    for row in &map.rows {
        let column = &row.columns[1];
        bench.write(column.child, column.offset_bytes, &pattern(4096, 77));
    }
    let bp = pointer(&[(0, 0, 12 << 12)], false, &data);
    let expansion = Expansion { txgs: vec![60], reflow: None };
    let blocks = bench.blocks(vec![expanded(expansion, bench.leaves(0..4, &[]))]);
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
}

#[test]
fn draid_bears_a_missing_disk_and_reads_its_distributed_spare() {
    let kind = VdevKind::Draid { nparity: 1, ndata: 2, nspares: 1, ngroups: 5 };
    let layout = draid::Layout { ndata: 2, nparity: 1, nspares: 1, ngroups: 5, children: 6, width: 6 };
    let bench = Bench::new(3, 6, Timing::Nvme);
    let data = pattern(9 << 12, 3);
    let map = draid::Map::new(layout, 12).unwrap();
    let rows = Map::of_draid(&map, 0, 9 << 12);
    bench.write_rows(&rows, &data);
    let bp = pointer(&[(0, 0, 15 << 12)], false, &data);
    for missing in 0..7 {
        let blocks = bench.blocks(vec![top(0, kind, 12, bench.leaves(0..6, &[missing]))]);
        assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    }
    // The first column's disk is gone, and its contents were rebuilt onto the spare.
    let column = rows.rows[0].columns[1];
    let lost = column.child;
    let host = map.spare_child(0, column.offset_bytes).unwrap();
    bench.write(host, column.offset_bytes, &data[column.at..column.at + column.size_bytes]);
    let mut leaves = bench.leaves(0..6, &[lost]);
    let dspare = VdevSpec {
        kind: VdevKind::DraidSpare,
        distributed_spare: Some(DistributedSpare { top: 0, spare: 0 }),
        ..VdevSpec::leaf(1, 7, "draid1-0-0", None)
    };
    let pair = vec![leaves[lost].clone(), dspare];
    leaves[lost] = VdevSpec::inner(lost as u64, 8, "spare-0", VdevKind::Spare, pair);
    let blocks = bench.blocks(vec![top(0, kind, 12, leaves)]);
    let other = rows.rows[0].columns[2];
    bench.disks[other.child].lay(Fault::Unreadable { offset: FRONT + other.offset_bytes, len: 4096 });
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data, "the spare and the parity make good for two");
}

fn seal(pieces: &[BlockPointer], len: usize, offset: u64) -> Vec<u8> {
    let mut header = gang::encode(pieces, len, Endian::Little).unwrap();
    let verifier = Verifier::Gang { vdev: 0, offset_bytes: offset, physical_birth: 50, halved: false };
    seal_embedded(ChecksumKind::GangHeader, Endian::Little, verifier, &mut header).unwrap();
    header
}

#[test]
fn gangs_of_gangs_are_put_together_and_a_loop_ends() {
    let bench = Bench::new(4, 1, Timing::Chaos);
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(12, ASIZE)).collect());
    let data = pattern(32 << 10, 4);
    let a = &data[..8192];
    let b = &data[8192..12288];
    let c = &data[12288..];
    let place = |i: u64| (0, i << 16, 4096);
    for (i, bytes) in [(1, a), (2, b), (3, c)] {
        bench.write(0, i << 16, bytes);
    }
    // A classic header below one that fills its sector.
    let inner = seal(&[pointer(&[place(1)], false, a), pointer(&[place(2)], false, b)], 512, 5 << 16);
    bench.write(0, 5 << 16, &inner);
    let outer = seal(&[pointer(&[place(5)], true, &data[..12288]), pointer(&[place(3)], false, c)], 4096, 6 << 16);
    bench.write(0, 6 << 16, &outer);
    let bp = pointer(&[place(6)], true, &data);
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data);

    let round = seal(&[pointer(&[place(7)], true, &data)], 512, 7 << 16);
    bench.write(0, 7 << 16, &round);
    let error = bench.read(&blocks, &pointer(&[place(7)], true, &data)).unwrap_err();
    assert!(matches!(error, BlockError::InvalidPointer { field: "depth of the gang", .. }), "{error}");
    let short = seal(&[pointer(&[place(1)], false, a)], 512, 8 << 16);
    bench.write(0, 8 << 16, &short);
    let error = bench.read(&blocks, &pointer(&[place(8)], true, &data)).unwrap_err();
    assert!(matches!(error, BlockError::Structure { .. }), "{error}");
    bench.disks[0].lay(Fault::Rot { offset: FRONT + (3 << 16), len: 4096, bits: 1 });
    assert!(matches!(bench.read(&blocks, &bp), Err(BlockError::Corrupt { offset: 0x3_0000, .. })));
}

#[test]
fn removed_vdevs_are_followed_and_pieces_combined() {
    let bench = Bench::new(5, 2, Timing::Chaos);
    let data = pattern(16 << 10, 5);
    let entry = |source_bytes, vdev, offset_bytes| MappingEntry {
        source_bytes,
        target: Dva { vdev, offset_bytes, asize_bytes: 8192, gang: false, grid: 0 },
    };
    let make = || {
        let mirror = top(0, VdevKind::Mirror, 9, bench.leaves(0..2, &[]));
        let gone = |id| top(id, VdevKind::Indirect, 9, vec![]);
        bench.blocks(vec![mirror, gone(1), gone(2)])
    };
    for disk in 0..2 {
        bench.write(disk, 4096, &data[..8192]);
        bench.write(disk, 1 << 20, &data[8192..]);
    }
    let blocks = make();
    let bp = pointer(&[(1, 0, 16 << 10)], false, &data);
    assert!(matches!(bench.read(&blocks, &bp), Err(BlockError::Unsupported { vdev: 1, .. })));
    // Vdev 1's second half went to vdev 2, which was removed later.
    assert!(blocks.tree().set_mapping(1, &[entry(8192, 2, 0), entry(0, 0, 4096)]));
    assert!(blocks.tree().set_mapping(2, &[entry(0, 0, 1 << 20)]));
    assert!(!blocks.tree().set_mapping(0, &[]) && !blocks.tree().set_mapping(9, &[]));
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    // Each side of the mirror has another half wrong: only the combination is right.
    bench.disks[0].lay(Fault::Rot { offset: FRONT + 4096, len: 512, bits: 2 });
    bench.disks[1].lay(Fault::Rot { offset: FRONT + (1 << 20), len: 512, bits: 2 });
    assert_eq!(bench.read(&blocks, &bp).unwrap(), data);
    let beyond = pointer(&[(1, 8192, 16 << 10)], false, &data);
    assert!(matches!(bench.read(&blocks, &beyond), Err(BlockError::InvalidPointer { .. })));
    // A map that leads back to itself ends.
    let blocks = make();
    blocks.tree().set_mapping(1, &[entry(0, 2, 0), entry(8192, 2, 8192)]);
    blocks.tree().set_mapping(2, &[entry(0, 1, 0), entry(8192, 1, 8192)]);
    let half = pointer(&[(1, 0, 8192)], false, &data[..8192]);
    assert!(matches!(
        bench.read(&blocks, &half),
        Err(BlockError::InvalidPointer { field: "chain of removed devices", .. })
    ));
    assert!(bench.read(&blocks, &bp).is_err());
}
