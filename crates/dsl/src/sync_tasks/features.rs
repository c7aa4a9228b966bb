//! Pool features as counts in the MOS (OpenZFS `module/zfs/zfeature.c`): *enabled* if there is an entry, *active* if
//! the count is not 0. Features that a read-only import must support are in `features_for_read`, the rest in
//! `features_for_write`.
//!
//! A dataset that uses a feature has an entry in its own ZAP, and increments the count. A feature that the MOS itself
//! needs is also in the labels while it is active: [`DslSyncContext::label_features`] returns it to the pool.

use super::{DslError, DslSyncContext, ZAP_METADATA};
use weir_dmu::error::ObjectError;
use weir_dmu::zap::Value;
use weir_format::ObjectId;
use weir_format::dsl::pool;
use weir_format::features::{self, Feature};

/// Features that are active as soon as they are enabled.
const ACTIVATE_ON_ENABLE: [&Feature; 5] =
    [Feature::LZ4_COMPRESS, Feature::HOLE_BIRTH, Feature::SPACEMAP_V2, Feature::EMBEDDED_DATA, Feature::HEAD_ERRLOG];

/// Features that a feature depends on, each after those that depend on it.
const NEEDS: [(&Feature, &[&Feature]); 13] = [
    (Feature::HOLE_BIRTH, &[Feature::ENABLED_TXG]),
    (Feature::LOG_SPACEMAP, &[Feature::SPACEMAP_V2]),
    (Feature::DRAID_FAILURE_DOMAINS, &[Feature::DRAID]),
    (Feature::BOOKMARK_V2, &[Feature::EXTENSIBLE_DATASET, Feature::BOOKMARKS]),
    (Feature::ENCRYPTION, &[Feature::EXTENSIBLE_DATASET, Feature::BOOKMARK_V2]),
    (Feature::REDACTION_BOOKMARKS, &[Feature::BOOKMARK_V2, Feature::EXTENSIBLE_DATASET, Feature::BOOKMARKS]),
    (Feature::BOOKMARK_WRITTEN, &[Feature::BOOKMARK_V2, Feature::EXTENSIBLE_DATASET, Feature::BOOKMARKS]),
    (Feature::REDACTION_LIST_SPILL, &[Feature::REDACTION_BOOKMARKS]),
    (Feature::OBSOLETE_COUNTS, &[Feature::EXTENSIBLE_DATASET, Feature::DEVICE_REMOVAL]),
    (Feature::LARGE_MICROZAP, &[Feature::EXTENSIBLE_DATASET, Feature::LARGE_BLOCKS]),
    (Feature::BOOKMARKS, &[Feature::EXTENSIBLE_DATASET]),
    (Feature::FILESYSTEM_LIMITS, &[Feature::EXTENSIBLE_DATASET]),
    (Feature::LIVELIST, &[Feature::EXTENSIBLE_DATASET]),
];

/// Features that a feature depends on, enabled before it.
fn needs(feature: &Feature) -> &'static [&'static Feature] {
    match NEEDS.iter().find(|(of, _)| *of == feature) {
        Some((_, needed)) => needed,
        None if feature.per_dataset => &[Feature::EXTENSIBLE_DATASET],
        None => &[],
    }
}

/// The feature of that short name.
///
/// # Errors
/// None has it.
pub fn known(name: &str) -> Result<&'static Feature, DslError> {
    let unknown = || ObjectError::NoName { what: "feature", name: name.to_owned() };
    Ok(features::by_name(name).ok_or_else(unknown)?)
}

/// The ZAP that counts a feature; `None` in pools without features.
async fn counts_of(cx: &mut DslSyncContext<'_>, feature: &Feature) -> Result<Option<ObjectId>, DslError> {
    let name = if feature.read_only_compatible { pool::FEATURES_FOR_WRITE } else { pool::FEATURES_FOR_READ };
    cx.pool_object(name).await
}

/// The count of a feature; `None` if it is not enabled.
pub async fn feature_count(cx: &mut DslSyncContext<'_>, feature: &Feature) -> Result<Option<u64>, DslError> {
    match counts_of(cx, feature).await? {
        Some(counts) => cx.word(counts, feature.guid).await,
        None => Ok(None),
    }
}

/// Whether a feature is enabled.
pub async fn is_enabled(cx: &mut DslSyncContext<'_>, feature: &Feature) -> Result<bool, DslError> {
    Ok(feature_count(cx, feature).await?.is_some())
}

/// Whether a feature is in use.
pub async fn is_active(cx: &mut DslSyncContext<'_>, feature: &Feature) -> Result<bool, DslError> {
    Ok(feature_count(cx, feature).await?.is_some_and(|n| n > 0))
}

/// Adds `by` to a feature's count.
///
/// # Errors
/// [`DslError::Feature`] if it is not enabled.
pub async fn count_feature(cx: &mut DslSyncContext<'_>, feature: &'static Feature, by: i64) -> Result<(), DslError> {
    let disabled = DslError::Feature { name: cx.pool.name.clone(), feature: feature.name };
    let counts = counts_of(cx, feature).await?.ok_or_else(|| disabled.clone())?;
    let old = cx.word(counts, feature.guid).await?.ok_or(disabled)?;
    set_feature(cx, feature, counts, old.saturating_add_signed(by)).await
}

async fn set_feature(
    cx: &mut DslSyncContext<'_>,
    feature: &'static Feature,
    counts: ObjectId,
    n: u64,
) -> Result<(), DslError> {
    cx.put_word(counts, feature.guid, n).await?;
    if n == 0 || feature.mos {
        cx.label_features.insert(feature.guid, n != 0);
    }
    Ok(())
}

/// Creates the ZAPs of the features; part of the creation of a pool.
pub async fn create_feature_objects(cx: &mut DslSyncContext<'_>) -> Result<(), DslError> {
    for name in [pool::FEATURES_FOR_READ, pool::FEATURES_FOR_WRITE, pool::FEATURE_DESCRIPTIONS] {
        cx.zap_linked(ZAP_METADATA, super::DIRECTORY, name).await?;
    }
    Ok(())
}

/// Enables a feature and those that it depends on. Does nothing if it is enabled already.
pub async fn enable_feature(cx: &mut DslSyncContext<'_>, feature: &'static Feature) -> Result<(), DslError> {
    let mut to_enable = vec![feature];
    let mut at = 0;
    while let Some(feature) = to_enable.get(at).copied() {
        for needed in needs(feature) {
            if !to_enable.contains(needed) {
                to_enable.push(*needed);
            }
        }
        at += 1;
    }
    for feature in to_enable.into_iter().rev() {
        enable_one(cx, feature).await?;
    }
    Ok(())
}

async fn enable_one(cx: &mut DslSyncContext<'_>, feature: &'static Feature) -> Result<(), DslError> {
    let no_features = ObjectError::Unsupported { what: "a feature in a pool without features" };
    let counts = counts_of(cx, feature).await?.ok_or(no_features)?;
    if cx.word(counts, feature.guid).await?.is_some() {
        return Ok(());
    }
    if let Some(descriptions) = cx.pool_object(pool::FEATURE_DESCRIPTIONS).await? {
        let mut words: Vec<u64> = feature.about.bytes().map(u64::from).collect();
        words.push(0);
        cx.put(descriptions, feature.guid, Value { int_size: 1, words }).await?;
    }
    let at_once = ACTIVATE_ON_ENABLE.contains(&feature);
    set_feature(cx, feature, counts, u64::from(at_once)).await?;
    if !is_enabled(cx, Feature::ENABLED_TXG).await? {
        return Ok(());
    }
    let txgs = match cx.pool_object(pool::FEATURE_ENABLED_TXG).await? {
        Some(id) => id,
        None => cx.zap_linked(ZAP_METADATA, super::DIRECTORY, pool::FEATURE_ENABLED_TXG).await?,
    };
    count_feature(cx, Feature::ENABLED_TXG, 1).await?;
    cx.put_word(txgs, feature.guid, cx.txg().0).await
}

/// Makes a directory's or dataset's object a ZAP as well, if it is none yet.
pub async fn zapify(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    if cx.object_type(id).await? == ZAP_METADATA {
        return Ok(());
    }
    count_feature(cx, Feature::EXTENSIBLE_DATASET, 1).await?;
    cx.make_zap(id).await
}

/// Removes an object that may have been made a ZAP.
pub async fn remove_zapified(cx: &mut DslSyncContext<'_>, id: ObjectId) -> Result<(), DslError> {
    if cx.object_type(id).await? == ZAP_METADATA {
        count_feature(cx, Feature::EXTENSIBLE_DATASET, -1).await?;
    }
    cx.remove(id).await
}

/// Records that a dataset uses a feature; does nothing if that is recorded already.
pub async fn activate(
    cx: &mut DslSyncContext<'_>,
    dataset: ObjectId,
    feature: &'static Feature,
) -> Result<(), DslError> {
    zapify(cx, dataset).await?;
    if cx.word(dataset, feature.guid).await?.is_some() {
        return Ok(());
    }
    count_feature(cx, feature, 1).await?;
    cx.put_word(dataset, feature.guid, 0).await
}

/// Records that a dataset uses a feature, with a value.
pub(super) async fn activate_with(
    cx: &mut DslSyncContext<'_>,
    dataset: ObjectId,
    feature: &'static Feature,
    value: Value,
) -> Result<(), DslError> {
    zapify(cx, dataset).await?;
    count_feature(cx, feature, 1).await?;
    cx.put(dataset, feature.guid, value).await
}

/// The per-dataset features in use by a dataset, with their values.
pub(super) async fn features_of(
    cx: &DslSyncContext<'_>,
    dataset: ObjectId,
) -> Result<Vec<(&'static Feature, Value)>, DslError> {
    if cx.object_type(dataset).await? != ZAP_METADATA {
        return Ok(Vec::new());
    }
    let entries = cx.entries(dataset).await?;
    let named = |(name, value): (String, Value)| {
        let feature = features::by_guid(&name).filter(|f| f.per_dataset)?;
        Some((feature, value))
    };
    Ok(entries.into_iter().filter_map(named).collect())
}

/// Activates a dataset's features for another: those of a head for its snapshot, those of an origin for its clone.
pub(super) async fn copy_features(cx: &mut DslSyncContext<'_>, from: ObjectId, to: ObjectId) -> Result<(), DslError> {
    for (feature, value) in features_of(cx, from).await? {
        activate_with(cx, to, feature, value).await?;
    }
    Ok(())
}

/// GUIDs of the snapshots that a dataset is redacted for; `None` if it is not redacted.
pub(super) async fn redaction_of(cx: &DslSyncContext<'_>, dataset: ObjectId) -> Result<Option<Vec<u64>>, DslError> {
    let all = features_of(cx, dataset).await?;
    let found = all.into_iter().find(|(feature, _)| *feature == Feature::REDACTED_DATASETS);
    Ok(found.map(|(_, value)| value.words))
}

/// Deactivates a feature of a dataset that may use it.
pub(super) async fn deactivate(
    cx: &mut DslSyncContext<'_>,
    dataset: ObjectId,
    feature: &'static Feature,
) -> Result<(), DslError> {
    if features_of(cx, dataset).await?.iter().any(|(active, _)| *active == feature) {
        count_feature(cx, feature, -1).await?;
        cx.zap_remove(dataset, feature.guid).await?;
    }
    Ok(())
}

/// Deactivates the features of a dataset that is destroyed.
pub(super) async fn drop_features(cx: &mut DslSyncContext<'_>, dataset: ObjectId) -> Result<(), DslError> {
    for (feature, _) in features_of(cx, dataset).await? {
        count_feature(cx, feature, -1).await?;
        cx.zap_remove(dataset, feature.guid).await?;
    }
    Ok(())
}
