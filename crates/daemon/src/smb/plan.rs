//! The mounts and shares that the properties of all pools make. Pure.
//!
//! ```text
//!   tank/a        shared                    a mount, and a share of its root
//!   tank/a/b      shared on the same terms  in the mount of tank/a: a share of a directory there, also reached through tank/a
//!   tank/a/c      shared read-only          a mount of its own; hidden in the mount of tank/a
//!   tank/a/d      not shared                hidden
//! ```
//!
//! A file system is reached through the share of its parent only if that admits the same hosts and users and forbids the same:
//! no share gives more than the property of the file system says. What is contained nowhere has a mount of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_front::shares::{HostList, HostWord, Names, SmbShare};

/// A file system that is shared: its ID and its share.
pub(super) type Shared = (u64, SmbShare);

/// A mount: GUID of the pool, and ID of the file system that is its root.
pub(super) type MountKey = (u64, u64);

/// One share, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedShare {
    pub(super) share: SmbShare,
    pub(super) mount: MountKey,
    /// Directory of the file system below the root of the mount, without slashes at its ends; empty for the root.
    pub(super) directory: String,
}

/// Mounts and shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) shares: Vec<PlannedShare>,
    /// IDs of the file systems that each mount contains below its root.
    pub(super) mounts: BTreeMap<MountKey, BTreeSet<u64>>,
    /// Lines about shares that there cannot be.
    pub(super) conflicts: Vec<String>,
}

/// Plans the shares of pools, each with its GUID. Of two pools with a share of one name, the one that has it in the plan `before`
/// keeps it; else the first has it.
pub(super) fn plan(pools: &[(u64, Vec<Shared>)], before: &Plan) -> Plan {
    let mut out = Plan::default();
    let had = |guid: u64, share: &SmbShare| {
        before
            .shares
            .iter()
            .any(|old| (old.mount.0, &old.share.name, &old.share.dataset) == (guid, &share.name, &share.dataset))
    };
    let all = pools.iter().flat_map(|(guid, shared)| shared.iter().map(move |(_, share)| (*guid, share)));
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    for (_, share) in all.filter(|(guid, share)| had(*guid, share)) {
        taken.insert(share.name.to_lowercase(), &share.dataset);
    }
    for (guid, shared) in pools {
        let mut own: BTreeMap<&str, &Shared> = BTreeMap::new();
        for entry in shared {
            let (_, share) = entry;
            match taken.get(&share.name.to_lowercase()).filter(|other| **other != share.dataset) {
                Some(other) => {
                    let name = &share.name;
                    let why = format!("sharesmb: '{other}' has the name '{name}' already; name= sets another");
                    out.conflicts.push(format!("{}: {why}", share.dataset));
                }
                None => {
                    taken.insert(share.name.to_lowercase(), &share.dataset);
                    own.insert(&share.dataset, entry);
                }
            }
        }
        for (id, share) in own.values() {
            let (root, root_share) = root_of(&own, share).unwrap_or((*id, share));
            let contained = out.mounts.entry((*guid, root)).or_default();
            if root != *id {
                contained.insert(*id);
            }
            let directory = share.dataset.strip_prefix(&root_share.dataset).unwrap_or_default();
            let directory = directory.trim_start_matches('/').to_owned();
            out.shares.push(PlannedShare { share: share.clone(), mount: (*guid, root), directory });
        }
    }
    debug_assert!(out.shares.iter().all(|share| out.mounts.contains_key(&share.mount)), "a share without a mount");
    out
}

/// The highest file system through whose share another one is reached.
fn root_of<'a>(shared: &BTreeMap<&str, &'a Shared>, share: &'a SmbShare) -> Option<(u64, &'a SmbShare)> {
    let parent = |share: &SmbShare| {
        let (parent, _) = share.dataset.rsplit_once('/')?;
        let (id, above) = shared.get(parent)?;
        let is_same = (above.read_only, above.guest, &above.hosts) == (share.read_only, share.guest, &share.hosts);
        is_same.then_some((*id, above))
    };
    std::iter::successors(parent(share), |(_, above)| parent(above)).last()
}

/// The hosts for smbd: no word for every host, one that no client has if none of the names has an address.
pub(super) fn hosts_allow(hosts: &HostList, names: &Names) -> Vec<String> {
    const NO_HOST: &str = "255.255.255.255";
    let mut out = Vec::new();
    for word in hosts.words() {
        match word {
            HostWord::Everyone => return Vec::new(),
            HostWord::Network { address, bits } => {
                let most = if address.is_ipv4() { 32 } else { 128 };
                out.push(if *bits == most { address.to_string() } else { format!("{address}/{bits}") });
            }
            HostWord::Name(name) => out.extend(names.get(name).into_iter().flatten().map(IpAddr::to_string)),
        }
    }
    if out.is_empty() { vec![NO_HOST.to_owned()] } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_front::shares::{Precedence, ShareSmb, SharedFileSystem, smb_shares};

    /// Shares of file systems with these names, IDs and values of `sharesmb`.
    fn shared(all: &[(&str, u64, &str)]) -> Vec<Shared> {
        let file_systems: Vec<SharedFileSystem> = all
            .iter()
            .map(|(dataset, _, value)| SharedFileSystem {
                dataset: (*dataset).into(),
                is_readonly: false,
                smb: value.parse::<ShareSmb>().unwrap(),
                precedence: Precedence::default(),
            })
            .collect();
        let id = |dataset: &str| all.iter().find(|(name, ..)| *name == dataset).unwrap().1;
        smb_shares(&file_systems).shares.into_iter().map(|share| (id(&share.dataset), share)).collect()
    }

    #[test]
    fn a_share_never_reaches_more_than_its_file_system_allows() {
        let pool = shared(&[
            ("t/a", 1, "on"),
            ("t/a/b", 2, "on"),
            ("t/a/b/e", 3, "name=e"),
            ("t/a/c", 4, "ro"),
            ("t/a/c/d", 5, "ro"),
            ("t/a/x/y", 6, "on"),
        ]);
        let plan = plan(&[(9, pool)], &Plan::default());
        let mounts = [((9, 1), BTreeSet::from([2, 3])), ((9, 4), BTreeSet::from([5])), ((9, 6), BTreeSet::new())];
        assert_eq!(plan.mounts, BTreeMap::from(mounts));
        let place = |name: &str| {
            let found = plan.shares.iter().find(|planned| planned.share.name == name).unwrap();
            (found.mount.1, found.directory.as_str())
        };
        assert_eq!(
            ["t_a", "t_a_b", "e", "t_a_c_d", "t_a_x_y"].map(place),
            [(1, ""), (1, "b"), (1, "b/e"), (4, "d"), (6, "")]
        );
    }

    #[test]
    fn names_are_unique_over_all_pools() {
        let pools = [(1, shared(&[("t", 1, "name=Music")])), (2, shared(&[("u", 1, "name=music"), ("u/v", 2, "on")]))];
        let plan = plan(&pools, &Plan::default());
        assert_eq!(plan.shares.iter().map(|planned| &planned.share.name).collect::<Vec<_>>(), ["Music", "u_v"]);
        assert_eq!(plan.conflicts, ["u: sharesmb: 't' has the name 'music' already; name= sets another"]);

        // A pool that comes first and is imported later does not get the name.
        let pools = [(0, shared(&[("s", 1, "name=Music")])), pools[0].clone()];
        let later = super::plan(&pools, &plan);
        let owners: Vec<&str> = later.shares.iter().map(|planned| planned.share.dataset.as_str()).collect();
        assert_eq!((owners, later.conflicts.len()), (vec!["t"], 1));
    }

    #[test]
    fn a_list_of_hosts_never_becomes_every_host() {
        let hosts = |text: &str| text.parse::<ShareSmb>().unwrap().hosts;
        let names = Names::from([("mac".to_owned(), vec!["10.0.0.9".parse().unwrap()])]);
        assert_eq!(hosts_allow(&hosts("on"), &names), [""; 0]);
        assert_eq!(hosts_allow(&hosts("hosts=@10.1.0.0/16:mac:[::1]"), &names), ["10.1.0.0/16", "10.0.0.9", "::1"]);
        assert_eq!(hosts_allow(&hosts("hosts=gone"), &names), ["255.255.255.255"]);
    }
}
