//! Hot spares and cache devices: they belong to the pool but have none of its data. The MOS lists each kind in an
//! nvlist of its own.

use crate::config::VdevConfig;
use crate::error::PoolError;
use crate::open::Pool;
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

/// Returns the pool's spares or cache devices.
pub async fn extras(pool: &Pool, rq: &Request, which: Extra) -> Result<Vec<VdevConfig>, PoolError> {
    let Some(id) = pool.mos.named(rq, which.name()).await? else { return Ok(Vec::new()) };
    let list = pool.mos.list(rq, id).await?;
    let vdevs = list.get_list_array(which.name()).unwrap_or_default();
    let parsed: Result<Vec<_>, _> = vdevs.iter().map(VdevConfig::parse).collect();
    let what = || format!("pool '{}': list of {}", pool.config.name, which.name());
    parsed.map_err(|source| PoolError::Decode { what: what(), source })
}
