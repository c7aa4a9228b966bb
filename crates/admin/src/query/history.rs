//! The pool's history: the commands that changed it, and its internal events.

use super::{Row, Rows, unreadable};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use weir_format::NvList;
use weir_machine::Request;
use weir_pool::{Pool, PoolError};

/// Which records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    /// Whether internal events are read as well.
    pub internal: bool,
}

/// A record of a pool's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryRow {
    /// Time in seconds since 1970.
    pub time_s: u64,
    /// The command line; `None` for an internal event.
    pub command: Option<String>,
    /// The internal event; `None` for a command.
    pub event: Option<InternalEvent>,
    /// User ID, if the record has one.
    pub uid: Option<u64>,
    /// Name of the host, if the record has one.
    pub host: Option<String>,
    /// Zone of the host, if the record has one: OpenZFS and Weir write `linux`.
    #[serde(default)]
    pub zone: Option<String>,
}

/// An internal event of a pool's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InternalEvent {
    /// Name of the event, for example `snapshot`; `None` if the record has none.
    pub name: Option<String>,
    /// Txg in which it happened; 0 if the record has none.
    pub txg: u64,
    /// Full name of the dataset that it is about, if it is about one.
    pub dataset: Option<String>,
    /// Object number of that dataset.
    pub dataset_id: Option<u64>,
    /// Further details; empty if there are none.
    pub details: String,
}

impl HistoryRow {
    /// The record with these fields.
    fn of(record: &NvList) -> Self {
        let text = |name| record.get_str(name).map(str::to_owned);
        let command = text("history command");
        let event = || InternalEvent {
            name: text("internal_name"),
            txg: record.get_u64("history txg").unwrap_or(0),
            dataset: text("dsname"),
            dataset_id: record.get_u64("dsid"),
            details: text("history internal str").unwrap_or_default(),
        };
        HistoryRow {
            time_s: record.get_u64("history time").unwrap_or(0),
            event: if command.is_some() { None } else { Some(event()) },
            command,
            uid: record.get_u64("history who"),
            host: text("history hostname"),
            zone: text("history zone"),
        }
    }
}

impl HistoryQuery {
    /// Reads the records, oldest first: [`Row::History`].
    ///
    /// # Errors
    /// If the history cannot be read.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        let records = weir_dsl::history::history(&pool.dsl, &Request::internal("history")).await;
        for record in records.map_err(|error| unreadable(PoolError::from(error)))? {
            let row = HistoryRow::of(&record);
            if row.command.is_some() || self.internal {
                rows.add(Row::History(row)).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_command_or_an_internal_event() {
        let mut record = NvList::new();
        record.set("history time", 1_700_000_000u64);
        record.set("history command", "zpool create p x");
        record.set("history who", 7u64);
        record.set("history hostname", "here");
        record.set("history zone", "linux");
        let command = HistoryRow {
            time_s: 1_700_000_000,
            command: Some("zpool create p x".into()),
            event: None,
            uid: Some(7),
            host: Some("here".into()),
            zone: Some("linux".into()),
        };
        assert_eq!(HistoryRow::of(&record), command);
        let mut record = NvList::new();
        record.set("internal_name", "snapshot");
        record.set("history txg", 12u64);
        record.set("dsname", "p/a@s");
        record.set("dsid", 77u64);
        let event = InternalEvent {
            name: Some("snapshot".into()),
            txg: 12,
            dataset: Some("p/a@s".into()),
            dataset_id: Some(77),
            details: String::new(),
        };
        let row = HistoryRow { time_s: 0, command: None, event: Some(event), uid: None, host: None, zone: None };
        assert_eq!(HistoryRow::of(&record), row);
    }
}
