//! Devices in stores of objects: their requests, and what they cost by the user's price list.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use weir_blocks::vdev::VdevKind;
use weir_engine::Engine;
use weir_machine::Money;
use weir_pool::config::VdevConfig;

/// An amount of money.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// 10⁻⁹ of the currency's unit.
    pub nanos: u64,
    /// Code of the currency, such as `USD`.
    pub currency: String,
}

/// Requests of one kind of a device in a store of objects, since the process named it first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreTotals {
    /// Name of the vdev.
    pub name: String,
    /// `get`, `put`, `head` or `delete`.
    pub kind: String,
    /// Requests, also those that failed.
    pub requests: u64,
    /// Requests that were not answered with success. A condition that was not met counts.
    pub failed: u64,
    /// Repetitions of all kinds, in the row of `put`.
    pub retries: u64,
    /// Sum of their times in nanoseconds.
    pub time_ns: u64,
    /// Time of the longest one in nanoseconds.
    #[serde(default)]
    pub longest_ns: u64,
    /// Bytes of objects received or sent.
    pub bytes: u64,
    /// Price of the requests and bytes, by the user's price list; `None` without one.
    #[serde(default)]
    pub cost: Option<Cost>,
}

/// Space of a device in a store of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreSpace {
    /// Name of the vdev.
    pub name: String,
    /// Size in bytes: the most that can be stored.
    pub size_bytes: u64,
    /// Bytes of it that are allocated: the least that is stored, once they are flushed. Of RAID-Z and dRAID, an equal share.
    pub allocated_bytes: u64,
    /// Price of storing `size_bytes` for a month, by the user's price list; `None` without one.
    pub month: Option<Cost>,
}

impl From<Money> for Cost {
    fn from(money: Money) -> Self {
        Cost { nanos: money.nanos, currency: money.currency }
    }
}

impl StoreSpace {
    /// Price of storing only the allocated bytes for a month, rounded down.
    pub fn month_of_allocated(&self) -> Option<Cost> {
        let month = self.month.as_ref()?;
        let part = u128::from(month.nanos) * u128::from(self.allocated_bytes) / u128::from(self.size_bytes.max(1));
        Some(Cost { nanos: u64::try_from(part).unwrap_or(u64::MAX), currency: month.currency.clone() })
    }
}

/// Requests and space of the pool's devices in stores of objects.
pub(crate) fn of(engine: &Engine) -> (Vec<StoreTotals>, Vec<StoreSpace>) {
    let sizes = engine.machine.disks.store_sizes();
    if sizes.is_empty() {
        return Default::default();
    }
    let allocated = allocated(engine);
    let requests = engine.machine.disks.store_requests().into_iter().filter(|row| allocated.contains_key(&row.disk));
    let requests = requests.map(|row| StoreTotals {
        name: row.disk,
        kind: row.kind.to_owned(),
        requests: row.requests,
        failed: row.failed,
        retries: row.retries,
        time_ns: row.time_ns,
        longest_ns: row.longest_ns,
        bytes: row.bytes,
        cost: row.cost.map(Cost::from),
    });
    let space = sizes.into_iter().filter_map(|row| {
        let allocated_bytes = *allocated.get(&row.disk)?;
        Some(StoreSpace {
            name: row.disk,
            size_bytes: row.size_bytes,
            allocated_bytes,
            month: row.month.map(Cost::from),
        })
    });
    (requests.collect(), space.collect())
}

/// Bytes that are allocated on each leaf, by its name; 0 for cache devices and spares.
fn allocated(engine: &Engine) -> BTreeMap<String, u64> {
    let blocks = engine.cache.blocks();
    let mut by_guid: BTreeMap<u64, u64> = BTreeMap::new();
    let root = VdevConfig::parse(&engine.shown().config.root);
    for top in root.iter().flat_map(|root| &root.children) {
        let Ok(index) = u32::try_from(top.id) else { continue };
        let is_spread = matches!(top.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. });
        let columns = if is_spread { top.children.len().max(1) as u64 } else { 1 };
        let of_leaf = blocks.vdev_space(index).allocated_bytes / columns;
        by_guid.extend(top.leaves().into_iter().map(|leaf| (leaf.guid, of_leaf)));
    }
    let leaves = blocks.tree().health().into_iter();
    leaves.map(|leaf| (leaf.name, by_guid.get(&leaf.guid).copied().unwrap_or(0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_month_is_that_of_the_allocated_bytes() {
        let month = Some(Cost { nanos: 23_000_000_000, currency: "USD".into() });
        let space = StoreSpace { name: "s3://b/p".into(), size_bytes: 1 << 40, allocated_bytes: 1 << 30, month };
        assert_eq!(space.month_of_allocated().map(|cost| cost.nanos), Some(22_460_937));
        assert_eq!(StoreSpace { month: None, ..space.clone() }.month_of_allocated(), None);
        assert_eq!(StoreSpace { size_bytes: 0, allocated_bytes: 0, ..space }.month_of_allocated().unwrap().nanos, 0);
    }
}
