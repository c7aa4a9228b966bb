//! The alerts in the state directory: `alerts.json`, which a restart of the daemon reads.

use super::conditions::{Condition, PoolPast};
use super::settings::Kind;
use crate::state_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Name of the file.
pub const NAME: &str = "alerts.json";
/// Maximum size of the file that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Number of events that are kept.
const MAX_HISTORY: usize = 1000;

/// An alert: a condition that holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// Name: kind and subject.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Pool, device or job.
    pub subject: String,
    /// State of the condition; another one is sent again.
    pub state: String,
    /// Text with the present figures.
    pub text: String,
    /// Whether data, or its redundancy, is in danger.
    pub critical: bool,
    /// Begin, in seconds since 1970.
    pub since: u64,
    /// Time of the last message, in seconds since 1970.
    pub sent: u64,
    /// Whether reminders are not wanted.
    pub acknowledged: bool,
    /// Time until which nothing is sent, in seconds since 1970.
    pub muted_until: Option<u64>,
}

impl Alert {
    /// The alert of a condition that begins now.
    pub(super) fn new(condition: Condition, now: u64) -> Self {
        Alert {
            name: condition.id(),
            kind: condition.kind,
            subject: condition.subject,
            state: condition.state,
            text: condition.text,
            critical: condition.critical,
            since: now,
            sent: now,
            acknowledged: false,
            muted_until: None,
        }
    }

    /// An alert that stands for none, to try the receivers.
    pub(super) fn for_test(now: u64) -> Self {
        let text = "This is a test of the alerts. Nothing is wrong.".to_owned();
        let kind = Kind::Pool;
        Alert::new(Condition { kind, subject: "test".into(), state: "test".into(), text, critical: false }, now)
    }

    /// Whether nothing is sent now.
    pub(super) fn is_muted(&self, now: u64) -> bool {
        self.muted_until.is_some_and(|until| now < until)
    }
}

/// An event of an alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Time in seconds since 1970.
    pub time: u64,
    /// `raised`, `changed`, `reminder` or `resolved`.
    pub event: String,
    /// Name of the alert.
    pub name: String,
}

/// Contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Alerts by name.
    pub alerts: BTreeMap<String, Alert>,
    /// The last events, the oldest first.
    pub history: Vec<Record>,
    /// Earlier figures by GUID of the pool.
    pub past: BTreeMap<u64, PoolPast>,
}

impl Stored {
    /// Reads the file. One that is absent or damaged is empty; alerts whose conditions hold are then raised again.
    pub fn load(file: &Path) -> Self {
        match state_file::load_json(file, MAX_BYTES) {
            Ok(stored) => stored.unwrap_or_default(),
            Err(error) => {
                tracing::error!("{}: {error}; alerts begin anew", file.display());
                Stored::default()
            }
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Of writing.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        state_file::replace(file, &serde_json::to_vec(self)?, 0o600)
    }

    /// Adds an event.
    pub(super) fn note(&mut self, record: Record) {
        if self.history.len() >= MAX_HISTORY {
            self.history.remove(0);
        }
        self.history.push(record);
        debug_assert!(self.history.len() <= MAX_HISTORY, "the history is bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_back_and_a_damaged_one_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(NAME);
        assert_eq!(Stored::load(&file), Stored::default());
        let mut stored = Stored::default();
        let alert = Alert::for_test(7);
        stored.alerts.insert(alert.name.clone(), alert);
        stored.past.entry(3).or_default().allocated.push((1, 2));
        for time in 0..MAX_HISTORY as u64 + 5 {
            stored.note(Record { time, event: "raised".into(), name: "a".into() });
        }
        assert_eq!((stored.history.len(), stored.history[0].time), (MAX_HISTORY, 5));
        stored.save(&file).unwrap();
        assert_eq!(Stored::load(&file), stored);
        assert!(stored.save(Path::new("/nowhere/alerts.json")).is_err());
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        assert_eq!(Stored::load(&file), Stored::default());
    }
}
