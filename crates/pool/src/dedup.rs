//! Space saved by deduplication and block cloning.
//!
//! The pool has for each dedup table a histogram of its entries by number of references. Entries in a table's log are
//! in no histogram and are counted from the log. The block reference table of each vdev has the sums for cloned blocks.
//!
//! Source: OpenZFS `module/zfs/ddt_stats.c`, `ddt_log.c` (`ddt_log_load_one`), `brt.c` (`brt_get_used`).

use crate::config::VdevConfig;
use crate::mos::Mos;
use weir_dmu::{CycleGuard, ErrorLocation, Object, ObjectError, ddt_brt_reader, zap};
use weir_format::brt::{self, BrtVdev};
use weir_format::ddt::DdtHistogram;
use weir_format::dsl::pool as names;
use weir_format::{BlockPointer, Dva, ObjectId};
use weir_machine::Request;

/// Prefix of the names of tables, and of directories of tables.
const TABLES: &str = "DDT-";
/// Words of one row of a histogram: blocks, logical, physical and deflated bytes; then the same by references.
const ROW_WORDS: usize = 8;

/// Blocks with several references, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Allocated bytes of the blocks in dedup tables.
    pub dedup: u64,
    /// Bytes that they would take if each reference had its own copy.
    pub dedup_referenced: u64,
    /// Allocated bytes of the dedup tables themselves.
    pub tables: u64,
    /// Allocated bytes of cloned blocks.
    pub cloned: u64,
    /// Bytes that further copies of cloned blocks would take.
    pub clones_saved: u64,
}

impl Shared {
    /// Returns the bytes that sharing saves.
    pub fn saved(&self) -> u64 {
        self.dedup_referenced.saturating_sub(self.dedup).saturating_add(self.clones_saved)
    }

    /// `dedupratio` × 100.
    pub fn dedup_ratio(&self) -> u64 {
        hundredths(self.dedup_referenced, self.dedup)
    }

    /// `bcloneratio` × 100.
    pub fn clone_ratio(&self) -> u64 {
        hundredths(self.cloned.saturating_add(self.clones_saved), self.cloned)
    }
}

fn hundredths(of: u64, to: u64) -> u64 {
    (u128::from(of) * 100).checked_div(u128::from(to)).map_or(100, |r| u64::try_from(r).unwrap_or(u64::MAX))
}

/// Entries of all dedup tables of a pool (`zpool status -D`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupTables {
    /// The entries by number of references.
    pub histogram: DdtHistogram,
    /// Bytes that the tables take on the devices.
    pub disk_bytes: u64,
    /// Bytes of their blocks in memory, if all were cached.
    pub memory_bytes: u64,
}

impl DedupTables {
    /// The sums of all rows of the histogram.
    pub fn total(&self) -> [u64; ROW_WORDS] {
        let mut total = [0u64; ROW_WORDS];
        for row in &self.histogram.rows {
            total.iter_mut().zip(row).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
        total
    }
}

/// Reads how many blocks the dedup tables of a pool have.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn dedup_tables(rq: &Request, mos: &Mos, tops: &[VdevConfig]) -> Result<DedupTables, ObjectError> {
    let mut out = Contents::default();
    if let Some(id) = mos.named(rq, names::DDT_STATS).await? {
        let all = zap::Zap::open(rq, &mos.set, id).await?.all(rq, crate::mos::MAX_ENTRIES).await?;
        for table in all.iter().filter_map(|entry| DdtHistogram::from_words(&entry.value.words)) {
            let rows = out.tables.histogram.rows.iter_mut().zip(&table.rows);
            rows.flat_map(|(sums, row)| sums.iter_mut().zip(row)).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
    }
    tables(rq, mos, ObjectId(names::DIRECTORY_OBJECT), tops, &mut out).await?;
    out.tables.disk_bytes = out.shared.tables;
    Ok(out.tables)
}

/// Sums over the tables that are visited.
#[derive(Default)]
struct Contents {
    shared: Shared,
    tables: DedupTables,
}

/// Sums up the shared blocks of a pool.
pub async fn shared(rq: &Request, mos: &Mos, tops: &[VdevConfig]) -> Result<Shared, ObjectError> {
    let mut contents = Contents::default();
    tables(rq, mos, ObjectId(names::DIRECTORY_OBJECT), tops, &mut contents).await?;
    let mut out = contents.shared;
    if let Some(id) = mos.named(rq, names::DDT_STATS).await? {
        let all = zap::Zap::open(rq, &mos.set, id).await?.all(rq, crate::mos::MAX_ENTRIES).await?;
        for row in all.iter().flat_map(|e| e.value.words.chunks_exact(ROW_WORDS)) {
            if let [_, _, _, bytes, _, _, _, referenced] = row {
                out.dedup = out.dedup.saturating_add(*bytes);
                out.dedup_referenced = out.dedup_referenced.saturating_add(*referenced);
            }
        }
    }
    for top in tops {
        let Some(id) = mos.named(rq, &brt::table_name(top.id)).await? else { continue };
        let object = mos.set.object(rq, id).await?;
        let place = ErrorLocation { objset: mos.set.id(), object: id, level: 0, block: 0 };
        let table = BrtVdev::decode(object.dnode.bonus(), object.dnode.endian);
        let table = table.map_err(|error| ObjectError::Decode { place, error })?;
        out.cloned = out.cloned.saturating_add(table.used_bytes);
        out.clones_saved = out.clones_saved.saturating_add(table.saved_bytes);
    }
    Ok(out)
}

/// Name and object of each table and log in a directory: those of old pools are in the MOS directory, the others in one
/// directory per checksum.
async fn table_objects(rq: &Request, mos: &Mos, directory: ObjectId) -> Result<Vec<(String, ObjectId)>, ObjectError> {
    let mut out = Vec::new();
    let mut to_read = vec![directory];
    let mut trail = CycleGuard::default();
    while let Some(id) = to_read.pop() {
        trail.step(&mos.set, id)?;
        for (name, object) in mos.numbers(rq, id).await? {
            if !name.starts_with(TABLES) || name == names::DDT_STATS {
                continue;
            }
            match id == directory && !is_log(&name) && !name.contains("-zap-") {
                true => to_read.push(ObjectId(object)),
                false => out.push((name, ObjectId(object))),
            }
        }
    }
    Ok(out)
}

fn is_log(table: &str) -> bool {
    table.starts_with("DDT-log-")
}

/// Adds the tables of a directory.
async fn tables(
    rq: &Request,
    mos: &Mos,
    directory: ObjectId,
    tops: &[VdevConfig],
    out: &mut Contents,
) -> Result<(), ObjectError> {
    for (name, object) in table_objects(rq, mos, directory).await? {
        let table = mos.set.object(rq, object).await?;
        out.shared.tables = out.shared.tables.saturating_add(disk_bytes(&table));
        out.tables.memory_bytes = out.tables.memory_bytes.saturating_add(memory_bytes(&table));
        if is_log(&name) {
            log(rq, mos, object, tops, out).await?;
        }
    }
    Ok(())
}

/// A dedup table or the log of one (`zdb -D`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupTable {
    /// Name, for example `DDT-sha256-zap-unique`.
    pub name: String,
    /// Number of entries.
    pub entries: u64,
    /// Bytes that it takes on the devices.
    pub disk_bytes: u64,
    /// Bytes of its blocks in memory, if all were cached.
    pub memory_bytes: u64,
}

/// Lists the dedup tables of a pool, and their logs.
///
/// # Errors
/// Errors of reading the MOS.
pub async fn table_list(rq: &Request, mos: &Mos) -> Result<Vec<DedupTable>, ObjectError> {
    let mut out = Vec::new();
    for (name, id) in table_objects(rq, mos, ObjectId(names::DIRECTORY_OBJECT)).await? {
        let object = mos.set.object(rq, id).await?;
        let (disk_bytes, memory_bytes) = (disk_bytes(&object), memory_bytes(&object));
        let entries = match is_log(&name) {
            true => ddt_brt_reader::dedup_log(rq, &mos.set, id).await?.1.len() as u64,
            false => match zap::Zap::of(rq, &mos.set, object).await?.layout()? {
                zap::ZapLayout::Micro { entries, .. } => entries as u64,
                zap::ZapLayout::Fat(header) => header.entries,
            },
        };
        out.push(DedupTable { name, entries, disk_bytes, memory_bytes });
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

/// Bytes that an object takes on the devices, as `stat` shows them: whole sectors of 512 bytes.
fn disk_bytes(object: &Object) -> u64 {
    object.dnode.used_bytes().next_multiple_of(512)
}

/// Bytes of the blocks of an object that are no holes.
fn memory_bytes(object: &Object) -> u64 {
    let blocks = object.dnode.block_pointers.iter().map(BlockPointer::fill).fold(0, u64::saturating_add);
    blocks.saturating_mul(object.block_bytes())
}

/// Adds the entries of one log; of several entries for a block, the newest.
async fn log(
    rq: &Request,
    mos: &Mos,
    id: ObjectId,
    tops: &[VdevConfig],
    out: &mut Contents,
) -> Result<(), ObjectError> {
    let (_, live) = ddt_brt_reader::dedup_log(rq, &mos.set, id).await?;
    for entry in live.values() {
        out.tables.histogram.add(&entry.key, &entry.value, &|dva| deflated(dva, tops));
    }
    let out = &mut out.shared;
    for value in live.values().flat_map(|e| &e.value).filter(|v| v.birth.0 != 0) {
        let bytes = value.dvas().map(|dva| deflated(&dva, tops)).fold(0, u64::saturating_add);
        out.dedup = out.dedup.saturating_add(bytes);
        out.dedup_referenced = out.dedup_referenced.saturating_add(bytes.saturating_mul(value.references));
    }
    Ok(())
}

fn deflated(dva: &Dva, tops: &[VdevConfig]) -> u64 {
    tops.iter().find(|t| t.id == u64::from(dva.vdev)).map_or(0, |top| top.deflate(dva.asize_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!((Shared::default().dedup_ratio(), Shared::default().clone_ratio()), (100, 100));
        let s = Shared { dedup: 100, dedup_referenced: 147, cloned: 200_704, clones_saved: 409_600, tables: 0 };
        assert_eq!((s.dedup_ratio(), s.clone_ratio(), s.saved()), (147, 304, 409_647));
    }
}
