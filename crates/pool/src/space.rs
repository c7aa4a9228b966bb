//! Allocated space of each vdev: the sums in the headers of its space maps, and the changes in their logs. The segments
//! themselves are read by [`crate::space_map_loader`].

use crate::config::{Class, VdevConfig};
use crate::metaslab_geometry::MetaslabGeometry;
use crate::mos::Mos;
use crate::space_log::LOG_SHIFT;
use crate::space_map_loader::{each_segment, log_maps};
use crate::top_zap::{self, CHECKPOINT_SM, UNFLUSHED_TXGS};
use weir_dmu::ObjectError;
use weir_dmu::space_map::header;
use weir_format::dsl::pool as names;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;

/// One metaslab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metaslab {
    /// Object of the space map; 0 if nothing was ever allocated.
    pub space_map: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of the space map's own entries.
    pub log_bytes: u64,
    /// Allocated bytes as of the last flush.
    pub allocated_bytes: u64,
    /// First txg whose changes are in the log space maps.
    pub unflushed_txg: u64,
    /// Numbers of free segments by size.
    pub histogram: Option<[u64; 32]>,
}

/// A vdev with more metaslabs than this reserves one for the intent log (`zfs_embedded_slog_min_ms`).
const EMBEDDED_LOG_METASLABS: usize = 64;

/// Space of one top-level vdev.
#[derive(Clone, Debug, Default)]
pub struct VdevSpace {
    /// Whether blocks can be allocated there.
    pub concrete: bool,
    /// Allocation class.
    pub class: Class,
    /// log2 of the sector size.
    pub ashift: u32,
    /// log2 of a metaslab's size in bytes.
    pub metaslab_shift: u32,
    /// The metaslabs.
    pub metaslabs: Vec<Metaslab>,
    /// Sum of changes in the log space maps that the metaslabs' own space maps do not have yet, in bytes.
    pub unflushed_bytes: i64,
    /// Bytes that only the checkpoint has.
    pub checkpoint_bytes: u64,
}

impl VdevSpace {
    /// Returns the allocated bytes of the space maps without their logs.
    pub fn map_bytes(&self) -> u64 {
        self.metaslabs.iter().map(|m| m.allocated_bytes).sum()
    }

    /// Returns the allocated bytes, including those in the logs.
    pub fn allocated_bytes(&self) -> u64 {
        let maps = i64::try_from(self.map_bytes()).unwrap_or(i64::MAX);
        u64::try_from(maps.saturating_add(self.unflushed_bytes)).unwrap_or(0)
    }

    /// Returns the metaslab that is reserved for the intent log: the emptiest one of a normal or special vdev with more
    /// than [`EMBEDDED_LOG_METASLABS`] (`vdev_metaslab_init`).
    pub fn embedded_log(&self) -> Option<&Metaslab> {
        let may_have = matches!(self.class, Class::Normal | Class::Special);
        let metaslabs = (may_have && self.metaslabs.len() > EMBEDDED_LOG_METASLABS).then_some(&self.metaslabs)?;
        metaslabs.iter().min_by_key(|metaslab| metaslab.allocated_bytes)
    }

    /// Returns the bytes that can be allocated.
    pub fn space_bytes(&self) -> u64 {
        self.metaslabs.iter().map(|m| m.size_bytes).fold(0, u64::saturating_add)
    }
}

/// Space of all top-level vdevs, by their index.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Top-level vdevs.
    pub vdevs: Vec<VdevSpace>,
}

/// Reads the sums of all vdevs' space maps, and their logs.
pub async fn load(rq: &Request, mos: &Mos, tree: &VdevConfig) -> Result<Space, ObjectError> {
    let mut out = Space::default();
    for top in &tree.children {
        let mut space = VdevSpace {
            concrete: top.is_concrete(),
            class: top.class,
            ashift: (top.ashift as u32).min(16),
            metaslab_shift: (top.metaslab_shift as u32).min(63),
            ..VdevSpace::default()
        };
        if space.concrete && top.metaslab_array != 0 {
            load_vdev(rq, mos, top, &mut space).await?;
        }
        out.vdevs.push(space);
    }
    load_logs(rq, mos, &mut out).await?;
    Ok(out)
}

async fn load_vdev(rq: &Request, mos: &Mos, top: &VdevConfig, space: &mut VdevSpace) -> Result<(), ObjectError> {
    let geometry = MetaslabGeometry::of(top);
    let count = geometry.count();
    let objects = mos.words(rq, ObjectId(top.metaslab_array), count).await?;
    let txgs = match top_zap::object(rq, mos, top, UNFLUSHED_TXGS).await? {
        Some(id) => mos.words(rq, id, count).await?,
        None => Vec::new(),
    };
    for index in 0..count as usize {
        let id = objects.get(index).copied().unwrap_or(0);
        let unflushed_txg = txgs.get(index).copied().unwrap_or(0);
        let size_bytes = geometry.size_bytes(index as u64);
        let mut metaslab = Metaslab { space_map: id, size_bytes, unflushed_txg, ..Metaslab::default() };
        if id != 0 {
            let header = header(rq, &mos.set, ObjectId(id)).await?;
            metaslab.log_bytes = header.length_bytes;
            metaslab.allocated_bytes = u64::try_from(header.allocated_bytes).unwrap_or(0);
            metaslab.histogram = header.histogram;
        }
        space.metaslabs.push(metaslab);
    }
    if let Some(id) = top_zap::object(rq, mos, top, CHECKPOINT_SM).await? {
        // The map has only frees, so its sum is negative.
        space.checkpoint_bytes = header(rq, &mos.set, id).await?.allocated_bytes.unsigned_abs();
    }
    Ok(())
}

/// Adds the log space maps: only changes after the last flush of their metaslab.
async fn load_logs(rq: &Request, mos: &Mos, space: &mut Space) -> Result<(), ObjectError> {
    let Some(zap) = mos.named(rq, names::LOG_SPACEMAP).await? else { return Ok(()) };
    for (txg, id) in log_maps(rq, mos, zap).await? {
        let vdevs = &mut space.vdevs;
        let mut each = |s: SpaceSegment| {
            let Some(v) = s.vdev.and_then(|v| vdevs.get_mut(v as usize)).filter(|v| v.concrete) else { return };
            let metaslab = s.offset_bytes.checked_shr(v.metaslab_shift).unwrap_or(0) as usize;
            if v.metaslabs.get(metaslab).is_none_or(|m| txg < Txg(m.unflushed_txg)) {
                return;
            }
            let delta = i64::try_from(s.length_bytes).unwrap_or(i64::MAX);
            v.unflushed_bytes = match s.kind {
                SpaceKind::Alloc => v.unflushed_bytes.saturating_add(delta),
                SpaceKind::Free => v.unflushed_bytes.saturating_sub(delta),
            };
        };
        each_segment(rq, mos, id, LOG_SHIFT, &mut each).await?;
    }
    Ok(())
}
