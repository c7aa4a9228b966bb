//! Long destructions: their progress, and their end between two datasets when the user or the protocol cancels them.

use super::{Lab, wait_ms};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

const DATASETS: usize = 100;

/// A pool with many file systems below `p/a`, each with a snapshot.
fn lab() -> Lab {
    let lab = Lab::new();
    let mut server = lab.serve();
    lab.ok("zfs create p/a");
    let create = |i: usize| lab.weir(&format!("zfs create p/a/{i}")).stdout(Stdio::null()).spawn().unwrap();
    for first in (0..DATASETS).step_by(12) {
        for mut child in (first..(first + 12).min(DATASETS)).map(create).collect::<Vec<_>>() {
            assert!(child.wait().unwrap().success());
        }
    }
    lab.ok("zfs snapshot -r p/a@1");
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    lab.ok("zpool import p");
    lab
}

/// Datasets below `p`, and the snapshots.
fn count(lab: &Lab) -> (usize, usize) {
    let lines = |line: &str| lab.ok(line).lines().count();
    (lines("zfs list -H -o name -r p/a"), lines("zfs list -H -o name -t snapshot -r p/a"))
}

/// Waits until a part of `p/a` is gone.
fn wait_for_a_part(lab: &Lab, before: usize) {
    for _ in 0..1000 {
        if count(lab).0 < before {
            return;
        }
        wait_ms(5);
    }
    panic!("nothing is destroyed");
}

/// Demands that the destruction stopped: what is left has its snapshots, and stays.
fn stopped(lab: &Lab, before: usize) -> usize {
    let (datasets, snapshots) = count(lab);
    assert!(datasets > 1 && datasets < before, "{datasets} of {before} datasets are left");
    assert_eq!(snapshots, datasets, "a dataset goes with its snapshots, or stays with them");
    wait_ms(500);
    assert_eq!(count(lab), (datasets, snapshots));
    datasets
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

fn frame(kind: u8, json: &str) -> Vec<u8> {
    let version: &[u8] = if json.is_empty() { &[] } else { &weir_daemon::admin::VERSION.to_le_bytes() };
    let length = (json.len() + version.len()) as u32;
    [&[kind], &length.to_le_bytes()[..], version, json.as_bytes()].concat()
}

#[test]
fn a_destruction_ends_between_two_datasets_when_it_is_canceled() {
    let lab = lab();
    let mut server = lab.serve();
    let begin = || lab.weir("zfs destroy -r p/a").stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // By Ctrl-C of the user of a served pool.
    let (before, _) = count(&lab);
    assert_eq!(before, DATASETS + 1);
    let client = begin();
    wait_for_a_part(&lab, before);
    interrupt(&client);
    let out = client.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(130), "{error}");
    assert!(error.starts_with("cannot destroy 'p/a': canceled; "), "{error}");
    let before = stopped(&lab, before);
    assert!(error.contains(&format!(" of {} datasets and snapshots are destroyed", 2 * (DATASETS + 1))), "{error}");
    // By the end of a client.
    let mut client = begin();
    wait_for_a_part(&lab, before);
    client.kill().unwrap();
    client.wait().unwrap();
    // The server looks for its client every 200 ms, and completes what it began.
    wait_ms(2000);
    let before = stopped(&lab, before);
    // By a message, which is answered; there is progress before.
    let mut stream = UnixStream::connect(lab.path(&format!("weir/{}.sock", server.id()))).unwrap();
    let what = r#"{"dataset":{"name":"p/a","recursive":true,"dependents":false,"defer":false}}"#;
    let change = format!(r#"{{"change":{{"change":"destroy","what":{what}}}}}"#);
    let json = format!(r#"{{"pool":"p","line":"zfs destroy -r p/a","action":{change}}}"#);
    stream.write_all(&frame(9, &json)).unwrap();
    wait_for_a_part(&lab, before);
    stream.write_all(&frame(13, "")).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains(r#"{"refused":{"kind":"canceled""#), "{answer}");
    let before = stopped(&lab, before);
    // On a pool that no process has open.
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    lab.ok("zpool import p");
    let command = begin();
    let socket = lab.path(&format!("weir/{}.sock", command.id()));
    wait_ms(if socket.exists() { 0 } else { 150 });
    interrupt(&command);
    let out = command.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    // It may have ended, or not have begun to catch the signal.
    assert!(matches!(out.status.code(), Some(0 | 130) | None), "{error}");
    let (left, snapshots) = if out.status.success() { (0, 0) } else { count(&lab) };
    assert!(left <= before && left == snapshots, "{left} datasets, {snapshots} snapshots");
    lab.check();
    if left > 0 {
        lab.ok("zfs destroy -r p/a");
    }
    assert_eq!(lab.ok("zfs list -H -o name"), "p\n");
    let history = lab.ok("zpool history p");
    assert!(history.matches("zfs destroy -r p/a").count() >= 3, "{history}");
    lab.check();
}
