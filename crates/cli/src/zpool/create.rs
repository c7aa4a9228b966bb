//! `zpool create`: a new pool on devices that are not in use, or with `-f`.

use super::claim::{claim, imported};
use super::devices::{self, Vdevs};
use super::import::NO_TEMPORARY_NAME;
use crate::args::CommandLine;
use crate::cache_file::{self, CachePlace};
use crate::call::{Call, errln};
use crate::failure::Failure;
use crate::locks::Identity;
use crate::options::{once, pools_once};
use crate::pools::{go_to_daemon, usual_paths};
use crate::secrets::{EncryptionArgs, KeyPrompt};
use crate::size;
use crate::stores;
use crate::turn::in_turn_of;
use crate::users::chap_names;
use crate::writable::{WritablePool, host};
use crate::zfs::{file_system, parse_new_property};
use clap::Parser;
use std::collections::BTreeSet;
use std::path::Path;
use weir_admin::{check_named, pool_comment, stored_property};
use weir_dsl::props::{DatasetKind, Value};
use weir_engine::create::{CreateOptions, check_pool_name};
use weir_engine::{DirtyLimits, Engine};
use weir_pool::assemble::state;
use weir_pool::{assemble, scan};

/// Create a pool on files or devices.
///
/// The files and devices must exist. A device that holds a pool or other data is used only with -f.
#[derive(Debug, Parser)]
#[command(
    name = "zpool create",
    override_usage = "zpool create [-fnd] [-o PROPERTY=VALUE]… [-O FILE-SYSTEM-PROPERTY=VALUE]… [-m MOUNTPOINT] [-R ROOT] [-t NAME]\n       POOL [mirror|raidz[1-3]|log|cache|special|dedup|spare] DEVICE…"
)]
pub struct CreateArgs {
    /// Use devices that hold data, and vdevs of different redundancy
    #[arg(short)]
    force: bool,
    /// Show the layout and create nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Enable no features, except those that -o enables
    #[arg(short = 'd')]
    no_features: bool,
    /// Pool property or feature@NAME=enabled|disabled; may be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Property of the root file system; may be repeated
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    root_properties: Vec<String>,
    /// Mount point of the root file system
    #[arg(short, value_name = "MOUNTPOINT")]
    mountpoint: Option<String>,
    /// Mount the file systems below ROOT, until the export; without a daemon they are not mounted
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    /// Temporary name of the pool, until the export: it is not written to the pool
    #[arg(short = 't', value_name = "NAME")]
    temporary_name: Option<String>,
    /// Pool, then the vdevs: devices, each preceded by its vdev type or class if it has one
    #[arg(value_name = "POOL VDEV")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &CreateArgs) -> Result<u8, Failure> {
    let Some((name, rest)) = args.words.split_first() else {
        return Err(CreateArgs::misused("missing pool name argument"));
    };
    if rest.is_empty() {
        return Err(CreateArgs::misused("missing vdev specification"));
    }
    let doing = format!("cannot create '{name}'");
    if call.process().is_none() {
        go_to_daemon(name)?;
        if args.temporary_name.is_some() && !args.dry_run {
            return Err(Failure::failed(format!("{doing}: {NO_TEMPORARY_NAME}")));
        }
    }
    // The name that the pool has while it is open.
    let open_name = args.temporary_name.as_deref().unwrap_or(name);
    for name in [name, open_name] {
        check_pool_name(name).map_err(|error| Failure::failed(format!("{doing}: {error}")))?;
    }
    let vdevs = devices::parse(&call.caller.folder, rest)?;
    if let Some(mismatch) = vdevs.mismatch(&[]).filter(|_| !args.force) {
        return Err(Failure::failed(format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n{mismatch}"
        )));
    }
    vdevs.check_distinct()?;
    check_mount_point(args, open_name)?;
    let (mut options, wanted) = options(call, args, name, &vdevs, &doing)?;
    let place = cache_place(args).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
    let altroot = args.altroot.as_deref().or_else(|| last(&args.properties, "altroot"));
    if args.dry_run {
        call.print(format_args!(
            "would create '{name}' with the following layout:\n\n{}",
            devices::shown(name, &vdevs)
        ));
        return Ok(0);
    }
    check_name_is_free(call, open_name, &vdevs)?;
    let locks = in_turn_of(call, || claim(call, open_name, vdevs.paths(), args.force))?;
    stores::make(call.machine()?, &vdevs.stores)?;
    call.begin();
    let machine = call.machine()?;
    let daemon = call.process().and_then(|process| process.daemon());
    if let Some(daemon) = &daemon {
        let limits = daemon.limits_of_pool();
        options.arc_bytes = limits.arc_bytes;
        options.dirty = DirtyLimits::new(limits.dirty_bytes);
    }
    let named = options.root_properties.iter().map(|(property, value)| (property, value));
    let named = machine.block_on(check_named(machine, chap_names, named));
    named.map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
    if wanted.has_unused_key() {
        return Err(Failure::failed(format!("{doing}: {}", wanted.without_encryption('O'))));
    }
    let encryption = machine.block_on(wanted.encryption(KeyPrompt::Caller(call), machine, name));
    options.encryption = encryption.map_err(|failure| Failure::failed(format!("{doing}: {failure}")))?;
    let failed = |error: weir_pool::PoolError| Failure::failed(format!("{doing}: {error}"));
    let quotas = weir_admin::take_quotas(&mut options.root_properties);
    let engine = machine.block_on(Engine::create(machine, &options)).map_err(failed)?;
    if let Err(error) = machine.block_on(weir_admin::set_quotas(&engine, open_name, quotas)) {
        machine.block_on(engine.stop()).map_err(failed)?;
        return Err(Failure::failed(format!("{doing}: the pool is created, without all quotas: {error}")));
    }
    match daemon {
        Some(daemon) => {
            // As OpenZFS: a pool with an alternate root is not remembered, unless a cache file is named.
            let usual = CachePlace::usual_with(altroot);
            let place = if options.temporary_name.is_some() { CachePlace::None } else { place.unwrap_or(usual) };
            altroot.iter().for_each(|root| engine.set_altroot(root));
            let writable = WritablePool::made(machine.clone(), engine, locks);
            machine.block_on(daemon.adopt(writable, place, true))?.iter().for_each(|why| errln!(call, "{why}"));
        }
        None => {
            let stopped = machine.block_on(engine.stop());
            cache_file::remember(call, &place.unwrap_or_default(), &engine);
            stopped.map_err(failed)?;
        }
    }
    Ok(0)
}

/// Fails if the root file system would be mounted at a directory that is not empty, or if a path is not absolute, as OpenZFS's
/// `zpool_do_create` does before anything else.
fn check_mount_point(args: &CreateArgs, pool: &str) -> Result<(), Failure> {
    let root = args.altroot.as_deref().or_else(|| last(&args.properties, "altroot"));
    if let Some(root) = root.filter(|root| !root.starts_with('/')) {
        return Err(Failure::failed(format!("invalid alternate root '{root}': must be an absolute path")));
    }
    let given = args.mountpoint.as_deref().or_else(|| last(&args.root_properties, "mountpoint"));
    let place = match given {
        Some("none" | "legacy") => return Ok(()),
        Some(path) if !path.starts_with('/') => {
            let why = "must be an absolute path, 'legacy', or 'none'";
            return Err(Failure::failed(format!("invalid mountpoint '{path}': {why}")));
        }
        Some(path) => path.to_owned(),
        None => format!("/{pool}"),
    };
    let path = format!("{}{place}", root.unwrap_or_default());
    let advice = "use '-m' option to provide a different default";
    match std::fs::read_dir(&path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::failed(format!("mountpoint '{path}' exists and is not empty\n{advice}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::failed(format!("mountpoint '{path}': {error}\n{advice}"))),
    }
}

/// The last value of a property among `NAME=VALUE`.
fn last<'a>(given: &'a [String], property: &str) -> Option<&'a str> {
    given.iter().rev().find_map(|text| text.strip_prefix(property)?.strip_prefix('='))
}

/// Where the pool is remembered, if that is given: `-o cachefile=`.
fn cache_place(args: &CreateArgs) -> Result<Option<CachePlace>, String> {
    last(&args.properties, "cachefile").map(CachePlace::parse).transpose()
}

/// Fails if another pool has the name: one that this process has open, one that is imported, or one in the usual places that is
/// in use. A pool that was exported or destroyed does not count, nor does one that is not imported and whose devices are all to
/// become those of the new pool.
fn check_name_is_free(call: &Call, name: &str, vdevs: &Vdevs) -> Result<(), Failure> {
    let taken = |place: String| Failure::failed(format!("cannot create '{name}': pool already exists{place}"));
    if call.served_pool(name).is_some() {
        return Err(taken(String::new()));
    }
    let machine = call.machine()?;
    let assembly = assemble(machine.block_on(scan(machine, &usual_paths(call)))?);
    let new: BTreeSet<Identity> = vdevs.paths().iter().filter_map(|path| Identity::of(path)).collect();
    let is_new = |path: &Path| Identity::of(path).is_some_and(|identity| new.contains(&identity));
    let imported = imported();
    let named = assembly.pools.values().filter(|pool| pool.config.name == name && pool.config.state == state::ACTIVE);
    let other = named.flat_map(|pool| {
        let is_imported = imported.contains(&pool.config.guid);
        pool.leaves().filter(move |device| is_imported || !is_new(&device.path))
    });
    other.take(1).try_for_each(|device| Err(taken(format!(" on {}", device.name()))))
}

/// Parses the options of the pool and of encryption.
fn options(
    call: &Call,
    args: &CreateArgs,
    name: &str,
    vdevs: &Vdevs,
    doing: &str,
) -> Result<(CreateOptions, EncryptionArgs), Failure> {
    let wrong = |why: String| Failure::failed(format!("{doing}: {why}"));
    let mut options = CreateOptions::new(name, vdevs.tops.clone());
    options.caches = vdevs.caches.clone();
    options.spares = vdevs.spares.clone();
    options.force = args.force;
    options.host = host();
    options.command = call.line();
    options.temporary_name.clone_from(&args.temporary_name);
    if args.no_features {
        options.features.clear();
    }
    pools_once(&args.properties).map_err(wrong)?;
    // `mountpoint` has the last value, also that of `-m`, as in OpenZFS.
    once(args.root_properties.iter().filter(|text| !text.starts_with("mountpoint="))).map_err(wrong)?;
    // Sets first, so that single features override them.
    let pairs = pairs(&args.properties, &wrong)?;
    for (property, value) in pairs.iter().filter(|(property, _)| property == "compatibility") {
        let set =
            weir_admin::compatible_features(value).map_err(|why| wrong(format!("property '{property}': {why}")))?;
        if let Some(set) = set {
            options.features.retain(|feature| set.contains(feature));
        }
        options.compatibility = Some(value.clone()).filter(|value| value != "off");
    }
    for (property, value) in &pairs {
        set(&mut options, property, value).map_err(wrong)?;
    }
    let mut root: Vec<(String, Value)> = Vec::new();
    for text in &args.root_properties {
        root.push(parse_new_property(text, DatasetKind::Filesystem).map_err(wrong)?);
    }
    if let Some(mountpoint) = &args.mountpoint {
        root.push(parse_new_property(&format!("mountpoint={mountpoint}"), DatasetKind::Filesystem).map_err(wrong)?);
    }
    let wanted = EncryptionArgs::take(&mut root);
    options.root = file_system(call.caller.ids, &mut root);
    options.root_properties = root;
    Ok((options, wanted))
}

fn pairs(given: &[String], wrong: &impl Fn(String) -> Failure) -> Result<Vec<(String, String)>, Failure> {
    let pair = |text: &String| {
        let split = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        split.ok_or_else(|| wrong(format!("missing '=' for property=value argument: '{text}'")))
    };
    given.iter().map(pair).collect()
}

/// One `-o PROPERTY=VALUE`.
fn set(options: &mut CreateOptions, property: &str, value: &str) -> Result<(), String> {
    if let Some(feature) = property.strip_prefix("feature@") {
        return weir_admin::choose_feature(&mut options.features, feature, value);
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
            options.comment = Some(pool_comment(value)?);
            Ok(())
        }
        "compatibility" => Ok(()),
        // The cache file is no part of the pool; the alternate root lasts until the export in OpenZFS.
        "cachefile" | "altroot" => Ok(()),
        _ => {
            options.properties.push(stored_property(property, value)?);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use weir_engine::create::PoolValue;

    fn options_of(line: &[&str]) -> Result<CreateOptions, Failure> {
        let args = CreateArgs::parse_line(&line.iter().map(OsString::from).collect::<Vec<_>>()).unwrap();
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
