//! One dedup table on the devices: the entries of one checksum.
//!
//! ```text
//!   MOS directory ─┬─ DDT-sha256-zap-duplicate, -unique       legacy: entries used more than once · once
//!                  ├─ DDT-sha256 ─► directory                 fast: version, flags, the same two, logs 0 and 1
//!                  └─ DDT-statistics ─► a histogram under each class's name
//! ```
//!
//! The class of an entry follows its references; when they change it moves to the other ZAP. A table without entries
//! goes away, so that the next begins in the newest form that the pool knows.
//!
//! Source: OpenZFS `module/zfs/ddt.c` (`ddt_sync_flush_entry`, `ddt_sync_update_stats`, `ddt_configure`),
//! `ddt_zap.c`, `ddt_log.c`.

use super::{Dedup, Entry, State, VARIANTS};
use crate::dsl::change::{Change, ChangeError, ZAP_METADATA};
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::tables::{CHECKSUMS, DedupTable, FLAT, dedup_log, dedup_tables, dedup_value};
use crate::zap::{self, Key, NewZap, Shape, Value, Zap};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use weir_codec::compress::{ZstdLevel, compress};
use weir_format::ddt::{self, DdtClass, DdtHistogram, DdtKey, DdtLogHeader, DdtPhys};
use weir_format::dsl::pool;
use weir_format::zap::ZapFlags;
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, ObjectId, ObjectType, features};
use weir_machine::Request;

const FEATURE: &str = "fast_dedup";
/// What a fast table's directory says: the version, and flat values with a log.
const VERSION: u64 = 1;
const FLAGS: u64 = FLAT | 2;
/// log2 of the blocks of the ZAPs of entries (`ddt_zap_default_bs`).
const SHIFT: u8 = 15;
/// Flags of these ZAPs: hashes of 64 bits, integer keys, whose first word is the hash if the checksum is strong enough.
const HASH64: u64 = 1;
const UINT64_KEY: u64 = 2;
const PRE_HASHED: u64 = 4;
/// The byte in front of a stored value: little-endian, and how it is compressed.
const LITTLE: u8 = 0x80;
const DIRECTORY: ObjectId = ObjectId(pool::DIRECTORY_OBJECT);

/// The table of one checksum.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Entries have the flat form, and the table a directory of its own.
    fast: bool,
    /// Where its ZAPs are named; a fast table without entries has none.
    directory: Option<ObjectId>,
    /// The ZAPs, by class.
    objects: [Option<ObjectId>; 3],
    pub histograms: [DdtHistogram; 3],
    /// Logs whose entries were taken over, and are to be emptied.
    logs: Vec<(ObjectId, DdtLogHeader)>,
}

impl Table {
    /// A table without entries, in the newest form that the pool knows.
    pub async fn fresh(rq: &Request, mos: &Arc<ObjectSet>) -> Result<Self, ObjectError> {
        let counts = zap::lookup_word(rq, mos, DIRECTORY, pool::FEATURES_FOR_WRITE).await?;
        let fast = match (counts, features::by_name(FEATURE)) {
            (Some(counts), Some(feature)) => zap::lookup_word(rq, mos, ObjectId(counts), feature.guid).await?.is_some(),
            _ => false,
        };
        Ok(Table::empty(fast))
    }

    fn empty(fast: bool) -> Self {
        let (objects, histograms, logs) = Default::default();
        Table { fast, directory: (!fast).then_some(DIRECTORY), objects, histograms, logs }
    }

    fn blocks_per_entry(&self) -> usize {
        if self.fast { 1 } else { VARIANTS }
    }

    /// Looks an entry up.
    pub async fn find(&self, rq: &Request, mos: &Arc<ObjectSet>, key: &DdtKey) -> Result<Entry, ObjectError> {
        let words = key.to_words();
        for (class, object) in DdtClass::ALL.into_iter().zip(self.objects) {
            let Some(object) = object else { continue };
            let Some(value) = Zap::open(rq, mos, object).await?.lookup_words(rq, &words).await? else { continue };
            let lies = ObjectError::Corrupt { place: mos.place(object, 0, 0), why: "a dedup entry lies" };
            let blocks = value.bytes().and_then(|bytes| dedup_value(&bytes, self.fast)).ok_or(lies)?;
            return Ok(Entry { class: Some(class), counted: Some(blocks.clone()), blocks });
        }
        Ok(Entry { class: None, counted: None, blocks: vec![DdtPhys::default(); self.blocks_per_entry()] })
    }
}

impl Dedup {
    /// The tables of a pool that exists, with what is in their logs.
    ///
    /// # Errors
    /// What reading them meets.
    pub async fn read(rq: &Request, mos: Arc<ObjectSet>) -> Result<Arc<Self>, ObjectError> {
        let mut state = State::default();
        let statistics = zap::lookup_word(rq, &mos, DIRECTORY, pool::DDT_STATS).await?.map(ObjectId);
        for checksum in CHECKSUMS {
            let own = zap::lookup_word(rq, &mos, DIRECTORY, &ddt::directory_name(checksum)).await?.map(ObjectId);
            let Some(directory) = own else { continue };
            let mut table = Table { directory: Some(directory), ..Table::empty(true) };
            let version = zap::lookup_word(rq, &mos, directory, ddt::DIR_VERSION).await?;
            let flags = zap::lookup_word(rq, &mos, directory, ddt::DIR_FLAGS).await?;
            if version != Some(VERSION) || flags != Some(FLAGS) {
                return Err(ObjectError::Unsupported { what: "writing to a dedup table of an unknown version" });
            }
            state.read_logs(rq, &mos, checksum, &mut table).await?;
            state.tables.insert(checksum as u8, table);
        }
        for DedupTable { checksum, class, object, flat } in dedup_tables(rq, &mos).await? {
            let table = state.tables.entry(checksum as u8).or_insert_with(|| Table::empty(flat));
            table.objects[class as usize] = Some(object);
            let name = ddt::table_name(checksum, class);
            let counted = match statistics {
                Some(id) => zap::lookup(rq, &mos, id, &name).await?,
                None => None,
            };
            let counted = counted.and_then(|value| DdtHistogram::from_words(&value.words));
            table.histograms[class as usize] = counted.unwrap_or_default();
        }
        Ok(Arc::new(Dedup { mos, state: Mutex::new(state) }))
    }

    /// Writes what the group changed. Gives the blocks that nobody refers to any more, to be freed in this group.
    ///
    /// # Errors
    /// What reading and changing the MOS meets.
    pub async fn sync(&self, change: &mut Change<'_>) -> Result<Vec<BlockPointer>, ChangeError> {
        let (changed, mut tables) = {
            let mut state = self.state();
            let changed = std::mem::take(&mut state.changed);
            let full =
                |n: &u8| changed.range((*n, DdtKey::default())..).next().is_some_and(|((first, _), _)| first == n);
            let touched = state.tables.keys().copied().filter(full).collect::<Vec<u8>>();
            let with_logs = state.tables.iter().filter(|(_, table)| !table.logs.is_empty()).map(|(n, _)| *n);
            let numbers: Vec<u8> = with_logs.chain(touched).collect();
            let take = |n: u8| Some((n, state.tables.remove(&n)?));
            let tables: BTreeMap<u8, Table> = numbers.into_iter().filter_map(take).collect();
            (changed, tables)
        };
        let mut freed = Vec::new();
        for ((number, key), entry) in changed {
            let (Some(table), Some(checksum)) = (tables.get_mut(&number), ChecksumKind::from_u8(number)) else {
                continue;
            };
            let blocks = self.blocks();
            let deflated = |dva: &Dva| blocks.dsize_of(dva);
            Sync { change, table, checksum, deflated: &deflated }.entry(&key, entry, &mut freed).await?;
        }
        for (number, mut table) in tables {
            let Some(checksum) = ChecksumKind::from_u8(number) else { continue };
            let is_left = Sync { change, table: &mut table, checksum, deflated: &|_| 0 }.finish().await?;
            if is_left {
                self.state().tables.insert(number, table);
            }
        }
        Ok(freed)
    }
}

impl State {
    /// Takes over what a fast table's logs say, the active one last.
    async fn read_logs(
        &mut self,
        rq: &Request,
        mos: &Arc<ObjectSet>,
        checksum: ChecksumKind,
        table: &mut Table,
    ) -> Result<(), ObjectError> {
        let Some(directory) = table.directory else { return Ok(()) };
        let mut logs = Vec::new();
        for n in 0..2 {
            let id = zap::lookup_word(rq, mos, directory, &ddt::log_name(checksum, n)).await?;
            if let Some(id) = id.map(ObjectId) {
                let (header, entries) = dedup_log(rq, mos, id).await?;
                logs.push((id, header, entries));
            }
        }
        logs.sort_by_key(|(_, header, _)| header.flags & DdtLogHeader::FLUSHING == 0);
        for (id, header, entries) in logs {
            for (key, logged) in entries {
                let class = DdtClass::ALL.get(usize::from(logged.class)).copied().filter(|_| logged.storage == 0);
                // The histograms of the tables do not count what is in a log.
                let entry = Entry { class, counted: None, blocks: logged.value };
                self.changed.insert((checksum as u8, key), entry);
            }
            if header.length_bytes > 0 {
                table.logs.push((id, header));
            }
        }
        Ok(())
    }
}

/// Where the changes of one table go.
struct Sync<'s, 'c> {
    change: &'s mut Change<'c>,
    table: &'s mut Table,
    checksum: ChecksumKind,
    deflated: &'s (dyn Fn(&Dva) -> u64 + std::marker::Sync),
}

impl Sync<'_, '_> {
    /// Writes one entry where it belongs.
    async fn entry(&mut self, key: &DdtKey, entry: Entry, freed: &mut Vec<BlockPointer>) -> Result<(), ChangeError> {
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
        let (rq, tx, mos) = (self.change.rq, self.change.tx, self.change.mos.clone());
        if let Some(class) = old.filter(|_| old != new)
            && let Some(object) = self.table.objects[class as usize]
        {
            zap::remove(rq, &mos, tx, object, &words).await?;
        }
        let Some(class) = new else { return Ok(()) };
        let object = self.ensure(class).await?;
        self.table.histograms[class as usize].add(key, &blocks, &self.deflated);
        let value = Value::of_bytes(&stored(&DdtPhys::encode(&blocks, Endian::Little))?);
        zap::put(rq, &mos, tx, object, &words, &value).await?;
        Ok(())
    }

    /// The ZAP of a class; made if there is none.
    async fn ensure(&mut self, class: DdtClass) -> Result<ObjectId, ChangeError> {
        if let Some(id) = self.table.objects[class as usize] {
            return Ok(id);
        }
        let directory = self.directory().await?;
        let (rq, tx, mos) = (self.change.rq, self.change.tx, self.change.mos.clone());
        // The checksums that are strong enough to tell blocks apart alone (`ZCHECKSUM_FLAG_DEDUP`).
        let strong = !matches!(self.checksum, ChecksumKind::Edonr | ChecksumKind::Fletcher4);
        let flags = ZapFlags(HASH64 | UINT64_KEY | if strong { PRE_HASHED } else { 0 });
        let id = zap::create(rq, &mos, tx, &NewZap::fat(ObjectType::DDT_ZAP, flags, SHIFT, SHIFT)).await?;
        zap::put_word(rq, &mos, tx, directory, &ddt::table_name(self.checksum, class), id.0).await?;
        self.table.objects[class as usize] = Some(id);
        Ok(id)
    }

    /// Where the table's ZAPs are named.
    async fn directory(&mut self) -> Result<ObjectId, ChangeError> {
        if let Some(id) = self.table.directory {
            return Ok(id);
        }
        let (rq, tx, mos) = (self.change.rq, self.change.tx, self.change.mos.clone());
        let id = zap::create(rq, &mos, tx, &NewZap::new(ZAP_METADATA)).await?;
        zap::put_word(rq, &mos, tx, DIRECTORY, &ddt::directory_name(self.checksum), id.0).await?;
        zap::put_word(rq, &mos, tx, id, ddt::DIR_VERSION, VERSION).await?;
        zap::put_word(rq, &mos, tx, id, ddt::DIR_FLAGS, FLAGS).await?;
        self.change.count_feature(FEATURE, 1).await?;
        self.table.directory = Some(id);
        Ok(id)
    }

    /// The pool's statistics; made if there are none.
    async fn statistics(&self) -> Result<ObjectId, ChangeError> {
        let (rq, tx, mos) = (self.change.rq, self.change.tx, &self.change.mos);
        if let Some(id) = zap::lookup_word(rq, mos, DIRECTORY, pool::DDT_STATS).await? {
            return Ok(ObjectId(id));
        }
        let id = zap::create(rq, mos, tx, &NewZap::new(ObjectType::DDT_STATS)).await?;
        zap::put_word(rq, mos, tx, DIRECTORY, pool::DDT_STATS, id.0).await?;
        Ok(id)
    }

    /// Writes the statistics, empties the logs; a table without entries goes. False if it went.
    async fn finish(&mut self) -> Result<bool, ChangeError> {
        let (rq, tx, mos) = (self.change.rq, self.change.tx, self.change.mos.clone());
        for (id, header) in std::mem::take(&mut self.table.logs) {
            mos.punch(rq, tx, id, 0, u64::MAX).await?;
            let flags = header.flags & !DdtLogHeader::CHECKPOINT;
            let empty = DdtLogHeader { flags, length_bytes: 0, checkpoint: DdtKey::default(), ..header };
            let kind = mos.object(rq, id).await?.dnode.bonus_type;
            mos.set_bonus(rq, tx, id, kind, &empty.encode(Endian::Little)).await?;
        }
        let statistics = self.statistics().await?;
        let mut entries = 0;
        for id in self.table.objects.iter().flatten() {
            if let Shape::Fat(header) = Zap::open(rq, &mos, *id).await?.shape()? {
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
            mos.remove(rq, tx, id).await?;
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

    /// Takes a fast table's directory and logs away.
    async fn remove_directory(&mut self) -> Result<(), ChangeError> {
        let Some(directory) = self.table.directory.take() else { return Ok(()) };
        let (rq, tx, mos) = (self.change.rq, self.change.tx, self.change.mos.clone());
        for n in 0..2 {
            let log = zap::lookup_word(rq, &mos, directory, &ddt::log_name(self.checksum, n)).await?;
            if let Some(log) = log {
                mos.remove(rq, tx, ObjectId(log)).await?;
            }
        }
        mos.remove(rq, tx, directory).await?;
        zap::remove_name(rq, &mos, tx, DIRECTORY, &ddt::directory_name(self.checksum)).await?;
        self.change.count_feature(FEATURE, -1).await
    }
}

/// A value as it stands in the ZAP: compressed, if that makes it shorter.
fn stored(value: &[u8]) -> Result<Vec<u8>, ObjectError> {
    let mut out = vec![0; value.len()];
    let room = out.get_mut(1..).unwrap_or_default();
    let too_long = |_| ObjectError::TooLong { what: "a dedup entry" };
    let packed = compress(CompressionKind::Zle, ZstdLevel::DEFAULT, value, room).map_err(too_long)?;
    let (kind, len) = match packed {
        Some(len) => (CompressionKind::Zle, len),
        None => {
            out.resize(value.len() + 1, 0);
            out.get_mut(1..).unwrap_or_default().copy_from_slice(value);
            (CompressionKind::Off, value.len())
        }
    };
    out.truncate(len + 1);
    out.first_mut().into_iter().for_each(|byte| *byte = LITTLE | kind.to_u8());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::Txg;

    #[test]
    fn values_are_read_as_they_were_stored() {
        let block = |n: u64| DdtPhys { dva_words: [n; 6], references: n, birth: Txg(n), class_start_s: 0 };
        let nothing = DdtPhys::default();
        let legacy = vec![nothing, block(1), nothing, nothing];
        let dense = vec![block(u64::MAX / 3); VARIANTS];
        for (value, flat) in [(legacy, false), (dense, false), (vec![block(7)], true)] {
            let bytes = stored(&DdtPhys::encode(&value, Endian::Little)).unwrap();
            assert_eq!(dedup_value(&bytes, flat), Some(value));
        }
    }
}
