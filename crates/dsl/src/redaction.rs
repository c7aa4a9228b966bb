//! Redaction lists: the blocks of a snapshot that streams with a redaction bookmark leave out (OpenZFS
//! `module/zfs/dsl_bookmark.c`, `dsl_redaction_list_traverse`).
//!
//! ```text
//!   bookmark ─► object of the MOS: bonus area or spill block  how far the list is complete, GUIDs of snapshots
//!                                  blocks of 128 KiB          runs of blocks, by object and block
//! ```
//!
//! A list that is complete does not change until its bookmark is destroyed.

use super::{Dataset, Dsl};
use std::collections::VecDeque;
use std::sync::Arc;
use weir_dmu::error::ObjectError;
use weir_dmu::{Object, ObjectSet};
use weir_format::ObjectId;
use weir_format::dsl::{Bookmark, RedactionBlock, RedactionList};
use weir_format::features::Feature;
use weir_machine::Request;

/// Entries that are read at once: a block of them.
const READ_ENTRIES: u64 = RedactionList::BLOCK_BYTES as u64 / RedactionBlock::SIZE as u64;
/// Words of an entry.
const ENTRY_WORDS: u64 = RedactionBlock::SIZE as u64 / 8;

/// The GUIDs of the snapshots that a redaction bookmark redacts for; `None` for an ordinary bookmark, and where the
/// list cannot be decoded.
pub async fn redaction_snapshots(
    dsl: &Dsl,
    rq: &Request,
    bookmark: &Bookmark,
) -> Result<Option<Vec<u64>>, ObjectError> {
    Ok(RedactionReader::open(dsl, rq, bookmark).await?.map(|reader| reader.header.snapshots))
}

/// The value of the property `redact_snaps`.
pub fn redaction_text(guids: &[u64]) -> String {
    let guids: Vec<String> = guids.iter().map(u64::to_string).collect();
    guids.join(",")
}

/// The GUIDs of the snapshots that a dataset is redacted for: it was received from a stream without the blocks that they
/// changed. `None` if it is not redacted.
///
/// # Errors
/// Errors of reading the dataset's fields.
pub async fn redaction_of(dsl: &Dsl, rq: &Request, dataset: &Dataset) -> Result<Option<Vec<u64>>, ObjectError> {
    let fields = dsl.dataset_fields(rq, dataset).await?;
    Ok(fields.get(Feature::REDACTED_DATASETS.guid).map(|value| value.words.clone()))
}

/// Decodes the header of the redaction list in an object of the MOS: in the spill block, or where it has none in the
/// bonus area.
pub(crate) async fn header(
    mos: &Arc<ObjectSet>,
    rq: &Request,
    object: &Arc<Object>,
) -> Result<RedactionList, ObjectError> {
    let decoded = match mos.reader().read_spill(rq, object).await? {
        Some((bytes, endian)) => RedactionList::decode(&bytes, endian),
        None => RedactionList::decode(object.dnode.bonus(), object.dnode.endian),
    };
    decoded.map_err(|error| ObjectError::decode(mos.place(object.id, 0, 0), error))
}

/// Reads the entries of a redaction list, in their order.
#[derive(Clone)]
pub struct RedactionReader {
    mos: Arc<ObjectSet>,
    object: Arc<Object>,
    header: RedactionList,
    /// Number of the next entry to be read.
    next: u64,
    waiting: VecDeque<RedactionBlock>,
    /// Object and block: what comes before is left out.
    from: (ObjectId, u64),
}

impl std::fmt::Debug for RedactionReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedactionReader").field("object", &self.object.id).field("header", &self.header).finish()
    }
}

impl RedactionReader {
    /// The list of a bookmark; `None` if it is no redaction bookmark.
    ///
    /// # Errors
    /// Errors of reading the header.
    pub async fn open(dsl: &Dsl, rq: &Request, bookmark: &Bookmark) -> Result<Option<Self>, ObjectError> {
        if bookmark.redaction_list.0 == 0 {
            return Ok(None);
        }
        let mos = dsl.mos().clone();
        let object = mos.object(rq, bookmark.redaction_list).await?;
        let header = header(&mos, rq, &object).await?;
        let from = (ObjectId(0), 0);
        Ok(Some(RedactionReader { mos, object, header, next: 0, waiting: VecDeque::new(), from }))
    }

    /// The header.
    pub fn header(&self) -> &RedactionList {
        &self.header
    }

    /// Object of the list in the MOS.
    pub fn object(&self) -> ObjectId {
        self.object.id
    }

    /// Leaves out the blocks before this one.
    #[must_use]
    pub fn starting_at(self, object: ObjectId, block: u64) -> Self {
        RedactionReader { from: (object, block), ..self }
    }

    /// The next run of blocks; `None` after the last.
    ///
    /// # Errors
    /// Errors of reading; [`ObjectError::Corrupt`] if the list ends early or does not ascend.
    pub async fn next(&mut self, rq: &Request) -> Result<Option<RedactionBlock>, ObjectError> {
        loop {
            if self.waiting.is_empty() {
                self.read(rq).await?;
            }
            let Some(mut run) = self.waiting.pop_front() else { return Ok(None) };
            let end = run.block.saturating_add(run.count);
            let (object, block) = self.from;
            if run.object < object || run.object == object && end <= block {
                continue;
            }
            if run.object == object && run.block < block {
                run.count = end - block;
                run.block = block;
            }
            self.from = (run.object, end);
            return Ok(Some(run));
        }
    }

    /// Reads a block of entries.
    async fn read(&mut self, rq: &Request) -> Result<(), ObjectError> {
        let wanted = self.header.entries.saturating_sub(self.next).min(READ_ENTRIES);
        if wanted == 0 {
            return Ok(());
        }
        let corrupt = |why| ObjectError::Corrupt { place: self.mos.place(self.object.id, 0, self.next), why };
        let first = self.next.checked_mul(ENTRY_WORDS).ok_or_else(|| corrupt("a redaction list without end"))?;
        let words = self.mos.reader().read_words(rq, &self.object, first, wanted * ENTRY_WORDS).await?;
        let (entries, _) = words.as_chunks();
        let runs: Vec<RedactionBlock> = entries.iter().copied().map(RedactionBlock::from_words).collect();
        if runs.len() as u64 != wanted {
            return Err(corrupt("a redaction list that ends early"));
        }
        let ascends = |pair: &[RedactionBlock]| match pair {
            [a, b] => a.object < b.object || a.object == b.object && a.block.saturating_add(a.count) <= b.block,
            _ => true,
        };
        if !runs.windows(2).all(ascends) || runs.iter().any(|run| run.object.0 == 0 || run.block_bytes == 0) {
            return Err(corrupt("a redaction list that is out of order"));
        }
        self.next += wanted;
        self.waiting.extend(runs);
        Ok(())
    }
}
