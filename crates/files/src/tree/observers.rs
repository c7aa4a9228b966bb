//! Observers of changes: front ends whose clients cache names, attributes or data, and can be made to forget them.

use super::Node;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_machine::lock::{Mutex, RwLock, order};
use weir_machine::{Protocol, Request};

/// A change that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// A name in a directory was removed, or leads to another file.
    Name {
        /// The directory.
        dir: Node,
        /// The name, as the caller spelt it.
        name: &'a [u8],
    },
    /// Data or attributes of a file.
    File(Node),
}

/// An observer of changes.
pub trait ChangeObserver: Send + Sync {
    /// Receives a change. The request that made the change calls this, so it must not wait.
    fn changed(&self, change: Changed<'_>);
}

type Watcher = Box<dyn Fn() + Send + Sync>;

/// The observers of a tree.
#[derive(Default)]
pub struct ChangeObservers {
    /// Callbacks for changes of the exports.
    of_exports: Mutex<Vec<Watcher>, { order::TREE_WATCHERS }>,
    /// Observers of files and names.
    all: RwLock<Vec<(Protocol, Weak<dyn ChangeObserver>)>, { order::CHANGE_OBSERVERS }>,
    /// Number of these: most trees have none, and changes then cost one load.
    count: AtomicUsize,
}

impl ChangeObservers {
    /// Calls `callback` when exports were added, removed or renamed ([`Tree::renew`](super::Tree::renew)) or replaced by a
    /// rollback: cached names may be stale.
    pub fn watch_exports(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.of_exports.lock().push(Box::new(callback));
    }

    /// Reports a change of the exports.
    pub(super) fn report_exports(&self) {
        self.of_exports.lock().iter().for_each(|callback| callback());
    }

    /// Adds an observer. It receives changes until it is dropped, except those that requests of its own `protocol` make: the clients
    /// of that protocol know them.
    pub fn add(&self, protocol: Protocol, observer: Weak<dyn ChangeObserver>) {
        let mut all = self.all.write();
        all.retain(|(_, other)| other.strong_count() > 0);
        all.push((protocol, observer));
        self.count.store(all.len(), Ordering::Release);
        debug_assert!(!all.is_empty());
    }

    /// Reports a change that `rq` made.
    #[inline]
    pub(super) fn report(&self, rq: &Request, change: Changed<'_>) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.report_to_all(rq.protocol(), change);
        }
    }

    fn report_to_all(&self, by: Protocol, change: Changed<'_>) {
        for (protocol, observer) in self.all.read().iter() {
            if *protocol != by
                && let Some(observer) = observer.upgrade()
            {
                observer.changed(change);
            }
        }
    }
}
