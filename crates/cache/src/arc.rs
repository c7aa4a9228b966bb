//! The replacement policy: ARC (Megiddo and Modha, FAST 2003) with the metadata balance of OpenZFS 2.2. Pure: no I/O,
//! no clock, no lock.
//!
//! Blocks used once recently are in the *MRU* list, blocks used again in the *MFU* list. An evicted block leaves its
//! key in a *ghost* list. A miss whose key is in a ghost list shows that the corresponding list was too small, and
//! raises its target.
//!
//! ```text
//!   MRU ghost ← MRU | MFU → MFU ghost     once for data, once for metadata
//!                       ↑ targets: share of MRU in data, share of MRU in metadata, share of metadata
//! ```
//!
//! The size of a block that is being read is *reserved* before the read: other blocks are evicted before its memory
//! is allocated, so that reads in flight do not add to the budget.
//!
//! Invariants: resident plus reserved bytes ≤ budget, unless the reservations alone exceed it; ghost bytes (sizes of
//! evicted blocks) ≤ budget; each key is in one list.
//!
//! Rejected: a single CLOCK list (a scan flushes it); fixed metadata limits (wrong for some workloads).
//!
//! Source of the balance: OpenZFS `module/zfs/arc.c`, `arc_adapt`, `arc_evict`.

use std::hash::Hash;
use weir_machine::{FixedMap, invariant};

/// Minimum time between two hits of an MRU block to promote it to MFU, in nanoseconds (`ARC_MINTIME`, 62 ms): a
/// sequence of small reads of one block is one use.
pub const MIN_REUSE_NS: u64 = 62_000_000;

/// Class of a block for the balance of data and metadata (`arc_buf_contents_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContentClass {
    /// File and volume contents.
    Data,
    /// Everything else.
    Metadata,
}

/// A list of the policy (`arc_state_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArcState {
    /// Resident; used once recently.
    Mru,
    /// Resident; used more than once.
    Mfu,
    /// Evicted from MRU; only the key remains.
    MruGhost,
    /// Evicted from MFU; only the key remains.
    MfuGhost,
}

const LISTS: usize = 8;
/// The value 1 of a share: shares are fractions of 2^32.
const ONE: u64 = 1 << 32;

impl ArcState {
    fn slot(self, kind: ContentClass) -> usize {
        self as usize * 2 + kind as usize
    }

    fn is_ghost(self) -> bool {
        matches!(self, ArcState::MruGhost | ArcState::MfuGhost)
    }
}

struct Node<K, V> {
    key: K,
    /// `None` in ghost lists.
    value: Option<V>,
    cost_bytes: u64,
    kind: ContentClass,
    list: ArcState,
    prefetched: bool,
    used_ns: u64,
    newer: usize,
    older: usize,
}

const NIL: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Chain {
    newest: usize,
    oldest: usize,
    bytes: u64,
    count: u64,
}

/// Result of [`ArcPolicy::get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArcLookup<V> {
    /// The block is resident.
    Hit {
        /// The value.
        value: V,
        /// Whether this is the first demand read of a prefetched block.
        prefetched: bool,
    },
    /// The block is not resident.
    Miss,
}

/// Sizes and counters of the policy, for `arcstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArcSizes {
    /// Resident bytes: MRU data, MRU metadata, MFU data, MFU metadata.
    pub resident_bytes: [u64; 4],
    /// Ghost bytes in the same order.
    pub ghost_bytes: [u64; 4],
    /// Number of resident blocks.
    pub resident_count: u64,
    /// The budget: maximum of resident plus reserved bytes.
    pub budget_bytes: u64,
    /// Target for resident metadata.
    pub metadata_target_bytes: u64,
    /// Ghost hits so far: MRU, MFU.
    pub ghost_hits: [u64; 2],
    /// Number of evictions so far.
    pub evictions: u64,
}

impl ArcSizes {
    /// Adds the lists and counters of another part of the same cache; budget and target stay.
    pub fn add(&mut self, other: &ArcSizes) {
        let all = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        all(&mut self.resident_bytes, &other.resident_bytes);
        all(&mut self.ghost_bytes, &other.ghost_bytes);
        all(&mut self.ghost_hits, &other.ghost_hits);
        self.resident_count += other.resident_count;
        self.evictions += other.evictions;
    }
}

/// The ARC policy with the values of the resident blocks.
pub struct ArcPolicy<K, V> {
    budget_bytes: u64,
    reserved_bytes: u64,
    index: FixedMap<K, usize>,
    nodes: Vec<Node<K, V>>,
    free: Vec<usize>,
    chains: [Chain; LISTS],
    /// Target share of MRU in data and in metadata; see [`ONE`].
    mru_share: [u64; 2],
    /// Target share of metadata in the budget; see [`ONE`].
    metadata_share: u64,
    ghost_hits: [u64; 2],
    evictions: u64,
}

impl<K: Hash + Eq + Clone, V> ArcPolicy<K, V> {
    /// An empty cache of `budget_bytes`.
    pub fn new(budget_bytes: u64) -> Self {
        ArcPolicy {
            budget_bytes,
            reserved_bytes: 0,
            index: FixedMap::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            chains: [Chain { newest: NIL, oldest: NIL, bytes: 0, count: 0 }; LISTS],
            mru_share: [ONE / 2; 2],
            metadata_share: ONE / 4,
            ghost_hits: [0; 2],
            evictions: 0,
        }
    }

    /// Looks up `key` for a demand read at time `now_ns` and records the use.
    pub fn get(&mut self, key: &K, now_ns: u64) -> ArcLookup<V>
    where
        V: Clone,
    {
        self.get_part(key, now_ns, V::clone)
    }

    /// Like [`ArcPolicy::get`], but returns what `part` takes of the value.
    pub fn get_part<T>(&mut self, key: &K, now_ns: u64, part: impl FnOnce(&V) -> T) -> ArcLookup<T> {
        let Some(&at) = self.index.get(key) else { return ArcLookup::Miss };
        let node = &mut self.nodes[at];
        let Some(value) = node.value.as_ref().map(part) else { return ArcLookup::Miss };
        let prefetched = std::mem::take(&mut node.prefetched);
        let again = !prefetched && now_ns.saturating_sub(node.used_ns) >= MIN_REUSE_NS;
        node.used_ns = now_ns;
        let to = if again { ArcState::Mfu } else { node.list };
        self.unlink(at);
        self.link(at, to);
        ArcLookup::Hit { value, prefetched }
    }

    /// Whether `key` is resident; records no use.
    pub fn contains(&self, key: &K) -> bool {
        self.index.get(key).is_some_and(|&at| self.nodes[at].value.is_some())
    }

    /// Inserts a block after a miss and evicts others as the budget requires. A block larger than the budget is not
    /// inserted.
    pub fn insert(&mut self, key: K, value: V, cost_bytes: u64, kind: ContentClass, prefetched: bool, now_ns: u64) {
        let mut list = ArcState::Mru;
        if let Some(&at) = self.index.get(&key) {
            let old = self.nodes[at].list;
            if old.is_ghost() && !prefetched {
                self.adapt(old, self.nodes[at].kind, cost_bytes);
                list = ArcState::Mfu;
            } else if !old.is_ghost() {
                list = old;
            }
            self.drop_node(at);
        }
        if cost_bytes > self.budget_bytes {
            return;
        }
        self.evict_for(cost_bytes);
        let node = Node {
            key: key.clone(),
            value: Some(value),
            cost_bytes,
            kind,
            list,
            prefetched,
            used_ns: now_ns,
            newer: NIL,
            older: NIL,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        let former = self.index.insert(key, at);
        invariant!(former.is_none(), "a block is in two lists");
        self.link(at, list);
    }

    /// Removes a block that will not be read again, from the resident blocks or from a ghost list.
    pub fn forget(&mut self, key: &K) {
        if let Some(&at) = self.index.get(key) {
            self.drop_node(at);
        }
    }

    /// Visits the resident blocks of a list, from the oldest or from the newest, until `visit` returns false: with key, value,
    /// cost in bytes, and whether the block was prefetched and not used since. Visiting is no use.
    pub fn visit(
        &mut self,
        list: ArcState,
        kind: ContentClass,
        from_newest: bool,
        mut visit: impl FnMut(&K, &mut V, u64, bool) -> bool,
    ) {
        let chain = &self.chains[list.slot(kind)];
        let mut at = if from_newest { chain.newest } else { chain.oldest };
        while at != NIL {
            let node = &mut self.nodes[at];
            let goes_on =
                node.value.as_mut().is_none_or(|value| visit(&node.key, value, node.cost_bytes, node.prefetched));
            if !goes_on {
                return;
            }
            at = if from_newest { node.older } else { node.newer };
        }
    }

    /// Reserves `cost_bytes` for a block that is about to be read, evicting others. The caller must undo it with
    /// [`ArcPolicy::release`].
    pub fn reserve(&mut self, cost_bytes: u64) {
        self.reserved_bytes += cost_bytes;
        self.evict_for(0);
    }

    /// Ends a reservation of [`ArcPolicy::reserve`]: before the block is inserted, or when its read failed.
    pub fn release(&mut self, cost_bytes: u64) {
        let left = self.reserved_bytes.checked_sub(cost_bytes);
        invariant!(left.is_some(), "{cost_bytes} of {} reserved bytes released", self.reserved_bytes);
        self.reserved_bytes = left.unwrap_or(0);
    }

    /// Sets the budget; a smaller one evicts blocks immediately.
    pub fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
        self.evict_for(0);
    }

    /// The budget: maximum of resident plus reserved bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Resident bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.chains[..4].iter().map(|c| c.bytes).sum()
    }

    /// Resident and reserved bytes.
    pub fn used_bytes(&self) -> u64 {
        self.resident_bytes() + self.reserved_bytes
    }

    /// Target for resident metadata of a cache of `bytes`.
    pub fn metadata_target_of(&self, bytes: u64) -> u64 {
        share_of(self.metadata_share, bytes)
    }

    /// Sizes of the evicted blocks whose keys are in ghost lists, in bytes.
    pub fn ghost_bytes(&self) -> u64 {
        self.chains[4..].iter().map(|c| c.bytes).sum()
    }

    /// Sizes and counters.
    pub fn sizes(&self) -> ArcSizes {
        let bytes = |i: usize| self.chains[i].bytes;
        ArcSizes {
            resident_bytes: [bytes(0), bytes(1), bytes(2), bytes(3)],
            ghost_bytes: [bytes(4), bytes(5), bytes(6), bytes(7)],
            resident_count: self.chains[..4].iter().map(|c| c.count).sum(),
            budget_bytes: self.budget_bytes,
            metadata_target_bytes: share_of(self.metadata_share, self.budget_bytes),
            ghost_hits: self.ghost_hits,
            evictions: self.evictions,
        }
    }

    /// Raises the target of a list after a miss that hit its ghost list.
    fn adapt(&mut self, ghost: ArcState, kind: ContentClass, cost_bytes: u64) {
        let bytes_of = |list: ArcState| self.chains[list.slot(kind)].bytes.max(1);
        let mru = bytes_of(ArcState::MruGhost);
        let mfu = bytes_of(ArcState::MfuGhost);
        let step = (u128::from(cost_bytes) * u128::from(ONE) / u128::from(self.budget_bytes.max(1))) as u64;
        let share = &mut self.mru_share[kind as usize];
        let weight = |other: u64, own: u64| (other / own).clamp(1, 10);
        *share = if ghost == ArcState::MruGhost {
            self.ghost_hits[0] += 1;
            share.saturating_add(step.saturating_mul(weight(mfu, mru))).min(ONE / 100 * 99)
        } else {
            self.ghost_hits[1] += 1;
            share.saturating_sub(step.saturating_mul(weight(mru, mfu))).max(ONE / 100)
        };
        self.metadata_share = match kind {
            ContentClass::Metadata => self.metadata_share.saturating_add(step).min(ONE / 100 * 95),
            ContentClass::Data => self.metadata_share.saturating_sub(step).max(ONE / 20),
        };
    }

    fn evict_for(&mut self, cost_bytes: u64) {
        while self.resident_bytes() + self.reserved_bytes + cost_bytes > self.budget_bytes {
            let Some(victim) = self.victim() else { break };
            self.evictions += 1;
            let list = match self.nodes[victim].list {
                ArcState::Mru => ArcState::MruGhost,
                _ => ArcState::MfuGhost,
            };
            self.unlink(victim);
            if self.nodes[victim].prefetched {
                // It was prefetched and never demanded, so a later miss would carry no information about the lists.
                self.remove(victim);
            } else {
                self.nodes[victim].value = None;
                self.link(victim, list);
            }
        }
        while self.ghost_bytes() > self.budget_bytes {
            let oldest = |slot: usize| self.chains[slot].oldest;
            let Some(slot) = (4..LISTS).filter(|&s| oldest(s) != NIL).max_by_key(|&s| self.chains[s].bytes) else {
                break;
            };
            self.drop_node(oldest(slot));
        }
    }

    /// The oldest block of a list that exceeds its target.
    fn victim(&self) -> Option<usize> {
        let bytes = |list: ArcState, kind: ContentClass| self.chains[list.slot(kind)].bytes;
        let of_kind = |kind| bytes(ArcState::Mru, kind) + bytes(ArcState::Mfu, kind);
        let metadata_target = share_of(self.metadata_share, self.budget_bytes);
        let first =
            if of_kind(ContentClass::Metadata) > metadata_target { ContentClass::Metadata } else { ContentClass::Data };
        let second = if first == ContentClass::Data { ContentClass::Metadata } else { ContentClass::Data };
        [first, second].into_iter().find_map(|kind| {
            let mru_target = share_of(self.mru_share[kind as usize], of_kind(kind));
            let order = if bytes(ArcState::Mru, kind) > mru_target {
                [ArcState::Mru, ArcState::Mfu]
            } else {
                [ArcState::Mfu, ArcState::Mru]
            };
            order.into_iter().map(|list| self.chains[list.slot(kind)].oldest).find(|&at| at != NIL)
        })
    }

    fn drop_node(&mut self, at: usize) {
        self.unlink(at);
        self.remove(at);
    }

    fn remove(&mut self, at: usize) {
        self.nodes[at].value = None;
        let known = self.index.remove(&self.nodes[at].key);
        invariant!(known == Some(at), "the index leads to node {known:?} instead of {at}");
        self.free.push(at);
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older, slot, cost) = {
            let n = &self.nodes[at];
            (n.newer, n.older, n.list.slot(n.kind), n.cost_bytes)
        };
        match newer {
            NIL => self.chains[slot].newest = older,
            n => self.nodes[n].older = older,
        }
        match older {
            NIL => self.chains[slot].oldest = newer,
            o => self.nodes[o].newer = newer,
        }
        let chain = &mut self.chains[slot];
        let left = chain.bytes.checked_sub(cost).zip(chain.count.checked_sub(1));
        invariant!(left.is_some(), "a list of {} blocks with {} bytes loses {cost}", chain.count, chain.bytes);
        (chain.bytes, chain.count) = left.unwrap_or_default();
        invariant!((chain.count == 0) == (chain.newest == NIL), "a list of {} has no newest block", chain.count);
    }

    fn link(&mut self, at: usize, list: ArcState) {
        let slot = list.slot(self.nodes[at].kind);
        let newest = self.chains[slot].newest;
        let node = &mut self.nodes[at];
        (node.list, node.newer, node.older) = (list, NIL, newest);
        let cost = node.cost_bytes;
        match newest {
            NIL => self.chains[slot].oldest = at,
            n => self.nodes[n].newer = at,
        }
        let chain = &mut self.chains[slot];
        chain.newest = at;
        chain.bytes += cost;
        chain.count += 1;
    }
}

fn share_of(share: u64, bytes: u64) -> u64 {
    (u128::from(share) * u128::from(bytes) / u128::from(ONE)) as u64
}
