//! Rows of the answer to a query: their JSON, and their way from the query to its caller.
//!
//! Over a socket, each row is a line of JSON. The lines are cut into frames of bounded size, wherever that is: [`RowDecoder`]
//! joins them again.

use super::{
    DatasetRow, DifferenceRow, EventRow, HistoryRow, Hold, PermissionsRow, PoolIoRow, PoolPropertiesRow, PoolStatus,
    UserspaceRow, VdevPropertiesRow, VdevSpaceRow,
};
use crate::refusal::{Refusal, RefusalKind};
use futures_channel::mpsc;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use std::future::poll_fn;
use thiserror::Error;

/// Maximum size of a row in bytes: the names of the clones of a snapshot that has tens of thousands.
pub const MAX_ROW_BYTES: usize = 16 << 20;
/// Number of rows by which a query may be ahead of its caller.
const ROWS_AHEAD: usize = 64;

/// One row of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Row {
    /// A part of the pool that cannot be read, or only with less redundancy. The others follow.
    Warning {
        /// Name of the pool or dataset.
        name: String,
        /// The reason.
        why: String,
    },
    /// An open pool.
    Pool(OpenPool),
    /// A hold of a snapshot.
    Hold(Hold),
    /// Delegated permissions of a dataset.
    Permissions(PermissionsRow),
    /// A dataset, snapshot or bookmark.
    Dataset(DatasetRow),
    /// Use and limits of a user, group or project.
    Userspace(UserspaceRow),
    /// A record of a pool's history.
    History(HistoryRow),
    /// An event of an open pool.
    Event(EventRow),
    /// Two states that are compared.
    Comparison {
        /// Mount point of the file system of the newer one: an absolute path without a slash at its end; empty if its property is
        /// not a path.
        mountpoint: String,
    },
    /// A file that differs.
    Difference(DifferenceRow),
    /// A file that cannot be compared.
    Incomparable {
        /// Object number.
        object: u64,
        /// Snapshot or file system in which it cannot be read.
        name: String,
        /// The reason.
        why: String,
    },
    /// A pool with its properties.
    PoolProperties(PoolPropertiesRow),
    /// A vdev with its properties.
    VdevProperties(VdevPropertiesRow),
    /// Reads and writes of an open pool.
    PoolIo(Box<PoolIoRow>),
    /// A vdev with its space.
    VdevSpace(VdevSpaceRow),
    /// State of a pool.
    PoolStatus(Box<PoolStatus>),
    /// A file with errors that cannot be repaired.
    Damaged {
        /// Path of the file as `dataset:/path`, or `<dataset>:<object>` by their numbers if it has none.
        place: String,
    },
    /// A dataset, snapshot or bookmark that was named and does not exist.
    Missing {
        /// Name of it.
        name: String,
        /// The reason.
        why: String,
    },
    /// A dataset that cannot be opened.
    Unopened {
        /// Name of it.
        name: String,
        /// The reason.
        why: String,
    },
    /// A dataset, snapshot or bookmark whose properties cannot be read.
    Unread {
        /// Name of it.
        name: String,
        /// The reason.
        why: String,
    },
}

/// A pool that a process has open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenPool {
    /// Name of the pool.
    pub name: String,
    /// GUID of the pool.
    pub guid: u64,
    /// Paths of its devices.
    #[serde(default)]
    pub devices: Vec<String>,
}

/// Why bytes are no rows.
#[derive(Debug, Error)]
pub enum RowError {
    /// Longer than [`MAX_ROW_BYTES`].
    #[error("a row of more than {MAX_ROW_BYTES} bytes")]
    TooLong,
    /// Not the JSON of a row.
    #[error("not a row of this version: {0}")]
    Json(#[from] serde_json::Error),
}

impl Row {
    /// Encodes the row as a line of JSON.
    ///
    /// # Errors
    /// If it is longer than [`MAX_ROW_BYTES`].
    pub fn to_line(&self) -> Result<Vec<u8>, RowError> {
        let mut line = serde_json::to_vec(self)?;
        if line.len() > MAX_ROW_BYTES {
            return Err(RowError::TooLong);
        }
        line.push(b'\n');
        Ok(line)
    }
}

/// Decodes lines of JSON that arrive in pieces.
#[derive(Debug, Default)]
pub struct RowDecoder {
    /// The line that is not complete yet.
    rest: Vec<u8>,
}

impl RowDecoder {
    /// The rows that are complete with this piece.
    ///
    /// # Errors
    /// If a line is too long or no row. No row of the piece is returned then.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Row>, RowError> {
        let mut rows = Vec::new();
        let mut lines = piece.split(|byte| *byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            if self.rest.len().saturating_add(line.len()) > MAX_ROW_BYTES {
                return Err(RowError::TooLong);
            }
            self.rest.extend_from_slice(line);
            // The last one goes on in the next piece.
            if lines.peek().is_some() {
                rows.push(serde_json::from_slice(&std::mem::take(&mut self.rest))?);
            }
        }
        Ok(rows)
    }
}

/// Receives the rows of a running query, which waits while its caller is some rows behind.
#[derive(Debug)]
pub struct Rows(mpsc::Sender<Row>);

/// The caller's end of [`Rows`]. Dropping it stops the query.
#[derive(Debug)]
pub struct RowReceiver(mpsc::Receiver<Row>);

impl Rows {
    /// Both ends of the way from a query to its caller.
    pub fn channel() -> (Rows, RowReceiver) {
        let (to, from) = mpsc::channel(ROWS_AHEAD);
        (Rows(to), RowReceiver(from))
    }

    /// Hands a row to the caller.
    ///
    /// # Errors
    /// [`RefusalKind::Stopped`] if the caller has gone away.
    pub async fn add(&mut self, row: Row) -> Result<(), Refusal> {
        let ready = poll_fn(|context| self.0.poll_ready(context)).await;
        ready.and_then(|()| self.0.start_send(row)).map_err(|_| stopped())
    }

    /// checks whether the caller still receives rows, between steps that may find none.
    ///
    /// # Errors
    /// [`RefusalKind::Stopped`] if it does not.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.0.is_closed() { Err(stopped()) } else { Ok(()) }
    }
}

fn stopped() -> Refusal {
    Refusal::new(RefusalKind::Stopped, "the caller has gone away")
}

impl RowReceiver {
    /// The next row; `None` at the end of the query.
    pub async fn next(&mut self) -> Option<Row> {
        self.0.next().await
    }

    /// The next row if the query has found it already.
    pub fn at_hand(&mut self) -> Option<Row> {
        self.0.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn row(n: u64) -> Row {
        Row::Hold(Hold { snapshot: format!("p@{n}"), tag: "two\nlines".into(), time_s: n })
    }

    #[test]
    fn rows_survive_any_cut() {
        let rows: Vec<Row> = (0..5).map(row).collect();
        let lines: Vec<u8> = rows.iter().flat_map(|row| row.to_line().unwrap()).collect();
        for size in 1..=lines.len() {
            let mut decoder = RowDecoder::default();
            let decoded: Vec<Row> = lines.chunks(size).flat_map(|piece| decoder.push(piece).unwrap()).collect();
            assert_eq!(decoded, rows, "pieces of {size}");
        }
        for broken in ["\n", "{}\n", "{\"hold\":{\"snapshot\":\"p@1\",\"tag\":\"t\",\"time_s\":1,\"more\":2}}\n"] {
            assert!(RowDecoder::default().push(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_row_is_bounded() {
        let long = Row::Warning { name: "p".into(), why: "x".repeat(MAX_ROW_BYTES) };
        assert!(matches!(long.to_line(), Err(RowError::TooLong)));
        let mut decoder = RowDecoder::default();
        let piece = vec![b' '; MAX_ROW_BYTES / 2];
        assert!(decoder.push(&piece).is_ok_and(|rows| rows.is_empty()));
        assert!(decoder.push(&piece).is_ok());
        assert!(matches!(decoder.push(b" "), Err(RowError::TooLong)));
    }

    #[test]
    fn a_query_waits_for_its_caller_and_stops_with_it() {
        let (mut rows, mut received) = Rows::channel();
        let mut sent = 0;
        while rows.add(row(sent)).now_or_never().is_some() {
            sent += 1;
        }
        assert!((ROWS_AHEAD as u64..=ROWS_AHEAD as u64 + 2).contains(&sent), "{sent} rows ahead");
        assert_eq!((received.at_hand(), rows.check()), (Some(row(0)), Ok(())));
        assert_eq!(rows.add(row(sent)).now_or_never(), Some(Ok(())), "there is room again");
        drop(received);
        assert_eq!(rows.check().unwrap_err().kind, RefusalKind::Stopped);
        assert_eq!(rows.add(row(0)).now_or_never().unwrap().unwrap_err().kind, RefusalKind::Stopped);
    }
}
