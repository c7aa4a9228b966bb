//! Progress of a run: what the process that runs `weir replicate` says to the daemon whose job it is.
//!
//! With the option `--progress`, a line of standard output that begins with [`MARK`] is such a message, as JSON; all other lines are
//! for people. A thread of its own says it each second, so that the rate of a stream that waits falls to zero.
#![allow(clippy::disallowed_methods, reason = "a real process, in real time")]

use crate::units::human_bytes;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// First character of a message: the record separator of sequences of JSON texts (RFC 7464).
const MARK: char = '\u{1e}';
/// Interval between two messages.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of intervals over which the rate is a mean.
const RATE_INTERVALS: usize = 10;

/// Progress of the dataset that a run sends now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The dataset.
    pub source: String,
    /// The replica.
    pub target: String,
    /// Snapshot that the replica has after the stream that is sent now, with `@`; empty for one that is continued.
    pub snapshot: String,
    /// Number of the dataset among those of the run, from 1.
    pub number: usize,
    /// Datasets of the run.
    pub datasets: usize,
    /// Bytes of the dataset's streams that were sent.
    pub sent_bytes: u64,
    /// Bytes that all of them have by the sender's estimate; `None` if it gave none.
    pub estimated_bytes: Option<u64>,
    /// Bytes per second, the mean of the last ten seconds.
    pub bytes_per_second: u64,
}

impl Progress {
    /// The message of a line; `None` if it is a line for people, or not understood.
    pub fn of_line(line: &str) -> Option<Progress> {
        serde_json::from_str(line.strip_prefix(MARK)?).ok()
    }

    /// Seconds until the dataset is sent, at the present rate; `None` if they are not known.
    pub fn seconds_left(&self) -> Option<u64> {
        let left = self.estimated_bytes?.checked_sub(self.sent_bytes)?;
        (self.bytes_per_second > 0).then(|| left.div_ceil(self.bytes_per_second))
    }

    /// The progress in words.
    pub fn text(&self) -> String {
        let Progress { source, number, datasets, sent_bytes, estimated_bytes, bytes_per_second, .. } = self;
        let of = estimated_bytes.map(|all| format!(" of about {}", human_bytes(all))).unwrap_or_default();
        let which = if *datasets > 1 { format!(" ({number} of {datasets} datasets)") } else { String::new() };
        let left = self.seconds_left().map(|seconds| format!(", {seconds} s left")).unwrap_or_default();
        let sent = human_bytes(*sent_bytes);
        let rate = human_bytes(*bytes_per_second);
        format!("{sent}{of} of {source}{which} sent, {rate}/s{left}")
    }

    fn say(&self) {
        let mut out = std::io::stdout().lock();
        let text = serde_json::to_string(self).unwrap_or_default();
        // Without the daemon, no one reads it; the run goes on.
        let _gone = writeln!(out, "{MARK}{text}").and_then(|()| out.flush());
    }
}

/// Says the progress each second until `done` is closed; `sent` has the bytes of the stream.
pub fn report(begun: &Progress, sent: &AtomicU64, done: &Receiver<()>) {
    let mut seen = VecDeque::from([(Instant::now(), 0)]);
    while done.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let bytes = sent.load(Ordering::Relaxed);
        let now = Instant::now();
        let (earlier, before) = seen.front().copied().unwrap_or((now, bytes));
        let seconds = now.duration_since(earlier).as_secs_f64().max(0.001);
        let bytes_per_second = (bytes.saturating_sub(before) as f64 / seconds) as u64;
        Progress { sent_bytes: begun.sent_bytes.saturating_add(bytes), bytes_per_second, ..begun.clone() }.say();
        seen.push_back((now, bytes));
        if seen.len() > RATE_INTERVALS {
            seen.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_lines_for_people_are_not() {
        let progress = Progress {
            source: "tank/home".into(),
            target: "nas:backup/home".into(),
            snapshot: "@a".into(),
            number: 2,
            datasets: 3,
            sent_bytes: 100 << 20,
            estimated_bytes: Some(300 << 20),
            bytes_per_second: 15 << 20,
        };
        let line = format!("{MARK}{}", serde_json::to_string(&progress).unwrap());
        assert_eq!(Progress::of_line(&line), Some(progress.clone()));
        for other in ["tank/home: nas:backup/home has @a; 1M sent", "", "{}", "\u{1e}{\"a\":1}", &line[1..]] {
            assert_eq!(Progress::of_line(other), None, "{other}");
        }
        assert_eq!(progress.seconds_left(), Some(14));
        assert_eq!(progress.text(), "100M of about 300M of tank/home (2 of 3 datasets) sent, 15M/s, 14 s left");
        // An estimate may be too low, and a stream may wait.
        let late = Progress { sent_bytes: 301 << 20, datasets: 1, ..progress.clone() };
        assert_eq!((late.seconds_left(), late.text().contains("left")), (None, false));
        assert_eq!(Progress { bytes_per_second: 0, ..progress.clone() }.seconds_left(), None);
        let unknown = Progress { estimated_bytes: None, datasets: 1, ..progress };
        assert_eq!(unknown.text(), "100M of tank/home sent, 15M/s");
    }
}
