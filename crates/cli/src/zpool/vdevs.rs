//! The vdev tree of `zpool status -j`: each vdev by its name, with its state, space and error counters.

use crate::json::{self, Numbers};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use weir_admin::spare_state;
use weir_cache::l2arc::CacheDeviceStats;
use weir_dsl::props::human_size;
use weir_pool::aux_devices::cache_state;
use weir_pool::status::VdevState;
use weir_pool::{Class, Pool, VdevConfig, sizes};

/// How numbers appear.
#[derive(Clone, Copy)]
pub struct Style {
    /// As text or as integers.
    pub numbers: Numbers,
    /// Exact, not `1.5M`.
    pub parsable: bool,
}

impl Style {
    /// A count or a GUID.
    pub fn number(self, n: u64) -> Value {
        json::number(n, self.numbers)
    }

    /// A size in bytes.
    pub fn size(self, bytes: u64) -> Value {
        if self.parsable || self.numbers == Numbers::Integers { self.number(bytes) } else { human_size(bytes).into() }
    }
}

/// The root with its ordinary vdevs.
pub fn root(pool: &Pool, style: Style) -> Map<String, Value> {
    let mut total = 0u64;
    let mut deflated = 0u64;
    for (top, space) in pool.tree.children.iter().zip(&pool.space.vdevs) {
        if top.is_concrete() && top.class != Class::Log {
            total = total.saturating_add(space.space_bytes());
            deflated = deflated.saturating_add(top.deflate(space.space_bytes()));
        }
    }
    let mut out = Map::new();
    out.insert("name".into(), pool.name().into());
    out.insert("vdev_type".into(), "root".into());
    out.insert("guid".into(), style.number(pool.config.guid));
    out.insert("class".into(), "normal".into());
    out.insert("state".into(), state_name(pool.state).into());
    sizes_of(
        &mut out,
        style,
        &[("alloc_space", pool.capacity.allocated_bytes), ("total_space", total), ("def_space", deflated)],
    );
    counters(&mut out, style, false, [0; 4]);
    out.insert("vdevs".into(), Value::Object(of_class(pool, Class::Normal, style)));
    Map::from_iter([(pool.name().to_owned(), Value::Object(out))])
}

/// The top-level vdevs of one class.
pub fn of_class(pool: &Pool, class: Class, style: Style) -> Map<String, Value> {
    let tops = pool.tree.children.iter().zip(&pool.space.vdevs);
    let mut out = Map::new();
    for (top, space) in tops.filter(|(t, _)| t.class == class && t.is_concrete()) {
        let bytes = sizes::of_top(top);
        let total = space.space_bytes();
        let mut more =
            vec![("alloc_space", space.allocated_bytes()), ("total_space", total), ("def_space", top.deflate(total))];
        if space.checkpoint_bytes != 0 {
            more.push(("checkpoint_space", space.checkpoint_bytes));
        }
        let (name, mut item) = vdev(pool, top, class, bytes, style, &more);
        if top.removing {
            item.insert("removing".into(), style.number(1));
        } else if top.non_allocating {
            item.insert("noalloc".into(), style.number(1));
        }
        out.insert(name, Value::Object(item));
    }
    out
}

fn vdev(
    pool: &Pool,
    vdev_: &VdevConfig,
    class: Class,
    bytes: u64,
    style: Style,
    more: &[(&str, u64)],
) -> (String, Map<String, Value>) {
    let state = pool.states.get(&vdev_.guid).copied().unwrap_or(VdevState::Unavail);
    let gone = vdev_.is_leaf() && state == VdevState::Unavail;
    let name = if gone { vdev_.guid.to_string() } else { vdev_.name() };
    let mut out = identity(&name, vdev_, class.name(), style);
    out.insert("state".into(), state_name(state).into());
    sizes_of(&mut out, style, more);
    // A device that is offline is not opened.
    let device = pool.devices.get(&vdev_.guid).filter(|_| state != VdevState::Offline);
    let device = device.map(|d| sizes::usable_device(d.disk.geometry().size_bytes));
    let needs = if vdev_.is_leaf() { sizes::of_device(bytes) } else { bytes };
    sizes_of(&mut out, style, &[("rep_dev_size", needs), ("phys_space", device.unwrap_or(0))]);
    counters(&mut out, style, vdev_.is_leaf(), counts(pool).get(&vdev_.guid).copied().unwrap_or_default());
    if gone && let Some(path) = &vdev_.path {
        out.insert("not_present".into(), style.number(1));
        out.insert("was".into(), path.clone().into());
    }
    if let Some(dtl) = pool.dtls().get(&vdev_.guid) {
        out.insert("misses".into(), dtl.to_string().into());
    }
    if !vdev_.children.is_empty() {
        let bytes = sizes::of_child(vdev_, bytes);
        let children = vdev_.children.iter().map(|child| vdev(pool, child, class, bytes, style, &[]));
        let children: Map<String, Value> = children.map(|(name, item)| (name, Value::Object(item))).collect();
        out.insert("vdevs".into(), Value::Object(children));
    }
    (name, out)
}

/// Moves all vdevs of a pool's status into one object, each with the name of the vdev above it (`--json-flat-vdevs`).
pub fn flatten(status: &mut Map<String, Value>) {
    const GROUPS: [&str; 6] = ["vdevs", "dedup", "special", "logs", "l2cache", "spares"];
    let mut flat = Map::new();
    for group in GROUPS {
        if let Some(Value::Object(vdevs)) = status.remove(group) {
            below(vdevs, None, &mut flat);
        }
    }
    debug_assert!(flat.values().all(|vdev| vdev.get("vdevs").is_none()));
    status.insert("vdevs".into(), Value::Object(flat));
}

fn below(vdevs: Map<String, Value>, parent: Option<&str>, flat: &mut Map<String, Value>) {
    for (name, mut vdev) in vdevs {
        let children = vdev.as_object_mut().and_then(|vdev| vdev.remove("vdevs"));
        if let (Some(parent), Some(vdev)) = (parent, vdev.as_object_mut()) {
            vdev.insert("parent".into(), parent.into());
        }
        flat.insert(name.clone(), vdev);
        if let Some(Value::Object(children)) = children {
            below(children, Some(&name), flat);
        }
    }
}

/// A hot spare: at hand, in use, or gone.
pub fn spare(pool: &Pool, spare: &VdevConfig, style: Style) -> (String, Map<String, Value>) {
    let mut out = identity(&spare.name(), spare, "spare", style);
    out.insert("state".into(), spare_state(pool, spare).into());
    (spare.name(), out)
}

/// A cache device.
pub fn cache(pool: &Pool, cache: &VdevConfig, style: Style) -> (String, Map<String, Value>) {
    let mut out = identity(&cache.name(), cache, "l2cache", style);
    let device = pool.aux.get(&cache.guid).map(|d| sizes::usable_device(d.disk.geometry().size_bytes));
    let (state, stats) = cache_state(pool, cache);
    out.insert("state".into(), state_name(state).into());
    let device = device.unwrap_or(0);
    let total = sizes::of_cache(device, cache.ashift);
    let used = stats.as_ref().map_or(0, |stats| stats.used_bytes);
    let sizes = [("alloc_space", used), ("total_space", total), ("rep_dev_size", device), ("phys_space", device)];
    sizes_of(&mut out, style, &sizes);
    counters(&mut out, style, true, stats.as_ref().map_or([0; 4], errors_of_cache));
    (cache.name(), out)
}

fn identity(name: &str, vdev: &VdevConfig, class: &str, style: Style) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), name.into());
    out.insert("vdev_type".into(), vdev.kind.type_name().into());
    out.insert("guid".into(), style.number(vdev.guid));
    for (key, value) in [("path", &vdev.path), ("devid", &vdev.devid)] {
        if let Some(value) = value {
            out.insert(key.into(), value.clone().into());
        }
    }
    out.insert("class".into(), class.into());
    out
}

fn sizes_of(out: &mut Map<String, Value>, style: Style, sizes: &[(&str, u64)]) {
    for (name, bytes) in sizes.iter().filter(|(_, bytes)| *bytes != 0) {
        out.insert((*name).into(), style.size(*bytes));
    }
}

/// Read, write and checksum errors of each leaf and cache device since the pool was opened.
pub fn counts(pool: &Pool) -> BTreeMap<u64, [u64; 4]> {
    let health = pool.blocks.tree().health();
    let caches = pool.cache.l2arc().stats().devices;
    health
        .into_iter()
        .map(|h| (h.guid, [h.counts.read_errors, h.counts.write_errors, h.counts.checksum_errors, h.counts.slow]))
        .chain(caches.iter().map(|cache| (cache.guid, errors_of_cache(cache))))
        .collect()
}

fn errors_of_cache(stats: &CacheDeviceStats) -> [u64; 4] {
    [stats.read_errors, stats.write_errors, stats.checksum_errors, 0]
}

fn counters(out: &mut Map<String, Value>, style: Style, leaf: bool, counts: [u64; 4]) {
    for (name, count) in ["read_errors", "write_errors", "checksum_errors"].into_iter().zip(counts) {
        out.insert(name.into(), style.number(count));
    }
    if leaf {
        out.insert("slow_ios".into(), style.number(counts[3]));
    }
}

/// A state in JSON. The state of a vdev that cannot be opened has another name there than in the table.
fn state_name(state: VdevState) -> String {
    match state {
        VdevState::Unavail => "CANT_OPEN".into(),
        other => other.to_string(),
    }
}
