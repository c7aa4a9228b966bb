//! `weir bench` as its user runs it: on a directory, and on a volume that Weir serves over NBD.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "a real server and its client")]

mod dataset;
mod network;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn weir(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).env("WEIR_POOL_DIRS", folder);
    command.env("STATE_DIRECTORY", folder.join("state")).env("RUNTIME_DIRECTORY", folder.join("run"));
    command
}

fn ran(folder: &Path, words: &[&str]) -> Output {
    weir(folder, words).output().unwrap()
}

fn ok(folder: &Path, words: &[&str]) -> String {
    let out = ran(folder, words);
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn has_fio() -> bool {
    let found = Command::new("fio").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: fio is not installed");
    }
    found
}

fn result(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join(name).join("result.json")).unwrap()).unwrap()
}

#[test]
fn methods_print_their_programs_lines_and_leave_results_that_can_be_shown_and_compared() {
    if !has_fio() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("target")).unwrap();
    let stream =
        ok(folder, &["bench", "singlestream", "target", "--size", "16M", "--time", "1", "--no-ceilings", "-o", "one"]);
    let summary = stream.lines().find(|line| line.starts_with("IO Summary: ")).unwrap();
    assert!(summary.contains(" ops/s, (") && summary.ends_with("ms latency"), "{summary}");

    let words =
        ["bench", "loop", "target", "--size", "8M", "--threads", "2", "--iops-time", "1", "--no-ceilings", "-o", "two"];
    let lines = ok(folder, &words);
    for start in ["Sequential Write MB/s: ", "Sequential Read MB/s: ", "IOPS: "] {
        assert!(
            lines.lines().any(|line| line.strip_prefix(start).is_some_and(|n| n.parse::<f64>().unwrap() > 0.0)),
            "{lines}"
        );
    }
    let json = ok(folder, &[&words[..], &["--gobonniego-json", "-o", "three"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["results"][0]["write_bytes"], 8 << 20);

    let shown = ok(folder, &["bench", "show", "one"]);
    assert!(shown.contains("singlestreamread: ") && shown.contains("warning: one operation in flight"), "{shown}");
    let compared = ok(folder, &["bench", "compare", "two", "three/result.json"]);
    assert!(compared.starts_with("three/result.json compared with two\n"), "{compared}");
    // On a machine that is busy with other tests, a run may be unsteady, and is then not compared.
    let verdicts = compared.lines().filter(|line| line.contains("  p "));
    let is_known = |line: &str| line.contains(": too few runs") || line.contains(": not comparable");
    assert!(verdicts.clone().count() >= 6 && verdicts.into_iter().all(is_known), "{compared}");
    ok(folder, &["bench", "report", "one", "two", "-o", "both.html"]);
    assert!(std::fs::read_to_string(folder.join("both.html")).unwrap().ends_with("</html>\n"));
    assert_eq!(std::fs::read_dir(folder.join("target")).unwrap().count(), 0);
}

#[test]
fn invalid_command_lines_and_targets_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("disk"), [1; 4096]).unwrap();
    std::fs::write(folder.join("no.json"), "{}").unwrap();
    for (words, code, says) in [
        (&["bench", "quick", "absent"][..], 1, "absent: No such file or directory"),
        (&["bench", "quick", "nfs://host"], 1, "the form is nfs://HOST"),
        (&["bench", "stream", "disk", "--write", "--size", "4K"], 1, "--overwrite"),
        (&["bench", "grid", ".", "--icf", "no.json"], 1, "no.json: no access specification"),
        (&["bench", "frames", ".", "--format", "yuv12"], 2, "unknown pixel format 'yuv12'"),
        (&["bench", "quick", ".", "--time", "fast"], 2, "a time is a number"),
        (&["bench", "show", "no.json"], 1, "no result of 'weir bench'"),
        (&["bench", "compare", "no.json", "."], 2, "cannot be mixed"),
        (&["bench", "services", "absent"], 1, "absent"),
        (&["bench", "grid", ".", "--depths", "0"], 2, "0 operations in flight: from 1 to"),
        (&["bench", "users", ".", "--users", "99999"], 2, "99999 operations in flight"),
        (&["bench", "fileserver", ".", "--scale", "0"], 2, "a scale of 0 percent"),
        (&["bench", "list", ".", "--listings", "0"], 2, "'0'"),
        (&["bench", "loop", ".", "--threads", "0"], 2, "'0'"),
        (&["bench", "experiments", "--only", "absent"], 2, "there is no experiment 'absent'"),
    ] {
        if says == "--overwrite" && !has_fio() {
            continue;
        }
        let out = ran(folder, words);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), text.contains(says)), (Some(code), true), "{words:?}: {text}");
    }
    assert_eq!(std::fs::read(folder.join("disk")).unwrap(), [1; 4096]);
}

#[test]
fn services_and_listings_need_no_fio() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("sample"), "the quick brown fox ".repeat(50_000)).unwrap();
    let text = ok(folder, &["bench", "services", "sample", "-o", "services"]);
    let zstd = text.lines().find(|line| line.starts_with("zstd: ratio ")).unwrap();
    let ratio: f64 = zstd["zstd: ratio ".len()..].split(',').next().unwrap().parse().unwrap();
    assert!(ratio > 5.0, "{zstd}");
    std::fs::create_dir(folder.join("target")).unwrap();
    ok(folder, &["bench", "list", "target", "--entries", "300", "--listings", "2", "-o", "list"]);
    let figures = &result(folder, "list")["steps"][0]["rounds"][0];
    assert_eq!(figures["read"]["operations"], 600);
    assert!(figures["figures"]["first_listing_seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn ctrl_c_keeps_the_rounds_that_were_measured_and_resume_measures_the_rest() {
    if !has_fio() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("target")).unwrap();
    let words = [
        "bench",
        "grid",
        "target",
        "--blocks",
        "4K",
        "--depths",
        "1,4",
        "--size",
        "8M",
        "--time",
        "1",
        "--no-ceilings",
        "-o",
        "run",
    ];
    let mut bench = weir(folder, &words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !folder.join("run/result.json").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "no round ends");
        std::thread::sleep(Duration::from_millis(50));
    }
    let bench_id = rustix::process::Pid::from_raw(i32::try_from(bench.id()).unwrap()).unwrap();
    rustix::process::kill_process(bench_id, rustix::process::Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    let partial = result(folder, "run");
    let rounds = |value: &Value| -> usize {
        value["steps"].as_array().unwrap().iter().map(|step| step["rounds"].as_array().unwrap().len()).sum()
    };
    assert_eq!(partial["complete"], false);
    assert!((1..8).contains(&rounds(&partial)), "{}", rounds(&partial));
    assert_eq!(std::fs::read_dir(folder.join("target")).unwrap().count(), 0);
    ok(folder, &["bench", "resume", "run"]);
    let whole = result(folder, "run");
    assert_eq!((whole["complete"].as_bool(), rounds(&whole)), (Some(true), 8));
    assert_eq!(whole["steps"][0]["rounds"], partial["steps"][0]["rounds"]);
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _code = self.0.wait();
    }
}

#[test]
fn a_volume_served_over_nbd_is_measured_without_the_kernel() {
    if !has_fio() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let disk = folder.join("disk");
    std::fs::File::create(&disk).unwrap().set_len(300 << 20).unwrap();
    ok(folder, &["zpool", "create", "tank", disk.to_str().unwrap()]);
    ok(folder, &["zfs", "create", "-V", "64M", "tank/vol"]);
    let mut server =
        weir(folder, &["serve", "--nfs-port", "0", "--nbd-port", "0", "tank"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let _server = Server(server);
    let uri = said.iter().find_map(|line| Some(line[line.find("nbd://")?..].split(' ').next()?.to_owned())).unwrap();

    let refused = ran(folder, &["bench", "stream", &uri, "--write", "--size", "16M", "--time", "1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--overwrite"));
    let words = ["bench", "quick", &uri, "--overwrite", "--size", "16M", "--time", "1", "--no-ceilings", "-o", "nbd"];
    ok(folder, &words);
    let result = result(folder, "nbd");
    assert!(result["client"].as_str().unwrap().contains("nbd"));
    for step in result["steps"].as_array().unwrap() {
        let round = &step["rounds"][0];
        assert!(
            round["read"]["operations"].as_u64().unwrap() + round["written"]["operations"].as_u64().unwrap() > 0,
            "{step}"
        );
    }
}

#[test]
fn experiments_are_repeated_on_modelled_hardware() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = ok(folder, &["bench", "experiments", "--modelled", "--only", "G3,G4", "--json", "rows.json"]);
    assert!(text.contains("G3: agrees\n") && text.contains("G4: agrees, -10 %\n"), "{text}");
    assert!(text.ends_with("2 experiments: 2 agree, 0 are explained, 0 differ\n"), "{text}");
    let rows: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
    let rows = rows["experiments"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["id"]).collect::<Vec<_>>(), ["G3", "G4"]);
    for row in rows {
        assert_eq!(row["verdict"], "agrees");
        assert!(row["ours"].as_str().is_some_and(|ours| !ours.is_empty()), "{row}");
    }
    let unknown = ran(folder, &["bench", "experiments", "--only", "G3,Z9"]);
    assert!(!unknown.status.success());
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(message.contains("there is no experiment 'Z9': N0 N1 "), "{message}");
}

/// Whether cuts can be made here: they need a FUSE mount.
fn has_fuse() -> bool {
    let found = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !found {
        eprintln!("skipped: no /dev/fuse");
    }
    found
}

/// Steps of a result by name, each with a figure of its only round.
fn figures(result: &Value, figure: &str) -> Vec<(String, f64)> {
    let steps = result["steps"].as_array().unwrap().iter();
    steps
        .map(|step| {
            assert_eq!(step["rounds"].as_array().unwrap().len(), 1);
            (step["name"].as_str().unwrap().to_owned(), step["rounds"][0]["figures"][figure].as_f64().unwrap())
        })
        .collect()
}

#[test]
fn a_power_cut_loses_flushed_records_with_sync_disabled_only() {
    if !has_fuse() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("target")).unwrap();
    let text =
        ok(folder, &["bench", "powercut", "target", "--through", "nbd", "--time", "3s", "--size", "256M", "-o", "cut"]);
    let result = result(folder, "cut");
    let promised = figures(&result, "promised_records");
    let names: Vec<&str> = promised.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "weir sync=standard, NBD, flushes",
        "weir sync=standard, NBD, no flushes",
        "weir sync=always, NBD, no flushes",
        "weir sync=disabled, NBD, flushes",
    ];
    assert_eq!(names, expected);
    let acknowledged = figures(&result, "acknowledged_records");
    for (name, count) in &promised {
        // Only writers that flush, or a volume that promises each write, are promised something.
        assert_eq!(*count > 0.0, !name.contains("standard, NBD, no flushes"), "{name}: {count}\n{text}");
    }
    assert_eq!(promised[2].1, acknowledged[2].1, "each write is promised");
    for (name, lost) in figures(&result, "lost_promised_records") {
        assert_eq!(lost > 0.0, name.contains("disabled"), "{name}: {lost}\n{text}");
    }
    assert!(figures(&result, "damaged_records").iter().all(|(_, count)| *count == 0.0), "{text}");
    assert!(figures(&result, "served_after_cut").iter().all(|(_, served)| *served == 1.0), "{text}");
    assert!(text.contains("sync=disabled answers flushes before the data are stable"), "{text}");
    assert_eq!(std::fs::read_dir(folder.join("target")).unwrap().count(), 0);
}

#[test]
fn a_power_cut_loses_nothing_that_was_promised_over_any_protocol() {
    if !has_fuse() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("target")).unwrap();
    // Half of the unflushed sectors survive, whatever the order of their writes.
    let words = ["bench", "powercut", "target", "--sync", "standard", "--through", "nfs,iscsi,mount", "--time", "2s"];
    let text = ok(folder, &[&words[..], &["--size", "256M", "--survive", "50", "--seed", "7", "-o", "cut"]].concat());
    let result = result(folder, "cut");
    let lost = figures(&result, "lost_promised_records");
    assert_eq!(lost.len(), 6);
    assert!(lost.iter().all(|(_, count)| *count == 0.0), "{text}");
    for (name, count) in figures(&result, "promised_records") {
        assert_eq!(count > 0.0, !name.ends_with("no flushes"), "{name}: {count}\n{text}");
    }
    assert!(figures(&result, "acknowledged_records").iter().all(|(_, count)| *count > 0.0), "{text}");
    assert!(figures(&result, "served_after_cut").iter().all(|(_, served)| *served == 1.0), "{text}");
}

#[test]
fn a_power_cut_takes_what_a_peer_only_acknowledged() {
    if !has_fuse() {
        return;
    }
    if Command::new("tgtd").arg("--version").output().is_err() {
        eprintln!("skipped: tgt is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("target")).unwrap();
    let words = ["bench", "powercut", "target", "--sync", "none", "--peer", "tgt", "--time", "2s", "--size", "256M"];
    let text = ok(folder, &[&words[..], &["-o", "cut"]].concat());
    let result = result(folder, "cut");
    assert!(figures(&result, "lost_promised_records").iter().all(|(_, lost)| *lost == 0.0), "{text}");
    let lost = figures(&result, "lost_acknowledged_records");
    let acknowledged = figures(&result, "acknowledged_records");
    assert_eq!(lost[1].0, "tgt with write-back, iSCSI, no flushes");
    assert!(lost[1].1 > 0.0 && lost[1].1 == acknowledged[1].1, "nothing was ever flushed\n{text}");
    // Without a write cache each write is promised by the unit itself.
    assert_eq!(acknowledged[2].0, "tgt with write-through, iSCSI, no flushes");
    assert!(acknowledged[2].1 > 0.0 && figures(&result, "promised_records")[2].1 == acknowledged[2].1, "{text}");
}

#[test]
fn mixes_print_filebenchs_line_and_their_scale() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("target")).unwrap();
    for (mix, files) in [("fileserver", "100 of 10000"), ("varmail", "10 of 1000"), ("webserver", "10 of 1000")] {
        let text = ok(folder, &["bench", mix, "target", "--scale", "1", "--threads", "3", "--time", "1s", "-o", mix]);
        let summary = text.lines().find(|line| line.starts_with("IO Summary: ")).unwrap();
        assert!(summary.contains(" r/w), ") && summary.ends_with("ms latency"), "{summary}");
        assert!(text.contains(&format!("{mix}, {files} files, 3 of ")), "{text}");
        let round = &result(folder, mix)["steps"][0]["rounds"][0];
        let count = |field: &str| round[field]["operations"].as_u64().unwrap();
        assert!(
            count("read") > 0 && count("written") > 0 && round["other_operations"].as_u64().unwrap() > 0,
            "{round}"
        );
    }
    let text =
        ok(folder, &["bench", "oltp", "target", "--threads", "2", "--scale", "20", "--time", "1s", "-o", "oltp"]);
    assert!(text.contains("IO Summary: ") && text.contains("oltp, 2 of 10 files, 2 of 200 threads"), "{text}");
    assert_eq!(std::fs::read_dir(folder.join("target")).unwrap().count(), 0);
    let out = ran(folder, &["bench", "varmail", "target", "--scale", "0"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("from 1 to 1000"));
}

#[test]
fn a_result_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["target", "one", "other/2"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for file in ["one/result.json", "other/2/result.json"] {
        std::fs::write(folder.join(file), "an earlier result").unwrap();
    }
    for words in [
        &["bench", "list", "target", "--entries", "10", "-o", "one"][..],
        &["bench", "quick", "target", "-o", "one"],
        &["bench", "compare", "target", "target", "-o", "other"],
    ] {
        let out = ran(folder, words);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{error}");
        assert!(error.contains("holds a result") && error.contains("-o"), "{error}");
    }
    for file in ["one/result.json", "other/2/result.json"] {
        assert_eq!(std::fs::read_to_string(folder.join(file)).unwrap(), "an earlier result");
    }
    assert!(!folder.join("other/1").exists() && std::fs::read_dir(folder.join("one")).unwrap().count() == 1);
    ok(folder, &["bench", "list", "target", "--entries", "10", "-o", "two"]);
    let out = ran(folder, &["bench", "list", "target", "--entries", "10", "-o", "two"]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(result(folder, "two")["complete"], true);
}
