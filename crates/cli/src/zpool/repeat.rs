//! Reports that repeat: `[-T d|u] … [INTERVAL [COUNT]]`.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`get_interval_count`), `lib/libspl/timestamp.c`.

use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::times::date_and_time;
use std::time::Duration;

/// Interval of checks whether the client still waits for output.
const LOOK: Duration = Duration::from_millis(200);
/// The longest interval, in seconds: a larger number is a pool's.
const MAX_INTERVAL_S: f64 = 1e9;

/// How often a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Repetition {
    /// Time between two reports; `None` for a single one.
    pub interval: Option<Duration>,
    /// Number of reports; `None` for no end.
    pub count: Option<u64>,
    /// Whether the time is printed before each report, and whether in seconds.
    seconds: Option<bool>,
}

impl Repetition {
    /// Takes an interval and a count, each optional, off the end of the operands; `time` is the value of `-T`.
    ///
    /// # Errors
    /// Misuse of the command `C`.
    pub fn take<C: CommandLine>(time: Option<&str>, words: &mut Vec<String>) -> Result<Self, Failure> {
        let seconds = match time {
            None => None,
            Some("u") => Some(true),
            Some("d") => Some(false),
            Some(_) => return Err(C::misused("-T takes d or u")),
        };
        let number = |word: &String| word.parse::<f64>().ok().filter(|n| (0.0..MAX_INTERVAL_S).contains(n));
        let numbers = words.iter().rev().map_while(number).count().min(2);
        let at = words.len() - numbers;
        let numbers: Vec<f64> = words.split_off(at).iter().filter_map(number).collect();
        let (interval, count) = match numbers.as_slice() {
            [] => (None, None),
            [interval, rest @ ..] if *interval > 0.0 => (Some(*interval), rest.first().map(|count| *count as u64)),
            _ => return Err(C::misused("interval cannot be zero")),
        };
        if count == Some(0) {
            return Err(C::misused("count cannot be zero"));
        }
        Ok(Repetition { interval: interval.map(Duration::from_secs_f64), count, seconds })
    }

    /// Prints the time, if it is wanted.
    ///
    /// # Errors
    /// If there is no machine.
    pub fn print_time(&self, call: &Call) -> Result<(), Failure> {
        let Some(seconds) = self.seconds else { return Ok(()) };
        let now = call.machine()?.clock.wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        outln!(call, "{}", if seconds { now.to_string() } else { date_and_time(now) });
        Ok(())
    }

    /// Prints reports until the count is reached or the client has gone. `report` gets whether it is the first; its exit code
    /// is the command's.
    ///
    /// # Errors
    /// Errors of `report`.
    pub fn run(&self, call: &Call, mut report: impl FnMut(bool) -> Result<u8, Failure>) -> Result<u8, Failure> {
        let machine = call.machine()?;
        let mut left = self.count;
        let mut is_first = true;
        loop {
            self.print_time(call)?;
            let code = report(is_first)?;
            left = left.map(|left| left - 1);
            let Some(interval) = self.interval.filter(|_| left != Some(0)) else { return Ok(code) };
            // A command of its own buffers its output until it is known where it runs.
            call.begin();
            call.waits()?;
            let due = machine.clock.now() + interval;
            while machine.clock.now() < due {
                if call.is_gone() {
                    return Ok(code);
                }
                machine.block_on(machine.clock.sleep(LOOK.min(due.since(machine.clock.now()))));
            }
            is_first = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::status::StatusArgs;

    #[test]
    fn numbers_at_the_end_are_an_interval_and_a_count() {
        let of = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned).collect();
            Repetition::take::<StatusArgs>(None, &mut words).map(|found| (words.join(" "), found.interval, found.count))
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(of("").unwrap(), (String::new(), None, None));
        assert_eq!(of("p q").unwrap(), ("p q".into(), None, None));
        assert_eq!(of("p 0.5").unwrap(), ("p".into(), ms(500), None));
        assert_eq!(of("2 3").unwrap(), (String::new(), ms(2000), Some(3)));
        assert_eq!(of("17846251834091284731 2").unwrap(), ("17846251834091284731".into(), ms(2000), None));
        for wrong in ["p 0", "p 1 0", "p 0 1"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(Repetition::take::<StatusArgs>(Some("x"), &mut Vec::new()).is_err());
    }
}
