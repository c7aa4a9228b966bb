//! Writes the dedup entries that a txg changed into their tables (OpenZFS `ddt_sync`).
//!
//! An entry belongs to the ZAP of its class: *unique* with one reference, *duplicate* with more. An entry that loses its
//! last reference leaves its table, and its blocks are freed in the same txg. A table without entries is removed.
//!
//! Source: OpenZFS `module/zfs/ddt.c` (`ddt_sync_flush_entry`, `ddt_sync_update_stats`).

use crate::sync_tasks::{DslError, DslSyncContext, ZAP_METADATA, features};
use weir_dmu::dedup::{Dedup, DedupChanges, Entry, Table, table};
use weir_dmu::zap::{self, Key, NewZap, Value, Zap, ZapLayout};
use weir_format::ddt::{self, DdtClass, DdtKey, DdtLogHeader, DdtPhys};
use weir_format::dsl::pool;
use weir_format::zap::ZapFlags;
use weir_format::{BlockPointer, ChecksumKind, Dva, Endian, ObjectId, ObjectType};

/// log2 of the block size in bytes of the ZAPs of entries (`ddt_zap_default_bs`).
const SHIFT: u8 = 15;
/// Flags of these ZAPs: 64-bit hashes, integer keys; the key's first integer is its hash if the checksum is strong.
const HASH64: u64 = 1;
const UINT64_KEY: u64 = 2;
const PRE_HASHED: u64 = 4;
const DIRECTORY: ObjectId = ObjectId(pool::DIRECTORY_OBJECT);

/// Writes the dedup entries that the txg changed. Returns the blocks without references, which the caller frees in this
/// txg.
///
/// # Errors
/// Errors of reading and writing the MOS.
pub async fn sync_dedup(dedup: &Dedup, change: &mut DslSyncContext<'_>) -> Result<Vec<BlockPointer>, DslError> {
    let DedupChanges { entries, mut tables } = dedup.take_changes();
    let mut freed = Vec::new();
    for ((number, key), entry) in entries {
        let (Some(table), Some(checksum)) = (tables.get_mut(&number), ChecksumKind::from_u8(number)) else {
            continue;
        };
        let blocks = change.mos.cache().blocks().clone();
        let deflated = |dva: &Dva| blocks.dsize_of(dva);
        Sync { change, table, checksum, deflated: &deflated }.entry(&key, entry, &mut freed).await?;
    }
    for (number, mut table) in tables {
        let Some(checksum) = ChecksumKind::from_u8(number) else { continue };
        let is_left = Sync { change, table: &mut table, checksum, deflated: &|_| 0 }.finish().await?;
        if is_left {
            dedup.put_table(number, table);
        }
    }
    Ok(freed)
}

/// Writer of one table's changes.
struct Sync<'s, 'c> {
    change: &'s mut DslSyncContext<'c>,
    table: &'s mut Table,
    checksum: ChecksumKind,
    deflated: &'s (dyn Fn(&Dva) -> u64 + std::marker::Sync),
}

impl Sync<'_, '_> {
    /// Writes one entry to the ZAP of its class, and removes it from that of its old class.
    async fn entry(&mut self, key: &DdtKey, entry: Entry, freed: &mut Vec<BlockPointer>) -> Result<(), DslError> {
        let Entry { class: old, counted, mut blocks } = entry;
        if let (Some(class), Some(counted)) = (old, &counted) {
            self.table.histograms[class as usize].sub(key, counted, &self.deflated);
        }
        let mut references = 0u64;
        let is_flat = blocks.len() == 1;
        for (n, block) in blocks.iter_mut().enumerate().filter(|(_, b)| b.birth.0 != 0) {
            let is_ditto = n == 0 && !is_flat;
            if block.references == 0 || is_ditto {
                freed.push(key.pointer(self.checksum, block));
                *block = DdtPhys::default();
                continue;
            }
            references = references.saturating_add(block.references);
            if is_flat {
                block.class_start_s = self.change.now_s;
            }
        }
        let new = match references {
            0 => None,
            1 => Some(DdtClass::Unique),
            _ => Some(DdtClass::Duplicate),
        };
        let words = Key::Words(key.to_words().to_vec());
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = self.change.mos.clone();
        if let Some(class) = old.filter(|_| old != new)
            && let Some(object) = self.table.objects[class as usize]
        {
            zap::remove(rq, &mos, tx, object, &words).await?;
        }
        let Some(class) = new else { return Ok(()) };
        let object = self.ensure(class).await?;
        self.table.histograms[class as usize].add(key, &blocks, &self.deflated);
        let value = Value::of_bytes(&table::stored(&DdtPhys::encode(&blocks, Endian::Little))?);
        zap::put(rq, &mos, tx, object, &words, &value).await?;
        Ok(())
    }

    /// The ZAP of a class; created if there is none.
    async fn ensure(&mut self, class: DdtClass) -> Result<ObjectId, DslError> {
        if let Some(id) = self.table.objects[class as usize] {
            return Ok(id);
        }
        let directory = self.directory().await?;
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = self.change.mos.clone();
        // The checksums that are strong enough to identify a block without comparing data (`ZCHECKSUM_FLAG_DEDUP`).
        let strong = !matches!(self.checksum, ChecksumKind::Edonr | ChecksumKind::Fletcher4);
        let flags = ZapFlags(HASH64 | UINT64_KEY | if strong { PRE_HASHED } else { 0 });
        let id = zap::create(rq, &mos, tx, &NewZap::fat(ObjectType::DDT_ZAP, flags, SHIFT, SHIFT)).await?;
        zap::put_word(rq, &mos, tx, directory, &ddt::table_name(self.checksum, class), id.0).await?;
        self.table.objects[class as usize] = Some(id);
        Ok(id)
    }

    /// The directory ZAP that names the table's ZAPs; created if there is none.
    async fn directory(&mut self) -> Result<ObjectId, DslError> {
        if let Some(id) = self.table.directory {
            return Ok(id);
        }
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = self.change.mos.clone();
        let id = zap::create(rq, &mos, tx, &NewZap::new(ZAP_METADATA)).await?;
        zap::put_word(rq, &mos, tx, DIRECTORY, &ddt::directory_name(self.checksum), id.0).await?;
        zap::put_word(rq, &mos, tx, id, ddt::DIR_VERSION, table::VERSION).await?;
        zap::put_word(rq, &mos, tx, id, ddt::DIR_FLAGS, table::FLAGS).await?;
        features::count_feature(self.change, table::FEATURE, 1).await?;
        self.table.directory = Some(id);
        Ok(id)
    }

    /// The ZAP of the pool's dedup statistics; created if there is none.
    async fn statistics(&self) -> Result<ObjectId, DslError> {
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = &self.change.mos;
        if let Some(id) = zap::lookup_word(rq, mos, DIRECTORY, pool::DDT_STATS).await? {
            return Ok(ObjectId(id));
        }
        let id = zap::create(rq, mos, tx, &NewZap::new(ObjectType::DDT_STATS)).await?;
        zap::put_word(rq, mos, tx, DIRECTORY, pool::DDT_STATS, id.0).await?;
        Ok(id)
    }

    /// Writes the statistics and empties the logs. Removes the table if it has no entries, and then returns false.
    async fn finish(&mut self) -> Result<bool, DslError> {
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = self.change.mos.clone();
        for (id, header) in std::mem::take(&mut self.table.logs) {
            mos.frees().punch(rq, tx, id, 0, u64::MAX).await?;
            let flags = header.flags & !DdtLogHeader::CHECKPOINT;
            let empty = DdtLogHeader { flags, length_bytes: 0, checkpoint: DdtKey::default(), ..header };
            let kind = mos.object(rq, id).await?.dnode.bonus_type;
            mos.changes().set_bonus(rq, tx, id, kind, &empty.encode(Endian::Little)).await?;
        }
        let statistics = self.statistics().await?;
        let mut entries = 0;
        for id in self.table.objects.iter().flatten() {
            if let ZapLayout::Fat(header) = Zap::open(rq, &mos, *id).await?.layout()? {
                entries += header.entries;
            }
        }
        for class in DdtClass::ALL {
            let Some(id) = self.table.objects[class as usize] else { continue };
            let name = ddt::table_name(self.checksum, class);
            if entries > 0 {
                let words = self.table.histograms[class as usize].to_words();
                zap::put_words(rq, &mos, tx, statistics, &name, &words).await?;
                continue;
            }
            mos.frees().remove(rq, tx, id).await?;
            zap::remove_name(rq, &mos, tx, statistics, &name).await?;
            if let Some(directory) = self.table.directory {
                zap::remove_name(rq, &mos, tx, directory, &name).await?;
            }
        }
        if entries == 0 && self.table.fast {
            self.remove_directory().await?;
        }
        Ok(entries > 0)
    }

    /// Removes a fast table's directory and logs.
    async fn remove_directory(&mut self) -> Result<(), DslError> {
        let Some(directory) = self.table.directory.take() else { return Ok(()) };
        let rq = self.change.rq;
        let tx = self.change.tx;
        let mos = self.change.mos.clone();
        for n in 0..2 {
            let log = zap::lookup_word(rq, &mos, directory, &ddt::log_name(self.checksum, n)).await?;
            if let Some(log) = log {
                mos.frees().remove(rq, tx, ObjectId(log)).await?;
            }
        }
        mos.frees().remove(rq, tx, directory).await?;
        zap::remove_name(rq, &mos, tx, DIRECTORY, &ddt::directory_name(self.checksum)).await?;
        features::count_feature(self.change, table::FEATURE, -1).await
    }
}
