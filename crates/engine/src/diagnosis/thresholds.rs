//! Thresholds of the diagnosis that an administrator chose: the vdev properties `checksum_n`, `checksum_t`, `io_n`, `io_t`,
//! `slow_io_n` and `slow_io_t`; and whether slow operations are events: `slow_io_events`.
//!
//! They are in the ZAPs of the vdevs. A leaf without a value has that of the vdevs above it, up to the root.
//!
//! Source: OpenZFS `man/man7/vdevprops.7`, `module/zfs/zfs_fm.c` (`vdev_prop_get_inherited`).

use super::{ErrorKind, Threshold};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use weir_dmu::{ObjectError, ObjectSet, zap};
use weir_format::NvList;
use weir_machine::Request;
use weir_pool::vdev_properties::zap_in;

/// Maximum depth of a vdev tree.
const MAX_DEPTH: usize = 8;

/// The properties, and the kind of errors and the part of the threshold that each is about.
const PROPERTIES: [(&str, ErrorKind, bool); 6] = [
    ("checksum_n", ErrorKind::Checksum, true),
    ("checksum_t", ErrorKind::Checksum, false),
    ("io_n", ErrorKind::Io, true),
    ("io_t", ErrorKind::Io, false),
    ("slow_io_n", ErrorKind::Slow, true),
    ("slow_io_t", ErrorKind::Slow, false),
];

/// Thresholds of a vdev by the kind of errors.
type OfVdev = BTreeMap<ErrorKind, Threshold>;

/// Reads the thresholds of all leaves that have others than the default.
///
/// # Errors
/// Errors of reading the MOS.
pub(crate) async fn read(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    root: &NvList,
) -> Result<BTreeMap<(u64, ErrorKind), Threshold>, ObjectError> {
    let mut out = BTreeMap::new();
    let mut next = vec![(root.clone(), OfVdev::new(), 0)];
    while let Some((vdev, above, depth)) = next.pop() {
        let own = of_vdev(rq, mos, &vdev, above).await?;
        let children = vdev.get_list_array("children").unwrap_or_default();
        if children.is_empty() {
            let guid = vdev.get_u64("guid").unwrap_or(0);
            let is_complete = |(kind, threshold): &(ErrorKind, Threshold)| {
                *kind != ErrorKind::Slow || threshold.n > 0 && threshold.t > Duration::ZERO
            };
            out.extend(own.into_iter().filter(is_complete).map(|(kind, threshold)| ((guid, kind), threshold)));
        } else if depth < MAX_DEPTH {
            next.extend(children.iter().map(|child| (child.clone(), own.clone(), depth + 1)));
        }
    }
    debug_assert!(out.iter().all(|((_, kind), threshold)| *threshold != kind.threshold()));
    Ok(out)
}

/// The leaves whose slow operations are no events (`slow_io_events=off`), a property that leaves do not inherit.
///
/// # Errors
/// Errors of reading the MOS.
pub(crate) async fn without_slow_events(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    root: &NvList,
) -> Result<BTreeSet<u64>, ObjectError> {
    let mut out = BTreeSet::new();
    let mut next = vec![(root.clone(), 0)];
    while let Some((vdev, depth)) = next.pop() {
        let children = vdev.get_list_array("children").unwrap_or_default();
        if children.is_empty() {
            let Some(zap) = zap_in(&vdev) else { continue };
            if zap::lookup_word(rq, mos, zap, "slow_io_events").await? == Some(0) {
                out.extend(vdev.get_u64("guid"));
            }
        } else if depth < MAX_DEPTH {
            next.extend(children.iter().map(|child| (child.clone(), depth + 1)));
        }
    }
    Ok(out)
}

/// The thresholds of one vdev: its own values, else those above it.
async fn of_vdev(rq: &Request, mos: &Arc<ObjectSet>, vdev: &NvList, above: OfVdev) -> Result<OfVdev, ObjectError> {
    let mut out = above;
    let Some(zap) = zap_in(vdev) else { return Ok(out) };
    for (name, kind, is_number) in PROPERTIES {
        // The greatest number stands for none.
        let value = zap::lookup_word(rq, mos, zap, name).await?.filter(|value| *value != u64::MAX);
        let Some(value) = value else { continue };
        let threshold = out.entry(kind).or_insert(kind.threshold());
        match is_number {
            true => threshold.n = value,
            false => threshold.t = Duration::from_secs(value),
        }
    }
    out.retain(|kind, threshold| *threshold != kind.threshold());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_properties_are_those_that_vdevs_have() {
        assert_eq!(PROPERTIES.map(|(name, ..)| name), weir_pool::vdev_properties::THRESHOLDS);
    }
}
