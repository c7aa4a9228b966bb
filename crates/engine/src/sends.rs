//! Snapshots that are sent: held, so that they are not destroyed while a stream is made of them.

use super::Sends;
use super::long_holds::Reader;
use super::read_guards::DslReadGuard;
use std::sync::Arc;
use weir_dmu::ObjectSet;
use weir_dsl::Dataset;
use weir_format::features::Feature;
use weir_format::{ObjectId, ObjsetId};
use weir_machine::Request;
use weir_pool::error::PoolError;
use weir_pool::features::Features;
use weir_pool::mos::Mos;
use weir_send::PoolFeatures;

/// A snapshot that is sent. It cannot be destroyed while this exists.
pub struct SentSnapshot {
    /// The snapshot.
    pub dataset: Dataset,
    /// Object set of the snapshot.
    pub set: Arc<ObjectSet>,
    /// Features of the pool.
    pub features: PoolFeatures,
    _hold: Reader,
}

/// The features of a pool that decide what its streams may contain.
pub fn pool_features(features: &Features) -> PoolFeatures {
    let is_active = |feature: &Feature| features.count(feature.guid).is_some_and(|count| count > 0);
    PoolFeatures { lz4: is_active(Feature::LZ4_COMPRESS), embedded_data: is_active(Feature::EMBEDDED_DATA) }
}

impl Sends<'_> {
    /// Holds a snapshot for a stream, and returns it with the pool's datasets as of now.
    ///
    /// # Errors
    /// Errors of finding and reading it; [`PoolError::Refused`] if it is no snapshot.
    pub async fn hold(&self, rq: &Request, name: &str) -> Result<(SentSnapshot, DslReadGuard), PoolError> {
        let dsl = self.engine.synced().dsl(rq).await?;
        let dataset = dsl.find(rq, name).await?;
        if !dataset.is_snapshot() {
            return Err(PoolError::Refused { what: format!("'{name}' is not a snapshot") });
        }
        // `dsl` prevents all destroys until the hold prevents that of this one.
        let hold = self.engine.reading.begin(dataset.objset());
        let key = self.engine.keys.of(dsl.dir(dataset.dir));
        let set = dsl.open_set(rq, &dataset, key).await?;
        let features = pool_features(&Features::read(rq, &Mos { set: dsl.mos().clone() }).await?);
        Ok((SentSnapshot { dataset, set, features, _hold: hold }, dsl))
    }
}

/// Snapshots of a package of streams, or redaction lists. They cannot be destroyed while this exists.
pub struct KeptSnapshots {
    _holds: Vec<Reader>,
}

impl Sends<'_> {
    /// Holds the snapshots of a package of streams, of which each is held again while it is sent.
    ///
    /// # Errors
    /// Errors of finding them.
    pub async fn keep(
        &self,
        rq: &Request,
        dsl: &DslReadGuard,
        names: impl Iterator<Item = &str>,
    ) -> Result<KeptSnapshots, PoolError> {
        let mut holds = Vec::new();
        for name in names {
            holds.push(self.engine.reading.begin(dsl.find(rq, name).await?.objset()));
        }
        Ok(KeptSnapshots { _holds: holds })
    }

    /// Holds redaction lists. The caller has the pool's datasets as of now, and so prevents all destroys until then.
    pub fn keep_lists(&self, lists: impl Iterator<Item = ObjectId>) -> KeptSnapshots {
        KeptSnapshots { _holds: lists.map(|list| self.engine.reading.begin(ObjsetId(list.0))).collect() }
    }
}
