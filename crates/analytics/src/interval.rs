//! Difference of two samples of a pool.

use crate::files::FileTable;
use crate::host::HostTotals;
use crate::sample::{
    ArcState, CauseBytes, ClientTotals, DatasetState, LeafTotals, OperationTotals, Sample, SpaceState, TxgState,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Work of a pool between two samples. Counters are those of the interval; sizes and states are those at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Name of the pool.
    pub pool: String,
    /// End of the interval, in milliseconds since 1970.
    pub time_ms: u64,
    /// Length in seconds; more than 0.
    pub seconds: f64,
    /// Requests by protocol and operation; those without requests are left out.
    pub operations: Vec<OperationTotals>,
    /// Requests by dataset and client; those without requests or device writes are left out.
    pub clients: Vec<ClientTotals>,
    /// Bytes by file and client, of those with the most.
    #[serde(default)]
    pub files: FileTable,
    /// Datasets that are open, at the end.
    pub datasets: Vec<DatasetState>,
    /// Bytes written to devices, by cause.
    pub written: Vec<CauseBytes>,
    /// The ARC.
    pub arc: ArcState,
    /// Transaction groups, at the end.
    pub txg: TxgState,
    /// Devices.
    pub leaves: Vec<LeafTotals>,
    /// Space, at the end.
    pub space: SpaceState,
    /// The host and the process; `None` if their counters are not known at both ends.
    #[serde(default)]
    pub host: Option<HostTotals>,
}

impl Interval {
    /// From `before` to `after`; since the process opened the pool without `before`, or if it was opened again in between.
    pub fn between(before: Option<&Sample>, after: &Sample) -> Self {
        let before = before.filter(|before| before.guid == after.guid && before.uptime_ns <= after.uptime_ns);
        let elapsed_ns = after.uptime_ns - before.map_or(0, |before| before.uptime_ns);
        let since = |now: u64, was: fn(&Sample) -> u64| now.saturating_sub(before.map_or(0, was));
        let arc = before.map(|before| before.arc).unwrap_or_default();
        Interval {
            pool: after.pool.clone(),
            time_ms: after.time_ms,
            seconds: (elapsed_ns as f64 / 1e9).max(1e-9),
            operations: operations(before, after),
            clients: clients(before, after),
            files: FileTable::between(before.map(|before| &before.files), &after.files),
            datasets: after.datasets.clone(),
            written: written(before, after),
            arc: arc_since(&after.arc, &arc),
            txg: TxgState {
                snapshots_destroyed: since(after.txg.snapshots_destroyed, |before| before.txg.snapshots_destroyed),
                ..after.txg
            },
            leaves: leaves(before, after),
            space: after.space,
            host: before.and_then(|before| Some(after.host.as_ref()?.since(before.host.as_ref()?))),
        }
    }

    /// Per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    /// Sum of all operations of clients; work of the pool itself is not among them.
    pub fn all_operations(&self) -> OperationTotals {
        self.sum(|_| true)
    }

    /// Sum of the operations of clients with this name, over all protocols.
    pub fn operation(&self, name: &str) -> OperationTotals {
        self.sum(|row| row.operation == name)
    }

    fn sum(&self, is_wanted: impl Fn(&OperationTotals) -> bool) -> OperationTotals {
        let mut sum = OperationTotals::default();
        let of_clients = self.operations.iter().filter(|row| row.protocol != "internal");
        of_clients.filter(|row| is_wanted(row)).for_each(|row| sum.add(row));
        sum
    }
}

fn operations(before: Option<&Sample>, after: &Sample) -> Vec<OperationTotals> {
    let since = |now: &OperationTotals| {
        let same = |row: &&OperationTotals| row.protocol == now.protocol && row.operation == now.operation;
        let Some(was) = before.and_then(|before| before.operations.iter().find(same)) else { return now.clone() };
        let counted = |n: usize| was.latency.get(n).copied().unwrap_or(0);
        OperationTotals {
            protocol: now.protocol.clone(),
            operation: now.operation.clone(),
            requests: now.requests.saturating_sub(was.requests),
            read_bytes: now.read_bytes.since(&was.read_bytes),
            support_bytes: now.support_bytes.since(&was.support_bytes),
            written_bytes: now.written_bytes.saturating_sub(was.written_bytes),
            stage_ns: now.stage_ns.since(&was.stage_ns),
            device_ops: now.device_ops.saturating_sub(was.device_ops),
            latency: now.latency.iter().enumerate().map(|(n, count)| count.saturating_sub(counted(n))).collect(),
        }
    };
    after.operations.iter().map(since).filter(|row| row.requests > 0).collect()
}

fn clients(before: Option<&Sample>, after: &Sample) -> Vec<ClientTotals> {
    fn key(row: &ClientTotals) -> (u64, &str, &str) {
        (row.objset, &row.protocol, &row.client)
    }
    // There may be thousands of rows.
    let rows = before.map_or(&[][..], |before| &before.clients);
    let rows: BTreeMap<_, _> = rows.iter().map(|row| (key(row), row)).collect();
    let since = |now: &ClientTotals| {
        let Some(was) = rows.get(&key(now)) else { return now.clone() };
        ClientTotals {
            requests: now.requests.saturating_sub(was.requests),
            reads: now.reads.saturating_sub(was.reads),
            writes: now.writes.saturating_sub(was.writes),
            overlapping: now.overlapping.saturating_sub(was.overlapping),
            time_ns: now.time_ns.saturating_sub(was.time_ns),
            data_bytes: now.data_bytes.saturating_sub(was.data_bytes),
            read_bytes: now.read_bytes.saturating_sub(was.read_bytes),
            written_bytes: now.written_bytes.saturating_sub(was.written_bytes),
            device_bytes: now.device_bytes.saturating_sub(was.device_bytes),
            ..now.clone()
        }
    };
    let is_active = |row: &ClientTotals| row.requests > 0 || row.device_bytes > 0;
    after.clients.iter().map(since).filter(is_active).collect()
}

fn written(before: Option<&Sample>, after: &Sample) -> Vec<CauseBytes> {
    let since = |now: &CauseBytes| {
        let same = |row: &&CauseBytes| row.content == now.content && row.redundancy == now.redundancy;
        let was = before.and_then(|before| before.written.iter().find(same)).map_or(0, |row| row.bytes);
        CauseBytes { bytes: now.bytes.saturating_sub(was), ..now.clone() }
    };
    after.written.iter().map(since).filter(|row| row.bytes > 0).collect()
}

fn arc_since(now: &ArcState, was: &ArcState) -> ArcState {
    ArcState {
        demand_hits: now.demand_hits.saturating_sub(was.demand_hits),
        prefetch_hits: now.prefetch_hits.saturating_sub(was.prefetch_hits),
        joined: now.joined.saturating_sub(was.joined),
        misses: now.misses.saturating_sub(was.misses),
        prefetches: now.prefetches.saturating_sub(was.prefetches),
        mru_ghost_hits: now.mru_ghost_hits.saturating_sub(was.mru_ghost_hits),
        mfu_ghost_hits: now.mfu_ghost_hits.saturating_sub(was.mfu_ghost_hits),
        evictions: now.evictions.saturating_sub(was.evictions),
        l2_hits: now.l2_hits.saturating_sub(was.l2_hits),
        l2_misses: now.l2_misses.saturating_sub(was.l2_misses),
        l2_read_bytes: now.l2_read_bytes.saturating_sub(was.l2_read_bytes),
        l2_written_bytes: now.l2_written_bytes.saturating_sub(was.l2_written_bytes),
        l2_errors: now.l2_errors.saturating_sub(was.l2_errors),
        ..*now
    }
}

fn leaves(before: Option<&Sample>, after: &Sample) -> Vec<LeafTotals> {
    let since = |now: &LeafTotals| {
        let was = before.and_then(|before| before.leaves.iter().find(|row| row.guid == now.guid));
        let was = was.cloned().unwrap_or_default();
        LeafTotals {
            timed_ops: now.timed_ops.saturating_sub(was.timed_ops),
            timed_ns: now.timed_ns.saturating_sub(was.timed_ns),
            scrub_ops: now.scrub_ops.saturating_sub(was.scrub_ops),
            queued_ops: now.queued_ops.saturating_sub(was.queued_ops),
            reads: now.reads.saturating_sub(was.reads),
            read_bytes: now.read_bytes.saturating_sub(was.read_bytes),
            writes: now.writes.saturating_sub(was.writes),
            write_bytes: now.write_bytes.saturating_sub(was.write_bytes),
            read_errors: now.read_errors.saturating_sub(was.read_errors),
            write_errors: now.write_errors.saturating_sub(was.write_errors),
            checksum_errors: now.checksum_errors.saturating_sub(was.checksum_errors),
            slow: now.slow.saturating_sub(was.slow),
            ..now.clone()
        }
    };
    after.leaves.iter().map(since).collect()
}

/// Upper bound, in nanoseconds, of the latency that the given share of requests did not exceed; `None` without requests.
/// `latency` counts requests by powers of two, so the bound is less than twice the latency.
pub fn quantile_ns(latency: &[u64], share: f64) -> Option<u64> {
    let total: u64 = latency.iter().sum();
    let wanted = (total as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (class, count) in latency.iter().enumerate() {
        seen += count;
        if seen >= wanted && total > 0 {
            return Some(1u64.checked_shl(class as u32 + 1).unwrap_or(u64::MAX));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Counts;

    fn sample(uptime_s: u64, requests: u64, disk: u64) -> Sample {
        let read_bytes = Counts([("disk".to_owned(), disk)].into());
        Sample {
            pool: "tank".into(),
            guid: "7".into(),
            time_ms: 1000 * uptime_s,
            uptime_ns: uptime_s * 1_000_000_000,
            operations: vec![OperationTotals {
                protocol: "nbd".into(),
                operation: "read".into(),
                requests,
                read_bytes,
                latency: vec![0, 0, requests],
                ..OperationTotals::default()
            }],
            clients: vec![ClientTotals { objset: 54, client: "a".into(), requests, ..ClientTotals::default() }],
            files: FileTable::default(),
            datasets: vec![],
            written: vec![],
            arc: ArcState { misses: requests, mru_data_bytes: disk, ..ArcState::default() },
            txg: TxgState::default(),
            leaves: vec![LeafTotals { guid: "9".into(), read_bytes: disk, ..LeafTotals::default() }],
            stores: Vec::new(),
            store_space: Vec::new(),
            space: SpaceState::default(),
            host: None,
        }
    }

    #[test]
    fn counters_are_those_of_the_interval_and_sizes_those_at_its_end() {
        let interval = Interval::between(Some(&sample(10, 100, 4096)), &sample(14, 140, 8192));
        let all = interval.all_operations();
        assert_eq!((interval.seconds, all.requests, all.read_bytes.get("disk")), (4.0, 40, 4096));
        assert_eq!((interval.rate(all.requests), all.latency.as_slice()), (10.0, [0, 0, 40].as_slice()));
        assert_eq!((interval.arc.misses, interval.arc.mru_data_bytes), (40, 8192));
        assert_eq!((interval.clients[0].requests, interval.leaves[0].read_bytes), (40, 4096));
        let idle = Interval::between(Some(&sample(10, 100, 4096)), &sample(11, 100, 4096));
        assert!(idle.operations.is_empty() && idle.clients.is_empty());
    }

    #[test]
    fn a_pool_that_was_opened_again_is_counted_from_its_opening() {
        let interval = Interval::between(Some(&sample(10, 100, 4096)), &sample(2, 30, 512));
        assert_eq!((interval.seconds, interval.all_operations().requests), (2.0, 30));
        let whole = Interval::between(None, &sample(5, 30, 512));
        assert_eq!((whole.seconds, whole.all_operations().requests), (5.0, 30));
    }

    #[test]
    fn a_quantile_is_the_upper_bound_of_its_class() {
        assert_eq!(quantile_ns(&[], 0.5), None);
        assert_eq!(quantile_ns(&[0, 0], 0.5), None);
        let latency = [0, 0, 98, 1, 0, 1];
        assert_eq!([0.0, 0.5, 0.98, 0.99, 1.0].map(|q| quantile_ns(&latency, q)), [8, 8, 8, 16, 64].map(Some));
    }
}
