//! The quota of the dedup tables (pool property `dedup_table_quota`).
//!
//! ```text
//!   quota: a size  ─► bytes of the tables on the devices          more than the quota?      ─┐
//!          auto    ─► space of the class that has the tables      85 % of it allocated?     ─┴─► full: no new entries
//!          none    ─► never full                                                                 [`Dedup::set_full`]
//! ```
//!
//! The syncer decides at the beginning of each txg, before it writes data, from the sizes that the last txg left. So the tables
//! exceed a quota by at most the entries of one txg.
//!
//! *auto* is the default. It concerns pools with dedup vdevs or, if they have none, special vdevs; in others the tables are on the
//! normal vdevs, and are never full. Unlike OpenZFS, Weir does not look at whether a block of a table was allocated
//! on a vdev of another class, which happens in a class that is fragmented but has less than 85 % allocated.
//!
//! Source: OpenZFS `module/zfs/ddt.c` (`ddt_over_quota`, `ddt_special_over_quota`).
//!
//! [`Dedup::set_full`]: weir_dmu::dedup::Dedup::set_full

use super::syncing::TxgSync;
use weir_blocks::{Class, SpaceSums};
use weir_dmu::{ObjectError, zap};
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_machine::invariant;
use weir_pool::error::PoolError;

/// Name of the property.
const PROPERTY: &str = "dedup_table_quota";
/// Bytes of a large class that may remain free beyond 85 %: less free space than this is full.
const FREE_BYTES: u64 = 8 << 30;

/// A value of the property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quota {
    None,
    Auto,
    Bytes(u64),
}

impl Quota {
    /// Decodes the stored number; `None` if the property is not set.
    fn of(stored: Option<u64>) -> Quota {
        match stored {
            None | Some(u64::MAX) => Quota::Auto,
            Some(0) => Quota::None,
            Some(bytes) => Quota::Bytes(bytes),
        }
    }

    /// Whether tables of this size get no new entries. `class` is the space of the dedup or special class.
    fn is_reached(self, tables_bytes: u64, class: Option<SpaceSums>) -> bool {
        match (self, class) {
            (Quota::None, _) | (Quota::Auto, None) => false,
            (Quota::Bytes(bytes), _) => tables_bytes > bytes,
            (Quota::Auto, Some(space)) => space.allocated_bytes >= most_bytes(space.size_bytes),
        }
    }
}

/// Bytes of a class of this size beyond which it counts as full.
fn most_bytes(size_bytes: u64) -> u64 {
    let share = (u128::from(size_bytes) * 85 / 100) as u64;
    share.max(size_bytes.saturating_sub(FREE_BYTES))
}

/// The quota of the dedup tables in the syncing txg.
pub(crate) struct DedupQuota<'a, 'b>(pub &'a TxgSync<'b>);

impl DedupQuota<'_, '_> {
    /// Decides whether the dedup tables get new entries in this txg.
    ///
    /// # Errors
    /// Errors of reading the pool's properties. A table that cannot be read is no error: a write into it reports that.
    pub(crate) async fn apply(&self) -> Result<(), PoolError> {
        // The first txgs of a new pool make the MOS.
        if self.0.core.config_object.0 == 0 {
            return Ok(());
        }
        let (rq, mos) = (self.0.change.rq, &self.0.change.mos);
        let stored = match zap::lookup_word(rq, mos, ObjectId(names::DIRECTORY_OBJECT), names::PROPS).await? {
            Some(properties) => zap::lookup_word(rq, mos, ObjectId(properties), PROPERTY).await?,
            None => None,
        };
        let quota = Quota::of(stored);
        let tables_bytes = match quota {
            Quota::Bytes(_) => self.dedup_tables_bytes().await.unwrap_or(0),
            Quota::None | Quota::Auto => 0,
        };
        let is_full = quota.is_reached(tables_bytes, self.space_of_dedup_tables());
        invariant!(quota != Quota::None || !is_full, "tables without a quota are full");
        self.0.engine.gate.dedup.set_full(is_full);
        Ok(())
    }

    /// Bytes of the tables on the devices.
    async fn dedup_tables_bytes(&self) -> Result<u64, ObjectError> {
        let mut sum = 0u64;
        for id in self.0.engine.gate.dedup.objects() {
            let object = self.0.change.mos.object(self.0.change.rq, id).await?;
            sum = sum.saturating_add(object.dnode.used_bytes().next_multiple_of(512));
        }
        Ok(sum)
    }

    /// Space of the class of vdevs that has the tables, unless it is the normal class.
    fn space_of_dedup_tables(&self) -> Option<SpaceSums> {
        let blocks = self.0.engine.cache.blocks();
        let class = [Class::Dedup, Class::Special].into_iter().find(|class| blocks.has_class(*class))?;
        Some(blocks.space(class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn tables_are_full_beyond_their_quota() {
        let full = |stored, bytes, class| Quota::of(stored).is_reached(bytes, class);
        let class = |allocated_bytes| Some(SpaceSums { size_bytes: 100, allocated_bytes, ..SpaceSums::default() });
        assert!(!full(Some(4096), 4096, class(100)) && full(Some(4096), 4097, None));
        assert!(!full(Some(0), u64::MAX, class(100)), "none");
        assert!(!full(None, u64::MAX, None), "auto, on normal vdevs");
        assert!(!full(None, 0, class(84)) && full(Some(u64::MAX), 0, class(85)));
        assert_eq!(most_bytes(10 * GIB), 17 * GIB / 2);
        assert_eq!(most_bytes(100 * GIB), 92 * GIB, "at most 8 GiB stay free");
        assert_eq!(most_bytes(u64::MAX), u64::MAX - FREE_BYTES);
    }
}
