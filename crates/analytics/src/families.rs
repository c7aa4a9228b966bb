//! Metric families whose names, labels and values come from elsewhere than a [`Sample`](crate::Sample).

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// Type of a metric family, as OpenMetrics defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// A number that only grows. Its name in the text ends with `_total`.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Of no stated type; in Prometheus's own form of text, `untyped`.
    Unknown,
}

/// Labels and value of a metric.
pub type FamilyRow = (Vec<(&'static str, String)>, f64);

/// A metric family.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name with its unit; of a counter without `_total`.
    pub name: String,
    /// Description, a line.
    pub help: &'static str,
    /// Type.
    pub kind: FamilyKind,
    /// Metrics; a family without any is left out of the text.
    pub rows: Vec<FamilyRow>,
}

/// The metrics of families, for a registry.
#[derive(Debug)]
pub(crate) struct Families(pub Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, kind, rows } in self.0.iter().filter(|family| !family.rows.is_empty()) {
            let metric_type = match kind {
                FamilyKind::Counter => MetricType::Counter,
                FamilyKind::Gauge => MetricType::Gauge,
                FamilyKind::Unknown => MetricType::Unknown,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, metric_type)?;
            match rows.as_slice() {
                // A metric without labels has no braces.
                [(labels, value)] if labels.is_empty() => put(*kind, *value, metric)?,
                rows => {
                    for (labels, value) in rows {
                        put(*kind, *value, metric.encode_family(labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn put(kind: FamilyKind, value: f64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        FamilyKind::Counter => ConstCounter::new(value).encode(encoder),
        FamilyKind::Gauge | FamilyKind::Unknown => ConstGauge::new(value).encode(encoder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{ServiceState, text};

    #[test]
    fn each_type_has_its_form_and_a_family_without_rows_is_left_out() {
        let family = |name: &str, kind, rows| Family { name: name.to_owned(), help: "Help", kind, rows };
        let row = |value| vec![(vec![("device", "a\"b\n".to_owned())], value)];
        let families = vec![
            family("node_sent_bytes", FamilyKind::Counter, row(5.0)),
            family("zfs_size_bytes", FamilyKind::Gauge, row(0.5)),
            family("node_arc_hits", FamilyKind::Unknown, vec![(Vec::new(), 4_503_599_627_370_497.0)]),
            family("none", FamilyKind::Gauge, Vec::new()),
        ];
        let text = text(Vec::new(), ServiceState::default(), families).unwrap();
        let lines = [
            "# HELP node_sent_bytes Help",
            "# TYPE node_sent_bytes counter",
            "node_sent_bytes_total{device=\"a\\\"b\\n\"} 5.0",
            "# HELP zfs_size_bytes Help",
            "# TYPE zfs_size_bytes gauge",
            "zfs_size_bytes{device=\"a\\\"b\\n\"} 0.5",
            "# HELP node_arc_hits Help",
            "# TYPE node_arc_hits unknown",
            "node_arc_hits 4503599627370497.0",
            "# EOF",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines, "{text}");
    }
}
