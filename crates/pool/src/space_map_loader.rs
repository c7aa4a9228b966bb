//! Loads the allocated segments of all vdevs from the space maps.
//!
//! ```text
//!   metaslab array ─▶ space map of each metaslab            allocations and frees up to the metaslab's last flush
//!   log space maps (one per txg, for all metaslabs) ─▶      those after it, applied in the order of their txg
//!   checkpoint space map ─▶ freed since the checkpoint but kept for it: no block of the current state is in them
//! ```
//!
//! Source: OpenZFS `module/zfs/space_map.c`, `spa_log_spacemap.c` (`spa_ld_log_sm_cb`), `cmd/zdb/zdb.c`
//! (`zdb_leak_init`).

use crate::config::VdevConfig;
use crate::metaslab_geometry::{MAX_METASLABS, MetaslabGeometry};
use crate::mos::Mos;
use crate::ranges::Ranges;
use crate::space_log::{LOG_SHIFT, Log, MetaslabId, SpaceLog, Unflushed};
use crate::top_zap::{self, CHECKPOINT_SM, UNFLUSHED_TXGS};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_dmu::{ErrorLocation, Object, ObjectError, space_map};
use weir_format::dsl::pool as names;
use weir_format::space_map::{SpaceEntries, SpaceEntry, SpaceKind, SpaceMapHeader, SpaceSegment};
use weir_format::{DecodeError, ObjectId, Txg};
use weir_machine::Request;

/// Maximum number of allocated segments that are in memory at a time when all space maps are read run by run.
pub const RUN_SEGMENTS: u64 = 4 << 20;
/// Minimum size of an entry of a space map in bytes.
const ENTRY_BYTES: u64 = 8;

/// A run of metaslabs, in the order of their vdev and index: from `first` to before `end`, or to the last one.
///
/// Callers that need the segments of a whole pool take them run by run, so that their memory has a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaslabRun {
    first: MetaslabId,
    end: Option<MetaslabId>,
}

impl MetaslabRun {
    /// All metaslabs.
    pub const ALL: MetaslabRun = MetaslabRun { first: (0, 0), end: None };

    /// One metaslab.
    pub fn one((vdev, metaslab): MetaslabId) -> Self {
        MetaslabRun { first: (vdev, metaslab), end: Some((vdev, metaslab + 1)) }
    }

    /// Whether the metaslab is in the run.
    pub fn contains(&self, id: MetaslabId) -> bool {
        id >= self.first && self.end.is_none_or(|end| id < end)
    }

    /// The part of a range of a vdev's space that belongs to this run; `shift` is log2 of the size of its metaslabs.
    /// Each byte belongs to exactly one of the runs that [`SpaceMapIndex::runs`] returns, even behind the last metaslab.
    pub fn part(&self, vdev: u32, shift: u32, range: Range<u64>) -> Option<Range<u64>> {
        let start_of = |metaslab: u64| metaslab.checked_shl(shift).unwrap_or(u64::MAX);
        let from = match self.first.0.cmp(&vdev) {
            Ordering::Less => 0,
            Ordering::Equal => start_of(self.first.1),
            Ordering::Greater => return None,
        };
        let to = match self.end {
            Some((of, metaslab)) if of == vdev => start_of(metaslab),
            Some((of, _)) if of < vdev => return None,
            _ => u64::MAX,
        };
        let part = range.start.max(from)..range.end.min(to);
        (part.start < part.end).then_some(part)
    }
}

/// Allocated space of a run of metaslabs.
#[derive(Debug, Default)]
pub struct Allocated {
    /// Allocated ranges of each top-level vdev, without those kept for a checkpoint.
    pub vdevs: BTreeMap<u32, Ranges>,
    /// Allocated bytes of each vdev by its space maps and their logs.
    pub bytes: BTreeMap<u32, u64>,
    /// Bytes kept for a checkpoint.
    pub checkpoint_bytes: u64,
    /// Ranges of each vdev that are kept for the checkpoint.
    pub kept: BTreeMap<u32, Ranges>,
    /// Space maps that contradict themselves or cannot be read.
    pub faults: Vec<MapFault>,
}

/// Header of a metaslab's space map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapSummary {
    /// The map; 0 if nothing was ever allocated.
    pub object: ObjectId,
    /// Length of its entries.
    pub length_bytes: u64,
    /// Allocated bytes by its entries.
    pub allocated_bytes: i64,
    /// Numbers of free segments by size.
    pub histogram: Option<[u64; 32]>,
}

/// Space maps of one top-level vdev.
#[derive(Clone, Debug)]
pub struct TopMaps {
    /// Layout of its metaslabs.
    pub geometry: MetaslabGeometry,
    /// log2 of the unit of its maps in bytes.
    pub ashift: u32,
    /// The map of each metaslab.
    pub metaslabs: Vec<MapSummary>,
    /// Map of the space that is kept for the checkpoint.
    checkpoint: Option<ObjectId>,
}

/// The headers of a pool's space maps, and the changes that the maps do not have yet. [`SpaceMapIndex::allocated`] reads the
/// segments in the maps.
#[derive(Debug, Default)]
pub struct SpaceMapIndex {
    /// Maps of each top-level vdev.
    pub tops: BTreeMap<u32, TopMaps>,
    /// Log space maps, and the unflushed changes of the metaslabs.
    pub log: SpaceLog,
    /// Headers and logs that contradict themselves or cannot be read.
    pub faults: Vec<MapFault>,
}

/// Error in a space map.
#[derive(Debug, thiserror::Error)]
pub enum MapFault {
    /// The map cannot be read.
    #[error("vdev {vdev}: space map {object}: {error}")]
    Unreadable {
        /// Top-level vdev.
        vdev: u32,
        /// The map's object.
        object: ObjectId,
        /// Cause.
        error: ObjectError,
    },
    /// An entry allocates allocated space, or frees free space.
    #[error("vdev {vdev}: space map {object} {what} {bytes} bytes at {offset:#x} that were so already")]
    Twice {
        /// Top-level vdev.
        vdev: u32,
        /// The map's object.
        object: ObjectId,
        /// `allocates` or `frees`.
        what: &'static str,
        /// Offset on the vdev.
        offset: u64,
        /// Number of these bytes.
        bytes: u64,
    },
}

impl MapFault {
    fn unreadable(vdev: u32, object: ObjectId) -> impl Fn(ObjectError) -> MapFault {
        move |error| MapFault::Unreadable { vdev, object, error }
    }

    /// The fault of an entry at `offset` of which `bytes` changed nothing, if there are any.
    fn twice(vdev: u32, object: ObjectId, kind: SpaceKind, offset: u64, bytes: u64) -> Option<MapFault> {
        let what = if kind == SpaceKind::Alloc { "allocates" } else { "frees" };
        (bytes > 0).then_some(MapFault::Twice { vdev, object, what, offset, bytes })
    }
}

impl SpaceMapIndex {
    /// Reads the headers of all space maps, and their logs. A map that cannot be read is a fault.
    ///
    /// # Errors
    /// Errors of reading the arrays of maps.
    pub async fn read(rq: &Request, mos: &Mos, tops: &[VdevConfig]) -> Result<Self, ObjectError> {
        let mut out = SpaceMapIndex::default();
        for top in tops.iter().filter(|t| t.is_concrete() && t.metaslab_array != 0) {
            let vdev = top.id as u32;
            let maps = headers(rq, mos, top, &mut out.faults).await?;
            out.tops.insert(vdev, maps);
            unflushed_txgs(rq, mos, top, &mut out.log).await?;
        }
        out.read_logs(rq, mos).await?;
        Ok(out)
    }

    async fn read_logs(&mut self, rq: &Request, mos: &Mos) -> Result<(), ObjectError> {
        self.log.zap = mos.named(rq, names::LOG_SPACEMAP).await?;
        let Some(zap) = self.log.zap else { return Ok(()) };
        for (txg, object) in log_maps(rq, mos, zap).await? {
            let SpaceMapIndex { tops, log, faults } = &mut *self;
            let mut apply = |segment: SpaceSegment| {
                let Some(vdev) = segment.vdev else { return };
                let Some(top) = tops.get(&vdev) else { return };
                let id = (vdev, top.geometry.index_of(segment.offset_bytes));
                if id.1 >= top.geometry.count() || log.metaslabs.entry(id).or_default().since > txg {
                    return;
                }
                let offset = segment.offset_bytes;
                let bytes = log.note(id, txg, segment.kind, offset..offset.saturating_add(segment.length_bytes));
                faults.extend(MapFault::twice(vdev, object, segment.kind, offset, bytes));
            };
            match each_segment(rq, mos, object, LOG_SHIFT, &mut apply).await {
                Ok(blocks) => drop(self.log.logs.insert(txg, Log { object, blocks })),
                Err(error) => self.faults.push(MapFault::unreadable(u32::MAX, object)(error)),
            }
        }
        Ok(())
    }

    /// Allocated bytes of a metaslab by its map and the logs.
    pub fn allocated_bytes(&self, (vdev, metaslab): MetaslabId) -> u64 {
        let map = self.tops.get(&vdev).and_then(|top| top.metaslabs.get(usize::try_from(metaslab).ok()?));
        let in_map = map.map_or(0, |map| map.allocated_bytes);
        let unflushed = self.log.metaslabs.get(&(vdev, metaslab)).map_or(0, Unflushed::balance_bytes);
        u64::try_from(in_map.saturating_add(unflushed)).unwrap_or(0)
    }

    /// Length of all maps in bytes.
    pub fn map_bytes(&self) -> u64 {
        self.tops.values().flat_map(|top| &top.metaslabs).map(|map| map.length_bytes).fold(0, u64::saturating_add)
    }

    /// Allocated bytes of all metaslabs.
    pub fn total_bytes(&self) -> u64 {
        self.ids().map(|id| self.allocated_bytes(id)).fold(0, u64::saturating_add)
    }

    /// All metaslabs, in order.
    fn ids(&self) -> impl Iterator<Item = MetaslabId> + '_ {
        self.tops.iter().flat_map(|(vdev, top)| (0..top.metaslabs.len() as u64).map(|metaslab| (*vdev, metaslab)))
    }

    /// Upper bound of the number of allocated segments of a metaslab: one for each entry of its map and of the logs.
    fn most_segments(&self, (vdev, metaslab): MetaslabId) -> u64 {
        let map = self.tops.get(&vdev).and_then(|top| top.metaslabs.get(usize::try_from(metaslab).ok()?));
        let unflushed = self.log.metaslabs.get(&(vdev, metaslab)).map_or(0, Unflushed::segments);
        map.map_or(0, |map| map.length_bytes / ENTRY_BYTES) + unflushed as u64
    }

    /// Divides the pool into runs of at most `max_segments` allocated segments; a run with a single metaslab may have more.
    pub fn runs(&self, max_segments: u64) -> Vec<MetaslabRun> {
        let mut out = Vec::new();
        let mut run = MetaslabRun::ALL;
        let mut segments = 0;
        for id in self.ids() {
            let more = self.most_segments(id);
            if segments > 0 && segments + more > max_segments {
                out.push(MetaslabRun { end: Some(id), ..run });
                run.first = id;
                segments = 0;
            }
            segments += more;
        }
        out.push(run);
        out
    }

    /// Reads the allocated segments of a run. A map that cannot be read is a fault; the others are applied.
    ///
    /// # Errors
    /// [`ObjectError`] if a map's object cannot be looked up.
    pub async fn allocated(&self, rq: &Request, mos: &Mos, run: &MetaslabRun) -> Result<Allocated, ObjectError> {
        let mut out = Allocated::default();
        for (vdev, top) in &self.tops {
            let ranges = out.vdevs.entry(*vdev).or_default();
            for (metaslab, map) in (0u64..).zip(&top.metaslabs).filter(|(m, _)| run.contains((*vdev, *m))) {
                let place = MapPlace { vdev: *vdev, object: map.object, start: top.geometry.start(metaslab) };
                let unflushed = self.log.metaslabs.get(&(*vdev, metaslab));
                read_map(rq, mos, place, top.ashift, unflushed, ranges, &mut out.faults).await;
            }
            out.bytes.insert(*vdev, ranges.bytes());
            self.take_kept(rq, mos, *vdev, run, &mut out).await;
        }
        Ok(out)
    }

    /// Moves the space that only the checkpoint needs from the allocated to the kept ranges.
    async fn take_kept(&self, rq: &Request, mos: &Mos, vdev: u32, run: &MetaslabRun, out: &mut Allocated) {
        let Some(top) = self.tops.get(&vdev) else { return };
        let Some(object) = top.checkpoint else { return };
        let Allocated { vdevs, faults, checkpoint_bytes, kept, .. } = &mut *out;
        let Some(ranges) = vdevs.get_mut(&vdev) else { return };
        let kept = kept.entry(vdev).or_default();
        let mut apply = |segment: SpaceSegment| {
            let whole = segment.offset_bytes..segment.offset_bytes.saturating_add(segment.length_bytes);
            let Some(part) = run.part(vdev, top.geometry.shift(), whole) else { return };
            let len = part.end - part.start;
            *checkpoint_bytes += len;
            kept.add(part.start, len);
            let bytes = ranges.remove(part.start, len);
            faults.extend(MapFault::twice(vdev, object, SpaceKind::Free, part.start, bytes));
        };
        if let Err(error) = each_segment(rq, mos, object, top.ashift, &mut apply).await {
            out.faults.push(MapFault::unreadable(vdev, object)(error));
        }
    }

    /// Reads all space maps, run by run, and returns the first fault.
    ///
    /// # Errors
    /// As [`SpaceMapIndex::allocated`].
    pub async fn first_fault(&mut self, rq: &Request, mos: &Mos) -> Result<Option<MapFault>, ObjectError> {
        if !self.faults.is_empty() {
            return Ok(Some(self.faults.swap_remove(0)));
        }
        for run in self.runs(RUN_SEGMENTS) {
            if let Some(fault) = self.allocated(rq, mos, &run).await?.faults.into_iter().next() {
                return Ok(Some(fault));
            }
        }
        Ok(None)
    }
}

/// A metaslab's map: its vdev, its object, and the offset on the vdev where the metaslab starts.
#[derive(Clone, Copy, Debug)]
pub struct MapPlace {
    /// Top-level vdev.
    pub vdev: u32,
    /// The map; 0 if nothing was ever allocated.
    pub object: ObjectId,
    /// Start of the metaslab.
    pub start: u64,
}

/// Adds the allocated ranges of one metaslab to `ranges`: those of its map, changed by what is not flushed to it yet.
pub async fn read_map(
    rq: &Request,
    mos: &Mos,
    place: MapPlace,
    ashift: u32,
    unflushed: Option<&Unflushed>,
    ranges: &mut Ranges,
    faults: &mut Vec<MapFault>,
) {
    let MapPlace { vdev, object, start } = place;
    if object.0 != 0 {
        let mut apply = |segment: SpaceSegment| {
            let offset = start.saturating_add(segment.offset_bytes);
            faults.extend(change(ranges, vdev, object, segment.kind, offset, segment.length_bytes));
        };
        if let Err(error) = each_segment(rq, mos, object, ashift, &mut apply).await {
            faults.push(MapFault::unreadable(vdev, object)(error));
        }
    }
    let Some(unflushed) = unflushed else { return };
    for (kind, segments) in [(SpaceKind::Free, &unflushed.given_back), (SpaceKind::Alloc, &unflushed.taken)] {
        for range in segments.iter() {
            faults.extend(change(ranges, vdev, object, kind, range.start, range.end - range.start));
        }
    }
}

async fn headers(
    rq: &Request,
    mos: &Mos,
    top: &VdevConfig,
    faults: &mut Vec<MapFault>,
) -> Result<TopMaps, ObjectError> {
    let vdev = top.id as u32;
    let geometry = MetaslabGeometry::of(top);
    let mut objects = mos.words(rq, ObjectId(top.metaslab_array), geometry.count()).await?;
    objects.resize(geometry.count() as usize, 0);
    let mut metaslabs = Vec::with_capacity(objects.len());
    for object in objects.into_iter().map(ObjectId) {
        let mut map = MapSummary { object, ..MapSummary::default() };
        if object.0 != 0 {
            match space_map::header(rq, &mos.set, object).await {
                Ok(SpaceMapHeader { length_bytes, allocated_bytes, histogram, .. }) => {
                    map = MapSummary { object, length_bytes, allocated_bytes, histogram };
                }
                Err(error) => faults.push(MapFault::unreadable(vdev, object)(error)),
            }
        }
        metaslabs.push(map);
    }
    let checkpoint = top_zap::object(rq, mos, top, CHECKPOINT_SM).await?;
    Ok(TopMaps { geometry, ashift: top.ashift as u32, metaslabs, checkpoint })
}

/// Applies an entry; returns a fault for the part that changes nothing.
fn change(
    ranges: &mut Ranges,
    vdev: u32,
    object: ObjectId,
    kind: SpaceKind,
    offset: u64,
    len: u64,
) -> Option<MapFault> {
    let bytes = match kind {
        SpaceKind::Alloc => ranges.add(offset, len),
        SpaceKind::Free => ranges.remove(offset, len),
    };
    MapFault::twice(vdev, object, kind, offset, bytes)
}

/// Calls `each` with every segment of a space map, block by block in the byte order of each. Returns the number of
/// blocks.
pub async fn each_segment(
    rq: &Request,
    mos: &Mos,
    id: ObjectId,
    shift: u32,
    each: &mut (dyn FnMut(SpaceSegment) + Send),
) -> Result<u64, ObjectError> {
    let object: Arc<Object> = mos.set.object(rq, id).await?;
    let place = ErrorLocation { objset: mos.set.id(), object: id, level: 0, block: 0 };
    let bad = |place: ErrorLocation| move |error: DecodeError| ObjectError::Decode { place, error };
    let header = SpaceMapHeader::decode(object.dnode.bonus(), object.dnode.endian).map_err(bad(place))?;
    let size = object.block_bytes();
    let blocks = header.length_bytes.min(object.span_bytes()).div_ceil(size);
    for block in 0..blocks {
        let place = ErrorLocation { block, ..place };
        let Some(pointer) = mos.set.pointers().at(rq, &object, 0, block).await? else { continue };
        let Some(bytes) = mos.set.reader().read_block(rq, &object, block).await? else { continue };
        let used = header.length_bytes.saturating_sub(block * size).min(bytes.len() as u64) as usize;
        for entry in SpaceEntries::new(bytes.get(..used).unwrap_or(&bytes), pointer.endian(), shift) {
            if let SpaceEntry::Segment(segment) = entry.map_err(bad(place))? {
                each(segment);
            }
        }
    }
    Ok(blocks)
}

/// Reads the txg from which each metaslab's changes are only in the log space maps.
async fn unflushed_txgs(rq: &Request, mos: &Mos, top: &VdevConfig, log: &mut SpaceLog) -> Result<(), ObjectError> {
    let Some(array) = top_zap::object(rq, mos, top, UNFLUSHED_TXGS).await? else { return Ok(()) };
    let vdev = top.id as u32;
    log.arrays.insert(vdev, array);
    for (metaslab, since) in mos.words(rq, array, MAX_METASLABS).await?.into_iter().enumerate() {
        if since != 0 {
            let unflushed = Unflushed { since: Txg(since), ..Unflushed::default() };
            log.metaslabs.insert((vdev, metaslab as u64), unflushed);
        }
    }
    Ok(())
}

/// The log space maps in `zap` by txg. The names of the entries are txgs in hexadecimal.
pub(crate) async fn log_maps(rq: &Request, mos: &Mos, zap: ObjectId) -> Result<BTreeMap<Txg, ObjectId>, ObjectError> {
    let by_name = mos.numbers(rq, zap).await?;
    let txg = |name: &str| u64::from_str_radix(name, 16).ok().map(Txg);
    Ok(by_name.into_iter().filter_map(|(name, map)| Some((txg(&name)?, ObjectId(map)))).collect())
}
