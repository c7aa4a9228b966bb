//! Warnings about cache devices that are too large for the ARC.

use crate::call::{Call, errln};
use weir_admin::{VdevStatus, oversized};
use weir_cache::l2arc::{CacheDeviceStats, MEMORY_PERCENT};
use weir_engine::Engine;

/// The text of a warning about a device that is larger than the ARC by this factor.
fn warning(factor: u64) -> String {
    format!("{factor} times the size of the ARC: its index may take {MEMORY_PERCENT}% of the ARC and not cover it")
}

/// The note beside a cache device in `zpool status`; empty for none.
pub fn note(cache: &VdevStatus) -> String {
    cache.oversized_by.map_or_else(String::new, |factor| format!("({})", warning(factor)))
}

/// Warns of the cache devices of an open pool that are too large and were not in service `before`.
pub fn warn(call: &Call, engine: &Engine, before: &[CacheDeviceStats]) {
    let arc_bytes = engine.cache.stats().sizes.budget_bytes;
    for device in engine.cache.l2arc().stats().devices {
        if before.iter().any(|old| old.guid == device.guid) {
            continue;
        }
        if let Some(factor) = oversized(device.size_bytes, arc_bytes) {
            errln!(call, "warning: the cache device has {}", warning(factor));
        }
    }
}
