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

use super::entry::{Entry, VARIANTS};
use crate::ddt_brt_reader::{FLAT, dedup_value};
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::zap::{self, Zap};
use std::sync::Arc;
use weir_codec::compress::{ZstdLevel, compress};
use weir_format::ddt::{DdtClass, DdtHistogram, DdtKey, DdtLogHeader, DdtPhys};
use weir_format::dsl::pool;
use weir_format::features::Feature;
use weir_format::{CompressionKind, ObjectId};
use weir_machine::Request;

/// Feature whose reference count is the number of fast tables.
pub const FEATURE: &Feature = Feature::FAST_DEDUP;
/// Version in a fast table's directory: flat values with a log.
pub const VERSION: u64 = 1;
/// Flags of a fast table's directory.
pub const FLAGS: u64 = FLAT | 2;
/// Flag in the first byte of a stored value: little-endian. The other bits are the compression.
const LITTLE: u8 = 0x80;
/// Object directory of the MOS.
pub(super) const DIRECTORY: ObjectId = ObjectId(pool::DIRECTORY_OBJECT);

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
        let fast = match counts {
            Some(counts) => zap::lookup_word(rq, mos, ObjectId(counts), FEATURE.guid).await?.is_some(),
            None => false,
        };
        Ok(Table::empty(fast))
    }

    /// Creates a table without entries.
    pub(super) fn empty(fast: bool) -> Self {
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
