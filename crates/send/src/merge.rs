//! Applies redaction lists to the walk of a snapshot (OpenZFS `module/zfs/dmu_send.c`, `send_merge_thread`,
//! `send_reader_thread`).
//!
//! ```text
//!   list of --redact          ─┐  all by object and block;
//!   walk of the snapshot      ─┼► where ranges overlap, the first source counts ─► items
//!   list of the origin's      ─┘
//!     redaction bookmark         in both lists: left out, because the receiver has these blocks redacted already
//!                                in the last list alone: looked up in the snapshot, and sent
//! ```

use crate::error::SendError;
use crate::make::MAX_AHEAD_BYTES;
use crate::traverse::{Found, Item};
use futures_channel::mpsc::{Receiver, Sender};
use futures_util::StreamExt;
use futures_util::future::poll_fn;
use std::sync::Arc;
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet};
use weir_dsl::redaction::RedactionReader;
use weir_format::ObjectId;
use weir_machine::{BytePermit, ByteSemaphore, Request, invariant};

/// The place of an item in the order of a stream: object; 0 for ranges of dnodes, 1 for objects, 2 for blocks; block.
type Place = (ObjectId, u8, u64);

/// Blocks of an object, up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    object: ObjectId,
    first: u64,
    end: u64,
    block_bytes: u64,
}

/// A redaction list with its next run.
struct List {
    reader: Option<RedactionReader>,
    front: Option<Run>,
}

impl List {
    async fn new(rq: &Request, reader: Option<RedactionReader>) -> Result<Self, SendError> {
        let mut list = List { reader, front: None };
        list.advance(rq, u64::MAX).await?;
        Ok(list)
    }

    fn place(&self) -> Option<Place> {
        self.front.map(|run| (run.object, 2, run.first))
    }

    /// Goes on to the block `until`, or after the run's end to the next run.
    async fn advance(&mut self, rq: &Request, until: u64) -> Result<(), SendError> {
        if let Some(run) = self.front.as_mut().filter(|run| until < run.end) {
            run.first = until;
            return Ok(());
        }
        self.front = match &mut self.reader {
            Some(reader) => reader.next(rq).await?.map(|run| Run {
                object: run.object,
                first: run.block,
                end: run.block.saturating_add(run.count),
                block_bytes: run.block_bytes.into(),
            }),
            None => None,
        };
        Ok(())
    }
}

/// The walk of the snapshot with its next item.
struct Walk {
    items: Receiver<Item>,
    front: Option<Item>,
}

impl Walk {
    /// Takes the item in front.
    async fn next(&mut self) -> Option<Item> {
        let next = self.items.next().await;
        std::mem::replace(&mut self.front, next)
    }

    fn place(&self) -> Option<Place> {
        let (found, _) = self.front.as_ref()?;
        Some(match found {
            Found::ObjectRange { first, .. } => (*first, 0, 0),
            Found::FreeObjects { first, .. } => (*first, 1, 0),
            Found::Object { id, .. } => (*id, 1, 0),
            Found::Hole { object, first, .. } | Found::Redacted { object, first, .. } => (*object, 2, *first),
            Found::Data { object, block, .. } => (*object, 2, *block),
            Found::Spill { object, .. } => (*object, 2, ErrorLocation::SPILL),
        })
    }

    /// The range of blocks in front.
    fn run(&self) -> Option<Run> {
        let (found, _) = self.front.as_ref()?;
        match found {
            Found::Hole { object, first, end, block_bytes } | Found::Redacted { object, first, end, block_bytes } => {
                Some(Run { object: *object, first: *first, end: *end, block_bytes: *block_bytes })
            }
            Found::Data { object, dnode, block, .. } => {
                let end = block.saturating_add(1);
                Some(Run { object: *object, first: *block, end, block_bytes: dnode.block_bytes() })
            }
            _ => None,
        }
    }

    /// Takes the part of the range in front that ends at `until`.
    async fn take(&mut self, until: u64) -> Option<Item> {
        match self.front.as_mut() {
            Some((Found::Hole { object, first, end, block_bytes }, _)) if until < *end => {
                let (object, start) = (*object, std::mem::replace(first, until));
                Some((Found::Hole { object, first: start, end: until, block_bytes: *block_bytes }, None))
            }
            Some((Found::Redacted { object, first, end, block_bytes }, _)) if until < *end => {
                let (object, start) = (*object, std::mem::replace(first, until));
                Some((Found::Redacted { object, first: start, end: until, block_bytes: *block_bytes }, None))
            }
            _ => self.next().await,
        }
    }
}

/// The end of the piece from `start` on in which no range begins or ends.
fn end_of(start: Place, runs: &[Option<Run>]) -> u64 {
    let (object, _, first) = start;
    let of_object = runs.iter().flatten().filter(|run| run.object == object);
    of_object.map(|run| if run.first > first { run.first } else { run.end }).min().unwrap_or(first)
}

/// The merging of the lists and the walk.
pub(crate) struct Merge<'a> {
    pub rq: &'a Request,
    pub set: &'a Arc<ObjectSet>,
    /// Blocks that the stream leaves out.
    pub redact: Option<RedactionReader>,
    /// Blocks that the receiver has redacted.
    pub previous: Option<RedactionReader>,
    pub walk: Receiver<Item>,
    pub to: Sender<Item>,
}

impl Merge<'_> {
    /// Merges until the walk and both lists have ended.
    pub async fn run(self) -> Result<(), SendError> {
        let Merge { rq, set, redact, previous, mut walk, to } = self;
        // The walk waits for the memory of its blocks while this waits for that of others.
        let mut out = Merged { rq, set, to, memory: ByteSemaphore::new(MAX_AHEAD_BYTES) };
        let mut redact = List::new(rq, redact).await?;
        let mut previous = List::new(rq, previous).await?;
        let front = walk.next().await;
        let mut walk = Walk { items: walk, front };
        loop {
            let places = [redact.place(), walk.place(), previous.place()];
            let Some(start) = places.into_iter().flatten().min() else { return Ok(()) };
            let [is_redacted, is_walked, was_redacted] = places.map(|place| place == Some(start));
            if is_walked && walk.run().is_none() {
                if let Some(item) = walk.next().await {
                    out.send(item).await?;
                }
                continue;
            }
            let end = end_of(start, &[redact.front, walk.run(), previous.front]);
            invariant!(end > start.2 || is_walked, "a piece of a redaction list has blocks");
            let walked = if is_walked { walk.take(end).await } else { None };
            let piece = |run: Run| Run { first: start.2, end, ..run };
            match (redact.front, walked, previous.front) {
                // The receiver has these blocks redacted already.
                _ if is_redacted && was_redacted => {}
                (Some(run), ..) if is_redacted => out.redacted(piece(run)).await?,
                (_, Some(item), _) => out.send(item).await?,
                (_, None, Some(run)) => out.resolved(piece(run)).await?,
                (_, None, None) => {}
            }
            if is_redacted {
                redact.advance(rq, end).await?;
            }
            if was_redacted {
                previous.advance(rq, end).await?;
            }
        }
    }
}

/// The items of the stream.
struct Merged<'a> {
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    to: Sender<Item>,
    memory: ByteSemaphore,
}

impl Merged<'_> {
    async fn send(&mut self, item: Item) -> Result<(), SendError> {
        let gone = |_| SendError::ReaderGone;
        poll_fn(|cx| self.to.poll_ready(cx)).await.map_err(gone)?;
        self.to.start_send(item).map_err(gone)
    }

    async fn redacted(&mut self, run: Run) -> Result<(), SendError> {
        let Run { object, first, end, block_bytes } = run;
        self.send((Found::Redacted { object, first, end, block_bytes }, None)).await
    }

    /// Sends blocks that the receiver has redacted, as far as the snapshot still has the object.
    async fn resolved(&mut self, run: Run) -> Result<(), SendError> {
        let object = match self.set.object(self.rq, run.object).await {
            Ok(object) => object,
            Err(ObjectError::NoObject { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let block_bytes = object.block_bytes();
        let end = run.end.min(object.dnode.max_block_id.saturating_add(1));
        let mut at = run.first;
        while at < end {
            let next = self.set.pointers().next_data_block(self.rq, &object, at).await?;
            let data = next.unwrap_or(end).min(end);
            if data > at {
                self.send((Found::Hole { object: object.id, first: at, end: data, block_bytes }, None)).await?;
            }
            if data == end {
                break;
            }
            at = data + 1;
            let Some(pointer) = self.set.pointers().at(self.rq, &object, 0, data).await? else { continue };
            if pointer.is_redacted() {
                self.redacted(Run { object: object.id, first: data, end: at, block_bytes }).await?;
                continue;
            }
            let bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX).min(MAX_AHEAD_BYTES);
            let permit: BytePermit = self.memory.acquire(bytes).await;
            let found = Found::Data { object: object.id, dnode: object.clone(), block: data, pointer };
            self.send((found, Some(permit))).await?;
        }
        Ok(())
    }
}
