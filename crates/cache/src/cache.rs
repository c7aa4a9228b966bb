//! The cache: the policy, the reads under way, and the pipeline below.
//!
//! ```text
//!   read ── embedded, hole ──────────────────────────────────▶ pipeline (no storage: nothing to keep)
//!     │── policy hit ─▶ bytes
//!     │── somebody reads it already ─▶ wait for that read
//!     └── else lead: pipeline ─▶ keep ─▶ tell those who wait
//! ```
//!
//! One lock over policy and flights, never held across a wait. A leader that is dropped (its client went away) strands
//! nobody: its waiters wake and one of them leads. Errors are told to those who wait and not kept: the next read tries
//! the disks again.

use crate::arc::{Arc as Policy, Found, Kind, Sizes};
use bytes::Bytes;
use futures_channel::oneshot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weir_blocks::{BlockError, Blocks, CacheClass, MAX_BLOCK_BYTES, ReadOptions};
use weir_format::BlockPointer;
use weir_machine::{FixedMap, Machine, Priority, Request, Source};

/// Bytes of prefetch under way at most; beyond that a prefetch is not started.
const PREFETCH_LIMIT_BYTES: u64 = 32 << 20;
/// What an entry costs beyond its bytes: list node, index, allocation.
const ENTRY_BYTES: u64 = 256;
/// Buffers of at least a page begin at one, which costs up to a page more.
const PAGE_BYTES: u64 = 4096;

/// What a cached block is known by: where its first copy lies and when it was put there. A raw (still encrypted or
/// compressed) form is another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    offset_bytes: u64,
    birth: u64,
    vdev: u32,
    raw: bool,
}

/// What becomes of a read that others wait for.
struct Flight {
    waiters: Vec<oneshot::Sender<Result<Bytes, BlockError>>>,
    prefetch: bool,
}

struct State {
    policy: Policy<Key, Bytes>,
    flights: FixedMap<Key, Flight>,
}

impl State {
    /// Puts a read on the list, with room for what it will bring; gives what that costs.
    fn depart(&mut self, key: Key, bp: &BlockPointer, prefetch: bool) -> u64 {
        let cost = cost_bytes(bp.lsize_bytes().min(MAX_BLOCK_BYTES));
        self.policy.reserve(cost);
        self.flights.insert(key, Flight { waiters: Vec::new(), prefetch });
        cost
    }

    /// Takes a read off the list; gives those who wait for it.
    fn land(&mut self, key: &Key, cost: u64) -> Vec<oneshot::Sender<Result<Bytes, BlockError>>> {
        self.policy.release(cost);
        self.flights.remove(key).map_or_else(Vec::new, |f| f.waiters)
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads answered from memory, of blocks that a demand brought.
    pub demand_hits: u64,
    /// Reads answered from memory or a read under way, of blocks that prefetch brought.
    pub prefetch_hits: u64,
    /// Reads that joined a demand read under way.
    pub joined: u64,
    /// Reads that went to the pipeline.
    pub misses: u64,
    /// Blocks that prefetch asked for.
    pub prefetches: u64,
    /// Sizes of the lists.
    pub sizes: Sizes,
}

#[derive(Default)]
struct Counters {
    demand_hits: AtomicU64,
    prefetch_hits: AtomicU64,
    joined: AtomicU64,
    misses: AtomicU64,
    prefetches: AtomicU64,
}

/// The cache above one pool's blocks.
pub struct Cache {
    machine: Machine,
    blocks: Arc<Blocks>,
    state: Mutex<State>,
    counters: Counters,
    prefetching_bytes: AtomicU64,
}

enum Step {
    Hit(Bytes, Source),
    Join(oneshot::Receiver<Result<Bytes, BlockError>>, Source),
    /// To be read, with this much room reserved.
    Lead(u64),
}

impl Cache {
    /// An empty cache of `budget_bytes` above `blocks`.
    pub fn new(machine: Machine, blocks: Arc<Blocks>, budget_bytes: u64) -> Arc<Self> {
        Arc::new(Cache {
            machine,
            blocks,
            state: Mutex::new(State { policy: Policy::new(budget_bytes), flights: FixedMap::default() }),
            counters: Counters::default(),
            prefetching_bytes: AtomicU64::new(0),
        })
    }

    /// The pipeline below.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// The machine that the pool runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The logical bytes of a block, proven by its checksum: from memory if there, else through the pipeline.
    pub async fn read(&self, rq: &Request, bp: &BlockPointer, opts: &ReadOptions) -> Result<Bytes, BlockError> {
        let Some(key) = key_of(bp, opts) else {
            return self.blocks.read(rq, bp, opts).await;
        };
        loop {
            match self.step(key, bp) {
                Step::Hit(bytes, source) => {
                    rq.book(source, bytes.len() as u64);
                    return Ok(bytes);
                }
                Step::Join(result, source) => {
                    // The leader was dropped: look again, and perhaps lead.
                    let Ok(result) = result.await else { continue };
                    let bytes = result?;
                    rq.book(source, bytes.len() as u64);
                    return Ok(bytes);
                }
                Step::Lead(cost) => {
                    self.counters.misses.fetch_add(1, Ordering::Relaxed);
                    return self.lead(Landing { cache: self, key, cost }, rq, bp, opts, false).await;
                }
            }
        }
    }

    /// Starts to fetch a block that somebody will soon want; gives at once. Not started when it is there already, when
    /// too much is under way, or when the block would not be kept.
    pub fn prefetch(self: &Arc<Self>, bp: &BlockPointer, opts: &ReadOptions) {
        let Some(key) = key_of(bp, opts) else { return };
        let size = bp.lsize_bytes();
        let cost = {
            let mut state = self.lock();
            if state.policy.contains(&key) || state.flights.contains_key(&key) {
                return;
            }
            if self.prefetching_bytes.load(Ordering::Relaxed).saturating_add(size) > PREFETCH_LIMIT_BYTES {
                return;
            }
            state.depart(key, bp, true)
        };
        self.prefetching_bytes.fetch_add(size, Ordering::Relaxed);
        self.counters.prefetches.fetch_add(1, Ordering::Relaxed);
        let (cache, bp, opts) = (self.clone(), *bp, opts.clone());
        let job = async move {
            let landing = Landing { cache: &cache, key, cost };
            let rq = Request::internal("prefetch").with_priority(Priority::Async);
            // An error is told to those who joined; anybody else meets it on a read of their own.
            let _ = cache.lead(landing, &rq, &bp, &opts, true).await;
            cache.prefetching_bytes.fetch_sub(size, Ordering::Relaxed);
        };
        drop(self.machine.tasks.spawn(job));
    }

    /// Keeps the logical bytes of a block that was written just now: who wrote it may read it soon.
    pub fn keep(&self, bp: &BlockPointer, opts: &ReadOptions, bytes: Bytes) {
        let Some(key) = key_of(bp, opts) else { return };
        let now_ns = self.machine.clock.now().0;
        let cost = cost_bytes(bytes.len() as u64);
        self.lock().policy.insert(key, bytes, cost, kind_of(bp), false, now_ns);
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

    /// Forgets all blocks: some were decrypted with a key that is no longer loaded.
    pub fn clear(&self) {
        let mut state = self.lock();
        let budget_bytes = state.policy.budget_bytes();
        state.policy.set_budget(0);
        state.policy.set_budget(budget_bytes);
    }

    /// Changes the budget; a smaller one evicts at once.
    pub fn set_budget(&self, budget_bytes: u64) {
        self.lock().policy.set_budget(budget_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half-way through a change; a poisoned lock still holds whole lists.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn step(&self, key: Key, bp: &BlockPointer) -> Step {
        let now_ns = self.machine.clock.now().0;
        let mut state = self.lock();
        if let Found::Hit { value, prefetched } = state.policy.get(&key, now_ns) {
            let (counter, source) = if prefetched {
                (&self.counters.prefetch_hits, Source::ArcPrefetch)
            } else {
                (&self.counters.demand_hits, Source::ArcDemand)
            };
            counter.fetch_add(1, Ordering::Relaxed);
            return Step::Hit(value, source);
        }
        if let Some(flight) = state.flights.get_mut(&key) {
            let (tell, result) = oneshot::channel();
            flight.waiters.push(tell);
            let (counter, source) = if flight.prefetch {
                (&self.counters.prefetch_hits, Source::ArcPrefetch)
            } else {
                (&self.counters.joined, Source::ArcDemand)
            };
            counter.fetch_add(1, Ordering::Relaxed);
            return Step::Join(result, source);
        }
        Step::Lead(state.depart(key, bp, false))
    }

    async fn lead(
        &self,
        landing: Landing<'_>,
        rq: &Request,
        bp: &BlockPointer,
        opts: &ReadOptions,
        prefetch: bool,
    ) -> Result<Bytes, BlockError> {
        let result = self.blocks.read(rq, bp, opts).await;
        let waiters = {
            let now_ns = self.machine.clock.now().0;
            let mut state = self.lock();
            let (key, waiters) = (landing.key, state.land(&landing.key, landing.cost));
            if let Ok(bytes) = &result {
                // A prefetched block that somebody waited for has had its first demand.
                let unasked = prefetch && waiters.is_empty();
                state.policy.insert(key, bytes.clone(), cost_bytes(bytes.len() as u64), kind_of(bp), unasked, now_ns);
            }
            waiters
        };
        std::mem::forget(landing);
        for waiter in waiters {
            // A waiter that went away needs no answer.
            let _ = waiter.send(result.clone());
        }
        result
    }
}

/// Takes a flight off the list when its leader is dropped before it lands, so that those who wait look again.
struct Landing<'a> {
    cache: &'a Cache,
    key: Key,
    cost: u64,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let waiters = self.cache.lock().land(&self.key, self.cost);
        drop(waiters);
    }
}

/// What keeping a block costs: its bytes, the entry, and what aligning its buffer to a page takes.
fn cost_bytes(len: u64) -> u64 {
    len + ENTRY_BYTES + if len >= PAGE_BYTES { PAGE_BYTES } else { 0 }
}

fn kind_of(bp: &BlockPointer) -> Kind {
    if bp.level() > 0 || bp.object_type().is_metadata() { Kind::Metadata } else { Kind::Data }
}

/// The key of a block that may be kept; `None` for blocks without storage, those that `primarycache` keeps out, and
/// encrypted ones to be read without their key: what was read with it is not theirs to see.
fn key_of(bp: &BlockPointer, opts: &ReadOptions) -> Option<Key> {
    if bp.is_encrypted() && !opts.raw && opts.keys.as_ref().is_none_or(|keys| keys.is_revoked()) {
        return None;
    }
    let wanted = match opts.cache {
        CacheClass::All => true,
        CacheClass::Metadata => kind_of(bp) == Kind::Metadata,
        CacheClass::None => false,
    };
    if !wanted || bp.is_embedded() || bp.is_hole() {
        return None;
    }
    let dva = bp.dva(0);
    Some(Key { offset_bytes: dva.offset_bytes, birth: bp.physical_birth().0, vdev: dva.vdev, raw: opts.raw })
}
