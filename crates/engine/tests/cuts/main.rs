//! Power failure at any moment of a history: the pool is imported, its logs are replayed, and its contents are compared
//! with the promises that clients received.
//!
//! A history runs once in the simulator and is recorded ([`weir_sim::Recording`]). Then it is cut at each of its moments,
//! and the disks that the cut leaves are opened. Clients record when each change began and when a promise was given, so
//! the test knows for every moment which states must be there and which may be. Cuts that leave the same bytes are opened
//! once, and the result is judged for each of their moments. Cuts that differ only in bytes that an import does not read
//! are treated alike (`memo`).
//!
//! `WEIR_SIM_CUTS` is the number of cuts, `WEIR_SIM_SEED` the first seed, `WEIR_SIM_AT` the only moment to cut at,
//! `WEIR_SIM_ZDB=n` has zdb check every nth cut, `WEIR_SIM_STATE` names the file that keeps the progress of a run,
//! `WEIR_SIM_PROBES=n` opens every nth cut that is equivalent to an earlier one (1: all).
#![allow(clippy::disallowed_methods, reason = "tests make files")]
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod datasets;
mod drive;
mod faulty_device;
mod files;
mod judge;
mod memo;
mod op_counters;
mod progress;
mod raw_streams;
mod states;
mod volume;
mod world;
mod zdb;
