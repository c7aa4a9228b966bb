//! Rules on space: a nearly full pool, fragmented free space, and the freeing of destroyed blocks.

use super::{Cause, Finding, View, figures, share, text};

/// Share of the space that is allocated, from which the allocator has little choice and writes become slow.
const NEARLY_FULL: f64 = 0.9;
/// Fragmentation of free space in percent, as in `zpool list`: the mean free piece is then some ten KiB (OpenZFS
/// `zfs_frag_table`), below the size of a record of 128 KiB.
const FRAGMENTED_PERCENT: u64 = 50;
/// Snapshots destroyed within one diagnosis that are a burst: more than the daily, weekly and monthly one of a schedule.
const MANY_SNAPSHOTS: u64 = 10;
/// Share of the allocated space that waits to be freed, from which the freeing takes many txgs.
const FREEING_SHARE: f64 = 0.01;

/// The pool is nearly full.
pub(super) fn nearly_full(view: &View<'_>) -> Vec<Finding> {
    let space = view.interval.space;
    let part = share(space.allocated_bytes, space.size_bytes);
    if part < NEARLY_FULL {
        return Vec::new();
    }
    vec![Finding {
        cause: Cause::NearlyFull,
        subject: view.interval.pool.clone(),
        // From 0.5 at the threshold to 1 for a full pool: it gets worse with every percent.
        weight: 0.5 + 0.5 * (part - NEARLY_FULL) / (1.0 - NEARLY_FULL),
        figures: figures([
            ("allocated_bytes", space.allocated_bytes as f64),
            ("size_bytes", space.size_bytes as f64),
            ("allocated_percent", 100.0 * part),
        ]),
        sentence: format!(
            "The pool is nearly full: {} of {} are allocated, {}. The allocator searches longer for free space, and writes are in \
             smaller pieces.",
            text::bytes(space.allocated_bytes),
            text::bytes(space.size_bytes),
            text::percent(part),
        ),
        advice: format!("Add vdevs, or destroy what is not needed: zfs list -o space -r {}.", view.interval.pool),
    }]
}

/// Free space is in small pieces.
pub(super) fn fragmentation(view: &View<'_>) -> Vec<Finding> {
    let fragmented = view.facts.fragmentation_percent.filter(|percent| *percent >= FRAGMENTED_PERCENT);
    let found = |percent: u64| Finding {
        cause: Cause::Fragmentation,
        subject: view.interval.pool.clone(),
        weight: (percent as f64 / 200.0).min(1.0),
        figures: figures([("fragmentation_percent", percent as f64)]),
        sentence: format!(
            "Free space is fragmented: {percent} %, as zpool list shows in FRAG. Large blocks are written in several pieces, and \
             writes of one txg are scattered."
        ),
        advice: "Free space in large amounts: destroy old snapshots, or send the datasets to a new pool.".into(),
    };
    fragmented.map(found).into_iter().collect()
}

/// Blocks of destroyed snapshots and datasets are being freed.
pub(super) fn destruction(view: &View<'_>) -> Vec<Finding> {
    let txg = view.interval.txg;
    let part = share(txg.freeing_bytes, view.interval.space.allocated_bytes);
    if txg.snapshots_destroyed < MANY_SNAPSHOTS && part < FREEING_SHARE {
        return Vec::new();
    }
    vec![Finding {
        cause: Cause::Destruction,
        subject: view.interval.pool.clone(),
        weight: (0.2 + part).min(1.0),
        figures: figures([
            ("snapshots_destroyed", txg.snapshots_destroyed as f64),
            ("freeing_bytes", txg.freeing_bytes as f64),
        ]),
        sentence: format!(
            "Destroyed data is freed: {} snapshots were destroyed in {}, and {} wait to be freed now. Each txg frees a part of it, \
             and reads metadata for that.",
            txg.snapshots_destroyed,
            view.time(),
            text::bytes(txg.freeing_bytes),
        ),
        advice: format!(
            "zpool wait -t free {} waits for its end; spread destructions over the day.",
            view.interval.pool
        ),
    }]
}
