//! Copies of the allocated ranges of a vdev that is being removed, in syncing context.
//!
//! ```text
//!   space maps ─► allocated ranges behind the mapping ─► segments: ranges with gaps of at most 32 KiB, up to 16 MiB
//!     ─► space elsewhere, in halves if there is no segment that long ─► copied, concurrently ─► gaps freed
//!     ─► entries of the mapping, counts of obsolete bytes, a birth
//! ```
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`spa_vdev_copy_impl`, `spa_vdev_copy_segment`, `vdev_mapping_sync`).

use super::super::attach::parsed;
use super::super::syncing::TxgSync;
use super::record::{Removal, RemovalRecord, write_headers};
use super::{Step, refused};
use futures_util::future::join_all;
use std::collections::VecDeque;
use std::ops::Range;
use weir_blocks::{BlockError, Evacuations, MAX_BLOCK_BYTES};
use weir_dmu::write_words;
use weir_dsl::sync_tasks::DslSyncContext;
use weir_format::Dva;
use weir_format::indirect::MappingEntry;
use weir_machine::invariant;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;

/// Maximum length of a segment in bytes (`zfs_remove_max_segment`).
pub(super) const MAX_SEGMENT_BYTES: u64 = MAX_BLOCK_BYTES;
/// Maximum length of a gap within a segment, in bytes (`vdev_removal_max_span`).
pub(super) const MAX_GAP_BYTES: u64 = 32 << 10;

/// Allocated ranges that are copied together, with the gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Segment(VecDeque<Range<u64>>);

impl Segment {
    fn start(&self) -> u64 {
        self.0.front().map_or(0, |first| first.start)
    }

    fn span_bytes(&self) -> u64 {
        self.0.back().map_or(0, |last| last.end - self.start())
    }

    fn allocated_bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The gaps, relative to the start.
    fn gaps(&self) -> Vec<Range<u64>> {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        pairs.map(|(range, next)| range.end - self.start()..next.start - self.start()).collect()
    }

    /// Whether a range may belong to the segment.
    fn takes(&self, range: &Range<u64>) -> bool {
        let Some(last) = self.0.back() else { return true };
        range.start - last.end <= MAX_GAP_BYTES && range.end - self.start() <= MAX_SEGMENT_BYTES
    }

    /// Takes off a part of at most `bytes`, at the end of a range if possible.
    fn split(&mut self, bytes: u64) -> Segment {
        let limit = self.start().saturating_add(bytes);
        let count = self.0.iter().take_while(|range| range.end <= limit).count();
        let mut head: VecDeque<Range<u64>> = self.0.drain(..count).collect();
        if let Some(first) = self.0.front_mut().filter(|_| head.is_empty()) {
            head.push_back(first.start..limit);
            first.start = limit;
        }
        Segment(head)
    }
}

/// A segment and its place.
struct Placed {
    segment: Segment,
    target: Dva,
}

/// Copies the next ranges of the vdev that is being removed.
///
/// # Errors
/// Errors after which the txg cannot be synced; ranges that cannot be copied are no such error.
pub(super) async fn step(syncing: &mut TxgSync<'_>) -> Result<Step, PoolError> {
    let Some(removal) = syncing.core.removal.clone() else { return Ok(Step::Ended) };
    let segments = match next_segments(syncing, &removal).await {
        Ok(segments) => segments,
        Err(error) => return Ok(Step::Failed(error.to_string())),
    };
    if segments.is_empty() {
        return Ok(Step::Evacuated);
    }
    let failed = |error: BlockError| refused(error.to_string());
    let blocks = syncing.engine.cache.blocks().clone();
    let evacuations = blocks.metaslabs().evacuations();
    let txg = syncing.change.txg();
    let (placed, done) = place(evacuations, syncing, &removal, segments).await;
    let done = match done {
        Ok(()) => copy(evacuations, syncing, &removal, &placed).await,
        failed => failed,
    };
    if let Err(error) = done {
        for Placed { target, .. } in &placed {
            let range = target.offset_bytes..target.offset_bytes + target.asize_bytes;
            evacuations.unreserve(target.vdev, range, txg).map_err(failed)?;
        }
        return Ok(Step::Failed(error.to_string()));
    }
    for Placed { segment, target } in &placed {
        for gap in segment.gaps() {
            let range = target.offset_bytes + gap.start..target.offset_bytes + gap.end;
            evacuations.unreserve(target.vdev, range, txg).map_err(failed)?;
        }
    }
    record(syncing, removal, &placed).await?;
    Ok(Step::Copied)
}

/// The next segments behind the mapping, of about as many bytes as a txg copies.
async fn next_segments(syncing: &TxgSync<'_>, removal: &Removal) -> Result<VecDeque<Segment>, PoolError> {
    let root = parsed(&syncing.core.config.root)?;
    let top = root.children.get(removal.vdev as usize).ok_or_else(|| refused("no such device in pool"))?;
    let geometry = MetaslabGeometry::of(top);
    let from = removal.header.max_offset_bytes;
    let mut left = syncing.core.max_copied_bytes_per_txg;
    let mut segments = VecDeque::new();
    let blocks = syncing.engine.cache.blocks();
    let (evacuations, unit) = (blocks.metaslabs().evacuations(), blocks.unit_bytes());
    for metaslab in geometry.index_of(from)..geometry.count() {
        let allocated = evacuations.allocated(removal.vdev, metaslab).await;
        let allocated = allocated.map_err(|error| refused(error.to_string()))?;
        let mut segment = Segment::default();
        for range in allocated {
            let mut range = range.start.max(from)..range.end;
            while !range.is_empty() {
                if left == 0 {
                    break;
                }
                let longest = left.next_multiple_of(unit).min(MAX_SEGMENT_BYTES);
                let part = range.start..range.end.min(range.start.saturating_add(longest));
                if !segment.takes(&part) {
                    segments.push_back(std::mem::take(&mut segment));
                }
                left = left.saturating_sub(part.end - part.start);
                range.start = part.end;
                segment.0.push_back(part);
            }
        }
        segments.extend((!segment.0.is_empty()).then_some(segment));
        if left == 0 {
            break;
        }
    }
    Ok(segments)
}

/// Allocates space for the segments, in smaller parts where no free segment is long enough. Returns those with space.
async fn place(
    evacuations: Evacuations<'_>,
    syncing: &TxgSync<'_>,
    removal: &Removal,
    mut segments: VecDeque<Segment>,
) -> (Vec<Placed>, Result<(), BlockError>) {
    let unit = syncing.engine.cache.blocks().unit_bytes();
    let mut longest = MAX_SEGMENT_BYTES;
    let mut placed = Vec::new();
    while let Some(mut segment) = segments.pop_front() {
        if segment.span_bytes() > longest {
            let head = segment.split(longest);
            segments.push_front(segment);
            segments.push_front(head);
            continue;
        }
        let bytes = segment.span_bytes();
        match evacuations.reserve(removal.class, bytes, syncing.change.txg()).await {
            Ok(target) => placed.push(Placed { segment, target }),
            Err(BlockError::NoSpace { .. }) if bytes > unit => {
                longest = (bytes / 2).next_multiple_of(unit);
                segments.push_front(segment);
            }
            Err(error) => return (placed, Err(error)),
        }
    }
    (placed, Ok(()))
}

async fn copy(
    evacuations: Evacuations<'_>,
    syncing: &TxgSync<'_>,
    removal: &Removal,
    placed: &[Placed],
) -> Result<(), BlockError> {
    let (rq, txg) = (syncing.change.rq, syncing.change.txg());
    let copies = placed.iter().map(|placed| {
        let from = (removal.vdev, placed.segment.start());
        evacuations.copy(rq, from, &placed.target, txg)
    });
    join_all(copies).await.into_iter().collect()
}

/// Adds the copies to the mapping, in the MOS and in memory.
async fn record(syncing: &mut TxgSync<'_>, mut removal: Removal, placed: &[Placed]) -> Result<(), PoolError> {
    let entry = |placed: &Placed| MappingEntry { source_bytes: placed.segment.start(), target: placed.target };
    let entries: Vec<MappingEntry> = placed.iter().map(entry).collect();
    let mapped: u64 = placed.iter().map(|placed| placed.target.asize_bytes).sum();
    let bytes: u64 = placed.iter().map(|placed| placed.segment.allocated_bytes()).sum();
    let before = removal.header;
    removal.header.entries += entries.len() as u64;
    removal.header.mapped_bytes += mapped;
    removal.header.max_offset_bytes = entries.last().map_or(before.max_offset_bytes, MappingEntry::source_end_bytes);
    invariant!(removal.header.max_offset_bytes > before.max_offset_bytes, "nothing was copied");
    let DslSyncContext { rq, mos, tx, .. } = &syncing.change;
    let mut words = Vec::with_capacity(entries.len() * 3);
    for entry in &entries {
        words.push(entry.source_bytes >> 9);
        words.extend(entry.target.to_words());
    }
    write_words(rq, mos, tx, removal.mapping, before.entries * 3, &words).await?;
    if let Some(counts) = removal.header.counts {
        let obsolete = placed.iter().map(|p| p.target.asize_bytes - p.segment.allocated_bytes());
        let words: Vec<u8> = obsolete.flat_map(|bytes| (bytes as u32).to_le_bytes()).collect();
        mos.writes().write(rq, tx, counts, before.entries * 4, &words).await?;
    }
    let birth = [removal.header.max_offset_bytes, tx.txg().0];
    write_words(rq, mos, tx, removal.births, removal.birth_count * 2, &birth).await?;
    removal.birth_count += 1;
    write_headers(&syncing.change, &removal).await?;
    let evacuations = syncing.engine.cache.blocks().metaslabs().evacuations();
    evacuations.extend(&entries, bytes).map_err(|error| refused(error.to_string()))?;
    let mut now = RemovalRecord::read(syncing).await?;
    now.count(bytes);
    now.write(&syncing.change).await?;
    syncing.core.removal = Some(removal);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn segment(ranges: &[(u64, u64)]) -> Segment {
        Segment(ranges.iter().map(|(start, end)| start * KIB..end * KIB).collect())
    }

    #[test]
    fn a_segment_spans_short_gaps_only() {
        let one = segment(&[(0, 4), (8, 16)]);
        assert_eq!((one.span_bytes(), one.allocated_bytes()), (16 * KIB, 12 * KIB));
        assert_eq!(one.gaps().first(), Some(&(4 * KIB..8 * KIB)));
        assert!(one.takes(&(48 * KIB..52 * KIB)));
        assert!(!one.takes(&(49 * KIB..52 * KIB)), "a long gap");
        assert!(!one.takes(&(20 * KIB..MAX_SEGMENT_BYTES + 1)), "too long");
        assert!(Segment::default().takes(&(20 * KIB..MAX_SEGMENT_BYTES + 20 * KIB)));
    }

    #[test]
    fn a_segment_is_split_between_ranges_if_possible() {
        let all = segment(&[(1, 4), (8, 16)]);
        let mut rest = all.clone();
        assert_eq!(rest.split(8 * KIB), segment(&[(1, 4)]));
        assert_eq!(rest, segment(&[(8, 16)]));
        let mut rest = all;
        assert_eq!(rest.split(2 * KIB), segment(&[(1, 3)]));
        assert_eq!(rest, segment(&[(3, 4), (8, 16)]));
        assert_eq!(rest.gaps().first(), Some(&(KIB..5 * KIB)));
    }
}
