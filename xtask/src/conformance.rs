//! The conformance runs of `cargo xtask test`, some of them side by side: many wait for clients, timers and disks most of
//! the time, while others compute. Runs that compare times follow alone.

use crate::judge::{self, Judge};
use crate::outcomes::Outcomes;
use crate::process::golden;

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

/// Makes the runs of [`SIDE_BY_SIDE`] whose prerequisites exist; the others leave a line with the reason.
pub fn run_side_by_side(judge: &Judge) -> Result<Outcomes, String> {
    let ends = std::thread::scope(|scope| {
        SIDE_BY_SIDE.map(|runs| scope.spawn(move || in_order(judge, runs, true))).map(|thread| thread.join())
    });
    let mut all = Outcomes::default();
    for end in ends {
        all.add(end.unwrap_or_else(|_| Err("a thread that makes conformance runs panicked".to_string()))?);
    }
    Ok(all)
}

/// As [`run_side_by_side`], for the runs of [`ALONE`].
pub fn run_alone(judge: &Judge) -> Result<Outcomes, String> {
    in_order(judge, ALONE, false)
}

/// Makes runs one after the other; labels their lines if others run beside them.
fn in_order(judge: &Judge, runs: &[Run], labelled: bool) -> Result<Outcomes, String> {
    let mut all = Outcomes::default();
    for (arguments, needs) in runs {
        let name = arguments.join(" ");
        if let Some(reason) = missing(*needs) {
            println!("== judge {name}\nskipped: {reason}");
            all.totals.skipped += 1;
            continue;
        }
        let label = if labelled { format!("{}: ", arguments[0]) } else { String::new() };
        let (totals, succeeded) = judge.run(arguments, &label, &mut all.failures)?;
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
