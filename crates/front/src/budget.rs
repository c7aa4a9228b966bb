//! Memory budgets of which no host, and no few hosts together, can take everything.
//!
//! A host may hold a quarter of what the other hosts leave: the first one a quarter of all, the second a quarter of the rest,
//! and so on. So `n` hosts that take whatever they can leave at least (3/4)^n of the budget to the next one, which need not
//! wait for them. A host that holds nothing gets what it asks for as long as there is that much, so every host makes progress.
//!
//! A host that waits for its own share keeps no other host waiting. Requests of one host are granted in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::oneshot;
use weir_machine::lock::{Mutex, MutexGuard};

/// A host may hold this fraction of what the others leave.
const HOST_FRACTION: usize = 4;

/// Bytes of memory for the clients of a server, shared by hosts.
pub struct HostBudget(Arc<Shared>);

struct Shared {
    bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes by host; no entry for hosts that hold nothing.
    held: BTreeMap<IpAddr, usize>,
    /// Their sum.
    total: usize,
    waiting: VecDeque<Waiting>,
}

/// A request that waits.
struct Waiting {
    host: IpAddr,
    bytes: usize,
    permit: oneshot::Sender<HostPermit>,
}

/// Bytes acquired from a [`HostBudget`]; released when dropped.
pub struct HostPermit {
    budget: Arc<Shared>,
    host: IpAddr,
    bytes: usize,
}

impl State {
    fn held(&self, host: IpAddr) -> usize {
        self.held.get(&host).copied().unwrap_or(0)
    }

    /// Whether a host may hold `bytes` more now.
    fn fits(&self, budget_bytes: usize, host: IpAddr, bytes: usize) -> bool {
        let held = self.held(host);
        let others = self.total - held;
        let share = (budget_bytes - others) / HOST_FRACTION;
        let is_first = held == 0 && bytes <= budget_bytes - others;
        is_first || held + bytes <= share
    }

    fn take(&mut self, host: IpAddr, bytes: usize) {
        if bytes > 0 {
            *self.held.entry(host).or_default() += bytes;
            self.total += bytes;
        }
    }

    fn release(&mut self, host: IpAddr, bytes: usize) {
        let left = self.held(host).checked_sub(bytes);
        debug_assert!(left.is_some(), "{host} releases more than it holds");
        match left.unwrap_or(0) {
            0 => drop(self.held.remove(&host)),
            left => drop(self.held.insert(host, left)),
        }
        self.total -= bytes;
        debug_assert_eq!(self.total, self.held.values().sum::<usize>());
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn release(self: &Arc<Self>, host: IpAddr, bytes: usize) {
        self.state().release(host, bytes);
        self.grant();
    }

    /// Grants the requests that fit now.
    fn grant(self: &Arc<Self>) {
        let mut granted = Vec::new();
        {
            let mut state = self.state();
            let mut blocked = BTreeSet::new();
            for waiting in std::mem::take(&mut state.waiting) {
                let Waiting { host, bytes, .. } = waiting;
                if waiting.permit.is_closed() {
                    continue;
                }
                if !blocked.contains(&host) && state.fits(self.bytes, host, bytes) {
                    state.take(host, bytes);
                    granted.push((waiting.permit, HostPermit { budget: self.clone(), host, bytes }));
                } else {
                    blocked.insert(host);
                    state.waiting.push_back(waiting);
                }
            }
            debug_assert!(state.total <= self.bytes);
        }
        for (waiting, permit) in granted {
            // If the request was cancelled meanwhile, the permit is dropped here, without the lock, and released.
            let _ = waiting.send(permit);
        }
    }
}

impl HostPermit {
    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if let Some(excess) = self.bytes.checked_sub(bytes).filter(|excess| *excess > 0) {
            self.bytes = bytes;
            self.budget.release(self.host, excess);
        }
    }
}

impl Drop for HostPermit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.host, self.bytes);
        }
    }
}

impl HostBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        HostBudget(Arc::new(Shared { bytes, state: Mutex::default() }))
    }

    /// Acquires `bytes` for a client on `host`. A request for more than a quarter of the budget acquires a quarter.
    pub async fn acquire(&self, host: IpAddr, bytes: usize) -> HostPermit {
        let bytes = bytes.min(self.0.bytes / HOST_FRACTION);
        let granted = {
            let mut state = self.0.state();
            let is_next = !state.waiting.iter().any(|waiting| waiting.host == host && !waiting.permit.is_closed());
            if is_next && state.fits(self.0.bytes, host, bytes) {
                state.take(host, bytes);
                return HostPermit { budget: self.0.clone(), host, bytes };
            }
            let (permit, granted) = oneshot::channel();
            state.waiting.push_back(Waiting { host, bytes, permit });
            granted
        };
        // A sender is dropped only after its receiver, so the permit arrives.
        granted.await.unwrap_or(HostPermit { budget: self.0.clone(), host, bytes: 0 })
    }

    /// Whether a client waits for memory that a client on `host` may hold: that of the host, or of all.
    pub fn has_waiters(&self, host: IpAddr) -> bool {
        let state = self.0.state();
        let waits_here = |waiting: &Waiting| waiting.host == host || state.held(waiting.host) == 0;
        state.waiting.iter().any(|waiting| !waiting.permit.is_closed() && waits_here(waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const MIB: usize = 1 << 20;

    fn host(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// Everything that a host gets without waiting, in pieces.
    fn take_all(budget: &HostBudget, n: u8) -> Vec<HostPermit> {
        std::iter::from_fn(|| budget.acquire(host(n), MIB).now_or_never()).collect()
    }

    #[test]
    fn one_host_cannot_take_the_share_of_another() {
        let budget = HostBudget::new(16 * MIB);
        let held = take_all(&budget, 1);
        assert_eq!(held.len(), 4);
        let mut more = Box::pin(budget.acquire(host(1), MIB));
        assert!((&mut more).now_or_never().is_none() && budget.has_waiters(host(1)) && !budget.has_waiters(host(2)));
        let other = budget.acquire(host(2), 4 * MIB).now_or_never().expect("its own share is free");
        drop(held);
        assert!(more.now_or_never().is_some() && !budget.has_waiters(host(1)));
        drop(other);
        // More than the share is the share.
        drop(budget.acquire(host(1), usize::MAX).now_or_never().unwrap());
        let state = budget.0.state();
        assert!(state.total == 0 && state.held.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn greedy_hosts_leave_room_for_the_next() {
        let budget = HostBudget::new(128 * MIB);
        let held: Vec<_> = (0..8).map(|n| take_all(&budget, n)).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [32, 24, 18, 13, 10, 7, 6, 4]);
        // All of them wait for more.
        let mut waiting: Vec<_> = (0..8).map(|n| Box::pin(budget.acquire(host(n), MIB))).collect();
        assert!(waiting.iter_mut().all(|more| more.now_or_never().is_none()));
        assert!(budget.acquire(host(9), MIB).now_or_never().is_some(), "no host waits for the requests of others");
        assert!(!budget.has_waiters(host(9)));
        drop(held);
        assert!(waiting.into_iter().all(|more| more.now_or_never().is_some()));
    }

    #[test]
    fn a_host_without_memory_presses_all_others() {
        let budget = HostBudget::new(4 * MIB);
        let held: Vec<_> = (0..4).map(|n| budget.acquire(host(n), MIB).now_or_never().unwrap()).collect();
        let mut next = Box::pin(budget.acquire(host(9), MIB));
        assert!((&mut next).now_or_never().is_none() && (0..4).all(|n| budget.has_waiters(host(n))));
        let cancelled = Box::pin(budget.acquire(host(9), MIB));
        drop(cancelled);
        let mut held = held.into_iter();
        held.next().unwrap().shrink_to(MIB / 2);
        drop(held.next());
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn requests_that_are_cancelled_hold_nothing() {
        let budget = HostBudget::new(4 * MIB);
        let held = budget.acquire(host(1), MIB).now_or_never().unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(budget.acquire(host(1), MIB))).collect();
        assert!(waiting.iter_mut().all(|more| more.now_or_never().is_none()));
        let last = waiting.pop().unwrap();
        // The first is granted and never looked at again, the second is cancelled while it waits.
        drop(held);
        drop(waiting);
        assert!(last.now_or_never().is_some());
        assert!(budget.0.state().total == 0 && !budget.has_waiters(host(1)));
    }
}
