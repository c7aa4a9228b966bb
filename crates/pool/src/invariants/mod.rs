//! On-disk invariants of a pool that OpenZFS asserts and that `zdb -bcc` does not check.
//!
//! A pool can have every block allocated exactly once and every checksum right, and still be one that OpenZFS's module
//! refuses, or for which a build with assertions panics. Each module here checks one part:
//!
//! ```text
//!   trees     dnodes and block pointers of all object sets
//!   dsl       directories and datasets: links, counts, sums; their dead lists
//!   features  counts of features, against their uses
//!   zaps      ZAPs: tables, leaves, hashes
//!   space     headers and histograms of space maps, against the segments in the maps and their logs
//! ```
//!
//! Every rule is stated by OpenZFS in a `VERIFY` or `ASSERT`, or relied on; the doc comment of a rule names the
//! function. A pool that OpenZFS wrote passes. An unreadable block is not a finding here: [`crate::verify`] reports it.

mod deadlists;
mod dsl;
mod features;
mod space;
mod trees;
mod zaps;

use crate::open::Pool;
use std::fmt;
use weir_dmu::ObjectError;
use weir_machine::Request;

/// Maximum number of findings that are returned; all are counted.
const KEPT: usize = 1000;

/// Part of the format that a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Block pointers.
    Pointer,
    /// Dnodes and the headers of object sets.
    Dnode,
    /// ZAPs.
    Zap,
    /// Directories, datasets, snapshots.
    Dsl,
    /// Dead lists and lists of block pointers.
    Deadlist,
    /// Counts of features.
    Feature,
    /// Space maps: headers, histograms, logs.
    SpaceMap,
}

impl Part {
    /// Name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Part::Pointer => "block pointer",
            Part::Dnode => "dnode",
            Part::Zap => "ZAP",
            Part::Dsl => "dataset",
            Part::Deadlist => "dead list",
            Part::Feature => "feature",
            Part::SpaceMap => "space map",
        }
    }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Part of the format.
    pub part: Part,
    /// Object, block or entry.
    pub place: String,
    /// Actual and expected value.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.part.name(), self.place, self.what)
    }
}

/// Result of checking a pool's invariants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first thousand findings.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub count: u64,
}

impl Report {
    /// Whether no invariant is violated.
    pub fn is_clean(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, part: Part, place: impl fmt::Display, what: impl fmt::Display) {
        self.count += 1;
        if self.findings.len() < KEPT {
            self.findings.push(Finding { part, place: place.to_string(), what: what.to_string() });
        }
    }

    fn merge(&mut self, other: Report) {
        self.count += other.count;
        let room = KEPT.saturating_sub(self.findings.len());
        self.findings.extend(other.findings.into_iter().take(room));
    }

    /// Adds a finding unless `holds`.
    fn demand(&mut self, holds: bool, part: Part, place: impl fmt::Display, what: impl FnOnce() -> String) {
        if !holds {
            self.add(part, place, what());
        }
    }

    /// Returns the value, if it could be read. A malformed structure is a finding, an unreadable one is not.
    fn readable<T>(&mut self, part: Part, place: impl fmt::Display, read: Result<T, ObjectError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(ObjectError::Block { .. } | ObjectError::NoKey { .. }) => None,
            Err(error) => {
                self.add(part, place, error);
                None
            }
        }
    }
}

/// Checks the invariants of the pool's current state.
///
/// # Errors
/// [`ObjectError`] if the lists that the check starts from cannot be read.
pub async fn check_invariants(pool: &Pool, rq: &Request) -> Result<Report, ObjectError> {
    let mut report = Report::default();
    let born = trees::check(rq, pool, &mut report).await?;
    dsl::check(rq, pool, &born, &mut report).await?;
    features::check(rq, pool, &mut report).await?;
    space::check(rq, pool, &mut report).await?;
    Ok(report)
}
