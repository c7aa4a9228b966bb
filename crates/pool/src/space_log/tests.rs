use super::*;

/// Runs a pool whose txgs change the metaslabs that `touched` returns; calls `each` with the state after every txg.
fn run(txgs: u64, touched: impl Fn(u64) -> Vec<u64>, mut each: impl FnMut(&SpaceLog, usize)) -> SpaceLog {
    let mut log = SpaceLog::default();
    for n in 1..=txgs {
        let txg = Txg(n);
        let mut flushed = 0;
        let due = log.due(txg, false);
        log.logs.insert(txg, Log { object: ObjectId(n), blocks: 1 });
        for id in due {
            flushed += usize::from(log.flushed(id, txg).dirty);
        }
        let taken = log.take_obsolete(txg, 0);
        assert!(taken.iter().all(|(of, _)| log.metaslabs.values().all(|m| m.since > *of)));
        for metaslab in touched(n) {
            log.mark((0, metaslab), txg);
            let start = (metaslab << 20) + n * 512;
            log.note((0, metaslab), txg, SpaceKind::Alloc, start..start + 512);
        }
        each(&log, flushed);
        log.committed();
    }
    log
}

#[test]
fn what_is_taken_back_again_is_no_change() {
    let mut log = SpaceLog::default();
    assert!(log.mark((0, 1), Txg(5)) && !log.mark((0, 1), Txg(6)));
    log.note((0, 1), Txg(4), SpaceKind::Alloc, 0..512);
    log.note((0, 1), Txg(5), SpaceKind::Alloc, 1024..4096);
    log.note((0, 1), Txg(6), SpaceKind::Free, 0..2048);
    let unflushed = log.flushed((0, 1), Txg(7));
    assert!(unflushed.taken.iter().eq(std::iter::once(2048..4096)));
    assert!(unflushed.given_back.iter().eq(std::iter::once(0..1024)));
    assert!(log.mark((0, 1), Txg(9)));
}

#[test]
fn little_work_is_seldom_flushed_and_the_log_stays_short() {
    let mut all = 0;
    let log = run(
        1000,
        |_| vec![0, 1, 2, 3],
        |log, flushed| {
            all += flushed;
            assert!(log.logs.len() as u64 <= LOGS.0 + 1, "{} logs", log.logs.len());
        },
    );
    // Each metaslab is flushed once while the log grows to its limit.
    assert!((100..=200).contains(&all), "{all} flushes in 1000 groups");
    assert!(log.metaslabs.values().all(|m| m.segments() < 40));
}

#[test]
fn work_all_over_is_spread_over_the_groups() {
    let mut most = 0;
    run(
        2000,
        |_| (0..200).collect(),
        |log, flushed| {
            most = most.max(flushed);
            assert!(log.logs.len() <= 202, "{} logs", log.logs.len());
        },
    );
    assert!((1..=4).contains(&most), "{most} flushes in one group");
}

#[test]
fn metaslabs_that_are_no_longer_changed_do_not_keep_the_log() {
    let touched = |n: u64| if n < 10 { (0..100).collect() } else { vec![n % 3] };
    let log = run(500, touched, |_, _| {});
    assert!(log.logs.len() as u64 <= LOGS.0 + 1, "{} logs", log.logs.len());
    let oldest = log.metaslabs.values().map(|m| m.since).min();
    assert!(oldest.is_some_and(|oldest| log.logs.contains_key(&oldest)), "each since has a log: {oldest:?}");
}

#[test]
fn obsolete_logs_go_one_by_one() {
    let mut log = SpaceLog::default();
    for n in 1..=10 {
        log.logs.insert(Txg(n), Log { object: ObjectId(n), blocks: 1 });
    }
    log.mark((0, 0), Txg(8));
    let mut take = |kept| log.take_obsolete(Txg(11), kept).iter().map(|(txg, _)| txg.0).collect::<Vec<_>>();
    assert_eq!((take(5), take(5), take(2), take(0), take(0)), (vec![1, 2], vec![3], vec![4, 5], vec![6, 7], vec![]));
}

#[test]
fn memory_is_a_limit() {
    let mut log = SpaceLog::default();
    for metaslab in 0..4u64 {
        log.mark((0, metaslab), Txg(1 + metaslab));
        log.logs.insert(Txg(1 + metaslab), Log { object: ObjectId(9), blocks: 1 });
        for n in 0..MAX_SEGMENTS as u64 / 2 {
            let start = (metaslab << 40) + n * 1024;
            log.note((0, metaslab), Txg(1 + metaslab), SpaceKind::Alloc, start..start + 512);
        }
    }
    assert_eq!(log.due(Txg(8), false), [(0, 0), (0, 1)]);
    assert_eq!(log.due(Txg(8), true).len(), 4);
}
