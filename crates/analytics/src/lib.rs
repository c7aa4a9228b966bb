//! Analytics: the work of a pool by client, dataset and operation, and the sources and causes of its bytes.
//!
//! ```text
//!   registers of machine::Accounts, ARC, txgs, devices ──► Sample: everything at an instant, as plain data
//!                                                            │ difference of two samples
//!                                                            ├──► Interval: rates                weir top, arcstat
//!                                                            │      └──► why: findings           weir why
//!                                                            ├──► History: rates kept in rings   API
//!                                                            │      └──► Segment: frames in a file
//!                                                            └──► metrics: OpenMetrics text      Prometheus
//! ```
//!
//! Taking a sample stops no request: the registers are read one by one while requests change them. So two counters of one sample may
//! differ by the requests that ended in between; over an interval this difference does not grow.

mod dips;
mod facts;
mod families;
mod file_paths;
mod files;
pub mod frame;
mod history;
mod host;
mod interval;
mod latency;
pub mod metrics;
mod names;
mod point;
mod sample;
mod segment;
mod stores;
pub mod why;

pub use dips::{Dip, Dips, dips};
pub use facts::{ConnectionFacts, LinkFacts, PoolFacts, PoolObservation};
pub use families::{Family, FamilyKind, FamilyRow};
pub use file_paths::{FilePaths, MAX_PATHS, paths};
pub use files::{FileBytes, FileTable, FileTotals};
pub use history::{History, Resolution};
pub use host::{HostTotals, InterfaceTotals};
pub use interval::{Interval, quantile_ns};
pub use latency::{LatencyCounts, LatencyKind};
pub use names::DatasetNames;
pub use point::{Point, SERIES};
pub use sample::{
    ArcState, CauseBytes, ClientTotals, Counts, DatasetState, LeafTotals, OperationTotals, Sample, SpaceState, TxgState,
};
pub use segment::Segment;
pub use stores::{Cost, StoreSpace, StoreTotals};

/// A fuzz target: its name and what to run on the bytes.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// Fuzz targets of this crate.
pub const TARGETS: &[FuzzTarget] = &[("history-frames", frame::fuzz)];
