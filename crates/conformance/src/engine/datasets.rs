//! Compares datasets with a manifest: every name, every kind, every property's value and source, holds of
//! snapshots, and the usage of users and groups.

use std::collections::{BTreeMap, BTreeSet};

use weir_dsl::props::Source;
use weir_dsl::{Account, PoolFacts, QuotaPrincipal};
use weir_format::ObjsetKind;
use weir_format::znode::Fuid;

use crate::compare::Findings;
use crate::manifest::{Dataset, DatasetKind, Manifest};
use crate::workload::{Done, OURS};

use super::Opened;

/// Properties that depend on the machine or on the import of the pool, and not on the dataset.
const OF_THE_MOMENT: &[&str] = &["mounted", "available", "keystatus"];

/// Properties that change when data is written to a dataset or below it, or a snapshot is taken.
const OF_SPACE: &[&str] = &[
    "used",
    "usedbydataset",
    "usedbychildren",
    "usedbysnapshots",
    "usedbyrefreservation",
    "referenced",
    "logicalused",
    "logicalreferenced",
    "compressratio",
    "refcompressratio",
    "written",
    "snapshots_changed",
    "filesystem_count",
    "snapshot_count",
];

/// Compares the list of datasets and each one's properties.
pub fn compare(opened: &Opened, state: &Manifest, done: Option<&Done>) -> Findings {
    let mut findings = Findings::default();
    let mut found: BTreeSet<String> = names(opened, &mut findings).into_iter().collect();
    if done.is_some() {
        found.retain(|name| !name.split(['/', '@']).any(|part| part == OURS));
    }
    let kept = |dataset: &&Dataset| dataset.kind != DatasetKind::Bookmark;
    let expected: BTreeSet<String> = state.datasets.iter().filter(kept).map(|dataset| dataset.name.clone()).collect();
    findings.facts += expected.len() as u64;
    for name in expected.difference(&found) {
        findings.differs(format!("{name}: dataset not found"));
    }
    for name in found.difference(&expected) {
        findings.differs(format!("{name}: dataset must not be there"));
    }
    for dataset in state.datasets.iter().filter(kept) {
        properties(opened, dataset, done, &mut findings);
        holds(opened, dataset, &mut findings);
        let spaces = [(QuotaPrincipal::User, &dataset.userspace), (QuotaPrincipal::Group, &dataset.groupspace)];
        for (who, expected) in spaces.into_iter().filter_map(|(who, space)| Some((who, space.as_ref()?))) {
            accounts(opened, dataset, (who, expected), done, &mut findings);
        }
    }
    findings
}

/// Compares the holds of a snapshot.
fn holds(opened: &Opened, dataset: &Dataset, findings: &mut Findings) {
    if dataset.kind != DatasetKind::Snapshot {
        return;
    }
    findings.facts += 1;
    let found = opened.find(&dataset.name).and_then(|found| {
        let found = opened.machine.block_on(opened.dsl.holds(&opened.request, &found));
        found.map_err(|error| error.to_string())
    });
    let found: Result<Vec<String>, String> = found.map(|holds| holds.into_iter().map(|(tag, _)| tag).collect());
    let mut expected = dataset.holds.clone();
    expected.sort_unstable();
    if found.as_ref() != Ok(&expected) {
        findings.differs(format!("{}: held by {found:?}, must be {expected:?}", dataset.name));
    }
}

/// A number as OpenZFS prints it: a dash for a number that a pool of an old version does not keep.
fn counted(number: &str) -> String {
    if number == "-" { "0".to_owned() } else { number.to_owned() }
}

/// Compares usage and quotas. After a workload, the superuser has more.
fn accounts(
    opened: &Opened,
    dataset: &Dataset,
    (who, expected): (QuotaPrincipal, &[[String; 6]]),
    done: Option<&Done>,
    findings: &mut Findings,
) {
    let changed = done.is_some_and(|done| done.written.contains_key(&dataset.name));
    let counts = |row: &[String; 5]| !changed || row.first().is_none_or(|id| id != "0");
    findings.facts += expected.len() as u64;
    let found = opened.objects(&dataset.name).and_then(|set| {
        let found = opened.machine.block_on(set.accounting().bound_accounts(&opened.request, who));
        found.map_err(|error| error.to_string())
    });
    let found = match found {
        Ok(found) => found,
        Err(error) => return findings.differs(format!("{}: accounts: {error}", dataset.name)),
    };
    let row = |(id, a): (&Fuid, &Account)| {
        [id.0, a.used_bytes, a.quota_bytes, a.used_objects, a.quota_objects].map(|number| number.to_string())
    };
    let found: BTreeSet<[String; 5]> = found.iter().map(row).filter(counts).collect();
    let expected = expected.iter().map(|[_, id, used, quota, objects, limit]| [id, used, quota, objects, limit]);
    let expected: BTreeSet<[String; 5]> =
        expected.map(|row| row.map(|number| counted(number))).filter(counts).collect();
    for row in expected.symmetric_difference(&found) {
        let where_ = if found.contains(row) { "is not known to OpenZFS" } else { "is missing" };
        findings.differs(format!("{}: account of {who:?} {row:?} {where_}", dataset.name));
    }
}

/// Whether a workload changes that property of a dataset: space of the written dataset and of its ancestors.
fn is_changed(dataset: &Dataset, property: &str, done: &Done) -> bool {
    let inside = |written: &String| {
        let rest = written.strip_prefix(&dataset.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    match dataset.name.split_once('@') {
        // Blocks that a head no longer has belong only to its last snapshot.
        Some((head, _)) => property == "used" && done.written.contains_key(head),
        None => OF_SPACE.contains(&property) && done.written.keys().chain(&done.volume).any(inside),
    }
}

fn properties(opened: &Opened, dataset: &Dataset, done: Option<&Done>, findings: &mut Findings) {
    let facts = PoolFacts {
        altroot: "/mnt".to_string(),
        loaded_keys: opened.keys.iter().filter_map(|(dir, _)| opened.dsl.dir(*dir)?.crypto_key()).collect(),
        ..PoolFacts::default()
    };
    let found = opened.find(&dataset.name).and_then(|found| {
        let found = opened.dsl.properties(&opened.request, &found, &facts);
        opened.machine.block_on(found).map_err(|error| error.to_string())
    });
    let found = match found {
        Ok(found) => found,
        Err(error) => return findings.differs(format!("{}: properties: {error}", dataset.name)),
    };
    let found: BTreeMap<String, (String, Source)> =
        found.into_iter().map(|property| (property.name.clone(), (property.text(true), property.source))).collect();
    for (name, expected) in &dataset.props {
        let Some(expected) = expected.as_ref().filter(|_| !OF_THE_MOMENT.contains(&name.as_str())) else { continue };
        if done.is_some_and(|done| is_changed(dataset, name, done)) {
            continue;
        }
        findings.facts += 1;
        match found.get(name) {
            Some((value, source)) => {
                if value != expected {
                    findings.differs(format!("{}: {name} is {value:?}, must be {expected:?}", dataset.name));
                }
                let expected = dataset.prop_sources.get(name).and_then(Option::as_ref);
                let said = source.text();
                if expected.is_some_and(|expected| *expected != said) {
                    findings.differs(format!("{}: {name} is {said:?}, must be {expected:?}", dataset.name));
                }
            }
            None => findings.differs(format!("{}: property {name} is missing", dataset.name)),
        }
    }
}

/// Returns the names of all file systems, volumes and snapshots.
pub fn names(opened: &Opened, findings: &mut Findings) -> Vec<String> {
    let mut names = Vec::new();
    for (name, error) in opened.dsl.damaged() {
        findings.differs(format!("{name}: {error}"));
    }
    for dir in opened.dsl.dirs() {
        // Names with a dollar or percent sign are internal to OpenZFS and never shown.
        if dir.name.contains(['$', '%']) {
            continue;
        }
        names.push(dir.name.clone());
        match opened.machine.block_on(opened.dsl.snapshots(&opened.request, dir)) {
            Ok(list) => {
                names.extend(list.snapshots.iter().map(|snapshot| snapshot.name.clone()));
                list.damaged.iter().for_each(|(name, error)| findings.differs(format!("{name}: {error}")));
            }
            Err(error) => findings.differs(format!("{}: snapshots: {error}", dir.name)),
        }
    }
    names
}

/// Returns the kind of a dataset, by the name of its head.
pub fn kind(opened: &Opened, name: &str) -> Option<ObjsetKind> {
    let dir = opened.dsl.dir_named(name)?;
    opened.machine.block_on(opened.dsl.kind(&opened.request, dir)).ok()
}

/// Whether a dataset is encrypted and its key not given.
pub fn locked(opened: &Opened, name: &str) -> bool {
    opened.objects(name).is_ok_and(|objects| objects.is_locked())
}
