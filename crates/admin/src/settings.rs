//! Which properties of pools and vdevs can be set, and to which values.
//!
//! Source: OpenZFS `module/zcommon/zpool_prop.c`, `man/man7/vdevprops.7`, `module/zfs/vdev.c` (`vdev_prop_set`).

use crate::pool::PoolChange;
use weir_engine::VdevSetting;
use weir_engine::create::PoolValue;
use weir_format::features;
use weir_pool::vdev_properties::{SWITCHES, THRESHOLDS, is_known};

/// Properties of pools that OpenZFS can set and Weir refuses, and the reasons.
pub const REFUSED_POOL_SETTINGS: [(&str, &str); 4] = [
    ("altroot", "the alternate root is given when a pool is created or imported (-R)"),
    ("bootfs", "Weir starts no machine"),
    ("readonly", "a pool is imported readonly, or not: 'zpool import -o readonly=on'"),
    ("version", "'zpool upgrade' enables features"),
];

/// A property of a pool as it is stored.
///
/// # Errors
/// The reason why it cannot have this value.
pub fn stored_property(property: &str, value: &str) -> Result<(String, PoolValue), String> {
    const SWITCHES: [&str; 6] = ["autoreplace", "autoexpand", "autotrim", "delegation", "listsnapshots", "multihost"];
    let number = match (property, value) {
        ("failmode", "wait") => 0,
        ("failmode", "continue") => 1,
        ("failmode", "panic") => 2,
        ("failmode", _) => return Err("'failmode' must be one of 'wait | continue | panic'".into()),
        ("dedup_table_quota", "auto") => u64::MAX,
        ("dedup_table_quota", "none") => 0,
        ("dedup_table_quota", size) => {
            let bytes = crate::size::parse(size).filter(|bytes| *bytes < u64::MAX);
            bytes.ok_or_else(|| format!("'dedup_table_quota' must be a size, 'none' or 'auto', not '{size}'"))?
        }
        (name, "off") if SWITCHES.contains(&name) => 0,
        (name, "on") if SWITCHES.contains(&name) => 1,
        (name, _) if SWITCHES.contains(&name) => return Err(format!("'{name}' must be one of 'off | on'")),
        (name, _) if REFUSED_POOL_SETTINGS.iter().any(|(refused, _)| *refused == name) => {
            let why = REFUSED_POOL_SETTINGS.iter().find(|(refused, _)| *refused == name).map_or("", |(_, why)| why);
            return Err(format!("property '{name}' cannot be set: {why}"));
        }
        (name, _) if weir_pool::properties::is_known(name) => return Err(format!("property '{name}' is readonly")),
        (name, _) => return Err(format!("property '{name}' is not a valid pool or vdev property")),
    };
    Ok((property.to_owned(), PoolValue::Number(number)))
}

/// The text of a pool's comment.
///
/// # Errors
/// The reason why it cannot be one.
pub fn pool_comment(value: &str) -> Result<String, String> {
    match value {
        value if value.len() > 32 => Err("comment must not exceed 32 characters".into()),
        value if !value.chars().all(|c| c.is_ascii_graphic() || c == ' ') => {
            Err("comment may only have printable characters".into())
        }
        value => Ok(value.to_owned()),
    }
}

impl PoolChange {
    /// The change that sets a property of a pool. The caller has checked the sets of features that `compatibility` names, which
    /// are files.
    ///
    /// # Errors
    /// The reason why the property cannot have this value.
    pub fn of_property(property: &str, value: &str) -> Result<Self, String> {
        if let Some(feature) = property.strip_prefix("feature@") {
            if features::by_name(feature).is_none() {
                return Err(format!("invalid feature '{feature}'"));
            }
            return match value {
                "enabled" => Ok(PoolChange::EnableFeature { feature: feature.to_owned() }),
                _ => Err(format!("property '{property}' can only be set to 'enabled'")),
            };
        }
        match property {
            "comment" => Ok(PoolChange::SetComment { text: pool_comment(value)? }),
            "compatibility" => Ok(PoolChange::SetCompatibility { sets: value.to_owned() }),
            user if user.contains(':') => {
                user_property(user, value)?;
                Ok(PoolChange::SetUser { property: user.to_owned(), text: value.to_owned() })
            }
            _ => match stored_property(property, value)? {
                (property, PoolValue::Number(number)) => Ok(PoolChange::SetNumber { property, number }),
                (name, PoolValue::Text(_)) => Err(format!("property '{name}' is readonly")),
            },
        }
    }
}

/// Checks the name and the length of the value of a user property (`zpool_prop_user`).
fn user_property(name: &str, value: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+-._".contains(c);
    if name.len() > 255 || !name.chars().all(allowed) || name.starts_with('-') {
        return Err(format!("invalid property '{name}'"));
    }
    if value.len() > 8191 {
        return Err(format!("property value of '{name}' is too long"));
    }
    Ok(())
}

/// Properties of vdevs that OpenZFS can set and Weir refuses, and the reasons.
pub const REFUSED_VDEV_SETTINGS: [(&str, &str); 4] = [
    ("path", "a device keeps the path under which it was found; 'zpool import -d' finds it under another one"),
    ("failfast", "Weir repeats no failed operation of a device"),
    ("sit_out", "Weir does not leave out slow devices when it reads"),
    ("autosit", "Weir does not leave out slow devices when it reads"),
];

/// The change that sets a property of a vdev.
///
/// # Errors
/// The reason why the property cannot have this value.
pub fn vdev_setting(property: &str, value: &str) -> Result<VdevSetting, String> {
    if let Some((_, why)) = REFUSED_VDEV_SETTINGS.iter().find(|(name, _)| *name == property) {
        return Err(format!("property '{property}' cannot be set: {why}"));
    }
    if SWITCHES.contains(&property) {
        return match value {
            "on" => Ok(VdevSetting::Number(1)),
            "off" => Ok(VdevSetting::Number(0)),
            _ => Err(format!("'{property}' must be one of 'off | on'")),
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_vdevs_are_stored_or_refused_with_a_reason() {
        assert_eq!(vdev_setting("checksum_n", "3"), Ok(VdevSetting::Number(3)));
        assert_eq!(vdev_setting("slow_io_t", "none"), Ok(VdevSetting::Remove));
        assert_eq!(vdev_setting("allocating", "off"), Ok(VdevSetting::Number(0)));
        assert_eq!(vdev_setting("slow_io_events", "on"), Ok(VdevSetting::Number(1)));
        assert!(vdev_setting("allocating", "1").unwrap_err().contains("one of 'off | on'"));
        assert_eq!(vdev_setting("comment", "shelf 2"), Ok(VdevSetting::Text("shelf 2".into())));
        assert_eq!(vdev_setting("org:bay", ""), Ok(VdevSetting::Remove));
        assert!(vdev_setting("guid", "1").unwrap_err().contains("is readonly"));
        assert!(vdev_setting("bogus", "1").unwrap_err().contains("invalid property"));
        assert!(vdev_setting("io_n", "few").unwrap_err().contains("a number or 'none'"));
        for (name, why) in REFUSED_VDEV_SETTINGS {
            assert!(is_known(name) && vdev_setting(name, "off").unwrap_err().contains(why), "{name}");
        }
    }

    #[test]
    fn settings_of_pools_are_changes_or_refused_with_a_reason() {
        let number = |property: &str, number| Ok(PoolChange::SetNumber { property: property.to_owned(), number });
        assert_eq!(PoolChange::of_property("failmode", "continue"), number("failmode", 1));
        assert_eq!(PoolChange::of_property("autotrim", "on"), number("autotrim", 1));
        for (text, bytes) in [("auto", u64::MAX), ("none", 0), ("0", 0), ("1.5G", 3 << 29)] {
            assert_eq!(PoolChange::of_property("dedup_table_quota", text), number("dedup_table_quota", bytes));
        }
        let user = PoolChange::SetUser { property: "org:tag".into(), text: "x".into() };
        assert_eq!(PoolChange::of_property("org:tag", "x"), Ok(user));
        for (property, value, why) in [
            ("autotrim", "yes", "must be one of"),
            ("multihost", "yes", "must be one of"),
            ("size", "1", "is readonly"),
            ("dedup_table_quota", "much", "a size, 'none' or 'auto', not 'much'"),
            ("dedup_table_quota", "-1", "a size"),
            ("bogus", "1", "not a valid pool"),
            ("feature@bogus", "enabled", "invalid feature"),
            ("feature@draid", "disabled", "can only be set to 'enabled'"),
            ("Org:tag", "x", "invalid property"),
            ("comment", "\u{7}", "printable"),
        ] {
            assert!(PoolChange::of_property(property, value).unwrap_err().contains(why), "{property}");
        }
        for (property, why) in REFUSED_POOL_SETTINGS {
            assert!(PoolChange::of_property(property, "x").unwrap_err().contains(why), "{property}");
        }
    }
}
