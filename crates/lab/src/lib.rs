//! Laboratory: benchmark methods on real targets, results that say how far they can be trusted, and their comparison.
//!
//! ```text
//!   method ──▶ plan (steps) ──▶ session: rounds of fio or of a load of ours ──▶ result.json ──▶ report.html
//!                                   │ before: ceilings, environment                 │
//!                                   │ during: client's and disks' counters          ├─▶ compare: shift, interval, test, verdict
//!                                   └ after: steady window, sums, warnings          ┘
//! ```
//!
//! A figure may be believed if the run reached what it claims to measure. So each run states, before any figure, why it should not be believed or
//! compared ([`judge`]): the client's cache answered, the disks were not reached, the rate was not steady. The load is
//! carried by fio where fio can ([`fio`]); the job files stay with the result. Clients of our own carry it over iSCSI and NFS
//! ([`native::network`]).

pub mod ceilings;
pub mod clock;
pub mod compare;
pub mod environment;
pub mod error;
pub mod fio;
pub mod judge;
pub mod load;
pub mod methods;
pub mod native;
pub mod plan;
pub mod powercut;
pub mod report;
pub mod result;
pub mod run;
pub mod session;
pub mod statistics;
pub mod steady;
pub mod target;
pub mod text;

pub use error::LabError;

/// Name and body of a fuzz target.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// Fuzz targets of the decoders of this crate.
pub const TARGETS: &[FuzzTarget] = &[
    ("lab-fio", fio::fuzz),
    ("lab-icf", methods::icf::fuzz),
    ("lab-result", result::fuzz),
    ("lab-iscsi", native::network::iscsi::fuzz),
    ("lab-nfs", native::network::nfs::fuzz),
    ("lab-url", native::network::url::fuzz),
];
