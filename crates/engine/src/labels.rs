//! Writing of labels and uberblocks, the step that commits a transaction group.
//!
//! ```text
//!   all blocks of the txg ─► flush ─► labels 0 and 2 ─► flush ─► uberblocks ─► flush ─► labels 1 and 3 ─► flush
//! ```
//!
//! Labels are written only when the configuration changed. Power may fail at any point. Before an uberblock is written,
//! the old one is valid and labels 1 and 3 match it; afterwards, labels 0 and 2 match the new one. An uberblock is in
//! slot `txg mod slots` of the ring in all four labels of a leaf, so that the uberblocks of previous txgs remain.
//!
//! *Failure.* A leaf that cannot be written is only reported if another one was written: a txg is committed when one
//! uberblock is written and flushed. The intent logs write and flush at the same time, and a device reports a lost write
//! to one flush only. Flushes of labels therefore pass through the vdev tree, which sends one at a time and keeps its
//! error.
//!
//! Source: OpenZFS `module/zfs/vdev_label.c` (theory at its top, `vdev_config_sync`, `vdev_label_init`).

use super::config::{Config, aux_label_list};
use futures_util::future::join_all;
use std::path::PathBuf;
use std::sync::Arc;
use weir_blocks::Tree;
use weir_codec::checksum::Verifier;
use weir_codec::checksum::embedded::seal_embedded;
use weir_format::{ChecksumKind, Endian, NvList, Txg, Uberblock, label};
use weir_machine::accounts::{Content, Redundancy, Shares};
use weir_machine::{Buf, Disk, DiskError, Op};
use weir_pool::error::PoolError;

/// A device whose labels the pool writes.
#[derive(Clone)]
pub struct Leaf {
    /// GUID of the leaf vdev.
    pub guid: u64,
    /// Index of its top-level vdev.
    pub top: usize,
    /// log2 of the sector size of its top-level vdev, which sizes the slots of the ring.
    pub ashift: u64,
    /// Whether its top-level vdev is a log; log devices get an uberblock only if all leaves do.
    pub is_log: bool,
    /// The device's path.
    pub path: PathBuf,
    /// The device.
    pub disk: Arc<dyn Disk>,
}

impl std::fmt::Debug for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leaf({} {})", self.guid, self.path.display())
    }
}

/// Called with the number of bytes of each completed write.
type Written<'a> = &'a (dyn Fn(u64) + Sync);

/// Records label writes of a txg in the counters of the leaf `guid` and in the pool's accounts.
fn account(tree: &Tree, guid: u64, txg: Txg) -> impl Fn(u64) {
    move |bytes| {
        if let Ok(leaf) = tree.leaf(guid) {
            leaf.count_label(bytes);
        }
        let cost = tree.accounts().write_cost(Content::Label, txg.0, 0, Shares::new());
        cost.wrote(Redundancy::First, bytes, 0);
    }
}

impl Leaf {
    fn error(&self, source: DiskError) -> PoolError {
        PoolError::Disk { path: self.path.clone(), source }
    }

    /// Writes `area` with its embedded checksum at byte `at` of label `index`; `written` is called with its length.
    async fn write(&self, index: usize, at: usize, mut area: Vec<u8>, written: Written<'_>) -> Result<(), DiskError> {
        let size = self.disk.geometry().size_bytes;
        let too_small = DiskError::Refused { op: weir_machine::Op::Write, why: "too small for four labels" };
        let offset = label::label_offset(index, size).ok_or(too_small.clone())? + at as u64;
        let verifier = Verifier::Label { offset_bytes: offset };
        seal_embedded(ChecksumKind::Label, Endian::Little, verifier, &mut area).map_err(|_| too_small)?;
        self.disk.write(offset, Buf::copy_from(&area)).await?;
        written(area.len() as u64);
        Ok(())
    }

    /// Writes the configuration into the labels of `indices`.
    async fn write_config(&self, indices: [usize; 2], packed: &[u8], written: Written<'_>) -> Result<(), DiskError> {
        let mut area = packed.to_vec();
        area.resize(label::CONFIG.len(), 0);
        for index in indices {
            self.write(index, label::CONFIG.start, area.clone(), written).await?;
        }
        Ok(())
    }

    async fn write_uberblock(&self, tree: &Tree, uberblock: &Uberblock) -> Result<(), DiskError> {
        // The last slot belongs to the heartbeats, if there are any.
        let reserved = usize::from(uberblock.mmp.is_some_and(|mmp| mmp.delay_ns != 0));
        let slots = label::uberblock_slots(self.ashift) - reserved;
        let slot = (uberblock.txg.0 % slots as u64) as usize;
        let Some(range) = label::uberblock_range(slot, self.ashift) else { return Ok(()) };
        let mut area = uberblock.encode();
        area.resize(range.len(), 0);
        let written = account(tree, self.guid, uberblock.txg);
        let writes = (0..label::LABELS).map(|index| self.write(index, range.start, area.clone(), &written));
        for written in join_all(writes).await {
            written?;
        }
        flush(tree, self.guid).await
    }
}

/// Writes an uberblock into the slot of label `index` that is reserved for heartbeats, and flushes it if `is_flushed`.
///
/// # Errors
/// Errors of the device; it is not in service.
pub(crate) async fn write_heartbeat(
    tree: &Tree,
    leaf: &Leaf,
    index: usize,
    uberblock: &Uberblock,
    is_flushed: bool,
) -> Result<(), DiskError> {
    let absent = DiskError::Refused { op: Op::Write, why: "the device is not in service" };
    let handle = tree.leaf(leaf.guid).ok().filter(|handle| handle.is_in_service());
    let disk = handle.and_then(|handle| handle.disk()).ok_or(absent)?;
    let range = label::heartbeat_range(leaf.ashift);
    let mut area = uberblock.encode();
    area.resize(range.len(), 0);
    let written = account(tree, leaf.guid, uberblock.txg);
    Leaf { disk, ..leaf.clone() }.write(index, range.start, area, &written).await?;
    if is_flushed { flush(tree, leaf.guid).await } else { Ok(()) }
}

/// Flushes the labels of the leaf `guid`.
async fn flush(tree: &Tree, guid: u64) -> Result<(), DiskError> {
    let absent = DiskError::Refused { op: Op::Flush, why: "the device is not a part of the pool" };
    tree.leaf(guid).map_err(|_| absent)?.flush_labels().await
}

/// Encodes a configuration, which must fit into a label.
fn packed(list: &NvList) -> Result<Vec<u8>, PoolError> {
    let bytes = list.encode_xdr();
    if bytes.len() + label::SelfChecksum::SIZE > label::CONFIG.len() {
        return Err(PoolError::Refused { what: "the vdevs' configuration is larger than a label".into() });
    }
    Ok(bytes)
}

/// Initializes the labels of a device of a new pool: configuration `list`, no boot environment, no uberblock.
///
/// Also clears the blank area at the start of each label, because a stale partition table would still describe the
/// former partitions.
pub async fn initialize(leaf: &Leaf, list: &NvList) -> Result<(), PoolError> {
    let packed = packed(list)?;
    let blank = async {
        for index in 0..label::LABELS {
            if let Some(at) = label::label_offset(index, leaf.disk.geometry().size_bytes) {
                leaf.disk.write(at, Buf::zeroed(label::BOOT_ENV.start)).await?;
            }
            leaf.write(index, label::BOOT_ENV.start, vec![0; label::BOOT_ENV.len()], &|_| ()).await?;
            leaf.write(index, label::RING.start, vec![0; label::RING.len()], &|_| ()).await?;
        }
        leaf.write_config([0, 2], &packed, &|_| ()).await?;
        leaf.write_config([1, 3], &packed, &|_| ()).await?;
        leaf.disk.flush().await
    };
    blank.await.map_err(|e| leaf.error(e))
}

/// Initializes the labels of a hot spare or cache device, which name no pool.
pub async fn initialize_aux(leaf: &Leaf, version: u64, vdev: &NvList, state: u64) -> Result<(), PoolError> {
    initialize(leaf, &aux_label_list(version, vdev, state)).await
}

/// Wipes the labels of a device.
pub async fn clear(disk: &Arc<dyn Disk>) -> Result<(), DiskError> {
    let size = disk.geometry().size_bytes;
    for index in 0..label::LABELS {
        if let Some(at) = label::label_offset(index, size) {
            disk.write(at, Buf::zeroed(label::LABEL_BYTES as usize)).await?;
        }
    }
    disk.flush().await
}

/// Commits a txg: writes its uberblock, and the configuration if it changed.
///
/// Precondition: all blocks of the txg are written and flushed. Returns the errors of leaves that could not be written.
///
/// # Errors
/// The txg is not committed if all leaves of a top-level vdev fail to write their labels, or all leaves the uberblock.
pub async fn commit(
    tree: &Tree,
    leaves: &[Leaf],
    config: Option<&Config>,
    uberblock: &Uberblock,
    txg: Txg,
) -> Result<Vec<PoolError>, PoolError> {
    // Through the tree's disks, so that a device that hangs can be taken out of service.
    let watched = |leaf: &Leaf| {
        let handle = tree.leaf(leaf.guid).ok().filter(|handle| handle.is_in_service())?;
        Some(Leaf { disk: handle.disk()?, ..leaf.clone() })
    };
    let leaves = &leaves.iter().filter_map(watched).collect::<Vec<_>>();
    let mut faults = Vec::new();
    if let Some(config) = config {
        faults.extend(write_configs(tree, leaves, config, [0, 2], txg).await?);
    }
    // Older uberblocks of an expanding vdev do not find their blocks any more.
    let all = config.is_some() || uberblock.reflow != Default::default();
    let chosen = chosen(leaves, all, txg);
    let answers = join_all(chosen.iter().map(|leaf| leaf.write_uberblock(tree, uberblock))).await;
    let written = answers.iter().filter(|a| a.is_ok()).count();
    let bad: Vec<PoolError> =
        chosen.iter().zip(answers).filter_map(|(leaf, a)| a.err().map(|e| leaf.error(e))).collect();
    if written == 0 {
        let none = PoolError::Refused { what: "the pool has no device to write an uberblock to".into() };
        return Err(bad.into_iter().next().unwrap_or(none));
    }
    faults.extend(bad);
    if let Some(config) = config {
        faults.extend(write_configs(tree, leaves, config, [1, 3], txg).await?);
    }
    Ok(faults)
}

/// Top-level vdevs whose leaves get the uberblock if the configuration did not change (`SPA_SYNC_MIN_VDEVS`).
const MIN_TOPS: usize = 3;

/// The leaves that get the uberblock: all if the configuration changed or a vdev is being expanded, else those of three top-level vdevs.
fn chosen(leaves: &[Leaf], all: bool, txg: Txg) -> Vec<&Leaf> {
    let mut tops: Vec<usize> = leaves.iter().filter(|l| !l.is_log).map(|l| l.top).collect();
    tops.dedup();
    if all || tops.is_empty() {
        return leaves.iter().collect();
    }
    let first = (txg.0 % tops.len() as u64) as usize;
    let taken: Vec<usize> = tops.iter().cycle().skip(first).take(MIN_TOPS.min(tops.len())).copied().collect();
    leaves.iter().filter(|l| taken.contains(&l.top)).collect()
}

/// Writes two labels of each leaf and flushes; returns the leaves' errors if each top-level vdev has a good leaf.
async fn write_configs(
    tree: &Tree,
    leaves: &[Leaf],
    config: &Config,
    indices: [usize; 2],
    txg: Txg,
) -> Result<Vec<PoolError>, PoolError> {
    let one = |leaf: &Leaf| {
        let leaf = leaf.clone();
        let packed = config.tops().get(leaf.top).map(|top| {
            let own = find(top, leaf.guid).unwrap_or(top);
            packed(&config.label_list(top, own, txg))
        });
        async move {
            let Some(packed) = packed else { return Ok(()) };
            let packed = packed?;
            leaf.write_config(indices, &packed, &account(tree, leaf.guid, txg)).await.map_err(|e| leaf.error(e))?;
            flush(tree, leaf.guid).await.map_err(|e| leaf.error(e))
        }
    };
    let answers = join_all(leaves.iter().map(one)).await;
    let mut faults = Vec::new();
    let good = |top: usize| leaves.iter().zip(&answers).any(|(l, a)| l.top == top && a.is_ok());
    let lost = leaves.iter().map(|l| l.top).find(|top| !good(*top));
    for answer in answers {
        faults.extend(answer.err());
    }
    match lost.and_then(|_| faults.pop()) {
        Some(error) => Err(error),
        None => Ok(faults),
    }
}

/// The vdev with that GUID at or below `vdev`.
pub(crate) fn find(vdev: &NvList, guid: u64) -> Option<&NvList> {
    if vdev.get_u64("guid") == Some(guid) {
        return Some(vdev);
    }
    vdev.get_list_array("children").unwrap_or_default().iter().find_map(|c| find(c, guid))
}
