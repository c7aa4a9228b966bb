//! Invariants of space maps: headers, histograms and logs, against the segments in them.
//!
//! ```text
//!   header    length ≤ the object · allocated = allocations minus frees of the map itself
//!   segments  inside the metaslab, of whole sectors
//!   histogram no segment that does not fit into the metaslab's free space
//! ```
//!
//! *Histograms.* OpenZFS counts the free segments of a loaded metaslab, of its deferred frees and of the frees of the
//! txg separately. Merged, segments can only become longer. So the segments of a histogram, each as short as its bin
//! allows, fit into the free segments of the map. If they do not, the weight of the unloaded metaslab is greater than
//! that of the loaded one, and an assertion of `metaslab_load_impl` fails.
//!
//! Source: OpenZFS `module/zfs/metaslab.c` (`metaslab_sync`, `metaslab_load_impl`, `metaslab_verify_space`),
//! `space_map.c` (`space_map_histogram_add`, `space_map_load_callback`), `spa_log_spacemap.c` (`spa_ld_log_sm_cb`).

use super::{Part, Report};
use crate::config::VdevConfig;
use crate::metaslab_geometry::MetaslabGeometry;
use crate::open::Pool;
use crate::ranges::Ranges;
use crate::space_log::Unflushed;
use crate::space_map_loader::{Allocated, RUN_SEGMENTS, SpaceMapIndex, each_segment};
use std::ops::Range;
use weir_dmu::ObjectError;
use weir_format::space_map::{SpaceKind, SpaceMapHeader, SpaceSegment};
use weir_format::{ObjectId, ObjectType};
use weir_machine::Request;

/// Checks the space maps of all top-level vdevs.
pub(super) async fn check(rq: &Request, pool: &Pool, report: &mut Report) -> Result<(), ObjectError> {
    let index = SpaceMapIndex::read(rq, &pool.mos, &pool.tree.children).await?;
    for run in index.runs(RUN_SEGMENTS) {
        let space = index.allocated(rq, &pool.mos, &run).await?;
        for top in pool.tree.children.iter() {
            let Some(maps) = index.tops.get(&(top.id as u32)) else { continue };
            for (metaslab, map) in (0u64..).zip(&maps.metaslabs).filter(|(m, _)| run.contains((top.id as u32, *m))) {
                let unflushed = index.log.metaslabs.get(&(top.id as u32, metaslab));
                let metaslab = Metaslab { top, metaslab, map: map.object, unflushed };
                check_metaslab(rq, pool, &space, metaslab, report).await;
            }
        }
    }
    Ok(())
}

/// A metaslab and its space map; 0 if it has none.
#[derive(Clone, Copy)]
struct Metaslab<'a> {
    top: &'a VdevConfig,
    metaslab: u64,
    map: ObjectId,
    /// Changes that the map does not have.
    unflushed: Option<&'a Unflushed>,
}

impl Metaslab<'_> {
    fn place(&self) -> String {
        format!("vdev {} metaslab {} object {}", self.top.id, self.metaslab, self.map)
    }

    fn range(&self) -> Range<u64> {
        MetaslabGeometry::of(self.top).range(self.metaslab)
    }

    /// Free segments in bytes: neither allocated in the maps nor in the checkpoint's.
    fn free(&self, space: &Allocated) -> Vec<u64> {
        let id = self.top.id as u32;
        let Range { start, end } = self.range();
        let mut free = Ranges::default();
        free.add(start, end - start);
        for ranges in [space.vdevs.get(&id), space.kept.get(&id)].into_iter().flatten() {
            for (at, len) in ranges.within(start, end) {
                free.remove(at, len);
            }
        }
        free.iter().map(|(_, len)| len).collect()
    }
}

async fn check_metaslab(rq: &Request, pool: &Pool, space: &Allocated, metaslab: Metaslab<'_>, report: &mut Report) {
    let (place, map) = (metaslab.place(), metaslab.map);
    let unflushed = metaslab.unflushed;
    if let Some(unflushed) = unflushed {
        let newest = pool.uberblock.txg;
        report.demand(unflushed.since <= newest, Part::SpaceMap, &place, || {
            format!("unflushed from txg {} on, later than the pool's {newest}", unflushed.since)
        });
    }
    if map.0 == 0 {
        let is_logged = unflushed.is_some_and(|u| !u.taken.is_empty() || !u.given_back.is_empty());
        report.demand(!is_logged, Part::SpaceMap, &place, || "a log has entries of a metaslab without a map".into());
        return;
    }
    let read = pool.mos.set.object(rq, map).await;
    let Some(object) = report.readable(Part::SpaceMap, &place, read) else { return };
    let dnode = &object.dnode;
    report.demand(dnode.object_type == ObjectType::SPACE_MAP, Part::SpaceMap, &place, || {
        format!("object type {}, not a space map", dnode.object_type.name())
    });
    let sizes = [SpaceMapHeader::SIZE_V0, SpaceMapHeader::SIZE];
    let bonus_len = usize::from(dnode.bonus_len);
    report.demand(
        dnode.bonus_type == ObjectType::SPACE_MAP_HEADER && sizes.contains(&bonus_len),
        Part::SpaceMap,
        &place,
        || format!("a header of {bonus_len} bytes of type {}, not of {sizes:?}", dnode.bonus_type.name()),
    );
    let Ok(header) = SpaceMapHeader::decode(dnode.bonus(), dnode.endian) else { return };
    let length = header.length_bytes;
    let span = object.span_bytes();
    report.demand(length.is_multiple_of(8) && length <= span, Part::SpaceMap, &place, || {
        format!("smp_length {length}, in an object of {span} bytes")
    });
    check_segments(rq, pool, metaslab, &header, report).await;
    if let Some(histogram) = &header.histogram {
        check_histogram(&metaslab, histogram, &metaslab.free(space), report);
    }
}

/// Checks the segments of the map itself: `smp_alloc` is their sum, and each is inside the metaslab.
async fn check_segments(
    rq: &Request,
    pool: &Pool,
    metaslab: Metaslab<'_>,
    header: &SpaceMapHeader,
    report: &mut Report,
) {
    let range = metaslab.range();
    let (place, size, ashift) = (metaslab.place(), range.end - range.start, metaslab.top.ashift.min(16) as u32);
    let mut sum = 0i64;
    let mut outside = 0u64;
    let mut each = |segment: SpaceSegment| {
        let len = i64::try_from(segment.length_bytes).unwrap_or(i64::MAX);
        sum = if segment.kind == SpaceKind::Alloc { sum.saturating_add(len) } else { sum.saturating_sub(len) };
        outside += u64::from(segment.offset_bytes.saturating_add(segment.length_bytes) > size);
    };
    let read = each_segment(rq, &pool.mos, metaslab.map, ashift, &mut each).await;
    if report.readable(Part::SpaceMap, &place, read).is_none() {
        return;
    }
    report.demand(outside == 0, Part::SpaceMap, &place, || format!("{outside} segments reach beyond {size} bytes"));
    let allocated = header.allocated_bytes;
    report.demand(sum == allocated, Part::SpaceMap, &place, || {
        format!("smp_alloc {allocated}, the map's segments sum up to {sum}")
    });
}

/// Checks that the segments of a histogram, with the minimum length of their bins, fit into the free segments. Sizes
/// are powers of two, so they fit if, for each bin, the segments of this and all greater bins do.
fn check_histogram(metaslab: &Metaslab<'_>, histogram: &[u64; 32], free_bytes: &[u64], report: &mut Report) {
    let ashift = metaslab.top.ashift.min(16) as u32;
    let mut needed = 0u128;
    for (bin, count) in (0u32..32).zip(histogram).rev() {
        needed = needed * 2 + u128::from(*count);
        let shift = ashift + bin;
        let room: u128 = free_bytes.iter().map(|len| u128::from(len.checked_shr(shift).unwrap_or(0))).sum();
        if needed > room {
            let largest = free_bytes.iter().max().copied().unwrap_or(0);
            let what = format!(
                "smp_histogram has segments of {needed} times 2^{shift} bytes, free are {room} (largest {largest} bytes)"
            );
            report.add(Part::SpaceMap, metaslab.place(), what);
            return;
        }
    }
}
