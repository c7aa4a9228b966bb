//! Settings of vdevs: `zpool set … POOL VDEV`.
//!
//! Source: OpenZFS `man/man7/vdevprops.7`, `module/zfs/vdev.c` (`vdev_prop_set`).

use super::attach::opened;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use weir_admin::find_vdevs;
use weir_engine::VdevSetting;
use weir_pool::VdevConfig;
use weir_pool::vdev_properties::{THRESHOLDS, is_known};

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
        let [guid] = find_vdevs(&root, vdev)[..] else { return Err(cannot("no such vdev in pool".into())) };
        engine.vdev_properties().set(guid, property.to_owned(), setting).await.map_err(|error| bad(&error))?;
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
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
