//! Metrics under the names of zfs_exporter and of the collectors zfs and netdev of node_exporter, so that dashboards and alert rules
//! that were made for these show a pool of Weir.
//!
//! ```text
//!   zpool list, zfs list ─► zfs_pool_…, zfs_dataset_…          zfs_exporter: what the commands print
//!   zpool list           ─► node_zfs_zpool_state
//!   Sample               ─► node_zfs_arc_…                     node_exporter: sums of the ARCs of all open pools
//!   /proc/net/dev        ─► node_network_…
//! ```
//!
//! Names, labels, types and units are those of zfs_exporter 2.3 (`collector/pool.go`, `collector/dataset.go`,
//! `collector/transform.go`) and of node_exporter 1.8 (`collector/zfs_linux.go`, `collector/netdev_common.go`). A value that Weir
//! does not have (`-` in a list) has no metric; zfs_exporter shows 0 then. Commands that do not end in [`COLLECT_TIME`] are given
//! up: `zfs_scrape_collector_success` is 0, and the other metrics are those without them.

use crate::admin::{Administrator, CommandLine};
use crate::network::{self, InterfaceCounters};
use futures_util::future::{Either, join, select as first_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;
use weir_analytics::{ArcState, Family, FamilyKind, FamilyRow, Sample};
use weir_machine::Machine;

/// Time for the commands to end, below Prometheus's time for a scrape, which is 10 s by default.
const COLLECT_TIME: Duration = Duration::from_secs(8);

/// Projects whose names of metrics are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExporterNames {
    zfs_exporter: bool,
    node_exporter: bool,
}

/// Conversion of a property's value.
#[derive(Clone, Copy)]
enum Transform {
    Number,
    /// Percent, as a ratio from 0 to 1.
    Percent,
    /// A multiple such as 2.00: the metric is 1 divided by it.
    Multiple,
    /// `on` or `off`.
    Switch,
    /// Health of a pool, as its position in [`HEALTH`].
    Health,
}

/// A property, the metric of it, its description, and the conversion.
type Row = (&'static str, &'static str, &'static str, Transform);

/// Health of a pool, by zfs_exporter's number for it.
const HEALTH: [&str; 7] = ["ONLINE", "DEGRADED", "FAULTED", "OFFLINE", "UNAVAIL", "REMOVED", "SUSPENDED"];

const POOL_ROWS: [Row; 10] = [
    ("allocated", "zfs_pool_allocated_bytes", "Allocated bytes of the pool", Transform::Number),
    ("capacity", "zfs_pool_capacity_ratio", "Allocated part of the pool's size", Transform::Percent),
    ("dedupratio", "zfs_pool_deduplication_ratio", "Size with deduplication, by that without", Transform::Multiple),
    ("fragmentation", "zfs_pool_fragmentation_ratio", "Fragmentation of free space", Transform::Percent),
    ("free", "zfs_pool_free_bytes", "Bytes that are not allocated", Transform::Number),
    ("freeing", "zfs_pool_freeing_bytes", "Bytes of destroyed datasets that wait to be freed", Transform::Number),
    (
        "health",
        "zfs_pool_health",
        "0 ONLINE, 1 DEGRADED, 2 FAULTED, 3 OFFLINE, 4 UNAVAIL, 5 REMOVED, 6 SUSPENDED",
        Transform::Health,
    ),
    ("leaked", "zfs_pool_leaked_bytes", "Bytes that cannot be freed", Transform::Number),
    ("readonly", "zfs_pool_readonly", "1 if the pool is open for reading only, else 0", Transform::Switch),
    ("size", "zfs_pool_size_bytes", "Size of the pool", Transform::Number),
];

const DATASET_ROWS: [Row; 17] = [
    ("available", "zfs_dataset_available_bytes", "Space that the dataset can still use", Transform::Number),
    ("compressratio", "zfs_dataset_compression_ratio", "Compressed size, by uncompressed size", Transform::Multiple),
    ("logicalreferenced", "zfs_dataset_logical_referenced_bytes", "Referenced, uncompressed", Transform::Number),
    ("logicalused", "zfs_dataset_logical_used_bytes", "Used, uncompressed", Transform::Number),
    ("quota", "zfs_dataset_quota_bytes", "Limit of the dataset with its descendants, 0 if none", Transform::Number),
    (
        "refcompressratio",
        "zfs_dataset_referenced_compression_ratio",
        "Compressed size of referenced data, by uncompressed size",
        Transform::Multiple,
    ),
    ("referenced", "zfs_dataset_referenced_bytes", "Space of the data in the dataset", Transform::Number),
    ("refquota", "zfs_dataset_referenced_quota_bytes", "Limit of the dataset alone, 0 if none", Transform::Number),
    (
        "refreservation",
        "zfs_dataset_referenced_reservation_bytes",
        "Space reserved for the dataset alone",
        Transform::Number,
    ),
    ("reservation", "zfs_dataset_reservation_bytes", "Space reserved with its descendants", Transform::Number),
    ("used", "zfs_dataset_used_bytes", "Space of the dataset and its descendants", Transform::Number),
    ("usedbychildren", "zfs_dataset_used_by_children_bytes", "Space of its descendants", Transform::Number),
    ("usedbydataset", "zfs_dataset_used_by_dataset_bytes", "Space of the dataset itself", Transform::Number),
    (
        "usedbyrefreservation",
        "zfs_dataset_used_by_reference_reservation_bytes",
        "Space of its refreservation",
        Transform::Number,
    ),
    ("usedbysnapshots", "zfs_dataset_used_by_snapshot_bytes", "Space of its snapshots", Transform::Number),
    ("volsize", "zfs_dataset_volume_size_bytes", "Size of the volume", Transform::Number),
    ("written", "zfs_dataset_written_bytes", "Referenced and written since the last snapshot", Transform::Number),
];

/// State of a pool, as node_exporter's label has it.
const STATES: [&str; 7] = ["online", "degraded", "faulted", "offline", "removed", "unavail", "suspended"];

/// A field of OpenZFS's `arcstats`, its description, and its value in the ARC of a pool.
type ArcRow = (&'static str, &'static str, fn(&ArcState) -> u64);

const ARC_ROWS: [ArcRow; 22] = [
    ("hits", "Reads that the ARC answered or that joined one in flight", ArcState::hits),
    ("misses", "Reads passed to devices, without those of prefetch", |arc| arc.misses),
    ("size", "Resident bytes", ArcState::size_bytes),
    ("c", "Target size in bytes", |arc| arc.max_bytes),
    ("c_max", "Maximum size in bytes", |arc| arc.max_bytes),
    ("data_size", "Resident bytes of data", |arc| arc.mru_data_bytes + arc.mfu_data_bytes),
    ("metadata_size", "Resident bytes of metadata", |arc| arc.mru_metadata_bytes + arc.mfu_metadata_bytes),
    ("mru_size", "Resident bytes on the MRU list", |arc| arc.mru_data_bytes + arc.mru_metadata_bytes),
    ("mru_data", "Resident bytes of data on the MRU list", |arc| arc.mru_data_bytes),
    ("mru_metadata", "Resident bytes of metadata on the MRU list", |arc| arc.mru_metadata_bytes),
    ("mfu_size", "Resident bytes on the MFU list", |arc| arc.mfu_data_bytes + arc.mfu_metadata_bytes),
    ("mfu_data", "Resident bytes of data on the MFU list", |arc| arc.mfu_data_bytes),
    ("mfu_metadata", "Resident bytes of metadata on the MFU list", |arc| arc.mfu_metadata_bytes),
    ("mru_ghost_hits", "Reads of blocks evicted from the MRU list not long ago", |arc| arc.mru_ghost_hits),
    ("mfu_ghost_hits", "Reads of blocks evicted from the MFU list not long ago", |arc| arc.mfu_ghost_hits),
    ("l2_hits", "Reads that cache devices answered", |arc| arc.l2_hits),
    ("l2_misses", "Reads that missed the ARC and the cache devices", |arc| arc.l2_misses),
    ("l2_read_bytes", "Bytes read from cache devices", |arc| arc.l2_read_bytes),
    ("l2_write_bytes", "Bytes of blocks written to cache devices", |arc| arc.l2_written_bytes),
    ("l2_size", "Bytes of the blocks on cache devices, uncompressed", |arc| arc.l2_size_bytes),
    ("l2_asize", "Bytes of the blocks on cache devices, as stored", |arc| arc.l2_stored_bytes),
    ("l2_hdr_size", "Memory of the index of cache devices", |arc| arc.l2_index_bytes),
];

/// A counter of an interface: the end of its name, its description, and its value.
type InterfaceRow = (&'static str, &'static str, fn(&InterfaceCounters) -> u64);

const INTERFACE_ROWS: [InterfaceRow; 8] = [
    ("receive_bytes", "Bytes received, with headers", |of| of.received.bytes),
    ("receive_packets", "Packets received", |of| of.received.packets),
    ("receive_errs", "Packets received with errors", |of| of.received.errors),
    ("receive_drop", "Packets received and dropped", |of| of.received.drops),
    ("transmit_bytes", "Bytes sent, with headers", |of| of.sent.bytes),
    ("transmit_packets", "Packets sent", |of| of.sent.packets),
    ("transmit_errs", "Packets not sent because of errors", |of| of.sent.errors),
    ("transmit_drop", "Packets dropped instead of sent", |of| of.sent.drops),
];

impl ExporterNames {
    /// The projects that the parameter `names` of a query lists, once with commas or several times.
    ///
    /// # Errors
    /// If a project is unknown; in words.
    pub fn of_query(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut names = ExporterNames::default();
        for name in pairs.iter().filter(|(key, _)| key == "names").flat_map(|(_, value)| value.split(',')) {
            match name {
                "zfs_exporter" => names.zfs_exporter = true,
                "node_exporter" => names.node_exporter = true,
                other => {
                    let other: String = other.chars().take(64).collect();
                    return Err(format!("names={other:?}: give zfs_exporter, node_exporter, or both with a comma"));
                }
            }
        }
        Ok(names)
    }

    /// The metrics of these projects.
    pub async fn families(self, machine: &Machine, samples: &[Sample], admin: Option<&Administrator>) -> Vec<Family> {
        let mut families = Vec::new();
        if self == ExporterNames::default() {
            return families;
        }
        let listed = |program, noun: &'static str, line: Option<CommandLine>| async move {
            let (admin, line) = (admin?, line?);
            let ran = match first_of(pin!(admin.run(&line)), pin!(machine.clock.sleep(COLLECT_TIME))).await {
                Either::Left((ran, _)) => ran,
                Either::Right(_) => {
                    tracing::warn!(program, seconds = COLLECT_TIME.as_secs(), "a list for metrics did not end in time");
                    return None;
                }
            };
            let mut answer: Value = serde_json::from_str(&ran.out).ok().filter(|_| ran.code == 0)?;
            Some(answer[noun].take())
        };
        let pool_line = list_line("zpool", &POOL_ROWS, &[]);
        let dataset_line = self.zfs_exporter.then(|| list_line("zfs", &DATASET_ROWS, &["-t", "filesystem,volume"]));
        let (pools, datasets) =
            join(listed("zpool", "pools", Some(pool_line)), listed("zfs", "datasets", dataset_line)).await;
        // Another process may have further pools open, and metrics of its own.
        let is_open = |pool: &str| samples.iter().any(|sample| sample.pool == pool);
        if self.zfs_exporter {
            families.extend(pool_families(pools.as_ref(), is_open));
            families.extend(dataset_families(datasets.as_ref(), is_open));
            families.push(successes(pools.is_some(), datasets.is_some()));
        }
        if self.node_exporter {
            families.extend(arc_families(samples));
            families.push(state_family(pools.as_ref(), is_open));
            families.extend(interface_families(&network::read()));
        }
        families
    }
}

/// The command that lists these properties in exact numbers, as JSON.
fn list_line(program: &'static str, rows: &[Row], more: &[&str]) -> CommandLine {
    let columns = rows.iter().map(|(property, ..)| *property).collect::<Vec<_>>().join(",");
    let words = ["list", "-j", "--json-int", "-p"].into_iter().chain(more.iter().copied()).chain(["-o", &columns]);
    CommandLine::new(program, words)
}

/// The value of a property as the metric has it; `None` if there is none.
fn converted(value: &Value, transform: Transform) -> Option<f64> {
    let number = || value.as_f64().or_else(|| value.as_str()?.parse().ok()).filter(|number: &f64| number.is_finite());
    match transform {
        Transform::Number => number(),
        Transform::Percent => number().map(|percent| percent / 100.0),
        Transform::Multiple => number().filter(|multiple| *multiple > 0.0).map(|multiple| 1.0 / multiple),
        Transform::Switch => match value.as_str()? {
            "on" => Some(1.0),
            "off" => Some(0.0),
            _ => None,
        },
        Transform::Health => {
            let health = value.as_str()?;
            HEALTH.iter().position(|name| *name == health).map(|code| code as f64)
        }
    }
}

/// Families of properties in a list, whose objects have these labels; an object without labels is left out.
fn property_families(
    list: Option<&Value>,
    rows: &[Row],
    labels: impl Fn(&str, &Value) -> Option<Vec<(&'static str, String)>>,
) -> Vec<Family> {
    let objects = || list.and_then(Value::as_object).into_iter().flatten();
    let family = |&(property, name, help, transform): &Row| {
        let metrics = objects().filter_map(|(object, of)| {
            let value = converted(&of["properties"][property]["value"], transform)?;
            Some((labels(object, of)?, value))
        });
        Family { name: name.to_owned(), help, kind: FamilyKind::Gauge, rows: metrics.collect() }
    };
    rows.iter().map(family).collect()
}

fn pool_families(pools: Option<&Value>, is_open: impl Fn(&str) -> bool) -> Vec<Family> {
    property_families(pools, &POOL_ROWS, |pool, _| is_open(pool).then(|| vec![("pool", pool.to_owned())]))
}

fn dataset_families(datasets: Option<&Value>, is_open: impl Fn(&str) -> bool) -> Vec<Family> {
    property_families(datasets, &DATASET_ROWS, |dataset, of| {
        let pool = dataset.split('/').next().filter(|pool| is_open(pool))?;
        let kind = match of["type"].as_str()? {
            "FILESYSTEM" => "filesystem",
            "VOLUME" => "volume",
            _ => return None,
        };
        Some(vec![("name", dataset.to_owned()), ("pool", pool.to_owned()), ("type", kind.to_owned())])
    })
}

fn successes(pools: bool, datasets: bool) -> Family {
    let row = |collector: &str, is_done: bool| -> FamilyRow {
        (vec![("collector", collector.to_owned())], f64::from(u8::from(is_done)))
    };
    let rows = vec![row("dataset-filesystem", datasets), row("dataset-volume", datasets), row("pool", pools)];
    let help = "1 if the list of pools or datasets was read, else 0";
    Family { name: "zfs_scrape_collector_success".to_owned(), help, kind: FamilyKind::Gauge, rows }
}

/// Sums over the ARCs of the pools: the module of OpenZFS has one ARC for all pools. There are none without a pool.
fn arc_families(samples: &[Sample]) -> Vec<Family> {
    let family = |&(field, help, value): &ArcRow| {
        let sum = samples.iter().map(|sample| value(&sample.arc)).fold(0u64, u64::saturating_add);
        let rows = if samples.is_empty() { Vec::new() } else { vec![(Vec::new(), sum as f64)] };
        Family { name: format!("node_zfs_arc_{field}"), help, kind: FamilyKind::Unknown, rows }
    };
    ARC_ROWS.iter().map(family).collect()
}

fn state_family(pools: Option<&Value>, is_open: impl Fn(&str) -> bool) -> Family {
    let mut rows = Vec::new();
    for (pool, of) in pools.and_then(Value::as_object).into_iter().flatten().filter(|(pool, _)| is_open(pool)) {
        let Some(health) = of["properties"]["health"]["value"].as_str().map(str::to_lowercase) else { continue };
        for state in STATES {
            let labels = vec![("zpool", pool.clone()), ("state", state.to_owned())];
            rows.push((labels, f64::from(u8::from(state == health))));
        }
    }
    let help = "1 for the state of the pool, 0 for each other one";
    Family { name: "node_zfs_zpool_state".to_owned(), help, kind: FamilyKind::Gauge, rows }
}

fn interface_families(interfaces: &BTreeMap<String, InterfaceCounters>) -> Vec<Family> {
    let family = |&(end, help, value): &InterfaceRow| {
        let row = |(name, of): (&String, &InterfaceCounters)| (vec![("device", name.clone())], value(of) as f64);
        let rows = interfaces.iter().map(row).collect();
        Family { name: format!("node_network_{end}"), help, kind: FamilyKind::Counter, rows }
    };
    INTERFACE_ROWS.iter().map(family).collect()
}

#[cfg(test)]
#[path = "exporters_tests.rs"]
mod tests;
