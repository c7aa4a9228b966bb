//! Each rule on both sides of its thresholds.

use super::*;
use crate::facts::{ConnectionFacts, LinkFacts};
use crate::sample::{ArcState, CauseBytes, Counts, DatasetState, LeafTotals, OperationTotals, SpaceState, TxgState};

/// A load in which nothing is wrong: two clients with several requests in flight, over ten seconds.
fn healthy() -> Interval {
    let client = |name: &str| ClientTotals {
        dataset: "tank/home".into(),
        objset: 54,
        protocol: "nfs3".into(),
        client: name.into(),
        requests: 1000,
        reads: 500,
        writes: 500,
        overlapping: 900,
        time_ns: 2_000_000_000,
        data_bytes: 500 << 17,
        read_bytes: 500 << 17,
        written_bytes: 500 << 17,
        device_bytes: 1000 << 17,
    };
    let disk = |guid: &str| LeafTotals {
        name: format!("disk{guid}"),
        guid: guid.into(),
        group: "1".into(),
        class: "normal".into(),
        in_service: true,
        timed_ops: 1000,
        timed_ns: 1_000_000_000,
        queued_ops: 1000,
        ..LeafTotals::default()
    };
    Interval {
        pool: "tank".into(),
        time_ms: 0,
        seconds: 10.0,
        operations: vec![
            row("nfs3", "read", &[("device", 2710), ("queue", 100)]),
            row("nfs3", "write", &[("locks", 10), ("device", 90)]),
        ],
        clients: vec![client("10.0.0.1"), client("10.0.0.2")],
        files: crate::FileTable::default(),
        datasets: vec![DatasetState {
            name: "tank/home".into(),
            objset: 54,
            record_bytes: 128 << 10,
            is_volume: false,
        }],
        written: vec![CauseBytes { content: "data".into(), redundancy: "first copy".into(), bytes: 1000 << 17 }],
        arc: ArcState { demand_hits: 9000, misses: 1000, mru_data_bytes: 95, max_bytes: 100, ..ArcState::default() },
        txg: TxgState::default(),
        leaves: vec![disk("11"), disk("12"), disk("13")],
        space: SpaceState { size_bytes: 1000, allocated_bytes: 500 },
        host: None,
    }
}

/// 1000 requests that took these milliseconds in stages.
fn row(protocol: &str, operation: &str, stages_ms: &[(&str, u64)]) -> OperationTotals {
    OperationTotals {
        protocol: protocol.into(),
        operation: operation.into(),
        requests: 1000,
        read_bytes: if operation == "read" {
            Counts([("arc demand".into(), 3 << 20), ("disk".into(), 1 << 20)].into())
        } else {
            Counts::default()
        },
        written_bytes: if operation == "write" { 1 << 20 } else { 0 },
        stage_ns: Counts(stages_ms.iter().map(|(name, ms)| ((*name).to_owned(), ms * 1_000_000)).collect()),
        ..OperationTotals::default()
    }
}

/// Causes that are found, and the first sentence.
fn found(interval: &Interval, facts: &PoolFacts) -> Vec<(Cause, String, String)> {
    let diagnosis = diagnose(interval, facts, None);
    assert!(!diagnosis.limit.is_empty());
    diagnosis.findings.into_iter().map(|one| (one.cause, one.subject, one.sentence)).collect()
}

/// Asserts that nothing is found at `below`, and that at `above` only `cause` is found, with this subject, and its sentence has
/// these words.
fn threshold(below: &Interval, above: &Interval, cause: Cause, subject: &str, words: &[&str]) {
    with_facts((below, &PoolFacts::default()), (above, &PoolFacts::default()), cause, subject, words);
}

fn with_facts(
    below: (&Interval, &PoolFacts),
    above: (&Interval, &PoolFacts),
    cause: Cause,
    subject: &str,
    words: &[&str],
) {
    assert_eq!(found(below.0, below.1), [], "below the threshold of {cause:?}");
    let all = found(above.0, above.1);
    let [(found, of, sentence)] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((*found, of.as_str()), (cause, subject));
    words.iter().for_each(|word| assert!(sentence.contains(word), "'{word}' in: {sentence}"));
}

fn changed(change: impl FnOnce(&mut Interval)) -> Interval {
    let mut interval = healthy();
    change(&mut interval);
    interval
}

#[test]
fn of_a_suspended_pool_nothing_else_is_said() {
    let facts = PoolFacts { suspended: Some("disk1 does not answer".into()), ..PoolFacts::default() };
    for subject in [None, Some("tank/home"), Some("tank/idle")] {
        let diagnosis = diagnose(&healthy(), &facts, subject);
        let causes: Vec<Cause> = diagnosis.findings.iter().map(|found| found.cause).collect();
        assert_eq!(causes, [Cause::Suspended]);
        assert!(diagnosis.findings[0].sentence.starts_with("The pool is suspended: disk1 does not answer."));
        assert!(diagnosis.limit.ends_with("the pool is suspended, and others wait."), "{}", diagnosis.limit);
    }
}

#[test]
fn of_a_degraded_pool_its_state_is_said_beside_what_limits() {
    let facts = PoolFacts { unhealthy: Some("DEGRADED".into()), ..PoolFacts::default() };
    let diagnosis = diagnose(&healthy(), &facts, None);
    let [found] = diagnosis.findings.as_slice() else { panic!("{:?}", diagnosis.findings) };
    assert_eq!((found.cause, found.subject.as_str()), (Cause::Unhealthy, "tank"));
    assert!(found.sentence.starts_with("The pool is DEGRADED") && found.advice.contains("zpool status tank"));
    assert!(diagnosis.limit.ends_with("what limits is the stage device, and how fast clients ask."));
}

#[test]
fn nothing_is_wrong_with_a_healthy_load_and_an_idle_pool() {
    let diagnosis = diagnose(&healthy(), &PoolFacts::default(), None);
    assert_eq!(diagnosis.findings, []);
    assert_eq!(
        diagnosis.limit,
        "2000 requests in 10 s, 200.0/s, took 2.0 ms each on average; the longest stage was device, 70 % of the time of the pool's \
         requests. Nothing slows them: what limits is the stage device, and how fast clients ask."
    );
    assert_eq!(diagnosis.sources.as_deref(), Some("Clients read 4M in 10 s, from: 75 % arc demand, 25 % disk."));
    let limit_at = |device_ms: u64, client_ms: u64| {
        let load = changed(|one| {
            one.operations = vec![row("nfs3", "read", &[("device", device_ms)])];
            one.clients.iter_mut().for_each(|row| row.time_ns = client_ms * 1_000_000);
        });
        diagnose(&load, &PoolFacts::default(), None).limit
    };
    assert!(limit_at(100, 100).ends_with("what limits is the stage device, and how fast clients ask."));
    assert!(limit_at(99, 100).ends_with("no stage takes most of the time."));
    assert!(limit_at(9, 99).ends_with("what limits is how fast clients ask."));
    let idle = changed(|one| {
        one.clients.clear();
        one.operations.clear();
    });
    let diagnosis = diagnose(&idle, &PoolFacts::default(), None);
    assert_eq!((diagnosis.findings.len(), diagnosis.sources), (0, None));
    assert_eq!(diagnosis.limit, "Nothing waits: no request of a client ended in 10 s.");
}

#[test]
fn sync_writes_without_a_log_device() {
    // The requests of all clients took 4 s.
    let load =
        |log_ms| changed(|one| one.operations[1] = row("nfs3", "write", &[("locks", 90), ("log commit", log_ms)]));
    let words =
        ["no log device", "30 % of the time of all requests in 10 s", "1.2 ms for each of 1000 writes and flushes"];
    threshold(&load(1199), &load(1200), Cause::SyncWritesWithoutLogDevice, "tank", &words);
    let mut with_log = load(3000);
    with_log.leaves[0].class = "log".into();
    assert_eq!(found(&with_log, &PoolFacts::default()), []);
    with_log.leaves[0].in_service = false;
    assert_eq!(found(&with_log, &PoolFacts::default()).len(), 1, "a log device that is away does not help");
    let mut few = load(3000);
    few.operations[1].requests = 9;
    assert_eq!(found(&few, &PoolFacts::default()), []);
}

#[test]
fn writes_that_the_throttle_delays() {
    let load = |ms| changed(|one| one.operations[1] = row("nfs3", "write", &[("locks", 90), ("throttle", ms)]));
    let words = ["the write throttle delays 1000 writes", "10 % of the time of all requests in 10 s"];
    threshold(&load(399), &load(400), Cause::Throttle, "tank", &words);
    let few = |requests| {
        let mut few = load(400);
        few.operations[1].requests = requests;
        found(&few, &PoolFacts::default()).len()
    };
    assert_eq!([few(9), few(10)], [0, 1]);
}

#[test]
fn writes_that_are_smaller_than_records() {
    let load = |mean: u64, rewritten: u64| {
        changed(|one| {
            for row in &mut one.clients {
                row.written_bytes = row.writes * mean;
                row.data_bytes = row.written_bytes * rewritten;
            }
        })
    };
    let words = ["1000 writes of 32K on average into records of 128K in 10 s", "2.0 bytes"];
    threshold(&load((32 << 10) + 1, 2), &load(32 << 10, 2), Cause::SmallWrites, "tank/home", &words);
    assert_eq!(found(&load(8 << 10, 1), &PoolFacts::default()), [], "writes in order fill whole records");
    let mut read_only = load(8 << 10, 16);
    read_only.datasets[0].record_bytes = 0;
    assert_eq!(found(&read_only, &PoolFacts::default()), []);
    let advice = |interval: &Interval| diagnose(interval, &PoolFacts::default(), None).findings[0].advice.clone();
    let mut small = load(5 << 10, 16);
    assert!(advice(&small).starts_with("zfs set recordsize=8K tank/home"), "{}", advice(&small));
    small.datasets[0].is_volume = true;
    assert!(advice(&small).contains("-o volblocksize=8K"), "{}", advice(&small));
}

#[test]
fn a_device_that_is_slower_than_its_siblings() {
    let load = |us: u64, ops: u64| {
        changed(|one| {
            one.leaves[1].timed_ops = ops;
            one.leaves[1].timed_ns = us * 1000 * ops;
        })
    };
    let words = ["disk12 is slow", "3.0 ms", "3.0 times the 1.0 ms of its 2 siblings"];
    threshold(&load(2990, 500), &load(3000, 500), Cause::SlowDevice, "disk12", &words);
    assert_eq!(found(&load(9000, devices::ENOUGH_OPERATIONS - 1), &PoolFacts::default()), []);
    // Three times as long, and still quick.
    let quick = changed(|one| {
        one.leaves.iter_mut().for_each(|leaf| leaf.timed_ns = leaf.timed_ops * 100_000);
        one.leaves[1].timed_ns *= 3;
    });
    assert_eq!(found(&quick, &PoolFacts::default()), []);
    // Devices without siblings in their vdev are compared with those of their class: not with the log's.
    let stripe = |class: &str| {
        let mut one = load(9000, 500);
        one.leaves.iter_mut().enumerate().for_each(|(n, leaf)| leaf.group = n.to_string());
        one.leaves[1].class = class.to_owned();
        found(&one, &PoolFacts::default()).len()
    };
    assert_eq!([stripe("normal"), stripe("log")], [1, 0]);
}

#[test]
fn a_client_with_one_request_in_flight() {
    let load = |overlapping| changed(|one| one.clients[1].overlapping = overlapping);
    let words =
        ["10.0.0.2 (nfs3) has one request in flight", "of 1000 requests in 10 s, 19 began", "2.0 ms for each, 20 %"];
    threshold(&load(20), &load(19), Cause::OneRequestInFlight, "10.0.0.2", &words);
    let mut mostly_idle = load(0);
    mostly_idle.clients[1].time_ns = 999_000_000;
    assert_eq!(found(&mostly_idle, &PoolFacts::default()), []);
    // The requests of a client are added over its datasets.
    let mut two = load(0);
    let other = ClientTotals { dataset: "tank/b".into(), objset: 60, overlapping: 900, ..two.clients[1].clone() };
    two.clients.push(other);
    assert_eq!(found(&two, &PoolFacts::default()), []);
}

#[test]
fn an_arc_that_is_small() {
    let load = |ghosts| changed(|one| one.arc.mru_ghost_hits = ghosts);
    threshold(
        &load(199),
        &load(200),
        Cause::SmallArc,
        "tank",
        &["200 of 1000 misses in 10 s", "20 %", "90 % of the reads of blocks"],
    );
    let mut half_empty = load(900);
    half_empty.arc.mru_data_bytes = 50;
    assert_eq!(found(&half_empty, &PoolFacts::default()), []);
}

#[test]
fn facts_of_the_pool() {
    let facts = |change: fn(&mut PoolFacts, u64), value| {
        let mut facts = PoolFacts::default();
        change(&mut facts, value);
        facts
    };
    let interval = healthy();
    let dedup: fn(&mut PoolFacts, u64) = |facts, bytes| facts.dedup_table_bytes = bytes;
    let [below, above] = [100, 200].map(|bytes| facts(dedup, bytes));
    with_facts((&interval, &below), (&interval, &above), Cause::LargeDedupTable, "tank", &["200B", "at most 100B"]);
    let fragmented: fn(&mut PoolFacts, u64) = |facts, percent| facts.fragmentation_percent = Some(percent);
    let [below, above] = [49, 50].map(|percent| facts(fragmented, percent));
    with_facts((&interval, &below), (&interval, &above), Cause::Fragmentation, "tank", &["50 %"]);
}

#[test]
fn scans_in_progress() {
    let mut interval = healthy();
    interval.leaves.iter_mut().for_each(|leaf| leaf.scrub_ops = 250);
    for (name, cause) in [("scrub", Cause::Scrub), ("resilver", Cause::Resilver)] {
        let facts = PoolFacts { activities: vec![name.to_owned()], ..PoolFacts::default() };
        let words = [name, "750 of 3000 operations", "25 %"];
        with_facts((&interval, &PoolFacts::default()), (&interval, &facts), cause, "tank", &words);
    }
}

#[test]
fn space_and_destructions() {
    let filled = |bytes| changed(|one| one.space.allocated_bytes = bytes);
    threshold(&filled(899), &filled(900), Cause::NearlyFull, "tank", &["900B of 1000B", "90 %"]);
    let destroyed = |count| changed(|one| one.txg.snapshots_destroyed = count);
    threshold(&destroyed(9), &destroyed(10), Cause::Destruction, "tank", &["10 snapshots", "in 10 s"]);
    let freeing = |bytes| changed(|one| one.txg.freeing_bytes = bytes);
    threshold(&freeing(4), &freeing(5), Cause::Destruction, "tank", &["5B wait to be freed"]);
}

#[test]
fn processors_that_limit() {
    let load = |ms| changed(|one| one.operations.push(row("internal", "internal", &[("compute", ms)])));
    // Devices and queues took 2.9 s; 0.75 processors over 10 s are 7.5 s.
    threshold(&load(7499), &load(7500), Cause::Compute, "tank", &["took 7.5 s in 10 s", "queues took 2.9 s"]);
    let mut waits_for_devices = load(7500);
    waits_for_devices.operations.push(row("internal", "internal", &[("device", 6500)]));
    assert_eq!(found(&waits_for_devices, &PoolFacts::default()), []);
}

#[test]
fn findings_are_those_of_the_subject_and_sorted_by_weight() {
    let interval = changed(|one| {
        one.clients[1].overlapping = 0;
        one.operations[1] = row("nfs3", "write", &[("locks", 10), ("log commit", 90_000)]);
    });
    let of = |subject| diagnose(&interval, &PoolFacts::default(), Some(subject));
    let causes = |subject| of(subject).findings.iter().map(|one| one.cause).collect::<Vec<_>>();
    let both = [Cause::SyncWritesWithoutLogDevice, Cause::OneRequestInFlight];
    assert_eq!((causes("tank/home"), causes("tank")), (both.to_vec(), both.to_vec()));
    assert_eq!((causes("10.0.0.2"), causes("10.0.0.1")), (both.to_vec(), both[..1].to_vec()));
    assert_eq!([of("tank/home").requests, of("10.0.0.1").requests, of("tank/ho").requests], [2000, 1000, 0]);
    assert_eq!(of("tank/ho").findings, []);
    assert!(of("tank/ho").limit.starts_with("Nothing waits: no request of tank/ho ended in 10 s; weir top"));
    let diagnosis = of("10.0.0.2");
    assert!(diagnosis.limit.ends_with("What limits most is the first finding, on tank."), "{}", diagnosis.limit);
    let json = serde_json::to_string(&diagnosis).unwrap();
    assert_eq!(serde_json::from_str::<Diagnosis>(&json).unwrap(), diagnosis);
    assert!(json.contains(r#""cause":"sync_writes_without_log_device""#), "{json}");
}

/// Facts with a link of 1 Gbit/s and a connection of the first client on it, changed.
fn on_a_link(change: impl FnOnce(&mut LinkFacts, &mut ConnectionFacts)) -> PoolFacts {
    let mut link = LinkFacts { name: "eth0".into(), mtu_bytes: 9000, payload_bytes_per_second: Some(117_000_000) };
    let mut connection = ConnectionFacts {
        client: "10.0.0.1".into(),
        interface: "eth0".into(),
        mss_bytes: Some(8948),
        sent_bytes: 100 << 20,
        busy_ms: 10_000,
        ..ConnectionFacts::default()
    };
    change(&mut link, &mut connection);
    let other = ConnectionFacts { client: "10.0.0.2".into(), ..connection.clone() };
    let other = ConnectionFacts { retransmitted_bytes: 0, window_limited_ms: 0, mss_bytes: Some(8948), ..other };
    // The connection of a client that sent no request in the interval is ignored.
    let idle = ConnectionFacts { client: "10.0.0.3".into(), retransmitted_bytes: 50 << 20, ..other.clone() };
    PoolFacts { links: vec![link], connections: vec![connection, other, idle], ..PoolFacts::default() }
}

#[test]
fn a_link_that_carries_what_it_can() {
    // Two clients read and wrote 500 records each in ten seconds: 13.1 MB/s in each direction.
    let interval = healthy();
    let [below, above] =
        [17_000_000, 16_000_000].map(|ceiling| on_a_link(|link, _| link.payload_bytes_per_second = Some(ceiling)));
    with_facts(
        (&interval, &below),
        (&interval, &above),
        Cause::SaturatedLink,
        "eth0",
        &["2 clients read 12.5M/s", "82 %"],
    );
    let unknown = on_a_link(|link, _| link.payload_bytes_per_second = None);
    assert_eq!(found(&interval, &unknown), []);
}

#[test]
fn packets_that_are_lost_or_small() {
    let interval = healthy();
    let lost = |bytes| on_a_link(|_, connection| connection.retransmitted_bytes = bytes);
    let words = ["10.0.0.1", "103K of 100M", "0.10 %"];
    with_facts(
        (&interval, &lost(104_857)),
        (&interval, &lost(104_858)),
        Cause::Retransmissions,
        "10.0.0.1",
        &words[..1],
    );
    let sentence = &found(&interval, &lost(5 << 20))[0].2;
    assert!(sentence.contains("5M of 100M were sent again, 5.00 %"), "{sentence}");
    let here = on_a_link(|_, connection| {
        connection.client = "127.0.0.1".into();
        connection.retransmitted_bytes = 5 << 20;
    });
    let local = changed(|one| one.clients.iter_mut().for_each(|row| row.client = "127.0.0.1".into()));
    assert_eq!(found(&local, &here), []);
    let segments = |mss| on_a_link(|_, connection| connection.mss_bytes = Some(mss));
    let words = ["segments of 1448 bytes", "MTU of 9000"];
    with_facts((&interval, &segments(4500)), (&interval, &segments(1448)), Cause::SmallSegments, "10.0.0.1", &words);
    // Without jumbo frames on the server's side nothing is small.
    let usual = on_a_link(|link, connection| (link.mtu_bytes, connection.mss_bytes) = (1500, Some(536)));
    assert_eq!(found(&interval, &usual), []);
}

#[test]
fn a_client_that_takes_data_slowly() {
    let interval = healthy();
    let slow = |ms| on_a_link(|_, connection| connection.window_limited_ms = ms);
    let words = ["20 % of the time", "It got 6.25M/s", "not so for 1 other busy client."];
    with_facts((&interval, &slow(1999)), (&interval, &slow(2000)), Cause::SlowClient, "10.0.0.1", &words);
    let brief = on_a_link(|_, connection| (connection.busy_ms, connection.window_limited_ms) = (999, 999));
    assert_eq!(found(&interval, &brief), []);
    // So slow that no request of it has ended.
    let none_ended = changed(|one| {
        one.clients.clear();
        one.operations.clear();
    });
    let diagnosis = diagnose(&none_ended, &slow(5000), None);
    let causes: Vec<_> = diagnosis.findings.iter().map(|finding| (finding.cause, finding.subject.as_str())).collect();
    assert_eq!(causes, [(Cause::SlowClient, "10.0.0.1")]);
    assert_eq!(diagnosis.limit, "No request of a client ended in 10 s.");
    // Asked about the other client, it is not named.
    assert_eq!(diagnose(&interval, &slow(5000), Some("10.0.0.2")).findings, []);
}
