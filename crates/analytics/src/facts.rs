//! Facts of a pool that are read from its devices or its MOS, beside the counters of a [`crate::Sample`], and both together.

use crate::interval::Interval;
use crate::sample::Sample;
use crate::why::{Diagnosis, diagnose, is_of};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a pool that is read when it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolFacts {
    /// Activities in progress, as `zpool wait` names them: `scrub`, `resilver`, `trim` …
    pub activities: Vec<String>,
    /// Fragmentation of free space in percent; `None` if no space map has a histogram.
    pub fragmentation_percent: Option<u64>,
    /// Bytes of memory that the blocks of the dedup tables take if all are cached.
    pub dedup_table_bytes: u64,
}

/// Counters of a pool at two instants, and its state: the input of a diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolObservation {
    /// The counters before; `None` if the process keeps none.
    pub before: Option<Sample>,
    /// The counters now.
    pub after: Sample,
    /// State of the pool as of its last synced txg.
    pub facts: PoolFacts,
}

impl PoolObservation {
    /// Diagnoses the pool, or a dataset with its descendants or a client of it.
    pub fn diagnosis(&self, subject: Option<&str>) -> Diagnosis {
        diagnose(&Interval::between(self.before.as_ref(), &self.after), &self.facts, subject)
    }

    /// Whether a dataset, one of its descendants, or a client of that name has had requests since the pool was opened, or
    /// a dataset of that name is open.
    pub fn knows(&self, subject: &str) -> bool {
        let mut of_clients = self.after.clients.iter().filter(|row| row.protocol != "internal");
        of_clients.any(|row| is_of(row, subject)) || self.after.datasets.iter().any(|row| row.name == subject)
    }
}
