//! `zpool create`: a new pool on devices that are not in use, or with `-f`.

use super::devices::{self, Vdevs};
use super::features;
use crate::args::{Args, Spec};
use crate::call::Call;
use crate::failure::Failure;
use crate::locks::lock;
use crate::secrets::{EncryptionArgs, KeyPrompt};
use crate::size;
use crate::writable::host;
use crate::zfs::{When, file_system, is_usual_limit, parse_property};
use std::ffi::OsString;
use weir_dsl::props::{DatasetKind, Value};
use weir_engine::Engine;
use weir_engine::create::{CreateOptions, PoolValue, check_pool_name};

const SPEC: Spec = Spec {
    command: "zpool create",
    letters: "fndo:O:m:R:t:",
    long: &[],
    usage: "zpool create [-fnd] [-o PROPERTY=VALUE]… [-O FILE-SYSTEM-PROPERTY=VALUE]… [-m MOUNTPOINT] [-R ROOT] POOL \
            [mirror|raidz[1-3]|log|cache|special|dedup|spare] DEVICE…",
};

/// Runs the command.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let words = super::opened::words(&args);
    let Some((name, rest)) = words.split_first() else { return Err(SPEC.misused("missing pool name argument")) };
    if rest.is_empty() {
        return Err(SPEC.misused("missing vdev specification"));
    }
    let doing = format!("cannot create '{name}'");
    check_pool_name(name).map_err(|error| Failure::failed(format!("{doing}: {error}")))?;
    let vdevs = devices::parse(&call.caller.folder, rest)?;
    if let Some(mismatch) = vdevs.mismatch(&[]).filter(|_| !args.has('f')) {
        return Err(Failure::failed(format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n{mismatch}"
        )));
    }
    let (mut options, wanted) = options(call, &args, name, &vdevs, &doing)?;
    if args.has('n') {
        call.print(format_args!(
            "would create '{name}' with the following layout:\n\n{}",
            devices::shown(name, &vdevs)
        ));
        return Ok(0);
    }
    let _locks = lock(name, vdevs.paths())?;
    call.begin();
    let machine = call.machine()?;
    let encryption = machine.block_on(wanted.encryption(KeyPrompt::Caller(call), machine, name));
    options.encryption = encryption.map_err(|failure| Failure::failed(format!("{doing}: {failure}")))?;
    let failed = |error: weir_pool::PoolError| Failure::failed(format!("{doing}: {error}"));
    let engine = machine.block_on(Engine::create(machine, &options)).map_err(failed)?;
    machine.block_on(engine.stop()).map_err(failed)?;
    Ok(0)
}

/// Parses the options of the pool and of encryption.
fn options(
    call: &Call,
    args: &Args,
    name: &str,
    vdevs: &Vdevs,
    doing: &str,
) -> Result<(CreateOptions, EncryptionArgs), Failure> {
    let wrong = |why: String| Failure::failed(format!("{doing}: {why}"));
    let mut options = CreateOptions::new(name, vdevs.tops.clone());
    options.caches = vdevs.caches.clone();
    options.spares = vdevs.spares.clone();
    options.force = args.has('f');
    options.host = host();
    options.command = call.line();
    if args.has('d') {
        options.features.clear();
    }
    // Sets first, so that single features stand above them.
    let pairs = pairs(args.values('o'), &wrong)?;
    for (property, value) in pairs.iter().filter(|(property, _)| property == "compatibility") {
        let set = features::compatible(value).map_err(|why| wrong(format!("property '{property}': {why}")))?;
        if let Some(set) = set {
            options.features.retain(|feature| set.contains(feature));
        }
        options.compatibility = Some(value.clone()).filter(|value| value != "off");
    }
    for (property, value) in &pairs {
        set(&mut options, property, value).map_err(wrong)?;
    }
    let mut root: Vec<(String, Value)> = Vec::new();
    for text in args.values('O') {
        let parsed = parse_property(&text.to_string_lossy(), DatasetKind::Filesystem, When::Creation);
        let (property, value) = parsed.map_err(wrong)?;
        if is_usual_limit(&property) {
            return Err(wrong(format!("'{property}' is set once the pool is there: zfs set")));
        }
        root.push((property, value));
    }
    if let Some(mountpoint) = args.value('m') {
        root.push(
            parse_property(&format!("mountpoint={mountpoint}"), DatasetKind::Filesystem, When::Creation)
                .map_err(wrong)?,
        );
    }
    let wanted = EncryptionArgs::take(&mut root);
    options.root = file_system(call.caller.ids, &mut root);
    options.root_properties = root;
    Ok((options, wanted))
}

fn pairs(given: Vec<OsString>, wrong: &impl Fn(String) -> Failure) -> Result<Vec<(String, String)>, Failure> {
    let pair = |text: OsString| {
        let text = text.to_string_lossy().into_owned();
        let split = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        split.ok_or_else(|| wrong(format!("missing '=' for property=value argument: '{text}'")))
    };
    given.into_iter().map(pair).collect()
}

/// One `-o PROPERTY=VALUE`.
fn set(options: &mut CreateOptions, property: &str, value: &str) -> Result<(), String> {
    if let Some(feature) = property.strip_prefix("feature@") {
        return features::choose(&mut options.features, feature, value);
    }
    match property {
        "ashift" => {
            let shift = size::parse(value).filter(|shift| *shift == 0 || (9..=16).contains(shift));
            let shift =
                shift.ok_or(format!("invalid 'ashift={value}' property: only values between 9 and 16 are allowed"))?;
            options.ashift = Some(shift).filter(|shift| *shift != 0);
            Ok(())
        }
        "comment" => {
            options.comment = Some(comment(value)?);
            Ok(())
        }
        "compatibility" => Ok(()),
        // They are of this session, and there is none after the command.
        "cachefile" | "altroot" => Ok(()),
        _ => {
            options.properties.push(stored(property, value)?);
            Ok(())
        }
    }
}

/// The text of a comment, if it can be one.
pub fn comment(value: &str) -> Result<String, String> {
    match value {
        value if value.len() > 32 => Err("comment must not exceed 32 characters".into()),
        value if !value.chars().all(|c| c.is_ascii_graphic() || c == ' ') => {
            Err("comment may only have printable characters".into())
        }
        value => Ok(value.to_owned()),
    }
}

/// A pool property as it is stored.
pub fn stored(property: &str, value: &str) -> Result<(String, PoolValue), String> {
    const SWITCHES: [&str; 6] = ["autoreplace", "autoexpand", "autotrim", "delegation", "listsnapshots", "multihost"];
    let number = match (property, value) {
        ("multihost", "on") => return Err("multihost=on is not kept up: leave it off".into()),
        ("failmode", "wait") => 0,
        ("failmode", "continue") => 1,
        ("failmode", "panic") => 2,
        ("failmode", _) => return Err("'failmode' must be one of 'wait | continue | panic'".into()),
        (name, "off") if SWITCHES.contains(&name) => 0,
        (name, "on") if SWITCHES.contains(&name) => 1,
        (name, _) if SWITCHES.contains(&name) => return Err(format!("'{name}' must be one of 'off | on'")),
        (name, _) if weir_pool::properties::is_known(name) => return Err(format!("property '{name}' is readonly")),
        (name, _) => return Err(format!("property '{name}' is not a valid pool or vdev property")),
    };
    Ok((property.to_owned(), PoolValue::Number(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(line: &[&str]) -> Result<CreateOptions, Failure> {
        let args = SPEC.parse(line.iter().map(OsString::from).collect())?;
        Ok(options(&Call::own("zpool", Vec::new()), &args, "p", &Vdevs::default(), "cannot create 'p'")?.0)
    }

    #[test]
    fn options_become_what_the_engine_takes() {
        let line =
            ["-o", "ashift=9", "-o", "comment=my pool", "-o", "autotrim=on", "-O", "compression=lz4", "-m", "none"];
        let made = options_of(&line).unwrap();
        assert_eq!((made.ashift, made.comment.as_deref()), (Some(9), Some("my pool")));
        assert_eq!(made.properties, [("autotrim".to_owned(), PoolValue::Number(1))]);
        assert_eq!(made.root_properties.len(), 2);
        assert!(made.features.iter().any(|f| f == "block_cloning"));
        let few = options_of(&["-d", "-o", "feature@lz4_compress=enabled"]).unwrap();
        assert_eq!(few.features, ["lz4_compress"]);
        let without = options_of(&["-o", "feature@draid=disabled"]).unwrap();
        assert!(!without.features.iter().any(|f| f == "draid"));
    }

    #[test]
    fn invalid_properties_are_named() {
        for (pair, why) in [
            ("ashift=8", "only values between 9 and 16"),
            ("autotrim=yes", "'autotrim' must be one of"),
            ("failmode=stop", "'failmode' must be one of"),
            ("size=1", "is readonly"),
            ("bogus=1", "not a valid pool"),
            ("feature@bogus=enabled", "invalid feature 'bogus'"),
            ("feature@draid=maybe", "'enabled' or 'disabled'"),
            ("compatibility=nothing-like-it", "no such"),
            ("ashift", "missing '='"),
        ] {
            let error = options_of(&["-o", pair]).unwrap_err();
            assert!(error.line.contains(why), "{pair}: {}", error.line);
        }
    }
}
