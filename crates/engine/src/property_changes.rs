//! Changes of a pool's properties.

use super::Engine;
use super::syncing::TxgSync;
use weir_dmu::zap::{self, NewZap};
use weir_dsl::sync_tasks::{DslSyncContext, features};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::{ObjectId, ObjectType};
use weir_pool::error::PoolError;

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

impl Engine {
    /// Sets a property of the pool (`zpool set`).
    ///
    /// # Errors
    /// Errors of enabling a feature; errors of writing the MOS.
    pub async fn set_pool_property(&self, property: PoolProperty) -> Result<(), PoolError> {
        self.sync_task(move |syncing: &mut TxgSync<'_>| Box::pin(async move { apply(syncing, property).await })).await
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
