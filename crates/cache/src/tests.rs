use crate::arc::{Arc, Found, Kind, SAME_USE_NS};
use crate::prefetch::{MAX_AHEAD_BYTES, Prefetcher};

/// A small generator (xorshift), so that the runs are the same every time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn budget_and_ghosts_stay_bounded_and_values_are_the_ones_put_in() {
    for seed in 1..40 {
        let mut chance = Chance(seed * 0x9e37_79b9);
        let budget = 1000 + chance.below(5000);
        let mut arc = Arc::new(budget);
        let mut now = 0;
        for _ in 0..4000 {
            now += chance.below(SAME_USE_NS * 2);
            let key = chance.below(200);
            match arc.get(&key, now) {
                Found::Hit { value, .. } => assert_eq!(value, key * 3),
                Found::Miss => {
                    assert!(!arc.contains(&key));
                    let kind = if key.is_multiple_of(3) { Kind::Metadata } else { Kind::Data };
                    arc.insert(key, key * 3, 1 + chance.below(400), kind, chance.below(5) == 0, now);
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
fn room_for_what_is_under_way_is_made_beforehand() {
    let mut arc = Arc::new(100);
    (0..10u64).for_each(|key| arc.insert(key, (), 10, Kind::Data, false, 0));
    assert_eq!(arc.resident_bytes(), 100);
    arc.reserve(25);
    assert_eq!(arc.resident_bytes(), 70);
    arc.insert(10, (), 10, Kind::Data, false, 0);
    assert_eq!(arc.resident_bytes(), 70, "what lands otherwise does not take the reserved room");
    arc.release(25);
    arc.insert(11, (), 25, Kind::Data, false, 0);
    assert_eq!(arc.resident_bytes(), 95);
    arc.reserve(1000);
    assert_eq!(arc.resident_bytes(), 0);
}

#[test]
fn a_scan_does_not_flush_what_is_used_again() {
    let mut arc = Arc::new(100);
    let mut now = 0;
    for key in 0..20u64 {
        arc.insert(key, (), 1, Kind::Data, false, now);
    }
    now += SAME_USE_NS;
    for key in 0..20u64 {
        assert_ne!(arc.get(&key, now), Found::Miss);
    }
    for key in 1000..9000u64 {
        arc.insert(key, (), 1, Kind::Data, false, now);
    }
    let kept = (0..20u64).filter(|k| arc.contains(k)).count();
    assert_eq!(kept, 20, "the frequent blocks outlive a scan eighty times the budget");
}

#[test]
fn ghost_hits_move_the_balance() {
    let mut arc = Arc::new(100);
    let before = arc.sizes().metadata_target_bytes;
    for round in 0..50u64 {
        for key in 0..150u64 {
            if arc.get(&key, round * SAME_USE_NS) == Found::Miss {
                arc.insert(key, (), 1, Kind::Metadata, false, round * SAME_USE_NS);
            }
        }
    }
    let after = arc.sizes();
    assert!(after.metadata_target_bytes > before, "metadata that keeps coming back earns room");
    assert!(after.ghost_hits[0] + after.ghost_hits[1] > 0);
}

#[test]
fn the_first_demand_of_a_prefetched_block_says_so_once() {
    let mut arc = Arc::new(100);
    arc.insert(1u64, 'x', 10, Kind::Data, true, 0);
    assert_eq!(arc.get(&1, 1), Found::Hit { value: 'x', prefetched: true });
    assert_eq!(arc.get(&1, 2), Found::Hit { value: 'x', prefetched: false });
}

#[test]
fn a_random_reader_fetches_next_to_nothing_ahead() {
    let (mut chance, mut prefetcher) = (Chance(7), Prefetcher::default());
    let (file, len) = (96 << 20, 8192);
    let mut fetched = 0;
    for _ in 0..file / len {
        let ranges = prefetcher.observe(chance.below(file / len) * len, len, file);
        fetched += ranges.iter().map(|r| r.end - r.start).sum::<u64>();
    }
    assert!(fetched < file / 5, "{fetched}");
}

#[test]
fn a_sequential_reader_is_run_ahead_of_once_for_every_byte() {
    let size = 1 << 30;
    let mut p = Prefetcher::default();
    let (mut fetched_to, mut asked) = (0, 0);
    for n in 0..4096u64 {
        for r in p.observe(n * 131_072, 131_072, size) {
            assert!(r.start >= fetched_to && r.end <= size, "nothing twice, nothing past the end");
            fetched_to = r.end;
            asked += 1;
        }
        if n > 2 && fetched_to < size {
            assert!(fetched_to > (n + 1) * 131_072, "ahead of the reader");
            assert!(fetched_to <= (n + 1) * 131_072 + MAX_AHEAD_BYTES);
        }
    }
    assert!(asked < 600, "in pieces worth an operation, not {asked} of them");
}

#[test]
fn random_reads_fetch_nothing_and_strides_are_followed() {
    let mut chance = Chance(77);
    let mut p = Prefetcher::default();
    let fetched: u64 =
        (0..2000).flat_map(|_| p.observe(chance.below(1 << 40) & !8191, 8192, 1 << 40)).map(|r| r.end - r.start).sum();
    assert!(fetched < 2000 * 8192 / 10, "{fetched} bytes fetched for a random reader");

    let mut p = Prefetcher::default();
    let step = 8 << 20;
    let mut seen = Vec::new();
    for n in 0..10u64 {
        seen.extend(p.observe(n * step, 4096, 1 << 30));
    }
    assert!((4..18).all(|n| seen.contains(&(n * step..n * step + 4096))), "{seen:?}");
}
