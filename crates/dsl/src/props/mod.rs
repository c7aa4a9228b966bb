//! Properties of datasets: where values are stored, which dataset a value is inherited from, and how it is shown. Pure.
//!
//! A dataset's own settings are in a ZAP of its DSL directory. An entry `name` is a local value, `name$recvd` a
//! received one, and `name$inherit` marks that inheritance overrides the received value. The lookup starts at the
//! dataset and continues with its ancestors; snapshots have a ZAP of their own, then follow their head.
//!
//! ```text
//!   pool/a/b   local? → received (unless $inherit)? → pool/a: local? → received? → pool: … → the default
//! ```
//!
//! The caller passes all computed values (`used`, `guid`, …); this module only decides whether the stored or the
//! computed value counts, and its source. Facts: OpenZFS `module/zfs/dsl_prop.c` (`dsl_prop_get_dd`),
//! `lib/libzfs/libzfs_dataset.c` (`zfs_prop_get`).

mod name;
mod render;
pub mod table;
#[cfg(test)]
mod tests;

pub use name::ZfsProp;
pub use render::{human_size, text_of};
pub use table::{NATIVES, Native, Rule, Shape, column_title, native, native_named};

use std::collections::BTreeMap;

/// Kind of dataset, which decides which properties it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

impl DatasetKind {
    /// The value of the property `type`.
    pub fn name(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }
}

/// A stored or computed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// A property ZAP: entry name (with its suffix) to value.
pub type Stored = BTreeMap<String, Value>;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Computed, or fixed at creation: `-`.
    None,
    /// Not set anywhere.
    Default,
    /// Set here.
    Local,
    /// Set on the dataset named.
    Inherited(String),
    /// Received in a stream.
    Received,
}

impl Source {
    /// The text of `zfs get`'s SOURCE column.
    pub fn text(&self) -> String {
        match self {
            Source::None => "-".into(),
            Source::Default => "default".into(),
            Source::Local => "local".into(),
            Source::Inherited(from) => format!("inherited from {from}"),
            Source::Received => "received".into(),
        }
    }

    /// The word that `zfs get -s` takes.
    pub fn word(&self) -> &'static str {
        match self {
            Source::None => "none",
            Source::Default => "default",
            Source::Local => "local",
            Source::Inherited(_) => "inherited",
            Source::Received => "received",
        }
    }
}

/// One property of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// Name.
    pub name: String,
    /// Value as stored or computed.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
    /// The value that was received in a stream, also if another one is in effect.
    pub received: Option<Value>,
}

impl Property {
    /// The received value as text, as [`Property::text`].
    pub fn received_text(&self, parsable: bool) -> Option<String> {
        self.received.as_ref().map(|value| text_of(&self.name, value, parsable))
    }

    /// The value as text: exact numbers with `parsable`, else the rounded form.
    pub fn text(&self, parsable: bool) -> String {
        text_of(&self.name, &self.value, parsable)
    }
}

/// Input of [`resolve`] about a dataset.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Kind.
    pub kind: DatasetKind,
    /// Whether a snapshot is one of a volume.
    pub of_volume: bool,
    /// Full name.
    pub name: &'a str,
    /// The snapshot's own property ZAP.
    pub snapshot: Option<&'a Stored>,
    /// Property ZAPs with the names of their datasets, from the dataset itself (a snapshot's head) up to the root one.
    pub chain: &'a [(String, std::sync::Arc<Stored>)],
    /// Computed values by name; they take precedence over stored ones, which then only decide the source.
    pub computed: &'a BTreeMap<ZfsProp, Value>,
    /// Prefix of mount points (`altroot`).
    pub altroot: &'a str,
}

/// All properties of a dataset: the native ones in their order, then user properties by name.
pub fn resolve(facts: &Facts<'_>) -> Vec<Property> {
    let mut all: Vec<Property> = table::NATIVES.iter().filter_map(|native| resolve_native(facts, native)).collect();
    if facts.kind != DatasetKind::Bookmark {
        all.extend(user_names(facts).into_iter().filter_map(|name| {
            let (value, source) = find(facts, &name, true)?;
            let received = received_value(facts, &name);
            Some(Property { name, value, source, received })
        }));
    }
    all
}

/// One property by name; `None` if the dataset does not have it.
pub fn resolve_one(facts: &Facts<'_>, name: &str) -> Option<Property> {
    if let Some(native) = native_named(name) {
        return resolve_native(facts, native);
    }
    let (value, source) = find(facts, name, true)?;
    Some(Property { name: name.to_owned(), value, source, received: received_value(facts, name) })
}

fn resolve_native(facts: &Facts<'_>, native: &Native) -> Option<Property> {
    if !native.kinds.contains(&facts.kind)
        || facts.of_volume && !native.kinds.contains(&DatasetKind::Volume) && !is_of_snapshots(native)
    {
        return None;
    }
    if facts.kind == DatasetKind::Snapshot && !facts.of_volume && native.prop == ZfsProp::VolSize {
        return None;
    }
    let computed = facts.computed.get(&native.prop).cloned();
    let found = match native.rule {
        Rule::ReadOnly => None,
        // Properties fixed at creation are not looked up in the ZAPs.
        Rule::OneTime => computed.clone().map(|v| (v, Source::None)),
        Rule::Inherit => find(facts, native.prop.name(), true),
        Rule::Own => find(facts, native.prop.name(), false),
    };
    let default = match native.default {
        table::Default::Number(n) => Some(Value::Number(n)),
        table::Default::Text(t) => Some(Value::Text(t.to_owned())),
        table::Default::Absent => None,
    };
    let (value, source) = match (found, computed) {
        (Some((_, source)), Some(value)) => (value, source),
        (Some(found), None) => found,
        (None, Some(value)) if KEPT_IN_PLACE.contains(&native.prop) => (value, Source::Local),
        (None, Some(value)) => {
            let source = if Some(&value) == default.as_ref() { Source::Default } else { Source::None };
            (value, source)
        }
        (None, None) => (default?, Source::Default),
    };
    let value = if native.prop == ZfsProp::MountPoint { mount_point(facts, value, &source) } else { value };
    let received = match (native.rule, received_value(facts, native.prop.name())) {
        (Rule::ReadOnly | Rule::OneTime, _) | (_, None) => None,
        (_, Some(value)) if native.prop == ZfsProp::MountPoint => Some(mount_point(facts, value, &Source::Received)),
        (_, received) => received,
    };
    Some(Property { name: native.prop.name().to_owned(), value, source, received })
}

/// Properties that are stored outside the ZAP and yet count as set.
const KEPT_IN_PLACE: [ZfsProp; 3] = [ZfsProp::VolSize, ZfsProp::FilesystemCount, ZfsProp::SnapshotCount];

/// Properties that only snapshots have.
fn is_of_snapshots(native: &Native) -> bool {
    native.kinds == [DatasetKind::Snapshot]
}

fn user_names(facts: &Facts<'_>) -> Vec<String> {
    let zaps = facts.snapshot.into_iter().chain(facts.chain.iter().map(|(_, zap)| zap.as_ref()));
    let mut names: Vec<String> = zaps
        .flat_map(|zap| zap.keys())
        .map(|key| key.split('$').next().unwrap_or(key))
        .filter(|name| name.contains(':'))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The value of a property in a property ZAP, and whether it was received: the local value, else the received one,
/// unless inheritance overrides that.
pub fn stored_value<'a>(zap: &'a Stored, name: &str) -> Option<(&'a Value, bool)> {
    if let Some(value) = zap.get(name) {
        // An index that older software does not know is stored beside one that it does.
        return Some((zap.get(&format!("{name}$iuv")).unwrap_or(value), false));
    }
    if zap.contains_key(&format!("{name}$inherit")) {
        return None;
    }
    zap.get(&format!("{name}$recvd")).map(|value| (value, true))
}

/// The value that the dataset itself received, whether or not it is in effect.
fn received_value(facts: &Facts<'_>, name: &str) -> Option<Value> {
    let own = match facts.kind {
        DatasetKind::Snapshot => facts.snapshot?,
        _ => facts.chain.first()?.1.as_ref(),
    };
    own.get(&format!("{name}$recvd")).cloned()
}

/// The effective value, and its source.
fn find(facts: &Facts<'_>, name: &str, inheritable: bool) -> Option<(Value, Source)> {
    let in_zap = |zap: &Stored| stored_value(zap, name).map(|(value, received)| (value.clone(), received));
    let own_source = |received: bool| if received { Source::Received } else { Source::Local };
    if let Some((value, received)) = facts.snapshot.and_then(in_zap) {
        return Some((value, own_source(received)));
    }
    let snapshot = facts.kind == DatasetKind::Snapshot;
    for (depth, (dataset, zap)) in facts.chain.iter().enumerate() {
        let inheriting = snapshot || depth > 0;
        if inheriting && !inheritable {
            return None;
        }
        if let Some((value, received)) = in_zap(zap) {
            let source = if inheriting { Source::Inherited(dataset.clone()) } else { own_source(received) };
            return Some((value, source));
        }
    }
    None
}

/// Appends the names between the dataset that set the mount point and this one.
fn mount_point(facts: &Facts<'_>, value: Value, source: &Source) -> Value {
    let Value::Text(path) = &value else { return value };
    if path == "none" || path == "legacy" {
        return value;
    }
    let below = match source {
        Source::Local | Source::Received => "",
        Source::Inherited(from) => facts.name.strip_prefix(from.as_str()).unwrap_or(""),
        Source::Default | Source::None => facts.name,
    };
    let below = below.trim_start_matches('/');
    let path = match (path.trim_end_matches('/'), below) {
        ("", "") => "/".to_owned(),
        (base, "") => base.to_owned(),
        (base, below) => format!("{base}/{below}"),
    };
    let root = facts.altroot.trim_end_matches('/');
    Value::Text(if !root.is_empty() && path == "/" { root.to_owned() } else { format!("{root}{path}") })
}
