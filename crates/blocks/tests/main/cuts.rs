//! Power cuts, crowds of writers, and writers that leave.

use crate::store::*;
use bytes::Bytes;
use futures_util::future::{Either, join_all, select};
use std::time::Duration;
use weir_blocks::{Class, SpaceKind, VdevKind, WriteOptions};
use weir_format::{BlockPointer, ObjectType};
use weir_machine::{Priority, Request};
use weir_sim::{SimError, Timing, run_twice};

/// Whatever the moment of a cut: what was written before a flush that returned is there.
#[test]
fn what_was_flushed_survives_every_cut() {
    for (kind, disks) in [(VdevKind::Mirror, 2), (raidz(1), 3), (raidz(2), 4)] {
        for cut in 1..60 {
            let outcome = run_twice(cut, |world| {
                let bench = Bench::over(world.clone(), disks, Timing::Chaos);
                let blocks = pool_of(&bench, kind, 12, disks, &[]);
                let request = Request::internal("test").with_priority(Priority::Async);
                let stable = std::cell::RefCell::new(Vec::new());
                world.cut_after(cut);
                let run = world.run(async {
                    for round in 0..4u64 {
                        let writes = (0..3u64).map(|i| {
                            let data = pattern(20 << 10, round * 10 + i);
                            let (blocks, request) = (&blocks, &request);
                            async move {
                                let pointer = blocks.write(request, Bytes::from(data.clone()), &options()).await?;
                                Ok::<_, weir_blocks::BlockError>((pointer, data))
                            }
                        });
                        let written: Result<Vec<_>, _> = join_all(writes).await.into_iter().collect();
                        blocks.flush().await?;
                        stable.borrow_mut().extend(written?);
                    }
                    Ok::<_, weir_blocks::BlockError>(())
                });
                assert!(matches!(run, Err(SimError::PowerCut { .. }) | Ok(Ok(()))), "{run:?}");
                world.cancel_cut();
                let after = bench.blocks(vec![top(0, kind, 12, bench.leaves(0..disks, &[]))]);
                for (pointer, data) in stable.borrow().iter() {
                    assert_eq!(bench.read(&after, pointer).as_ref(), Ok(data));
                }
                stable.take().len()
            });
            outcome.unwrap();
        }
    }
}

/// Hundreds of concurrent writes on slow disks are joined into few operations; dropped writes free their space and
/// delay no other.
#[test]
fn crowds_are_written_together_and_those_who_leave_give_their_space_back() {
    for seed in 0..6 {
        run_twice(seed, |world| crowd(&Bench::over(world.clone(), 2, Timing::Chaos), seed)).unwrap();
    }
}

fn crowd(bench: &Bench, seed: u64) -> u64 {
    let blocks = pool_of(bench, VdevKind::Mirror, 12, 2, &[]);
    let free = blocks.space(Class::Normal).free_bytes;
    let writers = (0..500u64).map(|i| {
        let (blocks, clock) = (blocks.clone(), bench.machine.clock.clone());
        async move {
            let class = if i % 10 == 0 { Priority::Sync } else { Priority::Async };
            let request = Request::internal("crowd").with_priority(class);
            let data = pattern(4096 * (1 + i as usize % 3), seed * 1000 + i);
            let options = options();
            let write = std::pin::pin!(blocks.write(&request, Bytes::from(data.clone()), &options));
            if i % 7 != 0 {
                return Some((write.await.unwrap(), data));
            }
            let patience = std::pin::pin!(clock.sleep(Duration::from_micros(20 * i)));
            match select(write, patience).await {
                Either::Left((pointer, _)) => Some((pointer.unwrap(), data)),
                Either::Right(_) => None,
            }
        }
    });
    let written: Vec<(BlockPointer, Vec<u8>)> =
        bench.world.run(join_all(writers)).unwrap().into_iter().flatten().collect();
    assert!(written.len() >= 428, "{}", written.len());
    let operations = bench.disks[0].stats().writes;
    assert!(operations < 150, "{operations} operations for {} writes", written.len());
    for (pointer, data) in &written {
        assert_eq!(bench.read(&blocks, pointer).as_ref(), Ok(data));
    }
    let taken: u64 = written.iter().map(|(p, _)| p.asize_bytes()).sum();
    let synced_allocated = blocks.take_changes(TXG);
    assert!(synced_allocated.iter().all(|c| c.kind == SpaceKind::Alloc));
    assert_eq!(synced_allocated.iter().map(|c| c.len_bytes).sum::<u64>(), taken);
    (0..=2).for_each(|n| drop(blocks.synced(weir_format::Txg(TXG.0 + n), true)));
    assert_eq!(blocks.space(Class::Normal).free_bytes, free - taken);
    operations
}

#[test]
fn what_is_free_is_trimmed_and_nothing_else() {
    for (kind, disks) in [(VdevKind::Mirror, 2), (raidz(1), 3)] {
        let bench = Bench::new(5, disks, Timing::Nvme);
        let blocks = pool_of(&bench, kind, 12, disks, &[]);
        let options = WriteOptions { object_type: ObjectType::ZVOL, ..options() };
        let written: Vec<_> = (0..20u64)
            .map(|i| {
                let data = pattern(96 << 10, i);
                (write(&bench, &blocks, &data, &options).unwrap(), data)
            })
            .collect();
        let request = Request::internal("test");
        for (pointer, _) in written.iter().step_by(2) {
            bench.world.run(blocks.free(&request, pointer, weir_format::Txg(101))).unwrap().unwrap();
        }
        let ripe: Vec<_> = (101..=103).flat_map(|txg| blocks.synced(weir_format::Txg(txg), true)).collect();
        assert!(!ripe.is_empty());
        let free = blocks.space(Class::Normal);
        let whole = [(0, 0..16u64 << SHIFT)];
        let trimmed = bench.world.run(weir_blocks::trim(&blocks, &whole)).unwrap().unwrap();
        assert!(trimmed > free.free_bytes / 2, "{kind:?}: {trimmed} of {free:?}");
        assert_eq!(blocks.space(Class::Normal), free, "what was out of use is back");
        for (pointer, data) in written.iter().skip(1).step_by(2) {
            assert_eq!(bench.read(&blocks, pointer).as_ref(), Ok(data), "{kind:?}");
        }
        let gone = written.iter().step_by(2).filter(|(p, d)| bench.read(&blocks, p).as_ref() == Ok(d)).count();
        assert!(gone < 10, "{kind:?}: nothing was discarded");
    }
}

/// Hundreds of callers at once share few flushes, also when some leave, and none returns before its write is stable.
#[test]
fn flushes_are_shared_and_never_return_early() {
    for cut in 1..80u64 {
        run_twice(cut, |world| {
            let bench = Bench::over(world.clone(), 1, Timing::Chaos);
            let blocks = stripe_of(&bench, 12, 1);
            let stable = std::cell::RefCell::new(Vec::new());
            if cut % 4 != 0 {
                world.cut_after(cut * 5);
            }
            let run = world.run(join_all((0..200u64).map(|i| {
                let (blocks, stable, clock) = (&blocks, &stable, bench.machine.clock.clone());
                async move {
                    let request = Request::internal("test");
                    clock.sleep(Duration::from_micros(i * 37 % 1000)).await;
                    let data = pattern(4096, i);
                    let pointer = blocks.write(&request, Bytes::from(data.clone()), &options()).await.unwrap();
                    let vdevs = pointer.dvas().map(|dva| dva.vdev).collect();
                    let flush = std::pin::pin!(blocks.flush_vdevs(&request, Some(&vdevs)));
                    let patience =
                        std::pin::pin!(clock.sleep(Duration::from_micros(if i % 5 == 0 { 10 } else { 1 << 40 })));
                    if let Either::Left((outcome, _)) = select(flush, patience).await {
                        outcome.unwrap();
                        stable.borrow_mut().push((pointer, data));
                    }
                }
            })));
            if run.is_ok() {
                assert!(stable.borrow().len() >= 160);
                assert!(bench.disks[0].stats().flushes < 100, "{} flushes", bench.disks[0].stats().flushes);
                world.power_failure();
            }
            world.cancel_cut();
            let after = stripe_of(&bench, 12, 1);
            for (pointer, data) in stable.borrow().iter() {
                assert_eq!(bench.read(&after, pointer).as_ref(), Ok(data));
            }
        })
        .unwrap();
    }
}

/// A device that could not keep what it was given is not believed when it says that it can now.
#[test]
fn a_failed_flush_is_not_forgiven() {
    for (disks, bears) in [(1usize, false), (2, true)] {
        let bench = Bench::new(1, disks, Timing::Nvme);
        let kind = VdevKind::Mirror;
        let blocks = pool_of(&bench, kind, 12, disks, &[]);
        let data = pattern(4096, 1);
        let pointer = write(&bench, &blocks, &data, &options()).unwrap();
        bench.disks[0].lay(weir_sim::Fault::FailNth { nth: 0, errno: 5 });
        for _ in 0..3 {
            assert_eq!(bench.world.run(blocks.flush()).unwrap().is_ok(), bears);
        }
        assert_eq!(blocks.tree().dtls(), [(100, vec![(TXG, TXG)].into())].into());
        assert_eq!(bench.disks[0].stats().flushes, 1);
        write(&bench, &blocks, &data, &options()).unwrap();
        assert_eq!(bench.world.run(blocks.flush()).unwrap().is_ok(), bears);
        assert_eq!(bench.read(&blocks, &pointer).unwrap(), data);
        assert_eq!(blocks.tree().health()[0].counts.reads, u64::from(!bears), "asked last");
        assert_eq!(
            blocks.tree().leaf(100).unwrap().excise_dtl(weir_format::Txg(u64::MAX)),
            None,
            "no scrub proves that it kept them"
        );
    }
}
