//! Processor time of analytics: a server that takes samples beside one that takes none.

use super::{Site, has};
use std::time::{Duration, Instant};

/// Length of a round.
const ROUND: Duration = Duration::from_secs(12);
/// Greatest share of a processor.
const MAX_SHARE: f64 = 0.02;

/// Processor time of a server in seconds, in steps of 10 ms.
fn processor_s(site: &Site) -> f64 {
    let id = site.server.as_ref().unwrap().id();
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    [11, 12].iter().map(|at: &usize| fields[*at].parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// The work of a sample does not depend on the number of requests, so it is measured where nothing else costs time: after a load, with a
/// page that follows the live stream. Both servers run at the same time, so that a busy machine slows both.
#[test]
fn samples_take_at_most_two_percent_of_a_processor() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let mut plain = Site::new();
    plain.serve(&[]);
    let sampling = Site::new();
    [&plain, &sampling].iter().for_each(|site| site.use_volume());
    let mut live = sampling.http().open("/api/v1/live");
    let mut shares = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        let before = [processor_s(&sampling), processor_s(&plain)];
        while started.elapsed() < ROUND {
            assert!(live.event().is_some());
        }
        let seconds = started.elapsed().as_secs_f64();
        shares.push(((processor_s(&sampling) - before[0]) / seconds, (processor_s(&plain) - before[1]) / seconds));
    }
    println!("shares of a processor with samples and without, by round: {shares:.4?}");
    // The first round has the txgs after the load.
    let differences: Vec<f64> = shares[1..].iter().map(|(with, without)| with - without).collect();
    assert!(differences.iter().all(|share| *share <= MAX_SHARE), "{shares:?}");
    assert!(shares.iter().all(|(with, _)| *with > 0.0), "samples take some time: {shares:?}");
}
