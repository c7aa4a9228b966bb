//! Hot spares and cache devices: they belong to the pool but have none of its data. The MOS lists each kind in an
//! nvlist of its own.

use crate::config::VdevConfig;
use crate::error::PoolError;
use crate::open::Pool;
use crate::status::VdevState;
use weir_cache::l2arc::{CacheDeviceStats, CacheState};
use weir_format::dsl::pool as names;
use weir_machine::Request;

/// Kind of auxiliary device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Hot spares.
    Spare,
    /// Cache devices.
    Cache,
}

impl Extra {
    /// Name of the entry in the MOS directory and of the array in the list.
    fn name(self) -> &'static str {
        match self {
            Extra::Spare => names::SPARES,
            Extra::Cache => names::L2CACHE,
        }
    }
}

/// State of a cache device, and its counters if it is in service.
pub fn cache_state(pool: &Pool, cache: &VdevConfig) -> (VdevState, Option<CacheDeviceStats>) {
    let l2arc = pool.cache.l2arc();
    let stats = l2arc.stats().devices.into_iter().find(|device| device.guid == cache.guid);
    let state = match stats.as_ref().map(|stats| stats.state) {
        Some(CacheState::Faulted | CacheState::Hung) => VdevState::Faulted,
        Some(_) => VdevState::Online,
        None if cache.offline || l2arc.is_removed(cache.guid) => VdevState::Offline,
        None if pool.aux.contains_key(&cache.guid) => VdevState::Online,
        None => VdevState::Unavail,
    };
    (state, stats)
}

/// Returns the pool's spares or cache devices.
pub async fn extras(pool: &Pool, rq: &Request, which: Extra) -> Result<Vec<VdevConfig>, PoolError> {
    let Some(id) = pool.mos.named(rq, which.name()).await? else { return Ok(Vec::new()) };
    let list = pool.mos.list(rq, id).await?;
    let vdevs = list.get_list_array(which.name()).unwrap_or_default();
    let parsed: Result<Vec<_>, _> = vdevs.iter().map(VdevConfig::parse).collect();
    let what = || format!("pool '{}': list of {}", pool.config.name, which.name());
    parsed.map_err(|source| PoolError::Decode { what: what(), source })
}
