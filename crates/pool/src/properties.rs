//! Properties of a pool, as shown by `zpool get`.
//!
//! Settings are in a ZAP of the MOS (`pool_props`), some in the configuration (`comment`, `compatibility`); the others
//! are computed. The source of a setting is `local`, or `default` if it was not set; the source of a computed value is
//! `-`. A feature is `disabled`, `enabled` or (in use) `active`.
//!
//! Source: OpenZFS `module/zcommon/zpool_prop.c`, `module/zfs/spa.c` (`spa_prop_get_config`),
//! `lib/libzfs/libzfs_pool.c` (`zpool_get_prop`).

use crate::config::{Class, VdevConfig};
use crate::error::PoolError;
use crate::mos::MAX_ENTRIES;
use crate::open::Pool;
use crate::sizes;
use std::collections::BTreeMap;
use weir_dmu::zap::{self, Zap};
use weir_dsl::props::human_size;
use weir_format::dsl::pool as names;
use weir_format::features::{self, VERSION_FEATURES};
use weir_format::{DslDir, ObjectId};
use weir_machine::Request;

/// A value before its conversion to text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, shown as it is.
    Text(String),
    /// A number, shown as it is.
    Number(u64),
    /// A count, shown to people as `1.5M`.
    Count(u64),
    /// Bytes, shown to people as `1.5M`.
    Size(u64),
    /// Bytes, with 0 shown as `-`.
    SizeIfAny(u64),
    /// A ratio in hundredths.
    Ratio(u64),
    /// Percent.
    Percent(u64),
}

impl Value {
    /// Converts to text: exact if `parsable`, rounded with units otherwise.
    pub fn text(&self, parsable: bool) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Number(n) => n.to_string(),
            Value::SizeIfAny(0) => "-".into(),
            Value::Count(n) | Value::Size(n) | Value::SizeIfAny(n) if parsable => n.to_string(),
            // Bytes below 1 KiB have no unit here.
            Value::Count(n) | Value::Size(n) if *n < 1024 => n.to_string(),
            Value::Count(n) | Value::Size(n) | Value::SizeIfAny(n) => human_size(*n),
            Value::Ratio(n) => format!("{}.{:02}{}", n / 100, n % 100, if parsable { "" } else { "x" }),
            Value::Percent(n) => format!("{n}{}", if parsable { "" } else { "%" }),
        }
    }
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Computed.
    None,
    /// Not set.
    Default,
    /// Set.
    Local,
}

impl Origin {
    /// Text of the SOURCE column.
    pub fn text(self) -> &'static str {
        match self {
            Origin::None => "-",
            Origin::Default => "default",
            Origin::Local => "local",
        }
    }
}

/// One property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolProperty {
    /// Name.
    pub name: String,
    /// Value.
    pub value: Value,
    /// Source of the value.
    pub origin: Origin,
}

/// Conversion of a setting's number to text, and its default.
enum Setting {
    /// One of several words, by number; the default.
    Words(&'static [&'static str], u64),
    /// A number; the default is 0.
    Plain,
    /// A quota: 0 is none, all bits set is automatic (the default).
    Quota,
    /// The object of a dataset.
    Dataset,
}

const OFF_ON: &[&str] = &["off", "on"];

const SETTINGS: &[(&str, Setting)] = &[
    ("bootfs", Setting::Dataset),
    ("delegation", Setting::Words(OFF_ON, 1)),
    ("autoreplace", Setting::Words(OFF_ON, 0)),
    ("failmode", Setting::Words(&["wait", "continue", "panic"], 0)),
    ("listsnapshots", Setting::Words(OFF_ON, 0)),
    ("autoexpand", Setting::Words(OFF_ON, 0)),
    ("ashift", Setting::Plain),
    ("multihost", Setting::Words(OFF_ON, 0)),
    ("autotrim", Setting::Words(OFF_ON, 0)),
    ("dedup_table_quota", Setting::Quota),
];

/// Names of the properties in the order in which they are shown; features and user properties follow.
pub const NAMES: &[&str] = &[
    "size",
    "capacity",
    "altroot",
    "health",
    "guid",
    "version",
    "bootfs",
    "delegation",
    "autoreplace",
    "cachefile",
    "failmode",
    "listsnapshots",
    "autoexpand",
    "dedupratio",
    "free",
    "allocated",
    "readonly",
    "ashift",
    "comment",
    "expandsize",
    "freeing",
    "fragmentation",
    "leaked",
    "multihost",
    "checkpoint",
    "load_guid",
    "autotrim",
    "compatibility",
    "bcloneused",
    "bclonesaved",
    "bcloneratio",
    "dedup_table_size",
    "dedup_table_quota",
    "last_scrubbed_txg",
];

/// Returns the full name of a property that also has a short name (`alloc`, `cap`, …).
pub fn full_name(name: &str) -> &str {
    match name {
        "alloc" => "allocated",
        "cap" => "capacity",
        "frag" => "fragmentation",
        "expandsz" | "expand" => "expandsize",
        "bclone_used" => "bcloneused",
        "bclone_saved" => "bclonesaved",
        "bclone_ratio" => "bcloneratio",
        "ddtsize" => "dedup_table_size",
        "ddtquota" => "dedup_table_quota",
        "dedup" => "dedupratio",
        "ckpoint" => "checkpoint",
        "rdonly" => "readonly",
        "listsnaps" => "listsnapshots",
        "replace" => "autoreplace",
        "compat" => "compatibility",
        other => other,
    }
}

/// Whether there is a property with this (full) name.
pub fn is_known(name: &str) -> bool {
    let feature = name.strip_prefix("feature@").is_some_and(|f| features::by_name(f).is_some());
    name == "name" || NAMES.contains(&name) || feature || name.starts_with("unsupported@") || name.contains(':')
}

/// Returns all properties of a pool in order. `altroot` is the prefix of mount points.
pub async fn properties(rq: &Request, pool: &Pool, altroot: Option<&str>) -> Result<Vec<PoolProperty>, PoolError> {
    let mut found = computed(rq, pool).await?;
    let text = |value: Option<&str>, unset: &str| match value {
        Some(value) => (Value::Text(value.into()), Origin::Local),
        None => (Value::Text(unset.into()), Origin::Default),
    };
    found.insert("altroot".into(), text(altroot, "-"));
    // As OpenZFS: there is no value for the usual cache file.
    found.insert("cachefile".into(), text(Some(pool.cachefile.as_str()).filter(|file| !file.is_empty()), "-"));
    found.insert("comment".into(), text(pool.config.comment.as_deref(), "-"));
    found.insert("compatibility".into(), text(pool.config.list.get_str("compatibility"), "off"));
    let mut users = Vec::new();
    set(rq, pool, &mut found, &mut users).await?;
    let property = |name: &str, (value, origin): (Value, Origin)| PoolProperty { name: name.to_owned(), value, origin };
    let mut out: Vec<PoolProperty> =
        NAMES.iter().filter_map(|name| found.remove(*name).map(|v| property(name, v))).collect();
    out.extend(of_features(pool));
    out.extend(users.into_iter().map(|(name, value)| property(&name, (Value::Text(value), Origin::Local))));
    Ok(out)
}

type Found = BTreeMap<String, (Value, Origin)>;

async fn computed(rq: &Request, pool: &Pool) -> Result<Found, PoolError> {
    let capacity = &pool.capacity;
    let percent = (u128::from(capacity.allocated_bytes) * 100).checked_div(u128::from(capacity.size_bytes));
    let version = match pool.uberblock.version {
        VERSION_FEATURES => (Value::Text("-".into()), Origin::Default),
        version => (Value::Number(version), Origin::Local),
    };
    let shared = &capacity.shared;
    let scrubbed = pool.dsl.pool_word(rq, names::LAST_SCRUBBED_TXG).await?.unwrap_or(0);
    let values = [
        ("size", Value::Size(capacity.size_bytes)),
        ("capacity", Value::Percent(percent.unwrap_or(0) as u64)),
        ("health", Value::Text(pool.health())),
        ("guid", Value::Number(pool.config.guid)),
        ("dedupratio", Value::Ratio(shared.dedup_ratio())),
        ("free", Value::Size(capacity.size_bytes.saturating_sub(capacity.allocated_bytes))),
        ("allocated", Value::Size(capacity.allocated_bytes)),
        ("readonly", Value::Text(if pool.read_only { "on" } else { "off" }.into())),
        ("expandsize", Value::SizeIfAny(expandable_bytes(pool))),
        ("freeing", Value::Size(freeing_bytes(rq, pool).await?)),
        ("fragmentation", capacity.fragmentation.map_or(Value::Text("-".into()), Value::Percent)),
        ("leaked", Value::Size(of_own_dir(rq, pool, "$LEAK").await?)),
        ("checkpoint", Value::SizeIfAny(capacity.checkpoint_bytes)),
        // A random number of each import.
        ("load_guid", Value::Text("-".into())),
        ("bcloneused", Value::Size(shared.cloned)),
        ("bclonesaved", Value::Size(shared.clones_saved)),
        ("bcloneratio", Value::Ratio(shared.clone_ratio())),
        ("dedup_table_size", Value::Size(shared.tables)),
        ("last_scrubbed_txg", Value::Number(scrubbed)),
    ];
    let mut found: Found = values.map(|(name, value)| (name.to_owned(), (value, Origin::None))).into();
    found.insert("version".into(), version);
    Ok(found)
}

/// Bytes by which the normal class of a pool would grow with `zpool online -e` (`metaslab_class_expandable_space`).
fn expandable_bytes(pool: &Pool) -> u64 {
    let tops = pool.tree.children.iter().filter(|top| top.is_concrete() && top.class == Class::Normal);
    tops.map(|top| expandable_bytes_of(pool, top)).sum()
}

/// Bytes by which a top-level vdev would grow with `zpool online -e`.
pub fn expandable_bytes_of(pool: &Pool, top: &VdevConfig) -> u64 {
    let device = |leaf: &VdevConfig| pool.devices.get(&leaf.guid).filter(|_| !leaf.offline && !leaf.faulted);
    sizes::expandable(top, &|leaf| device(leaf).map(|device| device.disk.geometry().size_bytes))
}

/// The space of destroyed datasets that waits to be freed, in bytes (`freeing`).
///
/// # Errors
/// Errors of reading the MOS.
pub async fn freeing_bytes(rq: &Request, pool: &Pool) -> Result<u64, PoolError> {
    of_own_dir(rq, pool, "$FREE").await
}

/// Returns the bytes used by one of the pool's internal DSL directories.
async fn of_own_dir(rq: &Request, pool: &Pool, name: &str) -> Result<u64, PoolError> {
    let Some(children) = pool.dsl.root().map(|root| root.phys.children).filter(|id| id.0 != 0) else { return Ok(0) };
    let Some(id) = zap::lookup_word(rq, &pool.mos.set, children, name).await? else { return Ok(0) };
    let object = pool.mos.set.object(rq, ObjectId(id)).await?;
    Ok(DslDir::decode(object.dnode.bonus(), object.dnode.endian).map_or(0, |dir| dir.used_bytes))
}

/// Adds the settings, and the defaults of those that are not set.
async fn set(rq: &Request, pool: &Pool, found: &mut Found, users: &mut Vec<(String, String)>) -> Result<(), PoolError> {
    let mut stored = BTreeMap::new();
    if let Some(id) = pool.mos.named(rq, names::PROPS).await? {
        for entry in Zap::open(rq, &pool.mos.set, id).await?.all(rq, MAX_ENTRIES).await? {
            let name = entry.key.text();
            match entry.value.text() {
                Some(text) if name.contains(':') => users.push((name, text)),
                _ => drop(stored.insert(name, entry.value.first().unwrap_or(0))),
            }
        }
    }
    users.sort_unstable();
    for (name, setting) in SETTINGS {
        let stored = stored.get(*name).copied();
        let (unset, value) = match setting {
            Setting::Words(words, unset) => {
                let number = stored.unwrap_or(*unset);
                let word = words.get(number as usize).map_or_else(|| number.to_string(), |w| (*w).to_owned());
                (*unset, Value::Text(word))
            }
            Setting::Plain => (0, Value::Number(stored.unwrap_or(0))),
            Setting::Quota => match stored.unwrap_or(u64::MAX) {
                u64::MAX => (u64::MAX, Value::Text("auto".into())),
                0 => (u64::MAX, Value::Text("none".into())),
                bytes => (u64::MAX, Value::Size(bytes)),
            },
            Setting::Dataset => (0, Value::Text(dataset_name(rq, pool, stored.unwrap_or(0)).await)),
        };
        let origin = if stored.unwrap_or(unset) == unset { Origin::Default } else { Origin::Local };
        found.insert((*name).to_owned(), (value, origin));
    }
    Ok(())
}

/// The stored number of a setting; `None` if it is not set.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn stored_word(rq: &Request, pool: &Pool, name: &str) -> Result<Option<u64>, PoolError> {
    match pool.mos.named(rq, names::PROPS).await? {
        Some(id) => Ok(zap::lookup_word(rq, &pool.mos.set, id, name).await?),
        None => Ok(None),
    }
}

/// Returns the name of the head dataset in object `id`; `-` if there is none.
async fn dataset_name(rq: &Request, pool: &Pool, id: u64) -> String {
    let dataset = match id {
        0 => return "-".into(),
        id => pool.dsl.dataset(rq, ObjectId(id), String::new()).await,
    };
    dataset.ok().and_then(|d| pool.dsl.dir(d.dir)).map_or_else(|| "-".into(), |dir| dir.name.clone())
}

fn of_features(pool: &Pool) -> Vec<PoolProperty> {
    let mut out = Vec::new();
    for feature in features::FEATURES {
        let count = pool.features.count(feature.guid);
        let state = match count {
            None if !feature.readable => continue,
            None => "disabled",
            Some(0) => "enabled",
            Some(_) => "active",
        };
        let name = format!("feature@{}", feature.name);
        out.push(PoolProperty { name, value: Value::Text(state.into()), origin: Origin::Local });
    }
    for (guid, count) in pool.features.for_write.iter().chain(&pool.features.for_read) {
        if features::by_guid(guid).is_none() {
            let state = if *count == 0 { "inactive" } else { "readonly" };
            let name = format!("unsupported@{guid}");
            out.push(PoolProperty { name, value: Value::Text(state.into()), origin: Origin::Local });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_for_people_and_for_programs() {
        for (value, people, programs) in [
            (Value::Size(117_440_512), "112M", "117440512"),
            (Value::Size(512), "512", "512"),
            (Value::SizeIfAny(0), "-", "-"),
            (Value::SizeIfAny(512), "512B", "512"),
            (Value::Ratio(147), "1.47x", "1.47"),
            (Value::Percent(3), "3%", "3"),
            (Value::Number(5), "5", "5"),
        ] {
            assert_eq!((value.text(false).as_str(), value.text(true).as_str()), (people, programs));
        }
    }

    #[test]
    fn names_are_known() {
        for name in ["size", "feature@lz4_compress", "a:b", "unsupported@com.x:y", full_name("cap")] {
            assert!(is_known(name), "{name}");
        }
        for name in ["sizes", "feature@none", ""] {
            assert!(!is_known(name), "{name}");
        }
    }
}
