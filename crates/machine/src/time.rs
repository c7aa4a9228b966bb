//! Time: a monotonic clock ([`Nanos`]) for intervals, and a wall clock for time stamps.
//!
//! The engine never reads the operating system's clocks. It uses its [`Clock`], so that in the simulator an hour of
//! timeouts passes in a millisecond and every run of a seed reads the same times.

use futures_util::future::BoxFuture;
use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A monotonic instant: nanoseconds since the machine was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds from `earlier` to this instant; zero if `earlier` is later.
    pub fn ns_since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Nanos {
    type Output = Nanos;
    /// Saturates at 584 years.
    fn add(self, rhs: Duration) -> Nanos {
        Nanos(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Nanos {
    type Output = Duration;
    fn sub(self, rhs: Nanos) -> Duration {
        self.since(rhs)
    }
}

/// Implementation of a [`Clock`]: the system's clocks, or the simulator's.
pub trait ClockSource: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Nanos;
    /// Wall-clock time.
    fn wall(&self) -> SystemTime;
    /// Completes at `when`, or immediately if that has passed.
    fn sleep_until(&self, when: Nanos) -> BoxFuture<'static, ()>;
}

/// The machine's clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn ClockSource>);

impl Clock {
    /// A clock over `source`.
    pub fn new(source: Arc<dyn ClockSource>) -> Self {
        Clock(source)
    }

    /// Monotonic time since the machine was created.
    pub fn now(&self) -> Nanos {
        self.0.now()
    }

    /// Wall-clock time: for time stamps, never for intervals.
    pub fn wall(&self) -> SystemTime {
        self.0.wall()
    }

    /// Waits for `duration` (in production with a precision of about a millisecond).
    pub async fn sleep(&self, duration: Duration) {
        self.0.sleep_until(self.now() + duration).await;
    }

    /// Waits until `when`.
    pub async fn sleep_until(&self, when: Nanos) {
        self.0.sleep_until(when).await;
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({} ns)", self.now().0)
    }
}

/// Year, month (1 to 12) and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
///
/// Years are counted from March on, so that the leap day ends a year (Hinnant, *chrono-Compatible Low-Level Date Algorithms*).
#[must_use]
pub fn civil_day(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::civil_day;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (day, expected) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_783, (2026, 11, 26)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil_day(day), expected, "day {day}");
        }
    }
}
