use super::render::human_time;
use super::*;
use std::sync::Arc;

fn zap(entries: &[(&str, Value)]) -> Arc<Stored> {
    Arc::new(entries.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())
}

fn get(facts: &Facts<'_>, name: &str) -> (String, String) {
    let p = resolve_one(facts, name).expect("the dataset has the property");
    (p.text(true), p.source.text())
}

#[test]
fn values_come_from_the_nearest_that_set_them() {
    let text = |t: &str| Value::Text(t.into());
    let chain = [
        ("p/a/b".to_owned(), zap(&[("atime$inherit", Value::Number(0)), ("atime$recvd", Value::Number(1))])),
        ("p/a".to_owned(), zap(&[("atime", Value::Number(0)), ("x:y$recvd", text("r")), ("quota", Value::Number(7))])),
        ("p".to_owned(), zap(&[("mountpoint", text("/data")), ("x:y", text("far"))])),
    ];
    let computed = BTreeMap::from([(ZfsProp::Quota, Value::Number(0)), (ZfsProp::Used, Value::Number(1536))]);
    let facts = Facts {
        kind: DatasetKind::Filesystem,
        of_volume: false,
        name: "p/a/b",
        snapshot: None,
        chain: &chain,
        computed: &computed,
        altroot: "/mnt",
    };
    assert_eq!(get(&facts, "atime"), ("off".into(), "inherited from p/a".into()));
    assert_eq!(get(&facts, "x:y"), ("r".into(), "inherited from p/a".into()));
    assert_eq!(get(&facts, "quota"), ("0".into(), "default".into()), "not inheritable");
    assert_eq!(get(&facts, "mountpoint"), ("/mnt/data/a/b".into(), "inherited from p".into()));
    assert_eq!(get(&facts, "compression"), ("on".into(), "default".into()));
    assert_eq!(resolve_one(&facts, "used").map(|p| (p.text(false), p.source)), Some(("1.50K".into(), Source::None)));
    let above = Facts { name: "p/a", chain: &chain[1..], ..facts.clone() };
    assert_eq!(get(&above, "x:y"), ("r".into(), "received".into()));
    // What was received is shown whether or not it is in effect, for the dataset itself alone.
    let received = |facts: &Facts<'_>, name: &str| resolve_one(facts, name).unwrap().received_text(false);
    assert_eq!((received(&facts, "atime"), received(&facts, "x:y")), (Some("on".into()), None));
    assert_eq!(received(&above, "x:y"), Some("r".into()));
    assert_eq!(get(&above, "atime"), ("off".into(), "local".into()));
    let snap_zap = Stored::from([("x:y".to_owned(), text("snap"))]);
    let snapshot = Facts { kind: DatasetKind::Snapshot, name: "p/a@s", snapshot: Some(&snap_zap), ..above.clone() };
    assert_eq!(get(&snapshot, "x:y"), ("snap".into(), "local".into()));
    assert_eq!(get(&Facts { snapshot: None, ..snapshot }, "exec"), ("on".into(), "default".into()));
}

#[test]
fn numbers_are_shown_as_zfs_shows_them() {
    for (bytes, text) in [
        (0, "0B"),
        (512, "512B"),
        (1024, "1K"),
        (1536, "1.50K"),
        (131_072, "128K"),
        (10_240_000, "9.77M"),
        (1_398_784, "1.33M"),
        (109_051_904, "104M"),
        (u64::MAX, "16.0E"),
    ] {
        assert_eq!(human_size(bytes), text);
    }
    assert_eq!(human_time(1_795_245_880), "Sat Nov 21  7:24 2026");
    assert_eq!(human_time(951_782_400), "Tue Feb 29  0:00 2000");
    let text = |name, n| text_of(name, &Value::Number(n), false);
    assert_eq!(text("compression", 16 | 103 << 7), "zstd-fast");
    assert_eq!(text("compression", 16 | 19 << 7), "zstd-19");
    assert_eq!(text("dedup", 14 | 1 << 8), "blake3,verify");
    assert_eq!(text("snapshot_limit", u64::MAX), "none");
    assert_eq!(text("compressratio", 905), "9.05x");
    assert_eq!(text("quota", 0), "none");
}

#[test]
fn the_table_is_in_the_order_of_the_names() {
    assert_eq!(table::NATIVES.len(), ZfsProp::ALL.len());
    for (native, prop) in table::NATIVES.iter().zip(ZfsProp::ALL) {
        assert_eq!(native.prop, *prop);
        assert_eq!(ZfsProp::named(prop.name()), Some(*prop));
    }
    assert_eq!(ZfsProp::named("compress"), Some(ZfsProp::Compression));
    assert_eq!(ZfsProp::of_name("compress"), None);
}
