//! A vdev tree that is replaced while blocks are written and read: devices are attached and detached.

use crate::store::*;
use bytes::Bytes;
use futures_util::future::{join, join_all};
use weir_blocks::{Blocks, TreeError, VdevKind, VdevSpec, WriteOptions};
use weir_format::{BlockPointer, CompressionKind, Txg};
use weir_machine::{Priority, Request};
use weir_sim::{Fault, Timing};

/// Number of blocks that a test writes before, during and after a replacement, each.
const BLOCKS: usize = 60;
const BLOCK_BYTES: usize = 24 << 10;

fn data(n: usize) -> Vec<u8> {
    pattern(BLOCK_BYTES, n as u64 + 1)
}

fn of_txg(txg: Txg) -> WriteOptions {
    WriteOptions { txg, compression: CompressionKind::Off, ..options() }
}

/// Writes blocks `range` concurrently.
async fn write_all(blocks: &Blocks, range: std::ops::Range<usize>, txg: Txg) -> Vec<BlockPointer> {
    let request = Request::internal("test");
    let options = of_txg(txg);
    let writes = range.map(|n| blocks.write(&request, Bytes::from(data(n)), &options));
    join_all(writes).await.into_iter().collect::<Result<_, _>>().unwrap()
}

fn check_all(bench: &Bench, blocks: &Blocks, pointers: &[BlockPointer], priority: Priority) {
    let request = Request::internal("test").with_priority(priority);
    for (n, pointer) in pointers.iter().enumerate() {
        let read = bench.world.run(blocks.read(&request, pointer, &Default::default())).unwrap();
        assert_eq!(read.as_deref(), Ok(&data(n)[..]), "block {n}");
    }
}

fn mirror(leaves: Vec<VdevSpec>) -> VdevSpec {
    top(0, VdevKind::Mirror, 12, leaves)
}

/// The leaf of disk `index`, which lacks all txgs up to `until`.
fn attached(bench: &Bench, index: usize, until: Txg) -> VdevSpec {
    let [leaf] = <[_; 1]>::try_from(bench.leaves(index..index + 1, &[])).unwrap();
    VdevSpec { dtl: vec![(Txg(0), until)].into(), ..leaf }
}

/// A leaf that is a part of the tree already: its disk is the present one.
fn kept(bench: &Bench, index: usize) -> VdevSpec {
    let [leaf] = <[_; 1]>::try_from(bench.leaves(index..index + 1, &[index])).unwrap();
    leaf
}

/// A disk becomes a mirror while it is written. The blocks that the new device lacks are in its DTL; a scrub copies them,
/// and afterwards the new device alone has every block.
#[test]
fn a_device_is_attached_while_blocks_are_written() {
    for seed in 0..8 {
        let bench = Bench::new(seed, 2, Timing::Chaos);
        let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|leaf| leaf.top(12, 0)).collect());
        open(&blocks, 1);
        let next = Txg(TXG.0 + 1);
        let mut pointers = bench.world.run(write_all(&blocks, 0..BLOCKS, TXG)).unwrap();
        let replace = async {
            bench.machine.clock.sleep(std::time::Duration::from_micros(50 * seed)).await;
            let replaced =
                blocks.tree().replace(vec![mirror(vec![kept(&bench, 0), attached(&bench, 1, TXG)])]).unwrap();
            replaced.drained().await;
            blocks.flush().await.unwrap();
        };
        let (written, ()) = bench.world.run(join(write_all(&blocks, BLOCKS..2 * BLOCKS, TXG), replace)).unwrap();
        pointers.extend(written);
        pointers.extend(bench.world.run(write_all(&blocks, 2 * BLOCKS..3 * BLOCKS, next)).unwrap());
        assert_eq!(blocks.tree().dtls(), [(101, vec![(Txg(0), TXG)].into())].into());
        let counts: Vec<u64> = blocks.tree().health().iter().map(|leaf| leaf.counts.writes).collect();
        assert!(counts[0] > counts[1] && counts[1] >= 1, "leaf 100 keeps its counters: {counts:?}");
        let alone = || bench.blocks(vec![mirror(bench.leaves(0..2, &[0]))]);
        let lacking = pointers.iter().take(BLOCKS).filter(|pointer| bench.read(&alone(), pointer).is_err()).count();
        assert_eq!(lacking, BLOCKS, "blocks from before are not on the new device");

        blocks.synced(next, true);
        blocks.tree().begin_scrub();
        check_all(&bench, &blocks, &pointers, Priority::Scrub);
        assert_eq!(blocks.tree().leaf(101).unwrap().excise_dtl(next), Some(Default::default()));
        check_all(&bench, &alone(), &pointers, Priority::Sync);
        assert_accounts_add_up(&bench, &blocks, "attached");
    }
}

/// A device is detached while it is read and written: operations in progress end, then it gets nothing more.
#[test]
fn a_device_is_detached_while_blocks_are_written() {
    for seed in 0..8 {
        let bench = Bench::new(seed, 2, Timing::Chaos);
        let blocks = pool_of(&bench, VdevKind::Mirror, 12, 2, &[]);
        let mut pointers = bench.world.run(write_all(&blocks, 0..BLOCKS, TXG)).unwrap();
        let first = pointers.clone();
        let read = async {
            let request = Request::internal("test");
            for (n, pointer) in first.iter().enumerate() {
                assert_eq!(blocks.read(&request, pointer, &Default::default()).await.as_deref(), Ok(&data(n)[..]));
            }
        };
        let replace = async {
            bench.machine.clock.sleep(std::time::Duration::from_micros(100 * seed)).await;
            blocks.tree().replace(vec![kept(&bench, 1).top(12, 0)]).unwrap().drained().await;
            bench.disks[0].stats()
        };
        let writes = join(write_all(&blocks, BLOCKS..2 * BLOCKS, TXG), read);
        let ((written, ()), detached) = bench.world.run(join(writes, replace)).unwrap();
        pointers.extend(written);
        pointers.extend(bench.world.run(write_all(&blocks, 2 * BLOCKS..3 * BLOCKS, TXG)).unwrap());
        bench.world.run(blocks.flush()).unwrap().unwrap();
        check_all(&bench, &blocks, &pointers, Priority::Scrub);
        assert_eq!(bench.disks[0].stats(), detached, "the detached device is left alone");
        assert!(blocks.tree().leaf(100).is_err() && blocks.tree().dtls().is_empty());
    }
}

/// A replacement of a RAID-Z child waits for operations that hang on the replaced one, and no longer than these do.
#[test]
fn a_raidz_child_is_replaced_although_it_hangs() {
    let bench = Bench::new(3, 5, Timing::Nvme);
    let blocks = bench.blocks(vec![top(0, raidz(1), 12, bench.leaves(0..4, &[]))]);
    open(&blocks, 1);
    let mut pointers = bench.world.run(write_all(&blocks, 0..BLOCKS, TXG)).unwrap();
    bench.disks[2].lay(Fault::Hang);
    let replacing = |new: Option<VdevSpec>| {
        let mut leaves: Vec<_> = (0..4).map(|index| kept(&bench, index)).collect();
        if let Some(new) = new {
            let old = std::mem::replace(&mut leaves[2], VdevSpec::leaf(2, 0, "", None));
            leaves[2] = VdevSpec::inner(2, 900, "replacing-2", VdevKind::Replacing, vec![old, new]);
        }
        vec![top(0, raidz(1), 12, leaves)]
    };
    let replace = async {
        bench.machine.clock.sleep(std::time::Duration::from_millis(5)).await;
        let replaced = blocks.tree().replace(replacing(Some(attached(&bench, 4, TXG)))).unwrap();
        assert!(blocks.tree().leaf(102).unwrap().take_out());
        replaced.drained().await;
    };
    let writes = write_all(&blocks, BLOCKS..2 * BLOCKS, TXG);
    let (written, ()) = bench.world.run(join(writes, replace)).unwrap();
    pointers.extend(written);
    blocks.synced(TXG, true);
    blocks.tree().begin_scrub();
    check_all(&bench, &blocks, &pointers, Priority::Scrub);
    // The old child goes; the new one takes its place.
    let mut leaves: Vec<_> = (0..4).map(|index| kept(&bench, index)).collect();
    leaves[2] = VdevSpec { id: 2, ..kept(&bench, 4) };
    let dtls = blocks.tree().dtls();
    assert!(dtls.contains_key(&102) && dtls.contains_key(&104), "{dtls:?}");
    drop(blocks.tree().replace(vec![top(0, raidz(1), 12, leaves)]).unwrap());
    check_all(&bench, &blocks, &pointers, Priority::Sync);
}

/// Replacements that could not return the pool's blocks are refused, and change nothing.
#[test]
fn a_replacement_has_the_blocks_of_what_it_replaces() {
    let bench = Bench::new(4, 6, Timing::Nvme);
    let blocks = bench.blocks(vec![
        mirror(bench.leaves(0..2, &[])),
        VdevSpec::inner(1, 1001, "raidz1-1", raidz(1), bench.leaves(2..5, &[])).top(12, 0),
    ]);
    let first = || mirror(vec![kept(&bench, 0), kept(&bench, 1)]);
    let second = |leaves: &[usize]| {
        let leaves = leaves.iter().map(|index| kept(&bench, *index)).collect();
        VdevSpec::inner(1, 1001, "raidz1-1", raidz(1), leaves).top(12, 0)
    };
    let refused = |specs: Vec<VdevSpec>| match blocks.tree().replace(specs) {
        Err(TreeError::Field { field, .. }) => field.to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(vec![first()]), "number of top-level vdevs");
    assert_eq!(refused(vec![first(), second(&[2, 3])]), NO_BLOCKS, "a child less");
    assert_eq!(refused(vec![first(), second(&[3, 2, 4])]), NO_BLOCKS, "another order");
    assert_eq!(refused(vec![mirror(bench.leaves(5..6, &[])), second(&[2, 3, 4])]), NO_BLOCKS, "no device stays");
    assert_eq!(refused(vec![first().top(9, 0), second(&[2, 3, 4])]), "ashift");
    let lacking = VdevSpec { dtl: vec![(TXG, TXG)].into(), ..kept(&bench, 0) };
    assert_eq!(refused(vec![mirror(vec![lacking]), second(&[2, 4, 3])]), NO_BLOCKS);
    assert!(blocks.tree().dtls().is_empty(), "a refused replacement changes no DTL");
    let third = bench.leaves(5..6, &[]).into_iter().map(|leaf| VdevSpec { id: 2, ..leaf }.top(12, 0));
    drop(blocks.tree().replace([first(), second(&[2, 3, 4])].into_iter().chain(third).collect()).unwrap());
    assert_eq!((blocks.tree().len(), blocks.tree().health().len()), (3, 6));
}

const NO_BLOCKS: &str = "replacement (it has another layout, or none of the devices) of index";
