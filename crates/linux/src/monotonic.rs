//! Monotonic time, from the processor's time stamp counter where the kernel uses it as well.
//!
//! Each request is accounted with two readings of the clock. The kernel's clock takes some 22 ns, the counter 10. So each thread
//! reads the kernel's clock once in about a millisecond, and adds the ticks since then.
//!
//! ```text
//!   kernel:  ns0 ──────── about 1 ms ────────► ns1 ───────► …
//!   thread:  ns0 + ticks · rate … (at most 1 µs late)        a new reading of the kernel's clock
//! ```
//!
//! The rate is 0.1 % below the measured one, more than the kernel adjusts its clock. So the sum is never ahead of the kernel's
//! clock, and no later reading is before it.
//!
//! Source: Linux `arch/x86/kernel/tsc.c`: the kernel uses `tsc` as its clock source only if all processors count alike, at a
//! constant rate, also while they are idle.
#![allow(unsafe_code, reason = "reading the counter has no safe wrapper")]
#![allow(clippy::disallowed_methods, reason = "this is the clock")]

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The file that names the kernel's clock source.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Ticks after which a thread reads the kernel's clock again: 0.5 to 1 ms.
const WINDOW_TICKS: u64 = 1 << 21;
/// The rate is measured over at least this time.
const MEASURED_NS: u64 = 20_000_000;
/// A reading of both clocks is used if it took at most this time: the thread was not interrupted.
const UNINTERRUPTED_NS: u64 = 1_000;

/// One time by both clocks.
#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    ns: u64,
}

/// The first reading of the process.
struct Start {
    instant: Instant,
    /// `None` if the counter is not used.
    reading: Option<Reading>,
}

static START: OnceLock<Start> = OnceLock::new();
/// Nanoseconds per tick times 2³²; 0 until it is measured.
static RATE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's last reading of both clocks.
    static LAST: Cell<Reading> = const { Cell::new(Reading { ticks: 0, ns: 0 }) };
}

/// The time stamp counter.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux permits it unless a process has forbidden it to itself.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

fn start() -> &'static Start {
    START.get_or_init(|| {
        let is_used = cfg!(target_arch = "x86_64")
            && std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|source| source.trim() == "tsc");
        let instant = Instant::now();
        let reading = is_used.then(|| (0..8).find_map(|_| read_both(instant))).flatten();
        Start { instant, reading }
    })
}

fn kernel_ns(since: Instant) -> u64 {
    let passed = since.elapsed();
    // No division and no 128-bit number. Wraps after 584 years.
    passed.as_secs().wrapping_mul(1_000_000_000) + u64::from(passed.subsec_nanos())
}

/// Reads both clocks, the kernel's not after the counter; `None` if the thread was interrupted meanwhile.
fn read_both(since: Instant) -> Option<Reading> {
    let ns = kernel_ns(since);
    let ticks = ticks();
    (kernel_ns(since) - ns <= UNINTERRUPTED_NS).then_some(Reading { ticks, ns })
}

/// Nanoseconds since the first call in this process. It never decreases within a thread, and is at most 1 µs behind the kernel's
/// clock.
pub(crate) fn now_ns() -> u64 {
    let rate = RATE.load(Ordering::Relaxed);
    if rate != 0 {
        let last = LAST.get();
        let passed = ticks().wrapping_sub(last.ticks);
        if passed < WINDOW_TICKS {
            return last.ns + ((passed * rate) >> 32);
        }
    }
    read_kernel(rate)
}

/// Reads the kernel's clock, and keeps the reading or measures the rate.
#[cold]
fn read_kernel(rate: u64) -> u64 {
    let Start { instant, reading } = start();
    let (Some(first), Some(now)) = (reading, read_both(*instant)) else { return kernel_ns(*instant) };
    if rate != 0 {
        LAST.set(now);
    } else if now.ns - first.ns >= MEASURED_NS {
        let measured = (u128::from(now.ns - first.ns) << 32) / u128::from(now.ticks.wrapping_sub(first.ticks).max(1));
        // A counter below 250 MHz is none; its ticks would overflow the product.
        let rate = u64::try_from(measured - measured / 1000).ok().filter(|rate| *rate <= 4 << 32);
        RATE.store(rate.unwrap_or(0), Ordering::Relaxed);
    }
    now.ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Reads this clock between two readings of the kernel's. Returns how far it is behind the first, and asserts that it is not
    /// ahead of the second.
    fn lag_ns() -> u64 {
        let since = start().instant;
        let before = kernel_ns(since);
        let now = now_ns();
        let after = kernel_ns(since);
        assert!(now <= after, "{now} is ahead of {after}");
        before.saturating_sub(now)
    }

    #[test]
    fn time_never_decreases_and_keeps_up_with_the_kernels_clock() {
        let until = Instant::now() + Duration::from_millis(300);
        let mut last = now_ns();
        let mut readings = 0_u64;
        let mut late = 0_u64;
        while Instant::now() < until {
            let lag = lag_ns();
            // The thread may lose the processor between the readings, which is no lag; it cannot do so often.
            late += u64::from(lag > 2_000);
            let now = now_ns();
            assert!(now >= last, "{now} after {last}");
            last = now;
            readings += 1;
        }
        assert!(late * 100 <= readings, "{late} of {readings} readings are late");
    }

    #[test]
    fn a_thread_that_slept_reads_the_kernels_clock() {
        let before = now_ns();
        std::thread::sleep(Duration::from_millis(30));
        let passed = now_ns() - before;
        assert!(passed >= 29_000_000, "{passed} ns of 30 ms");
    }
}
