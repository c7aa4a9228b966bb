//! Time of the machine. Benchmarks of real targets measure real time.
#![allow(clippy::disallowed_methods, reason = "benchmarks of real targets measure real time")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_machine::time::civil_day;

/// Measures time from its creation.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts to measure.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Processor time that this process has used, in seconds.
#[must_use]
pub fn cpu_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Suspends the thread.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Seconds since 1970, UTC.
#[must_use]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Nanoseconds since 1970, as far as they fit.
#[must_use]
pub fn unix_nanoseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A time in RFC 3339, UTC, to the second.
#[must_use]
pub fn rfc3339(unix_seconds: u64) -> String {
    let (year, month, day) = civil_day(unix_seconds / 86_400);
    let hour = unix_seconds / 3_600 % 24;
    let minute = unix_seconds / 60 % 60;
    let second = unix_seconds % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(rfc3339(1_795_718_843), "2026-11-26T18:47:23Z");
    }
}
