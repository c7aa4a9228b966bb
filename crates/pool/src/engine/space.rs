//! The metaslabs' space maps: where each transaction group's allocations and frees are written down.
//!
//! ```text
//!   top-level vdev ─ metaslab_array ─► object: space map of metaslab 0 · 1 · 2 · … (0: nothing was ever allocated there)
//! ```
//!
//! Each group appends to the maps of the metaslabs that it touched. Maps of metaslabs that nothing touched stay as they
//! are. Logs of all metaslabs together (`feature@log_spacemap`), which OpenZFS keeps, are played into the maps once when
//! such a pool is opened ([`crate::engine::unflushed`]).
//!
//! Source: OpenZFS `module/zfs/metaslab.c` (`metaslab_sync`), `module/zfs/vdev.c` (`vdev_sync`).

use crate::config::{VdevConfig, VdevKind};
use crate::error::PoolError;
use crate::mos::Mos;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use weir_blocks::Blocks;
use weir_blocks::SpaceChange;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{ObjectId, ObjectType};
use weir_machine::Request;
use weir_objects::dsl::change::Change;
use weir_objects::live::NewObject;
use weir_objects::space_map::{self, Style};

/// Bytes of a space map's blocks. Each group rewrites the last one, so they are small
/// (`zfs_metaslab_sm_blksz_no_log`).
const MAP_BLOCK_BYTES: u32 = 16 << 10;
/// Largest blocks of the array of maps.
const MAX_ARRAY_BLOCK_BYTES: u64 = 128 << 10;
/// The feature that space maps count their free segments by size.
const HISTOGRAM: &str = "spacemap_histogram";
/// The feature that long segments take entries of two words.
const TWO_WORDS: &str = "spacemap_v2";

/// The maps of one top-level vdev.
#[derive(Clone, Debug)]
struct Maps {
    ashift: u32,
    metaslab_shift: u32,
    /// Object of the array.
    array: ObjectId,
    /// Bytes of a group of dRAID, in whose multiples metaslabs begin; 1 elsewhere.
    group_bytes: u64,
    maps: Vec<ObjectId>,
}

impl Maps {
    /// Where a metaslab begins.
    fn start(&self, metaslab: u64) -> u64 {
        (metaslab << self.metaslab_shift).next_multiple_of(self.group_bytes.max(1))
    }

    /// Ranges of the vdev's space as allocated segments of a metaslab.
    fn segments(&self, ranges: &[Range<u64>], metaslab: u64) -> Vec<SpaceSegment> {
        let start = self.start(metaslab);
        let one = |r: &Range<u64>| SpaceSegment {
            kind: SpaceKind::Alloc,
            vdev: None,
            offset_bytes: r.start.saturating_sub(start),
            length_bytes: r.end - r.start,
            words: 1,
        };
        ranges.iter().map(one).collect()
    }

    /// The free segments between the allocated ones, counted by size.
    fn histogram(&self, told: &[SpaceSegment], metaslab: u64) -> [u64; 32] {
        let end = ((metaslab + 1) << self.metaslab_shift).saturating_sub(self.start(metaslab));
        let starts = told.iter().map(|s| s.offset_bytes).chain([end]);
        let ends = std::iter::once(0).chain(told.iter().map(|s| s.offset_bytes + s.length_bytes));
        let free = starts.zip(ends).map(|(next, end)| next.saturating_sub(end)).filter(|len| *len > 0);
        space_map::histogram(free, self.ashift)
    }
}

/// The space maps of a pool.
#[derive(Clone, Debug, Default)]
pub struct SpaceMaps {
    tops: BTreeMap<u32, Maps>,
    /// Maps that were appended to in the group that is being synced.
    touched: BTreeSet<(u32, u64)>,
}

/// A map is written anew when its log is longer than this, in bytes …
const REWRITE_BYTES: u64 = 4 * MAP_BLOCK_BYTES as u64;
/// … and so many times as long as it has to be.
const REWRITE_FACTOR: u64 = 2;
/// Bytes of an entry, at most.
const ENTRY_BYTES: u64 = 16;

impl SpaceMaps {
    /// Reads which maps there are.
    pub async fn read(rq: &Request, mos: &Mos, tops: &[VdevConfig]) -> Result<Self, PoolError> {
        let mut out = SpaceMaps::default();
        for top in tops.iter().filter(|t| t.is_concrete() && t.metaslab_array != 0) {
            let count = top.asize_bytes.checked_shr(top.metaslab_shift as u32).unwrap_or(0);
            let words = mos.words(rq, ObjectId(top.metaslab_array), count).await?;
            let mut maps: Vec<ObjectId> = words.into_iter().map(ObjectId).collect();
            maps.resize(count as usize, ObjectId(0));
            out.tops.insert(top.id as u32, Self::maps(top, ObjectId(top.metaslab_array), maps));
        }
        Ok(out)
    }

    fn maps(top: &VdevConfig, array: ObjectId, maps: Vec<ObjectId>) -> Maps {
        let group_bytes = match top.kind {
            VdevKind::Draid { parity, data, .. } => (u64::from(parity) + u64::from(data)) << top.ashift.min(16),
            _ => 1,
        };
        let (ashift, metaslab_shift) = (top.ashift.min(16) as u32, top.metaslab_shift.min(63) as u32);
        Maps { ashift, metaslab_shift, array, group_bytes, maps }
    }

    /// Makes the array of a new top-level vdev, and gives its object.
    pub async fn add_top(&mut self, change: &mut Change<'_>, top: &VdevConfig) -> Result<ObjectId, PoolError> {
        let count = top.asize_bytes.checked_shr(top.metaslab_shift as u32).unwrap_or(0);
        let block_bytes = (count * 8).next_power_of_two().clamp(512, MAX_ARRAY_BLOCK_BYTES) as u32;
        let new = NewObject::new(ObjectType::OBJECT_ARRAY, block_bytes);
        let array = change.mos.create(change.rq, change.tx, &new).await?;
        let maps = vec![ObjectId(0); count as usize];
        self.tops.insert(top.id as u32, Self::maps(top, array, maps));
        Ok(array)
    }

    /// The map of a metaslab, if there is one.
    pub fn map_of(&self, vdev: u32, metaslab: u64) -> Option<ObjectId> {
        let maps = self.tops.get(&vdev)?;
        maps.maps.get(usize::try_from(metaslab).ok()?).copied().filter(|id| id.0 != 0)
    }

    /// A new group begins.
    pub fn begin(&mut self) {
        self.touched.clear();
    }

    /// Appends what was taken and given back to the maps, in the order given. Maps that are missing are made; those that
    /// became much longer than what they say are written anew, the first time that a group touches them.
    pub async fn append(
        &mut self,
        change: &mut Change<'_>,
        blocks: &Blocks,
        changes: &[SpaceChange],
    ) -> Result<(), PoolError> {
        let two_words = change.is_active(TWO_WORDS).await?;
        let mut by_metaslab: BTreeMap<(u32, u64), Vec<SpaceSegment>> = BTreeMap::new();
        for c in changes {
            let Some(maps) = self.tops.get(&c.vdev) else { continue };
            let offset_bytes = c.offset_bytes.saturating_sub(maps.start(c.metaslab));
            let segment = SpaceSegment { kind: c.kind, vdev: None, offset_bytes, length_bytes: c.len_bytes, words: 1 };
            by_metaslab.entry((c.vdev, c.metaslab)).or_default().push(segment);
        }
        for ((vdev, metaslab), segments) in by_metaslab {
            let map = self.ensure(change, vdev, metaslab).await?;
            let Some(maps) = self.tops.get(&vdev) else { continue };
            let style = Style { shift: maps.ashift, two_words, pass: 1 };
            let (rq, mos, tx) = (change.rq, &change.mos, change.tx);
            if !self.touched.insert((vdev, metaslab)) {
                space_map::append(rq, mos, tx, map, style, &segments, None).await?;
                continue;
            }
            let told = maps.segments(&blocks.told_segments(vdev, metaslab), metaslab);
            let histogram = maps.histogram(&told, metaslab);
            let header = space_map::header(rq, mos, map).await?;
            let needed = told.len() as u64 * ENTRY_BYTES * REWRITE_FACTOR;
            if header.length_bytes > needed.max(REWRITE_BYTES) {
                space_map::rewrite(rq, mos, tx, map, style, &told, Some(&histogram)).await?;
            } else {
                space_map::append(rq, mos, tx, map, style, &segments, Some(&histogram)).await?;
            }
        }
        Ok(())
    }

    /// Writes a metaslab's map anew, from what the allocator knows.
    pub async fn rewrite(
        &mut self,
        change: &mut Change<'_>,
        blocks: &Blocks,
        vdev: u32,
        metaslab: u64,
    ) -> Result<(), PoolError> {
        let two_words = change.is_active(TWO_WORDS).await?;
        let map = self.ensure(change, vdev, metaslab).await?;
        let Some(maps) = self.tops.get(&vdev) else { return Ok(()) };
        let style = Style { shift: maps.ashift, two_words, pass: 1 };
        let told = maps.segments(&blocks.told_segments(vdev, metaslab), metaslab);
        let histogram = maps.histogram(&told, metaslab);
        space_map::rewrite(change.rq, &change.mos, change.tx, map, style, &told, Some(&histogram)).await?;
        Ok(())
    }

    /// The map of a metaslab; made if there is none.
    async fn ensure(&mut self, change: &mut Change<'_>, vdev: u32, metaslab: u64) -> Result<ObjectId, PoolError> {
        if let Some(map) = self.map_of(vdev, metaslab) {
            return Ok(map);
        }
        let unknown = || PoolError::Refused { what: format!("vdev {vdev} has no metaslab {metaslab}") };
        let maps = self.tops.get_mut(&vdev).ok_or_else(unknown)?;
        let slot = usize::try_from(metaslab).ok().and_then(|i| maps.maps.get_mut(i)).ok_or_else(unknown)?;
        let map = space_map::create(change.rq, &change.mos, change.tx, MAP_BLOCK_BYTES).await?;
        *slot = map;
        let at = metaslab * 8;
        change.mos.write(change.rq, change.tx, maps.array, at, &map.0.to_le_bytes()).await?;
        if change.is_enabled(HISTOGRAM).await? {
            change.count_feature(HISTOGRAM, 1).await?;
        }
        Ok(map)
    }
}
