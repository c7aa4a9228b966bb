//! Diagnosis: what limits the clients of a pool, in sentences with figures.
//!
//! ```text
//!   Interval ──┐                ┌─ writes   log commit without a log device, throttle, small writes into large records
//!   PoolFacts ─┼─► View ─► rules┼─ devices  a slow device, a scrub
//!   subject ───┘                ├─ clients  one request in flight
//!                               ├─ reads    a small ARC, a large dedup table
//!                               ├─ space    a nearly full pool, fragmented free space, destroyed snapshots
//!                               ├─ network  a saturated link, lost or small packets, clients that take data slowly
//!                               └─ compute  processors
//!                                    │
//!                                    └─► Diagnosis: findings by weight, sources of bytes, and what limits now
//! ```
//!
//! A rule is a function from a view to findings. It fires if a counted share exceeds a threshold; each threshold is a constant
//! with its reason. A rule demands a number of events as well ([`ENOUGH_REQUESTS`], [`devices::ENOUGH_OPERATIONS`]): a share of a
//! few events says nothing. No rule estimates: each sentence has the counted numbers and the time over which they were counted.
//!
//! Counters of stages are kept by operation, not by client. So rules on stages see the whole pool even if a dataset or a client is
//! asked for; their sentences name the pool.

mod clients;
mod compute;
mod devices;
mod limit;
mod network;
mod reads;
mod selection;
mod space;
mod text;
mod writes;

#[cfg(test)]
mod tests;

pub use selection::{PoolNotOpen, Selection, select};

use crate::facts::PoolFacts;
use crate::interval::Interval;
use crate::sample::{ClientTotals, OperationTotals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Time that is looked at if no other is asked for, in seconds.
pub const LAST_SECONDS: u64 = 300;

/// Requests below which a share of them says nothing.
const ENOUGH_REQUESTS: u64 = 100;

/// Causes that the rules know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The pool is suspended: its devices fail or do not answer.
    Suspended,
    /// The pool is not ONLINE, which slows no client by itself.
    Unhealthy,
    /// Writers wait for the intent log, which is on the devices that hold the data.
    SyncWritesWithoutLogDevice,
    /// Writers are delayed because the devices do not keep up.
    Throttle,
    /// Writes are smaller than the records that they change.
    SmallWrites,
    /// A device takes longer than its siblings.
    SlowDevice,
    /// A client waits for each answer before it sends its next request.
    OneRequestInFlight,
    /// Blocks are evicted from the ARC and read again soon after.
    SmallArc,
    /// The dedup tables do not fit into the ARC.
    LargeDedupTable,
    /// The pool has little free space.
    NearlyFull,
    /// Free space is in small pieces.
    Fragmentation,
    /// Checksums, compression, encryption and parity take most of the time.
    Compute,
    /// A scrub uses the devices.
    Scrub,
    /// A resilver uses the devices.
    Resilver,
    /// Blocks of destroyed snapshots or datasets are being freed.
    Destruction,
    /// A network interface carries what it can.
    SaturatedLink,
    /// Packets to a client are lost.
    Retransmissions,
    /// A client gets small packets on a link with jumbo frames.
    SmallSegments,
    /// A client takes data more slowly than the server sends it.
    SlowClient,
}

/// A cause that was found, with the figures that show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Cause.
    pub cause: Cause,
    /// Pool, dataset, client or device to which it applies.
    pub subject: String,
    /// How much it matters beside the other findings: 0 to 1, for most rules the share of time or operations that it takes.
    pub weight: f64,
    /// Counted numbers by name; the name ends with the unit.
    pub figures: BTreeMap<String, f64>,
    /// Sentence with the figures.
    pub sentence: String,
    /// Change that helps.
    pub advice: String,
}

/// Result of a diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Diagnosis {
    /// Name of the pool.
    pub pool: String,
    /// Dataset or client that was asked for; `None` for the whole pool.
    pub subject: Option<String>,
    /// Length of the time over which was counted, in seconds.
    pub seconds: f64,
    /// Requests of clients in that time; of the subject if there is one.
    pub requests: u64,
    /// Bytes answered to clients of the pool, by source.
    pub read_bytes: BTreeMap<String, u64>,
    /// Findings, those with the greatest weight first.
    pub findings: Vec<Finding>,
    /// Sentence on the sources of the bytes that clients read; `None` if they read none.
    pub sources: Option<String>,
    /// Sentence on what limits now.
    pub limit: String,
}

/// Diagnoses of pools: the output of `weir why -j`, and the answer of the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// One for each pool.
    pub diagnoses: Vec<Diagnosis>,
}

/// Input of the rules.
struct View<'a> {
    interval: &'a Interval,
    facts: &'a PoolFacts,
    /// Dataset or client that was asked for.
    subject: Option<&'a str>,
    /// Rows of clients, without work of the pool itself; those of the subject if there is one.
    clients: Vec<&'a ClientTotals>,
}

impl View<'_> {
    /// Sum of these operations of clients.
    fn operations(&self, names: &[&str]) -> OperationTotals {
        let mut sum = OperationTotals::default();
        names.iter().for_each(|name| sum.add(&self.interval.operation(name)));
        sum
    }

    /// Sum of the times of all requests of the pool's clients, in nanoseconds.
    fn time_ns(&self) -> u64 {
        let of_clients = self.interval.clients.iter().filter(|row| row.protocol != "internal");
        of_clients.map(|row| row.time_ns).sum()
    }

    /// The interval in words.
    fn time(&self) -> String {
        text::seconds(self.interval.seconds)
    }
}

/// Share of `part` in `whole`, 0 to 1; 0 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).clamp(0.0, 1.0) }
}

/// Whether a row belongs to a dataset, one of its descendants, or a client.
pub(crate) fn is_of(row: &ClientTotals, subject: &str) -> bool {
    let below = row.dataset.strip_prefix(subject).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    below || row.client == subject
}

/// Findings of all rules.
fn all_findings(view: &View<'_>) -> Vec<Finding> {
    let rules: [fn(&View<'_>) -> Vec<Finding>; 16] = [
        writes::sync_writes,
        writes::throttle,
        writes::small_writes,
        devices::slow,
        devices::scan,
        clients::one_in_flight,
        reads::small_arc,
        reads::dedup_table,
        space::nearly_full,
        space::fragmentation,
        space::destruction,
        compute::processors,
        network::saturated_link,
        network::retransmissions,
        network::small_segments,
        network::slow_clients,
    ];
    let found = rules.iter().flat_map(|rule| rule(view));
    found.map(|finding| Finding { weight: rounded(finding.weight), ..finding }).collect()
}

fn suspended(pool: &str, why: &str) -> Finding {
    Finding {
        cause: Cause::Suspended,
        subject: pool.to_owned(),
        weight: 1.0,
        figures: BTreeMap::new(),
        sentence: format!("The pool is suspended: {why}. Requests that change it or need its devices wait, or fail."),
        advice: format!(
            "Bring the devices back, or give them room, then run 'zpool clear {pool}'; 'zpool status {pool}' names them."
        ),
    }
}

/// Weight of a finding about the state of the pool: below those that slow clients.
const UNHEALTHY_WEIGHT: f64 = 0.01;

fn unhealthy(pool: &str, state: &str) -> Finding {
    Finding {
        cause: Cause::Unhealthy,
        subject: pool.to_owned(),
        weight: UNHEALTHY_WEIGHT,
        figures: BTreeMap::new(),
        sentence: format!("The pool is {state}: devices fail or are missing."),
        advice: format!("'zpool status {pool}' names them, and says what to do."),
    }
}

/// Diagnoses a pool, or a dataset with its descendants or a client of it. Without requests, nothing limits a dataset or a client.
pub fn diagnose(interval: &Interval, facts: &PoolFacts, subject: Option<&str>) -> Diagnosis {
    let of_clients = interval.clients.iter().filter(|row| row.protocol != "internal");
    let clients = of_clients.filter(|row| subject.is_none_or(|subject| is_of(row, subject))).collect();
    let view = View { interval, facts, subject, clients };
    let mut findings = match &facts.suspended {
        // Requests that wait for it have not ended, and others tell nothing.
        Some(why) => vec![suspended(&interval.pool, why)],
        None if subject.is_some() && view.clients.is_empty() => Vec::new(),
        None => {
            let of_state = facts.unhealthy.iter().map(|state| unhealthy(&interval.pool, state));
            all_findings(&view).into_iter().chain(of_state).collect()
        }
    };
    findings
        .sort_by(|a, b| b.weight.total_cmp(&a.weight).then_with(|| (a.cause, &a.subject).cmp(&(b.cause, &b.subject))));
    debug_assert!(findings.iter().all(|found| (0.0..=1.0).contains(&found.weight)), "weights are shares");
    let limit = limit::sentence(&view, &findings);
    debug_assert!(!limit.is_empty(), "there is always a sentence on what limits");
    Diagnosis {
        pool: interval.pool.clone(),
        subject: subject.map(str::to_owned),
        seconds: interval.seconds,
        requests: view.clients.iter().map(|row| row.requests).sum(),
        read_bytes: interval.all_operations().read_bytes.0,
        sources: limit::sources(&view),
        findings,
        limit,
    }
}

/// The value with three decimals: more would pretend an exactness that no counter has.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Figures by name.
fn figures<const N: usize>(of: [(&str, f64); N]) -> BTreeMap<String, f64> {
    of.into_iter().map(|(name, value)| (name.to_owned(), rounded(value))).collect()
}
