//! The cache: combines the policy, the reads in flight and the block pipeline.
//!
//! ```text
//!   read ── embedded, hole ──────────────────────────────────▶ pipeline (no storage: not cached)
//!     │── policy hit ─▶ bytes
//!     │── read in flight ─▶ wait for it
//!     └── else lead: pipeline ─▶ insert ─▶ wake the waiters
//! ```
//!
//! One lock covers the policy and the table of reads in flight; it is never held across an await. If the leader of a
//! read is dropped (its client disconnected), its waiters wake and one of them becomes the leader. The waiters
//! receive the leader's error; errors are not cached, so the next read tries the disks again.

use crate::arc::{ArcLookup, ArcPolicy, ArcSizes, ContentClass};
use bytes::Bytes;
use futures_channel::oneshot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weir_blocks::{BlockError, Blocks, CacheClass, MAX_BLOCK_BYTES, ReadOptions};
use weir_format::BlockPointer;
use weir_machine::{Accounts, FixedMap, Machine, Priority, Request, Source, Stage};

/// Maximum bytes of prefetch in flight; beyond it no prefetch is started.
const PREFETCH_LIMIT_BYTES: u64 = 32 << 20;
/// Memory cost of an entry in addition to its bytes: list node, index, allocation.
const ENTRY_BYTES: u64 = 256;
/// Buffers of at least a page are page-aligned, which costs up to one more page.
const PAGE_BYTES: u64 = 4096;

/// Key of a cached block: address of its first copy and physical birth. The raw form (still encrypted or compressed)
/// is a separate entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    offset_bytes: u64,
    birth: u64,
    vdev: u32,
    raw: bool,
}

/// A read in flight, with the readers that wait for its result.
struct InFlightRead {
    waiters: Vec<oneshot::Sender<Result<Bytes, BlockError>>>,
    prefetch: bool,
}

struct State {
    policy: ArcPolicy<Key, Bytes>,
    in_flight: FixedMap<Key, InFlightRead>,
}

impl State {
    /// Registers a read in flight and reserves memory for its block. Returns the reserved bytes.
    fn begin_read(&mut self, key: Key, bp: &BlockPointer, prefetch: bool) -> u64 {
        let cost = cost_bytes(bp.lsize_bytes().min(MAX_BLOCK_BYTES));
        self.policy.reserve(cost);
        self.in_flight.insert(key, InFlightRead { waiters: Vec::new(), prefetch });
        cost
    }

    /// Removes a read in flight and its reservation; returns its waiters.
    fn finish_read(&mut self, key: &Key, cost: u64) -> Vec<oneshot::Sender<Result<Bytes, BlockError>>> {
        self.policy.release(cost);
        self.in_flight.remove(key).map_or_else(Vec::new, |f| f.waiters)
    }
}

/// Counters since the cache was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads served from memory, of blocks cached by a demand read or a write.
    pub demand_hits: u64,
    /// First reads of prefetched blocks, served from memory or by the prefetch in flight.
    pub prefetch_hits: u64,
    /// Reads that joined a demand read in flight.
    pub joined: u64,
    /// Reads passed to the pipeline.
    pub misses: u64,
    /// Prefetches started.
    pub prefetches: u64,
    /// Sizes of the lists.
    pub sizes: ArcSizes,
}

#[derive(Default)]
struct Counters {
    demand_hits: AtomicU64,
    prefetch_hits: AtomicU64,
    joined: AtomicU64,
    misses: AtomicU64,
    prefetches: AtomicU64,
}

/// The cache of one pool's blocks.
pub struct Cache {
    machine: Machine,
    blocks: Arc<Blocks>,
    state: Mutex<State>,
    counters: Counters,
    prefetching_bytes: AtomicU64,
}

enum ReadAction {
    Hit(Bytes, Source),
    Join(oneshot::Receiver<Result<Bytes, BlockError>>, Source),
    /// The caller must read the block; the value is the reservation in bytes.
    Lead(u64),
}

impl Cache {
    /// An empty cache of `budget_bytes` over `blocks`.
    pub fn new(machine: Machine, blocks: Arc<Blocks>, budget_bytes: u64) -> Arc<Self> {
        Arc::new(Cache {
            machine,
            blocks,
            state: Mutex::new(State { policy: ArcPolicy::new(budget_bytes), in_flight: FixedMap::default() }),
            counters: Counters::default(),
            prefetching_bytes: AtomicU64::new(0),
        })
    }

    /// The block pipeline that the cache reads through.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// The pool's accounts.
    pub fn accounts(&self) -> &Arc<Accounts> {
        self.blocks.tree().accounts()
    }

    /// The machine that the pool runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the logical bytes of a block, verified by its checksum: from memory if cached, else through the
    /// pipeline.
    ///
    /// # Errors
    /// [`BlockError`] of the pipeline, also if another reader's read in flight fails.
    pub async fn read(&self, rq: &Request, bp: &BlockPointer, opts: &ReadOptions) -> Result<Bytes, BlockError> {
        let (bytes, source) = self.read_from(rq, bp, opts).await?;
        rq.support(source, bytes.len() as u64);
        Ok(bytes)
    }

    /// Reads like [`Cache::read`], and returns the source of the bytes, which the caller records: the part that it answers
    /// with [`Request::answer`].
    ///
    /// # Errors
    /// As [`Cache::read`].
    pub async fn read_from(
        &self,
        rq: &Request,
        bp: &BlockPointer,
        opts: &ReadOptions,
    ) -> Result<(Bytes, Source), BlockError> {
        let Some(key) = key_of(bp, opts) else {
            let source = if bp.is_embedded() || bp.is_hole() { Source::Hole } else { Source::Disk };
            return Ok((self.blocks.read(rq, bp, opts).await?, source));
        };
        loop {
            match self.look_up(key, bp) {
                ReadAction::Hit(bytes, source) => {
                    return Ok((bytes, source));
                }
                ReadAction::Join(result, source) => {
                    // The leader was dropped: look up again, and possibly become the leader.
                    let started = self.machine.clock.now();
                    let result = result.await;
                    rq.spent(Stage::Cache, self.machine.clock.now().ns_since(started));
                    let Ok(result) = result else { continue };
                    return Ok((result?, source));
                }
                ReadAction::Lead(cost) => {
                    self.counters.misses.fetch_add(1, Ordering::Relaxed);
                    let bytes = self.lead(InFlightGuard { cache: self, key, cost }, rq, bp, opts, false).await?;
                    return Ok((bytes, Source::Disk));
                }
            }
        }
    }

    /// Starts reading a block that is expected to be read soon, and returns immediately. Does nothing if the block is
    /// cached or in flight already, if too much prefetch is in flight, or if the block would not be cached.
    pub fn prefetch(self: &Arc<Self>, bp: &BlockPointer, opts: &ReadOptions) {
        let Some(key) = key_of(bp, opts) else { return };
        let size = bp.lsize_bytes();
        let cost = {
            let mut state = self.lock();
            if state.policy.contains(&key) || state.in_flight.contains_key(&key) {
                return;
            }
            if self.prefetching_bytes.load(Ordering::Relaxed).saturating_add(size) > PREFETCH_LIMIT_BYTES {
                return;
            }
            state.begin_read(key, bp, true)
        };
        self.prefetching_bytes.fetch_add(size, Ordering::Relaxed);
        self.counters.prefetches.fetch_add(1, Ordering::Relaxed);
        let cache = self.clone();
        let bp = *bp;
        let opts = opts.clone();
        let job = async move {
            let guard = InFlightGuard { cache: &cache, key, cost };
            let rq = Request::internal("prefetch").with_priority(Priority::Async);
            // Readers that joined receive the error; any other reader reads the block itself.
            let _ = cache.lead(guard, &rq, &bp, &opts, true).await;
            cache.prefetching_bytes.fetch_sub(size, Ordering::Relaxed);
        };
        drop(self.machine.tasks.spawn(job));
    }

    /// Inserts the logical bytes of a block that was just written, since it may be read soon.
    pub fn insert(&self, bp: &BlockPointer, opts: &ReadOptions, bytes: Bytes) {
        let Some(key) = key_of(bp, opts) else { return };
        let now_ns = self.machine.clock.now().0;
        let cost = cost_bytes(bytes.len() as u64);
        self.lock().policy.insert(key, bytes, cost, class_of(bp), false, now_ns);
    }

    /// The counters and sizes.
    pub fn stats(&self) -> Stats {
        let load = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Stats {
            demand_hits: load(&self.counters.demand_hits),
            prefetch_hits: load(&self.counters.prefetch_hits),
            joined: load(&self.counters.joined),
            misses: load(&self.counters.misses),
            prefetches: load(&self.counters.prefetches),
            sizes: self.lock().policy.sizes(),
        }
    }

    /// Removes all blocks, for example when the key of encrypted ones is unloaded.
    pub fn clear(&self) {
        let mut state = self.lock();
        let budget_bytes = state.policy.budget_bytes();
        state.policy.set_budget(0);
        state.policy.set_budget(budget_bytes);
    }

    /// Sets the budget in bytes; a smaller one evicts blocks immediately.
    pub fn set_budget(&self, budget_bytes: u64) {
        self.lock().policy.set_budget(budget_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No change under the lock panics half-way, so the state behind a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn look_up(&self, key: Key, bp: &BlockPointer) -> ReadAction {
        let now_ns = self.machine.clock.now().0;
        let mut state = self.lock();
        if let ArcLookup::Hit { value, prefetched } = state.policy.get(&key, now_ns) {
            let (counter, source) = if prefetched {
                (&self.counters.prefetch_hits, Source::ArcPrefetch)
            } else {
                (&self.counters.demand_hits, Source::ArcDemand)
            };
            counter.fetch_add(1, Ordering::Relaxed);
            return ReadAction::Hit(value, source);
        }
        if let Some(read) = state.in_flight.get_mut(&key) {
            let (sender, result) = oneshot::channel();
            read.waiters.push(sender);
            let (counter, source) = if read.prefetch {
                (&self.counters.prefetch_hits, Source::ArcPrefetch)
            } else {
                (&self.counters.joined, Source::ArcDemand)
            };
            counter.fetch_add(1, Ordering::Relaxed);
            return ReadAction::Join(result, source);
        }
        ReadAction::Lead(state.begin_read(key, bp, false))
    }

    async fn lead(
        &self,
        guard: InFlightGuard<'_>,
        rq: &Request,
        bp: &BlockPointer,
        opts: &ReadOptions,
        prefetch: bool,
    ) -> Result<Bytes, BlockError> {
        let result = self.blocks.read(rq, bp, opts).await;
        let waiters = {
            let now_ns = self.machine.clock.now().0;
            let mut state = self.lock();
            let key = guard.key;
            let waiters = state.finish_read(&guard.key, guard.cost);
            if let Ok(bytes) = &result {
                // A waiter was the first demand read of a prefetched block.
                let undemanded = prefetch && waiters.is_empty();
                state.policy.insert(
                    key,
                    bytes.clone(),
                    cost_bytes(bytes.len() as u64),
                    class_of(bp),
                    undemanded,
                    now_ns,
                );
            }
            waiters
        };
        std::mem::forget(guard);
        for waiter in waiters {
            // The waiter may have been dropped.
            let _ = waiter.send(result.clone());
        }
        result
    }
}

/// Removes a read in flight if its leader is dropped before the read finishes, so that its waiters look up again.
struct InFlightGuard<'a> {
    cache: &'a Cache,
    key: Key,
    cost: u64,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let waiters = self.cache.lock().finish_read(&self.key, self.cost);
        drop(waiters);
    }
}

/// Memory cost of a cached block in bytes: its bytes, the entry, and the page alignment of its buffer.
fn cost_bytes(len: u64) -> u64 {
    len + ENTRY_BYTES + if len >= PAGE_BYTES { PAGE_BYTES } else { 0 }
}

fn class_of(bp: &BlockPointer) -> ContentClass {
    if bp.level() > 0 || bp.object_type().is_metadata() { ContentClass::Metadata } else { ContentClass::Data }
}

/// The key of a block that may be cached. `None` for blocks without storage, blocks excluded by `primarycache`, and
/// encrypted blocks that are read without their key: the reader must not get bytes that were decrypted with it.
fn key_of(bp: &BlockPointer, opts: &ReadOptions) -> Option<Key> {
    if bp.is_encrypted() && !opts.raw && opts.keys.as_ref().is_none_or(|keys| keys.is_revoked()) {
        return None;
    }
    let cacheable = match opts.cache {
        CacheClass::All => true,
        CacheClass::Metadata => class_of(bp) == ContentClass::Metadata,
        CacheClass::None => false,
    };
    if !cacheable || bp.is_embedded() || bp.is_hole() {
        return None;
    }
    let dva = bp.dva(0);
    Some(Key { offset_bytes: dva.offset_bytes, birth: bp.physical_birth().0, vdev: dva.vdev, raw: opts.raw })
}
