//! Pools on the object stores of others: each is made, filled, scrubbed, killed over, opened again, trimmed, and its objects are
//! laid into a file that OpenZFS's zdb reads.
//!
//! | Store | Program |
//! |---|---|
//! | folder | none |
//! | versitygw | `WEIR_VERSITYGW`, else in `PATH` or `target/judges/stores` |
//! | moto | `WEIR_MOTO_SERVER`, else `moto_server` in `PATH` or `target/judges/stores` |
//!
//! `cargo xtask judge --fetch --stores` brings the servers. A store that is absent is skipped with a line. Cases of each store:
//! *abilities* (which conditions it obeys), *life*, and *zdb*; of versitygw also *counts*, which compares `weir store` with the
//! server's log of requests; of folders also *mixed*: local log, special and cache devices, and mirrors.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

pub mod child;
mod life;
mod mixed;
pub mod site;
pub mod store;

use crate::JudgeError;
use crate::report::Report;
use store::{KINDS, Started};

/// Runs the cases of these stores, of all without names.
///
/// # Errors
/// A name is unknown, or a folder for the tests cannot be made.
pub fn run(names: &[String], report: &mut Report) -> Result<(), JudgeError> {
    if let Some(unknown) = names.iter().find(|name| !KINDS.contains(&name.as_str())) {
        let what = format!("there is no store '{unknown}': known are {}", KINDS.join(", "));
        return Err(JudgeError::Process { command: "object".into(), why: what });
    }
    for kind in KINDS.iter().filter(|kind| names.is_empty() || names.iter().any(|name| name == *kind)) {
        match Started::new(kind) {
            Ok(store) => of_store(&store, report),
            Err(JudgeError::Missing { what }) => report.skip(&format!("object {kind}"), &what),
            Err(error) => report.fail(&format!("object {kind}"), &[error.to_string()]),
        }
    }
    Ok(())
}

fn of_store(store: &Started, report: &mut Report) {
    let name = store.kind;
    book(report, &format!("object {name} abilities"), store.abilities());
    if store.requests_seen().is_some() {
        book(report, &format!("object {name} counts"), life::counts(store));
    }
    let lived = life::life(store);
    let is_whole = lived.is_ok();
    book(report, &format!("object {name} life"), lived);
    if is_whole {
        book(report, &format!("object {name} zdb"), life::zdb(store));
    } else {
        report.skip(&format!("object {name} zdb"), "the pool was not exported");
    }
    if name == "folder" {
        for (case, layout) in mixed::LAYOUTS {
            book(report, &format!("object {name} {case}"), mixed::layout(store, case, layout));
        }
        book(report, &format!("object {name} failing"), mixed::failing(store));
    }
}

fn book(report: &mut Report, case: &str, outcome: Result<String, JudgeError>) {
    match outcome {
        Ok(about) => report.pass(case, &about),
        Err(JudgeError::Missing { what }) => report.skip(case, &what),
        Err(error) => report.fail(case, &[error.to_string()]),
    }
}
