use crate::store::*;
use futures_util::future::{Either, join_all, select};
use std::time::Duration;
use weir_blocks::{VdevKind, WriteOptions};
use weir_format::CompressionKind;
use weir_machine::{Priority, Request, Stage};
use weir_sim::{Fault, Timing, run_twice};

/// Hundreds of small concurrent reads on a slow disk are joined into few operations, each gets its own bytes, and
/// dropped readers delay no other.
#[test]
fn many_reads_are_joined_and_dropped_readers_delay_no_other() {
    for seed in 0..8 {
        let outcome = run_twice(seed, |world| crowd(Bench::over(world.clone(), 1, Timing::Chaos), seed));
        outcome.unwrap();
    }
}

fn crowd(bench: Bench, seed: u64) -> (u64, usize) {
    let data = pattern(4 << 20, seed);
    bench.write(0, 0, &data);
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(9, ASIZE)).collect());
    let before = bench.disks[0].stats().reads;
    let readers = (0..600u64).map(|i| {
        let (blocks, clock, data) = (blocks.clone(), bench.machine.clock.clone(), &data);
        async move {
            let class = [Priority::Sync, Priority::Async, Priority::Scrub][(i % 3) as usize];
            let request = Request::internal("crowd").with_priority(class);
            let at = (i.wrapping_mul(0x9e37_79b9) ^ seed) % 1000 * 4096;
            let want = &data[at as usize..][..4096];
            let pointer = pointer(&[(0, at, 4096)], false, want);
            let options = Default::default();
            let read = std::pin::pin!(blocks.read(&request, &pointer, &options));
            if i % 5 != 0 {
                assert_eq!(read.await.unwrap(), want);
                return 1;
            }
            let patience = std::pin::pin!(clock.sleep(Duration::from_micros(10 * i)));
            match select(read, patience).await {
                Either::Left((bytes, _)) => {
                    assert_eq!(bytes.unwrap(), want);
                    1
                }
                Either::Right(_) => 0,
            }
        }
    });
    let served: Vec<usize> = bench.world.run(join_all(readers)).unwrap();
    let served: usize = served.iter().sum();
    let reads = bench.disks[0].stats().reads - before;
    assert!(served >= 480, "{served} served");
    assert!(reads < 450, "{reads} operations for 600 reads");
    (reads, served)
}

/// A bad sector in a joined read is an error of the reader that requested it, and of no other.
#[test]
fn a_bad_sector_fails_only_its_own_read() {
    let bench = Bench::new(9, 1, Timing::Nvme);
    let data = pattern(1 << 20, 9);
    bench.write(0, 0, &data);
    bench.disks[0].lay(Fault::Unreadable { offset: FRONT + 100 * 4096, len: 512 });
    let blocks = bench.blocks(bench.leaves(0..1, &[]).into_iter().map(|l| l.top(9, ASIZE)).collect());
    let readers = (0..256u64).map(|i| {
        let (blocks, data) = (blocks.clone(), &data);
        async move {
            let request = Request::internal("crowd");
            let want = &data[(i * 4096) as usize..][..4096];
            let pointer = pointer(&[(0, i * 4096, 4096)], false, want);
            let read = blocks.read(&request, &pointer, &Default::default()).await;
            assert_eq!(read.is_err(), i == 100, "{i}");
        }
    });
    bench.world.run(join_all(readers)).unwrap();
    assert_eq!(blocks.tree().health()[0].counts.read_errors, 1);
}

/// A stream that is fetched ahead goes to the sides of a mirror in stretches, which can be joined, and to both.
#[test]
fn a_stream_goes_to_each_side_of_a_mirror_in_stretches() {
    const BLOCK: u64 = 64 << 10;
    let bench = Bench::new(11, 2, Timing::Nvme);
    let data = pattern(16 << 20, 11);
    (0..2).for_each(|disk| bench.write(disk, 0, &data));
    let blocks = bench.blocks(vec![top(0, VdevKind::Mirror, 9, bench.leaves(0..2, &[]))]);
    let before: Vec<u64> = bench.disks.iter().map(|disk| disk.stats().reads).collect();
    let readers = (0..(data.len() as u64 / BLOCK)).map(|i| {
        let (blocks, want) = (blocks.clone(), &data[(i * BLOCK) as usize..][..BLOCK as usize]);
        async move {
            let request = Request::internal("stream").with_priority(Priority::Async);
            let pointer = pointer(&[(0, i * BLOCK, BLOCK)], false, want);
            assert_eq!(blocks.read(&request, &pointer, &Default::default()).await.unwrap(), want);
        }
    });
    bench.world.run(join_all(readers)).unwrap();
    let reads: Vec<u64> = bench.disks.iter().zip(before).map(|(disk, before)| disk.stats().reads - before).collect();
    assert!(reads.iter().all(|reads| (8..=90).contains(reads)), "{reads:?} operations for 256 reads");
}

/// The time of a request is divided between the queue of a device, the device, and computation.
#[test]
fn time_is_recorded_by_stage() {
    let bench = Bench::new(3, 1, Timing::SataSsd);
    let blocks = pool_of(&bench, VdevKind::Mirror, 12, 1, &[]);
    let options = WriteOptions { compression: CompressionKind::Off, ..options() };
    let ns = |request: &Request, stage| request.stage_ns(stage);
    let alone = Request::internal("alone");
    let data = bytes::Bytes::from(pattern(1 << 20, 1));
    let first = bench.world.run(blocks.write(&alone, data, &options)).unwrap().unwrap();
    assert_eq!(ns(&alone, Stage::Queue), 0, "the device was idle");
    assert!(ns(&alone, Stage::Device) > 0 && ns(&alone, Stage::Compute) > 0);
    let crowd = Request::internal("crowd");
    let many = (0..200).map(|n| blocks.write(&crowd, pattern(32 << 10, n).into(), &options));
    let pointers = bench.world.run(join_all(many)).unwrap();
    assert!(ns(&crowd, Stage::Queue) > 0 && ns(&crowd, Stage::Device) > 0, "{crowd:?}");
    let crowd = Request::internal("crowd");
    let options = Default::default();
    let reads = pointers.iter().map(|pointer| blocks.read(&crowd, pointer.as_ref().unwrap(), &options));
    let read = bench.world.run(join_all(reads)).unwrap();
    assert!(read.iter().all(Result::is_ok) && ns(&crowd, Stage::Queue) > 0 && crowd.device_ops() == 200, "{crowd:?}");
    let alone = Request::internal("alone");
    bench.world.run(blocks.read(&alone, &first, &options)).unwrap().unwrap();
    assert_eq!(ns(&alone, Stage::Queue), 0);
}
