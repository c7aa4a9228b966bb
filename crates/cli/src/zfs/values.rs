//! Parses and checks the values of properties that users set (OpenZFS `zprop_parse_value`,
//! `zfs_valid_proplist`).

use super::identity;
use crate::failure::Failure;
use crate::size;
use weir_admin::check_share;
use weir_dsl::props::{DatasetKind, Native, Rule, Shape, Value, ZfsProp, native_named};
use weir_dsl::sync_tasks::ZPL_VERSION;

/// Longest value of a user property in bytes.
const MAX_USER_VALUE_LEN: usize = 8191;
/// Record sizes, in bytes.
pub(super) const RECORD_BYTES: std::ops::RangeInclusive<u64> = 512..=16 << 20;

/// Properties that can be set only when the dataset is created.
const AT_CREATION: [ZfsProp; 8] = [
    ZfsProp::Version,
    ZfsProp::CaseSensitivity,
    ZfsProp::Normalization,
    ZfsProp::Utf8Only,
    ZfsProp::VolBlockSize,
    ZfsProp::Encryption,
    ZfsProp::KeyFormat,
    ZfsProp::Pbkdf2Iters,
];

/// A property to be set: its full name, and the value as it is stored.
pub type Setting = (String, Value);

/// When a value is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At creation of the dataset.
    Creation,
    /// The dataset exists.
    Later,
}

/// Parses `NAME=VALUE` for a dataset of a kind.
///
/// # Errors
/// The message for an invalid property or value, without the dataset's name.
pub fn parse(text: &str, kind: DatasetKind, when: When) -> Result<Setting, String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("missing '=' for property=value argument: '{text}'"));
    };
    if name.contains(':') {
        return user(name, value);
    }
    let native = native_named(name).ok_or_else(|| format!("invalid property '{name}'"))?;
    check_place(native, kind, when)?;
    let stored = stored(native, value)?;
    check_range(native, &stored)?;
    Ok((native.prop.name().to_owned(), stored))
}

/// Parses `NAME=VALUE` for a dataset that is created, also the quota of a user, group or project.
///
/// # Errors
/// Errors of [`parse`]; the message for an unknown user or group, or a malformed limit.
pub fn parse_new(text: &str, kind: DatasetKind) -> Result<Setting, String> {
    parse_first(text, kind, When::Creation)
}

/// Parses `NAME=VALUE` for a clone, which has from its origin what is fixed at creation. What concerns encryption and the version is
/// refused later, with its own reason.
///
/// # Errors
/// Errors of [`parse_new`].
pub fn parse_cloned(text: &str, kind: DatasetKind) -> Result<Setting, String> {
    use ZfsProp::{Encryption, KeyFormat, KeyLocation, Pbkdf2Iters, Version};
    let name = text.split('=').next().unwrap_or_default();
    let later = [Encryption, KeyFormat, KeyLocation, Pbkdf2Iters, Version];
    let is_for_later = ZfsProp::named(name).is_some_and(|prop| later.contains(&prop));
    parse_first(text, kind, if is_for_later { When::Creation } else { When::Later })
}

/// Parses `NAME=VALUE` for a dataset that does not exist yet.
fn parse_first(text: &str, kind: DatasetKind, when: When) -> Result<Setting, String> {
    let quota = text.split_once('=').and_then(|(name, value)| Some((name, identity::parse_quota(name, value)?)));
    match quota {
        None => parse(text, kind, when),
        Some((name, _)) if kind != DatasetKind::Filesystem => {
            Err(format!("'{name}' does not apply to datasets of this type"))
        }
        Some((name, quota)) => quota.map(|(_, limit)| (identity::numeric(name), Value::Number(limit))),
    }
}

/// Parses a version of file systems: a number, or `current`.
///
/// # Errors
/// The message for an unknown version.
pub fn version(text: &str) -> Result<u64, String> {
    let known = match text {
        "current" => Some(ZPL_VERSION),
        number => number.parse().ok().filter(|version| (1..=ZPL_VERSION).contains(version)),
    };
    known.ok_or_else(|| format!("'version' must be one of '1 | 2 | 3 | 4 | {ZPL_VERSION} | current'"))
}

fn check_user_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+-._".contains(c);
    if name.len() > 255 {
        return Err(format!("property name '{name}' is too long"));
    }
    if !name.chars().all(allowed) || name.starts_with('-') {
        return Err(format!("invalid property '{name}'"));
    }
    Ok(())
}

fn user(name: &str, value: &str) -> Result<Setting, String> {
    check_user_name(name)?;
    if value.len() > MAX_USER_VALUE_LEN {
        return Err(format!("property value '{value}' is too long"));
    }
    check_share(name, value)?;
    Ok((name.to_owned(), Value::Text(value.to_owned())))
}

/// Checks that datasets of this kind have the property and that it can be set now.
fn check_place(native: &Native, kind: DatasetKind, when: When) -> Result<(), String> {
    let name = native.prop.name();
    let plural = match kind {
        DatasetKind::Filesystem => "filesystems",
        DatasetKind::Volume => "volumes",
        DatasetKind::Snapshot => "snapshots",
        DatasetKind::Bookmark => "bookmarks",
    };
    let once = AT_CREATION.contains(&native.prop);
    if matches!(kind, DatasetKind::Snapshot | DatasetKind::Bookmark) {
        return Err(format!("this property can not be modified for {plural}"));
    }
    if !native.kinds.contains(&kind) && native.prop != ZfsProp::VolSize
        || native.prop == ZfsProp::VolSize && kind != DatasetKind::Volume
    {
        return Err(format!("'{name}' does not apply to datasets of this type"));
    }
    match (when, once, native.rule) {
        (When::Creation, true, _) => Ok(()),
        (When::Later, true, _) => Err(format!("'{name}' is readonly")),
        (_, false, Rule::ReadOnly) if native.prop != ZfsProp::VolSize => Err(format!("'{name}' is readonly")),
        (_, false, Rule::Own) if name.ends_with("_count") => Err(format!("'{name}' is readonly")),
        _ => Ok(()),
    }
}

fn stored(native: &Native, value: &str) -> Result<Value, String> {
    let name = native.prop.name();
    let number = |none: Option<u64>| match (value, none) {
        ("none", Some(none)) => Ok(none),
        _ => size::parse(value).ok_or_else(|| match value.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            true => format!("bad numeric value '{value}'"),
            false => format!("'{name}' must be a number"),
        }),
    };
    match native.shape {
        Shape::Index(names) => {
            let found = names.iter().find(|(text, _)| *text == value);
            found.map(|(_, n)| Value::Number(*n)).ok_or_else(|| format!("'{name}' must be one of '{}'", choices(names)))
        }
        Shape::Number if native.prop == ZfsProp::Version => version(value).map(Value::Number),
        Shape::SizeOrNone => match number(Some(0))? {
            // As OpenZFS: 0 could mean that nothing may be written.
            0 if value != "none" && matches!(native.prop, ZfsProp::Quota | ZfsProp::RefQuota) => {
                Err(format!("use 'none' to disable {name}"))
            }
            bytes => Ok(Value::Number(bytes)),
        },
        Shape::CountOrNone => number(Some(u64::MAX)).map(Value::Number),
        Shape::Size | Shape::Number | Shape::Ratio | Shape::Time => number(None).map(Value::Number),
        Shape::YesNo => Err(format!("'{name}' is readonly")),
        Shape::Text => text(native.prop, value).map(Value::Text),
    }
}

fn choices(names: &[(&str, u64)]) -> String {
    let mut texts: Vec<&str> = Vec::new();
    for (text, _) in names {
        // Some have several numbers.
        if !texts.contains(text) {
            texts.push(text);
        }
    }
    texts.join(" | ")
}

fn text(prop: ZfsProp, value: &str) -> Result<String, String> {
    let fits = match prop {
        ZfsProp::MountPoint => value == "none" || value == "legacy" || value.starts_with('/'),
        ZfsProp::KeyLocation => {
            // `none` says that there is no key.
            ["none", "prompt"].contains(&value)
                || ["file:///", "https://", "http://"].iter().any(|front| value.starts_with(front))
        }
        _ => true,
    };
    match (fits, prop) {
        (true, _) if value.len() > MAX_USER_VALUE_LEN => Err(format!("property value '{value}' is too long")),
        (true, ZfsProp::MountPoint) if is_too_long(value) => Err(format!("property value '{value}' is too long")),
        (true, _) => check_share(prop.name(), value).map(|()| value.to_owned()),
        (false, ZfsProp::MountPoint) => Err("'mountpoint' must be an absolute path, 'none', or 'legacy'".into()),
        (false, _) => Err(format!("invalid {prop}")),
    }
}

/// Whether Linux cannot have a directory of this path (PATH_MAX, NAME_MAX).
fn is_too_long(path: &str) -> bool {
    path.len() >= 4096 || path.split('/').any(|name| name.len() > 255)
}

fn check_range(native: &Native, value: &Value) -> Result<(), String> {
    let Value::Number(n) = value else { return Ok(()) };
    let power = n.is_power_of_two();
    match native.prop {
        ZfsProp::RecordSize if !power || !RECORD_BYTES.contains(n) => {
            Err("'recordsize' must be power of 2 from 512B to 16M".into())
        }
        ZfsProp::VolBlockSize if !power || !RECORD_BYTES.contains(n) => {
            Err("'volblocksize' must be power of 2 from 512B to 16M".into())
        }
        ZfsProp::SpecialSmallBlocks if *n != 0 && (!power || *n < 512 || *n > 16 << 20) => {
            Err(format!("invalid 'special_small_blocks={n}': must be zero or a power of 2 from 512B to 16M"))
        }
        _ => Ok(()),
    }
}

/// The full name of a property that `zfs inherit` may clear, or with `-S` (`reverts`) revert to its received value (OpenZFS
/// `zfs_do_inherit`).
///
/// # Errors
/// Misuse if there is no such property, else the message for one that cannot be inherited.
pub fn inheritable(name: &str, reverts: bool) -> Result<String, Failure> {
    if name.contains(':') {
        return check_user_name(name).map(|()| name.to_owned()).map_err(Failure::usage);
    }
    let native = native_named(name).ok_or_else(|| Failure::usage(format!("invalid property '{name}'")))?;
    let full = native.prop.name();
    match native.rule {
        Rule::Own if reverts => Ok(full.to_owned()),
        _ if native.prop == ZfsProp::VolSize && reverts => {
            Err(Failure::failed(format!("'{full}' property cannot be reverted to a received value")))
        }
        Rule::Own if native.prop.is_space_limit() => Err(Failure::failed(format!(
            "'{full}' property cannot be inherited\nuse 'zfs set {full}=none' to clear\n\
             use 'zfs inherit -S {full}' to revert to received value"
        ))),
        _ if native.prop == ZfsProp::VolSize || native.rule == Rule::Own => {
            Err(Failure::failed(format!("'{full}' property cannot be inherited")))
        }
        Rule::ReadOnly | Rule::OneTime => Err(Failure::failed(format!("{full} property is read-only"))),
        Rule::Inherit | Rule::Own => Ok(full.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fs(text: &str) -> Result<Setting, String> {
        parse(text, DatasetKind::Filesystem, When::Later)
    }

    #[test]
    fn values_become_what_is_stored() {
        let number = |name: &str, n| Ok((name.to_owned(), Value::Number(n)));
        assert_eq!(fs("compress=lz4"), number("compression", 15));
        assert_eq!(fs("compression=zstd-9"), number("compression", 16 | 9 << 7));
        // Other spellings of OpenZFS, which guides use.
        assert_eq!((fs("acltype=posixacl"), fs("acltype=noacl")), (number("acltype", 1), number("acltype", 0)));
        assert_eq!(fs("aclinherit=secure"), number("aclinherit", 4));
        assert_eq!(fs("xattr=on"), number("xattr", 2));
        let volume = |text: &str| parse(text, DatasetKind::Volume, When::Later);
        assert_eq!(volume("volmode=geom"), number("volmode", 1));
        assert_eq!(fs("recordsize=1M"), number("recordsize", 1 << 20));
        assert_eq!(fs("quota=none"), number("quota", 0));
        assert_eq!(fs("quota=1.5G"), number("quota", 1_610_612_736));
        assert_eq!(fs("filesystem_limit=none"), number("filesystem_limit", u64::MAX));
        assert_eq!(fs("mountpoint=/x"), Ok(("mountpoint".into(), Value::Text("/x".into()))));
        assert_eq!(fs("org.me:note=a=b"), Ok(("org.me:note".into(), Value::Text("a=b".into()))));
        assert_eq!(parse("volsize=1G", DatasetKind::Volume, When::Later), number("volsize", 1 << 30));
        assert_eq!(parse("case=mixed", DatasetKind::Filesystem, When::Creation), number("casesensitivity", 2));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (text, why) in [
            ("compression", "missing '='"),
            ("bogus=1", "invalid property 'bogus'"),
            ("compression=fast", "'compression' must be one of 'on | off | lzjb"),
            ("dedup=maybe", "blake3 | blake3,verify'"),
            ("used=1", "'used' is readonly"),
            ("casesensitivity=mixed", "'casesensitivity' is readonly"),
            ("volsize=1G", "does not apply to datasets of this type"),
            ("recordsize=1000", "power of 2"),
            ("recordsize=32M", "power of 2"),
            ("quota=0", "use 'none' to disable quota"),
            ("refquota=0K", "use 'none' to disable refquota"),
            ("quota=lots", "'quota' must be a number"),
            ("quota=1x", "bad numeric value '1x'"),
            ("mountpoint=here", "absolute path"),
            ("sharenfs=rw,sec=krb5", "invalid value of 'sharenfs': 'sec=krb5': Kerberos is not supported"),
            ("weir:nbd=name=", "a value is missing"),
            ("UPPER:x=1", "invalid property 'UPPER:x'"),
        ] {
            let error = fs(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = format!("mountpoint=/{}", "a".repeat(256));
        assert!(fs(&long).unwrap_err().ends_with("is too long"));
        assert!(fs(&long[..long.len() - 1]).is_ok());
        assert_eq!(fs("reservation=0"), Ok(("reservation".into(), Value::Number(0))));
        assert!(parse("atime=off", DatasetKind::Snapshot, When::Later).is_err());
        let error = parse("encryption=foo", DatasetKind::Filesystem, When::Creation).unwrap_err();
        assert_eq!(error.matches("off").count(), 1, "{error}");
    }

    #[test]
    fn only_names_of_no_property_are_misuse_of_inherit() {
        assert_eq!(inheritable("compress", false).unwrap(), "compression");
        assert_eq!(inheritable("quota", true).unwrap(), "quota");
        for (name, reverts, code, why) in [
            ("quota", false, 1, "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\n"),
            ("canmount", false, 1, "'canmount' property cannot be inherited"),
            ("volsize", false, 1, "'volsize' property cannot be inherited"),
            ("volsize", true, 1, "'volsize' property cannot be reverted to a received value"),
            ("used", false, 1, "used property is read-only"),
            ("used", true, 1, "used property is read-only"),
            ("encryption", false, 1, "encryption property is read-only"),
            ("bogus", false, 2, "invalid property 'bogus'"),
            ("UPPER:x", false, 2, "invalid property 'UPPER:x'"),
        ] {
            let failure = inheritable(name, reverts).unwrap_err();
            assert_eq!(failure.code, code, "{name}");
            assert!(failure.line.starts_with(why), "{name}: {}", failure.line);
        }
    }
}
