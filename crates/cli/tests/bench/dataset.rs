//! Datasets of a pool that `weir bench` opens itself: their figures, their result, and what is refused.

use super::{Server, ok, ran, result, weir};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// A pool `t` of 400 MiB with the file system `t/films` and the volume `t/vol`.
fn pool(folder: &Path) {
    let disk = folder.join("disk");
    std::fs::File::create(&disk).unwrap().set_len(400 << 20).unwrap();
    ok(folder, &["zpool", "create", "t", disk.to_str().unwrap()]);
    ok(folder, &["zfs", "create", "-o", "recordsize=32K", "t/films"]);
    ok(folder, &["zfs", "create", "-s", "-V", "64M", "t/vol"]);
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// Checks that the engine counted in each round the bytes that the client moved.
fn agrees_with_the_engine(result: &Value) {
    for step in result["steps"].as_array().unwrap() {
        let round = &step["rounds"][0];
        let client = number(&round["read"]["bytes"])
            + number(&round["written"]["bytes"])
            + number(&round["figures"]["unmeasured_bytes"]);
        let counters = round["server"].as_object().unwrap_or_else(|| panic!("the engine's counters: {step}"));
        let data = counters.iter().filter(|(name, _)| *name == "written_bytes" || name.starts_with("read_bytes."));
        let engine: f64 = data.map(|(_, bytes)| number(bytes)).sum();
        assert!(client > 0.0 && (engine - client).abs() <= 0.02 * client, "{engine} and {client}: {step}");
    }
}

#[test]
fn a_file_system_is_measured_without_fio_mount_and_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder);
    let disk = folder.join("disk");
    let fragmentation = ok(folder, &["zpool", "list", "-Hpo", "frag", "t"]).trim().to_owned();
    let words = ["bench", "stream", "t/films", "--size", "16M", "--time", "2", "--arc-max", "40M", "-o", "stream"];
    let text = ok(folder, &[&words[..], &["-d", disk.to_str().unwrap()]].concat());
    assert!(text.contains("stream on t/films, weir ") && text.contains(", in process: "), "{text}");
    let stream = result(folder, "stream");
    agrees_with_the_engine(&stream);
    let environment = &stream["environment"];
    for (key, value) in [
        ("dataset", "t/films"),
        ("dataset.recordsize", "32768"),
        ("engine", "weir-in-process"),
        ("arc_max_bytes", "41943040"),
        ("age", "not aged"),
    ] {
        assert_eq!(environment[key], value, "{key}: {environment}");
    }
    let before = environment["pool.fragmentation_percent"].as_str().unwrap();
    assert_eq!(fragmentation, before, "that of zpool list: {environment}");
    let ceilings = stream["ceilings"].as_array().unwrap();
    let client = ceilings.iter().find(|ceiling| ceiling["part"] == "client").unwrap();
    assert_eq!(client["load"], "128K read");
    assert!(number(&client["operations_per_s"]) > 100.0, "{client}");

    for words in [
        &["bench", "grid", "t/films", "--blocks", "4K", "--depths", "1,8", "--size", "16M", "--time", "1"][..],
        &["bench", "loop", "t/films", "--size", "16M", "--threads", "2", "--iops-time", "1"],
        &["bench", "quick", "t/films", "--size", "16M", "--time", "1"],
    ] {
        ok(folder, &[words, &["--no-ceilings", "-o", words[1]]].concat());
        agrees_with_the_engine(&result(folder, words[1]));
    }
    let words = ["bench", "frames", "t/films", "--resolution", "ntsc", "--format", "yuv8", "--size", "7M"];
    ok(folder, &[&words[..], &["-o", "frames"]].concat());
    let frames = result(folder, "frames");
    for step in frames["steps"].as_array().unwrap() {
        assert_eq!(
            number(&step["rounds"][0]["read"]["operations"]) + number(&step["rounds"][0]["written"]["operations"]),
            10.0
        );
    }
    // The test files are gone, and the pool is closed in order.
    let list = ok(folder, &["zfs", "list", "-Hpo", "usedbydataset", "t/films"]);
    assert!(list.trim().parse::<u64>().unwrap() < 1 << 20, "{list}");
    assert!(ok(folder, &["zpool", "status", "t"]).contains("No known data errors"));
}

#[test]
fn a_volume_is_overwritten_only_with_permission() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder);
    for (words, code, says) in [
        (&["bench", "stream", "t/vol", "--write", "--size", "16M"][..], 1, "--overwrite"),
        (
            &["bench", "frames", "t/vol", "--size", "16M", "--overwrite"],
            1,
            "t/vol: the method frames needs a file system",
        ),
        (&["bench", "list", "t/films"], 1, "t/films: the method list needs a directory: mount the dataset first"),
        (&["bench", "stream", "t/none"], 1, "t/none"),
        (
            &["bench", "stream", "absent/x"],
            1,
            "absent/x: No such file or directory; as a dataset: cannot open 'absent': no such pool",
        ),
        (&["bench", "stream", "t/films", "--arc-max", "1M"], 2, "--arc-max takes a size of at least 32M"),
        (&["bench", "stream", ".", "--arc-max", "64M"], 2, ". is no dataset: --arc-max is for a dataset"),
        (&["bench", "stream", "t/films", "--size", "1G"], 1, "choose less with --size"),
    ] {
        let out = ran(folder, words);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), text.contains(says)), (Some(code), true), "{words:?}: {text}");
    }
    let words =
        ["bench", "quick", "t/vol", "--overwrite", "--size", "16M", "--time", "1", "--no-ceilings", "-o", "vol"];
    ok(folder, &words);
    let volume = result(folder, "vol");
    assert_eq!(volume["steps"].as_array().unwrap().len(), 6);
    agrees_with_the_engine(&volume);
    // A directory of the dataset's name is the target, unless -d says otherwise.
    std::fs::create_dir_all(folder.join("t/films")).unwrap();
    ok(folder, &["bench", "list", "t/films", "--entries", "10", "--listings", "1", "-o", "path"]);
    assert_eq!(result(folder, "path")["environment"]["dataset"], Value::Null);
}

#[test]
fn a_pool_that_another_process_serves_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder);
    let ports = ["serve", "--nfs-port", "0", "--nbd-port", "0", "t"];
    let mut server = weir(folder, &ports).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line == "ready"));
    let server = Server(server);
    let out = ran(folder, &["bench", "stream", "t/films", "--size", "16M", "--time", "1"]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let says = format!("t/films: a process (process {}) has the pool open; measure the dataset through", server.0.id());
    assert_eq!((out.status.code(), text.contains(&says)), (Some(1), true), "{text}");
}

#[test]
fn a_pool_is_filled_fragmented_and_aged_before_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder);
    let words = ["bench", "stream", "t/films", "--size", "1M", "--threads", "1", "--time", "1", "--no-ceilings"];
    let state = ["--fill", "40", "--fragment", "50", "--age", "1s"];
    let out = ran(folder, &[&words[..], &state, &["-o", "first"]].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("% filled") && said.contains(" overwritten in random"), "{said}");
    let fact = |name: &str, key: &str| result(folder, name)["environment"][key].as_str().unwrap().to_owned();
    let percent = |name: &str, key: &str| fact(name, key).parse::<i64>().unwrap();
    assert!((38..=42).contains(&percent("first", "pool.fill_percent")), "{said}");
    assert!((50..=65).contains(&percent("first", "pool.fragmentation_percent")), "{said}");
    assert_eq!(percent("first", "pool.wanted_fragmentation_percent"), 50);
    let age = fact("first", "age");
    assert!(age.starts_with("1 s: ") && age.ends_with(" overwritten in random records of 16K"), "{age}");
    let datasets = ok(folder, &["zfs", "list", "-Ho", "name"]);
    assert_eq!(datasets.lines().collect::<Vec<_>>(), ["t", "t/films", "t/vol"], "the filler is gone");

    // With --keep, zpool list shows the prepared state, and the next benchmark begins with it.
    ok(folder, &[&words[..], &["--fill", "50", "--keep", "-o", "second"]].concat());
    let list = ok(folder, &["zpool", "list", "-Hpo", "cap,frag", "t"]);
    let shown: Vec<i64> = list.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!((shown[0] - percent("second", "pool.fill_percent")).abs() <= 1, "{list}");
    // The load fragments, too: on a busy machine it writes more txgs.
    assert!((shown[1] - percent("second", "pool.fragmentation_percent")).abs() <= 10, "{list}");
    assert_eq!(fact("second", "age"), "not aged");
    ok(folder, &[&words[..], &["-o", "third"]].concat());
    assert!((49..=51).contains(&percent("third", "pool.fill_percent")));

    // Other holes need other records than those that were kept.
    ok(folder, &[&words[..], &["--fill", "50", "--fragment", "60", "-o", "fourth"]].concat());
    assert!((48..=52).contains(&percent("fourth", "pool.fill_percent")));
    assert!((60..=75).contains(&percent("fourth", "pool.fragmentation_percent")));
    let datasets = ok(folder, &["zfs", "list", "-Ho", "name"]);
    assert_eq!(datasets.lines().count(), 3, "{datasets}");

    let words = ["bench", "stream", "t/films", "--fill", "90", "--fragment", "70", "--size", "1M"];
    let out = ran(folder, &words);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && said.contains("70 % at 90 % fill is out of reach"), "{said}");
}

#[test]
fn ctrl_c_ends_the_preparation_and_closes_the_pool() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder);
    let words = ["bench", "stream", "t/films", "--size", "1M", "--fill", "20", "--age", "1h", "-o", "run"];
    let mut bench = weir(folder, &words).stderr(Stdio::piped()).spawn().unwrap();
    // The signal shall stop the preparation: it is sent once it no longer kills the process.
    let status = format!("/proc/{}/status", bench.id());
    let catches = || {
        let text = std::fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << 1 != 0
    };
    while !catches() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let code = bench.wait().unwrap().code();
    let said = std::io::read_to_string(bench.stderr.take().unwrap()).unwrap();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("stopped before the first round"), "{said}");
    assert!(!folder.join("run/result.json").exists());
    let datasets = ok(folder, &["zfs", "list", "-Ho", "name"]);
    assert_eq!(datasets.lines().collect::<Vec<_>>(), ["t", "t/films", "t/vol"]);
}
