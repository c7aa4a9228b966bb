//! Tests of the log's pure parts: packing, block sizes, the chain and the itx lists.

use super::chain::Chain;
use super::itx::{Itx, ItxLists, LogPayload};
use super::pack::{self, Fit, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Sizes};
use proptest::prelude::*;
use weir_format::zil::{ZilChain, ZilHeader};
use weir_format::{BlockPointer, ObjectId, Txg};

const CHAIN: u64 = ZilChain::SIZE as u64;

/// Packs records of (bytes, data) as the writer does; returns the parts of each, and the sizes of all blocks.
fn layout(records: &[(u64, u64)], sizes: &mut Sizes, first_block: u64, scarce: bool) -> (Vec<Vec<u64>>, Vec<u64>) {
    records.iter().for_each(|(record, data)| sizes.expect(*record, *data));
    let mut block = first_block;
    let mut used = CHAIN;
    let mut blocks = vec![first_block];
    let mut parts = vec![];
    let mut next = |sizes: &Sizes, block: &mut u64, used: &mut u64| {
        let (least, best) = sizes.next_block();
        assert!(least <= best && best <= MAX_BLOCK_BYTES);
        assert!(least >= MIN_BLOCK_BYTES && [least, best].iter().all(|size| size.is_multiple_of(MIN_BLOCK_BYTES)));
        *block = if scarce { least } else { best };
        *used = CHAIN;
        blocks.push(*block);
    };
    for (record, data) in records {
        let mut left = *data;
        let mut own = vec![];
        let mut rejections = 0;
        loop {
            let now = match pack::fit(block - used, *record, left) {
                Fit::Whole => left,
                Fit::Part(bytes) => {
                    assert!(bytes > 0 && bytes.is_multiple_of(8) && bytes < left);
                    bytes
                }
                Fit::Next => {
                    rejections += 1;
                    assert!(rejections <= 1, "a block sized for a record of {record}+{left} rejects it");
                    next(sizes, &mut block, &mut used);
                    continue;
                }
            };
            rejections = 0;
            own.push(now);
            used += record + now.next_multiple_of(8);
            assert!(used <= block);
            if now == left {
                sizes.placed(record + now.next_multiple_of(8));
                break;
            }
            sizes.placed(now);
            left -= now;
            next(sizes, &mut block, &mut used);
        }
        parts.push(own);
    }
    sizes.done();
    (parts, blocks)
}

proptest! {
    /// Every byte is placed, for any records, history and block sizes.
    #[test]
    fn every_record_is_placed(
        bursts in prop::collection::vec(prop::collection::vec((6u64..500, 0u64..600_000, 0u8..8), 0..20), 1..12),
        scarce in any::<bool>(),
    ) {
        let mut sizes = Sizes::default();
        let mut first = MIN_BLOCK_BYTES;
        for burst in bursts {
            // One record in eight is long and has no data; half of the rest are short and have none either.
            let records: Vec<(u64, u64)> = burst
                .into_iter()
                .map(|(words, data, kind)| match kind {
                    0 => (words * 256, 0),
                    1..4 => (words * 8, 0),
                    _ => (192, data),
                })
                .collect();
            let (parts, _) = layout(&records, &mut sizes, first, scarce);
            for ((_, data), parts) in records.iter().zip(parts) {
                prop_assert_eq!(parts.iter().sum::<u64>(), *data);
            }
            let (least, best) = sizes.next_block();
            first = if scarce { least } else { best };
        }
    }
}

#[test]
fn a_write_is_not_split_to_save_little_space() {
    // The write fits the next block whole, and little space is left in this one.
    assert_eq!(pack::fit(3000, 192, 4096), Fit::Next);
    assert_eq!(pack::fit(4288, 192, 4096), Fit::Whole);
    // A large write fills the rest of the block.
    assert_eq!(pack::fit(20_000, 192, 1 << 20), Fit::Part(19_808));
    assert_eq!(pack::fit(192, 192, 1 << 20), Fit::Next);
    // A record without data is never split.
    assert_eq!(pack::fit(100, 192, 0), Fit::Next);
}

#[test]
fn block_sizes_follow_past_bursts() {
    let mut sizes = Sizes::default();
    let burst = |sizes: &mut Sizes, bytes| {
        sizes.expect(bytes, 0);
        sizes.placed(bytes);
        sizes.done();
        sizes.next_block().1
    };
    assert_eq!(sizes.next_block().1, MAX_BLOCK_BYTES, "no history yet");
    assert_eq!(burst(&mut sizes, 500), MIN_BLOCK_BYTES);
    for _ in 0..8 {
        assert_eq!(burst(&mut sizes, 500), MIN_BLOCK_BYTES);
    }
    assert_eq!(burst(&mut sizes, 60_000), MIN_BLOCK_BYTES, "one large burst among eight is ignored");
    assert_eq!(burst(&mut sizes, 60_000), 61_440);
}

#[test]
fn blocks_keep_their_numbers_while_stable_ones_are_freed() {
    let mut chain = Chain::new(ZilHeader::default());
    chain.begin(BlockPointer::HOLE, Txg(1));
    for number in 0..6 {
        // Two blocks with records of each txg.
        assert_eq!(chain.issue(Txg(2 + number / 2), Txg(2), Some(BlockPointer::HOLE)), Some(number));
        assert_eq!((chain.last_in_flight(), chain.being_written()), (Some(number), number as usize + 1));
    }
    [0, 1, 3].into_iter().for_each(|number| chain.written(number));
    assert_eq!((chain.written_up_to(), chain.being_written()), (2, 3));
    chain.flushed(2);
    assert_eq!((chain.written_up_to(), chain.last_blocking_sync(Txg(2))), (2, Some(5)));
    chain.written(2);
    assert_eq!(chain.written_up_to(), 4);
    assert_eq!(chain.sync(Txg(2)).frees.len(), 2);
    assert_eq!((chain.written_up_to(), chain.last_in_flight(), chain.being_written()), (4, Some(5), 2));
    chain.flushed(4);
    assert_eq!(chain.sync(Txg(3)).frees.len(), 2);
    [4, 5].into_iter().for_each(|number| chain.written(number));
    chain.flushed(chain.written_up_to());
    assert_eq!((chain.written_up_to(), chain.last_in_flight()), (6, None));
}

/// A log can be shut in the syncing context of a txg only if that leads to all its blocks.
#[test]
fn a_chain_that_goes_beyond_its_txg_is_not_synced() {
    let block = || {
        let mut words = [0; 16];
        words[1] = 2;
        BlockPointer::from_words(words)
    };
    let mut chain = Chain::new(ZilHeader::default());
    assert!(chain.is_synced(Txg(1)), "a log without blocks");
    chain.begin(block(), Txg(1));
    assert!(!chain.is_synced(Txg(1)), "no header leads to the first block");
    drop(chain.sync(Txg(1)));
    assert!(chain.is_synced(Txg(1)));
    assert_eq!(chain.issue(Txg(2), Txg(2), Some(block())), Some(0));
    assert!(!chain.is_synced(Txg(1)), "the successor was allocated in a later txg");
    assert!(chain.is_synced(Txg(2)));
    chain.destroy(Txg(3), None, Vec::new());
    assert!(!chain.is_synced(Txg(2)), "the blocks are freed by another txg");
}

/// Records after a change without a record are withheld until its txg has synced.
#[test]
fn a_change_without_a_record_withholds_later_records() {
    let itx = |txg, object| Itx {
        txg: Txg(txg),
        writer: weir_machine::Origin::POOL,
        object: ObjectId(object),
        payload: LogPayload::Record(Vec::new()),
    };
    let taken = |lists: &mut ItxLists| lists.take().iter().map(|e| (e.txg.0, e.object.0)).collect::<Vec<_>>();
    let mut lists = ItxLists::default();
    lists.push_common(itx(5, 1));
    lists.push_common(itx(6, 2));
    lists.push_unlogged(Txg(6), Some(ObjectId(9)));
    lists.push_of_object(itx(6, 3));
    assert!(!lists.has_gap() && !lists.is_empty());
    lists.push_unlogged(Txg(6), None);
    lists.push_common(itx(6, 4));
    lists.push_common(itx(7, 5));
    lists.promote(None);
    assert!(lists.has_gap() && !lists.is_empty());
    assert_eq!(taken(&mut lists), [(5, 1), (6, 2)]);
    assert!(lists.is_empty() && taken(&mut lists).is_empty());
    lists.push_common(itx(5, 6));
    assert!(!lists.is_empty());
    assert_eq!(taken(&mut lists), [(5, 6)]);
    lists.synced(Txg(6));
    assert!(!lists.has_gap());
    assert_eq!(taken(&mut lists), [(7, 5)]);
    // A change that must precede later names, and has no record, withholds them.
    lists.push_unlogged(Txg(8), Some(ObjectId(9)));
    lists.order_before_names(ObjectId(8));
    assert!(!lists.has_gap());
    lists.order_before_names(ObjectId(9));
    assert!(lists.has_gap());
}
