//! What is written is read back, on every kind of vdev.

use crate::store::*;
use bytes::Bytes;
use weir_blocks::vdev::{Expansion, Reflow};
use weir_blocks::{
    BlockError, Class, Compressed, SpaceKind, VdevGrid, VdevKind, VdevSpec, WritableEncodings, WriteOptions,
};
use weir_codec::compress::ZstdLevel;
use weir_format::{ChecksumKind, CompressionKind, ObjectType, Txg};
use weir_machine::Request;
use weir_sim::{Fault, Timing};

#[test]
fn every_vdev_sector_checksum_and_compression_reads_back() {
    use CompressionKind::{Gzip, Lz4, Lzjb, Off, Zle, Zstd};
    let kinds = [(VdevKind::Mirror, 2), (raidz(1), 3), (raidz(2), 5), (raidz(3), 7)];
    let sums = [ChecksumKind::Fletcher2, ChecksumKind::Fletcher4, ChecksumKind::Sha256, ChecksumKind::Sha512]
        .into_iter()
        .chain([ChecksumKind::Skein, ChecksumKind::Edonr, ChecksumKind::Blake3, ChecksumKind::Off]);
    let combinations: Vec<_> = sums.zip([Off, Lzjb, Gzip(6), Zle, Lz4, Zstd, Off, Lz4]).collect();
    for (kind, disks) in kinds {
        for ashift in [9, 12] {
            let bench = Bench::new(7, disks, Timing::Chaos);
            let blocks = pool_of(&bench, kind, ashift, disks, &[]);
            for &(checksum, compression) in &combinations {
                for len in [512, 4096, 9 << 9, 128 << 10, 160 << 10] {
                    let data = soft(len, len as u64);
                    let options = WriteOptions { checksum, compression, ..options() };
                    let pointer = write(&bench, &blocks, &data, &options).unwrap();
                    let context = format!("{kind:?} ashift {ashift} {checksum:?} {compression:?} {len}: {pointer:?}");
                    assert_eq!(bench.read(&blocks, &pointer).as_ref(), Ok(&data), "{context}");
                    assert_eq!(pointer.lsize_bytes(), len as u64, "{context}");
                    assert_eq!((pointer.logical_birth(), pointer.fill()), (TXG, 1));
                    if compression != Off && compression != Zle && len >= 128 << 10 {
                        assert!(pointer.psize_bytes() < len as u64 * 3 / 4, "{context}");
                    }
                    assert!(
                        pointer.is_embedded()
                            || pointer.psize_bytes() == len as u64
                            || pointer.psize_bytes().is_multiple_of(1 << ashift)
                    );
                }
            }
            assert_accounts_add_up(&bench, &blocks, &format!("{kind:?} ashift {ashift}"));
        }
    }
}

/// ztest makes such pools: a block takes as much of the mirror as of the RAID-Z vdevs below it.
#[test]
fn a_mirror_of_raidz_gives_blocks_room_for_their_parity() {
    for sides in [1, 2] {
        let bench = Bench::new(7, 4 * sides, Timing::Nvme);
        let side = |i: usize| {
            let leaves = bench.leaves(4 * i..4 * i + 4, &[]);
            VdevSpec::inner(i as u64, 500 + i as u64, format!("raidz1-{i}"), raidz(1), leaves)
        };
        let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 9, (0..sides).map(side).collect())]);
        open(&blocks, 1);
        let plain = WriteOptions { compression: CompressionKind::Off, ..options() };
        let written: Vec<_> = (1..40)
            .map(|n| {
                let data = pattern(512 * n, n as u64);
                (write(&bench, &blocks, &data, &plain).unwrap(), data)
            })
            .collect();
        for (pointer, data) in written {
            assert_eq!(bench.read(&blocks, &pointer), Ok(data), "{sides} sides, {pointer:?}");
        }
    }
}

#[test]
fn zeros_become_holes_and_little_goes_into_the_pointer() {
    let bench = Bench::new(1, 1, Timing::Nvme);
    let blocks = stripe_of(&bench, 12, 1);
    let hole = write(&bench, &blocks, &[0; 8192], &options()).unwrap();
    assert!(hole.is_hole() && hole.logical_birth() == TXG && hole.lsize_bytes() == 8192);
    assert_eq!(hole.object_type(), ObjectType::PLAIN_FILE_CONTENTS);
    let unborn = write(&bench, &blocks, &[0; 8192], &WriteOptions { hole_birth: false, ..options() }).unwrap();
    assert!(unborn.is_null());
    let kept = WriteOptions { compression: CompressionKind::Off, ..options() };
    let zeros = write(&bench, &blocks, &[0; 8192], &kept).unwrap();
    assert!(!zeros.is_hole() && zeros.psize_bytes() == 8192);
    let mut little = vec![0; 4096];
    little[500..540].copy_from_slice(&pattern(40, 1));
    for compression in [CompressionKind::Lz4, CompressionKind::Zstd, CompressionKind::Gzip(9)] {
        let pointer = write(&bench, &blocks, &little, &WriteOptions { compression, ..options() }).unwrap();
        assert!(pointer.is_embedded(), "{compression:?}");
        assert_eq!((pointer.logical_birth(), pointer.compression()), (TXG, Some(compression)));
        assert_eq!(bench.read(&blocks, &pointer).unwrap(), little);
    }
    for other in [
        WriteOptions { embed: false, ..options() },
        WriteOptions { level: 1, ..options() },
        WriteOptions { object_type: ObjectType::DNODE, ..options() },
    ] {
        assert!(!write(&bench, &blocks, &little, &other).unwrap().is_embedded());
    }
    let incompressible = write(&bench, &blocks, &pattern(8192, 3), &options()).unwrap();
    assert_eq!(incompressible.compression(), Some(CompressionKind::Off));
    for bad in [0, 100, (16 << 20) + 512] {
        let refused = write(&bench, &blocks, &vec![1; bad], &options());
        assert_eq!(refused, Err(BlockError::BadSize { len_bytes: bad as u64 }));
    }
}

/// RAID-Z blocks written with disks missing, or without, are right for every set of as many missing as there are
/// parities.
#[test]
fn parity_agrees_with_reading_whatever_is_missing() {
    for (width, nparity) in [(3usize, 1u8), (5, 2), (6, 3)] {
        for ashift in [9u32, 12] {
            let bench = Bench::new(3, width, Timing::Nvme);
            for sectors in [1usize, 2, 5, 11, 32] {
                let data = pattern(sectors << ashift, sectors as u64);
                for absent in 0..=width {
                    let written_without: Vec<usize> = (absent < width).then_some(absent).into_iter().collect();
                    let blocks = pool_of(&bench, raidz(nparity), ashift, width, &written_without);
                    let pointer = write(&bench, &blocks, &data, &options()).unwrap();
                    for bad in 0u32..1 << width {
                        let mut gone: Vec<usize> = (0..width).filter(|d| bad >> d & 1 == 1).collect();
                        gone.extend(&written_without);
                        gone.sort_unstable();
                        gone.dedup();
                        if gone.len() > nparity as usize {
                            continue;
                        }
                        let without = pool_of(&bench, raidz(nparity), ashift, width, &gone);
                        assert_eq!(
                            bench.read(&without, &pointer).as_ref(),
                            Ok(&data),
                            "{width}/{nparity} without {gone:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn redundancy_bears_failing_writes_and_no_more() {
    let bench = Bench::new(4, 3, Timing::Chaos);
    let data = pattern(64 << 10, 4);
    for (kind, bears) in [(VdevKind::Mirror, 2), (raidz(1), 1), (raidz(2), 2)] {
        for failing in 0..=3usize {
            let blocks = pool_of(&bench, kind, 12, 3, &[]);
            let laid: Vec<_> = (0..failing).map(|d| (d, bench.disks[d].lay(Fault::Gone))).collect();
            let written = write(&bench, &blocks, &data, &options());
            assert_eq!(written.is_ok(), failing <= bears, "{kind:?} with {failing}: {written:?}");
            laid.into_iter().for_each(|(d, id)| bench.disks[d].lift(id));
            let errors: u64 = blocks.tree().health().iter().map(|h| h.counts.write_errors).sum();
            assert_eq!(errors, failing as u64);
            // A block that could not be written is no block of the pool: no device lacks it.
            assert_eq!(blocks.tree().dtls().len(), if written.is_ok() { failing } else { 0 });
            match written {
                // The disks are back, and do not have what they missed.
                Ok(pointer) => assert_eq!(bench.read(&blocks, &pointer).unwrap(), data),
                Err(error) => {
                    assert!(matches!(error, BlockError::Device { .. }), "{error}");
                    assert!(blocks.take_changes(TXG).is_empty(), "space of a failed write is given back");
                    assert!(blocks.space(Class::Normal).deferred_bytes > 0);
                }
            }
        }
    }
}

/// A side of a mirror whose DTL has earlier txgs keeps new blocks as well as any other.
#[test]
fn a_side_with_a_dtl_keeps_new_blocks() {
    let bench = Bench::new(5, 2, Timing::Chaos);
    let mut leaves = bench.leaves(0..2, &[]);
    leaves[1].dtl = vec![(Txg(1), Txg(TXG.0 - 1))].into();
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 12, leaves)]);
    open(&blocks, 1);
    let data = pattern(8192, 5);
    write(&bench, &blocks, &data, &options()).unwrap();
    let counts: Vec<u64> = blocks.tree().health().iter().map(|h| h.counts.writes).collect();
    assert_eq!(counts, [1, 1]);
    bench.disks[0].lay(Fault::Gone);
    let pointer = write(&bench, &blocks, &data, &options()).unwrap();
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    let dtls = blocks.tree().dtls();
    assert_eq!((dtls[&100].to_string(), dtls[&101].to_string()), (format!("txg {TXG}"), "txgs 1-99".to_owned()));
}

#[test]
fn copies_lie_on_different_vdevs_and_one_is_enough() {
    let bench = Bench::new(6, 3, Timing::Chaos);
    let blocks = stripe_of(&bench, 12, 3);
    let data = pattern(16 << 10, 6);
    let options = WriteOptions { copies: 3, ..options() };
    bench.disks[1].lay(Fault::Gone);
    let pointer = write(&bench, &blocks, &data, &options).unwrap();
    let mut vdevs: Vec<u32> = pointer.dvas().map(|d| d.vdev).collect();
    vdevs.sort_unstable();
    assert_eq!(vdevs, [0, 1, 2]);
    bench.disks[2].lay(Fault::Gone);
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    assert_eq!(blocks.dsize_bytes(&pointer), 3 * (16 << 10));
}

#[test]
fn gangs_are_read_back_and_freed_with_all_their_pieces() {
    for (kind, disks) in [(VdevKind::Mirror, 2), (raidz(1), 4)] {
        for (copies, most) in [(1, 40 << 10), (2, 12 << 10), (1, 4096)] {
            let bench = Bench::new(8, disks, Timing::Chaos);
            let blocks = pool_of(&bench, kind, 12, disks, &[]);
            let free = blocks.space(Class::Normal).free_bytes;
            blocks.force_gangs_above(Some(most)).unwrap();
            let data = pattern(128 << 10, 8);
            let options = WriteOptions { copies, ..options() };
            let pointer = write(&bench, &blocks, &data, &options).unwrap();
            assert!(pointer.is_gang() && pointer.dvas().count() == usize::from(copies) + 1);
            assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
            let taken: u64 = blocks.take_changes(TXG).iter().map(|c| c.len_bytes).sum();
            assert_eq!(taken, pointer.asize_bytes(), "a gang's addresses count its pieces");
            let request = Request::internal("test");
            bench.world.run(blocks.free(&request, &pointer, Txg(101))).unwrap().unwrap();
            let freed = blocks.take_changes(Txg(101));
            assert_eq!(freed.iter().map(|c| c.len_bytes).sum::<u64>(), taken);
            assert!(freed.iter().all(|c| c.kind == SpaceKind::Free));
            (101..=103).for_each(|txg| drop(blocks.synced(Txg(txg), true)));
            assert_eq!(blocks.space(Class::Normal).free_bytes, free);
            assert_accounts_add_up(&bench, &blocks, "gangs");
        }
    }
}

#[test]
fn a_riddled_vdev_takes_blocks_in_pieces_until_it_is_full() {
    let bench = Bench::new(9, 1, Timing::Nvme);
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(12, ASIZE)).collect());
    blocks.tree().set_writable(true);
    let grid =
        VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: SHIFT, metaslab_count: 2, non_allocating: false };
    blocks.add_vdev(&grid).unwrap();
    for i in 0..2u64 {
        let free: Vec<_> = (0..32).map(|n| (i << SHIFT) + (n << 15)..(i << SHIFT) + (n << 15) + (12 << 10)).collect();
        blocks.metaslabs().set_free(0, i, &free).unwrap();
    }
    let mut written = Vec::new();
    let full = loop {
        let data = pattern(128 << 10, written.len() as u64);
        match write(&bench, &blocks, &data, &options()) {
            Ok(pointer) => written.push((pointer, data)),
            Err(error) => break error,
        }
    };
    assert_eq!(full, BlockError::NoSpace { psize_bytes: 128 << 10 });
    assert!(written.len() >= 3, "{}", written.len());
    for (pointer, data) in &written {
        assert!(pointer.is_gang());
        assert_eq!(bench.read(&blocks, pointer).as_ref(), Ok(data));
    }
    let sums = blocks.space(Class::Normal);
    let taken: u64 = written.iter().map(|(p, _)| p.asize_bytes()).sum();
    assert_eq!(sums.free_bytes, 64 * (12 << 10) - taken, "a write that found no space took none");
}

#[test]
fn reserved_places_are_filled_later() {
    let bench = Bench::new(10, 3, Timing::Chaos);
    let blocks = pool_of(&bench, raidz(1), 12, 3, &[]);
    let request = Request::internal("test");
    let options = WriteOptions { object_type: ObjectType::SPACE_MAP, copies: 2, ..options() };
    let fill = |reserved: &weir_blocks::Reserved, data: &[u8]| {
        bench.world.run(blocks.fill(&request, reserved, Bytes::copy_from_slice(data), &options)).unwrap()
    };
    let reserved = bench.world.run(blocks.reserve(40 << 10, &options)).unwrap().unwrap();
    assert_eq!(blocks.take_changes(TXG).iter().map(|c| c.len_bytes).sum::<u64>(), reserved.asize_bytes());
    let data = soft(64 << 10, 1);
    let pointer = fill(&reserved, &data).unwrap();
    assert_eq!((pointer.psize_bytes(), pointer.lsize_bytes()), (40 << 10, 64 << 10));
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    let zeros = fill(&reserved, &[0; 64 << 10]).unwrap();
    assert!(!zeros.is_hole());
    assert_eq!(bench.read(&blocks, &zeros).unwrap(), [0; 64 << 10]);
    let refused = fill(&reserved, &pattern(64 << 10, 1));
    assert_eq!(refused, Err(BlockError::NoRoom { psize_bytes: 40 << 10, needed_bytes: 64 << 10 }));
    let whole = bench.world.run(blocks.reserve(64 << 10, &options)).unwrap().unwrap();
    for data in [pattern(64 << 10, 2), soft(64 << 10, 3), vec![0; 64 << 10]] {
        let pointer = fill(&whole, &data).unwrap();
        assert_eq!(pointer.compression(), Some(CompressionKind::Off));
        assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    }
    blocks.take_changes(TXG);
    let taken = whole.asize_bytes();
    blocks.unreserve(whole).unwrap();
    assert_eq!(blocks.take_changes(TXG).iter().map(|c| c.len_bytes).sum::<u64>(), taken);
    blocks.force_gangs_above(Some(16 << 10)).unwrap();
    let gang = bench.world.run(blocks.reserve(64 << 10, &options)).unwrap().unwrap();
    let data = pattern(64 << 10, 4);
    let pointer = fill(&gang, &data).unwrap();
    assert!(pointer.is_gang());
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
}

/// An old pool gets no form of block that it does not know.
#[test]
fn only_forms_that_the_pool_allows_are_written() {
    let bench = Bench::new(11, 1, Timing::Nvme);
    let blocks = stripe_of(&bench, 12, 1);
    blocks.set_formats(WritableEncodings { lz4: false, embedded_data: false, hole_birth: false }).unwrap();
    assert!(write(&bench, &blocks, &[0; 8192], &options()).unwrap().is_null());
    let mut little = vec![0; 8192];
    little[500..540].copy_from_slice(&pattern(40, 1));
    let pointer = write(&bench, &blocks, &little, &options()).unwrap();
    assert!(!pointer.is_embedded());
    assert_eq!(pointer.compression(), Some(CompressionKind::Lzjb));
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), little);
    blocks.set_formats(WritableEncodings::ALL).unwrap();
    assert!(write(&bench, &blocks, &little, &options()).unwrap().is_embedded());
}

#[test]
fn sizes_can_be_asked_for_beforehand() {
    let bench = Bench::new(11, 2, Timing::Nvme);
    let blocks = pool_of(&bench, VdevKind::Mirror, 12, 2, &[]);
    for compression in [CompressionKind::Lz4, CompressionKind::Zstd, CompressionKind::Off] {
        for data in [soft(128 << 10, 1), pattern(32 << 10, 2), vec![0; 4096]] {
            let level = ZstdLevel::from_u8(19).unwrap();
            let options = WriteOptions { compression, compression_level: level, ..options() };
            let asked = bench.world.run(blocks.compressed_bytes(Bytes::from(data.clone()), &options)).unwrap().unwrap();
            let pointer = write(&bench, &blocks, &data, &options).unwrap();
            let psize_bytes = if pointer.is_hole() { 0 } else { pointer.psize_bytes() };
            assert_eq!(asked.next_multiple_of(blocks.unit_bytes()), psize_bytes);
        }
    }
}

#[test]
fn nothing_is_written_before_writing_is_allowed() {
    let bench = Bench::new(12, 1, Timing::Nvme);
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(12, ASIZE)).collect());
    assert_eq!(write(&bench, &blocks, &[1; 512], &options()), Err(BlockError::ReadOnly));
    assert_eq!(bench.world.run(blocks.flush()).unwrap(), Err(BlockError::ReadOnly));
    assert!(bench.world.run(blocks.reserve(512, &options())).unwrap().is_err());
    assert_eq!(bench.disks[0].stats().changes(), 0);
}

/// A flush reaches exactly the leaves that were written to since their last.
#[test]
fn flushes_go_where_something_was_written() {
    let bench = Bench::new(13, 3, Timing::Nvme);
    let blocks = stripe_of(&bench, 12, 3);
    let flushes = || bench.disks.iter().map(|d| d.stats().flushes).collect::<Vec<_>>();
    bench.world.run(blocks.flush()).unwrap().unwrap();
    assert_eq!(flushes(), [0, 0, 0]);
    let pointer = write(&bench, &blocks, &[1; 4096], &WriteOptions { embed: false, ..options() }).unwrap();
    bench.world.run(blocks.flush()).unwrap().unwrap();
    bench.world.run(blocks.flush()).unwrap().unwrap();
    let mut expected = [0; 3];
    expected[pointer.dva(0).vdev as usize] = 1;
    assert_eq!(flushes(), expected);
    let mut written = std::collections::BTreeSet::new();
    while written.len() < 3 {
        let data = pattern(128 << 10, written.len() as u64);
        written.insert(write(&bench, &blocks, &data, &options()).unwrap().dva(0).vdev);
    }
    let request = Request::internal("test").with_here(true);
    bench.world.run(blocks.flush_vdevs(&request, Some(&[1].into()))).unwrap().unwrap();
    expected[1] += 1;
    assert_eq!(flushes(), expected, "the intent log waits for no other device");
    bench.world.run(blocks.flush_vdevs(&request, None)).unwrap().unwrap();
    (expected[0], expected[2]) = (expected[0] + 1, expected[2] + 1);
    assert_eq!(flushes(), expected);
    assert!(matches!(blocks.tree().leaf(7), Err(BlockError::NoSuchLeaf { guid: 7 })));
}

/// An expanded vdev writes new blocks over all its children, whichever is missing later; during an expansion they have the
/// former width, and each row is where the position says.
#[test]
fn an_expanded_vdev_is_written_in_its_present_width() {
    let bench = Bench::new(14, 5, Timing::Nvme);
    let expanded = |txgs: Vec<u64>, reflow, missing: &[usize]| {
        let expansion = Some(Expansion { txgs, reflow });
        bench.blocks(vec![VdevSpec { expansion, ..top(0, raidz(1), 12, bench.leaves(0..5, missing)) }])
    };
    let opened = |missing: &[usize]| {
        let blocks = expanded(vec![40, 90], None, missing);
        open(&blocks, 1);
        blocks
    };
    let blocks = opened(&[]);
    for sectors in [1usize, 4, 16, 30] {
        let data = pattern(sectors << 12, sectors as u64);
        let pointer = write(&bench, &blocks, &data, &options()).unwrap();
        let expected = (sectors + sectors.div_ceil(4)).next_multiple_of(2) << 12;
        assert_eq!(pointer.asize_bytes(), expected as u64);
        for missing in 0..5 {
            let without = opened(&[missing]);
            assert_eq!(bench.read(&without, &pointer).as_ref(), Ok(&data), "{sectors} without {missing}");
        }
        // Use is counted by the width that the vdev was made with: 3 children, half as much parity as data.
        assert_eq!(blocks.dsize_bytes(&pointer), (expected as u64 >> 9) * ((1 << 17) / (48 << 3)));
    }
    for (offset_bytes, scratch) in [(0, false), (40 << 12, false), (40 << 12, true), (1 << 20, false)] {
        let reflow = Some(Reflow { offset_bytes, scratch });
        let blocks = expanded(vec![], reflow, &[]);
        open(&blocks, 1);
        for sectors in [1usize, 4, 16, 30] {
            let data = pattern(sectors << 12, sectors as u64);
            let pointer = write(&bench, &blocks, &data, &options()).unwrap();
            let expected = (sectors + sectors.div_ceil(3)).next_multiple_of(2) << 12;
            assert_eq!(pointer.asize_bytes(), expected as u64);
            for missing in 0..5 {
                let without = expanded(vec![], reflow, &[missing]);
                assert_eq!(bench.read(&without, &pointer).as_ref(), Ok(&data), "{sectors} at {offset_bytes}");
            }
        }
    }
}

/// A disk that is being replaced, also by a spare, is written on both sides; either has the block.
#[test]
fn both_sides_of_a_replacement_are_written() {
    for (old_there, new_there) in [(true, true), (false, true), (true, false)] {
        let bench = Bench::new(15, 5, Timing::Chaos);
        let build = |missing: &[usize]| {
            let mut leaves = bench.leaves(0..4, missing);
            let new = bench.leaves(4..5, missing).remove(0);
            let pair = vec![leaves[1].clone(), weir_blocks::VdevSpec { id: 1, ..new }];
            leaves[1] = weir_blocks::VdevSpec::inner(1, 77, "replacing-1", VdevKind::Replacing, pair);
            let blocks = bench.blocks(vec![top(0, raidz(1), 12, leaves)]);
            open(&blocks, 1);
            blocks
        };
        let gone: Vec<usize> = [(1, old_there), (4, new_there)].into_iter().filter(|g| !g.1).map(|g| g.0).collect();
        let data = pattern(96 << 10, 15);
        let pointer = write(&bench, &build(&gone), &data, &options()).unwrap();
        for other in [0, 2, 3] {
            let read = bench.read(&build(&[&gone[..], &[other]].concat()), &pointer);
            assert_eq!(read.as_ref(), Ok(&data), "{gone:?} and {other} gone");
        }
    }
}

#[test]
fn a_vdev_that_cannot_keep_anything_is_given_nothing() {
    let bench = Bench::new(16, 3, Timing::Nvme);
    let leaves = bench.leaves(0..3, &[1]).into_iter();
    let blocks = bench.blocks(leaves.map(|l| l.top(12, ASIZE)).collect());
    open(&blocks, 3);
    for i in 0..60 {
        let pointer = write(&bench, &blocks, &pattern(128 << 10, i), &options()).unwrap();
        assert_ne!(pointer.dva(0).vdev, 1);
    }
    bench.world.run(blocks.flush()).unwrap().unwrap();
}

#[test]
fn blocks_that_come_compressed_are_stored_as_they_are() {
    let bench = Bench::new(3, 1, Timing::Chaos);
    let blocks = stripe_of(&bench, 9, 1);
    let data = soft(16 << 10, 5);
    let mut room = vec![0; data.len()];
    let kind = CompressionKind::Gzip(9);
    let size = weir_codec::compress::compress(kind, ZstdLevel::DEFAULT, &data, &mut room).unwrap().unwrap();
    room.truncate(size);
    let given = |bytes: Vec<u8>| Some(Compressed { kind, bytes: bytes.into() });
    // The object's own compression is off.
    let options = WriteOptions { compression: CompressionKind::Off, compressed: given(room.clone()), ..options() };
    let pointer = write(&bench, &blocks, &data, &options).unwrap();
    assert_eq!(pointer.compression(), Some(kind));
    assert_eq!(pointer.psize_bytes(), (size as u64).next_multiple_of(512));
    assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
    // Bytes that are not shorter are not worth it, and a payload of a few bytes goes into the pointer.
    let long = WriteOptions { compressed: given(vec![0; data.len() + 1]), ..options.clone() };
    assert_eq!(write(&bench, &blocks, &data, &long).unwrap().compression(), Some(CompressionKind::Off));
    let ones = vec![1; 4096];
    let mut room = vec![0; ones.len()];
    let size = weir_codec::compress::compress(kind, ZstdLevel::DEFAULT, &ones, &mut room).unwrap().unwrap();
    let short = WriteOptions { compressed: given(room[..size].to_vec()), ..options };
    assert!(size <= 112 && write(&bench, &blocks, &ones, &short).unwrap().is_embedded());
}
