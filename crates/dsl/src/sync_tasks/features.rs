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
const ACTIVATE_ON_ENABLE: [&str; 5] = ["lz4_compress", "hole_birth", "spacemap_v2", "embedded_data", "head_errlog"];

/// Features that a feature depends on, enabled before it.
fn needs(name: &str) -> &'static [&'static str] {
    match name {
        "hole_birth" => &["enabled_txg"],
        "log_spacemap" => &["spacemap_v2"],
        "draid_failure_domains" => &["draid"],
        "bookmark_v2" => &["extensible_dataset", "bookmarks"],
        "encryption" => &["extensible_dataset", "bookmark_v2"],
        "redaction_bookmarks" | "bookmark_written" => &["bookmark_v2", "extensible_dataset", "bookmarks"],
        "redaction_list_spill" => &["redaction_bookmarks"],
        "obsolete_counts" => &["extensible_dataset", "device_removal"],
        "large_microzap" => &["extensible_dataset", "large_blocks"],
        "bookmarks" | "filesystem_limits" | "livelist" => &["extensible_dataset"],
        name if features::by_name(name).is_some_and(|f| f.per_dataset) => &["extensible_dataset"],
        _ => &[],
    }
}

fn known(name: &str) -> Result<&'static Feature, DslError> {
    let unknown = || ObjectError::NoName { what: "feature", name: name.to_owned() };
    Ok(features::by_name(name).ok_or_else(unknown)?)
}

impl DslSyncContext<'_> {
    /// The ZAP that counts a feature; `None` in pools without features.
    async fn counts_of(&mut self, feature: &Feature) -> Result<Option<ObjectId>, DslError> {
        let name = if feature.read_only_compatible { pool::FEATURES_FOR_WRITE } else { pool::FEATURES_FOR_READ };
        self.pool_object(name).await
    }

    /// The count of a feature by its short name; `None` if it is not enabled.
    pub async fn feature_count(&mut self, name: &str) -> Result<Option<u64>, DslError> {
        let feature = known(name)?;
        match self.counts_of(feature).await? {
            Some(counts) => self.word(counts, feature.guid).await,
            None => Ok(None),
        }
    }

    /// Whether a feature is enabled.
    pub async fn is_enabled(&mut self, name: &str) -> Result<bool, DslError> {
        Ok(self.feature_count(name).await?.is_some())
    }

    /// Whether a feature is in use.
    pub async fn is_active(&mut self, name: &str) -> Result<bool, DslError> {
        Ok(self.feature_count(name).await?.is_some_and(|n| n > 0))
    }

    /// Adds `by` to a feature's count.
    ///
    /// # Errors
    /// [`DslError::Feature`] if it is not enabled.
    pub async fn count_feature(&mut self, name: &'static str, by: i64) -> Result<(), DslError> {
        let feature = known(name)?;
        let disabled = DslError::Feature { name: self.pool.name.clone(), feature: name };
        let counts = self.counts_of(feature).await?.ok_or_else(|| disabled.clone())?;
        let old = self.word(counts, feature.guid).await?.ok_or(disabled)?;
        self.set_feature(feature, counts, old.saturating_add_signed(by)).await
    }

    async fn set_feature(&mut self, feature: &'static Feature, counts: ObjectId, n: u64) -> Result<(), DslError> {
        self.put_word(counts, feature.guid, n).await?;
        if n == 0 || feature.mos {
            self.label_features.insert(feature.guid, n != 0);
        }
        Ok(())
    }

    /// Creates the ZAPs of the features; part of the creation of a pool.
    pub async fn create_feature_objects(&mut self) -> Result<(), DslError> {
        for name in [pool::FEATURES_FOR_READ, pool::FEATURES_FOR_WRITE, pool::FEATURE_DESCRIPTIONS] {
            self.zap_linked(ZAP_METADATA, super::DIRECTORY, name).await?;
        }
        Ok(())
    }

    /// Enables a feature and those that it depends on. Does nothing if it is enabled already.
    pub async fn enable_feature(&mut self, name: &str) -> Result<(), DslError> {
        let mut to_enable = vec![known(name)?];
        let mut at = 0;
        while let Some(feature) = to_enable.get(at).copied() {
            for needed in needs(feature.name) {
                let needed = known(needed)?;
                if !to_enable.contains(&needed) {
                    to_enable.push(needed);
                }
            }
            at += 1;
        }
        for feature in to_enable.into_iter().rev() {
            self.enable_one(feature).await?;
        }
        Ok(())
    }

    async fn enable_one(&mut self, feature: &'static Feature) -> Result<(), DslError> {
        let no_features = ObjectError::Unsupported { what: "a feature in a pool without features" };
        let counts = self.counts_of(feature).await?.ok_or(no_features)?;
        if self.word(counts, feature.guid).await?.is_some() {
            return Ok(());
        }
        if let Some(descriptions) = self.pool_object(pool::FEATURE_DESCRIPTIONS).await? {
            let mut words: Vec<u64> = feature.about.bytes().map(u64::from).collect();
            words.push(0);
            self.put(descriptions, feature.guid, Value { int_size: 1, words }).await?;
        }
        let at_once = ACTIVATE_ON_ENABLE.contains(&feature.name);
        self.set_feature(feature, counts, u64::from(at_once)).await?;
        if !self.is_enabled("enabled_txg").await? {
            return Ok(());
        }
        let txgs = match self.pool_object(pool::FEATURE_ENABLED_TXG).await? {
            Some(id) => id,
            None => self.zap_linked(ZAP_METADATA, super::DIRECTORY, pool::FEATURE_ENABLED_TXG).await?,
        };
        self.count_feature("enabled_txg", 1).await?;
        self.put_word(txgs, feature.guid, self.txg().0).await
    }

    /// Makes a directory's or dataset's object a ZAP as well, if it is none yet.
    pub async fn zapify(&mut self, id: ObjectId) -> Result<(), DslError> {
        if self.object_type(id).await? == ZAP_METADATA {
            return Ok(());
        }
        self.count_feature("extensible_dataset", 1).await?;
        self.make_zap(id).await
    }

    /// Removes an object that may have been made a ZAP.
    pub async fn remove_zapified(&mut self, id: ObjectId) -> Result<(), DslError> {
        if self.object_type(id).await? == ZAP_METADATA {
            self.count_feature("extensible_dataset", -1).await?;
        }
        self.remove(id).await
    }

    /// Records that a dataset uses a feature; does nothing if that is recorded already.
    pub async fn activate(&mut self, dataset: ObjectId, name: &'static str) -> Result<(), DslError> {
        let feature = known(name)?;
        self.zapify(dataset).await?;
        if self.word(dataset, feature.guid).await?.is_some() {
            return Ok(());
        }
        self.count_feature(name, 1).await?;
        self.put_word(dataset, feature.guid, 0).await
    }

    /// Records that a dataset uses a feature, with a value.
    pub(super) async fn activate_with(
        &mut self,
        dataset: ObjectId,
        name: &'static str,
        value: Value,
    ) -> Result<(), DslError> {
        self.zapify(dataset).await?;
        self.count_feature(name, 1).await?;
        self.put(dataset, known(name)?.guid, value).await
    }

    /// The per-dataset features in use by a dataset, with their values.
    pub(super) async fn features_of(&self, dataset: ObjectId) -> Result<Vec<(&'static str, Value)>, DslError> {
        if self.object_type(dataset).await? != ZAP_METADATA {
            return Ok(Vec::new());
        }
        let entries = self.entries(dataset).await?;
        let named = |(name, value): (String, Value)| {
            let feature = features::by_guid(&name).filter(|f| f.per_dataset)?;
            Some((feature.name, value))
        };
        Ok(entries.into_iter().filter_map(named).collect())
    }

    /// Activates a dataset's features for another: those of a head for its snapshot, those of an origin for its clone.
    pub(super) async fn copy_features(&mut self, from: ObjectId, to: ObjectId) -> Result<(), DslError> {
        for (name, value) in self.features_of(from).await? {
            self.activate_with(to, name, value).await?;
        }
        Ok(())
    }

    /// Deactivates the features of a dataset that is destroyed.
    pub(super) async fn drop_features(&mut self, dataset: ObjectId) -> Result<(), DslError> {
        for (name, _) in self.features_of(dataset).await? {
            self.count_feature(name, -1).await?;
            self.zap_remove(dataset, known(name)?.guid).await?;
        }
        Ok(())
    }
}
