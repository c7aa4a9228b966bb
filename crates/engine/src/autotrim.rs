//! Trimming what was freed, in the background (`zpool set autotrim=on`).
//!
//! ```text
//!   group t has synced ─► what was given back two groups before is usable again ─► remembered, by metaslab
//!      and one part in 32 of the metaslabs has its turn ─► what is still free of theirs is told to the devices
//! ```
//!
//! A metaslab comes round every 32 groups at most, so that small frees grow together. One turn is under way at a time; it
//! ends before the labels say that the pool is closed. What is not remembered (freed before the pool was opened, or with the property off)
//! `zpool trim` finds.
//!
//! Source: OpenZFS `module/zfs/vdev_trim.c` (`vdev_autotrim_thread`).

use super::syncing::TxgSync;
use futures_util::future::FutureExt;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::alloc::Segments;
use weir_blocks::{BlockError, Blocks};
use weir_dmu::zap;
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_machine::{JoinHandle, Tasks};
use weir_pool::error::PoolError;

/// Groups between two turns of a metaslab (`zfs_trim_txg_batch`).
const BATCH: u64 = 32;

/// What is to be trimmed, and the turn that is under way.
#[derive(Default)]
pub struct AutoTrim {
    on: bool,
    /// What was freed, by vdev and metaslab.
    freed: BTreeMap<(u32, u64), Segments>,
    turn: u64,
    running: Option<JoinHandle<Result<u64, BlockError>>>,
}

impl AutoTrim {
    /// What the property says now.
    fn set(&mut self, on: bool) {
        self.on = on;
        if !on {
            self.freed.clear();
        }
    }

    /// Space that is usable again, with its vdev and metaslab.
    fn note(&mut self, id: (u32, u64), range: Range<u64>) {
        let freed = self.freed.entry(id).or_default();
        // Some of it may have been freed, used and freed again since the last turn.
        freed.remove_common(&range);
        freed.add(range);
    }

    /// What is trimmed next: that of every 32nd metaslab.
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

    /// Begins the next turn, unless one is under way.
    fn go_on(&mut self, tasks: &Tasks, blocks: &Arc<Blocks>) {
        if self.running.as_mut().is_some_and(|turn| turn.now_or_never().is_none()) {
            return;
        }
        self.running = None;
        let due = self.due();
        if !due.is_empty() {
            let blocks = blocks.clone();
            self.running = Some(tasks.spawn(async move { blocks.trim(&due).await }));
        }
    }

    /// Waits for the turn that is under way.
    pub(super) async fn end(&mut self) {
        if let Some(turn) = self.running.take() {
            // Trimming that failed has changed nothing that anybody reads.
            let _trimmed = turn.await;
        }
    }
}

impl TxgSync<'_> {
    /// The group is on stable storage, and `freed` is usable again.
    pub(super) async fn auto_trim(&mut self, freed: Vec<(u32, Range<u64>)>) -> Result<(), PoolError> {
        if self.core.config_object.0 == 0 || self.core.ended {
            return Ok(());
        }
        let (rq, mos) = (self.change.rq, &self.change.mos);
        let directory = ObjectId(names::DIRECTORY_OBJECT);
        let properties = zap::lookup_word(rq, mos, directory, names::PROPS).await?;
        let set = match properties {
            Some(properties) => zap::lookup_word(rq, mos, ObjectId(properties), "autotrim").await?,
            None => None,
        };
        let (trim, maps) = (&mut self.core.autotrim, &self.core.maps);
        trim.set(set == Some(1));
        if trim.on {
            for (vdev, range) in freed {
                trim.note((vdev, maps.metaslab_at(vdev, range.start)), range);
            }
            trim.go_on(&self.engine.machine.tasks, self.engine.cache.blocks());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metaslab_has_its_turn() {
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
