//! Actions on vdevs, devices and keys.

use super::{Site, act, act_twice, order, until};
use serde_json::{Value, json};

#[test]
fn vdevs_are_added_removed_and_split_off() {
    let site = Site::new(6, "");
    // Space for the data of the vdev that goes, and for what a pool reserves.
    std::fs::File::options().write(true).open(site.disk(0)).unwrap().set_len(1 << 30).unwrap();
    site.ok("zpool create tank d0");
    let own = site.http();
    let vdev = |kind: &str, disks: &[usize]| json!({"kind": kind, "devices": disks.iter().map(|disk| site.disk(*disk)).collect::<Vec<_>>()});
    let add = |vdev: Value| json!({"do": "add_vdevs", "pool": "tank", "vdevs": [vdev]});

    let (shown, code, done) = act_twice(&own, add(vdev("stripe", &[1])));
    assert_eq!(code, 200, "{done}");
    assert!(
        shown.contains("would update 'tank'") && shown.contains(&format!("{}: 134217728 bytes", site.disk(1))),
        "{shown}"
    );
    let (_, code, done) = act_twice(&own, add(vdev("spare", &[2])));
    assert_eq!(code, 200, "{done}");
    let status = site.ok("zpool status tank");
    assert!(status.contains(&site.disk(1)) && status.contains("AVAIL"), "{status}");

    let remove = |device: String| json!({"do": "remove", "pool": "tank", "device": device});
    assert_eq!(act(&own, remove(site.disk(1))).0, 409, "a removal needs a dry run");
    for disk in [2, 1] {
        let (_, code, done) = act_twice(&own, remove(site.disk(disk)));
        assert_eq!(code, 200, "{done}");
    }
    until("the removal ends", || site.ok("zpool status tank").contains("completed").then_some(()));
    assert!(!site.ok("zpool list -v tank").contains(&site.disk(1)));

    // A device of an open pool is not wiped; one of a destroyed pool is, after its dry run. One that was removed has no labels.
    let wipe = |disk: usize| json!({"do": "wipe", "device": site.disk(disk), "force": true});
    let (_, code, refused) = act_twice(&own, wipe(0));
    assert_eq!(code, 422, "{refused}");
    site.ok("zpool create old d5");
    site.ok("zpool destroy old");
    let shown = until("the device of a destroyed pool is released", || {
        let (shown, code, _) = act_twice(&own, wipe(5));
        (code == 200).then_some(shown)
    });
    assert!(shown.contains("134217728 bytes"), "{shown}");
    for disk in [1, 5] {
        let (_, code, refused) = act_twice(&own, wipe(disk));
        assert!(code == 422 && refused.to_string().contains("no label found"), "{code}: {refused}");
    }

    site.ok("zpool create two mirror d3 d4");
    let (shown, code, done) = act_twice(&own, json!({"do": "split", "pool": "two", "name": "three"}));
    assert_eq!(code, 200, "{done}");
    assert!(shown.contains("three"), "{shown}");
    let (code, _) = act(&own, json!({"do": "import", "pool": "three", "directory": site.dir.path()}));
    assert_eq!(code, 200);
    assert_eq!(site.ok("zpool list -H -o name"), "tank\nthree\ntwo\n");

    for (action, shown) in [
        (json!({"do": "trim", "pool": "two", "step": "start"}), "trim"),
        (json!({"do": "initialize", "pool": "two", "device": site.disk(3), "step": "start"}), "initialize"),
        (json!({"do": "checkpoint", "pool": "two"}), "checkpoint"),
    ] {
        let (code, done) = act(&own, action);
        assert_eq!(code, 200, "{shown}: {done}");
    }
    assert!(site.ok("zpool status two").contains("checkpoint: created"));
    let (_, code, done) = act_twice(&own, json!({"do": "discard_checkpoint", "pool": "two"}));
    assert_eq!(code, 200, "{done}");
    site.ok("zpool create -o feature@livelist=disabled old d5");
    let (shown, code, done) = act_twice(&own, json!({"do": "upgrade", "pool": "old"}));
    assert_eq!(code, 200, "{done}");
    assert!(shown.contains("old\n") && shown.contains("livelist"), "{shown}");
    assert_eq!(site.ok("zpool get -H -o value feature@livelist old").trim(), "enabled");
}

#[test]
fn disks_have_their_size_use_and_health() {
    let site = Site::new(2, &format!("pool_dirs = [{:?}]\n", "/nowhere"));
    site.ok("zpool create tank d0");
    let (code, body) = site.http().get("/api/v1/admin/disks");
    let disks: Value = serde_json::from_str(&body).unwrap();
    let own = disks.as_array().unwrap().iter().find(|disk| disk["path"] == site.disk(0)).unwrap();
    assert_eq!((code, &own["size_bytes"], &own["contents"]), (200, &json!(128 << 20), &json!("in a pool")));
    assert_eq!((&own["rotates"], &own["smart"], &own["smart_problem"]), (&Value::Null, &Value::Null, &json!("a file")));
}

#[test]
fn keys_are_loaded_from_the_page_and_are_in_no_record() {
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    let own = site.http();
    let secret = "correct horse battery";
    let with = |action: Value, secret: &str| order(&own, "act", &json!({"action": action, "secret": secret}));
    let property = |name: &str, value: &str| json!({"property": name, "value": value});
    let encrypted = [property("encryption", "on"), property("keyformat", "passphrase")];
    let create = json!({"do": "create_dataset", "name": "tank/secret", "properties": encrypted});
    let (code, why) = with(create.clone(), "short");
    assert!(code == 422 && why["error"].as_str().unwrap().contains("too short"), "{why}");
    let (code, why) = act(&own, create.clone());
    assert_eq!(code, 422, "without a passphrase: {why}");
    let (code, done) = with(create, secret);
    assert_eq!(code, 200, "{done}");
    assert_eq!(done["command"], "weir zfs create -o encryption=on -o keyformat=passphrase tank/secret");
    let status = |wanted: &str| assert_eq!(site.ok("zfs get -H -o value keystatus tank/secret").trim(), wanted);
    status("available");

    let load = json!({"do": "load_key", "dataset": "tank/secret"});
    assert_eq!(act(&own, json!({"do": "unload_key", "dataset": "tank/secret"})).0, 200);
    status("unavailable");
    let (code, why) = with(load.clone(), "wrong horse battery");
    assert!(code == 422 && why["error"].as_str().unwrap().contains("Incorrect key"), "{why}");
    assert_eq!(with(load.clone(), secret).0, 200);
    status("available");
    let second = "another battery staple";
    assert_eq!(with(json!({"do": "change_key", "dataset": "tank/secret"}), second).0, 200);
    assert_eq!(act(&own, json!({"do": "unload_key", "dataset": "tank/secret"})).0, 200);
    assert_eq!(with(load.clone(), secret).0, 422);
    assert_eq!(with(load.clone(), second).0, 200);

    // Secrets that no command asks for, and those that are no line.
    let snapshot = json!({"do": "snapshot", "snapshot": "tank@a"});
    assert_eq!(with(snapshot, secret), (400, json!({"error": "this action takes no secret"})));
    assert_eq!(with(load.clone(), "a\nb").0, 400);
    assert_eq!(with(load, &"x".repeat(513)).0, 400);
    for file in ["log", "state/audit.log"] {
        let text = std::fs::read_to_string(site.path(file)).unwrap();
        assert!(!text.contains("horse") && !text.contains("staple"), "{file}: {text}");
    }
    let history = site.ok("zpool history -il tank");
    assert!(history.contains("tank/secret") && !history.contains("horse") && !history.contains("staple"), "{history}");
}
