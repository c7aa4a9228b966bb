//! Memory that was freed, and is kept by the allocator or given back.
//!
//! The allocator keeps what is freed for the next time, for faulting pages in costs more than most that is done with them. But
//! what is freed lies scattered between what is in use, in an arena for each thread: after a hundred thousand small files a
//! third of the process may be such holes. So whoever knows what memory may be used says so from time to time, and only what
//! is above that is given back.

use std::sync::Arc;

/// Keeps freed memory.
pub trait Keeper: Send + Sync {
    /// If the process holds more than `limit_bytes`, begins to give back what is free, and returns at once.
    fn give_back_above(&self, limit_bytes: u64);
}

/// The machine's freed memory.
#[derive(Clone)]
pub struct Memory(Arc<dyn Keeper>);

impl Memory {
    /// Memory kept by `keeper`.
    pub fn new(keeper: Arc<dyn Keeper>) -> Self {
        Memory(keeper)
    }

    /// Memory of which nothing is given back.
    pub fn kept() -> Self {
        struct All;
        impl Keeper for All {
            fn give_back_above(&self, _limit_bytes: u64) {}
        }
        Memory(Arc::new(All))
    }

    /// If the process holds more than `limit_bytes`, begins to give back what is free, and returns at once.
    pub fn give_back_above(&self, limit_bytes: u64) {
        self.0.give_back_above(limit_bytes);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}
