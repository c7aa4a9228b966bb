//! Setting, inheriting and receiving properties (OpenZFS `dsl_prop_set_sync_impl`, `zfs_prop_set_special`).
//!
//! ```text
//!   Set        name = v                       removes $inherit
//!   Inherit    removes name                   adds $inherit if there is a received value
//!   Revert     removes name and $inherit      a received value counts again
//!   Received   name$recvd = v
//!   Clear      removes name$recvd             (and local values, with `ClearAll`)
//! ```
//!
//! Some properties have effects besides the entry: quota and reservation are also in the directory, a refreservation is
//! charged to it, and the first limit of file systems or snapshots starts their counting.

use super::names::Found;
use super::space::{Delta, Use, difference};
use super::synced::{OLD_MAX_BLOCK_BYTES, feature_of_checksum};
use super::{Created, DslError, DslSyncContext, create, features, history, key, limits, names, number, synced};
use crate::props::{self, Rule, ZfsProp};
use weir_dmu::cycle_guard::CycleGuard;
use weir_dmu::zap::Value;
use weir_format::dsl::dir_field;
use weir_format::features::Feature;
use weir_format::{ChecksumKind, CompressionKind, ObjectId, ObjectType};

/// Maximum length of a property's value in bytes (`ZAP_MAXVALUELEN` less the NUL).
const MAX_VALUE_LEN: usize = 8191;
/// Maximum length of a user property's name in bytes.
const MAX_NAME_LEN: usize = 255;

/// Settings by property.
type Settings = [(String, Setting)];

/// Operation on a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Sets a local value.
    Set(props::Value),
    /// Inherits the value; a received value does not count.
    Inherit,
    /// Makes the received value count again, or the inherited one if there is none (`zfs inherit -S`).
    Revert,
    /// Stores a received value.
    Received(props::Value),
    /// Removes the received value.
    Clear,
    /// Removes received and local values.
    ClearAll,
}

impl Setting {
    /// The effective value afterwards, from the present local and received ones; `None`: inherited or default.
    fn predict(&self, local: Option<u64>, received: Option<u64>) -> Option<u64> {
        let of = |value: &props::Value| match value {
            props::Value::Number(n) => Some(*n),
            props::Value::Text(_) => None,
        };
        match self {
            Setting::Set(value) => of(value),
            Setting::Inherit | Setting::ClearAll => None,
            Setting::Revert => received,
            Setting::Received(value) => local.or(of(value)),
            Setting::Clear => local,
        }
    }
}

/// The feature that a property's value requires, because blocks or dnodes would be written that need it
/// (`zfs_check_settable`).
pub fn needed_feature(property: &str, value: &props::Value) -> Option<&'static Feature> {
    let props::Value::Number(n) = value else { return None };
    match ZfsProp::of_name(property)? {
        ZfsProp::RecordSize | ZfsProp::VolBlockSize if *n > OLD_MAX_BLOCK_BYTES => Some(Feature::LARGE_BLOCKS),
        ZfsProp::Compression if n & 0x7f == u64::from(CompressionKind::Zstd.to_u8()) => Some(Feature::ZSTD_COMPRESS),
        ZfsProp::Checksum | ZfsProp::Dedup => feature_of_checksum(ChecksumKind::from_u8((n & 0xff) as u8)?),
        ZfsProp::DnodeSize if *n != 0 => Some(Feature::LARGE_DNODE),
        ZfsProp::LongName if *n != 0 => Some(Feature::LONGNAME),
        _ => None,
    }
}

fn stored(value: &props::Value) -> Value {
    match value {
        props::Value::Number(n) => number(*n),
        props::Value::Text(text) => super::text(text),
    }
}

/// A numeric property that is not inherited: the local value, else the received one, else 0.
pub(super) async fn own_number(cx: &mut DslSyncContext<'_>, dir: ObjectId, prop: ZfsProp) -> Result<u64, DslError> {
    let zap = cx.dir(dir).await?.props;
    Ok(own_values(cx, zap, prop.name()).await?.unwrap_or(0))
}

async fn own_values(cx: &DslSyncContext<'_>, zap: ObjectId, name: &str) -> Result<Option<u64>, DslError> {
    if let Some(local) = cx.word(zap, name).await? {
        return Ok(Some(local));
    }
    if cx.word(zap, &format!("{name}$inherit")).await?.is_some() {
        return Ok(None);
    }
    cx.word(zap, &format!("{name}$recvd")).await
}

/// Applies `setting` to a ZAP of properties.
async fn store(cx: &mut DslSyncContext<'_>, zap: ObjectId, name: &str, setting: &Setting) -> Result<(), DslError> {
    let inherit = format!("{name}$inherit");
    let received = format!("{name}$recvd");
    match setting {
        Setting::Set(value) => {
            cx.zap_remove(zap, &inherit).await?;
            store_local(cx, zap, name, value).await?;
        }
        Setting::Inherit => {
            cx.zap_remove(zap, name).await?;
            cx.zap_remove(zap, &format!("{name}$iuv")).await?;
            if cx.word(zap, "$hasrecvd").await?.is_some() {
                cx.put(zap, &inherit, number(0)).await?;
            }
        }
        Setting::Revert => {
            cx.zap_remove(zap, name).await?;
            cx.zap_remove(zap, &inherit).await?;
        }
        Setting::Received(value) => {
            cx.put(zap, &received, stored(value)).await?;
        }
        Setting::Clear => {
            cx.zap_remove(zap, &received).await?;
        }
        Setting::ClearAll => {
            for key in [name, &inherit, &received] {
                cx.zap_remove(zap, key).await?;
            }
        }
    }
    Ok(())
}

/// Stores a local value. A value that older software does not know is stored under `$iuv`, with the default in its
/// place.
async fn store_local(
    cx: &mut DslSyncContext<'_>,
    zap: ObjectId,
    name: &str,
    value: &props::Value,
) -> Result<(), DslError> {
    let prop = ZfsProp::of_name(name);
    let newer = match (prop, value) {
        (Some(ZfsProp::RedundantMetadata), props::Value::Number(n)) => matches!(n, 2 | 3),
        (Some(ZfsProp::SnapDir), props::Value::Number(n)) => *n == 2,
        _ => false,
    };
    let unknown = format!("{name}$iuv");
    if newer {
        cx.put(zap, &unknown, stored(value)).await?;
        return cx.put(zap, name, number(0)).await;
    }
    if matches!(prop, Some(ZfsProp::RedundantMetadata | ZfsProp::SnapDir)) {
        cx.zap_remove(zap, &unknown).await?;
    }
    cx.put(zap, name, stored(value)).await
}

/// Checks that a dataset's property may have this setting. Whether quotas and reservations fit the space that is used and available,
/// [`check_limits`] checks for all of them at once.
async fn check_property(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    property: &str,
    setting: &Setting,
) -> Result<(), DslError> {
    let found = names::find(cx, name).await?;
    check_form(name, property, setting, found.phys.is_snapshot())?;
    if let Setting::Set(value) | Setting::Received(value) = setting {
        check_feature(cx, name, property, value).await?;
    }
    let Some(prop) = ZfsProp::of_name(property) else { return Ok(()) };
    if matches!(prop, ZfsProp::FilesystemLimit | ZfsProp::SnapshotLimit)
        && !features::is_enabled(cx, Feature::FILESYSTEM_LIMITS).await?
    {
        return Err(DslError::Feature { name: name.to_owned(), feature: Feature::FILESYSTEM_LIMITS.name });
    }
    if let (ZfsProp::KeyLocation, Setting::Set(value)) = (prop, setting) {
        let is_none = *value == props::Value::Text("none".into());
        let root = key::key_of(cx, found.at.id).await?.map(|(_, spec)| spec.root);
        let why = match root {
            Some(root) if root != found.at.id => "may only be set on encryption roots",
            Some(_) if is_none => "must not be 'none' for encrypted datasets",
            None if !is_none => "must be 'none' for unencrypted datasets",
            _ => return Ok(()),
        };
        return Err(DslError::property(name, property, why));
    }
    Ok(())
}

/// Checks that the pool has the feature that a value requires.
pub(super) async fn check_feature(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    property: &str,
    value: &props::Value,
) -> Result<(), DslError> {
    match needed_feature(property, value) {
        Some(feature) if !features::is_enabled(cx, feature).await? => {
            Err(DslError::Feature { name: name.to_owned(), feature: feature.name })
        }
        _ => Ok(()),
    }
}

async fn predicted(cx: &DslSyncContext<'_>, zap: ObjectId, limit: ZfsProp, setting: &Setting) -> Result<u64, DslError> {
    let local = cx.word(zap, limit.name()).await?;
    let received = cx.word(zap, &format!("{limit}$recvd")).await?;
    Ok(setting.predict(local, received).unwrap_or(0))
}

async fn check_limit(
    cx: &mut DslSyncContext<'_>,
    found: &Found,
    limit: ZfsProp,
    setting: &Setting,
) -> Result<(), DslError> {
    let dir = &found.at.dir;
    let new = predicted(cx, dir.props, limit, setting).await?;
    let phys = &found.phys;
    let name = &found.name;
    let refuse = |why| Err(DslError::space(name, why));
    let grows = |from: u64, used: u64| new.max(used).saturating_sub(from.max(used));
    match limit {
        ZfsProp::Quota if new != 0 && (new < dir.used_bytes || new < dir.reserved_bytes) => {
            refuse("size is less than current used or reserved space")
        }
        ZfsProp::RefQuota if new != 0 => {
            let reserved = synced::ref_reservation(cx, found.at.id).await?;
            let too_small = new < phys.referenced_bytes || new < reserved;
            if too_small { refuse("size is less than current used or reserved space") } else { Ok(()) }
        }
        ZfsProp::Reservation => {
            let left = match dir.parent {
                ObjectId(0) => cx.pool.capacity_bytes.saturating_sub(dir.used_bytes),
                parent => limits::available_in(cx, parent).await?,
            };
            let beyond_quota = dir.quota_bytes != 0 && new > dir.quota_bytes;
            let more = grows(dir.reserved_bytes, dir.used_bytes);
            if more > 0 && (more > left || beyond_quota) {
                return refuse("size is greater than available space");
            }
            Ok(())
        }
        ZfsProp::RefReservation => {
            let old = synced::ref_reservation(cx, found.at.id).await?;
            let quota = own_number(cx, found.at.id, ZfsProp::RefQuota).await?;
            let more = grows(old, phys.unique_bytes);
            let left = limits::available_in(cx, found.at.id).await?;
            if more > 0 && (more > left || (quota != 0 && new > quota)) {
                return refuse("size is greater than available space");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Sets, inherits or receives a property of a file system, volume or snapshot.
///
/// # Errors
/// Those of [`set_properties`].
pub async fn set_property(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    property: &str,
    setting: &Setting,
) -> Result<(), DslError> {
    set_properties(cx, name, &[(property.to_owned(), setting.clone())]).await
}

async fn set_checked(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    property: &str,
    setting: &Setting,
) -> Result<(), DslError> {
    let found = names::find(cx, name).await?;
    if found.phys.is_snapshot() {
        set_on_snapshot(cx, found.id, property, setting).await?;
    } else {
        set_on_dir(cx, &found, property, setting).await?;
    }
    let operation = if matches!(setting, Setting::Inherit | Setting::Revert) { "inherit" } else { "set" };
    let value = match setting {
        Setting::Set(props::Value::Number(n)) | Setting::Received(props::Value::Number(n)) => n.to_string(),
        Setting::Set(props::Value::Text(t)) | Setting::Received(props::Value::Text(t)) => t.clone(),
        _ => String::new(),
    };
    history::log(cx, name, found.id, operation, &format!("{property}={value}")).await
}

/// Checks that a dataset's properties may have these settings. Errors: as [`set_properties`].
pub async fn check_settings(cx: &mut DslSyncContext<'_>, name: &str, settings: &Settings) -> Result<(), DslError> {
    for (property, setting) in settings {
        check_property(cx, name, property, setting).await?;
    }
    check_limits(cx, name, settings).await
}

/// Sets several properties; checks all of them before it sets the first.
///
/// # Errors
/// [`DslError::Property`] (unknown, computed, of another kind, too long), [`DslError::Feature`], [`DslError::Space`] (a quota below
/// the used bytes, a reservation above the available bytes), before anything was changed.
pub async fn set_properties(cx: &mut DslSyncContext<'_>, name: &str, settings: &Settings) -> Result<(), DslError> {
    check_settings(cx, name, settings).await?;
    for (property, setting) in settings {
        set_checked(cx, name, property, setting).await?;
    }
    Ok(())
}

/// Checks that the quotas and reservations among the settings fit the space that is used and available.
async fn check_limits(cx: &mut DslSyncContext<'_>, name: &str, settings: &[(String, Setting)]) -> Result<(), DslError> {
    let mut limits = Vec::new();
    for (property, setting) in settings {
        limits.extend(ZfsProp::of_name(property).filter(|prop| prop.is_space_limit()).map(|limit| (limit, setting)));
    }
    match limits.as_slice() {
        [] => Ok(()),
        [(limit, setting)] => {
            let found = names::find(cx, name).await?;
            check_limit(cx, &found, *limit, setting).await
        }
        _ => check_together(cx, name, settings).await,
    }
}

/// Checks several quotas and reservations that are set at once: the values that they will have must fit each other and the space, in
/// whatever order they are given (`zfs_set_prop_nvlist` tries twice).
async fn check_together(
    cx: &mut DslSyncContext<'_>,
    name: &str,
    settings: &[(String, Setting)],
) -> Result<(), DslError> {
    const LIMITS: [ZfsProp; 4] = [ZfsProp::Quota, ZfsProp::Reservation, ZfsProp::RefQuota, ZfsProp::RefReservation];
    let found = names::find(cx, name).await?;
    let dir = &found.at.dir;
    let phys = &found.phys;
    let mut after = [0; LIMITS.len()];
    for (value, limit) in after.iter_mut().zip(LIMITS) {
        *value = match settings.iter().rev().find(|(property, _)| property == limit.name()) {
            Some((_, setting)) => predicted(cx, dir.props, limit, setting).await?,
            None => own_number(cx, found.at.id, limit).await?,
        };
    }
    let [quota, reserved, ref_quota, ref_reserved] = after;
    let unused = |reservation: u64| reservation.saturating_sub(phys.unique_bytes);
    let kept = dir.used_bytes.saturating_sub(unused(synced::ref_reservation(cx, found.at.id).await?));
    let charge = kept.saturating_add(unused(ref_reserved)).max(reserved);
    if quota != 0 && quota < charge || ref_quota != 0 && ref_quota < ref_reserved.max(phys.referenced_bytes) {
        return Err(DslError::space(name, "size is less than current used or reserved space"));
    }
    let left = match dir.parent {
        ObjectId(0) => cx.pool.capacity_bytes.saturating_sub(dir.used_bytes),
        parent => limits::available_in(cx, parent).await?,
    };
    if charge.saturating_sub(dir.used_bytes.max(dir.reserved_bytes)) > left {
        return Err(DslError::space(name, "size is greater than available space"));
    }
    Ok(())
}

async fn set_on_dir(
    cx: &mut DslSyncContext<'_>,
    found: &Found,
    property: &str,
    setting: &Setting,
) -> Result<(), DslError> {
    let id = found.at.id;
    let zap = found.at.dir.props;
    cx.touched.insert(id);
    let old = own_values(cx, zap, property).await?.unwrap_or(0);
    let prop = ZfsProp::of_name(property);
    if matches!(prop, Some(ZfsProp::FilesystemLimit | ZfsProp::SnapshotLimit)) {
        start_counting(cx, id).await?;
    }
    store(cx, zap, property, setting).await?;
    let new = own_values(cx, zap, property).await?.unwrap_or(0);
    match prop {
        Some(ZfsProp::Quota) => {
            let mut dir = cx.dir(id).await?;
            dir.quota_bytes = new;
            cx.put_dir(id, &dir).await
        }
        Some(ZfsProp::Reservation) => reserve(cx, id, new).await,
        Some(ZfsProp::RefReservation) => charge_ref_reservation(cx, found, old, new).await,
        Some(ZfsProp::Compression) => activate_compression(cx, found.id, setting).await,
        _ => Ok(()),
    }
}

/// Records that a dataset uses a feature of compression with the property, before a block does (`dsl_dataset_set_compression`).
async fn activate_compression(
    cx: &mut DslSyncContext<'_>,
    dataset: ObjectId,
    setting: &Setting,
) -> Result<(), DslError> {
    let (Setting::Set(value) | Setting::Received(value)) = setting else { return Ok(()) };
    match needed_feature(ZfsProp::Compression.name(), value) {
        Some(feature) if features::is_enabled(cx, feature).await? => features::activate(cx, dataset, feature).await,
        _ => Ok(()),
    }
}

/// Sets a directory's reservation and charges its ancestors (`dsl_dir_set_reservation_sync_impl`).
pub(super) async fn reserve(cx: &mut DslSyncContext<'_>, id: ObjectId, new: u64) -> Result<(), DslError> {
    let mut dir = cx.dir(id).await?;
    let more = difference(dir.used_bytes.max(new), dir.used_bytes.max(dir.reserved_bytes));
    dir.reserved_bytes = new;
    cx.put_dir(id, &dir).await?;
    synced::book(cx, dir.parent, Use::ChildReservations, Delta::used(more)).await
}

/// Charges a refreservation that changed from `old` to `new`.
pub(super) async fn charge_ref_reservation(
    cx: &mut DslSyncContext<'_>,
    found: &Found,
    old: u64,
    new: u64,
) -> Result<(), DslError> {
    let unique = found.phys.unique_bytes;
    let more = difference(new.saturating_sub(unique), old.saturating_sub(unique));
    synced::book(cx, found.at.id, Use::RefReservation, Delta::used(more)).await
}

async fn set_on_snapshot(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    property: &str,
    setting: &Setting,
) -> Result<(), DslError> {
    let mut phys = cx.dataset(id).await?;
    if phys.props.0 == 0 {
        if !matches!(setting, Setting::Set(_) | Setting::Received(_)) {
            return Ok(());
        }
        phys.props = cx.zap(ObjectType::DSL_PROPS).await?;
        cx.put_dataset(id, &phys).await?;
    }
    store(cx, phys.props, property, setting).await?;
    if cx.entries(phys.props).await?.is_empty() {
        cx.remove(phys.props).await?;
        phys.props = ObjectId(0);
        cx.put_dataset(id, &phys).await?;
    }
    Ok(())
}

/// Stores a property of a new dataset. The caller checked it before the creation.
pub(super) async fn store_at_creation(
    cx: &mut DslSyncContext<'_>,
    created: Created,
    property: &str,
    value: &props::Value,
) -> Result<(), DslError> {
    let dir = cx.dir(created.dir).await?;
    let phys = cx.dataset(created.dataset).await?;
    let name = String::new();
    let at = super::names::FoundDir { id: created.dir, dir, name: name.clone() };
    let found = Found { at, id: created.dataset, phys, name };
    set_on_dir(cx, &found, property, &Setting::Set(value.clone())).await
}

/// Stores a property of a new snapshot.
pub(super) async fn store_on_snapshot(
    cx: &mut DslSyncContext<'_>,
    id: ObjectId,
    property: &str,
    value: &props::Value,
) -> Result<(), DslError> {
    set_on_snapshot(cx, id, property, &Setting::Set(value.clone())).await
}

/// Starts the counts of file systems and snapshots below a directory.
pub(super) async fn start_counting(cx: &mut DslSyncContext<'_>, dir: ObjectId) -> Result<(), DslError> {
    if !features::is_active(cx, Feature::FILESYSTEM_LIMITS).await? {
        features::count_feature(cx, Feature::FILESYSTEM_LIMITS, 1).await?;
    }
    // Descendants first: each directory adds up the counts of its children.
    let mut order = vec![dir];
    let mut at = 0;
    let mut trail = CycleGuard::default();
    while let Some(id) = order.get(at).copied() {
        at += 1;
        trail.step(&cx.mos, id)?;
        if create::dir_word(cx, id, dir_field::FILESYSTEM_COUNT).await?.is_none() {
            let phys = cx.dir(id).await?;
            order.extend(names::children_of(cx, &phys).await?.into_iter().map(|(_, child)| child));
        }
    }
    for id in order.into_iter().rev() {
        if create::dir_word(cx, id, dir_field::FILESYSTEM_COUNT).await?.is_none() {
            count_below(cx, id).await?;
        }
    }
    Ok(())
}

async fn count_below(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    let dir = cx.dir(id).await?;
    let head = cx.dataset(dir.head_dataset).await?;
    let mut datasets = 0;
    let mut snapshots = 0;
    for (_, child) in names::children_of(cx, &dir).await? {
        datasets += 1 + create::dir_word(cx, child, dir_field::FILESYSTEM_COUNT).await?.unwrap_or(0);
        snapshots += create::dir_word(cx, child, dir_field::SNAPSHOT_COUNT).await?.unwrap_or(0);
    }
    // Names that begin with % are of temporary snapshots, which exist during one operation.
    let own = names::snapshots_of(cx, &head).await?;
    snapshots += own.iter().filter(|(name, _)| !name.starts_with('%')).count() as u64;
    features::zapify(cx, id).await?;
    cx.put(id, dir_field::FILESYSTEM_COUNT, number(datasets)).await?;
    cx.put(id, dir_field::SNAPSHOT_COUNT, number(snapshots)).await
}

/// The native properties that snapshots may have of their own.
const ON_SNAPSHOTS: [ZfsProp; 6] =
    [ZfsProp::NbMand, ZfsProp::Devices, ZfsProp::Exec, ZfsProp::Setuid, ZfsProp::Xattr, ZfsProp::MlsLabel];

/// Checks name and value of a property without reading the pool.
fn check_form(name: &str, property: &str, setting: &Setting, snapshot: bool) -> Result<(), DslError> {
    let refuse = |why: &str| Err(DslError::property(name, property, why));
    let text = match setting {
        Setting::Set(props::Value::Text(text)) | Setting::Received(props::Value::Text(text)) => Some(text),
        _ => None,
    };
    if text.is_some_and(|text| text.len() > MAX_VALUE_LEN) {
        return refuse("the value is too long");
    }
    if property.contains(':') {
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | '_' | ':');
        return match () {
            () if property.len() > MAX_NAME_LEN => refuse("the name is too long"),
            () if !property.chars().all(allowed) => refuse("the name has a character that is not allowed"),
            () => Ok(()),
        };
    }
    let Some(native) = props::native_named(property) else { return refuse("no such property") };
    let reading = matches!(native.rule, Rule::ReadOnly);
    match () {
        // A volume's size is stored in its own object set.
        () if reading => refuse("property is read-only"),
        () if snapshot && !ON_SNAPSHOTS.contains(&native.prop) => refuse("property cannot be modified for snapshots"),
        () if native.rule == Rule::OneTime && matches!(setting, Setting::Set(_)) => {
            refuse("property can only be set when the dataset is made")
        }
        () if matches!(native.rule, Rule::Own)
            && *setting == Setting::Inherit
            && native.prop == ZfsProp::KeyLocation =>
        {
            refuse("property cannot be inherited")
        }
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let n = Setting::Set(props::Value::Number(1));
        assert_eq!(check_form("t/a", "compression", &n, false), Ok(()));
        assert_eq!(check_form("t/a", "my:tag", &Setting::Set(props::Value::Text("x".into())), true), Ok(()));
        for (property, setting, snapshot) in [
            ("nothing", n.clone(), false),
            ("used", n.clone(), false),
            ("compression", n.clone(), true),
            ("encryption", n.clone(), false),
            ("My:Tag", n.clone(), false),
            ("my:tag", Setting::Set(props::Value::Text("x".repeat(8192))), false),
        ] {
            assert!(check_form("t/a", property, &setting, snapshot).is_err(), "{property}");
        }
    }

    #[test]
    fn what_counts_afterwards() {
        let five = props::Value::Number(5);
        assert_eq!(Setting::Set(five.clone()).predict(Some(1), Some(2)), Some(5));
        assert_eq!(Setting::Inherit.predict(Some(1), Some(2)), None);
        assert_eq!(Setting::Revert.predict(Some(1), Some(2)), Some(2));
        assert_eq!(Setting::Received(five.clone()).predict(Some(1), None), Some(1));
        assert_eq!(Setting::Received(five).predict(None, None), Some(5));
        assert_eq!(Setting::Clear.predict(Some(1), Some(2)), Some(1));
    }
}
