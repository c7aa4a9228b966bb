//! `zfs create` and `zfs clone`: new file systems and volumes.

use super::identity;
use super::target::{self, words};
use super::values::{self, When};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::operations::Operation;
use crate::options::Places;
use crate::secrets::{EncryptionArgs, KeyPrompt};
use crate::size;
use crate::writable::dsl;
use clap::Parser;
use weir_blocks::alloc::Sizing;
use weir_dsl::props::{DatasetKind, Value};
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::{Encryption, Engine};
use weir_format::znode::Timestamp;
use weir_machine::Request;
use weir_pool::features::Features;
use weir_pool::mos::Mos;
use weir_pool::{PoolError, VdevConfig};

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
    /// Check the properties and create nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Print the result in columns separated by tabs
    #[arg(short = 'P')]
    parsable: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'u')]
    _no_mount: bool,
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
    /// Accepted for compatibility; has no effect
    #[arg(short = 'u')]
    _no_mount: bool,
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
    let name = words::<CreateArgs>(&args.words, 1..=1, "missing dataset name argument")?.remove(0);
    let doing = format!("cannot create '{name}'");
    if !name.contains('/') || name.contains(['@', '#']) {
        return Err(Failure::failed(format!("{doing}: missing dataset name")));
    }
    let (new, wanted) = dataset(call, args, &name, &doing)?;
    if args.dry_run {
        let says = if args.parsable { "create\t" } else { "would create " };
        outln!(call, "{says}{name}");
        return Ok(0);
    }
    target::open(call, &args.places, &name)?.with(async |engine| {
        if args.parents {
            if dsl(engine, &Request::internal("create")).await?.dir_named(&name).is_some() {
                return Ok(());
            }
            make_parents(call, engine, &name, &doing).await?;
        }
        let encryption = wanted.encryption(KeyPrompt::Caller(call), call.machine()?, &name).await;
        let encryption = encryption.map_err(|failure| Failure::failed(format!("{doing}: {failure}")))?;
        let mut new = with_reservation(engine, with_projects(engine, new).await?, args.sparse);
        let limits = take_limits(&mut new.properties);
        target::run(call, engine, &doing, Operation::Create(new, encryption)).await?;
        set_limits(call, engine, &name, &doing, limits).await
    })?;
    if args.verbose || args.parsable {
        outln!(call, "{}{name}", if args.parsable { "create\t" } else { "create " });
    }
    Ok(0)
}

/// Parses the description of the new dataset.
fn dataset(call: &Call, args: &CreateArgs, name: &str, doing: &str) -> Result<(NewDataset, EncryptionArgs), Failure> {
    let wrong = |why: String| Failure::failed(format!("{doing}: {why}"));
    let kind = if args.volume_size.is_some() { DatasetKind::Volume } else { DatasetKind::Filesystem };
    let mut properties = properties(&args.properties, kind, doing)?;
    let wanted = EncryptionArgs::take(&mut properties);
    let kind = match &args.volume_size {
        None => Kind::FileSystem(file_system(call.caller.ids, &mut properties)),
        Some(text) => {
            let size_bytes = size::parse(text).ok_or_else(|| wrong(format!("bad volume size '{text}'")))?;
            let block = match &args.block_size {
                None => take(&mut properties, "volblocksize").unwrap_or(VolumeSpec::DEFAULT_BLOCK_BYTES.into()),
                Some(text) => size::parse(text).ok_or_else(|| wrong(format!("bad volume block size '{text}'")))?,
            };
            let block_bytes = u32::try_from(block).map_err(|_| wrong(format!("bad volume block size '{block}'")))?;
            // A size between two blocks is rounded up, as OpenZFS does.
            let size_bytes = size_bytes.checked_next_multiple_of(block.max(1)).unwrap_or(size_bytes);
            Kind::Volume(VolumeSpec { size_bytes, block_bytes })
        }
    };
    Ok((NewDataset { name: name.to_owned(), kind, properties }, wanted))
}

/// Default quotas: limits of users, groups and projects without a quota of their own.
type Limits = Vec<(QuotaPrincipal, QuotaKind, u64)>;

/// Removes the default quotas from the properties: they are stored in the file system, not among its properties.
fn take_limits(properties: &mut Vec<(String, Value)>) -> Limits {
    let mut limits = Limits::new();
    properties.retain(|(name, value)| match (identity::usual(name), value) {
        (Some((who, what)), Value::Number(limit)) => {
            limits.push((who, what, *limit));
            false
        }
        _ => true,
    });
    limits
}

async fn set_limits(call: &Call, engine: &Engine, name: &str, doing: &str, limits: Limits) -> Result<(), Failure> {
    for (who, what, limit) in limits {
        target::run(call, engine, doing, Operation::SetQuota(name.to_owned(), who, what, None, limit)).await?;
    }
    Ok(())
}

/// Parses `-o`.
fn properties(given: &[String], kind: DatasetKind, doing: &str) -> Result<Vec<(String, Value)>, Failure> {
    let parse = |text: &String| values::parse(text, kind, When::Creation);
    let parsed: Result<Vec<_>, String> = given.iter().map(parse).collect();
    parsed.map_err(|why| Failure::usage(format!("{doing}: {why}")))
}

fn take(properties: &mut Vec<(String, Value)>, name: &str) -> Option<u64> {
    let at = properties.iter().position(|(n, _)| n == name)?;
    match properties.remove(at).1 {
        Value::Number(n) => Some(n),
        Value::Text(_) => None,
    }
}

/// Removes the properties that are fixed at creation, and returns the description of a file system of that user and
/// group.
pub fn file_system((uid, gid): (u32, u32), properties: &mut Vec<(String, Value)>) -> FileSystemSpec {
    let normalization = take(properties, "normalization").unwrap_or(0);
    let slots = match properties.iter().find(|(name, _)| name == "dnodesize") {
        Some((_, Value::Number(bytes @ 1024..))) => (bytes / 512).min(32) as u8,
        Some((_, Value::Number(1))) => 2,
        _ => 0,
    };
    FileSystemSpec {
        normalization,
        // Names can only be normalized if they are UTF-8.
        utf8only: take(properties, "utf8only").unwrap_or(0) != 0 || normalization != 0,
        casesensitivity: take(properties, "casesensitivity").unwrap_or(0),
        projects: false,
        uid,
        gid,
        now: now(),
        slots,
    }
}

/// The time of day.
#[allow(clippy::disallowed_methods, reason = "a command runs in the real world alone")]
fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
}

/// Files carry a project where the pool can count by projects.
async fn with_projects(engine: &Engine, new: NewDataset) -> Result<NewDataset, Failure> {
    let mos = Mos { set: engine.mos.clone() };
    let features = Features::read(&Request::internal("create"), &mos).await.map_err(PoolError::from)?;
    let projects = features.count("org.zfsonlinux:project_quota").is_some();
    let kind = match new.kind {
        Kind::FileSystem(spec) => Kind::FileSystem(FileSystemSpec { projects, ..spec }),
        volume => volume,
    };
    Ok(NewDataset { kind, ..new })
}

/// Adds the refreservation of a volume that is not sparse: the space of all its blocks.
fn with_reservation(engine: &Engine, new: NewDataset, sparse: bool) -> NewDataset {
    let Kind::Volume(spec) = new.kind else { return new };
    let mut new = new;
    let own = new.properties.iter().any(|(name, _)| name == "refreservation" || name == "reservation");
    if !sparse && !own {
        let copies = new.properties.iter().find_map(|(name, value)| match value {
            Value::Number(n) if name == "copies" => Some(*n),
            _ => None,
        });
        let raidz = raidz_of(engine);
        let bytes = reservation(spec.size_bytes, spec.block_bytes.into(), copies.unwrap_or(1), &raidz);
        new.properties.push(("refreservation".into(), Value::Number(bytes)));
    }
    new
}

/// Reservation of a volume that reserves exactly its maximum size: the present one, and that for another size
/// (`zfs_add_synthetic_resv`); `None` for others.
pub async fn reservations(
    engine: &Engine,
    rq: &Request,
    name: &str,
    size_bytes: u64,
) -> Result<Option<(u64, u64)>, Failure> {
    let all = dsl(engine, rq).await?;
    let facts = engine.facts();
    let raidz = raidz_of(engine);
    let volume = all.find(rq, name).await.map_err(PoolError::from)?;
    let mut numbers = [0; 4];
    for (number, property) in numbers.iter_mut().zip(["volsize", "volblocksize", "copies", "refreservation"]) {
        let found = all.property(rq, &volume, &facts, property).await.map_err(PoolError::from)?;
        if let Some(Value::Number(n)) = found.map(|property| property.value) {
            *number = n;
        }
    }
    let [now_bytes, block_bytes, copies, reserved] = numbers;
    let needs = |bytes| reservation(bytes, block_bytes, copies, &raidz);
    Ok((needs(now_bytes) == reserved).then(|| (reserved, needs(size_bytes))))
}

/// Sizings of the pool's top-level RAID-Z and dRAID vdevs.
fn raidz_of(engine: &Engine) -> Vec<Sizing> {
    let root = engine.shown().config.root;
    let tops = root.get_list_array("children").unwrap_or_default();
    let sizings = tops.iter().filter_map(|top| VdevConfig::parse(top).ok()).map(|top| top.sizing());
    sizings.filter(|sizing| sizing.raidz.is_some()).collect()
}

/// Maximum space of a volume: its blocks, as wide as the widest RAID-Z makes them, its copies, and its tree of
/// indirect blocks (OpenZFS `zvol_volsize_to_reservation`).
fn reservation(size_bytes: u64, block_bytes: u64, copies: u64, raidz: &[Sizing]) -> u64 {
    /// Pointers in an indirect block, as log2; bytes of one.
    const POINTERS_SHIFT: u64 = 10;
    const INDIRECT_BYTES: u64 = 1 << 17;
    let mut blocks = size_bytes.div_ceil(block_bytes.max(1));
    let stretched = |vdev: &Sizing| {
        let own = vdev.asize_bytes(block_bytes, 0);
        let usual = vdev.typical_asize_bytes();
        // Space is counted as blocks of 128 KiB would take it.
        u64::try_from(u128::from(blocks) * u128::from(own) * (1 << 17) / u128::from(usual.max(1))).unwrap_or(u64::MAX)
    };
    let data = raidz.iter().map(stretched).max().unwrap_or(0).max(size_bytes);
    let mut metadata = 7;
    while blocks > 1 {
        blocks = (blocks + (1 << POINTERS_SHIFT) - 1) >> POINTERS_SHIFT;
        metadata += blocks;
    }
    let of_metadata = metadata.saturating_mul((copies + 1).min(3)).saturating_mul(INDIRECT_BYTES);
    data.saturating_mul(copies).saturating_add(of_metadata)
}

/// Creates the missing parents of a dataset.
async fn make_parents(call: &Call, engine: &Engine, name: &str, doing: &str) -> Result<(), Failure> {
    let rq = Request::internal("create");
    for (at, _) in name.match_indices('/') {
        let parent = name.get(..at).unwrap_or_default();
        if dsl(engine, &rq).await?.dir_named(parent).is_some() {
            continue;
        }
        let kind = Kind::FileSystem(file_system(call.caller.ids, &mut Vec::new()));
        let new = NewDataset { name: parent.to_owned(), kind, properties: Vec::new() };
        target::run(call, engine, doing, Operation::Create(with_projects(engine, new).await?, Encryption::default()))
            .await?;
    }
    Ok(())
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
    let mut properties = properties(&args.properties, DatasetKind::Filesystem, &doing)?;
    if EncryptionArgs::take(&mut properties) != EncryptionArgs::default() {
        let why = "Encryption properties must inherit from origin dataset.";
        return Err(Failure::failed(format!("{doing}: {why}")));
    }
    let limits = take_limits(&mut properties);
    target::open(call, &args.places, &name)?.with(async |engine| {
        if args.parents {
            make_parents(call, engine, &name, &doing).await?;
        }
        target::run(call, engine, &doing, Operation::Clone(origin, name.clone(), properties)).await?;
        set_limits(call, engine, &name, &doing, limits).await
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_blocks::alloc::RaidzSizing;

    #[test]
    fn reservations_as_openzfs_reckons_them() {
        // zfs create -V 64M on a single disk and the usual block size: 64 MiB of data in 4096 blocks, 7 + 4 + 1 blocks
        // of metadata, twice each.
        assert_eq!(reservation(64 << 20, 16 << 10, 1, &[]), (64 << 20) + 12 * 2 * (128 << 10));
        // On a RAID-Z2 of six with sectors of 4 KiB, a block of 8 KiB takes 2 + 2 sectors, rounded to 6.
        let raidz2 = RaidzSizing { nparity: 2, width: 6, expansion_txgs: Vec::new(), whole_rows: false };
        let raidz2 = Sizing { ashift: 12, raidz: Some(raidz2) };
        assert_eq!(raidz2.asize_bytes(8 << 10, 0), 6 << 12);
        assert_eq!(raidz2.asize_bytes(128 << 10, 0), 48 << 12);
        assert!(reservation(64 << 20, 8 << 10, 1, &[raidz2]) > 2 * (64 << 20));
    }

    #[test]
    fn what_is_fixed_at_creation_leaves_the_properties() {
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        let mut properties = vec![number("normalization", 0x10), number("dnodesize", 2048), number("atime", 0)];
        let spec = file_system((1, 2), &mut properties);
        assert_eq!((spec.uid, spec.gid), (1, 2));
        assert!(spec.utf8only && spec.normalization == 0x10 && spec.slots == 4);
        assert_eq!(properties, [number("dnodesize", 2048), number("atime", 0)]);
    }
}
