//! The C library's freed memory: kept, until the process holds more than it should.

#![allow(unsafe_code, reason = "calls into the C library's allocator")]

use crate::compute::Cores;
use crate::crew::Crew;
use crate::memory::Keeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// After holes were given back, the process grows by this share of the limit before they are looked for again: what it holds
/// above the limit then is in use.
const GROWTH: u64 = 16;

/// Lets the C library's allocator keep freed memory for the next buffer of a client: by itself it maps each large one anew
/// and gives memory at the heap's end back at once, so that every page is faulted in and cleared again and again.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers alone; the allocator takes its lock. If it refuses, it stays as it was.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 20);
    }
}

/// Gives back free pages wherever they lie.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a number alone; the allocator takes the locks of its arenas, one after the other.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// What the process holds, in bytes; `None` where the kernel does not say.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Gives freed memory back on a thread of a crew.
pub struct Freed {
    crew: Arc<Crew>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Holes are being given back.
    busy: AtomicBool,
    /// Not to be looked for before the process holds so much.
    next_bytes: AtomicU64,
}

impl Freed {
    /// On a thread of `crew`.
    pub fn new(crew: Arc<Crew>) -> Self {
        Freed { crew, state: Arc::default() }
    }
}

impl Keeper for Freed {
    fn give_back_above(&self, limit_bytes: u64) {
        let least = limit_bytes.max(self.state.next_bytes.load(Ordering::Relaxed));
        if resident_bytes().is_none_or(|held| held <= least) || self.state.busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let state = self.state.clone();
        self.crew.run(Box::new(move || {
            give_back();
            let held = resident_bytes().unwrap_or_default();
            state.next_bytes.store(held + limit_bytes / GROWTH, Ordering::Relaxed);
            state.busy.store(false, Ordering::Relaxed);
        }));
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    #[allow(clippy::disallowed_methods, reason = "waits for a thread of the crew")]
    fn holes_are_given_back_above_the_limit_alone() {
        const HOLES_BYTES: u64 = 96 << 20;
        keep_freed_memory();
        // Of blocks side by side one in eight stays.
        let mut blocks: Vec<Vec<u8>> = (0..HOLES_BYTES / 4096 / 7 * 8).map(|_| vec![7; 4096]).collect();
        let mut n = 0;
        blocks.retain(|_| {
            n += 1;
            n % 8 == 0
        });
        let before = resident_bytes().unwrap();
        let freed = Freed::new(Arc::new(Crew::new("freed", 1)));
        freed.give_back_above(u64::MAX / 2);
        assert!(!freed.state.busy.load(Ordering::Relaxed), "within the limit nothing is done");
        freed.give_back_above(1 << 20);
        let until = Instant::now() + Duration::from_secs(20);
        let fell = || resident_bytes().unwrap() + HOLES_BYTES / 2 < before;
        while !fell() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(fell(), "{before} bytes, then {:?}", resident_bytes());
        assert!(blocks.iter().all(|block| block[4095] == 7));
    }
}
