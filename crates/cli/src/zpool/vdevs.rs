//! The vdev tree of `zpool status -j`: each vdev by its name, with its state, space and error counters.

use crate::json::{self, Numbers};
use serde_json::{Map, Value};
use weir_admin::{VdevGroup, VdevHealth, VdevStatus};
use weir_dsl::props::human_size;

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
pub fn root(root: &VdevStatus, style: Style) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), root.name.clone().into());
    out.insert("vdev_type".into(), "root".into());
    out.insert("guid".into(), style.number(root.guid));
    out.insert("class".into(), "normal".into());
    out.insert("state".into(), state_name(root.health).into());
    space_of(&mut out, style, root);
    errors_of(&mut out, style, root);
    out.insert("vdevs".into(), Value::Object(of_group(root, VdevGroup::Normal, style)));
    Map::from_iter([(root.name.clone(), Value::Object(out))])
}

/// The top-level vdevs with data of one group.
pub fn of_group(root: &VdevStatus, group: VdevGroup, style: Style) -> Map<String, Value> {
    let tops = root.children.iter().filter(|top| top.group == Some(group) && top.space.is_some());
    objects(tops.map(|top| vdev(top, style)))
}

/// Vdevs by their names.
pub fn objects(vdevs: impl Iterator<Item = (String, Map<String, Value>)>) -> Map<String, Value> {
    vdevs.map(|(name, item)| (name, Value::Object(item))).collect()
}

/// A vdev with those below it, or a cache device.
pub fn vdev(vdev_: &VdevStatus, style: Style) -> (String, Map<String, Value>) {
    let is_gone = vdev_.is_leaf && vdev_.health == VdevHealth::Unavail && vdev_.group != Some(VdevGroup::Cache);
    let name = if is_gone { vdev_.guid.to_string() } else { vdev_.name.clone() };
    let mut out = identity(&name, vdev_, style);
    out.insert("state".into(), state_name(vdev_.health).into());
    space_of(&mut out, style, vdev_);
    let device_bytes = vdev_.device_bytes.unwrap_or(0);
    sizes_of(&mut out, style, &[("rep_dev_size", vdev_.needed_bytes), ("phys_space", device_bytes)]);
    errors_of(&mut out, style, vdev_);
    if is_gone && let Some(path) = &vdev_.path {
        out.insert("not_present".into(), style.number(1));
        out.insert("was".into(), path.clone().into());
    }
    if let Some(txgs) = &vdev_.missing_txgs {
        out.insert("misses".into(), txgs.clone().into());
    }
    if !vdev_.children.is_empty() {
        let children = objects(vdev_.children.iter().map(|child| vdev(child, style)));
        out.insert("vdevs".into(), Value::Object(children));
    }
    if vdev_.removing {
        out.insert("removing".into(), style.number(1));
    } else if vdev_.non_allocating {
        out.insert("noalloc".into(), style.number(1));
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
pub fn spare(spare: &VdevStatus, style: Style) -> (String, Map<String, Value>) {
    let mut out = identity(&spare.name, spare, style);
    out.insert("state".into(), spare.health.to_string().into());
    (spare.name.clone(), out)
}

fn identity(name: &str, vdev: &VdevStatus, style: Style) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("name".into(), name.into());
    out.insert("vdev_type".into(), vdev.kind.clone().into());
    out.insert("guid".into(), style.number(vdev.guid));
    for (key, value) in [("path", &vdev.path), ("devid", &vdev.devid)] {
        if let Some(value) = value {
            out.insert(key.into(), value.clone().into());
        }
    }
    out.insert("class".into(), vdev.group.map_or("normal", class_of).into());
    out
}

/// The allocation class of a group, as OpenZFS names it.
fn class_of(group: VdevGroup) -> &'static str {
    match group {
        VdevGroup::Normal => "normal",
        VdevGroup::Dedup => "dedup",
        VdevGroup::Special => "special",
        VdevGroup::Log => "log",
        VdevGroup::Cache => "l2cache",
        VdevGroup::Spare => "spare",
    }
}

fn space_of(out: &mut Map<String, Value>, style: Style, vdev: &VdevStatus) {
    let Some(space) = vdev.space else { return };
    let sizes = [
        ("alloc_space", space.allocated_bytes),
        ("total_space", space.size_bytes),
        ("def_space", space.deflated_bytes),
        ("checkpoint_space", space.checkpoint_bytes),
    ];
    sizes_of(out, style, &sizes);
}

fn sizes_of(out: &mut Map<String, Value>, style: Style, sizes: &[(&str, u64)]) {
    for (name, bytes) in sizes.iter().filter(|(_, bytes)| *bytes != 0) {
        out.insert((*name).into(), style.size(*bytes));
    }
}

fn errors_of(out: &mut Map<String, Value>, style: Style, vdev: &VdevStatus) {
    let errors = vdev.errors.unwrap_or_default();
    let counts =
        [("read_errors", errors.reads), ("write_errors", errors.writes), ("checksum_errors", errors.checksums)];
    for (name, count) in counts {
        out.insert(name.into(), style.number(count));
    }
    if vdev.is_leaf {
        out.insert("slow_ios".into(), style.number(errors.slow));
    }
}

/// A health in JSON. That of a vdev that cannot be opened has another name there than in the table.
fn state_name(health: VdevHealth) -> String {
    match health {
        VdevHealth::Unavail => "CANT_OPEN".into(),
        other => other.to_string(),
    }
}
