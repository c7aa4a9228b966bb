//! The pool's tables of shared blocks: deduplicated ones (by checksum) and cloned ones (by address).
//!
//! A dedup table is a ZAP per checksum and class. With fast dedup the ZAPs are named in a directory object, and newer
//! entries are in two logs. An entry of a log overrides that of the ZAP, and an entry of the active log overrides that
//! of the log being flushed.

use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::zap::{self, Key, Zap};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_codec::decompress_into;
use weir_format::brt::{self, BrtVdev};
use weir_format::ddt::{self, DdtClass, DdtKey, DdtLogEntry, DdtLogHeader, DdtPhys, StoredValue};
use weir_format::dsl::pool;
use weir_format::{ChecksumKind, ObjectId};
use weir_machine::Request;

/// Entries read at a time.
const BATCH: usize = 4096;
/// Flag of a table's directory: values have the flat form.
pub(crate) const FLAT: u64 = 1;
/// The checksums that dedup can use.
pub(crate) const CHECKSUMS: [ChecksumKind; 6] = [
    ChecksumKind::Fletcher4,
    ChecksumKind::Sha256,
    ChecksumKind::Sha512,
    ChecksumKind::Skein,
    ChecksumKind::Edonr,
    ChecksumKind::Blake3,
];

/// One dedup table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupTable {
    /// Checksum of the keys.
    pub checksum: ChecksumKind,
    /// Class of the entries: ditto, duplicate or unique.
    pub class: DdtClass,
    /// Object of the ZAP.
    pub object: ObjectId,
    /// Whether values have the flat form (fast dedup).
    pub flat: bool,
}

/// Returns the dedup tables of the pool with this MOS.
pub async fn dedup_tables(rq: &Request, mos: &Arc<ObjectSet>) -> Result<Vec<DedupTable>, ObjectError> {
    let root = ObjectId(pool::DIRECTORY_OBJECT);
    let mut out = Vec::new();
    for checksum in CHECKSUMS {
        let own = zap::lookup_word(rq, mos, root, &ddt::directory_name(checksum)).await?;
        let directory = own.map_or(root, ObjectId);
        let flags = match own {
            Some(_) => zap::lookup_word(rq, mos, directory, ddt::DIR_FLAGS).await?.unwrap_or(0),
            None => 0,
        };
        let flat = flags & FLAT != 0;
        for class in DdtClass::ALL {
            let object = zap::lookup_word(rq, mos, directory, &ddt::table_name(checksum, class)).await?;
            out.extend(object.map(|id| DedupTable { checksum, class, object: ObjectId(id), flat }));
        }
    }
    Ok(out)
}

/// Returns some entries of a dedup table after `cookie` (0: from the start), and the next cookie; 0 at the end.
pub async fn dedup_entries(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    table: &DedupTable,
    cookie: u64,
) -> Result<(Vec<(DdtKey, Vec<DdtPhys>)>, u64), ObjectError> {
    let zap = Zap::open(rq, mos, table.object).await?;
    let entries = zap.entries(rq, cookie, BATCH).await?;
    let next = if entries.len() < BATCH { 0 } else { entries.last().map_or(0, |e| e.cookie) };
    let place = mos.place(table.object, 0, 0);
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        let Key::Words(words) = &entry.key else { continue };
        let (Some(key), Some(stored)) = (DdtKey::from_words(words), entry.value.bytes()) else { continue };
        out.push((
            key,
            dedup_value(&stored, table.flat).ok_or(ObjectError::Corrupt { place, why: "malformed dedup entry" })?,
        ));
    }
    Ok((out, next))
}

/// Maximum number of bytes read from a log.
const MAX_LOG_BYTES: u64 = 1 << 34;

/// Reads a dedup log of a fast table: its header, and the newest entry of each block that is not in the ZAPs yet.
pub async fn dedup_log(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    id: ObjectId,
) -> Result<(DdtLogHeader, BTreeMap<DdtKey, DdtLogEntry>), ObjectError> {
    let object = mos.object(rq, id).await?;
    let bad = |error| ObjectError::decode(mos.place(id, 0, 0), error);
    let header = DdtLogHeader::decode(object.dnode.bonus(), object.dnode.endian).map_err(bad)?;
    let flushed = (header.flags & DdtLogHeader::CHECKPOINT != 0).then_some(header.checkpoint);
    let mut live = BTreeMap::new();
    let bytes = header.length_bytes.min(object.span_bytes()).min(MAX_LOG_BYTES);
    for block in 0..bytes.div_ceil(object.block_bytes().max(1)) {
        let Some(bytes) = mos.reader().read_block(rq, &object, block).await? else { continue };
        for entry in ddt::log_entries(&bytes, object.dnode.endian).map_err(bad)? {
            if flushed.is_none_or(|flushed| entry.key > flushed) {
                live.insert(entry.key, entry);
            }
        }
    }
    Ok((header, live))
}

/// Decodes the stored value of a dedup table's entry; `None` if it is malformed.
pub fn dedup_value(stored: &[u8], flat: bool) -> Option<Vec<DdtPhys>> {
    let value = StoredValue::decode(stored).ok()?;
    let mut bytes = vec![0; if flat { DdtPhys::FLAT } else { DdtPhys::TRADITIONAL }];
    decompress_into(value.compression, value.data, &mut bytes).ok()?;
    DdtPhys::decode(&bytes, value.endian).ok()
}

/// Block reference table of one top-level vdev: the references that block cloning added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneTable {
    /// Index of the top-level vdev.
    pub vdev: u64,
    /// The table's header.
    pub header: BrtVdev,
}

/// Returns the block reference tables of top-level vdevs 0 to `vdevs` - 1.
pub async fn clone_tables(rq: &Request, mos: &Arc<ObjectSet>, vdevs: u64) -> Result<Vec<CloneTable>, ObjectError> {
    let mut out = Vec::new();
    for vdev in 0..vdevs {
        let id = zap::lookup_word(rq, mos, ObjectId(pool::DIRECTORY_OBJECT), &brt::table_name(vdev)).await?;
        let Some(id) = id else { continue };
        let object = mos.object(rq, ObjectId(id)).await?;
        let header = BrtVdev::decode(object.dnode.bonus(), object.dnode.endian);
        let header = header.map_err(|e| ObjectError::decode(mos.place(object.id, 0, 0), e))?;
        out.push(CloneTable { vdev, header });
    }
    Ok(out)
}

/// Returns the entries of a block reference table: additional references by byte offset on the vdev.
pub async fn clone_entries(
    rq: &Request,
    mos: &Arc<ObjectSet>,
    table: &CloneTable,
) -> Result<BTreeMap<u64, u64>, ObjectError> {
    let mut out = BTreeMap::new();
    if table.header.entries.0 == 0 {
        return Ok(out);
    }
    let endian = mos.pointer().endian();
    let zap = Zap::open(rq, mos, table.header.entries).await?;
    let mut cookie = 0;
    loop {
        let entries = zap.entries(rq, cookie, BATCH).await?;
        for entry in &entries {
            if let (Key::Words(words), Some(count)) = (&entry.key, brt::count(&entry.value.words, endian)) {
                out.extend(words.first().map(|offset| (*offset, count)));
            }
        }
        match entries.last() {
            Some(last) if entries.len() == BATCH => cookie = last.cookie,
            _ => return Ok(out),
        }
    }
}
