//! The cache: combines the policy, the reads in flight and the block pipeline.
//!
//! ```text
//!   read ── embedded, hole ──────────────────────────────────▶ pipeline (no storage: not cached)
//!     │── policy hit ─▶ bytes
//!     │── read in flight ─▶ wait for it
//!     └── else lead: cache device, else pipeline ─▶ insert ─▶ wake the waiters
//! ```
//!
//! If the leader of a read is dropped (its client disconnected), its waiters wake and one of them becomes the leader. The
//! waiters receive the leader's error; errors are not cached, so the next read tries the disks again.
//!
//! *Shards.* Blocks are divided by a hash of their key. Each shard has a policy, a table of reads in flight and counters
//! under a lock of its own, which is held for a few list operations and never across an await; two shards are never locked
//! at once. The budget is common: a shard may use what the others leave, and when the cache is full, the largest
//! shard evicts (OpenZFS divides its hash table and lists, and not its size, in the same way). A hit locks one shard and
//! changes nothing that all shards share.

use crate::arc::{ArcLookup, ArcPolicy, ArcSizes, ArcState, ContentClass};
use crate::l2arc::L2arc;
use crate::l2arc::index::BlockId;
use bytes::Bytes;
use futures_channel::oneshot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_blocks::{BlockError, Blocks, CacheClass, MAX_BLOCK_BYTES, ReadOptions};
use weir_format::BlockPointer;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::{Accounts, FixedMap, Machine, Nanos, Priority, Request, Source, Stage, invariant};

/// Maximum bytes of prefetch in flight; beyond it no prefetch is started.
const PREFETCH_LIMIT_BYTES: u64 = 32 << 20;
/// Maximum number of shards of a cache.
const MAX_SHARDS: u64 = 32;
/// Minimum budget of a shard. In a smaller one, blocks that the hash divides unevenly would be evicted early.
const MIN_SHARD_BYTES: u64 = 64 << 20;
/// Memory cost of an entry in addition to its bytes: list node, index, allocation.
const ENTRY_BYTES: u64 = 256;
/// Buffers of at least a page are page-aligned, which costs up to one more page.
const PAGE_BYTES: u64 = 4096;

/// Memory cost of what makes an entry eligible for the L2ARC.
const POINTER_BYTES: u64 = 160;
/// Maximum number of blocks that a feed of the L2ARC looks at in a list of a shard, while it holds the shard's lock.
const MAX_VISITED: usize = 8192;

/// A cached block.
struct Cached {
    bytes: Bytes,
    /// The block's pointer, if it may be written to a cache device.
    pointer: Option<Box<BlockPointer>>,
}

/// A block of the ARC that was chosen for a cache device.
pub(crate) struct FeedCandidate {
    pub pointer: BlockPointer,
    pub bytes: Bytes,
    /// The bytes are those that are stored.
    pub is_raw: bool,
    pub kind: ContentClass,
    pub list: ArcState,
    pub is_prefetched: bool,
}

/// Key of a cached block: address of its first copy and physical birth. The raw form (still encrypted or compressed)
/// is a separate entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    offset_bytes: u64,
    birth: u64,
    vdev: u32,
    raw: bool,
}

impl Key {
    /// The key of a block that is neither embedded nor a hole.
    fn of(bp: &BlockPointer, raw: bool) -> Self {
        let dva = bp.dva(0);
        Key { offset_bytes: dva.offset_bytes, birth: bp.physical_birth().0, vdev: dva.vdev, raw }
    }

    /// A hash whose low bits depend on the whole key.
    fn hash(&self) -> u64 {
        let mixed = (self.offset_bytes >> 9) ^ self.birth.rotate_left(32) ^ u64::from(self.vdev).rotate_left(48);
        mixed.wrapping_add(u64::from(self.raw)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

/// A read in flight, with the readers that wait for its result.
struct InFlightRead {
    waiters: Vec<oneshot::Sender<Result<Bytes, BlockError>>>,
    prefetch: bool,
}

/// A part of the cache, and the resident and reserved bytes that it had after its last change.
struct ShardSlot {
    shard: Mutex<Shard, { order::ARC }>,
    used_bytes: AtomicU64,
}

impl ShardSlot {
    /// Locks the shard. No change under the lock panics half-way, so the state behind a poisoned lock is consistent.
    fn lock(&self) -> MutexGuard<'_, Shard> {
        self.shard.lock()
    }
}

struct Shard {
    policy: ArcPolicy<Key, Cached>,
    in_flight: FixedMap<Key, InFlightRead>,
    counters: Counters,
}

impl Shard {
    /// Registers a read in flight.
    fn begin_read(&mut self, key: Key, prefetch: bool) {
        let former = self.in_flight.insert(key, InFlightRead { waiters: Vec::new(), prefetch });
        invariant!(former.is_none(), "a block is read twice at once");
    }

    /// Removes a read in flight; returns its waiters.
    fn finish_read(&mut self, key: &Key) -> Vec<oneshot::Sender<Result<Bytes, BlockError>>> {
        self.in_flight.remove(key).map_or_else(Vec::new, |read| read.waiters)
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
    demand_hits: u64,
    prefetch_hits: u64,
    joined: u64,
    misses: u64,
    prefetches: u64,
}

/// The cache of one pool's blocks.
pub struct Cache {
    machine: Machine,
    blocks: Arc<Blocks>,
    shards: Box<[ShardSlot]>,
    budget_bytes: AtomicU64,
    /// Resident and reserved bytes of all shards.
    used_bytes: AtomicU64,
    prefetching_bytes: AtomicU64,
    l2arc: L2arc,
}

enum ReadAction {
    Hit(Bytes, Source),
    Join(oneshot::Receiver<Result<Bytes, BlockError>>, Source),
    /// The caller must read the block.
    Lead,
}

impl Cache {
    /// An empty cache of `budget_bytes` over `blocks`.
    pub fn new(machine: Machine, blocks: Arc<Blocks>, budget_bytes: u64) -> Arc<Self> {
        let count = (budget_bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let shard = |_| {
            let policy = ArcPolicy::new(budget_bytes);
            let shard = Shard { policy, in_flight: FixedMap::default(), counters: Counters::default() };
            ShardSlot { shard: Mutex::new(shard), used_bytes: AtomicU64::new(0) }
        };
        Arc::new(Cache {
            l2arc: L2arc::new(budget_bytes),
            machine,
            blocks,
            shards: (0..count).map(shard).collect(),
            budget_bytes: AtomicU64::new(budget_bytes),
            used_bytes: AtomicU64::new(0),
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

    /// The cache devices.
    pub fn l2arc(&self) -> &L2arc {
        &self.l2arc
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
            match self.look_up(rq, key) {
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
                ReadAction::Lead => {
                    let cost = self.reserve(key, bp);
                    return self.lead(InFlightGuard { cache: self, key, cost }, rq, bp, opts, false).await;
                }
            }
        }
    }

    /// Starts reading a block that is expected to be read soon, and returns immediately. Does nothing if the block is
    /// cached or in flight already, if too much prefetch is in flight, or if the block would not be cached.
    pub fn prefetch(self: &Arc<Self>, bp: &BlockPointer, opts: &ReadOptions) {
        let Some(key) = key_of(bp, opts) else { return };
        let size = bp.lsize_bytes();
        {
            let mut shard = self.slot(&key).lock();
            if shard.policy.contains(&key) || shard.in_flight.contains_key(&key) {
                return;
            }
            if self.prefetching_bytes.load(Ordering::Relaxed).saturating_add(size) > PREFETCH_LIMIT_BYTES {
                return;
            }
            shard.counters.prefetches += 1;
            shard.begin_read(key, true);
        }
        self.prefetching_bytes.fetch_add(size, Ordering::Relaxed);
        let cost = self.reserve(key, bp);
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

    /// Whether the cache holds a block, logical or raw. Asking is no access.
    pub fn has(&self, bp: &BlockPointer, opts: &ReadOptions) -> bool {
        if bp.is_embedded() || bp.is_hole() {
            return false;
        }
        let raw = ReadOptions { raw: true, ..opts.clone() };
        let keys = [key_of(bp, opts), key_of(bp, &raw)];
        keys.iter().flatten().any(|key| self.slot(key).lock().policy.contains(key))
    }

    /// Inserts the logical bytes of a block that was just written, since it may be read soon.
    pub fn insert(&self, bp: &BlockPointer, opts: &ReadOptions, bytes: Bytes) {
        let Some(key) = key_of(bp, opts) else { return };
        let now_ns = self.machine.clock.now().0;
        let cost = self.cost_bytes(bytes.len() as u64);
        let cached = self.cached(bp, opts, bytes);
        self.change(&key, cost, |shard| shard.policy.insert(key, cached, cost, class_of(bp), false, now_ns));
    }

    /// Removes blocks that were freed (`arc_freed`), so that they take no room from those that can still be read. A block that
    /// is read all the same is read from disk.
    pub fn forget(&self, freed: &BlockPointer) {
        if freed.is_embedded() || freed.is_hole() {
            return;
        }
        for key in [false, true].map(|raw| Key::of(freed, raw)) {
            self.change_shard(self.slot(&key), 0, |shard| shard.policy.forget(&key));
        }
        self.l2arc.forget(freed);
    }

    /// The counters and sizes.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let budget_bytes = self.budget_bytes.load(Ordering::Relaxed);
        for slot in &self.shards {
            let shard = slot.lock();
            stats.demand_hits += shard.counters.demand_hits;
            stats.prefetch_hits += shard.counters.prefetch_hits;
            stats.joined += shard.counters.joined;
            stats.misses += shard.counters.misses;
            stats.prefetches += shard.counters.prefetches;
            stats.sizes.add(&shard.policy.sizes());
            stats.sizes.metadata_target_bytes +=
                shard.policy.metadata_target_of(budget_bytes) / self.shards.len() as u64;
        }
        stats.sizes.budget_bytes = budget_bytes;
        stats
    }

    /// Removes all blocks, for example when the key of encrypted ones is unloaded.
    pub fn clear(&self) {
        for slot in &self.shards {
            self.change_shard(slot, 0, |shard| {
                let budget_bytes = shard.policy.budget_bytes();
                shard.policy.set_budget(0);
                shard.policy.set_budget(budget_bytes);
            });
        }
    }

    /// Sets the budget in bytes; a smaller one evicts blocks immediately.
    pub fn set_budget(&self, budget_bytes: u64) {
        self.budget_bytes.store(budget_bytes, Ordering::Relaxed);
        self.l2arc.set_arc_bytes(budget_bytes);
        self.evict_excess();
    }

    /// The part of the budget that blocks may take: all but the index of the L2ARC.
    fn room_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed).saturating_sub(self.l2arc.memory_bytes())
    }

    /// Evicts blocks after the index of the L2ARC has grown.
    pub(crate) fn make_room_for_index(&self) {
        self.evict_excess();
    }

    /// Whether the cache has been full: it evicted a block.
    pub(crate) fn is_warm(&self) -> bool {
        self.shards.iter().any(|slot| slot.lock().policy.sizes().evictions > 0)
    }

    /// Appends blocks of a list that may be written to a cache device and have no copy there, until `takes` refuses one. At
    /// most `search_bytes` of the list are searched: the part that is evicted next, or the newest one as long as nothing is
    /// evicted. A block that is taken is not offered again.
    pub(crate) fn visit_for_feed(
        &self,
        list: ArcState,
        kind: ContentClass,
        search_bytes: u64,
        takes_prefetched: bool,
        takes: &mut dyn FnMut(&BlockPointer) -> bool,
        out: &mut Vec<FeedCandidate>,
    ) {
        let from_newest = !self.is_warm();
        let each_bytes = search_bytes / self.shards.len() as u64;
        for slot in &self.shards {
            let mut shard = slot.lock();
            let copies = self.l2arc.copies();
            let mut searched = 0;
            let mut visited = 0;
            let mut goes_on = true;
            shard.policy.visit(list, kind, from_newest, |key, cached, cost, is_prefetched| {
                (searched, visited) = (searched + cost, visited + 1);
                if searched > each_bytes.max(cost) || visited > MAX_VISITED {
                    return false;
                }
                let Some(pointer) = cached.pointer.as_deref() else { return true };
                if is_prefetched && !takes_prefetched || copies.contains(&BlockId::of(pointer)) {
                    return true;
                }
                goes_on = takes(pointer);
                if goes_on && let Some(pointer) = cached.pointer.take() {
                    let (bytes, is_raw) = (cached.bytes.clone(), key.raw);
                    out.push(FeedCandidate { pointer: *pointer, bytes, is_raw, kind, list, is_prefetched });
                }
                goes_on
            });
            if !goes_on {
                return;
            }
        }
    }

    /// A block to be inserted, with its pointer if it may be written to a cache device.
    fn cached(&self, bp: &BlockPointer, opts: &ReadOptions, bytes: Bytes) -> Cached {
        let is_metadata = class_of(bp) == ContentClass::Metadata;
        let pointer = self.l2arc.admits(bp, opts, is_metadata).then(|| Box::new(*bp));
        Cached { bytes, pointer }
    }

    /// Memory cost of a cached block in bytes, with its pointer if there are cache devices.
    fn cost_bytes(&self, len: u64) -> u64 {
        cost_bytes(len) + if self.l2arc.is_used() { POINTER_BYTES } else { 0 }
    }

    fn slot(&self, key: &Key) -> &ShardSlot {
        &self.shards[key.hash() as usize % self.shards.len()]
    }

    /// Changes the shard of a key, and evicts blocks as the common budget requires. At most `more_bytes` are added.
    fn change<T>(&self, key: &Key, more_bytes: u64, change: impl FnOnce(&mut Shard) -> T) -> T {
        let result = self.change_shard(self.slot(key), more_bytes, change);
        self.evict_excess();
        result
    }

    /// Changes a shard, whose budget is meanwhile what the others leave, or an equal part if that is more.
    fn change_shard<T>(&self, slot: &ShardSlot, more_bytes: u64, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = slot.lock();
        let budget_bytes = self.room_bytes();
        let before = shard.policy.used_bytes();
        // What is added is claimed first, so that shards that grow at the same time do not use the same memory.
        let others = self.used_bytes.fetch_add(more_bytes, Ordering::Relaxed).saturating_sub(before);
        shard.policy.set_budget(budget_bytes.saturating_sub(others).max(budget_bytes / self.shards.len() as u64));
        let result = change(&mut shard);
        let after = shard.policy.used_bytes();
        invariant!(after <= before + more_bytes, "a shard grew by more than was claimed");
        slot.used_bytes.store(after, Ordering::Relaxed);
        self.used_bytes.fetch_sub(before + more_bytes - after, Ordering::Relaxed);
        result
    }

    /// Evicts blocks of the largest shards until the common budget is kept, or only reservations exceed it.
    fn evict_excess(&self) {
        for _ in 0..self.shards.len() {
            if self.used_bytes.load(Ordering::Relaxed) <= self.room_bytes() {
                return;
            }
            let largest = self.shards.iter().max_by_key(|slot| slot.used_bytes.load(Ordering::Relaxed));
            largest.into_iter().for_each(|slot| self.change_shard(slot, 0, |_| ()));
        }
    }

    /// Reserves memory for a block that is about to be read. Returns the reserved bytes.
    fn reserve(&self, key: Key, bp: &BlockPointer) -> u64 {
        let cost = self.cost_bytes(bp.lsize_bytes().min(MAX_BLOCK_BYTES));
        self.change(&key, cost, |shard| shard.policy.reserve(cost));
        cost
    }

    fn look_up(&self, rq: &Request, key: Key) -> ReadAction {
        // The begin of an accounted request is exact enough for the policy, and saves reading the clock.
        let now_ns = if rq.begun == Nanos::default() { self.machine.clock.now().0 } else { rq.begun.0 };
        let mut shard = self.slot(&key).lock();
        let Shard { policy, in_flight, counters } = &mut *shard;
        if let ArcLookup::Hit { value, prefetched } = policy.get_part(&key, now_ns, |cached| cached.bytes.clone()) {
            let (counter, source) = if prefetched {
                (&mut counters.prefetch_hits, Source::ArcPrefetch)
            } else {
                (&mut counters.demand_hits, Source::ArcDemand)
            };
            *counter += 1;
            return ReadAction::Hit(value, source);
        }
        if let Some(read) = in_flight.get_mut(&key) {
            let (sender, result) = oneshot::channel();
            read.waiters.push(sender);
            let (counter, source) = if read.prefetch {
                (&mut counters.prefetch_hits, Source::ArcPrefetch)
            } else {
                (&mut counters.joined, Source::ArcDemand)
            };
            *counter += 1;
            return ReadAction::Join(result, source);
        }
        shard.counters.misses += 1;
        shard.begin_read(key, false);
        ReadAction::Lead
    }

    async fn lead(
        &self,
        guard: InFlightGuard<'_>,
        rq: &Request,
        bp: &BlockPointer,
        opts: &ReadOptions,
        prefetch: bool,
    ) -> Result<(Bytes, Source), BlockError> {
        let (result, source) = match self.l2arc.read(self, rq, bp, opts, prefetch).await {
            Some(bytes) => (Ok(bytes), Source::L2arc),
            None => (self.blocks.read(rq, bp, opts).await, Source::Disk),
        };
        let now_ns = self.machine.clock.now().0;
        let key = guard.key;
        let waiters = self.change(&key, 0, |shard| {
            shard.policy.release(guard.cost);
            let waiters = shard.finish_read(&key);
            if let Ok(bytes) = &result {
                // A waiter was the first demand read of a prefetched block.
                let undemanded = prefetch && waiters.is_empty();
                // No more than was reserved: the logical size of the block.
                let cost = self.cost_bytes(bytes.len() as u64).min(guard.cost);
                let cached = self.cached(bp, opts, bytes.clone());
                shard.policy.insert(key, cached, cost, class_of(bp), undemanded, now_ns);
            }
            waiters
        });
        std::mem::forget(guard);
        for waiter in waiters {
            // The waiter may have been dropped.
            let _ = waiter.send(result.clone());
        }
        result.map(|bytes| (bytes, source))
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
        let waiters = self.cache.change(&self.key, 0, |shard| {
            shard.policy.release(self.cost);
            shard.finish_read(&self.key)
        });
        // Dropping their senders wakes the waiters.
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
    Some(Key::of(bp, opts.raw))
}
