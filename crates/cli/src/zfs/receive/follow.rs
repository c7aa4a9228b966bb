//! Follows what the sender did since the last package: promotions, renames, and with `-F` destructions (OpenZFS
//! `lib/libzfs/libzfs_sendrecv.c`, `recv_incremental_replication`).
//!
//! Datasets and snapshots are matched by the GUIDs of snapshots. Each pass looks at the datasets anew, since a change may
//! make others possible; a name that is still taken is freed under a temporary name.

use super::Receiving;
use crate::failure::Failure;
use std::collections::BTreeSet;
use weir_admin::{Change, Destruction};
use weir_dsl::Dsl;
use weir_dsl::sync_tasks::Setting;
use weir_machine::Request;
use weir_pool::PoolError;
use weir_send::package::Index;
use weir_send::{Gathering, Package, PackagedDataset, SendError, gather};

/// Maximum number of passes. Each makes at least one change; a package that makes them go in circles ends here.
const MAX_PASSES: u32 = 1000;

/// Result of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pass {
    /// Something was changed.
    progress: bool,
    /// Something has to be looked at again.
    again: bool,
}

impl Pass {
    fn add(&mut self, succeeded: bool) {
        self.progress |= succeeded;
        self.again |= !succeeded;
    }
}

/// Finding of a package about a local dataset.
enum Verdict<'a> {
    /// The dataset is a clone at the sender's, of an earlier snapshot than here.
    Promote,
    /// The dataset is this one at the sender's.
    Same(&'a PackagedDataset),
    /// There is none.
    Gone,
    /// Not to be changed in this pass.
    Later,
}

/// Follows the changes of one sender.
pub(super) struct Follower<'a, 'b> {
    receiving: &'a mut Receiving<'b>,
    /// Number of temporary names that were given.
    temporary_names: u32,
}

impl<'a, 'b> Follower<'a, 'b> {
    pub(super) fn new(receiving: &'a mut Receiving<'b>) -> Self {
        Follower { receiving, temporary_names: 0 }
    }

    /// Follows the sender's changes of the dataset `top` and those below. Returns whether that succeeded.
    pub(super) async fn follow(mut self, top: &str) -> Result<bool, Failure> {
        if self.receiving.args.dry_run {
            return Ok(true);
        }
        let package = self.receiving.package.clone();
        for _ in 0..MAX_PASSES {
            let pass = self.pass(top, &package).await?;
            if !pass.again {
                return Ok(true);
            }
            if !pass.progress {
                return Ok(false);
            }
            self.receiving.say("another pass:");
        }
        Ok(false)
    }

    async fn pass(&mut self, top: &str, package: &Package) -> Result<Pass, Failure> {
        let wanted = Gathering {
            from: package.from.clone(),
            recursive: package.is_recursive,
            encrypted: true,
            ..Gathering::default()
        };
        let local = self.receiving.datasets(async |rq, dsl| match dsl.dir_named(top) {
            Some(_) => gather(rq, dsl, top, &wanted, &mut |_| {}).await.map_err(|error| match error {
                SendError::Object(error) => PoolError::Object(error),
                other => PoolError::Refused { what: other.to_string() },
            }),
            None => Ok(Vec::new()),
        });
        let local = local.await?;
        let stream = Index::new(&package.datasets);
        let mut deleted: BTreeSet<u64> = BTreeSet::new();
        let mut pass = Pass::default();
        for dataset in &local {
            match self.verdict(dataset, &local, &stream).await? {
                Verdict::Later => pass.again = true,
                Verdict::Promote => {
                    self.receiving.say(&format!("promoting {}", dataset.name));
                    let promoted = self.receiving.change(Change::Promote { name: dataset.name.clone() }).await.is_ok();
                    pass.progress |= promoted;
                    pass.again = true;
                }
                Verdict::Gone => {
                    self.snapshots(dataset, &stream, &mut pass, &mut deleted).await;
                    if self.receiving.args.force {
                        let destroyed = self.destroy(&dataset.name, top.len() + 1).await;
                        pass.add(destroyed);
                        deleted.insert(dataset.parent_from_guid);
                    }
                }
                Verdict::Same(of_stream) => {
                    let has_from = self.snapshots(dataset, &stream, &mut pass, &mut deleted).await;
                    if !has_from {
                        let from = package.from.as_deref().unwrap_or_default();
                        self.receiving.say(&format!(
                            "local fs {} does not have fromsnap ({from} in stream); must have been deleted locally; ignoring",
                            dataset.name
                        ));
                        continue;
                    }
                    if is_moved(of_stream, dataset) && deleted.contains(&dataset.parent_from_guid) {
                        // The parent is gone: its children are looked at again without it.
                        return Ok(Pass { progress: true, again: true });
                    }
                    self.move_to(dataset, of_stream, top, &local, &mut pass).await;
                }
            }
        }
        Ok(pass)
    }

    /// Finds what a package says of a dataset.
    async fn verdict<'p>(
        &self,
        dataset: &PackagedDataset,
        local: &[PackagedDataset],
        stream: &Index<'p>,
    ) -> Result<Verdict<'p>, Failure> {
        let found = dataset.snapshots.iter().find_map(|snapshot| stream.get(snapshot.guid));
        let Some((of_stream, _)) = found else { return Ok(Verdict::Gone) };
        if dataset.origin_guid == of_stream.origin_guid {
            // The last of its snapshots that the stream has tells which dataset it is.
            let last = dataset.snapshots.iter().rev().find_map(|snapshot| stream.get(snapshot.guid));
            return Ok(Verdict::Same(last.map_or(of_stream, |(of_stream, _)| of_stream)));
        }
        let theirs = of_stream.origin_guid;
        let ours = dataset.origin_guid;
        let index = Index::new(local);
        let is_earlier = match (theirs, ours) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(theirs), Some(ours)) => {
                let name = |guid| index.get(guid).map(|(of, snapshot)| format!("{}@{}", of.name, snapshot.name));
                let (Some(theirs), Some(ours)) = (name(theirs), name(ours)) else { return Ok(Verdict::Later) };
                let created = async |rq: &Request, dsl: &Dsl, name: &str| {
                    Ok::<_, PoolError>(dsl.find(rq, name).await?.phys.creation_txg)
                };
                self.receiving
                    .datasets(async |rq, dsl| Ok(created(rq, dsl, &theirs).await? < created(rq, dsl, &ours).await?))
                    .await?
            }
        };
        Ok(if is_earlier { Verdict::Promote } else { Verdict::Later })
    }

    /// Renames, destroys and sets properties of the snapshots of a dataset as the sender did. Returns whether it has the
    /// snapshot that the streams are relative to.
    async fn snapshots(
        &mut self,
        dataset: &PackagedDataset,
        stream: &Index<'_>,
        pass: &mut Pass,
        deleted: &mut BTreeSet<u64>,
    ) -> bool {
        let mut has_from = false;
        for snapshot in &dataset.snapshots {
            let name = format!("{}@{}", dataset.name, snapshot.name);
            let Some((_, sent)) = stream.get(snapshot.guid) else {
                if self.receiving.args.force {
                    let destroyed = self.destroy(&name, dataset.name.len() + 1).await;
                    pass.add(destroyed);
                    deleted.insert(snapshot.guid);
                }
                continue;
            };
            if let Some(values) = sent.properties.as_ref().filter(|values| !values.is_empty()) {
                let is_new = |(name, value): &&(String, weir_dsl::props::Value)| {
                    !snapshot.properties.iter().flatten().any(|(known, old)| known == name && old == value)
                };
                let settings: Vec<(String, Setting)> = values
                    .iter()
                    .filter(is_new)
                    .map(|(property, value)| (property.clone(), Setting::Received(value.clone())))
                    .collect();
                if !settings.is_empty() {
                    // A property that cannot be set here does not keep the streams back.
                    let _ = self.receiving.change(Change::Set { name: name.clone(), settings, recursive: false }).await;
                }
            }
            if sent.name != snapshot.name {
                let to = format!("{}@{}", dataset.name, sent.name);
                let renamed = self.rename(&name, Some(&to), dataset.name.len() + 1).await;
                pass.add(renamed);
            }
            has_from |= self.receiving.package.from.as_ref() == Some(&sent.name);
        }
        has_from
    }

    /// Renames a dataset to the place where the sender has it.
    async fn move_to(
        &mut self,
        dataset: &PackagedDataset,
        of_stream: &PackagedDataset,
        top: &str,
        local: &[PackagedDataset],
        pass: &mut Pass,
    ) {
        let last = |name: &str| name.rsplit_once('/').map(|(_, last)| last.to_owned());
        let ours = last(&dataset.name);
        let theirs = last(&of_stream.name);
        let counts = self.receiving.args.is_prefix() || dataset.name != top;
        let is_renamed = counts && ours.is_some() && theirs.is_some() && ours != theirs;
        let Some(theirs) = theirs.filter(|_| is_moved(of_stream, dataset) || is_renamed) else { return };
        let parent = Index::new(local).get(of_stream.parent_from_guid).map(|(parent, _)| parent.name.clone());
        let to = parent.map(|parent| format!("{parent}/{theirs}"));
        if to.is_none() {
            self.receiving.say(&format!("local fs {} new parent not found", dataset.name));
        }
        let renamed = self.rename(&dataset.name, to.as_deref(), top.len() + 1).await;
        pass.add(renamed);
    }

    /// Renames a dataset or snapshot; to a temporary name, in place of what follows the first `base` bytes, if that is not
    /// possible yet. Returns whether it has its name.
    async fn rename(&mut self, name: &str, to: Option<&str>, base: usize) -> bool {
        if let Some(to) = to {
            self.receiving.say(&format!("attempting rename {name} to {to}"));
            if self.receiving.change(renaming(name, to)).await.is_ok() {
                self.receiving.say("success");
                return true;
            }
        }
        let (front, rest) = name.split_at_checked(base).unwrap_or((name, ""));
        if !rest.starts_with("recv-") && !rest.is_empty() {
            self.temporary_names += 1;
            let temporary = format!("{front}recv-{}-{}", std::process::id(), self.temporary_names);
            self.receiving.say(&format!("failed - trying rename {name} to {temporary}"));
            if self.receiving.change(renaming(name, &temporary)).await.is_err() {
                self.receiving.say("failed - will try again on next pass");
            }
        }
        false
    }

    /// Destroys a dataset or snapshot, or renames it out of the way.
    async fn destroy(&mut self, name: &str, base: usize) -> bool {
        self.receiving.say(&format!("attempting destroy {name}"));
        let what = match name.split_once('@') {
            Some((of, snapshot)) => Destruction::Snapshots {
                name: of.to_owned(),
                snapshots: snapshot.to_owned(),
                recursive: false,
                dependents: false,
                defer: true,
            },
            None => Destruction::Dataset { name: name.to_owned(), recursive: false, dependents: false, defer: false },
        };
        let is_gone = self.receiving.change(Change::Destroy { what }).await.is_ok() && self.is_missing(name).await;
        if is_gone {
            self.receiving.say("success");
            return true;
        }
        self.rename(name, None, base).await
    }

    async fn is_missing(&self, name: &str) -> bool {
        self.receiving.datasets(async |rq, dsl| Ok(dsl.find(rq, name).await.is_err())).await.unwrap_or(false)
    }
}

/// Whether a dataset is below another parent at the sender's.
fn is_moved(theirs: &PackagedDataset, ours: &PackagedDataset) -> bool {
    let theirs = theirs.parent_from_guid;
    let ours = ours.parent_from_guid;
    theirs != 0 && ours != 0 && theirs != ours
}

fn renaming(name: &str, to: &str) -> Change {
    match to.split_once('@') {
        Some((_, short)) => {
            Change::RenameSnapshot { snapshot: name.to_owned(), new_name: short.to_owned(), recursive: false }
        }
        None => Change::Rename { name: name.to_owned(), new_name: to.to_owned(), force: false, parents: false },
    }
}
