//! Samples of the last minutes of a pool that this process has open, for `weir why`.
//!
//! One is taken every 30 seconds, and eleven are kept: one of them is at least five minutes old. Most of a sample are its rows of
//! clients; if they are more than [`MAX_ROWS`], none is kept, so that the samples of a pool take some MiB at most.

use std::collections::VecDeque;
use weir_analytics::Sample;
use weir_engine::Engine;
use weir_machine::lock::Mutex;

/// Time between two samples, in nanoseconds.
const INTERVAL_NS: u64 = 30_000_000_000;
/// Samples kept: those of five minutes and one that is older.
const KEPT: usize = 11;
/// Rows of clients of a sample that is kept. A row takes some 300 bytes.
const MAX_ROWS: usize = 1024;

/// Samples of the last minutes, in the order of their times.
#[derive(Default)]
pub struct RecentSamples(Mutex<VecDeque<Sample>>);

impl RecentSamples {
    /// Takes a sample of the pool if the last one is old enough.
    pub fn take(&self, engine: &Engine) {
        let uptime_ns = engine.machine.clock.now().ns_since(engine.opened());
        let is_due = self.0.lock().back().is_none_or(|last| uptime_ns >= last.uptime_ns + INTERVAL_NS);
        if is_due {
            self.keep(Sample::take(engine));
        }
    }

    fn keep(&self, sample: Sample) {
        let mut samples = self.0.lock();
        if sample.clients.len() > MAX_ROWS {
            samples.clear();
            return;
        }
        debug_assert!(samples.back().is_none_or(|last| last.uptime_ns <= sample.uptime_ns), "samples are in order");
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
        debug_assert!(samples.len() <= KEPT, "samples are bounded");
    }

    /// The last sample that is at least this old, or the oldest one; `None` if none is kept.
    pub fn earlier(&self, uptime_ns: u64, seconds: u64) -> Option<Sample> {
        let samples = self.0.lock();
        let latest_ns = uptime_ns.saturating_sub(seconds.saturating_mul(1_000_000_000));
        let old_enough = samples.iter().rev().find(|sample| sample.uptime_ns <= latest_ns);
        old_enough.or(samples.front()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_analytics::{ArcState, ClientTotals, SpaceState, TxgState};

    fn sample(seconds: u64, rows: usize) -> Sample {
        Sample {
            pool: "tank".into(),
            guid: "7".into(),
            time_ms: 1000 * seconds,
            uptime_ns: seconds * 1_000_000_000,
            operations: Vec::new(),
            clients: vec![ClientTotals::default(); rows],
            datasets: Vec::new(),
            written: Vec::new(),
            arc: ArcState::default(),
            txg: TxgState::default(),
            leaves: Vec::new(),
            stores: Vec::new(),
            store_space: Vec::new(),
            space: SpaceState::default(),
        }
    }

    #[test]
    fn the_samples_of_the_last_minutes_are_kept() {
        let recent = RecentSamples::default();
        let earlier =
            |now: u64, seconds| recent.earlier(now * 1_000_000_000, seconds).map(|sample| sample.time_ms / 1000);
        assert_eq!(earlier(10, 300), None);
        (0..5).for_each(|n| recent.keep(sample(30 * n, 1)));
        assert_eq!([earlier(125, 300), earlier(125, 60), earlier(125, 0)], [Some(0), Some(60), Some(120)]);
        (5..25).for_each(|n| recent.keep(sample(30 * n, 1)));
        assert_eq!(recent.0.lock().len(), KEPT);
        assert_eq!([earlier(750, 300), earlier(750, 9999), earlier(750, u64::MAX)], [450, 420, 420].map(Some));
        recent.keep(sample(750, MAX_ROWS));
        assert_eq!(earlier(751, 1), Some(750));
        recent.keep(sample(780, MAX_ROWS + 1));
        assert_eq!(earlier(781, 300), None, "no row is missing from a sample");
    }
}
