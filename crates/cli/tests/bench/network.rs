//! Targets behind network protocols: what the client moved is what the server counted; errors say what to do.

use super::{Server, ok, ran, result, weir};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const IQN: &str = "iqn.2000-01.org.example:bench";

/// A pool `t` with the volume `t/vol`, which the value of `weir:iscsi` shares, and the file system `t/files`.
fn pool(folder: &Path, iscsi: &str) {
    let disk = folder.join("disk");
    std::fs::File::create(&disk).unwrap().set_len(400 << 20).unwrap();
    ok(folder, &["zpool", "create", "t", disk.to_str().unwrap()]);
    let shared = format!("weir:iscsi=target={IQN},lun=3,hosts=127.0.0.1{iscsi}");
    ok(folder, &["zfs", "create", "-s", "-V", "64M", "-o", &shared, "t/vol"]);
    ok(folder, &["zfs", "create", "-o", "sharenfs=rw=@127.0.0.1,no_root_squash", "t/files"]);
}

/// Serves the pool; the URLs of the unit and of the file system.
fn serve(folder: &Path) -> (Server, String, String) {
    let ports = ["serve", "--nfs-port", "0", "--nbd-port", "0", "--iscsi-port", "0", "--shared", "t"];
    let mut server = weir(folder, &ports).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let word =
        |start: &str| said.iter().find_map(|line| Some(line[line.find(start)?..].split([' ', ',']).next()?.to_owned()));
    let unit = word("iscsi://").unwrap();
    let port = word("mountport=").unwrap();
    let files = format!("nfs://127.0.0.1:{}/t/files", port.trim_start_matches("mountport="));
    (Server(server), unit, files)
}

/// Bytes read and written over a protocol since the server opened the pool, by `weir top`.
fn counted(folder: &Path, protocol: &str) -> (f64, f64) {
    let text = ok(folder, &["top", "-bp", "t"]);
    let seconds: f64 =
        text.lines().next().unwrap().rsplit("; ").next().unwrap().trim_end_matches(" s").parse().unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with("PROTO"));
    let rows = table.filter(|line| line.starts_with(protocol));
    let sum = |column: usize| -> f64 {
        rows.clone().map(|row| row.split_whitespace().nth(column).unwrap().parse::<f64>().unwrap()).sum()
    };
    (sum(3) * seconds, sum(4) * seconds)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// Checks a result against the server's counters, round by round and in total. `prepared` are the bytes of the test data.
fn agrees_with_the_server(folder: &Path, result: &Value, protocol: &str, prepared: f64) {
    let mut read = 0.0;
    let mut written = prepared;
    for step in result["steps"].as_array().unwrap() {
        let round = &step["rounds"][0];
        let unmeasured = number(&round["figures"]["unmeasured_bytes"]);
        let of_reads = number(&round["read"]["bytes"]);
        let of_writes = number(&round["written"]["bytes"]);
        assert!(of_reads + of_writes > 0.0 && number(&round["latency"]["p99_ns"]) > 0.0, "{step}");
        let counters = round["server"].as_object().unwrap_or_else(|| panic!("the server's counters: {step}"));
        let data = counters.iter().filter(|(name, _)| *name == "written_bytes" || name.starts_with("read_bytes."));
        let server: f64 = data.map(|(_, bytes)| number(bytes)).sum();
        let client = of_reads + of_writes + unmeasured;
        assert!((server - client).abs() <= 0.02 * client, "{server} and {client}: {step}");
        // Only reads, or only writes, in each step of these methods.
        if of_reads > 0.0 { read += client } else { written += client }
    }
    let (counted_read, counted_written) = counted(folder, protocol);
    assert!((counted_read - read).abs() <= 0.02 * read, "{counted_read} and {read} are read");
    assert!((counted_written - written).abs() <= 0.02 * written, "{counted_written} and {written} are written");
}

fn failed(out: &Output, code: i32, says: &str) {
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), text.contains(says)), (Some(code), true), "{says}: {text}");
}

#[test]
fn a_unit_is_measured_over_iscsi_without_fio_and_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder, "");
    let (_server, unit, _) = serve(folder);
    failed(&ran(folder, &["bench", "stream", &unit, "--write", "--size", "16M", "--time", "1"]), 1, "--overwrite");
    ok(folder, &["bench", "quick", &unit, "--overwrite", "--size", "16M", "--time", "1", "-o", "unit"]);
    let result = result(folder, "unit");
    let client = result["client"].as_str().unwrap();
    assert!(client.starts_with("weir ") && client.contains("iSCSI initiator"), "{client}");
    let environment = &result["environment"];
    assert_eq!((environment["engine"].as_str(), environment["fio"].as_str()), (Some("weir-iscsi"), None));
    let ceilings: Vec<&Value> =
        result["ceilings"].as_array().unwrap().iter().filter(|ceiling| ceiling["part"] == "client").collect();
    let loads: Vec<&str> = ceilings.iter().map(|ceiling| ceiling["load"].as_str().unwrap()).collect();
    assert_eq!(loads, ["1M read", "4K read", "1M write", "4K write"]);
    assert!(ceilings.iter().all(|ceiling| number(&ceiling["operations_per_s"]) > 0.0), "{ceilings:?}");
    assert_eq!(result["steps"].as_array().unwrap().len(), 6);
    agrees_with_the_server(folder, &result, "iscsi", 16.0 * f64::from(1 << 20));
}

#[test]
fn a_grid_of_a_unit_is_resumed_and_read_only_without_permission() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder, "");
    let (_server, unit, _) = serve(folder);
    let words = ["bench", "grid", &unit, "--blocks", "512,64K", "--depths", "1,8", "--size", "16M", "--time", "1"];
    ok(folder, &[&words[..], &["--no-ceilings", "-o", "grid"]].concat());
    let result = result(folder, "grid");
    let steps = result["steps"].as_array().unwrap();
    assert!(steps.iter().all(|step| step["workload"]["read_percent"] == 100) && steps.len() == 8, "{}", steps.len());
    agrees_with_the_server(folder, &result, "iscsi", 0.0);
    let warnings = result["warnings"].to_string();
    assert!(warnings.contains("read as found"), "{warnings}");
}

#[test]
fn a_directory_is_measured_over_nfs_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder, "");
    let (_server, _, files) = serve(folder);
    let words = ["bench", "users", &files, "--users", "3", "--size", "24M", "--time", "1", "--no-ceilings"];
    ok(folder, &[&words[..], &["-o", "nfs"]].concat());
    let of_users = result(folder, "nfs");
    assert!(of_users["client"].as_str().unwrap().contains("NFS version 3"), "{}", of_users["client"]);
    assert_eq!(of_users["environment"]["engine"], "weir-nfs3");
    agrees_with_the_server(folder, &of_users, "nfs3", 24.0 * f64::from(1 << 20));
    // The files are gone: a read of one of them has none.
    let read = ran(folder, &["bench", "singlestream", &files, "--size", "4M", "--time", "1", "-o", "one", "--keep"]);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let ceiling = &result(folder, "one")["ceilings"][0];
    assert_eq!((ceiling["part"].as_str(), ceiling["load"].as_str()), (Some("client"), Some("1M read")));
}

#[test]
fn wrong_targets_and_servers_that_do_not_answer_are_clear_errors() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pool(folder, "");
    let (server, unit, files) = serve(folder);
    let changed = |from: &str, to: &str| unit.replace(from, to);
    for (target, says) in [
        (changed("bench", "other"), "there is no such target"),
        (changed("/3", "/9"), "there is no unit 9"),
        (changed("/3", "/x"), "a unit is a number"),
        (changed("iscsi://", "iscsi://anna:secret@"), "readable for every process"),
        (changed("iscsi://", "iscsi://anna@"), "WEIR_BENCH_PASSWORD"),
        (files.replace("/t/files", "/t/absent"), "mount of /t/absent: "),
        (files.replace("/t/files", ""), "no path"),
        ("ftp://host/x".to_owned(), "unknown scheme ftp"),
    ] {
        let out = ran(folder, &["bench", "quick", &target, "--size", "4M", "--time", "1", "-o", "none"]);
        failed(&out, 1, says);
        assert!(!String::from_utf8_lossy(&out.stderr).contains("secret@"), "{says}");
    }
    failed(&ran(folder, &["bench", "frames", &files, "-o", "none"]), 1, "the method frames needs a directory");
    let odd = ["bench", "grid", &unit, "--blocks", "700", "--depths", "1", "--size", "4M", "--time", "1", "-o", "odd"];
    failed(&ran(folder, &odd), 1, "are not whole blocks of the unit");
    failed(&ran(folder, &["bench", "quick", &unit, "--size", "1G", "-o", "none"]), 1, "--size");
    drop(server);
    for target in [&unit, &files] {
        failed(&ran(folder, &["bench", "quick", target, "--size", "4M", "-o", "none"]), 1, "Connection refused");
    }
}

#[test]
fn a_server_that_dies_ends_the_run_with_an_error_and_a_partial_result() {
    for protocol in ["iscsi", "nfs"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        pool(folder, "");
        let (server, unit, files) = serve(folder);
        let target = if protocol == "iscsi" { &unit } else { &files };
        let words = ["bench", "grid", target, "--blocks", "16K", "--depths", "4", "--size", "8M", "--time", "1"];
        let words = [&words[..], &["--rounds", "20", "--no-ceilings", "-o", "run"]].concat();
        let bench = weir(folder, &words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let started = Instant::now();
        while !folder.join("run/result.json").exists() {
            assert!(started.elapsed() < Duration::from_secs(60), "no round ends");
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(server);
        let out = bench.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        let says = ["closed the connection", "Connection refused"].iter().any(|what| text.contains(what));
        assert!(out.status.code() == Some(1) && says && text.contains("127.0.0.1"), "{protocol}: {text}");
        let partial = result(folder, "run");
        assert_eq!(partial["complete"], false);
        assert_eq!(partial["steps"][0]["rounds"].as_array().unwrap().len(), 1);
    }
}

fn with_password(folder: &Path, words: &[&str], password: &str) -> Output {
    weir(folder, words).env("WEIR_BENCH_PASSWORD", password).output().unwrap()
}

#[test]
fn a_unit_with_chap_takes_the_password_from_a_file_or_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut adding = weir(folder, &["user", "add", "anna"]).stdin(Stdio::piped()).spawn().unwrap();
    adding.stdin.take().unwrap().write_all(b"a long secret of anna\n").unwrap();
    assert!(adding.wait().unwrap().success());
    pool(folder, ",chap=anna");
    let (_server, unit, _) = serve(folder);
    let small = |target: &str| {
        ["bench", "stream", target, "--size", "4M", "--time", "1", "--no-ceilings", "-o"].map(str::to_owned).to_vec()
    };
    let named = unit.replace("iscsi://", "iscsi://anna@");
    let words = |target: &str, output: &str| [small(target), vec![output.to_owned()]].concat();
    let run = |words: Vec<String>, password: &str| {
        with_password(folder, &words.iter().map(String::as_str).collect::<Vec<_>>(), password)
    };
    failed(&run(words(&unit, "none"), "a long secret of anna"), 1, "authentication failed");
    failed(&run(words(&named, "none"), "another long secret"), 1, "authentication failed");
    let out = run(words(&named, "by-environment"), "a long secret of anna");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let file = folder.join("password");
    std::fs::write(&file, "a long secret of anna\n").unwrap();
    let with_file = format!("{named}?password-file={}", file.display());
    let out = run(words(&with_file, "by-file"), "");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = std::fs::read_to_string(folder.join("by-file/result.json")).unwrap();
    assert!(!text.contains("long secret"), "a result holds no password");
}

/// Whether programs are installed, and mounts can be made.
fn has_samba() -> bool {
    let programs = ["smbd", "smbclient", "smbcontrol", "pdbedit"];
    let found = programs.iter().all(|program| Command::new(program).arg("--version").output().is_ok());
    let can_mount = super::has_fuse() && rustix::process::getuid().is_root();
    if !found || !can_mount {
        eprintln!("skipped: Samba is not installed, or this user cannot mount");
    }
    found && can_mount
}

#[test]
fn without_smbclient_or_a_server_the_error_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let quick = ran(folder, &["bench", "stream", "smb://127.0.0.1:1/films", "--size", "4M", "-o", "none"]);
    match Command::new("smbclient").arg("--version").output().is_ok() {
        true => failed(&quick, 1, "smb://127.0.0.1:1/films: do_connect: Connection to 127.0.0.1 failed"),
        false => failed(&quick, 1, "smbclient: not found; install it"),
    }
}

#[test]
fn a_share_takes_sequential_streams_and_nothing_else() {
    if !has_samba() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    pool(folder, "");
    ok(folder, &["zfs", "set", "sharesmb=on", "t/files"]);
    let mut adding = weir(folder, &["smb", "user", "add", "ann"]).stdin(Stdio::piped()).spawn().unwrap();
    adding.stdin.take().unwrap().write_all(b"a password\n").unwrap();
    assert!(adding.wait().unwrap().success());
    let ports = ["serve", "--nfs-port", "0", "--nbd-port", "0", "--smb", "--smb-port", "0", "--shared", "t"];
    let mut server = weir(folder, &ports).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let id = rustix::process::Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    let server = Server(server);
    let line = said.iter().find(|line| line.starts_with("smbclient ")).unwrap();
    let port = line.split(' ').nth(2).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).find(|point| Path::new(point).starts_with(folder));
    std::fs::set_permissions(mounted.unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let share = format!("smb://ann@127.0.0.1:{port}/t_files");
    let run = |words: &[&str]| with_password(folder, words, "a password");

    // On a machine that is busy with other tests, logins and stalls of the server take seconds.
    let words = ["bench", "users", &share, "--users", "2", "--size", "32M", "--time", "10", "-o", "smb"];
    let out = run(&words);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let result = result(folder, "smb");
    assert!(result["client"].as_str().unwrap().starts_with("smbclient (Version "), "{}", result["client"]);
    let ceilings = result["ceilings"].as_array().unwrap();
    assert!(ceilings.iter().all(|ceiling| ceiling["part"] != "client"), "there is none of smbclient");
    for step in result["steps"].as_array().unwrap() {
        let round = &step["rounds"][0];
        assert!(number(&round["read"]["bytes"]) + number(&round["written"]["bytes"]) > 0.0, "{step}");
        assert_eq!((&round["latency"], &step["workload"]["depth"]), (&Value::Null, &Value::from(0)));
        assert_eq!(round["series"].as_array().unwrap().len(), 10);
    }
    for (method, says) in
        [("quick", "several operations in flight"), ("grid", "cannot do"), ("list", "needs a directory")]
    {
        failed(
            &run(&["bench", method, &share, "--size", "4M", "-o", "none"][..if method == "list" { 3 } else { 7 }]),
            1,
            says,
        );
    }
    failed(&with_password(folder, &["bench", "stream", &share, "-o", "none"], "wrong"), 1, "NT_STATUS_LOGON_FAILURE");
    // At SIGTERM the server ends its smbd and its mount.
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let Server(child) = &mut { server };
    child.wait().unwrap();
}
