//! `/metrics` under the names of other projects: each value is that of the command that prints it.

use super::{Site, has, promtool, until};
use std::collections::BTreeMap;

/// Names and labels with their values.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap())).unwrap())
        .collect()
}

/// Properties of the pool or a dataset in exact numbers.
fn properties(site: &Site, command: &str) -> BTreeMap<String, String> {
    let out = site.ok(command);
    out.lines().map(|line| line.split_once('\t').unwrap()).map(|(name, value)| (name.into(), value.into())).collect()
}

/// Bytes that the loopback interface received.
fn loopback_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Each metric of a dataset is the property that is printed; one that has no number has no metric.
fn check_dataset(metrics: &BTreeMap<String, f64>, dataset: &str, kind: &str, properties: &BTreeMap<String, String>) {
    let labels = format!("{{name=\"{dataset}\",pool=\"tank\",type=\"{kind}\"}}");
    let metric = |name: &str| metrics.get(&format!("zfs_dataset_{name}{labels}")).copied();
    for (property, name) in [
        ("used", "used_bytes"),
        ("available", "available_bytes"),
        ("referenced", "referenced_bytes"),
        ("logicalused", "logical_used_bytes"),
        ("logicalreferenced", "logical_referenced_bytes"),
        ("usedbydataset", "used_by_dataset_bytes"),
        ("usedbysnapshots", "used_by_snapshot_bytes"),
        ("usedbychildren", "used_by_children_bytes"),
        ("usedbyrefreservation", "used_by_reference_reservation_bytes"),
        ("written", "written_bytes"),
        ("quota", "quota_bytes"),
        ("refquota", "referenced_quota_bytes"),
        ("reservation", "reservation_bytes"),
        ("refreservation", "referenced_reservation_bytes"),
        ("volsize", "volume_size_bytes"),
    ] {
        let printed = properties.get(property).and_then(|value| value.parse::<f64>().ok());
        assert_eq!(metric(name), printed, "{dataset} {property}");
    }
}

#[test]
fn metrics_under_names_of_other_exporters_are_the_commands_values() {
    let site = Site::new(2, "");
    let http = site.http();
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zfs create -o quota=20M -o compression=lz4 tank/a");
    site.ok("zfs create -s -V 8M tank/v");
    site.ok("zfs snapshot tank/a@one");
    const POOL: &str = "zpool get -Hp -o property,value all tank";
    const DATASETS: [(&str, &str, &str); 3] = [
        ("tank", "filesystem", "zfs get -Hp -o property,value all tank"),
        ("tank/a", "filesystem", "zfs get -Hp -o property,value all tank/a"),
        ("tank/v", "volume", "zfs get -Hp -o property,value all tank/v"),
    ];
    let read = || (properties(&site, POOL), DATASETS.map(|(.., command)| properties(&site, command)));
    // All that is compared is of one state.
    let (pool, datasets, text) = until("the pool is still", || {
        let before = read();
        let received = loopback_bytes();
        let (code, text) = http.get("/metrics?names=zfs_exporter,node_exporter");
        assert_eq!(code, 200, "{text}");
        let shown = parsed(&text)["node_network_receive_bytes_total{device=\"lo\"}"];
        assert!((received..=loopback_bytes()).contains(&shown), "{shown}");
        (read() == before).then_some((before.0, before.1, text))
    });
    let metrics = parsed(&text);

    let of_pool = |name: &str| metrics[&format!("zfs_pool_{name}{{pool=\"tank\"}}")];
    for (property, name, divisor) in [
        ("size", "size_bytes", 1.0),
        ("allocated", "allocated_bytes", 1.0),
        ("free", "free_bytes", 1.0),
        ("freeing", "freeing_bytes", 1.0),
        ("leaked", "leaked_bytes", 1.0),
        ("fragmentation", "fragmentation_ratio", 100.0),
        ("capacity", "capacity_ratio", 100.0),
    ] {
        assert_eq!(of_pool(name), pool[property].parse::<f64>().unwrap() / divisor, "{property}");
    }
    assert_eq!(pool["dedupratio"].parse::<f64>().unwrap() * of_pool("deduplication_ratio"), 1.0);
    assert_eq!((of_pool("health"), of_pool("readonly")), (0.0, 0.0));

    for ((dataset, kind, _), properties) in DATASETS.into_iter().zip(&datasets) {
        check_dataset(&metrics, dataset, kind, properties);
    }
    assert_eq!(datasets[1]["quota"], (20 << 20).to_string());
    assert_eq!(datasets[2]["volsize"], (8 << 20).to_string());
    assert!(!text.contains("tank/a@one"), "{text}");

    // The exporter's values of the ARC equal those of Weir's own metrics.
    let sum =
        |start: &str| metrics.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, value)| *value).sum::<f64>();
    for (theirs, own) in [
        ("hits", "weir_arc_hits_total"),
        ("misses", "weir_arc_misses_total"),
        ("size", "weir_arc_size_bytes"),
        ("c_max", "weir_arc_max_bytes"),
        ("c", "weir_arc_max_bytes"),
        ("mru_ghost_hits", "weir_arc_ghost_hits_total{pool=\"tank\",list=\"mru\"}"),
        ("l2_hits", "weir_l2arc_hits_total"),
    ] {
        assert_eq!(metrics[&format!("node_zfs_arc_{theirs}")], sum(own), "{theirs}");
    }
    assert!(metrics["node_zfs_arc_hits"] > 0.0 && metrics["node_zfs_arc_size"] > 0.0);
    let state = |state: &str| metrics[&format!("node_zfs_zpool_state{{zpool=\"tank\",state=\"{state}\"}}")];
    assert_eq!((state("online"), state("degraded"), state("suspended")), (1.0, 0.0, 0.0));
    for collector in ["pool", "dataset-filesystem", "dataset-volume"] {
        assert_eq!(metrics[&format!("zfs_scrape_collector_success{{collector=\"{collector}\"}}")], 1.0);
    }
    if has("promtool") {
        promtool::check(&text);
    }

    site.ok("zpool offline tank d1");
    let metrics = parsed(&http.get("/metrics?names=zfs_exporter,node_exporter").1);
    assert_eq!(metrics["zfs_pool_health{pool=\"tank\"}"], 1.0);
    assert_eq!(metrics["node_zfs_zpool_state{zpool=\"tank\",state=\"degraded\"}"], 1.0);
    assert_eq!(metrics["node_zfs_zpool_state{zpool=\"tank\",state=\"online\"}"], 0.0);
}

#[test]
fn metrics_have_only_the_names_that_are_asked_for() {
    let site = Site::new(1, "");
    let http = site.http();
    site.ok("zpool create tank d0");
    let shows = |query: &str| {
        let (code, text) = http.get(&format!("/metrics{query}"));
        assert_eq!(code, 200, "{text}");
        ["weir_arc_", "zfs_", "node_"].map(|start| text.lines().any(|line| line.starts_with(start)))
    };
    until("a sample", || shows("")[0].then_some(()));
    assert_eq!(shows(""), [true, false, false]);
    assert_eq!(shows("?names=zfs_exporter"), [true, true, false]);
    assert_eq!(shows("?names=node_exporter"), [true, false, true]);
    assert_eq!(shows("?names=node_exporter&names=zfs_exporter"), [true; 3]);
    let (code, body) = http.get("/metrics?names=zfs");
    assert_eq!((code, body.contains("zfs_exporter, node_exporter, or both")), (400, true), "{body}");
}
