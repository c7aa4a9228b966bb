//! Each action does what its command line does.

use super::{Site, act, act_twice, order, until};
use serde_json::json;

#[test]
fn a_pool_is_created_used_and_destroyed_by_actions() {
    let site = Site::new(2, "");
    let http = site.http();
    let disks: Vec<String> = (0..2).map(|disk| site.disk(disk)).collect();
    let create = json!({"do": "create_pool", "name": "tank", "vdevs": [{"kind": "mirror", "devices": [disks[0], disks[1]]}],
        "properties": [{"property": "ashift", "value": "12"}], "root_properties": [{"property": "compression", "value": "off"}]});
    let (shown, code, done) = act_twice(&http, create);
    assert_eq!(code, 200, "{done}");
    assert!(
        shown.contains("mirror") && shown.contains(&format!("{}: 134217728 bytes, no data found", disks[0])),
        "{shown}"
    );
    let command = done["command"].as_str().unwrap();
    assert_eq!(
        command,
        format!("weir zpool create -o ashift=12 -O compression=off tank mirror {} {}", disks[0], disks[1])
    );
    assert!(site.ok("zpool history tank").contains(command.strip_prefix("weir ").unwrap()));
    assert_eq!(site.audited()["result"], "done");

    // The space that the layout chooser shows is that of the pool.
    let (code, space) = http.get("/api/v1/admin/capacity?kind=mirror&disks=2&vdevs=1&disk_bytes=134217728");
    assert_eq!(code, 200, "{space}");
    let sizes = site.ok("zfs list -Hp -o used,available tank");
    let total: u64 = sizes.split_whitespace().map(|number| number.parse::<u64>().unwrap()).sum();
    assert!(space.contains(&format!("\"usable_bytes\":{total}")), "{total}: {space}");

    let ok = |action| {
        let (code, done) = act(&http, action);
        assert_eq!(code, 200, "{done}");
    };
    ok(json!({"do": "create_dataset", "name": "tank/a", "properties": [{"property": "recordsize", "value": "16K"}]}));
    ok(json!({"do": "create_dataset", "name": "tank/v", "volume_size": "8M", "sparse": true}));
    assert_eq!(site.ok("zfs get -H -o value recordsize tank/a"), "16K\n");
    assert_eq!(site.ok("zfs get -Hp -o value volsize,refreservation tank/v"), "8388608\n0\n");
    ok(json!({"do": "set", "dataset": "tank/a", "property": "quota", "value": "20M"}));
    assert_eq!(site.ok("zfs get -H -o value,source quota tank/a"), "20M\tlocal\n");
    ok(json!({"do": "inherit", "dataset": "tank/a", "property": "recordsize"}));
    assert_eq!(site.ok("zfs get -H -o source recordsize tank/a"), "default\n");
    ok(json!({"do": "snapshot", "snapshot": "tank@one", "recursive": true}));
    ok(json!({"do": "snapshot", "snapshot": "tank/a@two"}));
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "tank@one\ntank/a@one\ntank/a@two\ntank/v@one\n");
    ok(json!({"do": "clone", "snapshot": "tank/a@one", "name": "tank/c"}));

    // The error of the command line, whole.
    let (code, failed) = act(&http, json!({"do": "set", "dataset": "tank/a", "property": "quota", "value": "much"}));
    assert_eq!((code, failed["error"].as_str()), (422, Some(site.fails("zfs set quota=much tank/a").trim_end())));
    let destroy = json!({"do": "destroy", "name": "tank/a", "recursive": true});
    let (code, refused) = order(&http, "preview", &json!({ "action": destroy }));
    assert_eq!((code, refused["error"].as_str()), (422, Some(site.fails("zfs destroy -r tank/a").trim_end())));

    let (code, refused) = order(&http, "preview", &json!({"action": {"do": "rollback", "snapshot": "tank/a@one"}}));
    assert_eq!((code, refused["error"].as_str().unwrap().ends_with("with -r:\ntank/a@two")), (422, true), "{refused}");
    let (shown, code, _) = act_twice(&http, json!({"do": "rollback", "snapshot": "tank/a@one", "destroy_later": true}));
    assert_eq!((code, shown.contains("would destroy tank/a@two\n")), (200, true), "{shown}");
    assert!(!shown.contains("would destroy tank/a@one"), "{shown}");
    assert_eq!(site.ok("zfs list -H -t snapshot -o name -d 1 tank/a"), "tank/a@one\n");
    let (shown, code, _) = act_twice(&http, json!({"do": "destroy", "name": "tank/a", "dependents": true}));
    assert_eq!(code, 200);
    assert!(
        ["tank/c", "tank/a@one", "tank/a"].iter().all(|name| shown.contains(&format!("would destroy {name}\n"))),
        "{shown}"
    );
    assert_eq!(site.ok("zfs list -H -o name"), "tank\ntank/v\n");
    let (shown, code, _) = act_twice(&http, json!({"do": "destroy", "name": "tank/v@one"}));
    assert_eq!((code, shown.contains("would reclaim ")), (200, true), "{shown}");
}

#[test]
fn devices_are_changed_and_pools_moved_by_actions() {
    let site = Site::new(4, "");
    let http = site.http();
    let disks: Vec<String> = (0..4).map(|disk| site.disk(disk)).collect();
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zfs create -V 8M tank/v");
    let ok = |action| {
        let (code, done) = act(&http, action);
        assert_eq!(code, 200, "{done}");
    };
    ok(json!({"do": "offline", "pool": "tank", "device": disks[1]}));
    assert!(site.ok("zpool status tank").contains("OFFLINE"));
    ok(json!({"do": "online", "pool": "tank", "device": disks[1]}));
    let replace = json!({"do": "replace", "pool": "tank", "device": disks[1], "new_device": disks[2]});
    let (shown, code, done) = act_twice(&http, replace);
    assert_eq!(code, 200, "{done}");
    assert!(shown.contains(&format!("{}: 134217728 bytes, no data found", disks[2])), "{shown}");
    until("the resilver ends", || (!site.ok("zpool status tank").contains(&disks[1])).then_some(()));
    let attach = json!({"do": "attach", "pool": "tank", "device": disks[0], "new_device": disks[3]});
    assert_eq!(act_twice(&http, attach).1, 200);
    until("it is attached", || (!site.ok("zpool status tank").contains("resilver in progress")).then_some(()));
    assert_eq!(act_twice(&http, json!({"do": "detach", "pool": "tank", "device": disks[3]})).1, 200);
    assert!(!site.ok("zpool status tank").contains(&disks[3]));
    for step in ["start", "start"] {
        let (code, done) = act(&http, json!({"do": "scrub", "pool": "tank", "step": step}));
        assert!(code == 200 || done["error"].as_str().unwrap().contains("scrub"), "{done}");
    }
    assert!(site.ok("zpool status tank").contains("scrub"));
    // The daemon serves other commands as before.
    site.ok("daemon status");
    ok(json!({"do": "clear", "pool": "tank"}));

    // A device with data needs -f, and its dry run names the pool on it.
    assert_eq!(act_twice(&http, json!({"do": "export", "pool": "tank"})).1, 200);
    assert_eq!(site.ok("zpool list -H"), "");
    let over = |force: bool| json!({"do": "create_pool", "name": "other", "force": force, "vdevs": [{"kind": "stripe", "devices": [disks[0]]}]});
    let (shown, code, failed) = act_twice(&http, over(false));
    assert_eq!(code, 422, "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("is part of exported pool 'tank'"), "{failed}");
    assert!(shown.contains("is part of exported pool 'tank'"), "{shown}");
    let import =
        json!({"do": "import", "pool": "tank", "directory": site.path("").display().to_string().trim_end_matches('/')});
    ok(import);
    assert_eq!(site.ok("zpool list -H -o name"), "tank\n");
    let (shown, code, _) = act_twice(&http, json!({"do": "destroy_pool", "pool": "tank"}));
    assert_eq!((code, shown.contains("tank/v")), (200, true), "{shown}");
    assert_eq!(site.ok("zpool list -H"), "");
    assert_eq!(act_twice(&http, over(true)).1, 200);
    assert_eq!(site.ok("zpool list -H -o name"), "other\n");
}

#[test]
fn alerts_are_acknowledged_and_muted_by_actions() {
    let site = Site::new(2, "[alerts]\ninterval = 1\n");
    let http = site.http();
    site.ok("zpool create tank mirror d0 d1");
    site.ok("zpool offline tank d1");
    until("an alert", || site.ok("daemon alerts").contains("pool:tank").then_some(()));
    let (code, done) = act(&http, json!({"do": "acknowledge", "alert": "pool:tank"}));
    assert_eq!(code, 200, "{done}");
    let metric = |state: &str| format!("weir_alert{{alert=\"pool:tank\",severity=\"critical\",state=\"{state}\"}} 1");
    let metrics = http.get("/metrics").1;
    assert!(metrics.contains(&metric("acknowledged")), "{metrics}");
    assert_eq!(act(&http, json!({"do": "mute", "alert": "pool:tank", "hours": 2})).0, 200);
    assert!(http.get("/metrics").1.contains(&metric("muted")));
    let (code, shown) = http.get("/api/v1/admin/view/alerts");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let alerts = shown["answer"]["alerts"].as_array().unwrap();
    let of_pool = alerts.iter().find(|alert| alert["name"] == "pool:tank").unwrap();
    assert_eq!((code, &of_pool["acknowledged"]), (200, &json!(true)));
    assert!(of_pool["muted_until"].is_string(), "{of_pool}");
    let (code, failed) = act(&http, json!({"do": "acknowledge", "alert": "pool:none"}));
    assert_eq!((code, failed["error"].as_str()), (422, Some("there is no alert 'pool:none'")));
    let (_, lights) = http.get("/api/v1/admin/lights");
    let lights: serde_json::Value = serde_json::from_str(&lights).unwrap();
    let state = |name: &str| {
        let light = lights["lights"].as_array().unwrap().iter().find(|light| light["name"] == name).unwrap();
        light["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(["Pool", "Capacity", "Disk", "Job"].map(state), ["warning", "good", "critical", "unknown"]);
}

#[test]
fn hostile_names_are_data_everywhere() {
    let site = Site::new(1, "");
    let http = site.http();
    site.ok("zpool create tank d0");
    let name = "tank/<img src=x onerror=alert(1)>";
    let (code, failed) = act(&http, json!({"do": "create_dataset", "name": name}));
    assert_eq!(code, 422, "{failed}");
    for name in ["tank/$(touch pwned)", "tank/`touch pwned`", "tank/;touch pwned", "tank/../x", "tank/a|b"] {
        let (code, failed) = act(&http, json!({"do": "create_dataset", "name": name}));
        assert_eq!(code, 422, "{name}: {failed}");
    }
    for name in ["tank/a\nb", "tank/\u{1b}[31m", "-o", ""] {
        assert_eq!(act(&http, json!({"do": "create_dataset", "name": name})).0, 400, "{name:?}");
    }
    assert!(!site.path("pwned").exists());
    assert_eq!(site.ok("zfs list -H -o name"), "tank\n");
    // Values may have any character, and stay values.
    let value = "<script>alert(1)</script> '\"; rm -rf / # -f";
    assert_eq!(act(&http, json!({"do": "set", "dataset": "tank", "property": "test:x", "value": value})).0, 200);
    assert_eq!(site.ok("zfs get -H -o value test:x tank"), format!("{value}\n"));
    let (code, body) = http.get("/api/v1/admin/view/properties?name=tank");
    assert_eq!((code, body.contains("<script>alert(1)</script>")), (200, true));
    for path in ["view/none", "view/pools?name=tank", "view/snapshots", "view/../me", "view/import?name=relative"] {
        let code = http.get(&format!("/api/v1/admin/{path}")).0;
        assert_eq!(code, 404, "{path}");
    }
    for path in ["view/properties?name=-a", "view/properties?name=", "view/properties?name=a%0Ab"] {
        let code = http.get(&format!("/api/v1/admin/{path}")).0;
        assert_eq!(code, 400, "{path}");
    }
    // A name that is no dataset is the command's error, in the answer.
    let (code, body) = http.get("/api/v1/admin/view/properties?name=tank/none");
    assert_eq!(code, 200);
    assert!(body.contains("dataset does not exist"), "{body}");
}
