//! What a pool offers over each protocol, made of what its datasets share: names are unique, targets have their LUNs.
//!
//! Two datasets that want the same name, or the same LUN of a target, cannot both have it: [`Precedence`] decides which one has it,
//! and the other is not shared ([`Listed::conflicts`]). The same holds for a volume that wants to join a target with another
//! access list or user than the target has: one target has one of each, and none of the volumes may be open to more initiators
//! than its property says.

use super::{HostList, Iqn, ShareIscsi, ShareNbd, ShareSmb, TimeMachine};
use std::collections::BTreeMap;

/// The order in which datasets get the name, or the LUN, that they want: first the one that has it already, so that no client is
/// moved to another dataset; then the older dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// Whether the dataset does not have the name yet.
    pub is_new: bool,
    /// When the dataset was created, in seconds since 1970.
    pub created_s: u64,
}

/// A volume, and what it shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedVolume {
    /// Name of the dataset.
    pub dataset: String,
    /// Persistent ID ([`crate::BlockDevice::id`]).
    pub id: u64,
    /// Whether the dataset is read-only.
    pub is_readonly: bool,
    /// `weir:iscsi`.
    pub iscsi: ShareIscsi,
    /// Precedence in its iSCSI target.
    pub iscsi_precedence: Precedence,
    /// `weir:nbd`.
    pub nbd: ShareNbd,
    /// Precedence among the NBD exports.
    pub nbd_precedence: Precedence,
    /// Names after the `@` and IDs of the snapshots that are devices (`snapdev=visible`).
    pub snapshots: Vec<(String, u64)>,
}

impl SharedVolume {
    /// Name of the NBD export.
    pub fn nbd_name(&self) -> &str {
        self.nbd.name.as_deref().unwrap_or(&self.dataset)
    }

    /// Name of the iSCSI target, in the pool with this GUID.
    pub fn iqn(&self, pool_guid: u64) -> Iqn {
        self.iscsi.target.clone().unwrap_or_else(|| Iqn::of_volume(pool_guid, self.id))
    }
}

/// A file system, and what it shares over SMB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFileSystem {
    /// Name of the dataset.
    pub dataset: String,
    /// Whether the dataset is read-only.
    pub is_readonly: bool,
    /// `sharesmb`.
    pub smb: ShareSmb,
    /// Precedence among the SMB shares.
    pub precedence: Precedence,
}

/// The shares of a protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed<T> {
    /// The shares.
    pub shares: Vec<T>,
    /// Datasets that are not shared although their properties say so, with the reason.
    pub conflicts: Vec<(String, String)>,
}

/// A volume that is exported over NBD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdExport {
    /// Name of the export.
    pub name: String,
    /// Name of the volume or snapshot.
    pub dataset: String,
    /// Persistent ID of the volume or snapshot.
    pub id: u64,
    /// Hosts that see it.
    pub hosts: HostList,
    /// Whether clients may only read.
    pub read_only: bool,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiLun {
    /// Logical unit number.
    pub lun: u16,
    /// Name of the volume.
    pub dataset: String,
    /// Persistent ID of the volume or snapshot.
    pub id: u64,
    /// Whether writes may stay in memory until the initiator flushes them.
    pub write_cache: bool,
    /// Whether initiators may only read.
    pub read_only: bool,
}

/// An iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiTarget {
    /// Name.
    pub iqn: Iqn,
    /// Logical units by number.
    pub luns: Vec<IscsiLun>,
    /// Initiators that may log in; empty for all.
    pub initiators: Vec<Iqn>,
    /// Hosts that may connect.
    pub hosts: HostList,
    /// User whose CHAP secret the initiator must know.
    pub chap: Option<String>,
    /// User as whom the target answers the initiator's challenge.
    pub mutual: Option<String>,
}

/// An SMB share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmbShare {
    /// Name.
    pub name: String,
    /// Name of the file system.
    pub dataset: String,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Whether users without an account may connect.
    pub guest: bool,
    /// Time Machine.
    pub time_machine: TimeMachine,
    /// Hosts that may connect.
    pub hosts: HostList,
    /// Whether the list of shares shows it.
    pub browseable: bool,
}

/// The NBD exports of volumes. Of volumes of one precedence those without a name of their own come first, under their dataset names.
pub fn nbd_exports(volumes: &[SharedVolume]) -> Listed<NbdExport> {
    let mut out = Listed { shares: Vec::new(), conflicts: Vec::new() };
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    let mut sorted: Vec<&SharedVolume> = volumes.iter().filter(|volume| !volume.nbd.is_off()).collect();
    sorted.sort_by_key(|volume| (volume.nbd_precedence, volume.nbd.name.is_some(), &volume.dataset));
    for volume in sorted {
        let name = volume.nbd_name();
        let of = |name: String, dataset: String, id, read_only| {
            let hosts = volume.nbd.hosts.clone();
            NbdExport { name, dataset, id, hosts, read_only }
        };
        let read_only = volume.nbd.read_only || volume.is_readonly;
        let snapshots = volume.snapshots.iter().map(|(snapshot, id)| {
            of(format!("{name}@{snapshot}"), format!("{}@{snapshot}", volume.dataset), *id, true)
        });
        let head = of(name.to_owned(), volume.dataset.clone(), volume.id, read_only);
        for export in std::iter::once(head).chain(snapshots) {
            match taken.get(&export.name) {
                Some(other) => {
                    let why = format!("weir:nbd: '{other}' has the name '{}' already", export.name);
                    out.conflicts.push((export.dataset, why));
                }
                None => {
                    taken.insert(export.name.clone(), export.dataset.clone());
                    out.shares.push(export);
                }
            }
        }
    }
    out
}

/// The iSCSI targets of the volumes of a pool.
pub fn iscsi_targets(pool_guid: u64, volumes: &[SharedVolume]) -> Listed<IscsiTarget> {
    let mut targets: BTreeMap<Iqn, IscsiTarget> = BTreeMap::new();
    let mut conflicts = Vec::new();
    let mut sorted: Vec<&SharedVolume> = volumes.iter().filter(|volume| !volume.iscsi.is_off()).collect();
    sorted.sort_by_key(|volume| (volume.iscsi_precedence, &volume.dataset));
    for volume in sorted {
        let share = &volume.iscsi;
        let iqn = volume.iqn(pool_guid);
        let target = targets.entry(iqn.clone()).or_insert_with(|| IscsiTarget {
            iqn,
            luns: Vec::new(),
            initiators: share.initiators.clone(),
            hosts: share.hosts.clone(),
            chap: share.chap.clone(),
            mutual: share.mutual.clone(),
        });
        let lun = IscsiLun {
            lun: share.lun,
            dataset: volume.dataset.clone(),
            id: volume.id,
            write_cache: share.write_cache,
            read_only: share.read_only || volume.is_readonly,
        };
        match obstacle(target, share) {
            Some(why) => conflicts.push((volume.dataset.clone(), why)),
            None => target.luns.push(lun),
        }
    }
    let mut shares: Vec<IscsiTarget> = targets.into_values().collect();
    shares.iter_mut().for_each(|target| target.luns.sort_by_key(|lun| lun.lun));
    debug_assert!(shares.iter().all(|target| !target.luns.is_empty()), "a target without a unit");
    Listed { shares, conflicts }
}

/// Why a volume cannot be a logical unit of a target.
fn obstacle(target: &IscsiTarget, share: &ShareIscsi) -> Option<String> {
    let first = target.luns.first()?;
    let same_access = target.hosts == share.hosts && target.chap == share.chap && target.mutual == share.mutual;
    let mut theirs = target.initiators.clone();
    let mut own = share.initiators.clone();
    theirs.sort();
    own.sort();
    if let Some(unit) = target.luns.iter().find(|unit| unit.lun == share.lun) {
        let number = share.lun;
        return Some(format!(
            "weir:iscsi: '{}' is LUN {number} of {} already; lun=N sets another",
            unit.dataset, target.iqn
        ));
    }
    if same_access && theirs == own {
        return None;
    }
    let dataset = &first.dataset;
    Some(format!("weir:iscsi: initiators, hosts, chap and mutual must be those of '{dataset}' in {}", target.iqn))
}

/// The SMB shares of file systems. Names are compared without case. Of file systems of one precedence those with a name of their own
/// come first.
pub fn smb_shares(file_systems: &[SharedFileSystem]) -> Listed<SmbShare> {
    let mut out = Listed { shares: Vec::new(), conflicts: Vec::new() };
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    let mut sorted: Vec<&SharedFileSystem> = file_systems.iter().filter(|shared| !shared.smb.is_off()).collect();
    sorted.sort_by_key(|shared| (shared.precedence, shared.smb.name.is_none(), &shared.dataset));
    for SharedFileSystem { dataset, is_readonly, smb, .. } in sorted {
        let name = smb.name_for(dataset);
        match taken.get(&name.to_lowercase()) {
            Some(other) => {
                let why = format!("sharesmb: '{other}' has the name '{name}' already; name= sets another");
                out.conflicts.push((dataset.clone(), why));
            }
            None => {
                taken.insert(name.to_lowercase(), dataset);
                out.shares.push(SmbShare {
                    name,
                    dataset: dataset.clone(),
                    read_only: smb.read_only || *is_readonly,
                    guest: smb.guest,
                    time_machine: smb.time_machine,
                    hosts: smb.hosts.clone(),
                    browseable: smb.browseable,
                });
            }
        }
    }
    out
}
