//! What the MOS records of a removal: the entry in the directory, the mapping and births objects, the entries in the vdev's ZAP
//! and configuration, the reference counts of features.
//!
//! Source: OpenZFS `include/sys/spa_impl.h` (`spa_removing_phys_t`), `module/zfs/vdev_removal.c` (`vdev_remove_initiate_sync`,
//! `svr_sync`), `module/zfs/vdev_indirect_mapping.c` (`vdev_indirect_mapping_alloc`), `module/zfs/vdev_indirect_births.c`.

use super::super::attach::parsed;
use super::super::syncing::TxgSync;
use super::refused;
use weir_blocks::Class;
use weir_dmu::live::NewObject;
use weir_dmu::zap;
use weir_dsl::sync_tasks::{DslSyncContext, features};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::indirect::{BirthEntry, MappingHeader};
use weir_format::{Endian, ObjectId, ObjectType};
use weir_machine::{Request, invariant};
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::indirect;
use weir_pool::mos::Mos;
use weir_pool::top_zap::COUNTS_ARE_PRECISE;

const DIRECTORY: ObjectId = ObjectId(names::DIRECTORY_OBJECT);
/// Arrays of 64-bit and 32-bit metadata (`DMU_OTN_UINT64_METADATA`, `DMU_OTN_UINT32_METADATA`).
pub(super) const UINT64_METADATA: ObjectType = ObjectType(0xc3);
const UINT32_METADATA: ObjectType = ObjectType(0xc2);
/// Block size of the mapping, the counts and the births, in bytes (`SPA_OLD_MAXBLOCKSIZE`).
const BLOCK_BYTES: u32 = 128 << 10;
/// Absent vdev.
const NONE: u64 = u64::MAX;

/// States of a removal (`dsl_scan_state_t`).
pub(super) const RUNNING: u64 = 1;
pub(super) const FINISHED: u64 = 2;
pub(super) const CANCELED: u64 = 3;

/// The record of the last removal. Times in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemovalRecord {
    pub state: u64,
    pub vdev: u64,
    /// The vdev whose removal was completed last, or `u64::MAX`.
    pub prev_indirect_vdev: u64,
    pub start_s: u64,
    pub end_s: u64,
    pub to_copy: u64,
    /// Bytes that were copied, or freed before.
    pub copied: u64,
}

impl RemovalRecord {
    /// The record in the MOS directory; missing words are those of a pool without removals.
    pub fn of(words: &[u64]) -> Self {
        let word = |i: usize, missing| words.get(i).copied().unwrap_or(missing);
        RemovalRecord {
            state: word(0, 0),
            vdev: word(1, NONE),
            prev_indirect_vdev: word(2, NONE),
            start_s: word(3, 0),
            end_s: word(4, 0),
            to_copy: word(5, 0),
            copied: word(6, 0),
        }
    }

    /// Bytes that have still to be copied or freed.
    pub fn left_bytes(&self) -> u64 {
        self.to_copy.saturating_sub(self.copied)
    }

    /// Counts bytes as copied. The numbers come from the pool, also from one that another program changed, so that they are
    /// bounded and not asserted.
    pub fn count(&mut self, bytes: u64) {
        self.copied = self.copied.saturating_add(bytes).min(self.to_copy.max(self.copied));
    }

    pub fn is_running(&self) -> bool {
        self.state == RUNNING
    }

    /// The record as of the syncing txg.
    pub async fn read(syncing: &TxgSync<'_>) -> Result<Self, PoolError> {
        let mos = Mos { set: syncing.engine.mos.clone() };
        Ok(Self::of(&mos.named_words(syncing.change.rq, names::REMOVING).await?.unwrap_or_default()))
    }

    pub async fn write(&self, change: &DslSyncContext<'_>) -> Result<(), PoolError> {
        let RemovalRecord { state, vdev, prev_indirect_vdev, start_s, end_s, to_copy, copied } = *self;
        let words = [state, vdev, prev_indirect_vdev, start_s, end_s, to_copy, copied];
        Ok(zap::put_words(change.rq, &change.mos, change.tx, DIRECTORY, names::REMOVING, &words).await?)
    }
}

/// A removal in progress, as the syncer knows it.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Index of the vdev.
    pub(super) vdev: u32,
    /// Allocation class of the copies.
    pub(super) class: Class,
    /// The mapping, its header, and the array of births with the number of its entries.
    pub(super) mapping: ObjectId,
    pub(super) header: MappingHeader,
    pub(super) births: ObjectId,
    pub(super) birth_count: u64,
}

impl Removal {
    /// The removal that a pool records as running; its mapping is passed to the blocks below `mos`.
    pub(crate) async fn read(rq: &Request, mos: &Mos, root: &VdevConfig) -> Result<Option<Self>, PoolError> {
        let Some(words) = mos.named_words(rq, names::REMOVING).await? else { return Ok(None) };
        let record = RemovalRecord::of(&words);
        if !record.is_running() {
            return Ok(None);
        }
        let is_it = |top: &&VdevConfig| top.id == record.vdev && top.is_concrete() && top.removing;
        let top = root.children.iter().find(is_it).filter(|top| top.indirect_object != 0 && top.indirect_births != 0);
        let top = top.ok_or_else(|| refused("the vdev that is being removed is not in the configuration"))?;
        let mapping = ObjectId(top.indirect_object);
        let births = ObjectId(top.indirect_births);
        let (header, entries) = indirect::mapping(rq, mos, mapping).await?;
        let object = mos.set.object(rq, births).await?;
        let bad = |source| PoolError::Decode { what: "births of a vdev that is being removed".into(), source };
        let birth_count = BirthEntry::decode_count(object.dnode.bonus(), object.dnode.endian).map_err(bad)?;
        let end = entries.last().map_or(0, |last| last.source_end_bytes());
        if end != header.max_offset_bytes || entries.len() as u64 != header.entries {
            return Err(refused("the mapping of the vdev that is being removed contradicts its header"));
        }
        let blocks = mos.set.cache().blocks();
        let vdev = top.id as u32;
        let begun = blocks.metaslabs().evacuations().begin(vdev, &entries, record.left_bytes());
        begun.map_err(|error| refused(error.to_string()))?;
        Ok(Some(Removal { vdev, class: top.class, mapping, header, births, birth_count }))
    }
}

/// Checks in syncing context what may have changed since the removal was requested.
pub(super) async fn check_can_begin(syncing: &mut TxgSync<'_>, top: &VdevConfig) -> Result<(), PoolError> {
    if !features::is_enabled(&mut syncing.change, Feature::DEVICE_REMOVAL).await? || top.top_zap == 0 {
        return Err(refused("operation not supported on this type of pool"));
    }
    if syncing.core.removal.is_some() {
        return Err(refused("Pool busy; removal may already be in progress"));
    }
    Ok(())
}

/// Begins a removal: nothing is allocated on the vdev any more.
pub(super) async fn begin(syncing: &mut TxgSync<'_>, top: &VdevConfig) -> Result<(), PoolError> {
    let vdev = top.id as u32;
    let blocks = syncing.engine.cache.blocks().clone();
    let change = &mut syncing.change;
    features::count_feature(change, Feature::DEVICE_REMOVAL, 1).await?;
    let has_counts = features::is_enabled(change, Feature::OBSOLETE_COUNTS).await?;
    let new = |kind: ObjectType| NewObject::new(kind, BLOCK_BYTES);
    let mut counts = None;
    if has_counts {
        let DslSyncContext { rq, mos, tx, .. } = &*change;
        zap::put_word(rq, mos, tx, ObjectId(top.top_zap), COUNTS_ARE_PRECISE, 1).await?;
        counts = Some(mos.changes().create(rq, tx, &new(UINT32_METADATA)).await?);
        // One for the entry in the ZAP, and one for the counts.
        features::count_feature(change, Feature::OBSOLETE_COUNTS, 2).await?;
    }
    let header = MappingHeader { max_offset_bytes: 0, mapped_bytes: 0, entries: 0, counts };
    let DslSyncContext { rq, mos, tx, .. } = &*change;
    let mapping = mos.changes().create(rq, tx, &new(UINT64_METADATA)).await?;
    let births = mos.changes().create(rq, tx, &new(UINT64_METADATA)).await?;
    let removal = Removal { vdev, class: top.class, mapping, header, births, birth_count: 0 };
    write_headers(change, &removal).await?;
    let to_copy = blocks.vdev_space(vdev).allocated_bytes;
    blocks.metaslabs().evacuations().begin(vdev, &[], to_copy).map_err(|error| refused(error.to_string()))?;
    let last = RemovalRecord::read(syncing).await?;
    let start_s = syncing.change.now_s;
    let record = RemovalRecord { state: RUNNING, vdev: top.id, start_s, end_s: 0, to_copy, copied: 0, ..last };
    record.write(&syncing.change).await?;
    renew_directory(&syncing.change).await?;
    let index = top.id as usize;
    syncing.core.config.set_top_number(index, "removing", 1);
    syncing.core.config.set_top_number(index, "com.delphix:indirect_object", mapping.0);
    syncing.core.config.set_top_number(index, "com.delphix:indirect_births", births.0);
    syncing.core.config_dirty = true;
    syncing.core.removal = Some(removal);
    syncing.core.aside.add_removed(top);
    syncing.engine.tops.remove(top.id);
    invariant!(
        parsed(&syncing.core.config.root)?.children.iter().filter(|top| top.removing).count() == 1,
        "not exactly one vdev is being removed"
    );
    Ok(())
}

/// Writes all blocks of the MOS directory anew, because they are read before the mappings of removed vdevs are known.
async fn renew_directory(change: &DslSyncContext<'_>) -> Result<(), PoolError> {
    let DslSyncContext { rq, mos, tx, .. } = change;
    let object = mos.object(rq, DIRECTORY).await?;
    let block_bytes = object.block_bytes();
    for block in 0..object.span_bytes().div_ceil(block_bytes.max(1)) {
        if let Some(bytes) = mos.reader().read_block(rq, &object, block).await? {
            mos.writes().write(rq, tx, DIRECTORY, block * block_bytes, &bytes).await?;
        }
    }
    Ok(())
}

/// Writes the header of the mapping and the number of births.
pub(super) async fn write_headers(change: &DslSyncContext<'_>, removal: &Removal) -> Result<(), PoolError> {
    let DslSyncContext { rq, mos, tx, .. } = change;
    let header = removal.header.encode(Endian::Little);
    mos.changes().set_bonus(rq, tx, removal.mapping, UINT64_METADATA, &header).await?;
    let count = removal.birth_count.to_le_bytes();
    Ok(mos.changes().set_bonus(rq, tx, removal.births, UINT64_METADATA, &count).await?)
}

/// Counts what was freed before it was copied as copied; false if nothing was.
pub(crate) async fn count_freed(syncing: &TxgSync<'_>) -> Result<bool, PoolError> {
    if syncing.core.removal.is_none() {
        return Ok(false);
    }
    let bytes = syncing.engine.cache.blocks().metaslabs().evacuations().take_freed_bytes();
    if bytes == 0 {
        return Ok(false);
    }
    let mut record = RemovalRecord::read(syncing).await?;
    record.count(bytes);
    record.write(&syncing.change).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_contradicts_itself_is_counted_without_an_overflow() {
        let mut record = RemovalRecord::of(&[RUNNING, 0, NONE, 1, 0, 100, 90]);
        assert_eq!(record.left_bytes(), 10);
        record.count(4);
        assert_eq!(record.copied, 94);
        record.count(50);
        assert_eq!((record.copied, record.left_bytes()), (100, 0));
        let mut wrong = RemovalRecord::of(&[RUNNING, 0, NONE, 1, 0, 10, u64::MAX]);
        wrong.count(1);
        assert_eq!((wrong.copied, wrong.left_bytes()), (u64::MAX, 0));
    }
}
