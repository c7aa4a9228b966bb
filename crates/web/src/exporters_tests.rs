//! Names, labels and conversions.

use super::*;
use serde_json::json;

fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let family = families.iter().find(|family| family.name == name).unwrap();
    let is_it = |row: &&FamilyRow| row.0.iter().map(|(key, text)| (*key, text.as_str())).eq(labels.iter().copied());
    family.rows.iter().find(is_it).map(|row| row.1)
}

#[test]
fn projects_are_listed_with_commas_or_several_times() {
    let of = |query: &[(&str, &str)]| {
        let pairs: Vec<_> = query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ExporterNames::of_query(&pairs)
    };
    let both = ExporterNames { zfs_exporter: true, node_exporter: true };
    assert_eq!(of(&[("token", "x")]), Ok(ExporterNames::default()));
    assert_eq!(of(&[("names", "zfs_exporter,node_exporter")]), Ok(both));
    assert_eq!(of(&[("names", "node_exporter"), ("names", "zfs_exporter")]), Ok(both));
    assert_eq!(of(&[("names", "zfs_exporter")]), Ok(ExporterNames { zfs_exporter: true, node_exporter: false }));
    for wrong in ["", "zfs", "zfs_exporter,", "node_exporter\n"] {
        let why = of(&[("names", wrong)]).unwrap_err();
        assert!(why.ends_with("give zfs_exporter, node_exporter, or both with a comma"), "{why}");
    }
}

#[test]
fn values_have_the_units_of_zfs_exporter_and_unknown_ones_no_metric() {
    let property = |value: Value| json!({ "value": value });
    let pools = json!({
        "tank": {"properties": {"size": property(json!(1_000)), "dedupratio": property(json!("2.00")),
            "fragmentation": property(json!(23)), "health": property(json!("SUSPENDED")), "readonly": property(json!("on")),
            "leaked": property(json!("-")), "free": property(json!("inf"))}},
        "other": {"properties": {"size": property(json!(7))}},
    });
    let found = pool_families(Some(&pools), |pool| pool == "tank");
    let tank = |name: &str| value(&found, name, &[("pool", "tank")]);
    assert_eq!(tank("zfs_pool_size_bytes"), Some(1000.0));
    assert_eq!(tank("zfs_pool_deduplication_ratio"), Some(0.5));
    assert_eq!(tank("zfs_pool_fragmentation_ratio"), Some(0.23));
    assert_eq!(tank("zfs_pool_health"), Some(6.0));
    assert_eq!(tank("zfs_pool_readonly"), Some(1.0));
    assert_eq!((tank("zfs_pool_leaked_bytes"), tank("zfs_pool_free_bytes")), (None, None));
    assert_eq!(value(&found, "zfs_pool_size_bytes", &[("pool", "other")]), None, "another process has it open");

    let states = [state_family(Some(&pools), |pool| pool == "tank")];
    assert_eq!(states[0].rows.len(), STATES.len());
    let state = |state| value(&states, "node_zfs_zpool_state", &[("zpool", "tank"), ("state", state)]);
    assert_eq!((state("suspended"), state("online")), (Some(1.0), Some(0.0)));

    let volume =
        json!({"type": "VOLUME", "properties": {"volsize": property(json!(8)), "quota": property(json!("-"))}});
    let datasets = json!({"tank/v": volume, "other/v": volume, "tank@s": {"type": "SNAPSHOT", "properties": {}}});
    let found = dataset_families(Some(&datasets), |pool| pool == "tank");
    let labels = [("name", "tank/v"), ("pool", "tank"), ("type", "volume")];
    assert_eq!(value(&found, "zfs_dataset_volume_size_bytes", &labels), Some(8.0));
    assert_eq!(found.iter().map(|family| family.rows.len()).sum::<usize>(), 1);
    assert!(dataset_families(None, |_| true).iter().all(|family| family.rows.is_empty()));
    for wrong in [Value::Null, json!([1]), json!({"tank": 1}), json!({"tank": {"properties": []}})] {
        assert!(pool_families(Some(&wrong), |_| true).iter().all(|family| family.rows.is_empty()), "{wrong}");
    }
}

#[test]
fn counters_of_an_interface_have_its_name() {
    let text = "eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n";
    let found = interface_families(&network::parse(text));
    let eth0 = |name: &str| value(&found, &format!("node_network_{name}"), &[("device", "eth0")]).unwrap();
    let names = ["receive_bytes", "receive_packets", "receive_errs", "receive_drop"];
    assert_eq!(names.map(eth0), [1.0, 2.0, 3.0, 4.0]);
    let names = ["transmit_bytes", "transmit_packets", "transmit_errs", "transmit_drop"];
    assert_eq!(names.map(eth0), [5.0, 6.0, 7.0, 8.0]);
    assert!(arc_families(&[]).iter().all(|family| family.rows.is_empty()));
}
