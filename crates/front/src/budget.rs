//! Memory budgets of which no host can take everything.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use weir_machine::{BytePermit, ByteSemaphore};

/// One host may hold this fraction of a budget.
const HOST_FRACTION: usize = 4;

/// Bytes of memory for the clients of a server, shared by hosts.
pub struct HostBudget {
    total: ByteSemaphore,
    bytes: usize,
    hosts: Mutex<BTreeMap<IpAddr, ByteSemaphore>>,
}

/// Bytes acquired from a [`HostBudget`]; released when dropped.
#[derive(Debug)]
pub struct HostPermit {
    host: BytePermit,
    total: BytePermit,
}

impl HostPermit {
    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.host.shrink_to(bytes);
        self.total.shrink_to(bytes);
    }
}

impl HostBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        HostBudget { total: ByteSemaphore::new(bytes), bytes, hosts: Mutex::default() }
    }

    /// Acquires `bytes` for a client on `host`, first of the share of the host, then of the total. A request for more than
    /// the share acquires all of the share.
    pub async fn acquire(&self, host: IpAddr, bytes: usize) -> HostPermit {
        let share = self.bytes / HOST_FRACTION;
        let own = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            // Hosts that hold nothing and wait for nothing need no entry.
            hosts.retain(|_, own| own.is_in_use());
            hosts.entry(host).or_insert_with(|| ByteSemaphore::new(share)).clone()
        };
        let held = own.acquire(bytes).await;
        let total = self.total.acquire(bytes.min(share)).await;
        HostPermit { host: held, total }
    }

    /// Whether a client waits for memory that a client on `host` may hold: that of the host, or of all.
    pub fn has_waiters(&self, host: IpAddr) -> bool {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        self.total.has_waiters() || hosts.get(&host).is_some_and(ByteSemaphore::has_waiters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn one_host_cannot_take_the_share_of_another() {
        let budget = HostBudget::new(16 << 12);
        let [greedy, modest] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let held: Vec<_> = (0..4).map(|_| budget.acquire(greedy, 1 << 12).now_or_never().unwrap()).collect();
        let mut more = Box::pin(budget.acquire(greedy, 1 << 12));
        assert!((&mut more).now_or_never().is_none() && budget.has_waiters(greedy) && !budget.has_waiters(modest));
        let other = budget.acquire(modest, 4 << 12).now_or_never().expect("its own share is free");
        drop(held);
        assert!(more.now_or_never().is_some() && !budget.has_waiters(greedy));
        drop(other);
        // More than the share is the share.
        drop(budget.acquire(greedy, usize::MAX).now_or_never().unwrap());
        assert_eq!(budget.hosts.lock().unwrap().len(), 1, "hosts that hold nothing are forgotten");
    }
}
