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
use crate::space_log::{LOG_SHIFT, Log, SpaceLog, Unflushed};
use crate::top_zap::{self, CHECKPOINT_SM, UNFLUSHED_TXGS};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::{ErrorLocation, Object, ObjectError};
use weir_format::dsl::pool as names;
use weir_format::space_map::{SpaceEntries, SpaceEntry, SpaceKind, SpaceMapHeader, SpaceSegment};
use weir_format::{DecodeError, ObjectId, Txg};
use weir_machine::Request;

/// Allocated space of a pool.
#[derive(Debug, Default)]
pub struct Allocated {
    /// Allocated ranges of each top-level vdev, without those kept for a checkpoint.
    pub vdevs: BTreeMap<u32, Ranges>,
    /// Allocated bytes of each vdev by its space maps and their logs.
    pub bytes: BTreeMap<u32, u64>,
    /// Bytes kept for a checkpoint.
    pub checkpoint_bytes: u64,
    /// Log space maps, and the unflushed changes of the metaslabs.
    pub log: SpaceLog,
    /// Ranges of each vdev that are kept for the checkpoint.
    pub kept: BTreeMap<u32, Ranges>,
    /// Space maps that contradict themselves or cannot be read.
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
}

/// Reads the space maps of all top-level vdevs. A map that cannot be read is a fault; the others are applied.
pub async fn allocated(rq: &Request, mos: &Mos, tops: &[VdevConfig]) -> Result<Allocated, ObjectError> {
    let mut out = Allocated::default();
    let mut geometries = BTreeMap::new();
    for top in tops.iter().filter(|t| has_space(t)) {
        let vdev = top.id as u32;
        let ranges = metaslabs(rq, mos, top, &mut out.faults).await?;
        out.vdevs.insert(vdev, ranges);
        geometries.insert(vdev, MetaslabGeometry::of(top));
        unflushed_txgs(rq, mos, top, &mut out.log).await?;
    }
    logs(rq, mos, &geometries, &mut out).await?;
    for (vdev, ranges) in &out.vdevs {
        out.bytes.insert(*vdev, ranges.bytes());
    }
    for top in tops.iter().filter(|t| has_space(t)) {
        checkpoint(rq, mos, top, &mut out).await?;
    }
    Ok(out)
}

fn has_space(top: &VdevConfig) -> bool {
    top.is_concrete() && top.metaslab_array != 0
}

async fn metaslabs(
    rq: &Request,
    mos: &Mos,
    top: &VdevConfig,
    faults: &mut Vec<MapFault>,
) -> Result<Ranges, ObjectError> {
    let vdev = top.id as u32;
    let geometry = MetaslabGeometry::of(top);
    let maps = mos.words(rq, ObjectId(top.metaslab_array), geometry.count()).await?;
    let mut ranges = Ranges::default();
    for (metaslab, map) in (0u64..).zip(maps).filter(|(_, map)| *map != 0) {
        let object = ObjectId(map);
        let start = geometry.start(metaslab);
        let mut apply = |segment: SpaceSegment| {
            let offset = start.saturating_add(segment.offset_bytes);
            faults.extend(change(&mut ranges, vdev, object, segment.kind, offset, segment.length_bytes));
        };
        if let Err(error) = each_segment(rq, mos, object, top.ashift as u32, &mut apply).await {
            faults.push(MapFault::unreadable(vdev, object)(error));
        }
    }
    Ok(ranges)
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
    let (what, bytes) = match kind {
        SpaceKind::Alloc => ("allocates", ranges.add(offset, len)),
        SpaceKind::Free => ("frees", ranges.remove(offset, len)),
    };
    (bytes > 0).then_some(MapFault::Twice { vdev, object, what, offset, bytes })
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

async fn logs(
    rq: &Request,
    mos: &Mos,
    geometries: &BTreeMap<u32, MetaslabGeometry>,
    out: &mut Allocated,
) -> Result<(), ObjectError> {
    out.log.zap = mos.named(rq, names::LOG_SPACEMAP).await?;
    let Some(zap) = out.log.zap else { return Ok(()) };
    for (txg, object) in log_maps(rq, mos, zap).await? {
        let Allocated { vdevs, faults, log, .. } = &mut *out;
        let mut apply = |segment: SpaceSegment| {
            let Some(vdev) = segment.vdev else { return };
            let Some(geometry) = geometries.get(&vdev) else { return };
            let id = (vdev, geometry.index_of(segment.offset_bytes));
            if log.metaslabs.get(&id).is_some_and(|m| txg < m.since) {
                return;
            }
            if let Some(ranges) = vdevs.get_mut(&vdev) {
                faults.extend(change(ranges, vdev, object, segment.kind, segment.offset_bytes, segment.length_bytes));
            }
            let end = segment.offset_bytes.saturating_add(segment.length_bytes);
            log.note(id, txg, segment.kind, segment.offset_bytes..end);
        };
        match each_segment(rq, mos, object, LOG_SHIFT, &mut apply).await {
            Ok(blocks) => drop(out.log.logs.insert(txg, Log { object, blocks })),
            Err(error) => out.faults.push(MapFault::unreadable(u32::MAX, object)(error)),
        }
    }
    Ok(())
}

async fn checkpoint(rq: &Request, mos: &Mos, top: &VdevConfig, out: &mut Allocated) -> Result<(), ObjectError> {
    let Some(object) = top_zap::object(rq, mos, top, CHECKPOINT_SM).await? else { return Ok(()) };
    let vdev = top.id as u32;
    let Allocated { vdevs, faults, checkpoint_bytes, kept, .. } = &mut *out;
    let Some(ranges) = vdevs.get_mut(&vdev) else { return Ok(()) };
    let kept = kept.entry(vdev).or_default();
    let mut apply = |segment: SpaceSegment| {
        *checkpoint_bytes += segment.length_bytes;
        kept.add(segment.offset_bytes, segment.length_bytes);
        let kind = SpaceKind::Free;
        faults.extend(change(ranges, vdev, object, kind, segment.offset_bytes, segment.length_bytes));
    };
    if let Err(error) = each_segment(rq, mos, object, top.ashift as u32, &mut apply).await {
        out.faults.push(MapFault::unreadable(vdev, object)(error));
    }
    Ok(())
}
