//! Queries: reading of pools for administrators, as messages, and its execution by the process that has the pool open.
//!
//! ```text
//!   {"pool":{"name":"tank","query":{"holds":{"snapshot":"tank@a","recursive":false}}}}
//!   {"hold":{"snapshot":"tank@a","tag":"keep","time_s":1790000000}}       a line for each row
//!   {"done":"rows"}
//! ```
//!
//! The caller parses command lines and formats rows: a query contains no words of a command line, and a row no formatted numbers,
//! times or names of users. A query reads one state of a pool, so that it runs on a pool opened read-only as well as on a view of
//! an open engine ([`PoolQuery::run_open`]); events are in the memory of the engine alone, and a
//! comparison with a file system takes a temporary snapshot there. It contains no key.
//!
//! *Failures.* A part of the pool that cannot be read is a row like the others ([`Row::Warning`]), in its place; a query that
//! cannot go on is refused. Rows before that are valid, and the caller decides whether it shows them.
//!
//! *Bounds.* A query runs no further than a few rows ahead of the caller ([`Rows`]), and ends when the caller goes away.

mod accounts;
mod datasets;
mod diff;
mod events;
mod history;
mod holds;
mod iostat;
mod permissions;
mod pool_properties;
mod rebuild_status;
mod rows;
mod status;
mod userspace;
mod vdev_properties;
mod vdev_space;
mod vdev_status;

pub use accounts::AccountProperty;
pub use datasets::{DatasetRow, DatasetsQuery};
pub use diff::{ChangeKind, DiffQuery, DifferenceRow, FilePath};
pub use events::{EventField, EventRow, EventValue, EventsQuery};
pub use history::{HistoryQuery, HistoryRow, InternalEvent};
pub use holds::{Hold, HoldsQuery};
pub use iostat::{IostatQuery, LeafIo, OperationIo, PoolIoRow, VdevIo};
pub use permissions::{PermissionsQuery, PermissionsRow};
pub use pool_properties::{PoolPropertiesQuery, PoolPropertiesRow};
pub use rebuild_status::{RebuildStage, RebuildStatus};
pub use rows::{MAX_ROW_BYTES, OpenPool, Row, RowDecoder, RowError, RowReceiver, Rows};
pub use status::{
    CheckpointStatus, DedupBucket, DedupStatus, DedupSums, ErrorScrubStatus, ExpansionStatus, PoolStatus,
    RemovalStatus, ScanStage, ScanStatus, StatusQuery, problem_of,
};
pub use userspace::{UserspaceQuery, UserspaceRow};
pub use vdev_properties::{VdevPropertiesQuery, VdevPropertiesRow, find_vdevs};
pub use vdev_space::{VdevGroup, VdevSpace, VdevSpaceRow, spare_state};
pub use vdev_status::{
    HealthReason, LeafPass, LeafPassState, VdevErrors, VdevFacts, VdevHealth, VdevStatus, VdevStatusSpace, oversized,
};

use crate::refusal::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use weir_dsl::MountedFileSystems;
use weir_engine::Engine;
use weir_pool::status::{SUSPENDED, VdevState};
use weir_pool::{OpenOptions, Pool};

/// A query to a process with open pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Query {
    /// The pools that the process has open: [`Row::Pool`], sorted by name.
    Pools,
    /// No rows, once none of these pools is being opened.
    Opened {
        /// Names or GUIDs of pools; none for all that are being opened.
        pools: Vec<String>,
    },
    /// A query about one pool.
    Pool {
        /// Name or GUID of the pool.
        name: String,
        /// Query about that pool.
        query: PoolQuery,
    },
    /// Reads and writes of open pools, once or repeatedly: [`Row::PoolIo`].
    Iostat(IostatQuery),
}

/// A query about one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolQuery {
    /// Holds of snapshots: [`Row::Hold`].
    Holds(HoldsQuery),
    /// Delegated permissions: [`Row::Permissions`].
    Permissions(PermissionsQuery),
    /// Datasets with their properties: [`Row::Dataset`], [`Row::Missing`], [`Row::Unopened`], [`Row::Unread`].
    Datasets(DatasetsQuery),
    /// Space and objects of users, groups or projects: [`Row::Userspace`].
    Userspace(UserspaceQuery),
    /// The pool's history: [`Row::History`].
    History(HistoryQuery),
    /// Events since the process opened the pool: [`Row::Event`].
    Events(EventsQuery),
    /// Differences between two states of a file system: [`Row::Comparison`], [`Row::Difference`], [`Row::Incomparable`].
    Diff(DiffQuery),
    /// Properties of the pool: [`Row::PoolProperties`]; also the space of its vdevs: [`Row::VdevSpace`].
    PoolProperties(PoolPropertiesQuery),
    /// Properties of vdevs: [`Row::VdevProperties`].
    VdevProperties(VdevPropertiesQuery),
    /// State of the pool: [`Row::PoolStatus`], [`Row::Damaged`].
    Status(StatusQuery),
}

impl Query {
    /// Decodes a query.
    ///
    /// # Errors
    /// The reason why the text is no query.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Encodes the query.
    ///
    /// # Errors
    /// If a value cannot be written as JSON; those of queries can.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

impl PoolQuery {
    /// Reads the pool, of which the file systems in `mounted` are mounted, and gives the rows to `rows`, after a [`Row::Warning`] for each warning of the opened pool.
    ///
    /// # Errors
    /// The reason why the query cannot go on; [`RefusalKind::Stopped`] if the caller has gone away.
    pub async fn run(&self, pool: &Pool, mounted: &MountedFileSystems, mut rows: Rows) -> Result<(), Refusal> {
        for warning in &pool.warnings {
            rows.add(Row::Warning { name: pool.name().to_owned(), why: warning.clone() }).await?;
        }
        match self {
            PoolQuery::Holds(query) => query.run(pool, &mut rows).await,
            PoolQuery::Permissions(query) => query.run(pool, &mut rows).await,
            PoolQuery::Datasets(query) => query.run(pool, mounted, &mut rows).await,
            PoolQuery::Userspace(query) => query.run(pool, &mut rows).await,
            PoolQuery::History(query) => query.run(pool, &mut rows).await,
            PoolQuery::Diff(query) => query.run(pool, &mut rows).await,
            PoolQuery::PoolProperties(query) => query.run(pool, &mut rows).await,
            PoolQuery::VdevProperties(query) => query.run(pool, &mut rows).await,
            PoolQuery::Status(query) => query.run(pool, mounted, &mut rows).await,
            PoolQuery::Events(_) => Err(Refusal::new(RefusalKind::Pool, NO_EVENTS)),
        }
    }

    /// Runs the query on a pool that this process has open for writing. `options` names its devices and keys.
    ///
    /// # Errors
    /// As [`PoolQuery::run`]; [`RefusalKind::Unopened`] if the state of the last synced txg cannot be read.
    pub async fn run_open(
        &self,
        engine: &Engine,
        options: &OpenOptions,
        mounted: &MountedFileSystems,
        mut rows: Rows,
    ) -> Result<(), Refusal> {
        match self {
            PoolQuery::Events(query) => return query.run(engine, &mut rows).await,
            PoolQuery::Diff(query) => return query.run_open(engine, options, &mut rows).await,
            // The records of the last commands may await their txg (`spa_history_get`). A suspended pool gives those that it has.
            PoolQuery::History(_) => drop(engine.sync().await),
            _ => {}
        }
        match (engine.synced().view(options).await, self) {
            (Ok(view), PoolQuery::Status(query)) => query.run_if_readable(engine, &view, mounted, &mut rows).await,
            (Ok(view), _) => self.run(&view, mounted, rows).await,
            // Lists and the state show an open pool at all times: what is in memory.
            (Err(error), PoolQuery::PoolProperties(query)) => {
                query.run_in_memory(engine, &mut rows).await?;
                unless_suspended(engine, error)
            }
            (Err(error), PoolQuery::Status(_)) => {
                StatusQuery::run_in_memory(engine, &error.to_string(), &mut rows).await?;
                unless_suspended(engine, error)
            }
            (Err(error), _) => Err(unopened(error)),
        }
    }
}

/// Interval at which a query that goes on looks for news.
const LOOK: Duration = Duration::from_millis(200);

/// Why a pool that no process has open for writing has no events.
const NO_EVENTS: &str = "events are in the memory of the process that has the pool open";

/// The refusal of a query about an open pool that cannot be read, unless the answer says that the pool is suspended.
fn unless_suspended(engine: &Engine, error: impl std::fmt::Display) -> Result<(), Refusal> {
    if is_suspended(engine) { Ok(()) } else { Err(unreadable(error)) }
}

fn is_suspended(engine: &Engine) -> bool {
    engine.devices().suspended_because().is_some()
}

/// Health of an open pool as far as it is in memory.
fn health_in_memory(engine: &Engine, state: VdevState) -> String {
    if is_suspended(engine) { SUSPENDED.to_owned() } else { state.to_string() }
}

/// A refusal because a part of the pool cannot be read.
fn unreadable(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(RefusalKind::Pool, error.to_string())
}

/// A refusal because the pool cannot be opened.
fn unopened(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(RefusalKind::Unopened, error.to_string())
}

pub(crate) fn query_target(data: &[u8]) {
    if let Ok(query) = Query::from_json(data) {
        let again = query.to_json().and_then(|bytes| Query::from_json(&bytes));
        assert_eq!(again.ok(), Some(query));
    }
}

pub(crate) fn rows_target(data: &[u8]) {
    let Ok(rows) = RowDecoder::default().push(data) else { return };
    let lines: Vec<u8> = rows.iter().filter_map(|row| row.to_line().ok()).flatten().collect();
    // However a stream is cut, it contains the same rows.
    let mut cut = RowDecoder::default();
    let again: Result<Vec<_>, _> = lines.chunks(7).map(|piece| cut.push(piece)).collect();
    assert_eq!(again.ok().map(|again| again.concat()), Some(rows));
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_dsl::QuotaPrincipal;
    use weir_dsl::props::DatasetKind;

    #[test]
    fn queries_convert_to_json_and_back() {
        let permissions = PoolQuery::Permissions(PermissionsQuery { dataset: "tank/a".into() });
        let json_of_permissions = r#"{"pool":{"name":"tank","query":{"permissions":{"dataset":"tank/a"}}}}"#;
        let holds = PoolQuery::Holds(HoldsQuery { snapshot: "tank@a".into(), recursive: true });
        let json = r#"{"pool":{"name":"tank","query":{"holds":{"snapshot":"tank@a","recursive":true}}}}"#;
        let datasets = DatasetsQuery {
            names: vec!["tank/a".into()],
            kinds: vec![DatasetKind::Filesystem, DatasetKind::Snapshot],
            depth: Some(1),
            follows_pool: false,
            altroot: String::new(),
            properties: Some(vec!["used".into(), "userused@7".into()]),
            sort_keys: Vec::new(),
        };
        let json_of_datasets = concat!(
            r#"{"pool":{"name":"tank","query":{"datasets":{"names":["tank/a"],"kinds":["filesystem","snapshot"],"depth":1,"#,
            r#""follows_pool":false,"altroot":"","properties":["used","userused@7"],"sort_keys":[]}}}}"#
        );
        let userspace = UserspaceQuery { dataset: "tank/a".into(), principal: QuotaPrincipal::Group };
        let json_of_userspace =
            r#"{"pool":{"name":"tank","query":{"userspace":{"dataset":"tank/a","principal":"group"}}}}"#;
        let history = PoolQuery::History(HistoryQuery { internal: true });
        let json_of_history = r#"{"pool":{"name":"tank","query":{"history":{"internal":true}}}}"#;
        let events = PoolQuery::Events(EventsQuery { follow: true });
        let json_of_events = r#"{"pool":{"name":"tank","query":{"events":{"follow":true}}}}"#;
        let pool = PoolPropertiesQuery { properties: Some(vec!["size".into()]), altroot: None, vdevs: true };
        let json_of_pool = r#"{"pool":{"name":"tank","query":{"pool_properties":{"properties":["size"],"altroot":null,"vdevs":true}}}}"#;
        let vdevs = VdevPropertiesQuery { vdevs: vec!["mirror-0".into()], properties: None };
        let json_of_vdevs =
            r#"{"pool":{"name":"tank","query":{"vdev_properties":{"vdevs":["mirror-0"],"properties":null}}}}"#;
        let status = PoolQuery::Status(StatusQuery { damaged: true, dedup: false });
        let json_of_status = r#"{"pool":{"name":"tank","query":{"status":{"damaged":true,"dedup":false}}}}"#;
        let diff = DiffQuery { older: "tank@a".into(), newer: "tank".into() };
        let json_of_diff = r#"{"pool":{"name":"tank","query":{"diff":{"older":"tank@a","newer":"tank"}}}}"#;
        let iostat = IostatQuery {
            pools: vec!["tank".into()],
            interval_ns: Some(500_000_000),
            samples: None,
            histograms: false,
        };
        let json_of_iostat =
            r#"{"iostat":{"pools":["tank"],"interval_ns":500000000,"samples":null,"histograms":false}}"#;
        for (query, json) in [
            (Query::Iostat(iostat), json_of_iostat),
            (Query::Pool { name: "tank".into(), query: permissions }, json_of_permissions),
            (Query::Pool { name: "tank".into(), query: status }, json_of_status),
            (Query::Pool { name: "tank".into(), query: PoolQuery::Diff(diff) }, json_of_diff),
            (Query::Pool { name: "tank".into(), query: PoolQuery::PoolProperties(pool) }, json_of_pool),
            (Query::Pool { name: "tank".into(), query: PoolQuery::VdevProperties(vdevs) }, json_of_vdevs),
            (Query::Pool { name: "tank".into(), query: events }, json_of_events),
            (Query::Pool { name: "tank".into(), query: history }, json_of_history),
            (Query::Pool { name: "tank".into(), query: PoolQuery::Userspace(userspace) }, json_of_userspace),
            (Query::Pool { name: "tank".into(), query: PoolQuery::Datasets(datasets) }, json_of_datasets),
            (Query::Pool { name: "tank".into(), query: holds }, json),
            (Query::Pools, r#""pools""#),
            (Query::Opened { pools: vec!["tank".into()] }, r#"{"opened":{"pools":["tank"]}}"#),
        ] {
            assert_eq!(String::from_utf8(query.to_json().unwrap()).unwrap(), json);
            assert_eq!(Query::from_json(json.as_bytes()).unwrap(), query);
        }
        for json in [
            r#"{"pool":{"name":"tank","query":{"holds":{"snapshot":"tank@a"}}}}"#,
            r#"{"pool":{"name":"tank","query":{"holds":{"snapshot":"tank@a","recursive":true,"all":true}}}}"#,
            r#"{"pool":{"name":"tank","line":"","query":{"holds":{"snapshot":"tank@a","recursive":true}}}}"#,
            "\"pool\"",
            "",
        ] {
            assert!(Query::from_json(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn the_seeds_of_fuzzing_are_messages() {
        let seeds = |target: &str| {
            let folder = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
            let files = std::fs::read_dir(folder).unwrap();
            files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect::<Vec<_>>()
        };
        let queries = seeds("admin_query");
        let rows = seeds("admin_rows");
        assert!(!queries.is_empty() && !rows.is_empty());
        queries.iter().for_each(|json| drop(Query::from_json(json).unwrap()));
        rows.iter().for_each(|lines| assert!(!RowDecoder::default().push(lines).unwrap().is_empty()));
        queries.iter().for_each(|data| query_target(data));
        rows.iter().for_each(|data| rows_target(data));
    }
}
