//! Walks that only find the blocks to verify, and the reads of these blocks in the order of their place on the devices.
//!
//! See [`weir_blocks::scan_queue`].

use super::{Item, PARALLEL_BYTES, Position, Prove, ResumePath, Root, Run, Visit, VisitPosition, Walk};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::{FoundBlock, ReadHold, ScanQueue, Tree};
use weir_format::{BlockPointer, Txg};
use weir_machine::Nanos;

/// Limits of reads of found blocks.
struct ReadLimits {
    /// Maximum number of concurrent reads in one top-level vdev.
    parallel: usize,
    /// Delay after each read, as a multiple of its duration.
    delay_factor: u32,
}

/// The devices of a vdev begin fewer reads than this at the same time. They sort and merge those that wait.
const WITHOUT_CLIENTS: ReadLimits = ReadLimits { parallel: 128, delay_factor: 0 };
/// While clients use the devices.
const SCRUB_BESIDE_CLIENTS: ReadLimits = ReadLimits { parallel: 2, delay_factor: 2 };
/// A resilver restores redundancy, so it takes more.
const RESILVER_BESIDE_CLIENTS: ReadLimits = ReadLimits { parallel: 3, delay_factor: 1 };
/// Maximum delay.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(200);
/// Time after which reads of found blocks begin under another read hold: freed space waits for the end of a hold.
const HOLD_TIME: Duration = Duration::from_secs(1);
/// Interval in which operations of clients are counted, and the time after the last one in which clients use the devices.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);
const USED_TIME: Duration = Duration::from_millis(100);

/// The operations of clients on the devices. Those of the engine count as well, when it syncs a txg.
struct Clients {
    counted: Nanos,
    operations: u64,
    /// Time of the last count that found new ones.
    last: Option<Nanos>,
}

impl Clients {
    /// Counts the operations again if [`COUNT_INTERVAL`] has passed since the last count. Returns whether clients use the devices.
    fn are_active(&mut self, tree: &Tree, now: Nanos) -> bool {
        if now.since(self.counted) >= COUNT_INTERVAL {
            let operations = tree.foreground_operations();
            if operations != std::mem::replace(&mut self.operations, operations) {
                self.last = Some(now);
            }
            self.counted = now;
        }
        self.last.is_some_and(|last| now.since(last) < USED_TIME)
    }
}

/// A read hold, and when it began.
pub(super) struct Hold {
    begun: Nanos,
    /// `None` if the pool is not open for writing.
    _hold: Option<ReadHold>,
}

/// The queue of a walk that only finds blocks, and the number of blocks at which the walk ends.
pub(super) struct Sink {
    queue: Arc<ScanQueue>,
    max_blocks: usize,
}

impl Sink {
    fn is_full(&self) -> bool {
        self.queue.len() >= self.max_blocks
    }
}

impl Walk {
    /// Whether a stored block is among those that this walk verifies.
    pub(super) fn proves(&self, bp: &BlockPointer) -> bool {
        match self.prove {
            Prove::Nothing => false,
            Prove::Metadata => bp.level() > 0 || bp.object_type().is_metadata(),
            Prove::Everything => true,
            Prove::Lacking => self.blocks.tree().resilvering().needs(bp),
        }
    }

    /// As [`Walk::run_from`], but puts the blocks that have no pointers into a queue instead of visiting them. The walk ends when
    /// the given number of blocks are there. Blocks of intent logs, and gang blocks, are read at once.
    pub async fn find_from<V: Visit>(
        &self,
        roots: Vec<Root>,
        from: Position,
        (queue, max_blocks): (Arc<ScanQueue>, usize),
        visitor: &mut V,
    ) -> Option<Position> {
        let mut run = Run::new(self, visitor);
        run.sink = Some(Sink { queue, max_blocks });
        run.run_from(roots, from).await
    }

    /// Visits and reads the blocks of a queue, in ascending order on each top-level vdev, until it is empty or the visitor has
    /// enough. Needs no read hold: a block in the queue is not freed, and its read delays the reuse of its space.
    pub async fn read_found<V: Visit>(&self, queue: &ScanQueue, visitor: &mut V) {
        let mut run = Run::new(self, visitor);
        let tree = self.blocks.tree();
        let mut clients =
            Clients { counted: self.machine.clock.now(), operations: tree.foreground_operations(), last: None };
        loop {
            let are_active = clients.are_active(tree, self.machine.clock.now());
            run.renew_hold();
            let limits = match self.prove {
                _ if !are_active => WITHOUT_CLIENTS,
                Prove::Lacking => RESILVER_BESIDE_CLIENTS,
                _ => SCRUB_BESIDE_CLIENTS,
            };
            run.delay_factor = limits.delay_factor;
            if let Some(found) = run.next_found(queue, limits.parallel) {
                run.read(found);
                continue;
            }
            match run.reads.next().await {
                // The task was lost with its machine: there are no more results.
                None | Some(None) => return,
                Some(Some(done)) => run.finish(done),
            }
            run.visitor.tick();
        }
    }
}

impl<V: Visit> Run<'_, V> {
    /// Whether the next pointer can be visited as far as the queue is concerned. Blocks enter it in the order of the walk: it waits
    /// for pointers to earlier blocks that are being read. Else a queue that becomes full would hold blocks behind the position
    /// where the walk ends, which the next walk would find again.
    pub(super) fn may_find(&self) -> bool {
        let Some(sink) = &self.sink else { return true };
        let is_next = |item: &Item| {
            let earlier = self.reads_at.first_key_value().is_some_and(|(at, _)| *at < item.way.place());
            item.leads_on() || !earlier
        };
        !sink.is_full() && self.waiting.lowest().is_some_and(is_next)
    }

    /// Puts a block into the queue if the walk verifies it; visits others.
    pub(super) fn find(&mut self, item: &Item) {
        debug_assert!(!item.leads_on(), "the blocks below it would be left out");
        if !self.walk.proves(&item.bp) {
            self.visitor.block(&item.at, &item.bp);
        } else if let Some(sink) = &self.sink {
            sink.queue.insert(FoundBlock { origin: item.origin(), pointer: item.bp });
        }
    }

    /// Begins another read hold, before the next block leaves the queue, if the present one is old. Reads in progress keep theirs.
    fn renew_hold(&mut self) {
        let now = self.walk.machine.clock.now();
        if self.hold.as_ref().is_none_or(|hold| now.since(hold.begun) >= HOLD_TIME) {
            self.hold = Some(Arc::new(Hold { begun: now, _hold: self.walk.blocks.hold() }));
        }
    }

    fn next_found(&self, queue: &ScanQueue, limit: usize) -> Option<FoundBlock> {
        if self.bytes_under_way >= PARALLEL_BYTES || self.visitor.enough() {
            return None;
        }
        let reads = |vdev| self.of_vdevs.get(&vdev).copied().unwrap_or(0);
        queue.next(reads, limit)
    }

    fn read(&mut self, found: FoundBlock) {
        let FoundBlock { origin, pointer } = found;
        debug_assert!(self.hold.is_some(), "the space of the block may be used again");
        debug_assert!(i8::try_from(origin.level).is_ok(), "level {} of a block", origin.level);
        let at = VisitPosition {
            objset: origin.objset,
            object: origin.object,
            level: origin.level as i8,
            block: origin.block,
        };
        self.visitor.block(&at, &pointer);
        *self.of_vdevs.entry(pointer.dva(0).vdev).or_default() += 1;
        let item = Item { at, bp: pointer, after: Txg(0), log: false, way: ResumePath::default() };
        self.start(item, true, false, false);
    }
}
