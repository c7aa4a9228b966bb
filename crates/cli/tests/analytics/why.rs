//! `weir why` on pools that are served to real clients.

use super::{Site, has, until};
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};
use weir_analytics::why::{Cause, Diagnosis};

/// Writes of the client, each followed by a flush.
pub(super) const SYNC_WRITES: u64 = 200;

/// The diagnosis of the only pool.
pub fn diagnosis(site: &Site, words: &[&str]) -> Diagnosis {
    let mut report: serde_json::Value = serde_json::from_str(&site.ok(&[&["why", "-j"], words].concat())).unwrap();
    assert_eq!(report["diagnoses"].as_array().unwrap().len(), 1, "{report}");
    serde_json::from_value(report["diagnoses"][0].take()).unwrap()
}

/// Writes of 4 KiB at scattered places, each made stable before the next.
pub(super) fn write_sync(site: &Site) {
    let uri = site.said("nbd://");
    let places = (0..SYNC_WRITES).map(|n| n * 37 % 512);
    let commands: String = places.map(|place| format!("write -P 5 {} 4k\nflush\n", place * 65_536)).collect();
    let mut qemu = Command::new("qemu-io");
    let mut qemu = qemu.args(["-f", "raw", &uri]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    qemu.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(qemu.wait().unwrap().success());
}

#[test]
fn sync_writers_without_a_log_device_are_named_and_an_idle_pool_is_well() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    let idle = diagnosis(&site, &["tank"]);
    assert_eq!((idle.requests, idle.findings.len(), idle.subject), (0, 0, None));
    assert!(idle.limit.starts_with("Nothing waits: no request of a client ended in "), "{}", idle.limit);

    write_sync(&site);
    let all = diagnosis(&site, &[]);
    let of_log = |cause: Cause| cause == Cause::SyncWritesWithoutLogDevice;
    let found = all.findings.iter().find(|found| of_log(found.cause)).unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(found.subject, "tank");
    let figure = |name: &str| found.figures[name];
    assert!(figure("writes_and_flushes") >= 2.0 * SYNC_WRITES as f64, "{found:?}");
    assert!(figure("log_commit_percent") >= 30.0 && figure("log_bytes") >= 4096.0 * SYNC_WRITES as f64, "{found:?}");
    assert!(all.requests >= 2 * SYNC_WRITES && all.seconds > 0.0);
    let text = site.ok(&["why", "tank"]);
    assert!(text.starts_with("tank: ") && text.contains("the pool has no log device"), "{text}");

    // A dataset and a client have their own requests, flushes as well; a watch sees only its own time.
    for subject in ["tank/vol", "127.0.0.1"] {
        let of = diagnosis(&site, &[subject]);
        assert_eq!((of.subject.as_deref(), of.requests >= 2 * SYNC_WRITES), (Some(subject), true), "{of:?}");
    }
    let watched = diagnosis(&site, &["-t", "0.3", "tank"]);
    assert_eq!((watched.requests, watched.findings.len()), (0, 0), "{watched:?}");
    assert!(watched.seconds >= 0.3 && watched.seconds < 20.0, "{}", watched.seconds);

    let refused = site.weir(&["why", "other/vol"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("'other'"), "{refused:?}");
    for unknown in ["tnak", "tank/none", "10.0.0.1"] {
        let refused = site.weir(&["why", unknown]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{unknown}");
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains(&format!("'{unknown}' is no open pool")),
            "{refused:?}"
        );
    }
}

/// A report without what depends on the time at which it was made: times, rates and shares of the time. Counts and names stay.
fn timeless(report: &Value) -> Value {
    let digits = |text: &str| text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect::<String>();
    match report {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), timeless_field(name, value))).collect()
        }
        Value::Array(all) => all.iter().map(timeless).collect(),
        // The number of digits changes as well.
        Value::String(text) => digits(text).replace("00", "0").replace("00", "0").replace("0.0", "0").into(),
        other => other.clone(),
    }
}

fn timeless_field(name: &str, value: &Value) -> Value {
    match (name, value) {
        ("seconds" | "weight", _) => Value::Null,
        ("figures", Value::Object(figures)) => figures.keys().cloned().collect(),
        _ => timeless(value),
    }
}

#[test]
fn the_api_answers_what_weir_why_prints() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    write_sync(&site);
    let pairs: [(&[&str], &str); 4] = [
        (&[], ""),
        (&["tank"], "?pool=tank"),
        (&["tank/vol"], "?pool=tank&subject=tank/vol"),
        (&["127.0.0.1"], "?subject=127.0.0.1"),
    ];
    for (words, query) in pairs {
        // The units in a sentence may change between the two.
        let report = until(|| {
            let printed: Value = serde_json::from_str(&site.ok(&[&["why", "-j"], words].concat())).unwrap();
            let (code, body) = site.http().get(&format!("/api/v1/why{query}"));
            assert_eq!(code, 200, "{query}: {body}");
            let answered: Value = serde_json::from_str(&body).unwrap();
            (timeless(&printed) == timeless(&answered)).then_some(answered)
        });
        let of: Diagnosis = serde_json::from_value(report["diagnoses"][0].clone()).unwrap();
        assert_eq!((of.pool.as_str(), of.requests >= SYNC_WRITES), ("tank", true), "{query}: {of:?}");
        assert_eq!(of.subject.as_deref(), query.split("subject=").nth(1));
    }
}

#[test]
fn the_api_refuses_names_that_nothing_has() {
    let site = Site::new();
    let longest = format!("?subject={}", "c".repeat(255));
    let too_long = format!("?pool={}", "c".repeat(256));
    let cases = [
        ("?pool=none", 404, "no pool 'none' open"),
        ("?subject=none/vol", 404, "no pool 'none' open"),
        ("?pool=tank&subject=other/vol", 404, "no dataset of a pool 'other'"),
        ("?pool=", 400, "the parameter pool is empty"),
        ("?subject=", 400, "the parameter subject is empty"),
        ("?subject=a%0Ab", 400, "control character"),
        ("?subject=%00", 400, "control character"),
        ("?pool=tank&pool=tank", 400, "pool"),
        (too_long.as_str(), 400, "has 256 bytes"),
        (longest.as_str(), 404, "had a request since the pools were opened"),
        ("?subject=%3Cscript%3Ealert(1)", 404, "no dataset or client '<script>alert(1)' had a request"),
        ("?pool=tank&subject=10.0.0.1", 404, "no dataset or client '10.0.0.1' had a request"),
    ];
    for (query, code, text) in cases {
        let answer = site.http().raw(&format!("GET /api/v1/why{query} HTTP/1.0"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(head.split(' ').nth(1), Some(code.to_string().as_str()), "{query}: {answer}");
        assert!(head.contains("content-type: application/json") && head.contains("nosniff"), "{head}");
        let said: Value = serde_json::from_str(body).unwrap();
        let said = said.pointer("/error").and_then(Value::as_str);
        assert!(said.is_some_and(|said| said.contains(text)), "{query}: {body}");
        assert_eq!(site.http().method("POST", &format!("/api/v1/why{query}")).0, 405);
    }
}
