//! Administrators' changes of datasets as types, and their execution by the process that has the pool open.
//!
//! ```text
//!   command line ── cli parses ─► Change ── run ─► Engine: sync tasks, each in one txg
//!                                   │
//!                                   └─ policy: missing parents, default quotas, refreservation of volumes
//! ```
//!
//! A [`Change`] is plain data with named fields and converts to and from JSON. It contains no key: a dataset with a key
//! of its own is created by [`CreateDataset::run`], which receives the key separately.
//!
//! A change can consist of several sync tasks, for example one per missing parent. Each is atomic; a change that fails
//! in the middle leaves the earlier ones in place. The first successful sync task of a command records the command line
//! in the pool's history.

mod change;
mod create;
mod properties;
mod reservation;

pub use change::{Author, Change, HeldSnapshot, RenamedSnapshot, SourcedBookmark};
pub use create::{CreateDataset, NewKind, file_system};
