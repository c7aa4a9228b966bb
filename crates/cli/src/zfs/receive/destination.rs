//! Names of received datasets (OpenZFS `lib/libzfs/libzfs_sendrecv.c`, `zfs_receive_one`, `guid_to_name`).

use super::{ReceiveError, Receiving, plain};
use crate::failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use weir_admin::{CreateDataset, NewKind};
use weir_dsl::Dsl;
use weir_machine::Request;
use weir_pool::PoolError;

impl Receiving<'_> {
    /// The snapshot that a stream of the sender's snapshot `sent` makes, by its name.
    pub(super) fn destination(&self, sent: &str) -> Result<String, Failure> {
        let top = self.sent_top.as_deref().unwrap_or_default();
        let invalid = || plain(ReceiveError::Invalid(format!("'{sent}' is not below the first dataset '{top}'")));
        let below = sent.strip_prefix(top).filter(|below| below.starts_with(['/', '@'])).ok_or_else(invalid)?;
        if self.target.contains('@') {
            if self.args.is_prefix() {
                let option = if self.args.last_part { "-e" } else { "-d" };
                let why = format!("invalid argument - snapshot not allowed with {option}");
                return Err(Failure::failed(format!("cannot receive: {why}")));
            }
            return Ok(self.target.to_owned());
        }
        let appended = match (self.args.without_pool, self.args.last_part) {
            (true, _) => sent.find(['/', '@']).and_then(|at| sent.get(at..)).unwrap_or(below).to_owned(),
            (_, true) => match top.rfind('/') {
                Some(at) => sent.get(at..).unwrap_or(below).to_owned(),
                None => format!("/{sent}"),
            },
            _ => below.to_owned(),
        };
        Ok(format!("{}{appended}", self.target))
    }

    /// The snapshot that the stream of a new dataset makes. If its parent has another name here, it is found by the GUID of
    /// its snapshot.
    pub(super) async fn place_of_new(&self, snapshot: String, parent_from_guid: u64) -> Result<String, Failure> {
        let Some((parent, last)) = snapshot.rsplit_once('/') else { return Ok(snapshot) };
        self.datasets(async |rq, dsl| {
            if self.dry_run.has(parent) || dsl.dir_named(parent).is_some() || parent_from_guid == 0 {
                return Ok(snapshot.clone());
            }
            let found = find_guid(rq, dsl, parent, parent_from_guid).await?;
            let found = found.as_deref().and_then(|found| found.split('@').next());
            Ok(found.map_or_else(|| snapshot.clone(), |parent| format!("{parent}/{last}")))
        })
        .await
    }

    /// The snapshot that the stream of an existing dataset makes. If the dataset has another name here, it is found by the
    /// GUID of the snapshot that the stream is relative to.
    pub(super) async fn place_of_existing(&self, snapshot: String, from_guid: u64) -> Result<String, Failure> {
        let (name, short) = snapshot.split_once('@').unwrap_or((&snapshot, ""));
        self.datasets(async |rq, dsl| {
            if self.dry_run.has(name) || dsl.dir_named(name).is_some() {
                return Ok(snapshot.clone());
            }
            let found = find_guid(rq, dsl, name, from_guid).await?;
            let found = found.as_deref().and_then(|found| found.split('@').next());
            Ok(found.map_or_else(|| snapshot.clone(), |of| format!("{of}@{short}")))
        })
        .await
    }

    /// Creates the file systems between the target and a new dataset (`-d`).
    pub(super) async fn make_parents(&mut self, name: &str) -> Result<(), Failure> {
        let Some(below) = name.strip_prefix(self.target) else { return Ok(()) };
        let mut at = self.target.to_owned();
        let mut parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty()).collect();
        parts.pop();
        for part in parts {
            at = format!("{at}/{part}");
            let is_missing = self.datasets(async |_, dsl| Ok(dsl.dir_named(&at).is_none())).await?;
            if is_missing {
                let new = CreateDataset {
                    name: at.clone(),
                    kind: NewKind::FileSystem,
                    properties: Vec::new(),
                    parents: false,
                };
                let change = weir_admin::Change::Create(new);
                self.change(change).await.map_err(super::plain_refusal)?;
            }
        }
        Ok(())
    }
}

/// Snapshots that a dry run would have received, which later streams of the package build on.
#[derive(Debug, Default)]
pub(super) struct DryRun {
    /// Full names by GUID.
    snapshots: BTreeMap<u64, String>,
    datasets: BTreeSet<String>,
}

impl DryRun {
    pub(super) fn add(&mut self, snapshot: &str, guid: u64) {
        let dataset = snapshot.split('@').next().unwrap_or_default();
        self.datasets.insert(dataset.to_owned());
        self.snapshots.insert(guid, snapshot.to_owned());
    }

    /// Whether the dry run would have received into this dataset.
    pub(super) fn has(&self, dataset: &str) -> bool {
        self.datasets.contains(dataset)
    }

    /// Whether the dry run would have received into this dataset or one above it.
    pub(super) fn has_above(&self, dataset: &str) -> bool {
        let parents = dataset.match_indices('/').filter_map(|(at, _)| dataset.get(..at));
        parents.chain([dataset]).any(|name| self.has(name))
    }

    pub(super) fn snapshot(&self, guid: u64) -> Option<&String> {
        self.snapshots.get(&guid)
    }
}

/// The full name of the snapshot with this GUID: the nearest to the dataset `near`, which need not exist.
pub async fn find_guid(rq: &Request, dsl: &Dsl, near: &str, guid: u64) -> Result<Option<String>, PoolError> {
    let mut within = near;
    loop {
        let scope = weir_dsl::Scope::Subtree(within);
        for dir in dsl.visible_dirs().into_iter().filter(|dir| scope.contains(&dir.name)) {
            let list = dsl.snapshots(rq, dir).await?;
            if let Some(found) = list.snapshots.iter().find(|snapshot| snapshot.phys.guid == guid) {
                return Ok(Some(found.name.clone()));
            }
        }
        match within.rsplit_once('/') {
            Some((above, _)) => within = above,
            None => return Ok(None),
        }
    }
}
