//! The space maps of the last synced txg, from which metaslabs are loaded while later txgs change them.
//!
//! ```text
//!   syncer ── txg N+1: flushes, appends, condenses ─────────► uberblock N+1 ─► committed
//!   load   ── hold ─► MOS of txg N ─► space map ─┐
//!                └──► unflushed changes ─────────┴─► allocated ranges ─► the rest of the metaslab is free
//! ```
//!
//! *Why this is exact.* In a metaslab that is not loaded, nothing is allocated. So since it was unloaded, which is at the end
//! of a txg, its space map and its unflushed changes have only gained frees. The allocator knows all frees since the load
//! began, because it keeps them deferred until the load ends: whether the unflushed changes include them or not makes no
//! difference. A flush of txg N+1 moves the unflushed changes into a map that the MOS of txg N does not have; until
//! txg N+1 is committed, they are kept for loads ([`SpaceLog::unflushed`]).
//!
//! *Memory.* A load reads through a small cache of its own: the blocks of a space map are of no use afterwards, and a load
//! never waits for a read that waits for a load.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use weir_blocks::{Blocks, MetaslabSource, SourceError};
use weir_cache::Cache;
use weir_dmu::{ObjectSet, Opening};
use weir_format::{BlockPointer, ObjectId};
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Machine, Priority, Request};
use weir_pool::metaslab_geometry::MetaslabGeometry;
use weir_pool::mos::Mos;
use weir_pool::ranges::Ranges;
use weir_pool::space_log::{MetaslabId, SpaceLog, Unflushed};
use weir_pool::space_map_loader::{MapPlace, read_map};

/// Size of the cache of one load in bytes.
const CACHE_BYTES: u64 = 4 << 20;

/// The array of space maps of a top-level vdev.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VdevMaps {
    /// Object of the array.
    pub array: ObjectId,
    /// Layout of the metaslabs.
    pub geometry: MetaslabGeometry,
    /// log2 of the unit of the maps in bytes.
    pub ashift: u32,
}

/// State of the space maps that the syncer changes and loads read.
#[derive(Debug, Default)]
pub(crate) struct MapsState {
    /// Root of the MOS of the last synced txg.
    root: BlockPointer,
    vdevs: BTreeMap<u32, VdevMaps>,
    /// The logs and the unflushed changes.
    pub log: SpaceLog,
}

/// The space maps of the last synced txg.
#[derive(Debug, Default)]
pub(crate) struct SyncedMaps(Mutex<MapsState, { order::SPACE_LOG }>);

/// State that a load needs besides the blocks of the MOS.
struct Captured {
    root: BlockPointer,
    maps: VdevMaps,
    unflushed: Arc<Unflushed>,
}

impl SyncedMaps {
    /// The maps of an imported pool.
    pub fn new(root: BlockPointer, log: SpaceLog) -> Self {
        SyncedMaps(Mutex::new(MapsState { root, vdevs: BTreeMap::new(), log }))
    }

    /// Locks the state; the lock is held for a few instructions, never across an await.
    pub fn lock(&self) -> MutexGuard<'_, MapsState> {
        self.0.lock()
    }

    /// Adds a top-level vdev.
    pub fn add(&self, vdev: u32, maps: VdevMaps) {
        self.lock().vdevs.insert(vdev, maps);
    }

    /// Forgets a top-level vdev that leaves the pool.
    pub fn remove(&self, vdev: u32) {
        let mut state = self.lock();
        state.vdevs.remove(&vdev);
        state.log.remove_vdev(vdev);
    }

    /// Records that a txg was committed, with this root of the MOS. Called before the space that it freed is reused.
    pub fn committed(&self, root: BlockPointer) {
        let mut state = self.lock();
        state.root = root;
        state.log.committed();
    }

    fn capture(&self, id: MetaslabId) -> Option<Captured> {
        let state = self.lock();
        let maps = *state.vdevs.get(&id.0).filter(|_| !state.root.is_hole())?;
        Some(Captured { root: state.root, maps, unflushed: state.log.unflushed(id) })
    }
}

/// The source of a pool's metaslabs.
pub(crate) struct MapReader {
    pub maps: Arc<SyncedMaps>,
    pub machine: Machine,
    /// The blocks own this.
    pub blocks: Weak<Blocks>,
}

impl MetaslabSource for MapReader {
    fn free_ranges(
        &self,
        vdev: u32,
        metaslab: u64,
    ) -> futures_util::future::BoxFuture<'static, Result<Vec<Range<u64>>, SourceError>> {
        let (maps, machine, blocks) = (self.maps.clone(), self.machine.clone(), self.blocks.clone());
        Box::pin(async move {
            let blocks = blocks.upgrade().ok_or("the pool is closed")?;
            free_ranges(&maps, machine, blocks, (vdev, metaslab)).await
        })
    }

    fn load_failed(&self, vdev: u32, metaslab: u64, error: &SourceError) {
        tracing::warn!("metaslab {metaslab} of vdev {vdev} is not used for allocations, it cannot be loaded: {error}");
    }
}

async fn free_ranges(
    maps: &SyncedMaps,
    machine: Machine,
    blocks: Arc<Blocks>,
    id: MetaslabId,
) -> Result<Vec<Range<u64>>, SourceError> {
    // Taken before the root is looked up, so that none of its blocks is reused.
    let _hold = blocks.hold();
    let Captured { root, maps, unflushed } = maps.capture(id).ok_or("its vdev has no space maps yet")?;
    let rq = &Request::internal("metaslab load").with_priority(Priority::Async);
    let cache = Cache::new(machine, blocks, CACHE_BYTES);
    let mos = Mos { set: ObjectSet::open(rq, cache, root, Opening::default()).await? };
    let (vdev, metaslab) = id;
    let objects = mos.words(rq, maps.array, maps.geometry.count()).await?;
    let object = usize::try_from(metaslab).ok().and_then(|i| objects.get(i).copied()).unwrap_or(0);
    let whole = maps.geometry.range(metaslab);
    let place = MapPlace { vdev, object: ObjectId(object), start: whole.start };
    let mut taken = Ranges::default();
    let mut faults = Vec::new();
    read_map(rq, &mos, place, maps.ashift, Some(&unflushed), &mut taken, &mut faults).await;
    match faults.into_iter().next() {
        Some(fault) => Err(fault.into()),
        None => Ok(gaps(&taken, whole)),
    }
}

/// The parts of `whole` that are not taken.
fn gaps(taken: &Ranges, whole: Range<u64>) -> Vec<Range<u64>> {
    let mut free = Vec::new();
    let mut at = whole.start;
    for (start, len) in taken.within(whole.start, whole.end) {
        free.extend((start > at).then_some(at..start));
        at = start + len;
    }
    free.extend((at < whole.end).then_some(at..whole.end));
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_taken_ranges_fill_the_whole() {
        let mut taken = Ranges::default();
        assert_eq!(gaps(&taken, 10..20), std::slice::from_ref(&(10..20)));
        taken.add(5, 7);
        taken.add(15, 2);
        assert_eq!(gaps(&taken, 10..20), [12..15, 17..20]);
        taken.add(18, 50);
        assert_eq!(gaps(&taken, 10..20), [12..15, 17..18]);
        taken.add(0, 100);
        assert!(gaps(&taken, 10..20).is_empty());
    }
}
