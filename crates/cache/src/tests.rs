use crate::arc::{ArcLookup, ArcPolicy, ContentClass, MIN_REUSE_NS};
use crate::prefetch::{MAX_AHEAD_BYTES, Prefetcher};

/// A small generator (xorshift), so that the runs are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn resident_and_ghost_bytes_are_bounded_and_values_are_kept() {
    for seed in 1..40 {
        let mut random = Random(seed * 0x9e37_79b9);
        let budget = 1000 + random.below(5000);
        let mut arc = ArcPolicy::new(budget);
        let mut now = 0;
        for _ in 0..4000 {
            now += random.below(MIN_REUSE_NS * 2);
            let key = random.below(200);
            match arc.get(&key, now) {
                ArcLookup::Hit { value, .. } => assert_eq!(value, key * 3),
                ArcLookup::Miss => {
                    assert!(!arc.contains(&key));
                    let kind = if key.is_multiple_of(3) { ContentClass::Metadata } else { ContentClass::Data };
                    arc.insert(key, key * 3, 1 + random.below(400), kind, random.below(5) == 0, now);
                }
            }
            assert!(arc.resident_bytes() <= budget);
            assert!(arc.ghost_bytes() <= budget);
        }
        arc.set_budget(budget / 3);
        assert!(arc.resident_bytes() <= budget / 3);
    }
}

#[test]
fn reservations_evict_beforehand() {
    let mut arc = ArcPolicy::new(100);
    (0..10u64).for_each(|key| arc.insert(key, (), 10, ContentClass::Data, false, 0));
    assert_eq!(arc.resident_bytes(), 100);
    arc.reserve(25);
    assert_eq!(arc.resident_bytes(), 70);
    arc.insert(10, (), 10, ContentClass::Data, false, 0);
    assert_eq!(arc.resident_bytes(), 70, "other insertions do not use the reservation");
    arc.release(25);
    arc.insert(11, (), 25, ContentClass::Data, false, 0);
    assert_eq!(arc.resident_bytes(), 95);
    arc.reserve(1000);
    assert_eq!(arc.resident_bytes(), 0);
}

#[test]
fn a_scan_does_not_evict_mfu_blocks() {
    let mut arc = ArcPolicy::new(100);
    let mut now = 0;
    for key in 0..20u64 {
        arc.insert(key, (), 1, ContentClass::Data, false, now);
    }
    now += MIN_REUSE_NS;
    for key in 0..20u64 {
        assert_ne!(arc.get(&key, now), ArcLookup::Miss);
    }
    for key in 1000..9000u64 {
        arc.insert(key, (), 1, ContentClass::Data, false, now);
    }
    let kept = (0..20u64).filter(|k| arc.contains(k)).count();
    assert_eq!(kept, 20, "MFU blocks survive a scan of eighty times the budget");
}

#[test]
fn ghost_hits_move_the_balance() {
    let mut arc = ArcPolicy::new(100);
    let before = arc.sizes().metadata_target_bytes;
    for round in 0..50u64 {
        for key in 0..150u64 {
            if arc.get(&key, round * MIN_REUSE_NS) == ArcLookup::Miss {
                arc.insert(key, (), 1, ContentClass::Metadata, false, round * MIN_REUSE_NS);
            }
        }
    }
    let after = arc.sizes();
    assert!(after.metadata_target_bytes > before, "the metadata target grows with ghost hits of metadata");
    assert!(after.ghost_hits[0] + after.ghost_hits[1] > 0);
}

#[test]
fn only_the_first_demand_of_a_prefetched_block_is_marked() {
    let mut arc = ArcPolicy::new(100);
    arc.insert(1u64, 'x', 10, ContentClass::Data, true, 0);
    assert_eq!(arc.get(&1, 1), ArcLookup::Hit { value: 'x', prefetched: true });
    assert_eq!(arc.get(&1, 2), ArcLookup::Hit { value: 'x', prefetched: false });
}

#[test]
fn a_random_reader_prefetches_next_to_nothing() {
    let mut random = Random(7);
    let mut prefetcher = Prefetcher::default();
    let file = 96 << 20;
    let len = 8192;
    let mut fetched = 0;
    for _ in 0..file / len {
        let ranges = prefetcher.observe(random.below(file / len) * len, len, file);
        fetched += ranges.iter().map(|r| r.end - r.start).sum::<u64>();
    }
    assert!(fetched < file / 5, "{fetched}");
}

#[test]
fn a_sequential_reader_prefetches_every_byte_once() {
    let size = 1 << 30;
    let mut p = Prefetcher::default();
    let mut fetched_to = 0;
    let mut requests = 0;
    for n in 0..4096u64 {
        for r in p.observe(n * 131_072, 131_072, size) {
            assert!(r.start >= fetched_to && r.end <= size, "no byte twice, none past the end");
            fetched_to = r.end;
            requests += 1;
        }
        if n > 2 && fetched_to < size {
            assert!(fetched_to > (n + 1) * 131_072, "ahead of the reader");
            assert!(fetched_to <= (n + 1) * 131_072 + MAX_AHEAD_BYTES);
        }
    }
    assert!(requests < 600, "in large pieces, not {requests} of them");
}

#[test]
fn random_reads_prefetch_nothing_and_strides_are_detected() {
    let mut random = Random(77);
    let mut p = Prefetcher::default();
    let fetched: u64 =
        (0..2000).flat_map(|_| p.observe(random.below(1 << 40) & !8191, 8192, 1 << 40)).map(|r| r.end - r.start).sum();
    assert!(fetched < 2000 * 8192 / 10, "{fetched} bytes prefetched for a random reader");

    let mut p = Prefetcher::default();
    let step = 8 << 20;
    let mut seen = Vec::new();
    for n in 0..10u64 {
        seen.extend(p.observe(n * step, 4096, 1 << 30));
    }
    assert!((4..18).all(|n| seen.contains(&(n * step..n * step + 4096))), "{seen:?}");
}
