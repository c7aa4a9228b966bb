//! `zfs create` and `zfs clone`: new file systems and volumes.

use super::target::{self, words};
use super::values;
use crate::admin::CREATED_NOT_MOUNTED;
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::command_target::now;
use crate::failure::Failure;
use crate::options::{Places, once};
use crate::pools::{look, search};
use crate::reading::PoolReader;
use crate::secrets::{EncryptionArgs, KeyPrompt};
use crate::size;
use crate::users::chap_names;
use crate::writable::refused;
use clap::Parser;
use weir_admin::{Action, Change, CreateDataset, MountChange, MountEffect, NewKind, Refusal, check_named};
use weir_dsl::props::{DatasetKind, Value, native_named};
use weir_dsl::sync_tasks::{FileSystemSpec, VolumeSpec};
use weir_machine::Request;
use weir_pool::OpenOptions;

/// Create a file system, or with -V a volume.
#[derive(Debug, Parser)]
#[command(
    name = "zfs create",
    override_usage = "zfs create [-Pnpuv] [-o PROPERTY=VALUE]… [--dir DIR]… FILESYSTEM\n       zfs create [-Pnpsv] [-b BLOCKSIZE] [-o PROPERTY=VALUE]… [--dir DIR]… -V SIZE VOLUME"
)]
pub struct CreateArgs {
    /// Create also the parents that are missing
    #[arg(short)]
    parents: bool,
    /// Check the properties and create nothing; -v and -P show what would be created
    #[arg(short = 'n')]
    dry_run: bool,
    /// Print the result in columns separated by tabs
    #[arg(short = 'P')]
    parsable: bool,
    /// Do not mount the new file system
    #[arg(short = 'u')]
    no_mount: bool,
    /// Print what is created
    #[arg(short)]
    verbose: bool,
    /// Property of the new dataset; may be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Create a volume of this size, for example 10G
    #[arg(short = 'V', value_name = "SIZE")]
    volume_size: Option<String>,
    /// Create a sparse volume, without refreservation
    #[arg(short)]
    sparse: bool,
    /// Block size of the volume (volblocksize)
    #[arg(short, value_name = "BLOCKSIZE")]
    block_size: Option<String>,
    #[command(flatten)]
    places: Places,
    /// Name of the new dataset
    #[arg(value_name = "DATASET")]
    words: Vec<String>,
}

/// Create a clone of a snapshot.
#[derive(Debug, Parser)]
#[command(
    name = "zfs clone",
    override_usage = "zfs clone [-pu] [-o PROPERTY=VALUE]… [--dir DIR]… SNAPSHOT FILESYSTEM|VOLUME"
)]
pub struct CloneArgs {
    /// Create also the parents that are missing
    #[arg(short)]
    parents: bool,
    /// Do not mount the clone
    #[arg(short = 'u')]
    no_mount: bool,
    /// Property of the clone; may be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// Snapshot, and name of the clone
    #[arg(value_name = "SNAPSHOT DATASET")]
    words: Vec<String>,
}

/// Runs `zfs create`.
pub fn run(call: &Call, args: &CreateArgs) -> Result<u8, Failure> {
    if args.volume_size.is_none() && (args.sparse || args.block_size.is_some()) {
        return Err(CreateArgs::misused("'-s' and '-b' can only be used when creating a volume"));
    }
    if args.volume_size.is_some() && args.no_mount {
        return Err(CreateArgs::misused("'-u' can only be used when creating a filesystem"));
    }
    let name = words::<CreateArgs>(&args.words, 1..=1, "missing dataset name argument")?.remove(0);
    let doing = format!("cannot create '{name}'");
    if args.parents && is_pool(call, args, &name)? {
        // As OpenZFS: with -p, a dataset that exists is no error.
        return Ok(0);
    }
    let wrong = match name.as_str() {
        name if name.starts_with('/') => Some("leading slash in name"),
        name if name.contains('@') => {
            Some("snapshot delimiter '@' is not expected here; 'zfs snapshot' makes snapshots")
        }
        name if name.contains('#') => {
            Some("bookmark delimiter '#' is not expected here; 'zfs bookmark' makes bookmarks")
        }
        name if !name.contains('/') => Some("missing dataset name: 'zpool create' makes pools"),
        _ => None,
    };
    if let Some(why) = wrong {
        return Err(Failure::failed(format!("{doing}: {why}")));
    }
    let (new, wanted) = dataset(args, &name, &doing)?;
    let shows = args.verbose || args.parsable;
    // Read first: the pool may be open in another process, which then does all of it.
    let lines = if shows { property_lines(call, args, &new)? } else { Vec::new() };
    if args.dry_run {
        if shows {
            show(call, args, "would create", &name, &lines);
        }
        return Ok(0);
    }
    if wanted == EncryptionArgs::default() {
        create(call, &args.places, &name, &doing, target::action(Change::Create(new), args.no_mount))?;
    } else {
        create_encrypted(call, args, &doing, new, &wanted)?;
    }
    if shows {
        show(call, args, "create", &name, &lines);
    }
    Ok(0)
}

/// Carries out the creation of a dataset.
fn create(call: &Call, places: &Places, name: &str, doing: &str, action: Action) -> Result<u8, Failure> {
    target::with(call, places, name, |target| target.attempt(action)?.map_err(|why| not_created(doing, why)))?;
    Ok(0)
}

/// The failure of a creation, or of the mount of what was created.
fn not_created(doing: &str, refusal: Refusal) -> Failure {
    match refusal.why == CREATED_NOT_MOUNTED {
        true => Failure::failed(format!("{}\n{CREATED_NOT_MOUNTED}", refusal.names.join("\n"))),
        false => refused(doing, refusal),
    }
}

/// Whether there is a pool of this name.
fn is_pool(call: &Call, args: &CreateArgs, name: &str) -> Result<bool, Failure> {
    if name.contains(['/', '@', '#']) {
        return Ok(false);
    }
    Ok(PoolReader::new(call, &args.places.dirs)?.names()?.iter().any(|pool| pool == name))
}

/// Prints the new dataset and its properties.
fn show(call: &Call, args: &CreateArgs, does: &str, name: &str, properties: &[(String, String)]) {
    match args.parsable {
        true => {
            if args.parents {
                outln!(call, "create_ancestors\t{name}");
            }
            outln!(call, "create\t{name}");
        }
        false => {
            if args.parents {
                outln!(call, "{does} ancestors of {name}");
            }
            outln!(call, "{does} {name}");
        }
    }
    for (property, value) in properties {
        match args.parsable {
            true => outln!(call, "property\t{property}\t{value}"),
            false => outln!(call, "\t{property}={value}"),
        }
    }
}

/// The properties of the command line with their values: sizes of a volume as numbers, the others as they are given.
fn property_lines(call: &Call, args: &CreateArgs, new: &CreateDataset) -> Result<Vec<(String, String)>, Failure> {
    let mut lines = Vec::new();
    if let NewKind::Volume { size_bytes, block_bytes, .. } = new.kind {
        let rounded = size_bytes.checked_next_multiple_of(u64::from(block_bytes).max(1)).unwrap_or(size_bytes);
        lines.push(("volsize".to_owned(), rounded.to_string()));
        if args.block_size.is_some() {
            lines.push(("volblocksize".to_owned(), block_bytes.to_string()));
        }
    }
    let given = args.properties.iter().filter_map(|text| text.split_once('='));
    lines.extend(
        given
            .filter(|given| args.volume_size.is_none() || *given != AUTO)
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    if new.refreservation([].iter()).is_some() {
        let search = search(call, &args.places.dirs)?;
        let pool = look(call, &OpenOptions::new(search, target::pool_of(&new.name)))?;
        let bytes = new.refreservation(pool.tree.children.iter());
        lines.extend(bytes.map(|bytes| ("refreservation".to_owned(), bytes.to_string())));
    }
    Ok(lines)
}

/// The property that gives a volume its default refreservation.
const AUTO: (&str, &str) = ("refreservation", "auto");

/// Creates a dataset with a key of its own, which the user is asked for.
fn create_encrypted(
    call: &Call,
    args: &CreateArgs,
    doing: &str,
    new: CreateDataset,
    wanted: &EncryptionArgs,
) -> Result<(), Failure> {
    let name = new.name.clone();
    let pool = target::open(call, &args.places, &name)?;
    // The pool is mounted by the process that has it open, which is this one, or by none.
    let served_pool = pool.served_pool().cloned();
    let effect = MountEffect { name: name.clone(), recursive: false, change: MountChange::New, force: false };
    pool.with(async |engine| {
        // Checked here too, so that no key is asked for.
        let rq = &Request::internal("create");
        if args.parents && engine.synced().dsl_of(rq, &name).await?.dir_named(&name).is_some() {
            return Ok(());
        }
        check_named(call.machine()?, chap_names, new.properties.iter().map(|(name, value)| (name, value)))
            .await
            .map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
        if wanted.needs_encryption() {
            let above = engine.synced().dsl_of(rq, &name).await?;
            let is_encrypted = |dir: &weir_dsl::Dir| dir.crypto_key().is_some();
            let nearest = name.rmatch_indices('/').find_map(|(at, _)| above.dir_named(&name[..at]));
            if !nearest.is_some_and(is_encrypted) {
                return Err(Failure::failed(format!("{doing}: {}", wanted.without_encryption('o'))));
            }
        }
        let encryption = wanted.encryption(KeyPrompt::Caller(call), call.machine()?, &name).await;
        let encryption = encryption.map_err(|failure| Failure::failed(format!("{doing}: {failure}")))?;
        if let Some(served_pool) = &served_pool {
            let prepared = served_pool.prepare_mounts(&effect, args.no_mount).await;
            prepared.map_err(|refusal| refused(doing, refusal))?;
        }
        let done = target::run_as(call, doing, async |author| new.run(engine, author, encryption).await).await;
        if let Some(served_pool) = &served_pool {
            let settled = served_pool.settle_mounts(&effect, args.no_mount, Vec::new()).await;
            return done.and(settled.map_err(|refusal| not_created(doing, refusal)));
        }
        done
    })
}

/// Parses the description of the new dataset.
fn dataset(args: &CreateArgs, name: &str, doing: &str) -> Result<(CreateDataset, EncryptionArgs), Failure> {
    let wrong = |why: String| Failure::failed(format!("{doing}: {why}"));
    once(&args.properties).map_err(wrong)?;
    let kind = if args.volume_size.is_some() { DatasetKind::Volume } else { DatasetKind::Filesystem };
    // Volumes get this refreservation unless another is given, or -s.
    let is_auto = |text: &&String| kind == DatasetKind::Volume && text.split_once('=') == Some(AUTO);
    let given: Vec<String> = args.properties.iter().filter(|text| !is_auto(text)).cloned().collect();
    let sparse = args.sparse && given.len() == args.properties.len();
    let mut properties = properties(&given, kind, doing)?;
    let wanted = EncryptionArgs::take(&mut properties);
    let kind = match &args.volume_size {
        None => NewKind::FileSystem,
        Some(text) => {
            let size_bytes = size::parse(text).ok_or_else(|| match size::is_too_large(text) {
                true => wrong(format!("bad volume size '{text}': numeric value is too large")),
                false => wrong(format!("bad volume size '{text}'")),
            })?;
            if size_bytes == 0 {
                return Err(wrong("volume size cannot be zero".into()));
            }
            let block = match &args.block_size {
                None => take(&mut properties, "volblocksize").unwrap_or(VolumeSpec::DEFAULT_BLOCK_BYTES.into()),
                Some(text) => size::parse(text)
                    .filter(|bytes| values::RECORD_BYTES.contains(bytes) && bytes.is_power_of_two())
                    .ok_or_else(|| {
                        wrong(format!("bad volume block size '{text}': must be power of 2 from 512B to 16M"))
                    })?,
            };
            let block_bytes = u32::try_from(block).map_err(|_| wrong(format!("bad volume block size '{block}'")))?;
            NewKind::Volume { size_bytes, block_bytes, sparse }
        }
    };
    Ok((CreateDataset { name: name.to_owned(), kind, properties, parents: args.parents }, wanted))
}

/// Parses `-o`.
fn properties(given: &[String], kind: DatasetKind, doing: &str) -> Result<Vec<(String, Value)>, Failure> {
    let parse = |text: &String| values::parse_new(text, kind);
    let parsed: Result<Vec<_>, String> = given.iter().map(parse).collect();
    parsed.map_err(|why| Failure::failed(format!("{doing}: {why}")))
}

fn take(properties: &mut Vec<(String, Value)>, name: &str) -> Option<u64> {
    let at = properties.iter().position(|(n, _)| n == name)?;
    match properties.remove(at).1 {
        Value::Number(n) => Some(n),
        Value::Text(_) => None,
    }
}

/// Removes the properties that are fixed at creation, and returns the description of a file system that this user and
/// group create now.
pub fn file_system(owner: (u32, u32), properties: &mut Vec<(String, Value)>) -> FileSystemSpec {
    weir_admin::file_system(owner, now(), properties)
}

/// A property of a clone of a file system or a volume: which of them it is, is known when the snapshot is opened.
fn cloned_property(text: &str) -> Result<(String, Value), String> {
    if text.split_once('=') == Some(AUTO) {
        return Ok((AUTO.0.to_owned(), Value::Text(AUTO.1.to_owned())));
    }
    let of_file_system = values::parse_cloned(text, DatasetKind::Filesystem);
    let name = text.split('=').next().unwrap_or_default();
    let is_of_volumes = native_named(name).is_some_and(|native| !native.kinds.contains(&DatasetKind::Filesystem));
    if is_of_volumes { values::parse_cloned(text, DatasetKind::Volume) } else { of_file_system }
}

/// Runs `zfs clone`.
pub fn clone(call: &Call, args: &CloneArgs) -> Result<u8, Failure> {
    let mut words = words::<CloneArgs>(&args.words, 2..=2, "missing source or target dataset argument")?.into_iter();
    let (Some(origin), Some(name)) = (words.next(), words.next()) else {
        return Err(CloneArgs::misused("missing target dataset argument"));
    };
    let doing = format!("cannot create '{name}'");
    if !origin.contains('@') {
        return Err(Failure::failed(format!("cannot open '{origin}': not a snapshot")));
    }
    if target::pool_of(&origin) != target::pool_of(&name) {
        return Err(Failure::failed(format!("{doing}: source and target pools differ")));
    }
    once(&args.properties).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
    let parsed: Result<Vec<_>, String> = args.properties.iter().map(|text| cloned_property(text)).collect();
    let mut properties = parsed.map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
    if EncryptionArgs::take(&mut properties) != EncryptionArgs::default() {
        let why = "Encryption properties must inherit from origin dataset.";
        return Err(Failure::failed(format!("{doing}: {why}")));
    }
    let change = Change::Clone { origin, name: name.clone(), properties, parents: args.parents };
    create(call, &args.places, &name, &doing, target::action(change, args.no_mount))
}
