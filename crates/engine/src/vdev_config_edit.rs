//! Changes of the vdev tree's configuration by attach, replace and detach: nvlists in, nvlists out.
//!
//! ```text
//!   attach    A            ─► mirror-0 [A B]            top-level values (space, ashift, ZAP) go to the new parent
//!   attach    mirror [A B] ─► mirror [A B C]
//!   replace   A            ─► replacing-0 [A B]         below any vdev, or as a top-level vdev
//!   replace   A            ─► spare-0 [A S]             the same, if S is a hot spare
//!   detach    mirror [A B] ─► B                         B has the GUID of the mirror, if that was a top-level vdev
//! ```
//!
//! Devices that were away know their top-level vdev by its GUID, so the last child of one inherits it.
//!
//! *Spares.* An active spare has `is_spare`. As soon as a device with `unspare` has everything, the other devices of its spare
//! vdev are detached: it is the original that is back or was replaced, or a spare that became permanent because the original was
//! detached.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_vdev_attach`, `spa_vdev_detach`), `module/zfs/vdev.c` (`vdev_add_parent`,
//! `vdev_remove_parent`, `vdev_top_transfer`).

use weir_format::NvList;

/// Values of a top-level vdev, which move to the vdev that takes its place.
const OF_TOP: [&str; 10] = [
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "is_log",
    "removing",
    "non_allocating",
    "alloc_bias",
    "com.delphix:vdev_zap_top",
    "com.delphix:ms_unflushed_phys_txgs",
];

/// Whether a leaf is an active hot spare (`ZPOOL_CONFIG_IS_SPARE`).
pub(super) const IS_SPARE: &str = "is_spare";
/// Whether the other devices of a leaf's spare vdev leave when it has everything (`ZPOOL_CONFIG_UNSPARE`).
pub(super) const UNSPARE: &str = "unspare";

/// End of the path of a device that is replaced by another one with the same path.
const OLD: &str = "/old";

/// Kind of vdev above a new device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above {
    Mirror,
    Replacing,
    Spare,
}

impl Above {
    fn kind(self) -> &'static str {
        match self {
            Above::Mirror => "mirror",
            Above::Replacing => "replacing",
            Above::Spare => "spare",
        }
    }
}

/// A device that joins another one.
#[derive(Clone, Debug)]
pub(super) struct NewChild {
    /// GUID of the present device.
    pub beside: u64,
    /// The new device.
    pub leaf: NvList,
    /// Kind of the vdev above both.
    pub above: Above,
    /// GUID of that vdev, if it has to be made.
    pub above_guid: u64,
}

/// The result of a detachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Detached {
    /// The device.
    pub leaf: NvList,
    /// Old and new GUID of the vdev that took the place of its parent, if it became a top-level vdev.
    pub renamed: Option<(u64, u64)>,
    /// GUID, before it is renamed, of the hot spare that became an ordinary device, because this was the original.
    pub unspared: Option<u64>,
}

fn guid(vdev: &NvList) -> u64 {
    vdev.get_u64("guid").unwrap_or(0)
}

fn kind(vdev: &NvList) -> &str {
    vdev.get_str("type").unwrap_or("")
}

fn children(vdev: &NvList) -> Vec<NvList> {
    vdev.get_list_array("children").unwrap_or_default().to_vec()
}

/// Sets the children of a vdev, as its last value, with ids in their order; those of the root keep theirs.
fn set_children(vdev: &mut NvList, mut children: Vec<NvList>) {
    if kind(vdev) != "root" {
        (0u64..).zip(&mut children).for_each(|(id, child)| set(child, "id", id));
    }
    super::config::set(vdev, "children", children.into());
}

fn set(vdev: &mut NvList, name: &str, value: u64) {
    super::config::set(vdev, name, value.into());
}

/// Moves the values of a top-level vdev to the one that takes its place.
pub(super) fn move_top_values(from: &mut NvList, to: &mut NvList) {
    for name in OF_TOP {
        if let Some(value) = from.remove(name) {
            to.set(name, value);
        }
    }
}

/// The vdev above the device `guid`, if there is one.
pub(super) fn parent_of(vdev: &NvList, child: u64) -> Option<&NvList> {
    let below = vdev.get_list_array("children").unwrap_or_default();
    match below.iter().any(|one| guid(one) == child) {
        true => Some(vdev),
        false => below.iter().find_map(|one| parent_of(one, child)),
    }
}

/// Adds a device beside another one below `vdev`. Returns whether that was found.
pub(super) fn attach(vdev: &mut NvList, new: &NewChild) -> bool {
    let mut all = children(vdev);
    let Some(at) = all.iter().position(|child| guid(child) == new.beside) else {
        let found = all.iter_mut().any(|child| attach(child, new));
        if found {
            super::config::set(vdev, "children", all.into());
        }
        return found;
    };
    if new.above == Above::Replacing {
        mark_old(&mut all[at], &new.leaf);
    }
    if kind(vdev) == new.above.kind() {
        all.push(new.leaf.clone());
        set_children(vdev, all);
        return true;
    }
    let mut below = all[at].clone();
    let mut above = NvList::new();
    above.set("type", new.above.kind());
    above.set("id", below.get_u64("id").unwrap_or(at as u64));
    above.set("guid", new.above_guid);
    if kind(vdev) == "root" {
        move_top_values(&mut below, &mut above);
    }
    if let Some(txg) = below.get_u64("create_txg") {
        above.set("create_txg", txg);
    }
    set_children(&mut above, vec![below, new.leaf.clone()]);
    all[at] = above;
    super::config::set(vdev, "children", all.into());
    true
}

/// A device that is replaced by another one with the same path cannot be opened by that path any more.
fn mark_old(old: &mut NvList, new: &NvList) {
    let Some(path) = old.get_str("path").filter(|path| new.get_str("path") == Some(path)).map(str::to_owned) else {
        return;
    };
    super::config::set(old, "path", format!("{path}{OLD}").as_str().into());
    old.remove("devid");
}

/// Takes the device `gone` out of the mirror, replacing or spare vdev above it. `None`, without a change, if there is no such
/// device there.
pub(super) fn detach(vdev: &mut NvList, gone: u64) -> Option<Detached> {
    let mut all = children(vdev);
    let is_root = kind(vdev) == "root";
    for at in 0..all.len() {
        let mut below = children(&all[at]);
        let Some(index) = below.iter().position(|child| guid(child) == gone) else {
            if let Some(detached) = detach(&mut all[at], gone) {
                super::config::set(vdev, "children", all.into());
                return Some(detached);
            }
            continue;
        };
        if !matches!(kind(&all[at]), "mirror" | "replacing" | "spare") || below.len() < 2 {
            return None;
        }
        let above = kind(&all[at]).to_owned();
        let leaf = below.remove(index);
        if index > 0 && above == "replacing" {
            below.iter_mut().for_each(|other| unmark_old(other, &leaf));
        }
        let unspared = if index == 0 && above == "spare" { below.last_mut().and_then(make_permanent) } else { None };
        let mut renamed = None;
        if let [last] = &mut below[..] {
            set(last, "id", all[at].get_u64("id").unwrap_or(at as u64));
            if above == "spare" {
                last.remove(UNSPARE);
            } else if above == "replacing" && kind(vdev) == "spare" && at == 0 {
                // The original has been replaced: its spare is not needed any more.
                last.set(UNSPARE, 1u64);
            }
            if is_root {
                renamed = Some((guid(last), guid(&all[at])));
                set(last, "guid", guid(&all[at]));
                move_top_values(&mut all[at], last);
                if let Some(rest) = last.remove("children") {
                    last.set("children", rest);
                }
            }
            all[at] = last.clone();
        } else {
            set_children(&mut all[at], below);
        }
        super::config::set(vdev, "children", all.into());
        return Some(Detached { leaf, renamed, unspared });
    }
    None
}

/// Makes a hot spare an ordinary device. Returns its GUID; `None` if it is no spare, or a distributed one, which stays a spare.
fn make_permanent(spare: &mut NvList) -> Option<u64> {
    if spare.get_u64(IS_SPARE) != Some(1) || kind(spare) == "dspare" {
        return None;
    }
    spare.remove(IS_SPARE);
    spare.set(UNSPARE, 1u64);
    Some(guid(spare))
}

/// The original device `guid` of a spare vdev works again: its spare leaves when it has everything. Returns whether `guid` is
/// such a device.
pub(super) fn unspare(vdev: &mut NvList, original: u64) -> bool {
    let mut all = children(vdev);
    let is_original = kind(vdev) == "spare" && all.first().is_some_and(|first| guid(first) == original);
    let found = match all.first_mut().filter(|_| is_original) {
        Some(first) => {
            first.set(UNSPARE, 1u64);
            true
        }
        None => all.iter_mut().any(|child| unspare(child, original)),
    };
    if found {
        super::config::set(vdev, "children", all.into());
    }
    found
}

/// A replacement is given up: the old device has its path again.
fn unmark_old(old: &mut NvList, new: &NvList) {
    let is_same = |path: &&str| old.get_str("path").and_then(|old| old.strip_suffix(OLD)) == Some(path);
    if let Some(path) = new.get_str("path").filter(is_same).map(str::to_owned) {
        super::config::set(old, "path", path.as_str().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: &str, guid: u64, id: u64, below: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("id", id);
        list.set("guid", guid);
        if below.is_empty() {
            list.set("path", format!("/d/{guid}").as_str());
        } else {
            list.set("children", below);
        }
        list
    }

    fn new(beside: u64, guid: u64, above: Above) -> NewChild {
        NewChild { beside, leaf: vdev("file", guid, 0, vec![]), above, above_guid: 90 }
    }

    #[test]
    fn a_device_becomes_a_mirror_and_one_again() {
        let mut single = vdev("file", 10, 0, vec![]);
        single.set("asize", 5u64);
        single.set("com.delphix:vdev_zap_top", 77u64);
        single.set("create_txg", 4u64);
        let before = vdev("root", 1, 0, vec![single]);
        let mut root = before.clone();
        assert!(attach(&mut root, &new(10, 11, Above::Mirror)));
        let top = children(&root).remove(0);
        assert_eq!((kind(&top), guid(&top), top.get_u64("asize")), ("mirror", 90, Some(5)));
        assert_eq!(top.get_u64("com.delphix:vdev_zap_top"), Some(77));
        let ids: Vec<_> = children(&top).iter().map(|child| (guid(child), child.get_u64("id"))).collect();
        assert_eq!(ids, [(10, Some(0)), (11, Some(1))]);
        assert!(!children(&top)[0].contains("asize"));
        assert!(attach(&mut root, &new(11, 12, Above::Mirror)));
        assert_eq!(children(&children(&root)[0]).len(), 3);
        assert_eq!(detach(&mut root, 10).unwrap().renamed, None);
        let last = detach(&mut root, 12).unwrap();
        assert_eq!(last.renamed, Some((11, 90)));
        let top = children(&root).remove(0);
        assert_eq!((kind(&top), guid(&top), top.get_u64("asize"), top.get_u64("id")), ("file", 90, Some(5), Some(0)));
        assert!(detach(&mut root, 90).is_none(), "a single device");
    }

    #[test]
    fn a_replaced_device_leaves_and_a_replacement_can_be_given_up() {
        let disks = (10..13).map(|guid| vdev("file", guid, guid - 10, vec![])).collect();
        let before = vdev("root", 1, 0, vec![vdev("raidz", 2, 0, disks)]);
        let mut root = before.clone();
        let mut same = new(11, 20, Above::Replacing);
        same.leaf.set("path", "/d/11");
        assert!(attach(&mut root, &same));
        let pair = children(&children(&root)[0]).remove(1);
        assert_eq!((kind(&pair), pair.get_u64("id"), guid(&pair)), ("replacing", Some(1), 90));
        assert_eq!(children(&pair)[0].get_str("path"), Some("/d/11/old"));
        assert_eq!(parent_of(&root, 20).map(guid), Some(90));
        let mut done = root.clone();
        assert_eq!(detach(&mut done, 11).unwrap().renamed, None, "below RAID-Z each keeps its GUID");
        let child = children(&children(&done)[0]).remove(1);
        assert_eq!((guid(&child), child.get_u64("id")), (20, Some(1)));
        assert!(detach(&mut root, 20).is_some());
        assert_eq!(root, before);
        assert!(detach(&mut root, 10).is_none(), "RAID-Z has no device to spare");
    }

    fn with_spare(root: &mut NvList, beside: u64, spare: u64) {
        let mut leaf = vdev("file", spare, 0, vec![]);
        leaf.set(IS_SPARE, 1u64);
        assert!(attach(root, &NewChild { beside, leaf, above: Above::Spare, above_guid: 91 }));
    }

    fn raidz() -> NvList {
        let disks = (10..13).map(|guid| vdev("file", guid, guid - 10, vec![])).collect();
        vdev("root", 1, 0, vec![vdev("raidz", 2, 0, disks)])
    }

    #[test]
    fn a_spare_steps_in_and_back() {
        let before = raidz();
        let mut root = before.clone();
        with_spare(&mut root, 11, 30);
        let pair = children(&children(&root)[0]).remove(1);
        assert_eq!((kind(&pair), guid(&pair), children(&pair).len()), ("spare", 91, 2));
        assert!(!unspare(&mut root, 30) && !unspare(&mut root, 10) && unspare(&mut root, 11));
        let gone = detach(&mut root, 30).unwrap();
        assert_eq!((gone.leaf.get_u64(IS_SPARE), gone.unspared, gone.renamed), (Some(1), None, None));
        assert_eq!(root, before);
    }

    #[test]
    fn a_spare_becomes_permanent_when_the_original_is_detached() {
        let mut root = raidz();
        with_spare(&mut root, 11, 30);
        with_spare(&mut root, 30, 31);
        assert_eq!(children(&children(&children(&root)[0])[1]).len(), 3, "a spare of a spare joins the vdev");
        assert_eq!(detach(&mut root, 11).unwrap().unspared, Some(31));
        let pair = children(&children(&root)[0]).remove(1);
        assert_eq!(children(&pair)[1].get_u64(UNSPARE), Some(1), "it waits until it has everything");
        assert_eq!(detach(&mut root, 30).unwrap().unspared, None);
        let last = children(&children(&root)[0]).remove(1);
        assert_eq!((guid(&last), last.contains(IS_SPARE), last.contains(UNSPARE)), (31, false, false));
    }

    #[test]
    fn after_a_replacement_the_spare_is_not_needed() {
        let mut root = raidz();
        with_spare(&mut root, 11, 30);
        assert!(attach(&mut root, &new(11, 20, Above::Replacing)));
        assert_eq!(detach(&mut root, 11).unwrap().unspared, None);
        let pair = children(&children(&root)[0]).remove(1);
        let first = children(&pair).remove(0);
        assert_eq!((kind(&pair), guid(&first), first.get_u64(UNSPARE)), ("spare", 20, Some(1)));
    }
}
