//! The replacement policy: ARC (Megiddo and Modha, FAST 2003) with the metadata balance of OpenZFS 2.2. Pure.
//!
//! Blocks seen once lately live in *recent*, blocks seen again in *frequent*. What is evicted leaves its key in a
//! *ghost* list: a miss that hits a ghost says that this list was too small, and moves the targets towards it.
//!
//! ```text
//!   recent ghost ← recent | frequent → frequent ghost     once for data, once for metadata
//!                       ↑ targets: share of recent in data, share of recent in metadata, share of metadata
//! ```
//!
//! What is being read on its way in has its room *reserved* beforehand: what is evicted for it is free when its memory is
//! taken, so that budget and spares bound the memory, not budget, spares and all that is under way.
//!
//! Invariants: resident and reserved bytes ≤ budget (unless more than the budget is reserved); ghost bytes (sizes of what is gone) ≤ budget; each key is in one list.
//! Rejected: one clock hand over everything (a scan flushes it), fixed metadata limits (always wrong for somebody).
//! Source of the balance: OpenZFS `module/zfs/arc.c`, `arc_adapt`, `arc_evict`.

use std::hash::Hash;
use weir_machine::FixedMap;

/// Two hits closer together than this count as one use (`ARC_MINTIME`, 62 ms): small reads that walk through one block
/// do not make it frequent.
pub const SAME_USE_NS: u64 = 62_000_000;

/// What a block is to the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// File and volume contents.
    Data,
    /// Everything else.
    Metadata,
}

/// A list of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Seen once lately.
    Recent,
    /// Seen again.
    Frequent,
    /// Evicted from recent.
    RecentGhost,
    /// Evicted from frequent.
    FrequentGhost,
}

const LISTS: usize = 8;
/// Targets are fractions of 2^32.
const ONE: u64 = 1 << 32;

impl List {
    fn slot(self, kind: Kind) -> usize {
        self as usize * 2 + kind as usize
    }

    fn is_ghost(self) -> bool {
        matches!(self, List::RecentGhost | List::FrequentGhost)
    }
}

struct Node<K, V> {
    key: K,
    /// `None` in ghost lists.
    value: Option<V>,
    cost_bytes: u64,
    kind: Kind,
    list: List,
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

/// What a look-up found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<V> {
    /// Here it is; `prefetched` says that this is the first demand for a block that prefetch brought.
    Hit {
        /// The value.
        value: V,
        /// Whether prefetch brought it and nobody asked before.
        prefetched: bool,
    },
    /// Not here.
    Miss,
}

/// A figure of each list, for `arcstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Resident bytes: recent data, recent metadata, frequent data, frequent metadata.
    pub resident_bytes: [u64; 4],
    /// Ghost bytes in the same order.
    pub ghost_bytes: [u64; 4],
    /// Resident blocks.
    pub resident_count: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// Target for metadata.
    pub metadata_target_bytes: u64,
    /// Ghost hits so far: recent, frequent.
    pub ghost_hits: [u64; 2],
    /// Evictions so far.
    pub evictions: u64,
}

/// The policy together with what it keeps.
pub struct Arc<K, V> {
    budget_bytes: u64,
    reserved_bytes: u64,
    index: FixedMap<K, usize>,
    nodes: Vec<Node<K, V>>,
    free: Vec<usize>,
    chains: [Chain; LISTS],
    /// Share of recent in data and in metadata, of 2^32.
    recent_share: [u64; 2],
    /// Share of metadata in everything, of 2^32.
    metadata_share: u64,
    ghost_hits: [u64; 2],
    evictions: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Arc<K, V> {
    /// An empty cache of `budget_bytes`.
    pub fn new(budget_bytes: u64) -> Self {
        Arc {
            budget_bytes,
            reserved_bytes: 0,
            index: FixedMap::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            chains: [Chain { newest: NIL, oldest: NIL, bytes: 0, count: 0 }; LISTS],
            recent_share: [ONE / 2; 2],
            metadata_share: ONE / 4,
            ghost_hits: [0; 2],
            evictions: 0,
        }
    }

    /// Looks for `key` on demand at time `now_ns`, and books the use.
    pub fn get(&mut self, key: &K, now_ns: u64) -> Found<V> {
        let Some(&at) = self.index.get(key) else { return Found::Miss };
        let node = &mut self.nodes[at];
        let Some(value) = node.value.clone() else { return Found::Miss };
        let prefetched = std::mem::take(&mut node.prefetched);
        let again = !prefetched && now_ns.saturating_sub(node.used_ns) >= SAME_USE_NS;
        node.used_ns = now_ns;
        let to = if again { List::Frequent } else { node.list };
        self.unlink(at);
        self.link(at, to);
        Found::Hit { value, prefetched }
    }

    /// Whether `key` is resident; books nothing.
    pub fn contains(&self, key: &K) -> bool {
        self.index.get(key).is_some_and(|&at| self.nodes[at].value.is_some())
    }

    /// Puts a block in after a miss; evicts what the budget asks for. A block larger than the budget is not kept.
    pub fn insert(&mut self, key: K, value: V, cost_bytes: u64, kind: Kind, prefetched: bool, now_ns: u64) {
        let mut list = List::Recent;
        if let Some(&at) = self.index.get(&key) {
            let old = self.nodes[at].list;
            if old.is_ghost() && !prefetched {
                self.adapt(old, self.nodes[at].kind, cost_bytes);
                list = List::Frequent;
            } else if !old.is_ghost() {
                list = old;
            }
            self.drop_node(at);
        }
        if cost_bytes > self.budget_bytes {
            return;
        }
        self.make_room(cost_bytes);
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
        self.index.insert(key, at);
        self.link(at, list);
    }

    /// Makes room for a block of `cost_bytes` that is about to be read; to be given back with [`Arc::release`].
    pub fn reserve(&mut self, cost_bytes: u64) {
        self.reserved_bytes += cost_bytes;
        self.make_room(0);
    }

    /// Gives back what was reserved: before the block is put in, or when it does not come.
    pub fn release(&mut self, cost_bytes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(cost_bytes);
    }

    /// Changes the budget; a smaller one evicts at once.
    pub fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
        self.make_room(0);
    }

    /// The budget.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Resident bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.chains[..4].iter().map(|c| c.bytes).sum()
    }

    /// Bytes that the ghosts stand for.
    pub fn ghost_bytes(&self) -> u64 {
        self.chains[4..].iter().map(|c| c.bytes).sum()
    }

    /// The figures.
    pub fn sizes(&self) -> Sizes {
        let bytes = |i: usize| self.chains[i].bytes;
        Sizes {
            resident_bytes: [bytes(0), bytes(1), bytes(2), bytes(3)],
            ghost_bytes: [bytes(4), bytes(5), bytes(6), bytes(7)],
            resident_count: self.chains[..4].iter().map(|c| c.count).sum(),
            budget_bytes: self.budget_bytes,
            metadata_target_bytes: share_of(self.metadata_share, self.budget_bytes),
            ghost_hits: self.ghost_hits,
            evictions: self.evictions,
        }
    }

    /// A miss hit a ghost: its list deserves more.
    fn adapt(&mut self, ghost: List, kind: Kind, cost_bytes: u64) {
        let bytes_of = |list: List| self.chains[list.slot(kind)].bytes.max(1);
        let (recent, frequent) = (bytes_of(List::RecentGhost), bytes_of(List::FrequentGhost));
        let step = (u128::from(cost_bytes) * u128::from(ONE) / u128::from(self.budget_bytes.max(1))) as u64;
        let share = &mut self.recent_share[kind as usize];
        let weight = |other: u64, own: u64| (other / own).clamp(1, 10);
        *share = if ghost == List::RecentGhost {
            self.ghost_hits[0] += 1;
            share.saturating_add(step.saturating_mul(weight(frequent, recent))).min(ONE / 100 * 99)
        } else {
            self.ghost_hits[1] += 1;
            share.saturating_sub(step.saturating_mul(weight(recent, frequent))).max(ONE / 100)
        };
        self.metadata_share = match kind {
            Kind::Metadata => self.metadata_share.saturating_add(step).min(ONE / 100 * 95),
            Kind::Data => self.metadata_share.saturating_sub(step).max(ONE / 20),
        };
    }

    fn make_room(&mut self, cost_bytes: u64) {
        while self.resident_bytes() + self.reserved_bytes + cost_bytes > self.budget_bytes {
            let Some(victim) = self.victim() else { break };
            self.evictions += 1;
            let list = match self.nodes[victim].list {
                List::Recent => List::RecentGhost,
                _ => List::FrequentGhost,
            };
            self.unlink(victim);
            if self.nodes[victim].prefetched {
                // Nobody ever asked for it: its coming back would say nothing about the lists.
                self.forget(victim);
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

    /// The oldest block of the list that is furthest over its target.
    fn victim(&self) -> Option<usize> {
        let bytes = |list: List, kind: Kind| self.chains[list.slot(kind)].bytes;
        let of_kind = |kind| bytes(List::Recent, kind) + bytes(List::Frequent, kind);
        let metadata_target = share_of(self.metadata_share, self.budget_bytes);
        let first = if of_kind(Kind::Metadata) > metadata_target { Kind::Metadata } else { Kind::Data };
        let second = if first == Kind::Data { Kind::Metadata } else { Kind::Data };
        [first, second].into_iter().find_map(|kind| {
            let recent_target = share_of(self.recent_share[kind as usize], of_kind(kind));
            let order = if bytes(List::Recent, kind) > recent_target {
                [List::Recent, List::Frequent]
            } else {
                [List::Frequent, List::Recent]
            };
            order.into_iter().map(|list| self.chains[list.slot(kind)].oldest).find(|&at| at != NIL)
        })
    }

    fn drop_node(&mut self, at: usize) {
        self.unlink(at);
        self.forget(at);
    }

    fn forget(&mut self, at: usize) {
        self.nodes[at].value = None;
        self.index.remove(&self.nodes[at].key);
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
        self.chains[slot].bytes -= cost;
        self.chains[slot].count -= 1;
    }

    fn link(&mut self, at: usize, list: List) {
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
