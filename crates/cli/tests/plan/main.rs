//! `weir plan` as its user runs it: a small load simulated, and usable space beside the pool that `zpool create` makes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A mirror on flash and a load of a few operations.
const TINY: &str = "[pool]\ndrive = \"nvme\"\ndrive_tb = 0.1\nlayout = \"mirror\"\n[link]\ngbit = 1\n\
                    [workload]\nfile_mib = 4\ndepth = 8\n[prices]\ndrive = 100\ncurrency = \"EUR\"\n";

fn ran(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).env("WEIR_POOL_DIRS", folder);
    command.env("STATE_DIRECTORY", folder.join("state")).env("RUNTIME_DIRECTORY", folder.join("run"));
    command.output().unwrap()
}

fn ok(folder: &Path, words: &[&str]) -> String {
    let out = ran(folder, words);
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_link_of_1_gbit_is_the_limit_and_a_faster_one_is_better() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("slow.toml"), TINY).unwrap();
    std::fs::write(folder.join("fast.toml"), TINY.replace("gbit = 1", "gbit = 10")).unwrap();
    let words = ["plan", "--quick", "--seconds", "0.02", "-j", "slow.toml", "fast.toml"];
    let plans: Value = serde_json::from_str(&ok(folder, &words)).unwrap();
    let [slow, fast] = [&plans[0], &plans[1]];
    assert_eq!(slow["name"], "slow");
    assert_eq!(slow["prediction"]["outcome"]["limit"], "server-link", "{slow}");
    let rate = |plan: &Value| plan["prediction"]["outcome"]["read_mb_s"].as_f64().unwrap();
    assert!((90.0..118.0).contains(&rate(slow)) && rate(fast) > 2.0 * rate(slow), "{} {}", rate(slow), rate(fast));
    assert_eq!((&slow["bill"]["price"], &slow["resilver"]), (&Value::from(200.0), &Value::Null));
    assert_eq!(serde_json::from_str::<Value>(&ok(folder, &words)).unwrap(), plans, "the same seed gives the same plan");

    let text = ok(folder, &["plan", "--quick", "--seconds", "0.02", "slow.toml", "fast.toml"]);
    assert!(text.starts_with("slow: 1 × mirror of 2 × nvme of 0.1 TB\n"), "{text}");
    for line in
        ["limit       the server's network link", "sum         200.00 EUR", "Faster with a faster link of the server"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.lines().any(|line| line.starts_with("slow  ") && line.contains("server's link")), "{text}");

    let words = ["plan", "--seconds", "0.02", "--sweep", "link.gbit=0.5,1,100,200", "slow.toml"];
    let text = ok(folder, &words);
    assert!(text.contains("Knee at link.gbit = ") && text.contains("← knee"), "{text}");
}

#[test]
fn usable_space_is_that_of_the_pool_that_zpool_create_makes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (pool, layout, width, vdevs, drive_tb) in [
        ("a", "raidz1", 5, 1, 1.2),
        ("b", "raidz2", 9, 1, 3.8),
        ("c", "raidz2", 6, 4, 10.0),
        ("d", "raidz2", 10, 2, 3.8),
    ] {
        let mut create = vec!["zpool".to_owned(), "create".into(), "-o".into(), "ashift=12".into(), pool.into()];
        for vdev in 0..vdevs {
            create.push(layout.into());
            for drive in 0..width {
                let path = folder.join(format!("{pool}{vdev}.{drive}"));
                std::fs::File::create(&path).unwrap().set_len((drive_tb * 1e12) as u64 / 4096 * 4096).unwrap();
                create.push(path.display().to_string());
            }
        }
        ok(folder, &create.iter().map(String::as_str).collect::<Vec<_>>());
        let shown = ok(folder, &["zfs", "list", "-Hp", "-o", "used,available", pool]);
        let shown: u64 = shown.split_whitespace().map(|bytes| bytes.parse::<u64>().unwrap()).sum();
        let text = format!(
            "[pool]\ndrive = \"hdd-7k\"\ndrive_tb = {drive_tb}\nlayout = \"{layout}\"\nwidth = {width}\nvdevs = {vdevs}\n\
             [workload]\nfile_mib = 1\n"
        );
        std::fs::write(folder.join("plan.toml"), text).unwrap();
        let plans = ok(folder, &["plan", "--quick", "--seconds", "0.01", "-j", "plan.toml"]);
        let plans: Value = serde_json::from_str(&plans).unwrap();
        for figure in ["usable_bytes", "computed_bytes"] {
            let planned = plans[0]["capacity"][figure].as_u64().unwrap();
            let ratio = planned as f64 / shown as f64;
            assert!((ratio - 1.0).abs() < 0.005, "{pool}: {figure} {planned}, zfs list {shown}");
        }
        // What a resilver reads is the data of the vdev, and not as much from each drive: in none of these pools is an unreadable
        // sector so likely that the plan warns of it.
        let advice = plans[0]["advice"].as_array().unwrap();
        let warns = |text: &Value| text.as_str().unwrap().contains("finds sectors that it cannot read");
        assert!(!advice.iter().any(warns), "{pool}: {advice:?}");
        ok(folder, &["zpool", "destroy", pool]);
    }
}

#[test]
fn invalid_descriptions_and_command_lines_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("tiny.toml"), TINY).unwrap();
    std::fs::write(folder.join("wrong.toml"), TINY.replace("drive_tb", "drive_gb")).unwrap();
    std::fs::write(folder.join("large.toml"), TINY.replace("file_mib = 4", "file_mib = 200000")).unwrap();
    for (words, code, says) in [
        (&["plan"][..], 2, "missing FILE; 'weir plan --example' prints a description"),
        (&["plan", "absent.toml"], 1, "absent.toml: No such file"),
        (&["plan", "wrong.toml"], 1, "wrong.toml: TOML parse error at line 3"),
        (&["plan", "--quick", "large.toml"], 1, "workload.file_mib: the files need 209 GB, and the pool has 9"),
        (&["plan", "--sweep", "vdevs", "tiny.toml"], 2, "is not of the form pool.vdevs=1,2,4"),
        (&["plan", "--sweep", "pool.vdves=1,2", "tiny.toml"], 1, "unknown field `vdves`"),
        (&["plan", "--seconds", "0", "tiny.toml"], 2, "--seconds is between"),
    ] {
        let out = ran(folder, words);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), text.contains(says)), (Some(code), true), "{words:?}: {text}");
    }
    let example = ok(folder, &["plan", "--example"]);
    assert!(example.contains("[pool]") && example.contains("# [costs]"), "{example}");
}
