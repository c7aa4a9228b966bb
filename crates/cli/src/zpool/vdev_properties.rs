//! Properties of vdevs: `zpool get … POOL VDEV…` and `zpool set … POOL VDEV`.
//!
//! Source: OpenZFS `man/man7/vdevprops.7`, `module/zfs/vdev.c` (`vdev_prop_set`).

use super::attach::opened;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use weir_engine::VdevSetting;
use weir_machine::Request;
use weir_pool::properties::PoolProperty;
use weir_pool::vdev_properties::{THRESHOLDS, is_known, properties};
use weir_pool::{Pool, VdevConfig};

/// Operand of `zpool get` for all vdevs of a pool.
const ALL: &str = "all-vdevs";
/// Settings of OpenZFS that nothing in Weir acts on, and the reasons for which they are refused.
pub const REFUSED: [(&str, &str); 6] = [
    ("path", "a device keeps the path under which it was found; 'zpool import -d' finds it under another one"),
    ("allocating", "Weir cannot keep blocks off a vdev"),
    ("failfast", "Weir repeats no failed operation of a device"),
    ("sit_out", "Weir does not leave out slow devices when it reads"),
    ("autosit", "Weir does not leave out slow devices when it reads"),
    ("slow_io_events", "events of slow operations cannot be switched off"),
];

/// The change that `zpool set PROPERTY=VALUE POOL VDEV` makes.
///
/// # Errors
/// The reason why the property cannot have this value.
pub fn setting(property: &str, value: &str) -> Result<VdevSetting, String> {
    if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == property) {
        return Err(format!("property '{property}' cannot be set: {why}"));
    }
    if THRESHOLDS.contains(&property) {
        return match value {
            "none" | "-" => Ok(VdevSetting::Remove),
            digits => match digits.parse::<u32>() {
                Ok(number) => Ok(VdevSetting::Number(number.into())),
                Err(_) => Err(format!("'{property}' must be a number or 'none'")),
            },
        };
    }
    if property == "comment" || property.contains(':') {
        return Ok(if value.is_empty() { VdevSetting::Remove } else { VdevSetting::Text(value.to_owned()) });
    }
    match is_known(property) {
        true => Err(format!("property '{property}' is readonly")),
        false => Err(format!("invalid property '{property}'")),
    }
}

/// `zpool set PROPERTY=VALUE POOL VDEV`.
pub fn set(
    call: &Call,
    places: &PoolDirs,
    (property, value): (&str, &str),
    pool: &str,
    vdev: &str,
) -> Result<u8, Failure> {
    let cannot = |why: String| Failure::failed(format!("cannot set property for '{vdev}' in '{pool}': {why}"));
    let setting = setting(property, value).map_err(cannot)?;
    opened(call, places, pool)?.with(async |engine| {
        let bad = |error: &dyn std::fmt::Display| cannot(error.to_string());
        let root = VdevConfig::parse(&engine.shown().config.root).map_err(|error| bad(&error))?;
        let [guid] = find(&root, vdev)[..] else { return Err(cannot("no such vdev in pool".into())) };
        engine.vdev_properties().set(guid, property.to_owned(), setting).await.map_err(|error| bad(&error))?;
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// The vdevs of a pool that an operand names, each with its properties.
///
/// # Errors
/// If there are none; errors of reading the pool.
pub async fn get(pool: &Pool, operand: &str) -> Result<Vec<(VdevConfig, Vec<PoolProperty>)>, Failure> {
    let cannot =
        |why: &str| Failure::failed(format!("cannot get properties of '{operand}' in '{}': {why}", pool.name()));
    let guids = find(&pool.tree, operand);
    if guids.is_empty() {
        return Err(cannot("no such vdev in pool"));
    }
    let mut out = Vec::new();
    for vdev in pool.tree.walk().into_iter().filter(|vdev| guids.contains(&vdev.guid)) {
        let found = properties(&Request::internal("get"), pool, vdev.guid).await;
        out.push((vdev.clone(), found.map_err(|error| cannot(&error.to_string()))?));
    }
    Ok(out)
}

/// The vdevs with that GUID, path or name; all but the root for `all-vdevs`.
fn find(root: &VdevConfig, text: &str) -> Vec<u64> {
    let all = root.walk().into_iter().filter(|vdev| vdev.is_leaf() || !vdev.children.is_empty());
    if text == ALL {
        return all.map(|vdev| vdev.guid).filter(|guid| *guid != root.guid).collect();
    }
    let ends_so = |path: &str| path == text || path.rsplit('/').next() == Some(text);
    let is_it = |vdev: &&VdevConfig| {
        let is_root = vdev.guid == root.guid && matches!(text, "root" | "root-0");
        is_root
            || vdev.guid.to_string() == text
            || vdev.guid != root.guid && (vdev.name() == text || vdev.path.as_deref().is_some_and(ends_so))
    };
    all.into_iter().find(is_it).map(|vdev| vdev.guid).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_stored_or_refused_with_a_reason() {
        assert_eq!(setting("checksum_n", "3"), Ok(VdevSetting::Number(3)));
        assert_eq!(setting("slow_io_t", "none"), Ok(VdevSetting::Remove));
        assert_eq!(setting("comment", "shelf 2"), Ok(VdevSetting::Text("shelf 2".into())));
        assert_eq!(setting("org:bay", ""), Ok(VdevSetting::Remove));
        assert!(setting("guid", "1").unwrap_err().contains("is readonly"));
        assert!(setting("bogus", "1").unwrap_err().contains("invalid property"));
        assert!(setting("io_n", "few").unwrap_err().contains("a number or 'none'"));
        for (name, why) in REFUSED {
            assert!(is_known(name) && setting(name, "off").unwrap_err().contains(why), "{name}");
        }
    }
}
