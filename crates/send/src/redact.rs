//! Finds the blocks of a snapshot that all redaction snapshots changed (OpenZFS `module/zfs/dmu_redact.c`).
//!
//! ```text
//!   walk of each redaction snapshot   blocks born since, holes, objects that are gone ─► ranges, in order
//!   intersection                      from the last start to the first end of the ranges in front
//!   objects of the snapshot           cut to their blocks ─► runs of one object
//! ```
//!
//! The walks, the intersection and the reader of the runs go on at the same time; each queue is bounded. Runs that touch are
//! joined.

use crate::error::SendError;
use crate::make::MAX_AHEAD_BYTES;
use crate::traverse::{Found, Item, Traversal};
use futures_channel::mpsc::{self, Receiver, Sender};
use futures_util::StreamExt;
use futures_util::future::{join, join_all, poll_fn};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_dmu::zap::{self, Zap};
use weir_dmu::{Object, ObjectError, ObjectSet, VisitedBlocks};
use weir_format::dsl::RedactionBlock;
use weir_format::znode::master;
use weir_format::{ObjectId, ObjsetKind, Txg};
use weir_machine::{ByteSemaphore, Request};

/// Number of items that a walk may be ahead of the intersection.
const MAX_ITEMS: usize = 256;
/// Maximum accepted number of unlinked files.
const MAX_UNLINKED: usize = 1 << 24;

/// An object and a block of it.
type Position = (u64, u64);

/// Blocks from one position to another one, both included. All blocks of the objects in between belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: Position,
    last: Position,
}

impl Span {
    fn objects(first: u64, count: u64) -> Self {
        let last = first.saturating_add(count.saturating_sub(1));
        Span { first: (first, 0), last: (last, u64::MAX) }
    }

    /// Whether the other one begins where this one ends.
    fn touches(&self, next: &Span) -> bool {
        let (object, block) = self.last;
        let follows = block.checked_add(1).map(|block| (object, block));
        follows == Some(next.first)
            || block == u64::MAX && object.checked_add(1) == Some(next.first.0) && next.first.1 == 0
    }
}

/// The changes of a redaction snapshot, in order.
struct Changes {
    items: Receiver<Item>,
    /// Objects without a name, which count as removed.
    unlinked: BTreeSet<u64>,
    /// The object that was removed last.
    removed: u64,
    next: Option<Span>,
}

impl Changes {
    /// Takes the next range of changed blocks, as long as possible.
    async fn take(&mut self) -> Option<Span> {
        let mut span = match self.next.take() {
            Some(span) => span,
            None => self.one().await?,
        };
        while let Some(next) = self.one().await {
            if !span.touches(&next) {
                self.next = Some(next);
                break;
            }
            span.last = next.last;
        }
        Some(span)
    }

    /// The change that the next item of the walk means.
    async fn one(&mut self) -> Option<Span> {
        loop {
            let (found, _) = self.items.next().await?;
            let span = match found {
                Found::FreeObjects { first, count } => Span::objects(first.0, count),
                Found::Object { id, .. } if self.unlinked.contains(&id.0) => {
                    self.removed = id.0;
                    Span::objects(id.0, 1)
                }
                Found::Hole { object, first, end, .. } | Found::Redacted { object, first, end, .. }
                    if object.0 != self.removed =>
                {
                    Span { first: (object.0, first), last: (object.0, end.saturating_sub(1)) }
                }
                Found::Data { object, block, .. } if object.0 != self.removed => {
                    Span { first: (object.0, block), last: (object.0, block) }
                }
                _ => continue,
            };
            if span.first <= span.last {
                return Some(span);
            }
        }
    }
}

/// Writes the runs of blocks of `set`, a snapshot, that each of `by`, later snapshots, changed after the txg of the snapshot.
/// The sender is closed after the last one.
///
/// # Errors
/// Errors of reading; [`SendError::ReaderGone`] if the receiver of the runs is gone.
pub async fn redact(
    rq: &Request,
    set: &Arc<ObjectSet>,
    after: Txg,
    by: &[Arc<ObjectSet>],
    runs: Sender<RedactionBlock>,
) -> Result<(), SendError> {
    let mut changes = Vec::new();
    let mut walks = Vec::new();
    for of in by {
        let (to, items) = mpsc::channel(MAX_ITEMS);
        changes.push(Changes { items, unlinked: unlinked(rq, of).await?, removed: 0, next: None });
        let traversal = Traversal {
            rq,
            set: of,
            after,
            is_raw: false,
            all_holes: true,
            from_point: None,
            to,
            entered: VisitedBlocks::default(),
            memory: ByteSemaphore::new(MAX_AHEAD_BYTES),
        };
        walks.push(traversal.run());
    }
    let runs = Runs { rq, set, object: None, pending: None, to: runs };
    let (walked, cut) = join(join_all(walks), intersect(changes, runs)).await;
    for walk in walked {
        match walk {
            // One of the others has ended: there is nothing more that all have changed.
            Ok(()) | Err(SendError::ReaderGone) => {}
            Err(error) => return Err(error),
        }
    }
    cut
}

/// Objects of a file system that have no name any more (`zfs_get_deleteq`).
async fn unlinked(rq: &Request, set: &Arc<ObjectSet>) -> Result<BTreeSet<u64>, SendError> {
    if set.kind() != ObjsetKind::Zfs {
        return Ok(BTreeSet::new());
    }
    let queue = zap::lookup_word(rq, set, ObjectId(master::OBJECT), master::UNLINKED_SET).await?;
    let Some(queue) = queue else { return Ok(BTreeSet::new()) };
    let entries = Zap::open(rq, set, ObjectId(queue)).await?.all(rq, MAX_UNLINKED).await?;
    Ok(entries.into_iter().filter_map(|entry| entry.value.first()).collect())
}

/// Finds the ranges that all have changed (`perform_thread_merge`).
async fn intersect(mut all: Vec<Changes>, mut runs: Runs<'_>) -> Result<(), SendError> {
    let mut fronts = Vec::new();
    for changes in &mut all {
        let Some(span) = changes.take().await else { return runs.end().await };
        fronts.push(span);
    }
    loop {
        let start = fronts.iter().map(|span| span.first).max();
        let end = fronts.iter().map(|span| span.last).min();
        let (Some(first), Some(last)) = (start, end) else { return runs.end().await };
        if first <= last {
            runs.cut(Span { first, last }).await?;
        }
        // The range that ends first has nothing in common with the next ones of the others.
        for (front, changes) in fronts.iter_mut().zip(&mut all).filter(|(front, _)| front.last == last) {
            let Some(span) = changes.take().await else { return runs.end().await };
            *front = span;
        }
    }
}

/// Cuts ranges to the objects of the snapshot, and joins the runs.
struct Runs<'a> {
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    /// The object that the last range ended in.
    object: Option<Arc<Object>>,
    pending: Option<RedactionBlock>,
    to: Sender<RedactionBlock>,
}

impl Runs<'_> {
    /// The first object with contents from `id` on.
    async fn object(&mut self, id: u64) -> Result<Option<Arc<Object>>, SendError> {
        if let Some(object) = self.object.as_ref().filter(|object| object.id.0 == id) {
            return Ok(Some(object.clone()));
        }
        let mut from = ObjectId(id.max(1));
        while let Some(found) = self.set.dnodes().next_object(self.rq, from).await? {
            let object = self.set.object(self.rq, found).await?;
            if !object.dnode.object_type.is_metadata() {
                self.object = Some(object.clone());
                return Ok(Some(object));
            }
            from = ObjectId(found.0.saturating_add(1));
        }
        Ok(None)
    }

    /// Adds the blocks of a range that the snapshot has (`perform_redaction`).
    async fn cut(&mut self, span: Span) -> Result<(), SendError> {
        let mut id = span.first.0;
        while let Some(object) = self.object(id).await?.filter(|object| object.id.0 <= span.last.0) {
            let last_block = object.dnode.max_block_id;
            let first = if object.id.0 == span.first.0 { span.first.1 } else { 0 };
            let last = if object.id.0 == span.last.0 { span.last.1.min(last_block) } else { last_block };
            if first <= last {
                self.add(&object, first, last).await?;
            }
            if object.id.0 == span.last.0 {
                break;
            }
            id = object.id.0.saturating_add(1);
        }
        Ok(())
    }

    async fn add(&mut self, object: &Object, first: u64, last: u64) -> Result<(), SendError> {
        let place = self.set.place(object.id, 0, last);
        let too_many = || ObjectError::Corrupt { place, why: "an object with too many blocks" };
        let count = (last - first).checked_add(1).filter(|count| *count <= RedactionBlock::MAX_COUNT);
        let count = count.ok_or_else(too_many)?;
        let block_bytes = object.dnode.data_block_bytes;
        if let Some(run) = &mut self.pending
            && run.object == object.id
            && run.block.checked_add(run.count) == Some(first)
            && run.count + count <= RedactionBlock::MAX_COUNT
        {
            run.count += count;
            return Ok(());
        }
        let run = RedactionBlock { object: object.id, block: first, block_bytes, count };
        match self.pending.replace(run) {
            Some(run) => self.send(run).await,
            None => Ok(()),
        }
    }

    async fn send(&mut self, run: RedactionBlock) -> Result<(), SendError> {
        let gone = |_| SendError::ReaderGone;
        poll_fn(|cx| self.to.poll_ready(cx)).await.map_err(gone)?;
        self.to.start_send(run).map_err(gone)
    }

    async fn end(mut self) -> Result<(), SendError> {
        match self.pending.take() {
            Some(run) => self.send(run).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn spans_that_follow_each_other_touch() {
        let span = |first, last| Span { first, last };
        assert!(span((4, 2), (4, 5)).touches(&span((4, 6), (4, 6))));
        assert!(!span((4, 2), (4, 5)).touches(&span((4, 7), (4, 7))));
        assert!(Span::objects(4, 2).touches(&Span::objects(6, 1)));
        assert!(Span::objects(4, 2).touches(&span((6, 0), (6, 3))));
        assert!(!Span::objects(4, 2).touches(&span((6, 1), (6, 3))));
        assert_eq!(Span::objects(4, 2), span((4, 0), (5, u64::MAX)));
    }

    #[test]
    fn changes_are_joined_and_those_of_unlinked_files_are_all_their_blocks() {
        let (mut to, items) = mpsc::channel(8);
        let hole = |object, first, end| Found::Hole { object: ObjectId(object), first, end, block_bytes: 512 };
        for found in [
            Found::FreeObjects { first: ObjectId(2), count: 3 },
            Found::FreeObjects { first: ObjectId(5), count: 1 },
            hole(7, 0, 4),
            hole(7, 4, 6),
            hole(7, 8, 9),
            hole(9, 3, 3),
        ] {
            to.start_send((found, None)).unwrap();
        }
        drop(to);
        let mut changes = Changes { items, unlinked: BTreeSet::new(), removed: 0, next: None };
        let mut spans = Vec::new();
        while let Some(Some(span)) = changes.take().now_or_never() {
            spans.push(span);
        }
        let seven = |first, last| Span { first: (7, first), last: (7, last) };
        assert_eq!(spans, [Span::objects(2, 4), seven(0, 5), seven(8, 8)]);
    }
}
