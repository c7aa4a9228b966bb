//! Golden pools, written by Weir: each that may be written is imported from a copy of its images, replays its intent
//! logs, takes a workload ([`crate::workload`]), is exported, and judged.
//!
//! ```text
//!   unpack ─► import, keys loaded ─► replay, workload ─► export ─► OpenZFS's zdb -bcc ─► against the manifest again
//!          ─► import ─► much is removed again ─► export ─► zdb -bcc ─► zdb -d
//! ```
//!
//! The comparison is that of `golden --via engine`. It leaves out what the workload made (everything has one name), the
//! attributes of a root directory that got an entry, and the sums of space of a dataset that was written. The results
//! of the workload are checked separately. Where OpenZFS's zdb found an error before (pools damaged on purpose,
//! features that it does not support), it must not find more, and Weir's own verification judges the space.
//!
//! Pools that must not be written are in [`REFUSED`], each with the reason that the engine must give. A refused pool
//! that is not in the list fails, and so does a pool in the list that is written.

use std::path::Path;

use weir_engine::{Engine, ImportOptions};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, PoolError};

use crate::compare::Findings;
use crate::golden::{Unpacked, names};
use crate::kill::failed;
use crate::manifest::Golden;
use crate::report::{Report, line, side_by_side};
use crate::workload::{self, Done};
use crate::zdb::{Tools, counting_fault, fault};
use crate::{JudgeError, engine};

/// Goldens that must not be written, and a part of the reason.
const REFUSED: &[(&str, &str)] = &[];

/// Objects of goldens that must not be written although the pool may: a part of the line that says so.
const LEFT: &[(&str, &str)] = &[
    ("props", "g-props/a/b/c: read-only, a file system of version 5"),
    ("snaps", "g-snaps/defer@dd: dataset is busy: its destroy is deferred"),
    ("v28", "g-v28/z1: read-only, a file system of version 1"),
    ("v28", "g-v28/z2: read-only, a file system of version 2"),
    ("v28", "g-v28/z3: read-only, a file system of version 3"),
    ("v28", "g-v28/z4: read-only, a file system of version 4"),
    ("v28", "g-v28/z1@s: read-only, a file system of version 1"),
    ("v28", "g-v28/z2@s: read-only, a file system of version 2"),
];

/// Checks of zdb that are left out for a golden.
const NOT_COUNTED: &[(&str, &str)] = &[("snaps", "its longer listings do not end there, before and after")];

/// Result of working on a golden.
enum Outcome {
    /// Worked on.
    Written(Done),
    /// Not written, for this reason.
    Refused(String),
}

/// Runs the goldens named (`--only NAME` or `NAME…`), or all; with `--short`, nothing is removed again; with `--keep`,
/// the images of what fails stay.
///
/// # Errors
/// If the folder of goldens cannot be listed, or zdb is not here.
pub fn run(folder: &Path, words: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let short = words.iter().any(|word| word == "--short");
    let keep = words.iter().any(|word| word == "--keep");
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let tools = Tools::find()?;
    let all = names(folder)?;
    for (name, _) in REFUSED.iter().filter(|(name, _)| !all.iter().any(|other| other == name)) {
        report.fail(name, &["is in the list of refused goldens, but is no golden".to_owned()]);
    }
    let mut refused = Vec::new();
    let chosen: Vec<&String> = all.iter().filter(|name| wanted.is_empty() || wanted.contains(name)).collect();
    let judge = |name: &&String| Case { tools: &tools, folder, name, short, keep }.run();
    side_by_side(&chosen, judge, |name, judged| match judged {
        Ok((findings, Outcome::Written(done))) if findings.is_empty() => {
            let left: Vec<String> = done.left.iter().map(|left| format!("; {left}")).collect();
            report.pass(name, &format!("{} facts, {} KiB{}", findings.facts, findings.bytes >> 10, left.concat()));
        }
        Ok((findings, Outcome::Refused(why))) => {
            refused.push(format!("{name}: {why}"));
            report.book(name, Ok(findings));
        }
        Ok((findings, _)) => report.book(name, Ok(findings)),
        Err(error) => report.book(name, Err(error)),
    });
    line(&format!("{} may not be written", refused.len()));
    refused.iter().for_each(|one| line(&format!("        {one}")));
    Ok(())
}

struct Case<'a> {
    tools: &'a Tools,
    folder: &'a Path,
    name: &'a str,
    short: bool,
    keep: bool,
}

impl Case<'_> {
    fn run(&self) -> Result<(Findings, Outcome), JudgeError> {
        let golden = Golden::read(self.folder, self.name)?;
        let mut unpacked = Unpacked::new(self.folder, self.name)?;
        let judged = self.judge(&golden, &unpacked);
        if self.keep && !judged.as_ref().is_ok_and(|(findings, _)| findings.is_empty()) {
            unpacked.keep();
            line(&format!("      {}: kept in {}", self.name, unpacked.path().display()));
        }
        judged
    }

    fn judge(&self, golden: &Golden, unpacked: &Unpacked) -> Result<(Findings, Outcome), JudgeError> {
        let machine = weir_linux::machine().map_err(|error| failed("machine", error))?;
        let mut findings = Findings::default();
        let outcome = machine.block_on(self.first_life(&machine, golden, unpacked.path()))?;
        let expected = REFUSED.iter().find(|(name, _)| *name == self.name).map(|(_, why)| *why);
        let done = match outcome {
            Outcome::Refused(why) => {
                findings.facts += 1;
                if !expected.is_some_and(|expected| why.contains(expected)) {
                    findings.differs(format!("is refused, must be {}: {why}", expected.unwrap_or("written")));
                }
                for image in unpacked.changed(golden)? {
                    findings.differs(format!("{image} was written to"));
                }
                return Ok((findings, Outcome::Refused(why)));
            }
            Outcome::Written(done) => done,
        };
        if let Some(expected) = expected {
            findings.differs(format!("is written, must be refused: {expected}"));
        }
        self.left(&done, &mut findings);
        self.sound(&machine, golden, unpacked.path(), "after the workload", &mut findings)?;
        let state = golden.final_state().ok_or_else(|| JudgeError::Missing { what: "no manifest".to_owned() })?;
        findings.absorb("", engine::golden_after(golden, unpacked.path(), state, &done)?);
        if !self.short {
            machine.block_on(second_life(&machine, golden, unpacked.path()))?;
            self.sound(&machine, golden, unpacked.path(), "thinned", &mut findings)?;
        }
        self.counted(golden, unpacked.path(), &mut findings)?;
        Ok((findings, Outcome::Written(done)))
    }

    async fn first_life(&self, machine: &Machine, golden: &Golden, devices: &Path) -> Result<Outcome, JudgeError> {
        let options = import(golden, devices);
        let shares = {
            let pool = Pool::open(machine, &options.open).await.map_err(|error| failed("open", error))?;
            workload::may_share(&pool)
        };
        let engine = match Engine::import(machine, &options).await {
            Ok(engine) => engine,
            Err(PoolError::Refused { what }) => return Ok(Outcome::Refused(what)),
            Err(other) => return Err(failed("import", other)),
        };
        let done = workload::work(&engine, shares).await;
        engine.export().await.map_err(|error| failed("export", error))?;
        done.map(Outcome::Written).map_err(|why| failed("workload", why))
    }

    /// Exactly the expected objects were left alone.
    fn left(&self, done: &Done, findings: &mut Findings) {
        let mut expected: Vec<&str> =
            LEFT.iter().filter(|(name, _)| *name == self.name).map(|(_, part)| *part).collect();
        for left in &done.left {
            match expected.iter().position(|part| left.contains(part)) {
                Some(at) => drop(expected.remove(at)),
                None => findings.differs(format!("was left alone: {left}")),
            }
        }
        expected.into_iter().for_each(|part| findings.differs(format!("is written, must be left alone: {part}")));
        findings.facts += 1;
    }

    /// OpenZFS's zdb must find no error, or no more than in the golden itself; then Weir's own verification judges.
    fn sound(
        &self,
        machine: &Machine,
        golden: &Golden,
        devices: &Path,
        when: &str,
        findings: &mut Findings,
    ) -> Result<(), JudgeError> {
        findings.facts += 2;
        holds_invariants(machine, golden, devices, when, findings)?;
        let Some(found) = fault(self.tools, devices, &golden.pool)? else { return Ok(()) };
        let untouched = Unpacked::new(self.folder, self.name)?;
        let Some(before) = fault(self.tools, untouched.path(), &golden.pool)? else {
            findings.differs(format!("zdb -bcc, {when}: {found}"));
            return Ok(());
        };
        line(&format!("      {}: zdb -bcc found before: {before}", self.name));
        let rq = &Request::internal("judge");
        let options = OpenOptions::new(vec![devices.to_owned()], golden.pool.clone());
        let report = machine
            .block_on(async {
                let pool = Pool::open(machine, &options).await?;
                weir_pool::verify::verify_pool(&pool, rq).await.map_err(PoolError::from)
            })
            .map_err(|error| failed("verify", error))?;
        if !report.space_agrees() {
            let leaks: Vec<_> = report.leaks().take(3).collect();
            let clashes: Vec<_> = report.clashes.iter().take(3).collect();
            let faults = report.space.as_ref().map(|space| &space.faults);
            findings.differs(format!("{when}: leaks {leaks:x?}, clashes {clashes:?}, {faults:?}"));
        }
        Ok(())
    }

    /// zdb must find that every object of the MOS is referenced, and that reference counts of features are right.
    fn counted(&self, golden: &Golden, devices: &Path, findings: &mut Findings) -> Result<(), JudgeError> {
        if let Some((name, why)) = NOT_COUNTED.iter().find(|(name, _)| *name == self.name) {
            line(&format!("      {name}: zdb -d is not asked: {why}"));
            return Ok(());
        }
        findings.facts += 1;
        let Some(found) = counting_fault(self.tools, devices, &golden.pool)? else { return Ok(()) };
        let untouched = Unpacked::new(self.folder, self.name)?;
        match counting_fault(self.tools, untouched.path(), &golden.pool)? {
            None => findings.differs(format!("zdb -d: {found}")),
            Some(before) => line(&format!("      {}: zdb -d found before: {before}", self.name)),
        }
        Ok(())
    }
}

/// The invariants of the pool must hold, as they do in every golden.
fn holds_invariants(
    machine: &Machine,
    golden: &Golden,
    devices: &Path,
    when: &str,
    findings: &mut Findings,
) -> Result<(), JudgeError> {
    let rq = &Request::internal("judge");
    let options = OpenOptions::new(vec![devices.to_owned()], golden.pool.clone());
    let report = machine
        .block_on(async {
            let pool = Pool::open(machine, &options).await?;
            weir_pool::invariants::check_invariants(&pool, rq).await.map_err(PoolError::from)
        })
        .map_err(|error| failed("invariants", error))?;
    for finding in report.findings.iter().take(5) {
        findings.differs(format!("{when}: {finding}"));
    }
    Ok(())
}

fn import(golden: &Golden, devices: &Path) -> ImportOptions {
    let mut options = ImportOptions::new(engine::options(golden, devices));
    options.force = true;
    options
}

/// Removes much of the contents again.
async fn second_life(machine: &Machine, golden: &Golden, devices: &Path) -> Result<(), JudgeError> {
    let engine = Engine::import(machine, &import(golden, devices)).await;
    let engine = engine.map_err(|error| failed("second import", error))?;
    let thinned = workload::thin(&engine).await;
    engine.export().await.map_err(|error| failed("second export", error))?;
    thinned.map_err(|why| failed("removing", why))
}
