//! Device errors: the pool continues, suspends or is not imported, but all state that was acknowledged as stable is found
//! when the devices work again.
//!
//! ```text
//!   create a pool once ─► for each history: import ─► clients change, commit, snapshot ─► power failure, stop or export
//!                           └──── errors: the nth operation, for each n │ random ─────┘
//!                         ─► errors removed ─► import, replay ─► each promise checked ─► export ─► all blocks verified
//! ```
//!
//! An operation that failed may have been done or not, at any time. A suspended pool fails all operations. No history may
//! panic or run without end.
//!
//! One test runs the canary: an intent log with a planted bug ([`weir_zil::Zil::plant_canary`]), which must be detected.
//!
//! `WEIR_SIM_ERRORS` is the number of errors, `WEIR_SIM_SEED` the first seed. A run that begins with the seed of a failure
//! reproduces it.
#![allow(clippy::disallowed_methods, reason = "tests run on threads")]
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod acknowledged_state;
mod clients;
mod drive;
mod history;
mod judge;
mod regressions;
mod world;
