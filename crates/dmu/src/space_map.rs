//! Writes space maps: appends allocations and frees to the log, and condenses it.
//!
//! ```text
//!   debug: allocations of txg 9, pass 1 · segment · segment · padding ┃ two-word segment · …
//!                                                             block's end
//! ```
//!
//! A segment takes one word if possible (offset below 2^47, run up to 2^15 units, no vdev). Otherwise it takes two
//! words if the pool has `feature@spacemap_v2`, or several entries of one word. An entry of two words does not cross a
//! block boundary.
//!
//! Offsets are relative to the start of the metaslab, or to 0 in a log space map, whose entries name their vdev. Only
//! the syncer changes space maps. Source: OpenZFS `module/zfs/space_map.c`.

#[cfg(test)]
mod tests;

use crate::arrays::write_words;
use crate::error::ObjectError;
use crate::object::{NewObject, Object};
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use std::sync::Arc;
use weir_format::encoder::Encoder;
use weir_format::space_map::{SpaceEntry, SpaceKind, SpaceMapHeader, SpaceSegment, encode_entry};
use weir_format::{Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// Block size in bytes of a metaslab's space map in a pool with log space maps (`zfs_metaslab_sm_blksz_with_log`), and
/// of log space maps.
pub const BLOCK_BYTES_WITH_LOG: u32 = 128 << 10;
/// Block size in bytes of a metaslab's space map in a pool without them (`zfs_metaslab_sm_blksz_no_log`).
pub const BLOCK_BYTES_NO_LOG: u32 = 16 << 10;
/// log2 of the size of indirect blocks.
const INDIRECT_SHIFT: u8 = 14;

/// Limits of run and offset, in units, of entries of one and two words.
const RUN_MAX: u64 = 1 << 15;
const RUN2_MAX: u64 = 1 << 36;
const OFFSET_END: u64 = 1 << 47;

/// Encoding of a space map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// log2 of the unit in bytes: the vdev's ashift; 9 in log space maps; 0 in DTLs.
    pub shift: u32,
    /// Whether entries of two words are allowed (`feature@spacemap_v2` is active).
    pub two_words: bool,
    /// Sync pass for debug entries.
    pub pass: u16,
}

/// Creates an empty space map. In pools with `feature@spacemap_histogram` its header has a histogram, and the feature's
/// count grows by one; without the feature the header has the length of the first version (`space_map_alloc`).
///
/// # Errors
/// Errors of creating an object.
pub async fn create(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    block_bytes: u32,
    with_histogram: bool,
) -> Result<ObjectId, ObjectError> {
    let histogram = with_histogram.then_some([0; 32]);
    let header = SpaceMapHeader { object: 0, length_bytes: 0, allocated_bytes: 0, histogram };
    let mut new = NewObject::new(ObjectType::SPACE_MAP, block_bytes);
    new.indirect_shift = INDIRECT_SHIFT;
    let new = new.bonus(ObjectType::SPACE_MAP_HEADER, header.encode(Endian::Little));
    let id = set.changes().create(rq, tx, &new).await?;
    let object = set.object(rq, id).await?;
    store(rq, set, tx, &object, &SpaceMapHeader { object: id.0, ..header }).await?;
    Ok(id)
}

async fn load(rq: &Request, set: &Arc<ObjectSet>, id: ObjectId) -> Result<(Arc<Object>, SpaceMapHeader), ObjectError> {
    let object = set.object(rq, id).await?;
    let place = set.place(id, 0, 0);
    if object.dnode.object_type != ObjectType::SPACE_MAP {
        return Err(ObjectError::Corrupt { place, why: "not a space map" });
    }
    let header = SpaceMapHeader::decode(object.dnode.bonus(), object.dnode.endian);
    Ok((object, header.map_err(|e| ObjectError::decode(place, e))?))
}

async fn store(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    object: &Object,
    header: &SpaceMapHeader,
) -> Result<(), ObjectError> {
    let bonus = header.encode(object.dnode.endian);
    set.changes().set_bonus(rq, tx, object.id, ObjectType::SPACE_MAP_HEADER, &bonus).await
}

/// Reads the header of a space map.
pub async fn header(rq: &Request, set: &Arc<ObjectSet>, id: ObjectId) -> Result<SpaceMapHeader, ObjectError> {
    Ok(load(rq, set, id).await?.1)
}

/// Appends segments: first the allocations, then the frees, each in the given order; chooses [`SpaceSegment::words`].
/// `histogram` (see [`histogram()`]) replaces that of the header; headers of the older form have none.
///
/// # Errors
/// [`ObjectError::Unsupported`] for a segment that is empty, not of whole units, or cannot be encoded.
pub async fn append(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    style: Style,
    segments: &[SpaceSegment],
    histogram: Option<&[u64; 32]>,
) -> Result<(), ObjectError> {
    let (object, mut header) = load(rq, set, id).await?;
    header.object = id.0;
    if let (Some(own), Some(new)) = (&mut header.histogram, histogram) {
        *own = *new;
    }
    let first = header.length_bytes / 8;
    let mut log = Log { words: Vec::new(), first, per_block: object.block_bytes() / 8, style };
    for kind in [SpaceKind::Alloc, SpaceKind::Free] {
        let of_kind: Vec<&SpaceSegment> = segments.iter().filter(|s| s.kind == kind).collect();
        if of_kind.is_empty() {
            continue;
        }
        let action = u8::from(kind == SpaceKind::Free);
        log.entry(&SpaceEntry::Debug { action, sync_pass: style.pass, txg: tx.txg() });
        for segment in of_kind {
            log.segment(segment)?;
            let change = segment.length_bytes as i64;
            let change = if kind == SpaceKind::Alloc { change } else { change.wrapping_neg() };
            header.allocated_bytes = header.allocated_bytes.wrapping_add(change);
        }
    }
    write_words(rq, set, tx, id, first, &log.words).await?;
    header.length_bytes = (first + log.words.len() as u64) * 8;
    store(rq, set, tx, &object, &header).await
}

/// Condenses a space map: replaces its contents by these segments.
pub async fn rewrite(
    rq: &Request,
    set: &Arc<ObjectSet>,
    tx: &Tx,
    id: ObjectId,
    style: Style,
    segments: &[SpaceSegment],
    histogram: Option<&[u64; 32]>,
) -> Result<(), ObjectError> {
    let (object, header) = load(rq, set, id).await?;
    set.frees().punch(rq, tx, id, 0, u64::MAX).await?;
    let histogram_bins = header.histogram.map(|_| [0; 32]);
    let empty = SpaceMapHeader { object: id.0, length_bytes: 0, allocated_bytes: 0, histogram: histogram_bins };
    store(rq, set, tx, &object, &empty).await?;
    append(rq, set, tx, id, style, segments, histogram).await
}

/// Words to append to a map.
struct Log {
    words: Vec<u64>,
    /// Index of the first word.
    first: u64,
    per_block: u64,
    style: Style,
}

impl Log {
    fn entry(&mut self, entry: &SpaceEntry) {
        let mut e = Encoder::new(Endian::Little);
        encode_entry(entry, self.style.shift, &mut e);
        let bytes = e.finish();
        let (words, _) = bytes.as_chunks::<8>();
        self.words.extend(words.iter().map(|w| u64::from_le_bytes(*w)));
    }

    fn segment(&mut self, segment: &SpaceSegment) -> Result<(), ObjectError> {
        let unit = 1u64 << self.style.shift.min(63);
        let mut offset = segment.offset_bytes / unit;
        let mut rest = segment.length_bytes / unit;
        let whole = segment.offset_bytes.is_multiple_of(unit) && segment.length_bytes.is_multiple_of(unit);
        if !whole || rest == 0 {
            return Err(ObjectError::Unsupported { what: "a segment that is not of whole units" });
        }
        let large = segment.vdev.is_some() || offset >= OFFSET_END || rest > RUN_MAX;
        let words = if large && self.style.two_words { 2 } else { 1 };
        if words == 1 && (segment.vdev.is_some() || offset.saturating_add(rest) > OFFSET_END) {
            return Err(ObjectError::Unsupported { what: "such a segment without feature@spacemap_v2" });
        }
        while rest > 0 {
            let run = rest.min(if words == 2 { RUN2_MAX } else { RUN_MAX });
            if words == 2 && (self.first + self.words.len() as u64 + 1).is_multiple_of(self.per_block) {
                self.entry(&SpaceEntry::Padding);
            }
            let offset_bytes = offset * unit;
            let length_bytes = run * unit;
            self.entry(&SpaceEntry::Segment(SpaceSegment { offset_bytes, length_bytes, words, ..*segment }));
            offset += run;
            rest -= run;
        }
        Ok(())
    }
}

/// Histogram of a header whose unit is `1 << shift` bytes: `by_size[n]` is the number of free segments of 2ⁿ to
/// 2ⁿ⁺¹−1 bytes. A segment beyond the last bin is counted there as many times as it contains that bin's size; a segment
/// shorter than the unit is not counted.
pub fn histogram(by_size: &[u64; 64], shift: u32) -> [u64; 32] {
    const LAST: u32 = 31;
    let mut out = [0u64; 32];
    for (log, count) in (0u32..).zip(by_size) {
        let Some(bin) = log.checked_sub(shift) else { continue };
        if let Some(sum) = out.get_mut(bin.min(LAST) as usize) {
            *sum = sum.saturating_add(count.saturating_mul(1 << bin.saturating_sub(LAST)));
        }
    }
    out
}
