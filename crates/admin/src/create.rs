//! Creation of file systems, volumes and clones.

use crate::change::{Author, check_upgrade};
use crate::properties::values;
use crate::query::AccountProperty;
use crate::reservation::{raidz_of, reservation};
use crate::same_txg::Attempts;
use crate::sharing::check_values;
use serde::{Deserialize, Serialize};
use weir_blocks::alloc::Sizing;
use weir_dsl::Scope;
use weir_dsl::props::{DatasetKind, Value, ZfsProp, native_named};
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::{Encryption, Engine};
use weir_format::ObjsetKind;
use weir_format::znode::Timestamp;
use weir_machine::Request;
use weir_pool::features::Features;
use weir_pool::mos::Mos;
use weir_pool::{PoolError, VdevConfig};

/// The first version of file systems that can compare names otherwise than byte by byte (`ZPL_VERSION_NORMALIZATION`).
const VERSION_NAMES: u64 = 3;

/// Kind of a new dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewKind {
    /// A file system.
    FileSystem,
    /// A volume.
    Volume {
        /// Size in bytes. A size between two blocks is rounded up.
        size_bytes: u64,
        /// Block size in bytes.
        block_bytes: u32,
        /// Whether the volume gets no refreservation.
        sparse: bool,
    },
}

/// A new file system or volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateDataset {
    /// Full name.
    pub name: String,
    /// File system or volume.
    pub kind: NewKind,
    /// Properties, among them those that are fixed at creation.
    #[serde(with = "values")]
    pub properties: Vec<(String, Value)>,
    /// Whether missing parents are created. An existing dataset of that name is then no error.
    pub parents: bool,
}

impl CreateDataset {
    /// The refreservation that the volume gets in a pool with these top-level vdevs; `None` for a sparse one, if another one is
    /// given, and for a file system.
    pub fn refreservation<'a>(&self, tops: impl Iterator<Item = &'a VdevConfig>) -> Option<u64> {
        let NewKind::Volume { size_bytes, block_bytes, sparse: false } = self.kind else { return None };
        if reserves(&self.properties) {
            return None;
        }
        let raidz: Vec<Sizing> = tops.map(VdevConfig::sizing).filter(|sizing| sizing.raidz.is_some()).collect();
        let rounded = size_bytes.checked_next_multiple_of(u64::from(block_bytes).max(1)).unwrap_or(size_bytes);
        Some(reservation(rounded, block_bytes.into(), copies_of(&self.properties), &raidz))
    }

    /// Creates the dataset with this encryption.
    ///
    /// # Errors
    /// Errors of the checks, which each sync task makes before it changes anything.
    pub async fn run(self, engine: &Engine, author: &mut Author, encryption: Encryption) -> Result<(), PoolError> {
        let CreateDataset { name, kind, mut properties, parents } = self;
        check_values(&name, properties.iter().map(|(property, value)| (property, value)))?;
        if parents {
            if exists(engine, &name).await? {
                return Ok(());
            }
            make_parents(engine, author, &name).await?;
        }
        let kind = match kind {
            NewKind::FileSystem => file_system_kind(engine, author, &mut properties).await?,
            NewKind::Volume { size_bytes, block_bytes, sparse } => {
                let rounded = size_bytes.checked_next_multiple_of(u64::from(block_bytes).max(1));
                let spec = VolumeSpec { size_bytes: rounded.unwrap_or(size_bytes), block_bytes };
                if !sparse {
                    add_reservation(engine, spec, &mut properties);
                }
                Kind::Volume(spec)
            }
        };
        let quotas = take_quotas(&mut properties);
        engine.create_encrypted(NewDataset { name: name.clone(), kind, properties }, encryption).await?;
        author.record(engine)?;
        set_quotas(engine, &name, quotas).await
    }
}

/// Creates a clone: `names` are the origin and the clone.
pub async fn clone(
    engine: &Engine,
    author: &mut Author,
    names: (String, String),
    mut properties: Vec<(String, Value)>,
    parents: bool,
) -> Result<(), PoolError> {
    let (origin, name) = names;
    crate::reservation::resolve_auto(engine, &origin, &mut properties).await?;
    check_values(&name, properties.iter().map(|(property, value)| (property, value)))?;
    check_kind(engine, &origin, &properties).await?;
    if parents {
        if exists(engine, &name).await? {
            return Ok(());
        }
        make_parents(engine, author, &name).await?;
    }
    let quotas = take_quotas(&mut properties);
    let version = take(&mut properties, ZfsProp::Version);
    let volume_bytes = take(&mut properties, ZfsProp::VolSize);
    if let Some(version) = version {
        check_upgrade(engine, &origin, version).await.map_err(|refusal| PoolError::Refused { what: refusal.why })?;
    }
    let mut attempts = Attempts::default();
    while let Err(error) = engine.clone_snapshot(origin.clone(), name.clone(), properties.clone()).await {
        attempts.wait(engine, error).await?;
    }
    author.record(engine)?;
    if let Some(version) = version {
        engine.properties().upgrade_file_system(name.clone(), version).await?;
    }
    if let Some(bytes) = volume_bytes
        && let Err(error) = crate::reservation::resize(engine, author, &name, bytes, false).await
    {
        // As OpenZFS: without all its properties there is no clone (`zfs_ioc_clone`).
        engine.destroy_dataset(name).await?;
        return Err(error);
    }
    set_quotas(engine, &name, quotas).await
}

/// Fails if the dataset of a snapshot is of a kind that lacks one of the properties.
async fn check_kind(engine: &Engine, snapshot: &str, properties: &[(String, Value)]) -> Result<(), PoolError> {
    let rq = &Request::internal("clone");
    let of = snapshot.split('@').next().unwrap_or(snapshot);
    let dsl = engine.synced().dsl_in(rq, Scope::Path(of)).await?;
    // A snapshot that does not exist is found by the clone itself.
    let Some(dir) = dsl.dir_named(of) else { return Ok(()) };
    let kind = match dsl.kind(rq, dir).await? {
        ObjsetKind::Zvol => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    };
    let lacks = |name: &&String| match native_named(name) {
        Some(native) => !native.kinds.contains(&kind),
        // A volume has no files, and so no quotas of users, groups and projects.
        None => kind == DatasetKind::Volume && NewQuota::named(name).is_some(),
    };
    match properties.iter().map(|(name, _)| name).find(lacks) {
        Some(name) => Err(PoolError::Refused { what: format!("'{name}' does not apply to datasets of this type") }),
        None => Ok(()),
    }
}

async fn exists(engine: &Engine, name: &str) -> Result<bool, PoolError> {
    Ok(engine.synced().dsl_of(&Request::internal("create"), name).await?.dir_named(name).is_some())
}

/// Creates the missing parents of a dataset.
pub(crate) async fn make_parents(engine: &Engine, author: &mut Author, name: &str) -> Result<(), PoolError> {
    for (at, _) in name.match_indices('/') {
        let parent = name.get(..at).unwrap_or_default();
        if exists(engine, parent).await? {
            continue;
        }
        let kind = file_system_kind(engine, author, &mut Vec::new()).await?;
        let new = NewDataset { name: parent.to_owned(), kind, properties: Vec::new() };
        engine.create_encrypted(new, Encryption::default()).await?;
        author.record(engine)?;
    }
    Ok(())
}

/// Description of a file system whose files carry a project if the pool can count by projects.
async fn file_system_kind(
    engine: &Engine,
    author: &Author,
    properties: &mut Vec<(String, Value)>,
) -> Result<Kind, PoolError> {
    let mos = Mos { set: engine.mos.clone() };
    let features = Features::read(&Request::internal("create"), &mos).await?;
    let projects = features.count("org.zfsonlinux:project_quota").is_some();
    let names_alike = [ZfsProp::Normalization, ZfsProp::Utf8Only, ZfsProp::CaseSensitivity];
    let given = names_alike.into_iter().find(|prop| properties.iter().any(|(name, _)| name == prop.name()));
    let spec = file_system((author.uid, author.gid), author.now, properties);
    if let (Some(version @ ..VERSION_NAMES), Some(prop)) = (spec.version, given) {
        let what = format!("file systems of version {version} have no '{prop}': it needs version {VERSION_NAMES}");
        return Err(PoolError::Refused { what });
    }
    Ok(Kind::FileSystem(FileSystemSpec { projects, ..spec }))
}

/// Adds the refreservation of a volume: the space of all its blocks, unless the properties reserve space.
fn add_reservation(engine: &Engine, spec: VolumeSpec, properties: &mut Vec<(String, Value)>) {
    if reserves(properties) {
        return;
    }
    let bytes = reservation(spec.size_bytes, spec.block_bytes.into(), copies_of(properties), &raidz_of(engine));
    properties.push((ZfsProp::RefReservation.name().into(), Value::Number(bytes)));
}

/// Whether the properties reserve space.
fn reserves(properties: &[(String, Value)]) -> bool {
    let is_one = |name: &str| matches!(ZfsProp::of_name(name), Some(ZfsProp::RefReservation | ZfsProp::Reservation));
    properties.iter().any(|(name, _)| is_one(name))
}

/// The copies of blocks that the properties want.
fn copies_of(properties: &[(String, Value)]) -> u64 {
    let copies = properties.iter().find_map(|(name, value)| match value {
        Value::Number(n) if name == ZfsProp::Copies.name() => Some(*n),
        _ => None,
    });
    copies.unwrap_or(1)
}

/// Limit of a user, group or project in a file system that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewQuota {
    /// Users, groups or projects.
    pub principal: QuotaPrincipal,
    /// Bytes or objects.
    pub kind: QuotaKind,
    /// Number of the user, group or project. `None`: the limit of those without a quota of their own.
    pub id: Option<u64>,
    /// The limit; 0 for none.
    pub limit: u64,
}

impl NewQuota {
    /// Principal, kind and number that a property name stands for; `None` if it names no quota.
    fn named(property: &str) -> Option<(QuotaPrincipal, QuotaKind, Option<u64>)> {
        if let Some(of) = AccountProperty::parse(property).filter(|of| of.is_quota) {
            return Some((of.who, of.what, Some(of.id)));
        }
        let mut all = QuotaPrincipal::ALL.into_iter().flat_map(|who| QuotaKind::ALL.map(|what| (who, what)));
        all.find(|(who, what)| who.default_name(*what) == property).map(|(who, what)| (who, what, None))
    }
}

/// Removes quotas such as `userquota@1000` and `defaultuserquota` from the properties: they are stored in the file system,
/// not among its properties.
pub fn take_quotas(properties: &mut Vec<(String, Value)>) -> Vec<NewQuota> {
    let mut quotas = Vec::new();
    properties.retain(|(name, value)| match (NewQuota::named(name), value) {
        (Some((principal, kind, id)), Value::Number(limit)) => {
            quotas.push(NewQuota { principal, kind, id, limit: *limit });
            false
        }
        _ => true,
    });
    quotas
}

/// Sets the quotas of a file system that was created.
///
/// # Errors
/// Errors of [`set_quota`](weir_engine::PropertyChanges::set_quota), with the quotas before it set.
pub async fn set_quotas(engine: &Engine, name: &str, quotas: Vec<NewQuota>) -> Result<(), PoolError> {
    for NewQuota { principal, kind, id, limit } in quotas {
        engine.properties().set_quota(name.to_owned(), principal, kind, id, limit).await?;
    }
    Ok(())
}

fn take(properties: &mut Vec<(String, Value)>, prop: ZfsProp) -> Option<u64> {
    let at = properties.iter().position(|(name, _)| name == prop.name())?;
    match properties.remove(at).1 {
        Value::Number(n) => Some(n),
        Value::Text(_) => None,
    }
}

/// Removes the properties that are fixed at creation, and returns the description of a file system of that user and
/// group.
pub fn file_system((uid, gid): (u32, u32), now: Timestamp, properties: &mut Vec<(String, Value)>) -> FileSystemSpec {
    let version = take(properties, ZfsProp::Version);
    let normalization = take(properties, ZfsProp::Normalization).unwrap_or(0);
    let slots = match properties.iter().find(|(name, _)| name == ZfsProp::DnodeSize.name()) {
        Some((_, Value::Number(bytes @ 1024..))) => (bytes / 512).min(32) as u8,
        Some((_, Value::Number(1))) => 2,
        _ => 0,
    };
    FileSystemSpec {
        version,
        normalization,
        // Names can only be normalized if they are UTF-8.
        utf8only: take(properties, ZfsProp::Utf8Only).unwrap_or(0) != 0 || normalization != 0,
        casesensitivity: take(properties, ZfsProp::CaseSensitivity).unwrap_or(0),
        projects: false,
        uid,
        gid,
        now,
        slots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_fixed_at_creation_are_removed() {
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        let mut properties = vec![number("normalization", 0x10), number("dnodesize", 2048), number("atime", 0)];
        let spec = file_system((1, 2), Timestamp { sec: 3, nsec: 4 }, &mut properties);
        assert_eq!((spec.uid, spec.gid), (1, 2));
        assert!(spec.utf8only && spec.normalization == 0x10 && spec.slots == 4);
        assert_eq!(properties, [number("dnodesize", 2048), number("atime", 0)]);
    }

    #[test]
    fn quotas_are_removed_from_the_properties() {
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        let used = number("userused@5", 10);
        let mut properties =
            vec![number("defaultuserquota", 7), number("quota", 8), number("groupobjquota@100", 9), used.clone()];
        let usual = NewQuota { principal: QuotaPrincipal::User, kind: QuotaKind::Bytes, id: None, limit: 7 };
        let group = NewQuota { principal: QuotaPrincipal::Group, kind: QuotaKind::Objects, id: Some(100), limit: 9 };
        assert_eq!(take_quotas(&mut properties), [usual, group]);
        assert_eq!(properties, [number("quota", 8), used]);
    }
}
