//! Thresholds of the diagnosis that an administrator chose: the vdev properties `checksum_n`, `checksum_t`, `io_n` and `io_t`.
//!
//! They are in the ZAPs of the vdevs. A leaf without a value has that of the vdevs above it, up to the root.
//!
//! Source: OpenZFS `man/man7/vdevprops.7`, `module/zfs/zfs_fm.c` (`vdev_prop_get_inherited`).

use super::{ErrorKind, Threshold};
use crate::config::visit;
use crate::{DiagnosisThresholds, TxgSync};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir_dmu::zap::{self, Key};
use weir_dmu::{ObjectError, ObjectSet};
use weir_format::{NvList, ObjectId};
use weir_machine::Request;
use weir_pool::error::PoolError;

/// ZAPs of a vdev, the one of the leaf first.
const ZAPS: [&str; 3] = ["com.delphix:vdev_zap_leaf", "com.delphix:vdev_zap_top", "com.klarasystems:vdev_zap_root"];
/// Maximum depth of a vdev tree.
const MAX_DEPTH: usize = 8;

/// The properties, and the kind of errors and the part of the threshold that each is about.
const PROPERTIES: [(&str, ErrorKind, bool); 4] = [
    ("checksum_n", ErrorKind::Checksum, true),
    ("checksum_t", ErrorKind::Checksum, false),
    ("io_n", ErrorKind::Io, true),
    ("io_t", ErrorKind::Io, false),
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
            out.extend(own.into_iter().map(|(kind, threshold)| ((guid, kind), threshold)));
        } else if depth < MAX_DEPTH {
            next.extend(children.iter().map(|child| (child.clone(), own.clone(), depth + 1)));
        }
    }
    debug_assert!(out.values().all(|threshold| *threshold != Threshold::default()));
    Ok(out)
}

/// The thresholds of one vdev: its own values, else those above it.
async fn of_vdev(rq: &Request, mos: &Arc<ObjectSet>, vdev: &NvList, above: OfVdev) -> Result<OfVdev, ObjectError> {
    let mut out = above;
    let zap = ZAPS.into_iter().find_map(|name| vdev.get_u64(name).filter(|id| *id != 0));
    let Some(zap) = zap.map(ObjectId) else { return Ok(out) };
    for (name, kind, is_number) in PROPERTIES {
        // The greatest number stands for none.
        let value = zap::lookup_word(rq, mos, zap, name).await?.filter(|value| *value != u64::MAX);
        let Some(value) = value else { continue };
        let threshold = out.entry(kind).or_default();
        match is_number {
            true => threshold.n = value,
            false => threshold.t = Duration::from_secs(value),
        }
    }
    out.retain(|_, threshold| *threshold != Threshold::default());
    Ok(out)
}

impl DiagnosisThresholds<'_> {
    /// Sets the property `name` of a vdev, or removes its value.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such property or vdev, or if the vdev has no ZAP.
    pub async fn set(&self, vdev: u64, name: &str, value: Option<u64>) -> Result<(), PoolError> {
        let known = PROPERTIES.iter().map(|(known, ..)| *known).find(|known| *known == name);
        let name = known.ok_or_else(|| refused(format!("invalid property '{name}'")))?;
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let zap = zap_of(&syncing.core.config.root, vdev)?;
                    let (rq, tx) = (syncing.change.rq, syncing.change.tx);
                    match value {
                        Some(value) => zap::put_word(rq, &syncing.change.mos, tx, zap, name, value).await?,
                        None => drop(zap::remove(rq, &syncing.change.mos, tx, zap, &Key::from(name)).await?),
                    }
                    syncing.apply_thresholds().await
                })
            })
            .await
    }

    /// The properties of a vdev with its own values.
    ///
    /// # Errors
    /// As [`DiagnosisThresholds::set`].
    pub async fn of(&self, vdev: u64) -> Result<Vec<(&'static str, Option<u64>)>, PoolError> {
        let rq = &Request::internal("get");
        let synced = self.engine.synced().state(rq).await?;
        own(rq, &synced.mos, &self.engine.shown().config.root, vdev).await
    }
}

/// Names of the properties.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROPERTIES.iter().map(|(name, ..)| *name)
}

/// The properties of a vdev with its own values; `root` is the configuration of the root vdev.
///
/// # Errors
/// [`PoolError::Refused`] if there is no such vdev, or if it has no ZAP; errors of reading the MOS.
pub async fn own(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    root: &NvList,
    vdev: u64,
) -> Result<Vec<(&'static str, Option<u64>)>, PoolError> {
    let zap = zap_of(root, vdev)?;
    let mut out = Vec::new();
    for name in names() {
        let value = zap::lookup_word(rq, mos, zap, name).await?;
        out.push((name, value.filter(|value| *value != u64::MAX)));
    }
    Ok(out)
}

fn refused(what: String) -> PoolError {
    PoolError::Refused { what }
}

/// The ZAP of a vdev.
fn zap_of(root: &NvList, vdev: u64) -> Result<ObjectId, PoolError> {
    let mut found = None;
    visit(&mut root.clone(), &mut |list| {
        if list.get_u64("guid") == Some(vdev) {
            found = Some(ZAPS.into_iter().find_map(|name| list.get_u64(name).filter(|id| *id != 0)));
        }
    });
    let zap = found.ok_or_else(|| refused("no such device in pool".into()))?;
    zap.map(ObjectId).ok_or_else(|| refused("the vdev has no properties: the pool keeps no ZAPs of its vdevs".into()))
}
