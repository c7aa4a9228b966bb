//! Rules on the caches of reads.

use super::{Cause, Finding, View, figures, share, text};

/// Share of the misses that were of blocks evicted not long ago: a greater ARC would have had these.
const GHOST_SHARE: f64 = 0.2;
/// Misses below which the share says nothing.
const ENOUGH_MISSES: u64 = 1000;
/// Share of its maximum size that the ARC uses: below it, memory was not the reason of the evictions.
const FULL_SHARE: f64 = 0.9;

/// Blocks are evicted from the ARC and read again.
pub(super) fn small_arc(view: &View<'_>) -> Vec<Finding> {
    let arc = &view.interval.arc;
    let ghost_hits = arc.mru_ghost_hits + arc.mfu_ghost_hits;
    let part = share(ghost_hits, arc.misses);
    let filled = share(arc.size_bytes(), arc.max_bytes);
    if arc.misses < ENOUGH_MISSES || part < GHOST_SHARE || filled < FULL_SHARE {
        return Vec::new();
    }
    let sentence = format!(
        "The ARC is small for this load: {ghost_hits} of {} misses in {} were of blocks that it had evicted not long before, {}; it \
         holds {} of at most {}, and {} of the reads of blocks were hits.",
        arc.misses,
        view.time(),
        text::percent(part),
        text::bytes(arc.size_bytes()),
        text::bytes(arc.max_bytes),
        text::percent(share(arc.hits(), arc.hits() + arc.misses)),
    );
    vec![Finding {
        cause: Cause::SmallArc,
        subject: view.interval.pool.clone(),
        weight: part * share(arc.misses, arc.hits() + arc.misses),
        figures: figures([
            ("ghost_hits", ghost_hits as f64),
            ("misses", arc.misses as f64),
            ("hits", arc.hits() as f64),
            ("size_bytes", arc.size_bytes() as f64),
            ("max_bytes", arc.max_bytes as f64),
        ]),
        sentence,
        advice: "Give the process more memory (weir daemon status shows its limits); weir arcstat shows the ghost hits by list.".into(),
    }]
}

/// The dedup tables do not fit into the ARC, so writes read them from devices.
pub(super) fn dedup_table(view: &View<'_>) -> Vec<Finding> {
    let table_bytes = view.facts.dedup_table_bytes;
    let max_bytes = view.interval.arc.max_bytes;
    let written = view.interval.all_operations().written_bytes;
    if written == 0 || table_bytes <= max_bytes {
        return Vec::new();
    }
    vec![Finding {
        cause: Cause::LargeDedupTable,
        subject: view.interval.pool.clone(),
        weight: 1.0 - share(max_bytes, table_bytes),
        figures: figures([("dedup_table_bytes", table_bytes as f64), ("arc_max_bytes", max_bytes as f64)]),
        sentence: format!(
            "The dedup tables are larger than the cache: {} in memory if all of them are cached, and the ARC has at most {}. Writes to \
             datasets with dedup read them from devices; clients wrote {} in {}.",
            text::bytes(table_bytes),
            text::bytes(max_bytes),
            text::bytes(written),
            view.time(),
        ),
        advice: "Set dedup=off where copies are rare (zpool list shows the ratio in DEDUP), add a dedup vdev of fast devices, or more \
                 memory."
            .into(),
    }]
}
