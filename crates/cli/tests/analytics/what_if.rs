//! `weir what-if` on a pool that is served to a real client.

use super::why::{SYNC_WRITES, write_sync};
use super::{Site, has};
use serde_json::Value;

#[test]
fn the_load_that_a_pool_had_is_predicted_with_changes() {
    if !has("qemu-io") {
        println!("skipped: qemu-io is not installed");
        return;
    }
    let site = Site::new();
    let refused = |words: &[&str], code: i32, says: &str| {
        let out = site.weir(&[&["what-if"], words].concat()).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{words:?}: {error}");
        assert!(error.contains(says), "{words:?}: {error}");
    };
    refused(&["--log", "tank"], 1, "are too few to predict anything from");
    refused(&["tank"], 2, "no change to predict");
    refused(&["--log", "none"], 1, "'none'");

    write_sync(&site);
    let changes = ["--log", "--arc", "+64G", "--layout", "single", "--link-now", "1GbE", "--link", "10GbE"];
    let words = [&["what-if", "--drive", "hdd-7k", "--seconds", "0.5"], &changes[..]].concat();
    let answers: Value = serde_json::from_str(&site.ok(&[&words[..], &["-j", "tank"]].concat())).unwrap();
    let measured = &answers["measured"];
    let count = measured["operations_per_second"].as_f64().unwrap() * answers["seconds"].as_f64().unwrap();
    assert_eq!(count.round() as u64, SYNC_WRITES, "{answers}");
    let load = answers["load"].as_str().unwrap();
    assert!(
        load.starts_with("1 client with 1 request at a time of 4 KiB, 0 % reads") && load.contains("stable"),
        "{load}"
    );
    let all = answers["alternatives"].as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["now", "--log", "--arc +64.0G", "--layout single", "--link 10GbE"]);
    assert_eq!(all[0]["pool"], "1 × mirror of 2 × hdd-7k of 0.001 TB");
    assert_eq!(all[3]["pool"], "2 × single of 1 × hdd-7k of 0.001 TB");
    let latency = |one: &Value| one["prediction"]["outcome"]["latency_us"][0].as_f64().unwrap();
    assert!(latency(&all[1]) < latency(&all[0]) / 2.0, "a log device answers sync writes sooner: {answers}");
    assert_eq!(latency(&all[2]), latency(&all[0]), "an ARC does nothing for writes: {answers}");

    let text = site.ok(&[&words[..], &["tank"]].concat());
    for part in
        ["\nmeasured ", "\nnow: the limit is ", "\n--log: ", " × the operations of now; the limit is ", "\nFiles: "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    refused(&["--layout", "raidz1:9", "tank"], 1, "the pool has 2 drives, and a vdev needs 9");
}
