//! Automatic trim of freed space in the background (`zpool set autotrim=on`).
//!
//! ```text
//!   txg t has synced ─► deferred frees of txg t-2 are usable again ─► recorded, by metaslab
//!      and every 32nd metaslab is due ─► ranges of these that are still free are trimmed
//! ```
//!
//! A metaslab is due once in 32 txgs at most, so that small frees can merge. One batch runs at a time and ends before the
//! labels say that the pool is exported. Frees before the import or with the property off are not recorded; `zpool trim`
//! covers them.
//!
//! Source: OpenZFS `module/zfs/vdev_trim.c` (`vdev_autotrim_thread`).

use super::space::SpaceMaps;
use futures_util::future::FutureExt;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::alloc::Segments;
use weir_blocks::{BlockError, Blocks};
use weir_dmu::zap;
use weir_dsl::sync_tasks::DslSyncContext;
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_machine::{JoinHandle, Tasks};
use weir_pool::error::PoolError;

/// Txgs between two batches of a metaslab (`zfs_trim_txg_batch`).
const BATCH: u64 = 32;

/// Freed ranges that await trim, and the running batch.
#[derive(Default)]
pub struct AutoTrim {
    on: bool,
    /// Freed ranges by vdev and metaslab, in bytes.
    freed: BTreeMap<(u32, u64), Segments>,
    turn: u64,
    running: Option<JoinHandle<Result<u64, BlockError>>>,
}

impl AutoTrim {
    /// Sets the value of the property `autotrim`.
    fn set(&mut self, on: bool) {
        self.on = on;
        if !on {
            self.freed.clear();
        }
    }

    /// Records a range of a vdev and metaslab that is usable again.
    fn note(&mut self, id: (u32, u64), range: Range<u64>) {
        let freed = self.freed.entry(id).or_default();
        // A part may have been freed, allocated and freed again since the last batch.
        freed.remove_common(&range);
        freed.add(range);
    }

    /// Removes and returns the ranges of the next batch, those of every 32nd metaslab.
    fn due(&mut self) -> Vec<(u32, Range<u64>)> {
        let turn = self.turn;
        self.turn = (turn + 1) % BATCH;
        let mut out = Vec::new();
        self.freed.retain(|(vdev, metaslab), freed| {
            let due = metaslab % BATCH == turn;
            if due {
                out.extend(freed.iter().map(|range| (*vdev, range)));
            }
            !due
        });
        out
    }

    /// Starts the next batch unless one is running.
    fn start_batch(&mut self, tasks: &Tasks, blocks: &Arc<Blocks>) {
        if self.running.as_mut().is_some_and(|turn| turn.now_or_never().is_none()) {
            return;
        }
        self.running = None;
        let due = self.due();
        if !due.is_empty() {
            let blocks = blocks.clone();
            self.running = Some(tasks.spawn(async move { weir_blocks::trim(&blocks, &due).await }));
        }
    }

    /// Records `freed`, which is usable again after the txg of `change`, and starts the next batch.
    pub(super) async fn record_freed(
        &mut self,
        change: &DslSyncContext<'_>,
        maps: &SpaceMaps,
        freed: Vec<(u32, Range<u64>)>,
        tasks: &Tasks,
        blocks: &Arc<Blocks>,
    ) -> Result<(), PoolError> {
        let directory = ObjectId(names::DIRECTORY_OBJECT);
        let properties = zap::lookup_word(change.rq, &change.mos, directory, names::PROPS).await?;
        let set = match properties {
            Some(properties) => zap::lookup_word(change.rq, &change.mos, ObjectId(properties), "autotrim").await?,
            None => None,
        };
        self.set(set == Some(1));
        if self.on {
            for (vdev, range) in freed {
                self.note((vdev, maps.metaslab_at(vdev, range.start)), range);
            }
            self.start_batch(tasks, blocks);
        }
        Ok(())
    }

    /// Waits for the running batch.
    pub(super) async fn end(&mut self) {
        if let Some(turn) = self.running.take() {
            // A failed trim affects only free space.
            let _trimmed = turn.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metaslab_is_due_once_in_a_cycle() {
        let mut trim = AutoTrim::default();
        trim.set(true);
        trim.note((0, 1), 0..100);
        trim.note((0, 1), 50..150);
        trim.note((2, 33), 0..10);
        trim.note((0, 0), 5..6);
        assert_eq!(trim.due(), [(0, 5..6)]);
        assert_eq!(trim.due(), [(0, 0..150), (2, 0..10)]);
        trim.note((0, 1), 7..8);
        assert!((2..33).all(|_| trim.due().is_empty()));
        assert_eq!(trim.due(), [(0, 7..8)]);
        trim.note((0, 2), 7..8);
        trim.set(false);
        assert!(trim.freed.is_empty());
    }
}
