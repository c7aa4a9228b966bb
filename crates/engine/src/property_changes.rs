//! Changes of properties of datasets and of the pool, and the settings of open datasets that follow from them.

use super::open_datasets::OpenDataset;
use super::syncing::TxgSync;
use super::{PropertyChanges, open_set};
use weir_dmu::zap::{self, NewZap};
use weir_dsl::props::ZfsProp;
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

fn is_front_end(property: &str) -> bool {
    ZfsProp::of_name(property).is_some_and(|prop| FRONT_END_PROPERTIES.contains(&prop))
}

/// A property of a pool and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolProperty {
    /// The comment; empty for none.
    Comment(String),
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
            match &open.door {
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
        PoolProperty::Feature(feature) => features::enable_feature(&mut syncing.change, feature).await?,
        PoolProperty::Number { property, number } => store(&syncing.change, &property, number).await?,
    }
    Ok(())
}

/// Stores a number in the ZAP of pool properties, and creates the ZAP if it is missing.
async fn store(change: &DslSyncContext<'_>, name: &str, number: u64) -> Result<(), PoolError> {
    const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
    let DslSyncContext { rq, mos, tx, .. } = change;
    let props = match zap::lookup_word(rq, mos, DIRECTORY, names::PROPS).await? {
        Some(id) => ObjectId(id),
        None => {
            let id = zap::create(rq, mos, tx, &NewZap::new(ObjectType::POOL_PROPS)).await?;
            zap::put_word(rq, mos, tx, DIRECTORY, names::PROPS, id.0).await?;
            id
        }
    };
    Ok(zap::put_word(rq, mos, tx, props, name, number).await?)
}
