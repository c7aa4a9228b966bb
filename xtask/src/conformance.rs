//! The conformance runs of `cargo xtask test`, some of them side by side: many wait for clients, timers and disks most of
//! the time, while others compute. Runs that compare times follow alone.

use crate::failures::Failures;
use crate::judge::{self, Build, Judge};
use crate::process::{Totals, golden};

/// A conformance run: its arguments, and what it cannot do without.
type Run = (&'static [&'static str], Needs);

/// Runs that are made one after the other, each list beside the other. They take about the same time.
const SIDE_BY_SIDE: [&[Run]; 2] = [
    &[
        (&["golden", "--via", "engine"], Needs::Golden),
        (&["golden", "--via", "nfs"], Needs::Golden),
        (&["golden", "--via", "fuse"], Needs::Golden),
        (&["golden-rw", "--short"], Needs::Both),
        (&["readers"], Needs::Golden),
        (&["streams"], Needs::Golden),
        (&["bcc"], Needs::Both),
        (&["old-pools"], Needs::Tools),
        (&["iscsi", "--short"], Needs::Nothing),
        (&["suites"], Needs::Nothing),
        (&["zts", "--short"], Needs::Tools),
        (&["smb"], Needs::Nothing),
        (&["rescue"], Needs::Golden),
    ],
    &[
        (&["guest"], Needs::Nothing),
        (&["csi"], Needs::Nothing),
        (&["replicate"], Needs::Nothing),
        (&["object"], Needs::Nothing),
        (&["kill", "5"], Needs::Nothing),
        (&["kill-serve", "3"], Needs::Nothing),
    ],
];

/// Runs that compare times: nothing runs beside them.
const ALONE: &[Run] =
    &[(&["faults"], Needs::Nothing), (&["hostile-clients"], Needs::Nothing), (&["clients"], Needs::Nothing)];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    Golden,
    Tools,
    Both,
}

/// Results of runs.
#[derive(Default)]
pub struct Done {
    /// Their cases. A run that was left out is one skipped case.
    pub totals: Totals,
    /// Names of the runs that failed.
    pub failed_runs: Vec<String>,
}

impl Done {
    fn add(&mut self, other: Done) {
        self.totals.add(other.totals);
        self.failed_runs.extend(other.failed_runs);
    }
}

/// Makes all runs whose prerequisites exist; the others leave a line with the reason. `failures` collects the lines about
/// failed cases.
pub fn run(failures: &mut Failures) -> Result<Done, String> {
    let judge = Judge::build(Build::WithTests, true)?;
    let ends = std::thread::scope(|scope| {
        let start = |runs| {
            let judge = &judge;
            scope.spawn(move || {
                let mut failures = Failures::default();
                let done = in_order(judge, runs, true, &mut failures)?;
                Ok((done, failures))
            })
        };
        SIDE_BY_SIDE.map(start).map(|thread| thread.join())
    });
    let mut all = Done::default();
    for end in ends {
        let end: Result<(Done, Failures), String> =
            end.unwrap_or_else(|_| Err("a thread that makes conformance runs panicked".to_string()));
        let (done, seen) = end?;
        all.add(done);
        failures.append(&seen);
    }
    all.add(in_order(&judge, ALONE, false, failures)?);
    Ok(all)
}

/// Makes runs one after the other; labels their lines if others run beside them.
fn in_order(judge: &Judge, runs: &[Run], labelled: bool, failures: &mut Failures) -> Result<Done, String> {
    let mut all = Done::default();
    for (arguments, needs) in runs {
        let name = arguments.join(" ");
        if let Some(reason) = missing(*needs) {
            println!("== judge {name}\nskipped: {reason}");
            all.totals.skipped += 1;
            continue;
        }
        let label = if labelled { format!("{}: ", arguments[0]) } else { String::new() };
        let (totals, succeeded) = judge.run(arguments, &label, failures)?;
        all.totals.add(totals);
        if !succeeded {
            all.failed_runs.push(format!("judge {name}"));
        }
    }
    Ok(all)
}

/// Why a run cannot be made here.
fn missing(needs: Needs) -> Option<&'static str> {
    if matches!(needs, Needs::Golden | Needs::Both) && golden().is_none() {
        return Some("no golden pools (set WEIR_GOLDEN to their folder)");
    }
    if matches!(needs, Needs::Tools | Needs::Both) && judge::tools().is_none() {
        return Some("OpenZFS's tools are missing (cargo xtask judge --fetch)");
    }
    None
}
