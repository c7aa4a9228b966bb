//! When a job is due.
//!
//! ```text
//!   hourly              at the start of each hour of UTC
//!   every 15 min        also: every 6 h; counted from the start of 1970, UTC
//!   daily 02:30         time of day in the job's time zone
//!   weekly sun 02:30
//!   monthly 31 02:30    in a shorter month, on its last day
//! ```
//!
//! A time of day that daylight saving leaves out is moved on by as much; one that occurs twice is the first.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

const DAY_MINUTES: i64 = 24 * 60;

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

/// Times at which a job is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    rule: Rule,
    zone: TimeZone,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Every { seconds: i64 },
    Daily(Time),
    Weekly(Weekday, Time),
    Monthly { day: i8, time: Time },
}

impl Schedule {
    /// Parses a schedule. `zone` is a name of the time zone database; without it, the machine's time zone is used.
    ///
    /// # Errors
    /// What is wrong, with the forms that exist.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let zone = match zone {
            None => TimeZone::system(),
            Some(name) => TimeZone::get(name).map_err(|_| format!("time_zone: there is no time zone '{name}'"))?,
        };
        let unknown = || {
            format!(
                "schedule: '{text}' is none of 'hourly', 'every 15 min', 'every 6 h', 'daily 02:30', \
                 'weekly sun 02:30', 'monthly 1 02:30'"
            )
        };
        let rule = rule(text).ok_or_else(unknown)?;
        Ok(Schedule { rule, zone })
    }

    /// The last time at or before `now` at which the job is due. Times are seconds since 1970.
    ///
    /// # Errors
    /// If a time is beyond the years that can be computed.
    pub fn latest(&self, now: i64) -> Result<i64, jiff::Error> {
        match self.rule {
            Rule::Every { seconds } => Ok(now.div_euclid(seconds) * seconds),
            _ => {
                let this = self.occurrence(now, 0)?;
                if this <= now { Ok(this) } else { self.occurrence(now, -1) }
            }
        }
    }

    /// The first time after `now` at which the job is due.
    ///
    /// # Errors
    /// If a time is beyond the years that can be computed.
    pub fn next(&self, now: i64) -> Result<i64, jiff::Error> {
        match self.rule {
            Rule::Every { seconds } => Ok((now.div_euclid(seconds) + 1) * seconds),
            _ => {
                let this = self.occurrence(now, 0)?;
                if this > now { Ok(this) } else { self.occurrence(now, 1) }
            }
        }
    }

    /// The due time in the day, week or month of `now`, or in one before or after it. A week begins on the rule's weekday.
    fn occurrence(&self, now: i64, periods: i64) -> Result<i64, jiff::Error> {
        let today = Timestamp::from_second(now)?.to_zoned_datetime(self.zone.clone()).date();
        let moved = |date: Date, by: Span| date.checked_add(by);
        let (date, time) = match self.rule {
            Rule::Every { .. } => return Ok(now),
            Rule::Daily(time) => (moved(today, periods.days())?, time),
            Rule::Weekly(weekday, time) => {
                let since = i64::from(weekday.until(today.weekday()));
                (moved(today, (periods * 7 - since).days())?, time)
            }
            Rule::Monthly { day, time } => {
                let month = moved(today.first_of_month(), periods.months())?;
                (moved(month, i64::from(day.min(month.days_in_month()) - 1).days())?, time)
            }
        };
        Ok(date.to_datetime(time).to_zoned_datetime(self.zone.clone())?.timestamp().as_second())
    }
}

fn rule(text: &str) -> Option<Rule> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        ["hourly"] => Some(Rule::Every { seconds: 3600 }),
        ["every", count, unit] => {
            let minutes: i64 = match *unit {
                "min" => 1,
                "h" => 60,
                _ => return None,
            };
            let minutes = minutes.checked_mul(count.parse().ok()?)?;
            (1..=DAY_MINUTES).contains(&minutes).then_some(Rule::Every { seconds: minutes * 60 })
        }
        ["daily", time] => Some(Rule::Daily(time_of_day(time)?)),
        ["weekly", day, time] => {
            let weekday = WEEKDAYS.iter().find(|(name, _)| name == day)?.1;
            Some(Rule::Weekly(weekday, time_of_day(time)?))
        }
        ["monthly", day, time] => {
            let day = day.parse().ok().filter(|day| (1..=31).contains(day))?;
            Some(Rule::Monthly { day, time: time_of_day(time)? })
        }
        _ => None,
    }
}

fn time_of_day(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':').filter(|(_, minute)| minute.len() == 2)?;
    Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    fn shown(seconds: i64) -> String {
        Timestamp::from_second(seconds).unwrap().to_string()
    }

    #[test]
    fn the_last_and_the_next_time_enclose_now() {
        let berlin = Some("Europe/Berlin");
        for (text, zone, now, latest, next) in [
            ("every 15 min", None, "2026-03-01T10:14:59Z", "2026-03-01T10:00:00Z", "2026-03-01T10:15:00Z"),
            ("hourly", None, "2026-03-01T10:00:00Z", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"),
            ("daily 02:30", Some("UTC"), "2026-03-01T02:29:59Z", "2026-02-28T02:30:00Z", "2026-03-01T02:30:00Z"),
            ("daily 02:30", Some("UTC"), "2026-03-01T02:30:00Z", "2026-03-01T02:30:00Z", "2026-03-02T02:30:00Z"),
            // 29 March 2026: clocks go from 02:00 to 03:00, and 02:30 is taken as 03:30.
            ("daily 02:30", berlin, "2026-03-29T01:00:00Z", "2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z"),
            ("daily 02:30", berlin, "2026-03-30T12:00:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"),
            // 25 October 2026: 02:30 occurs twice; the first time counts.
            ("daily 02:30", berlin, "2026-10-25T01:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("weekly sun 02:30", Some("UTC"), "2026-11-28T12:00:00Z", "2026-11-22T02:30:00Z", "2026-11-29T02:30:00Z"),
            ("weekly sun 02:30", Some("UTC"), "2026-11-29T02:00:00Z", "2026-11-22T02:30:00Z", "2026-11-29T02:30:00Z"),
            ("weekly sun 02:30", Some("UTC"), "2026-11-29T03:00:00Z", "2026-11-29T02:30:00Z", "2026-12-06T02:30:00Z"),
            ("monthly 31 00:00", Some("UTC"), "2026-03-01T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"),
            ("monthly 1 12:00", Some("UTC"), "2027-01-01T11:00:00Z", "2026-12-01T12:00:00Z", "2027-01-01T12:00:00Z"),
        ] {
            let schedule = Schedule::parse(text, zone).unwrap();
            let now = at(now);
            assert_eq!(shown(schedule.latest(now).unwrap()), latest, "{text} before {}", shown(now));
            assert_eq!(shown(schedule.next(now).unwrap()), next, "{text} after {}", shown(now));
        }
    }

    #[test]
    fn each_due_time_follows_the_one_before() {
        for text in ["every 7 min", "daily 02:30", "weekly mon 23:59", "monthly 30 02:30"] {
            let schedule = Schedule::parse(text, Some("America/New_York")).unwrap();
            let mut now = at("2026-01-15T00:00:00Z");
            for _ in 0..500 {
                let next = schedule.next(now).unwrap();
                assert!(next > now, "{text}");
                assert_eq!(schedule.latest(next).unwrap(), next, "{text}");
                assert_eq!(schedule.latest(next - 1).unwrap(), schedule.latest(now).unwrap(), "{text}");
                now = next;
            }
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "daily",
            "daily 2430",
            "daily 24:00",
            "daily 02:5",
            "weekly 02:30",
            "weekly sunday 02:30",
            "monthly 0 02:30",
            "monthly 32 02:30",
            "every 0 min",
            "every 1441 min",
            "every 25 h",
            "every -5 min",
            "every 5 s",
            "hourly 5",
            "every 9223372036854775807 h",
        ] {
            let error = Schedule::parse(text, None).unwrap_err();
            assert!(error.starts_with("schedule: '") && error.contains("daily 02:30"), "{error}");
        }
        assert_eq!(Schedule::parse("hourly", Some("Mars")).unwrap_err(), "time_zone: there is no time zone 'Mars'");
    }
}
