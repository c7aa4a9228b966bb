//! Times as OpenZFS's commands print them: in the local time zone, that of `TZ` or else of the system.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};

/// A time in seconds since 1970, in a time zone; a time after the year 9999 becomes the end of that year.
fn local(seconds: u64, zone: TimeZone) -> ZonedDateTime {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).to_zoned_datetime(zone)
}

fn print(seconds: u64, format: &str) -> String {
    local(seconds, TimeZone::system()).strftime(format).to_string()
}

/// `Sat Nov 21  7:24 2026`: the value of a property (OpenZFS: `zfs_prop_get`).
pub fn property(seconds: u64) -> String {
    print(seconds, "%a %b %e %k:%M %Y")
}

/// `Sat Nov 21 07:24:40 2026` (`ctime`).
pub fn date_and_time(seconds: u64) -> String {
    print(seconds, "%a %b %e %H:%M:%S %Y")
}

/// `2026-11-21.07:24:40`: the time of a record of the history.
pub fn stamp(seconds: u64) -> String {
    print(seconds, "%Y-%m-%d.%H:%M:%S")
}

/// `Nov 21 2026 07:24:40`: the time of an event, without its nanoseconds.
pub fn event(seconds: u64) -> String {
    print(seconds, "%b %e %Y %H:%M:%S")
}

/// `07:24:40`.
pub fn of_day(seconds: u64) -> String {
    print(seconds, "%H:%M:%S")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_openzfs_prints_them() {
        let zone = || TimeZone::get("Europe/Berlin").unwrap();
        for (seconds, format, text) in [
            (1_795_245_880, "%a %b %e %k:%M %Y", "Sat Nov 21  8:24 2026"),
            (1_795_245_880, "%a %b %e %H:%M:%S %Y", "Sat Nov 21 08:24:40 2026"),
            (951_782_400, "%b %e %Y %H:%M:%S", "Feb 29 2000 01:00:00"),
            (1_782_864_000, "%Y-%m-%d.%H:%M:%S", "2026-07-01.02:00:00"),
            (u64::MAX, "%Y", "9999"),
        ] {
            assert_eq!(local(seconds, zone()).strftime(format).to_string(), text);
        }
    }
}
