//! What is known of a metaslab's free space: all of its segments, or a summary.
//!
//! ```text
//!   unknown ──summarize──► unloaded ──begin_load──► loading ──finish_load──► loaded
//!                             ▲                                                │
//!                             └─────────────────── unload ─────────────────────┘
//!   unknown ──load──► loaded: a new vdev, all of whose space is free
//! ```
//!
//! Nothing is allocated in a metaslab that is not loaded, so its space map only gains frees. While it is being loaded, its
//! deferred frees stay deferred: the free ranges that are loaded are those of some txg that synced after the load began,
//! and all later frees are still known by then.
//!
//! Source of the ideas: OpenZFS `module/zfs/metaslab.c` (`metaslab_load_impl`, `metaslab_should_allocate`).

use super::segments::Segments;
use std::ops::Range;
use weir_format::Txg;

/// A metaslab that was loaded is loaded again for a longer segment than it had only if this part of it was freed since.
const MERGED_DIVISOR: u64 = 64;

/// Numbers of segments of 2ⁿ to 2ⁿ⁺¹−1 bytes: pairs of n and number, without zeros, because a pool may have a hundred thousand
/// metaslabs, most of them with few segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts(Vec<(u8, u64)>);

impl SegmentCounts {
    /// The counts of an array with one element for each n.
    pub fn of(counts: &[u64; 64]) -> Self {
        SegmentCounts((0..).zip(counts).filter(|(_, count)| **count > 0).map(|(n, count)| (n, *count)).collect())
    }

    /// Counts one more segment.
    fn add(&mut self, len: u64) {
        let n = len.max(1).ilog2() as u8;
        match self.0.binary_search_by_key(&n, |(n, _)| *n) {
            // The first counts are those of the disk.
            Ok(at) => self.0.iter_mut().skip(at).take(1).for_each(|(_, count)| *count = count.saturating_add(1)),
            Err(at) => self.0.insert(at, (n, 1)),
        }
    }

    /// log2 of the length of the longest segments.
    fn longest(&self) -> Option<u32> {
        self.0.last().map(|(n, _)| u32::from(*n))
    }

    /// Writes the counts into an array with one element for each n.
    pub(super) fn write(&self, out: &mut [u64; 64]) {
        for (n, count) in &self.0 {
            out[usize::from(*n)] = *count;
        }
    }
}

/// Summary of the free space of a metaslab that is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Free bytes, without deferred frees.
    pub free_bytes: u64,
    /// Free segments by size; adjacent ones may be counted separately. `None` if the space map has no histogram.
    pub histogram: Option<SegmentCounts>,
}

/// State of loading a metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadState {
    /// Not begun.
    Idle,
    /// In progress.
    Loading,
    /// Failed; tried again after the next txg.
    Failed,
    /// The space map contradicts itself: never tried again.
    Contradicts,
}

/// A metaslab that is not loaded.
#[derive(Clone, Debug)]
pub(super) struct Unloaded {
    pub summary: Summary,
    pub state: LoadState,
    /// Length of the longest segment that is known, 0 if none is.
    known_bytes: u64,
    /// Bytes that were freed since the metaslab was loaded; `None` if it never was.
    freed_bytes: Option<u64>,
}

impl Unloaded {
    pub fn new(summary: Summary) -> Self {
        Unloaded { summary, state: LoadState::Idle, known_bytes: 0, freed_bytes: None }
    }

    /// Adds a freed segment.
    pub fn add(&mut self, range: &Range<u64>) {
        let len = range.end - range.start;
        self.summary.free_bytes += len;
        self.known_bytes = self.known_bytes.max(len);
        self.freed_bytes = self.freed_bytes.map(|bytes| bytes + len);
        self.summary.histogram.iter_mut().for_each(|counts| counts.add(len));
    }

    /// log2 of the length of the longest segment, as far as it is known; of all free bytes without a histogram.
    pub fn bucket(&self) -> u32 {
        let known = self.known_bytes.max(1).ilog2();
        match &self.summary.histogram {
            _ if self.freed_bytes.is_some() => known,
            Some(counts) => known.max(counts.longest().unwrap_or(0)),
            None => self.summary.free_bytes.max(1).ilog2(),
        }
    }

    /// Whether the metaslab may have a segment of `len` bytes, so that loading it is worthwhile. With `hard`, segments that
    /// merged count as well.
    pub fn may_fit(&self, len: u64, hard: bool, size_bytes: u64) -> bool {
        let Unloaded { summary, state, known_bytes, freed_bytes } = self;
        if matches!(state, LoadState::Failed | LoadState::Contradicts) || summary.free_bytes < len {
            return false;
        }
        match freed_bytes {
            _ if *known_bytes >= len => true,
            None => hard || len.checked_shr(self.bucket() + 1).unwrap_or(0) == 0,
            Some(freed_bytes) => hard && *freed_bytes >= size_bytes / MERGED_DIVISOR,
        }
    }
}

/// The free space of a loaded metaslab.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    /// Allocatable segments.
    pub free: Segments,
    /// Free segments that are temporarily not allocatable.
    pub disabled: Segments,
    /// Offset at which the search for a segment continues, by log2 of the size.
    pub cursors: [u64; 64],
    /// Txg of the last use.
    pub used: Txg,
}

impl Loaded {
    pub fn new(free: Segments, start: u64, used: Txg) -> Self {
        Loaded { free, disabled: Segments::default(), cursors: [start; 64], used }
    }

    /// The summary that remains when the metaslab is unloaded.
    pub fn summarize(&self) -> Unloaded {
        let mut histogram = [0; 64];
        self.free.histogram(&mut histogram);
        let histogram = Some(SegmentCounts::of(&histogram));
        let summary = Summary { free_bytes: self.free.total_bytes(), histogram };
        let known_bytes = self.free.largest_bytes();
        Unloaded { summary, state: LoadState::Idle, known_bytes, freed_bytes: Some(0) }
    }
}

/// Knowledge of a metaslab's free space.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// Nothing.
    Unknown,
    /// A summary.
    Unloaded(Box<Unloaded>),
    /// Everything.
    Loaded(Box<Loaded>),
}
