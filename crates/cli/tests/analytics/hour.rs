//! The page, left open under load: memory of browser and server, and frames. `WEIR_PAGE_SECONDS=120` for the short form, `3600` for an
//! hour; without it, nothing is done.

use super::browser::desktop;
use super::chromium::Browser;
use super::network::run;
use super::seeds::{Load, READER};
use super::{Site, has};
use serde_json::json;
use std::process::Child;
use std::time::{Duration, Instant};

/// Time before the first look: caches fill, and the page asks for all that it shows.
const WARM_UP: Duration = Duration::from_secs(30);
/// A frame that takes longer than this counts as late, in milliseconds.
const LATE_MS: u32 = 50;
/// Maximum share of late frames.
const MAX_LATE_SHARE: f64 = 0.01;
/// Maximum growth of the page's heap, in bytes per second: 10 MB in an hour.
const HEAP_GROWTH: f64 = 2900.0;
/// Difference of a heap from one collection to the next, in bytes.
const HEAP_NOISE: f64 = 2e6;
/// Maximum growth of the server in bytes: the points of its history, and freed memory that the allocator keeps.
const SERVER_GROWTH: f64 = 16e6;

/// Loads that end with the test.
struct Loads(Vec<Child>);

impl Drop for Loads {
    fn drop(&mut self) {
        for load in &mut self.0 {
            let _gone = load.kill();
            let _code = load.wait();
        }
    }
}

/// Bytes of the page's heap after a collection.
fn heap_bytes(browser: &mut Browser) -> f64 {
    browser.call("HeapProfiler.collectGarbage", json!({}));
    browser.call("Runtime.getHeapUsage", json!({}))["usedSize"].as_f64().unwrap()
}

/// Resident bytes of the server.
fn resident_bytes(site: &Site) -> f64 {
    let id = site.server.as_ref().unwrap().id();
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024.0 * line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
}

#[test]
fn the_page_stays_open_under_load() {
    let seconds = std::env::var("WEIR_PAGE_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let Some(seconds) = seconds else {
        println!("skipped: WEIR_PAGE_SECONDS is not set");
        return;
    };
    let Some(mut browser) = Browser::start().filter(|_| has("python3") && has("taskset")) else {
        println!("skipped: chromium-headless-shell, python3 or taskset is not installed");
        return;
    };
    let site = Site::new();
    let pinned = |id: u32| run("taskset", &["-a", "-c", "-p", "0", &id.to_string()]);
    assert!(pinned(site.server.as_ref().unwrap().id()), "the server has one processor, which the clients share");
    let kinds = ["read", "write", "read", "write"];
    let load = |kind| Load { kind, count: u64::from(u32::MAX), size: 16 << 10, ..READER };
    let loads = Loads(kinds.into_iter().map(|kind| load(kind).start(&site)).collect());
    assert!(loads.0.iter().all(|load| pinned(load.id())));
    desktop(&mut browser, &site);
    browser.value(&format!(
        "(() => {{ const seen = window.seenFrames = {{ all: 0, late: 0 }}; let last; const next = (time) => {{ \
         if (last !== undefined) {{ seen.all++; if (time - last > {LATE_MS}) seen.late++; }} last = time; \
         requestAnimationFrame(next); }}; requestAnimationFrame(next); }})()"
    ));
    let wait = |browser: &mut Browser, time: Duration| {
        let started = Instant::now();
        while started.elapsed() < time {
            assert!(browser.text("document.getElementById('summary').textContent").starts_with("tank: "));
            std::thread::sleep(Duration::from_secs(5).min(time));
        }
    };
    wait(&mut browser, WARM_UP);
    let before = [heap_bytes(&mut browser), resident_bytes(&site)];
    browser.value("window.seenFrames.all = window.seenFrames.late = 0");
    wait(&mut browser, Duration::from_secs(seconds));
    let frames = ["all", "late"].map(|name| browser.value(&format!("window.seenFrames.{name}")).as_f64().unwrap());
    let after = [heap_bytes(&mut browser), resident_bytes(&site)];
    let sample = site.sample();
    let requests: u64 = super::sum(&sample["operations"], |row| super::number(row, "requests"));
    println!(
        "{seconds} s, {requests} requests: heap of the page {:.1} to {:.1} MB, server {:.1} to {:.1} MB, {} frames, {} of them over {LATE_MS} ms",
        before[0] / 1e6,
        after[0] / 1e6,
        before[1] / 1e6,
        after[1] / 1e6,
        frames[0],
        frames[1]
    );
    assert!(requests > 100 * seconds, "a load: {requests} requests");
    assert!(after[0] - before[0] <= HEAP_GROWTH * seconds as f64 + HEAP_NOISE, "the page grows: {before:?} {after:?}");
    assert!(after[1] - before[1] <= SERVER_GROWTH, "the server grows: {before:?} {after:?}");
    assert!(frames[0] > 10.0 * seconds as f64 && frames[1] <= MAX_LATE_SHARE * frames[0], "late frames: {frames:?}");
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
}
