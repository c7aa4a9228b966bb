//! The streams of a package, in an order in which a receiver can make them: a parent before its children, the origin of
//! a clone before the clone (OpenZFS `lib/libzfs/libzfs_sendrecv.c`, `dump_filesystems`, `dump_filesystem`,
//! `dump_snapshot`).

use crate::error::SendError;
use crate::package::{Index, PackagedDataset};
use std::collections::BTreeSet;
use weir_dsl::Dsl;
use weir_machine::Request;

/// Which snapshots are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Name after the `@` of the snapshot that the first stream is relative to.
    pub from: Option<String>,
    /// Name after the `@` of the last snapshot.
    pub to: String,
    /// The snapshots between as well (`-I`).
    pub all: bool,
    /// The streams are those of a package of many datasets (`-R`).
    pub replicate: bool,
    /// The first stream of a clone is relative to its origin.
    pub from_origin: bool,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Full name of the snapshot.
    pub to: String,
    /// Full name of the snapshot that the stream is relative to.
    pub from: Option<String>,
    /// Whether that is an earlier snapshot of the same dataset, rather than the origin of a clone.
    pub is_next: bool,
}

/// Streams, and whether some that are wanted cannot be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The streams in their order.
    pub steps: Vec<Step>,
    /// Whether a warning says that a dataset is left out.
    pub is_incomplete: bool,
}

/// Plans the streams of the datasets of a package; of `top` alone if there is none.
///
/// # Errors
/// Errors of reading.
pub async fn steps(
    rq: &Request,
    dsl: &Dsl,
    top: &str,
    datasets: &[PackagedDataset],
    range: &Range,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<Steps, SendError> {
    let mut out = Steps::default();
    if !range.replicate {
        of_dataset(rq, dsl, top, &BTreeSet::new(), range, &mut out, warn).await?;
        return Ok(out);
    }
    let origins: BTreeSet<u64> = datasets.iter().filter_map(|dataset| dataset.origin_guid).collect();
    for dataset in order(datasets) {
        of_dataset(rq, dsl, &dataset.name, &origins, range, &mut out, warn).await?;
    }
    Ok(out)
}

/// Datasets in an order in which parents and origins come first. Those that wait for each other come last.
pub(crate) fn order(datasets: &[PackagedDataset]) -> Vec<&PackagedDataset> {
    let index = Index::new(datasets);
    let mut sent: BTreeSet<u64> = BTreeSet::new();
    let mut out = Vec::with_capacity(datasets.len());
    let mut waiting: Vec<&PackagedDataset> = datasets.iter().collect();
    loop {
        let before = out.len();
        waiting.retain(|dataset| {
            let is_sent = |guid: u64| index.get(guid).is_none_or(|(of, _)| sent.contains(&of.head_guid));
            let parent = dataset.parent_from_guid;
            if parent != 0 && !is_sent(parent) || dataset.origin_guid.is_some_and(|origin| !is_sent(origin)) {
                return true;
            }
            sent.insert(dataset.head_guid);
            out.push(*dataset);
            false
        });
        if out.len() == before {
            out.append(&mut waiting);
            debug_assert_eq!(out.len(), datasets.len(), "each dataset is sent once");
            return out;
        }
    }
}

async fn of_dataset(
    rq: &Request,
    dsl: &Dsl,
    name: &str,
    origins: &BTreeSet<u64>,
    range: &Range,
    out: &mut Steps,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<(), SendError> {
    let to = &range.to;
    let mut incomplete = |why: String| {
        warn(why);
        out.is_incomplete = true;
    };
    let Some(dir) = dsl.dir_named(name) else {
        incomplete(format!("WARNING: could not send {name}@{to}: does not exist"));
        return Ok(());
    };
    let list = dsl.snapshots(rq, dir).await?;
    let at = |wanted: &str| list.snapshots.iter().position(|s| s.snapshot_name() == Some(wanted));
    let Some(last) = at(to) else {
        incomplete(format!("WARNING: could not send {name}@{to}: does not exist"));
        return Ok(());
    };
    let first = range.from.as_deref().map(|from| (from, at(from)));
    let first = match first {
        None => None,
        Some((_, Some(first))) if first < last => Some(first),
        // A dataset that is new since then is sent from its beginning.
        Some((_, None)) if range.replicate => None,
        Some((from, None)) => {
            incomplete(format!(
                "WARNING: could not send {name}@{to}:\nincremental source ({name}@{from}) does not exist"
            ));
            return Ok(());
        }
        Some((from, Some(_))) => {
            incomplete(format!(
                "WARNING: could not send {name}@{to}:\nincremental source ({name}@{from}) is not earlier than it"
            ));
            return Ok(());
        }
    };
    let mut before = first.and_then(|first| list.snapshots.get(first)).map(|s| s.name.clone());
    let mut is_next = before.is_some();
    if before.is_none() && (range.replicate || range.from_origin) && dir.phys.origin.0 != 0 {
        before = dsl.snapshot_name(rq, dir.phys.origin).await?;
    }
    let start = first.map_or(0, |first| first + 1);
    for snapshot in list.snapshots.iter().take(last + 1).skip(start) {
        let is_last = snapshot.snapshot_name() == Some(to.as_str());
        if is_last || range.all || range.replicate && origins.contains(&snapshot.phys.guid) {
            out.steps.push(Step { to: snapshot.name.clone(), from: before.take(), is_next });
            before = Some(snapshot.name.clone());
            is_next = true;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::PackagedSnapshot;

    #[test]
    fn origins_and_parents_come_first() {
        let dataset = |name: &str, guid, parent_from_guid, origin_guid| PackagedDataset {
            head_guid: guid,
            name: name.into(),
            parent_from_guid,
            origin_guid,
            snapshots: vec![PackagedSnapshot { name: "s".into(), guid: guid + 100, ..PackagedSnapshot::default() }],
            ..PackagedDataset::default()
        };
        let datasets = [
            dataset("t", 1, 0, None),
            dataset("t/a", 2, 101, Some(104)),
            dataset("t/a/b", 3, 102, None),
            dataset("t/z", 4, 101, None),
        ];
        let names: Vec<&str> = order(&datasets).into_iter().map(|dataset| dataset.name.as_str()).collect();
        assert_eq!(names, ["t", "t/z", "t/a", "t/a/b"]);
        // A circle cannot be in a pool; it must not loop.
        let circle = [dataset("t/a", 2, 0, Some(104)), dataset("t/z", 4, 0, Some(102))];
        assert_eq!(order(&circle).len(), 2);
    }
}
