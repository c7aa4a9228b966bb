//! Shards: copies of the registers that a request adds to. A thread has a shard of its own while there is one left.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of shards. The last is common to all threads that found the others taken.
pub(super) const SHARDS: usize = 64;

/// Bit n is set while a thread has shard n.
static TAKEN: AtomicU64 = AtomicU64::new(1 << COMMON);
const COMMON: usize = SHARDS - 1;

/// The number of a shard that only one thread adds to, unless it is the common one.
struct Taken(Cell<usize>);

thread_local! {
    static OF_THREAD: Taken = const { Taken(Cell::new(usize::MAX)) };
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.0.get() < COMMON {
            // Release: the next thread that takes the shard finds what this one added.
            TAKEN.fetch_and(!(1 << self.0.get()), Ordering::Release);
        }
    }
}

fn take() -> usize {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    loop {
        let free = (!taken).trailing_zeros() as usize;
        if free >= COMMON {
            return COMMON;
        }
        match TAKEN.compare_exchange_weak(taken, taken | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return free,
            Err(now) => taken = now,
        }
    }
}

/// The shard that the calling thread adds to.
#[derive(Clone, Copy)]
pub(super) struct Shard(usize);

impl Shard {
    /// The calling thread's shard.
    pub(super) fn of_thread() -> Self {
        let number = OF_THREAD.try_with(|own| {
            if own.0.get() == usize::MAX {
                own.0.set(take());
            }
            own.0.get()
        });
        // A thread that ends has given its shard back.
        Shard(number.unwrap_or(COMMON))
    }

    /// Number of the shard, below [`SHARDS`].
    pub(super) fn number(self) -> usize {
        self.0
    }

    /// Adds to a register of this shard. Where no other thread adds, the processor need not lock the cache line.
    pub(super) fn add(self, register: &AtomicU64, n: u64) {
        if n == 0 {
            return;
        }
        if self.0 == COMMON {
            register.fetch_add(n, Ordering::Relaxed);
        } else {
            register.store(register.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_at_the_same_time_have_different_shards_and_give_them_back() {
        let all = Barrier::new(SHARDS + 9);
        let of_many = |_| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..SHARDS + 9)
                    .map(|_| {
                        scope.spawn(|| {
                            let shard = Shard::of_thread();
                            all.wait();
                            shard.number()
                        })
                    })
                    .collect();
                let mut own: Vec<_> = threads.into_iter().filter_map(|t| t.join().ok()).collect();
                own.retain(|number| *number < COMMON);
                own.sort_unstable();
                let count = own.len();
                own.dedup();
                assert_eq!(own.len(), count, "two threads have one shard");
                count
            })
        };
        // Other tests of this process have shards too, but not most of them.
        assert!((0..9).map(of_many).all(|count| count > COMMON / 2), "shards are not given back");
    }
}
