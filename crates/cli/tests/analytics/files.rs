//! Bytes by file, of a file system that is served to a real client of NFS.

use super::{Site, has, number, until};
use serde_json::Value;
use std::process::{Command, Stdio};

const BYTES: u64 = 3 << 20;
const DATASET: &str = "tank/docs";

/// The address of a file for libnfs.
fn url(site: &Site, name: &str) -> String {
    let line = site.lines.iter().find(|line| line.contains("mountport=")).unwrap();
    let port = |start: &str| {
        let digits = line[line.find(start).unwrap() + start.len()..].split(|c: char| !c.is_ascii_digit());
        digits.into_iter().next().unwrap().to_owned()
    };
    format!("nfs://127.0.0.1/{DATASET}/{name}?nfsport={}&mountport={}", port(",port="), port("mountport="))
}

fn read(site: &Site, name: &str) {
    let mut cat = Command::new("nfs-cat");
    assert!(cat.arg(url(site, name)).stdout(Stdio::null()).status().unwrap().success());
}

fn file<'a>(files: &'a Value, path: &str) -> Option<&'a Value> {
    files["rows"].as_array()?.iter().find(|row| row["path"] == path)
}

#[test]
fn files_are_found_with_their_bytes_and_their_clients() {
    if !has_libnfs() {
        println!("skipped: nfs-cp is not installed");
        return;
    }
    let site = Site::of(&["mirror"], 2, &[DATASET], &["--rw", "127.0.0.0/8", "--no-root-squash"]);
    let source = site.folder.path().join("source");
    std::fs::write(&source, vec![7; BYTES as usize]).unwrap();
    for name in ["film", "note"] {
        assert!(
            Command::new("nfs-cp").arg(&source).arg(url(&site, name)).stdout(Stdio::null()).status().unwrap().success()
        );
    }
    (0..2).for_each(|_| read(&site, "film"));
    let get = |path: &str| serde_json::from_str::<Value>(&site.http().get(path).1).unwrap();
    let files = get("/api/v1/pools/tank/files");
    let film = file(&files, "/film").unwrap();
    assert_eq!(
        ["dataset", "protocol", "client"].map(|name| film[name].as_str().unwrap()),
        [DATASET, "nfs3", "127.0.0.1"]
    );
    let counts = |row: &Value| ["read_bytes", "written_bytes"].map(|name| number(&row["counted"], name));
    assert_eq!((counts(film), number(film, "error_bytes")), ([2 * BYTES, BYTES], 0), "{files}");
    assert_eq!(counts(file(&files, "/note").unwrap()), [0, BYTES]);
    assert_eq!(number(&files["unlisted"], "requests"), 0, "{files}");

    // The command has the same files, those with the most bytes first.
    let top = site.ok(&["top", "-bfp", "tank"]);
    let rows: Vec<&str> = top.lines().filter(|line| line.contains(DATASET)).collect();
    assert!(rows[0].ends_with("/film") && rows[1].ends_with("/note"), "{top}");
    let written = site.ok(&["top", "-bf", "-s", "write", "tank"]);
    assert!(written.contains("ERROR/S") && written.contains("/film"), "{written}");
    assert!(!site.weir(&["top", "-bf", "-s", "device", "tank"]).output().unwrap().status.success());

    // The live stream has each byte in one second. The path comes as soon as it was looked up.
    let mut live = site.http().open("/api/v1/live");
    assert!(live.event().is_some());
    read(&site, "film");
    let mut seen = 0;
    until(|| {
        let event: Value = serde_json::from_str(&live.event()?).unwrap();
        let rows = event[0]["files"]["rows"].as_array().unwrap();
        let of_film = rows.iter().find(|row| row["object"] == film["object"] && row["objset"] == film["objset"]);
        seen += of_film.map_or(0, |row| counts(row)[0]);
        (seen >= BYTES).then_some(())
    });
    assert_eq!(seen, BYTES);
    until(|| {
        read(&site, "note");
        let event: Value = serde_json::from_str(&live.event()?).unwrap();
        file(&event[0]["files"], "/note").map(drop)
    });

    assert_eq!(site.http().get("/api/v1/pools/none/files").0, 404);
}

/// A volume is one object: its row has no path of a file.
#[test]
fn a_volume_is_listed_as_one() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    site.use_volume();
    let files: Value = serde_json::from_str(&site.http().get("/api/v1/pools/tank/files").1).unwrap();
    let row = file(&files, "(volume)").unwrap();
    assert_eq!(
        (row["dataset"].as_str(), number(&row["counted"], "written_bytes")),
        (Some("tank/vol"), super::WRITTEN_BYTES)
    );
}

/// nfs-cp has no option that only prints.
fn has_libnfs() -> bool {
    Command::new("nfs-cp").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
