//! Tests of the L2ARC over simulated disks: feeding, reading, rebuilding, wrong copies, failing devices and power cuts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;
use weir_blocks::{Blocks, CacheClass, ReadOptions, Tree, VdevSpec};
use weir_cache::Cache;
use weir_cache::l2arc::{CacheState, L2Settings, NewCacheDevice, Owner};
use weir_codec::checksum::checksum;
use weir_codec::compress::ZstdLevel;
use weir_codec::{Salt, compress};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Endian};
use weir_machine::{Access, Buf, Disk, Machine, Request, Source};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const BLOCK_BYTES: u64 = 16 << 10;
const BLOCKS: u64 = 170;
/// Start of the allocatable space on a device: after the two front labels and the boot block.
const DATA_START: u64 = 4 << 20;
const CACHE_BYTES: u64 = (1 << 30) + (8 << 20);
const OWNER: Owner = Owner { pool_guid: 77, vdev_guid: 78 };
const ARC_BYTES: u64 = 1 << 20;

/// Contents of block `n`.
fn contents(n: u64) -> Vec<u8> {
    let mut word = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    // Every third block can be compressed.
    let mask = if n.is_multiple_of(3) { 0x0f0f } else { u64::MAX };
    let words = (0..BLOCK_BYTES / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word & mask).to_le_bytes()
    });
    words.collect()
}

/// The stored bytes of block `n`, and its pointer.
fn stored(n: u64, birth: u64) -> (Vec<u8>, BlockPointer) {
    let plain = contents(n);
    let mut bytes = plain.clone();
    let mut kind = CompressionKind::Off;
    if n.is_multiple_of(3) {
        let mut out = vec![0; plain.len()];
        let len = compress(CompressionKind::Lz4, ZstdLevel::DEFAULT, &plain, &mut out).unwrap().unwrap();
        out.truncate(len.next_multiple_of(512));
        (bytes, kind) = (out, CompressionKind::Lz4);
    }
    let sums = checksum(ChecksumKind::Fletcher4, Endian::Little, &Salt::none(), &bytes).unwrap();
    let mut words = [0; 16];
    words[0] = BLOCK_BYTES >> 9;
    words[1] = (n * BLOCK_BYTES) >> 9;
    let lsize = (BLOCK_BYTES >> 9) - 1;
    let psize = (bytes.len() as u64 >> 9) - 1;
    // Little-endian, plain file contents, fletcher4.
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | u64::from(kind.to_u8()) << 32 | psize << 16 | lsize;
    words[10] = birth;
    words[12..].copy_from_slice(&sums);
    (bytes, BlockPointer::from_words(words))
}

fn pointer(n: u64) -> BlockPointer {
    stored(n, 5).1
}

/// A world with the blocks on a disk, and an empty cache device.
fn world(seed: u64) -> (SimWorld, Arc<SimDisk>) {
    let world = SimWorld::new(seed);
    world.add_disk("/sim/pool", 64 << 20, 4096, Timing::SataSsd);
    let cache = world.add_disk("/sim/cache", CACHE_BYTES, 4096, Timing::SataSsd);
    let machine = world.machine();
    let filled = world.run(async move {
        let disk = machine.disks.open("/sim/pool".as_ref(), Access::ReadWrite).unwrap();
        for n in 0..BLOCKS {
            let mut bytes = stored(n, 5).0;
            bytes.resize(BLOCK_BYTES as usize, 0);
            disk.write(DATA_START + n * BLOCK_BYTES, Buf::copy_from(&bytes)).await.unwrap();
        }
        disk.flush().await.unwrap();
    });
    filled.unwrap();
    (world, cache)
}

fn open_cache(machine: &Machine) -> Arc<dyn Disk> {
    machine.disks.open("/sim/cache".as_ref(), Access::ReadWrite).unwrap()
}

/// A cache over the pool's disk with the cache device in service.
fn opened(machine: &Machine, settings: L2Settings) -> Arc<Cache> {
    let disk = machine.disks.open("/sim/pool".as_ref(), Access::ReadWrite).unwrap();
    let leaf = VdevSpec::leaf(0, 1, "disk", Some(disk)).top(12, 48 << 20);
    let blocks = Blocks::new(machine, Tree::new(vec![leaf], &machine.clock).unwrap(), Salt::none());
    let cache = Cache::new(machine.clone(), Arc::new(blocks), ARC_BYTES);
    cache.l2arc().set_settings(settings);
    assert!(cache.add_cache_device(&NewCacheDevice { owner: OWNER, disk: open_cache(machine), ashift: 12 }));
    cache
}

/// Reads all blocks in order; returns how many are wrong, and the bytes that came from the cache device.
async fn read_all(cache: &Cache, options: &ReadOptions) -> (u64, u64) {
    let rq = Request::internal("test");
    let mut wrong = 0;
    for n in 0..BLOCKS {
        let bytes = cache.read(&rq, &pointer(n), options).await.unwrap();
        wrong += u64::from(bytes[..] != contents(n)[..]);
        // Blocks become old enough to count as used again.
        cache.machine().clock.sleep(Duration::from_millis(20)).await;
    }
    (wrong, rq.read_bytes(Source::L2arc))
}

/// Reads all blocks, and waits until those in the ARC were fed as well.
async fn warm_up(cache: &Cache) {
    for _ in 0..2 {
        assert_eq!(read_all(cache, &ReadOptions::default()).await.0, 0);
        cache.machine().clock.sleep(Duration::from_secs(3)).await;
    }
}

#[test]
fn blocks_that_left_the_arc_are_read_from_the_cache_device() {
    let (world, disk) = world(1);
    let machine = world.machine();
    let ran = world.run(async move {
        let cache = opened(&machine, L2Settings::default());
        warm_up(&cache).await;
        let (wrong, bytes) = read_all(&cache, &ReadOptions::default()).await;
        assert_eq!(wrong, 0);
        assert!(bytes > BLOCKS / 2 * BLOCK_BYTES, "{bytes} bytes");
        let stats = cache.l2arc().stats();
        assert!(stats.hits >= bytes / BLOCK_BYTES && stats.checksum_errors == 0, "{stats:?}");
        assert!(stats.psize_bytes < stats.lsize_bytes, "compressed blocks stay compressed: {stats:?}");
        assert!(stats.devices[0].used_bytes > stats.psize_bytes, "log blocks count: {stats:?}");
        let sizes = cache.stats().sizes;
        let resident: u64 = sizes.resident_bytes.iter().sum();
        assert!(stats.memory_bytes > 0 && resident + stats.memory_bytes <= ARC_BYTES, "{sizes:?} {stats:?}");
        // A block that was freed has no copy any more, nor has one of another birth at its place.
        let before = stats.psize_bytes;
        cache.forget(&pointer(7));
        assert!(cache.l2arc().stats().psize_bytes < before);
        // Without the device, everything comes from the pool.
        assert!(cache.l2arc().remove(OWNER.vdev_guid).await && !cache.l2arc().remove(OWNER.vdev_guid).await);
        assert_eq!(cache.l2arc().stats().memory_bytes, 0);
        assert_eq!(read_all(&cache, &ReadOptions::default()).await, (0, 0));
    });
    ran.unwrap();
    assert!(disk.stats().writes > 0);
}

#[test]
fn what_was_written_is_found_again_and_written_on() {
    let (world, _) = world(2);
    for round in 0..3 {
        let machine = world.machine();
        let ran = world.run(async move {
            let cache = opened(&machine, L2Settings::default());
            machine.clock.sleep(Duration::from_millis(500)).await;
            let found = cache.l2arc().stats();
            assert_eq!(found.rebuilt_blocks > 0, round > 0, "{found:?}");
            assert_eq!(found.devices[0].state, CacheState::Active);
            if round > 0 {
                let (wrong, bytes) = read_all(&cache, &ReadOptions::default()).await;
                assert!(wrong == 0 && bytes >= found.rebuilt_blocks / 2 * BLOCK_BYTES, "{bytes} of {found:?}");
            }
            warm_up(&cache).await;
            cache.l2arc().close().await;
        });
        ran.unwrap();
    }
    // A device of another pool is not read.
    let machine = world.machine();
    let ran = world.run(async move {
        let disk = open_cache(&machine);
        let cache = opened(&machine, L2Settings::default());
        assert!(cache.l2arc().remove(OWNER.vdev_guid).await);
        let before = cache.l2arc().stats().rebuilt_blocks;
        let owner = Owner { pool_guid: 1, ..OWNER };
        assert!(cache.add_cache_device(&NewCacheDevice { owner, disk, ashift: 12 }));
        machine.clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(cache.l2arc().stats().rebuilt_blocks, before);
    });
    ran.unwrap();
}

#[test]
fn properties_decide_what_is_written() {
    for (seed, secondary) in [(3, CacheClass::None), (4, CacheClass::Metadata)] {
        let (world, _) = world(seed);
        let machine = world.machine();
        let ran = world.run(async move {
            let cache = opened(&machine, L2Settings::default());
            let options = ReadOptions { secondary, ..ReadOptions::default() };
            for _ in 0..2 {
                assert_eq!(read_all(&cache, &options).await, (0, 0));
            }
            assert_eq!(cache.l2arc().stats().written_blocks, 0, "{secondary:?}");
        });
        ran.unwrap();
    }
}

/// Moves every copy by one place, as a device does that returns other blocks; returns the number of wrong reads, and of
/// copies that were detected.
fn with_wrong_copies(seed: u64, verifies: bool) -> (u64, u64) {
    let (world, disk) = world(seed);
    let machine = world.machine();
    let ran = world.run(async move {
        let cache = opened(&machine, L2Settings { verifies, ..L2Settings::default() });
        warm_up(&cache).await;
        let space = DATA_START + 4096;
        let all = disk.peek(space, 12 << 20);
        let (front, back) = all.split_at(BLOCK_BYTES as usize);
        let device = open_cache(&machine);
        device.write(space, Buf::copy_from(&[back, front].concat())).await.unwrap();
        let (wrong, _) = read_all(&cache, &ReadOptions::default()).await;
        (wrong, cache.l2arc().stats().checksum_errors)
    });
    ran.unwrap()
}

#[test]
fn wrong_copies_are_never_returned() {
    for seed in 10..12 {
        let (wrong, detected) = with_wrong_copies(seed, true);
        assert!(wrong == 0 && detected > BLOCKS / 4, "{wrong} wrong, {detected} detected");
    }
}

#[test]
fn canary_without_checksums_wrong_copies_are_returned() {
    assert!(with_wrong_copies(10, false).0 > BLOCKS / 4, "the test of wrong copies detects nothing");
}

#[test]
fn a_device_that_hangs_or_fails_only_loses_the_cache() {
    let faults = [
        (Fault::Hang, CacheState::Hung),
        (Fault::Gone, CacheState::Faulted),
        (Fault::Unreadable { offset: DATA_START, len: 100 << 20 }, CacheState::Faulted),
    ];
    for (fault, state) in faults {
        let (world, disk) = world(20);
        let machine = world.machine();
        let ran = world.run(async move {
            let settings = L2Settings::default();
            let cache = opened(&machine, settings);
            warm_up(&cache).await;
            disk.lay(fault.clone());
            let begun = machine.clock.now();
            let (wrong, _) = read_all(&cache, &ReadOptions::default()).await;
            let took = machine.clock.now().since(begun);
            assert_eq!(wrong, 0, "{fault:?}");
            assert!(took < Duration::from_millis(20) * BLOCKS as u32 + settings.deadline * 2, "{fault:?}: {took:?}");
            let stats = cache.l2arc().stats();
            assert_eq!((stats.devices[0].state, stats.memory_bytes), (state, 0), "{fault:?}: {stats:?}");
            // Closing does not wait for the device.
            cache.l2arc().close().await;
            disk.lift_all();
        });
        ran.unwrap();
    }
}

#[test]
fn what_a_power_cut_leaves_is_read_right() {
    let feeding = |machine: Machine| async move {
        let cache = opened(&machine, L2Settings::default());
        warm_up(&cache).await;
    };
    let (whole, _) = world(30);
    let before = whole.changes();
    whole.run(feeding(whole.machine())).unwrap();
    let changes = whole.changes() - before;
    assert!(changes > 100, "{changes} changes");
    let mut rebuilt = 0;
    for cut in (1..changes).step_by((changes / 10).max(1) as usize).chain(changes - 6..changes) {
        let (world, _) = world(30 + cut);
        world.cut_after(cut);
        let ran = world.run(feeding(world.machine()));
        assert!(ran.is_err(), "cut {cut}");
        let machine = world.machine();
        let again = world.run(async move {
            let cache = opened(&machine, L2Settings::default());
            machine.clock.sleep(Duration::from_millis(500)).await;
            let found = cache.l2arc().stats().rebuilt_blocks;
            assert_eq!(read_all(&cache, &ReadOptions::default()).await.0, 0, "cut {cut}");
            warm_up(&cache).await;
            assert!(read_all(&cache, &ReadOptions::default()).await.1 > 0, "cut {cut}");
            found
        });
        rebuilt += again.unwrap();
    }
    assert!(rebuilt > 0, "no cut left a log block");
}
