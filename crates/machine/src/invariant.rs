//! Invariants of the engine's own state, and what happens when one is violated.
//!
//! ```text
//!   invariant!(condition, "…")  violated ─┬─ debug build, simulator, tests ─► panic
//!                                         └─ release build ─► recorded: no device is written any more (see `violation`)
//! ```
//!
//! A violated invariant is a bug or broken memory, so nothing that this process has in memory may reach a pool any more.
//! That concerns all pools of the process, which is why the record belongs to the process and not to a pool: the vdev trees
//! refuse to write, the txg that is being synced fails, and each pool is suspended as of its last complete txg. Reading goes
//! on, because every block that is read is verified by its checksum.
//!
//! Invariants concern the engine's own state only. Bytes from disks, clients and other programs are checked with errors.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first violation.
static VIOLATION: OnceLock<String> = OnceLock::new();

/// Whether a violation panics in release builds, too.
static PANICS: AtomicBool = AtomicBool::new(false);

/// Makes violations panic also in release builds, for the rest of the process: for the simulator.
pub fn panic_on_violation() {
    PANICS.store(true, Ordering::Relaxed);
}

/// Checks an invariant of the engine's own state: see the [module](crate::invariant). The message is formatted only if the
/// condition is false.
///
/// ```
/// use weir_machine::invariant;
///
/// let (used, budget) = (3, 4);
/// invariant!(used <= budget, "{used} of {budget} bytes are used");
/// ```
#[macro_export]
macro_rules! invariant {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::invariant::violated(format_args!($($message)+), (file!(), line!()));
        }
    };
}

/// Panics in debug builds and in the simulator, records the violation otherwise. Called by [`crate::invariant!`].
#[cold]
#[track_caller]
pub fn violated(message: fmt::Arguments<'_>, place: (&str, u32)) {
    let (file, line) = place;
    let message = format!("{message} ({file}, line {line})");
    assert!(!is_checked(), "invariant violated: {message}");
    record(message);
}

/// Whether checks that cost time are made: in debug builds and in the simulator.
pub fn is_checked() -> bool {
    cfg!(debug_assertions) || PANICS.load(Ordering::Relaxed)
}

/// Records a violation: from here on no pool of this process is written. Of several, the first is kept.
pub fn record(message: String) {
    // A second violation is likely a consequence of the first.
    let _ = VIOLATION.set(message);
}

/// The violation that keeps this process from writing to its pools, if there was one.
pub fn violation() -> Option<&'static str> {
    VIOLATION.get().map(String::as_str)
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "invariant violated: 5 of 4 bytes")]
    fn a_violated_invariant_stops_a_test() {
        let used = 5;
        let budget = 4;
        invariant!(used <= budget, "{used} of {budget} bytes");
    }
}
