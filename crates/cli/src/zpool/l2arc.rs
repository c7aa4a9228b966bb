//! Warnings about cache devices that are too large for the ARC.

use crate::call::{Call, errln};
use weir_cache::l2arc::{CacheDeviceStats, MEMORY_PERCENT};
use weir_engine::Engine;
use weir_pool::Pool;

/// A device that is larger than the ARC by this factor may need more memory for its index than the index may have.
const MAX_FACTOR: u64 = 10;

/// The text of a warning; `None` for a device that is not too large.
fn warning(device_bytes: u64, arc_bytes: u64) -> Option<String> {
    let is_too_large = device_bytes > arc_bytes.saturating_mul(MAX_FACTOR);
    is_too_large.then(|| {
        let factor = device_bytes / arc_bytes.max(1);
        format!("{factor} times the size of the ARC: its index may take {MEMORY_PERCENT}% of the ARC and not cover it")
    })
}

/// The note beside a cache device in `zpool status`; empty for none.
pub fn note(pool: &Pool, stats: Option<&CacheDeviceStats>) -> String {
    let arc_bytes = pool.cache.stats().sizes.budget_bytes;
    let text = stats.and_then(|stats| warning(stats.size_bytes, arc_bytes));
    text.map_or_else(String::new, |text| format!("({text})"))
}

/// Warns of the cache devices of an open pool that are too large and were not in service `before`.
pub fn warn(call: &Call, engine: &Engine, before: &[CacheDeviceStats]) {
    let arc_bytes = engine.cache.stats().sizes.budget_bytes;
    for device in engine.cache.l2arc().stats().devices {
        if before.iter().any(|old| old.guid == device.guid) {
            continue;
        }
        if let Some(text) = warning(device.size_bytes, arc_bytes) {
            errln!(call, "warning: the cache device has {text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_too_large_beyond_ten_times_the_arc() {
        assert_eq!(warning(10 << 30, 1 << 30), None);
        assert!(warning(30 << 30, 1 << 30).unwrap().starts_with("30 times the size of the ARC"));
    }
}
