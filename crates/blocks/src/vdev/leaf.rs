//! Leaves: one disk each, behind a queue ([`super::queue`]).
//!
//! Nobody owns the queue: the reader whose turn it is reads for its whole batch, and whoever ends a read passes the turn
//! on. A reader that is dropped passes its turn on as well, and those that waited for its batch ask again: nobody is
//! stranded, and no task of its own is needed.

use super::queue::{Batch, Queue};
use super::write::{LeafWrites, WriteCounts};
use super::{Job, Place, Proof, Vdev};
use crate::error::BlockError;
use futures_channel::oneshot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_format::Txg;
use weir_machine::{Buf, Disk, DiskError, Priority};

/// Two labels and the boot area stand before the allocatable space (`VDEV_LABEL_START_SIZE`).
pub const FRONT_BYTES: u64 = 4 << 20;

/// What a leaf did, counted since the pool was opened.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads answered.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// Reads whose bytes were not those that were written.
    pub checksum_errors: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes that they wrote.
    pub write_bytes: u64,
    /// Writes and flushes answered with an error.
    pub write_errors: u64,
    /// Bytes written to put wrong ones right.
    pub repaired_bytes: u64,
}

impl Counters {
    /// The counters now.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }

    /// Counts bytes that turned out wrong.
    pub(crate) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a waiting reader is told.
enum Verdict {
    /// Its bytes.
    Done(Result<Buf, DiskError>),
    /// It is its turn: it reads for itself and for the others of the batch.
    Go(Batch<Waiter>, Turn),
}

type Waiter = oneshot::Sender<Verdict>;
type SharedQueue = Arc<Mutex<Queue<Waiter>>>;

/// Held only for a few instructions, never while anything is waited for.
fn lock(queue: &SharedQueue) -> MutexGuard<'_, Queue<Waiter>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Leaf {
    disk: Option<Arc<dyn Disk>>,
    stale: bool,
    dtl: Vec<(Txg, Txg)>,
    counters: Counters,
    queue: SharedQueue,
    writes: LeafWrites,
}

/// A place among the reads under way. Given up, also with the future (or the unread message) that holds it, it passes to
/// the next that waits.
struct Turn {
    queue: SharedQueue,
    class: Priority,
}

impl Drop for Turn {
    fn drop(&mut self) {
        loop {
            let Some(batch) = lock(&self.queue).done(self.class) else { return };
            self.class = batch.class;
            if hand_over(&self.queue, batch) {
                return;
            }
        }
    }
}

/// Gives the turn to the first of the batch that still waits; false if none does.
fn hand_over(queue: &SharedQueue, mut batch: Batch<Waiter>) -> bool {
    batch.members.retain(|m| !m.token.is_canceled());
    if batch.members.is_empty() {
        return false;
    }
    let leader = batch.members.remove(0).token;
    let turn = Turn { queue: queue.clone(), class: batch.class };
    // If it has gone this very moment, the message comes back, and dropping it passes the turn on.
    drop(leader.send(Verdict::Go(batch, turn)));
    true
}

impl Leaf {
    pub fn new(disk: Option<Arc<dyn Disk>>, stale: bool, dtl: Vec<(Txg, Txg)>) -> Self {
        Leaf { disk, stale, dtl, counters: Counters::default(), queue: Arc::default(), writes: LeafWrites::default() }
    }

    pub fn present(&self) -> bool {
        self.disk.is_some()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All that is counted.
    pub fn counts(&self) -> Counts {
        let WriteCounts { writes, write_bytes, write_errors, repaired_bytes } = self.writes.counts();
        Counts { writes, write_bytes, write_errors, repaired_bytes, ..self.counters.counts() }
    }

    pub fn disk(&self) -> Option<&Arc<dyn Disk>> {
        self.disk.as_ref()
    }

    pub(super) fn writes(&self) -> &LeafWrites {
        &self.writes
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Reads under way and waiting.
    pub fn load(&self) -> usize {
        lock(&self.queue).load()
    }

    pub fn reluctance(&self, birth: Txg) -> u8 {
        if self.disk.is_none() {
            2
        } else {
            let missed =
                self.dtl.iter().any(|(from, to)| (*from..=*to).contains(&birth)) || self.writes.has_missed(birth);
            u8::from(self.stale || missed)
        }
    }

    /// Reads `len` bytes at `offset` of the allocatable space.
    pub async fn read(
        &self,
        vdev: &Vdev,
        job: &Job<'_>,
        place: Place,
        offset: u64,
        len: u64,
        proof: Option<Proof<'_>>,
    ) -> Result<Buf, BlockError> {
        let Place { vdev: top, offset: at, .. } = place;
        let Some(disk) = &self.disk else {
            return Err(BlockError::Missing { vdev: top, offset: at, devices: vec![vdev.name.clone()] });
        };
        let started = job.clock.now();
        let answer = self.queued(disk, job.request.priority, offset, len).await;
        job.request.book_device(job.clock.now().ns_since(started));
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let buf = answer.map_err(|error| {
            self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            BlockError::Device { vdev: top, offset: at, device: vdev.name.clone(), error }
        })?;
        self.counters.read_bytes.fetch_add(len, Ordering::Relaxed);
        match proof.map(|test| test(buf.as_ref())) {
            None | Some(Ok(())) => Ok(buf),
            Some(Err(fault)) => {
                if !job.speculative {
                    self.counters.checksum_error();
                }
                Err(BlockError::Corrupt { vdev: top, offset: at, fault })
            }
        }
    }

    /// Reads as soon as it is this read's turn, perhaps together with others.
    async fn queued(&self, disk: &Arc<dyn Disk>, class: Priority, offset: u64, len: u64) -> Result<Buf, DiskError> {
        loop {
            let verdict = {
                let mut queue = lock(&self.queue);
                if queue.try_start(class) {
                    None
                } else {
                    let (token, verdict) = oneshot::channel();
                    queue.wait(class, offset, len, token);
                    Some(verdict)
                }
            };
            let Some(verdict) = verdict else {
                let _turn = Turn { queue: self.queue.clone(), class };
                return transfer(disk, offset, len).await;
            };
            match verdict.await {
                Ok(Verdict::Done(answer)) => return answer,
                Ok(Verdict::Go(batch, turn)) => return lead(disk, batch, turn, offset, len).await,
                // The reader that led the batch was dropped: ask again.
                Err(oneshot::Canceled) => {}
            }
        }
    }
}

/// Reads a batch, gives each of the others its part, and keeps the part at `offset`.
async fn lead(
    disk: &Arc<dyn Disk>,
    batch: Batch<Waiter>,
    _turn: Turn,
    offset: u64,
    len: u64,
) -> Result<Buf, DiskError> {
    if batch.members.is_empty() {
        return transfer(disk, offset, len).await;
    }
    match transfer(disk, batch.offset, batch.len).await {
        Ok(whole) => {
            let part = |from: u64, len| cut(disk, &whole, from.saturating_sub(batch.offset), len);
            for member in batch.members {
                // A reader that no longer waits does not want its part.
                let _gone = member.token.send(Verdict::Done(Ok(part(member.offset, member.len))));
            }
            Ok(part(offset, len))
        }
        // One bad sector must not spoil its neighbours: each is read alone.
        Err(_) => {
            for member in batch.members {
                let alone = transfer(disk, member.offset, member.len).await;
                let _gone = member.token.send(Verdict::Done(alone));
            }
            transfer(disk, offset, len).await
        }
    }
}

/// A copy of a part of what was read.
fn cut(disk: &Arc<dyn Disk>, whole: &Buf, from: u64, len: u64) -> Buf {
    let mut buf = disk.buffer(len as usize);
    let from = from as usize;
    // The batch covers each of its members, so the part is there.
    if let Some(part) = whole.as_ref().get(from..from + len as usize) {
        buf.as_mut().copy_from_slice(part);
    }
    buf
}

/// Reads a range of the allocatable space, widened to the disk's own sectors where they are larger than the pool's.
async fn transfer(disk: &Arc<dyn Disk>, offset: u64, len: u64) -> Result<Buf, DiskError> {
    let geometry = disk.geometry();
    let sector = u64::from(geometry.sector_bytes.max(1));
    let out_of_range = DiskError::OutOfRange {
        op: weir_machine::Op::Read,
        offset: offset.wrapping_add(FRONT_BYTES),
        len,
        size_bytes: geometry.size_bytes,
    };
    // Wrapping: a RAID-Z vdev that is being widened has its scratch area in front of the space.
    let start = offset.wrapping_add(FRONT_BYTES);
    let Some(end) = start.checked_add(len).filter(|&end| end <= geometry.size_bytes) else { return Err(out_of_range) };
    let first = start / sector * sector;
    let last = end.next_multiple_of(sector);
    let mut buf = disk.read(first, (last - first) as usize).await?;
    buf.advance((start - first) as usize);
    buf.truncate(len as usize);
    Ok(buf)
}
