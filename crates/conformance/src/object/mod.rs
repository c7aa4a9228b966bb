//! Pools on the object stores of others: each is made, filled, scrubbed, killed over, opened again, trimmed, and its objects are
//! laid into a file that OpenZFS's zdb reads.
//!
//! | Store | Program |
//! |---|---|
//! | folder | none |
//! | versitygw | `WEIR_VERSITYGW`, else in `PATH` or `target/judges/stores` |
//! | moto | `WEIR_MOTO_SERVER`, else `moto_server` in `PATH` or `target/judges/stores` |
//! | azurite | `WEIR_AZURITE`, else `azurite-blob` in `PATH` or `target/judges/stores` |
//! | google | none: the judge's own ([`google`]) |
//!
//! `cargo xtask judge --fetch --stores` brings the servers. A store that is absent is skipped with a line. Cases of each store:
//! *abilities* (which conditions it obeys), *life*, and *zdb*; of versitygw also *counts*, which compares `weir store` with the
//! server's log of requests; of folders also *mixed*: local log, special and cache devices, and mirrors.
#![allow(clippy::disallowed_methods, reason = "judges run other programs in real time")]

pub mod child;
mod google;
mod life;
mod mixed;
pub(crate) mod store;

use crate::report::Report;
use crate::{JudgeError, wrong};
use store::{KINDS, Started};

/// Runs the cases of these stores, of all without names.
///
/// # Errors
/// A name is unknown, or a folder for the tests cannot be made.
pub fn run(names: &[String], report: &mut Report) -> Result<(), JudgeError> {
    if let Some(unknown) = names.iter().find(|name| !KINDS.contains(&name.as_str())) {
        let what = format!("there is no store '{unknown}': known are {}", KINDS.join(", "));
        return Err(wrong("object", what));
    }
    for kind in KINDS.iter().filter(|kind| names.is_empty() || names.iter().any(|name| name == *kind)) {
        match Started::new(kind) {
            Ok(store) => of_store(&store, report),
            Err(error) => report.outcome(&format!("object {kind}"), Err(error)),
        }
    }
    Ok(())
}

fn of_store(store: &Started, report: &mut Report) {
    let name = store.kind;
    report.outcome(&format!("object {name} abilities"), store.abilities());
    if store.requests_seen().is_some() {
        report.outcome(&format!("object {name} counts"), life::counts(store));
    }
    let lived = life::life(store);
    let is_whole = lived.is_ok();
    report.outcome(&format!("object {name} life"), lived);
    if is_whole {
        report.outcome(&format!("object {name} zdb"), life::zdb(store));
    } else {
        report.skip(&format!("object {name} zdb"), "the pool was not exported");
    }
    if name == "folder" {
        for (case, layout) in mixed::LAYOUTS {
            report.outcome(&format!("object {name} {case}"), mixed::layout(store, case, layout));
        }
        report.outcome(&format!("object {name} failing"), mixed::failing(store));
    }
}
