//! Resilver: writes to devices that were away, or failed writes, the blocks that they lack.
//!
//! ```text
//!   DTLs of the devices in service ─► `scan` in the MOS: first and last txg ─► passes as of a scrub, of blocks born in between:
//!      each block that a device lacks is read, verified, and written to that device ─► flush ─► position ─► … ─► DTLs excised
//! ```
//!
//! The record and the passes are those of a [scrub](super::scrub), whose place a resilver takes. It needs no command:
//! [`Scrubs::start_resilver_if_needed`] starts it for any DTL of a device in service, and again when a DTL grew meanwhile.
//!
//! *Continuing* is safe for another process only if all repairs so far are stable, and if no other program went on with the
//! scan. A pass therefore flushes before a position is recorded, with a flag if a device failed; and the record repeats the
//! number of examined bytes, which another program would have changed. Otherwise the resilver starts again.
//!
//! *Blocks that move*, because a snapshot is destroyed, heads are exchanged, or a file is cloned or deduplicated, may pass the walk.
//! The record of the same txg names the datasets to which they moved ([`Revisits`]); the resilver visits these again when it is
//! through, in rounds, until no block has moved meanwhile.
//!
//! Source: OpenZFS `module/zfs/dsl_scan.c` (`dsl_scan_setup_sync`, `dsl_scan_done`), `module/zfs/vdev.c`
//! (`vdev_resilver_needed`, `vdev_dtl_reassess`).

use super::events::PoolEvent;
use super::rebuild::RebuildTask;
use super::scrub::pass::ScanCycle;
use super::scrub::{CANCELED, Progress, scrub_in};
use super::{Scrubs, TxgSync};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use weir_dsl::sync_tasks::{Moves, features};
use weir_format::Txg;
use weir_format::features::Feature;
use weir_machine::{Request, invariant};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;

/// `POOL_SCAN_RESILVER`.
pub(crate) const RESILVER: u64 = 2;

/// Facts that decide whether a resilver can be continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// [`Resume::UNREPAIRED`], [`Resume::MOVED`], [`Resume::AHEAD`].
    pub flags: u64,
    /// Examined bytes when the position was recorded.
    pub examined_bytes: u64,
    /// The txg in which the scan began.
    pub began: Txg,
}

impl Resume {
    /// A device could not be given all blocks before the position, or may have dropped some.
    pub const UNREPAIRED: u64 = 1;
    /// The walk has passed blocks that a device lacks: more places than are recorded, to which blocks moved that it has not visited, or
    /// what a device lacks that came back into service.
    pub const MOVED: u64 = 2;
    /// Blocks behind the position were read, too: the record has the counts at the position
    /// ([`Progress::ahead`](super::scrub::Progress::ahead)).
    pub const AHEAD: u64 = 4;
}

/// Datasets that a resilver visits again, in rounds, because blocks moved to them.
///
/// ```text
///   round 0: all datasets ─► round 1: `next`, and snapshots taken since the beginning ─► round 2: `next` ─► … until it is empty
/// ```
///
/// A snapshot that is taken after round 0 has blocks that were not visited only if its head will be visited again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revisits {
    /// The round, from 0 on.
    pub round: u64,
    /// Objects of the datasets that this round visits; of round 1, besides snapshots.
    pub now: BTreeSet<u64>,
    /// Those of the next round.
    pub next: BTreeSet<u64>,
}

impl Revisits {
    /// Maximum datasets in a record, whose size is limited to 8 KiB (`ZAP_MAXVALUELEN`).
    const MAX: usize = 900;

    /// Decodes the integers of a record; none of an older record.
    pub(crate) fn of_words(words: &[u64]) -> Self {
        let count = words.get(1).map_or(0, |count| usize::try_from(*count).unwrap_or(usize::MAX));
        let all = words.get(2..).unwrap_or_default();
        let (now, next) = all.split_at(count.min(all.len()));
        let set = |ids: &[u64]| ids.iter().copied().collect();
        Revisits { round: words.first().copied().unwrap_or(0), now: set(now), next: set(next) }
    }

    /// Encodes the integers of a record.
    pub(crate) fn to_words(&self) -> Vec<u64> {
        [self.round, self.now.len() as u64]
            .into_iter()
            .chain(self.now.iter().copied())
            .chain(self.next.iter().copied())
            .collect()
    }

    /// Whether another round is needed.
    pub(crate) fn is_due(&self) -> bool {
        !self.next.is_empty()
    }

    /// Begins the next round.
    pub(crate) fn begin_round(&mut self) {
        self.now = std::mem::take(&mut self.next);
        self.round = self.round.saturating_add(1);
        debug_assert!(!self.is_due(), "nothing has moved in a round that begins");
    }

    /// Adds the datasets to which blocks moved. Returns false if they are too many; they are not recorded then.
    fn add(&mut self, moves: &Moves) -> bool {
        let mut next = self.next.clone();
        next.extend(moves.into.iter().map(|id| id.0));
        for (head, snapshot) in moves.snapshots.iter().filter(|_| self.round > 0) {
            if next.contains(&head.0) || self.now.contains(&head.0) {
                next.insert(snapshot.0);
            }
        }
        let fits = self.now.len() + next.len() <= Self::MAX;
        if fits {
            self.next = next;
        }
        fits
    }
}

/// State of [`Scrubs::keep_resilvered`] between two calls.
#[derive(Debug, Default)]
pub struct ResilverWatch {
    was_running: bool,
    /// The range that the last resilver could not give to the devices.
    left: Option<(Txg, Txg)>,
    /// Returns of devices into service that are known.
    returns: u64,
}

impl ResilverWatch {
    /// Notes what devices in service lack while no resilver runs. What is left after one that went over the txgs up to `scanned`
    /// could not be repaired, unless a device came back into service meanwhile: `returns` counts that.
    fn note(&mut self, lacks: Option<(Txg, Txg)>, scanned: Txg, returns: u64) {
        if std::mem::take(&mut self.was_running) {
            self.left = lacks.filter(|(_, last)| *last <= scanned);
        }
        debug_assert!(returns >= self.returns, "returns are counted");
        if std::mem::replace(&mut self.returns, returns) != returns {
            self.left = None;
        }
    }
}

impl Scrubs<'_> {
    /// To be called every few seconds: starts a resilver if devices in service lack blocks, but not while they fail writes, and
    /// not for what the last one could not repair. Returns whether one is running, or the end of an expansion or a rebuild has started a scrub,
    /// which [`Scrubs::run`] carries out.
    ///
    /// # Errors
    /// Errors of reading or writing the MOS.
    pub async fn keep_resilvered(&self, watch: &mut ResilverWatch) -> Result<bool, PoolError> {
        let begun = self.engine.scrub_to_carry_out.load(Ordering::SeqCst);
        // Before its txg has synced, the scrub is not in the state that `Scrubs::run` reads.
        if begun != 0 && Txg(begun) <= self.engine.txgs().last_synced() {
            let _later = self.engine.scrub_to_carry_out.compare_exchange(begun, 0, Ordering::SeqCst, Ordering::SeqCst);
            return Ok(true);
        }
        let range = self.engine.cache.blocks().tree().resilvering().range();
        let last = self.progress(&Request::internal("resilver")).await?;
        if last.as_ref().is_some_and(|scan| scan.is_open() && scan.is_resilver()) {
            watch.was_running = true;
            return Ok(true);
        }
        let scanned = last.map_or(Txg(0), |scan| scan.scan.max_txg);
        watch.note(range, scanned, self.engine.returns.load(Ordering::SeqCst));
        let is_quiet = range.is_some_and(|(_, last)| last < self.engine.txgs().last_synced());
        if range == watch.left || !is_quiet || self.engine.rebuilds().is_running() {
            return Ok(false);
        }
        watch.was_running = self.start_resilver(false).await?;
        Ok(watch.was_running)
    }

    /// Starts a resilver if a device in service lacks blocks and none is running that includes them. Returns whether a
    /// resilver is running.
    ///
    /// # Errors
    /// Errors of reading or writing the MOS.
    pub async fn start_resilver_if_needed(&self) -> Result<bool, PoolError> {
        let last = self.progress(&Request::internal("resilver")).await?;
        let open = last.filter(|scan| scan.is_open() && scan.is_resilver());
        let range = self.engine.cache.blocks().tree().resilvering().range();
        match (range, open) {
            (None, None) => Ok(false),
            (Some((_, last)), Some(open)) if last <= open.scan.max_txg => Ok(true),
            (None, Some(_)) => Ok(true),
            (Some(_), _) => self.start_resilver(false).await,
        }
    }

    /// Starts a resilver of what devices in service lack; with `again`, also if one is running (`zpool resilver`). A scrub is
    /// canceled. Returns whether a resilver is running then: not if no device lacks anything, or a vdev is being rebuilt.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `again` in a pool without the feature `resilver_defer`, as OpenZFS refuses it (`module/zfs/spa.c`,
    /// `spa_scan_range`); errors of reading or writing the MOS.
    pub async fn start_resilver(&self, again: bool) -> Result<bool, PoolError> {
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    if again && !features::is_enabled(&mut syncing.change, Feature::RESILVER_DEFER).await? {
                        let what = "this action requires the resilver_defer feature".into();
                        return Err(PoolError::Refused { what });
                    }
                    ResilverTask(syncing).start(again).await
                })
            })
            .await
    }

    /// Prepares the next pass of a scan. Returns `None` if the scan was started again.
    pub(crate) async fn ready(&self, rq: &Request, progress: Progress) -> Result<Option<Progress>, PoolError> {
        let has_begun = |cycle: &ScanCycle| cycle.is_part_of(&progress);
        if !progress.is_resilver() || self.engine.scan.cycle.lock().await.as_ref().is_some_and(has_begun) {
            return Ok(Some(progress));
        }
        let continued = self
            .engine
            .sync_task(|syncing: &mut TxgSync<'_>| Box::pin(async move { ResilverTask(syncing).resume().await }))
            .await?;
        // Blocks may still be written to the devices that a DTL is about: its last txgs are in the future for a new device.
        while self.engine.txgs().last_synced() < progress.scan.max_txg {
            self.engine.sync().await?;
        }
        match continued {
            true => self.progress(rq).await,
            false => Ok(None),
        }
    }

    /// Makes the repairs of a pass stable. Returns whether a device failed some.
    pub(crate) async fn settle_repairs(&self) -> bool {
        let blocks = self.engine.cache.blocks();
        let flushed = blocks.flush().await;
        flushed.is_err() || blocks.tree().resilvering().has_unrepaired()
    }
}

/// Changes of the record of a resilver, in syncing context.
pub(crate) struct ResilverTask<'a, 'b>(pub &'a mut TxgSync<'b>);

impl ResilverTask<'_, '_> {
    /// See [`Scrubs::start_resilver`].
    pub(crate) async fn start(&mut self, again: bool) -> Result<bool, PoolError> {
        if self.0.engine.rebuilds().is_running() {
            return Ok(false);
        }
        let range = self.0.engine.cache.blocks().tree().resilvering().range();
        let last = scrub_in(self.0.change.rq, &Mos { set: self.0.engine.mos.clone() }).await?;
        let open = last.filter(Progress::is_open);
        if let Some(open) = &open
            && open.is_resilver()
            && !again
            && range.is_none_or(|(_, last)| last <= open.scan.max_txg)
        {
            return Ok(true);
        }
        let Some((first, last)) = range else { return Ok(open.is_some_and(|open| open.is_resilver())) };
        if let Some(open) = open {
            self.0.end_scrub(open, CANCELED).await?;
        }
        RebuildTask(self.0).forget_ended().await?;
        let progress = self.0.new_scan(RESILVER, (Txg(first.0.saturating_sub(1)), last)).await?;
        self.0.core.resilver_began = Some(progress.resume.began);
        self.0.core.scrub_began = None;
        self.0.put_scrub(&progress).await?;
        self.0.engine.events.post(PoolEvent::ResilverStart, |_| {});
        Ok(true)
    }

    /// Checks, once in a process, that a resilver which another process began can be continued; starts it again otherwise.
    /// Returns whether it is continued.
    async fn resume(&mut self) -> Result<bool, PoolError> {
        let Ok(open) = self.0.open_scrub().await else { return Ok(false) };
        if !open.is_resilver() || self.0.core.resilver_began == Some(open.resume.began) {
            return Ok(true);
        }
        let by_others = open.resume.began == Txg(0) || open.resume.examined_bytes != open.scan.examined_bytes;
        if by_others || open.resume.flags & Resume::UNREPAIRED != 0 || open.scan.errors > 0 {
            if !self.start(true).await? {
                self.0.end_scrub(open, CANCELED).await?;
            }
            return Ok(false);
        }
        self.0.core.resilver_began = Some(open.resume.began);
        Ok(true)
    }

    /// Ends a resilver: `finished` if it went over all blocks.
    pub(crate) async fn end(&mut self, progress: Progress, finished: bool) -> Result<(), PoolError> {
        let is_known = self.0.core.resilver_began == Some(progress.resume.began);
        invariant!(!finished || is_known, "a resilver ends that was not continued here");
        if finished && is_known && progress.resume.flags & Resume::MOVED == 0 {
            super::dtls::excise_resilvered(self.0.engine.cache.blocks().tree(), progress.scan.max_txg);
        }
        super::attach::forget_resilver_txgs(self.0);
        self.0.core.resilver_began = None;
        self.0.put_scrub(&progress).await?;
        if finished {
            self.0.engine.events.post(PoolEvent::ResilverFinish, |_| {});
        }
        Ok(())
    }

    /// Records that blocks moved while a resilver is open.
    pub(crate) async fn note_moved(&mut self, moves: &Moves) -> Result<(), PoolError> {
        let Ok(mut open) = self.0.open_scrub().await else { return Ok(()) };
        if !open.is_resilver() || open.resume.flags & Resume::MOVED != 0 {
            return Ok(());
        }
        let before = open.revisits.clone();
        if !open.revisits.add(moves) {
            open.resume.flags |= Resume::MOVED;
        } else if open.revisits == before {
            return Ok(());
        }
        if self.0.core.resilver_began != Some(open.resume.began) {
            // It was not checked whether it can be continued: now it cannot.
            open.resume.began = Txg(0);
        }
        self.0.put_scrub(&open).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::ObjectId;

    #[test]
    fn a_resilver_leaves_only_what_it_could_have_repaired() {
        let lacks = Some((Txg(5), Txg(9)));
        let after = |scanned, returns| {
            let mut watch = ResilverWatch { was_running: true, ..ResilverWatch::default() };
            watch.note(lacks, Txg(scanned), returns);
            watch.left
        };
        assert_eq!(after(9, 0), lacks, "it was tried");
        assert_eq!(after(8, 0), None, "txg 9 was not part of it");
        assert_eq!(after(9, 1), None, "a device came back while it ran");
        let mut watch = ResilverWatch { left: lacks, returns: 1, ..ResilverWatch::default() };
        watch.note(lacks, Txg(9), 1);
        assert_eq!(watch.left, lacks);
        watch.note(lacks, Txg(9), 2);
        assert_eq!(watch.left, None);
    }

    fn moves(into: &[u64], snapshots: &[(u64, u64)]) -> Moves {
        let id = |(head, snapshot): &(u64, u64)| (ObjectId(*head), ObjectId(*snapshot));
        Moves { into: into.iter().copied().map(ObjectId).collect(), snapshots: snapshots.iter().map(id).collect() }
    }

    #[test]
    fn what_blocks_moved_to_is_visited_in_the_next_round() {
        let mut all = Revisits::default();
        assert!(all.add(&moves(&[5], &[(7, 8)])) && all.is_due());
        assert_eq!(all.next, BTreeSet::from([5]), "round 1 visits all new snapshots");
        all.begin_round();
        assert!(!all.is_due() && all.now.contains(&5));
        assert!(all.add(&moves(&[], &[(7, 9), (5, 10)])));
        assert_eq!(all.next, BTreeSet::from([10]), "a snapshot of a dataset of this round");
        assert_eq!(Revisits::of_words(&all.to_words()), all);
        assert_eq!(Revisits::of_words(&[]), Revisits::default());
        assert_eq!(Revisits::of_words(&[1, u64::MAX, 3]).now, BTreeSet::from([3]), "a malformed count");
        let many: Vec<u64> = (100..1100).collect();
        assert!(!all.add(&moves(&many, &[])), "too many");
        assert_eq!(all.next.len(), 1);
    }
}
