//! Reads the four labels of a device, and the uberblock rings in them.
//!
//! Each part of a label has its own checksum, salted with its position: the configuration and every uberblock slot. One
//! good label is enough. A ring without a readable configuration is read with every possible slot size.

use std::sync::Arc;
use thiserror::Error;
use weir_codec::CodecError;
use weir_codec::checksum::{Verifier, verify_embedded};
use weir_format::{ChecksumKind, DecodeError, NvList, Txg, Uberblock, label};
use weir_machine::{Disk, DiskError};

/// Reason why a label is not used.
#[derive(Clone, Debug, Error)]
pub enum LabelFault {
    /// The device is too small.
    #[error("the device is too small for four labels")]
    TooSmall,
    /// The device failed.
    #[error("{0}")]
    Device(DiskError),
    /// There is no label, or it is damaged.
    #[error("{0}")]
    Checksum(CodecError),
    /// The label belongs to a txg that was not committed.
    #[error("it was written in a txg that was not committed")]
    Uncommitted,
    /// The checksum is right, but the contents are malformed.
    #[error("{0}")]
    Decode(DecodeError),
}

/// A valid uberblock, and its position.
#[derive(Clone, Debug)]
pub struct RingSlot {
    /// Label, 0 to 3.
    pub label: usize,
    /// Slot in the ring.
    pub slot: usize,
    /// The uberblock.
    pub uberblock: Uberblock,
}

/// Labels of a device.
#[derive(Clone, Debug)]
pub struct Labels {
    /// Configuration of each label.
    pub configs: [Result<NvList, LabelFault>; label::LABELS],
    /// All valid uberblocks, in the order of labels and slots.
    pub ring: Vec<RingSlot>,
}

impl Labels {
    /// Returns the newest configuration.
    pub fn best(&self) -> Option<&NvList> {
        let good = self.configs.iter().filter_map(|c| c.as_ref().ok());
        // Of equal ones the first, so that the order of labels decides.
        good.rev().max_by_key(|c| c.get_u64("txg"))
    }

    /// The newest configuration of another pool than that of [`Labels::best`]: a change of the GUID was interrupted.
    pub fn other_pool(&self) -> Option<&NvList> {
        let pool = self.best()?.get_u64("pool_guid");
        let others = self.configs.iter().filter_map(|c| c.as_ref().ok()).filter(|c| c.get_u64("pool_guid") != pool);
        others.max_by_key(|c| c.get_u64("txg"))
    }

    /// Discards the configurations of the pool `guid`.
    pub fn discard_pool(&mut self, guid: u64) {
        for config in &mut self.configs {
            if config.as_ref().is_ok_and(|list| list.get_u64("pool_guid") == Some(guid)) {
                *config = Err(LabelFault::Uncommitted);
            }
        }
    }

    /// Discards the configurations of the pool `guid` that are of a txg after `last`, if there is one that is not.
    pub fn discard_after(&mut self, guid: u64, last: Txg) {
        let txg_of = |config: &Result<NvList, LabelFault>| {
            let list = config.as_ref().ok().filter(|list| list.get_u64("pool_guid") == Some(guid))?;
            list.get_u64("txg").map(Txg)
        };
        if !self.configs.iter().filter_map(txg_of).any(|txg| txg <= last) {
            return;
        }
        for config in &mut self.configs {
            if txg_of(config).is_some_and(|txg| txg > last) {
                *config = Err(LabelFault::Uncommitted);
            }
        }
    }

    /// Txg of the newest configuration; 0 for devices that have none (spares, cache devices).
    pub fn txg(&self) -> Txg {
        Txg(self.best().and_then(|c| c.get_u64("txg")).unwrap_or(0))
    }

    /// Txg of the newest configuration that is not of a txg after `last`; `None` if there is none.
    pub fn txg_until(&self, last: Txg) -> Option<Txg> {
        let good = self.configs.iter().filter_map(|c| c.as_ref().ok()?.get_u64("txg"));
        good.filter(|txg| *txg <= last.0).max().map(Txg)
    }
}

/// Reads all labels of a device.
pub async fn read(disk: &Arc<dyn Disk>) -> Labels {
    let size = disk.geometry().size_bytes;
    let mut raw = Vec::with_capacity(label::LABELS);
    for index in 0..label::LABELS {
        raw.push(match label::label_offset(index, size) {
            None => Err(LabelFault::TooSmall),
            Some(at) => match disk.read(at, label::LABEL_BYTES as usize).await {
                Ok(buf) => Ok((at, buf)),
                Err(error) => Err(LabelFault::Device(error)),
            },
        });
    }
    let configs: [_; label::LABELS] = std::array::from_fn(|i| match raw.get(i) {
        Some(Ok((at, buf))) => config(*at, buf.as_ref()),
        Some(Err(fault)) => Err(fault.clone()),
        None => Err(LabelFault::TooSmall),
    });
    let ashift = configs.iter().filter_map(|c| c.as_ref().ok()).find_map(ashift_of);
    let mut ring = Vec::new();
    for (index, raw) in raw.iter().enumerate() {
        if let Ok((at, buf)) = raw {
            ring.extend(slots(index, *at, buf.as_ref(), ashift));
        }
    }
    Labels { configs, ring }
}

fn ashift_of(config: &NvList) -> Option<u64> {
    config.get_list("vdev_tree")?.get_u64("ashift")
}

/// The configuration of a label whether or not its checksum is right, for programs that examine damage; `None` if it cannot be
/// read or decoded.
pub async fn unverified_config(disk: &Arc<dyn Disk>, index: usize) -> Option<NvList> {
    debug_assert!(index < label::LABELS, "a device has {} labels", label::LABELS);
    let at = label::label_offset(index, disk.geometry().size_bytes)?;
    let buf = disk.read(at, label::LABEL_BYTES as usize).await.ok()?;
    label::decode_config(buf.as_ref().get(label::CONFIG)?).ok()
}

fn config(at: u64, bytes: &[u8]) -> Result<NvList, LabelFault> {
    let area = bytes.get(label::CONFIG).ok_or(LabelFault::TooSmall)?;
    let verifier = Verifier::Label { offset_bytes: at + label::CONFIG.start as u64 };
    verify_embedded(ChecksumKind::Label, verifier, area).map_err(LabelFault::Checksum)?;
    label::decode_config(area).map_err(LabelFault::Decode)
}

/// Valid uberblocks of one label.
fn slots(index: usize, at: u64, bytes: &[u8], ashift: Option<u64>) -> Vec<RingSlot> {
    let shifts = match ashift {
        Some(shift) => shift..=shift,
        None => 10..=13,
    };
    let mut out = Vec::new();
    for shift in shifts {
        for slot in 0..label::uberblock_slots(shift) {
            let Some(range) = label::uberblock_range(slot, shift) else { continue };
            let Some(area) = bytes.get(range.clone()) else { continue };
            let Ok(uberblock) = Uberblock::decode(area) else { continue };
            let verifier = Verifier::Label { offset_bytes: at + range.start as u64 };
            if verify_embedded(ChecksumKind::Label, verifier, area).is_ok() {
                out.push(RingSlot { label: index, slot, uberblock });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_a_txg_that_was_not_committed_give_way_to_older_ones() {
        let of = |pool: u64, txg: u64| {
            let mut list = NvList::new();
            list.set("pool_guid", pool);
            list.set("txg", txg);
            Ok(list)
        };
        let txgs =
            |labels: &Labels| labels.configs.clone().map(|config| config.ok().and_then(|list| list.get_u64("txg")));
        let mut labels = Labels { configs: [of(1, 9), of(1, 7), of(1, 9), of(2, 9)], ring: Vec::new() };
        labels.discard_after(1, Txg(9));
        assert_eq!(txgs(&labels), [Some(9), Some(7), Some(9), Some(9)]);
        labels.discard_after(1, Txg(6));
        assert_eq!(txgs(&labels), [Some(9), Some(7), Some(9), Some(9)], "all are of later txgs");
        labels.discard_after(1, Txg(8));
        assert_eq!(txgs(&labels), [None, Some(7), None, Some(9)]);
    }

    #[test]
    fn a_label_of_a_group_that_never_was_does_not_count() {
        let of = |txg: u64| {
            let mut list = NvList::new();
            list.set("txg", txg);
            Ok(list)
        };
        let labels = Labels { configs: [of(9), of(7), of(9), Err(LabelFault::TooSmall)], ring: Vec::new() };
        assert_eq!(labels.txg(), Txg(9));
        assert_eq!(labels.txg_until(Txg(9)), Some(Txg(9)));
        assert_eq!(labels.txg_until(Txg(8)), Some(Txg(7)));
        assert_eq!(labels.txg_until(Txg(6)), None);
    }
}
