//! Streams as files: a download is what `zfs send` writes, an upload makes the same dataset, and one that ends early changes nothing.

use super::http::Http;
use super::screens::Page;
use super::{Site, act, has, order, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::{Command, Stdio};

/// Header line of an upload.
const STREAM: &str = "Content-Type: application/octet-stream\r\n";
const RECEIVE: &str = "/api/v1/admin/receive";

/// The output of a command as bytes.
fn bytes_of(site: &Site, line: &str) -> Vec<u8> {
    let out = site.command(line).output().unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// Commands of qemu-io on a volume; what it printed.
fn qemu(site: &Site, volume: &str, commands: &str) -> String {
    site.ok(&format!("zfs set weir:nbd=on {volume}"));
    let status: Value = serde_json::from_str(&site.ok("daemon status -j")).unwrap();
    let address = status["protocols"]["nbd"]["address"].as_str().unwrap();
    let mut qemu = Command::new("qemu-io");
    let qemu =
        qemu.args(["-f", "raw", &format!("nbd://{address}/{volume}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut qemu = qemu.spawn().unwrap();
    qemu.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let out = qemu.wait_with_output().unwrap();
    assert!(out.status.success());
    site.ok(&format!("zfs set weir:nbd=off {volume}"));
    String::from_utf8(out.stdout).unwrap()
}

/// A pool with a volume of two snapshots.
fn site() -> Site {
    let site = Site::new(1, "");
    std::fs::File::options().write(true).open(site.disk(0)).unwrap().set_len(512 << 20).unwrap();
    site.ok("zpool create tank d0");
    site.ok("zfs create -V 16M tank/v");
    qemu(&site, "tank/v", "write -P 7 0 4M\nflush\n");
    site.ok("zfs snapshot tank/v@one");
    qemu(&site, "tank/v", "write -P 9 1M 2M\nflush\n");
    site.ok("zfs snapshot tank/v@two");
    site
}

/// The address of a download, with the confirmation of its dry run.
fn confirmed(http: &Http, action: &Value) -> String {
    let (code, dry) = order(http, "preview", &json!({ "action": action }));
    assert_eq!(code, 200, "{dry}");
    assert!(dry["shown"][0]["text"].as_str().unwrap().contains("estimated size"), "{dry}");
    let fields = action.as_object().unwrap().iter().filter(|(name, _)| *name != "do");
    let fields =
        fields.map(|(name, value)| format!("{name}={}", value.as_str().map_or(value.to_string(), str::to_owned)));
    let fields = fields.collect::<Vec<_>>().join("&").replace('@', "%40").replace('/', "%2F");
    format!("/api/v1/admin/send?{fields}&confirmation={}", dry["confirmation"].as_str().unwrap())
}

/// Uploads; the code and the answer.
fn upload(http: &Http, name: &str, stream: &[u8]) -> (u16, Value) {
    let (code, body) = http.post_bytes(&format!("{RECEIVE}?dataset={name}"), STREAM, stream);
    (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

fn guid(site: &Site, name: &str) -> String {
    site.ok(&format!("zfs get -Hp -o value guid {name}"))
}

#[test]
fn a_download_is_the_stream_and_an_upload_makes_the_same_dataset() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = site();
    let own = site.http();
    for (action, line) in [
        (json!({"do": "send", "snapshot": "tank/v@one"}), "zfs send tank/v@one"),
        (
            json!({"do": "send", "snapshot": "tank/v@two", "from": "tank/v@one", "as_stored": true}),
            "zfs send -Lec -i tank/v@one tank/v@two",
        ),
        (json!({"do": "send", "snapshot": "tank/v@two", "recursive": true}), "zfs send -R tank/v@two"),
    ] {
        let address = confirmed(&own, &action);
        let (head, stream) = own.get_bytes(&address);
        assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{head}");
        let file = action["snapshot"].as_str().unwrap().replace('/', "-");
        assert!(head.contains(&format!("attachment; filename=\"{file}.zfs\"")), "{head}");
        assert!(stream == bytes_of(&site, line), "{line}: {} bytes", stream.len());
        let audited = site.audited();
        assert_eq!(audited["command"], format!("weir {line}"));
        assert_eq!(audited["result"], format!("done: {} bytes", stream.len()));
        // The confirmation was for this time.
        assert!(own.get_bytes(&address).0.contains(" 409"));
    }

    let whole = bytes_of(&site, "zfs send tank/v@one");
    let (code, done) = upload(&own, "tank/w", &whole);
    assert_eq!(
        (code, &done["command"], &done["bytes"]),
        (200, &json!("weir zfs receive tank/w"), &json!(whole.len())),
        "{done}"
    );
    assert_eq!(site.audited()["result"], format!("done: {} bytes", whole.len()));
    assert_eq!(guid(&site, "tank/w@one"), guid(&site, "tank/v@one"));
    let changes = bytes_of(&site, "zfs send -i tank/v@one tank/v@two");
    assert_eq!(upload(&own, "tank/w", &changes).0, 200);
    let read = qemu(&site, "tank/w", "read -P 7 0 1M\nread -P 9 1M 2M\nread -P 7 3M 1M\nread -P 0 4M 12M\n");
    assert!(read.matches("read ").count() == 4 && !read.contains("failed"), "{read}");
    // A package is received as a whole, into a name of its own.
    let package = bytes_of(&site, "zfs send -R tank/v@two");
    assert_eq!(upload(&own, "tank/x", &package).0, 200);
    assert_eq!(site.ok("zfs list -H -t snapshot -o name tank/x"), "tank/x@one\ntank/x@two\n");
}

#[test]
fn a_stream_that_ends_early_or_goes_nowhere_changes_nothing() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = site();
    let own = site.http();
    let before = site.ok("zfs list -Hp -t all -o name,guid,referenced -r tank");
    let unchanged = || assert_eq!(site.ok("zfs list -Hp -t all -o name,guid,referenced -r tank"), before);
    let whole = bytes_of(&site, "zfs send tank/v@one");
    for len in [0, 100, 312, whole.len() / 2, whole.len() - 1] {
        let (code, why) = upload(&own, "tank/w", &whole[..len]);
        assert!(code == 422 && !why["error"].as_str().unwrap().is_empty(), "{len} bytes: {code} {why}");
        unchanged();
    }
    assert!(site.audited()["result"].as_str().unwrap().starts_with("failed after "), "{}", site.audited());
    let mut wrong = whole.clone();
    let middle = wrong.len() / 2;
    wrong[middle] ^= 1;
    assert_eq!(upload(&own, "tank/w", &wrong).0, 422);
    // The client goes away in the middle.
    let lines = site.audit_lines();
    let head = format!("Content-Length: {}\r\n{STREAM}", whole.len());
    let mut stream = own.send(&format!("POST {RECEIVE}?dataset=tank/w HTTP/1.1"), &head);
    stream.write_all(&whole[..whole.len() / 2]).unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    drop(stream);
    until("the command ends", || (site.audit_lines() > lines).then_some(()));
    assert!(site.audited()["result"].as_str().unwrap().starts_with("failed after "), "{}", site.audited());
    unchanged();
    // An existing dataset is not overwritten, and the client reads why although it has more to send.
    let (code, why) = upload(&own, "tank/v", &whole);
    assert!(code == 422 && why["error"].as_str().unwrap().contains("exists"), "{why}");
    for (name, code) in [("tank/none/w", 422), ("-F", 400), ("", 400), ("tank/w&force=true", 400), ("none/w", 422)] {
        assert_eq!(upload(&own, name, &whole).0, code, "{name}");
    }
    unchanged();

    // A download whose client goes away ends, and holds nothing.
    site.ok("zfs create -V 36M -o compression=off tank/big");
    qemu(&site, "tank/big", "write -P 5 0 32M\nflush\n");
    site.ok("zfs snapshot tank/big@a");
    let lines = site.audit_lines();
    let address = confirmed(&own, &json!({"do": "send", "snapshot": "tank/big@a"}));
    let mut stream = own.send(&format!("GET {address} HTTP/1.1"), "");
    stream.read_exact(&mut [0; 10_000]).unwrap();
    drop(stream);
    until("the download ends", || (site.audit_lines() > lines).then_some(()));
    let end = site.audited();
    assert!(end["result"].as_str().unwrap().starts_with("failed after "), "{end}");
    site.ok("zfs destroy -r tank/big");
    let (code, why) = order(&own, "preview", &json!({"action": {"do": "send", "snapshot": "tank/big@a"}}));
    assert_eq!(code, 422, "{why}");
}

#[test]
fn streams_are_for_administrators_and_for_no_other_site() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = site();
    let own = site.http();
    let whole = bytes_of(&site, "zfs send tank/v@one");
    let send = json!({"do": "send", "snapshot": "tank/v@one"});
    for role in ["view", "operate"] {
        let http = own.clone().with_token(site.ok(&format!("daemon token add {role}.1 --role {role}")).trim());
        assert_eq!(order(&http, "preview", &json!({ "action": send })).0, 403);
        assert_eq!(upload(&http, "tank/w", &whole).0, 403);
        assert!(site.audited()["result"].as_str().unwrap().starts_with("refused: "), "{}", site.audited());
        // The confirmation of another token.
        assert!(http.get_bytes(&confirmed(&own, &send)).0.contains(" 403"));
    }
    for address in [
        "/api/v1/admin/send?snapshot=tank/v@one".to_owned(),
        "/api/v1/admin/send?snapshot=tank/v@one&confirmation=00".to_owned(),
        confirmed(&own, &send).replace("one", "two"),
    ] {
        assert!(own.get_bytes(&address).0.contains(" 409"), "{address}");
    }
    assert!(own.get_bytes(&format!("{}&token={}", confirmed(&own, &send), own.token)).0.contains(" 400"));

    // A script of another site can send the cookie at best, and no such type or header.
    let anonymous = own.clone().with_token("");
    let cookie = format!("Cookie: weir_token={}\r\n", own.token);
    let address = format!("{RECEIVE}?dataset=tank/w");
    let of = |headers: &str| anonymous.post_bytes(&address, &format!("{cookie}{headers}"), &whole).0;
    let page = format!("{STREAM}X-Weir-Request: 1\r\n");
    assert_eq!(of(STREAM), 403);
    assert_eq!(of("Content-Type: multipart/form-data\r\nX-Weir-Request: 1\r\n"), 415);
    assert_eq!(of("Content-Type: application/json\r\nX-Weir-Request: 1\r\n"), 415);
    assert_eq!(of(&format!("{page}Origin: http://evil.example\r\n")), 403);
    assert_eq!(of(&format!("{page}Sec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(anonymous.post_bytes(&address, STREAM, &whole).0, 401);
    assert_eq!(own.method("GET", &address).0, 405);
    assert_eq!(site.ok("zfs list -H -o name -r tank"), "tank\ntank/v\n");
    for action in [send, json!({"do": "receive", "dataset": "tank/w"})] {
        let (code, why) = act(&own, action);
        assert!(code == 400 && why["error"].as_str().unwrap().contains("a download or an upload"), "{why}");
    }
    assert_eq!(of(&page), 200);
    assert_eq!(guid(&site, "tank/w@one"), guid(&site, "tank/v@one"));
}

#[test]
fn a_snapshot_is_saved_and_received_on_the_page() {
    if !has("qemu-io") || (!has("chromium-headless-shell") && !has("chromium")) {
        println!("skipped: qemu-io or chromium-headless-shell is not installed");
        return;
    }
    let site = site();
    let mut page = Page::open(&site.url()).unwrap();
    let folder = site.path("saved");
    std::fs::create_dir(&folder).unwrap();
    let behavior = json!({"behavior": "allow", "downloadPath": folder});
    page.browser.call("Browser.setDownloadBehavior", behavior);
    page.go("datasets:tank%2Fv");
    page.click("Save the stream of tank/v@two as a file");
    page.command("weir zfs send tank/v@two");
    page.set("field-from", "tank/v@one");
    page.command("weir zfs send -i tank/v@one tank/v@two");
    page.set("field-from", "");
    page.set("field-form", "as_stored");
    page.command("weir zfs send -Lec tank/v@two");
    assert!(page.preview().contains("estimated size"));
    page.run();
    let wanted = bytes_of(&site, "zfs send -Lec tank/v@two");
    let file = folder.join("tank-v@two.zfs");
    until("the file is saved", || (std::fs::read(&file).ok()? == wanted).then_some(()));

    page.go("datasets:tank");
    page.click("Receive a stream from a file below tank");
    page.set("field-label", "w");
    page.command("weir zfs receive tank/w");
    let document = page.browser.call("DOM.getDocument", json!({}));
    let query = json!({"nodeId": document["root"]["nodeId"], "selector": "#field-file"});
    let input = page.browser.call("DOM.querySelector", query);
    page.browser.call("DOM.setFileInputFiles", json!({"nodeId": input["nodeId"], "files": [&file]}));
    page.run();
    assert_eq!(guid(&site, "tank/w@two"), guid(&site, "tank/v@two"));
    page.until("document.getElementById('done').textContent.startsWith('Done: weir zfs receive tank/w')");
    // Again: the refusal is shown, whole.
    page.click("Receive a stream from a file below tank");
    page.set("field-label", "w");
    page.command("weir zfs receive tank/w");
    page.until(
        "(run => { if (run.disabled) return false; run.click(); return true; })(document.getElementById('action-run'))",
    );
    page.until("document.getElementById('action-error').textContent.includes('No file is chosen')");
    let others: Vec<&String> = page.browser.errors.iter().filter(|error| !error.contains("status of 4")).collect();
    assert!(others.is_empty(), "{others:?}");
}
