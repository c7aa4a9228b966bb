//! What the datasets of a pool share, and with which hosts: read from their properties, applied to every call.
//!
//! ```text
//!   properties ─ read ─▶ DatasetShares per dataset ─┬─▶ FileRules per file system and snapshot ─▶ TreeFiles
//!   host names ─ resolve ──────────────────────────┤─▶ NBD names ─▶ Volumes
//!   `zfs share`, `zfs unshare` ────────────────────┘─▶ iSCSI targets, SMB shares, for those that configure them
//! ```
//!
//! A file system is shared if `sharenfs` or `sharesmb` says so, and if it could be mounted: `canmount=on`, a path as
//! `mountpoint`, `zoned=off`. `canmount=noauto` waits for `zfs share` or `zfs mount`. A volume is shared if `weir:nbd` or
//! `weir:iscsi` says so, unless `volmode=none`. Snapshots of a file system follow the rules of the file system; snapshots of
//! volumes are devices where `snapdev=visible`. `readonly=on` allows reading only.
//!
//! What a pool shares is replaced as a whole for the datasets that changed, before the command that changed them is answered.

mod files;
mod names;
mod properties;
mod states;

pub use files::FileShares;
pub use properties::{DatasetShares, MountAllows, MountRule};
pub use states::ShareState;

use crate::exports::OpenPool;
use std::collections::{BTreeMap, BTreeSet};
use weir_machine::lock::{Mutex, MutexGuard, order};

use tokio::sync::watch;
use weir_dsl::Scope;
use weir_dsl::props::DatasetKind;
use weir_front::ExportRules;
use weir_front::shares::{
    IscsiTarget, Listed, Names, NbdExport, Precedence, SharedFileSystem, SharedVolume, SmbShare, iscsi_targets,
    nbd_exports, smb_shares,
};
use weir_machine::Request;
use weir_pool::PoolError;
use weir_pool::datasets::DatasetInfo;

use names::TakenNames;

/// Policy of sharing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing is shared.
    #[default]
    Nothing,
    /// Everything is shared, whatever the properties say.
    Everything(ExportRules),
    /// The properties.
    ByProperties,
}

/// Shares of the datasets of a pool.
#[derive(Default)]
pub struct Shares {
    state: Mutex<State, { order::SHARES }>,
    /// Host names in the properties.
    host_names: watch::Sender<BTreeSet<String>>,
    /// Counts how often the shares were applied.
    applied: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    sharing: Sharing,
    /// By name.
    datasets: BTreeMap<String, DatasetShares>,
    /// Resolved host names.
    names: Names,
    /// Datasets that `zfs share` (true) and `zfs unshare` (false) named, by ID.
    overrides: BTreeMap<u64, bool>,
    /// IDs of file systems that are mounted with the option `ro`.
    mounted_read_only: BTreeSet<u64>,
    /// Names that datasets have since the shares were applied last.
    taken: TakenNames,
    /// Lines about datasets that are not shared as they say, which were logged.
    logged: BTreeSet<String>,
}

/// Everything that is shared, to be applied.
pub(crate) struct Applied {
    pub(crate) sharing: Sharing,
    pub(crate) nbd: Vec<NbdExport>,
    pub(crate) names: Names,
}

impl Shares {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Policy of sharing.
    pub fn sharing(&self) -> Sharing {
        self.state().sharing.clone()
    }

    pub(crate) fn set_sharing(&self, sharing: Sharing) {
        self.state().sharing = sharing;
    }

    /// Shares a dataset although it is not mounted automatically (true), or not although its properties say so (false),
    /// until the process ends.
    pub fn set_override(&self, id: u64, is_shared: bool) {
        self.state().overrides.insert(id, is_shared);
    }

    /// Whether clients of NFS or SMB can use a file system.
    pub fn is_shared(&self, shares: &DatasetShares) -> bool {
        !(shares.nfs.is_off() && shares.smb.is_off()) && self.state().is_mounted(shares)
    }

    /// Shares a file system that was just mounted; its clients change nothing if the mount forbids changes.
    pub(crate) fn set_mounted(&self, id: u64, read_only: bool) {
        let mut state = self.state();
        state.overrides.insert(id, true);
        match read_only {
            true => state.mounted_read_only.insert(id),
            false => state.mounted_read_only.remove(&id),
        };
        debug_assert_eq!(state.mounted_read_only.contains(&id), read_only);
    }

    /// Forgets which datasets at and below `top` are not shared although their properties say so.
    pub(crate) fn share_again(&self, top: &str) {
        let mut state = self.state();
        let State { datasets, overrides, .. } = &mut *state;
        for (_, shares) in datasets.iter().filter(|(name, _)| Scope::Subtree(top).contains(name)) {
            if overrides.get(&shares.id) == Some(&false) {
                overrides.remove(&shares.id);
            }
        }
    }

    /// Reads the properties of datasets. With [`Sharing::ByProperties`] alone; the others need none.
    pub(crate) async fn read(
        &self,
        rq: &Request,
        pool: &OpenPool,
        found: &[DatasetInfo],
    ) -> Result<BTreeMap<String, DatasetShares>, PoolError> {
        match self.sharing() {
            Sharing::ByProperties => read(rq, pool, found).await,
            Sharing::Nothing | Sharing::Everything(_) => Ok(BTreeMap::new()),
        }
    }

    /// Replaces what the datasets below `tops` share; of all datasets if there are none.
    pub(crate) fn replace(&self, tops: Option<&[String]>, found: BTreeMap<String, DatasetShares>) {
        let mut state = self.state();
        match tops {
            None => state.datasets.clear(),
            Some(tops) => state.datasets.retain(|name, _| !tops.iter().any(|top| Scope::Subtree(top).contains(name))),
        }
        state.datasets.extend(found);
        let present: BTreeSet<u64> = state.datasets.values().map(|shares| shares.id).collect();
        if state.sharing == Sharing::ByProperties {
            state.overrides.retain(|id, _| present.contains(id));
            state.mounted_read_only.retain(|id| present.contains(id));
        }
        let names: BTreeSet<String> =
            state.datasets.values().flat_map(DatasetShares::host_names).map(str::to_owned).collect();
        drop(state);
        self.host_names.send_if_modified(|known| {
            let is_new = *known != names;
            *known = names;
            is_new
        });
    }

    /// Changes whenever the shares were applied, so that those who configure targets and SMB shares read them again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Tells that the shares were applied.
    pub(crate) fn tell_applied(&self) {
        self.applied.send_modify(|count| *count += 1);
    }

    /// Host names in the properties.
    pub fn host_names(&self) -> watch::Receiver<BTreeSet<String>> {
        self.host_names.subscribe()
    }

    /// Sets the addresses of host names; returns whether any is different from before.
    pub(crate) fn set_names(&self, names: Names) -> bool {
        let mut state = self.state();
        let is_new = state.names != names;
        state.names = names;
        is_new
    }

    /// Applies the rules of file systems, and returns those of volumes. Logs each dataset once that is not shared as its properties say.
    pub(crate) fn applied(&self, files: &FileShares) -> Applied {
        let mut state = self.state();
        files.apply(
            &state.sharing,
            state.datasets.values().map(|shares| (shares, state.is_mounted(shares), state.is_readonly(shares))),
            &state.names,
        );
        let volumes = state.volumes();
        let nbd = nbd_exports(&volumes);
        let iscsi = iscsi_targets(0, &volumes);
        let smb = smb_shares(&state.file_systems());
        state.taken = TakenNames::of(&nbd.shares, &iscsi.shares, &smb.shares);
        let conflicts = nbd.conflicts.into_iter().chain(iscsi.conflicts).chain(smb.conflicts);
        let mut problems: BTreeSet<String> = conflicts.map(|(name, why)| format!("{name}: {why}")).collect();
        for shares in state.datasets.values() {
            problems.extend(shares.problems.iter().map(|(_, why)| format!("{}: {why}", shares.dataset)));
        }
        problems.difference(&state.logged).for_each(|line| tracing::warn!("not shared: {line}"));
        state.logged = problems;
        Applied { sharing: state.sharing.clone(), nbd: nbd.shares, names: state.names.clone() }
    }

    /// The iSCSI targets of the pool, as the properties of its volumes say.
    pub fn iscsi_targets(&self, pool_guid: u64) -> Listed<IscsiTarget> {
        iscsi_targets(pool_guid, &self.state().volumes())
    }

    /// The SMB shares of the pool, as the properties of its file systems say.
    pub fn smb_shares(&self) -> Listed<SmbShare> {
        smb_shares(&self.state().file_systems())
    }

    /// Why a dataset cannot have the name, or the LUN, that a value of a property of sharing gives it: another dataset of the pool has
    /// it.
    pub fn conflict_of(&self, dataset: &str, property: &str, value: &str) -> Option<String> {
        self.state().taken.conflict_of(dataset, property, value)
    }

    /// Resolved host names, for the lists of hosts in targets and shares.
    pub fn names(&self) -> Names {
        self.state().names.clone()
    }

    /// Shares of all datasets by name, with [`Sharing::ByProperties`].
    pub fn all(&self) -> BTreeMap<String, DatasetShares> {
        self.state().datasets.clone()
    }

    /// Shares of one dataset.
    pub fn of(&self, dataset: &str) -> Option<DatasetShares> {
        self.state().datasets.get(dataset).cloned()
    }
}

impl State {
    /// Whether a file system is treated as mounted, so that it can be shared.
    fn is_mounted(&self, shares: &DatasetShares) -> bool {
        match self.overrides.get(&shares.id) {
            Some(is_shared) => *is_shared && shares.mount.is_possible(),
            None => shares.mount.is_automatic(),
        }
    }

    /// Whether clients may not change a file system: by its property, or as it is mounted.
    fn is_readonly(&self, shares: &DatasetShares) -> bool {
        shares.is_readonly || self.mounted_read_only.contains(&shares.id)
    }

    fn volumes(&self) -> Vec<SharedVolume> {
        let is_shared = |shares: &&DatasetShares| {
            let is_wanted = self.overrides.get(&shares.id).copied().unwrap_or(true);
            shares.kind == DatasetKind::Volume && shares.is_device && is_wanted
        };
        let volume = |shares: &DatasetShares| {
            let new = Precedence { is_new: true, created_s: shares.created_s };
            let mut volume = SharedVolume {
                dataset: shares.dataset.clone(),
                id: shares.id,
                is_readonly: shares.is_readonly,
                iscsi: shares.iscsi.clone(),
                iscsi_precedence: new,
                nbd: shares.nbd.clone(),
                nbd_precedence: new,
                snapshots: if shares.shows_snapshots { shares.snapshots.clone() } else { Vec::new() },
            };
            volume.iscsi_precedence.is_new = !self.taken.has_lun(&volume.iqn(0), volume.iscsi.lun, &volume.dataset);
            volume.nbd_precedence.is_new = !self.taken.has_export(volume.nbd_name(), &volume.dataset);
            volume
        };
        self.datasets.values().filter(is_shared).map(volume).collect()
    }

    fn file_systems(&self) -> Vec<SharedFileSystem> {
        let is_shared = |shares: &&DatasetShares| shares.kind == DatasetKind::Filesystem && self.is_mounted(shares);
        let file_system = |shares: &DatasetShares| SharedFileSystem {
            dataset: shares.dataset.clone(),
            is_readonly: self.is_readonly(shares),
            smb: shares.smb.clone(),
            precedence: Precedence {
                is_new: !self.taken.has_share(&shares.smb.name_for(&shares.dataset), &shares.dataset),
                created_s: shares.created_s,
            },
        };
        self.datasets.values().filter(is_shared).map(file_system).collect()
    }
}

/// Reads the properties of file systems and volumes, by name.
pub(crate) async fn read(
    rq: &Request,
    pool: &OpenPool,
    found: &[DatasetInfo],
) -> Result<BTreeMap<String, DatasetShares>, PoolError> {
    let dsl = pool.dsl(rq).await?;
    let facts = pool.facts();
    let mut out = BTreeMap::<String, DatasetShares>::new();
    for info in found {
        match info.kind {
            DatasetKind::Snapshot => {
                let (of, name) = info.name.split_once('@').unwrap_or((&info.name, ""));
                // Every list has a dataset before its snapshots.
                if let Some(head) = out.get_mut(of) {
                    head.snapshots.push((name.to_owned(), info.fsid));
                }
            }
            _ => match properties::read(rq, &dsl, &facts, info).await {
                Ok(shares) => drop(out.insert(info.name.clone(), shares)),
                Err(error) => tracing::warn!(name = info.name, %error, "not shared: its properties cannot be read"),
            },
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
