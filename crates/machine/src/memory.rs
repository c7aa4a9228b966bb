//! Trimming of freed memory that the allocator retains.
//!
//! The allocator retains freed memory for reuse, because page faults are expensive. But freed memory is fragmented,
//! with one arena per thread: after creating a hundred thousand small files, a third of the process's memory may be
//! free fragments. So a caller that knows the memory limit calls [`Memory::trim_above`] periodically, and memory is
//! trimmed only if the process exceeds the limit.

use std::sync::Arc;

/// Implementation of [`Memory`].
pub trait HeapTrimmer: Send + Sync {
    /// If the process uses more than `limit_bytes`, starts to return free memory to the kernel, and returns
    /// immediately.
    fn trim_above(&self, limit_bytes: u64);
}

/// Handle to the trimmer of the process's heap.
#[derive(Clone)]
pub struct Memory(Arc<dyn HeapTrimmer>);

impl Memory {
    /// Memory trimmed by `trimmer`.
    pub fn new(trimmer: Arc<dyn HeapTrimmer>) -> Self {
        Memory(trimmer)
    }

    /// Memory that is never trimmed.
    pub fn untrimmed() -> Self {
        struct Never;
        impl HeapTrimmer for Never {
            fn trim_above(&self, _limit_bytes: u64) {}
        }
        Memory(Arc::new(Never))
    }

    /// If the process uses more than `limit_bytes`, starts to return free memory to the kernel, and returns
    /// immediately.
    pub fn trim_above(&self, limit_bytes: u64) {
        self.0.trim_above(limit_bytes);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}
