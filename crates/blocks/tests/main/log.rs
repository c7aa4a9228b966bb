//! Blocks of the intent log.

use crate::store::*;
use bytes::Bytes;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, Class, ReadOptions, VdevGrid};
use weir_codec::crypt::{DatasetKey, Suite, WrappedKey, WrappingKey};
use weir_format::zil::{ZilBlock, ZilChain, next_checksum};
use weir_format::{BlockPointer, ChecksumKind, Endian, Txg};
use weir_machine::Request;
use weir_sim::Timing;

const FIRST: [u64; 4] = [11, 22, 54, 1];

fn key() -> Arc<DatasetKey> {
    let wrapping = WrappingKey::from_raw(&[7; 32]).unwrap();
    let wrapped = WrappedKey::seal(&wrapping, Suite::Aes256Gcm, 9, [3; 12], &[5; 32], &[6; 64]).unwrap();
    Arc::new(DatasetKey::unwrap(&wrapping, &wrapped).unwrap())
}

fn allocate(bench: &Bench, blocks: &Blocks, len: u64, sum: [u64; 4], keys: Option<&Arc<DatasetKey>>) -> BlockPointer {
    bench.world.run(blocks.log().allocate(len, TXG, sum, keys)).unwrap().unwrap()
}

/// A block with one record that is `len` bytes long.
fn block(next: BlockPointer, len: usize) -> Vec<u8> {
    let mut record = pattern(len, len as u64);
    record[..8].copy_from_slice(&3u64.to_le_bytes());
    record[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    let used_bytes = (ZilChain::SIZE + len) as u64;
    let mut block = ZilChain { next, used_bytes, endian: Endian::Little }.encode();
    block.extend(record);
    block
}

#[test]
fn chains_are_followed_on_every_vdev_sealed_or_not() {
    for (kind, disks) in [(weir_blocks::VdevKind::Mirror, 2), (raidz(1), 3), (raidz(2), 5)] {
        for keys in [None, Some(key())] {
            let bench = Bench::new(1, disks, Timing::Chaos);
            let blocks = pool_of(&bench, kind, 12, disks, &[]);
            let request = Request::internal("test");
            let mut sum = FIRST;
            let mut pointers = Vec::new();
            let mut bodies = Vec::new();
            for len in [4096u64, 128 << 10, 36 << 10] {
                pointers.push(allocate(&bench, &blocks, len, sum, keys.as_ref()));
                sum = next_checksum(sum);
            }
            for (i, pointer) in pointers.iter().enumerate() {
                let next = pointers.get(i + 1).copied().unwrap_or(BlockPointer::HOLE);
                let body = block(next, [3000, 5000, 36_680][i]);
                let written =
                    blocks.log().write(&request, pointer, Bytes::from(body.clone()), keys.as_ref(), Default::default());
                bench.world.run(written).unwrap().unwrap();
                bodies.push(body);
            }
            let options = ReadOptions { keys: keys.clone(), ..ReadOptions::default() };
            for (i, pointer) in pointers.iter().enumerate() {
                let read = bench.world.run(blocks.read_zil(&request, pointer, &options)).unwrap().unwrap();
                let found = ZilBlock::decode(&read, ChecksumKind::Zilog2, Endian::Little).unwrap();
                assert_eq!(found.continues(pointer), i < 2);
                let used = bodies[i].len();
                assert_eq!(read[ZilChain::SIZE..used], bodies[i][ZilChain::SIZE..], "{kind:?}");
            }
            let taken = pointers.iter().map(|p| p.asize_bytes()).sum::<u64>();
            assert_eq!(blocks.take_changes(TXG).iter().map(|c| c.len_bytes).sum::<u64>(), taken);
        }
    }
}

/// A block that was written to its place before, in another chain or at another step, is not taken for one of this.
#[test]
fn what_belongs_elsewhere_ends_a_chain() {
    let bench = Bench::new(2, 2, Timing::Nvme);
    let blocks = stripe_of(&bench, 12, 2);
    let request = Request::internal("test");
    let pointer = allocate(&bench, &blocks, 8192, FIRST, None);
    let written =
        blocks.log().write(&request, &pointer, Bytes::from(block(BlockPointer::HOLE, 400)), None, Default::default());
    bench.world.run(written).unwrap().unwrap();
    assert!(bench.read(&blocks, &pointer).is_ok());
    let mut words = *pointer.words();
    words[15] += 1;
    assert!(bench.read(&blocks, &BlockPointer::from_words(words)).is_err());
    for bad in [block(BlockPointer::HOLE, 9000), vec![0; 100], vec![0; 4096]] {
        let refused = bench
            .world
            .run(blocks.log().write(&request, &pointer, Bytes::from(bad), None, Default::default()))
            .unwrap();
        assert!(matches!(refused, Err(BlockError::Unencodable { .. })), "{refused:?}");
    }
}

#[test]
fn log_blocks_go_to_log_vdevs_and_are_claimed_there() {
    let bench = Bench::new(3, 2, Timing::Nvme);
    let blocks = bench.blocks(bench.leaves(0..2, &[]).into_iter().map(|l| l.top(12, ASIZE)).collect());
    open(&blocks, 1);
    let grid = VdevGrid { vdev: 1, class: Class::Log, metaslab_shift: SHIFT, metaslab_count: 1, non_allocating: false };
    blocks.add_vdev(&grid).unwrap();
    blocks.metaslabs().set_free(1, 0, std::slice::from_ref(&(0..1 << SHIFT))).unwrap();
    let vdevs: Vec<u32> = (0..9).map(|_| allocate(&bench, &blocks, 128 << 10, FIRST, None).dva(0).vdev).collect();
    assert_eq!(vdevs, [1, 1, 1, 1, 1, 1, 1, 1, 0], "then the normal vdevs help out");
    assert_eq!(write(&bench, &blocks, &pattern(4096, 1), &options()).unwrap().dva(0).vdev, 0);

    let pointer = allocate(&bench, &blocks, 128 << 10, FIRST, None);
    let again = stripe_of(&bench, 12, 2);
    let request = Request::internal("test");
    bench.world.run(again.claim(&request, &pointer, TXG)).unwrap().unwrap();
    let twice = bench.world.run(again.claim(&request, &pointer, TXG)).unwrap();
    assert!(matches!(twice, Err(BlockError::Space { .. })));
    let changes = again.take_changes(TXG);
    assert_eq!((changes.len(), changes[0].offset_bytes), (1, pointer.dva(0).offset_bytes));
    bench.world.run(again.free(&request, &pointer, Txg(101))).unwrap().unwrap();
    let twice = bench.world.run(again.free(&request, &pointer, Txg(101))).unwrap();
    assert!(matches!(twice, Err(BlockError::Space { .. })));
}
