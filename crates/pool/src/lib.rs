//! Pools: finding, importing, walking and verifying them.
//!
//! ```text
//!   folders, devices ──scan──► labels ──assemble──► pools ──uberblocks──► one txg ──open──► MOS ──► datasets
//!                                                                                    └─walk──► every block, once
//! ```
//!
//! [`Pool`] only reads: its disks are opened [`weir_machine::Access::ReadOnly`]. The engine that writes is `weir-engine`.

pub mod assemble;
pub mod aux_devices;
pub mod block_stats;
pub mod capacity;
pub mod config;
pub mod datasets;
pub mod dedup;
pub mod dedup_simulation;
pub mod diff;
pub mod dtls;
pub mod errlog;
pub mod error;
pub mod features;
pub mod gpt;
pub mod indirect;
pub mod initialize_trim;
pub mod invariants;
pub mod label;
pub mod metaslab_geometry;
pub mod mos;
pub mod open;
pub mod properties;
pub mod ranges;
pub mod rebuild;
pub mod roots;
pub mod scan;
pub mod scan_status;
pub mod sizes;
pub mod space;
pub mod space_log;
pub mod space_map_loader;
pub mod status;
pub mod survivors;
pub mod top_zap;
pub mod uberblocks;
pub mod vdev_builder;
pub mod vdev_properties;
pub mod verify;
pub mod walk;

pub use assemble::{Assembly, FoundPool, assemble};
pub use capacity::Capacity;
pub use config::{Class, PoolConfig, VdevConfig, VdevKind};
pub use datasets::DatasetInfo;
pub use error::PoolError;
pub use open::{OpenOptions, Pool, Rewind};
pub use scan::{Device, Scan, ScanOptions, scan, scan_with};
