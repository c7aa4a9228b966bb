//! Facts of a pool that are read from its devices or its MOS, beside the counters of a [`crate::Sample`].

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
