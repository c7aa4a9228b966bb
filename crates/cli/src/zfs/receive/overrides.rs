//! Properties that `zfs receive` sets itself (`-o`) and leaves out (`-x`) (OpenZFS `lib/libzfs/libzfs_sendrecv.c`,
//! `zfs_receive_checkprops`, `zfs_setup_cmdline_props`).

use super::super::values::{self, When};
use super::ReceiveArgs;
use crate::args::CommandLine;
use crate::failure::Failure;
use crate::secrets::EncryptionArgs;
use weir_dsl::props::{self, DatasetKind, Rule, Stored, Value, ZfsProp, native_named};
use weir_dsl::sync_tasks::receive_properties::ReceivedProperties;

/// The options of a command.
#[derive(Debug, Default)]
pub struct Overrides {
    /// Name of the snapshot that a full stream is received as a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Full names of properties, and their values as given.
    values: Vec<(String, String)>,
    /// Full names of properties that are left out.
    excluded: Vec<String>,
    /// Encryption of a new dataset.
    pub encryption: EncryptionArgs,
    /// Whether a new dataset is encrypted as its parent is, whatever the stream says (`-x encryption`).
    pub inherits_encryption: bool,
}

/// Properties of encryption, which are set at creation alone.
const OF_ENCRYPTION: [ZfsProp; 4] =
    [ZfsProp::Encryption, ZfsProp::KeyFormat, ZfsProp::Pbkdf2Iters, ZfsProp::KeyLocation];

fn is_of_encryption(name: &str) -> bool {
    native_named(name).is_some_and(|native| OF_ENCRYPTION.contains(&native.prop))
}

/// The dataset that is received.
pub struct Receiver<'a> {
    /// Full name.
    pub name: &'a str,
    /// Kind.
    pub kind: DatasetKind,
    /// Whether the stream begins with the dataset, rather than with one above.
    pub is_top: bool,
    /// Whether the stream may have several datasets.
    pub is_recursive: bool,
    /// The properties that it has, if it exists.
    pub stored: Option<&'a Stored>,
}

/// The full name of a property that may be given.
fn full_name(given: &str) -> Result<String, Failure> {
    let invalid = || Failure::failed(format!("cannot receive: invalid property '{given}'"));
    if given.contains(':') {
        return Ok(given.to_owned());
    }
    let native = native_named(given).ok_or_else(invalid)?;
    match native.prop {
        ZfsProp::Origin => Ok(given.to_owned()),
        ZfsProp::Version | ZfsProp::VolSize => Err(invalid()),
        _ if matches!(native.rule, Rule::ReadOnly | Rule::OneTime) => Err(invalid()),
        prop => Ok(prop.name().to_owned()),
    }
}

impl Overrides {
    /// Parses the options.
    ///
    /// # Errors
    /// Names of properties that do not exist or cannot be set; the same name twice.
    pub fn parse(given: &[String], excluded: &[String]) -> Result<Self, Failure> {
        let mut overrides = Overrides::default();
        let mut seen: Vec<&str> = Vec::new();
        let mut of_encryption = Vec::new();
        for pair in given {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(ReceiveArgs::misused("missing '=' for property=value argument"));
            };
            seen.push(name);
            match name {
                "origin" => overrides.origin = Some(value.to_owned()),
                name if is_of_encryption(name) => {
                    let setting = values::parse(pair, DatasetKind::Filesystem, When::Creation);
                    of_encryption.push(setting.map_err(|why| Failure::failed(format!("cannot receive: {why}")))?);
                }
                _ => overrides.values.push((full_name(name)?, value.to_owned())),
            }
        }
        for name in excluded {
            if name.contains('=') {
                return Err(ReceiveArgs::misused("invalid character '=' in property argument"));
            }
            seen.push(name);
            match is_of_encryption(name) {
                true => overrides.inherits_encryption = true,
                false => overrides.excluded.push(full_name(name)?),
            }
        }
        overrides.encryption = EncryptionArgs::take(&mut of_encryption);
        seen.sort_unstable();
        match seen.windows(2).find(|pair| pair.first() == pair.last()) {
            Some(twice) => {
                let name = twice.first().copied().unwrap_or_default();
                Err(ReceiveArgs::misused(&format!("property '{name}' specified multiple times")))
            }
            None => Ok(overrides),
        }
    }

    /// The properties of a dataset of which the stream has `received`. `warn` gets lines about options that do not apply.
    ///
    /// # Errors
    /// Invalid values.
    pub fn apply(
        &self,
        receiver: &Receiver<'_>,
        received: Option<Vec<(String, Value)>>,
        warn: impl Fn(&str),
    ) -> Result<ReceivedProperties, Failure> {
        let applies = |name: &str| native_named(name).is_none_or(|native| native.kinds.contains(&receiver.kind));
        let mut out = ReceivedProperties { received, ..ReceivedProperties::default() };
        for name in &self.excluded {
            if !applies(name) {
                let of = receiver.name;
                warn(&format!("Warning: {of}: property '{name}' does not apply to datasets of this type"));
                continue;
            }
            // A local value counts in any case.
            if receiver.stored.is_some_and(|stored| stored.contains_key(name)) {
                continue;
            }
            let is_own = native_named(name).is_some_and(|native| native.rule == Rule::Own);
            match &mut out.received {
                Some(received) if is_own => received.retain(|(property, _)| property != name),
                _ => out.inherited.push(name.clone()),
            }
        }
        for (name, value) in &self.values {
            if !applies(name) {
                if receiver.is_recursive {
                    continue;
                }
                let why = format!("property '{name}' does not apply to datasets of this type");
                return Err(Failure::failed(format!("cannot receive: {why}")));
            }
            if !receiver.is_top {
                out.inherited.push(name.clone());
                continue;
            }
            let pair = format!("{name}={value}");
            let setting = values::parse(&pair, receiver.kind, When::Later);
            out.local.push(setting.map_err(|why| Failure::failed(format!("cannot receive: {why}")))?);
        }
        debug_assert!(out.local.iter().all(|(name, _)| !out.inherited.contains(name)), "a property has one setting");
        Ok(out)
    }
}

/// Whether properties decide where a file system is mounted.
pub fn moves_mounts(properties: &ReceivedProperties) -> bool {
    let has = |name: &String| [ZfsProp::MountPoint, ZfsProp::CanMount].iter().any(|prop| prop.name() == name);
    let received = properties.received.iter().flatten().map(|(name, _)| name);
    let local = properties.local.iter().map(|(name, _)| name);
    received.chain(local).chain(&properties.inherited).any(has)
}

/// The kind of dataset that a stream's object set makes.
pub fn kind_of(objset_type: u32) -> Option<(weir_format::ObjsetKind, DatasetKind)> {
    use weir_format::ObjsetKind;
    match objset_type {
        n if n == ObjsetKind::Zfs as u32 => Some((ObjsetKind::Zfs, DatasetKind::Filesystem)),
        n if n == ObjsetKind::Zvol as u32 => Some((ObjsetKind::Zvol, DatasetKind::Volume)),
        _ => None,
    }
}

/// Properties of the stream that are not set with the others: the location of a key is that of an encryption root, which
/// the dataset may become only later.
pub fn without_key_location(values: &[(String, Value)]) -> Vec<(String, Value)> {
    let is_kept = |name: &str| props::ZfsProp::of_name(name) != Some(ZfsProp::KeyLocation);
    values.iter().filter(|(name, _)| is_kept(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(values: &[&str], excluded: &[&str]) -> Result<Overrides, Failure> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        Overrides::parse(&owned(values), &owned(excluded))
    }

    #[test]
    fn options_become_settings() {
        let overrides = given(&["compress=lz4", "origin=t/a@s", "a:b=c"], &["quota", "atime"]).unwrap();
        assert_eq!(overrides.origin.as_deref(), Some("t/a@s"));
        let receiver =
            |is_top| Receiver { name: "t/x", kind: DatasetKind::Filesystem, is_top, is_recursive: true, stored: None };
        let sent = vec![("quota".to_owned(), Value::Number(5)), ("exec".to_owned(), Value::Number(0))];
        let of_top = overrides.apply(&receiver(true), Some(sent.clone()), |_| {}).unwrap();
        assert_eq!(of_top.received, Some(sent[1..].to_vec()));
        assert_eq!(of_top.local, [("compression".into(), Value::Number(15)), ("a:b".into(), Value::Text("c".into()))]);
        assert_eq!(of_top.inherited, ["atime"]);
        let below = overrides.apply(&receiver(false), None, |_| {}).unwrap();
        assert_eq!((below.local.len(), below.inherited.len()), (0, 4));
    }

    #[test]
    fn wrong_options_are_refused() {
        for (values, excluded) in [
            (vec!["compression"], vec![]),
            (vec!["used=1"], vec![]),
            (vec!["version=5"], vec![]),
            (vec!["nothing=1"], vec![]),
            (vec!["atime=off"], vec!["atime"]),
            (vec![], vec!["a=b"]),
        ] {
            assert!(given(&values, &excluded).is_err(), "{values:?} {excluded:?}");
        }
    }
}
