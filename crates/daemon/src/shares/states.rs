//! How the datasets of a pool are shared, and why not, for tables and messages.

use super::{DatasetShares, MountRule, Shares, State};
use std::collections::BTreeMap;
use weir_dsl::props::DatasetKind;
use weir_front::shares::{HostList, Iqn, iscsi_targets, nbd_exports, smb_shares};
use weir_machine::Protocol;

/// A dataset that its properties share over a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareState {
    /// Name of the dataset.
    pub dataset: String,
    /// The protocol.
    pub protocol: Protocol,
    /// Name by which clients find it: path, name of the share or export, target and LUN; empty if it has none.
    pub name: String,
    /// Whether any host can use it.
    pub is_served: bool,
    /// Why it is not served, or not to all hosts that the property names.
    pub problems: Vec<String>,
}

impl ShareState {
    /// Records why it is not served.
    pub fn refuse(&mut self, why: impl Into<String>) {
        self.is_served = false;
        self.problems.push(why.into());
    }
}

impl Shares {
    /// Shares that the properties of the pool's datasets ask for, in the order of datasets and protocols.
    pub fn states(&self, pool_guid: u64) -> Vec<ShareState> {
        let state = self.state();
        let volumes = state.volumes();
        let named = Named {
            nbd: by_dataset(nbd_exports(&volumes).shares.into_iter().map(|export| (export.dataset, export.name))),
            iscsi: by_dataset(iscsi_targets(pool_guid, &volumes).shares.into_iter().flat_map(|target| {
                let iqn: Iqn = target.iqn;
                target.luns.into_iter().map(move |lun| (lun.dataset, format!("{iqn} LUN {}", lun.lun)))
            })),
            smb: by_dataset(
                smb_shares(&state.file_systems()).shares.into_iter().map(|share| (share.dataset, share.name)),
            ),
            conflicts: conflicts(&state),
        };
        state.datasets.values().flat_map(|shares| state.of_dataset(shares, &named)).collect()
    }
}

/// Names by dataset, and datasets whose names others have.
struct Named {
    nbd: BTreeMap<String, String>,
    iscsi: BTreeMap<String, String>,
    smb: BTreeMap<String, String>,
    conflicts: BTreeMap<(Protocol, String), String>,
}

fn by_dataset(pairs: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    pairs.collect()
}

fn conflicts(state: &State) -> BTreeMap<(Protocol, String), String> {
    let volumes = state.volumes();
    let lists = [
        (Protocol::Nbd, nbd_exports(&volumes).conflicts),
        (Protocol::Iscsi, iscsi_targets(0, &volumes).conflicts),
        (Protocol::Smb, smb_shares(&state.file_systems()).conflicts),
    ];
    let with = |(protocol, list): (Protocol, Vec<(String, String)>)| {
        list.into_iter().map(move |(dataset, why)| ((protocol, dataset), why))
    };
    lists.into_iter().flat_map(with).collect()
}

impl State {
    /// The shares of one dataset.
    fn of_dataset(&self, shares: &DatasetShares, named: &Named) -> Vec<ShareState> {
        let mount_path = shares.mount.path().unwrap_or_default().to_owned();
        let none = HostList::default;
        let of = |map: &BTreeMap<String, String>| map.get(&shares.dataset).cloned().unwrap_or_default();
        let wanted = [
            (Protocol::Nfs3, !shares.nfs.is_off(), mount_path, none()),
            (Protocol::Smb, !shares.smb.is_off(), of(&named.smb), shares.smb.hosts.clone()),
            (Protocol::Nbd, !shares.nbd.is_off(), of(&named.nbd), shares.nbd.hosts.clone()),
            (Protocol::Iscsi, !shares.iscsi.is_off(), of(&named.iscsi), shares.iscsi.hosts.clone()),
        ];
        let mut out = Vec::new();
        for (protocol, is_wanted, name, hosts) in wanted {
            let new = || ShareState {
                dataset: shares.dataset.clone(),
                protocol,
                name: name.clone(),
                is_served: true,
                problems: Vec::new(),
            };
            let invalid = shares.problems.iter().filter(|(of, _)| *of == protocol);
            out.extend(invalid.map(|(_, why)| {
                let mut state = new();
                state.refuse(why);
                state
            }));
            if !is_wanted {
                continue;
            }
            let mut state = new();
            if let Some(why) = self.unusable(shares) {
                state.refuse(why);
            }
            if let Some(why) = named.conflicts.get(&(protocol, shares.dataset.clone())) {
                state.refuse(why);
            }
            let names: Vec<&str> = match protocol {
                Protocol::Nfs3 => shares.nfs.names().collect(),
                _ => hosts.names().collect(),
            };
            let unknown = names.into_iter().filter(|name| !self.names.contains_key(*name));
            state.problems.extend(unknown.map(|name| format!("host name '{name}' has no address: it has no access")));
            out.push(state);
        }
        out
    }

    /// Why a dataset can be shared over no protocol.
    fn unusable(&self, shares: &DatasetShares) -> Option<String> {
        let is_unshared = self.overrides.get(&shares.id) == Some(&false);
        if is_unshared {
            return Some("zfs unshare ended it".into());
        }
        match shares.kind {
            DatasetKind::Volume => (!shares.is_device).then(|| "volmode=none".into()),
            _ if self.is_mounted(shares) => None,
            _ => Some(match &shares.mount {
                MountRule::Never(why) => why.clone(),
                MountRule::Legacy => "mountpoint=legacy".into(),
                MountRule::Redacted(_) => "it is redacted: it waits for zfs mount -f".into(),
                MountRule::OnCommand(_) => "canmount=noauto: it waits for zfs share or zfs mount".into(),
                MountRule::At(_) => "it is not mounted".into(),
            }),
        }
    }
}
