//! What `zpool status`, `import`, `history` and the messages of commands say of pools in trouble.

use super::*;

/// Row C2 of the trial: errors that were repaired are shown, and the pool is not healthy until they are cleared.
#[test]
fn c2_repaired_errors_make_a_pool_unhealthy() {
    use std::os::unix::fs::FileExt;
    let lab = Lab::new();
    let server = lab.serve();
    lab.ok("zfs create p/a");
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    let file = std::fs::File::options().write(true).open(lab.path("d0")).unwrap();
    file.write_all_at(&vec![0xe7; 64 << 20], 4 << 20).unwrap();
    lab.ok("zpool scrub -w p");
    let status = lab.ok("zpool status -x");
    assert!(status.contains(" state: ONLINE\nstatus: One or more devices had errors."), "{status}");
    assert!(status.contains("msg/ZFS-8000-9P\n") && status.contains("errors: No known data errors"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&lab.ok("zpool status -j p")).unwrap();
    assert_eq!(json["pools"]["p"]["msgid"], "ZFS-8000-9P");
    lab.ok("zpool clear p");
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    end(server);
    check(lab.0.path());
}

/// A device that is offline until the next import is shown as offline, and `zpool clear` does not bring it back.
#[test]
fn a_device_is_offline_until_the_next_import() {
    let lab = Lab::new();
    let d1 = lab.path("d1").display().to_string();
    assert!(lab.fails(&format!("zpool offline -t p {d1}")).contains("no process has the pool open"));
    let server = lab.serve();
    lab.ok(&format!("zpool offline -t p {d1}"));
    let is_offline = || {
        let status = lab.ok("zpool status p");
        let line = status.lines().find(|line| line.trim_start().starts_with(&d1)).unwrap().to_owned();
        assert!(line.contains(" OFFLINE ") && status.contains(" state: DEGRADED\nstatus: One or more"), "{status}");
        assert!(status.contains("taken offline by the administrator") && !status.contains("see:"), "{status}");
    };
    is_offline();
    lab.ok("zpool clear p");
    is_offline();
    lab.ok("zfs create p/meanwhile");
    end(server);
    let status = lab.ok("zpool status p");
    assert!(status.contains("(awaiting resilver)") && !status.contains("OFFLINE"), "{status}");
    lab.ok("zpool resilver p");
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    check(lab.0.path());
}

/// As in OpenZFS: `zpool clear` ends the fault, and the device stays offline until `zpool online`.
#[test]
fn a_fault_of_an_offline_device_is_cleared() {
    let lab = Lab::new();
    let d1 = lab.path("d1").display().to_string();
    let server = lab.serve();
    let state = || {
        let status = lab.ok("zpool status p");
        let line = status.lines().find(|line| line.trim_start().starts_with(&d1)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    lab.ok(&format!("zpool offline p {d1}"));
    lab.ok(&format!("zpool offline -f p {d1}"));
    lab.ok(&format!("zpool clear p {d1}"));
    assert_eq!(state(), "OFFLINE");
    lab.ok(&format!("zpool offline -f p {d1}"));
    let warning = lab.ok(&format!("zpool online p {d1}"));
    assert!(warning.contains("onlined, but remains in faulted state\nuse 'zpool clear'"), "{warning}");
    assert_eq!(state(), "FAULTED");
    lab.ok(&format!("zpool clear p {d1}"));
    assert_eq!(state(), "ONLINE");
    end(server);
    check(lab.0.path());
}

/// `zpool offline -f -t` faults a device until the next import; a pass over it is canceled.
#[test]
fn a_device_is_faulted_until_the_next_import() {
    let lab = Lab::new();
    let d1 = lab.path("d1").display().to_string();
    assert!(lab.fails(&format!("zpool offline -ft p {d1}")).contains("no process has the pool open"));
    let server = lab.serve();
    lab.ok(&format!("zpool trim -r 1M p {d1}"));
    lab.ok(&format!("zpool offline -tf p {d1}"));
    let line = |options: &str| {
        let status = lab.ok(&format!("zpool status {options} p"));
        status.lines().find(|line| line.trim_start().starts_with(&d1)).unwrap().to_owned()
    };
    assert!(line("-t").contains(" FAULTED ") && line("-t").contains("(untrimmed)"), "{}", line("-t"));
    assert!(lab.ok(&format!("zpool online p {d1}")).contains("remains in faulted state"));
    lab.ok(&format!("zpool clear p {d1}"));
    assert!(line("").contains(" ONLINE "), "{}", line(""));
    lab.ok(&format!("zpool offline -tf p {d1}"));
    lab.ok("zfs create p/meanwhile");
    end(server);
    assert!(line("").contains("(awaiting resilver)") && !line("").contains("FAULTED"), "{}", line(""));
    lab.ok("zpool resilver p");
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    check(lab.0.path());
}

/// `zdb -l` shows a label whose checksum is wrong, and marks it; `-lll` and `-uuu` show each label.
#[test]
fn labels_with_wrong_checksums_are_shown_and_marked() {
    use std::os::unix::fs::FileExt;
    let lab = Lab::new();
    lab.ok("zpool export p");
    let shown = |options: &str| String::from_utf8(lab.run(&format!("zdb {options} d0")).stdout).unwrap();
    assert_eq!(shown("-lll").matches(" ashift: 12\n").count(), 4, "{}", shown("-lll"));
    let file = std::fs::File::options().write(true).open(lab.path("d0")).unwrap();
    // The configuration ends with its checksum.
    for label in [0, 256 << 10] {
        file.write_all_at(&[0x5a; 32], label + (128 << 10) - 32).unwrap();
    }
    assert_eq!(shown("-l").matches("(Bad label cksum)").count(), 1);
    assert_eq!(shown("-lll").matches("(Bad label cksum)").count(), 2);
    assert_eq!(shown("-lll").matches("    labels = 0 1 2 3 \n").count(), 4);
    let uberblocks = shown("-quuul");
    let lines: Vec<&str> = uberblocks.lines().filter(|line| line.contains("Uberblock[")).collect();
    assert_eq!(lines.len(), 4 * 32, "a ring has 32 places of 4 KiB");
    assert!(lines.iter().any(|line| line.ends_with(" invalid")), "a new pool has not written all of them");
    assert!(lines.iter().filter(|line| !line.ends_with("invalid")).count() % 4 == 0, "{uberblocks}");
    lab.ok("zpool import p");
    check(lab.0.path());
}

/// A stream that was cut off is summed up as far as it goes.
#[test]
fn the_records_of_a_cut_stream_are_counted() {
    let lab = Lab::new();
    lab.ok("zfs snapshot p@s");
    let sent = lab.weir("zfs send p@s").output().unwrap();
    assert!(sent.status.success() && sent.stdout.len() > 4096);
    std::fs::write(lab.path("cut"), &sent.stdout[..sent.stdout.len() - 400]).unwrap();
    let out = lab.run("zstream dump cut");
    let shown = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(shown.contains("\tpayloadlen = 0\n\nSUMMARY:\n"), "the sums follow an empty line: {shown}");
    assert!(lab.run("zstream token").status.code() == Some(2), "a token is missing");
    assert!(lab.fails("zstream token 1-1162e8285b-100789c6360").contains("resume token is corrupt"));
    assert!(shown.contains("Total DRR_BEGIN records = 1 ") && shown.contains("Total DRR_END records = 0 "), "{shown}");
}

/// Row C9 of the trial: the list of pools to import says of a pool without its log what an import does.
#[test]
fn c9_a_pool_without_its_log_is_listed_as_what_it_is() {
    let lab = Lab::new();
    for name in ["d2", "l0"] {
        std::fs::File::create(lab.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let [d2, l0] = ["d2", "l0"].map(|name| lab.path(name).display().to_string());
    lab.ok(&format!("zpool create q {d2} log {l0}"));
    lab.ok("zpool export q");
    let away = tempfile::tempdir().unwrap();
    std::fs::rename(lab.path("l0"), away.path().join("l0")).unwrap();
    let list = lab.ok("zpool import");
    let part = list.split("   pool: ").find(|part| part.starts_with("q\n")).unwrap();
    assert!(part.contains("  state: DEGRADED\n") && part.contains("msg/ZFS-8000-K4"), "{part}");
    assert!(part.contains("The pool can be imported") && part.contains("logs\n"), "{part}");
    lab.ok("zpool import q");
    let status = lab.ok("zpool status -x");
    assert!(status.contains("  pool: q\n state: DEGRADED\n") && status.contains("msg/ZFS-8000-2Q"), "{status}");
}

/// Row C10 of the trial: messages name what the command is about.
#[test]
fn c10_messages_have_the_right_subject() {
    let lab = Lab::new();
    std::fs::File::create(lab.path("d2")).unwrap().set_len(128 << 20).unwrap();
    let [d1, d2] = ["d1", "d2"].map(|name| lab.path(name).display().to_string());
    lab.ok(&format!("zpool create b {d2}"));
    let server = lab.serve();
    let in_use = "is part of active pool 'p', which process";
    let says = |line: &str, part: &str| {
        let said = lab.fails(line);
        assert!(said.contains(part) && !said.contains("panicked"), "{line}: {said}");
    };
    says(&format!("zpool create c {d1}"), in_use);
    says(&format!("zpool add b {d1}"), in_use);
    says(&format!("zpool add b {d2}"), "is part of active pool 'b'");
    lab.ok("zpool export b");
    says("zpool import b 9bad", "cannot import 'b': '9bad' cannot be a pool's name");
    says("zfs create /p/x", "cannot create '/p/x': leading slash in name");
    says("zfs create p/a@b", "cannot create 'p/a@b': snapshot delimiter '@' is not expected here");
    says("zfs create -o special_small_blocks=7K p/x", "invalid 'special_small_blocks=7168'");
    lab.ok("zfs snapshot p@s");
    lab.ok("zfs hold t p@s");
    says("zfs hold t p@s", "cannot hold snapshot 'p@s': tag already exists on this dataset");
    end(server);
}

/// Row C9 of the trial: the status of a device that cannot be opened has the cause; one without labels is not missing.
#[test]
fn c9_devices_that_cannot_be_opened_are_not_missing() {
    let lab = Lab::new();
    let d1 = lab.path("d1");
    let away = tempfile::tempdir().unwrap();
    std::fs::rename(&d1, away.path().join("d1")).unwrap();
    let status = lab.ok("zpool status p");
    assert!(status.contains("msg/ZFS-8000-2Q") && status.contains(&format!("was {}\n", d1.display())), "{status}");
    std::os::unix::fs::symlink("d1", &d1).unwrap();
    let status = lab.ok("zpool status p");
    assert!(status.contains("msg/ZFS-8000-2Q") && status.contains("symbolic links"), "{status}");
    std::fs::remove_file(&d1).unwrap();
    std::fs::File::create(&d1).unwrap().set_len(256 << 20).unwrap();
    let status = lab.ok("zpool status p");
    assert!(status.contains("msg/ZFS-8000-4J") && status.contains(", invalid label\n"), "{status}");
}

#[test]
fn a_status_is_repeated_shortened_and_shows_other_names() {
    let lab = Lab::new();
    let json: serde_json::Value = serde_json::from_str(&lab.ok("zpool status -j p")).unwrap();
    let guid = json["pools"]["p"]["vdevs"]["p"]["vdevs"]["mirror-0"]["guid"].as_str().unwrap().to_owned();
    assert!(lab.ok("zpool status -g p").contains(&format!("\n\t  {guid} ")));
    assert!(lab.ok("zpool status -LP p").contains(&lab.path("d0").canonicalize().unwrap().display().to_string()));
    assert!(!lab.ok("zpool status -e p").contains("mirror-0"));
    let server = lab.serve();
    let twice = lab.ok("zpool status -T u p 0.1 2");
    assert_eq!(twice.matches("  pool: p\n").count(), 2, "{twice}");
    assert!(twice.lines().next().unwrap().parse::<u64>().unwrap() > 1_000_000_000, "{twice}");
    let d1 = lab.path("d1").display().to_string();
    lab.ok(&format!("zpool offline -t p {d1}"));
    let bad = lab.ok("zpool status -e p");
    assert!(bad.contains("mirror-0") && bad.contains("/d1 ") && !bad.contains("/d0 "), "{bad}");
    let out = lab.run("zpool status -T x p");
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(2) && said.contains("-T takes d or u"), "{said}");
    end(server);
}

/// Row C14 of the trial: the history has imports, and -i the events of the pool itself.
#[test]
fn c14_the_history_has_imports_and_internal_events() {
    let lab = Lab::new();
    lab.ok("zfs create p/a");
    lab.ok("zpool export p");
    lab.ok("zpool import p");
    let commands = lab.ok("zpool history p");
    assert!(commands.contains(" zpool import p\n") && !commands.contains("[txg:"), "{commands}");
    assert!(commands.contains(" zpool export p\n"), "{commands}");
    for command in ["zpool scrub -w p", "zpool clear p", "zpool reopen p"] {
        lab.ok(command);
        let lines = lab.ok("zpool history p");
        assert_eq!(lines.matches(&format!(" {command}\n")).count(), 1, "{command}: {lines}");
    }
    let all = lab.ok("zpool history -i p");
    assert!(all.contains("] create p/a (") && !all.contains("unknown"), "{all}");
    assert!(all.contains("] scan setup func=1 mintxg=0 maxtxg=") && all.contains("] scan done errors=0\n"), "{all}");
}

/// A device is replaced, and the new one disappears before the resilver.
#[test]
fn a_replacement_that_is_missing_does_not_await_a_resilver() {
    let lab = Lab::new();
    fill(&lab);
    let path = PathBuf::from(lab.disk("d2", 256));
    at_rest(&lab, async |engine| {
        let root = weir_pool::VdevConfig::parse(&engine.shown().config.root).unwrap();
        let device = root.leaves().iter().find(|leaf| leaf.name().ends_with("d1")).unwrap().guid;
        let new = weir_engine::NewLeaf { path: path.clone(), is_file: true };
        let request = weir_engine::AttachRequest { device, new, replaces: true, ashift: None, force: true };
        engine.vdevs().attach(&request).await.unwrap();
    });
    std::fs::remove_file(&path).unwrap();
    // The resilver ends without it.
    at_rest(&lab, async |engine| drop(engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap()));
    let status = lab.ok("zpool status p");
    assert!(
        status.contains("One or more devices cannot be opened") && !status.contains("begins by itself"),
        "{status}"
    );
}
