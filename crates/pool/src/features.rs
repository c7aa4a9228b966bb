//! Decides by version and features whether a pool can be read.
//!
//! The label lists the features that are required to read the MOS. The MOS has the reference count of every feature.
//! Weir must support each feature that is *required for reading* and has a count above 0; features that are only
//! required for writing need no support.

use crate::config::PoolConfig;
use crate::error::PoolError;
use crate::mos::Mos;
use std::collections::BTreeMap;
use weir_dmu::ObjectError;
use weir_format::dsl::pool as names;
use weir_format::features;
use weir_machine::Request;

/// Reference counts of the pool's enabled features, by full name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Features that a reader must support.
    pub for_read: BTreeMap<String, u64>,
    /// Features that only a writer must support.
    pub for_write: BTreeMap<String, u64>,
}

impl Features {
    /// Reads the counts; empty for pools with a numbered version.
    pub async fn read(rq: &Request, mos: &Mos) -> Result<Self, ObjectError> {
        let mut out = Features::default();
        if let Some(id) = mos.named(rq, names::FEATURES_FOR_READ).await? {
            out.for_read = mos.numbers(rq, id).await?;
        }
        if let Some(id) = mos.named(rq, names::FEATURES_FOR_WRITE).await? {
            out.for_write = mos.numbers(rq, id).await?;
        }
        Ok(out)
    }

    /// Reference count of a feature by its full name: `None` if disabled, 0 if enabled, more if active.
    pub fn count(&self, guid: &str) -> Option<u64> {
        self.for_read.get(guid).or_else(|| self.for_write.get(guid)).copied()
    }

    /// Checks that Weir supports all features in use that are required for reading.
    pub fn check(&self, pool: &str) -> Result<(), PoolError> {
        unreadable(pool, self.for_read.iter().filter(|(_, n)| **n > 0).map(|(name, _)| name.as_str()))
    }
}

/// Checks the features that the label lists.
pub fn check_label(config: &PoolConfig) -> Result<(), PoolError> {
    if !features::is_known_version(config.version) {
        return Err(PoolError::Version { pool: config.name.clone(), version: config.version });
    }
    unreadable(&config.name, config.features_for_read.iter().map(String::as_str))
}

fn unreadable<'a>(pool: &str, names: impl Iterator<Item = &'a str>) -> Result<(), PoolError> {
    let unknown = names.filter(|name| features::by_guid(name).is_none_or(|f| !f.readable));
    let unknown: Vec<String> = unknown.map(str::to_owned).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(PoolError::UnsupportedFeatures { pool: pool.to_owned(), features: unknown })
}
