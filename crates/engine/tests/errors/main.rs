//! Devices answer with errors: the pool goes on, suspends or is not imported, but whatever was said to be stable is there
//! when the devices work again.
//!
//! ```text
//!   make a pool once ─► for each history: import ─► clients change, commit, snapshot ─► power failure, or the pool is closed
//!                         └──── errors: the nth operation, for each n │ at random ────┘
//!                       ─► errors lifted ─► import, replay ─► each promise checked ─► export ─► all blocks verified
//! ```
//!
//! An operation that was answered with an error may have been done or not, at any time; a suspended pool answers errors to
//! all. No history may panic or run without end.
//!
//! Each run ends with the canary: the intent log with a planted bug ([`weir_zil::Zil::plant_canary`]), which must be
//! caught.
//!
//! `WEIR_SIM_ERRORS` is the number of errors, `WEIR_SIM_SEED` the first seed: a run that begins with the seed that a failure
//! names meets it again.
#![allow(clippy::disallowed_methods, reason = "tests run on threads")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod clients;
mod drive;
mod history;
mod judge;
mod known;
mod regressions;
mod world;
