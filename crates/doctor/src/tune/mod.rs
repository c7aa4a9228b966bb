//! The tuning sheet: settings of the machine with their current, default and recommended values; named sets of values of
//! one's own; applied with the old state saved first, and rolled back.
//!
//! ```text
//!   sheet ─ current | default | recommended | set "lab"
//!   apply "lab" ─▶ old values into tuning.json (stable) ─▶ write each setting; one that fails undoes those before it
//!   rollback ────▶ old values back
//! ```
//!
//! *Invariant.* While settings of a set are in force, the values from before the first `apply` are in the file: a second
//! `apply` keeps them and adds those of settings that it changes for the first time.
//!
//! Settings of Weir itself (memory, transfer sizes) and mount options of clients are on the sheet with what to write where;
//! they are not applied. Commands that change the topology of a network (bridges, bonds) are printed, never run.

mod items;
mod sets;

pub use items::{Applies, Item, is_valid, items};
pub use sets::{MAX_SETS, Sets, TuneError, TuningSet};
