//! Tests of the accounts: sums over threads, shares, full tables, unstable bytes.

use super::*;
use crate::request::{Source, Stage};
use std::sync::Barrier;

fn shares(all: &[(Origin, u64)]) -> Shares {
    all.iter().copied().collect()
}

#[test]
fn totals_are_the_sums_of_the_requests_of_all_threads() {
    let accounts = &Accounts::default();
    let start = &Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let client = accounts.client(Protocol::Nbd, &format!("host {}", thread % 2));
                start.wait();
                for _ in 0..1000 {
                    let rq = accounts.begin(&client, Operation::Read);
                    rq.answer(Source::Disk, 3);
                    rq.support(Source::ArcDemand, 5);
                    rq.record_device(11, 3);
                    accounts.record(&rq);
                }
            });
        }
    });
    let totals = accounts.operation(Protocol::Nbd, Operation::Read);
    assert_eq!((totals.requests, totals.answered_bytes(Source::Disk), totals.device_ops), (4000, 12_000, 4000));
    assert_eq!((totals.stage_ns(Stage::Queue), totals.stage_ns(Stage::Device)), (12_000, 32_000));
    assert_eq!((totals.latency[0], totals.support_bytes(Source::ArcDemand)), (4000, 20_000));
    assert_eq!(accounts.protocol(Protocol::Nbd), totals);
    assert_eq!(accounts.protocol(Protocol::Fuse), RequestTotals::default());
    let by_client: Vec<_> = accounts.datasets().into_iter().map(|row| (row.client, row.requests)).collect();
    assert!(by_client.contains(&("host 0".into(), 2000)) && by_client.contains(&("host 1".into(), 2000)));
}

#[test]
fn a_block_of_two_clients_is_charged_in_proportion() {
    let accounts = Accounts::default();
    let [a, b] = ["a", "b"].map(|name| accounts.client(Protocol::Nfs3, name).origin());
    let cost = accounts.write_cost(Content::IntentLog, 9, 54, shares(&[(a, 100), (b, 300)]));
    cost.wrote(Redundancy::First, 4096, 0);
    cost.wrote(Redundancy::Copy, 4097, 1);
    drop(cost);
    let rows = accounts.datasets();
    let of = |name: &str| rows.iter().find(|row| row.client == name).unwrap().device;
    assert_eq!(of("a").of(Content::IntentLog, Redundancy::First), 1024);
    assert_eq!(of("b").of(Content::IntentLog, Redundancy::First), 3072);
    assert_eq!(of("a").total() + of("b").total(), 8193, "nothing is lost by rounding");
    assert_eq!(accounts.device_bytes().of(Content::IntentLog, Redundancy::Padding), 1);
    assert_eq!(accounts.device_bytes_by_txg(), [(9, accounts.device_bytes())]);
}

#[test]
fn more_datasets_and_clients_than_the_tables_hold_are_charged_to_other() {
    let accounts = Accounts::default();
    let clients: Vec<_> = (0..MAX_CLIENTS + 9).map(|n| accounts.client(Protocol::Nfs3, &format!("host {n}"))).collect();
    assert_eq!(clients[MAX_CLIENTS].origin(), Origin::OTHER);
    assert_eq!(accounts.client(Protocol::Nfs3, "host 0").origin(), clients[0].origin());
    for client in &clients {
        accounts.record(&accounts.begin(client, Operation::Lookup));
    }
    let rows = accounts.datasets();
    assert_eq!(rows.iter().map(|row| row.requests).sum::<u64>(), clients.len() as u64);
    assert!(rows.iter().any(|row| row.client == "other" && row.requests >= 9));
}

#[test]
fn acknowledged_bytes_are_unstable_until_the_log_or_the_txg_has_them() {
    let accounts = Accounts::default();
    accounts.became_unstable(100, 4096);
    accounts.became_unstable(101, 512);
    assert_eq!(accounts.unstable_bytes(), 4608);
    accounts.became_stable(100, 4096);
    assert_eq!(accounts.unstable_bytes(), 512);
    accounts.synced(100);
    accounts.synced(101);
    assert_eq!(accounts.unstable_bytes(), 0);
    // A commit that ends after its txg has synced changes nothing.
    accounts.became_stable(101, 512);
    assert_eq!(accounts.unstable_bytes(), 0);
}

#[test]
fn requests_that_overlap_are_counted_by_client() {
    let accounts = Accounts::default();
    let [serial, parallel] = ["serial", "parallel"].map(|name| accounts.client(Protocol::Nbd, name));
    for _ in 0..3 {
        accounts.record(&accounts.begin(&serial, Operation::Write));
    }
    let begun: Vec<Request> = (0..3).map(|_| accounts.begin(&parallel, Operation::Read)).collect();
    begun.iter().for_each(|rq| accounts.record(rq));
    drop(begun);
    // A request that was given up is in progress no longer.
    drop(accounts.begin(&parallel, Operation::Read));
    accounts.record(&accounts.begin(&parallel, Operation::Flush));
    let of = |name: &str| accounts.datasets().into_iter().find(|row| row.client == name).unwrap();
    let counts = |row: &DatasetTotals| (row.requests, row.reads, row.writes, row.overlapping);
    assert_eq!(counts(&of("serial")), (3, 0, 3, 0));
    assert_eq!(counts(&of("parallel")), (4, 3, 0, 2));
}

#[test]
fn files_are_counted_by_client_and_requests_without_bytes_or_object_are_not() {
    let accounts = &Accounts::default();
    let request = |client: &str, operation, target: Target, read, written| {
        let rq = accounts.begin(&accounts.client(Protocol::Nfs3, client), operation);
        rq.set_target(target);
        rq.answer(Source::Disk, read);
        rq.wrote(written);
        accounts.record(&rq);
    };
    let file = |object| Target { dataset: 54, object, ..Target::default() };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10 {
                    request("a", Operation::Read, file(7), 100, 0);
                    request("b", Operation::Write, file(7), 0, 30);
                    request("b", Operation::Read, file(8), 0, 0);
                    request("b", Operation::Read, Target::default(), 5, 0);
                }
            });
        }
    });
    let FilesTotals { files, unlisted } = accounts.files();
    let rows: Vec<_> =
        files.iter().map(|row| (row.dataset, row.object, row.client.as_str(), row.counts, row.error_bytes)).collect();
    let counts = |read_bytes, written_bytes| FileCounts { requests: 20, read_bytes, written_bytes };
    assert_eq!(rows, [(54, 7, "a", counts(2000, 0), 0), (54, 7, "b", counts(0, 600), 0)]);
    assert_eq!(unlisted, FileCounts::default());
    request("a", Operation::Read, file(7), 1, 0);
    let again = accounts.files();
    assert_eq!(again.files[0].counts, FileCounts { requests: 21, read_bytes: 2001, written_bytes: 0 });
    assert_eq!((again.files[0].entry, again.files[1].entry), (files[0].entry, files[1].entry));
}
