//! The pool configuration as written to the MOS (whole) and to each label (the part that is needed to find the rest).
//!
//! ```text
//!   MOS object "config"   pool-wide facts · the whole tree of vdevs, with the objects of each (ZAPs, metaslabs)
//!   label of a leaf       pool-wide facts · the leaf's own top-level vdev · how many tops there are · features to read
//! ```
//!
//! The vdev tree keeps the nvlist from which it was read, so that unknown vdev properties (physical path, enclosure) are
//! written back unchanged.
//!
//! Source: OpenZFS `module/zfs/spa_config.c` (`spa_config_generate`), `module/zfs/vdev_label.c`
//! (`vdev_config_generate`, `vdev_aux_label_generate`).

use super::aux_devices::AuxDevices;
use std::collections::BTreeSet;
use weir_format::nvlist::NvValue;
use weir_format::{DecodeError, NvList, Txg};
use weir_pool::assemble::state;
use weir_pool::config::PoolConfig;

/// Names of vdev values that only the MOS configuration contains.
const MOS_ONLY: [&str; 4] = [
    "com.delphix:vdev_zap_leaf",
    "com.delphix:vdev_zap_top",
    "com.klarasystems:vdev_zap_root",
    "com.datto:resilver_defer",
];
/// Flag that vdevs have ZAPs; pools that only old implementations wrote lack it.
const VDEV_ZAPS: &str = "com.delphix:has_per_vdev_zaps";
/// Names that are generated for each write of the MOS configuration; all others are preserved as read.
const GENERATED: [&str; 15] = [
    "version",
    "name",
    "state",
    "txg",
    "pool_guid",
    "errata",
    SPLIT_GUID,
    "comment",
    "compatibility",
    "hostid",
    "hostname",
    VDEV_ZAPS,
    "hole_array",
    "vdev_children",
    "vdev_tree",
];
/// GUID of the pool that this one was split off from, until the next import (`ZPOOL_CONFIG_SPLIT_GUID`).
pub(super) const SPLIT_GUID: &str = "split_guid";
/// State of a split in progress, and the devices that it takes (`ZPOOL_CONFIG_SPLIT`, `ZPOOL_CONFIG_SPLIT_LIST`).
const SPLIT: &str = "splitcfg";
const SPLIT_LIST: &str = "guid_list";
const FEATURES: &str = "features_for_read";

/// The host that has the pool open for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The machine's number (`/etc/hostid`); 0 if it has none.
    pub id: u64,
    /// The machine's name.
    pub name: String,
}

/// A pool's configuration in writable form.
#[derive(Clone, Debug)]
pub struct Config {
    /// The pool's name.
    pub name: String,
    /// The name that is written to the pool, if `name` is a temporary one (`zpool import -t`).
    pub stored_name: Option<String>,
    /// GUID of the pool and of its root vdev.
    pub guid: u64,
    /// Pool state, for example [`state::ACTIVE`].
    pub state: u64,
    /// On-disk version.
    pub version: u64,
    /// Known damage by old software (`zpool_errata_t`).
    pub errata: u64,
    /// The pool property `comment`.
    pub comment: Option<String>,
    /// The pool property `compatibility`.
    pub compatibility: Option<String>,
    /// GUID of the pool that this one was split off from, for the labels that this import writes.
    pub split_from: Option<u64>,
    /// The host that writes.
    pub host: Host,
    /// The tree of vdevs, as the MOS has it.
    pub root: NvList,
    /// Hot spares and cache devices. They are no part of the configuration as written: the MOS has a list of each kind.
    pub aux: AuxDevices,
    /// Active features without which the MOS cannot be read, by their full names.
    pub label_features: BTreeSet<String>,
    /// Whether vdevs have ZAPs.
    vdev_zaps: bool,
    /// Other names and values, preserved as read.
    rest: Vec<(Vec<u8>, NvValue)>,
}

impl Config {
    /// The configuration of a new pool with this vdev tree.
    pub fn new(name: &str, guid: u64, host: Host, root: NvList) -> Self {
        Config {
            name: name.to_owned(),
            stored_name: None,
            guid,
            state: state::ACTIVE,
            version: weir_format::features::VERSION_FEATURES,
            errata: 0,
            comment: None,
            compatibility: None,
            split_from: None,
            host,
            root,
            aux: AuxDevices::default(),
            label_features: BTreeSet::new(),
            vdev_zaps: true,
            rest: Vec::new(),
        }
    }

    /// The writable form of an existing pool's MOS configuration.
    ///
    /// # Errors
    /// [`DecodeError`] if it has no vdev tree.
    pub fn of(config: &PoolConfig, host: Host) -> Result<Self, DecodeError> {
        let list = &config.list;
        let kept = |name: &[u8]| name != FEATURES.as_bytes() && !GENERATED.iter().any(|g| g.as_bytes() == name);
        Ok(Config {
            name: config.name.clone(),
            stored_name: None,
            guid: config.guid,
            state: config.state,
            version: config.version,
            errata: config.errata,
            comment: config.comment.clone(),
            compatibility: list.get_str("compatibility").map(str::to_owned),
            split_from: None,
            host,
            root: list.require_list("vdev_tree")?.clone(),
            aux: AuxDevices::default(),
            label_features: config.features_for_read.iter().cloned().collect(),
            vdev_zaps: list.contains(VDEV_ZAPS),
            rest: list.pairs().iter().filter(|p| kept(&p.name)).map(|p| (p.name.clone(), p.value.clone())).collect(),
        })
    }

    /// GUIDs of the leaves that a split in progress takes out of the pool, by top-level vdev; 0 for those without.
    pub fn splitting(&self) -> Option<Vec<u64>> {
        let split = self.rest.iter().find(|(name, _)| name == SPLIT.as_bytes())?;
        let NvValue::List(list) = &split.1 else { return None };
        list.get_u64_array(SPLIT_LIST).map(<[u64]>::to_vec)
    }

    /// Records which leaves a split takes out of the pool, or that none is in progress.
    pub(super) fn set_splitting(&mut self, leaves: Option<Vec<u64>>) {
        self.rest.retain(|(name, _)| name != SPLIT.as_bytes());
        self.rest.extend(leaves.map(|leaves| {
            let mut list = NvList::new();
            list.set(SPLIT_LIST, leaves);
            (SPLIT.as_bytes().to_vec(), list.into())
        }));
    }

    /// The top-level vdevs.
    pub fn tops(&self) -> &[NvList] {
        self.root.get_list_array("children").unwrap_or_default()
    }

    /// Changes the top-level vdevs.
    pub fn set_tops(&mut self, tops: Vec<NvList>) {
        set(&mut self.root, "children", tops.into());
    }

    /// Sets a number of the top-level vdev `id`.
    pub fn set_top_number(&mut self, id: usize, name: &str, value: u64) {
        let mut tops = self.tops().to_vec();
        if let Some(top) = tops.get_mut(id) {
            set(top, name, value.into());
        }
        self.set_tops(tops);
    }

    /// Removes a value of a top-level vdev.
    pub fn remove_of_top(&mut self, id: usize, name: &str) {
        let mut tops = self.tops().to_vec();
        if let Some(top) = tops.get_mut(id) {
            top.remove(name);
        }
        self.set_tops(tops);
    }

    /// Sets a number of the vdev with that GUID.
    pub fn set_number(&mut self, guid: u64, name: &str, value: u64) {
        visit(&mut self.root, &mut |vdev| {
            if vdev.get_u64("guid") == Some(guid) {
                set(vdev, name, value.into());
            }
        });
    }

    /// The sum of all vdevs' GUIDs, modulo 2^64, which each uberblock carries.
    pub fn guid_sum(&self) -> u64 {
        let mut sum = 0u64;
        visit(&mut self.root.clone(), &mut |vdev| sum = sum.wrapping_add(vdev.get_u64("guid").unwrap_or(0)));
        sum
    }

    /// The nvlist for the MOS, written in `txg`.
    pub fn mos_list(&self, txg: Txg) -> NvList {
        let mut list = self.facts(txg);
        for (name, value) in &self.rest {
            list.set_bytes_name(name, value.clone());
        }
        if self.vdev_zaps {
            list.set(VDEV_ZAPS, NvValue::Boolean);
        }
        self.tree_facts(&mut list);
        list.set("vdev_tree", self.root.clone());
        list.set(FEATURES, self.features());
        list
    }

    /// The nvlist for the labels of `leaf` below the top-level vdev `top`, written in `txg`.
    pub fn label_list(&self, top: &NvList, leaf: &NvList, txg: Txg) -> NvList {
        let mut list = self.facts(txg);
        list.set("top_guid", top.get_u64("guid").unwrap_or(0));
        list.set("guid", leaf.get_u64("guid").unwrap_or(0));
        if leaf.get_u64("is_spare").unwrap_or(0) != 0 {
            list.set("is_spare", 1u64);
        }
        if top.get_u64("is_log").unwrap_or(0) != 0 {
            list.set("is_log", 1u64);
        }
        self.tree_facts(&mut list);
        list.set("vdev_tree", without_mos(top));
        list.set(FEATURES, self.features());
        list
    }

    fn facts(&self, txg: Txg) -> NvList {
        let mut list = NvList::new();
        list.set("version", self.version);
        list.set("name", self.stored_name.as_deref().unwrap_or(&self.name));
        list.set("state", self.state);
        list.set("txg", txg.0);
        list.set("pool_guid", self.guid);
        list.set("errata", self.errata);
        if let Some(guid) = self.split_from {
            list.set(SPLIT_GUID, guid);
        }
        if let Some(comment) = &self.comment {
            list.set("comment", comment.as_str());
        }
        if let Some(compatibility) = &self.compatibility {
            list.set("compatibility", compatibility.as_str());
        }
        if self.host.id != 0 {
            list.set("hostid", self.host.id);
        }
        list.set("hostname", self.host.name.as_str());
        list
    }

    fn tree_facts(&self, list: &mut NvList) {
        let holes = self.tops().iter().filter(|t| t.get_str("type") == Some("hole")).filter_map(|t| t.get_u64("id"));
        let holes: Vec<u64> = holes.collect();
        if !holes.is_empty() {
            list.set("hole_array", holes);
        }
        list.set("vdev_children", self.tops().len() as u64);
    }

    fn features(&self) -> NvList {
        let mut list = NvList::new();
        for name in &self.label_features {
            list.set(name, NvValue::Boolean);
        }
        list
    }
}

/// The nvlist for the labels of a hot spare or cache device, which identify the device and no pool.
pub fn aux_label_list(version: u64, vdev: &NvList, state: u64) -> NvList {
    let mut list = NvList::new();
    list.set("version", version);
    list.set("state", state);
    list.set("guid", vdev.get_u64("guid").unwrap_or(0));
    if state == state::L2CACHE {
        list.set("ashift", vdev.get_u64("ashift").unwrap_or(0));
    }
    for name in ["path", "devid", "phys_path"] {
        if let Some(text) = vdev.get_str(name) {
            list.set(name, text);
        }
    }
    list
}

/// A copy of a vdev and its descendants without the values that only the MOS contains.
fn without_mos(vdev: &NvList) -> NvList {
    let mut out = vdev.clone();
    visit(&mut out, &mut |vdev| {
        for name in MOS_ONLY {
            vdev.remove(name);
        }
    });
    out
}

/// Calls `each` for a vdev and its descendants, parents first.
pub(crate) fn visit(vdev: &mut NvList, each: &mut dyn FnMut(&mut NvList)) {
    each(vdev);
    let Some(children) = vdev.get_list_array("children").map(<[_]>::to_vec) else { return };
    let mut children = children;
    for child in &mut children {
        visit(child, each);
    }
    set(vdev, "children", children.into());
}

/// Sets a value in place, so that the order of the pairs does not change.
pub(super) fn set(list: &mut NvList, name: &str, value: NvValue) {
    if !list.contains(name) {
        list.set(name, value);
        return;
    }
    let mut out = NvList::new();
    for pair in list.pairs() {
        let value = if pair.name == name.as_bytes() { value.clone() } else { pair.value.clone() };
        out.set_bytes_name(&pair.name, value);
    }
    *list = out;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: &str, guid: u64) -> NvList {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("guid", guid);
        list.set("com.delphix:vdev_zap_leaf", guid + 100);
        list
    }

    fn config() -> Config {
        let mut top = vdev("mirror", 2);
        top.set("id", 0u64);
        top.set("children", vec![vdev("file", 3), vdev("file", 4)]);
        let mut root = vdev("root", 1);
        root.set("children", vec![top]);
        Config::new("tank", 1, Host { id: 7, name: "here".into() }, root)
    }

    #[test]
    fn sums_all_guids() {
        assert_eq!(config().guid_sum(), 1 + 2 + 3 + 4);
    }

    #[test]
    fn labels_contain_their_top_level_vdev_without_mos_values() {
        let config = config();
        let top = config.tops().first().unwrap().clone();
        let leaf = top.get_list_array("children").unwrap().get(1).unwrap().clone();
        let list = config.label_list(&top, &leaf, Txg(9));
        assert_eq!((list.get_u64("guid"), list.get_u64("top_guid"), list.get_u64("txg")), (Some(4), Some(2), Some(9)));
        let tree = list.get_list("vdev_tree").unwrap();
        assert_eq!(tree.get_str("type"), Some("mirror"));
        assert!(!tree.contains("com.delphix:vdev_zap_leaf"));
        assert!(!tree.get_list_array("children").unwrap().iter().any(|c| c.contains("com.delphix:vdev_zap_leaf")));
        assert!(NvList::decode(&list.encode_xdr()).is_ok());
    }

    #[test]
    fn unknown_values_are_preserved() {
        let mut list = config().mos_list(Txg(5));
        list.set("split", 12u64);
        let again = Config::of(&PoolConfig::parse(list).unwrap(), Host::default()).unwrap();
        let list = again.mos_list(Txg(6));
        assert_eq!((list.get_u64("split"), list.get_u64("txg"), list.get_u64("hostid")), (Some(12), Some(6), None));
    }

    #[test]
    fn numbers_are_set_in_place() {
        let mut config = config();
        config.set_number(4, "DTL", 17);
        config.set_top_number(0, "metaslab_array", 33);
        let top = config.tops().first().unwrap();
        assert_eq!(top.get_u64("metaslab_array"), Some(33));
        assert_eq!(top.get_list_array("children").unwrap().get(1).unwrap().get_u64("DTL"), Some(17));
    }
}
