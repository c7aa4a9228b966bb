//! A dedup table on disk: the entries of one checksum.
//!
//! ```text
//!   MOS directory ─┬─ DDT-sha256-zap-duplicate, -unique       legacy: entries with more than one reference · with one
//!                  ├─ DDT-sha256 ─► directory                 fast: version, flags, the same two, logs 0 and 1
//!                  └─ DDT-statistics ─► a histogram under each class's name
//! ```
//!
//! The class of an entry depends on its number of references; when that changes, the entry moves to the other ZAP. A
//! table without entries is destroyed, so that the next one gets the newest form that the pool supports.
//!
//! Source: OpenZFS `module/zfs/ddt.c` (`ddt_sync_flush_entry`, `ddt_sync_update_stats`, `ddt_configure`),
//! `ddt_zap.c`, `ddt_log.c`.

use super::{Dedup, Entry, EntryId, State, VARIANTS};
use crate::ddt_brt_reader::{CHECKSUMS, DedupTable, FLAT, dedup_log, dedup_tables, dedup_value};
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::zap::{self, Zap};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use weir_codec::compress::{ZstdLevel, compress};
use weir_format::ddt::{self, DdtClass, DdtHistogram, DdtKey, DdtLogHeader, DdtPhys};
use weir_format::dsl::pool;
use weir_format::{ChecksumKind, CompressionKind, ObjectId, features};
use weir_machine::Request;

/// Feature whose reference count is the number of fast tables.
pub const FEATURE: &str = "fast_dedup";
/// Version in a fast table's directory: flat values with a log.
pub const VERSION: u64 = 1;
/// Flags of a fast table's directory.
pub const FLAGS: u64 = FLAT | 2;
/// Flag in the first byte of a stored value: little-endian. The other bits are the compression.
const LITTLE: u8 = 0x80;
const DIRECTORY: ObjectId = ObjectId(pool::DIRECTORY_OBJECT);

/// Dedup table of one checksum.
#[derive(Clone, Debug)]
pub struct Table {
    /// Whether entries have the flat form and the table has a directory.
    pub fast: bool,
    /// Object that names the ZAPs; `None` in a fast table without entries.
    pub directory: Option<ObjectId>,
    /// ZAPs by class.
    pub objects: [Option<ObjectId>; 3],
    /// Histograms by class.
    pub histograms: [DdtHistogram; 3],
    /// Logs whose entries were read into the table and that the next sync empties.
    pub logs: Vec<(ObjectId, DdtLogHeader)>,
}

impl Table {
    /// Makes a table without entries, in the newest form that the pool supports.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn fresh(rq: &Request, mos: &Arc<ObjectSet>) -> Result<Self, ObjectError> {
        let counts = zap::lookup_word(rq, mos, DIRECTORY, pool::FEATURES_FOR_WRITE).await?;
        let fast = match (counts, features::by_name(FEATURE)) {
            (Some(counts), Some(feature)) => zap::lookup_word(rq, mos, ObjectId(counts), feature.guid).await?.is_some(),
            _ => false,
        };
        Ok(Table::empty(fast))
    }

    fn empty(fast: bool) -> Self {
        Table {
            fast,
            directory: (!fast).then_some(DIRECTORY),
            objects: [None; 3],
            histograms: Default::default(),
            logs: Vec::new(),
        }
    }

    fn blocks_per_entry(&self) -> usize {
        if self.fast { 1 } else { VARIANTS }
    }

    /// Returns an entry; one without blocks if it does not exist.
    ///
    /// # Errors
    /// Errors of reading the ZAPs; `Corrupt` for a malformed value.
    pub async fn find(&self, rq: &Request, mos: &Arc<ObjectSet>, key: &DdtKey) -> Result<Entry, ObjectError> {
        let words = key.to_words();
        for (class, object) in DdtClass::ALL.into_iter().zip(self.objects) {
            let Some(object) = object else { continue };
            let Some(value) = Zap::open(rq, mos, object).await?.lookup_words(rq, &words).await? else { continue };
            let malformed = ObjectError::Corrupt { place: mos.place(object, 0, 0), why: "malformed dedup entry" };
            let blocks = value.bytes().and_then(|bytes| dedup_value(&bytes, self.fast)).ok_or(malformed)?;
            return Ok(Entry { class: Some(class), counted: Some(blocks.clone()), blocks });
        }
        Ok(Entry { class: None, counted: None, blocks: vec![DdtPhys::default(); self.blocks_per_entry()] })
    }
}

impl Dedup {
    /// Reads the tables of an existing pool, including the entries of their logs.
    ///
    /// # Errors
    /// Errors of reading the tables.
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

    /// Takes the entries that the open txg changed, and each table that has such entries or a log to empty.
    ///
    /// The caller writes them and returns each table with [`Dedup::put_table`].
    pub fn take_changes(&self) -> DedupChanges {
        let mut state = self.state();
        let entries = std::mem::take(&mut state.changed);
        let has_changes =
            |n: &u8| entries.range((*n, DdtKey::default())..).next().is_some_and(|((first, _), _)| first == n);
        let touched = state.tables.keys().copied().filter(has_changes).collect::<Vec<u8>>();
        let with_logs = state.tables.iter().filter(|(_, table)| !table.logs.is_empty()).map(|(n, _)| *n);
        let numbers: Vec<u8> = with_logs.chain(touched).collect();
        let take = |n: u8| Some((n, state.tables.remove(&n)?));
        let tables = numbers.into_iter().filter_map(take).collect();
        DedupChanges { entries, tables }
    }

    /// Returns a table that [`Dedup::take_changes`] took.
    pub fn put_table(&self, checksum: u8, table: Table) {
        self.state().tables.insert(checksum, table);
    }
}

/// The entries that a txg changed, and the tables they belong to, by the number of their checksum.
#[derive(Debug)]
pub struct DedupChanges {
    /// Changed entries, by checksum and key.
    pub entries: BTreeMap<EntryId, Entry>,
    /// Tables to write, by checksum.
    pub tables: BTreeMap<u8, Table>,
}

impl State {
    /// Reads the entries of a fast table's logs, those of the active log last.
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
                // The histograms of the tables do not include the entries of a log.
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

/// Encodes a value as the ZAP stores it: compressed, if that makes it shorter.
///
/// # Errors
/// `TooLong` if it does not compress into its own length.
pub fn stored(value: &[u8]) -> Result<Vec<u8>, ObjectError> {
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
    use weir_format::{Endian, Txg};

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
