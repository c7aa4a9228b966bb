//! Observing a pool for a diagnosis: counters at the beginning and at the end of a time, and the state of the pool.

use crate::pool::Host;
use crate::refusal::Refusal;
use weir_analytics::{DatasetNames, PoolFacts, PoolObservation};
use weir_engine::Engine;
use weir_machine::Request;
use weir_pool::config::VdevConfig;
use weir_pool::mos::Mos;
use weir_pool::status::VdevState;
use weir_pool::{PoolError, capacity, dedup, space};

/// Observes a pool: its counters now and, if the process keeps them, about `seconds` ago ([`Host::earlier_sample`]).
///
/// # Errors
/// Errors of reading the MOS.
pub async fn observe(host: &impl Host, seconds: u64) -> Result<PoolObservation, Refusal> {
    let engine = host.engine();
    let mut facts = facts(engine).await?;
    (facts.links, facts.connections) = host.network().await;
    let after = DatasetNames::sample(engine).await;
    Ok(PoolObservation { before: host.earlier_sample(seconds), after, facts })
}

async fn facts(engine: &Engine) -> Result<PoolFacts, PoolError> {
    let rq = &Request::internal("observe");
    let activities = engine.synced().activities(rq).await?.into_iter().map(|activity| activity.name().to_owned());
    let state = engine.synced().state(rq).await?;
    let mos = Mos { set: state.mos.clone() };
    let what = || format!("the vdevs of '{}'", engine.name());
    let tree = VdevConfig::parse(&engine.shown().config.root);
    let tree = tree.map_err(|source| PoolError::Decode { what: what(), source })?;
    let space = space::load(rq, &mos, &tree).await?;
    let capacity = capacity::compute_space(rq, &mos, &tree, &space).await?;
    let (_, health, _) = engine.synced().vdevs_in_memory()?;
    let tables = dedup::dedup_tables(rq, &mos, &tree.children).await?;
    Ok(PoolFacts {
        activities: activities.collect(),
        suspended: engine.devices().suspended_because().map(|why| why.to_string()),
        unhealthy: (health != VdevState::Online).then(|| health.to_string()),
        fragmentation_percent: capacity.fragmentation,
        dedup_table_bytes: tables.memory_bytes,
        ..PoolFacts::default()
    })
}
