//! Properties of vdevs, as shown by `zpool get … VDEV`.
//!
//! Settings are in the ZAP of the vdev: that of the root vdev, of a top-level vdev, or of a leaf. The others are computed.
//! Values that nothing counts here (operations other than reads and writes) are shown as `-`.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_prop_get`, `vdev_prop_get_objid`), `include/sys/fs/zfs.h` (`vdev_prop_t`),
//! `lib/libzfs/libzfs_pool.c` (`zpool_get_vdev_prop_value`), `man/man7/vdevprops.7`.

use crate::config::{Class, VdevConfig, VdevKind};
use crate::error::PoolError;
use crate::mos::MAX_ENTRIES;
use crate::open::Pool;
use crate::properties::{Origin, PoolProperty, Value, expandable_bytes_of};
use crate::status::VdevState;
use crate::{capacity, sizes};
use std::collections::BTreeMap;
use weir_blocks::vdev::Counts;
use weir_dmu::zap::{self, Zap};
use weir_format::{NvList, ObjectId};
use weir_machine::Request;

/// ZAPs of a vdev in its configuration. A top-level vdev that is a leaf has two, of which the first counts.
const ZAPS: [&str; 3] = ["com.klarasystems:vdev_zap_root", "com.delphix:vdev_zap_top", "com.delphix:vdev_zap_leaf"];

/// Thresholds of errors; not set, they are those of the vdev above.
pub const THRESHOLDS: [&str; 6] = ["checksum_n", "checksum_t", "io_n", "io_t", "slow_io_n", "slow_io_t"];

/// Properties that are on or off and can be set.
pub const SWITCHES: [&str; 2] = ["allocating", "slow_io_events"];

/// Names of the properties in the order in which they are shown; user properties follow.
pub const NAMES: &[&str] = &[
    "name",
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "comment",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "path",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "raidz_expanding",
    "slow_io_n",
    "slow_io_t",
    "trim_support",
    "trim_errors",
    "slow_ios",
    "sit_out",
    "autosit",
    "slow_io_events",
];

/// Returns the full name of a property that also has a short name (`alloc`, `cap`, …).
pub fn full_name(name: &str) -> &str {
    match name {
        "alloc" => "allocated",
        "cap" => "capacity",
        "frag" => "fragmentation",
        "expandsz" => "expandsize",
        "rderr" => "read_errors",
        "wrerr" => "write_errors",
        "ckerr" => "checksum_errors",
        "initerr" => "initialize_errors",
        "trimerr" => "trim_errors",
        "slowio" => "slow_ios",
        "numchild" => "numchildren",
        other => other,
    }
}

/// Whether there is a property with this (full) name.
pub fn is_known(name: &str) -> bool {
    NAMES.contains(&name) || name.contains(':')
}

/// The ZAP with the settings of the vdev `guid`; `root` is the configuration of the root vdev.
///
/// # Errors
/// [`PoolError::Refused`] if there is no such vdev, or if it has no ZAP.
pub fn zap_of(root: &NvList, guid: u64) -> Result<ObjectId, PoolError> {
    const MAX_DEPTH: usize = 8;
    let mut next = vec![(root, 0)];
    while let Some((vdev, depth)) = next.pop() {
        if vdev.get_u64("guid") == Some(guid) {
            let zap = zap_in(vdev);
            let none = || refused("the vdev has no properties: the pool keeps no ZAPs of its vdevs");
            return zap.ok_or_else(none);
        }
        let children = vdev.get_list_array("children").unwrap_or_default();
        next.extend(children.iter().filter(|_| depth < MAX_DEPTH).map(|child| (child, depth + 1)));
    }
    Err(refused("no such device in pool"))
}

/// The ZAP with the settings of a vdev, if its configuration names one.
pub fn zap_in(vdev: &NvList) -> Option<ObjectId> {
    ZAPS.into_iter().find_map(|name| vdev.get_u64(name).filter(|id| *id != 0)).map(ObjectId)
}

fn refused(what: &str) -> PoolError {
    PoolError::Refused { what: what.to_owned() }
}

/// A vdev of a pool with its top-level vdev.
struct Place<'a> {
    pool: &'a Pool,
    vdev: &'a VdevConfig,
    /// The top-level vdev and its number among them; `None` for the root.
    top: Option<(usize, &'a VdevConfig)>,
    parent: Option<&'a VdevConfig>,
    counts: Counts,
}

impl<'a> Place<'a> {
    fn find(pool: &'a Pool, guid: u64) -> Option<Self> {
        let vdev = pool.tree.walk().into_iter().find(|vdev| vdev.guid == guid)?;
        let tops = || pool.tree.children.iter().enumerate();
        let top = tops().find(|(_, top)| top.walk().iter().any(|below| below.guid == guid));
        let parent = pool.tree.walk().into_iter().find(|above| above.children.iter().any(|child| child.guid == guid));
        let mine: Vec<u64> = vdev.leaves().iter().map(|leaf| leaf.guid).collect();
        let mut counts = Counts::default();
        for leaf in pool.blocks.tree().health().into_iter().filter(|leaf| mine.contains(&leaf.guid)) {
            let add = |sum: &mut u64, n: u64| *sum = sum.saturating_add(n);
            add(&mut counts.reads, leaf.counts.reads);
            add(&mut counts.writes, leaf.counts.writes);
            add(&mut counts.read_bytes, leaf.counts.read_bytes);
            add(&mut counts.write_bytes, leaf.counts.write_bytes);
            if vdev.is_leaf() {
                counts = Counts { ..leaf.counts };
            }
        }
        Some(Place { pool, vdev, top, parent, counts })
    }

    fn is_top(&self) -> bool {
        self.top.is_some_and(|(_, top)| top.guid == self.vdev.guid)
    }

    /// Allocated and deflated total bytes of a top-level vdev; none of others.
    fn space(&self) -> (u64, u64) {
        let space = self.top.filter(|_| self.is_top()).and_then(|(at, _)| self.pool.space.vdevs.get(at));
        match space {
            Some(space) => (space.allocated_bytes(), self.vdev.deflate(space.space_bytes())),
            None if self.top.is_none() => (self.pool.capacity.allocated_bytes, self.pool.capacity.size_bytes),
            None => (0, 0),
        }
    }

    fn device_bytes(&self, vdev: &VdevConfig) -> Option<u64> {
        self.pool.devices.get(&vdev.guid).map(|device| sizes::usable_device(device.disk.geometry().size_bytes))
    }

    /// Size of the devices of a vdev, as far as they are used: that of the smallest, times their number for RAID-Z.
    fn psize(&self, vdev: &VdevConfig) -> u64 {
        if vdev.is_leaf() {
            return self.device_bytes(vdev).unwrap_or(0);
        }
        let least = vdev.children.iter().map(|child| self.psize(child)).min().unwrap_or(0);
        match vdev.kind {
            VdevKind::Raidz { .. } => least.saturating_mul(vdev.children.len() as u64),
            _ => least,
        }
    }

    /// A computed property; `None` for a setting, and for one that the vdev does not have.
    fn computed(&self, name: &str) -> Option<Value> {
        let Place { pool, vdev, top, counts, .. } = self;
        let (allocated, size) = self.space();
        let text = |text: Option<&str>| Value::Text(text.unwrap_or("-").to_owned());
        let off_on = |is_on: bool| text(Some(if is_on { "on" } else { "off" }));
        let names = |vdevs: &[VdevConfig]| vdevs.iter().map(VdevConfig::name).collect::<Vec<_>>().join(",");
        Some(match name {
            "name" => Value::Text(vdev.name()),
            "capacity" => {
                Value::Percent((u128::from(allocated) * 100).checked_div(u128::from(size)).unwrap_or(0) as u64)
            }
            "state" if top.is_none() => Value::Text(pool.state.to_string()),
            "state" => Value::Text(pool.states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail).to_string()),
            "guid" => Value::Number(vdev.guid),
            "asize" if self.is_top() => Value::Size(vdev.asize_bytes),
            "asize" => Value::Size(self.device_bytes(vdev).map_or(0, sizes::of_leaf)),
            "psize" => Value::Size(self.psize(vdev)),
            "ashift" => Value::Number(top.map_or(0, |(_, top)| top.ashift)),
            "size" => Value::Size(size),
            "free" => Value::Size(size.saturating_sub(allocated)),
            "allocated" => Value::Size(allocated),
            "expandsize" => Value::SizeIfAny(if self.is_top() { expandable_bytes_of(pool, vdev) } else { 0 }),
            "fragmentation" => {
                let of = |(at, _): &(usize, &VdevConfig)| pool.space.vdevs.get(*at);
                match top.as_ref().filter(|_| self.is_top() && vdev.class != Class::Log).and_then(of) {
                    Some(space) => capacity::vdev_fragmentation(space).map_or_else(|| text(None), Value::Percent),
                    None => Value::Percent(0),
                }
            }
            "bootsize" => Value::Size(0),
            "parity" => Value::Number(match vdev.kind {
                VdevKind::Raidz { nparity, .. } | VdevKind::Draid { nparity, .. } => u64::from(nparity),
                VdevKind::Mirror => vdev.children.len().saturating_sub(1) as u64,
                _ => 0,
            }),
            "path" => text(vdev.path.as_deref()),
            "devid" => text(vdev.devid.as_deref()),
            "physpath" | "encpath" | "fru" => text(None),
            "parent" => Value::Text(self.parent.map_or_else(|| "-".to_owned(), VdevConfig::name)),
            "children" if vdev.children.is_empty() => text(None),
            "children" => Value::Text(names(&vdev.children)),
            "numchildren" => Value::Number(vdev.children.len() as u64),
            "read_errors" => Value::Count(counts.read_errors),
            "write_errors" => Value::Count(counts.write_errors),
            "checksum_errors" => Value::Count(counts.checksum_errors),
            "slow_ios" => Value::Count(counts.slow),
            "read_ops" => Value::Count(counts.reads),
            "write_ops" => Value::Count(counts.writes),
            "read_bytes" => Value::Size(counts.read_bytes),
            "write_bytes" => Value::Size(counts.write_bytes),
            "null_ops" | "free_ops" | "claim_ops" | "trim_ops" => text(None),
            "null_bytes" | "free_bytes" | "claim_bytes" | "trim_bytes" => text(None),
            "initialize_errors" | "trim_errors" => text(None),
            "removing" => off_on(vdev.removing),
            "raidz_expanding" if matches!(vdev.kind, VdevKind::Raidz { .. }) => off_on(vdev.raidz_expanding),
            // Whether a device discards is known when it does.
            "trim_support" => text(None),
            _ => return None,
        })
    }
}

/// The properties of a vdev in their order, with its own settings; user properties at the end.
///
/// # Errors
/// [`PoolError::Refused`] if there is no such vdev; errors of reading its ZAP.
pub async fn properties(rq: &Request, pool: &Pool, guid: u64) -> Result<Vec<PoolProperty>, PoolError> {
    let place = Place::find(pool, guid).ok_or_else(|| refused("no such device in pool"))?;
    let root = pool.config.list.get_list("vdev_tree").cloned().unwrap_or_default();
    let mut stored: BTreeMap<String, zap::Value> = BTreeMap::new();
    // A pool without ZAPs of its vdevs has no settings of them.
    if let Ok(id) = zap_of(&root, guid) {
        let all = Zap::open(rq, &pool.mos.set, id).await?.all(rq, MAX_ENTRIES).await?;
        stored.extend(all.into_iter().map(|entry| (entry.key.text(), entry.value)));
    }
    let property = |name: &str, value: Value, origin: Origin| PoolProperty { name: name.to_owned(), value, origin };
    let word = |name: &str| stored.get(name).and_then(zap::Value::first);
    let mut out = Vec::with_capacity(NAMES.len());
    for name in NAMES {
        let found = match *name {
            "comment" => match stored.get("comment").and_then(zap::Value::text) {
                Some(comment) => property(name, Value::Text(comment), Origin::Local),
                None => property(name, Value::Text("-".into()), Origin::Default),
            },
            name if THRESHOLDS.contains(&name) => match word(name).filter(|n| *n != u64::MAX) {
                Some(n) => property(name, Value::Number(n), Origin::Local),
                None => property(name, Value::Text("-".into()), Origin::Default),
            },
            "allocating" if place.is_top() || place.top.is_none() => {
                switch(name, word(name).or(place.vdev.non_allocating.then_some(0)), true)
            }
            "autosit" if matches!(place.vdev.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. }) => {
                switch(name, word(name), false)
            }
            "failfast" | "slow_io_events" => switch(name, word(name), true),
            "allocating" | "autosit" => property(name, Value::Text("-".into()), Origin::None),
            name => match place.computed(name) {
                Some(value) => property(name, value, Origin::None),
                None => continue,
            },
        };
        out.push(found);
    }
    let users = stored.iter().filter(|(name, _)| name.contains(':'));
    // Objects of the vdev are numbers, its user properties are texts.
    out.extend(users.filter_map(|(name, value)| Some(property(name, Value::Text(value.text()?), Origin::Local))));
    Ok(out)
}

/// A property that is on or off.
fn switch(name: &str, stored: Option<u64>, default: bool) -> PoolProperty {
    let is_on = stored.map_or(default, |n| n != 0);
    let origin = if is_on == default { Origin::Default } else { Origin::Local };
    PoolProperty { name: name.to_owned(), value: Value::Text(if is_on { "on" } else { "off" }.into()), origin }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zap_of_a_disk_at_the_top_is_that_of_a_top_level_vdev() {
        let mut disk = NvList::new();
        disk.set("guid", 7u64);
        disk.set("com.delphix:vdev_zap_leaf", 70u64);
        let mut root = NvList::new();
        root.set("guid", 1u64);
        root.set("children", vec![disk.clone()]);
        assert_eq!(zap_of(&root, 7).unwrap(), ObjectId(70));
        disk.set("com.delphix:vdev_zap_top", 71u64);
        root.set("children", vec![disk]);
        assert_eq!(zap_of(&root, 7).unwrap(), ObjectId(71));
        assert!(zap_of(&root, 8).unwrap_err().to_string().contains("no such device"));
        assert!(zap_of(&root, 1).unwrap_err().to_string().contains("no ZAPs"));
    }
}
