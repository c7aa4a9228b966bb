//! Methods on the files of this machine, with the fio that is installed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::Path;
use weir_lab::methods;
use weir_lab::plan::Plan;
use weir_lab::result::RunResult;
use weir_lab::run::run;
use weir_lab::session::{Options, Session, Watcher};

/// Stops after a number of measurements.
struct Stopper {
    left: u32,
    seen: Vec<String>,
}

impl Stopper {
    fn never() -> Self {
        Self { left: u32::MAX, seen: Vec::new() }
    }
}

impl Watcher for Stopper {
    fn prepares(&mut self, what: &str) {
        self.begins(what, None);
    }

    fn begins(&mut self, step: &str, _: Option<f64>) {
        self.seen.push(step.to_owned());
        self.left = self.left.saturating_sub(1);
    }

    fn ticks(&mut self, _: f64) {}

    fn is_cancelled(&self) -> bool {
        self.left == 0
    }

    fn server_counters(&mut self) -> Option<BTreeMap<String, u64>> {
        None
    }
}

fn has_fio() -> bool {
    let found = std::process::Command::new("fio").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: fio is not installed");
    }
    found
}

fn options(folder: &Path) -> Options {
    Options {
        folder: folder.to_path_buf(),
        command: vec!["bench".to_owned()],
        may_overwrite: false,
        keeps_files: false,
        measures_ceilings: false,
        facts: BTreeMap::new(),
    }
}

/// A short plan: one second for each step.
fn short() -> Plan {
    methods::quick(16 << 20, 1, false)
}

#[test]
fn a_run_leaves_its_result_and_job_files_and_nothing_in_the_target() {
    if !has_fio() {
        return;
    }
    let target = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("the user's file"), "stays").unwrap();
    let mut sessions = [Session::new(short(), target.path().to_str().unwrap(), options(folder.path())).unwrap()];
    assert!(run(&mut sessions, 1, &mut Stopper::never()).unwrap());
    let result = RunResult::read(&folder.path().join("result.json")).unwrap();
    assert_eq!(&result, sessions[0].result());
    assert!(result.complete);
    assert_eq!(result.steps.len(), 6);
    for step in &result.steps {
        let round = &step.rounds[0];
        let (read, written) = (round.read.bytes, round.written.bytes);
        assert!(
            if step.workload.read_percent == 100 { read > 0 && written == 0 } else { written > 0 && read == 0 },
            "{step:?}"
        );
        let operations = round.read.operations + round.written.operations;
        assert_eq!(read + written, operations * step.workload.block_bytes);
        let latency = round.latency.as_ref().unwrap();
        assert!(latency.p50_ns > 0);
        if step.workload.sync {
            // One operation in flight: its latency is what the rate allows.
            let share = latency.mean_ns * operations as f64 / (round.seconds * 1e9);
            assert!((0.8..1.05).contains(&share), "{share} of the time is in the latency: {latency:?}");
        }
    }
    assert!(folder.path().join("random-read-4k--32-in-flight.fio").exists());
    let left: Vec<_> = std::fs::read_dir(target.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["the user's file"]);
}

#[test]
fn a_stopped_run_is_valid_and_goes_on_where_it_stopped() {
    if !has_fio() {
        return;
    }
    let target = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let word = target.path().to_str().unwrap();
    let mut sessions = [Session::new(short(), word, options(folder.path())).unwrap()];
    // The preparation, two steps, and the third is cut short.
    let mut stopper = Stopper { left: 4, seen: Vec::new() };
    assert!(!run(&mut sessions, 1, &mut stopper).unwrap());
    let partial = RunResult::read(&folder.path().join("result.json")).unwrap();
    assert!(!partial.complete && partial.warnings.iter().any(|warning| warning.rule == "incomplete"));
    assert_eq!(partial.steps.iter().map(|step| step.rounds.len()).sum::<usize>(), 2);

    let mut again = Session::new(short(), word, options(folder.path())).unwrap();
    again.resume(partial.clone());
    let mut watcher = Stopper::never();
    let mut sessions = [again];
    assert!(run(&mut sessions, 1, &mut watcher).unwrap());
    assert_eq!(watcher.seen.len(), 1 + 4, "{:?}", watcher.seen);
    let whole = RunResult::read(&folder.path().join("result.json")).unwrap();
    assert!(whole.complete && whole.steps.iter().all(|step| step.rounds.len() == 1));
    assert_eq!(whole.steps[0].rounds, partial.steps[0].rounds);
}

#[test]
fn targets_take_turns_in_alternating_order() {
    if !has_fio() {
        return;
    }
    let one = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plan = methods::stream(1, 1, 65_536, false, 8 << 20, 1).unwrap();
    let mut sessions: Vec<Session> = [&one, &other]
        .iter()
        .enumerate()
        .map(|(number, target)| {
            Session::new(
                plan.clone(),
                target.path().to_str().unwrap(),
                options(&folder.path().join(number.to_string())),
            )
            .unwrap()
        })
        .collect();
    assert!(run(&mut sessions, 2, &mut Stopper::never()).unwrap());
    let at =
        |session: &Session| session.result().steps[0].rounds.iter().map(|round| round.at_seconds).collect::<Vec<f64>>();
    let first = at(&sessions[0]);
    let second = at(&sessions[1]);
    assert!(first[0] < second[0] && second[1] < first[1], "{first:?} {second:?}");
}

#[test]
fn data_is_not_written_over_without_permission() {
    if !has_fio() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let word = file.to_str().unwrap();
    let refused =
        Session::new(methods::quick(1 << 20, 1, false), word, options(folder.path())).unwrap_err().to_string();
    assert!(refused.contains("--overwrite"), "{refused}");
    let mut sessions = [Session::new(methods::quick(1 << 20, 1, true), word, options(folder.path())).unwrap()];
    assert!(run(&mut sessions, 1, &mut Stopper::never()).unwrap());
    assert_eq!(sessions[0].result().steps.len(), 3);
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn a_method_that_does_not_fit_is_refused_with_both_sizes() {
    if !has_fio() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let plan = methods::quick(2 << 20, 1, true);
    let refused = Session::new(plan, file.to_str().unwrap(), options(folder.path())).unwrap_err().to_string();
    assert!(refused.contains("1048576") && refused.contains("2097152") && refused.contains("--size"), "{refused}");
}
