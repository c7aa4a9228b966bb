//! Trimming of the C library's heap: freed memory is retained until the process exceeds a limit.

#![allow(unsafe_code, reason = "calls into the C library's allocator")]

use crate::thread_pool::ThreadPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_machine::compute::ComputePool;
use weir_machine::memory::HeapTrimmer;

/// After a trim, the process must grow by this fraction of the limit before the next one, since memory above the
/// limit is then in use.
const GROWTH_DIVISOR: u64 = 16;

/// Configures the C library's allocator to retain freed memory. By default it maps each large buffer anew and trims
/// the end of the heap immediately, so that every page is faulted in and zeroed repeatedly.
pub fn configure_malloc() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only integer arguments; the allocator takes its lock. On failure the settings are unchanged.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 20);
    }
}

/// Returns free pages anywhere in the heap to the kernel.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only an integer argument; the allocator takes the locks of its arenas one by one.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Resident set size of the process in bytes; `None` if it cannot be read.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Trims the heap on a thread of a pool.
pub struct MallocTrimmer {
    pool: Arc<ThreadPool>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Whether a trim is running.
    busy: AtomicBool,
    /// Resident set size in bytes below which no trim is started.
    next_bytes: AtomicU64,
}

impl MallocTrimmer {
    /// A trimmer that runs on a thread of `pool`.
    pub fn new(pool: Arc<ThreadPool>) -> Self {
        MallocTrimmer { pool, state: Arc::default() }
    }
}

impl HeapTrimmer for MallocTrimmer {
    fn trim_above(&self, limit_bytes: u64) {
        let threshold = limit_bytes.max(self.state.next_bytes.load(Ordering::Relaxed));
        if resident_bytes().is_none_or(|resident| resident <= threshold)
            || self.state.busy.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let state = self.state.clone();
        self.pool.run(Box::new(move || {
            trim_heap();
            let resident = resident_bytes().unwrap_or_default();
            state.next_bytes.store(resident + limit_bytes / GROWTH_DIVISOR, Ordering::Relaxed);
            state.busy.store(false, Ordering::Relaxed);
        }));
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    #[allow(clippy::disallowed_methods, reason = "waits for a thread of the pool")]
    fn the_heap_is_trimmed_only_above_the_limit() {
        const FREED_BYTES: u64 = 96 << 20;
        configure_malloc();
        // Keep one in eight of adjacent blocks.
        let mut blocks: Vec<Vec<u8>> = (0..FREED_BYTES / 4096 / 7 * 8).map(|_| vec![7; 4096]).collect();
        let mut n = 0;
        blocks.retain(|_| {
            n += 1;
            n % 8 == 0
        });
        let before = resident_bytes().unwrap();
        let trimmer = MallocTrimmer::new(Arc::new(ThreadPool::new("trim", 1)));
        trimmer.trim_above(u64::MAX / 2);
        assert!(!trimmer.state.busy.load(Ordering::Relaxed), "below the limit nothing is trimmed");
        trimmer.trim_above(1 << 20);
        let until = Instant::now() + Duration::from_secs(20);
        let trimmed = || resident_bytes().unwrap() + FREED_BYTES / 2 < before;
        while !trimmed() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(trimmed(), "{before} bytes, then {:?}", resident_bytes());
        assert!(blocks.iter().all(|block| block[4095] == 7));
    }
}
