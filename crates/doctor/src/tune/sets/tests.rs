use super::*;

/// A machine with two settings.
fn machine() -> (tempfile::TempDir, Sets) {
    let folder = tempfile::tempdir().unwrap();
    let net = folder.path().join("proc/sys/net");
    std::fs::create_dir_all(net.join("core")).unwrap();
    std::fs::create_dir_all(net.join("ipv4")).unwrap();
    std::fs::write(net.join("core/rmem_max"), "212992\n").unwrap();
    std::fs::write(net.join("ipv4/tcp_rmem"), "4096\t131072\t6291456\n").unwrap();
    let sets = Sets::open_below(&folder.path().join("state/tuning.json"), folder.path()).unwrap();
    (folder, sets)
}

fn set(values: &[(&str, &str)]) -> TuningSet {
    let values = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    TuningSet { comment: "for 10 GbE".into(), values }
}

fn value(folder: &tempfile::TempDir, name: &str) -> String {
    normal(&std::fs::read_to_string(folder.path().join("proc/sys/net").join(name)).unwrap())
}

#[test]
fn a_set_is_applied_and_rolled_back_by_another_process() {
    let (folder, mut sets) = machine();
    sets.put("fast", set(&[("net.core.rmem_max", "16777216"), ("net.ipv4.tcp_rmem", "4096 131072 33554432")])).unwrap();
    sets.put("faster", set(&[("net.core.rmem_max", "99999999")])).unwrap();
    assert_eq!(sets.apply("fast").unwrap(), 2);
    assert_eq!(value(&folder, "ipv4/tcp_rmem"), "4096 131072 33554432");
    assert_eq!(sets.apply("faster").unwrap(), 1);
    assert_eq!(value(&folder, "core/rmem_max"), "99999999");
    let mut again = Sets::open_below(&folder.path().join("state/tuning.json"), folder.path()).unwrap();
    assert_eq!(again.applied().unwrap().set, "faster");
    assert_eq!(again.rollback().unwrap(), 2, "the settings of both sets");
    assert_eq!(value(&folder, "core/rmem_max"), "212992");
    assert_eq!(value(&folder, "ipv4/tcp_rmem"), "4096 131072 6291456");
    assert!(matches!(again.rollback(), Err(TuneError::NothingApplied)));
}

#[test]
fn a_setting_that_cannot_be_written_undoes_the_others() {
    let (folder, mut sets) = machine();
    sets.put("odd", set(&[("net.core.rmem_max", "1"), ("net.ipv4.nothing_here", "1")])).unwrap();
    let error = sets.apply("odd").unwrap_err().to_string();
    assert!(error.contains("nothing_here"), "{error}");
    assert_eq!(value(&folder, "core/rmem_max"), "212992", "it is read first, so nothing was written");
    // A file that can be read and not written.
    let odd = folder.path().join("proc/sys/net/ipv4/nothing_here");
    std::fs::write(&odd, "0\n").unwrap();
    let mut permissions = std::fs::metadata(&odd).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o444);
    std::fs::set_permissions(&odd, permissions).unwrap();
    if std::fs::OpenOptions::new().write(true).open(&odd).is_ok() {
        eprintln!("skipped: root writes read-only files");
        return;
    }
    let error = sets.apply("odd").unwrap_err().to_string();
    assert!(error.contains("set back"), "{error}");
    assert_eq!(value(&folder, "core/rmem_max"), "212992");
    assert!(sets.applied().is_none());
}

#[test]
fn sets_are_exported_and_imported() {
    let (folder, mut sets) = machine();
    sets.put("a", set(&[("net.core.rmem_max", "1")])).unwrap();
    sets.put("b", set(&[("net.core.rmem_max", "2")])).unwrap();
    let text = sets.export(None).unwrap();
    let one = sets.export(Some("b")).unwrap();
    let mut other = Sets::open_below(&folder.path().join("other.json"), folder.path()).unwrap();
    assert_eq!(other.import(&one).unwrap(), ["b"]);
    assert_eq!(other.import(&text).unwrap(), ["a", "b"]);
    assert_eq!(other.all(), sets.all());
    other.delete("a").unwrap();
    assert!(matches!(other.get("a"), Err(TuneError::NoSet { .. })));
}

#[test]
fn what_is_not_valid_is_refused_by_name() {
    let (folder, mut sets) = machine();
    assert!(matches!(sets.put("a b", set(&[])), Err(TuneError::Name { .. })));
    assert!(matches!(sets.put("a", set(&[("kernel.core_pattern", "x")])), Err(TuneError::Key { .. })));
    assert!(matches!(sets.put("a", set(&[("net.core.rmem_max", "1; x")])), Err(TuneError::Value { .. })));
    for n in 0..MAX_SETS {
        sets.put(&format!("s{n}"), set(&[])).unwrap();
    }
    assert!(matches!(sets.put("more", set(&[])), Err(TuneError::TooManySets)));
    let path = folder.path().join("state/tuning.json");
    std::fs::write(&path, "{\"sets\":{\"a\":{\"values\":{\"kernel.core_pattern\":\"x\"}}},\"applied\":null}").unwrap();
    assert!(matches!(Sets::open_below(&path, folder.path()), Err(TuneError::Damaged { .. })));
}
