//! fio's answers, as JSON made here.

use super::*;
use serde_json::json;

fn answer(write: &Value, sync: &Value) -> String {
    let flow = json!({"io_bytes": 409_600, "total_ios": 100, "runtime": 5000, "lat_ns": write});
    json!({"jobs": [{"job_runtime": 5000, "write": flow, "sync": {"lat_ns": sync}}]}).to_string()
}

#[test]
fn the_latency_of_a_write_that_is_made_stable_contains_its_flush() {
    let write = json!({"N": 100, "mean": 24e6, "max": 90_000_000, "bins": {"20000000": 90, "60000000": 10}});
    let sync = json!({"N": 100, "mean": 26e6, "max": 80_000_000, "bins": {"20000000": 90, "80000000": 10}});
    let load = Load { sync: true, ..Load::sequential(4096, 0) };
    let round = parse("answer", &answer(&write, &sync), &load).unwrap();
    let latency = round.latency.as_ref().unwrap();
    assert!((latency.mean_ns - 50e6).abs() < 1.0, "{latency:?}");
    assert!((round.seconds * 1e9 / round.written.operations as f64 - latency.mean_ns).abs() < 1e6);
    // 81 of 100 took 40 ms, 9 took 80 ms, 9 took 100 ms, 1 took 140 ms; buckets are an eighth wide at most.
    let near = |have: u64, ms: u64| (ms * 1_000_000..=ms * 1_250_000).contains(&have);
    assert!(near(latency.p50_ns, 40) && near(latency.p95_ns, 100) && near(latency.p999_ns, 140), "{latency:?}");
    assert_eq!(latency.histogram.iter().map(|(_, count)| count).sum::<u64>(), 100);
    assert_eq!(latency.max_ns, 170_000_000);
    assert_eq!((round.figures[WRITE_ALONE], round.figures[FLUSH_ALONE]), (24e6, 26e6));
}

#[test]
fn a_flush_at_the_end_of_a_pass_belongs_to_no_write() {
    let write = json!({"N": 100, "mean": 24e6, "max": 90_000_000, "bins": {"24000000": 100}});
    let sync = json!({"N": 1, "mean": 26e6, "max": 26_000_000, "bins": {"26000000": 1}});
    let round = parse("answer", &answer(&write, &sync), &Load::sequential(4096, 0)).unwrap();
    assert!((round.latency.unwrap().mean_ns - 24e6).abs() < 1.0 && round.figures.is_empty());
}

#[test]
fn bytes_are_those_of_the_operations_that_are_counted() {
    let flow = json!({"io_bytes": 6_291_456, "total_ios": 1504, "runtime": 1000, "lat_ns": {}});
    let text = json!({"jobs": [{"job_runtime": 1000, "read": flow}]}).to_string();
    let round = parse("answer", &text, &Load { depth: 32, ..Load::random(4096, 100) }).unwrap();
    assert_eq!(round.read, Flow { bytes: 1504 * 4096, operations: 1504 });
    assert!((round.bytes_per_s() - 4096.0 * round.operations_per_s()).abs() < 1.0);
    // Of several sizes fio's sum is the only one.
    let mixed = Load { blocks: vec![(4096, 50), (8192, 50)], ..Load::random(4096, 100) };
    assert_eq!(parse("answer", &text, &mixed).unwrap().read.bytes, 6_291_456);
}
