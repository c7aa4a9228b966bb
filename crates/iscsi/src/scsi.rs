//! SCSI: commands (SPC-4, SBC-3) and the state of the units that they address. Knows nothing of iSCSI.
//!
//! ```text
//!   CDB ─► cdb: decode ─► execute: unit attention? reservation? ─► block · inquiry · mode · reserve · copy ─► Outcome
//!                            │                                       │
//!                            unit (state shared by all sessions)     BlockDevice
//! ```
//!
//! Sources: SPC-4 r37, SBC-3 r36, SAM-5 r21 (INCITS T10).

pub mod block;
pub mod cdb;
pub mod copy;
pub mod execute;
pub mod inquiry;
pub mod mode;
pub mod opcodes;
pub mod ranges;
pub mod reservations;
pub mod reserve;
pub mod sense;
pub mod unit;
