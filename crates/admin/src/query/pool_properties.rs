//! Properties of a pool.

use super::vdev_space::vdev_space;
use super::{Row, Rows, health_in_memory, unreadable};
use crate::properties::pool_properties;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use weir_engine::Engine;
use weir_machine::Request;
use weir_pool::Pool;
use weir_pool::assemble::state;
use weir_pool::properties::{Origin, PoolProperty, Value, properties};

/// Which properties of a pool are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPropertiesQuery {
    /// Full names of the properties; `None` for all.
    pub properties: Option<Vec<String>>,
    /// Directory that is shown as `altroot`; `None` for that of the pool.
    pub altroot: Option<String>,
    /// Whether the space of the vdevs is read as well.
    pub vdevs: bool,
}

/// A pool with its properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPropertiesRow {
    /// Name of the pool.
    pub name: String,
    /// GUID of the pool.
    pub guid: u64,
    /// Health: its state, for example `ONLINE`, or `SUSPENDED`.
    pub health: String,
    /// Whether the pool was exported, so that no host uses it.
    pub exported: bool,
    /// Last synced txg.
    pub txg: u64,
    /// The properties that were asked for and that the pool has, in the order of the query; or all that it has.
    #[serde(with = "pool_properties")]
    pub properties: Vec<PoolProperty>,
}

impl PoolPropertiesQuery {
    /// Reads the properties: one [`Row::PoolProperties`], then a [`Row::VdevSpace`] for each vdev.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        let own = Some(pool.altroot.as_str()).filter(|root| !root.is_empty());
        let all = properties(&Request::internal("properties"), pool, self.altroot.as_deref().or(own)).await;
        let row = PoolPropertiesRow {
            name: pool.name().to_owned(),
            guid: pool.config.guid,
            health: pool.health(),
            exported: pool.label.state == state::EXPORTED,
            txg: pool.uberblock.txg.0,
            properties: chosen(all.map_err(unreadable)?, self.properties.as_deref()),
        };
        rows.add(Row::PoolProperties(row)).await?;
        if self.vdevs {
            for row in vdev_space(pool).await.map_err(unreadable)? {
                rows.add(Row::VdevSpace(row)).await?;
            }
        }
        Ok(())
    }

    /// Gives what is known of an open pool whose devices cannot be read.
    ///
    /// # Errors
    /// If the caller has gone away, or the pool has no vdev tree.
    pub(super) async fn run_in_memory(&self, engine: &Engine, rows: &mut Rows) -> Result<(), Refusal> {
        let guid = engine.shown().config.guid;
        let (_, state, _) = engine.synced().vdevs_in_memory().map_err(unreadable)?;
        let health = health_in_memory(engine, state);
        let known = [
            ("name", Value::Text(engine.name())),
            ("guid", Value::Number(guid)),
            ("health", Value::Text(health.clone())),
        ];
        let known = known.map(|(name, value)| PoolProperty { name: name.into(), value, origin: Origin::None });
        let row = PoolPropertiesRow {
            name: engine.name(),
            guid,
            health,
            exported: false,
            txg: engine.txgs().last_synced().0,
            properties: chosen(known.into(), self.properties.as_deref()),
        };
        rows.add(Row::PoolProperties(row)).await
    }
}

/// The wanted properties in their order, or all. A user property that is not set is `-`.
pub(super) fn chosen(all: Vec<PoolProperty>, wanted: Option<&[String]>) -> Vec<PoolProperty> {
    let Some(wanted) = wanted else { return all };
    let unset = |name: &String| {
        let value = Value::Text("-".into());
        name.contains(':').then(|| PoolProperty { name: name.clone(), value, origin: Origin::Default })
    };
    wanted.iter().filter_map(|name| all.iter().find(|p| p.name == *name).cloned().or_else(|| unset(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_chosen_in_the_order_of_the_query() {
        let property = |name: &str, value, origin| PoolProperty { name: name.to_owned(), value, origin };
        let all = vec![
            property("size", Value::Size(7), Origin::None),
            property("org:tag", Value::Text("x".into()), Origin::Local),
        ];
        let wanted = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(all.clone(), Some(&names))
        };
        assert_eq!(chosen(all.clone(), None), all);
        assert_eq!(wanted(&["org:tag", "size", "absent"]), [all[1].clone(), all[0].clone()]);
        assert_eq!(wanted(&["org:none"]), [property("org:none", Value::Text("-".into()), Origin::Default)]);
    }
}
