//! The block reference table (BRT): counts of *additional* references to blocks that several files share.
//!
//! ```text
//!   block is cloned    count + 1        pointer is freed    count > 0: count - 1, the block stays
//!                                                           no entry: the block is freed
//! ```
//!
//! Each top-level vdev has its own table: a ZAP from offsets to counts, and an array with the number of entries in each
//! region of 16 MiB, so that most frees need no lookup. A txg's changes are in memory until its end, when they are
//! written. A table without entries is destroyed.
//!
//! Invariants: each freed pointer decreases the count once; the sums in the header equal those of the entries.
//!
//! Source: OpenZFS `module/zfs/brt.c`.

use std::collections::{BTreeMap, BTreeSet};
use weir_dmu::live::NewObject;
use weir_dmu::zap::{self, Key, NewZap, Value, Zap};
use weir_dmu::{ErrorLocation, ObjectError};
use weir_dsl::sync_tasks::{DslSyncContext, ZAP_METADATA, features};
use weir_format::brt::{self, BrtVdev};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::zap::ZapFlags;
use weir_format::{BlockPointer, Cursor, Endian, ObjectId, ObjectType};
use weir_machine::Request;
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;

/// Size of a region, in bytes (`brt_rangesize`).
const REGION_BYTES: u64 = 16 << 20;
/// Block size of the array of regions, in bytes.
const ARRAY_BLOCK_BYTES: u32 = 32 << 10;
/// Arrays of 64-bit metadata (`DMU_OTN_UINT64_METADATA`).
const UINT64_METADATA: ObjectType = ObjectType(0xc3);
/// log2 of the block size of the ZAP of entries.
const ENTRIES_SHIFT: u8 = 12;
/// ZAP flag: 64-bit hashes.
const HASH64: u64 = 1;
/// ZAP flag: keys are 64-bit integers.
const UINT64_KEY: u64 = 2;
const FEATURE: &Feature = Feature::BLOCK_CLONING;
/// The feature by which counts are 64-bit integers instead of bytes in native order.
const FIXED_ENDIAN: &Feature = Feature::BLOCK_CLONING_ENDIAN;

/// The table of one top-level vdev.
#[derive(Clone, Debug)]
struct Table {
    /// The object of the array, whose bonus buffer holds the header.
    object: ObjectId,
    header: BrtVdev,
    /// Number of entries in each region.
    regions: Vec<u16>,
    touched: BTreeSet<usize>,
    /// Counts that the syncing txg changed, by offset in bytes.
    changed: BTreeMap<u64, u64>,
}

/// The block reference tables of a pool.
#[derive(Clone, Debug, Default)]
pub struct BlockRefTable {
    tables: BTreeMap<u32, Table>,
    /// Whether counts are 64-bit integers ([`FIXED_ENDIAN`]).
    fixed_endian: bool,
}

/// The key of a block: vdev and offset of its first DVA; `None` for blocks that cannot be cloned.
fn key_of(pointer: &BlockPointer) -> Option<(u32, u64)> {
    let is_data = pointer.level() == 0 && !pointer.object_type().is_metadata();
    let has_place = !pointer.is_hole() && !pointer.is_embedded();
    let first = pointer.dvas().next().filter(|_| is_data && has_place)?;
    Some((first.vdev, first.offset_bytes))
}

impl BlockRefTable {
    /// Reads the tables of all top-level vdevs.
    pub async fn read(rq: &Request, mos: &Mos, tops: &[VdevConfig], fixed_endian: bool) -> Result<Self, PoolError> {
        let mut out = BlockRefTable { fixed_endian, ..BlockRefTable::default() };
        for top in tops {
            if let Some(id) = mos.named(rq, &brt::table_name(top.id)).await? {
                out.tables.insert(top.id as u32, Table::read(rq, mos, id).await?);
            }
        }
        Ok(out)
    }

    /// Drops a reference to a block; returns true if others remain, so that the block must stay.
    pub async fn release(
        &mut self,
        change: &DslSyncContext<'_>,
        pointer: &BlockPointer,
        dsize_bytes: u64,
    ) -> Result<bool, PoolError> {
        let Some((vdev, offset)) = key_of(pointer) else { return Ok(false) };
        let fixed = self.fixed_endian;
        let Some(table) = self.tables.get_mut(&vdev) else { return Ok(false) };
        let count = table.count(change, offset, fixed).await?;
        if count == 0 {
            return Ok(false);
        }
        table.changed.insert(offset, count - 1);
        table.header.saved_bytes = table.header.saved_bytes.saturating_sub(dsize_bytes);
        if count == 1 {
            table.header.used_bytes = table.header.used_bytes.saturating_sub(dsize_bytes);
            table.header.total = table.header.total.saturating_sub(1);
            table.count_in_region(offset, -1);
        }
        Ok(true)
    }

    /// Adds a reference to a block.
    pub async fn add(
        &mut self,
        change: &mut DslSyncContext<'_>,
        tops: &[VdevConfig],
        pointer: &BlockPointer,
        dsize_bytes: u64,
    ) -> Result<(), PoolError> {
        let Some((vdev, offset)) = key_of(pointer) else { return Ok(()) };
        let unknown =
            || PoolError::Refused { what: format!("cannot clone a block at {vdev}:{offset:x}: no such address") };
        let top = tops.get(vdev as usize).filter(|top| offset < top.asize_bytes).ok_or_else(unknown)?;
        if !self.tables.contains_key(&vdev) {
            let table = Table::make(change, top, self.tables.is_empty()).await?;
            self.fixed_endian = features::is_active(change, FIXED_ENDIAN).await?;
            self.tables.insert(vdev, table);
        }
        let fixed = self.fixed_endian;
        let Some(table) = self.tables.get_mut(&vdev) else { return Ok(()) };
        let count = table.count(change, offset, fixed).await?;
        table.changed.insert(offset, count + 1);
        table.header.saved_bytes += dsize_bytes;
        if count == 0 {
            table.header.used_bytes += dsize_bytes;
            table.header.total += 1;
            table.count_in_region(offset, 1);
        }
        Ok(())
    }

    /// Space that additional references would allocate without sharing, in bytes.
    pub fn saved_bytes(&self) -> u64 {
        self.tables.values().map(|table| table.header.saved_bytes).fold(0, u64::saturating_add)
    }

    /// Writes the changes of the syncing txg.
    pub async fn write(&mut self, change: &mut DslSyncContext<'_>) -> Result<(), PoolError> {
        let mut empty = Vec::new();
        for (vdev, table) in self.tables.iter_mut().filter(|(_, t)| !t.changed.is_empty()) {
            table.write(change, self.fixed_endian).await?;
            if table.header.total == 0 {
                empty.push(*vdev);
            }
        }
        for vdev in empty {
            if let Some(table) = self.tables.remove(&vdev) {
                table.destroy(change, vdev).await?;
            }
        }
        Ok(())
    }
}

impl Table {
    async fn read(rq: &Request, mos: &Mos, id: ObjectId) -> Result<Self, PoolError> {
        let object = mos.set.object(rq, id).await?;
        let place = ErrorLocation { objset: mos.set.id(), object: id, level: 0, block: 0 };
        let decode = |error| ObjectError::Decode { place, error };
        let header = BrtVdev::decode(object.dnode.bonus(), object.dnode.endian).map_err(decode)?;
        if header.byte_order != 0 {
            return Err(ObjectError::Unsupported { what: "a table of shared blocks of the other byte order" }.into());
        }
        let bytes = mos.bytes(rq, &object, header.regions.saturating_mul(2)).await?;
        let mut cursor = Cursor::new(&bytes, Endian::Little, "regions of shared blocks");
        let mut regions: Vec<u16> = std::iter::from_fn(|| cursor.u16().ok()).collect();
        regions.resize(usize::try_from(header.regions).unwrap_or(0), 0);
        Ok(Table { object: id, header, regions, touched: BTreeSet::new(), changed: BTreeMap::new() })
    }

    /// Creates the table of a vdev.
    async fn make(change: &mut DslSyncContext<'_>, top: &VdevConfig, first: bool) -> Result<Self, PoolError> {
        let rq = change.rq;
        let tx = change.tx;
        let mos = change.mos.clone();
        let flags = ZapFlags(HASH64 | UINT64_KEY);
        let entries =
            zap::create(rq, &mos, tx, &NewZap::fat(ZAP_METADATA, flags, ENTRIES_SHIFT, ENTRIES_SHIFT)).await?;
        let usable = top.asize_bytes >> top.metaslab_shift << top.metaslab_shift;
        let regions = usable.div_ceil(REGION_BYTES).max(1);
        let header = BrtVdev {
            entries,
            regions,
            byte_order: 0,
            total: 0,
            region_bytes: REGION_BYTES,
            used_bytes: 0,
            saved_bytes: 0,
        };
        let new =
            NewObject::new(UINT64_METADATA, ARRAY_BLOCK_BYTES).bonus(UINT64_METADATA, header.encode(Endian::Little));
        let object = mos.changes().create(rq, tx, &new).await?;
        let directory = ObjectId(names::DIRECTORY_OBJECT);
        zap::put_word(rq, &mos, tx, directory, &brt::table_name(top.id), object.0).await?;
        let fixed = if first {
            features::is_enabled(change, FIXED_ENDIAN).await?
        } else {
            features::is_active(change, FIXED_ENDIAN).await?
        };
        if fixed {
            features::count_feature(change, FIXED_ENDIAN, 1).await?;
        }
        features::count_feature(change, FEATURE, 1).await?;
        let regions = vec![0; regions as usize];
        Ok(Table { object, header, regions, touched: BTreeSet::new(), changed: BTreeMap::new() })
    }

    fn region(&self, offset: u64) -> usize {
        usize::try_from(offset / self.header.region_bytes.max(1)).unwrap_or(usize::MAX)
    }

    fn count_in_region(&mut self, offset: u64, by: i16) {
        let region = self.region(offset);
        if by > 0 && region >= self.regions.len() {
            // The vdev was expanded after the table was created.
            self.regions.resize(region + 1, 0);
            self.header.regions = self.regions.len() as u64;
        }
        if let Some(count) = self.regions.get_mut(region) {
            *count = count.saturating_add_signed(by);
            self.touched.insert(region);
        }
    }

    /// Number of additional references of the block at `offset`.
    async fn count(&self, change: &DslSyncContext<'_>, offset: u64, fixed: bool) -> Result<u64, PoolError> {
        if let Some(count) = self.changed.get(&offset) {
            return Ok(*count);
        }
        if self.regions.get(self.region(offset)).is_none_or(|n| *n == 0) {
            return Ok(0);
        }
        let zap = Zap::open(change.rq, &change.mos, self.header.entries).await?;
        let found = zap.lookup_words(change.rq, &[offset]).await?;
        let count =
            found.and_then(|value| brt::count(&value.words, Endian::Little).filter(|_| fixed == (value.int_size == 8)));
        Ok(count.unwrap_or(0))
    }

    async fn write(&mut self, change: &DslSyncContext<'_>, fixed: bool) -> Result<(), PoolError> {
        let DslSyncContext { rq, mos, tx, .. } = change;
        for (offset, count) in std::mem::take(&mut self.changed) {
            let key = Key::Words(vec![offset]);
            if count == 0 {
                zap::remove(rq, mos, tx, self.header.entries, &key).await?;
                continue;
            }
            let value = if fixed {
                Value::word(count)
            } else {
                Value { int_size: 1, words: count.to_le_bytes().iter().map(|b| u64::from(*b)).collect() }
            };
            zap::put(rq, mos, tx, self.header.entries, &key, &value).await?;
        }
        for region in std::mem::take(&mut self.touched) {
            if let Some(count) = self.regions.get(region) {
                mos.writes().write(rq, tx, self.object, region as u64 * 2, &count.to_le_bytes()).await?;
            }
        }
        let bonus = self.header.encode(Endian::Little);
        Ok(mos.changes().set_bonus(rq, tx, self.object, UINT64_METADATA, &bonus).await?)
    }

    async fn destroy(self, change: &mut DslSyncContext<'_>, vdev: u32) -> Result<(), PoolError> {
        let rq = change.rq;
        let tx = change.tx;
        let mos = change.mos.clone();
        mos.frees().remove(rq, tx, self.header.entries).await?;
        mos.frees().remove(rq, tx, self.object).await?;
        let directory = ObjectId(names::DIRECTORY_OBJECT);
        zap::remove_name(rq, &mos, tx, directory, &brt::table_name(vdev.into())).await?;
        features::count_feature(change, FEATURE, -1).await?;
        if features::is_active(change, FIXED_ENDIAN).await? {
            features::count_feature(change, FIXED_ENDIAN, -1).await?;
        }
        Ok(())
    }
}
