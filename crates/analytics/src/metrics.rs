//! Metrics in OpenMetrics's text form, for Prometheus.
//!
//! All names begin with `weir_`, except those of [`Family`]. Labels are bounded: pools, protocols, operations, sources, devices, and the open datasets; clients
//! and files are no labels. Counters are those of [`Sample`], so that two scrapes and two samples have the same differences.
//!
//! Source: OpenMetrics 1.0, <https://prometheus.io/docs/specs/om/open_metrics_spec/>.

use crate::families::{Families, Family};
use crate::host::InterfaceTotals;
use crate::sample::{ArcState, Sample};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fmt;

/// Content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of alerts, and of jobs, that have metrics.
const MAX_SERVICE_ROWS: usize = 256;

/// Alerts and jobs of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// Alerts.
    pub alerts: Vec<AlertState>,
    /// Jobs.
    pub jobs: Vec<JobState>,
}

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertState {
    /// Name, such as `pool:tank`.
    pub name: String,
    /// `critical` or `warning`.
    pub severity: &'static str,
    /// `open`, `acknowledged` or `muted`.
    pub state: &'static str,
    /// Begin, in seconds since 1970.
    pub since_s: u64,
}

/// A scheduled job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobState {
    /// Name.
    pub name: String,
    /// Whether it runs now.
    pub is_running: bool,
    /// Begin of the last run, in seconds since 1970, and whether it failed.
    pub last: Option<(u64, bool)>,
    /// Next time, in seconds since 1970.
    pub next_s: Option<u64>,
}

/// The metrics of these samples, one of each pool, of a daemon's alerts and jobs, and further ones.
///
/// # Errors
/// None: writing to a string does not fail.
pub fn text(samples: Vec<Sample>, service: ServiceState, further: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Samples(samples)));
    registry.register_collector(Box::new(Service(service)));
    registry.register_collector(Box::new(Families(further)));
    let mut out = String::new();
    encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Samples(Vec<Sample>);

#[derive(Debug)]
struct Service(ServiceState);

impl Collector for Service {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let put = &mut Encoder(encoder);
        let seconds = Some(&Unit::Seconds);
        let alerts = || self.0.alerts.iter().take(MAX_SERVICE_ROWS);
        let name = |alert: &AlertState| ("alert", alert.name.clone());
        let shown = alerts().map(|alert| {
            let labels = [("severity", alert.severity.to_owned()), ("state", alert.state.to_owned())];
            ([name(alert)].into_iter().chain(labels).collect(), 1)
        });
        put.gauge("weir_alert", "1 for each alert", None, shown.collect())?;
        let since = alerts().map(|alert| (vec![name(alert)], alert.since_s));
        put.gauge("weir_alert_begin", "Begin of an alert, since 1970", seconds, since.collect())?;
        let jobs = |of: fn(&JobState) -> Option<u64>| -> Rows {
            let all = self.0.jobs.iter().take(MAX_SERVICE_ROWS);
            all.filter_map(|job| Some((vec![("job", job.name.clone())], of(job)?))).collect()
        };
        put.gauge("weir_job_running", "1 or 0", None, jobs(|job| Some(job.is_running.into())))?;
        let failed = jobs(|job| job.last.map(|(_, is_failed)| is_failed.into()));
        put.gauge("weir_job_failed", "Whether the last run failed, 1 or 0", None, failed)?;
        let began = jobs(|job| job.last.map(|(began_s, _)| began_s));
        put.gauge("weir_job_last_begin", "Begin of the last run, since 1970", seconds, began)?;
        put.gauge("weir_job_next", "Time of the next run, since 1970", seconds, jobs(|job| job.next_s))
    }
}

/// A label that is always the same.
type Label = (&'static str, &'static str);

/// A number of the ARC, with its labels.
type ArcRow = (&'static [Label], u64);

/// Labels and values of a metric.
type Rows = Vec<(Vec<(&'static str, String)>, u64)>;

/// Kind of a metric.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    /// Counter of nanoseconds, shown in seconds.
    Time,
    Gauge,
}

struct Encoder<'a>(DescriptorEncoder<'a>);

impl Encoder<'_> {
    /// Writes a metric; one without rows is left out.
    fn put(&mut self, kind: Kind, name: &str, help: &str, unit: Option<&Unit>, rows: Rows) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        let metric_type = match kind {
            Kind::Counter | Kind::Time => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
        };
        let mut metric = self.0.encode_descriptor(name, help, unit, metric_type)?;
        for (labels, value) in rows {
            let family = metric.encode_family(&labels)?;
            match kind {
                Kind::Counter => ConstCounter::new(value).encode(family)?,
                Kind::Time => ConstCounter::new(value as f64 / 1e9).encode(family)?,
                Kind::Gauge => ConstGauge::new(value as f64).encode(family)?,
            }
        }
        Ok(())
    }

    fn count(&mut self, name: &str, help: &str, unit: Option<&Unit>, rows: Rows) -> fmt::Result {
        self.put(Kind::Counter, name, help, unit, rows)
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, rows: Rows) -> fmt::Result {
        self.put(Kind::Gauge, name, help, unit, rows)
    }
}

impl Samples {
    /// Sums of a number over the operations of each pool, by labels.
    fn sums(&self, of: impl Fn(&crate::OperationTotals) -> Vec<(Vec<(&'static str, String)>, u64)>) -> Rows {
        let mut sums: BTreeMap<Vec<(&'static str, String)>, u64> = BTreeMap::new();
        for sample in &self.0 {
            for row in &sample.operations {
                for (labels, value) in of(row) {
                    let pool = [("pool", sample.pool.clone())];
                    *sums.entry(pool.into_iter().chain(labels).collect()).or_default() += value;
                }
            }
        }
        sums.into_iter().filter(|(_, value)| *value > 0).collect()
    }

    /// Sums of a number over the clients of each dataset.
    fn datasets(&self, value: fn(&crate::ClientTotals) -> u64) -> Rows {
        let mut sums: BTreeMap<Vec<(&'static str, String)>, u64> = BTreeMap::new();
        for sample in &self.0 {
            for row in sample.clients.iter().filter(|row| row.objset != 0) {
                let labels = [("pool", &sample.pool), ("dataset", &row.dataset), ("proto", &row.protocol)];
                *sums.entry(labels.map(|(name, text)| (name, text.clone())).into()).or_default() += value(row);
            }
        }
        sums.into_iter().filter(|(_, value)| *value > 0).collect()
    }

    fn pools(&self, value: impl Fn(&Sample) -> u64) -> Rows {
        self.0.iter().map(|sample| (vec![("pool", sample.pool.clone())], value(sample))).collect()
    }

    /// Numbers of the ARC of each pool, with their labels.
    fn arc<const N: usize>(&self, of: impl Fn(&ArcState) -> [ArcRow; N]) -> Rows {
        let mut rows = Rows::new();
        for sample in &self.0 {
            for (labels, value) in of(&sample.arc) {
                let labels = [("pool", sample.pool.as_str())].into_iter().chain(labels.iter().copied());
                rows.push((labels.map(|(name, text)| (name, text.to_owned())).collect(), value));
            }
        }
        rows
    }

    fn leaves(&self, value: fn(&crate::LeafTotals) -> u64) -> Rows {
        let rows = self.0.iter().flat_map(|sample| sample.leaves.iter().map(move |leaf| (sample, leaf)));
        rows.map(|(sample, leaf)| {
            let labels = [("pool", &sample.pool), ("vdev", &leaf.name), ("guid", &leaf.guid)];
            (labels.map(|(name, text)| (name, text.clone())).into(), value(leaf))
        })
        .collect()
    }

    fn stores(&self, value: fn(&crate::StoreTotals) -> u64) -> Rows {
        let rows = self.0.iter().flat_map(|sample| sample.stores.iter().map(move |row| (sample, row)));
        rows.map(|(sample, row)| {
            let labels = [("pool", &sample.pool), ("vdev", &row.name), ("request", &row.kind)];
            (labels.map(|(name, text)| (name, text.clone())).into(), value(row))
        })
        .collect()
    }

    /// Metrics of the devices in stores of objects.
    fn store_metrics(&self, put: &mut Encoder<'_>) -> fmt::Result {
        let bytes = Some(&Unit::Bytes);
        let time = self.stores(|row| row.time_ns);
        put.count("weir_store_requests", "Requests to the store of a device", None, self.stores(|row| row.requests))?;
        put.count("weir_store_failed", "Those without success", None, self.stores(|row| row.failed))?;
        put.count("weir_store_retries", "Repeated requests", None, self.stores(|row| row.retries))?;
        put.count("weir_store_transferred", "Bytes of objects", bytes, self.stores(|row| row.bytes))?;
        put.put(Kind::Time, "weir_store_request_time", "Time of the requests", Some(&Unit::Seconds), time)?;
        // An amount is in 10⁻⁹ of its unit, as a time is.
        let help = "Price of requests and bytes, by the price list";
        put.put(Kind::Time, "weir_store_cost", help, None, self.store_costs())?;
        put.gauge("weir_store_size", "Bytes that are stored at most", bytes, self.store_space(|row| row.size_bytes))?;
        let allocated = self.store_space(|row| row.allocated_bytes);
        put.gauge("weir_store_allocated", "Bytes that are stored at least", bytes, allocated)
    }

    /// Costs of the devices in stores of objects, in 10⁻⁹ of the currency's unit.
    fn store_costs(&self) -> Rows {
        let rows = self.0.iter().flat_map(|sample| sample.stores.iter().map(move |row| (sample, row)));
        rows.filter_map(|(sample, row)| {
            let cost = row.cost.as_ref()?;
            let labels = [("pool", &sample.pool), ("vdev", &row.name), ("request", &row.kind)];
            let currency = [("currency", &cost.currency)];
            Some((labels.into_iter().chain(currency).map(|(name, text)| (name, text.clone())).collect(), cost.nanos))
        })
        .collect()
    }

    fn store_space(&self, value: fn(&crate::StoreSpace) -> u64) -> Rows {
        let rows = self.0.iter().flat_map(|sample| sample.store_space.iter().map(move |row| (sample, row)));
        rows.map(|(sample, row)| (vec![("pool", sample.pool.clone()), ("vdev", row.name.clone())], value(row)))
            .collect()
    }

    /// Bytes of the network interfaces, and processor time of the process. All samples have the same counters of the host.
    fn host_metrics(&self, put: &mut Encoder<'_>) -> fmt::Result {
        let bytes = Some(&Unit::Bytes);
        let host = self.0.iter().find_map(|sample| sample.host.as_ref());
        let interfaces = |value: fn(&InterfaceTotals) -> u64| -> Rows {
            let all = host.into_iter().flat_map(|host| &host.interfaces);
            all.map(|one| (vec![("interface", one.name.clone())], value(one))).collect()
        };
        let received = interfaces(|one| one.received_bytes);
        put.count("weir_network_received", "Bytes received, with headers, of all programs", bytes, received)?;
        let sent = interfaces(|one| one.sent_bytes);
        put.count("weir_network_sent", "Bytes sent, with headers, of all programs", bytes, sent)?;
        let payload = |value: fn(&InterfaceTotals) -> u64| -> Rows {
            let hosts = self.0.iter().filter_map(|sample| Some((sample, sample.host.as_ref()?)));
            let all = hosts.flat_map(|(sample, host)| host.interfaces.iter().map(move |one| (sample, one)));
            all.filter(|(_, one)| one.has_clients)
                .map(|(sample, one)| (vec![("pool", sample.pool.clone()), ("interface", one.name.clone())], value(one)))
                .collect()
        };
        let received = payload(|one| one.payload_received_bytes);
        put.count("weir_network_payload_received", "Bytes of data that clients wrote", bytes, received)?;
        let sent = payload(|one| one.payload_sent_bytes);
        put.count("weir_network_payload_sent", "Bytes of data answered to clients", bytes, sent)?;
        let time = host.map(|host| (vec![("program", "weir".to_owned())], host.processor_ns));
        let seconds = Some(&Unit::Seconds);
        put.put(Kind::Time, "weir_process_processor", "Processor time", seconds, time.into_iter().collect())
    }

    fn written(&self) -> Rows {
        let rows = self.0.iter().flat_map(|sample| sample.written.iter().map(move |cause| (sample, cause)));
        rows.map(|(sample, cause)| {
            let labels = [("pool", &sample.pool), ("content", &cause.content), ("redundancy", &cause.redundancy)];
            (labels.map(|(name, text)| (name, text.clone())).into(), cause.bytes)
        })
        .collect()
    }

    /// Metrics of the cache devices.
    fn l2arc(&self, put: &mut Encoder<'_>) -> fmt::Result {
        let bytes = Some(&Unit::Bytes);
        put.count(
            "weir_l2arc_hits",
            "Reads that cache devices answered",
            None,
            self.pools(|sample| sample.arc.l2_hits),
        )?;
        let misses = self.pools(|sample| sample.arc.l2_misses);
        put.count("weir_l2arc_misses", "Reads that missed the ARC and the cache devices", None, misses)?;
        let read = self.pools(|sample| sample.arc.l2_read_bytes);
        put.count("weir_l2arc_read", "Bytes read from cache devices", bytes, read)?;
        let written = self.pools(|sample| sample.arc.l2_written_bytes);
        put.count("weir_l2arc_written", "Bytes of blocks written to cache devices", bytes, written)?;
        put.count("weir_l2arc_errors", "Failed and wrong reads", None, self.pools(|sample| sample.arc.l2_errors))?;
        let stored = self.pools(|sample| sample.arc.l2_stored_bytes);
        put.gauge("weir_l2arc_stored", "Bytes of blocks on cache devices", bytes, stored)?;
        let index = self.pools(|sample| sample.arc.l2_index_bytes);
        put.gauge("weir_l2arc_index", "Memory of the index of cache devices", bytes, index)?;
        Ok(())
    }
}

impl Collector for Samples {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let bytes = Some(&Unit::Bytes);
        let put = &mut Encoder(encoder);
        let proto = |row: &crate::OperationTotals| ("proto", row.protocol.clone());
        let op = |row: &crate::OperationTotals| ("op", row.operation.clone());
        let served = self.sums(|row| {
            let source = |(source, bytes): (&String, &u64)| (vec![proto(row), ("source", source.clone())], *bytes);
            row.read_bytes.0.iter().map(source).collect()
        });
        put.count("weir_served", "Bytes answered to clients, by source", bytes, served)?;
        let requests = self.sums(|row| vec![(vec![proto(row), op(row)], row.requests)]);
        put.count("weir_requests", "Requests that ended", None, requests)?;
        let received = self.sums(|row| vec![(vec![proto(row), op(row)], row.written_bytes)]);
        put.count("weir_received", "Bytes that clients wrote", bytes, received)?;
        let stages = self.sums(|row| {
            let stage = |(stage, ns): (&String, &u64)| (vec![proto(row), ("stage", stage.clone())], *ns);
            row.stage_ns.0.iter().map(stage).collect()
        });
        put.put(Kind::Time, "weir_request_stage", "Time of requests, by stage", Some(&Unit::Seconds), stages)?;
        put.count("weir_dataset_served", "Bytes answered, by dataset", bytes, self.datasets(|row| row.read_bytes))?;
        put.count("weir_dataset_received", "Bytes that clients wrote", bytes, self.datasets(|row| row.written_bytes))?;
        let device = self.datasets(|row| row.device_bytes);
        put.count("weir_dataset_device_written", "Bytes written to devices, by dataset", bytes, device)?;
        put.count("weir_device_written", "Bytes written to devices, by cause", bytes, self.written())?;
        let hits = self.arc(|arc| {
            [
                (&[("kind", "demand")], arc.demand_hits),
                (&[("kind", "prefetch")], arc.prefetch_hits),
                (&[("kind", "joined")], arc.joined),
            ]
        });
        put.count("weir_arc_hits", "Reads that the ARC answered", None, hits)?;
        put.count("weir_arc_misses", "Reads passed to devices", None, self.pools(|sample| sample.arc.misses))?;
        let ghosts =
            self.arc(|arc| [(&[("list", "mru")], arc.mru_ghost_hits), (&[("list", "mfu")], arc.mfu_ghost_hits)]);
        put.count("weir_arc_ghost_hits", "Reads of blocks evicted not long ago", None, ghosts)?;
        put.count("weir_arc_evictions", "Evictions", None, self.pools(|sample| sample.arc.evictions))?;
        let sizes = self.arc(|arc| {
            [
                (&[("list", "mru"), ("content", "data")], arc.mru_data_bytes),
                (&[("list", "mru"), ("content", "metadata")], arc.mru_metadata_bytes),
                (&[("list", "mfu"), ("content", "data")], arc.mfu_data_bytes),
                (&[("list", "mfu"), ("content", "metadata")], arc.mfu_metadata_bytes),
            ]
        });
        put.gauge("weir_arc_size", "Resident bytes", bytes, sizes)?;
        put.gauge("weir_arc_max", "Maximum size of the ARC", bytes, self.pools(|sample| sample.arc.max_bytes))?;
        self.l2arc(put)?;
        put.gauge("weir_dirty", "Bytes that no txg has synced", bytes, self.pools(|sample| sample.txg.dirty_bytes))?;
        let limit = self.pools(|sample| sample.txg.dirty_max_bytes);
        put.gauge("weir_dirty_max", "Dirty bytes at which writers wait", bytes, limit)?;
        let unstable = self.pools(|sample| sample.txg.unstable_bytes);
        put.gauge("weir_unstable", "Bytes of acknowledged writes that are not stable", bytes, unstable)?;
        put.gauge("weir_txg_synced", "Last synced transaction group", None, self.pools(|sample| sample.txg.synced))?;
        put.count("weir_vdev_reads", "Reads of a device", None, self.leaves(|leaf| leaf.reads))?;
        put.count("weir_vdev_read", "Bytes read from a device", bytes, self.leaves(|leaf| leaf.read_bytes))?;
        put.count("weir_vdev_writes", "Writes of a device", None, self.leaves(|leaf| leaf.writes))?;
        put.count("weir_vdev_written", "Bytes written to a device", bytes, self.leaves(|leaf| leaf.write_bytes))?;
        put.count("weir_vdev_read_errors", "Failed reads", None, self.leaves(|leaf| leaf.read_errors))?;
        put.count("weir_vdev_write_errors", "Failed writes", None, self.leaves(|leaf| leaf.write_errors))?;
        put.count("weir_vdev_checksum_errors", "Wrong bytes", None, self.leaves(|leaf| leaf.checksum_errors))?;
        put.count("weir_vdev_slow", "Slow operations", None, self.leaves(|leaf| leaf.slow))?;
        put.gauge("weir_vdev_in_service", "1 or 0", None, self.leaves(|leaf| u64::from(leaf.in_service)))?;
        self.store_metrics(put)?;
        self.host_metrics(put)?;
        put.gauge("weir_pool_size", "Size of the pool", bytes, self.pools(|sample| sample.space.size_bytes))?;
        put.gauge("weir_pool_allocated", "Allocated", bytes, self.pools(|sample| sample.space.allocated_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientTotals, Counts, OperationTotals, SpaceState, TxgState};

    #[test]
    fn hostile_names_stay_in_their_labels() {
        let row = |protocol: &str, disk| OperationTotals {
            protocol: protocol.into(),
            operation: "read".into(),
            requests: 2,
            read_bytes: Counts([("disk".to_owned(), disk)].into()),
            ..OperationTotals::default()
        };
        let dataset = "tank/a\"} 1\nweir_fake 2\\".to_owned();
        let sample = Sample {
            pool: "tank".into(),
            guid: "1".into(),
            time_ms: 0,
            uptime_ns: 1,
            operations: vec![row("nfs3", 100), OperationTotals { operation: "readdir".into(), ..row("nfs3", 11) }],
            clients: vec![ClientTotals { dataset, objset: 54, read_bytes: 9, ..ClientTotals::default() }],
            files: crate::FileTable::default(),
            datasets: Vec::new(),
            written: Vec::new(),
            arc: ArcState::default(),
            txg: TxgState::default(),
            leaves: Vec::new(),
            stores: vec![crate::StoreTotals {
                name: "s3://b/p".into(),
                kind: "put".into(),
                requests: 3,
                cost: Some(crate::Cost { nanos: 15_000, currency: "USD".into() }),
                ..crate::StoreTotals::default()
            }],
            store_space: vec![crate::StoreSpace {
                name: "s3://b/p".into(),
                size_bytes: 1 << 30,
                allocated_bytes: 4096,
                month: None,
            }],
            space: SpaceState::default(),
            host: None,
        };
        let alert = AlertState { name: "pool:\"x".into(), severity: "critical", state: "open", since_s: 7 };
        let job = |name: &str, last: Option<(u64, bool)>| JobState {
            name: name.into(),
            is_running: last.is_none(),
            last,
            next_s: Some(9),
        };
        let jobs = vec![job("nightly", Some((8, true))), job("new", None)];
        let text = text(vec![sample], ServiceState { alerts: vec![alert], jobs }, Vec::new()).unwrap();
        for line in [
            "weir_alert{alert=\"pool:\\\"x\",severity=\"critical\",state=\"open\"} 1",
            "weir_alert_begin_seconds{alert=\"pool:\\\"x\"} 7",
            "weir_job_failed{job=\"nightly\"} 1",
            "weir_job_last_begin_seconds{job=\"nightly\"} 8",
            "weir_job_running{job=\"new\"} 1",
            "weir_job_next_seconds{job=\"new\"} 9",
            "weir_store_requests_total{pool=\"tank\",vdev=\"s3://b/p\",request=\"put\"} 3",
            "weir_store_cost_total{pool=\"tank\",vdev=\"s3://b/p\",request=\"put\",currency=\"USD\"} 0.000015",
            "weir_store_size_bytes{pool=\"tank\",vdev=\"s3://b/p\"} 1073741824",
            "weir_store_allocated_bytes{pool=\"tank\",vdev=\"s3://b/p\"} 4096",
        ] {
            assert!(text.lines().any(|found| found.starts_with(line)), "{line}: {text}");
        }
        assert!(!text.contains("weir_job_failed{job=\"new\"}"), "{text}");
        assert!(text.contains("weir_served_bytes_total{pool=\"tank\",proto=\"nfs3\",source=\"disk\"} 111\n"), "{text}");
        assert!(text.contains("weir_requests_total{pool=\"tank\",proto=\"nfs3\",op=\"read\"} 2\n"), "{text}");
        assert!(text.contains("dataset=\"tank/a\\\"} 1\\nweir_fake 2\\\\\",proto=\"\"} 9\n"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("weir_fake")), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let described = |line: &str| line.starts_with("# ") || line.starts_with("weir_");
        assert!(text.lines().all(described), "{text}");
    }
}
