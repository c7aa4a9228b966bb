//! Walks that only find the blocks to verify, and the reads of these blocks in the order of their place on the devices.
//!
//! See [`weir_blocks::scan_queue`].

use super::{Item, PARALLEL_BYTES, Position, Prove, ResumePath, Root, Run, Visit, VisitPosition, Walk};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use weir_blocks::{FoundBlock, ScanQueue};
use weir_format::{BlockPointer, Txg};
use weir_machine::Nanos;

/// Maximum number of concurrent reads of found blocks in one top-level vdev: more than its devices begin at the same time, so
/// that they sort and merge the others.
const PARALLEL_IN_VDEV: usize = 128;

/// Maximum number of these reads while clients use the devices.
const PARALLEL_BESIDE_CLIENTS: usize = 2;
/// Delay after each of these reads, as a multiple of the read's duration.
const DELAY_BESIDE_CLIENTS: u32 = 2;
/// Maximum delay.
pub(super) const MAX_DELAY: Duration = Duration::from_millis(200);
/// Interval in which operations of clients are counted, and the least number of them that counts as use.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);
const LEAST_OPERATIONS: u64 = 3;

/// Whether clients use the devices.
struct Clients {
    counted: Nanos,
    operations: u64,
    are_active: bool,
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
    /// enough.
    pub async fn read_found<V: Visit>(&self, queue: &ScanQueue, visitor: &mut V) {
        let mut run = Run::new(self, visitor);
        let operations = self.blocks.tree().foreground_operations();
        let mut clients = Clients { counted: self.machine.clock.now(), operations, are_active: false };
        loop {
            self.count(&mut clients);
            run.delay_factor = if clients.are_active { DELAY_BESIDE_CLIENTS } else { 0 };
            let limit = if clients.are_active { PARALLEL_BESIDE_CLIENTS } else { PARALLEL_IN_VDEV };
            if let Some(found) = run.next_found(queue, limit) {
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

    /// Counts the operations of clients again if [`COUNT_INTERVAL`] has passed since the last count.
    fn count(&self, clients: &mut Clients) {
        let now = self.machine.clock.now();
        if now.since(clients.counted) < COUNT_INTERVAL {
            return;
        }
        let operations = self.blocks.tree().foreground_operations();
        let added = operations.saturating_sub(clients.operations);
        *clients = Clients { counted: now, operations, are_active: added >= LEAST_OPERATIONS };
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

    fn next_found(&self, queue: &ScanQueue, limit: usize) -> Option<FoundBlock> {
        if self.bytes_under_way >= PARALLEL_BYTES || self.visitor.enough() {
            return None;
        }
        let reads = |vdev| self.of_vdevs.get(&vdev).copied().unwrap_or(0);
        queue.next(reads, limit)
    }

    fn read(&mut self, found: FoundBlock) {
        let FoundBlock { origin, pointer } = found;
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
