//! Those who may act: tokens and roles, requests of other sites, confirmations, the audit log.

use super::{JSON, Site, act, order};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

fn snapshot(name: &str) -> Value {
    json!({"do": "snapshot", "snapshot": name})
}

#[test]
fn a_role_does_what_it_includes_and_no_more() {
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    let own = site.http();
    let token =
        |role: &str| own.clone().with_token(site.ok(&format!("daemon token add {role}.1 --role {role}")).trim());
    let [viewer, operator, administrator] = ["view", "operate", "administer"].map(token);
    let listed = site.ok("daemon token list");
    assert!(listed.starts_with("view.1: view, made 2") && listed.lines().count() == 3, "{listed}");
    let file = site.path("state/web.tokens");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let stored = std::fs::read_to_string(&file).unwrap();
    assert!([&viewer, &operator, &administrator].iter().all(|http| !stored.contains(&http.token)), "{stored}");
    assert!(site.fails("daemon token add view.1").contains("there is a token 'view.1'"));

    for (http, name, role) in
        [(&viewer, "view.1", "view"), (&operator, "operate.1", "operate"), (&own, "own", "administer")]
    {
        let (code, me) = http.get("/api/v1/admin/me");
        let me: Value = serde_json::from_str(&me).unwrap();
        assert_eq!((code, &me["name"], &me["role"]), (200, &json!(name), &json!(role)));
        // All read.
        assert_eq!(http.get("/api/v1/admin/view/pools").0, 200);
        assert_eq!(http.get("/metrics").0, 200);
    }
    let (code, refused) = act(&viewer, snapshot("tank@no"));
    assert_eq!(code, 403);
    assert_eq!(refused["error"], "the token 'view.1' has the role view, and this needs operate");
    let line = site.audited();
    assert_eq!((&line["token"], &line["role"]), (&json!("view.1"), &json!("view")));
    assert!(line["result"].as_str().unwrap().starts_with("refused: the token"), "{line}");
    let set = json!({"do": "set", "dataset": "tank", "property": "atime", "value": "off"});
    assert_eq!(act(&operator, set.clone()).0, 403);
    let destroy = json!({"do": "destroy", "name": "tank@one"});
    assert_eq!(act(&operator, snapshot("tank@one")).0, 200);
    for http in [&viewer, &operator] {
        assert_eq!(order(http, "preview", &json!({ "action": destroy })).0, 403);
        assert_eq!(order(http, "act", &json!({ "action": destroy, "confirmation": "x" })).0, 403);
        assert_eq!(http.get("/api/v1/admin/audit").0, 403);
        assert_eq!(http.get("/api/v1/admin/devices?path=/etc/shadow").0, 403);
    }
    assert_eq!(act(&administrator, set).0, 200);
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "tank@one\n");
    assert_eq!(own.get("/api/v1/admin/audit").0, 200);

    // A revoked token is refused at once, and its live stream ends.
    let mut live = viewer.open("/api/v1/live");
    assert!(live.event().is_some());
    site.ok("daemon token revoke view.1");
    assert_eq!(viewer.get("/api/v1/admin/me").0, 401);
    while live.event().is_some() {}
    assert!(site.fails("daemon token revoke view.1").contains("there is no token"));
    for http in [own.clone().with_token(""), own.clone().with_token("0".repeat(64).as_str())] {
        assert_eq!(act(&http, snapshot("tank@no")).0, 401);
        assert_eq!(http.get("/api/v1/admin/view/pools").0, 401);
    }
}

#[test]
fn requests_that_another_site_could_make_change_nothing() {
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    let own = site.http();
    let body = json!({"action": snapshot("tank@no")}).to_string();
    let cookie = format!("Cookie: weir_token={}\r\n", own.token);
    let anonymous = own.clone().with_token("");
    let act = "/api/v1/admin/act";
    let of = |headers: &str| anonymous.post(act, &format!("{cookie}{headers}"), &body).0;
    // A form, or a script without leave, sends the cookie at best.
    assert_eq!(of(JSON), 403);
    assert_eq!(of("Content-Type: text/plain\r\nX-Weir-Request: 1\r\n"), 415);
    let page = format!("{JSON}X-Weir-Request: 1\r\n");
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost"] {
        assert_eq!(of(&format!("{page}Origin: {origin}\r\n")), 403, "{origin}");
        assert_eq!(own.post(act, &format!("{JSON}Origin: {origin}\r\n"), &body).0, 403, "{origin}");
    }
    assert_eq!(of(&format!("{page}Sec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(anonymous.post(&format!("{act}?token={}", own.token), &page, &body).0, 403);
    assert_eq!(own.clone().with_host("evil.example").post(act, &page, &body).0, 421);
    for method in ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        assert_eq!(own.method(method, act).0, 405, "{method}");
    }
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "");
    assert_eq!(site.audit_lines(), 0);
    let own_origin = format!("{page}Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\n", own.address());
    assert_eq!(of(&own_origin), 200);
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "tank@no\n");
}

#[test]
fn bodies_are_bounded_and_malformed_ones_change_nothing() {
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    let own = site.http();
    let act = "/api/v1/admin/act";
    let long = json!({"action": snapshot(&format!("tank@{}", "x".repeat(100_000)))}).to_string();
    assert_eq!(own.post(act, JSON, &long).0, 413);
    for body in [
        "",
        "{",
        "[]",
        "null",
        r#"{"action":{}}"#,
        r#"{"action":{"do":"snapshot","snapshot":"tank@a","more":1}}"#,
        r#"{"action":{"do":"shell","line":"x"}}"#,
    ] {
        assert_eq!(own.post(act, JSON, body).0, 400, "{body}");
    }
    // A deep document, and one whose length is a lie.
    assert_eq!(own.post(act, JSON, &"[".repeat(60_000)).0, 400);
    let mut stream = own.connect();
    let head = format!(
        "POST {act} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{JSON}Content-Length: 5000\r\n\r\n{{",
        own.address(),
        own.token
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _closed = stream.read_to_end(&mut answer);
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 408"), "a slow body is given up");
    assert_eq!(site.ok("zfs list -H -t snapshot -o name"), "");
}

#[test]
fn a_confirmation_is_neither_left_out_nor_used_twice_nor_for_another_state() {
    let site = Site::new(2, "");
    site.ok("zpool create tank d0");
    site.ok("zfs create tank/a");
    site.ok("zfs snapshot tank/a@one");
    let own = site.http();
    let destroy = json!({"do": "destroy", "name": "tank/a", "recursive": true});
    let preview = |action: &Value| {
        let (code, dry) = order(&own, "preview", &json!({ "action": action }));
        assert_eq!(code, 200, "{dry}");
        dry["confirmation"].clone()
    };
    let act = |action: &Value, confirmation: &Value| {
        let (code, done) = order(&own, "act", &json!({ "action": action, "confirmation": confirmation }));
        (code, done["error"].as_str().unwrap_or_default().to_owned())
    };
    let (code, refused) = order(&own, "act", &json!({ "action": destroy }));
    assert_eq!((code, refused["error"].as_str().unwrap().contains("needs the confirmation")), (409, true));
    assert_eq!(act(&destroy, &Value::Null).0, 409);
    assert_eq!(act(&destroy, &json!("00000000000000000000000000000000")).0, 409);
    // That of another action.
    let other = preview(&json!({"do": "destroy", "name": "tank/a@one"}));
    assert_eq!(act(&destroy, &other).0, 409);
    // That of another token.
    let of_other = preview(&destroy);
    let second = own.clone().with_token(site.ok("daemon token add second --role administer").trim());
    assert_eq!(order(&second, "act", &json!({ "action": destroy, "confirmation": of_other })).0, 409);
    // A state that has changed: one more snapshot would go.
    let old = preview(&destroy);
    site.ok("zfs snapshot tank/a@two");
    let (code, why) = act(&destroy, &old);
    assert_eq!(code, 409, "{why}");
    assert!(why.contains("the state has changed since the dry run, and nothing was done"), "{why}");
    assert_eq!(site.audited()["result"], format!("refused: {why}"));
    // The same name, and another snapshot.
    let old = preview(&destroy);
    site.ok("zfs destroy tank/a@two");
    site.ok("zfs snapshot tank/a@two");
    assert_eq!(act(&destroy, &old).0, 409);
    assert_eq!(site.ok("zfs list -H -t all -r -o name tank/a"), "tank/a\ntank/a@one\ntank/a@two\n");
    let good = preview(&destroy);
    assert_eq!(act(&destroy, &good), (200, String::new()));
    assert_eq!(site.ok("zfs list -H -o name"), "tank\n");
    site.ok("zfs create tank/a");
    assert_eq!(act(&destroy, &good).0, 409, "it was used");
    // A pool of the same name is another pool.
    let export = json!({"do": "export", "pool": "tank"});
    let old = preview(&export);
    site.ok("zpool destroy tank");
    site.ok("zpool create tank d1");
    assert_eq!(act(&export, &old).0, 409);
    // What is on a device has changed.
    let create = json!({"do": "create_pool", "name": "other", "force": true, "vdevs": [{"kind": "stripe", "devices": [site.disk(0)]}]});
    let old = preview(&create);
    site.ok("zpool create -f between d0");
    site.ok("zpool export between");
    assert_eq!(act(&create, &old).0, 409);
    assert_eq!(site.ok("zpool list -H -o name"), "tank\n");
}

#[test]
fn the_audit_log_has_each_action_and_no_secret() {
    let site = Site::new(1, "");
    site.ok("zpool create tank d0");
    let own = site.http();
    assert_eq!(act(&own, snapshot("tank@one")).0, 200);
    let line = site.audited();
    let fields: Vec<&String> = line.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["time", "token", "role", "client", "command", "result"]);
    assert_eq!(line["command"], "weir zfs snapshot tank@one");
    assert_eq!((&line["token"], &line["role"], &line["result"]), (&json!("own"), &json!("administer"), &json!("done")));
    assert!(
        line["client"].as_str().unwrap().starts_with("127.0.0.1:") && line["time"].as_str().unwrap().ends_with('Z')
    );
    assert_eq!(act(&own, snapshot("tank@one")).0, 422);
    assert!(
        site.audited()["result"].as_str().unwrap().starts_with("failed: cannot create snapshot"),
        "{}",
        site.audited()
    );
    // The page takes no key: the prompt is answered with none.
    let encrypted = json!({"do": "create_dataset", "name": "tank/e", "properties": [
        {"property": "encryption", "value": "on"}, {"property": "keyformat", "value": "passphrase"}, {"property": "keylocation", "value": "prompt"}]});
    let (code, failed) = act(&own, encrypted);
    assert_eq!(code, 422, "{failed}");
    let text = std::fs::read_to_string(site.path("state/audit.log")).unwrap();
    let log = std::fs::read_to_string(site.path("log")).unwrap();
    assert!(!text.contains(&own.token) && !log.contains(&own.token));
    assert_eq!(text.lines().count(), 3, "{text}");
    assert_eq!(std::fs::metadata(site.path("state/audit.log")).unwrap().permissions().mode() & 0o777, 0o600);
    // The log of the page has the lines of the process.
    let (code, lines) = own.get("/api/v1/admin/log");
    assert_eq!((code, lines.contains("weir zfs snapshot tank@one")), (200, true), "{lines}");
}
