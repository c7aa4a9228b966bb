use super::*;
use proptest::prelude::*;

const SHIFT: u32 = 20;

fn about(vdev: u32, class: Class, metaslab_count: u64) -> VdevSpace {
    let sizing = Sizing { ashift: 12, raidz: None };
    VdevSpace { vdev, class, sizing, metaslab_shift: SHIFT, metaslab_count, non_allocating: false }
}

/// Vdevs with the given numbers of metaslabs, all free.
fn pool(vdevs: &[(Class, u64)]) -> Allocator {
    let mut space = Allocator::default();
    for (id, &(class, count)) in (0u32..).zip(vdevs) {
        space.add_vdev(about(id, class, count));
        for i in 0..count {
            let whole = i << SHIFT..(i + 1) << SHIFT;
            space.load(id, i, std::slice::from_ref(&whole)).unwrap();
        }
    }
    space
}

fn want(class: Class, psize_bytes: u64, copies: u8, txg: u64) -> AllocRequest {
    AllocRequest { class, psize_bytes, copies, txg: Txg(txg) }
}

fn range(dva: &Dva) -> Range<u64> {
    dva.offset_bytes..dva.offset_bytes + dva.asize_bytes
}

#[test]
fn copies_are_on_different_vdevs_or_else_far_apart() {
    let mut space = pool(&[(Class::Normal, 8), (Class::Normal, 8), (Class::Normal, 8)]);
    for _ in 0..50 {
        let dvas = space.allocate(&want(Class::Normal, 4096, 3, 1)).unwrap();
        let mut vdevs: Vec<u32> = dvas.iter().map(|d| d.vdev).collect();
        vdevs.sort_unstable();
        assert_eq!(vdevs, [0, 1, 2]);
    }
    let mut space = pool(&[(Class::Normal, 16)]);
    for _ in 0..50 {
        let dvas = space.allocate(&want(Class::Normal, 4096, 3, 1)).unwrap();
        for (i, a) in dvas.iter().enumerate() {
            for b in &dvas[..i] {
                assert!(a.offset_bytes.abs_diff(b.offset_bytes) > 1 << SHIFT, "{dvas:?}");
            }
        }
    }
    let mut space = pool(&[(Class::Normal, 1)]);
    assert_eq!(
        space.allocate(&want(Class::Normal, 4096, 3, 1)).unwrap().len(),
        3,
        "close together, if there is no other way"
    );
}

#[test]
fn classes_use_their_vdevs_and_then_others() {
    let mut space = pool(&[(Class::Normal, 4), (Class::Log, 1), (Class::Special, 2)]);
    let vdev = |space: &mut Allocator, class| space.allocate(&want(class, 512 << 10, 1, 1)).unwrap()[0].vdev;
    assert_eq!(vdev(&mut space, Class::Log), 1);
    assert_eq!(vdev(&mut space, Class::Special), 2);
    assert_eq!(vdev(&mut space, Class::Dedup), 2, "there is no vdev of this class");
    assert_eq!(vdev(&mut space, Class::Log), 1);
    assert_eq!(vdev(&mut space, Class::Log), 2, "the log vdev is full");
    assert_eq!(vdev(&mut space, Class::Normal), 0, "data are for normal vdevs alone");
    assert!(space.has_class(Class::Log) && !space.has_class(Class::Dedup));
    space.set_non_allocating(2, true);
    for class in [Class::Special, Class::Dedup, Class::Log] {
        assert_eq!(vdev(&mut space, class), 0, "the special vdev is non-allocating");
    }
}

#[test]
fn shares_follow_free_space() {
    let mut space = pool(&[(Class::Normal, 30), (Class::Normal, 10)]);
    let mut got = [0u64; 2];
    for _ in 0..1000 {
        for dva in space.allocate(&want(Class::Normal, 16 << 10, 1, 1)).unwrap() {
            got[dva.vdev as usize] += dva.asize_bytes;
        }
    }
    assert!(got[0] > 2 * got[1] && got[1] > 0, "{got:?}");
}

#[test]
fn frees_are_deferred_for_two_txgs() {
    let mut space = pool(&[(Class::Normal, 1)]);
    let all = space.allocate(&want(Class::Normal, 1 << 20, 1, 5)).unwrap();
    assert_eq!(space.take_changes(Txg(5)).len(), 1);
    space.synced(Txg(5), true, Txg(u64::MAX));
    space.free(0, range(&all[0]), Txg(6)).unwrap();
    assert_eq!(space.free(0, range(&all[0]), Txg(6)), Err(SpaceFault::AlreadyFree));
    for txg in 6..8 {
        assert!(space.synced(Txg(txg), true, Txg(u64::MAX)).is_empty());
        assert!(space.allocate(&want(Class::Normal, 4096, 1, txg + 1)).is_err());
        assert_eq!(space.sums(Class::Normal).deferred_bytes, 1 << 20);
    }
    assert_eq!(space.synced(Txg(8), true, Txg(u64::MAX)), [(0, 0..1 << 20)]);
    assert!(space.allocate(&want(Class::Normal, 1 << 20, 1, 9)).is_ok());
}

#[test]
fn a_change_after_the_last_call_for_its_txg_is_handed_out_with_the_next() {
    let mut space = pool(&[(Class::Normal, 1)]);
    let all = space.allocate(&want(Class::Normal, 1 << 20, 1, 5)).unwrap();
    assert_eq!(space.take_changes(Txg(5)).len(), 1);
    space.synced(Txg(5), true, Txg(u64::MAX));
    assert!(space.take_changes(Txg(6)).is_empty());
    space.free(0, range(&all[0]), Txg(5)).unwrap();
    space.synced(Txg(6), false, Txg(u64::MAX));
    let freed = space.take_changes(Txg(7));
    assert!(matches!(freed[..], [SpaceChange { kind: SpaceKind::Free, len_bytes: 0x10_0000, .. }]), "{freed:?}");
}

#[test]
fn a_free_in_the_txg_of_the_allocation_is_no_change_but_deferred() {
    let mut space = pool(&[(Class::Normal, 1)]);
    let dva = space.allocate(&want(Class::Normal, 8192, 1, 5)).unwrap()[0];
    space.free(0, range(&dva), Txg(5)).unwrap();
    assert!(space.take_changes(Txg(5)).is_empty());
    assert_eq!(space.sums(Class::Normal).deferred_bytes, 8192);
    let dva = space.allocate(&want(Class::Normal, 8192, 1, 5)).unwrap()[0];
    assert_eq!(space.take_changes(Txg(5))[0].kind, SpaceKind::Alloc);
    space.free(0, range(&dva), Txg(5)).unwrap();
    assert_eq!(space.take_changes(Txg(5))[0].kind, SpaceKind::Free);
    (5..8).for_each(|txg| drop(space.synced(Txg(txg), true, Txg(u64::MAX))));
    assert_eq!(space.sums(Class::Normal).free_bytes, 1 << 20);
}

#[test]
fn txgs_without_uberblocks_do_not_shorten_the_deferral() {
    let mut space = pool(&[(Class::Normal, 1)]);
    let dva = space.allocate(&want(Class::Normal, 8192, 1, 5)).unwrap()[0];
    space.free(0, range(&dva), Txg(6)).unwrap();
    for (txg, wrote_uberblock) in [(5, true), (6, true), (7, false), (8, true), (9, false), (10, false)] {
        let back = space.synced(Txg(txg), wrote_uberblock, Txg(u64::MAX));
        assert!(back.is_empty(), "txg {txg}: the pool can still be rewound to txg 5, which needs the block");
    }
    assert_eq!(space.synced(Txg(11), true, Txg(u64::MAX)), [(0, range(&dva))]);
}

#[test]
fn claims_allocate_exactly_their_range_or_nothing() {
    let mut space = pool(&[(Class::Normal, 2)]);
    assert_eq!(space.claim(0, 4096..8192, Txg(1)), Ok(()));
    assert_eq!(space.claim(0, 0..8192, Txg(1)), Err(SpaceFault::NotFree));
    assert_eq!(space.claim(0, 1 << SHIFT..3 << SHIFT, Txg(1)), Err(SpaceFault::Outside));
    assert_eq!(space.claim(0, 2 << SHIFT..3 << SHIFT, Txg(1)), Err(SpaceFault::Unknown));
    assert_eq!(space.claim(7, 0..1, Txg(1)), Err(SpaceFault::Unknown));
    let synced_allocated = space.take_changes(Txg(1));
    assert_eq!(
        (synced_allocated.len(), synced_allocated[0].offset_bytes, synced_allocated[0].len_bytes),
        (1, 4096, 4096)
    );
}

#[test]
fn nothing_is_allocated_in_a_metaslab_before_it_is_loaded() {
    let mut space = Allocator::default();
    space.add_vdev(about(3, Class::Normal, 2));
    assert!(space.allocate(&want(Class::Normal, 4096, 1, 1)).is_err());
    space.free(3, 4096..8192, Txg(1)).unwrap();
    space.load(3, 0, &[0..8192, 16384..20480]).unwrap();
    assert_eq!(space.free_segments(3, 0).unwrap(), [0..4096, 16384..20480], "deferred frees are not free yet");
    assert_eq!(space.load(3, 0, &[]), Err(SpaceFault::LoadedTwice));
    assert_eq!(space.load(3, 1, std::slice::from_ref(&(0..4096))), Err(SpaceFault::Outside));
    assert_eq!(space.unit_bytes(), 4096);
}

#[test]
fn small_blocks_are_adjacent_and_all_space_is_allocatable() {
    let mut space = pool(&[(Class::Normal, 4)]);
    let offsets: Vec<u64> =
        (0..20).map(|_| space.allocate(&want(Class::Normal, 8192, 1, 1)).unwrap()[0].offset_bytes).collect();
    assert!(offsets.windows(2).all(|w| w[1] == w[0] + 8192), "{offsets:?}");
    let mut count = 20;
    while space.allocate(&want(Class::Normal, 8192, 1, 1)).is_ok() {
        count += 1;
    }
    assert_eq!(count, (4 << SHIFT) / 8192);
    assert_eq!(space.sums(Class::Normal).free_bytes, 0);
}

/// A step of the property test.
#[derive(Clone, Debug)]
enum Step {
    Allocate { psize_bytes: u64, copies: u8, class: usize },
    Free { which: prop::sample::Index },
    TakeChanges,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let allocate = (1u64..200_000, 1u8..4, 0usize..4);
    prop_oneof![
        6 => allocate.prop_map(|(psize_bytes, copies, class)| Step::Allocate { psize_bytes, copies, class }),
        4 => any::<prop::sample::Index>().prop_map(|which| Step::Free { which }),
        1 => Just(Step::TakeChanges),
        2 => Just(Step::Sync),
    ]
}

fn overlaps(mut list: impl Iterator<Item = (u32, Range<u64>)>, vdev: u32, r: &Range<u64>) -> bool {
    list.any(|(v, o)| v == vdev && o.start < r.end && r.start < o.end)
}

fn raidz_pool() -> Allocator {
    let mut space = pool(&[(Class::Normal, 3), (Class::Log, 1)]);
    let raidz = RaidzSizing { nparity: 2, width: 5, expansion_txgs: vec![], whole_rows: false };
    let sizing = Sizing { ashift: 9, raidz: Some(raidz) };
    space.add_vdev(VdevSpace { sizing, ..about(2, Class::Normal, 3) });
    for i in 0..3u64 {
        // Fragmented: every other 64 KiB is free.
        let free: Vec<Range<u64>> =
            (0..8).map(|n| (i << SHIFT) + (n << 17)..(i << SHIFT) + (n << 17) + (1 << 16)).collect();
        space.load(2, i, &free).unwrap();
    }
    space
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares the allocator with a list of ranges: nothing is allocated twice, sums add up, the changes describe the
    /// allocated ranges, and freed space is allocatable when two txgs have synced, not before.
    #[test]
    fn the_allocator_agrees_with_the_model(steps in prop::collection::vec(step(), 1..300)) {
        let mut space = raidz_pool();
        let size = space.sums(Class::Normal).size_bytes + space.sums(Class::Log).size_bytes;
        let free_at_start = space.sums(Class::Normal).free_bytes + space.sums(Class::Log).free_bytes;
        let mut allocated: Vec<(u32, Range<u64>)> = Vec::new();
        let mut deferred: Vec<(u64, u32, Range<u64>)> = Vec::new();
        let mut synced_allocated: BTreeMap<u32, Segments> = BTreeMap::new();
        let mut txg = 10;
        for step in steps {
            match step {
                Step::Allocate { psize_bytes, copies, class } => {
                    let dvas = space.allocate(&want(Class::ALL[class], psize_bytes, copies, txg)).unwrap_or_default();
                    prop_assert!(dvas.is_empty() || dvas.len() == usize::from(copies));
                    for dva in dvas {
                        let r = range(&dva);
                        prop_assert!(!overlaps(allocated.iter().cloned(), dva.vdev, &r), "allocated twice: {dva:?}");
                        prop_assert!(!overlaps(deferred.iter().map(|(_, v, r)| (*v, r.clone())), dva.vdev, &r));
                        let sizing = &space.vdev(dva.vdev).unwrap().sizing;
                        prop_assert_eq!(dva.asize_bytes, sizing.asize_bytes(psize_bytes, txg));
                        prop_assert_eq!(dva.offset_bytes % (1 << sizing.ashift), 0);
                        allocated.push((dva.vdev, r));
                    }
                }
                Step::Free { which } if !allocated.is_empty() => {
                    let (vdev, r) = allocated.swap_remove(which.index(allocated.len()));
                    space.free(vdev, r.clone(), Txg(txg)).unwrap();
                    prop_assert!(space.free(vdev, r.clone(), Txg(txg)).is_err());
                    deferred.push((txg, vdev, r));
                }
                Step::Free { .. } => {}
                Step::TakeChanges | Step::Sync => {
                    for change in space.take_changes(Txg(txg)) {
                        let r = change.offset_bytes..change.offset_bytes + change.len_bytes;
                        prop_assert_eq!(r.start >> SHIFT, change.metaslab);
                        let map = synced_allocated.entry(change.vdev).or_default();
                        let consistent = if change.kind == SpaceKind::Alloc { map.add(r) } else { map.remove(r) };
                        prop_assert!(consistent, "{change:?}");
                    }
                    let model: u64 = allocated.iter().map(|(_, r)| r.end - r.start).sum();
                    prop_assert_eq!(synced_allocated.values().map(Segments::total_bytes).sum::<u64>(), model);
                    if matches!(step, Step::Sync) {
                        let back: u64 = space.synced(Txg(txg), true, Txg(u64::MAX)).iter().map(|(_, r)| r.end - r.start).sum();
                        let (released, rest): (Vec<_>, Vec<_>) = deferred.into_iter().partition(|(t, ..)| t + DEFER <= txg);
                        prop_assert_eq!(back, released.iter().map(|(_, _, r)| r.end - r.start).sum::<u64>());
                        deferred = rest;
                        txg += 1;
                    }
                }
            }
            let sums = [Class::Normal, Class::Log].map(|c| space.sums(c));
            prop_assert_eq!(sums.iter().map(|s| s.allocated_bytes + s.deferred_bytes + s.free_bytes).sum::<u64>(), size);
            let model: u64 = allocated.iter().map(|(_, r)| r.end - r.start).sum();
            let rest: u64 = deferred.iter().map(|(_, _, r)| r.end - r.start).sum();
            prop_assert_eq!(sums.iter().map(|s| s.deferred_bytes).sum::<u64>(), rest);
            prop_assert_eq!(sums.iter().map(|s| s.free_bytes).sum::<u64>(), free_at_start - model - rest);
        }
    }

    /// Compares the set of segments with an array of units.
    #[test]
    fn segments_agree_with_the_model(steps in prop::collection::vec((0u8..3, 0u64..64, 1u64..12), 1..80)) {
        let mut set = Segments::default();
        let mut model = [false; 80];
        for (what, at, len) in steps {
            let r = at..at + len;
            let slots = at as usize..(at + len) as usize;
            let all = model[slots.clone()].iter().all(|b| *b);
            let any = model[slots.clone()].iter().any(|b| *b);
            prop_assert_eq!((set.contains(&r), set.touches(&r)), (all, any));
            match what {
                0 => {
                    prop_assert_eq!(set.add(r), !any);
                    if !any { model[slots].fill(true); }
                }
                1 => {
                    prop_assert_eq!(set.remove(r), all);
                    if all { model[slots].fill(false); }
                }
                _ => {
                    let count = model[slots.clone()].iter().filter(|b| **b).count() as u64;
                    prop_assert_eq!(set.remove_common(&r).iter().map(|r| r.end - r.start).sum::<u64>(), count);
                    model[slots].fill(false);
                }
            }
            let runs: Vec<Range<u64>> = set.iter().collect();
            prop_assert!(runs.windows(2).all(|w| w[0].end < w[1].start), "adjacent segments are merged");
            prop_assert_eq!(set.total_bytes(), model.iter().filter(|b| **b).count() as u64);
            prop_assert_eq!(set.largest_bytes(), runs.iter().map(|r| r.end - r.start).max().unwrap_or(0));
            prop_assert_eq!(set.best_fit(3).is_some(), set.largest_bytes() >= 3);
            if let Some(start) = set.first_fit(20, 3, 100) {
                prop_assert!(start >= 20 && set.contains(&(start..start + 3)));
            }
        }
    }
}

#[test]
fn reads_in_progress_delay_the_reuse_of_later_frees() {
    let mut space = pool(&[(Class::Normal, 1)]);
    let dva = space.allocate(&want(Class::Normal, 8192, 1, 5)).unwrap()[0];
    let status = |space: &Allocator, birth| space.alloc_status(0, dva.offset_bytes, 8192, Txg(birth));
    assert_eq!((status(&space, 5), status(&space, 4)), (AllocStatus::Unsynced, AllocStatus::Freed));
    space.take_changes(Txg(5));
    space.synced(Txg(5), true, Txg(u64::MAX));
    assert_eq!((status(&space, 5), status(&space, 4)), (AllocStatus::Synced, AllocStatus::Freed));
    space.synced(Txg(9), true, Txg(4));
    assert_eq!(status(&space, 4), AllocStatus::Freed, "a read from before the allocation is in progress");
    space.synced(Txg(9), true, Txg(u64::MAX));
    assert_eq!(status(&space, 4), AllocStatus::Synced, "forgotten");
    space.free(0, range(&dva), Txg(10)).unwrap();
    assert_eq!(status(&space, 5), AllocStatus::Freed);
    for txg in 10..20 {
        assert!(space.synced(Txg(txg), true, Txg(9)).is_empty(), "a read began when 9 was the last");
    }
    assert_eq!(space.synced(Txg(20), true, Txg(10)).len(), 1);
    assert_eq!(status(&space, 5), AllocStatus::Freed);
    assert_eq!(space.alloc_status(3, 0, 512, Txg(1)), AllocStatus::Unsynced);
}

/// A summary of free ranges, with or without a histogram.
fn summary(free: &[Range<u64>], with_histogram: bool) -> Summary {
    let mut segments = Segments::default();
    free.iter().for_each(|range| assert!(segments.add(range.clone())));
    let mut histogram = [0; 64];
    segments.histogram(&mut histogram);
    let histogram = with_histogram.then(|| SegmentCounts::of(&histogram));
    Summary { free_bytes: segments.total_bytes(), histogram }
}

#[test]
fn a_metaslab_is_loaded_when_its_summary_promises_a_segment() {
    let mut space = Allocator::default();
    space.add_vdev(about(0, Class::Normal, 3));
    let base = |metaslab: u64| metaslab << SHIFT;
    let free = [
        std::iter::once(base(0)..base(0) + 8192).collect(),
        vec![base(1)..base(1) + 65536, base(1) + (128 << 10)..base(1) + (132 << 10)],
        vec![base(2)..base(2) + 4096, base(2) + 8192..base(2) + 12288],
    ];
    for (metaslab, free) in free.iter().enumerate() {
        space.summarize(0, metaslab as u64, summary(free, true)).unwrap();
    }
    assert_eq!(space.sums(Class::Normal).free_bytes, 8192 + 65536 + 4096 + 8192);
    assert_eq!(space.allocate(&want(Class::Normal, 32 << 10, 1, 1)), Err(NotAllocated::Load(0, 1)));
    assert_eq!(space.claim(0, base(1)..base(1) + 4096, Txg(1)), Err(SpaceFault::NotLoaded));
    assert!(space.begin_load(0, 1) && !space.begin_load(0, 1));
    space.finish_load(0, 1, Some(&free[1])).unwrap();
    let at = space.allocate(&want(Class::Normal, 32 << 10, 1, 1)).unwrap();
    assert_eq!(at[0].offset_bytes >> SHIFT, 1);
    assert_eq!(
        space.allocate(&want(Class::Normal, 32 << 10, 1, 1)).ok().map(|at| at[0].offset_bytes >> SHIFT),
        Some(1)
    );
    // Of the rest, no summary promises so much, but frees may have merged.
    assert_eq!(space.allocate(&want(Class::Normal, 8192, 1, 1)), Err(NotAllocated::Load(0, 0)));
    assert!(space.begin_load(0, 0));
    space.finish_load(0, 0, None).unwrap();
    assert_eq!(
        space.allocate(&want(Class::Normal, 8192, 1, 1)),
        Err(NotAllocated::Load(0, 2)),
        "the other one has failed"
    );
    assert!(space.begin_load(0, 2));
    assert_eq!(space.finish_load(0, 2, Some(&free[2][..1])), Err(SpaceFault::Contradicts));
    assert_eq!(space.allocate(&want(Class::Normal, 8192, 1, 1)), Err(NotAllocated::Full));
    space.synced(Txg(1), true, Txg(u64::MAX));
    assert_eq!(space.allocate(&want(Class::Normal, 8192, 1, 1)), Err(NotAllocated::Load(0, 0)), "it is tried again");
}

#[test]
fn frees_during_a_load_stay_deferred_until_it_ends() {
    for read_before in [true, false] {
        let mut space = Allocator::default();
        space.add_vdev(about(0, Class::Normal, 1));
        space.summarize(0, 0, summary(std::slice::from_ref(&(0..4096)), false)).unwrap();
        space.free(0, 8192..12288, Txg(1)).unwrap();
        for txg in 1..4 {
            space.synced(Txg(txg), true, Txg(u64::MAX));
        }
        assert_eq!(
            space.sums(Class::Normal),
            SpaceSums { free_bytes: 8192, deferred_bytes: 0, ..space.sums(Class::Normal) }
        );
        assert!(space.begin_load(0, 0));
        space.free(0, 16384..20480, Txg(4)).unwrap();
        for txg in 4..10 {
            assert!(space.synced(Txg(txg), true, Txg(u64::MAX)).is_empty());
        }
        let mut free = vec![0..4096, 8192..12288];
        if !read_before {
            free.push(16384..20480);
        }
        space.finish_load(0, 0, Some(&free)).unwrap();
        assert_eq!(space.free_segments(0, 0).unwrap(), [0..4096, 8192..12288]);
        assert_eq!(space.synced(Txg(10), true, Txg(u64::MAX)), [(0, 16384..20480)]);
        assert_eq!(space.free_segments(0, 0).unwrap().len(), 3);
    }
}

#[test]
fn unused_metaslabs_are_unloaded_when_their_changes_are_written() {
    let mut space = pool(&[(Class::Normal, 4)]);
    space.set_max_loaded(0);
    let dva = space.allocate(&want(Class::Normal, 4096, 1, 2)).unwrap()[0];
    let used = dva.offset_bytes >> SHIFT;
    space.take_changes(Txg(2));
    space.synced(Txg(1), true, Txg(u64::MAX));
    assert_eq!(space.load_stats().loaded, 1, "the changes of txg 2 may not be in the space map");
    assert!(space.free_segments(0, used).is_some());
    space.synced(Txg(2), true, Txg(u64::MAX));
    assert_eq!((space.load_stats().loaded, space.load_stats().unloads), (0, 4));
    let histogram = space.metaslab_histogram(0, used, Txg(2));
    assert_eq!(histogram[19], 1, "1 MiB less 4 KiB are free");
    space.free(0, range(&dva), Txg(3)).unwrap();
    assert_eq!(space.free(0, range(&dva), Txg(3)), Err(SpaceFault::AlreadyFree));
    assert_eq!(space.metaslab_histogram(0, used, Txg(3))[12], 1);
    assert_eq!(space.alloc_status(0, dva.offset_bytes, 4096, Txg(2)), AllocStatus::Freed);
    assert_eq!(space.allocated_as_synced(0, used), None);
    assert_eq!(space.alloc_status(0, dva.offset_bytes + 4096, 4096, Txg(2)), AllocStatus::Unknown);
}

/// A step of the property test of loading.
#[derive(Clone, Debug)]
enum LoadStep {
    Allocate {
        psize_bytes: u64,
        copies: u8,
    },
    Free {
        which: prop::sample::Index,
    },
    TakeChanges,
    Sync,
    /// Ends a load: with the committed state of the time when it began, or of now.
    FinishLoad {
        which: prop::sample::Index,
        is_late: bool,
        fails: bool,
    },
}

fn load_step() -> impl Strategy<Value = LoadStep> {
    let index = any::<prop::sample::Index>;
    let finish = (index(), any::<bool>(), prop::bool::weighted(0.1));
    prop_oneof![
        6 => (1u64..200_000, 1u8..4).prop_map(|(psize_bytes, copies)| LoadStep::Allocate { psize_bytes, copies }),
        5 => index().prop_map(|which| LoadStep::Free { which }),
        1 => Just(LoadStep::TakeChanges),
        3 => Just(LoadStep::Sync),
        6 => finish.prop_map(|(which, is_late, fails)| LoadStep::FinishLoad { which, is_late, fails }),
    ]
}

/// The space maps of a pool, by metaslab.
type Maps = BTreeMap<(u32, u64), Segments>;

/// Free ranges of a metaslab by its space map.
fn free_by(maps: &Maps, (vdev, metaslab): (u32, u64)) -> Vec<Range<u64>> {
    let mut free = Segments::default();
    free.add(metaslab << SHIFT..(metaslab + 1) << SHIFT);
    for range in maps.get(&(vdev, metaslab)).into_iter().flat_map(Segments::iter) {
        assert!(free.remove(range), "the map allocates twice");
    }
    free.iter().collect()
}

fn apply(maps: &mut Maps, changes: Vec<SpaceChange>) {
    for change in changes {
        let map = maps.entry((change.vdev, change.metaslab)).or_default();
        let range = change.offset_bytes..change.offset_bytes + change.len_bytes;
        let is_change = if change.kind == SpaceKind::Alloc { map.add(range) } else { map.remove(range) };
        assert!(is_change, "{change:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Metaslabs are loaded from space maps of any synced txg since the load began, and unloaded when memory is short: nothing
    /// is allocated twice, the sums stay exact, the histograms fit into the free space, and no load contradicts its summary.
    #[test]
    fn loading_and_unloading_lose_nothing(max_bytes in 0u64..20_000, steps in prop::collection::vec(load_step(), 1..400)) {
        let mut space = Allocator::default();
        for vdev in 0..2 {
            space.add_vdev(about(vdev, Class::Normal, 4));
            for i in 0..4u64 {
                space.summarize(vdev, i, summary(std::slice::from_ref(&(i << SHIFT..(i + 1) << SHIFT)), i % 2 == 0)).unwrap();
            }
        }
        space.set_max_loaded(max_bytes);
        let mut maps = Maps::new();
        let mut committed = Maps::new();
        let mut loads = Vec::new();
        let mut allocated: Vec<(u32, Range<u64>)> = Vec::new();
        let mut txg = 10;
        for step in steps {
            match step {
                LoadStep::Allocate { psize_bytes, copies } => {
                    match space.allocate(&want(Class::Normal, psize_bytes, copies, txg)) {
                        Ok(dvas) => for dva in dvas {
                            let r = range(&dva);
                            prop_assert!(!overlaps(allocated.iter().cloned(), dva.vdev, &r), "allocated twice: {dva:?}");
                            allocated.push((dva.vdev, r));
                        },
                        Err(NotAllocated::Load(vdev, metaslab)) => if space.begin_load(vdev, metaslab) {
                            loads.push(((vdev, metaslab), free_by(&committed, (vdev, metaslab))));
                        },
                        Err(NotAllocated::Full) => {}
                    }
                }
                LoadStep::Free { which } if !allocated.is_empty() => {
                    let (vdev, r) = allocated.swap_remove(which.index(allocated.len()));
                    prop_assert_eq!(space.free(vdev, r, Txg(txg)), Ok(()));
                }
                LoadStep::Free { .. } => {}
                LoadStep::FinishLoad { which, is_late, fails } if !loads.is_empty() => {
                    let (id, early) = loads.swap_remove(which.index(loads.len()));
                    let free = if is_late { free_by(&committed, id) } else { early };
                    prop_assert_eq!(space.finish_load(id.0, id.1, (!fails).then_some(&free[..])), Ok(()));
                }
                LoadStep::FinishLoad { .. } => {}
                LoadStep::TakeChanges => apply(&mut maps, space.take_changes(Txg(txg))),
                LoadStep::Sync => {
                    apply(&mut maps, space.take_changes(Txg(txg)));
                    for vdev in 0..2 {
                        for metaslab in 0..4 {
                            let free = free_by(&maps, (vdev, metaslab));
                            if let Some(known) = space.allocated_as_synced(vdev, metaslab) {
                                prop_assert_eq!(known, maps.get(&(vdev, metaslab)).into_iter().flat_map(Segments::iter).collect::<Vec<_>>());
                            }
                            let mut needed = 0u128;
                            for (bin, count) in space.metaslab_histogram(vdev, metaslab, Txg(txg)).iter().enumerate().rev() {
                                needed = needed * 2 + u128::from(*count);
                                let room: u64 = free.iter().map(|r| (r.end - r.start) >> bin).sum();
                                prop_assert!(needed <= room.into(), "segments of a histogram do not fit");
                            }
                        }
                    }
                    committed = maps.clone();
                    space.synced(Txg(txg), true, Txg(u64::MAX));
                    txg += 1;
                }
            }
            let sums = space.sums(Class::Normal);
            let model: u64 = allocated.iter().map(|(_, r)| r.end - r.start).sum();
            prop_assert_eq!(sums.allocated_bytes, model);
            prop_assert_eq!(sums.size_bytes, 8 << SHIFT);
        }
    }
}
