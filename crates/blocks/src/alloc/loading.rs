//! Loading and unloading of metaslabs, within a limit of memory.

use super::contents::Summary;
use super::{Allocator, Metaslab, Sizing, SpaceFault};
use std::ops::Range;
use weir_format::Txg;
use weir_machine::invariant;

/// Number of txgs without a use after which a metaslab is unloaded (`metaslab_unload_delay`).
const UNUSED_TXGS: u64 = 32;
/// Memory for one free segment in bytes: 32 in the two B-trees, by offset and by size, whose nodes are half full or more.
const SEGMENT_BYTES: u64 = 64;
/// Memory for a loaded metaslab without its segments, in bytes.
const LOADED_BYTES: u64 = 2048;

/// Limit and counters of loaded metaslabs.
#[derive(Clone, Debug, Default)]
pub(super) struct Loading {
    /// Maximum memory; `None` if metaslabs cannot be loaded again, and so are not unloaded.
    max_bytes: Option<u64>,
    loads: u64,
    unloads: u64,
}

/// Loaded metaslabs of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadStats {
    /// Number of metaslabs.
    pub metaslabs: u64,
    /// Number of loaded ones.
    pub loaded: u64,
    /// Number of free segments in memory.
    pub segments: u64,
    /// Memory for them, in bytes.
    pub bytes: u64,
    /// Limit of that memory; metaslabs in use may exceed it.
    pub max_bytes: Option<u64>,
    /// Number of loads so far.
    pub loads: u64,
    /// Number of metaslabs that were unloaded so far.
    pub unloads: u64,
}

fn bytes_of(metaslab: &Metaslab) -> u64 {
    metaslab.loaded_segments().map_or(0, |segments| LOADED_BYTES + segments as u64 * SEGMENT_BYTES)
}

impl Allocator {
    /// Changes the allocated sizes of new blocks on a vdev.
    pub fn set_sizing(&mut self, vdev: u32, sizing: Sizing) {
        if let Some(state) = self.vdevs.get_mut(&vdev) {
            state.about.sizing = sizing;
        }
    }

    /// Permits metaslabs to be unloaded: after some txgs without a use, and earlier if they take more than `max_bytes`.
    pub fn set_max_loaded(&mut self, max_bytes: u64) {
        self.loading.max_bytes = Some(max_bytes);
    }

    /// Changes the limit of metaslabs that may be unloaded.
    pub fn limit_loaded(&mut self, max_bytes: u64) {
        self.loading.max_bytes = self.loading.max_bytes.map(|_| max_bytes);
    }

    /// Loaded metaslabs, and their memory.
    pub fn load_stats(&self) -> LoadStats {
        let mut out = LoadStats {
            max_bytes: self.loading.max_bytes,
            loads: self.loading.loads,
            unloads: self.loading.unloads,
            ..LoadStats::default()
        };
        for metaslab in self.vdevs.values().flat_map(|vdev| &vdev.metaslabs) {
            out.metaslabs += 1;
            if let Some(segments) = metaslab.loaded_segments() {
                out.loaded += 1;
                out.segments += segments as u64;
                out.bytes += bytes_of(metaslab);
            }
        }
        out
    }

    fn metaslab(&mut self, vdev: u32, metaslab: u64) -> Option<&mut Metaslab> {
        self.vdevs.get_mut(&vdev)?.metaslabs.get_mut(usize::try_from(metaslab).ok()?)
    }

    /// Sets the summary of a metaslab, which is loaded when it is needed.
    ///
    /// # Errors
    /// [`SpaceFault`] if there is no such metaslab, or as [`Metaslab::summarize`].
    pub fn summarize(&mut self, vdev: u32, metaslab: u64, summary: Summary) -> Result<(), SpaceFault> {
        let state = self.vdevs.get_mut(&vdev).ok_or(SpaceFault::Unknown)?;
        let slot = usize::try_from(metaslab).ok().and_then(|i| state.metaslabs.get_mut(i));
        let slot = slot.ok_or(SpaceFault::Unknown)?;
        slot.summarize(summary)?;
        state.free_bytes += slot.free_bytes();
        Ok(())
    }

    /// Begins to load a metaslab; false if it is not to be loaded.
    pub fn begin_load(&mut self, vdev: u32, metaslab: u64) -> bool {
        self.metaslab(vdev, metaslab).is_some_and(Metaslab::begin_load)
    }

    /// Ends the load of a metaslab: with its free ranges as of a txg that synced after the load began, or without, if it
    /// failed.
    ///
    /// # Errors
    /// [`SpaceFault`] if the ranges contradict what is known of the metaslab; then it is never used for allocation.
    pub fn finish_load(&mut self, vdev: u32, metaslab: u64, free: Option<&[Range<u64>]>) -> Result<(), SpaceFault> {
        let used = Txg(self.synced.0 + 1);
        let slot = self.metaslab(vdev, metaslab).ok_or(SpaceFault::Unknown)?;
        let Some(free) = free else {
            slot.fail_load();
            return Ok(());
        };
        slot.finish_load(free, used)?;
        self.loading.loads += 1;
        self.unload_unused();
        Ok(())
    }

    /// Whether the load of a metaslab failed since the last txg was committed.
    pub fn has_failed_loads(&self) -> bool {
        self.vdevs.values().flat_map(|vdev| &vdev.metaslabs).any(Metaslab::has_failed_load)
    }

    /// Permits all metaslabs whose loads failed to be loaded again.
    pub fn retry_failed_loads(&mut self) {
        self.vdevs.values_mut().flat_map(|vdev| &mut vdev.metaslabs).for_each(Metaslab::retry_load);
    }

    /// Unloads a metaslab that was used last for something that does not return, if the memory has reached its limit.
    pub fn release(&mut self, vdev: u32, metaslab: u64) {
        if self.loading.max_bytes.is_some_and(|max_bytes| self.loaded_bytes() > max_bytes) {
            self.unload(vdev, metaslab as usize);
        }
    }

    fn loaded_bytes(&self) -> u64 {
        self.vdevs.values().flat_map(|vdev| &vdev.metaslabs).map(bytes_of).sum()
    }

    /// The first metaslab of a range that is not loaded, but could be.
    pub fn first_unloaded(&self, vdev: u32, range: &Range<u64>) -> Option<u64> {
        let state = self.vdevs.get(&vdev)?;
        let first = range.start >> state.about.metaslab_shift;
        let last = range.end.saturating_sub(1) >> state.about.metaslab_shift;
        let count = state.metaslabs.len() as u64;
        (first..=last).take_while(|i| *i < count).find(|i| {
            let metaslab = state.metaslabs.get(*i as usize);
            metaslab.is_some_and(|m| m.free_segments().is_none() && m.may_fit(0, true))
        })
    }

    /// Unloads the metaslabs that were not used for some txgs, and the longest unused ones as long as the memory exceeds its
    /// limit. Those that were used since the last txg synced stay loaded.
    pub(super) fn unload_unused(&mut self) {
        let Some(max_bytes) = self.loading.max_bytes else { return };
        let synced = self.synced;
        if synced == Txg(0) {
            // Before the first txg of an import or a creation, the space maps of new vdevs do not exist.
            return;
        }
        let mut candidates: Vec<(Txg, u32, usize, u64)> = Vec::new();
        let mut bytes = 0;
        for (vdev, state) in &self.vdevs {
            for (index, metaslab) in state.metaslabs.iter().enumerate() {
                let Some(used) = metaslab.used() else { continue };
                bytes += bytes_of(metaslab);
                if used <= synced && metaslab.may_unload(synced) {
                    candidates.push((used, *vdev, index, bytes_of(metaslab)));
                }
            }
        }
        candidates.sort_unstable();
        for (used, vdev, index, freed_bytes) in candidates {
            if bytes <= max_bytes && used.0 + UNUSED_TXGS > synced.0 {
                break;
            }
            self.unload(vdev, index);
            bytes -= freed_bytes;
        }
    }

    fn unload(&mut self, vdev: u32, index: usize) {
        let synced = self.synced;
        let Some(state) = self.vdevs.get_mut(&vdev) else { return };
        let Some(metaslab) = state.metaslabs.get_mut(index).filter(|m| m.may_unload(synced)) else { return };
        let free_bytes = metaslab.free_bytes();
        metaslab.unload();
        invariant!(metaslab.free_bytes() == free_bytes, "the free space of a metaslab changes when it is unloaded");
        state.active.iter_mut().filter(|active| **active == Some(index)).for_each(|active| *active = None);
        self.loading.unloads += 1;
    }
}
