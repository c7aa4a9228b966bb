//! One lock per object, held while an operation modifies it.
//!
//! *Order.* An operation that needs several locks takes them in one call in ascending order; a rename takes the file
//! system's rename lock first. Locks are taken before a transaction begins and released after it ends; they are never
//! held while the intent log is committed. They are asynchronous: waiting for a lock suspends the task.

use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Clock, Request, Stage};

type Table = BTreeMap<ObjectId, Arc<AsyncMutex<()>>>;

/// Object locks of a file system. Only locks in use take memory.
#[derive(Clone)]
pub(crate) struct Locks {
    table: Arc<Mutex<Table>>,
    /// Clock for the time that requests wait.
    clock: Clock,
}

/// A held lock.
pub(crate) struct ObjectLock {
    locks: Locks,
    id: ObjectId,
    guard: Option<OwnedMutexGuard<()>>,
}

/// A set of held locks.
pub(crate) type ObjectLocks = SmallVec<[ObjectLock; 4]>;

impl Locks {
    /// No locks.
    pub fn new(clock: &Clock) -> Self {
        Locks { table: Arc::default(), clock: clock.clone() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Locks one object.
    pub async fn one(&self, rq: &Request, id: ObjectId) -> ObjectLock {
        let lock = self.table().entry(id).or_default().clone();
        // Created before the wait, so that a cancelled wait cleans up.
        let mut held = ObjectLock { locks: self.clone(), id, guard: None };
        held.guard = Some(rq.timed(&self.clock, Stage::Locks, lock.lock_owned()).await);
        held
    }

    /// Locks several objects, each once.
    pub async fn all(&self, rq: &Request, ids: impl IntoIterator<Item = ObjectId>) -> ObjectLocks {
        let mut ids: SmallVec<[ObjectId; 4]> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let mut held = ObjectLocks::new();
        for id in ids {
            held.push(self.one(rq, id).await);
        }
        held
    }
}

impl Drop for ObjectLock {
    fn drop(&mut self) {
        self.guard = None;
        let mut table = self.locks.table();
        // Only the table and this guard refer to the mutex: there is no other holder or waiter, and none can appear
        // while the table is locked.
        if table.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            table.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::SimWorld;

    #[test]
    fn a_lock_excludes_others_and_frees_its_entry() {
        let world = SimWorld::new(7);
        let machine = world.machine();
        let run = world.run(async move {
            let locks = Locks::new(&machine.clock);
            let inside = Arc::new(Mutex::<(u32, u32)>::new((0, 0)));
            let tasks: Vec<_> = (0..8u64)
                .map(|n| {
                    let locks = locks.clone();
                    let inside = inside.clone();
                    let clock = machine.clock.clone();
                    machine.tasks.spawn(async move {
                        let _held =
                            locks.all(&Request::internal("test"), [ObjectId(9), ObjectId(n % 3), ObjectId(9)]).await;
                        {
                            let mut inside = inside.lock();
                            inside.0 += 1;
                            inside.1 = inside.1.max(inside.0);
                        }
                        clock.sleep(std::time::Duration::from_millis(n + 1)).await;
                        inside.lock().0 -= 1;
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*inside.lock(), (0, 1));
            assert!(locks.table().is_empty());
        });
        run.unwrap();
    }
}
