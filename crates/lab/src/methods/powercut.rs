//! Cuts of the power below a server: the cases, and what is said about each.

use super::own;
use crate::fio::file_stem;
use crate::plan::{Plan, StepLoad, StepPlan};
use crate::powercut::client::Way;
use crate::powercut::server::{ServerKind, SyncProperty};
use crate::powercut::{Flushes, PATTERN, PowercutLoad};
use crate::result::{RunResult, Step};
use crate::text;

/// Promised records of a step, over its rounds, below which the step proves little.
const FEW_RECORDS: f64 = 50.0;

/// Cases with the same parameters.
#[derive(Debug, Clone)]
pub struct Cases {
    /// Servers, with the ways to each.
    pub servers: Vec<(ServerKind, Vec<Way>)>,
    /// Writers at the same time.
    pub writers: u32,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// Longest time until a cut, in seconds.
    pub seconds: u64,
    /// Seed.
    pub seed: u64,
    /// Percent of the unflushed sectors that survive.
    pub survive_percent: u32,
}

/// Steps for each server and way: with writers that flush, and with writers that do not, where their answers differ.
#[must_use]
pub fn powercut(cases: &Cases) -> Plan {
    let mut steps = Vec::new();
    for (server, ways) in &cases.servers {
        for way in ways {
            for flushes in patterns(server) {
                let name = format!("{server}, {way}, {}", describe(*flushes));
                let load = PowercutLoad {
                    server: server.clone(),
                    way: *way,
                    flushes: *flushes,
                    writers: cases.writers,
                    disk_bytes: cases.disk_bytes,
                    seconds: cases.seconds,
                    seed: cases.seed,
                    survive_percent: cases.survive_percent,
                };
                steps.push(StepPlan { name, load: StepLoad::Powercut(load), claims_disks: false });
            }
        }
    }
    Plan { method: "powercut", steps, data_bytes: 0, data_workers: 1 }
}

/// Where each write is promised, a flush adds nothing; where no flush is kept, only those show it.
fn patterns(server: &ServerKind) -> &'static [Flushes] {
    match server {
        ServerKind::Weir(_, SyncProperty::Always) | ServerKind::Tgt { write_cache: false } => &[Flushes::Never],
        ServerKind::Weir(_, SyncProperty::Disabled) => &[Flushes::Often],
        _ => &[Flushes::Often, Flushes::Never],
    }
}

fn describe(flushes: Flushes) -> &'static str {
    match flushes {
        Flushes::Often => "flushes",
        Flushes::Never => "no flushes",
    }
}

/// Whether a step is a cut.
#[must_use]
pub fn is_cut(step: &Step) -> bool {
    step.workload.pattern == PATTERN
}

/// Whether promises of a step were to be kept: names of steps begin with that of the server.
fn is_kept(step: &Step) -> bool {
    !step.name.contains("sync=disabled")
}

fn sum(step: &Step, name: &str) -> f64 {
    step.rounds.iter().map(|round| own(round, name)).sum()
}

fn largest(step: &Step, name: &str) -> f64 {
    step.rounds.iter().map(|round| own(round, name)).fold(0.0, f64::max)
}

/// Whether a server that promises to keep records has lost some.
#[must_use]
pub fn has_broken_promise(result: &RunResult) -> bool {
    result.steps.iter().any(|step| is_cut(step) && is_kept(step) && sum(step, "lost_promised_records") > 0.0)
}

/// Reasons not to believe a step, or to believe the worst: name of the rule and sentence.
#[must_use]
pub fn warnings(step: &Step) -> Vec<(&'static str, String)> {
    let mut warnings = Vec::new();
    let lost = sum(step, "lost_promised_records");
    if is_kept(step) && lost > 0.0 {
        warnings.push(("promise-broken", format!("{lost} records that were promised to be stable are lost")));
    }
    if step.rounds.iter().any(|round| own(round, "served_after_cut") == 0.0) {
        let file = format!("{}.err", file_stem(&step.name));
        warnings.push(("not-served", format!("after a cut the server did not serve what it had: {file} says why")));
    }
    // Writers that never flush are promised nothing, unless the server promises each write.
    let promised = sum(step, "promised_records");
    if (step.workload.sync || promised > 0.0) && promised < FEW_RECORDS {
        let text = format!("only {promised} records were promised: more rounds or a longer --time would prove more");
        warnings.push(("few-records", text));
    }
    warnings
}

/// A sentence for each step: what was promised, and what the cuts took.
#[must_use]
pub fn advice(result: &RunResult) -> Vec<String> {
    result.steps.iter().filter(|step| is_cut(step) && !step.rounds.is_empty()).map(sentence).collect()
}

fn sentence(step: &Step) -> String {
    let cuts = match step.rounds.len() {
        1 => format!("a cut after {:.1} s", step.rounds[0].seconds),
        many => format!("{many} cuts"),
    };
    let promised = sum(step, "promised_records");
    let acknowledged = sum(step, "acknowledged_records") - promised;
    let lost_promised = sum(step, "lost_promised_records");
    let lost = sum(step, "lost_acknowledged_records");
    let mut parts = Vec::new();
    if promised > 0.0 {
        parts.push(match lost_promised {
            0.0 => format!("none of {promised} records that were promised to be stable is lost"),
            _ => {
                let amount = amount(step, "lost_promised");
                let why = match is_kept(step) {
                    true => "",
                    false => ": sync=disabled answers flushes before the data are stable",
                };
                format!(
                    "{lost_promised} of {promised} records that were promised to be stable are lost ({amount}){why}"
                )
            }
        });
    }
    if acknowledged > 0.0 {
        parts.push(match lost {
            0.0 => format!("none of {acknowledged} that were only acknowledged is lost"),
            _ => {
                let amount = amount(step, "lost_acknowledged");
                format!("{lost} of {acknowledged} that were only acknowledged are lost ({amount})")
            }
        });
    }
    if parts.is_empty() {
        parts.push("nothing was acknowledged".to_owned());
    }
    let damaged = sum(step, "damaged_records");
    if damaged > 0.0 {
        parts.push(format!("{damaged} of the missing left other bytes than zeros in their places"));
    }
    format!("{}: {cuts}: {}", step.name, parts.join("; "))
}

/// Bytes that are missing, and the seconds that they were written in.
fn amount(step: &Step, what: &str) -> String {
    let bytes = text::bytes(sum(step, &format!("{what}_bytes")));
    format!("{bytes}, of the last {}", text::time(largest(step, &format!("{what}_seconds")) * 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Round, Workload};

    fn step(name: &str, sync: bool, figures: &[(&str, f64)]) -> Step {
        let mut round = Round { seconds: 4.25, ..Round::default() };
        round.figures.insert("served_after_cut".to_owned(), 1.0);
        round.figures.extend(figures.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        let workload = Workload { pattern: PATTERN.to_owned(), sync, ..Workload::default() };
        Step { name: name.to_owned(), workload, expected: None, rounds: vec![round] }
    }

    fn cases() -> Cases {
        let weir = |sync| ServerKind::Weir("weir".into(), sync);
        let ways = vec![Way::Nfs, Way::Nbd];
        let servers = vec![
            (weir(SyncProperty::Standard), ways.clone()),
            (weir(SyncProperty::Always), ways.clone()),
            (weir(SyncProperty::Disabled), ways),
            (ServerKind::Tgt { write_cache: true }, vec![Way::Iscsi]),
        ];
        Cases { servers, writers: 2, disk_bytes: 1 << 30, seconds: 6, seed: 1, survive_percent: 0 }
    }

    #[test]
    fn each_server_has_the_cases_in_which_its_answers_differ() {
        let plan = powercut(&cases());
        let names: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
        let expected = [
            "weir sync=standard, NFS, flushes",
            "weir sync=standard, NFS, no flushes",
            "weir sync=standard, NBD, flushes",
            "weir sync=standard, NBD, no flushes",
            "weir sync=always, NFS, no flushes",
            "weir sync=always, NBD, no flushes",
            "weir sync=disabled, NFS, flushes",
            "weir sync=disabled, NBD, flushes",
            "tgt with write-back, iSCSI, flushes",
            "tgt with write-back, iSCSI, no flushes",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_broken_promise_is_a_warning_only_where_there_was_one() {
        let lost = [("acknowledged_records", 900.0), ("promised_records", 800.0), ("lost_promised_records", 3.0)];
        let rules = |step: &Step| warnings(step).into_iter().map(|(rule, _)| rule).collect::<Vec<_>>();
        assert_eq!(rules(&step("weir sync=standard, NFS, flushes", true, &lost)), ["promise-broken"]);
        assert_eq!(rules(&step("weir sync=disabled, NFS, flushes", true, &lost)), [""; 0]);
        let few = [("acknowledged_records", 9.0), ("promised_records", 8.0)];
        assert_eq!(rules(&step("weir sync=standard, NFS, flushes", true, &few)), ["few-records"]);
        assert_eq!(
            rules(&step("weir sync=standard, NFS, no flushes", false, &[("acknowledged_records", 9.0)])),
            [""; 0]
        );
        let gone =
            step("tgt with write-back, iSCSI, flushes", true, &[("served_after_cut", 0.0), ("promised_records", 99.0)]);
        assert_eq!(rules(&gone), ["not-served"]);
    }

    #[test]
    fn sentences_count_promises_and_acknowledgements_apart() {
        let figures = [
            ("acknowledged_records", 1000.0),
            ("promised_records", 600.0),
            ("lost_promised_records", 512.0),
            ("lost_promised_bytes", 2_097_152.0),
            ("lost_promised_seconds", 2.5),
            ("lost_acknowledged_records", 400.0),
            ("lost_acknowledged_bytes", 1_638_400.0),
            ("lost_acknowledged_seconds", 0.25),
        ];
        assert_eq!(
            sentence(&step("weir sync=disabled, NBD, flushes", true, &figures)),
            "weir sync=disabled, NBD, flushes: a cut after 4.2 s: 512 of 600 records that were promised to be stable are lost \
             (2.10 MB, of the last 2.50 s): sync=disabled answers flushes before the data are stable; 400 of 400 that were only \
             acknowledged are lost (1.64 MB, of the last 250 ms)"
        );
        let kept = [("acknowledged_records", 600.0), ("promised_records", 600.0)];
        assert_eq!(
            sentence(&step("weir sync=always, NBD, no flushes", false, &kept)),
            "weir sync=always, NBD, no flushes: a cut after 4.2 s: none of 600 records that were promised to be stable is lost"
        );
    }
}
