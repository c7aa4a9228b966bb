//! Samples of the last hour of a pool that this process has open, for `weir why` and `weir what-if`.
//!
//! One is taken every 30 seconds, and the last eleven are kept: one of them is at least five minutes old. Of those before, one of each
//! five minutes is kept, up to one that is at least an hour old. Most of a sample are its rows of clients; if they are more than
//! [`MAX_ROWS`], none is kept, so that the samples of a pool take some MiB at most.

use std::collections::VecDeque;
use weir_analytics::{FileTable, Sample};
use weir_engine::Engine;
use weir_machine::lock::Mutex;

/// Time between two samples, in nanoseconds.
const INTERVAL_NS: u64 = 30_000_000_000;
/// The last samples, all of which are kept: those of five minutes and one that is older.
const FINE: usize = 11;
/// Time between two samples that are older, in nanoseconds.
const COARSE_NS: u64 = 300_000_000_000;
/// Age of the oldest sample at least, once there is one so old, in nanoseconds.
const HOUR_NS: u64 = 3_600_000_000_000;
/// Samples kept at most.
const KEPT: usize = FINE + (HOUR_NS / COARSE_NS) as usize + 2;
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
            // A diagnosis does not look at files.
            self.keep(Sample { files: FileTable::default(), ..Sample::take(engine) });
        }
    }

    fn keep(&self, sample: Sample) {
        let mut samples = self.0.lock();
        if sample.clients.len() > MAX_ROWS {
            samples.clear();
            return;
        }
        debug_assert!(samples.back().is_none_or(|last| last.uptime_ns <= sample.uptime_ns), "samples are in order");
        let now_ns = sample.uptime_ns;
        samples.push_back(sample);
        // The sample that is not among the last ones any more is too close to the one before, or stays.
        if let Some(at) = samples.len().checked_sub(FINE + 1).filter(|at| *at > 0)
            && let [Some(before), Some(leaving)] = [at - 1, at].map(|at| samples.get(at).map(|sample| sample.uptime_ns))
            && leaving < before + COARSE_NS
        {
            samples.remove(at);
        }
        while samples.len() > FINE && samples.get(1).is_some_and(|next| next.uptime_ns + HOUR_NS <= now_ns) {
            samples.pop_front();
        }
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
    use weir_analytics::{ArcState, ClientTotals, FileTable, SpaceState, TxgState};

    fn sample(seconds: u64, rows: usize) -> Sample {
        Sample {
            pool: "tank".into(),
            guid: "7".into(),
            time_ms: 1000 * seconds,
            uptime_ns: seconds * 1_000_000_000,
            operations: Vec::new(),
            clients: vec![ClientTotals::default(); rows],
            files: FileTable::default(),
            datasets: Vec::new(),
            written: Vec::new(),
            arc: ArcState::default(),
            txg: TxgState::default(),
            leaves: Vec::new(),
            stores: Vec::new(),
            store_space: Vec::new(),
            space: SpaceState::default(),
            host: None,
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
        assert_eq!([earlier(750, 300), earlier(750, 9999), earlier(750, u64::MAX)], [450, 0, 0].map(Some));
        assert_eq!(recent.0.lock().len(), FINE + 2, "those of 0 s and 300 s, and the last ones");
        recent.keep(sample(750, MAX_ROWS));
        assert_eq!(earlier(751, 1), Some(750));
        recent.keep(sample(780, MAX_ROWS + 1));
        assert_eq!(earlier(781, 300), None, "no row is missing from a sample");
    }

    #[test]
    fn one_sample_of_each_five_minutes_of_the_last_hour_is_kept() {
        let recent = RecentSamples::default();
        (0..1000).for_each(|n| recent.keep(sample(30 * n, 1)));
        let now_ns = 30 * 999 * 1_000_000_000;
        let seconds = |ago| recent.earlier(now_ns, ago).map(|sample| sample.uptime_ns / 1_000_000_000);
        let oldest = seconds(u64::MAX).unwrap();
        assert!((3600..3900).contains(&(30 * 999 - oldest)), "{oldest}");
        assert_eq!(seconds(300), Some(30 * 989));
        let half = 30 * 999 - seconds(1800).unwrap();
        assert!((1800..2100).contains(&half), "{half}");
        let kept = recent.0.lock().len();
        assert!((FINE + 11..=KEPT).contains(&kept), "{kept}");
    }
}
