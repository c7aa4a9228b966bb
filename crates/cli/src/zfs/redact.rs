//! `zfs redact`: redaction bookmarks (OpenZFS `zfs_do_redact`).

use super::target::{self, pool_of, words};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::Places;
use clap::Parser;
use weir_admin::{Action, Change, Refusal, RefusalKind};
use weir_format::features::Feature;

/// Create a redaction bookmark: a list of blocks that other snapshots changed.
#[derive(Debug, Parser)]
#[command(name = "zfs redact", override_usage = "zfs redact [--dir DIR]… SNAPSHOT BOOKMARK REDACTION_SNAPSHOT…")]
pub struct RedactArgs {
    #[command(flatten)]
    places: Places,
    /// Snapshot, name of the bookmark without the dataset, and snapshots of clones or later ones
    #[arg(value_name = "SNAPSHOT BOOKMARK REDACTION_SNAPSHOT")]
    words: Vec<String>,
}

/// Runs `zfs redact`.
pub fn run(call: &Call, args: &RedactArgs) -> Result<u8, Failure> {
    let words = words::<RedactArgs>(&args.words, 3..=usize::MAX, "too few arguments")?;
    let [snapshot, bookmark, by @ ..] = words.as_slice() else { return Err(RedactArgs::misused("too few arguments")) };
    if by.iter().any(|name| pool_of(name) != pool_of(snapshot)) {
        let why = "potentially invalid redaction snapshot; full dataset names required";
        return Err(Failure::failed(why));
    }
    let change =
        Change::Redact { snapshot: snapshot.clone(), bookmark: bookmark.clone(), redaction_snapshots: by.to_vec() };
    target::with(call, &args.places, snapshot, |target| {
        target.attempt(Action::Change(change))?.map_err(|refusal| failure(bookmark, &words, refusal))
    })?;
    Ok(0)
}

/// The failure in OpenZFS's words.
fn failure(bookmark: &str, words: &[String], refusal: Refusal) -> Failure {
    Failure::failed(match refusal.kind {
        RefusalKind::Exists => format!("specified redaction bookmark ({bookmark}) provided already exists"),
        RefusalKind::Missing => {
            let snapshots: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != bookmark).collect();
            format!("a snapshot does not exist, of {}", snapshots.join(", "))
        }
        RefusalKind::Property if refusal.why.contains(Feature::REDACTION_BOOKMARKS.name) => {
            "redaction bookmarks feature not enabled".to_owned()
        }
        _ => refusal.why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_words_of_openzfs() {
        let words = ["p/a@s", "b", "p/c@s"].map(str::to_owned);
        let said = |kind, why: &str| failure("b", &words, Refusal::new(kind, why)).to_string();
        assert!(said(RefusalKind::Exists, "").contains("(b) provided already exists"));
        assert!(said(RefusalKind::Missing, "").ends_with("p/a@s, p/c@s"));
        let disabled = "pool must be upgraded: feature@redaction_bookmarks is not enabled";
        assert_eq!(said(RefusalKind::Property, disabled), "redaction bookmarks feature not enabled");
        assert_eq!(said(RefusalKind::Name, "too many"), "too many");
    }
}
