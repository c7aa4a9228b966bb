//! Holds of snapshots.

use super::{Row, Rows, unreadable};
use crate::refusal::{Refusal, RefusalKind};
use crate::selection::named_below;
use serde::{Deserialize, Serialize};
use weir_dmu::zap::Zap;
use weir_machine::Request;
use weir_pool::{Pool, PoolError};

/// Maximum number of holds of one snapshot that are read.
const MAX_HOLDS: usize = 1 << 20;

/// Which holds are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldsQuery {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Whether the snapshots of that name of all datasets below are meant as well.
    pub recursive: bool,
}

/// A hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Tag.
    pub tag: String,
    /// Time at which it was made, in seconds since 1970.
    pub time_s: u64,
}

impl HoldsQuery {
    /// Reads the holds, those of a snapshot in the order of its ZAP.
    ///
    /// # Errors
    /// [`RefusalKind::Missing`] with the name of a snapshot that does not exist.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        let rq = &Request::internal("holds");
        for snapshot in self.meant(rq, pool).await? {
            rows.check()?;
            let missing =
                |_| Refusal::because_of(RefusalKind::Missing, "dataset does not exist", vec![snapshot.clone()]);
            let found = pool.dsl.find(rq, &snapshot).await.map_err(missing)?;
            if found.phys.user_refs.0 == 0 {
                continue;
            }
            let failed = |error| unreadable(PoolError::from(error));
            let zap = Zap::open(rq, pool.dsl.mos(), found.phys.user_refs).await.map_err(failed)?;
            for entry in zap.all(rq, MAX_HOLDS).await.map_err(failed)? {
                let time_s = entry.value.first().unwrap_or(0);
                rows.add(Row::Hold(Hold { snapshot: snapshot.clone(), tag: entry.key.text(), time_s })).await?;
            }
        }
        Ok(())
    }

    /// The snapshot itself, or with `recursive` all of its name at and below its dataset.
    async fn meant(&self, rq: &Request, pool: &Pool) -> Result<Vec<String>, Refusal> {
        if !self.recursive {
            return Ok(vec![self.snapshot.clone()]);
        }
        let (of, snapshot) = self.snapshot.split_once('@').unwrap_or((&self.snapshot, ""));
        named_below(rq, &pool.dsl, of, snapshot).await.map_err(unreadable)
    }
}
