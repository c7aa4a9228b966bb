//! The power fails at any moment of a history: the pool is imported, its logs are replayed, and what is there is held
//! against what was promised.
//!
//! A history runs once in the simulator and is recorded ([`weir_sim::Recording`]); then it is cut at each of its moments
//! and what is left is opened. Clients remember when each change began and when a promise was given, so that for every
//! moment it is known what must be there and what may be. Cuts that left the same bytes are opened once, and held against
//! what was known at each of their moments; so are those that differ only where nobody looks (`memo`).
//!
//! `WEIR_SIM_CUTS` is the number of cuts, `WEIR_SIM_SEED` the first seed, `WEIR_SIM_AT` the only moment to cut at,
//! `WEIR_SIM_ZDB` lets zdb judge one of so many, `WEIR_SIM_STATE` names a file from which a run goes on,
//! `WEIR_SIM_PROBES` opens one of so many cuts that read like an earlier one (1: all).
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod datasets;
mod drive;
mod files;
mod judge;
mod ledger;
mod memo;
mod states;
mod tally;
mod volume;
mod world;
mod zdb;
