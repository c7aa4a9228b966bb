//! Tests of the cache over real blocks on a simulated disk: single-flight reads, dropped leaders, prefetch, errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures_util::future::join_all;
use std::sync::Arc;
use weir_blocks::{BlockError, Blocks, CacheClass, ReadOptions, Tree, VdevSpec};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_codec::checksum::checksum;
use weir_format::{BlockPointer, ChecksumKind, Endian};
use weir_machine::{Access, Machine, Priority, Request, Source};
use weir_sim::{SimWorld, Timing};

const BLOCK_BYTES: u64 = 4096;
/// Start of the allocatable space on a device: after the two front labels and the boot block.
const DATA_START: u64 = 4 << 20;

/// A pointer to block `n` of file contents; all its bytes are `n`.
fn pointer(n: u8) -> BlockPointer {
    let bytes = [n; BLOCK_BYTES as usize];
    let sums = checksum(ChecksumKind::Fletcher4, Endian::Little, &Salt::none(), &bytes).unwrap();
    let mut words = [0; 16];
    words[0] = BLOCK_BYTES >> 9;
    words[1] = (u64::from(n) * BLOCK_BYTES) >> 9;
    let sectors = (BLOCK_BYTES >> 9) - 1;
    // Little-endian, plain file contents, fletcher4, not compressed.
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 2 << 32 | sectors << 16 | sectors;
    words[10] = 5;
    words[12..].copy_from_slice(&sums);
    BlockPointer::from_words(words)
}

/// Eight blocks on a simulated SSD, and a cache of `budget` bytes over them.
async fn cache(machine: &Machine, budget: u64) -> Arc<Cache> {
    let disk = machine.disks.open("/sim/disk".as_ref(), Access::ReadWrite).unwrap();
    for n in 0..8u8 {
        let buf = weir_machine::Buf::copy_from(&[n; BLOCK_BYTES as usize]);
        disk.write(DATA_START + u64::from(n) * BLOCK_BYTES, buf).await.unwrap();
    }
    let leaf = VdevSpec::leaf(0, 1, "disk", Some(disk)).top(12, 1 << 20);
    let blocks = Blocks::new(machine, Tree::new(vec![leaf], &machine.clock).unwrap(), Salt::none());
    Cache::new(machine.clone(), Arc::new(blocks), budget)
}

/// Runs `test` in a new world for each of several seeds.
fn worlds<F: Future<Output = ()>>(test: impl Fn(Machine) -> F) {
    for seed in 1..20 {
        let world = SimWorld::new(seed);
        world.add_disk("/sim/disk", 16 << 20, 4096, Timing::SataSsd);
        world.run(test(world.machine())).unwrap();
    }
}

fn device_reads(cache: &Cache) -> u64 {
    cache.blocks().tree().health().iter().map(|leaf| leaf.counts.reads).sum()
}

#[test]
fn concurrent_reads_of_a_block_cost_one_device_read_and_are_all_accounted() {
    worlds(|machine| async move {
        let cache = cache(&machine, 1 << 20).await;
        let bp = pointer(3);
        let options = ReadOptions::default();
        let requests: Vec<Request> = (0..10).map(|_| Request::internal("test")).collect();
        let answers = join_all(requests.iter().map(|rq| cache.read(rq, &bp, &options))).await;
        assert!(answers.iter().all(|a| a.as_ref().unwrap().iter().all(|b| *b == 3)));
        assert_eq!(device_reads(&cache), 1);
        let served = |source| requests.iter().map(|rq| rq.read_bytes(source)).sum::<u64>();
        assert_eq!(served(Source::Disk), BLOCK_BYTES, "one reader read it from the disk");
        assert_eq!(served(Source::ArcDemand), 9 * BLOCK_BYTES, "nine readers were served from memory");
        let later = Request::internal("test");
        cache.read(&later, &bp, &options).await.unwrap();
        assert_eq!(later.read_bytes(Source::ArcDemand), BLOCK_BYTES);
        assert_eq!((cache.stats().misses, cache.stats().joined, cache.stats().demand_hits), (1, 9, 1));
    });
}

#[test]
fn waiters_of_a_dropped_leader_read_again() {
    worlds(|machine| async move {
        let cache = cache(&machine, 1 << 20).await;
        let bp = pointer(5);
        let options = ReadOptions::default();
        let rq = Request::internal("leader");
        let mut leader = Box::pin(cache.read(&rq, &bp, &options));
        assert!(futures_util::poll!(&mut leader).is_pending());
        let cache2 = cache.clone();
        let bp2 = bp;
        let waiter = machine.tasks.spawn(async move {
            let rq = Request::internal("waiter");
            cache2.read(&rq, &bp2, &ReadOptions::default()).await
        });
        machine.clock.sleep(std::time::Duration::from_nanos(1)).await;
        drop(leader);
        assert_eq!(waiter.await.unwrap().unwrap()[..], [5; BLOCK_BYTES as usize]);
    });
}

#[test]
fn prefetched_blocks_are_accounted_once() {
    worlds(|machine| async move {
        let cache = cache(&machine, 1 << 20).await;
        let bp = pointer(1);
        let options = ReadOptions::default();
        cache.prefetch(&bp, &options);
        cache.prefetch(&bp, &options);
        let rq = Request::internal("test");
        cache.read(&rq, &bp, &options).await.unwrap();
        cache.read(&rq, &bp, &options).await.unwrap();
        assert_eq!(rq.read_bytes(Source::ArcPrefetch), BLOCK_BYTES);
        assert_eq!(rq.read_bytes(Source::ArcDemand), BLOCK_BYTES);
        assert_eq!((device_reads(&cache), cache.stats().prefetches), (1, 1));
    });
}

#[test]
fn errors_are_not_cached_and_primarycache_is_honoured() {
    worlds(|machine| async move {
        let cache = cache(&machine, 1 << 20).await;
        let rq = Request::internal("test").with_priority(Priority::Sync);
        let mut words = *pointer(2).words();
        words[12] ^= 1;
        let wrong = BlockPointer::from_words(words);
        for _ in 0..2 {
            let answer = cache.read(&rq, &wrong, &ReadOptions::default()).await;
            assert!(matches!(answer, Err(BlockError::Corrupt { vdev: 0, .. })), "{answer:?}");
        }
        assert_eq!(device_reads(&cache), 2, "each read tries the disk again");
        for class in [CacheClass::None, CacheClass::Metadata] {
            let options = ReadOptions { cache: class, ..ReadOptions::default() };
            let before = device_reads(&cache);
            for _ in 0..2 {
                cache.read(&rq, &pointer(4), &options).await.unwrap();
            }
            assert_eq!(device_reads(&cache) - before, 2, "file contents are not cached under {class:?}");
        }
    });
}

/// The room of a freed block returns at once; a later read of it goes to the disk.
#[test]
fn freed_blocks_leave_the_cache() {
    worlds(|machine| async move {
        let cache = cache(&machine, 1 << 20).await;
        let options = ReadOptions::default();
        let raw = ReadOptions { raw: true, ..ReadOptions::default() };
        let resident = |cache: &Cache| cache.stats().sizes.resident_bytes.iter().sum::<u64>();
        for n in 0..4 {
            cache.read(&Request::internal("test"), &pointer(n), &options).await.unwrap();
        }
        let others = resident(&cache);
        cache.read(&Request::internal("test"), &pointer(4), &options).await.unwrap();
        cache.read(&Request::internal("test"), &pointer(4), &raw).await.unwrap();
        assert!(resident(&cache) > others);
        cache.forget(&pointer(4));
        assert_eq!(resident(&cache), others);
        assert_eq!(cache.stats().sizes.ghost_bytes, [0; 4]);
        let again = Request::internal("test");
        let bytes = cache.read(&again, &pointer(4), &options).await.unwrap();
        assert!(bytes.iter().all(|byte| *byte == 4));
        assert_eq!(again.read_bytes(Source::Disk), BLOCK_BYTES);
        cache.forget(&pointer(7));
        cache.forget(&BlockPointer::HOLE);
        assert_eq!(resident(&cache), others + (others / 4));
    });
}

#[test]
fn a_small_budget_is_respected() {
    worlds(|machine| async move {
        let cache = cache(&machine, 3 * BLOCK_BYTES).await;
        let rq = Request::internal("test");
        for n in (0..8).chain(0..8) {
            cache.read(&rq, &pointer(n), &ReadOptions::default()).await.unwrap();
        }
        let sizes = cache.stats().sizes;
        assert!(sizes.resident_bytes.iter().sum::<u64>() <= 3 * BLOCK_BYTES);
        assert!(sizes.evictions > 0);
        cache.set_budget(0);
        assert_eq!(cache.stats().sizes.resident_bytes, [0; 4]);
    });
}

/// A pointer to block `n` of 128 KiB; the block is only in the cache.
fn large_pointer(n: u64) -> BlockPointer {
    let mut words = [0; 16];
    words[0] = 256;
    words[1] = n * 256;
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 2 << 32 | 255 << 16 | 255;
    words[10] = 5 + n % 3;
    BlockPointer::from_words(words)
}

/// The shards of a large cache share one budget: it is used whole, never exceeded, and evicts what is oldest.
#[test]
fn shards_share_one_budget() {
    const BUDGET: u64 = 256 << 20;
    worlds(|machine| async move {
        let cache = cache(&machine, BUDGET).await;
        let options = ReadOptions::default();
        let bytes = bytes::Bytes::from(vec![7; 128 << 10]);
        let resident = |cache: &Cache| cache.stats().sizes.resident_bytes.iter().sum::<u64>();
        for n in 0..6000 {
            cache.insert(&large_pointer(n), &options, bytes.clone());
            assert!(resident(&cache) <= BUDGET);
        }
        assert!(resident(&cache) > BUDGET - (256 << 10), "{}", resident(&cache));
        let rq = Request::internal("test");
        for n in 4400..6000 {
            cache.read(&rq, &large_pointer(n), &options).await.unwrap();
        }
        let stats = cache.stats();
        assert_eq!((stats.demand_hits, stats.misses), (1600, 0), "the newest blocks are resident");
        assert_eq!(stats.sizes.budget_bytes, BUDGET);
        cache.set_budget(BUDGET / 4);
        assert!(resident(&cache) <= BUDGET / 4 && resident(&cache) > BUDGET / 4 - (256 << 10));
        cache.clear();
        assert_eq!((resident(&cache), cache.stats().sizes.resident_count), (0, 0));
        cache.insert(&large_pointer(1), &options, bytes.clone());
        assert_eq!(cache.stats().sizes.resident_count, 1);
    });
}

/// Threads that fill a cache at the same time exceed its budget by nothing that lasts.
#[test]
#[allow(clippy::disallowed_methods, reason = "the test is about threads")]
fn threads_that_fill_the_cache_keep_its_budget() {
    const BUDGET: u64 = 256 << 20;
    let world = SimWorld::new(1);
    world.add_disk("/sim/disk", 16 << 20, 4096, Timing::SataSsd);
    let cache = world.run(cache(&world.machine(), BUDGET)).unwrap();
    let bytes = bytes::Bytes::from(vec![7; 128 << 10]);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cache = &cache;
            let bytes = &bytes;
            scope.spawn(move || {
                for n in 0..4000 {
                    cache.insert(&large_pointer(n * 8 + thread), &ReadOptions::default(), bytes.clone());
                }
            });
        }
    });
    cache.insert(&large_pointer(1 << 20), &ReadOptions::default(), bytes);
    let resident = cache.stats().sizes.resident_bytes.iter().sum::<u64>();
    assert!((BUDGET - (256 << 10)..=BUDGET).contains(&resident), "{resident}");
    assert_eq!(cache.stats().sizes.evictions, 32_001 - cache.stats().sizes.resident_count);
}
