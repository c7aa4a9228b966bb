//! Writing of the metaslabs' space maps, which record each txg's allocations and frees.
//!
//! ```text
//!   top-level vdev ─ metaslab_array ─► object: space map of metaslab 0 · 1 · 2 · … (0: no allocation so far)
//! ```
//!
//! With `feature@log_spacemap` each txg appends to one log for all metaslabs ([`weir_pool::space_log`]) and flushes the
//! metaslabs that are due to their own maps. Without it, each txg appends to the maps of the metaslabs that it changed.
//! Maps of unchanged metaslabs are not written.
//!
//! *Histograms* in the headers count a metaslab's free segments by size, for use before its map is loaded. Each txg
//! updates those of the metaslabs that it changes, even when only a log holds the changes, because OpenZFS asserts that a
//! loaded metaslab has a free segment as long as its histogram says.
//!
//! Source: OpenZFS `module/zfs/metaslab.c` (`metaslab_sync`, `metaslab_flush`), `module/zfs/vdev.c` (`vdev_sync`).

use super::synced_maps::{MapReader, MapsState, SyncedMaps, VdevMaps};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::alloc::Segments;
use weir_blocks::{Blocks, MetaslabSource, SpaceChange};
use weir_dmu::live::NewObject;
use weir_dmu::space_map::{self, BLOCK_BYTES_NO_LOG, BLOCK_BYTES_WITH_LOG, Style};
use weir_dmu::write_words;
use weir_dmu::zap::{self, NewZap};
use weir_dsl::sync_tasks::{DslSyncContext, ZAP_METADATA, features};
use weir_format::dsl::pool as names;
use weir_format::features::Feature;
use weir_format::space_map::{SpaceKind, SpaceSegment};
use weir_format::{BlockPointer, ObjectId, ObjectType, Txg};
use weir_machine::lock::MutexGuard;
use weir_machine::{Machine, Request};
use weir_pool::config::VdevConfig;
use weir_pool::error::PoolError;
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::mos::Mos;
use weir_pool::space_log::{FEATURE, KEPT, LOG_BLOCK_BYTES, LOG_SHIFT, Log, MetaslabId, SpaceLog};
use weir_pool::top_zap::UNFLUSHED_TXGS;

/// Maximum block size of the array of space maps, in bytes.
const MAX_ARRAY_BLOCK_BYTES: u64 = 128 << 10;
/// The feature for histograms in space map headers.
const HISTOGRAM: &Feature = Feature::SPACEMAP_HISTOGRAM;
/// The feature for two-word space map entries.
const SPACEMAP_V2: &Feature = Feature::SPACEMAP_V2;

/// The maps of one top-level vdev.
#[derive(Clone, Debug)]
struct Maps {
    ashift: u32,
    /// Object of the array.
    array: ObjectId,
    geometry: MetaslabGeometry,
    maps: Vec<ObjectId>,
    /// The vdev's ZAP.
    zap: ObjectId,
}

impl Maps {
    /// A range of the vdev's space as a segment of a metaslab's own map.
    fn segment(&self, kind: SpaceKind, range: Range<u64>, metaslab: u64) -> SpaceSegment {
        let offset_bytes = range.start.saturating_sub(self.geometry.start(metaslab));
        SpaceSegment { kind, vdev: None, offset_bytes, length_bytes: range.end - range.start, words: 1 }
    }

    /// Converts a metaslab's allocated ranges to segments of its own map.
    fn segments(&self, allocated: &Segments, metaslab: u64) -> Vec<SpaceSegment> {
        allocated.iter().map(|range| self.segment(SpaceKind::Alloc, range, metaslab)).collect()
    }

    /// The histogram for the header of a metaslab's map, as of `txg`.
    fn histogram(&self, blocks: &Blocks, (vdev, metaslab): MetaslabId, txg: Txg) -> [u64; 32] {
        space_map::histogram(&blocks.metaslabs().free_histogram(vdev, metaslab, txg), self.ashift)
    }
}

/// The space maps of a pool.
#[derive(Debug, Default)]
pub struct SpaceMaps {
    tops: BTreeMap<u32, Maps>,
    /// Maps that the syncing txg has appended to.
    touched: BTreeSet<MetaslabId>,
    /// The logs and the unflushed changes, and what loads of metaslabs need.
    synced: Arc<SyncedMaps>,
    /// The log of the syncing txg.
    current: Option<ObjectId>,
}

/// Minimum length in bytes of a map that is condensed.
const REWRITE_BYTES: u64 = 64 << 10;
/// Ratio of a map's length to its condensed length above which it is condensed.
const REWRITE_FACTOR: u64 = 2;
/// Maximum size of an entry, in bytes.
const ENTRY_BYTES: u64 = 16;
/// Encoding of logs.
const LOG_STYLE: Style = Style { shift: LOG_SHIFT, two_words: true, pass: 1 };
/// Block size of the arrays of unflushed txgs, in bytes.
const LOG_INCARNATION_BLOCK_BYTES: u32 = 128 << 10;
/// Arrays of 64-bit metadata (`DMU_OTN_UINT64_METADATA`).
const UINT64_METADATA: ObjectType = ObjectType(0xc3);

/// Sorts changes by metaslab.
fn by_metaslab(changes: &[SpaceChange]) -> BTreeMap<MetaslabId, Vec<SpaceChange>> {
    let mut out: BTreeMap<MetaslabId, Vec<SpaceChange>> = BTreeMap::new();
    for change in changes {
        out.entry((change.vdev, change.metaslab)).or_default().push(*change);
    }
    out
}

fn range(change: &SpaceChange) -> Range<u64> {
    change.offset_bytes..change.offset_bytes + change.len_bytes
}

impl SpaceMaps {
    /// Reads the arrays of maps in the MOS with this root; `log` holds the contents of the logs.
    pub async fn read(
        rq: &Request,
        mos: &Mos,
        tops: &[VdevConfig],
        root: BlockPointer,
        log: SpaceLog,
    ) -> Result<Self, PoolError> {
        let synced = Arc::new(SyncedMaps::new(root, log));
        let mut out = SpaceMaps { synced, ..SpaceMaps::default() };
        for top in tops.iter().filter(|t| t.is_concrete() && t.metaslab_array != 0) {
            let count = MetaslabGeometry::of(top).count();
            let words = mos.words(rq, ObjectId(top.metaslab_array), count).await?;
            let mut maps: Vec<ObjectId> = words.into_iter().map(ObjectId).collect();
            maps.resize(count as usize, ObjectId(0));
            out.insert(top, ObjectId(top.metaslab_array), maps);
        }
        Ok(out)
    }

    fn insert(&mut self, top: &VdevConfig, array: ObjectId, maps: Vec<ObjectId>) {
        let maps = Self::maps(top, array, maps);
        let Maps { ashift, array, geometry, .. } = maps;
        self.synced.add(top.id as u32, VdevMaps { array, geometry, ashift });
        self.tops.insert(top.id as u32, maps);
    }

    /// The source from which the allocator loads metaslabs.
    pub(crate) fn source(&self, machine: &Machine, blocks: &Arc<Blocks>) -> Arc<dyn MetaslabSource> {
        let (maps, machine) = (self.synced.clone(), machine.clone());
        Arc::new(MapReader { maps, machine, blocks: Arc::downgrade(blocks) })
    }

    /// Records that the syncing txg was committed, with this root of the MOS.
    pub(crate) fn committed(&self, root: BlockPointer) {
        self.synced.committed(root);
    }

    fn log(&self) -> MutexGuard<'_, MapsState> {
        self.synced.lock()
    }

    fn maps(top: &VdevConfig, array: ObjectId, maps: Vec<ObjectId>) -> Maps {
        let ashift = top.ashift.min(16) as u32;
        Maps { ashift, array, geometry: MetaslabGeometry::of(top), maps, zap: ObjectId(top.top_zap) }
    }

    /// Creates the array of maps of a new top-level vdev, and returns its object.
    pub async fn add_top(&mut self, change: &mut DslSyncContext<'_>, top: &VdevConfig) -> Result<ObjectId, PoolError> {
        let count = MetaslabGeometry::of(top).count();
        let block_bytes = (count * 8).next_power_of_two().clamp(512, MAX_ARRAY_BLOCK_BYTES) as u32;
        let new = NewObject::new(ObjectType::OBJECT_ARRAY, block_bytes);
        let array = change.mos.changes().create(change.rq, change.tx, &new).await?;
        let maps = vec![ObjectId(0); count as usize];
        self.insert(top, array, maps);
        Ok(array)
    }

    /// Forgets the maps of a top-level vdev that leaves the pool.
    pub fn remove_top(&mut self, vdev: u32) {
        self.synced.remove(vdev);
        self.touched.retain(|(of, _)| *of != vdev);
        self.tops.remove(&vdev);
    }

    /// A top-level vdev has grown: its new metaslabs have no maps yet.
    pub fn grow_top(&mut self, top: &VdevConfig) {
        let Some(old) = self.tops.get(&(top.id as u32)) else { return };
        let (array, mut maps) = (old.array, old.maps.clone());
        maps.resize(MetaslabGeometry::of(top).count() as usize, ObjectId(0));
        self.insert(top, array, maps);
    }

    /// The map of a metaslab, if there is one.
    pub fn map_of(&self, (vdev, metaslab): MetaslabId) -> Option<ObjectId> {
        let maps = self.tops.get(&vdev)?;
        maps.maps.get(usize::try_from(metaslab).ok()?).copied().filter(|id| id.0 != 0)
    }

    /// The metaslab that contains an offset of a vdev.
    pub fn metaslab_at(&self, vdev: u32, offset_bytes: u64) -> u64 {
        self.tops.get(&vdev).map_or(0, |maps| maps.geometry.index_of(offset_bytes))
    }

    /// Begins the syncing txg, whose changes so far are `early`.
    ///
    /// In a pool with logs, creates the txg's log, flushes the metaslabs that are due (or `all`) as of the previous txg,
    /// and removes obsolete logs.
    pub async fn begin(
        &mut self,
        change: &mut DslSyncContext<'_>,
        blocks: &Blocks,
        early: &[SpaceChange],
        all: bool,
    ) -> Result<(), PoolError> {
        self.touched.clear();
        self.current = None;
        if !features::is_enabled(change, FEATURE).await? || !features::is_active(change, SPACEMAP_V2).await? {
            return Ok(());
        }
        let txg = change.txg();
        let zap = self.log_zap(change).await?;
        let early = by_metaslab(early);
        let due = self.log().log.due(txg, all);
        for id in due {
            self.flush(change, blocks, id, early.get(&id).map_or(&[], |e| e)).await?;
        }
        let obsolete = self.log().log.take_obsolete(txg, if all { 0 } else { KEPT });
        let DslSyncContext { rq, mos, tx, .. } = &*change;
        for (of, _) in &obsolete {
            zap::remove_name(rq, mos, tx, zap, &format!("{:x}", of.0)).await?;
        }
        let mut obsolete = obsolete.into_iter().map(|(_, log)| log.object);
        let object = match obsolete.next() {
            Some(object) => {
                space_map::rewrite(rq, mos, tx, object, LOG_STYLE, &[], None).await?;
                object
            }
            None => create_map(change, LOG_BLOCK_BYTES).await?,
        };
        zap::put_word(change.rq, &change.mos, change.tx, zap, &format!("{:x}", txg.0), object.0).await?;
        self.log().log.logs.insert(txg, Log { object, blocks: 0 });
        self.current = Some(object);
        for object in obsolete {
            remove_map(change, object).await?;
        }
        Ok(())
    }

    /// The ZAP of the logs; created if there is none.
    async fn log_zap(&mut self, change: &mut DslSyncContext<'_>) -> Result<ObjectId, PoolError> {
        let known = self.log().log.zap;
        if let Some(zap) = known {
            return Ok(zap);
        }
        let DslSyncContext { rq, mos, tx, .. } = &*change;
        let zap = zap::create(rq, mos, tx, &NewZap::new(ZAP_METADATA)).await?;
        zap::put_word(rq, mos, tx, ObjectId(names::DIRECTORY_OBJECT), names::LOG_SPACEMAP, zap.0).await?;
        features::count_feature(change, FEATURE, 1).await?;
        self.log().log.zap = Some(zap);
        Ok(zap)
    }

    /// Flushes a metaslab to its map as of the previous txg; `early` are the changes of the syncing txg so far.
    async fn flush(
        &mut self,
        change: &mut DslSyncContext<'_>,
        blocks: &Blocks,
        id: MetaslabId,
        early: &[SpaceChange],
    ) -> Result<(), PoolError> {
        let unflushed = self.log().log.flushed(id, change.txg());
        self.write_since(change, id).await?;
        if !unflushed.dirty {
            return Ok(());
        }
        let Some(maps) = self.tops.get(&id.0) else { return Ok(()) };
        let of = |kind, segments: &Segments| -> Vec<SpaceSegment> {
            segments.iter().map(|range| maps.segment(kind, range, id.1)).collect()
        };
        let mut segments = of(SpaceKind::Alloc, &unflushed.taken);
        segments.extend(of(SpaceKind::Free, &unflushed.given_back));
        self.write_map(change, blocks, id, &segments, early).await
    }

    /// Writes the first txg whose logs apply to a metaslab (`metaslab_unflushed_txg`).
    async fn write_since(&mut self, change: &mut DslSyncContext<'_>, id: MetaslabId) -> Result<(), PoolError> {
        let Some(maps) = self.tops.get(&id.0) else { return Ok(()) };
        let (since, array) = {
            let state = self.log();
            let Some(metaslab) = state.log.metaslabs.get(&id) else { return Ok(()) };
            (metaslab.since, state.log.arrays.get(&id.0).copied())
        };
        let DslSyncContext { rq, mos, tx, .. } = &*change;
        let array = match array {
            Some(array) => array,
            None => {
                let array =
                    mos.changes().create(rq, tx, &NewObject::new(UINT64_METADATA, LOG_INCARNATION_BLOCK_BYTES)).await?;
                zap::put_word(rq, mos, tx, maps.zap, UNFLUSHED_TXGS, array.0).await?;
                self.log().log.arrays.insert(id.0, array);
                array
            }
        };
        Ok(write_words(rq, mos, tx, array, id.1, &[since.0]).await?)
    }

    /// Appends segments to a metaslab's map, or condenses it if it is loaded and its map is much longer than necessary.
    ///
    /// After the append, the map has all changes that the allocator handed out, except for those in `missing`.
    async fn write_map(
        &mut self,
        change: &mut DslSyncContext<'_>,
        blocks: &Blocks,
        id: MetaslabId,
        segments: &[SpaceSegment],
        missing: &[SpaceChange],
    ) -> Result<(), PoolError> {
        let two_words = features::is_active(change, SPACEMAP_V2).await?;
        let map = self.ensure(change, id).await?;
        let Some(maps) = self.tops.get(&id.0) else { return Ok(()) };
        let style = Style { shift: maps.ashift, two_words, pass: 1 };
        let DslSyncContext { rq, mos, tx, .. } = &*change;
        let histogram = maps.histogram(blocks, id, change.txg());
        let header = space_map::header(rq, mos, map).await?;
        if header.length_bytes > REWRITE_BYTES
            && let Some(allocated) = allocated_without(blocks, id, missing)
        {
            let needed = allocated.len() as u64 * ENTRY_BYTES * REWRITE_FACTOR;
            if header.length_bytes > needed {
                let all = maps.segments(&allocated, id.1);
                return Ok(space_map::rewrite(rq, mos, tx, map, style, &all, Some(&histogram)).await?);
            }
        }
        Ok(space_map::append(rq, mos, tx, map, style, segments, Some(&histogram)).await?)
    }

    /// Appends allocations and frees to the log or the maps, in the given order. Creates missing maps.
    pub async fn append(
        &mut self,
        change: &mut DslSyncContext<'_>,
        blocks: &Blocks,
        changes: &[SpaceChange],
    ) -> Result<(), PoolError> {
        match self.current {
            Some(log) => self.append_to_log(change, blocks, log, changes).await,
            None => self.append_to_maps(change, blocks, changes).await,
        }
    }

    async fn append_to_log(
        &mut self,
        change: &mut DslSyncContext<'_>,
        blocks: &Blocks,
        log: ObjectId,
        changes: &[SpaceChange],
    ) -> Result<(), PoolError> {
        let txg = change.txg();
        let mut segments = Vec::new();
        for (id, changes) in by_metaslab(changes) {
            self.ensure(change, id).await?;
            let is_new = self.log().log.mark(id, txg);
            if is_new {
                self.write_since(change, id).await?;
            }
            for c in changes {
                self.log().log.note(id, txg, c.kind, range(&c));
                segments.push(SpaceSegment {
                    kind: c.kind,
                    vdev: Some(c.vdev),
                    offset_bytes: c.offset_bytes,
                    length_bytes: c.len_bytes,
                    words: 2,
                });
            }
            self.set_histogram(change, blocks, id).await?;
        }
        let DslSyncContext { rq, mos, tx, .. } = &*change;
        space_map::append(rq, mos, tx, log, LOG_STYLE, &segments, None).await?;
        let header = space_map::header(rq, mos, log).await?;
        let blocks = header.length_bytes.div_ceil(u64::from(LOG_BLOCK_BYTES));
        self.log().log.logs.insert(txg, Log { object: log, blocks });
        Ok(())
    }

    /// Updates the histogram in the header of a metaslab's map without appending to the map.
    async fn set_histogram(
        &self,
        change: &DslSyncContext<'_>,
        blocks: &Blocks,
        id: MetaslabId,
    ) -> Result<(), PoolError> {
        let Some(map) = self.map_of(id) else { return Ok(()) };
        let Some(maps) = self.tops.get(&id.0) else { return Ok(()) };
        let histogram = maps.histogram(blocks, id, change.txg());
        let style = Style { shift: maps.ashift, two_words: true, pass: 1 };
        Ok(space_map::append(change.rq, &change.mos, change.tx, map, style, &[], Some(&histogram)).await?)
    }

    async fn append_to_maps(
        &mut self,
        change: &mut DslSyncContext<'_>,
        blocks: &Blocks,
        changes: &[SpaceChange],
    ) -> Result<(), PoolError> {
        for (id, changes) in by_metaslab(changes) {
            let Some(maps) = self.tops.get(&id.0) else { continue };
            let segments: Vec<SpaceSegment> = changes.iter().map(|c| maps.segment(c.kind, range(c), id.1)).collect();
            if self.touched.insert(id) {
                self.write_map(change, blocks, id, &segments, &[]).await?;
                continue;
            }
            let style =
                Style { shift: maps.ashift, two_words: features::is_active(change, SPACEMAP_V2).await?, pass: 1 };
            let histogram = maps.histogram(blocks, id, change.txg());
            let map = self.ensure(change, id).await?;
            space_map::append(change.rq, &change.mos, change.tx, map, style, &segments, Some(&histogram)).await?;
        }
        Ok(())
    }

    /// The map of a metaslab; created if there is none.
    async fn ensure(&mut self, change: &mut DslSyncContext<'_>, id: MetaslabId) -> Result<ObjectId, PoolError> {
        if let Some(map) = self.map_of(id) {
            return Ok(map);
        }
        let (vdev, metaslab) = id;
        let unknown = || PoolError::Refused { what: format!("vdev {vdev} has no metaslab {metaslab}") };
        let block_bytes = if self.current.is_some() { BLOCK_BYTES_WITH_LOG } else { BLOCK_BYTES_NO_LOG };
        let maps = self.tops.get_mut(&vdev).ok_or_else(unknown)?;
        let slot = usize::try_from(metaslab).ok().and_then(|i| maps.maps.get_mut(i)).ok_or_else(unknown)?;
        let map = create_map(change, block_bytes).await?;
        *slot = map;
        write_words(change.rq, &change.mos, change.tx, maps.array, metaslab, &[map.0]).await?;
        Ok(map)
    }
}

/// Creates an empty space map in the MOS (`space_map_alloc`).
///
/// If the histogram feature is enabled, the map has a histogram and the feature's reference count increases.
pub(crate) async fn create_map(change: &mut DslSyncContext<'_>, block_bytes: u32) -> Result<ObjectId, PoolError> {
    let with_histogram = features::is_enabled(change, HISTOGRAM).await?;
    let map = space_map::create(change.rq, &change.mos, change.tx, block_bytes, with_histogram).await?;
    if with_histogram {
        features::count_feature(change, HISTOGRAM, 1).await?;
    }
    Ok(map)
}

/// Removes a space map from the MOS and drops its reference to the histogram feature (`space_map_free_obj`).
pub(crate) async fn remove_map(change: &mut DslSyncContext<'_>, map: ObjectId) -> Result<(), PoolError> {
    let header = space_map::header(change.rq, &change.mos, map).await?;
    change.mos.frees().remove(change.rq, change.tx, map).await?;
    if header.histogram.is_some() && features::is_enabled(change, HISTOGRAM).await? {
        features::count_feature(change, HISTOGRAM, -1).await?;
    }
    Ok(())
}

/// Allocated space of a metaslab according to all changes that the allocator handed out, except for those in `missing`;
/// `None` if the metaslab is not loaded.
fn allocated_without(blocks: &Blocks, (vdev, metaslab): MetaslabId, missing: &[SpaceChange]) -> Option<Segments> {
    let mut out = Segments::default();
    for range in blocks.metaslabs().allocated_as_synced(vdev, metaslab)? {
        out.add(range);
    }
    for change in missing {
        if change.kind == SpaceKind::Alloc {
            out.remove_common(&range(change));
        } else {
            out.add(range(change));
        }
    }
    Some(out)
}
