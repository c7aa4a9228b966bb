//! Changes of properties of datasets and of the pool, and the settings of open datasets that follow from them.

use super::multihost;
use super::open_datasets::OpenDataset;
use super::syncing::TxgSync;
use super::{PropertyChanges, open_set};
use weir_dmu::zap::{self, Key, NewZap, Value};
use weir_dsl::props::ZfsProp;
use weir_dsl::sync_tasks::delegation::{self, Grants};
use weir_dsl::sync_tasks::{DslSyncContext, Setting, VolumeSpec, features, properties};
use weir_dsl::{QuotaKind, QuotaPrincipal, Scope};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::{ObjectId, ObjectType, ObjsetId};
use weir_machine::Request;
use weir_pool::error::PoolError;

/// Native properties that decide what front ends share and mount, and how; properties `weir:*` do, too.
const FRONT_END_PROPERTIES: [ZfsProp; 13] = [
    ZfsProp::ShareNfs,
    ZfsProp::ShareSmb,
    ZfsProp::CanMount,
    ZfsProp::MountPoint,
    ZfsProp::Zoned,
    ZfsProp::ReadOnly,
    ZfsProp::SnapDir,
    ZfsProp::SnapDev,
    ZfsProp::VolMode,
    ZfsProp::Devices,
    ZfsProp::Setuid,
    ZfsProp::Exec,
    ZfsProp::Overlay,
];

/// Maximum length of a user property's value in bytes (`ZAP_MAXVALUELEN` less the NUL).
const MAX_VALUE_LEN: usize = 8191;

fn is_front_end(property: &str) -> bool {
    ZfsProp::of_name(property).is_some_and(|prop| FRONT_END_PROPERTIES.contains(&prop))
}

/// A property of a pool and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolProperty {
    /// The comment; empty for none.
    Comment(String),
    /// The sets of features that may be enabled; `off` for all.
    Compatibility(String),
    /// A user property; an empty text removes it.
    User {
        /// Name, which contains a colon.
        name: String,
        /// Value.
        text: String,
    },
    /// A feature to enable.
    Feature(&'static Feature),
    /// A property that is stored as a number.
    Number {
        /// Name of the property.
        property: String,
        /// Value as stored.
        number: u64,
    },
}

impl PropertyChanges<'_> {
    /// Sets the value that is shown as the property `cachefile` until the pool is closed; empty for the usual cache file.
    pub fn show_cachefile(&self, value: &str) {
        debug_assert!(
            value.is_empty() || value == "none" || value.starts_with('/'),
            "a cache file has an absolute path"
        );
        value.clone_into(&mut self.engine.cachefile.lock());
    }

    /// Sets or inherits properties atomically, and applies them to open datasets.
    ///
    /// # Errors
    /// Errors of [`properties::set_properties`](weir_dsl::sync_tasks::properties::set_properties).
    pub async fn set_properties(&self, name: String, settings: Vec<(String, Setting)>) -> Result<(), PoolError> {
        let top = name.clone();
        let is_of_front_ends =
            settings.iter().any(|(property, _)| property.starts_with("weir:") || is_front_end(property));
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move { Ok(properties::set_properties(&mut syncing.change, &name, &settings).await?) })
            })
            .await?;
        if is_of_front_ends {
            self.engine.changed.note(&top);
        }
        self.renew(&Request::internal("set"), Scope::Subtree(&top)).await
    }

    /// Sets the quota of a user, group or project in a file system, in bytes or objects; 0 removes it.
    ///
    /// Without an id, sets the default for principals that have no quota of their own.
    ///
    /// # Errors
    /// [`PoolError::File`] if the file system is read-only; errors of opening it.
    pub async fn set_quota(
        &self,
        name: String,
        who: QuotaPrincipal,
        what: QuotaKind,
        id: Option<u64>,
        limit: u64,
    ) -> Result<(), PoolError> {
        let rq = &Request::internal("set");
        let files = self.engine.file_system(rq, &name).await?;
        let failed = |source| PoolError::File { name: name.clone(), source: Box::new(source) };
        files.quotas().set(rq, who, what, id, limit).await.map_err(failed)?;
        self.engine.sync().await
    }

    /// Upgrades a file system to a ZPL version.
    ///
    /// # Errors
    /// [`PoolError::File`] if the file system has a newer version; errors of opening it.
    pub async fn upgrade_file_system(&self, name: String, version: u64) -> Result<(), PoolError> {
        let rq = &Request::internal("upgrade");
        let files = self.engine.file_system(rq, &name).await?;
        let failed = |source| PoolError::File { name: name.clone(), source: Box::new(source) };
        files.upgrade(rq, version).await.map_err(failed)?;
        self.engine.sync().await
    }

    /// Resizes a volume to `size_bytes`.
    ///
    /// # Errors
    /// Errors of opening the volume; [`DslError`] if the size is invalid.
    pub async fn set_volume_size(&self, name: String, size_bytes: u64) -> Result<(), PoolError> {
        let rq = &Request::internal("set");
        let volume = self.engine.volume(rq, &name).await?;
        let spec = VolumeSpec { size_bytes, block_bytes: volume.block_bytes() };
        spec.check(&name).map_err(PoolError::from)?;
        let failed = |source| PoolError::Volume { name: name.clone(), source: Box::new(source) };
        volume.resize(rq, size_bytes).await.map_err(failed)?;
        self.engine.sync().await
    }

    /// Applies the properties of the last synced txg to the open datasets among `of`.
    ///
    /// # Errors
    /// Errors of reading the properties.
    pub async fn renew(&self, rq: &Request, of: Scope<'_>) -> Result<(), PoolError> {
        // The state is read under the lock, so that no older state is applied after a newer one.
        let _one_at_a_time = self.engine.renewing.lock().await;
        let dsl = self.engine.synced().dsl_in(rq, of).await?;
        for dir in dsl.dirs().into_iter().filter(|dir| of.contains(&dir.name)) {
            let Some(open) = self.engine.sets.get(ObjsetId(dir.phys.head_dataset.0)) else { continue };
            let dataset = dsl.head(rq, dir).await?;
            open_set::renew_policy(rq, &dsl, dir, &open.set).await?;
            let values = self.engine.values(rq, &dsl, &dataset).await?;
            if let Some(zil) = &open.zil {
                zil.set_policy(self.engine.log_policy(&values));
            }
            match &open.contents {
                Some(OpenDataset::Files(files)) => files.set_settings(values.settings()),
                Some(OpenDataset::Volume(volume)) => {
                    let failed = |source| PoolError::Volume { name: dataset.name.clone(), source: Box::new(source) };
                    volume.refresh_size(rq).await.map_err(failed)?;
                    volume.set_read_only(values.is_set(ZfsProp::ReadOnly));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Adds or removes delegated permissions of a dataset (`zfs allow`, `zfs unallow`).
    ///
    /// # Errors
    /// Errors of [`delegation::allow`](weir_dsl::sync_tasks::delegation::allow).
    pub async fn delegate(&self, name: String, grants: Grants, removes: bool) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let change = &mut syncing.change;
                    match removes {
                        true => delegation::unallow(change, &name, &grants).await?,
                        false => delegation::allow(change, &name, &grants).await?,
                    }
                    Ok(())
                })
            })
            .await
    }

    /// Sets a property of the pool (`zpool set`).
    ///
    /// # Errors
    /// Errors of enabling a feature; errors of writing the MOS.
    pub async fn set_on_pool(&self, property: PoolProperty) -> Result<(), PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(async move { apply(syncing, property).await }))
            .await
    }
}

async fn apply(syncing: &mut TxgSync<'_>, property: PoolProperty) -> Result<(), PoolError> {
    match property {
        PoolProperty::Comment(text) => {
            syncing.core.config.comment = Some(text).filter(|text| !text.is_empty());
            syncing.core.config_dirty = true;
        }
        PoolProperty::Compatibility(sets) => {
            syncing.core.config.compatibility = Some(sets).filter(|sets| sets != "off" && !sets.is_empty());
            syncing.core.config_dirty = true;
        }
        PoolProperty::User { name, text } => store_user(&syncing.change, &name, &text).await?,
        PoolProperty::Feature(feature) => features::enable_feature(&mut syncing.change, feature).await?,
        PoolProperty::Number { property, number } => {
            if property == multihost::PROPERTY && number != 0 {
                multihost::check_host(&syncing.core.config.host)?;
            }
            store(&syncing.change, &property, number).await?;
        }
    }
    Ok(())
}

/// The ZAP of pool properties, which is created if it is missing.
async fn properties_zap(change: &DslSyncContext<'_>) -> Result<ObjectId, PoolError> {
    const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
    let DslSyncContext { rq, mos, tx, .. } = change;
    if let Some(id) = zap::lookup_word(rq, mos, DIRECTORY, names::PROPS).await? {
        return Ok(ObjectId(id));
    }
    let id = zap::create(rq, mos, tx, &NewZap::new(ObjectType::POOL_PROPS)).await?;
    zap::put_word(rq, mos, tx, DIRECTORY, names::PROPS, id.0).await?;
    Ok(id)
}

/// Stores a number in the ZAP of pool properties.
async fn store(change: &DslSyncContext<'_>, name: &str, number: u64) -> Result<(), PoolError> {
    let zap = properties_zap(change).await?;
    Ok(zap::put_word(change.rq, &change.mos, change.tx, zap, name, number).await?)
}

/// Stores a user property (OpenZFS `spa_sync_props`: an empty text removes it).
async fn store_user(change: &DslSyncContext<'_>, name: &str, text: &str) -> Result<(), PoolError> {
    if !name.contains(':') || text.len() > MAX_VALUE_LEN {
        return Err(PoolError::Refused { what: format!("'{name}' is not a user property with a text of that length") });
    }
    let zap = properties_zap(change).await?;
    let DslSyncContext { rq, mos, tx, .. } = change;
    match text {
        "" => drop(zap::remove(rq, mos, tx, zap, &Key::from(name)).await?),
        text => {
            let words = text.bytes().chain([0]).map(u64::from).collect();
            zap::put(rq, mos, tx, zap, &Key::from(name), &Value { int_size: 1, words }).await?;
        }
    }
    Ok(())
}
