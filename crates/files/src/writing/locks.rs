//! One lock per object, held while an operation changes it.
//!
//! *Order.* Who takes several takes them by ascending number, in one call; a rename takes the file system's rename lock
//! before. Locks are taken before a transaction begins and outlast it; they are never held while the intent log is
//! committed. They are asynchronous: whoever waits for one waits as for a disk.

use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_format::ObjectId;

type Table = BTreeMap<ObjectId, Arc<AsyncMutex<()>>>;

/// The locks of a file system. Only those in use take memory.
#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<Table>>);

/// A lock, held.
pub(crate) struct Held {
    locks: Locks,
    id: ObjectId,
    guard: Option<OwnedMutexGuard<()>>,
}

/// Some locks, held.
pub(crate) type HeldSet = SmallVec<[Held; 4]>;

impl Locks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks one object.
    pub async fn one(&self, id: ObjectId) -> Held {
        let lock = self.table().entry(id).or_default().clone();
        // Made before the wait: should the wait be given up, it cleans up.
        let mut held = Held { locks: self.clone(), id, guard: None };
        held.guard = Some(lock.lock_owned().await);
        held
    }

    /// Locks some objects, each once.
    pub async fn all(&self, ids: impl IntoIterator<Item = ObjectId>) -> HeldSet {
        let mut ids: SmallVec<[ObjectId; 4]> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let mut held = HeldSet::new();
        for id in ids {
            held.push(self.one(id).await);
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.guard = None;
        let mut table = self.locks.table();
        // The table's own and nobody else's: nobody holds it or waits for it, and nobody can come while we look.
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
    fn a_lock_excludes_and_leaves_nothing_behind() {
        let world = SimWorld::new(7);
        let machine = world.machine();
        let run = world.run(async move {
            let locks = Locks::default();
            let inside = Arc::new(Mutex::new((0, 0)));
            let tasks: Vec<_> = (0..8u64)
                .map(|n| {
                    let (locks, inside, clock) = (locks.clone(), inside.clone(), machine.clock.clone());
                    machine.tasks.spawn(async move {
                        let _held = locks.all([ObjectId(9), ObjectId(n % 3), ObjectId(9)]).await;
                        {
                            let mut inside = inside.lock().unwrap();
                            inside.0 += 1;
                            inside.1 = inside.1.max(inside.0);
                        }
                        clock.sleep(std::time::Duration::from_millis(n + 1)).await;
                        inside.lock().unwrap().0 -= 1;
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*inside.lock().unwrap(), (0, 1));
            assert!(locks.table().is_empty());
        });
        run.unwrap();
    }
}
