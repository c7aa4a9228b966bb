//! Differences between a snapshot and a later state of a file system.

use super::{Row, Rows, unopened};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use weir_engine::Engine;
use weir_files::diff::{Change, Diff, Difference, Unknown};
use weir_machine::Request;
use weir_pool::diff::Pair;
use weir_pool::{OpenOptions, Pool, PoolError};

/// Which states are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffQuery {
    /// Full name of the older snapshot.
    pub older: String,
    /// Full name of a later snapshot, or of the file system.
    pub newer: String,
}

/// A path in a file system, with a leading slash: a string, or the numbers of its bytes if they are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FilePath {
    /// UTF-8.
    Text(String),
    /// Other bytes.
    Bytes(Vec<u8>),
}

/// Kind of a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Added.
    Added,
    /// Removed.
    Removed,
    /// Same path, other contents or attributes.
    Modified,
    /// The number of links changed by this number.
    Links(i64),
    /// Renamed to this path.
    Renamed(FilePath),
}

/// A file that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DifferenceRow {
    /// Object number.
    pub object: u64,
    /// Kind of the difference.
    pub change: ChangeKind,
    /// Path from the root of the file system; `(on_delete_queue)` for a file that is open and has no name any more.
    pub path: FilePath,
    /// The bits `S_IFMT` of its mode.
    pub kind: u64,
    /// Time of its last change (ctime), in seconds since 1970.
    pub ctime_s: i64,
    /// Nanoseconds of that second.
    pub ctime_ns: u32,
}

impl From<Vec<u8>> for FilePath {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| FilePath::Bytes(error.into_bytes()), FilePath::Text)
    }
}

impl FilePath {
    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            FilePath::Text(text) => text.as_bytes(),
            FilePath::Bytes(bytes) => bytes,
        }
    }
}

impl From<Difference> for DifferenceRow {
    fn from(Difference { object, change, path, kind, ctime }: Difference) -> Self {
        let change = match change {
            Change::Added => ChangeKind::Added,
            Change::Removed => ChangeKind::Removed,
            Change::Modified => ChangeKind::Modified,
            Change::Links(more) => ChangeKind::Links(more),
            Change::Renamed(to) => ChangeKind::Renamed(to.into()),
        };
        DifferenceRow { object: object.0, change, path: path.into(), kind, ctime_s: ctime.sec, ctime_ns: ctime.nsec }
    }
}

impl DiffQuery {
    /// Compares the states: one [`Row::Comparison`], then a row for each file that differs, by object number.
    ///
    /// # Errors
    /// If one of them does not exist, or they cannot be compared.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        let rq = &Request::internal("diff");
        let (pair, mut diff) = self.begin(rq, pool).await?;
        tell(rq, &pair, &mut diff, rows).await
    }

    async fn begin(&self, rq: &Request, pool: &Pool) -> Result<(Pair, Diff), PoolError> {
        let Self { older, newer } = self;
        let pair = Pair::find(rq, &pool.dsl, &pool.facts(), older, newer).await?;
        let a = pool.file_system(rq, older).await?;
        let b = pool.file_system(rq, newer).await?;
        let failed = |source| PoolError::File { name: older.clone(), source: Box::new(source) };
        let diff = Diff::new(rq, a, b, pair.after).await.map_err(failed)?;
        Ok((pair, diff))
    }

    /// Compares the states on a pool that this process has open, whose engine takes a temporary snapshot of a file system.
    ///
    /// # Errors
    /// As [`DiffQuery::run`]; if the keys in `options` are wrong.
    pub(super) async fn run_open(
        &self,
        engine: &Engine,
        options: &OpenOptions,
        rows: &mut Rows,
    ) -> Result<(), Refusal> {
        if !options.keys.is_empty() {
            // The view checks the keys. It would delay the reuse of freed blocks, and the comparison does not need it.
            drop(engine.synced().view(options).await.map_err(unopened)?);
        }
        let rq = &Request::internal("diff");
        let mut session = engine.comparisons().begin(rq, &self.older, &self.newer).await?;
        let done = tell(rq, &session.pair, &mut session.diff, rows).await;
        let ended = engine.comparisons().end(session).await;
        done?;
        Ok(ended?)
    }
}

/// Hands all differences to the caller.
async fn tell(rq: &Request, pair: &Pair, diff: &mut Diff, rows: &mut Rows) -> Result<(), Refusal> {
    rows.add(Row::Comparison { mountpoint: pair.mountpoint.clone() }).await?;
    let failed = |source| PoolError::File { name: "diff".to_owned(), source: Box::new(source) };
    while let Some(found) = diff.next(rq).await.map_err(failed)? {
        rows.check()?;
        for one in found {
            let row = match one {
                Ok(difference) => Row::Difference(difference.into()),
                Err(Unknown { object, name, why }) => {
                    Row::Incomparable { object: object.0, name, why: why.to_string() }
                }
            };
            rows.add(row).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::ObjectId;
    use weir_format::znode::Timestamp;

    #[test]
    fn names_of_any_bytes_convert_to_json_and_back() {
        let row = |change, path: &[u8]| {
            let ctime = Timestamp { sec: -1, nsec: 5 };
            DifferenceRow::from(Difference { object: ObjectId(7), change, path: path.to_vec(), kind: 0o100_000, ctime })
        };
        let of = |row: &DifferenceRow| serde_json::to_string(row).unwrap();
        let text = row(Change::Renamed(b"/b\xe4".to_vec()), "/ä\n".as_bytes());
        let json = concat!(
            r#"{"object":7,"change":{"renamed":[47,98,228]},"path":"/ä\n","kind":32768,"#,
            r#""ctime_s":-1,"ctime_ns":5}"#
        );
        assert_eq!(of(&text), json);
        for row in [text, row(Change::Links(-2), b"/\xff"), row(Change::Added, b"/")] {
            assert_eq!(serde_json::from_str::<DifferenceRow>(&of(&row)).unwrap(), row);
        }
        assert_eq!(row(Change::Removed, b"/\xff").path.as_bytes(), b"/\xff");
    }
}
