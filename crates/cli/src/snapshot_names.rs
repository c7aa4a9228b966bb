//! Names of the snapshots that jobs and replications take: `daily-20261128T023000Z`, the name of the job and the time in UTC.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Time in the name of a snapshot, in UTC.
const STAMP: &str = "%Y%m%dT%H%M%SZ";

/// Name of a snapshot that the job takes at a time, in seconds since 1970.
///
/// # Errors
/// If the time is beyond the year 9999.
pub fn name_at(job: &str, seconds: i64) -> Result<String, String> {
    let time = Timestamp::from_second(seconds).map_err(|error| error.to_string())?;
    Ok(format!("{job}-{}", time.strftime(STAMP)))
}

/// The time in a snapshot's name, in seconds since 1970, if the job gave it.
pub fn time_of(job: &str, name: &str) -> Option<i64> {
    let stamp = name.strip_prefix(job)?.strip_prefix('-')?;
    let time = DateTime::strptime(STAMP, stamp).ok()?.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp().as_second();
    // Only the one form that this job writes.
    (name_at(job, time).as_deref() == Ok(name)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_job_have_a_time() {
        let name = name_at("daily", 1_795_833_000).unwrap();
        assert_eq!(name, "daily-20261128T023000Z");
        assert_eq!(time_of("daily", &name), Some(1_795_833_000));
        for (job, other) in [
            ("daily", "daily"),
            ("daily", "daily-"),
            ("daily", "daily-20261128T023000"),
            ("daily", "daily-2026112T8023000Z"),
            ("daily", "daily-20261128T023000Za"),
            ("daily", "daily-2-20261128T023000Z"),
            ("daily", "daily-20261328T023000Z"),
            ("dail", "daily-20261128T023000Z"),
            ("daily-2", "daily-20261128T023000Z"),
        ] {
            assert_eq!(time_of(job, other), None, "{job} {other}");
        }
    }
}
