//! Send streams (OpenZFS `module/zfs/dmu_send.c`, `dmu_recv.c`): `zfs send` and `zfs receive` at the level of object sets.
//!
//! ```text
//!   snapshot ─ traverse ─► items ─ read, concurrently ─► StreamEncoder ─► Output ─► bytes
//!              births after the origin's txg             records, running checksum
//!     redaction lists ─ merge ─┘
//!
//!   bytes ─► Input ─► StreamInput ─► one checked record ─► Applier ─► live object set, a transaction per record
//! ```
//!
//! A stream names objects by number, so the receiver makes each object with the sender's number, block size, bonus area
//! and spill block. Names, snapshots and the GUID are datasets' matters: the engine makes the dataset before the first
//! record, and its snapshot after the last.
//!
//! Invariants: at most [`make::MAX_AHEAD_BYTES`] of blocks and one record of a received stream are in memory. A received
//! record is applied only after its running checksum and its fields were checked.
//!
//! Failures: [`SendError`] of a block that cannot be read ends the stream without END, so that no receiver takes it for
//! complete. [`ReceiveError`] leaves the received dataset incomplete; the engine then destroys it.

pub mod apply;
pub mod check;
pub mod encoder;
pub mod error;
pub mod estimate;
pub mod fuzz;
pub mod gather;
pub mod input;
pub mod make;
mod merge;
pub mod package;
pub mod plan;
pub mod redact;
pub mod replicate;
pub mod resume_points;
mod running;
mod traverse;

pub use apply::Applier;
pub use encoder::StreamEncoder;
pub use error::{ReceiveError, SendError};
pub use gather::{Gathering, gather};
pub use input::{Input, StreamInput};
pub use make::{Output, make};
pub use package::{Package, PackagedDataset};
pub use plan::{PoolFeatures, SendFlags, SendNames, SendPlan};
pub use resume_points::ResumePoints;
pub use running::RunningFletcher4;
