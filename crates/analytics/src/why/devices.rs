//! Rules on devices: one that is slower than its siblings, and scrubs.

use super::{Cause, Finding, View, figures, share, text};
use crate::sample::LeafTotals;

/// Operations of a device below which its mean time says nothing.
pub(super) const ENOUGH_OPERATIONS: u64 = 100;
/// Ratio of the mean time of a device to the median of its siblings. Devices of one kind differ by less than half; a failing disk
/// that repeats reads takes many times as long.
const SLOWER: f64 = 3.0;
/// Difference from the siblings that matters, in nanoseconds: below it, caches and merged operations decide.
const SLOWER_NS: f64 = 500_000.0;

fn mean_ns(leaf: &LeafTotals) -> f64 {
    leaf.timed_ns as f64 / leaf.timed_ops.max(1) as f64
}

/// Median of the means of the siblings of a device: the other devices of its top-level vdev; if it has none, those of its class.
fn siblings_ns(leaves: &[&LeafTotals], of: &LeafTotals) -> Option<(f64, usize)> {
    let others = |is_sibling: &dyn Fn(&LeafTotals) -> bool| -> Vec<f64> {
        let others = leaves.iter().filter(|leaf| leaf.guid != of.guid && is_sibling(leaf));
        others.map(|leaf| mean_ns(leaf)).collect()
    };
    let mut means = others(&|leaf| leaf.group == of.group);
    if means.is_empty() {
        means = others(&|leaf| leaf.class == of.class);
    }
    means.sort_by(f64::total_cmp);
    let middle = means.get(means.len() / 2)?;
    Some((*middle, means.len()))
}

/// Devices that take much longer than their siblings.
pub(super) fn slow(view: &View<'_>) -> Vec<Finding> {
    let is_counted = |leaf: &&LeafTotals| leaf.in_service && leaf.timed_ops >= ENOUGH_OPERATIONS;
    let leaves: Vec<&LeafTotals> = view.interval.leaves.iter().filter(is_counted).collect();
    let mut out = Vec::new();
    for leaf in &leaves {
        let mean = mean_ns(leaf);
        let Some((siblings, count)) = siblings_ns(&leaves, leaf) else { continue };
        if mean < SLOWER * siblings || mean - siblings < SLOWER_NS {
            continue;
        }
        let sentence = format!(
            "Device {} is slow: {} for each of {} operations in {}, {:.1} times the {} of its {count} {}. {} operations wait in its queue now.",
            leaf.name,
            text::time(mean),
            leaf.timed_ops,
            view.time(),
            mean / siblings.max(1.0),
            text::time(siblings),
            if count == 1 { "sibling" } else { "siblings (median)" },
            leaf.waiting,
        );
        out.push(Finding {
            cause: Cause::SlowDevice,
            subject: leaf.name.clone(),
            weight: 1.0 - siblings / mean,
            figures: figures([
                ("mean_ns", mean),
                ("siblings_mean_ns", siblings),
                ("operations", leaf.timed_ops as f64),
                ("waiting_operations", leaf.waiting as f64),
            ]),
            sentence,
            advice: format!(
                "Look at its errors (zpool status -s, smartctl -a), its cable and its slot; if it stays slow: zpool replace {} {} NEW.",
                view.interval.pool, leaf.name
            ),
        });
    }
    out
}

/// Scrubs and resilvers in progress, with their share of the devices' operations.
pub(super) fn scan(view: &View<'_>) -> Vec<Finding> {
    let kinds = [("scrub", Cause::Scrub, "A scrub"), ("resilver", Cause::Resilver, "A resilver")];
    let is_running = |name: &str| view.facts.activities.iter().any(|activity| activity == name);
    let sum = |of: fn(&LeafTotals) -> u64| view.interval.leaves.iter().map(of).sum::<u64>();
    let scrub_ops = sum(|leaf| leaf.scrub_ops);
    let all_ops = sum(|leaf| leaf.queued_ops);
    let part = share(scrub_ops, all_ops);
    let found = |(_, cause, name): (&str, Cause, &str)| Finding {
        cause,
        subject: view.interval.pool.clone(),
        weight: part,
        figures: figures([
            ("scan_operations", scrub_ops as f64),
            ("device_operations", all_ops as f64),
            ("scan_percent", 100.0 * part),
        ]),
        sentence: format!(
            "{name} runs: {scrub_ops} of {all_ops} operations of the devices in {} were for it, {}.",
            view.time(),
            text::percent(part)
        ),
        advice: match cause {
            Cause::Scrub => {
                format!("zpool scrub -p {} pauses it, zpool status shows the time left.", view.interval.pool)
            }
            _ => "Redundancy is reduced until it ends: let it run; zpool status shows the time left.".into(),
        },
    };
    kinds.into_iter().filter(|(name, ..)| is_running(name)).map(found).collect()
}
